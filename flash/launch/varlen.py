"""Packed sequences (varlen): the checks of the arrays that say where each sequence begins and ends,
as far as the host can read these arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flash.host.caller import LAUNCH
from flash.launch.rotary import angle_problems
from flash.operands.declared import MAX_WINDOWED_SEQ
from flash.operands.dtypes import I32
from flash.problem.features import ANGLES
from flash.problem.sequences import each_sequence
from ptxgen.arguments import integer
from ptxgen.arrays.views import HOST, ArrayView, host_array
from ptxgen.errors import LaunchError, shown
from ptxgen.target import MAX_GRID

Array = NDArray[Any]

LENGTHS: Final = ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k")
TABLE: Final = "block_table"


def most_queries(operands: Mapping[str, ArrayView], value: object, caller: str = LAUNCH.name) -> int | None:
    """The most queries of a sequence: those of the lengths, if these are on the host, but at most as many
    as the caller gives in `value`, which `length_problems` compares; else those that are given. None if none
    are and the arrays of lengths are malformed, which the checks of operands report.

    Raises `LaunchError` if `value` is no number of queries, or if it is None and the lengths are
    not on the host.
    """
    return _most("q", "queries", operands, value, caller)


def most_keys(operands: Mapping[str, ArrayView], value: object, caller: str) -> int | None:
    """The most keys of a packed sequence; arguments and errors are those of `most_queries`."""
    return _most("k", "keys", operands, value, caller)


def rows_at_most(caller: str, side: str, value: object) -> int | None:
    """The most rows of a sequence that the argument max_seqlen_q or max_seqlen_k of `caller` gives; None for
    None. `side` is "q" or "k". Raises `LaunchError` for no number of rows.
    """
    most = None if value is None else integer(value, 0, MAX_WINDOWED_SEQ)
    if value is not None and most is None:
        raise LaunchError(
            f"{caller}: max_seqlen_{side} must be an integer from 0 to {MAX_WINDOWED_SEQ}, got {shown(value)}"
        )
    return most


def _most(side: str, what: str, operands: Mapping[str, ArrayView], value: object, caller: str) -> int | None:
    most = rows_at_most(caller, side, value)
    ends = operands[f"cu_seqlens_{side}"]
    if ends.device != HOST:
        if most is not None:
            return most
        raise LaunchError(
            f"{caller}: max_seqlen_{side} must be given, because cu_seqlens_{side} is on "
            f"{ends.device_name}, which a launch does not wait for; pass the most {what} of a "
            "sequence"
        )
    used = operands.get(f"seqused_{side}")
    if not _is_list(ends) or not ends.shape or (used is not None and not _is_list(used)):
        return most
    counts = np.diff(host_array(ends).astype(np.int64)) if used is None else host_array(used)
    longest = max(int(counts.max(initial=0)), 0)
    return longest if most is None else min(longest, most)


def _is_list(array: ArrayView) -> bool:
    """Whether an array of lengths is on the host, int32, at most 1-D, and of 1 to `MAX_GRID[0]` elements."""
    is_int32 = array.device == HOST and array.dtype == I32.array_name
    return is_int32 and len(array.shape) <= 1 and 0 < array.size <= MAX_GRID[0]


def length_problems(
    operands: Mapping[str, ArrayView],
    total_q: int,
    total_k: int,
    max_seqlen_q: int,
    max_seqlen_k: int = MAX_WINDOWED_SEQ,
) -> Iterator[str]:
    """Say what is wrong with the elements of arrays of lengths, whose types and shapes are right:
    the first wrong element of each array, and a sequence longer than the most. Only arrays on the
    host are read.
    """
    host = {
        name: host_array(operands[name]).astype(np.int64)
        for name in LENGTHS
        if name in operands and operands[name].device == HOST
    }
    counts: dict[str, Array] = {}
    for side, total in (("q", total_q), ("k", total_k)):
        ends = host.get(f"cu_seqlens_{side}")
        if ends is None:
            continue
        problem = _wrong_end(side, ends, total)
        if problem:
            yield problem
            continue
        counts[side] = np.diff(ends)
        used = host.get(f"seqused_{side}")
        if used is not None:
            wide = np.broadcast_to(used, counts[side].shape)
            yield from wrong_element(f"seqused_{side}", wide, counts[side], "the rows of that sequence")
            counts[side] = wide
    for side, what, most in (("q", "queries", max_seqlen_q), ("k", "keys", max_seqlen_k)):
        if side in counts and counts[side].size and counts[side].max() > most:
            longest = int(counts[side].argmax())
            yield (
                f"max_seqlen_{side} must be at least {counts[side][longest]}, the {what} of sequence "
                f"{longest}, got {most}; leave it out to have it found"
            )


def page_problems(operands: Mapping[str, ArrayView], batch: int, pages: int, page_size: int) -> Iterator[str]:
    """Say what is wrong with the elements of `seqused_k` and `block_table`, whose types and shapes
    are right, of `batch` sequences with keys in `pages` pages: the first wrong element of each.
    Only arrays on the host are read, and only entries of pages with a key.
    """
    if not batch or any(operands[name].device != HOST for name in ("seqused_k", TABLE)):
        return
    table = host_array(operands[TABLE])
    table = np.broadcast_to(table, (batch, table.shape[-1]))
    used = np.broadcast_to(host_array(operands["seqused_k"]), batch).astype(np.int64)
    room = table.shape[1] * page_size
    yield from wrong_element("seqused_k", used, room, "the rows that block_table has room for")
    yield from wrong_page(table, np.zeros_like(used), used, pages, page_size, "k")


def wrong_element(name: str, numbers: Array, most: int | Array, what: str = "") -> Iterator[str]:
    """Say which number, the first one, is below 0 or above the `most`; `what` says what `most` counts."""
    wrong = np.flatnonzero((numbers < 0) | (numbers > most))
    if wrong.size:
        at = int(wrong[0])
        most = np.broadcast_to(most, numbers.shape)[at]
        yield f"{name}[{at}] must be from 0 to {most}{f', {what},' if what else ','} got {numbers[at]}"


def wrong_page(
    table: Array, first: Array, used: Array, pages: int, page_size: int, of: str, which: Array | None = None
) -> Iterator[str]:
    """Say which entry of the rows `table` of block_table, the first one for the keys `first` to `used` - 1,
    is none of the `pages` of the array `of`. `which` has the numbers of these rows, by default in order.
    """
    begins = np.arange(table.shape[1]) * page_size
    counted = (begins + page_size > first[:, None]) & (begins < used[:, None])
    bad = np.argwhere(counted & ((table < 0) | (table >= pages)))
    if bad.size:
        b, n = (int(index) for index in bad[0])
        row = b if which is None else int(which[b])
        yield f"block_table[{row}, {n}] must be from 0 to {pages - 1}, a page of {of}, got {table[b, n]}"


def rotary_problems(operands: Mapping[str, ArrayView]) -> Iterator[str]:
    """Say that rotary tables are too short for the positions of the queries. Only arrays on the host are
    read, of types and shapes that are right.
    """
    lengths = {name: operands[name] for name in LENGTHS if name in operands}
    if any(array.device != HOST for array in lengths.values()):
        return
    of_host = each_sequence(**{name: host_array(array) for name, array in lengths.items()})
    needed = max((keys for queries, keys in (one.lengths for one in of_host) if queries > 0), default=0)
    yield from angle_problems(operands, 2 * operands[ANGLES[0]].shape[1], needed)


def _wrong_end(side: str, ends: Array, total: int) -> str:
    before = np.concatenate(([0], ends[:-1]))
    wrong = np.flatnonzero((ends < before) | (ends > total))
    if not wrong.size:
        return ""
    at, name = int(wrong[0]), f"cu_seqlens_{side}"
    low = f"{before[at]}, which is {name}[{at - 1}]," if at else "0"
    return f"{name}[{at}] must be from {low} to {total}, the rows of {side}, got {ends[at]}"
