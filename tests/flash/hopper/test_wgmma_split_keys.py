"""The forward kernel for Hopper of f32, as pairs of f16, where the keys are divided into splits: its own PTX
and that of the kernel that merges the parts, run on the interpreter with the sanitizers on, against float64.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from judge import assert_attention_is_accurate
from kernel_runs import Problem, assert_no_spill_of, nightly

from flash import AttentionKernel, DecodeKernel
from flash.contract.catalogue import build
from flash.error_bound import PARTS_OF_F32, arithmetic_of_config
from flash.families.wgmma_split import SplitWgmmaTiling
from flash.problem.config import AttentionConfig
from flash.problem.kernel_config import KernelConfig
from flash.reference import attention_reference
from ptxgen import interpreter
from ptxgen.interpreter import PCT
from ptxgen.runtime.assembler import Assembler

pytestmark = [pytest.mark.grid, pytest.mark.judged]

EVERY_CHECK = ["all", "mbarrier_init"]
Array = np.ndarray[Any, Any]


class Kernels:
    """What launches on the interpreter run: the names of kernels; and how they are run."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.how: dict[str, Any] = {"sanitize": EVERY_CHECK}


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    run, found = interpreter.run, Kernels()

    def watched(module: Any, *given: Any, **how: Any) -> Any:
        found.names.append(module.kernels[0].name)
        return run(module, *given, **{**how, **found.how})

    monkeypatch.setattr(interpreter, "run", watched)
    return found


def grade(head_dim: int = 16, head_dim_v: int | None = None, **how: Any) -> AttentionConfig:
    """Small tiles, so that small problems have more of them than splits."""
    small = {"precision": "f32_grade", "target": "sm_90a", "return_lse": True, "tile": 16, "block_q": 64}
    return AttentionConfig(head_dim, head_dim_v, **{**small, **how})


def judge(config: AttentionConfig, arrays: tuple[Array, ...], out: Array, lse: Array, **given: Any) -> None:
    how: dict[str, Any] = {"softmax_scale": config.scale, "causal": config.causal, **config.score_arguments}
    arithmetic = arithmetic_of_config(config, PARTS_OF_F32)
    assert_attention_is_accurate(out, lse, *arrays, arithmetic=arithmetic, **{**how, **given})


def merged(kernels: Kernels) -> bool:
    """Whether the kernel with `wgmma` has written parts that another one has merged."""
    first, *others = kernels.names
    parted = "_wgmma_f32_grade_" in first and "_splits_" in first
    return parted and len(others) == 1 and others[0].startswith("merge_partials_f32_")


@pytest.mark.slow
@pytest.mark.sample(2, gate=2)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"head_dim": 32, "head_dim_v": 20, "causal": "top_left", "splits": 2},
        {"head_dim": 20, "head_dim_v": 36, "causal": True, "pack_gqa": True},
        {"head_dim": 64, "causal": "bottom_right", "block_q": 128, "splits": 7},
        {"head_dim": 40, "head_dim_v": 68, "window": (30, 9), "softcap": 2.0},
        {"head_dim": 96, "stages": 3, "splits": 2},
        {"head_dim": 128, "head_dim_v": 124, "tile": 48, "pack_gqa": True},
        {"head_dim": 4, "head_dim_v": 60, "tile": 112},
    ],
    ids=str,
)
@pytest.mark.parametrize("sizes", [(1, 130, 2, 4, 2), (70, 150, 1, 2, 1), (3, 40, 1, 3, 1)], ids=str)
def test_splits_are_as_accurate_as_one(how: dict[str, Any], sizes: tuple[int, ...], kernels: Kernels) -> None:
    config = grade(**{"splits": 3, **how})
    seq_q, seq_k, batch, heads, kv_heads = sizes
    problem = Problem(seq_q, seq_k, config.head_dim, config.value_dim, batch, heads, kv_heads)
    arrays = problem.arrays()
    out, lse = AttentionKernel(config).launch(*arrays, backend="interpreter")
    assert merged(kernels), kernels.names
    judge(config, arrays, out, lse)


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("how", "shapes"),
    [
        ({"sink": True}, {"sink": (2,)}),
        ({"alibi": True, "pack_gqa": True}, {"alibi_slopes": (2,)}),
        ({"bias": "f32", "causal": True}, {"bias": (1, 2, 30, 100)}),
    ],
    ids=str,
)
def test_arrays_of_scores_go_with_splits(
    how: dict[str, Any], shapes: dict[str, tuple[int, ...]], kernels: Kernels
) -> None:
    rng = np.random.default_rng(3)
    given: dict[str, Any] = {name: rng.uniform(0.1, 1, shape).astype("f4") for name, shape in shapes.items()}
    config, arrays = grade(**how, splits=3), Problem(30, 100, 16, 16, 1, 2, 1).arrays()
    out, lse = AttentionKernel(config).launch(*arrays, backend="interpreter", **given)
    assert merged(kernels), kernels.names
    judge(config, arrays, out, lse, **given)


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [{"causal": True}, nightly({}), nightly({"causal": True, "window": (50, 0)})], ids=str
)
def test_numbers_that_are_not_finite_reach_only_rows_that_see_them(
    how: dict[str, Any], kernels: Kernels
) -> None:
    config = grade(24, 40, **how, splits=3)
    q, k, v = Problem(70, 130, 24, 40).arrays()
    clean, clean_lse = AttentionKernel(config).launch(q, k, v, backend="interpreter")
    v[..., 110, 3], v[..., 125, 39], v[..., 125, 8], v[..., 128, 8] = np.nan, np.inf, -np.inf, np.inf
    v[..., 2, 9], v[..., 60, 10] = np.inf, -np.inf  # in tiles that all rows see
    kernels.names.clear()
    out, lse = AttentionKernel(config).launch(q, k, v, backend="interpreter")
    assert merged(kernels), kernels.names
    np.testing.assert_array_equal(lse, clean_lse)
    with np.errstate(invalid="ignore"):
        wanted, _ = attention_reference(q, k, v, **how)
    odd = ~np.isfinite(wanted)
    assert odd.any()
    np.testing.assert_array_equal(out[odd], wanted[odd])
    np.testing.assert_array_equal(out[~odd], clean[~odd])


@pytest.mark.usefixtures("kernels")
def test_a_large_value_takes_no_digit_from_other_parts() -> None:
    config = grade(splits=3)
    q, k, v = Problem(20, 90, 16, 16).arrays()
    v[..., :30, :] *= 2.0**60
    v[..., 60:, :] *= 2.0**-60
    out, lse = AttentionKernel(config).launch(q, k, v, backend="interpreter")
    judge(config, (q, k, v), out, lse)


@pytest.mark.parametrize("seed", [nightly(seed) for seed in range(20)])
def test_any_order_of_warps_gives_the_same_bits(seed: int, kernels: Kernels) -> None:
    config = grade(64, causal=True, block_q=128, pack_gqa=True, splits=2)
    arrays = Problem(45, 130, 64, 64, 1, 3, 1).arrays()
    plain = AttentionKernel(config).launch(*arrays, backend="interpreter")
    kernels.how |= {"schedule": PCT(seed)}
    found = AttentionKernel(config).launch(*arrays, backend="interpreter")
    for one, other in zip(found, plain, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.sample(1, gate=1)
@pytest.mark.parametrize("paged", [True, False])
@pytest.mark.parametrize("how", [{"causal": True, "pack_gqa": True}, {"window": (30, None)}], ids=str)
def test_a_cache_is_divided(how: dict[str, Any], paged: bool, kernels: Kernels) -> None:
    config, used = grade(24, 36, **{"causal": True, **how}), np.array([80, 37], np.int32)
    q, k, v = Problem(3, 80, 24, 36, 2, 4, 2).arrays()
    cache, lengths = [k, v], dict[str, Any](seqused_k=used)
    if paged:
        lengths["block_table"] = np.random.default_rng(1).permutation(10).astype(np.int32).reshape(2, 5)
        for n, of in enumerate((k, v)):
            pages = of.reshape(2, 2, 5, 16, -1).swapaxes(1, 2)
            cache[n] = np.empty((10, *pages.shape[2:]), np.float32)
            cache[n][lengths["block_table"]] = pages
    out, lse = DecodeKernel(config).launch(q, cache[0], cache[1], backend="interpreter", splits=3, **lengths)
    assert merged(kernels), kernels.names
    for b, count in enumerate(used):
        item = slice(b, b + 1)
        judge(config, (q[item], k[item, :, :count], v[item, :, :count]), out[item], lse[item])


def divided(config: AttentionConfig, **features: Any) -> KernelConfig:
    """The kernel of a launch whose keys are divided."""
    kernel = config.kernel(return_lse=True)
    assert isinstance(kernel.tiling, SplitWgmmaTiling)
    return replace(kernel, features=replace(kernel.features, splits=True, **features))


FEATURES: list[dict[str, Any]] = [
    {"causal": True},
    {"causal": True, "window": (40, 0)},
    {"pack_gqa": True, "causal": True},
    {"page_size": 16, "seqused_k": True},
]


@pytest.mark.slow
@pytest.mark.sample(2, gate=4)
@pytest.mark.parametrize("head_dim", [128, *(nightly(d) for d in (16, 64, 96))])
@pytest.mark.parametrize("how", FEATURES, ids=str)
def test_all_accesses_and_barriers_are_proved(head_dim: int, how: dict[str, Any]) -> None:
    made = build(kernel_of(head_dim, how))
    assert made.proof.complete, made.proof
    assert made.global_proof.complete, made.global_proof


@pytest.mark.slow
@pytest.mark.ptxas
@pytest.mark.parametrize("head_dim", [128, *(nightly(d) for d in (16, 64, 96))])
@pytest.mark.parametrize("how", [{"causal": True}, *(nightly(how) for how in FEATURES)], ids=str)
def test_no_kernel_spills(head_dim: int, how: dict[str, Any], assembler: Assembler) -> None:
    assert_no_spill_of(kernel_of(head_dim, how), assembler)


def kernel_of(head_dim: int, how: dict[str, Any]) -> KernelConfig:
    """The kernel with its default tiles, some features of which are of caches alone."""
    of_caches = {name: how[name] for name in how if name in ("page_size", "seqused_k")}
    asked = {name: how[name] for name in how if name not in of_caches}
    config = AttentionConfig(head_dim, precision="f32_grade", target="sm_90a", **asked)
    return divided(config, **of_caches)
