"""A happens-before race detector for shared memory, by vector clocks.

An agent is a warp of a CTA. `clock[cta, a]` stamps what agent `a` does now; `known[cta, a, b]` is the newest stamp of `b` that
everything `a` does now comes after. The diagonal is kept one behind the clock, so that the same comparison finds conflicts
between lanes of one warp. For each unit of memory: the stamp of the last write, and of each agent's last read. A copy under way
makes its units pending, for its own thread too, until that thread has waited for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter.lanes import WARP

if TYPE_CHECKING:
    Lanes = np.ndarray[Any, np.dtype[Any]]

# A stamp of a write: clock << 32 | instruction << 11 | atomic << 10 | thread in the CTA. 0: never written.
_CLOCK: Final = 32
_INSTR: Final = 11
_INSTR_MASK: Final = (1 << 21) - 1
_ATOMIC: Final = 1 << 10
_THREAD_MASK: Final = (1 << 10) - 1
# A stamp of a read: clock << 32 | instruction << 11 | lane in the warp.
_LANE_MASK: Final = 63
_SEVERAL: Final = 63  # more than one lane has read with this clock


@dataclass(frozen=True, slots=True)
class Conflict:
    """The first of the problems of one access: `position` in its lanes, the unit, and the other thread and instruction.

    `other_thread` is -1 where several may be meant, `other` is -1 where there is no other instruction.
    """

    kind: str
    position: int
    unit: int
    other: int
    other_thread: int
    what: str


class RaceDetector:
    """Shadow of the shared memory of all CTAs of a batch.

    Units are `grain` bytes, the narrowest access of the kernel; they are counted through the whole batch, `units`
    to a CTA. Methods take for each of `n` active lanes its number in the batch, and `[n, w]` unit numbers.
    """

    def __init__(self, ctas: int, width: int, units: int) -> None:
        self.width = width
        self.agents = width // WARP
        self.units = units
        self._written = np.zeros(ctas * units, np.int64)
        self._read = np.zeros((ctas * units, self.agents), np.int64)
        self._pending = np.zeros(ctas * units, np.int32)  # number of the copying instruction + 1
        self._clock = np.ones((ctas, self.agents), np.int64)
        self._known = np.zeros((ctas, self.agents, self.agents), np.int64)
        self._released = np.zeros((ctas, 16, self.agents), np.int64)

    def read(self, ids: Lanes, units: Lanes, at: int) -> list[Conflict]:
        """A load by instruction `at`; returns what is wrong with it."""
        cta, thread = ids // self.width, ids % self.width
        found = self._pending_at(units)
        stamps = self._written[units]
        fresh = stamps == 0
        if fresh.any():
            found.append(_first("uninitialised", fresh, units, 0, "is read before it was written", other=-1))
        found += self._unordered_writes(stamps, units, cta, thread, "was written by", atomic=False)
        self._note_read(cta, thread, units, at)
        return found

    def write(self, ids: Lanes, units: Lanes, at: int, *, atomic: bool = False) -> list[Conflict]:
        """A store or, if `atomic`, an atomic update by instruction `at`; returns what is wrong with it."""
        cta, thread = ids // self.width, ids % self.width
        found = self._pending_at(units)
        stamps = self._written[units]
        if atomic and not stamps.all():
            found.append(
                _first("uninitialised", stamps == 0, units, 0, "is updated before it was written", other=-1)
            )
        found += self._unordered_writes(stamps, units, cta, thread, "was written by", atomic=atomic)
        found += self._unordered_reads(units, cta, thread)
        mine = self._stamp(cta, thread, at, atomic=atomic)
        self._written[units] = mine
        if not atomic:
            last = self._written[units]
            twice = last != mine
            if twice.any():
                found.append(_first("race", twice, units, last, "is written at the same time by"))
        return found

    def start_copy(self, ids: Lanes, units: Lanes, at: int) -> list[Conflict]:
        """An asynchronous copy begins to write."""
        found = self.write(ids, units, at)
        self._pending[units] = at + 1
        return found

    def end_copy(self, ids: Lanes, units: Lanes, at: int) -> None:
        """A thread has waited for its copy, which instruction `at` started: as if it had written just now."""
        self._pending[units] = 0
        self._written[units] = self._stamp(ids // self.width, ids % self.width, at, atomic=False)

    def release(self, ids: Lanes, barrier: Lanes) -> None:
        """Lanes arrive at a barrier without waiting: those that wait there will know what these did so far."""
        cta, agent = ids // self.width, ids % self.width // WARP
        known = self._known[cta, agent]
        known[np.arange(len(ids)), agent] = self._clock[cta, agent]
        np.maximum.at(self._released, (cta, barrier), known)
        self._tick(cta, agent)

    def join(self, ids: Lanes, barrier: Lanes) -> None:
        """A barrier lets these lanes go; each knows what all of its CTA that arrived there had done."""
        self.release(ids, barrier)
        cta, agent = ids // self.width, ids % self.width // WARP
        merged = np.maximum(self._known[cta, agent], self._released[cta, barrier])
        merged[np.arange(len(ids)), agent] = self._clock[cta, agent] - 1
        self._known[cta, agent] = merged
        self._released[cta, barrier] = 0

    def sync_warps(self, ids: Lanes) -> None:
        """The lanes of each of these warps have waited for each other."""
        cta, agent = ids // self.width, ids % self.width // WARP
        self._tick(cta, agent)
        self._known[cta, agent, agent] = self._clock[cta, agent] - 1

    def _tick(self, cta: Lanes, agent: Lanes) -> None:
        # Assignment, not addition in place: an agent's lanes tick its clock once, not once each.
        self._clock[cta, agent] = self._clock[cta, agent] + 1

    def _stamp(self, cta: Lanes, thread: Lanes, at: int, *, atomic: bool) -> Lanes:
        clock = self._clock[cta, thread // WARP]
        return ((clock << _CLOCK) | (at << _INSTR) | (_ATOMIC if atomic else 0) | thread)[:, None]

    def _pending_at(self, units: Lanes) -> list[Conflict]:
        pending = self._pending[units]
        if not pending.any():
            return []
        first = int((pending != 0).argmax())
        copy = int(pending.reshape(-1)[first]) - 1
        what = "may still be written by the copy"
        row, column = divmod(first, units.shape[1])
        return [Conflict("pending", row, int(units[row, column]), copy, -1, what)]

    def _unordered_writes(
        self, stamps: Lanes, units: Lanes, cta: Lanes, thread: Lanes, what: str, *, atomic: bool
    ) -> list[Conflict]:
        clocks = stamps >> _CLOCK
        writer = stamps & _THREAD_MASK
        known = self._known[cta[:, None], (thread // WARP)[:, None], writer // WARP]
        wrong = (clocks > known) & (writer != thread[:, None])
        if atomic:
            wrong &= (stamps & _ATOMIC) == 0
        return [_first("race", wrong, units, stamps, what)] if wrong.any() else []

    def _unordered_reads(self, units: Lanes, cta: Lanes, thread: Lanes) -> list[Conflict]:
        stamps = self._read[units]
        agent = (thread // WARP)[:, None, None]
        own = np.arange(self.agents) == agent
        same = own & ((stamps & _LANE_MASK) == (thread % WARP)[:, None, None])
        wrong = ((stamps >> _CLOCK) > self._known[cta, thread // WARP][:, None, :]) & ~same
        if not wrong.any():
            return []
        row, column, reader = (int(i[0]) for i in np.nonzero(wrong))
        stamp = int(stamps[row, column, reader])
        lane = stamp & _LANE_MASK
        other = -1 if lane == _SEVERAL else reader * WARP + lane
        instr = (stamp >> _INSTR) & _INSTR_MASK
        return [Conflict("race", row, int(units[row, column]), instr, other, "was read by")]

    def _note_read(self, cta: Lanes, thread: Lanes, units: Lanes, at: int) -> None:
        agent = (thread // WARP)[:, None]
        mine = ((self._clock[cta, thread // WARP] << _CLOCK) | (at << _INSTR) | (thread % WARP))[:, None]
        before = self._read[units, agent]
        others = ((before >> _CLOCK) == (mine >> _CLOCK)) & ((before & _LANE_MASK) != (mine & _LANE_MASK))
        self._read[units, agent] = np.where(others, mine | _SEVERAL, mine)
        after = self._read[units, agent]
        several = (after & _LANE_MASK) != np.where(others, _SEVERAL, mine & _LANE_MASK)
        if several.any():
            where = units[several], np.broadcast_to(agent, units.shape)[several]
            self._read[where] = self._read[where] | _SEVERAL


def _first(kind: str, wrong: Lanes, units: Lanes, stamps: Lanes | int, what: str, other: int | None = None) -> Conflict:
    row, column = (int(i[0]) for i in np.nonzero(wrong))
    if other is not None:
        return Conflict(kind, row, int(units[row, column]), other, -1, what)
    stamp = int(np.asarray(stamps)[row, column])
    instr = (stamp >> _INSTR) & _INSTR_MASK
    return Conflict(kind, row, int(units[row, column]), instr, stamp & _THREAD_MASK, what)
