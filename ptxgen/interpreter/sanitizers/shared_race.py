"""A happens-before race detector for shared memory, by the clocks of
`ptxgen.interpreter.sanitizers.clocks`.

For each unit of memory, the shadow has the stamp of the last write, and of the last read of each
warp and of its twin. The destination of a copy under way is pending, also for the copy's own
thread, until the copy has been waited for; a copy that completes on an mbarrier is over for the
threads that come after a wait for this mbarrier. Volatile accesses are strong, except for those
that are not to flags (`ptxgen.interpreter.sanitizers.polls`): their loads are logged, and may not
race with volatile stores. Stores of the value that is already there, and of one value by several
threads, are no race.

Nearly always, all earlier accesses to a unit are older than the last barrier of its CTA. The
clocks' floor is the newest stamp that all warps know of all others, so one comparison shows this.
Reads are only logged; they are put into the shadow when a write to the same range of addresses
comes before a barrier.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter.machine.lanes import WARP
from ptxgen.interpreter.sanitizers.clocks import SHOWN
from ptxgen.interpreter.sanitizers.conflicts import Access, Conflict, Values, differing
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
    stamps_now,
    twin_stamps,
)

if TYPE_CHECKING:
    from ptxgen.interpreter.sanitizers.clocks import Clocks

    Lanes = np.ndarray[Any, np.dtype[Any]]

# The bits of a stamp of a read: clock << 32 | instruction << 11 | lane in the warp.
_READ_CLOCK: Final = 32
_READ_INSTR: Final = 11
_READ_LANE: Final = 63
_SEVERAL: Final = 63  # more than one lane has read with this clock
_WARP_BITS: Final = 13  # bits of the number of a warp in the batch, as lanes have 18
_LOG_LIMIT: Final = 4096  # reads that may be logged
_NOTED_LIMIT: Final = 256  # records of the ranges of such reads


@dataclass(slots=True)
class _Reads:
    """Logged reads. Reads by warps with the same clocks are kept until the floors of all of their
    `clusters` have reached `newest`, the newest of these clocks. A read of twins, which lanes of the
    `clusters` have started with `stamps`, is kept until all warps of the clusters come after it, as the
    `columns` of their rows say.
    """

    version: int  # version of the clocks; -1 for twins
    ids: Lanes
    clusters: Lanes
    clock: Lanes  # of all warps at the time
    newest: Lanes
    entries: list[tuple[Access, int]] = field(default_factory=list)
    columns: Lanes | None = None
    stamps: Lanes | None = None


class RaceDetector:
    """The shadow of the shared memory of all CTAs of a batch; `units` is the number of units of a
    CTA, and units are counted through the whole batch. The methods for accesses return their
    conflicts.
    """

    def __init__(self, clocks: Clocks, ctas: int, units: int) -> None:
        self._clocks = clocks
        self._ctas = ctas
        self._units = ctas * units
        agents = clocks.group * (1 + clocks.twins)
        self._written = np.zeros(ctas * units, np.int64)
        self._read = np.zeros(agents * ctas * units, np.int64)  # by agent, then unit
        self._logged: list[_Reads] = []
        self._entries = 0
        self._noted: list[_Reads] = []  # reads already in `_read`, kept for their ranges
        self._floor = clocks.floor
        # By instruction: whether it starts copies with completion on an mbarrier.
        self.counted: Lanes = np.zeros(1, np.bool_)
        # Warps and copies that they come after: the warp, the warp that started the copy, its
        # stamp.
        self._after: set[tuple[int, int, int]] = set()
        # By instruction: whether it is a volatile access to an address that is not a flag.
        self.volatile: Lanes = np.zeros(1, np.bool_)
        self._clusters_of: tuple[Lanes, Lanes] = (np.empty(0, np.int64), np.empty(0, np.int64))

    def read(self, access: Access, at: int, *, strong: bool = False) -> list[Conflict]:
        """The conflicts of a load by instruction `at`. A strong load may race with strong writes; a
        volatile load that does not poll may not race with volatile stores.
        """
        volatile = self._is_volatile(at)
        stamps = self._stamps(access)
        found: list[Conflict] = []
        if not self._all_old(access, stamps):
            found += self._pending(access, stamps) or self._unordered_writes(
                access, stamps, atomic=strong, volatile=volatile
            )
        if not strong or volatile:
            self._log(access, at)
        return found

    def visit(self, access: Access, at: int) -> list[Conflict]:
        """The conflicts of an operation on an mbarrier, which must come after its initialisation,
        and before other uses of its memory.
        """
        stamps = self._stamps(access)
        self._log(access, at)
        if self._all_old(access, stamps):
            return []
        return self._unordered_writes(access, stamps, atomic=True)

    def write(
        self,
        access: Access,
        at: int,
        *,
        atomic: bool = False,
        pending: bool = False,
        strong: bool = False,
        values: Values | None = None,
    ) -> list[Conflict]:
        """The conflicts of a store, an atomic update or, if `pending`, the start of a copy, by
        instruction `at`. `values` gives the stored values and the old ones, `[lanes, width]`.
        """
        stamps = self._stamps(access)
        found: list[Conflict] = []
        strong = atomic or strong
        if not self._all_old(access, stamps):
            found += self._pending(access, stamps) or self._unordered_writes(
                access, stamps, atomic=strong, values=values
            )
        found += self._unordered_reads(access, volatile=not strong or self._is_volatile(at))
        mine = stamps_now(self._clocks, access.ids, at)
        mine |= (ATOMIC if strong else 0) | (PENDING if pending else 0)
        self._put(access, mine)
        last = self._stamps(access)
        twice = last != mine[:, None]
        if not strong and twice.any():
            twice = differing(access, twice, values)
            found += first_conflict("race", twice, access, last, "is written at the same time by")
        return found

    def end_copy(self, access: Access, at: int) -> None:
        """Record that a thread has waited for its copy, which instruction `at` started; the write
        counts as made now.
        """
        self._put(access, stamps_now(self._clocks, access.ids, at))

    # ---------------------------------------------------------------------- asynchronous operations

    def start_copy(self, access: Access, at: int, stamp: int, *, proxy: bool = True) -> list[Conflict]:
        """The conflicts of a write with this stamp by the twin of a lane's warp, through the
        asynchronous `proxy` or not. It is pending until `land`.
        """
        stamps = self._stamps(access)
        found = self._pending(access, stamps) or self._unordered_writes(access, stamps, atomic=False)
        found = found or self._unordered_reads(access)
        if proxy:
            found = found or self._hidden(access, stamps)
        self._put(access, PENDING | twin_stamps(access.ids, at, stamp))
        return found

    def land(self, access: Access) -> None:
        """Record that the write that `start_copy` began is complete."""
        for n in range(access.width):
            self._written[access.first + n] &= ~PENDING

    def start_read(self, access: Access, at: int, stamp: Lanes, *, by_warp: bool = False) -> list[Conflict]:
        """The conflicts of reads by the twins of the lanes' warps. `stamp` has one stamp for each
        lane; the accesses of a lane are contiguous, and all lanes have the same number. `by_warp`
        says that the whole warp starts the read.
        """
        stamps = self._stamps(access)
        lanes = access.ids[:: len(access.ids) // len(stamp)]
        found: list[Conflict] = []
        if not self._settled(access, stamps, lanes):
            found += (
                self._pending(access, stamps)
                or self._unordered_writes(access, stamps, atomic=False, by_warp=by_warp)
                or self._hidden(access, stamps)
            )
        clocks = self._clocks
        clusters, columns = lanes // (WARP * clocks.group), clocks.column(lanes, True)
        reads = _Reads(-1, lanes, clusters, clocks.clock, stamp, [(access, at)], columns, stamp)
        self._logged.append(reads)
        self._entries += 1
        if len(self._logged) > _NOTED_LIMIT:
            self._note(0, self._units)
        return found

    def _settled(self, access: Access, stamps: Lanes, lanes: Lanes) -> bool:
        """Whether one comparison shows that reads by asynchronous operations of these lanes have no
        conflict: all units were written by ordinary instructions, older than the writes that all
        warps know and that fences have made visible; or those of each lane by one copy that the
        lane comes after.
        """
        clocks, oldest, newest = self._clocks, int(stamps.min()), int(stamps.max())
        if newest < ASYNC:
            first = SHOWN["shared"] * clocks.group
            shown = clocks.known[lanes // WARP, first : first + clocks.group]
            return self._all_old(access, stamps) and newest >> CLOCK <= int(shown.min())
        if oldest < ASYNC or newest >= PENDING:
            return False
        of_lane = stamps.reshape(len(lanes), -1)
        one = of_lane[:, 0]
        known = clocks.known[lanes // WARP, clocks.column(one & LANE_MASK, True)]
        older = ((one >> CLOCK) & CLOCK_MASK) <= known
        if not (older.all() and (of_lane == one[:, None]).all()):
            return False
        return not self._too_early(lanes // WARP, one).any()

    def hidden(self, access: Access) -> list[Conflict]:
        """Writes by ordinary instructions that no fence has made visible to an asynchronous operation."""
        return self._hidden(access, self._stamps(access))

    def _hidden(self, access: Access, stamps: Lanes) -> list[Conflict]:
        """Writes by ordinary instructions that no fence has made visible to asynchronous operations."""
        if int(stamps.min()) >= ASYNC:
            return []
        clocks = self._clocks
        column = SHOWN["shared"] * clocks.group + clocks.column(stamps & LANE_MASK, False)
        shown = clocks.known[(access.ids // WARP)[:, None], column]
        clock = (stamps >> CLOCK) & CLOCK_MASK
        wrong = (clock > shown) & (stamps < ASYNC) & (stamps > 0)
        if wrong.any():
            wrong &= ~clocks.shown_alone(access.ids[:, None], stamps & LANE_MASK, clock)
        return first_conflict("proxy", wrong, access, stamps, "was written by")

    # --------------------------------------------------------------------------------------- clocks

    def _over(self, reads: _Reads, known: Lanes | None) -> bool:
        """Whether all warps come after the reads; `known` has what all warps of each cluster know."""
        if known is not None and reads.columns is not None:
            return bool((known[reads.clusters, reads.columns] >= reads.newest).all())
        if reads.version < 0:
            return False
        return bool((self._floor[reads.clusters] >= reads.newest).all())

    def _refresh(self) -> None:
        """Forget reads that all warps come after."""
        if self._floor is not self._clocks.floor:
            clocks = self._clocks
            self._floor, known = clocks.floor, None
            if clocks.twins:
                known = clocks.known.reshape(len(self._floor), clocks.group, -1).min(axis=1)
            self._drop(lambda reads: self._over(reads, known))
            self._noted = [r for r in self._noted if not self._over(r, known)]

    def _forget_noted(self) -> None:
        # The exact ranges only save time.
        if len(self._noted) > _NOTED_LIMIT:
            none = np.empty(0, np.int64)
            whole = Access(none, none, 1, 0, self._units)
            self._noted = [_Reads(-1, none, none, none, none, [(whole, 0)])]

    def _clusters(self, ids: Lanes) -> Lanes:
        if self._clusters_of[0] is not ids:
            self._clusters_of = ids, np.unique(ids // (WARP * self._clocks.group))
        return self._clusters_of[1]

    # --------------------------------------------------------------------------------------- writes

    def _stamps(self, access: Access) -> Lanes:
        """The stamps of the last writes, `[lanes, width]`. Accesses are aligned, so the units of
        each are a whole row.
        """
        rows = self._written.reshape(-1, access.width)
        return rows.take(access.first // access.width, axis=0)

    def _put(self, access: Access, stamp: Lanes) -> None:
        for n in range(access.width):
            self._written[access.first + n] = stamp

    def _all_old(self, access: Access, stamps: Lanes) -> bool:
        self._refresh()
        oldest = int(self._floor[self._clusters(access.ids)].min())
        return int(stamps.max()) < (oldest + 1) << CLOCK

    def _pending(self, access: Access, stamps: Lanes) -> list[Conflict]:
        return first_conflict(
            "pending", stamps >= PENDING, access, stamps, "may still be written by the copy"
        )

    def _unordered_writes(
        self,
        access: Access,
        stamps: Lanes,
        *,
        atomic: bool,
        by_warp: bool = False,
        values: Values | None = None,
        volatile: bool = False,
    ) -> list[Conflict]:
        clocks = self._clocks
        writer = stamps & LANE_MASK
        twin = (stamps & ASYNC) != 0
        warp = (access.ids // WARP)[:, None]
        known = clocks.known[warp, clocks.column(writer, twin)]
        same = writer // WARP == warp if by_warp else writer == access.ids[:, None]
        clock = (stamps >> CLOCK) & CLOCK_MASK
        wrong = (clock > known) & (twin | ~same)
        if twin.any():
            wrong |= twin & self._too_early(warp, stamps)
        if wrong.any():
            wrong &= twin | ~clocks.met(access.ids[:, None], writer, clock)
        if wrong.any():
            wrong &= twin | ~clocks.released_in_part(
                access.ids[:, None], writer // WARP, writer % WARP, clock
            )
        if atomic:
            fine = (stamps & ATOMIC) != 0
            wrong &= ~(fine & ~self._is_volatile(stamps >> INSTR) if volatile else fine)
        if values is not None and wrong.any():
            given, there = values()
            wrong &= given != there
        return first_race(clocks, wrong, access, stamps, "was written by")

    # ---------------------------------------------------------------------------------------- reads

    def _log(self, access: Access, at: int) -> None:
        clocks = self._clocks
        last = self._logged[-1] if self._logged else None
        if last is None or last.version != clocks.version or last.ids is not access.ids:
            clusters = self._clusters(access.ids)
            clock = clocks.clock.copy()
            newest = clock.reshape(-1, clocks.group)[clusters].max(axis=1)
            last = _Reads(clocks.version, access.ids, clusters, clock, newest)
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
                if reads.stamps is not None:
                    self._note_twins(access, at, reads.stamps)
                else:
                    self._note_read(access, at, reads.clock)
            self._noted.append(replace(reads, entries=met))
            reads.entries = [(a, at) for a, at in reads.entries if not (a.low < high and low < a.high)]
        self._drop(lambda r: not r.entries)
        self._forget_noted()

    def _drop(self, over: Callable[[_Reads], bool]) -> None:
        self._logged = [r for r in self._logged if not over(r)]
        self._entries = sum(len(r.entries) for r in self._logged)

    def _note_twins(self, access: Access, at: int, stamps: Lanes) -> None:
        agent = self._clocks.column(access.ids, True)
        stamp = np.repeat(stamps, len(access.ids) // len(stamps))
        mine = (stamp << _READ_CLOCK) | (at << _READ_INSTR) | (access.ids % WARP)
        units = access.units() + (agent * self._units)[:, None]
        # Reads of other ranges may have been put there out of order: the newest stays.
        self._read[units] = np.maximum(self._read[units], mine[:, None])

    def _note_read(self, access: Access, at: int, clock: Lanes) -> None:
        agent = self._clocks.column(access.ids, False)
        units = access.units() + (agent * self._units)[:, None]
        mine = ((clock[access.ids // WARP] << _READ_CLOCK) | (at << _READ_INSTR) | (access.ids % WARP))[
            :, None
        ]
        before = self._read[units]
        others = ((before >> _READ_CLOCK) == (mine >> _READ_CLOCK)) & (
            (before & _READ_LANE) != (mine & _READ_LANE)
        )
        stamps = np.where(others, mine | _SEVERAL, mine)
        # Reads of other ranges may have been put there out of order: the newest stays.
        stamps = np.where((before >> _READ_CLOCK) > (mine >> _READ_CLOCK), before, stamps)
        self._read[units] = stamps
        several = self._read[units] != stamps
        if several.any():
            self._read[units[several]] |= _SEVERAL

    def _unordered_reads(self, access: Access, *, volatile: bool = True) -> list[Conflict]:
        """The conflicts with reads that a write does not come after; volatile reads count if `volatile`."""
        self._refresh()
        self._note(access.low, access.high)
        if not any(a.low < access.high and access.low < a.high for r in self._noted for a, _ in r.entries):
            return []
        clocks = self._clocks
        agents = np.arange(clocks.group * (1 + clocks.twins))
        stamps = self._read[access.units()[:, :, None] + agents * self._units]
        own = agents == clocks.column(access.ids, False)[:, None, None]
        same = own & ((stamps & _READ_LANE) == (access.ids % WARP)[:, None, None])
        known = clocks.known[access.ids // WARP, : len(agents)][:, None, :]
        wrong = ((stamps >> _READ_CLOCK) > known) & ~same
        if not volatile:
            wrong &= ~self._is_volatile(stamps >> _READ_INSTR)
        if (wrong & own).any():
            wrong &= ~(own & self._met_readers(access, stamps))
        if wrong.any():
            wrong &= (agents >= clocks.group) | ~self._released_by_readers(access, stamps)
        if not wrong.any():
            return []
        row, column, reader = (int(i[0]) for i in np.nonzero(wrong))
        stamp = int(stamps[row, column, reader])
        lane = stamp & _READ_LANE
        warp = int(access.ids[row]) // WARP // clocks.group * clocks.group + reader % clocks.group
        other = -1 if lane == _SEVERAL else warp * WARP + lane
        unit = int(access.first[row]) + column
        at = (stamp >> _READ_INSTR) & ((1 << (_READ_CLOCK - _READ_INSTR)) - 1)
        clock = stamp >> _READ_CLOCK
        if reader >= clocks.group:
            return [Conflict("race", row, unit, at, other, "was read by", clock)]
        others_arrived = int(clocks.reached(access.ids[row] // WARP, np.array(warp))) >= clock
        return [Conflict("race", row, unit, at, other, "was read by", others_arrived=others_arrived)]

    def _is_volatile(self, at: Lanes | int) -> Any:
        """Whether instructions, by number in the lowest bits, are volatile accesses to addresses
        that are not flags.
        """
        return self.volatile.take(at & INSTR_MASK, mode="clip")

    def _too_early(self, warps: Lanes, stamps: Lanes) -> Lanes:
        """Which of these stamps are of copies that complete on an mbarrier and that warps do not
        come after, because no warp that they come after has waited for the mbarrier.
        """
        at = stamps >> INSTR & INSTR_MASK
        counted = self.counted.take(at, mode="clip") & (stamps >= ASYNC)
        wrong = np.zeros(np.broadcast(warps, stamps).shape, np.bool_)
        if not counted.any():
            return wrong
        warps, stamps, counted = np.broadcast_arrays(warps, stamps, counted)
        # One number for the warp, the warp that started the copy and the stamp, so that each
        # combination is looked up once.
        of, clock = (stamps & LANE_MASK) // WARP, stamps >> CLOCK & CLOCK_MASK
        met = (clock << 2 * _WARP_BITS | of << _WARP_BITS | warps)[counted]
        keys, inverse = np.unique(met, return_inverse=True)
        warp_mask = (1 << _WARP_BITS) - 1
        early = [
            not self._is_after(k & warp_mask, k >> _WARP_BITS & warp_mask, k >> 2 * _WARP_BITS)
            for k in keys.tolist()
        ]
        wrong[counted] = np.array(early)[inverse]
        return wrong

    def _is_after(self, warp: int, of: int, stamp: int) -> bool:
        key = warp, of, stamp
        if key not in self._after and self._clocks.after_copy(warp, of, stamp):
            self._after.add(key)
        return key in self._after

    def _met_readers(self, access: Access, stamps: Lanes) -> Lanes:
        """Whether lanes have synchronised, in a part of their warps, with the lanes of their warps
        that have read with these stamps, `[lanes, width, agents]`.
        """
        clocks, ids = self._clocks, np.broadcast_to(access.ids[:, None, None], stamps.shape)
        lane, clock = stamps & _READ_LANE, stamps >> _READ_CLOCK
        one = clocks.met(ids, ids // WARP * WARP + lane % WARP, clock)
        met: Lanes = np.where(lane == _SEVERAL, clocks.met_some(ids, clock), one)
        return met

    def _released_by_readers(self, access: Access, stamps: Lanes) -> Lanes:
        """Whether lanes come after arrivals of the lanes that have read with these stamps,
        `[lanes, width, agents]`, without the rest of their warps.
        """
        clocks, ids = self._clocks, access.ids[:, None, None]
        cluster = ids // (WARP * clocks.group)
        warp = cluster * clocks.group + np.arange(stamps.shape[-1]) % clocks.group
        return clocks.released_in_part(ids, warp, stamps & _READ_LANE, stamps >> _READ_CLOCK)
