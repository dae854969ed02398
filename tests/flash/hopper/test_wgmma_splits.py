"""The forward kernels for Hopper where the keys are divided into splits: their own PTX and that of the kernel
that merges the parts, run on the interpreter with the sanitizers on, against float64.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conformance import (
    KINDS,
    SCALES,
    Array,
    Arrays,
    arrays_of,
    assert_same_bits,
    judge,
    operands_of,
    reference,
)
from fake_driver import FakeDriver
from kernel_runs import Kernels, nightly

from flash import AttentionKernel
from flash.error_bound import PARTS_OF_F32
from flash.launch import forward
from flash.launch.key_splits import Division
from flash.problem.config import AttentionConfig
from ptxgen.interpreter import PCT
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.cuda import CudaBackend

pytestmark = [pytest.mark.grid, pytest.mark.judged]

OF_KINDS: dict[str, list[dict[str, Any]]] = {
    "split": [
        {"head_dim": 20, "head_dim_v": 36, "causal": True, "pack_gqa": True},
        {"head_dim": 32, "head_dim_v": 20, "causal": "top_left", "splits": 2},
        {"head_dim": 64, "causal": "bottom_right", "block_q": 128, "splits": 7},
        {"head_dim": 40, "head_dim_v": 68, "window": (30, 9), "softcap": 2.0},
        {"head_dim": 96, "stages": 3, "splits": 2},
        {"head_dim": 128, "head_dim_v": 124, "tile": 48, "pack_gqa": True},
        *({"head_dim": 4, "head_dim_v": 60, "tile": 112}, {}),
    ],
    "fp8 e4m3": [
        {"causal": True, "softcap": 2.0, "stages": 3, "pack_gqa": True},
        {"causal": "bottom_right", "dtype": "e5m2", "splits": 2},
        {"causal": "top_left", "block_q": 128, "out_dtype": "f16"},
        {"window": (30, 9), "block_q": 192, "splits": 2},
        {"head_dim": 48, "head_dim_v": 144, "tile": 128},
        *({"head_dim": 256, "pack_gqa": True, "splits": 9}, {}),
    ],
}
SIZES = [(3, 140, 1, 3, 1), (1, 330, 2, 4, 2), (70, 150, 1, 2, 1), (130, 65, 1, 2, 1), (20, 700, 1, 3, 1)]
SCORES: list[dict[str, Any]] = [
    *({"alibi": True, "pack_gqa": True}, {"sink": True}, {"bias": "f32", "causal": True})
]


def launched(
    kernels: Kernels, config: AttentionConfig, arrays: Arrays, operands: dict[str, Array]
) -> tuple[Array, Array]:
    """O and LSE, whose parts a kernel with `wgmma` has written, and another one has merged."""
    kernels.names.clear()
    results = AttentionKernel(config).launch(*arrays, backend="interpreter", **operands)
    first, merge = kernels.names
    assert "_wgmma_" in first
    assert "_splits_" in first
    assert merge.startswith(f"merge_partials_{config.output.name}_")
    return results


@pytest.mark.slow
@pytest.mark.sample(4, gate=6)
@pytest.mark.parametrize(
    ("kind", "settings"),
    [(kind, how) for kind, settings in OF_KINDS.items() for how in (*settings, *SCORES)],
    ids=str,
)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_splits_are_as_accurate_as_one(
    kind: str, settings: dict[str, Any], sizes: tuple[int, ...], kernels: Kernels
) -> None:
    config = KINDS[kind].config(**{"splits": 3, **settings})
    arrays = arrays_of(config, *sizes)
    operands = operands_of(config, arrays)
    judge(config, arrays, *launched(kernels, config, arrays, operands), operands, PARTS_OF_F32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("split", {"head_dim": 24, "head_dim_v": 40, "causal": True}),
        ("fp8 e5m2", {"causal": True}),
        ("wgmma f16", {"head_dim": 24, "head_dim_v": 40, "causal": True}),
        *(nightly("split", {"head_dim": 24, "head_dim_v": 40, **how}) for how in ({}, {"window": (50, 0)})),
        nightly("wgmma f16", {"head_dim": 24, "head_dim_v": 40}),
    ],
    ids=str,
)
def test_numbers_that_are_not_finite_reach_only_rows_that_see_them(
    kind: str, settings: dict[str, Any], kernels: Kernels
) -> None:
    config = KINDS[kind].config(splits=3, **settings)
    q, k, v = arrays_of(config, 70, 250 if kind.startswith("fp8") else 130)
    operands = operands_of(config, (q, k, v))
    clean, clean_lse = launched(kernels, config, (q, k, v), operands)
    judge(config, (q, k, v), clean, clean_lse, operands, PARTS_OF_F32)
    v[..., -20, 3], v[..., -5, 39], v[..., -5, 8], v[..., -2, 8] = np.nan, np.inf, -np.inf, np.inf
    v[..., 2, 9], v[..., 60, 10] = np.inf, -np.inf  # in tiles that all rows see
    out, lse = launched(kernels, config, (q, k, v), operands)
    wanted, _ = reference(config, (q, k, v), operands)
    bad = ~np.isfinite(wanted)
    assert bad.any()
    assert_same_bits((lse,), (clean_lse,))
    np.testing.assert_array_equal(out[bad].astype(np.float64), wanted[bad])
    np.testing.assert_array_equal(out[~bad], clean[~bad])


@pytest.mark.slow
def test_a_large_value_takes_no_digit_from_other_parts(kernels: Kernels) -> None:
    config = KINDS["split"].config(splits=3)
    q, k, v = arrays_of(config, 20, 90)
    v[..., :30, :] *= 2.0**60
    v[..., 60:, :] *= 2.0**-60
    judge(config, (q, k, v), *launched(kernels, config, (q, k, v), {}), parts=PARTS_OF_F32)


@pytest.mark.nightly
def test_rows_without_a_key_give_zero(kernels: Kernels) -> None:
    config = KINDS["fp8 e4m3"].config(causal=True, splits=2)
    arrays = arrays_of(config, 80, 70)
    out, lse = launched(kernels, config, arrays, operands_of(config, arrays))
    assert not out[:, :, :10].any()
    assert np.isneginf(lse[:, :, :10]).all()
    assert np.isfinite(lse[:, :, 10:]).all()


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", ["split", "fp8 e4m3"])
def test_any_order_of_warps_gives_the_same_bits(kind: str, seed: int, kernels: Kernels) -> None:
    config = KINDS[kind].config(causal=True, block_q=128, pack_gqa=True, splits=2)
    arrays = arrays_of(config, 45, 7 * config.kernel().tiling.tile + 2, 1, 3, 1)
    operands = operands_of(config, arrays)
    plain = launched(kernels, config, arrays, operands)
    kernels.options["schedule"] = PCT(seed)
    assert_same_bits(launched(kernels, config, arrays, operands), plain)


# ------------------------------------------------------------------------------------------
# launches


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


@pytest.mark.slow
def test_a_gpu_gives_the_bits_of_the_interpreter(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "division_of", lambda *_: Division(0, 3))
    config = KINDS["fp8 e4m3"].config(causal=True)
    arrays = arrays_of(config, 40, 300, 2, 4, 2)
    scales = operands_of(config, arrays)
    result = kernel_on(driver, config).launch(*arrays, backend="cuda", **scales)
    assert [launch.entry for launch in driver.launches] == [
        "attention_forward_wgmma_e4m3_d64_m64_n64_s2_bottom_right_splits_lse",
        "merge_partials_bf16_d64_w4_lse",
    ]
    wanted = AttentionKernel(replace(config, splits=3)).launch(*arrays, backend="interpreter", **scales)
    assert_same_bits(result, wanted)


@pytest.mark.slow
def test_launches_of_splits_say_what_multiplies() -> None:
    config = AttentionConfig(32, 20, precision="f32_grade", target="sm_90a", tile=32, splits=3)
    said = AttentionKernel(config).explain(*arrays_of(config, 40, 150), backend="interpreter")
    assert "products: wgmma, three of f16 for one of f32, with tiles copied by TMA\n" in said
