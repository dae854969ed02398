"""Tiles of Q and K on their way to shared memory by tensor copies where V is columns of K."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, ClassVar

from flash.device.cta import Cta
from flash.device.nonfinite import NonFinite, hides_rows
from flash.device.shared_rows_softmax import Exchange
from flash.device.wgmma_rings import Rings, declared_maps, declared_queries
from flash.problem.kernel_config import KernelConfig
from flash.problem.tensor_maps import layout_of
from flash.problem.wgmma_tiling import WGMMA_ROWS, WgmmaTiling
from ptxgen.dsl import KernelBuilder, Role, SharedTile
from ptxgen.dsl.hopper import BoxTile
from ptxgen.records import dataclass

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True)
class LatentRings(Rings):
    """The tensor maps and rings of a kernel in which V is columns of K. `values` is the same ring as `keys`:
    a tile is loaded once, for both products. Both warpgroups that compute have the same rows, and each has
    the scores of half of the keys of a tile. They exchange weights through `weights`, which has 64 rows for
    each of them, and maxima and sums of rows through `numbers`.
    """

    clears_copies: ClassVar[bool] = False  # consumers clear tiles, which they also read as K

    odd: NonFinite | None
    weights: BoxTile
    numbers: SharedTile  # see `Exchange`

    @classmethod
    def declare(
        cls, k: KernelBuilder, config: KernelConfig, t: WgmmaTiling, producer: Role, consumer: Role
    ) -> Self:
        """Declare the tensor maps, behind the other parameters, and the rings."""
        maps = declared_maps(k, config)
        keys, out = (layout_of(t, config.dtype, array) for array in "KO")
        queries, over = declared_queries(k, config, t, producer, consumer)
        ring = k.tma.ring(t.stages, producer, consumer, k=keys)
        merged = config.features.splits
        leaves = None if merged else k.tma.tile("out", out.shape, out.dtype, swizzle=out.swizzle, over=over)
        shape = (t.consumers * WGMMA_ROWS, t.keys_of_consumer)
        weights = k.tma.tile("P_tile", shape, config.dtype.scalar)
        numbers = Exchange.room(k, WGMMA_ROWS)
        odd = NonFinite(k, config) if hides_rows(config) else None
        return cls(maps, queries, ring, ring, leaves, t.tile, odd, weights, numbers)

    def fill(self, k: KernelBuilder, cta: Cta) -> None:
        """The producer's part: the queries of the CTA, and its tiles of keys from the last to the first,
        but for those that no query sees.
        """
        self._fill_queries(k, cta)
        with k.loop(-cta.tiles, 0 if cta.first_tile is None else -cta.first_tile) as n:
            row = self.first_key(n)
            seen = cta.mask.sees_tile(row) if cta.mask.has_gaps else None
            with nullcontext() if seen is None else k.when(seen, uniform=True), self.keys.fill() as stage:
                k.tma.load(stage.k, self.places(k, "K", cta, row))
