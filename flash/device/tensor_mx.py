"""Scales of blocks of Q, K and V on their way to tensor memory, where products take them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, Final

from flash.device.cta import Cta
from flash.device.fp8_scales import last_block
from flash.device.parameters import ScoreArray
from flash.device.tensor_fp8 import Fp8Correction, Fp8RowTiles, Fp8TensorPipeline
from flash.families.tcgen05 import TCGEN05_ROWS
from flash.families.tcgen05_mx import CELL, Tcgen05MxTiling
from flash.families.wgmma import WgmmaTiling
from flash.operands.dtypes import MX_BLOCK
from flash.problem.features import SCALES
from ptxgen.dsl import Pointer, Role, Value, marked
from ptxgen.dsl.hopper import BoxTile, Ring
from ptxgen.types import u8, u32, u64

_LANES: Final = 32  # words of rows this far apart are neighbours
_PLACES: Final = TCGEN05_ROWS // _LANES
_BITS: Final = 8  # of a scale


class MxTensorPipeline(Fp8TensorPipeline):
    """See `Fp8TensorPipeline`. The threads that load copy scales to rings of their own, in the order of
    the tiles: a row of 128 words for 128 rows of a product, as `Scales.copy` takes it. `units` is a tile of
    scales of 1, those of weights.
    """

    query_scales: Ring  # a tile for each row tile
    key_scales: Ring
    value_scales: Ring
    units: BoxTile

    def declare(self, t: WgmmaTiling, consumer: Role) -> None:
        """See `TmaPipeline`."""
        super().declare(t, consumer)
        assert isinstance(t, Tcgen05MxTiling)  # of the family
        ring = functools.partial(self.k.tma.ring, written=True, released_by=self.memory)
        of_rows, of_values = ((cells, TCGEN05_ROWS) for cells in (t.row_cells, t.value_cells))
        of_queries: dict[str, Any] = {query_tile(i): (of_rows, u32, "none") for i in range(t.row_tiles)}
        self.query_scales = ring(1, self.producer, consumer, **of_queries)
        self.key_scales = ring(t.stages, self.producer, consumer, k=(of_rows, u32, "none"))
        self.value_scales = ring(t.stages, self.producer, consumer, v=(of_values, u32, "none"))
        self.units = self.k.tma.tile("units", (1, TCGEN05_ROWS), u32, swizzle="none")
        self.row_tiles = t.row_tiles

    @marked("mx rings: queries")
    def load_queries(self, cta: Cta) -> None:
        """See `TmaPipeline`."""
        super().load_queries(cta)
        with self.query_scales.write() as stage:
            for i in range(self.row_tiles):
                rows = cta.O.rows
                first = cta.first_row + i * TCGEN05_ROWS
                self._copy_rows(getattr(stage, query_tile(i)), SCALES[0], cta, (first, rows))

    @marked("mx rings: keys")
    def load_keys(self, cta: Cta, row: Value) -> None:
        """See `TmaPipeline`."""
        super().load_keys(cta, row)
        with self.key_scales.write() as stage:
            self._copy_rows(stage.k, SCALES[1], cta, (row, cta.K.rows))

    @marked("mx rings: values")
    def load_values(self, cta: Cta, row: Value, follows: Value | bool = False) -> None:
        """See `TmaPipeline`."""
        super().load_values(cta, row, follows)
        k = self.k
        array, last = self._of_head(SCALES[2], cta), last_block(cta, MX_BLOCK)
        first = row.as_(u32) // MX_BLOCK
        blocks = [array.row(k, k.min(first + i, last)) for i in range(self.tile // MX_BLOCK)]
        columns = self.config.tiling.head_dim_v
        with self.value_scales.write() as stage:

            def of(column: Value) -> list[Value]:
                place = k.cvt(k.min(column, columns - 1), dtype=u64)
                return [block + place for block in blocks]

            for cell in range(stage.v.rows):
                self._store(stage.v, cell, cell * TCGEN05_ROWS, of)

    def _copy_rows(self, tile: BoxTile, name: str, cta: Cta, rows: tuple[Value, Value]) -> None:
        """Copy the scales of 128 rows of Q or K, from the first of `rows` on; the second is their number, and
        rows after the last have its scales.
        """
        k, (first, count), array = self.k, rows, self._of_head(name, cta)
        groups, last = self.config.tiling.head_dim // MX_BLOCK, (count - 1).as_(u32)
        for cell in range(tile.rows):

            def of(row: Value, cell: int = cell) -> list[Value]:
                at = array.row(k, k.min((first + k.signed(row)).as_(u32), last))
                return [at + group for group in range(cell * CELL, min((cell + 1) * CELL, groups))]

            self._store(tile, cell, 0, of)

    @marked("mx rings: scales")
    def _store(self, tile: BoxTile, cell: int, first: int, of: Callable[[Value], Sequence[Value]]) -> None:
        """Store the scales of 128 rows, from `first` on, and of four blocks to a row of a tile: `of` gives
        the addresses of those of a row.
        """
        k, role = self.k, self.producer
        words = []
        for begin in range(0, TCGEN05_ROWS, role.threads):
            word = role.thread + begin
            row = word % _PLACES * _LANES + word // _PLACES + first
            scales = [k.cvt(k.ld_nc(Pointer(at, "global", u8), type=u8), dtype=u32) for at in of(row)]
            words.append((word, scales))
        for word, scales in words:
            shifted = [scale << _BITS * i if i else scale for i, scale in enumerate(scales)]
            k.store(tile.pointer(cell, word), functools.reduce(operator.or_, shifted))

    def _of_head(self, name: str, cta: Cta) -> ScoreArray:
        """The scales of the head of a CTA, by rows, or by blocks of keys."""
        head = cta.head if name == SCALES[0] else cta.kv_head
        return self.parameters.operands[name].part(self.k, cta.batch).part(self.k, head)


def query_tile(i: int) -> str:
    """The name of the tile with the scales of row tile `i` of Q."""
    return f"q{i}"


class MxRowTiles(Fp8RowTiles):
    """See `Fp8RowTiles`; products have all scales."""

    def _weigh_outputs(self, cta: Cta, inverse: Value) -> Value:  # noqa: ARG002
        """See `Fp8RowTiles`."""
        return inverse


class MxCorrection(Fp8Correction):
    """See `Fp8Correction`; products have all scales."""

    def _v_scale(self, cta: Cta) -> ScoreArray | None:  # noqa: ARG002
        """See `Correction`: NaN and infinity are the same with any scale."""
        return None
