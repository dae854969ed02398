"""A happens-before race detector for shared memory, by vector clocks.

An agent is a warp of a CTA. `clock[cta, a]` stamps what agent `a` does now; `known[cta, a, b]` is
the newest stamp of `b` that everything `a` does now comes after. The diagonal is kept one behind
the clock, so that the same comparison finds conflicts between lanes of one warp. For each unit of
memory: the stamp of the last write, and of each agent's last read. A copy under way makes its units
pending, for its own thread too, until that thread has waited for it.

Nearly always, all that an access meets is older than the last barrier of its CTA. `floor[cta]` is
the newest stamp that all agents of a CTA know of all others, so one comparison tells. Reads are
only logged; they are put into the shadow when a write to the same range of addresses comes before a
barrier does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter.lanes import WARP

if TYPE_CHECKING:
    Lanes = np.ndarray[Any, np.dtype[Any]]

# A stamp of a write: pending << 62 | clock << 32 | instruction << 11 | atomic << 10 | thread in the
# CTA. 0: never written.
_PENDING: Final = 1 << 62
_CLOCK: Final = 32
_INSTR: Final = 11
_INSTR_MASK: Final = (1 << 21) - 1
_ATOMIC: Final = 1 << 10
_THREAD_MASK: Final = (1 << 10) - 1
# A stamp of a read: clock << 32 | instruction << 11 | lane in the warp.
_LANE_MASK: Final = 63
_SEVERAL: Final = 63  # more than one lane has read with this clock
_LOG_LIMIT: Final = 4096  # reads that may be logged


@dataclass(frozen=True, slots=True)
class Access:
    """What lanes access: each lane's number in the batch, its first unit, and how many; all in
    units `low` to `high` - 1 of a CTA.
    """

    ids: Lanes
    first: Lanes
    width: int
    low: int
    high: int

    def units(self) -> Lanes:
        """Each lane's units, `[lanes, width]`."""
        return self.first[:, None] + np.arange(self.width)


@dataclass(frozen=True, slots=True)
class Conflict:
    """The first of the problems of one access: `position` in its lanes, the unit, and the other
    thread and instruction.

    `other_thread` is -1 where several may be meant, `other` is -1 where there is no other
    instruction.
    """

    kind: str
    position: int
    unit: int
    other: int
    other_thread: int
    what: str


@dataclass(slots=True)
class _Reads:
    """Reads with the same clocks: alive until all of these CTAs' floors have reached them."""

    version: int
    ids: Lanes
    ctas: Lanes
    clock: Lanes  # of all agents, then
    entries: list[tuple[Access, int]] = field(default_factory=list)


class RaceDetector:
    """Shadow of the shared memory of all CTAs of a batch.

    `width` is the lanes of a CTA; `units` the units of memory of a CTA, counted through the whole
    batch. The methods for accesses return what is wrong with them.
    """

    def __init__(self, ctas: int, width: int, units: int) -> None:
        self._width = width
        self._agents = width // WARP
        self._units = ctas * units
        self._written = np.zeros(ctas * units, np.int64)
        self._read = np.zeros(self._agents * ctas * units, np.int64)  # by agent, then unit
        self._clock = np.ones((ctas, self._agents), np.int64)
        self._known = np.zeros((ctas, self._agents, self._agents), np.int64)
        self._released = np.zeros((ctas, 16, self._agents), np.int64)
        self._floor = np.zeros(ctas, np.int64)
        self._version = 0  # of the clocks
        self._logged: list[_Reads] = []
        self._entries = 0
        self._noted: list[_Reads] = []  # already in `_read`; their ranges say where
        self._ctas_of: tuple[Lanes, Lanes] = (np.empty(0, np.int64), np.empty(0, np.int64))

    def read(self, access: Access, at: int) -> list[Conflict]:
        """A load by instruction `at`."""
        stamps = self._stamps(access)
        found: list[Conflict] = []
        if not stamps.all():
            found.append(
                _first("uninitialised", stamps == 0, access, None, "is read before it was written")
            )
        if not self._all_old(access, stamps):
            found += self._pending(access, stamps) or self._unordered_writes(
                access, stamps, atomic=False
            )
        self._log(access, at)
        return found

    def write(
        self, access: Access, at: int, *, atomic: bool = False, pending: bool = False
    ) -> list[Conflict]:
        """A store, an atomic update or, if `pending`, the start of a copy by instruction `at`."""
        stamps = self._stamps(access)
        found: list[Conflict] = []
        if atomic and not stamps.all():
            found.append(
                _first(
                    "uninitialised", stamps == 0, access, None, "is updated before it was written"
                )
            )
        if not self._all_old(access, stamps):
            found += self._pending(access, stamps) or self._unordered_writes(
                access, stamps, atomic=atomic
            )
        found += self._unordered_reads(access)
        mine = (
            self._stamp(access.ids, at) | (_ATOMIC if atomic else 0) | (_PENDING if pending else 0)
        )
        self._put(access, mine)
        last = self._stamps(access)
        twice = last != mine[:, None]
        if not atomic and twice.any():
            found.append(_first("race", twice, access, last, "is written at the same time by"))
        return found

    def end_copy(self, access: Access, at: int) -> None:
        """A thread has waited for its copy, which instruction `at` started: as if it had written
        just now.
        """
        self._put(access, self._stamp(access.ids, at))

    def release(self, ids: Lanes, barrier: Lanes) -> None:
        """Lanes arrive at a barrier without waiting: those that wait there will know what these did
        so far.
        """
        cta, agent, barrier = self._warps(ids, barrier)
        known = self._known[cta, agent]
        known[np.arange(len(cta)), agent] = self._clock[cta, agent]
        np.maximum.at(self._released, (cta, barrier), known)
        self._tick(cta, agent)

    def join(self, ids: Lanes, barrier: Lanes) -> None:
        """A barrier lets these lanes go; each knows what all of its CTA that arrived there had
        done.
        """
        self.release(ids, barrier)
        cta, agent, barrier = self._warps(ids, barrier)
        merged = np.maximum(self._known[cta, agent], self._released[cta, barrier])
        merged[np.arange(len(cta)), agent] = self._clock[cta, agent] - 1
        self._known[cta, agent] = merged
        self._released[cta, barrier] = 0
        self._floor = self._known.min(axis=(1, 2))
        self._drop(self._over)
        self._noted = [r for r in self._noted if not self._over(r)]

    def sync_warps(self, ids: Lanes) -> None:
        """The lanes of each of these warps have waited for each other."""
        cta, agent, _ = self._warps(ids, np.zeros(len(ids), np.int64))
        self._tick(cta, agent)
        self._known[cta, agent, agent] = self._clock[cta, agent] - 1

    # --------------------------------------------------------------------------------------- clocks

    def _warps(self, ids: Lanes, barrier: Lanes) -> tuple[Lanes, Lanes, Lanes]:
        """CTA, agent and barrier, once for each warp and barrier."""
        keys = ids // WARP * 16 + barrier
        # Lanes are in rising order, so neighbours that are equal are all; a warp met twice does no
        # harm.
        keys = keys[np.flatnonzero(np.diff(keys, prepend=-1))]
        warp = keys // 16
        return warp // self._agents, warp % self._agents, keys % 16

    def _tick(self, cta: Lanes, agent: Lanes) -> None:
        self._version += 1
        # Assignment, not addition in place: an agent at two barriers at once ticks once.
        self._clock[cta, agent] = self._clock[cta, agent] + 1

    def _over(self, reads: _Reads) -> bool:
        return bool((self._floor[reads.ctas] >= reads.clock[reads.ctas].max(axis=1)).all())

    def _ctas(self, ids: Lanes) -> Lanes:
        if self._ctas_of[0] is not ids:
            self._ctas_of = ids, np.unique(ids // self._width)
        return self._ctas_of[1]

    def _stamp(self, ids: Lanes, at: int) -> Lanes:
        thread = ids % self._width
        clock = self._clock.reshape(-1)[ids // WARP]
        stamp: Lanes = (clock << _CLOCK) | (at << _INSTR) | thread
        return stamp

    # --------------------------------------------------------------------------------------- writes

    def _stamps(self, access: Access) -> Lanes:
        """The stamps of the last writes, `[lanes, width]`. An access is aligned, so its units are a
        whole row.
        """
        rows = self._written.reshape(-1, access.width)
        return rows.take(access.first // access.width, axis=0)

    def _put(self, access: Access, stamp: Lanes) -> None:
        for n in range(access.width):
            self._written[access.first + n] = stamp

    def _all_old(self, access: Access, stamps: Lanes) -> bool:
        oldest = int(self._floor[self._ctas(access.ids)].min())
        return int(stamps.max()) < (oldest + 1) << _CLOCK

    def _pending(self, access: Access, stamps: Lanes) -> list[Conflict]:
        wrong = stamps >= _PENDING
        if not wrong.any():
            return []
        return [_first("pending", wrong, access, stamps, "may still be written by the copy")]

    def _unordered_writes(self, access: Access, stamps: Lanes, *, atomic: bool) -> list[Conflict]:
        thread = access.ids % self._width
        writer = stamps & _THREAD_MASK
        known = self._known[
            (access.ids // self._width)[:, None], (thread // WARP)[:, None], writer // WARP
        ]
        wrong = ((stamps >> _CLOCK) > known) & (writer != thread[:, None])
        if atomic:
            wrong &= (stamps & _ATOMIC) == 0
        return [_first("race", wrong, access, stamps, "was written by")] if wrong.any() else []

    # ---------------------------------------------------------------------------------------- reads

    def _log(self, access: Access, at: int) -> None:
        last = self._logged[-1] if self._logged else None
        if last is None or last.version != self._version or last.ids is not access.ids:
            last = _Reads(self._version, access.ids, self._ctas(access.ids), self._clock.copy())
            self._logged.append(last)
        last.entries.append((access, at))
        self._entries += 1
        if self._entries > _LOG_LIMIT:
            self._note(0, self._units)

    def _note(self, low: int, high: int) -> None:
        """Put logged reads of units in this range into the shadow."""
        for reads in self._logged:
            met = [(a, at) for a, at in reads.entries if a.low < high and low < a.high]
            if not met:
                continue
            for access, at in met:
                self._note_read(access, at, reads.clock)
            self._noted.append(_Reads(reads.version, reads.ids, reads.ctas, reads.clock, met))
            reads.entries = [
                (a, at) for a, at in reads.entries if not (a.low < high and low < a.high)
            ]
        self._drop(lambda r: not r.entries)

    def _drop(self, over: Callable[[_Reads], bool]) -> None:
        self._logged = [r for r in self._logged if not over(r)]
        self._entries = sum(len(r.entries) for r in self._logged)

    def _note_read(self, access: Access, at: int, clock: Lanes) -> None:
        thread = access.ids % self._width
        units = access.units() + (thread // WARP * self._units)[:, None]
        mine = (
            (clock.reshape(-1)[access.ids // WARP] << _CLOCK) | (at << _INSTR) | (thread % WARP)
        )[:, None]
        before = self._read[units]
        others = ((before >> _CLOCK) == (mine >> _CLOCK)) & (
            (before & _LANE_MASK) != (mine & _LANE_MASK)
        )
        stamps = np.where(others, mine | _SEVERAL, mine)
        # Reads of other ranges may have been noted out of turn: the newest stays.
        stamps = np.where((before >> _CLOCK) > (mine >> _CLOCK), before, stamps)
        self._read[units] = stamps
        several = self._read[units] != stamps
        if several.any():
            self._read[units[several]] |= _SEVERAL

    def _unordered_reads(self, access: Access) -> list[Conflict]:
        self._note(access.low, access.high)
        if not any(
            a.low < access.high and access.low < a.high for r in self._noted for a, _ in r.entries
        ):
            return []
        thread = access.ids % self._width
        agents = np.arange(self._agents)
        stamps = self._read[access.units()[:, :, None] + agents * self._units]
        own = agents == (thread // WARP)[:, None, None]
        same = own & ((stamps & _LANE_MASK) == (thread % WARP)[:, None, None])
        known = self._known[access.ids // self._width, thread // WARP][:, None, :]
        wrong = ((stamps >> _CLOCK) > known) & ~same
        if not wrong.any():
            return []
        row, column, reader = (int(i[0]) for i in np.nonzero(wrong))
        stamp = int(stamps[row, column, reader])
        lane = stamp & _LANE_MASK
        other = -1 if lane == _SEVERAL else reader * WARP + lane
        unit = int(access.first[row]) + column
        return [Conflict("race", row, unit, (stamp >> _INSTR) & _INSTR_MASK, other, "was read by")]


def _first(kind: str, wrong: Lanes, access: Access, stamps: Lanes | None, what: str) -> Conflict:
    row, column = (int(i[0]) for i in np.nonzero(wrong))
    unit = int(access.first[row]) + column
    if stamps is None:
        return Conflict(kind, row, unit, -1, -1, what)
    stamp = int(stamps[row, column])
    return Conflict(kind, row, unit, (stamp >> _INSTR) & _INSTR_MASK, stamp & _THREAD_MASK, what)
