"""The state of a batch of CTAs before an instruction: its registers, and the memory that it addresses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ptxgen.errors import LaunchError, ModifierError
from ptxgen.interpreter.machine.address_map import SHARED_WINDOW, WINDOW_BYTES, split_rank
from ptxgen.interpreter.machine.lanes import WARP
from ptxgen.ir import Address
from ptxgen.isa.special import SPECIALS

if TYPE_CHECKING:
    from ptxgen.debugger.memory import Cell
    from ptxgen.interpreter.debugging import DebuggedScheduler
    from ptxgen.interpreter.machine.lane_machine import LaneMachine
    from ptxgen.interpreter.machine.lanes import Batch
    from ptxgen.interpreter.program.segments import Step
    from ptxgen.interpreter.program.stepwise import State
    from ptxgen.ir import Instr

    Lanes = np.ndarray[Any, np.dtype[Any]]


class Addressed(NamedTuple):
    """Addresses by lane of a batch, int64: in shared memory (`shared`, bool) as positions in that of the
    batch, else generic ones.
    """

    shared: Lanes
    at: Lanes


@dataclass
class Moment:
    """The state of a batch before an instruction; `mask` says which of its lanes are about to execute it,
    bool. `addressed` are the addresses in it, which are to be asked for before it runs.
    """

    scheduler: DebuggedScheduler
    step: Step
    state: State
    mask: Lanes = field(init=False)
    addressed: Addressed | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.mask = self.machine.selection.widen(self.state.active(self.step))

    @property
    def machine(self) -> LaneMachine:
        """The machine of the batch."""
        return self.scheduler.machine

    @property
    def batch(self) -> Batch:
        """The batch."""
        return self.scheduler.machine.batch

    @property
    def instr(self) -> Instr:
        """The instruction."""
        return self.step.instr

    def warp_is_here(self, lane: int | None) -> bool:
        """Whether the warp of a lane has come to the instruction, if only with a false guard."""
        if lane is None:
            return False
        first = lane // WARP * WARP
        return bool(self.machine.selection.full_mask()[first : first + WARP].any())

    def register(self, name: str) -> Lanes:
        """The values of a register in all lanes of the batch. Raises `LaunchError` for an unknown one."""
        if name in SPECIALS:
            try:
                return self.batch.special(name)
            except ModifierError as error:
                raise LaunchError(str(error)) from error
        lanes = self.scheduler.register(name, self.state)
        if lanes is None:
            raise LaunchError(f"the kernel has no register {name}, or does not use it")
        return lanes

    def is_unwritten(self, value: Any) -> bool:
        """Whether a register's value has the bits of one that nothing has written, other than a predicate."""
        unwritten = self.machine.undefined(value.dtype)[:1]
        return bool(value.dtype != np.bool_) and unwritten.tobytes() == value.tobytes()

    def address(self) -> Addressed | None:
        """The first address in the instruction, in all lanes of the batch; None if it has none."""
        operand = next((o for o in self.instr.operands if isinstance(o, Address)), None)
        if operand is None:
            return None
        batch, ids = self.batch, self.machine.selection.ids
        held = self.state.address(operand.base, operand.offset).view(np.int64)
        is_generic = (held >= SHARED_WINDOW) & (held < SHARED_WINDOW + WINDOW_BYTES)
        is_shared = is_generic | (".shared" in self.instr.opcode) | self.instr.opcode.startswith("mbarrier")
        offsets, ctas = np.where(is_generic, held - SHARED_WINDOW, held), ids // batch.width
        if batch.cluster_size > 1:
            ranks, offsets = split_rank(offsets)
            ctas = ctas // batch.cluster_size * batch.cluster_size + ranks
        shared, at = np.zeros(batch.lanes, np.bool_), np.zeros(batch.lanes, np.int64)
        shared[ids] = is_shared
        at[ids] = np.where(is_shared, ctas * batch.shared_stride + offsets, held)
        return Addressed(shared, at)

    def writers(self, cell: Cell) -> list[int]:
        """The lanes that address a cell by the instruction, as far as `addressed` says."""
        if self.addressed is None or cell.space not in ("global", "shared"):
            return []
        sizes = [o.type.nbytes * max(o.count, 1) for o in self.step.op.flat if o.type and not o.address]
        wanted, is_shared = cell.offset, cell.space == "shared"
        if is_shared:
            wanted += (cell.cta - self.batch.first) * self.batch.shared_stride
        first = self.addressed.at
        here = self.mask & (self.addressed.shared == is_shared) & (first <= wanted)
        return [int(n) for n in np.flatnonzero(here & (wanted < first + max(sizes, default=1)))]
