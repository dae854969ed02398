"""Tiles of Q and V and slabs of K on their way to shared memory where rows are wide, for products in tensor
memory.
"""

from __future__ import annotations

from flash.device.cleared_values import ClearedValues
from flash.device.cta import Cta
from flash.device.gathered_pipeline import Copier, GatheredPipeline, Lookup
from flash.device.pages import PagedMatrix
from flash.device.tensor_pipeline import TensorPipeline
from flash.families.tcgen05_latent import SLAB
from ptxgen.dsl import Value, marked


class LatentTensorPipeline(TensorPipeline):
    """See `TensorPipeline`; a tile of K comes in slabs, the first columns first."""

    @marked("latent tensor rings: fill")
    def load(self, cta: Cta) -> None:
        """See `TmaPipeline`."""
        self.load_queries(cta)
        with self.each_tile(cta) as (n, row):
            self._clear_tile_before(cta, n)
            self.load_keys(cta, row)
            self.load_values(cta, row)
        self.end_loads(cta)

    def _clear_tile_before(self, cta: Cta, n: Value) -> None:
        """Clear the previous tile of V before slabs of the next tile of K are filled: the last of these wait
        for products that follow those with that tile of V.
        """
        if isinstance(self.nonfinite, ClearedValues):
            with self.k.when(n != -cta.tiles, uniform=True):
                self.nonfinite.clear_last(cta)

    @marked("latent tensor rings: keys")
    def load_keys(self, cta: Cta, row: Value) -> None:
        """Start the copies of the slabs of the tile of K whose first key is `row`."""
        for column in range(0, self.score_columns, SLAB):
            with self.keys.fill() as stage:
                self.k.tma.load(stage.k, self.corners("K", cta, row, column))

    @property
    def score_columns(self) -> int:
        """The number of columns of K, padding included, that S = Q Kᵀ sums over."""
        return self.queries.tile("q").columns


class GatheredLatentTensorPipeline(GatheredPipeline, LatentTensorPipeline):
    """See `LatentTensorPipeline`; threads copy the rows of K and V one by one."""

    @marked("latent tensor rings: gather")
    def load(self, cta: Cta) -> None:
        """See `TmaPipeline`."""
        k, last = self.k, self.score_columns - SLAB
        self.load_queries(cta)
        assert isinstance(cta.K, PagedMatrix)  # rows are gathered from pages
        assert isinstance(cta.V, PagedMatrix)
        keys = Copier(k, self.producer, cta.K, self.keys.tile("k"), last)
        values = Copier(k, self.producer, cta.V, self.values.tile("v"))
        lookup = Lookup(k, keys, self.first_key(-cta.tiles), ahead=not cta.mask.has_gaps)
        with self.each_tile(cta) as (n, row):
            self._clear_tile_before(cta, n)
            rows = lookup.rows(row)
            for column in range(0, last + SLAB, SLAB):
                with self.keys.gather() as stage:
                    keys.copy(stage.k, rows, column)
            with self.clearing(cta, row, False) as hides, self.values.gather(reworked=hides) as stage:
                values.copy(stage.v, rows)
        self.end_loads(cta)
