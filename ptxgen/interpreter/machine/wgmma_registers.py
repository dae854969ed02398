"""The registers that `wgmma` uses, by number, and the instructions of a program that touch them.

`wgmma.mma_async` reads and writes registers until `wgmma.wait_group` has retired its group (PTX
ISA, "Asynchronous Warpgroup Level Matrix Instructions"). This module has the facts that are known
before a run; `ptxgen.interpreter.sanitizers.wgmma` and `ptxgen.interpreter.machine.wgmma_late`
follow a run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ptxgen.ir import Reg

    Lanes = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Multiplication:
    """A `wgmma.mma_async`: the numbers of the registers of D and, if A is in registers, of A, and
    the shape.
    """

    d: Lanes
    a: Lanes
    shape: str


@dataclass(frozen=True, slots=True)
class Touch:
    """An ordinary instruction: the numbers of the registers that it names, of those that it changes by more
    than a copy, and of those that it copies `source` to, also a number. A copy, by `mov`, of a value
    from before the fence may come after the fence; a `mov` that packs halves of a register is no copy.
    """

    named: Lanes
    changed: Lanes
    copied: Lanes
    source: int | None


@dataclass(slots=True)
class WgmmaRegisters:
    """The registers of `wgmma` in a program, and those that are copied to them, by number; the keys are
    numbers of instructions.

    `waits` has for each `wgmma.wait_group` the number of groups that it leaves pending; `commits`
    are the `wgmma.commit_group`s. `late` says whether multiplications may be done later than they
    start: all of them, and their waits, are in one routine and without a guard.
    """

    registers: list[Reg] = field(default_factory=list)
    multiplications: dict[int, Multiplication] = field(default_factory=dict)
    touches: dict[int, Touch] = field(default_factory=dict)
    waits: dict[int, int] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)
    late: bool = True

    def accumulators(self) -> list[int]:
        """The registers that multiplications write, in rising order."""
        return sorted({n for m in self.multiplications.values() for n in m.d.tolist()})
