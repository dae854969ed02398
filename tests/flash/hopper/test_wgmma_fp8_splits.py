"""The forward kernel for Hopper with Q, K and V of fp8 where the keys are divided into splits: its own PTX
and that of the kernel that merges the parts, run on the interpreter with the sanitizers on, against float64.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conformance import SCALES, arrays_of, bound_of
from device_arrays import interpreting, without_assembler
from fake_driver import FakeDevice, FakeDriver
from fp8_runs import Kernels, config_of, scaled, scales_of, watched
from judge import assert_within
from kernel_runs import assert_no_spill_of, nightly

from flash import AttentionKernel
from flash.contract.catalogue import build
from flash.error_bound import PARTS_OF_F32
from flash.families.choice import tiles_that_fit
from flash.launch import forward
from flash.launch.key_splits import Division
from flash.problem.config import AttentionConfig
from flash.problem.kernel_config import KernelConfig
from flash.reference import attention_reference
from ptxgen.interpreter import PCT
from ptxgen.runtime.assembler import Assembler
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.cuda import CudaBackend

pytestmark = [pytest.mark.grid, pytest.mark.judged]


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    return watched(monkeypatch)


def check(
    kernels: Kernels, config: AttentionConfig, sizes: tuple[int, ...], operands: dict[str, Any] | None = None
) -> None:
    """Run a call and judge it. `sizes` are seq_q, seq_k, and if they are not 1 batch, heads and kv_heads."""
    arrays, given = arrays_of(config, *sizes), operands or {}
    scales = scales_of(arrays[1].shape[0], arrays[1].shape[1])
    out, lse = AttentionKernel(config).launch(*arrays, backend="interpreter", **scales, **given)
    assert "_splits_" in kernels.names[0]
    assert kernels.names[1].startswith(f"merge_partials_{config.output.name}_")
    assert_within(out, lse, bound_of(config, arrays, {**scales, **given}, PARTS_OF_F32))


@pytest.mark.slow
@pytest.mark.sample(2, gate=2)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"causal": "bottom_right", "dtype": "e5m2", "splits": 2},
        {"causal": "top_left", "block_q": 128, "out_dtype": "f16"},
        {"window": (30, 9), "block_q": 192, "splits": 2},
        {"causal": True, "softcap": 2.0, "stages": 3, "pack_gqa": True},
        {"head_dim": 48, "head_dim_v": 144, "tile": 128},
        {"head_dim": 256, "pack_gqa": True, "splits": 9},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "sizes", [(1, 330, 2, 4, 2), (70, 300), (130, 65, 1, 2, 1), (20, 700, 1, 3, 1)], ids=str
)
def test_splits_are_as_accurate_as_one(how: dict[str, Any], sizes: tuple[int, ...], kernels: Kernels) -> None:
    check(kernels, config_of(**{"splits": 3, **how}), sizes)


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("how", "shapes"),
    [
        ({"sink": True}, {"sink": (2, 4)}),
        ({"alibi": True, "pack_gqa": True}, {"alibi_slopes": (2, 4)}),
        ({"bias": "f32"}, {"bias": (2, 4, 60, 250)}),
    ],
    ids=str,
)
def test_arrays_of_scores_go_with_splits(
    how: dict[str, Any], shapes: dict[str, tuple[int, ...]], kernels: Kernels
) -> None:
    rng = np.random.default_rng(3)
    given = {name: rng.uniform(0.1, 1, shape).astype("f4") for name, shape in shapes.items()}
    check(kernels, config_of(**how, splits=3), (60, 250, 2, 4, 2), given)


@pytest.mark.slow
@pytest.mark.usefixtures("kernels")
def test_numbers_that_are_not_finite_reach_only_rows_that_see_them() -> None:
    config = config_of(causal=True, dtype="e5m2", splits=3)
    q, k, v = arrays_of(config, 40, 250)
    scales = scales_of()
    clean, clean_lse = AttentionKernel(config).launch(q, k, v, backend="interpreter", **scales)
    for n, value in enumerate((np.nan, np.inf, -np.inf)):
        for place, key in enumerate((249, 241 - n, 10)):  # in the last and the first split
            v[0, 0, key, 3 + 8 * n + place] = value
    out, lse = AttentionKernel(config).launch(q, k, v, backend="interpreter", **scales)
    with np.errstate(invalid="ignore"):
        wanted, _ = attention_reference(*scaled((q, k, v), scales), causal=config.causal)
    odd = ~np.isfinite(wanted)
    np.testing.assert_array_equal(lse, clean_lse)
    np.testing.assert_array_equal(out[odd].astype(np.float64), wanted[odd])
    bad = ~np.isfinite(v).all(axis=2)  # columns
    np.testing.assert_array_equal(out.swapaxes(2, 3)[~bad], clean.swapaxes(2, 3)[~bad])


@pytest.mark.nightly
@pytest.mark.usefixtures("kernels")
def test_rows_without_a_key_give_zero() -> None:
    config = config_of(causal=True, splits=2)
    out, lse = AttentionKernel(config).launch(
        *arrays_of(config, 80, 70), backend="interpreter", **scales_of()
    )
    assert not out[:, :, :10].any()
    assert np.isneginf(lse[:, :, :10]).all()
    assert np.isfinite(lse[:, :, 10:]).all()


@pytest.mark.parametrize("seed", [nightly(seed) for seed in range(20)])
def test_any_order_of_warps_gives_the_same_bits(seed: int, kernels: Kernels) -> None:
    config = config_of(causal=True, block_q=128, pack_gqa=True, splits=2)
    arrays = arrays_of(config, 40, 450, 1, 3, 1)
    plain = AttentionKernel(config).launch(*arrays, backend="interpreter", **scales_of())
    kernels.how |= {"schedule": PCT(seed)}
    found = AttentionKernel(config).launch(*arrays, backend="interpreter", **scales_of())
    for one, other in zip(found, plain, strict=True):
        np.testing.assert_array_equal(one, other)


def divided(config: AttentionConfig) -> KernelConfig:
    """The kernel of a launch whose keys are divided."""
    kernel = config.kernel(return_lse=True)
    return replace(kernel, features=replace(kernel.features, splits=True), written=None)


@pytest.mark.parametrize(
    "how",
    [
        {"causal": True},
        nightly({"causal": True, "window": (40, 0)}),
        nightly({"pack_gqa": True, "causal": True}),
        nightly({"scale_block": 128}),
        nightly({"head_dim": 256}),
    ],
    ids=str,
)
def test_all_accesses_and_barriers_are_proved(how: dict[str, Any]) -> None:
    made = build(divided(AttentionConfig(**{"head_dim": 128, **how}, dtype="e4m3")))
    assert made.proof.complete, made.proof
    assert made.global_proof.complete, made.global_proof


@pytest.mark.slow
@pytest.mark.ptxas
@pytest.mark.parametrize("head_dim", [128, *(nightly(d) for d in (64, 96, 192, 256))])
@pytest.mark.parametrize(
    "how",
    [
        {"causal": True, "pack_gqa": True},
        nightly({"causal": True, "window": (40, 0)}),
        nightly({"dtype": "e5m2", "causal": True, "window": (512, 0), "softcap": 30.0}),
        nightly({"causal": True, "scale_block": 128}),
    ],
    ids=str,
)
def test_no_tile_offered_spills(how: dict[str, Any], head_dim: int, assembler: Assembler) -> None:
    config = AttentionConfig(head_dim, **{"dtype": "e4m3", **how})
    for tile, block_q in tiles_that_fit(config.tile_request, config.kernel().target):
        assert_no_spill_of(divided(replace(config, tile=tile, block_q=block_q)), assembler)


# ------------------------------------------------------------------------------------------
# launches


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    without_assembler(monkeypatch)
    return interpreting(FakeDriver(FakeDevice()))


def kernel_on(driver: FakeDriver, config: AttentionConfig) -> AttentionKernel:
    return AttentionKernel(config, cuda=CudaBackend(driver), cache=ModuleCache(None))


def test_a_grid_that_leaves_multiprocessors_idle_is_divided(driver: FakeDriver) -> None:
    config = AttentionConfig(128, dtype="e4m3")
    arrays = [np.zeros((1, 1, rows, 128), config.element.numpy) for rows in (2048, 8192, 8192)]
    ones = {name: np.ones(1, "f4") for name in SCALES}
    said = kernel_on(driver, config).explain(*arrays, backend="cuda", **ones)
    assert "grid:     96 CTAs\nsplits:   6 of the keys, merged; else 16 CTAs\n" in said
    assert "products: wgmma of fp8, with tiles copied by TMA and V transposed\n" in said
    said = kernel_on(driver, replace(config, splits=1)).explain(*arrays, backend="cuda", **ones)
    assert "grid:     16 CTAs\n" in said
    assert "splits" not in said


def test_a_gpu_gives_the_bits_of_the_interpreter(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "division_of", lambda *_: Division(0, 3))
    config = config_of(causal=True)
    arrays, scales = arrays_of(config, 40, 300, 2, 4, 2), scales_of(2, 2)
    found = kernel_on(driver, config).launch(*arrays, backend="cuda", **scales)
    assert [launch.entry for launch in driver.launches] == [
        "attention_forward_wgmma_e4m3_d64_m64_n64_s2_bottom_right_splits_lse",
        "merge_partials_bf16_d64_w4_lse",
    ]
    wanted = AttentionKernel(replace(config, splits=3)).launch(*arrays, backend="interpreter", **scales)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
