"""The execution of a batch of CTAs: running lanes block by block, waits, and the errors that stop
it.

Lanes that have come to the same point wait there together, so lanes that diverged meet again where
their paths do. A `Policy` chooses which of them run next; in lockstep, the lanes at the first point
in the program's order. That is one of the orders that a GPU may take; the race detector, not the
schedule, finds kernels that other orders would break.

If only some lanes of a warp come to an instruction that a warp executes together, they wait for the
others that its membermask names.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from ptxgen.errors import TrapError
from ptxgen.interpreter.machine.lanes import WARP, Selection
from ptxgen.interpreter.machine.shadows import merged
from ptxgen.interpreter.program.segments import together
from ptxgen.interpreter.reports import Counters, where_from
from ptxgen.interpreter.schedule.call_frames import Calls
from ptxgen.interpreter.schedule.spins import Spins
from ptxgen.isa.special import SPECIALS

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.lane_machine import LaneMachine
    from ptxgen.interpreter.machine.shadows import Shadow
    from ptxgen.interpreter.program.blocks import Block, Program
    from ptxgen.interpreter.schedule.policies import Point, Policy, Ready

    Lanes = np.ndarray[Any, np.dtype[Any]]

_CURE: Final = "; a loop ends if it changes what its condition reads, or another thread does"
# The polls for which a return to the same state counts while other lanes could run: a part of their patience,
# because when it ends they run first for as long.
_POLLS_OF_RETURN: Final = 5
_NAMED_WAITS: Final = 4  # threads in a deadlock that the message names
_POLLS: Final = re.compile(r"atom\.|ld\.(volatile|relaxed|acquire)|mbarrier\.test_wait|nanosleep")
_FULL_WARP: Final = 0xFFFFFFFF


class _Waits(Protocol):
    """A reason to wait: `waiting` says which lanes wait, bool, `since` in which instruction."""

    since: Lanes

    @property
    def waiting(self) -> Lanes: ...

    def complete(self, exited: Lanes) -> Lanes | None: ...

    def describe(self, lane: int) -> str: ...


class Scheduler:
    """Runs one batch of CTAs to its end."""

    def __init__(self, program: Program, machine: LaneMachine, max_instructions: int, policy: Policy) -> None:
        self._program = program
        self._machine = machine
        self._policy = policy
        self._limit = max_instructions
        batch = machine.batch
        # No array of a register is changed in place, so registers may share one.
        undefined = {dtype: machine.undefined(dtype) for dtype in set(program.dtypes)}
        self._registers: list[Lanes] = [undefined[dtype] for dtype in program.dtypes]
        for name in program.slots.keys() & SPECIALS.keys():
            slot = program.slots[name]
            self._registers[slot] = batch.special(name).astype(program.dtypes[slot])
        self._shadows: list[Shadow | None] = [None] * len(program.dtypes)
        if machine.definedness is not None:
            for slot in program.unwritten or ():
                self._shadows[slot] = machine.definedness.unwritten(program.dtypes[slot])
        self._calls = Calls(program, machine, self._registers, self._shadows)
        self._ready: Ready = {}
        self._polls = program.analysis(_polls)
        # Lanes that wait for other lanes of their warp.
        self._parked: dict[Point, Lanes] = {}
        self._resume = np.zeros(batch.lanes, np.int64)  # by lane, the block after the wait
        self._spins = Spins(program, machine, self._registers, self._parked, self._resume)
        self._runs: list[list[int]] = [
            [0, 0, 0] for _ in program.blocks
        ]  # by block: numbers of executions, warps, threads
        self._part_runs: dict[Point, list[int]] = {}

    def run(self) -> None:
        """Run until all threads have ended. Raises `TrapError`."""
        self._go(self._program.entries[-1], Selection(self._machine.batch, ~self._machine.exited))
        choose, machine = self._policy.next, self._machine
        while True:
            while self._ready:
                point, selection = choose(self._ready, machine.cycles)
                if self._spins.possible and self._spins.caught(point, selection, self._ready):
                    self._ready[point] = selection
                    self._policy.came(point, machine.cycles)
                    self._end_spin()
                    continue
                if self._spins.waits_for_others and not self._polls[point[0]]:
                    self._policy.polled(_POLLS_OF_RETURN)
                self._execute(point, selection)
                if machine.waits.some:  # alone of all waits these may end by what any instruction does
                    self._wake(kinds=(machine.waits,))
            self._wake()
            if machine.watch is not None and not self._ready and bool(machine.exited.all()):
                machine.watch.all_ended()
            if self._ready or machine.agents.finish():
                continue
            if self._waiting().any() or self._parked:
                raise TrapError(self._deadlock())
            machine.registers.finish()
            machine.finish_tensor()
            return

    def _end_spin(self) -> None:
        """Handle the state in which all threads that could run are in loops that they cannot end: do an
        asynchronous action, or raise `TrapError`.
        """
        machine = self._machine
        if machine.agents.finish() or machine.copies.finish():
            self._spins.restart()
            return
        raise TrapError(self._deadlock())

    def count(self, counters: Counters) -> None:
        """Add the instructions executed to `counters`."""
        runs = [(b, r) for b, r in zip(self._program.blocks, self._runs, strict=True)]
        for (number, part), run in self._part_runs.items():
            runs.append((self._program.blocks[number].parts[part], run))
        for block, (times, warps, threads) in runs:
            if not times:
                continue
            steps = [step for step in block.segment.steps if not step.resumes]
            counters.dispatched += times * len(steps)
            counters.warp_instructions += warps * len(steps)
            counters.thread_instructions += threads * len(steps)
            for step in steps if warps else ():
                counters.by_opcode[step.instr.opcode] += warps
                counters.by_instruction[step.number] += warps

    # --------------------------------------------------------------------------------------- points

    def _go(self, number: int, selection: Selection, part: int = 0) -> None:
        """Have lanes come to a block, or to the kernel's end."""
        if number < 0:
            self._machine.exited |= selection.full_mask()
            if self._machine.watch is not None:
                self._machine.watch.ended(selection.full_mask(), self._machine.exited)
            for point in list(self._parked):  # lanes that have ended are no longer waited for
                self._again(point)
            if self._waiting().any():
                self._wake()
            return
        point = number, part
        there = self._ready.get(point)
        mask = self._parked.pop(point, None) if self._parked else None
        if there is not None:
            mask = there.full_mask() if mask is None else mask | there.full_mask()
        if mask is not None:
            selection = Selection(self._machine.batch, selection.full_mask() | mask)
        self._ready[point] = selection
        self._policy.came(point, self._machine.cycles)

    def _go_mask(self, number: int, mask: Lanes, part: int = 0) -> None:
        if mask.any():
            self._go(number, Selection(self._machine.batch, mask), part)

    def _again(self, point: Point) -> None:
        number, part = point
        self._go_mask(number, self._parked.pop(point), part)

    # ------------------------------------------------------------------------------------ execution

    def _execute(self, point: Point, selection: Selection) -> None:
        number, part = point
        block = self._program.blocks[number]
        if self._polls[number]:
            self._policy.polled(self._polls[number])
        ends_at = self._machine.cycles + len(block.segment.steps)
        if (
            part
            or (block.together and not self._warps_are_whole(selection))
            or (block.split is not None and ends_at > self._policy.change)
        ):
            self._execute_part(point, block, selection)
            return
        self._charge(block, self._runs[number], selection)
        self._after(number, block, selection, *self._call(block, selection))

    def _execute_part(self, point: Point, block: Block, selection: Selection) -> None:
        """Execute one part of a block, for lanes without the rest of their warps."""
        number, part = point
        if not block.parts:
            assert block.split is not None
            block.parts = block.split()
        one = block.parts[part]
        if one.together:
            here = self._met(one, selection)
            left = selection.full_mask() & ~here
            if left.any():  # in addition to lanes that other selections have left
                self._parked[point] = left | self._parked.get(point, False)
            if not here.any():
                return
            selection = Selection(self._machine.batch, here)
        self._charge(one, self._part_runs.setdefault(point, [0, 0, 0]), selection)
        outcome = self._call(one, selection)
        if part + 1 < len(block.parts):
            self._go(number, selection, part + 1)
        else:
            self._after(number, one, selection, *outcome)

    def _warps_are_whole(self, selection: Selection) -> bool:
        """Whether all lanes of the selected warps that have not ended are selected."""
        if selection.inner is None:
            return True
        here = selection.inner | selection.pick(self._machine.exited)
        return int(np.count_nonzero(here)) == selection.count

    def _met(self, block: Block, selection: Selection) -> Lanes:
        """The lanes of a selection that can execute the block's first instruction: all lanes that
        its membermask names are here, or its guard is false for all lanes of the warp that are. Lanes for
        which its guard is false go along.
        """
        mask = selection.full_mask()
        if not together(block.segment.steps[0]):
            return mask
        members: Lanes = np.full(len(mask), block.members, np.uint32)
        if block.member_slot >= 0:
            members = self._registers[block.member_slot].view(np.uint32)
        bits = np.left_shift(np.uint32(1), np.arange(WARP, dtype=np.uint32))
        fine = (mask | self._machine.exited).reshape(-1, WARP)
        present = np.where(fine, bits, np.uint32(0)).sum(axis=1, dtype=np.uint32)
        met: Lanes = mask & ((members & ~np.repeat(present, WARP)) == 0)
        if block.guard is not None:
            slot, negated = block.guard
            takes_part = mask & (self._registers[slot] != negated)
            met |= mask & ~np.repeat(takes_part.reshape(-1, WARP).any(axis=1), WARP)
        return met

    def _after(
        self, number: int, block: Block, selection: Selection, taken: Lanes | None, value: Any
    ) -> None:
        """Send lanes that have executed a block to the next one."""
        segment = block.segment
        leave = segment.leave
        if segment.waits:
            self._after_wait(segment.after, selection)
            return
        if leave is None:
            self._fall(segment.routine, segment.after, selection)
            return
        if leave.instr.guard is not None:
            assert taken is not None
            here = taken if selection.inner is None else taken & selection.inner
            count = int(np.count_nonzero(here))
            if count == 0:
                self._fall(segment.routine, segment.after, selection)
                return
            if count < selection.threads:
                jumping = selection.widen(here)
                rest = selection.full_mask() & ~jumping
                self._fall(segment.routine, segment.after, Selection(self._machine.batch, rest))
                selection = Selection(self._machine.batch, jumping)
        self._leave(number, block, selection, value)

    def _leave(self, number: int, block: Block, selection: Selection, value: Any) -> None:
        """Carry out the branch, call or end of a block for the lanes that take it."""
        segment = block.segment
        leave = segment.leave
        assert leave is not None
        name = leave.op.row.name
        if name == "bra":
            self._go(segment.targets[0], selection)
        elif name == "exit":
            self._go(-1, selection)
        elif name == "ret":
            self._fall(segment.routine, -1, selection)
        elif name == "brx":
            self._jump(block, selection, value)
        else:
            for to, mask in self._calls.enter(number, block, selection.full_mask(), value):
                self._fall_mask(segment.routine, to, mask)

    def _fall(self, routine: int, after: int, selection: Selection) -> None:
        """Go on to a block of the same routine, or at its end back to the caller."""
        if after >= 0 or routine == len(self._program.entries) - 1:
            self._go(after, selection)
            return
        for to, mask in self._calls.leave(routine, selection.full_mask()):
            self._go_mask(to, mask)

    def _fall_mask(self, routine: int, after: int, mask: Lanes) -> None:
        self._fall(routine, after, Selection(self._machine.batch, mask))

    def _jump(self, block: Block, selection: Selection, index: Lanes) -> None:
        """`brx.idx`: send each lane to the target with its index."""
        machine, targets = self._machine, block.segment.targets
        wide = np.zeros(machine.batch.lanes, np.int64)
        wide[machine.selection.ids] = index
        mask = selection.full_mask()
        outside = np.flatnonzero(mask & (wide >= len(targets)))
        if len(outside):
            lane = int(outside[0])
            machine.at = block.segment.steps[-1].number
            where = machine.faults.where(machine.at, lane)
            raise TrapError(f"{where}: index {wide[lane]} of {len(targets)} targets")
        for chosen in np.unique(wide[mask]):
            self._go_mask(targets[chosen], mask & (wide == chosen))

    def _call(self, block: Block, selection: Selection) -> tuple[Lanes | None, Any]:
        machine, registers = self._machine, self._registers
        machine.select(selection)
        function = block.compiled().function
        if function is None:
            return None, None
        if machine.definedness is not None:
            return self._call_followed(block, selection)
        if selection.rows is None:
            taken, value, results = function(machine, *[registers[i] for i in block.inputs])
        else:
            pick = selection.pick
            taken, value, results = function(machine, *[pick(registers[i]) for i in block.inputs])
        if selection.mask is None:
            for slot, new in zip(block.outputs, results, strict=True):
                registers[slot] = new
        else:
            for slot, new in zip(block.outputs, results, strict=True):
                registers[slot] = selection.merge(registers[slot], new)
        return taken, value

    def _call_followed(self, block: Block, selection: Selection) -> tuple[Lanes | None, Any]:
        """Run a block's function that follows undefined bits; the lanes and the value that it returns."""
        registers, shadows = self._registers, self._shadows
        inputs = [registers[i] for i in block.inputs]
        followed = [shadows[i] for i in block.shadow_inputs]
        if selection.rows is not None:
            inputs = [selection.pick(register) for register in inputs]
            followed = [shadow and shadow.pick(selection) for shadow in followed]
        assert block.function is not None
        taken, value, results, new_shadows = block.function(self._machine, *inputs, *followed)
        for slot, new, shadow in zip(block.outputs, results, new_shadows, strict=True):
            registers[slot] = new if selection.mask is None else selection.merge(registers[slot], new)
            if shadow is not None or shadows[slot] is not None:
                shadows[slot] = merged(selection, shadows[slot], shadow)
        return taken, value

    def _charge(self, block: Block, runs: list[int], selection: Selection) -> None:
        runs[0] += 1
        runs[1] += selection.warps
        runs[2] += selection.threads
        # An empty segment in a loop counts, too, so that the limit ends the loop.
        self._machine.cycles += max(len(block.segment.steps), 1)
        if self._machine.cycles > self._limit:
            batch = self._machine.batch
            lane = int(np.flatnonzero(selection.full_mask())[0])
            steps = block.segment.steps
            at = where_from(steps[0].instr) if steps else "an empty loop"
            self._machine.at = steps[0].number if steps else self._machine.at
            raise TrapError(
                f"kernel {self._machine.faults.kernel}: still running after {self._limit} "
                f"instructions in a row, at {at}: thread {batch.thread(lane)} of CTA "
                f"{batch.cta(lane)} and {selection.threads - 1} others; "
                f"if it is not an endless loop, raise max_instructions{self._polling(lane)}"
            )

    def _polling(self, lane: int) -> str:
        """The mbarrier that a thread has polled last, in words; empty if there is none."""
        for at, what, lanes in self._polls_of(np.arange(self._machine.batch.lanes) == lane):
            instr = where_from(self._machine.faults.instrs[at])
            return f"; {self._machine.batch.thread(lanes[0])} polls {what} in {instr}"
        return ""

    def _polls_of(self, mask: Lanes) -> list[tuple[int, str, list[int]]]:
        """The mbarriers that these lanes poll: for each lane's last poll, the instruction and the
        mbarrier.
        """
        machine = self._machine
        polls = []
        for at, (ids, positions) in reversed(machine.polled.items()):
            for position in np.unique(positions[mask[ids]]).tolist():
                lanes = ids[mask[ids] & (positions == position)]
                polls.append((at, machine.mbarrier(position), lanes.tolist()))
            mask = mask.copy()
            mask[ids] = False
        return polls

    # -------------------------------------------------------------------------------------- waiting

    def _waiting(self) -> Lanes:
        waiting: Lanes = functools.reduce(np.logical_or, [kind.waiting for kind in self._kinds()])
        return waiting

    def _kinds(self) -> tuple[_Waits, ...]:
        """All reasons to wait."""
        m = self._machine
        kinds = m.barriers, m.waits, m.cluster, m.registers, m.warpgroups
        return kinds if m.tensor is None else (*kinds, m.tensor.allocator)

    def _after_wait(self, after: int, selection: Selection) -> None:
        """Let lanes that do not have to wait, or for which a guard was false, go on to `after`; the
        others go on when their wait ends.
        """
        mask = selection.full_mask()
        waiting = mask & self._waiting()
        self._resume[waiting] = after
        passing = mask & ~waiting
        if passing.any():
            self._go(after, Selection(self._machine.batch, passing))
        self._wake(selection)

    def _wake(self, same: Selection | None = None, kinds: tuple[_Waits, ...] | None = None) -> None:
        """Let lanes go on whose wait has ended; `same` are the lanes that are likely to be all of them, and
        `kinds` the waits that may have ended (None: all).
        """
        machine = self._machine
        machine.agents.serve(machine.waits)
        for kind in self._kinds() if kinds is None else kinds:
            free = kind.complete(machine.exited)
            if free is not None:
                self._resume_lanes(free, same)

    def _resume_lanes(self, free: Lanes, same: Selection | None) -> None:
        where = self._resume[free]
        if same is not None and len(where) == same.threads and (free == same.full_mask()).all():
            self._go(int(where[0]), same)
            return
        for number in np.unique(where):
            mask = free & (self._resume == number)
            self._go(int(number), Selection(self._machine.batch, mask))

    def _stuck(self) -> tuple[str, dict[tuple[int, str], list[int]], str]:
        """The kind of a state that never ends, its lanes by instruction and by what they do there, and a
        cure.
        """
        waits: dict[tuple[int, str], list[int]] = {}
        loops = self._spins.loops(self._ready) if self._ready else []
        for loop in loops:
            for at, what, lanes in self._polls_of(loop.mask):
                if at in loop.instrs:
                    waits.setdefault((at, f"poll {what}"), []).extend(lanes)
                    loop.mask[lanes] = False
        for kind in self._kinds():
            for lane in np.flatnonzero(kind.waiting).tolist():
                at = int(kind.since[lane])
                within = [loop for loop in loops if at in loop.instrs]  # the others will come to it
                if within:
                    within[0].mask[lane] = True
                else:
                    waits.setdefault((at, f"wait at {kind.describe(lane)}"), []).append(lane)
        for (number, part), mask in self._parked.items():
            step = self._program.blocks[number].parts[part].segment.steps[0]
            entry = step.number, "wait for the other lanes of their warp"
            waits.setdefault(entry, []).extend(map(int, np.flatnonzero(mask)))
        head, cure = ("deadlock", "") if waits else ("endless loop", _CURE)
        for loop in loops:
            waits.setdefault((loop.at, loop.what), []).extend(np.flatnonzero(loop.mask).tolist())
        return head, {entry: lanes for entry, lanes in waits.items() if lanes}, cure

    def _deadlock(self) -> str:
        machine = self._machine
        batch = machine.batch
        head, waits, cure = self._stuck()
        ctas = {lane // batch.width for lanes in waits.values() for lane in lanes}
        first = min(ctas)
        groups: list[str] = []
        for (at, what), all_lanes in sorted(waits.items()):
            there = [n for n in all_lanes if n // batch.width == first]
            if not there:
                continue
            if not groups:
                machine.at = at
            names = ", ".join(str(batch.thread(n)) for n in there[:_NAMED_WAITS])
            more = f" and {len(there) - _NAMED_WAITS} more" if len(there) > _NAMED_WAITS else ""
            groups.append(
                f"{_threads(len(there))} ({names}{more}) {what} in {where_from(machine.faults.instrs[at])}"
            )
        cta = slice(first * batch.width, first * batch.width + batch.threads)
        ended = int(np.count_nonzero(machine.exited[cta]))
        return (
            f"kernel {machine.faults.kernel}: {head} in CTA {batch.cta(first * batch.width)}"
            f"{f' and {len(ctas) - 1} others' if len(ctas) > 1 else ''}: {'; '.join(groups)}; "
            f"{ended} of {batch.threads} threads have exited{cure}"
        )


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _polls(program: Program) -> tuple[int, ...]:
    """By block: the number of its instructions that may poll."""
    return tuple(
        sum(_POLLS.match(step.instr.opcode) is not None for step in block.segment.steps)
        for block in program.blocks
    )
