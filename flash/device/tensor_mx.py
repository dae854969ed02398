"""Scales of blocks of Q, K and V on their way to tensor memory, where products take them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, Final

from flash.device.cta import Cta
from flash.device.fp8_scales import last_block
from flash.device.parameters import Array, ScoreArray
from flash.device.tensor_fp8 import Fp8Correction, Fp8RowTiles, Fp8TensorPipeline
from flash.device.tiles import Matrix
from flash.families.tcgen05 import TCGEN05_ROWS
from flash.families.tcgen05_mx import CELL, Tcgen05MxTiling
from flash.families.wgmma import WgmmaTiling
from flash.operands.dtypes import MX_BLOCK
from flash.problem.features import K_BLOCKS, SCALES
from ptxgen.dsl import Pointer, Role, Value, marked
from ptxgen.dsl.hopper import BoxTile, Ring
from ptxgen.types import u8, u32, u64

_LANES: Final = 32  # words of rows this far apart are neighbours
_PLACES: Final = TCGEN05_ROWS // _LANES
_BITS: Final = 8  # of a scale
Words = list[tuple[int, Value, list[Value]]]  # cells, words in them, and the scales in these


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
        self.blocks = t.blocks
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
        rows = cta.in_queries(self.k, self._array(SCALES[0]))
        row_of = self._among(None, (cta.O.rows - 1).as_(u32), None)
        firsts = (cta.first_row + i * TCGEN05_ROWS for i in range(self.row_tiles))
        words = [self._of_rows(rows, first, row_of) for first in firsts]
        with self.query_scales.write() as stage:
            for i, of_tile in enumerate(words):
                self._store(getattr(stage, query_tile(i)), of_tile)

    @marked("mx rings: keys")
    def load_keys(self, cta: Cta, row: Value) -> None:
        """See `TmaPipeline`."""
        super().load_keys(cta, row)
        rows = cta.in_keys(self.k, self._array(SCALES[1]))
        row_of = self._among(cta.keys_from, (cta.K.rows - 1).as_(u32), self.parameters.seq_k.as_(u32))
        words = self._of_rows(rows, row, row_of)
        with self.key_scales.write() as stage:
            self._store(stage.k, words)

    @marked("mx rings: values")
    def load_values(self, cta: Cta, row: Value, follows: Value | bool = False) -> None:
        """See `TmaPipeline`."""
        super().load_values(cta, row, follows)
        k, begin = self.k, cta.keys_from
        if begin is not None:
            begin = begin // MX_BLOCK + cta.batch
        row_of = self._among(begin, last_block(cta, MX_BLOCK), self.parameters.numbers.get(K_BLOCKS))
        rows, first = cta.in_keys(k, self._array(SCALES[2]), MX_BLOCK), row.as_(u32) // MX_BLOCK
        blocks = [rows.row(k, row_of(first + i)) for i in range(self.tile // MX_BLOCK)]
        columns = self.config.tiling.head_dim_v

        def of(column: Value) -> Callable[[int], list[Value]]:
            def of_cell(cell: int) -> list[Value]:
                right = k.cvt(k.min(column + cell * TCGEN05_ROWS, columns - 1), dtype=u64)
                return [block + right for block in blocks]

            return of_cell

        words = self._words(self.value_scales.tile("v").rows, of)
        with self.value_scales.write() as stage:
            self._store(stage.v, words)

    def _among(self, begin: Value | None, last: Value, count: Value | None) -> Callable[[Value], Value]:
        """A function that gives the row of an array of a row or block of a sequence, of which the last one is
        `last`; u32. Of packed sequences the first one is row `begin` of `count`.
        """
        k = self.k
        if begin is None or count is None:
            return lambda row: k.min(row, last)
        # It is no row of another sequence: the minimum states for the proof that it exists.
        return lambda row: k.min(begin.as_(u32) + k.min(row, last), count - 1)

    def _of_rows(self, rows: Matrix, first: Value, row_of: Callable[[Value], Value]) -> Words:
        """The scales of 128 rows of Q or K of a sequence, from row `first` on; `row_of` is of `_among`."""
        k, groups = self.k, self.config.tiling.head_dim // self.blocks.size

        def of(row: Value) -> Callable[[int], list[Value]]:
            at = rows.row(k, row_of((first + k.signed(row)).as_(u32)))
            return lambda cell: [at + group for group in range(cell * CELL, min((cell + 1) * CELL, groups))]

        return self._words(self.key_scales.tile("k").rows, of)

    @marked("mx rings: load scales")
    def _words(self, cells: int, of: Callable[[Value], Callable[[int], Sequence[Value]]]) -> Words:
        """The words with the scales of `cells` times 128 rows that this thread stores, before it waits for
        memory to store them to: `of` gives for a row a function of the cell that gives the addresses of its
        scales.
        """
        k, role = self.k, self.producer
        words = []
        for begin in range(0, TCGEN05_ROWS, role.threads):
            word = role.thread + begin
            of_cell = of(word % _PLACES * _LANES + word // _PLACES)
            for cell in range(cells):
                scales = [
                    k.cvt(k.ld_nc(Pointer(at, "global", u8), type=u8), dtype=u32) for at in of_cell(cell)
                ]
                words.append((cell, word, scales))
        return words

    @marked("mx rings: store scales")
    def _store(self, tile: BoxTile, words: Words) -> None:
        """Store 32-bit words with scale factors to a tile in shared memory."""
        for cell, word, scales in words:
            shifted = [scale << _BITS * i if i else scale for i, scale in enumerate(scales)]
            at = tile.pointer(cell, word)
            self.k.store(at, functools.reduce(operator.or_, shifted) if shifted else 0)

    def _array(self, name: str) -> Array:
        """The array of scale factors whose rows lie as those of Q, K or V do."""
        return self.parameters.operands[name].rows


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
