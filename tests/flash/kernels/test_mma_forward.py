"""The tensor-core forward kernel: its own PTX, run on the interpreter with the sanitizers on."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from conformance import check
from kernel_runs import Problem, nightly, run_forward

from flash.contract.catalogue import build
from flash.families.mma import MmaTiling
from flash.families.simt import TILES
from flash.families.wgmma import WGMMA_TILES
from flash.problem.config import AttentionConfig
from flash.reference import attention_reference
from ptxgen.interpreter import PCT

pytestmark = [pytest.mark.grid, pytest.mark.judged]

Arrays = tuple[np.ndarray[Any, Any], ...]
NUMPY = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}


def with_lse(head_dim: int, head_dim_v: int | None = None, **how: Any) -> AttentionConfig:
    return AttentionConfig(head_dim, head_dim_v, return_lse=True, **{"dtype": "f16", **how})


# ------------------------------------------------------------------------------------------
# semantics


@pytest.mark.parametrize("causal", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", ["f16", nightly("bf16")])
def test_weights_among_the_products_with_values_are_right(dtype: str, causal: bool) -> None:
    config = with_lse(128, dtype=dtype, causal=causal, target="sm_80")
    assert config.kernel().tiling.weaves_weights
    q, k, v = Problem(40, 200, 128, 128).arrays(dtype=NUMPY[dtype])
    k[..., :64, :] *= 8  # shifts move in the last tile of the walk, too
    check(config, (q, k, v))
    built = build(config.kernel())
    assert built.proof.complete, built.proof.unknown
    assert built.global_proof.complete, built.global_proof.unknown


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize(("tile", "block_q"), [(160, 128), (96, 192)])
@pytest.mark.parametrize("head_dim", [16, 32])
def test_weights_among_products_with_few_columns_of_values_are_right(
    head_dim: int, tile: int, block_q: int
) -> None:
    how: Any = {"target": "sm_90a", "alignment": 2, "tile": tile, "block_q": block_q}
    config = with_lse(head_dim, **how)
    tiling = config.kernel().tiling
    assert isinstance(tiling, MmaTiling)
    assert tiling.weaves_weights
    check(config, Problem(20, tile + 21, head_dim, head_dim).arrays(dtype=np.float16))


def test_maxima_of_lanes_move_the_shift_of_their_row() -> None:
    q, k, v = Problem(32, 96, 32, 32).arrays(dtype=np.float16)
    for lane in range(4):  # of a quad, the only one with a large score in a tile
        k[..., 2 * lane, :] = 30 * q.mean(axis=-2)
        check(with_lse(32, tile=32, block_q=32), (q, k, v))
        k[..., 2 * lane, :] = 0


@pytest.mark.slow
@pytest.mark.parametrize("first_key", [0, 32])  # of the part of a tile whose sums are too large
@pytest.mark.parametrize("dtype", ["f16", nightly("bf16")])
def test_weights_whose_sums_are_large_are_computed_again(dtype: str, first_key: int) -> None:
    config = with_lse(16, dtype=dtype, tile=64, block_q=128, target="sm_80")
    assert config.kernel().tiling.checks_sums
    q, k, v = Problem(40, 200, 16, 16).arrays(dtype=NUMPY[dtype])
    for lane in range(4):  # of a quad, the only one whose weights f16 does not hold, in the last tile
        k[..., first_key + 2 * lane, :] = 4 * q[..., lane, :]
        check(config, (q, k, v), schedule=PCT(seed=lane))
        k[..., first_key + 2 * lane, :] = 0


def test_equal_scores_get_equal_weights_in_all_tiles_however_large_they_are() -> None:
    config = with_lse(16, tile=64, block_q=128, target="sm_80")
    assert config.kernel().tiling.checks_sums
    q, k, v = Problem(8, 200, 16, 16).arrays(dtype=np.float16)
    of_equal = slice(5, 135, 64)  # keys of three tiles
    k[..., of_equal, :] = 300
    q[:] = np.arange(201, 209).reshape(8, 1)  # the scores are so large that shifts are subtracted unscaled
    out, _, _ = run_forward(config, (q, k, v), sanitize=True)
    expected = v[..., of_equal, :].mean(axis=-2, keepdims=True, dtype=np.float32)
    np.testing.assert_allclose(out, np.broadcast_to(expected, out.shape), rtol=0, atol=2e-3)


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("tile", [112, 176, *(n for n in WGMMA_TILES if n not in (*TILES, 112, 176))])
@pytest.mark.parametrize("head_dim", [128, 64, 40])
def test_tiles_for_wgmma_are_copied_through_registers_without_a_row_too_many(
    head_dim: int, tile: int
) -> None:
    config = with_lse(head_dim, dtype="bf16", target="sm_90a", tile=tile, alignment=2)
    assert isinstance(config.kernel().tiling, MmaTiling)
    check(config, Problem(20, tile + 21, head_dim, head_dim).arrays(dtype=NUMPY["bf16"]))
    proof = build(config.kernel()).proof
    assert proof.complete, (proof.violations, proof.unknown)


@pytest.mark.parametrize(("head_dim", "head_dim_v"), [(40, 24), (128, 16), (112, 96), (16, 40)])
@pytest.mark.parametrize("seq_k", [0, 7])
def test_without_a_key_narrow_outputs_come_from_what_was_written(
    head_dim: int, head_dim_v: int, seq_k: int
) -> None:
    # Nothing was copied to the Q tile, through which O leaves, and O does not fill its panels.
    config = with_lse(head_dim, head_dim_v, causal=True, tile=16, block_q=64)
    check(config, Problem(80, seq_k, head_dim, head_dim_v).arrays(dtype=np.float16))


def test_the_largest_numbers_of_f16_do_not_overflow() -> None:
    q, k, v = Problem(20, 37, 16, 16).arrays(dtype=np.float16)
    q, k = (np.where(x > 0, 65504, -65504).astype(np.float16) for x in (q, k))
    check(with_lse(16, tile=16, block_q=64), (q, k, v))


@pytest.mark.slow
def test_what_is_not_finite_elsewhere_is_not_lost_where_v_is_restored() -> None:
    config = with_lse(24, causal=True, tile=16, block_q=64)
    for change in ("q", "k", "v"):
        q, k, v = Problem(200, 200, 24, 24).arrays(dtype=np.float16)
        v[..., 150, 2] = -np.inf
        {"q": q, "k": k, "v": v}[change][..., 3, 2] = np.nan if change != "v" else np.inf
        out, _, _ = run_forward(config, (q, k, v), sanitize=True)
        with np.errstate(invalid="ignore"):
            wanted, _ = attention_reference(q, k, v, causal=True)
        odd = ~np.isfinite(wanted)
        np.testing.assert_array_equal(out[odd].astype(np.float64), wanted[odd], err_msg=change)


def test_scores_as_low_as_f32_can_be_survive() -> None:
    config = AttentionConfig(16, dtype="bf16", softmax_scale=1.0, return_lse=True)
    big = NUMPY["bf16"](2.0**61)
    q, k = np.full((1, 1, 4, 16), big), np.full((1, 1, 20, 16), -2 * big)
    v = Problem(4, 20, 16, 16).arrays(dtype=NUMPY["bf16"])[2]
    out, lse, _ = run_forward(config, (q, k, v), sanitize=True)
    wanted = np.broadcast_to(v.astype(np.float64).mean(axis=2, keepdims=True), out.shape)
    np.testing.assert_allclose(out.astype(np.float64), wanted, atol=4e-3)
    np.testing.assert_allclose(lse, -16 * 2.0**123, rtol=1e-6)
