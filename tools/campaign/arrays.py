"""The arrays of the campaign's problems, the right results of a kernel, and the comparison with its
results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flash.error_bound import Bound, arithmetic_of_config, attention_bound, varlen_bound
from flash.families.simt import padded
from flash.operands.declared import Operand
from flash.operands.dtypes import BOOL, I32, OF_ARRAYS, DType
from flash.problem.config import AttentionConfig
from flash.problem.features import SCALES
from flash.scores.aux_arrays import gathered
from ptxgen.mutation.comparison import difference
from tools.campaign import fp8, uneven
from tools.campaign.problems import LANE_ROWS, Problem

Array = NDArray[Any]

# Margins around the elements that a kernel may access: rows and columns of NaN, whose bits must not
# change. A read of a margin shows in the results; an access after the margins stops the kernel.
_MARGIN_ROWS: Final = 2
_MARGIN_BYTES: Final = 16  # a multiple of 16, so that all rows stay aligned
_SEED: Final = 20240
_GROWTH: Final = 12.0  # factor of scores, and again of those in every other eight rows
_FALLING: Final = 4  # first column of queries, and the number of keys with one value in theirs
_PING_PONG_TILE: Final = 32  # keys that one of two warpgroups takes, before the other takes the next
_STEEP: Final = 48.0  # difference of unscaled scores of neighbouring keys
_GROUPS: Final = 4  # of rows that a lane has at a time, in two tiles of tensor-core products
_STEEPEST: Final = 200.0
# The least f32 that rounding to tf32 makes infinite, and a factor that makes its products of usual
# size.
_LARGE: Final = np.float32(float.fromhex("0x1.ffep127"))
_SMALL: Final = np.float32(2.0**-123)

# Courses of scores, each of eight rows: neighbouring courses are in one warp, and in its lanes.
_UP, _DEAD, _DOWN = range(3)
_COURSES: Final = (_UP, _DEAD, _DEAD, _UP, _UP, _DOWN, _DOWN, _UP)

_NO_PAGE: Final = -7  # in a block table, after the last page of a sequence
_UNUSED: Final = 3  # rows after the counted rows of a sequence, if the config says seqused
_SHOWN: Final = 0.7  # share of keys that a mask shows
_HIDDEN_BY_BIAS: Final = 0.1
_OF_AXIS: Final = 20  # elements of an array that functions of scores index, along each axis


def _no_scores(q: Array, k: Array, _v: Array, _rows: int) -> None:
    """Make all scores -inf."""
    q[...], k[...] = np.abs(q), -np.inf


def _no_scores_of_queries(q: Array, k: Array, _v: Array, _rows: int) -> None:
    """Make all scores -inf, by infinite queries; keys are finite."""
    q[..., 0], k[..., 0] = np.inf, -1


def _growing(q: Array, k: Array, _v: Array, rows: int) -> None:
    """Make scores grow towards the first key, in every other eight rows much more."""
    k *= np.linspace(_GROWTH, 0, k.shape[2])[:, None].astype(k.dtype)
    q[:, :, np.arange(q.shape[2]) // rows % 2 == 0] *= np.asarray(_GROWTH, q.dtype)


def _growing_alone(q: Array, k: Array, _v: Array, rows: int) -> None:
    """Make scores grow steeply towards the first key in one of each four groups of rows: the first one of the
    first four, the second one of the next four, and so on.
    """
    group = np.arange(q.shape[2]) // rows
    k[..., 1] = np.arange(k.shape[2])[::-1]
    q[..., 1] = np.where(group % _GROUPS == group // _GROUPS % _GROUPS, _STEEP, 0)


def _falling(q: Array, k: Array, _v: Array, _rows: int) -> None:
    """Make the scores of all rows fall towards the first key, so that no later tile has a new maximum."""
    q[..., 0], k[..., 0] = _FALLING, np.arange(k.shape[2]) // _FALLING


def _rising(q: Array, k: Array, _v: Array, _rows: int) -> None:
    """Make the scores of all rows grow towards the first key, so that each tile moves all shifts."""
    q[..., 0], k[..., 0] = _FALLING, np.arange(k.shape[2])[::-1]


def _stairs(q: Array, k: Array, _v: Array, rows: int) -> None:
    """For two warpgroups that take tiles alternately: give one of the two rows of each lane scores that
    change from tile to tile, and the other row scores of 0. In every other two warps they grow in odd tiles
    alone. In the others, four rows have the same scores in all tiles, and the scores of four more grow every
    two tiles.
    """
    row, tile = np.arange(q.shape[2]), np.arange(k.shape[2]) // _PING_PONG_TILE
    warp, of_lane = np.divmod(row // rows, 2)
    k[..., 0], k[..., 1], k[..., 2] = np.where(tile % 2 == 1, -tile, -_STEEP), 1, -1 - tile // 2
    q[...] = 0
    q[:, :, row, np.where(warp // 2 % 2 == 0, 0, 1 + row % rows // (rows // 2))] = 3
    q[:, :, of_lane != warp % 2] = 0


def _low(q: Array, k: Array, _v: Array, _rows: int) -> None:
    """Make all scores so low that a score of 0 would have an infinite weight."""
    q[..., 0], k[..., 0] = _STEEP, -_STEEP


def _parting(q: Array, k: Array, _v: Array, rows: int) -> None:
    """Give each warp rows whose scores grow towards the first key so steeply that exp2 overflows
    within a tile, rows whose scores fall as steeply, and rows whose scores are all -inf.
    """
    course = np.take(_COURSES, np.arange(q.shape[2]) // rows % len(_COURSES))
    k[..., 0], k[..., 1] = -1, np.arange(k.shape[2])[::-1]
    q[..., 0] = np.where(course == _DEAD, np.inf, 0)
    q[..., 1] = np.where(course == _DOWN, -_STEEP, _STEEP)


def _unseen_outside(q: Array, k: Array, _v: Array, rows: int) -> None:
    """Give the first and the last of four groups of rows no score but -inf, by infinite queries."""
    group = np.arange(q.shape[2]) // rows % _GROUPS
    k[..., 0], q[..., 0] = -1, np.where((group == 0) | (group == _GROUPS - 1), np.inf, 0)


def _crossing(q: Array, k: Array, _v: Array, rows: int) -> None:
    """Make scores grow towards the first key in every other eight rows, and fall as steeply in the others."""
    k[..., 1] = np.arange(k.shape[2])[::-1]
    q[..., 1] = np.where(np.arange(q.shape[2]) // rows % 2 == 0, -_STEEP, _STEEP)


def _large_queries(q: Array, k: Array, _v: Array, _rows: int) -> None:
    """Make queries so large that rounding to tf32 makes them infinite; small keys offset them."""
    q[...], k[...] = np.copysign(_LARGE, q), k * _SMALL


def _large_keys(q: Array, k: Array, _v: Array, _rows: int) -> None:
    """Make keys so large that rounding to tf32 makes them infinite; small queries offset them."""
    q[...], k[...] = q * _SMALL, np.copysign(_LARGE, k)


def _large_values(q: Array, k: Array, v: Array, _rows: int) -> None:
    """Make values so large that rounding to tf32 makes them infinite. Only one value counts in each
    row: all other weights are negligible next to the largest.
    """
    q[...], q[..., 0] = 0, _STEEPEST
    k[..., 0] = np.arange(k.shape[2])
    v[...] = _LARGE


# Functions that change normally distributed queries, keys and values in place.
SCORES: Final[dict[str, Callable[[Array, Array, Array, int], None]]] = {
    "random": lambda _q, _k, _v, _rows: None,
    "none": _no_scores,
    "none of queries": _no_scores_of_queries,
    "growing": _growing,
    "growing alone": _growing_alone,
    "falling": _falling,
    "rising": _rising,
    "stairs": _stairs,
    "parting": _parting,
    "unseen outside": _unseen_outside,
    "crossing": _crossing,
    "low": _low,
    "large queries": _large_queries,
    "large keys": _large_keys,
    "large values": _large_values,
    "uneven": uneven.uneven,
    "first uneven": uneven.first_uneven,
    "last uneven": uneven.last_uneven,
    "turns uneven": uneven.uneven_rounds,
    "infinite": uneven.infinite,
    "infinite values": uneven.infinite_values,
    "infinite panels": uneven.infinite_panels,
    "infinite turn": uneven.infinite_round,
    "parting in fp8": fp8.parting,
    "peaks in fp8": fp8.peaks,
}


@dataclass(frozen=True, slots=True)
class Arrays:
    """The arrays of one problem: q, k, v [batch, heads, rows, columns] and the operands, within
    their margins, and the right results with the allowed error of each element.

    Packed sequences are one batch item, and `lengths` their arrays of lengths. `queries` and `keys` say
    which rows are a query, or a key, of a sequence: all other rows of the results stay NaN.
    """

    q: Array
    k: Array
    v: Array
    operands: Mapping[str, Array]
    lengths: Mapping[str, Array]
    queries: NDArray[np.bool_]
    keys: NDArray[np.bool_]
    out: Array
    lse: Array
    out_error: Array
    lse_error: Array

    def difference(self, out: Array, lse: Array) -> str:
        """A description of the first wrong result; empty if all are right."""
        return (
            difference("O", out, self.out, self.out_error)
            or difference("LSE", lse, self.lse, self.lse_error)
            or margins_changed(out, self.queries)
        )


def with_margins(
    shape: tuple[int, ...], dtype: DType, random: np.random.Generator | None, *, reverse: bool
) -> Array:
    """An array within margins of NaN; its elements are random, or NaN without `random`."""
    batch, heads, rows, columns = shape
    pitch = padded(columns * dtype.nbytes + _MARGIN_BYTES, _MARGIN_BYTES) // dtype.nbytes
    whole = np.full((batch, heads, rows + _MARGIN_ROWS, pitch), np.nan, dtype.numpy)
    view = whole[:, :, :rows, :columns]
    if random is not None:
        view[...] = random.standard_normal(shape)
    return view[:, :, ::-1] if reverse else view


def alike(array: Array, shape: tuple[int, ...] = ()) -> Array:
    """An array of `shape`, by default that of `array`, whose rows all are the first row of `array`,
    in memory of one row.
    """
    row = array[0, 0, 0].copy()
    # A buffer of bytes, because numpy takes no other for dtypes of other packages.
    return np.ndarray(shape or array.shape, array.dtype, row.view(np.uint8), strides=(0, 0, 0, row.itemsize))


@lru_cache(maxsize=64)
def arrays_of(config: AttentionConfig, problem: Problem) -> Arrays:
    """The arrays of a problem, with equal contents at each call; `config` is the kernel's."""
    p, random = problem, np.random.default_rng(_SEED)
    config = p.config(config)
    lengths = _lengths(config, p) if config.varlen else {}
    batch, seq_q, seq_k = _rows(p, lengths)
    sizes = [(p.heads, seq_q, config.head_dim), (p.kv_heads, seq_k, config.head_dim)]
    sizes.append((p.kv_heads, seq_k, config.value_dim))
    q, k, v = (with_margins((batch, *size), config.element, random, reverse=p.reverse) for size in sizes)
    if p.alike:
        q, k, v = map(alike, (q, k, v))
    if config.shared_kv:
        v = k[..., : config.value_dim]
    SCORES[p.scores](q, k, v, _rows_of_eight(config, p))
    queries, keys = (_counted(lengths, side, n) for side, n in (("q", seq_q), ("k", seq_k)))
    for first, end in _sequences(lengths, "k", seq_k):
        for rows in (
            slice(first, min(first + p.nan_before, end)),
            slice(end if p.nan_from is None else min(first + p.nan_from, end), end),
        ):
            if not p.nan_columns:
                v[:, :, rows] = np.nan
            for head, column in enumerate(p.nan_columns):
                v[:, head, rows, column] = np.nan
    for array, counted in ((q, queries), (k, keys), (v, keys)):
        array[:, :, ~counted] = np.nan
    table = _block_table(config, lengths)
    known = {**lengths, **table}
    operands = {
        o.name: known[o.name] if o.name in known else _operand(o, config, p, random)
        for o in config.features.operands
    }
    bound = _bound(config, (q, k, v), {**operands, **lengths}, p.dropout_seed)
    for result in bound:
        result[:, :, ~queries] = np.nan
    if table:
        k, v = (_in_pages(rows, lengths, table, config.page_size or 0, p) for rows in (k, v))
    return Arrays(q, k, v, operands, lengths, queries, keys, *bound)


def _rows_of_eight(config: AttentionConfig, p: Problem) -> int:
    """The number of queries of one head in eight rows of a CTA."""
    return LANE_ROWS if config.pack_gqa is not True else max(LANE_ROWS * p.kv_heads // p.heads, 1)


def _bound(
    config: AttentionConfig, arrays: tuple[Array, ...], operands: Mapping[str, Array], seed: int
) -> Bound:
    """O [batch, heads, rows, columns] and LSE, with their allowed errors."""
    if config.is_fp8:
        arrays, operands = fp8.without_scales(arrays, operands, config.scale_block)
    how: dict[str, Any] = {
        "softmax_scale": config.scale,
        "causal": config.causal,
        **config.score_arguments,
        "dropout_seed": seed,
        **gathered({name: array for name, array in operands.items() if name != "block_table"}),
    }
    element, arithmetic = config.output.numpy, arithmetic_of_config(config)
    q, k, v = arrays
    if not config.varlen:
        return attention_bound(q, k, v, element, arithmetic, **how)
    q, k, v = (x[0].swapaxes(0, 1) for x in arrays)
    return varlen_bound(q, k, v, element, arithmetic, **how)


# --------------------------------------------------------------------------------- packed sequences


def _lengths(config: AttentionConfig, p: Problem) -> dict[str, Array]:
    """`cu_seqlens_*` and `seqused_*` of packed sequences. With seqused, uncounted rows follow the
    counted rows of each sequence but the last, which ends the array.
    """
    lengths = {}
    for side, used, counts in zip(
        "qk", (config.seqused_q, config.seqused_k), zip(*p.sequences, strict=True), strict=True
    ):
        ends = np.cumsum([0, *(n + _UNUSED * used for n in counts[:-1]), counts[-1]])
        lengths[f"cu_seqlens_{side}"] = within_margins(ends, I32)
        if used:
            lengths[f"seqused_{side}"] = within_margins(np.array(counts), I32)
    return lengths


def _block_table(config: AttentionConfig, lengths: Mapping[str, Array]) -> dict[str, Array]:
    """`block_table` of sequences whose rows of K are in pages, later rows in earlier pages; none of a
    config without pages. Entries after the last page of a sequence name no page.
    """
    if config.page_size is None:
        return {}
    counts = [-(-int(rows) // config.page_size) for rows in np.diff(lengths["cu_seqlens_k"])]
    table = np.full((len(counts), max(1, *counts)), _NO_PAGE)
    pages = iter(reversed(range(sum(counts))))
    for row, count in zip(table, counts, strict=True):
        row[:count] = [next(pages) for _ in range(count)]
    return {"block_table": within_margins(table, I32)}


def _in_pages(
    rows: Array, lengths: Mapping[str, Array], table: Mapping[str, Array], page_size: int, p: Problem
) -> Array:
    """K or V [1, kv_heads, rows, columns] of all sequences in pages, [pages, kv_heads, page_size,
    columns], with one page more than the table has; elements that hold no row are NaN.
    """
    ends = lengths["cu_seqlens_k"]
    of = [(b, r) for b, count in enumerate(np.diff(ends)) for r in range(count)]
    slots = [slot_of(table, page_size, b, r) for b, r in of]
    pages = 2 + max((page for page, _ in slots), default=0)
    shape = (pages, rows.shape[1], page_size, rows.shape[3])
    if p.alike:
        return alike(rows, shape)
    pool = with_margins(shape, OF_ARRAYS[rows.dtype.name], None, reverse=p.reverse)
    for (b, r), (page, nth) in zip(of, slots, strict=True):
        pool[page, :, nth] = rows[0, :, ends[b] + r]
    return pool


def _rows(p: Problem, lengths: Mapping[str, Array]) -> tuple[int, int, int]:
    """The sizes (batch, queries, keys) of the arrays."""
    if not lengths:
        return p.batch, p.seq_q, p.seq_k
    return 1, int(lengths["cu_seqlens_q"][-1]), int(lengths["cu_seqlens_k"][-1])


def _sequences(lengths: Mapping[str, Array], side: str, rows: int) -> list[tuple[int, int]]:
    """Begin and end of the counted rows of each sequence; one pair if nothing is packed."""
    if not lengths:
        return [(0, rows)]
    ends = lengths[f"cu_seqlens_{side}"]
    used = lengths.get(f"seqused_{side}", np.diff(ends))
    return [(int(first), int(first + n)) for first, n in zip(ends[:-1], used, strict=True)]


def _counted(lengths: Mapping[str, Array], side: str, rows: int) -> NDArray[np.bool_]:
    """Whether each row is a counted row of a sequence."""
    counted = np.zeros(rows, bool)
    for first, end in _sequences(lengths, side, rows):
        counted[first:end] = True
    return counted


# ----------------------------------------------------------------------------------- other operands


def _operand(operand: Operand, config: AttentionConfig, p: Problem, random: np.random.Generator) -> Array:
    """An operand with a different number for each index."""
    sizes = {
        "batch": len(p.sequences) if config.varlen else p.batch,
        "heads": p.heads,
        "kv_heads": p.kv_heads,
        "seq_q": p.seq_q,
        "seq_k": p.seq_k,
    }
    if operand.name == "bias":
        sizes |= dict.fromkeys(p.broadcast, 1)
    sizes |= config.features.counts_of_scales(sizes)
    shape = [sizes.get(axis, _OF_AXIS) for axis in operand.axes] + [operand.columns] * (operand.columns > 0)
    numbers: Array = random.standard_normal(shape)
    if operand.dtype is I32:
        numbers = (_OF_AXIS - 3 + np.arange(math.prod(shape)) % 3).reshape(shape)
    if operand.name in SCALES and config.features.mx is not None:
        numbers = fp8.powers(random, tuple(shape), alike=p.scores != "random")
    elif operand.name in SCALES:
        numbers = fp8.scales(random, tuple(shape))
    elif operand.dtype is BOOL:
        numbers = random.random(shape) < _SHOWN
    elif operand.name in ("bias", "key_bias"):
        numbers[random.random(shape) < _HIDDEN_BY_BIAS] = -np.inf
    elif operand.name == "sink":
        numbers[..., 1::2] = -np.inf  # as without a sink
    return within_margins(numbers, operand.dtype, reverse=p.reverse)


def within_margins(numbers: Array, dtype: DType, *, reverse: bool = False) -> Array:
    """The numbers with a margin after the last index of each axis: NaN, True, or the least i32.
    With `reverse`, all strides are negative: the last number is the first in memory.
    """
    margin = {BOOL: True, I32: np.iinfo(np.int32).min}.get(dtype, np.nan)
    whole = np.full([n + 1 for n in numbers.shape], margin, dtype.numpy)
    view = whole[tuple(slice(n) for n in numbers.shape)]
    view = view[(slice(None, None, -1),) * view.ndim] if reverse else view
    view[...] = numbers
    return view


def slot_of(operands: Mapping[str, Array], page_size: int, sequence: int, row: int) -> tuple[int, int]:
    """The sequence or, with a page size, the page of a row of a cached sequence, and the row's index
    in it.
    """
    if not page_size:
        return sequence, row
    return int(operands["block_table"][sequence, row // page_size]), row % page_size


# ---------------------------------------------------------------------------------- what is wrong


def margins_changed(view: Array, written: NDArray[np.bool_], what: str = "O") -> str:
    """A message if an element or margin outside of the `written` rows of a matrix has changed; else empty."""
    whole = _whole(view)
    bits = np.dtype(f"u{whole.itemsize}")
    changed = whole.view(bits) != np.asarray(np.nan, whole.dtype).view(bits)
    rows = written if view.strides[2] >= 0 else written[::-1]
    changed[:, :, : view.shape[2], : view.shape[3]] &= ~rows[:, None]
    return f"{what} is written outside its rows and columns" if changed.any() else ""


def bits_differ(what: str, got: Array, wanted: Array) -> str:
    """A description of the first element, margins included, with wrong bits; empty if none."""
    bits, right = (whole.view(f"u{whole.itemsize}") for whole in (_whole(got), _whole(wanted)))
    bad = bits != right
    if not bad.any():
        return ""
    at = tuple(int(n) for n in np.argwhere(bad)[0])
    return f"{what}{list(at)} has other bits; {bad.sum()} elements differ"


def copied(array: Array) -> Array:
    """A copy of an array within its margins."""
    return np.array(_whole(array))[tuple(map(slice, array.shape))]


def _whole(array: Array) -> Array:
    """The whole memory of a view: the array and the margins around it."""
    whole = array.base
    assert isinstance(whole, np.ndarray)
    return whole
