"""Warps that own the same rows and have different columns of all matrices: their products of Q and K, and of
dO and V, are sums over these columns alone, which they add through shared memory.

So a warp reads no columns of other warps, and its registers hold the gradients of its own columns alone.
Each warp adds the sums of all in the same order, so that all have the same weights.
"""

from __future__ import annotations

import functools
import operator
from typing import Final

from flash.device.mma_products import Tiles, WarpCoordinates, WarpProducts
from flash.problem.gradients import GradientConfig
from ptxgen.dsl import Fragment, KernelBuilder, Value
from ptxgen.target import WARP_SIZE
from ptxgen.types import f32

_WORDS: Final = 4  # f32 of the widest access


class ColumnWarps:
    """The warps of a CTA that have the same rows. `rows` are the coordinates of this warp among those with
    different rows, and `number` (u32) says which columns it has.
    """

    def __init__(self, k: KernelBuilder, config: GradientConfig) -> None:
        me = WarpCoordinates.of(k)
        self.k, self._count, self._warp = k, config.mma.column_warps, me.warp
        self.rows = WarpCoordinates(me.warp // self._count, me.lane)
        self.number = me.warp % self._count
        sums = config.mma.partial_sums
        self._sums = k.shared("partial_sums", (config.mma.warps, sums), f32)

    @classmethod
    def of(cls, k: KernelBuilder, config: GradientConfig) -> ColumnWarps | None:
        """The warps that share rows of a CTA; None if each warp has all columns of its rows."""
        return cls(k, config) if config.mma.column_warps > 1 else None

    def parts(self, tiles: Tiles) -> Tiles:
        """The tiles cut to the columns that this warp takes."""
        first, second, third = (tile.part(self.number, self._count) for tile in tiles)
        return first, second, third

    def add_up(self, S: Fragment, *, awaits_readers: bool) -> None:
        """Make S, a warp's sums over its own columns, those over the columns of all. `awaits_readers`: other
        sums may still be read, because no barrier came after they were added up.
        """
        k, values = self.k, list(S.all())
        mine = self._sums.pointer(self._warp, self.rows.lane * _WORDS)
        begins = range(0, len(values), _WORDS)
        if awaits_readers:
            k.barrier()
        for n in begins:
            k.store(mine.step(columns=n * WARP_SIZE), values[n : n + _WORDS])
        k.barrier()  # all sums have been written
        first = self._sums.pointer(self.rows.warp * self._count, self.rows.lane * _WORDS)
        for n in begins:
            parts = [k.load(first.step(rows=i, columns=n * WARP_SIZE), _WORDS) for i in range(self._count)]
            for value, *of_warps in zip(values[n : n + _WORDS], *parts, strict=True):
                value.set(functools.reduce(operator.add, of_warps))


class SummedProducts:
    """`products` of the columns of each of `warps`, whose scores are those of all columns; see
    `flash.device.mma_products.WarpProducts`. `awaits_readers` is as in `ColumnWarps.add_up`.
    """

    def __init__(self, products: WarpProducts, warps: ColumnWarps, *, awaits_readers: bool) -> None:
        self._products, self._warps, self._awaits_readers = products, warps, awaits_readers
        self.weights, self.outputs = products.weights, products.outputs
        self.output_address, self.output_words = products.output_address, products.output_words

    def scores(self, S: Fragment, stage: Value | None) -> None:
        """Compute the scores S = Q Kᵀ for this warp's rows and the keys of a pipeline stage."""
        self._products.scores(S, stage)
        self._warps.add_up(S, awaits_readers=self._awaits_readers)
