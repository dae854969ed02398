"""The ranges that `docs/numerics.md` states, at both sides of each edge: the reference, the `cpu`
backend and the kernels' own PTX on the interpreter.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from kernel_runs import Problem, mostly_nightly, run_forward

from flash.kernel import AttentionKernel
from flash.problem.config import AttentionConfig
from flash.reference import attention_reference
from flash.scores.feature import FIRST_INFINITE

pytestmark = pytest.mark.judged

Array = np.ndarray[Any, Any]
Arrays = tuple[Array, ...]

NUMPY = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
KINDS: dict[str, dict[str, Any]] = {
    "f32": {"dtype": "f32"},
    "f32_grade": {"precision": "f32_grade"},
    "f16": {"dtype": "f16"},
    "bf16": {"dtype": "bf16"},
    "packed": {"dtype": "f16", "pack_gqa": True},
    "packed_f32": {"dtype": "f32", "pack_gqa": True},
}
EVERY_KIND = pytest.mark.parametrize("kind", mostly_nightly(KINDS, {"f32", "f16", "packed"}))
BACKENDS = pytest.mark.parametrize("backend", ["cpu", "interpreter"])

INFINITE = np.float32(FIRST_INFINITE)
LARGEST = np.nextafter(INFINITE, np.float32(0))  # of the numbers that are finite scores
LOWEST = np.finfo(np.float32).min


def config_of(kind: str, **how: Any) -> AttentionConfig:
    """A config whose tiles are so small that a few keys fill several."""
    packed = kind.startswith("packed")
    block_q = 16 if KINDS[kind].get("dtype") == "f32" and not packed else 32
    return AttentionConfig(16, **{"tile": 16, "block_q": block_q, "return_lse": True, **KINDS[kind], **how})


def launch(config: AttentionConfig, arrays: Arrays, backend: str, **operands: Array) -> tuple[Array, Array]:
    """out and LSE in float64."""
    if backend == "interpreter":
        out, lse, _ = run_forward(config, arrays, operands=operands)
    else:
        out, lse = AttentionKernel(config).launch(*arrays, backend=backend, **operands)
    return out.astype(np.float64), lse.astype(np.float64)


def exact(config: AttentionConfig, arrays: Arrays, **operands: Array) -> tuple[Array, Array]:
    """The reference in float64."""
    with np.errstate(invalid="ignore"):
        return attention_reference(*arrays, softmax_scale=config.scale, **operands)


def assert_alike(
    config: AttentionConfig, got: tuple[Array, Array], wanted: tuple[Array, Array], times: float = 4
) -> None:
    """Equal but for so many roundings of the largest output, and of LSE; NaN for NaN."""
    epsilon = float(ml_dtypes.finfo(NUMPY[config.dtype]).eps)
    size = np.nanmax(np.abs(wanted[0]))
    np.testing.assert_allclose(got[0], wanted[0], rtol=0, atol=times * epsilon * size)
    np.testing.assert_allclose(got[1], wanted[1], rtol=1e-5)


# ------------------------------------------------------------------------------------------
# scores that a caller gives


def test_the_first_infinite_score_is_the_first_whose_f32_product_with_log2_e_is() -> None:
    log2_e = np.float32(1.4426950408889634)
    with np.errstate(over="ignore"):
        assert np.isinf(INFINITE * log2_e)
    assert np.isfinite(LARGEST * log2_e)


def rows_of_biases(infinite: Any, largest: Any) -> Array:
    """A bias of 40 keys for each of nine rows; the other arguments are the numbers at the edge."""
    bias = np.zeros((9, 40), np.float32)
    bias[0] = -infinite  # of the whole row: there is no key
    bias[1] = -largest  # of the whole row: all are equal
    bias[2] = LOWEST
    bias[3, ::2] = -infinite
    bias[4, ::2] = -largest
    bias[5, :39] = -infinite  # and one key is left
    bias[6, :20], bias[6, 20:] = -infinite, -largest
    bias[7, 21] = largest
    bias[8, 21] = infinite
    return bias


@EVERY_KIND
@BACKENDS
def test_a_bias_beyond_the_range_is_infinite_everywhere(backend: str, kind: str) -> None:
    config = config_of(kind, bias="f32")
    arrays = Problem(9, 40, 16, 16, heads=2).arrays(dtype=NUMPY[config.dtype])
    bias = rows_of_biases(INFINITE, LARGEST)
    wanted = exact(config, arrays, bias=bias)
    np.testing.assert_array_equal(wanted[1][0, 0][[0, 2]], -np.inf)
    np.testing.assert_array_equal(wanted[0][0, 0][[0, 2]], 0)
    assert (wanted[1][0, 0][[1, 6]] <= -LARGEST * 0.999).all()
    np.testing.assert_array_equal(np.isnan(wanted[1][0, 0]), np.arange(9) == 8)
    assert_alike(config, launch(config, arrays, backend, bias=bias), wanted)


@BACKENDS
def test_a_bias_of_bf16_beyond_the_range_is_infinite_everywhere(backend: str) -> None:
    config = config_of("bf16", bias="bf16")
    arrays = Problem(9, 40, 16, 16).arrays(dtype=ml_dtypes.bfloat16)
    largest, infinite = (float.fromhex(x) for x in ("0x1.62p127", "0x1.64p127"))
    assert largest < FIRST_INFINITE < infinite
    bias = rows_of_biases(infinite, largest)
    bias[2] = ml_dtypes.finfo(ml_dtypes.bfloat16).min
    bias = bias.astype(ml_dtypes.bfloat16)
    wanted = exact(config, arrays, bias=bias)
    np.testing.assert_array_equal(np.isneginf(wanted[1][0, 0]), [1, 0, 1, 0, 0, 0, 0, 0, 0])
    assert_alike(config, launch(config, arrays, backend, bias=bias), wanted)


@BACKENDS
@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_nan_of_a_key_is_only_hidden_by_a_bias_of_minus_infinity(backend: str, kind: str) -> None:
    config = config_of(kind, bias="f32")
    q, k, v = Problem(2, 40, 16, 16).arrays(dtype=NUMPY[config.dtype])
    k[:, :, 3] = np.nan
    bias = np.zeros((2, 40), np.float32)
    bias[:, 3] = LOWEST, -np.inf
    wanted = exact(config, (q, k, v), bias=bias)
    np.testing.assert_array_equal(np.isnan(wanted[1][0, 0]), [True, False])
    assert_alike(config, launch(config, (q, k, v), backend, bias=bias), wanted)


@EVERY_KIND
@BACKENDS
def test_a_sink_below_the_range_is_none_everywhere(backend: str, kind: str) -> None:
    config = config_of(kind, sink=True, mask=True)
    arrays = Problem(9, 40, 16, 16, heads=2).arrays(dtype=NUMPY[config.dtype])
    mask = np.ones((9, 40), bool)
    mask[4] = False  # only the sink is left
    sink = np.array([-INFINITE, -LARGEST], np.float32)
    wanted = exact(config, arrays, sink=sink, mask=mask)
    assert np.isneginf(wanted[1][0, 0, 4])
    assert wanted[1][0, 1, 4] == -LARGEST
    assert_alike(config, launch(config, arrays, backend, sink=sink, mask=mask), wanted)


@BACKENDS
@pytest.mark.parametrize("kind", ["f32", "f16", "packed"])
def test_a_slope_beyond_the_range_is_infinite_everywhere(backend: str, kind: str) -> None:
    config = config_of(kind, alibi=True, causal="top_left")
    arrays = Problem(9, 40, 16, 16, heads=2).arrays(dtype=NUMPY[config.dtype])
    slopes = np.array([LARGEST, INFINITE], np.float32)
    wanted = exact(config, arrays, alibi_slopes=slopes, causal=config.causal)
    assert np.isfinite(wanted[1][0, 0]).all()
    assert np.isnan(wanted[1][0, 1]).all()  # a distance of 0, times infinity
    assert_alike(config, launch(config, arrays, backend, alibi_slopes=slopes), wanted)


# ------------------------------------------------------------------------------------------
# products and sums


@BACKENDS
@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_a_scale_that_no_query_could_be_multiplied_by_is_right(backend: str, kind: str) -> None:
    config = config_of(kind, softmax_scale=32.0)
    q, k, v = Problem(20, 40, 16, 16).arrays()
    q, k = q * np.float32(2.0**124), k * np.float32(2.0**-129)
    arrays = tuple(x.astype(NUMPY[config.dtype]) for x in (q, k, v))
    wanted = exact(config, arrays)
    assert np.isfinite(wanted[0]).all()
    assert_alike(config, launch(config, arrays, backend), wanted, times=8)


KEYS = 65


def uneven(kind: str, value: float) -> Arrays:
    """Equal values, and scores of which a kernel adds many up before it meets a much larger one,
    the last of its walk: that of f32 walks to the end, those on tensor cores to the front. The
    shift of a 16-bit kernel stays behind by almost 8, as it may.
    """
    score = np.zeros(KEYS)
    if kind == "bf16":
        score[KEYS - 17 :] = -7.9 * np.log(2)  # of the last tiles, which come first
    else:
        score[KEYS - 1 if kind == "f32" else 0] = 200
    q, k = np.zeros((1, 1, 20, 16)), np.zeros((1, 1, KEYS, 16))
    q[..., 0], k[..., 0] = 1, score
    v = np.full((1, 1, KEYS, 16), value)
    dtype = NUMPY[KINDS[kind].get("dtype", "f32")]
    return q.astype(dtype), k.astype(dtype), v.astype(dtype)


# Weights are at most 1 beside the largest so far; of 16-bit types 2**8, see `lazy_softmax`.
LARGEST_VALUE = {"f32": 2.0**128 / KEYS, "f32_grade": 2.0**128 / KEYS, "bf16": 2.0**120 / KEYS}


@BACKENDS
@pytest.mark.parametrize("kind", LARGEST_VALUE)
def test_values_up_to_the_largest_are_summed_without_overflow(backend: str, kind: str) -> None:
    config = config_of(kind, softmax_scale=1.0)
    arrays = uneven(kind, LARGEST_VALUE[kind] * 0.99)
    assert_alike(config, launch(config, arrays, backend), exact(config, arrays))


@BACKENDS
@pytest.mark.parametrize("kind", LARGEST_VALUE)
@pytest.mark.parametrize("beyond", [1.1, 16.0, 50.0])
def test_larger_values_give_the_right_number_or_none(backend: str, kind: str, beyond: float) -> None:
    config = config_of(kind, softmax_scale=1.0)
    arrays = uneven(kind, LARGEST_VALUE[kind] * beyond)
    out, lse = launch(config, arrays, backend)
    wanted, wanted_lse = exact(config, arrays)
    finite = np.isfinite(out)
    if backend == "interpreter" and beyond == 50.0:
        assert not finite.any()
    assert_alike(config, (np.where(finite, out, wanted), lse), (wanted, wanted_lse))


@BACKENDS
@pytest.mark.parametrize(("exponent", "step"), [(-110, 0.0), (-120, 2.0**-136)])
def test_small_numbers_of_f32_grade_err_by_what_a_low_part_loses(
    backend: str, exponent: int, step: float
) -> None:
    config = config_of("f32_grade")
    q, k, v = Problem(20, 40, 16, 16).arrays()
    arrays = q, k, v * np.float32(2.0**exponent)
    (out, _), (wanted, _) = launch(config, arrays, backend), exact(config, arrays)
    allowed = 4 * float(np.finfo(np.float32).eps) * np.abs(wanted).max() + step
    np.testing.assert_allclose(out, wanted, rtol=0, atol=allowed)


# ------------------------------------------------------------------------------------------
# what bits depend on


@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_a_given_tile_has_the_same_bits_at_every_alignment(kind: str) -> None:
    config = config_of(kind)
    arrays = Problem(20, 40, 16, 16).arrays(dtype=NUMPY[config.dtype])
    kernels = [config.kernel(alignment=n) for n in (16, 8, 4, 2) if n >= config.element.nbytes]
    assert len({kernel.alignment for kernel in kernels}) == len(kernels) > 2
    result = [run_forward(config, arrays, kernel=kernel)[:2] for kernel in kernels]
    for out, lse in result[1:]:
        np.testing.assert_array_equal(out, result[0][0])
        np.testing.assert_array_equal(lse, result[0][1])


def test_only_16_bit_types_at_two_bytes_have_another_default_tile() -> None:
    for kind in KINDS:
        config = config_of(kind, tile="auto", block_q="auto")
        tiles = {
            n: config.kernel(alignment=n).tiling.tile for n in (16, 8, 4, 2) if n >= config.element.nbytes
        }
        narrowest = 32 if config.element.nbytes == 2 else tiles[16]
        assert set(tiles.values()) <= {tiles[16], narrowest}
        assert all(tiles[n] == tiles[16] for n in (8, 4))
        assert tiles[min(tiles)] == narrowest
