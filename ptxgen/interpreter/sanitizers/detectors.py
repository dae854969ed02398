"""The checks of accesses and barriers in a batch, and their reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter.machine.lanes import WARP
from ptxgen.interpreter.sanitizers.bounds import BoundsChecks
from ptxgen.interpreter.sanitizers.clocks import Clocks
from ptxgen.interpreter.sanitizers.global_race import GlobalRaces
from ptxgen.interpreter.sanitizers.grid_order import GridOrder
from ptxgen.interpreter.sanitizers.mbarriers import MBarriers
from ptxgen.interpreter.sanitizers.names import DETERMINISM, MBARRIER_INIT, TENSOR_FENCE, TENSOR_ORDER
from ptxgen.interpreter.sanitizers.objects import Objects
from ptxgen.interpreter.sanitizers.operations import Operations
from ptxgen.interpreter.sanitizers.shared_race import RaceDetector
from ptxgen.interpreter.sanitizers.sync import SyncChecks

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.arena import Buffer
    from ptxgen.interpreter.machine.lanes import Batch
    from ptxgen.interpreter.sanitizers.bounds import AllowedAllocations
    from ptxgen.interpreter.sanitizers.conflicts import Access, Conflict
    from ptxgen.interpreter.sanitizers.findings import Findings
    from ptxgen.ir import Instr

    Lanes = np.ndarray[Any, np.dtype[Any]]

WAIT_FOR_COMMIT: Final = "this thread has not waited for the mbarrier of a tcgen05.commit after it"

# The sanitizers that look for each kind of report.
_OF_KIND: Final = {
    "race": {"race"},
    "pending": {"race", "sync"},
    "sync": {"sync"},
    "proxy": {"proxy"},
    MBARRIER_INIT: {MBARRIER_INIT},
    DETERMINISM: {DETERMINISM},
    TENSOR_FENCE: {TENSOR_FENCE},
    TENSOR_ORDER: {TENSOR_ORDER},
}


class Detectors:
    """The sanitizers of one batch. `grain` and `global_grain` are the bytes of their units in
    shared and global memory; `allocations` has the allocations that shared addresses may lie in, if
    bounds are checked.
    """

    def __init__(
        self,
        names: frozenset[str],
        batch: Batch,
        instrs: tuple[Instr, ...],
        faults: Findings,
        grain: int,
        global_grain: int,
        allocations: AllowedAllocations | None,
    ) -> None:
        self._names = names
        self._batch = batch
        self.faults = faults
        self.instrs = instrs
        self.grain = grain
        self.global_grain = global_grain
        warps = batch.width // WARP
        asynchronous = any(_is_asynchronous(x.opcode) for x in instrs)
        self.clocks = Clocks(batch.lanes // WARP, warps * batch.cluster_size, warps, twins=asynchronous)
        self.operations = Operations(self.clocks)
        self.objects = Objects(self.clocks, self.operations)
        units = batch.shared_stride // grain
        self.has_tensors = any(x.opcode.startswith("tcgen05.") for x in instrs)
        products = self.has_tensors or any(x.opcode.startswith("wgmma.mma") for x in instrs)
        self.race = RaceDetector(self.clocks, self.operations, batch.ctas, units, products=products)
        self.global_races = GlobalRaces(self.clocks, self.operations, global_grain)
        wanted = {"race", DETERMINISM, *({"sync", "proxy"} if asynchronous else ())}
        self.follows_global = bool(wanted & names)
        self.mbarriers = MBarriers(faults, batch.shared_stride, wanted="sync" in names)
        self.grids: GridOrder | None = None  # if the previous grid may still run
        self.sync = SyncChecks(self.clocks, instrs, faults, wanted="sync" in names)
        self.bounds = BoundsChecks(allocations, faults, batch.shared_stride)

    # ------------------------------------------------------------------------------------- reports

    def wants(self, kind: str) -> bool:
        """Whether reports of this kind were asked for."""
        return bool(_OF_KIND[kind] & self._names)

    def judge(self, at: int, conflicts: list[Conflict], access: Access) -> None:
        """Report the conflicts of an access to shared memory, of the kinds asked for."""
        for c in conflicts:
            if self.wants(c.kind):
                position = c.unit * self.grain
                cta, address = divmod(position, self._batch.shared_stride)
                lane = int(access.ids[c.position])
                lacking = self.lacking(c, lane)
                self.faults.memory(at, c, "shared", address, lane, cta, lacking=lacking)

    def judge_global(self, at: int, conflicts: list[Conflict], access: Access, buffer: Buffer) -> None:
        """Report the conflicts of an access to an array in global memory, of the kinds asked for."""
        first = buffer.base // self.global_grain
        for c in conflicts:
            if self.wants(c.kind):
                address = max((c.unit + first) * self.global_grain, buffer.base)
                lane = int(access.ids[c.position])
                lacking = self.lacking(c, lane)
                self.faults.memory(at, c, "global", address, lane, -1, buffer, lacking=lacking)

    def lacking(self, conflict: Conflict, lane: int) -> str:
        """What would order a lane's access after the other operation, in words: the wait for an asynchronous
        one, or the meeting of a warp before one lane arrives for it; empty if the general text of the report
        says it.
        """
        if conflict.others_arrived:
            return (
                "other lanes of its warp have arrived at an mbarrier since, but no bar.warp.sync orders them "
                "after it"
            )
        if conflict.what == "may still be read by":
            return "its thread has not waited for its group"
        if not conflict.twin or conflict.kind in ("proxy", MBARRIER_INIT):
            return ""
        if conflict.kind == DETERMINISM:
            return self._unordered_sum(conflict.twin)
        other = conflict.other_thread // WARP
        opcode = self.instrs[conflict.other].opcode
        if opcode.startswith(("wgmma", "tcgen05")):
            return WAIT_FOR_COMMIT if opcode.startswith("tcgen05") else self._unretired(conflict, other)
        if "mbarrier::complete_tx" in opcode:
            position = self.operations.counters.get(conflict.twin)
            if position is None:  # the copy has no destination: its mask of CTAs is empty
                return ""
            which = self.faults.mbarrier(position, lane)
            return f"this thread has not waited for {which}, which counts the copy"
        if conflict.kind == "pending" or other in self.operations.waited(conflict.twin):
            return ""
        return "its thread has not waited for it with cp.async.bulk.wait_group.read"

    def _unretired(self, conflict: Conflict, warp: int) -> str:
        """What a warp has not waited for that has started a `wgmma`, in words; empty if it has waited."""
        column = int(self.clocks.column(np.array(conflict.other_thread), True))
        waited = int(self.clocks.known[warp, column]) >= conflict.twin
        return "" if waited else "its warp has not waited for it with wgmma.wait_group"

    def _unordered_sum(self, number: int) -> str:
        """What would order a sum after the asynchronous reduction `number`, in words."""
        if not self.operations.waited(number):
            return "its thread has not waited for it with cp.async.bulk.wait_group"
        return "nothing, with a fence.proxy.async, orders the two, so the sum may differ from run to run"


def _is_asynchronous(opcode: str) -> bool:
    heads = "cp.async.bulk", "cp.reduce.async", "cp.async.mbarrier", "wgmma.mma", "tcgen05."
    return opcode.startswith((*heads, "st.async", "red.async"))
