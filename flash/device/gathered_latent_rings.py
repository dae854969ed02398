"""Tiles of K whose rows are wherever a page table says, where V is columns of K: the threads of the producer
copy them as in `flash/device/gathered_rings.py`.
"""

from __future__ import annotations

from flash.device.cta import Cta
from flash.device.gathered_rings import Copier, Lookup
from flash.device.latent_rings import LatentRings
from flash.device.pages import PagedMatrix
from ptxgen.dsl import KernelBuilder
from ptxgen.records import dataclass
from ptxgen.types import s32, u32

_HALVES = 2  # of the columns of a tile that are V


@dataclass(frozen=True)
class GatheredLatentRings(LatentRings):
    """The rings of a kernel in which V is columns of K, and whose `producer` copies the rows of K one by one;
    a half of the columns that are V arrives as a whole. Q and O have tensor maps as elsewhere.
    """

    def fill(self, k: KernelBuilder, cta: Cta) -> None:
        """See `LatentRings.fill`."""
        self._fill_queries(k, cta)
        assert isinstance(cta.K, PagedMatrix)  # rows are gathered from pages
        like, producer = self.keys.tile("v"), self.keys.producer
        width = like.layout.columns
        halves, rests = Copier(k, producer, cta.K, like, width), None
        if self.rest is not None:
            rests = Copier(k, producer, cta.K, self.rest.tile("k"), _HALVES * width)
        lookup = Lookup(k, halves, self.first_key(-cta.tiles), ahead=not cta.mask.has_gaps)
        warpgroup = k.var(u32, 0)  # whose tile is next, 0 or 1
        with self._each_tile(k, cta) as (_, row):
            rows = lookup.rows(row)
            if self.rest is not None and rests is not None:
                with self.rest.gather() as stage:
                    rests.copy(stage.k, rows, _HALVES * width)
            half = k.selp(1, 0, warpgroup != 0, type=s32)  # a selection, so that proofs know its two values
            for column in (half * width, (1 - half) * width):
                with self.keys.gather() as stage:
                    halves.copy(stage.v, rows, column)
            warpgroup.set(warpgroup ^ 1)
