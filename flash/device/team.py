"""Teams of threads that copy, store or meet together: those of a CTA, or of a warp role."""

from __future__ import annotations

from flash.families.wgmma import WARPGROUP
from ptxgen.dsl import KernelBuilder, Role, Value, marked
from ptxgen.dsl.hopper import AsyncStores
from ptxgen.records import dataclass


@dataclass(frozen=True)
class Team:
    """A team of threads: those of the warp role `role`, or for None all of the CTA."""

    role: Role | None

    def thread(self, k: KernelBuilder) -> Value:
        """The index of this thread among the threads of the team, u32."""
        # A remainder, which the proofs follow: the threads of a role are neighbours.
        return k.thread_id() if self.role is None else k.thread_id() % self.role.threads

    def threads(self, k: KernelBuilder) -> int:
        """The number of threads in the team: those of a role, or all of the CTA."""
        return k.threads if self.role is None else self.role.threads

    @marked("team: barrier")
    def sync(self, k: KernelBuilder) -> None:
        """Wait at a barrier for all threads of the team."""
        if self.role is None:
            k.barrier()
        else:
            self.role.barrier.sync()


@dataclass(frozen=True)
class WarpgroupTeam(Team):
    """The threads of each warpgroup of `role`, which meet at the barrier of its `stores`."""

    stores: AsyncStores

    def thread(self, k: KernelBuilder) -> Value:
        """See `Team`."""
        return k.thread_id() % WARPGROUP

    def threads(self, k: KernelBuilder) -> int:  # noqa: ARG002
        """See `Team`."""
        return WARPGROUP

    @marked("team: barrier")
    def sync(self, k: KernelBuilder) -> None:  # noqa: ARG002
        """Wait for all threads of the warpgroup, whose newest store may still be under way."""
        self.stores.wait_read(1)


WHOLE_CTA = Team(None)
