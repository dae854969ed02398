"""Atomic operations of many lanes at one address at once, with the results of one lane after
another.

Lanes are sorted by address, and in rising order for each address; the lanes with one address are a group. A
scan takes the value at each group's address, the beginnings of the groups, and the operands of all lanes. It
returns the old value that each lane reads and the final value of each group, or None if the operation must be
done lane by lane after all.

If the operation is associative, the values are prefix results (Hillis and Steele, "Data Parallel
Algorithms", 1986). Sums of floating-point numbers are rounded after each lane, in order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.isa import numeric
from ptxgen.isa.numeric_integers import ASSOCIATIVE
from ptxgen.types import ScalarType, f32, f64

if TYPE_CHECKING:
    Lanes = np.ndarray[Any, np.dtype[Any]]
    OldAndFinal = tuple[Lanes, Lanes]
    Scan = Callable[[Lanes, Lanes, tuple[Lanes, ...]], OldAndFinal | None]

_MOST_SWAPS: Final = 8  # of one address; with more, going lane by lane is as fast


def scan_of(op: str, type: ScalarType) -> Scan | None:
    """The scan of an operation on values of a type; None if it has none."""
    if op == "add" and type in (f32, f64):
        return partial(_summed, type)
    if op in ("inc", "dec"):
        return partial(_counted, op)
    combine = _COMBINED.get(op)
    return None if combine is None or not type.is_integer else partial(_combined, combine)


def _second(_: Lanes, b: Lanes) -> Lanes:
    return b


_COMBINED: Final[dict[str, Callable[[Lanes, Lanes], Lanes]]] = {**ASSOCIATIVE, "exch": _second}


def _lengths(starts: Lanes, count: int) -> Lanes:
    return np.diff(np.append(starts, count))


def _index_in_group(starts: Lanes, count: int) -> Lanes:
    """The index of each lane in its group."""
    indices: Lanes = np.arange(count) - np.repeat(starts, _lengths(starts, count))
    return indices


def _after(first: Lanes, starts: Lanes, results: Lanes) -> OldAndFinal:
    """The old values that lanes read and the final values of groups, from the results of all lanes."""
    old = np.empty_like(results)
    old[1:] = results[:-1]
    old[starts] = first
    return old, results[np.append(starts[1:], len(results)) - 1]


def _combined(
    combine: Callable[[Lanes, Lanes], Lanes], first: Lanes, starts: Lanes, operands: tuple[Lanes, ...]
) -> OldAndFinal:
    """The scan of an associative operation `combine`."""
    (b,) = operands
    partial_results = b.copy()
    indices = _index_in_group(starts, len(b))
    longest, reach = int(indices.max()) + 1, 1
    while reach < longest:
        wider = combine(partial_results[:-reach], partial_results[reach:])
        inside = indices[reach:] >= reach
        partial_results[reach:] = np.where(inside, wider, partial_results[reach:])
        reach *= 2
    start = np.repeat(first, _lengths(starts, len(b)))
    return _after(first, starts, combine(start, partial_results))


@numeric.quiet
def _summed(type: ScalarType, first: Lanes, starts: Lanes, operands: tuple[Lanes, ...]) -> OldAndFinal | None:
    """The scan of sums of floating-point numbers."""
    (b,) = operands
    lengths = _lengths(starts, len(b))
    # This loop goes step by step through the longest group; it pays if there are fewer groups than
    # steps. With a NaN it is not used, because numpy does not define which of two NaN a sum
    # returns.
    if len(starts) > int(lengths.max()) or np.isnan(first).any() or np.isnan(b).any():
        return None
    results = np.empty_like(b)
    for n, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        addends = np.concatenate([first[n : n + 1], b[start : start + length]])
        results[start : start + length] = np.add.accumulate(addends)[1:]
    return _after(first, starts, numeric.canonical(results) if type is f32 else results)


def _counted(op: str, first: Lanes, starts: Lanes, operands: tuple[Lanes, ...]) -> OldAndFinal | None:
    """The scan of counters that wrap around at a limit, if the lanes of each group have one limit."""
    (b,) = operands
    lengths = _lengths(starts, len(b))
    limit = b[starts].astype(np.int64)
    if (b != np.repeat(b[starts], lengths)).any():
        return None
    begin = first.astype(np.int64)

    def after(steps: Lanes, begin: Lanes, limit: Lanes) -> Lanes:
        beyond = begin > limit
        # From a value beyond the limit, the first step goes to one end of the range.
        at_one = np.where(op == "inc", 0, limit)
        origin, moved = np.where(beyond, at_one, begin), steps - beyond
        wrapped = np.mod(origin + (moved if op == "inc" else -moved), limit + 1)
        return np.where(beyond & (steps == 0), begin, wrapped).astype(first.dtype)

    steps = _index_in_group(starts, len(b))
    old = after(steps, np.repeat(begin, lengths), np.repeat(limit, lengths))
    return old, after(lengths, begin, limit)


def swapped(first: Lanes, starts: Lanes, operands: tuple[Lanes, ...]) -> OldAndFinal | None:
    """The scan of compare-and-swap; the operands are the values to compare with and the new values."""
    wanted, new = operands
    lengths, indices = _lengths(starts, len(wanted)), np.arange(len(wanted))
    value, begin = first.copy(), starts
    old = np.repeat(first, lengths)
    for _ in range(_MOST_SWAPS):
        held = np.repeat(value, lengths)
        swaps = (wanted == held) & (new != held) & (indices >= np.repeat(begin, lengths))
        if not swaps.any():
            return old, value
        at = np.minimum.reduceat(np.where(swaps, indices, len(indices)), starts)
        some = at < len(indices)
        value[some] = new[at[some]]
        old = np.where(indices > np.repeat(at, lengths), np.repeat(value, lengths), old)
        begin = at + 1
    return None
