"""The accesses of lanes to memory, in the form that the race detectors take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.interpreter.sanitizers.conflicts import Access
from ptxgen.interpreter.sanitizers.detectors import Detectors

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.memory import Plan
    from ptxgen.interpreter.machine.observer import Accessing
    from ptxgen.interpreter.sanitizers.watch_cluster import ClusterWatch

    Lanes = np.ndarray[Any, np.dtype[Any]]


class Accesses(Detectors):
    """The methods of `Watch` that check accesses to shared and global memory before they happen."""

    cluster: ClusterWatch | None = None  # if the kernel has clusters
    unused: dict[int, Lanes]  # by load, the threads of a CTA that do not use its value, bool

    def _near_mbarrier(self, plan: Plan, offset: int, total: int) -> bool:
        return self.mbarriers.near(plan.low + offset, plan.high + offset + total)

    def _follows(self, plan: Plan) -> bool:
        return self.follows_global and plan.buffer is not None and plan.writable

    def _access(self, machine: Accessing, plan: Plan, offset: int, total: int) -> Access:
        """An access to shared memory in the form that the race detector takes."""
        if plan.ids is None:
            plan.ids = machine.active_ids(plan.mask)
            units = plan.index(self.grain)
            plan.units = units if plan.mask is None else units[plan.mask]
        assert plan.units is not None
        low, high = plan.low + offset, plan.high + offset + total
        grain = self.grain
        if self.cluster is not None:
            self.cluster.accessed(machine.at, plan.ids, positions_of(plan, offset))
        return Access(plan.ids, plan.units + low // grain, total // grain, low // grain, high // grain)

    def _far_access(self, machine: Accessing, plan: Plan, offset: int, total: int) -> Access:
        if plan.ids is None:
            plan.ids = machine.active_ids(plan.mask)
            units = plan.index(self.global_grain)
            plan.units = units if plan.mask is None else units[plan.mask]
        assert plan.units is not None
        assert plan.buffer is not None
        grain = self.global_grain
        first = (plan.low + offset) // grain - plan.buffer.base // grain
        return Access(plan.ids, plan.units + first, total // grain, 0, 0)

    def _used(self, at: int, access: Access) -> Access:
        """The part of a load by the lanes that may use its value."""
        unused = self.unused.get(at)
        if unused is None:
            return access
        used = ~unused[access.ids % self._batch.width]
        return Access(access.ids[used], access.first[used], access.width, access.low, access.high)

    def _bounds(self, at: int, plan: Plan, offset: int, total: int, access: Access) -> None:
        low, high = plan.low + offset, plan.high + offset + total
        self.bounds.check(at, low, high, access, self.grain)


def positions_of(plan: Plan, offset: int) -> Lanes:
    """For each active lane its address; in shared memory, the position in the batch's memory."""
    flat: Lanes = plan.relative + (plan.low + offset)
    return flat if plan.mask is None else flat[plan.mask]
