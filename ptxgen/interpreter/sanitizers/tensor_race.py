"""A happens-before race detector for tensor memory, by the clocks of
`ptxgen.interpreter.sanitizers.clocks`.

Its unit is one column of 16 lanes, the smallest piece that loads, stores and products have in common. For
each unit, the shadow has the stamp of the last write, and of the last read by each warp that may load it and
by the twin of each warp.

A product or copy is an operation of the twin of its thread's warp. It comes after what its thread comes after
when it starts, and after the earlier operations of the thread, which run in order; it is over for threads
that come after the wait for an mbarrier at which a later `tcgen05.commit` of the thread arrives. A store is
pending until its warp executes `tcgen05.wait::st`. A load is over at once: an instruction that reads its
registers waits for it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter.machine.lanes import WARP
from ptxgen.interpreter.machine.tmem_shapes import offsets
from ptxgen.interpreter.sanitizers.conflicts import Conflict
from ptxgen.interpreter.sanitizers.stamps import (
    ASYNC,
    CLOCK,
    CLOCK_MASK,
    INSTR,
    INSTR_MASK,
    LANE_MASK,
    PENDING,
)
from ptxgen.isa.tensor_memory import COLUMNS, GROUP, GROUPS, QUARTERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ptxgen.interpreter.machine.lanes import Batch
    from ptxgen.interpreter.sanitizers.clocks import Clocks
    from ptxgen.interpreter.sanitizers.tensor_order import TensorOrder
    from ptxgen.isa.tensor_agent import Columns, RegisterShape

    Lanes = np.ndarray[Any, np.dtype[Any]]

UNITS: Final = GROUPS * COLUMNS  # of a CTA


class TensorRaces:
    """The shadow of the tensor memory of all CTAs of a batch, whose units are counted through the batch. The
    methods for accesses of a warp, given by one of its lanes, return their conflicts.
    """

    def __init__(self, clocks: Clocks, batch: Batch, order: TensorOrder | None) -> None:
        self._clocks = clocks
        self._order = order  # if the manual's order is judged, too
        self.lacking: list[tuple[Conflict, str]] = []  # what the manual's order lacks, of the last access
        self._of_cta = batch.width // WARP
        units = batch.ctas * UNITS
        self._written: Lanes = np.zeros(units, np.int64)
        warps_of_quarter = -(-self._of_cta // QUARTERS)
        self._loaded: Lanes = np.zeros((warps_of_quarter, units), np.int64)  # by one of four warps
        self._used: dict[int, Lanes] = {}  # the last reads by the twin of each warp
        self._stores: dict[int, list[Lanes]] = {}  # by warp, the units of stores that it has not waited for

    def load(self, lane: int, units: Lanes, at: int) -> list[Conflict]:
        """The conflicts of a load by instruction `at`."""
        self.lacking = []
        stamps = self._written[units]
        conflicts = self._pending(units, stamps) or self._unordered(lane, units, stamps, "was written by")
        self._loaded[lane // WARP % self._of_cta // QUARTERS, units] = self._now(lane, at)
        return conflicts

    def store(self, lane: int, units: Lanes, at: int) -> list[Conflict]:
        """The conflicts of a store by instruction `at`, which is pending until `wait`."""
        self.lacking = []
        conflicts = self._before_write(lane, units)
        self._forget(units)
        self._written[units] = self._now(lane, at) | PENDING
        self._stores.setdefault(lane // WARP, []).append(units)
        return conflicts

    def wait(self, lane: int) -> None:
        """Record that a warp has waited for its stores, which count as executed now."""
        warp = lane // WARP
        for units in self._stores.pop(warp, ()):
            stamps = self._written[units]
            mine = (stamps >= PENDING) & ((stamps & LANE_MASK) // WARP == warp)
            clock = int(self._clocks.clock[warp]) << CLOCK
            stamp_now = clock | stamps & (INSTR_MASK << INSTR | LANE_MASK)
            self._written[units] = np.where(mine, stamp_now, stamps)

    def free(self, lane: int, units: Lanes) -> list[Conflict]:
        """The conflicts of the end of an allocation; nothing has written the units after it."""
        conflicts = self._before_write(lane, units)
        self.lacking = []  # the manual asks for no fence
        self._forget(units)
        self._written[units] = 0
        return conflicts

    def operate(self, lane: int, reads: Sequence[Lanes], writes: Sequence[Lanes], at: int) -> list[Conflict]:
        """The conflicts of an operation by instruction `at` that reads and writes units."""
        clocks, warp = self._clocks, lane // WARP
        stamp = ASYNC | int(clocks.start(np.array([warp]))[0]) << CLOCK | at << INSTR | lane
        conflicts: list[Conflict] = []
        self.lacking = []
        used = self._used.get(warp)
        if used is None:
            used = self._used[warp] = np.zeros_like(self._written)
        for units in reads:
            stamps = self._written[units]
            conflicts = conflicts or self._pending(units, stamps)
            conflicts = conflicts or self._unordered(lane, units, stamps, "was written by", warp)
        for units in writes:
            conflicts = conflicts or self._before_write(lane, units, warp)
        for units in reads:
            used[units] = stamp
        for units in writes:
            self._forget(units)
            self._written[units] = stamp
        return conflicts

    # ------------------------------------------------------------------------------------- helpers

    def _now(self, lane: int, at: int) -> int:
        return int(self._clocks.clock[lane // WARP]) << CLOCK | at << INSTR | lane

    def _forget(self, units: Lanes) -> None:
        """Forget the reads of units that are written: what comes after the write comes after them, too."""
        self._loaded[:, units] = 0
        for used in self._used.values():
            used[units] = 0

    def _before_write(self, lane: int, units: Lanes, queue: int = -1) -> list[Conflict]:
        """The conflicts of a write with what it does not come after, but for operations of the twin of the
        warp `queue`.
        """
        stamps = self._written[units]
        others = np.where((stamps & LANE_MASK) // WARP == lane // WARP, 0, stamps) if queue < 0 else stamps
        conflicts = self._pending(units, others)
        conflicts = conflicts or self._unordered(lane, units, stamps, "was written by", queue)
        for read in (*self._loaded, *self._used.values()):
            conflicts = conflicts or self._unordered(lane, units, read[units], "was read by", queue)
        return conflicts

    def _pending(self, units: Lanes, stamps: Lanes) -> list[Conflict]:
        wrong = stamps >= PENDING
        return _first("pending", wrong, units, stamps, "may still be written by") if wrong.any() else []

    def _unordered(
        self, lane: int, units: Lanes, stamps: Lanes, what: str, queue: int = -1
    ) -> list[Conflict]:
        if not stamps.any():
            return []
        clocks, warp = self._clocks, lane // WARP
        known = clocks.reached_rows(np.array([warp]))[0]
        other, twin = stamps & LANE_MASK, stamps & ASYNC != 0
        wrong = stamps >> CLOCK & CLOCK_MASK > known[clocks.column(other, twin)]
        wrong &= np.where(twin, other // WARP != queue, other // WARP != warp)
        if wrong.any():
            return _first("race", wrong, units, stamps, what)
        if self._order is not None and not self.lacking:
            chained = queue >= 0 and self._chained(units, stamps)
            self.lacking = self._order.conflicts(
                lane, units, stamps, what, operation=queue >= 0, chained=chained
            )
        return []

    def _chained(self, units: Lanes, stamps: Lanes) -> bool:
        """Whether all these units, and no others, have the same stamp of a write."""
        last = np.unique(stamps)
        return len(last) == 1 and np.count_nonzero(self._written == last) == len(units)


def _first(kind: str, wrong: Lanes, units: Lanes, stamps: Lanes, what: str) -> list[Conflict]:
    """The first of the units that are wrong."""
    n = int(wrong.argmax())
    stamp = int(stamps[n])
    twin = stamp >> CLOCK & CLOCK_MASK if stamp & ASYNC else 0
    return [Conflict(kind, 0, int(units[n]), stamp >> INSTR & INSTR_MASK, stamp & LANE_MASK, what, twin)]


def address_of(unit: int) -> tuple[int, int]:
    """The CTA of a unit, and the address of its first cell."""
    cta, unit = divmod(unit, UNITS)
    group, column = divmod(unit, COLUMNS)
    return cta, group * GROUP << 16 | column


def units_at(cell: int, of: RegisterShape) -> Lanes:
    """The units of the shape of a load or store that begins at a cell of the batch."""
    lane, column = divmod(cell, COLUMNS)
    units: Lanes = _units_of(of) + (lane // GROUP * COLUMNS + column)
    return units


@lru_cache(maxsize=256)
def _units_of(of: RegisterShape) -> Lanes:
    lane, column = np.divmod(offsets(of).reshape(-1), COLUMNS)
    return np.unique(lane // GROUP * COLUMNS + column)


def units_of_columns(ctas: Iterable[int], columns: Columns) -> Lanes:
    """The units of an operand in each of some CTAs."""
    one = _units_of_groups(columns.groups, columns.number) + columns.first
    return np.concatenate([one + cta * UNITS for cta in ctas])


@lru_cache(maxsize=256)
def _units_of_groups(groups: tuple[int, ...], number: int) -> Lanes:
    return (np.array(groups)[:, None] * COLUMNS + np.arange(number)).reshape(-1)
