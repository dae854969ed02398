"""Scales of blocks of rows of Q, K and V of fp8 (`AttentionConfig.scale_block`). The rows of a warpgroup have
one of Q, and the keys of a tile have one of K and one of V: the first two are part of the softmax's scale,
the last multiplies what a tile adds to O. Where the sums of O stay in tensor memory, it is their unit.
"""

from __future__ import annotations

from typing import Final

from flash.device.cta import Cta
from flash.device.lazy_softmax import LEAST_SCALE
from flash.device.parameters import Parameters, ScoreArray
from flash.problem.features import SCALES
from flash.problem.kernel_config import KernelConfig
from flash.scores.scoring import Scoring
from ptxgen.dsl import Fragment, KernelBuilder, Pointer, Value
from ptxgen.records import dataclass
from ptxgen.types import f32, u32, u64

LEAST_UNIT: Final = 2.0**-100


@dataclass(frozen=True)
class TileScales:
    """The fp8 scales of K and of V for a tile of keys, f32."""

    keys: Value
    values: Value


@dataclass(frozen=True)
class _OfHead:
    """The scales of the blocks of a head of K or V. The stride in bytes is computed once, so that an address
    takes two instructions of a tile.
    """

    first: Value  # address, u64
    step_bytes: Value  # u64

    @classmethod
    def of(cls, array: ScoreArray) -> _OfHead:
        """The scales of a head: `array` has one axis, that of the blocks."""
        (stride,) = array.strides.values()
        return cls(array.first, (stride * array.dtype.nbytes).as_(u64))

    def load(self, k: KernelBuilder, block: Value) -> Value:
        """The f32 scale of the rows of block number `block` (u32)."""
        at = self.first + k.cvt(block, dtype=u64) * self.step_bytes
        return k.ld_nc(Pointer(at, "global", f32), type=f32)


def last_block(cta: Cta, rows: int) -> Value:
    """The index, u32, of the last block of `rows` rows of K and V."""
    return ((cta.K.rows - 1) // rows).as_(u32)


def scale_of_key(k: KernelBuilder, cta: Cta, v_scale: ScoreArray, rows: int, key: Value) -> Value:
    """The scale of the row of V of a key: that of its block of `rows` rows, or with 0 that of the head."""
    if not rows:
        return v_scale.of_sequence(k, cta.kv_head)
    return v_scale.of_sequence(k, cta.kv_head, k.min(key.as_(u32) // rows, last_block(cta, rows)))


def _block_of(k: KernelBuilder, tile: Value, tiles: int, last: Value) -> Value:
    """The index, u32, of the block of a tile of keys, of which a block has `tiles`."""
    block = tile.as_(u32)
    if tiles > 1:
        block = block // tiles
    return k.min(block, last)  # it is no more: the minimum states it for the proof


class ValueUnits:
    """The units of O while a kernel adds values of a tile of keys to it: the scale of V of the tile's block
    of rows. A scale whose magnitude is below `LEAST_UNIT` counts as `LEAST_UNIT`, by which O can be divided.
    """

    def __init__(self, k: KernelBuilder, config: KernelConfig, parameters: Parameters, cta: Cta) -> None:
        self.k = k
        rows = config.features.scale_block
        self._tiles, self._last = rows // config.tiling.tile, last_block(cta, rows)
        self._values = _OfHead.of(parameters.operands["v_scale"].part(k, cta.batch).part(k, cta.kv_head))

    def of_tile(self, number: Value) -> Value:
        """The unit for weights of key tile `number`: its fp8 scale of V, but at least `LEAST_UNIT`."""
        k = self.k
        scale = self._values.load(k, _block_of(k, number, self._tiles, self._last))
        return k.selp(LEAST_UNIT, scale, k.abs(scale) < LEAST_UNIT)


class BlockScales:
    """The scales of the rows of Q of a warpgroup, from `first_row` on, and of the keys of each tile."""

    def __init__(
        self, k: KernelBuilder, config: KernelConfig, parameters: Parameters, cta: Cta, first_row: Value
    ) -> None:
        self.k = k
        rows = config.features.scale_block
        self._tiles = rows // config.tiling.tile
        of_queries, *of_keys = (parameters.operands[name].part(k, cta.batch) for name in SCALES)
        last = k.min(first_row, cta.O.rows - 1)  # all rows of a warpgroup may be after the last one
        queries = of_queries.of_sequence(k, cta.head, last // rows)
        self._scale_log2 = cta.scale_log2 * queries
        self._scoring = None if cta.scoring is None else cta.scoring.times(queries)
        self._last = last_block(cta, rows)
        self._keys, self._values = (_OfHead.of(of.part(k, cta.kv_head)) for of in of_keys)
        # What the softmax multiplies the products of a tile with, in units of log2, if there is no scoring.
        self.scale = k.var(f32, LEAST_SCALE)

    def of_tile(self, number: Value) -> TileScales:
        """The fp8 scales of K and V for tile `number` of the keys, f32."""
        k, block = self.k, _block_of(self.k, number, self._tiles, self._last)
        return TileScales(self._keys.load(k, block), self._values.load(k, block))

    def take(self, S: Fragment, scales: TileScales) -> Scoring | None:
        """The scoring of the products of a tile, with its scales. Without a scoring returns None and sets
        `scale` for these products. The softmax takes a positive scale: if it is negative, the products are
        negated.
        """
        k = self.k
        if self._scoring is not None:
            return self._scoring.times(scales.keys)
        scale = self._scale_log2 * scales.keys
        self.scale.set(k.max(k.abs(scale), LEAST_SCALE))
        with k.when(scale < 0.0):
            for product in S.all():
                k.neg(product, into=product)
        return None
