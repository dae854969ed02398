"""A happens-before race detector for global memory, by the clocks of
`ptxgen.interpreter.sanitizers.clocks`.

For each unit of an array that a kernel may write, the shadow has the stamp of the last write and of
two reads: the last one, and the last one by another CTA. So a write that should have come after
several reads is found by one of them. CTAs of one launch are compared if they run in one batch;
launches are in order.

Bulk copies are asynchronous operations. The bytes that a copy writes are pending from its
start until its thread has waited for its group without `.read`, which waits for the source only
(PTX ISA, "cp.async.bulk.wait_group").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter.machine.lanes import WARP
from ptxgen.interpreter.sanitizers.clocks import SHOWN
from ptxgen.interpreter.sanitizers.conflicts import Access, Conflict, Values, differing
from ptxgen.interpreter.sanitizers.operations import UnderWay
from ptxgen.interpreter.sanitizers.stamps import (
    ASYNC,
    ATOMIC,
    CLOCK,
    CLOCK_MASK,
    INSTR,
    INSTR_MASK,
    LANE_MASK,
    PENDING,
    first_conflict,
    first_race,
    out_of_scope,
    stamps_now,
    twin_stamps,
)
from ptxgen.interpreter.sanitizers.sum_order import ADDED, unordered

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.arena import Buffer
    from ptxgen.interpreter.sanitizers.clocks import Clocks
    from ptxgen.interpreter.sanitizers.exchanges import Exchanges
    from ptxgen.interpreter.sanitizers.operations import Operations
    from ptxgen.interpreter.sanitizers.sum_order import SumOrder

    Lanes = np.ndarray[Any, np.dtype[Any]]

_READ: Final = "was read by"
_LOG_LIMIT: Final = 1 << 21  # lanes of reads that may be logged for an array


@dataclass(slots=True, eq=False)
class _Copying:
    """The access by which lanes read with one `cp.async`; `left` are the lanes that have not waited."""

    access: Access
    at: int
    left: Lanes

    def only_left(self) -> Access:
        return _only(self.access, self.left)


@dataclass(slots=True)
class _Shadow:
    """The stamps of one array."""

    buffer: Buffer
    units: int
    sources: UnderWay  # what asynchronous operations read
    updates: UnderWay  # what their reductions change
    written: Lanes | None = None
    last: Lanes | None = None
    first: Lanes | None = None
    log: list[tuple[Access, Lanes]] = field(default_factory=list)
    logged: int = 0
    copying: list[_Copying] = field(default_factory=list)


class GlobalRaces:
    """The shadow of the arrays that the CTAs of a batch access; `grain` is the bytes of a unit. The
    methods return the conflicts of an access.
    """

    def __init__(self, clocks: Clocks, operations: Operations, grain: int) -> None:
        self._clocks = clocks
        self._operations = operations
        self._grain = grain
        # By instruction: whether it is a volatile access to an address that is not a flag.
        self._volatile: Lanes = np.zeros(1, np.bool_)
        self._scopes: Lanes | None = None  # by instruction, of strong accesses; None: all include all threads
        self._exchanges: Exchanges | None = None
        self._sums: SumOrder | None = None  # if their order is judged
        self._shadows: dict[int, _Shadow] = {}

    def follow(
        self, volatile: Lanes, scopes: Lanes | None, exchanges: Exchanges, sums: SumOrder | None
    ) -> None:
        """Take `volatile`, by instruction whether it is a volatile access to an address that is not a flag;
        `scopes`, the scope of each strong access (None: all scopes include all threads); `exchanges`, those
        between lanes of a warp; and `sums`, if their order is judged.
        """
        self._sums = sums
        self._volatile, self._scopes, self._exchanges = volatile, scopes, exchanges

    def read(
        self, buffer: Buffer, access: Access, at: int, *, strong: bool, copied: bool = False
    ) -> list[Conflict]:
        """The conflicts of a load by instruction `at`, or with `copied` of the start of a `cp.async`."""
        shadow = self._shadow(buffer)
        conflicts: list[Conflict] = []
        if shadow.written is not None:
            stamps = self._stamps(shadow, access)
            volatile = bool(self._volatile.take(at, mode="clip"))
            conflicts += self._unordered(
                access, stamps, at, "was written by", strong=strong, volatile=volatile
            )
        conflicts = conflicts or shadow.updates.conflicts(access)
        if not (strong or copied):
            self._log(shadow, access, at)
        return conflicts

    def write(
        self,
        buffer: Buffer,
        access: Access,
        at: int,
        *,
        strong: bool,
        atomic: bool = False,
        values: Values | None = None,
    ) -> list[Conflict]:
        """The conflicts of a store, or of an atomic update, by instruction `at`."""
        shadow = self._shadow(buffer)
        stamps = self._stamps(shadow, access)
        conflicts = self._unordered(access, stamps, at, "was written by", strong=strong, values=values)
        conflicts = conflicts or self._after_reads(shadow, access, at)
        if not atomic:
            conflicts = conflicts or shadow.updates.conflicts(access)
            shadow.updates.written(access)
        conflicts += self._unordered_sums(access, stamps, at)
        assert shadow.written is not None
        units, mine = access.units(), stamps_now(self._clocks, access.ids, at)
        mine = mine | (ATOMIC if strong else 0)
        shadow.written[units] = mine[:, None]
        adds = self._sums is not None and self._sums.adds(at)
        if adds or not strong:
            last = shadow.written[units]
            twice = last != mine[:, None]
            if twice.any() and adds:
                conflicts += unordered(first_conflict("race", twice, access, last, ""))
            elif twice.any():
                twice = differing(access, twice, values)
                conflicts += first_conflict("race", twice, access, last, "is written at the same time by")
        return conflicts

    # ----------------------------------------------------------------------------- copies by threads

    def start_copy(self, buffer: Buffer, access: Access, at: int) -> Callable[[Lanes], None]:
        """Lanes start to read by a `cp.async`, instruction `at`. Returns what records which of them have
        waited: from then on it is as if they had read at the wait.
        """
        shadow = self._shadow(buffer)
        copying = _Copying(access, at, np.ones(len(access.ids), np.bool_))
        shadow.copying.append(copying)

        def finish(ids: Lanes) -> None:
            done = copying.left & np.isin(access.ids, ids)
            if not done.any():
                return
            self._log(shadow, _only(access, done), at)
            copying.left &= ~done
            if not copying.left.any():
                shadow.copying.remove(copying)

        return finish

    # --------------------------------------------------------------------------------- bulk copies

    def start_read(self, buffer: Buffer, access: Access, at: int, number: int) -> list[Conflict]:
        """The conflicts of a read by the asynchronous operation `number`."""
        shadow = self._shadow(buffer)
        conflicts: list[Conflict] = []
        if shadow.written is not None:
            stamps = self._stamps(shadow, access)
            conflicts += self._unordered(access, stamps, at, "was written by", strong=False)
            conflicts = conflicts or self._hidden(access, stamps)
        conflicts = conflicts or shadow.updates.conflicts(access)
        shadow.sources.start(access, number, at)
        return conflicts

    def start_write(
        self, buffer: Buffer, access: Access, at: int, number: int, *, atomic: bool, sums: bool
    ) -> list[Conflict]:
        """The conflicts of a write by the asynchronous operation `number`, or of a reduction, which `sums`
        floating-point numbers or not; it is under way until `finish_write`.
        """
        shadow = self._shadow(buffer)
        stamps = self._stamps(shadow, access)
        conflicts: list[Conflict] = []
        conflicts += self._unordered(access, stamps, at, "was written by", strong=atomic)
        conflicts = conflicts or self._after_reads(shadow, access, at)
        if atomic:
            conflicts = conflicts or self._hidden(access, stamps)
            shadow.updates.start(access, number, at)
            if sums and self._sums is not None:
                self._sums.started(at)
                conflicts += self._unordered_sums(access, stamps, at, proxy=True)
        else:
            conflicts = conflicts or shadow.updates.conflicts(access)
            shadow.updates.written(access)
        mine = twin_stamps(access.ids, at, number) | PENDING | (ATOMIC if atomic else 0)
        assert shadow.written is not None
        shadow.written[access.units()] = mine[:, None]
        return conflicts

    def finish_write(self, buffer: Buffer, access: Access, number: int) -> None:
        """Record that the thread has waited for the write that `start_write` began."""
        written = self._shadow(buffer).written
        assert written is not None
        units = access.units()
        there = written[units]
        mine = (there >> CLOCK & CLOCK_MASK == number) & (there >= PENDING)
        mine &= (there & LANE_MASK) == access.ids[:, None]
        written[units] = np.where(mine, there & ~PENDING, there)

    def _unordered_sums(
        self, access: Access, stamps: Lanes, at: int, *, proxy: bool = False
    ) -> list[Conflict]:
        """The conflicts of an addition, with `proxy` by an asynchronous operation, with earlier ones."""
        earlier = None if self._sums is None else self._sums.earlier(at, stamps)
        if earlier is None:
            return []
        conflicts = self._unordered(access, earlier, at, ADDED, strong=False)
        if proxy and not conflicts:
            copied = earlier >= ASYNC
            ids = np.broadcast_to(access.ids[:, None], copied.shape)[copied]
            copied[copied] = self._operations.hidden(ids, earlier[copied] >> CLOCK & CLOCK_MASK)
            conflicts = first_conflict("race", copied, access, earlier, ADDED)
        return unordered(conflicts)

    def _hidden(self, access: Access, stamps: Lanes) -> list[Conflict]:
        """The conflicts with ordinary writes that no fence has made visible to asynchronous operations."""
        warps, writers = (access.ids // WARP)[:, None], (stamps & LANE_MASK) // WARP
        shown = self._clocks.seen(warps, writers, SHOWN["global"])
        wrong = (stamps > 0) & (stamps < ASYNC) & ((stamps >> CLOCK) > shown)
        return first_conflict("proxy", wrong, access, stamps, "was written by")

    # -------------------------------------------------------------------------------------- stamps

    def _shadow(self, buffer: Buffer) -> _Shadow:
        shadow = self._shadows.get(id(buffer))
        if shadow is None:
            units = (buffer.end - 1) // self._grain - buffer.base // self._grain + 1
            # The shadow holds the array, so that its id stays unique.
            sources = UnderWay(self._operations, units, "was read by")
            updates = UnderWay(self._operations, units, "may still be updated by")
            shadow = self._shadows[id(buffer)] = _Shadow(buffer, units, sources, updates)
        return shadow

    def _stamps(self, shadow: _Shadow, access: Access) -> Lanes:
        if shadow.written is None:
            shadow.written = np.zeros(shadow.units, np.int64)
        return shadow.written[access.units()]

    def _unordered(
        self,
        access: Access,
        stamps: Lanes,
        at: int,
        what: str,
        *,
        strong: bool,
        values: Values | None = None,
        volatile: bool = False,
    ) -> list[Conflict]:
        """The conflicts with operations of these stamps that an access does not come after."""
        twin = stamps >= ASYNC
        doubtful = (stamps > 0) & (twin | ((stamps & LANE_MASK) != access.ids[:, None]))
        if strong:
            fine = (stamps & ATOMIC) != 0
            if self._scopes is not None:
                fine &= ~out_of_scope(self._clocks, self._scopes, at, access.ids, stamps)
            doubtful &= ~(fine & ~self._volatile_here(access, stamps) if volatile else fine)
        if not doubtful.any():
            return []
        pending = doubtful & (stamps >= PENDING)
        if pending.any():
            return first_conflict("pending", pending, access, stamps, "may still be written by the copy")
        rows, columns = np.nonzero(doubtful)
        some, copies = stamps[rows, columns], twin[rows, columns]
        warps, clock = access.ids[rows] // WARP, some >> CLOCK & CLOCK_MASK
        wrong = np.zeros_like(doubtful)
        late = clock > self._clocks.seen(warps, (some & LANE_MASK) // WARP)
        if copies.any():
            late[copies] = ~self._operations.after(access.ids[rows][copies], clock[copies])
        if late.any():
            ids, lanes = access.ids[rows], some & LANE_MASK
            fine = self._clocks.met(ids, lanes, clock)
            fine |= self._clocks.released_in_part(ids, lanes // WARP, lanes % WARP, clock)
            late &= copies | ~fine
            if what == _READ and self._exchanges is not None:
                mine = np.flatnonzero(late & ~copies & (ids // WARP == lanes // WARP))
                readers = some[mine] >> INSTR & INSTR_MASK
                late[mine] = ~self._exchanges.ordered(at, ids[mine], lanes[mine] % WARP, readers, clock[mine])
        wrong[rows, columns] = late
        if values is not None and wrong.any():
            new_values, there = values()
            wrong &= new_values != there
        return first_race(self._clocks, wrong, access, stamps, what)

    def _volatile_here(self, access: Access, stamps: Lanes) -> Lanes:
        """Which stamps are of volatile writes by the lane's own CTA to an address that is not a
        flag. Between CTAs, which have no barrier, volatile accesses are how threads communicate.
        """
        lanes = WARP * self._clocks.of_cta
        same = (stamps & LANE_MASK) // lanes == (access.ids // lanes)[:, None]
        volatile: Lanes = same & self._volatile.take(stamps >> INSTR & INSTR_MASK, mode="clip")
        return volatile

    # --------------------------------------------------------------------------------------- reads

    def _log(self, shadow: _Shadow, access: Access, at: int) -> None:
        shadow.log.append((access, stamps_now(self._clocks, access.ids, at)))
        shadow.logged += len(access.ids)
        if shadow.logged > _LOG_LIMIT:
            self._note(shadow)

    def _note(self, shadow: _Shadow) -> None:
        """Put the logged reads into the shadow."""
        if shadow.last is None or shadow.first is None:
            shadow.last = np.zeros(shadow.units, np.int64)
            shadow.first = np.zeros(shadow.units, np.int64)
        last, first = shadow.last, shadow.first
        for access, stamp in shadow.log:
            units, mine = (access.units(), np.broadcast_to(stamp[:, None], (len(stamp), access.width)))
            before = last[units]
            other_cta = (before > 0) & (self._cta(before) != self._cta(mine))
            first[units[other_cta]] = before[other_cta]
            last[units] = mine
            lost = self._cta(last[units]) != self._cta(mine)
            first[units[lost]] = mine[lost]
        shadow.log.clear()
        shadow.logged = 0

    def _cta(self, stamps: Lanes) -> Lanes:
        cta: Lanes = (stamps & LANE_MASK) // (WARP * self._clocks.of_cta)
        return cta

    def _after_reads(self, shadow: _Shadow, access: Access, at: int) -> list[Conflict]:
        conflicts = shadow.sources.conflicts(access) or _still_copied(shadow, access)
        shadow.sources.written(access)
        if conflicts:
            return conflicts
        if shadow.log:
            self._note(shadow)
        for stamps in (shadow.last, shadow.first):
            if stamps is not None:
                conflicts = self._unordered(access, stamps[access.units()], at, _READ, strong=False)
                if conflicts:
                    return conflicts
        return []


def _only(access: Access, lanes: Lanes) -> Access:
    """The part of an access that some lanes make."""
    return Access(access.ids[lanes], access.first[lanes], access.width, access.low, access.high)


def _still_copied(shadow: _Shadow, access: Access) -> list[Conflict]:
    """The first unit that an access writes while a `cp.async` may still read it."""
    for copying in shadow.copying:
        read = copying.only_left()
        units, mine = read.units(), access.units()
        wrong = np.isin(mine, units)
        if wrong.any():
            row, column = (int(i[0]) for i in np.nonzero(wrong))
            lane = int(read.ids[(units == mine[row, column]).any(axis=1)][0])
            unit = int(mine[row, column])
            return [Conflict("race", row, unit, copying.at, lane, "may still be read by")]
    return []
