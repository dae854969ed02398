"""The registers that `wgmma` uses, by number, and which instructions of a program touch them.

`wgmma.mma_async` reads and writes registers until `wgmma.wait_group` has retired its group (PTX
ISA, "Asynchronous Warpgroup Level Matrix Instructions"). What may be known of that before a run is
here; what happens in one is for `ptxgen.interpreter.sanitizers.wgmma` and
`ptxgen.interpreter.machine.wgmma_late`.
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

    def accumulators(self) -> list[int]:
        """The registers that multiplications write, in rising order."""
        return sorted({n for m in self.multiplications.values() for n in m.d.tolist()})
