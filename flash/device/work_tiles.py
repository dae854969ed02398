"""The work tiles of a CTA, each a block of rows of a head: one, or in kernels with persistent CTAs several,
one after another.

Persistent CTAs initialise barriers and fetch tensor maps once, and copy the first tiles of a work tile while
they finish the previous one. `flash/problem/persistence.py` says which kernels are offered in this form.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from flash.device.cta import Cta
from flash.device.parameters import Parameters
from flash.device.tma_pipeline import TmaPipeline
from flash.families.wgmma import WgmmaTiling
from flash.problem.kernel_config import KernelConfig
from flash.problem.persistence import MIRRORED
from ptxgen.dsl import KernelBuilder, Role
from ptxgen.dsl.hopper import TicketScheduler, TileScheduler
from ptxgen.records import dataclass


@dataclass(frozen=True)
class WorkTile:
    """A work tile in the hands of a role, to which the pipeline brings Q, K and V."""

    k: KernelBuilder
    config: KernelConfig
    t: WgmmaTiling
    parameters: Parameters
    cta: Cta
    role: Role
    pipeline: TmaPipeline

    def cta_again(self) -> Cta:
        """The part of the problem that the CTA computes, computed again: through the loops it would take
        registers.
        """
        return Cta.of(self.k, self.config, self.parameters)


@dataclass(frozen=True)
class WorkTiles:
    """The work tiles of a CTA: those that `scheduler` deals to it or, if that is None, the one work tile with
    the CTA's index.
    """

    parameters: Parameters
    scheduler: TileScheduler | TicketScheduler | None

    @classmethod
    def of(
        cls, k: KernelBuilder, config: KernelConfig, parameters: Parameters, roles: tuple[Role, ...]
    ) -> WorkTiles:
        """The work tiles of this CTA. `roles` are a producer, which takes tickets, and the others."""
        if not config.is_persistent:
            return cls(parameters, None)
        count = parameters.numbers["parts"]
        if parameters.tickets is not None:
            counter = parameters.tickets
            return cls(parameters, k.tile_scheduler(count, order="ticket", counter=counter, roles=roles))
        return cls(parameters, k.tile_scheduler(count, mirrored=config.scheduler == MIRRORED))

    @contextmanager
    def each(self) -> Iterator[Parameters]:
        """Run the body for each work tile of the CTA; yields the kernel's parameters with its number."""
        if self.scheduler is None:
            yield self.parameters
            return
        with self.scheduler.tiles() as number:
            yield replace(self.parameters, part=number)
