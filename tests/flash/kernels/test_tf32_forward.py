"""f32 on tensor cores: the kernel's own PTX, run on the interpreter with the sanitizers on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conformance import KINDS, arrays_of, check
from judge import assert_attention_is_accurate
from kernel_runs import Problem, run_forward
from refusals import refusal

import flash
from flash.error_bound import arithmetic_of_config
from flash.families.wgmma_split import SPLIT_BLOCKS_Q
from flash.problem.config import AttentionConfig
from flash.reference import attention_reference
from ptxgen.errors import ConfigError
from ptxgen.isa import numeric

pytestmark = [pytest.mark.grid, pytest.mark.judged]

Array = np.ndarray[Any, Any]
Arrays = tuple[Array, ...]
PRECISIONS = ("f32_grade", "tf32")
LARGEST = np.finfo(np.float32).max


def rounded(x: Array) -> Array:
    """x as a tensor core takes it: to 11 bits, ties away from zero."""
    return numeric.to_tf32(np.ascontiguousarray(x, np.float32), "rna")


def grade(head_dim: int, head_dim_v: int | None = None, **how: Any) -> AttentionConfig:
    return AttentionConfig(head_dim, head_dim_v, return_lse=True, **{"precision": "f32_grade", **how})


# ------------------------------------------------------------------------------------------
# semantics


# Rows of 192 and 256 columns are copied and split by two groups of threads, a half of each row by either.
# Rows of 250 and 130 columns end within a panel of the second half. Rows of 160 have an odd number of panels.
LONG_ROWS = [(256, 256), (192, 256), (250, 130), (160, 160)]


@pytest.mark.slow
@pytest.mark.sample(2, gate=4)
@pytest.mark.parametrize("mask", [{}, {"causal": True}, {"causal": "top_left"}, {"window": (40, 9)}])
@pytest.mark.parametrize(("head_dim", "head_dim_v"), LONG_ROWS)
def test_long_rows_are_right_with_ragged_lengths_and_masks(
    head_dim: int, head_dim_v: int, mask: dict[str, Any]
) -> None:
    config = grade(head_dim, head_dim_v, **mask)
    assert (config.kernel().tiling.tile, config.kernel().tiling.threads) == (16, 256)
    arrays = Problem(141, 83, head_dim, head_dim_v).arrays()
    out, lse, _ = run_forward(config, arrays, sanitize=True)
    how: Any = {"softmax_scale": config.scale, **mask}
    assert_attention_is_accurate(out, lse, *arrays, arithmetic=arithmetic_of_config(config), **how)


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_function_takes_a_precision(precision: str) -> None:
    q, k, v = Problem(20, 37, 32, 32).arrays()
    out = flash.attention(q, k, v, precision=precision, backend="interpreter")
    direct, _, _ = run_forward(AttentionConfig(32, precision=precision), (q, k, v))
    np.testing.assert_array_equal(out.view(np.uint32), direct.view(np.uint32))


# ------------------------------------------------------------------------------------------
# numerics


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize(("head_dim", "seq_k"), [(16, 64), (64, 300), (128, 200), (64, 1500)])
def test_the_error_is_that_of_f32_though_tensor_cores_truncate(
    head_dim: int, seq_k: int, positive: bool
) -> None:
    arrays = Problem(64, seq_k, head_dim, 32).arrays()
    arrays = tuple(np.abs(x) for x in arrays) if positive else arrays
    config = grade(head_dim, 32, tile=32)
    out, lse, _ = run_forward(config, arrays)
    how: Any = {"softmax_scale": config.scale, "arithmetic": arithmetic_of_config(config)}
    assert_attention_is_accurate(out, lse, *arrays, **how)


@pytest.mark.slow
def test_scores_of_ten_thousand_are_exact() -> None:
    q, k, v = Problem(64, 100, 64, 64).arrays()
    check(grade(64), (30 * q, 30 * k, 1000 * v))


@pytest.mark.slow
@pytest.mark.sample(2, gate=5)
@pytest.mark.parametrize("exponent", [-100, 14, 100])
@pytest.mark.parametrize(
    ("kind", "block_q"),
    [("mma f32_grade", 64), ("split on sm_100a", 128), *(("split", m) for m in SPLIT_BLOCKS_Q)],
)
def test_rows_beyond_the_range_of_f16_are_scaled(exponent: int, kind: str, block_q: int) -> None:
    config = KINDS[kind].config(40, 24, block_q=block_q, stages=2)  # fewer than tiles
    small = replace(config, softmax_scale=2.0**-17)
    q, k, v = arrays_of(config, block_q + 3, 50)
    far = np.float32(2.0**exponent)
    of_queries, of_keys = (
        np.float32(2.0) ** (np.arange(n, dtype=np.float32) % 40 - 20)[:, None] for n in (block_q + 3, 50)
    )
    check(config, (q * far, k / far, v * of_keys))
    check(small, (q, k * of_keys, v / far))
    check(small, (q * of_queries, k, v))


@pytest.mark.slow
@pytest.mark.parametrize("column", [3, 131, -3])
def test_both_halves_of_a_long_row_get_one_factor(column: int) -> None:
    q, k, v = Problem(40, 50, 256, 256).arrays()
    k[..., 20, column], v[..., 21, column], v[..., 22, :] = 300, 3e8, 2.0**-30 * v[..., 22, :]
    check(grade(256), (q, k, v))


@pytest.mark.slow
@pytest.mark.parametrize("column", [3, -3])
def test_nan_in_either_half_of_a_long_row_of_v_reaches_its_column_alone(column: int) -> None:
    q, k, v = Problem(40, 50, 256, 256).arrays()
    clean, _, _ = run_forward(grade(256), (q, k, v))
    v[..., 20, column] = np.nan
    out, _, _ = run_forward(grade(256), (q, k, v), sanitize=True)
    assert np.isnan(out[..., column]).all()
    others = np.delete(np.arange(256), column)
    np.testing.assert_array_equal(out[..., others], clean[..., others])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mma f32_grade", "split", "split on sm_100a"])
def test_a_large_value_of_a_key_without_weight_takes_no_digit_from_others(kind: str) -> None:
    config = KINDS[kind].config(softmax_scale=1.0)
    q, k, v = arrays_of(config, 20, 40)
    q[..., 0] = 1
    k[..., 33, 0], v[..., 33, :] = -300, 1e30
    check(config, (q, k, v))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mma f32_grade", "mma tf32", "split", "split on sm_100a"])
def test_values_near_the_largest_f32_stay_finite(kind: str) -> None:
    config = KINDS[kind].config(causal="top_left")
    q, k, v = arrays_of(config, 40, 40)
    v[:] = -LARGEST / 64  # a sum of 40 of them is finite, and one of LARGEST with them
    v[..., 33, :] = LARGEST  # seen by few rows, and hidden from others of its tile
    out, _, _ = run_forward(config, (q, k, v), sanitize=True)
    wanted, _ = attention_reference(q, k, v, causal="top_left")
    assert np.isfinite(out).all()
    error = 2e-3 if config.precision == "tf32" else 2e-6  # of 11 bits, and of sums of the largest
    np.testing.assert_allclose(out / LARGEST, wanted / LARGEST, atol=error)


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("other", [0.3, -0.3, 5e3, -5e3])
@pytest.mark.parametrize("infinite", ["q", "k"])
def test_a_score_of_minus_infinity_hides_a_key(precision: str, other: float, infinite: str) -> None:
    config = grade(16, precision=precision, tile=16, block_q=64)
    q, k, v = Problem(20, 37, 16, 16).arrays()
    one, all_of = ({"q": q, "k": k}[infinite], {"q": k, "k": q}[infinite])
    all_of[..., 3] = np.float32(other * 1.0001)  # a low part of either sign
    one[..., 5, 3] = -np.inf if other > 0 else np.inf
    out, lse, _ = run_forward(config, (q, k, v), sanitize=True)
    with np.errstate(invalid="ignore"):
        wanted, _ = attention_reference(q, k, v, softmax_scale=config.scale)
    np.testing.assert_array_equal(np.isfinite(out), np.isfinite(wanted))
    if infinite == "k":
        assert np.isfinite(out).all()
        error = {"f32_grade": 1e-3, "tf32": 2.0}[precision]  # scores of up to 6e6
        few = error if abs(other) > 1 else error / 100
        np.testing.assert_allclose(out, wanted, atol=max(few, 2e-2))
        assert np.isfinite(lse).all()


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("bits", [0x7F80_0001, 0x7FC0_0000, 0x7FFF_FFFF, 0xFFFF_F800])
def test_every_nan_is_one(precision: str, bits: int) -> None:
    config = grade(16, precision=precision, tile=16, block_q=64)
    nan = np.array([bits], np.uint32).view(np.float32)[0]
    for change in range(3):
        arrays = Problem(20, 37, 16, 16).arrays()
        arrays[change][0, 0, 5, 3] = nan
        arrays[change].view(np.uint32)[0, 0, 5, 3] = bits  # whatever the assignment made of it
        out, _, _ = run_forward(config, arrays, sanitize=True)
        with np.errstate(invalid="ignore"):
            wanted, _ = attention_reference(*arrays)
        np.testing.assert_array_equal(np.isnan(out), np.isnan(wanted))


# ------------------------------------------------------------------------------------------
# what is refused


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            {"precision": "f32_grade", "target": "sm_75"},
            "AttentionConfig: precision='f32_grade' needs sm_80 or later, whose tensor cores and "
            "asynchronous copies the kernel uses, got sm_75; use precision='ieee'",
        ),
        (
            {"precision": "high"},
            "AttentionConfig: precision must be one of None, 'auto', 'ieee', 'f32_grade', 'tf32', got 'high'",
        ),
        (
            {"precision": "tf32", "dtype": "f16"},
            "AttentionConfig: precision must be one of None, 'auto', 'ieee', got 'tf32'; products "
            "of f16 are exact, and the choice is that of f32",
        ),
    ],
)
def test_what_no_kernel_has_is_refused_by_name(how: dict[str, Any], message: str) -> None:
    assert refusal(AttentionConfig, 64, error=ConfigError, **how) == message


def test_what_is_left_open_is_ieee() -> None:
    assert AttentionConfig(64) == AttentionConfig(64, precision="ieee")
    assert AttentionConfig(64, precision="auto") == AttentionConfig(64)
    half = AttentionConfig(64, dtype="f16", precision="auto")
    assert half.precision is None
    assert replace(AttentionConfig(64), dtype="f16") == half
