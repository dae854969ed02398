"""The registers that `wgmma` uses, by number, and which instructions of a program touch them.

`wgmma.mma_async` reads and writes registers until `wgmma.wait_group` has retired its group (PTX
ISA, "Asynchronous Warpgroup Level Matrix Instructions"). What may be known of that before a run is
here; what happens in one is for `ptxgen.interpreter.wgmma_checks` and
`ptxgen.interpreter.wgmma_late`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter.segments import Segment, Step, registers_read, registers_written
from ptxgen.ir import IntImm, Reg, Vector

if TYPE_CHECKING:
    Lanes = np.ndarray[Any, np.dtype[Any]]

_WGMMA: Final = "wgmma."


@dataclass(frozen=True, slots=True)
class Multiplication:
    """A `wgmma.mma_async`: the numbers of the registers of D and, if it is in registers, of A, and
    the shape.
    """

    d: Lanes
    a: Lanes
    shape: str


@dataclass(frozen=True, slots=True)
class Touch:
    """An ordinary instruction: the numbers of the registers of `wgmma` that it names, and of those
    that it changes other than by copying, which may come after the fence.
    """

    named: Lanes
    changed: Lanes


@dataclass(slots=True)
class WgmmaRegisters:
    """The registers of `wgmma` in a program, by number. Instructions are by theirs.

    `waits` has of each `wgmma.wait_group` how many groups it leaves, `commits` are the
    `wgmma.commit_group`s. `late` says whether multiplications may be done later than they are
    started: all of them, and their waits, are in one routine and without a guard.
    """

    registers: list[Reg] = field(default_factory=list)
    multiplications: dict[int, Multiplication] = field(default_factory=dict)
    touches: dict[int, Touch] = field(default_factory=dict)
    waits: dict[int, int] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)
    late: bool = True
    _routines: set[int] = field(default_factory=set)
    _numbers: dict[tuple[int, str], int] = field(default_factory=dict)

    def add(self, parts: Sequence[Segment]) -> None:
        """Take in a routine."""
        steps = [s for p in parts for s in p.steps if not s.resumes]
        mine = [s for s in steps if s.instr.opcode.startswith(_WGMMA)]
        if not mine:
            return
        routine = parts[0].routine
        self._routines.add(routine)
        self.late &= len(self._routines) == 1 and all(s.instr.guard is None for s in mine)
        for step in mine:
            self._wgmma(step, routine)
        for step in steps:
            if not step.instr.opcode.startswith(_WGMMA):
                self._ordinary(step, routine)

    def accumulators(self) -> list[int]:
        """The registers that multiplications write, in rising order."""
        return sorted({n for m in self.multiplications.values() for n in m.d.tolist()})

    def _wgmma(self, step: Step, routine: int) -> None:
        instr = step.instr
        if step.op.row.name == "wgmma_commit_group":
            self.commits.add(step.number)
        elif step.op.row.name == "wgmma_wait_group":
            (count,) = instr.operands
            assert isinstance(count, IntImm)
            self.waits[step.number] = count.value
        elif instr.operands:
            a = instr.operands[1]
            held = a.items if isinstance(a, Vector) else ()
            self.multiplications[step.number] = Multiplication(
                self._all(registers_written(step), routine),
                self._all((r for r in held if isinstance(r, Reg)), routine),
                str(step.op.modifiers["shape"]),
            )

    def _ordinary(self, step: Step, routine: int) -> None:
        written = self._known(registers_written(step), routine)
        named = written | self._known(registers_read(step), routine)
        if named:
            changed = set() if step.instr.opcode.startswith("mov.") else written
            self.touches[step.number] = Touch(
                *(np.array(sorted(x), np.intp) for x in (named, changed))
            )

    def _known(self, registers: Iterable[Reg], routine: int) -> set[int]:
        found = (self._numbers.get((routine, r.name)) for r in registers)
        return {n for n in found if n is not None}

    def _all(self, registers: Iterable[Reg], routine: int) -> Lanes:
        numbers = []
        for register in registers:
            number = self._numbers.setdefault((routine, register.name), len(self._numbers))
            if number == len(self.registers):
                self.registers.append(register)
            numbers.append(number)
        return np.array(numbers, np.intp)


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the functions of segments tell and ask of `wgmma`: with `touches`, where ordinary
    instructions touch its registers, with `late`, what accumulators hold after a wait.
    """

    wgmma: WgmmaRegisters
    touches: bool
    late: bool

    def runs(self, steps: Sequence[Step]) -> dict[int, tuple[int, ...]]:
        """The instructions of a segment that touch the registers, in runs that nothing of `wgmma`
        and no guard divides: by the first of each run, its members.
        """
        found: dict[int, tuple[int, ...]] = {}
        first: int | None = None
        for step in steps if self.touches else ():
            if step.instr.opcode.startswith(_WGMMA):
                first = None
            elif step.number in self.wgmma.touches and not step.resumes:
                if step.instr.guard is not None:
                    found[step.number] = (step.number,)
                    continue
                first = step.number if first is None else first
                found[first] = (*found.get(first, ()), step.number)
        return found

    def settled(self, step: Step) -> list[Reg]:
        """The registers that have new values after an instruction, in rising order."""
        if not (self.late and step.number in self.wgmma.waits):
            return []
        return [self.wgmma.registers[n] for n in self.wgmma.accumulators()]
