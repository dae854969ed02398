"""A work tile in the hands of the warpgroups that compute: the rows that a CTA has of the problem."""

from __future__ import annotations

from flash.device.cta import Cta
from flash.device.parameters import Parameters
from flash.device.wgmma_rings import Rings
from flash.problem.kernel_config import KernelConfig
from flash.problem.wgmma_tiling import WgmmaTiling
from ptxgen.dsl import KernelBuilder, Role
from ptxgen.records import dataclass


@dataclass(frozen=True)
class WorkTile:
    """What the consumers of a kernel have: their `role`, and the `rings` that bring Q, K and V."""

    k: KernelBuilder
    config: KernelConfig
    t: WgmmaTiling
    parameters: Parameters
    cta: Cta
    role: Role
    rings: Rings

    def cta_again(self) -> Cta:
        """What the CTA computes, computed again: through the loops it would take registers."""
        return Cta.of(self.k, self.config, self.parameters)
