"""Asynchronous operations: copies and reductions that end at a time of their own.

Each has a number, and is over for the threads that come after a wait for it: for the mbarrier that counts it,
or for its bulk group. A wait for another operation says nothing, whichever of the two was started first. (The
multiplications of a warpgroup, whose groups complete in order, are stamps of the warps' twins:
`ptxgen.interpreter.sanitizers.clocks`.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.interpreter.machine.lanes import WARP
from ptxgen.interpreter.sanitizers.conflicts import Access, Conflict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ptxgen.interpreter.sanitizers.clocks import Clocks

    Lanes = np.ndarray[Any, np.dtype[Any]]

_WARP_BITS = 13  # bits of the number of a warp in the batch, as lanes have 18


class Operations:
    """The asynchronous operations of a batch, and the waits for them."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._count = 0
        # By operation: the warps that have waited for it, and their clocks at the wait.
        self._waits: dict[int, dict[int, int]] = {}
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
        """Record that a warp has waited for an operation."""
        while number:
            self._waits.setdefault(number, {}).setdefault(warp, int(self._clocks.clock[warp]))
            number = self._sources.get(number, 0)

    def waited(self, number: int) -> Iterable[int]:
        """The warps that have waited for an operation themselves."""
        return self._waits.get(number, ())

    def after(self, warps: Lanes, numbers: Lanes) -> Lanes:
        """Whether warps come after a wait for operations, by any warp; elementwise, bool."""
        both = np.asarray(numbers) << _WARP_BITS | np.asarray(warps)
        keys, inverse = np.unique(both, return_inverse=True)
        ordered = np.array([self._is_after(key) for key in keys.tolist()], np.bool_)
        after: Lanes = ordered[inverse].reshape(both.shape)
        return after

    def _is_after(self, key: int) -> bool:
        if key in self._after:
            return True
        warp, clocks = key & ((1 << _WARP_BITS) - 1), self._clocks
        mine = np.array(warp)
        for w, clock in self._waits.get(key >> _WARP_BITS, {}).items():
            if w == warp or clocks.reached(mine, np.array(w)) >= clock:
                self._after.add(key)
                return True
        return False


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

    def start(self, units: Lanes, number: int, at: int, lane: int) -> None:
        """Record that operation `number`, which a lane starts by instruction `at`, may access these units."""
        if self._of is None:
            self._of = np.zeros(self._units, np.int32)
        self._started[number] = at, lane
        before, warp = self._of[units], np.array(lane // WARP)
        for which in np.unique(before).tolist():
            # Operations that are complete for the warp were complete before this operation began.
            left = [n for n in self._sets[which] if not self._operations.after(warp, np.array(n))]
            members = (*left, number)
            number_of_set = self._numbers.setdefault(members, len(self._sets))
            if number_of_set == len(self._sets):
                self._sets.append(members)
            self._of[units[before == which]] = number_of_set

    def conflicts(self, access: Access) -> list[Conflict]:
        """The first unit of an access that does not come after an operation, if there is one."""
        if self._of is None:
            return []
        sets = self._of[access.units()]
        if not sets.any():
            return []
        warps = access.ids // WARP
        for which in np.unique(sets).tolist():
            for number in self._sets[which]:
                here = sets == which
                wrong = np.zeros_like(here)
                wrong[here] = ~self._operations.after(np.repeat(warps, here.sum(axis=1)), np.array(number))
                if wrong.any():
                    row, column = (int(i[0]) for i in np.nonzero(wrong))
                    at, lane = self._started[number]
                    unit = int(access.first[row]) + column
                    return [Conflict("race", row, unit, at, lane, self._what, number)]
        return []

    def written(self, access: Access) -> None:
        """Forget the operations on the units of an access, which writes them."""
        if self._of is not None:
            self._of[access.units()] = 0
