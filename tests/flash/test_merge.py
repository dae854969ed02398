"""Merging attention to parts of the keys: as attention to all, exact where parts have no key."""

from __future__ import annotations

import itertools
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from device_arrays import CudaArray
from judge import assert_attention_is_accurate, assert_close, rounded_normal

import flash
from flash.reference import attention_reference
from ptxgen.errors import ConfigError, LaunchError

Array = np.ndarray[Any, Any]
INF = np.inf


def parts_of(splits: int, *shape: int, dtype: Any = np.float32) -> tuple[Array, Array]:
    """Outputs and sums of parts, as much apart as those of long sequences."""
    rng = np.random.default_rng([splits, *shape])
    outs = rounded_normal(rng, (splits, *shape), dtype)
    return outs, (8 * rng.standard_normal((splits, *shape[:-1]))).astype(np.float32)


def merged_in(dtype: Any, outs: Array, lses: Array) -> tuple[Array, Array]:
    """The formula as it is written, in one precision."""
    outs, lses = outs.astype(dtype), lses.astype(dtype)
    top = lses.max(axis=0)
    lse = top + np.log(np.exp(lses - top).sum(axis=0))
    return (np.exp(lses - lse)[..., None] * outs).sum(axis=0), lse


@pytest.mark.parametrize("dtype", [np.float32, np.float16, "bf16"])
@pytest.mark.parametrize("splits", [1, 2, 3, 17, 97])
def test_merging_is_as_accurate_as_its_formula_in_f32(splits: int, dtype: Any) -> None:
    outs, lses = parts_of(splits, 2, 3, 5, 8, dtype=dtype)
    out, lse = flash.merge_partials(outs, lses)
    wanted, sums = merged_in(np.float64, outs, lses)
    peer, peer_sums = merged_in(np.float32, outs, lses)
    assert (out.dtype, lse.dtype) == (outs.dtype, np.float32)
    assert_close("out", out, wanted, peer.astype(out.dtype))
    assert_close("lse", lse, sums, peer_sums)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, "bf16"])
@pytest.mark.parametrize("ends", [(0, 40), (0, 1, 2, 39, 40), (0, 0, 17, 17, 40, 40)])
def test_parts_of_the_keys_give_attention_to_all(ends: tuple[int, ...], dtype: Any) -> None:
    rng = np.random.default_rng(0)
    q = rounded_normal(rng, (2, 4, 3, 16), dtype)
    k, v = (rounded_normal(rng, (2, 2, 40, d), dtype) for d in (16, 8))
    found = [
        flash.attention(q, k[:, :, a:b], v[:, :, a:b], return_lse=True, backend="cpu")
        for a, b in itertools.pairwise(ends)
    ]
    outs, lses = ([part[n] for part in found] for n in (0, 1))
    out, lse = flash.merge_partials(outs, lses)

    def rounding_parts(*arrays: Array, **how: Any) -> tuple[Array, Array]:
        parts = [
            attention_reference(arrays[0], *(x[:, :, a:b] for x in arrays[1:]),
                                dtype=np.float32, **how)
            for a, b in itertools.pairwise(ends) if a < b
        ]  # fmt: skip
        stacked = [np.stack(arrays) for arrays in zip(*parts, strict=True)]
        return merged_in(np.float32, stacked[0].astype(q.dtype), stacked[1])

    assert_attention_is_accurate(out, lse, q, k, v, peer=rounding_parts)


def test_a_part_without_a_key_changes_no_bit() -> None:
    outs, lses = parts_of(3, 4, 6)
    want = flash.merge_partials(outs, lses)
    empty = np.full((1, 4, 6), np.nan, np.float32), np.full((1, 4), -INF, np.float32)
    for at in range(4):
        more = [np.insert(x, at, y, axis=0) for x, y in zip((outs, lses), empty, strict=True)]
        for got, wanted in zip(flash.merge_partials(*more), want, strict=True):
            assert got.tobytes() == wanted.tobytes()


def test_one_part_is_itself() -> None:
    outs, lses = parts_of(1, 4, 6)
    out, lse = flash.merge_partials(outs, lses)
    np.testing.assert_array_equal(out, outs[0])
    np.testing.assert_array_equal(lse, lses[0])


def test_no_key_in_any_part_gives_zero_and_minus_infinity() -> None:
    outs, lses = parts_of(2, 3, 4)
    lses[:, 1], outs[:, 1] = -INF, np.nan
    out, lse = flash.merge_partials(outs, lses)
    assert (out[1] == 0).all()
    assert lse[1] == -INF
    assert np.isfinite(out[[0, 2]]).all()


@pytest.mark.parametrize("wild", [INF, np.nan])
def test_a_sum_that_is_no_number_makes_its_row_nan_and_no_other(wild: float) -> None:
    outs, lses = parts_of(3, 3, 4)
    lses[1, 2] = wild
    out, lse = flash.merge_partials(outs, lses)
    np.testing.assert_array_equal(np.isnan(lse), [False, False, True])
    np.testing.assert_array_equal(np.isnan(out), [[False] * 4] * 2 + [[True] * 4])


def test_sums_far_beyond_what_exp_holds_are_merged() -> None:
    outs = np.array([[[1.0]], [[3.0]], [[1e30]]], np.float32)
    for sums in ([3e5, 3e5, -3e5], [-3e5, -3e5, -3.4e38]):
        out, lse = flash.merge_partials(outs, np.array(sums, np.float32)[:, None])
        assert out.tolist() == [[2.0]]
        assert lse.tolist() == [np.float32(sums[0] + math.log(2))]


def test_outputs_near_the_largest_number_do_not_overflow() -> None:
    outs = np.full((4, 1, 2), np.finfo(np.float32).max, np.float32)
    out, _ = flash.merge_partials(outs, np.zeros((4, 1), np.float32))
    np.testing.assert_array_equal(out, outs[0])


def test_parts_in_f32_may_be_rounded_to_a_narrower_type() -> None:
    outs, lses = parts_of(3, 2, 5, 8)
    wide, _ = flash.merge_partials(outs, lses)
    into = np.zeros((2, 5, 8), ml_dtypes.bfloat16)[:, ::-1]
    out, lse = flash.merge_partials(tuple(outs), list(lses), out=into, backend="cpu")
    assert out is into
    assert into.tobytes() == wide.astype(ml_dtypes.bfloat16).tobytes()
    assert lse.shape == (2, 5)


def test_views_of_any_strides_are_read() -> None:
    outs, lses = parts_of(3, 2, 5, 8)
    turned = np.asfortranarray(outs[::-1])
    out, lse = flash.merge_partials(turned[::-1], np.repeat(lses, 2, axis=2)[:, :, ::2])
    wanted = flash.merge_partials(outs, lses)
    assert (out.tobytes(), lse.tobytes()) == (wanted[0].tobytes(), wanted[1].tobytes())


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 0, 3), (2, 4, 0)])
def test_there_may_be_no_rows_or_columns(shape: tuple[int, ...]) -> None:
    out, lse = flash.merge_partials(*parts_of(2, *shape))
    assert (out.shape, lse.shape) == (shape, shape[:-1])


def test_results_are_of_the_kind_of_the_parts(torch: Any) -> None:
    outs, lses = parts_of(3, 2, 5, 8)
    wanted, sums = flash.merge_partials(outs, lses)
    out, lse = flash.merge_partials(torch.from_numpy(outs), torch.from_numpy(lses))
    assert isinstance(out, torch.Tensor)
    assert isinstance(lse, torch.Tensor)
    np.testing.assert_array_equal(out.numpy(), wanted)
    np.testing.assert_array_equal(lse.numpy(), sums)


# ------------------------------------------------------------------------------------------
# refusals

OUTS, LSES = parts_of(2, 3, 4)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no_arrays": (
        {"outs": [OUTS[0], 1.0], "lses": "many"},
        "2 problems\n"
        "  outs[1] must be an array (numpy, torch, or with __cuda_array_interface__ or "
        "__dlpack__), got float; convert with numpy.asarray(outs[1], numpy.float32)\n"
        "  lses must be an array (numpy, torch, or with __cuda_array_interface__ or __dlpack__), "
        "got str; convert with numpy.asarray(lses, numpy.float32)",
    ),
    "types": (
        {"outs": OUTS.astype(np.float64), "lses": LSES.astype(np.float16)},
        "2 problems\n"
        "  outs must be one of float32, float16, bfloat16, got float64; convert with "
        "outs.astype('float32')\n"
        "  lses must be float32, got float16; convert with lses.astype('float32')",
    ),
    "types_of_parts": (
        {"outs": [OUTS[0], OUTS[1].astype(np.float16)]},
        "outs[1] must be float32, as outs[0] is, got float16; convert with "
        "outs[1].astype('float32')",
    ),
    "counts": (
        {"lses": LSES[:1]}, "outs and lses must have equally many parts, at least one, got 2 and 1"
    ),
    "no_parts": (
        {"outs": OUTS[:0], "lses": []},
        "outs and lses must have equally many parts, at least one, got 0 and 0",
    ),
    "no_dimensions": (
        {"outs": np.float32([1, 2]), "lses": np.float32([1, 2])},
        "outs must have parts of at least one dimension, head_dim_v, got none",
    ),
    "shapes": (
        {"outs": [OUTS[0], OUTS[1, :2]], "lses": [LSES[0, :2], LSES[1]]},
        "2 problems\n"
        "  outs[1] must have the shape of outs[0], [3, 4], got [2, 4]\n"
        "  lses[0] must have the shape of the rows of outs, [3], got [2]",
    ),
    "out": (
        {"out": np.zeros((3, 5), np.int32)},
        "out must be one of float32, float16, bfloat16, got int32; convert with "
        "out.astype('float32')",
    ),
    "shape_of_out": (
        {"out": np.zeros((3, 5), np.float32)},
        "out must have shape [3, 4], got [3, 5]; leave out=None to have it made",
    ),
    "shared": (
        {"out": OUTS[1]},
        "out must not share memory with outs; leave out=None, or pass an array of its own",
    ),
    "device": (
        {"outs": CudaArray(4096, OUTS)}, "outs must be on the host, got cuda:?; copy it there"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_parts_that_do_not_fit_are_refused(name: str) -> None:
    how, message = REFUSED[name]
    with pytest.raises(LaunchError) as caught:
        flash.merge_partials(**{"outs": OUTS, "lses": LSES, **how})
    assert str(caught.value) == f"merge_partials: {message}"


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        flash.merge_partials(OUTS, LSES, backend="gpu")
    assert str(caught.value) == (
        "merge_partials: backend must be one of auto, cpu, got 'gpu'; did you mean 'cpu'?"
    )
