"""Tiles of f32 in the layout of tensor copies that become pairs of f16 for `wgmma`, where they are.

What a pair is, `flash/device/split_tile.py` says. A tile of f32 has slabs of 32 columns, and one of f16
slabs of 64 columns that have as many bytes. So the high parts of a tile take its first slabs, and the low
parts the others: a thread reads a chunk of four elements in a slab of the first half and the chunk at the
same position in the second half, and writes the high parts of these eight elements to the one and their low
parts to the other. No thread writes what another one reads.

This permutes columns. Products of Q and K do not notice, since both are permuted alike;
columns of O are put back where O is written.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from flash.device.split_tile import split_rows
from flash.device.stored_sums import LaneColumns
from ptxgen.dsl import KernelBuilder, Pointer, Role, TilePointer, Value, marked
from ptxgen.dsl.hopper import Accumulator, BoxTile, Layout
from ptxgen.dsl.hopper.products import Operand
from ptxgen.dsl.matrices.lanes import FRAGMENT_STEP, LANE_COLUMNS
from ptxgen.dsl.swizzle import CHUNK_BYTES
from ptxgen.records import dataclass
from ptxgen.types import ScalarType, f16, f32, s32, u32

_SWIZZLE: Final = "128B"
_CHUNKS: Final = 8  # of a row of a slab
_ELEMENTS: Final = CHUNK_BYTES // f32.nbytes  # of a chunk of f32
_WORDS_AT_ONCE: Final = 16  # in flight


class SplitBoxes:
    """Splits the rows of tiles with `rows` rows, in one of `stages` stages of shared memory. `factors` has
    for each stage an f32 for each row, by which sums of its products are to be multiplied: 1, unless `scales`
    says otherwise.
    """

    @marked("split boxes: flags")
    def __init__(self, k: KernelBuilder, name: str, rows: int, stages: int) -> None:
        self.k = k
        self.factors = k.shared(f"{name}_factors", (stages, rows), f32)
        self._flags = k.shared(f"{name}_flags", (1, stages), u32)
        with k.when(k.thread_id() == 0):
            for stage in range(stages):
                k.store(self._flags.pointer(0, stage), 0)

    @marked("split boxes: scales")
    def scales(self, mark: Value | int, stage: Value | int = 0) -> Value:
        """Whether a row of the tile split with this mark, in this stage, has a factor other than 1."""
        return self.k.load(self._flags.pointer(0, stage)) == mark

    def split(
        self,
        tile: BoxTile,
        team: tuple[Value, int],
        mark: Value | int,
        stage: Value | int = 0,
        not_finite: Callable[[], object] | None = None,
    ) -> None:
        """Split a thread's part of a tile whose copies have arrived. `team` are the thread's number, u32, and
        how many threads split the tile, together. `mark`, u32, tells the tile from those before it in this
        stage and is not 0. With `not_finite`, NaN and infinity become 0, and `not_finite()` emits the code
        for threads that have set one to 0.
        """
        k, (thread, threads) = self.k, team
        at_once = threads // _CHUNKS
        rows = _Rows.of(tile, thread, at_once)
        iterations = tile.rows // at_once
        step = math.gcd(iterations, max(1, _WORDS_AT_ONCE // (_ELEMENTS * tile.layout.slabs)))
        first = self.factors.pointer(stage, rows.row)
        flag = self._flags.pointer(0, stage)

        def factor_at(pointer: TilePointer, iteration: int) -> Pointer:
            return pointer.plus_bytes(iteration * at_once * f32.nbytes)

        def split(part: _Rows, pointer: TilePointer) -> None:
            here = functools.partial(factor_at, pointer)
            split_rows(k, part, step, here, lambda: k.store(flag, mark), not_finite)

        if iterations == step:
            split(rows, first)
            return
        with k.loop(0, iterations // step, type=u32) as n:
            down = n * (step * at_once)
            split(rows.down(down), first.moved(first.value + down * f32.nbytes))


@dataclass(frozen=True)
class _Rows:
    """A thread's elements in row `row` of a tile, and in every `at_once`-th from there on: chunk `chunk` of
    each slab, that of the first at `pointer`.
    """

    tile: BoxTile
    at_once: int
    row: Value
    chunk: Value
    pointer: TilePointer

    @classmethod
    @marked("split boxes: rows")
    def of(cls, tile: BoxTile, thread: Value, at_once: int) -> _Rows:
        """The rows of a thread, of which eight neighbours have one row together."""
        row, chunk = thread // _CHUNKS, thread % _CHUNKS
        return cls(tile, at_once, row, chunk, tile.pointer(row, chunk * _ELEMENTS))

    def down(self, rows: Value) -> _Rows:
        """The thread's rows moved down in the tile by `rows`, a multiple of eight."""
        pointer = self.pointer.moved(self.pointer.value + rows * self.tile.layout.row_bytes)
        return replace(self, row=self.row + rows, pointer=pointer)

    def elements(self, iteration: int) -> list[Value]:
        """See `RowsToSplit`: chunk by chunk, those of the two halves of the slabs alternately."""
        result: list[Value] = []
        for nth in range(self.tile.layout.slabs // 2):
            for half in range(2):
                result += self.tile.k.load(self._at(iteration, nth, half, f32), _ELEMENTS)
        return result

    def store(self, iteration: int, words: Sequence[tuple[Value, Value]]) -> None:
        """See `RowsToSplit`."""
        for nth in range(self.tile.layout.slabs // 2):
            of_two_chunks = words[nth * _ELEMENTS : (nth + 1) * _ELEMENTS]
            for half, parts in enumerate(zip(*of_two_chunks, strict=True)):
                self.tile.k.store(self._at(iteration, nth, half, u32), [part.as_(u32) for part in parts])

    def _at(self, iteration: int, nth: int, half: int, dtype: ScalarType) -> Pointer:
        """The chunk in slab `nth` of a half of the slabs, in the row of an iteration."""
        layout = self.tile.layout
        slab = nth + half * (layout.slabs // 2)
        at = self.pointer.plus_bytes(slab * layout.slab_bytes + iteration * self.at_once * layout.row_bytes)
        return Pointer(at.value, "shared", dtype, at.offset)


def halves(tile: BoxTile, rows: tuple[Value | int, int] | None = None) -> tuple[Operand, Operand]:
    """The matrices of the high and of the low parts of a tile that has been split, or of some of its rows:
    the first, and how many.
    """
    layout = Layout.of(tile.name, (tile.rows, 2 * tile.columns), f16, _SWIZZLE)
    pairs = BoxTile(tile.k, tile.name, layout, tile.slab(0), tile.owner)
    of_each = layout.slabs // 2
    both = pairs.part(*(rows or (0, tile.rows)))
    return both.slabs(0, of_each), both.slabs(of_each, of_each)


@dataclass(frozen=True)
class SplitOutputs:
    """The sums of a product with values that were split, of the rows from `row` (u32) of the CTA on.
    `in_quad` is the thread's number among those that share its rows. Of eight columns of high parts, the
    first four are neighbours in V, and so are the last four, half a row further on.
    """

    sums: Accumulator
    role: Role
    row: Value
    in_quad: Value

    @marked("split boxes: rows of O")
    def write(self, tile: BoxTile) -> None:
        """See `Outputs`; the tile is of f32."""
        self.role.barrier.sync()  # O may lie where rows of Q of another warpgroup were
        self._write(tile)

    def _write(self, tile: BoxTile) -> None:
        layout, first = tile.layout, self.sums.row + self.row
        column = self._first_column(tile.columns)
        across = layout.slab_columns // _ELEMENTS
        for within in range(across):
            at = tile.pointer(first, column + within * _ELEMENTS)
            for down, numbers in enumerate(self.sums.rows_of_thread):
                for slab in range(layout.slabs // 2):
                    n = LANE_COLUMNS * (slab * across + within)
                    to = at.plus_bytes(slab * layout.slab_bytes + down * FRAGMENT_STEP * layout.row_bytes)
                    pair = numbers[n : n + LANE_COLUMNS]
                    tile.k.store(Pointer(to.value, "shared", f32, to.offset), pair)

    def lane_columns(self, width: int) -> LaneColumns:
        """See `Outputs`."""
        half = self.sums.columns // 2
        pairs = -(-min(width, half) // _ELEMENTS)
        return LaneColumns(self._first_column(self.sums.columns).as_(s32), pairs, _ELEMENTS, half + _ELEMENTS)

    def _first_column(self, columns: int) -> Value:
        """The column of the lane's first sum, of `columns` columns."""
        return (self.in_quad % 2) * LANE_COLUMNS + (self.in_quad // 2) * (columns // 2)


def columns_of_chunks(columns: int) -> list[int]:
    """The first column, in the matrix of high parts of a tile that has been split, of each four neighbouring
    columns of the tile.
    """
    half = columns // 2
    return [2 * (first % half) + _ELEMENTS * (first // half) for first in range(0, columns, _ELEMENTS)]
