"""Detection of threads that are in loops that cannot end.

If all threads that could run have come back to a point with the registers that they had there before,
and memory has not changed in between, they repeat the same steps for ever, and no thread is left that
could end their loops. If their branches, addresses and barriers depend on registers alone, these registers
are enough: what else the loops compute and store does not end them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ptxgen.interpreter.machine.memory import in_own_cta
from ptxgen.ir import Address, Reg, Special, Symbol
from ptxgen.isa.spec import Effect

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ptxgen.interpreter.machine.lane_machine import LaneMachine
    from ptxgen.interpreter.machine.lanes import Selection
    from ptxgen.interpreter.program.blocks import Program
    from ptxgen.interpreter.program.segments import Step
    from ptxgen.interpreter.schedule.policies import Point, Ready

    Lanes = np.ndarray[Any, np.dtype[Any]]

_POLL: Final = "mbarrier_test_wait"
_CLOCKS: Final = ("%clock", "%globaltimer")
_FIRST: Final = 64  # blocks before the state is first recorded; doubled each time
_COMPARED: Final = 1 << 32  # bytes of memory that a batch compares to find that nothing changes

# What the instructions of a block do, as far as an endless loop may have them.
_PURE: Final = 0  # they have the same effect each time, and change only registers
_SHARING: Final = 1  # they may also write memory, or wait at barriers of the CTA
_OTHER: Final = 2  # anything else: time, asynchronous work, calls
_REGISTERS_ONLY: Final = (Effect.NONE, Effect.READ, Effect.ADDRESS, Effect.WARP, Effect.FENCE)
_MEMORY: Final = (Effect.WRITE, Effect.ATOMIC)
_JUMPS: Final = ("bra", "brx", "exit")
_BARRIERS: Final = ("bar_sync", "bar_arrive", "bar_red", "bar_cta", "barrier_sync", "barrier_arrive")
_STORES: Final = ("stmatrix", "wmma_store")  # rows of Effect.WARP that write memory
_LOADS: Final = ("ldmatrix", "wmma_load")  # rows of Effect.WARP that read memory
_UNSEEN: Final = ("griddepcontrol", "mbarrier", "tcgen05", "wgmma")  # rows that change what no register has
_NOT_DATA: Final = ("param", "const")  # state spaces that no thread writes


class Loop(NamedTuple):
    """A loop that lanes are in for ever: what they do in instruction `at`, and all its instructions, by
    number.
    """

    at: int
    what: str
    mask: Lanes
    instrs: frozenset[int]


class Spins:
    """Watches the blocks that run, to find that all threads that can run are in loops that cannot end.

    `parked` are the lanes that wait for others of their warp, by point, and `resume` has the block
    that each waiting lane goes on with.
    """

    def __init__(
        self,
        program: Program,
        machine: LaneMachine,
        registers: list[Lanes],
        parked: Mapping[Point, Lanes],
        resume: Lanes,
    ) -> None:
        self._program = program
        self._machine = machine
        self._registers = registers
        self._parked = parked
        self._resume = resume
        self._kinds = program.analysis(_kinds)
        self.possible = bool(self._kinds)  # without loops, the rest is not needed
        # Whether the lanes that are about to run have come back, and others have not run in between.
        self.waits_for_others = False
        self._control = False  # whether registers alone decide on the way of the lanes
        self._controls: dict[frozenset[int], tuple[int, ...] | None] = {}  # by the blocks that ran
        self._slots: tuple[int, ...] | None = None  # deciding registers of the blocks that ran
        self._slots_are_old = True
        self._left = _COMPARED
        self._differed = 0  # the register that differed last, which is likely to differ again
        self._begin(_FIRST)

    def restart(self) -> None:
        """Forget what was recorded: something has changed."""
        self._begin(_FIRST)

    def _begin(self, limit: int) -> None:
        self._limit = limit
        self._count = 0
        self._shared = self._shared_last = False
        self._point: Point | None = None
        self._memory: list[Lanes] | None = None

    def caught(self, point: Point, selection: Selection, ready: Ready) -> bool:
        """Whether all lanes have come back to a recorded state. Lanes are about to run from a
        point, and `ready` are the others that could.
        """
        self.waits_for_others = False
        kind = self._kinds[point[0]]
        if kind == _OTHER:
            if self._count:
                self._begin(_FIRST)
            return False
        if self._point is not None:
            if self._memory is not None and self._shared_last and not self._memory_is_same():
                self._begin(2 * self._limit)
            elif point == self._point and self._is_back(selection, ready):
                if self._control or not self._shared or self._memory is not None:
                    return True
                self._watch_memory()
            if point not in self._points:
                self._points.add(point)
                self._slots_are_old = True
            if self._ready:
                self._served |= selection.full_mask()
        self._count += 1
        self._shared_last = kind == _SHARING
        self._shared |= self._shared_last
        if self._count >= self._limit:
            self._take(point, selection, ready)
        return False

    # --------------------------------------------------------------------------------------- states

    def _take(self, point: Point, selection: Selection, ready: Ready) -> None:
        """Record the state of the batch, in which the selected lanes are about to run from a point."""
        shares = self._shared_last
        self._begin(2 * self._limit)
        self._shared = self._shared_last = shares
        self._point = point
        self._points = {point}
        self._slots_are_old = True
        self._mask = selection.full_mask().copy()
        self._ready = {p: s.full_mask().copy() for p, s in ready.items()}
        self._held = list(self._registers)
        self._waits = self._waiting()
        self._served = self._mask.copy()

    def _is_back(self, selection: Selection, ready: Ready) -> bool:
        if not (
            ready.keys() == self._ready.keys()
            and (self._control_is_same() or self._are_same(range(len(self._held))))
            and bool((selection.full_mask() == self._mask).all())
            and all(bool((s.full_mask() == self._ready[p]).all()) for p, s in ready.items())
        ):
            return False
        self.waits_for_others = not all(bool((self._served | ~m).all()) for m in self._ready.values())
        return not self.waits_for_others and all(map(_same, self._waits, self._waiting()))

    def _control_is_same(self) -> bool:
        """Whether the way of the lanes depends on registers alone, and these hold their recorded values."""
        if self._slots_are_old:
            ran = frozenset(number for number, _ in self._points)
            if ran not in self._controls:
                self._controls[ran] = self._control_of(ran)
            self._slots, self._slots_are_old = self._controls[ran], False
        self._control = self._slots is not None and self._are_same(self._slots)
        return self._control

    def _are_same(self, slots: Sequence[int]) -> bool:
        """Whether registers hold their recorded values; the last that differed is likely to differ again."""
        held, registers = self._held, self._registers
        last = self._differed
        if last in slots and not _same(held[last], registers[last]):
            return False
        for n in slots:
            if not _same(held[n], registers[n]):
                self._differed = n
                return False
        return True

    def _control_of(self, ran: frozenset[int]) -> tuple[int, ...] | None:
        """The registers on which branches, addresses and barriers of these blocks depend, by slot; None if
        these depend on what is in memory.
        """
        steps = [step for number in ran for step in self._program.blocks[number].segment.steps]
        names = {name for step in steps for name in _decides(step)}
        seen = 0
        while seen < len(names):
            seen = len(names)
            for step in steps:
                if any(reg.name in names for reg in step.written):
                    if _reads_memory(step):
                        return None
                    names |= {reg.name for reg in step.read}
        return tuple(self._program.slots[name] for name in names if name in self._program.slots)

    def _waiting(self) -> tuple[Lanes, ...]:
        """Arrays of the lanes that have ended or wait, and where; lanes that could run are in none."""
        parked = np.zeros_like(self._resume)
        for (number, part), mask in self._parked.items():
            parked[mask] = 1 + number + (part << 32)
        return self._machine.exited.copy(), self._resume.copy(), parked, *self._machine.barriers.state()

    # --------------------------------------------------------------------------------------- memory

    def _watch_memory(self) -> None:
        """From now on, see whether instructions that may write change anything."""
        windows = self._windows()
        if sum(data.nbytes for data in windows) > self._left:
            self._begin(2 * self._limit)
            return
        self._memory = [data.copy() for data in windows]
        self._limit += 2 * self._count

    def _memory_is_same(self) -> bool:
        assert self._memory is not None  # the caller has tested this
        windows = self._windows()
        self._left -= sum(data.nbytes for data in windows)
        return (
            self._left > 0
            and len(windows) == len(self._memory)
            and all(map(np.array_equal, windows, self._memory))
        )

    def _windows(self) -> list[Lanes]:
        """The bytes of all memory that kernels write."""
        machine = self._machine
        buffers = [b.window.data for b in machine.arena.buffers if b.writable]
        return [*buffers, machine.shared.window.data, machine.spaces["local"].window.data]

    # --------------------------------------------------------------------------------------- reports

    def loops(self, ready: Ready) -> list[Loop]:
        """The loops that lanes are in, after `caught` was true."""
        return [self._loop(point, s.full_mask().copy()) for point, s in ready.items()]

    def _loop(self, point: Point, mask: Lanes) -> Loop:
        steps = self._steps(point[0])
        at, what = steps[0].number, "repeat a loop in which no register and no memory changes,"
        if self._control:
            what = "repeat a loop in which nothing changes on which its branches depend,"
        for step in () if self._control else steps:
            word = self._word(step, int(mask.argmax()))
            if word:
                at, what = step.number, f"{what} and read {word},"
                break
        return Loop(at, what, mask, frozenset(step.number for step in steps))

    def _steps(self, first: int) -> Sequence[Step]:
        """The instructions of a loop, of which `first` is a block, as far as its blocks have run."""
        blocks, ran = self._program.blocks, {number for number, _ in self._points}
        numbers, new = set[int](), {first}
        while new:
            numbers |= new
            new = {to for n in new for to in blocks[n].segment.successors if to in ran} - numbers
        return [step for n in sorted(numbers) for step in blocks[n].segment.steps]

    def _word(self, step: Step, lane: int) -> str:
        """What a load reads, in words; empty for other instructions."""
        modifiers = step.op.modifiers
        space = str(modifiers.get("space") or "").partition("::")[0]
        if step.op.effect not in (Effect.READ, Effect.ATOMIC) or space in _NOT_DATA:
            return ""
        for want, operand in zip(step.op.operands, step.instr.operands, strict=False):
            if not want.address or not isinstance(operand, Address):
                continue
            if isinstance(operand.base, Symbol):
                return f"{operand.base.name}, {self._writers(space)}"
            slot = self._program.slots.get(operand.base.name) if isinstance(operand.base, Reg) else None
            if slot is None:
                return ""
            return self._named(int(self._registers[slot][lane]) + operand.offset, space, lane)
        return ""

    def _named(self, address: int, space: str, lane: int) -> str:
        if space == "shared":
            address = in_own_cta(self._machine.batch, lane, address)
            region = self._machine.faults.region(address)
            return f"shared memory at {address:#x}{f' ({region})' * bool(region)}, {self._writers(space)}"
        buffer = self._machine.arena.find(address, address + 1)
        if buffer is None:
            return ""
        return f"byte {address - buffer.base} of {buffer.name or 'a buffer'}, {self._writers(space)}"

    def _writers(self, space: str) -> str:
        """A relative clause for messages about memory of a space: which threads could still write it."""
        batch = self._machine.batch
        later = math.prod(batch.grid) - batch.first - batch.ctas
        if space != "shared" and later:
            return (
                f"which only CTAs that have not begun could write: the interpreter runs {batch.ctas} CTAs at "
                f"once, and {later} come later"
            )
        return "which no thread is left to write"


def _kinds(program: Program) -> tuple[int, ...]:
    """What each block does; none if there are no loops."""
    segments = [block.segment for block in program.blocks]
    if not any(to <= n for n, segment in enumerate(segments) for to in segment.successors):
        return ()
    kernel = len(program.entries) - 1
    return tuple(max([_kind(step, s.routine == kernel) for step in s.steps], default=_PURE) for s in segments)


def _kind(step: Step, is_kernel: bool) -> int:
    if any(isinstance(o, Special) and o.name.startswith(_CLOCKS) for o in step.instr.operands):
        return _OTHER
    name, effect = step.op.row.name, step.op.effect
    if name.startswith(_POLL):
        return _PURE
    if name.startswith(_UNSEEN):
        return _OTHER
    if effect is Effect.CONTROL:
        return _PURE if name in _JUMPS or (name == "ret" and is_kernel) else _OTHER
    if effect in _MEMORY or name.startswith((*_STORES, *_BARRIERS)):
        return _SHARING
    return _PURE if effect in _REGISTERS_ONLY else _OTHER


def _decides(step: Step) -> Iterator[str]:
    """The registers with which an instruction decides where lanes go on, or what they access."""
    if step.op.effect is Effect.CONTROL or step.op.row.name.startswith(_BARRIERS):
        yield from (reg.name for reg in step.read)
    for want, operand in zip(step.op.operands, step.instr.operands, strict=False):
        if want.address and isinstance(operand, Address) and isinstance(operand.base, Reg):
            yield operand.base.name


def _reads_memory(step: Step) -> bool:
    """Whether what an instruction writes to registers may depend on what is in memory."""
    space = str(step.op.modifiers.get("space") or "").partition("::")[0]
    if step.op.effect is Effect.READ:
        return space not in _NOT_DATA
    return step.op.effect in (*_MEMORY, Effect.BARRIER) or step.op.row.name.startswith((_POLL, *_LOADS))


def _same(one: Lanes, other: Lanes) -> bool:
    return one is other or one.tobytes() == other.tobytes()
