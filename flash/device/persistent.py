"""CTAs that take several parts of the problem, one after another: what such a kernel has beside one whose
grid has a CTA for each part.

Barriers are initialised and tensor maps fetched once, and the tiles of a part are on their way while the
part before is finished. `flash/problem/persistence.py` says which kernels are offered in this form.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

from flash.device.cta import Cta
from flash.device.parameters import Parameters
from flash.device.wgmma_rings import Rings
from flash.problem.kernel_config import KernelConfig
from flash.problem.persistence import MIRRORED
from ptxgen.dsl import KernelBuilder, Role, Value, marked
from ptxgen.dsl.hopper import TicketScheduler, TileScheduler
from ptxgen.records import dataclass


@dataclass(frozen=True)
class Parts:
    """The parts of the problem that a CTA computes: those that `scheduler` deals to it, or, if it is None,
    the one part that has the CTA's index.
    """

    given: Parameters
    scheduler: TileScheduler | TicketScheduler | None

    @classmethod
    def of(cls, k: KernelBuilder, config: KernelConfig, given: Parameters, roles: tuple[Role, Role]) -> Parts:
        """The parts of this CTA, whose roles are a producer, which takes tickets, and a consumer."""
        if not config.is_persistent:
            return cls(given, None)
        count = given.numbers["parts"]
        if given.tickets is not None:
            return cls(given, k.tile_scheduler(count, order="ticket", counter=given.tickets, roles=roles))
        return cls(given, k.tile_scheduler(count, mirrored=config.scheduler == MIRRORED))

    @contextmanager
    def each(self) -> Iterator[Parameters]:
        """Run the body for each part; gives the parameters with the part's number."""
        if self.scheduler is None:
            yield self.given
            return
        with self.scheduler.tiles() as number:
            yield replace(self.given, part=number)


@dataclass(frozen=True)
class PersistentRings(Rings):
    """Rings whose stages and phases go on from part to part."""

    @marked("persistent rings: fill")
    def fill_part(self, k: KernelBuilder, cta: Cta, has_tiles: Value) -> None:
        """See `Rings.fill_part`; the order is another one. The memory of Q is free last, when O has
        left it or the last scores are there; so the first tile of keys is fetched before. Q comes also
        where no keys are seen, so that nobody writes its memory while it belongs to consumers.
        """
        with self._sent_findings():
            with k.when(has_tiles, uniform=True):
                self._fill_keys(k, cta, self.first_key(-cta.tiles))
            self._fill_queries(k, cta)
            with k.when(has_tiles, uniform=True):
                self._fill_values(k, cta, self.first_key(-cta.tiles))
                with k.loop(1 - cta.tiles, 0 if cta.first_tile is None else -cta.first_tile) as n:
                    row = self.first_key(n)
                    seen = cta.mask.sees_tile(row)
                    with nullcontext() if seen is None else k.when(seen, uniform=True):
                        self._fill_keys(k, cta, row)
                        self._fill_values(k, cta, row, follows=True)
                self._end_fills(cta)
