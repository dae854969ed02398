"""A recording of what the warps of one CTA do, in slots: the picture of a kernel's pipeline.

A slot is one instruction of one warp. Each warp has a clock that counts its own instructions; memory
takes no time, and warps do not compete for units. Clocks meet where warps wait for each other:

* a barrier sets the clocks of the warps that it releases to the latest of their arrivals;
* a wait for an mbarrier ends no earlier than the last arrival at it, of a thread, of a copy or of a
  commit of products, that the interpreter has made so far.

An asynchronous copy is in flight from the instruction that starts it to the end of the wait that
makes it visible, and so is an operation of `tcgen05` on columns of tensor memory. The recording says which
warps wait for which and what may overlap; it says nothing of nanoseconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter.machine.lanes import WARP, Selection
from ptxgen.interpreter.machine.observer import BulkObserver, Observer, Tell, TensorObserver
from ptxgen.interpreter.machine.tmem_shapes import offsets
from ptxgen.interpreter.schedule.scheduler import Scheduler
from ptxgen.interpreter.traffic import BANKS, rows_of, serialises, words_in_banks
from ptxgen.isa.tensor_memory import COLUMNS

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.arena import Buffer
    from ptxgen.interpreter.machine.lane_machine import LaneMachine
    from ptxgen.interpreter.machine.memory import Plan
    from ptxgen.interpreter.machine.observer import Accessing
    from ptxgen.interpreter.program.blocks import Block, Program
    from ptxgen.ir import Instr
    from ptxgen.isa.tensor_agent import Operation, RegisterShape
    from ptxgen.types import ScalarType

    Lanes = np.ndarray[Any, np.dtype[Any]]

IDLE: Final = -1  # a slot in which a warp waits, or after its end
_MOST_SLOTS: Final = 4096  # recorded slots of each warp
_NEVER: Final = (1 << 63) - 1
_MOST_SAMPLES: Final = 32  # accesses of an instruction whose banks are counted
_ARRIVES: Final = ("mbarrier.arrive", "mbarrier.complete_tx")


@dataclass(frozen=True, slots=True)
class Wait:
    """A warp of the CTA waits in instruction number `at` from slot `start` to slot `end`, which are
    equal if nobody has to be waited for. `kind` is `barrier`, `mbarrier` or `cluster`.
    """

    warp: int
    start: int
    end: int
    at: int
    kind: str


@dataclass(frozen=True, slots=True)
class Flight:
    """An asynchronous copy of `nbytes` that a warp of the CTA starts in instruction number `at`, in
    flight from slot `start` to slot `end`, -1 if nobody waits for it.
    """

    warp: int
    start: int
    end: int
    at: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class ColumnUse:
    """`columns` columns of the CTA's tensor memory, from column `first` on, are read or written: by a warp in
    slot `start`, or by an operation that it starts then and that is over in slot `end`, -1 if no warp waits
    for it. `at` is the number of the instruction.
    """

    warp: int
    start: int
    end: int
    at: int
    first: int
    columns: int
    writes: bool


@dataclass(slots=True)
class Site:
    """The bytes of the CTA's shared memory that an instruction has accessed, from `first` to `last`,
    and how many words each bank serves in the costliest part of those accesses that were looked at.
    """

    first: int
    last: int
    banks: tuple[int, ...] = (0,) * BANKS
    samples: int = 0


@dataclass(slots=True)
class _Open:
    warp: int
    start: int
    at: int
    nbytes: int


@dataclass(slots=True)
class Recording:
    """The instructions, waits and copies of the warps of the first CTA of a launch.

    `instrs` are the instructions by number; `slots[w, t]` is the number of the instruction that warp
    w executes in slot t, or IDLE, `[warps, recorded slots]` int32; `lengths` are the slots of each warp,
    of which the first `recorded_slots` are in `slots`. `sites` are the accesses to shared memory by number.
    `regions` are the named parts of the `shared_bytes` of its shared memory, each with its first byte
    and its size; `bulk_bytes` are those that bulk copies of the CTA move to or from global memory.
    `column_uses` are those of its tensor memory.
    """

    instrs: tuple[Instr, ...] = ()
    slots: Lanes = field(default_factory=lambda: np.empty((0, 0), np.int32))
    lengths: tuple[int, ...] = ()
    waits: list[Wait] = field(default_factory=list)
    flights: list[Flight] = field(default_factory=list)
    sites: dict[int, Site] = field(default_factory=dict)
    regions: tuple[tuple[str, int, int], ...] = ()
    shared_bytes: int = 0
    bulk_bytes: int = 0
    column_uses: list[ColumnUse] = field(default_factory=list)

    @property
    def recorded_slots(self) -> int:
        """The slots of each warp that `slots` has."""
        return int(self.slots.shape[1])


class Recorder(Observer):
    """Observes the first cluster of a launch, and makes the `recording` of its first CTA. It is for
    one run.
    """

    local = None

    def __init__(self, most_slots: int = _MOST_SLOTS) -> None:
        self.bulk: BulkObserver = _Bulk(self)
        self.tensor: TensorObserver = _Tensor(self)
        self.recording = Recording()
        self._most = most_slots
        self._recorded = 0
        self._released: dict[tuple[int, int], int] = {}
        self._arrivals: dict[int, int] = {}  # the latest arrival by mbarrier
        self._copies: dict[tuple[int, int], list[_Open]] = defaultdict(list)
        self._bulk_writes: dict[int, list[_Open]] = defaultdict(list)  # by mbarrier
        self._bulk_reads: dict[int, _Open] = {}  # by stamp
        self._operations: dict[int, list[ColumnUse]] = defaultdict(list)  # by warp, without a commit so far
        self._committed: dict[int, list[ColumnUse]] = defaultdict(list)  # by mbarrier
        self._stamp = 0
        self._cluster_wait = 0

    def begin(self, program: Program, machine: LaneMachine) -> None:
        """Begin the recording of a machine's batch, which is one cluster."""
        batch = machine.batch
        self._machine = machine
        self._width = batch.width
        self._stride = batch.shared_stride
        self._warps = batch.width // WARP
        warps = batch.lanes // WARP
        self._clock: Lanes = np.zeros(warps, np.int64)
        self._start: Lanes = np.zeros(warps, np.int64)  # the clock at the start of a warp's block
        self._first: Lanes = np.zeros(warps, np.int64)  # the first instruction of a warp's block
        instrs = program.instrs
        self._rows = [rows_of(instr.opcode) for instr in instrs]
        self._serialised = [serialises(instr.opcode) for instr in instrs]
        self._arriving = [instr.opcode.startswith(_ARRIVES) for instr in instrs]
        self.recording.instrs = instrs
        self.recording.regions = program.linked.regions
        self.recording.shared_bytes = program.linked.shared_bytes
        self.recording.slots = np.full((self._warps, self._most), IDLE, np.int32)

    def finish(self) -> None:
        """End the recording: copies that nobody waited for have no end."""
        record = self.recording
        longest = int(self._clock[: self._warps].max(initial=0))
        record.slots = record.slots[:, : min(longest, self._most)].copy()
        record.lengths = tuple(self._clock[: self._warps].tolist())
        left = [*self._bulk_reads.values()]
        left += [o for opens in (*self._copies.values(), *self._bulk_writes.values()) for o in opens]
        for one in left:
            self._landed(one, -1)
        for uses in (*self._operations.values(), *self._committed.values()):
            self._use(uses)
        record.column_uses.sort(key=lambda u: (u.start, u.warp, u.at, u.first))
        record.flights.sort(key=lambda f: (f.start, f.warp, f.at))
        record.waits.sort(key=lambda w: (w.start, w.warp, w.at))

    # ---------------------------------------------------------------------------------------- clocks

    def ran(self, block: Block, selection: Selection) -> None:
        """The selected warps are about to execute a block."""
        numbers = [step.number for step in block.segment.steps if not step.resumes]
        if not numbers:
            return
        present = np.flatnonzero(selection.full_mask().reshape(-1, WARP).any(axis=1))
        self._start[present] = self._clock[present]
        self._first[present] = numbers[0]
        self._clock[present] += len(numbers)
        for warp in present[present < self._warps].tolist():
            begin = int(self._start[warp])
            room = self._most - begin
            if room > 0:
                recorded = numbers[:room]
                self.recording.slots[warp, begin : begin + len(recorded)] = recorded

    def time(self, warp: int) -> int:
        """The slot of the instruction that a warp executes now."""
        start, end = int(self._start[warp]), int(self._clock[warp])
        return min(max(start + self._machine.at - int(self._first[warp]), start), end)

    def _align(self, warps: Iterable[int], at: Iterable[int], until: int, kind: str) -> None:
        """Have each of the warps wait in its instruction of `at` until slot `until`."""
        for warp, number in zip(warps, at, strict=True):
            now = int(self._clock[warp])
            if warp < self._warps and now < self._most:
                self.recording.waits.append(Wait(warp, now, max(now, until), number, kind))
            self._clock[warp] = max(now, until)

    def _landed(self, one: _Open, end: int) -> None:
        if one.warp < self._warps and one.start < self._most:
            self.recording.flights.append(Flight(one.warp, one.start, end, one.at, one.nbytes))

    # -------------------------------------------------------------------------------------- accesses

    def load(self, machine: Accessing, plan: Plan, offset: int, total: int) -> None:
        """See `Observer.load`."""
        self._access(machine, plan, offset, total)

    def store(
        self, machine: Accessing, plan: Plan, offset: int, type: ScalarType, values: tuple[Lanes, ...]
    ) -> None:
        """See `Observer.store`."""
        self._access(machine, plan, offset, type.nbytes * len(values))

    def before_atomic(self, machine: Accessing, plan: Plan, offset: int, total: int) -> None:
        """See `Observer.before_atomic`."""
        self._access(machine, plan, offset, total)
        if self._arriving[machine.at] and plan.window is machine.shared.window:
            positions = plan.relative + (plan.low + offset)
            ids = machine.active_ids(plan.mask)
            if plan.mask is not None:
                positions = positions[plan.mask]
            for warp, position in set(zip((ids // WARP).tolist(), positions.tolist(), strict=True)):
                self.arrive(position, self.time(warp) + 1)

    def copy_async(self, machine: Accessing, plan: Plan, offset: int, nbytes: int) -> None:
        """See `Observer.copy_async`."""
        self._access(machine, plan, offset, nbytes)
        warps, threads = np.unique(machine.active_ids(plan.mask) // WARP, return_counts=True)
        for warp, count in zip(warps.tolist(), threads.tolist(), strict=True):
            one = _Open(warp, self.time(warp), machine.at, nbytes * count)
            self._copies[machine.at, warp].append(one)

    def end_copy(self, at: int, ids: Lanes, word: Lanes, words: int) -> None:
        """See `Observer.end_copy`."""
        del word, words
        for warp in np.unique(ids // WARP).tolist():
            opens = self._copies[at, warp]
            if opens:
                self._landed(opens.pop(0), self.time(warp))

    def matrices(self, at: int, ids: Lanes, words: Lanes, rows: Lanes, bases: Lanes, nbytes: int) -> None:
        """See `Observer.matrices`."""
        del bases
        mine = words[rows[ids < self._width]]  # of the first CTA
        if mine.size:
            # Eight rows of 16 bytes are one part, as 32 words are.
            self._touch(at, mine.reshape(-1), nbytes)

    def _access(self, machine: Accessing, plan: Plan, offset: int, total: int) -> None:
        if plan.window is not machine.shared.window:
            return
        positions = plan.relative + (plan.low + offset)
        lanes = np.arange(len(positions)) % WARP < self._rows[machine.at]
        active = lanes if plan.mask is None else lanes & plan.mask
        mine = active & (positions < self._stride)  # of the first CTA
        if mine.any():
            self._touch(machine.at, positions, total, mine)

    def _touch(self, at: int, positions: Lanes, total: int, active: Lanes | None = None) -> None:
        active = np.ones(len(positions), np.bool_) if active is None else active
        mine = positions[active]
        first, last = int(mine.min()), int(mine.max()) + total - 1
        site = self.recording.sites.get(at)
        if site is None:
            site = self.recording.sites[at] = Site(first, last)
        site.first, site.last = min(site.first, first), max(site.last, last)
        if site.samples < _MOST_SAMPLES:
            site.samples += 1
            parts = words_in_banks(positions, active, total, self._stride, serialised=self._serialised[at])
            worst = parts[int(parts.max(axis=1).argmax())]
            if worst.max() > max(site.banks):
                site.banks = tuple(worst.tolist())

    # -------------------------------------------------------------------------------------- barriers

    def release(self, ids: Lanes, barrier: Lanes) -> None:
        """See `Observer.release`."""
        for lane, number in zip(ids.tolist(), barrier.tolist(), strict=True):
            key = lane // self._width, number
            self._released[key] = max(self._released.get(key, 0), self.time(lane // WARP) + 1)

    def join(self, ids: Lanes, barrier: Lanes, since: Lanes, exited: Lanes) -> None:
        """See `Observer.join`."""
        del exited
        ctas = ids // self._width
        for key in sorted(set(zip(ctas.tolist(), barrier.tolist(), strict=True))):
            here = (ctas == key[0]) & (barrier == key[1])
            warps, where = np.unique(ids[here] // WARP, return_index=True)
            until = max(int(self._clock[warps].max()), self._released.pop(key, 0))
            self._align(warps.tolist(), since[here][where].tolist(), until, "barrier")

    def cluster_wait(self, at: int, ids: Lanes) -> None:
        """See `Observer.cluster_wait`."""
        del ids
        self._cluster_wait = at

    def cluster_leave(self, ids: Lanes) -> None:
        """See `Observer.cluster_leave`."""
        warps = np.unique(ids // WARP)
        until = int(self._clock[warps].max())
        self._align(warps.tolist(), [self._cluster_wait] * len(warps), until, "cluster")

    # ------------------------------------------------------------------------------------- mbarriers

    def arrive(self, position: int, time: int) -> None:
        """Record that a thread or a copy arrives at an mbarrier in slot `time`."""
        self._arrivals[position] = max(self._arrivals.get(position, 0), time)

    def arrived(self, ids: Lanes, position: int) -> None:
        """See `Observer.arrived`."""
        self.arrive(position, max(self.time(warp) for warp in np.unique(ids // WARP).tolist()))

    def waited(self, at: int, ids: Lanes, positions: Lanes) -> None:
        """See `Observer.waited`."""
        pairs = sorted(set(zip((ids // WARP).tolist(), positions.tolist(), strict=True)))
        first: dict[int, int] = {}  # by mbarrier, the first slot after a wait for it
        for warp, position in pairs:
            self._align([warp], [at], self._arrivals.get(position, 0), "mbarrier")
            first[position] = min(first.get(position, _NEVER), int(self._clock[warp]))
        for position, slot in first.items():
            self._use([replace(u, end=max(slot, u.start)) for u in self._committed.pop(position, ())])
            for one in self._bulk_writes.pop(position, ()):
                self._landed(one, max(slot, one.start))

    # ---------------------------------------------------------------------------------- bulk copies

    def start_bulk(self, at: int, lane: int, nbytes: int, position: int | None) -> int:
        """A bulk copy starts, with completion on the mbarrier at `position`, or by its group if that
        is None. Returns its stamp.
        """
        warp = lane // WARP
        one = _Open(warp, self.time(warp), at, nbytes)
        self._stamp += 1
        if warp < self._warps:
            self.recording.bulk_bytes += nbytes
        if position is None:
            self._bulk_reads[self._stamp] = one
        else:
            self._bulk_writes[position].append(one)
            self.arrive(position, one.start + 1)
        return self._stamp

    def know(self, lane: int, number: int) -> None:
        """See `BulkObserver.know`."""
        one = self._bulk_reads.pop(number, None)
        if one is not None:
            self._landed(one, self.time(lane // WARP))

    # --------------------------------------------------------------------------------- tensor memory

    def access_columns(self, at: int, lane: int, cell: int, of: RegisterShape, *, writes: bool) -> None:
        """The warp of a lane loads or stores a shape that begins at a cell (`TensorObserver`)."""
        if lane < self._width:
            now = self.time(lane // WARP)
            columns = len(np.unique(offsets(of) % COLUMNS))
            self._use([ColumnUse(lane // WARP, now, now + 1, at, cell % COLUMNS, columns, writes)])

    def start_operation(self, at: int, lane: int, operation: Operation) -> None:
        """A lane starts an operation of `tcgen05`."""
        warp = lane // WARP
        for of in operation.columns if warp < self._warps else ():
            use = ColumnUse(warp, self.time(warp), -1, at, of.first, of.number, of.writes)
            self._operations[warp].append(use)

    def commit(self, lane: int, positions: list[int]) -> None:
        """A lane commits its operations to the mbarriers at these positions, where the commit arrives."""
        warp = lane // WARP
        self._committed[positions[0]] += self._operations.pop(warp, [])
        for position in positions:
            self.arrive(position, self.time(warp) + 1)

    def _use(self, uses: Iterable[ColumnUse]) -> None:
        self.recording.column_uses += [use for use in uses if use.start < self._most]


class _Tensor(TensorObserver):
    """Reports the events of tensor memory to the recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def loads(self, at: int, lane: int, cell: int, of: RegisterShape) -> None:
        self._recorder.access_columns(at, lane, cell, of, writes=False)

    def stores(self, at: int, lane: int, cell: int, of: RegisterShape) -> None:
        self._recorder.access_columns(at, lane, cell, of, writes=True)

    def starts(self, at: int, lane: int, ctas: tuple[int, ...], operation: Operation) -> None:
        del ctas
        self._recorder.start_operation(at, lane, operation)

    def commits(self, at: int, lane: int, positions: list[int]) -> None:
        del at
        self._recorder.commit(lane, positions)


class _Bulk(BulkObserver):
    """Reports the events of bulk copies to the recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def know(self, lane: int, number: int) -> None:
        self._recorder.know(lane, number)

    def start_write(
        self, at: int, lane: int, first: Lanes, nbytes: int, position: int, *, source: int, update: bool
    ) -> int:
        del source
        return 0 if update else self._recorder.start_bulk(at, lane, nbytes * len(first), position)

    def start_read(self, at: int, lane: int, first: Lanes, nbytes: int, position: int | None) -> int:
        return self._recorder.start_bulk(at, lane, nbytes * len(first), position)

    def start_global_write(
        self,
        at: int,
        lane: int,
        buffer: Buffer,
        first: Lanes,
        nbytes: int,
        *,
        atomic: bool,
        sums: bool,
        again: bool,
    ) -> Tell | None:
        del at, lane, buffer, first, nbytes, atomic, sums, again
        return None


class RecordedScheduler(Scheduler):
    """A scheduler that tells a recorder which warps execute what."""

    recorder: Recorder

    def _charge(self, block: Block, runs: list[int], selection: Selection) -> None:
        self.recorder.ran(block, selection)
        super()._charge(block, runs, selection)
