"""The registers of a program that `wgmma` uses, and the calls that functions of segments make for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter.machine.wgmma_registers import Multiplication, Touch, WgmmaRegisters
from ptxgen.interpreter.program.segments import Segment, Step
from ptxgen.ir import Instr, IntImm, Reg, Vector

if TYPE_CHECKING:
    Lanes = np.ndarray[Any, np.dtype[Any]]

_WGMMA: Final = "wgmma."


class WgmmaReader:
    """Finds the registers of `wgmma`, routine by routine; `uses` has those of all routines so far."""

    def __init__(self) -> None:
        self.uses = WgmmaRegisters()
        self._routines: set[int] = set()
        self._numbers: dict[tuple[int, str], int] = {}

    def add(self, parts: Sequence[Segment]) -> None:
        """Add a routine."""
        steps = [s for p in parts for s in p.steps if not s.resumes]
        mine = [s for s in steps if s.instr.opcode.startswith(_WGMMA)]
        if not mine:
            return
        routine = parts[0].routine
        self._routines.add(routine)
        self.uses.late &= len(self._routines) == 1 and all(s.instr.guard is None for s in mine)
        for step in mine:
            self._wgmma(step, routine)
        self._sources(steps, routine)
        for step in steps:
            if not step.instr.opcode.startswith(_WGMMA):
                self._ordinary(step, routine)

    def _wgmma(self, step: Step, routine: int) -> None:
        instr = step.instr
        if step.op.row.name == "wgmma_commit_group":
            self.uses.commits.add(step.number)
        elif step.op.row.name == "wgmma_wait_group":
            (count,) = instr.operands
            assert isinstance(count, IntImm)
            self.uses.waits[step.number] = count.value
        elif instr.operands:
            a = instr.operands[1]
            held = a.items if isinstance(a, Vector) else ()
            self.uses.multiplications[step.number] = Multiplication(
                self._all(step.written, routine),
                self._all((r for r in held if isinstance(r, Reg)), routine),
                str(step.op.modifiers["shape"]),
            )

    def _sources(self, steps: Sequence[Step], routine: int) -> None:
        """Number the registers that are copied to those of `wgmma`, directly or through others."""
        copies = [s for s in steps if _copies(s.instr) and isinstance(s.instr.operands[1], Reg)]
        known = -1
        while known < len(self._numbers):
            known = len(self._numbers)
            for step in copies:
                if self._known(step.written, routine):
                    self._all(step.copied, routine)

    def _ordinary(self, step: Step, routine: int) -> None:
        written = self._known(step.written, routine)
        read = self._known(step.read, routine)
        if not written | read:
            return
        changed, source = written, None
        if _copies(step.instr):
            changed, of = set(), step.instr.operands[1]
            source = self._numbers[routine, of.name] if written and isinstance(of, Reg) else None
        named, by_more, by_copy = (_sorted(x) for x in (written | read, changed, written - changed))
        self.uses.touches[step.number] = Touch(named, by_more, by_copy, source)

    def _known(self, registers: Iterable[Reg], routine: int) -> set[int]:
        numbers = (self._numbers.get((routine, r.name)) for r in registers)
        return {n for n in numbers if n is not None}

    def _all(self, registers: Iterable[Reg], routine: int) -> Lanes:
        numbers = []
        for register in registers:
            number = self._numbers.setdefault((routine, register.name), len(self._numbers))
            if number == len(self.uses.registers):
                self.uses.registers.append(register)
            numbers.append(number)
        return np.array(numbers, np.intp)


def _sorted(numbers: set[int]) -> Lanes:
    return np.array(sorted(numbers), np.intp)


def _copies(instr: Instr) -> bool:
    """Whether an instruction is a `mov` that the assembler can remove: not one that packs a register."""
    return instr.opcode.startswith("mov.") and not isinstance(instr.operands[1], Vector)


@dataclass(frozen=True, slots=True)
class Hooks:
    """The calls about `wgmma` in the functions of segments: with `touches`, they report ordinary
    instructions that touch its registers; with `late`, they fetch the accumulators after a wait.
    """

    wgmma: WgmmaRegisters
    touches: bool
    late: bool

    def runs(self, steps: Sequence[Step]) -> dict[int, tuple[int, ...]]:
        """The instructions of a segment that touch the registers, in runs without a `wgmma`
        instruction or a guard between them: the members of each run, by its first.
        """
        runs: dict[int, tuple[int, ...]] = {}
        first: int | None = None
        for step in steps if self.touches else ():
            if step.instr.opcode.startswith(_WGMMA):
                first = None
            elif step.number in self.wgmma.touches and not step.resumes:
                if step.instr.guard is not None:
                    runs[step.number] = (step.number,)
                    continue
                first = step.number if first is None else first
                runs[first] = (*runs.get(first, ()), step.number)
        return runs

    def settled(self, step: Step) -> list[Reg]:
        """The registers that have new values after an instruction, in rising order."""
        if not (self.late and step.number in self.wgmma.waits):
            return []
        return [self.wgmma.registers[n] for n in self.wgmma.accumulators()]
