"""What a debugger of kernels needs of a run: calls before each instruction and at each report, and where all
threads are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ptxgen.interpreter.program.registers import prefix_of
from ptxgen.interpreter.schedule.scheduler import Scheduler

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.lane_machine import LaneMachine
    from ptxgen.interpreter.program.blocks import Block, Program
    from ptxgen.interpreter.program.segments import Step
    from ptxgen.interpreter.program.stepwise import State
    from ptxgen.interpreter.reports import Report

    Lanes = np.ndarray[Any, np.dtype[Any]]


class Debugger:
    """Is told of a run, by calls that may look at everything, and change nothing. An exception from one of
    them ends the run.
    """

    def begin(self, scheduler: DebuggedScheduler) -> None:
        """The CTAs of a batch are about to run."""

    def before(self, step: Step, state: State) -> None:
        """The selected lanes of `machine.selection` are about to execute an instruction."""

    def reported(self, at: int, report: Report) -> None:
        """A sanitizer reports something about instruction number `at`, which may be executing."""

    def reports(self) -> dict[tuple[str, int, int], Report]:
        """A mapping for the reports of a run, each of which it gives to `reported`."""
        return _Reports(self)


class _Reports(dict["tuple[str, int, int]", "Report"]):
    def __init__(self, debugger: Debugger) -> None:
        super().__init__()
        self._debugger = debugger

    def __setitem__(self, key: tuple[str, int, int], report: Report) -> None:
        is_new = key not in self
        super().__setitem__(key, report)
        if is_new:
            self._debugger.reported(key[1], report)


class Stand(NamedTuple):
    """Lanes of a batch that are at the same instruction, `at`, which they execute next or in which they wait
    for what `waits` says in words ("" if they could run); `mask` says which lanes, bool.
    """

    mask: Lanes
    at: int
    waits: str


class DebuggedScheduler(Scheduler):
    """A scheduler that shows a debugger its registers and the lanes that do not run."""

    @property
    def machine(self) -> LaneMachine:
        """The machine of the batch."""
        return self._machine

    @property
    def program(self) -> Program:
        """The program that runs."""
        return self._program

    def register(self, name: str, state: State | None) -> Lanes | None:
        """The values of a register in all lanes of the batch, or None for a name that the program has not.
        `name` is looked up in the routine that the lanes of `state` execute, then in the kernel.
        """
        keys = [prefix_of(self._program.linked, self._program.linked.routines[-1]) + name]
        if state is not None:
            keys.insert(0, state.key(name))
        for key in keys:
            slot = self._program.slots.get(key)
            if slot is None:
                continue
            lanes = self._registers[slot]
            if state is not None and key in state.lanes:
                lanes = lanes.copy()
                lanes[self._machine.selection.ids] = state.lanes[key]
            return lanes
        return None

    def callers(self, lane: int, routine: int) -> Iterator[int]:
        """The numbers of the calls that a lane in a routine is in, the innermost first; of recursive calls
        the last one.
        """
        seen = {len(self._program.entries) - 1}  # the kernel, and the routines of recursive calls
        while routine not in seen:
            seen.add(routine)
            site = self._calls.site(routine, lane)
            yield self._program.blocks[site].segment.steps[-1].number
            routine = self._program.blocks[site].segment.routine

    def routine_of(self, at: int) -> int:
        """The number of the routine that has instruction number `at`."""
        return next(
            block.segment.routine
            for block in self._program.blocks
            if any(step.number == at for step in block.segment.steps)
        )

    def stands(self) -> Iterator[Stand]:
        """Where all lanes are that have not ended and are not executing."""
        for (number, part), selection in self._ready.items():
            yield Stand(selection.full_mask(), self._next(number, part), "")
        for (number, part), mask in self._parked.items():
            yield Stand(mask, self._next(number, part), "the other lanes of the warp")
        for kind in self._kinds():
            groups: dict[tuple[int, str], list[int]] = {}
            for lane in np.flatnonzero(kind.waiting).tolist():
                groups.setdefault((int(kind.since[lane]), kind.describe(lane)), []).append(lane)
            for (at, what), lanes in groups.items():
                mask = np.zeros(self._machine.batch.lanes, np.bool_)
                mask[lanes] = True
                yield Stand(mask, at, what)

    def _next(self, number: int, part: int) -> int:
        """The instruction that lanes at a point execute next; -1 at the end of a routine."""
        seen = set[int]()
        while number >= 0 and number not in seen:
            seen.add(number)
            block: Block = self._program.blocks[number]
            if block.parts:
                block = block.parts[part]
            if block.segment.steps:
                return block.segment.steps[0].number
            number, part = block.segment.after, 0
        return -1
