"""Asynchronous operations: copies and reductions that end at a time of their own.

Each has a number, and is over for the threads that come after a wait for it: for the mbarrier that counts it,
or for its bulk group, by the thread that has started it. A wait for another operation says nothing,
whichever of the two was started first. (The multiplications of a warpgroup, whose groups complete in order,
are stamps of the warps' twins: `ptxgen.interpreter.sanitizers.clocks`.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.interpreter.machine.lanes import WARP
from ptxgen.interpreter.sanitizers.clocks import SHOWN
from ptxgen.interpreter.sanitizers.conflicts import Access, Conflict, rows_from, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ptxgen.interpreter.sanitizers.clocks import Clocks

    Lanes = np.ndarray[Any, np.dtype[Any]]

_WARP_BITS = 13  # bits of the number of a warp in the batch, as lanes have 18
_FEW = 512  # pairs of a warp and an operation that are looked up without sorting them
_NONE, _SOME, _AFTER = range(3)  # which lanes of a warp come after an operation


class Operations:
    """The asynchronous operations of a batch, and the waits for them."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._count = 0
        # By operation: the warps that have waited for it, and their clocks at the wait.
        self._waits: dict[int, dict[int, int]] = {}
        # By operation in a bulk group: the lane that has waited for the group, and its warp's clock then.
        self._group_waits: dict[int, tuple[int, int]] = {}
        self._sources: dict[int, int] = {}  # by operation: another one, for which its wait is one, too
        # Warps and operations that they come after, each as one number: `operation << _WARP_BITS | warp`.
        self._after: set[int] = set()
        self.counters: dict[int, int] = {}  # by operation: the position of the mbarrier that counts it

    def start(self, counter: int | None = None, source: int = 0) -> int:
        """The number of a new operation, from 1; the mbarrier at position `counter` counts it, if any does. A
        wait for it is one for the operation `source`, too, which reads what this one writes.
        """
        self._count += 1
        if source:
            self._sources[self._count] = source
        for number in (self._count, source):
            if counter is not None and number:
                self.counters.setdefault(number, counter)
        return self._count

    def wait(self, warp: int, number: int) -> None:
        """Record that a warp has waited for an operation: that an mbarrier which counts it has completed."""
        while number:
            self._waits.setdefault(number, {}).setdefault(warp, int(self._clocks.clock[warp]))
            number = self._sources.get(number, 0)

    def wait_for_group(self, lane: int, number: int) -> None:
        """Record that a lane has waited for the operation that it has started in a bulk group."""
        self._group_waits.setdefault(number, (lane, int(self._clocks.clock[lane // WARP])))

    def waited(self, number: int) -> Iterable[int]:
        """The warps that have waited for an operation themselves."""
        group = self._group_waits.get(number)
        return (*self._waits.get(number, ()), *(() if group is None else (group[0] // WARP,)))

    def after(self, ids: Lanes, numbers: Lanes) -> Lanes:
        """Whether lanes come after a wait for operations, by any warp; elementwise, bool."""
        each: Lanes = numbers << _WARP_BITS | ids // WARP
        if each.size <= _FEW:
            few = each.reshape(-1).tolist()
            if self._after.issuperset(few) or all(self._is_after(key) == _AFTER for key in few):
                return np.ones(each.shape, np.bool_)
        ids, numbers = np.broadcast_arrays(ids, numbers)
        keys, inverse = np.unique(each, return_inverse=True)
        of_warps = np.array([self._is_after(key) for key in keys.tolist()], np.int8)
        ordered = of_warps[inverse].reshape(ids.shape)
        after: Lanes = np.array(ordered == _AFTER)
        some = ordered == _SOME
        if some.any():
            pairs = np.stack([ids[some], numbers[some]], axis=1)
            lanes, inverse = np.unique(pairs, axis=0, return_inverse=True)
            of_lanes = [self._lane_is_after(lane, number) for lane, number in lanes.tolist()]
            after[some] = np.array(of_lanes, np.bool_)[inverse.reshape(-1)]
        return after

    def is_after(self, lane: int, number: int) -> bool:
        """Whether a lane comes after a wait for an operation, by any warp."""
        after = self._is_after(number << _WARP_BITS | lane // WARP)
        return after == _AFTER or (after == _SOME and self._lane_is_after(lane, number))

    def hidden(self, ids: Lanes, numbers: Lanes) -> Lanes:
        """Whether asynchronous operations of lanes may come before others, in bulk groups, that the lanes
        come after: those of other lanes, if no `fence.proxy.async` lies between; elementwise, bool.
        """
        keys, inverse = np.unique(np.stack([ids, numbers], axis=1), axis=0, return_inverse=True)
        hidden = [self._is_hidden(lane, number) for lane, number in keys.tolist()]
        return np.array(hidden, np.bool_)[inverse.reshape(-1)]

    def _is_hidden(self, lane: int, number: int) -> bool:
        waits, clock = self._group_waits[number]
        if waits == lane:
            return False
        shown = self._clocks.seen(np.array([lane // WARP]), np.array([waits // WARP]), SHOWN["global"])
        return bool(shown[0] < clock)

    def _is_after(self, key: int) -> int:
        """Whether the lanes of a warp come after an operation: `_AFTER`, `_SOME` of them, or `_NONE`."""
        if key in self._after:
            return _AFTER
        number, warp = key >> _WARP_BITS, key & ((1 << _WARP_BITS) - 1)
        clocks, waits = self._clocks, self._waits.get(number, {})
        after = warp in waits or any(clocks.reached_by(warp, w) >= clock for w, clock in waits.items())
        if not after and number in self._group_waits:
            lane, clock = self._group_waits[number]
            after = bool(clocks.seen(np.array([warp]), np.array([lane // WARP]))[0] >= clock)
            if not after and lane // WARP == warp:
                return _SOME
            after = after or self._released(warp * WARP, number)
        if after:
            self._after.add(key)
        return _AFTER if after else _NONE

    def _lane_is_after(self, lane: int, number: int) -> bool:
        """Whether a lane comes after the wait for a bulk group by a lane of its warp."""
        waits, clock = self._group_waits[number]
        if lane == waits or self._released(lane, number):
            return True
        return bool(self._clocks.met(np.array([lane]), np.array([waits]), np.array([clock]))[0])

    def _released(self, lane: int, number: int) -> bool:
        """Whether a lane comes after an arrival at an mbarrier that follows the wait for a bulk group."""
        waits, clock = self._group_waits[number]
        ids, warp, of = np.array([lane]), np.array([waits // WARP]), np.array([waits % WARP])
        return bool(self._clocks.released_in_part(ids, warp, of, np.array([clock]))[0])


class UnderWay:
    """The operations that may still access each of some units of memory.

    A unit has the number of a set of operations. Sets are few, since a write to a unit that comes after all
    of them empties it: what comes after that write comes after them, too.
    """

    def __init__(self, operations: Operations, units: int, what: str) -> None:
        self._operations = operations
        self._what = what
        self._units = units
        self._of: Lanes | None = None  # by unit; None: no operation has begun
        self._sets: list[tuple[int, ...]] = [()]
        self._numbers: dict[tuple[int, ...], int] = {(): 0}
        self._started: dict[int, tuple[int, int]] = {}  # by operation: instruction and lane

    @property
    def some(self) -> bool:
        """Whether any operation has begun."""
        return self._of is not None

    def start(self, access: Access, number: int, at: int) -> None:
        """Record that operation `number`, which one lane starts by instruction `at`, may make an access."""
        if self._of is None:
            self._of = np.zeros(self._units, np.int32)
        lane = int(access.ids[0])
        self._started[number] = at, lane
        before = rows_of(self._of, access).copy()
        sets = np.unique(before).tolist() if (before != before.flat[0]).any() else [int(before.flat[0])]
        for which in sets:
            # Operations that are complete for the lane were complete before this operation began.
            left = [n for n in self._sets[which] if not self._operations.is_after(lane, n)]
            members = (*left, number)
            number_of_set = self._numbers.setdefault(members, len(self._sets))
            if number_of_set == len(self._sets):
                self._sets.append(members)
            if access.span is not None and len(sets) == 1:
                self._of[access.span] = number_of_set
            elif len(sets) == 1:
                rows_from(self._of, access.width)[access.first] = number_of_set
            else:
                self._of[access.units()[before == which]] = number_of_set

    def conflicts(self, access: Access) -> list[Conflict]:
        """The first unit of an access that does not come after an operation, if there is one."""
        if self._of is None:
            return []
        sets = rows_of(self._of, access)
        if not sets.any():
            return []
        for which in np.unique(sets).tolist():
            for number in self._sets[which]:
                here = sets == which
                wrong = np.zeros_like(here)
                wrong[here] = ~self._operations.after(
                    np.repeat(access.ids, here.sum(axis=1)), np.array(number)
                )
                if wrong.any():
                    row, column = (int(i[0]) for i in np.nonzero(wrong))
                    at, lane = self._started[number]
                    unit = int(access.first[row]) + column
                    return [Conflict("race", row, unit, at, lane, self._what, number)]
        return []

    def written(self, access: Access) -> None:
        """Forget the operations on the units of an access, which writes them."""
        if self._of is not None and access.span is not None:
            self._of[access.span] = 0
        elif self._of is not None:
            rows_from(self._of, access.width)[access.first] = 0
