"""Which lanes run next: the lockstep schedule, barriers, and what stops a batch of CTAs.

Of all segments that lanes have come to, the one that comes first in the kernel's order runs next,
with all lanes that wait for it; so lanes that parted meet again where their paths do. Lockstep is
one of the orders that a GPU may take; the race detector, not the schedule, finds what other orders
would break.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.errors import TrapError
from ptxgen.interpreter.lanes import Selection
from ptxgen.interpreter.reports import Counters, where_from
from ptxgen.isa.special import SPECIALS

if TYPE_CHECKING:
    from ptxgen.interpreter.blocks import Block, Program
    from ptxgen.interpreter.machine import LaneMachine

    Lanes = np.ndarray[Any, np.dtype[Any]]

_NAMED_WAITS = 4  # how many of the threads in a deadlock are named


class Lockstep:
    """Runs one batch of CTAs to its end."""

    def __init__(self, program: Program, machine: LaneMachine, max_instructions: int) -> None:
        self._program = program
        self._machine = machine
        self._limit = max_instructions
        self._dispatched = 0
        batch = machine.batch
        self._registers: list[Lanes] = [machine.undefined(dtype) for dtype in program.dtypes]
        for name in program.slots.keys() & SPECIALS.keys():
            slot = program.slots[name]
            self._registers[slot] = batch.special(name).astype(program.dtypes[slot])
        # By segment: the lanes that have come to it.
        self._ready: dict[int, Selection] = {}
        self._runs: list[list[int]] = [[0, 0, 0] for _ in program.blocks]  # times, warps, threads

    def run(self) -> None:
        """Run until all threads have ended. Raises `TrapError`."""
        entry = 0 if self._program.blocks else -1
        self._go(entry, Selection(self._machine.batch, ~self._machine.exited))
        while True:
            while self._ready:
                number = min(self._ready)
                self._execute(number, self._ready.pop(number))
            if not (self._machine.barriers.at >= 0).any():
                return
            self._release()
            if not self._ready:
                raise TrapError(self._deadlock())

    def count(self, counters: Counters) -> None:
        """Add what was executed."""
        for block, (times, warps, threads) in zip(self._program.blocks, self._runs, strict=True):
            steps = block.segment.steps
            counters.dispatched += times * len(steps)
            counters.warp_instructions += warps * len(steps)
            counters.thread_instructions += threads * len(steps)
            for step in steps if warps else ():
                counters.by_opcode[step.instr.opcode] += warps

    def _execute(self, number: int, selection: Selection) -> None:
        block = self._program.blocks[number]
        self._charge(block, number, selection)
        taken = self._call(block, selection) if block.function else None
        segment = block.segment
        leave = segment.leave
        if segment.waits:
            self._after_barrier(segment.after, selection)
        elif leave is None:
            self._go(segment.after, selection)
        elif leave.instr.guard is None:
            self._go(segment.target, selection)
        else:
            self._part(taken, segment.target, segment.after, selection)

    def _call(self, block: Block, selection: Selection) -> Lanes | None:
        machine, registers = self._machine, self._registers
        machine.select(selection)
        assert block.function is not None
        if selection.rows is None:
            taken, results = block.function(machine, *[registers[i] for i in block.inputs])
        else:
            pick = selection.pick
            taken, results = block.function(machine, *[pick(registers[i]) for i in block.inputs])
        if selection.mask is None:
            for slot, value in zip(block.outputs, results, strict=True):
                registers[slot] = value
        else:
            for slot, value in zip(block.outputs, results, strict=True):
                registers[slot] = selection.merge(registers[slot], value)
        branch: Lanes | None = taken
        return branch

    def _charge(self, block: Block, number: int, selection: Selection) -> None:
        runs = self._runs[number]
        runs[0] += 1
        runs[1] += selection.warps
        runs[2] += selection.threads
        # An empty segment in a loop must end it, too.
        self._dispatched += max(len(block.segment.steps), 1)
        if self._dispatched > self._limit:
            batch = self._machine.batch
            lane = int(np.flatnonzero(selection.full_mask())[0])
            steps = block.segment.steps
            at = where_from(steps[0].instr) if steps else "an empty loop"
            raise TrapError(
                f"kernel {self._machine.faults.kernel}: still running after {self._limit} "
                f"instructions in a row, at {at}: thread {batch.thread(lane)} of CTA "
                f"{batch.cta(lane)} and {selection.threads - 1} others; "
                "if it is not an endless loop, raise max_instructions"
            )

    def _part(self, taken: Lanes | None, target: int, after: int, selection: Selection) -> None:
        assert taken is not None
        here = taken if selection.inner is None else taken & selection.inner
        count = int(np.count_nonzero(here))
        if count == selection.threads:
            self._go(target, selection)
        elif count == 0:
            self._go(after, selection)
        else:
            jumping = selection.widen(here)
            self._go(target, Selection(self._machine.batch, jumping))
            self._go(after, Selection(self._machine.batch, selection.full_mask() & ~jumping))

    def _go(self, number: int, selection: Selection) -> None:
        """These lanes have come to a segment, or to the kernel's end."""
        if number < 0:
            self._machine.exited |= selection.full_mask()
            if (self._machine.barriers.at >= 0).any():
                self._release()
            return
        there = self._ready.get(number)
        if there is not None:
            selection = Selection(self._machine.batch, selection.full_mask() | there.full_mask())
        self._ready[number] = selection

    def _after_barrier(self, after: int, selection: Selection) -> None:
        """Lanes that arrived without waiting, or that a guard kept away, go on; others when the
        barrier is complete.
        """
        barriers = self._machine.barriers
        mask = selection.full_mask()
        waiting = mask & (barriers.at >= 0)
        barriers.resume[waiting] = after
        passing = mask & ~waiting
        if passing.any():
            self._go(after, Selection(self._machine.batch, passing))
        free = barriers.complete(self._machine.exited)
        if free is not None:
            self._resume(free, selection)

    def _release(self) -> None:
        free = self._machine.barriers.complete(self._machine.exited)
        if free is not None:
            self._resume(free, None)

    def _resume(self, free: Lanes, same: Selection | None) -> None:
        where = self._machine.barriers.resume[free]
        if same is not None and len(where) == same.threads and (free == same.full_mask()).all():
            self._go(int(where[0]), same)
            return
        for number in np.unique(where):
            mask = free & (self._machine.barriers.resume == number)
            self._go(int(number), Selection(self._machine.batch, mask))

    def _deadlock(self) -> str:
        machine = self._machine
        batch, barriers = machine.batch, machine.barriers
        waiting = np.flatnonzero(barriers.at >= 0)
        first = int(waiting[0]) // batch.width
        lanes = waiting[waiting // batch.width == first]
        groups: list[str] = []
        for at, barrier in sorted({(int(barriers.since[n]), int(barriers.at[n])) for n in lanes}):
            there = [int(n) for n in lanes if barriers.since[n] == at and barriers.at[n] == barrier]
            names = ", ".join(str(batch.thread(n)) for n in there[:_NAMED_WAITS])
            more = f" and {len(there) - _NAMED_WAITS} more" if len(there) > _NAMED_WAITS else ""
            groups.append(
                f"{len(there)} threads ({names}{more}) wait at barrier {barrier} in "
                f"{where_from(machine.faults.instrs[at])}"
            )
        cta = slice(first * batch.width, first * batch.width + batch.threads)
        ended = int(np.count_nonzero(machine.exited[cta]))
        ctas = len(np.unique(waiting // batch.width))
        return (
            f"kernel {machine.faults.kernel}: deadlock in CTA {batch.cta(first * batch.width)}"
            f"{f' and {ctas - 1} others' if ctas > 1 else ''}: {'; '.join(groups)}; "
            f"{ended} of {batch.threads} threads have exited"
        )
