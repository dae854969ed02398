"""Detection of threads that poll mbarriers in loops that cannot end.

A thread whose registers and point are the same as before, with no write to memory in between,
repeats the same steps for ever. If that holds for all threads that could run, no thread is left to
complete the mbarriers that they poll.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.ir import Special
from ptxgen.isa.spec import Effect

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.lanes import Selection
    from ptxgen.interpreter.program.blocks import Program
    from ptxgen.interpreter.program.segments import Step
    from ptxgen.interpreter.schedule.policies import Point, Ready

    Lanes = np.ndarray[Any, np.dtype[Any]]

_POLL: Final = "mbarrier_test_wait"
_CLOCKS: Final = ("%clock", "%globaltimer")
_FIRST: Final = 64  # blocks before the state is first recorded; doubled each time


class Spins:
    """Watches the blocks that run, to find that all threads that can run are in such loops."""

    def __init__(self, program: Program, registers: list[Lanes]) -> None:
        self._registers = registers
        steps = [block.segment.steps for block in program.blocks]
        self._polls = [any(_is_poll(s) for s in some) for some in steps]
        self.possible = any(self._polls)  # without polls, the rest is not needed
        self._harmless = [all(map(_is_harmless, some)) for some in steps] if self.possible else []
        self._begin(_FIRST)

    def _begin(self, limit: int) -> None:
        self._limit = limit
        self._count = 0
        self._polled = False
        self._point: Point | None = None

    def caught(self, point: Point, selection: Selection, ready: Ready) -> bool:
        """Whether all lanes have come back to a recorded state. Lanes are about to run from a
        point, and `ready` are the others that could.
        """
        number = point[0]
        if not self._harmless[number]:
            self._begin(_FIRST)
            return False
        mask = selection.full_mask()
        if self._point == point and self._is_back(mask, ready):
            return True
        self._polled |= self._polls[number]
        self._count += 1
        if self._count >= self._limit:
            self._take(point, mask, ready)
        elif self._point is not None:
            self._served |= mask
        return False

    def _take(self, point: Point, mask: Lanes, ready: Ready) -> None:
        self._begin(2 * self._limit)
        self._point = point
        self._mask = mask.copy()
        self._ready = {p: s.full_mask().copy() for p, s in ready.items()}
        self._held = list(self._registers)
        self._served = mask.copy()

    def _is_back(self, mask: Lanes, ready: Ready) -> bool:
        return (
            self._polled
            and bool((mask == self._mask).all())
            and ready.keys() == self._ready.keys()
            and all(bool((s.full_mask() == self._ready[p]).all()) for p, s in ready.items())
            and all(bool((self._served | ~m).all()) for m in self._ready.values())
            and all(map(_same, self._held, self._registers))
        )


def _is_poll(step: Step) -> bool:
    return step.op.row.name.startswith(_POLL)


def _is_harmless(step: Step) -> bool:
    """Whether an instruction has the same effect each time, and changes only registers."""
    if any(isinstance(o, Special) and o.name.startswith(_CLOCKS) for o in step.instr.operands):
        return False
    jumps = step.op.effect is Effect.CONTROL and step.op.row.name in ("bra", "brx")
    return jumps or _is_poll(step) or step.op.effect in (Effect.NONE, Effect.READ, Effect.ADDRESS)


def _same(one: Lanes, other: Lanes) -> bool:
    return one is other or one.tobytes() == other.tobytes()
