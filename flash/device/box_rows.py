"""Rows of a tile in the layout of tensor copies, moved by threads: where the rows of a tile are no
neighbours in global memory, or where only some of them may be written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final

from flash.device.team import Team
from flash.device.tiles import Matrix
from ptxgen.dsl import KernelBuilder, Pointer, TilePointer, Value
from ptxgen.dsl.hopper import BoxTile
from ptxgen.types import b16, u32, u64

_CHUNK: Final = 16  # bytes that a thread moves at once
_WORDS: Final = _CHUNK // u32.nbytes


@dataclass(frozen=True)
class _Share:
    """A chunk of this thread: where it is in the tile and in global memory, and whether it is in the
    matrix.
    """

    pointer: TilePointer
    at: Pointer
    exists: Value


class BoxRows:
    """The rows of `tile`, dealt to the threads of a team in chunks of 16 bytes: neighbouring threads have
    neighbouring chunks of a row. Rows of the matrix begin at multiples of 16 bytes.
    """

    def __init__(self, k: KernelBuilder, team: Team, tile: BoxTile) -> None:
        self.k = k
        self.tile = tile
        self._elements = _CHUNK // tile.layout.dtype.nbytes  # of a chunk
        chunks = tile.layout.slab_columns // self._elements
        self._rows_at_once = team.threads(k) // chunks  # a multiple of the 8 rows of a swizzle
        thread = team.thread(k)
        self._row = thread // chunks
        self._column = thread % chunks * self._elements

    def load(self, matrix: Matrix, first_row: Value) -> None:
        """Start copying rows of a matrix, from `first_row` on, to the tile. Rows and columns that the matrix
        does not have become zero. The copies are asynchronous (`cp.async`).
        """
        k = self.k
        for at in self._beyond(matrix):
            k.store(at, [0] * _WORDS)
        for share in self._shares(matrix, first_row):
            k.copy_async(share.pointer, share.at, _CHUNK, k.selp(_CHUNK, 0, share.exists, type=u32))

    def store(self, matrix: Matrix, first_row: Value) -> None:
        """Store the rows of the tile that the matrix has, to its rows from `first_row` on."""
        k = self.k
        for share in self._shares(matrix, first_row):
            pointer = share.pointer
            words = k.load(Pointer(pointer.value, "shared", u32, pointer.offset), _WORDS)
            with k.when(share.exists):
                k.store(Pointer(share.at.value, "global", u32, share.at.offset), list(words))

    def _beyond(self, matrix: Matrix) -> Iterator[Pointer]:
        """The pointers to this thread's chunks in slabs of which the matrix has no column."""
        layout = self.tile.layout
        empty = range(-(-matrix.columns // layout.slab_columns), layout.slabs)
        if not empty:
            return
        first = self.tile.pointer(self._row, self._column)
        for slab, down in product(empty, range(0, layout.rows, self._rows_at_once)):
            at = first.plus_bytes(slab * layout.slab_bytes + down * layout.row_bytes)
            yield Pointer(at.value, "shared", u32, at.offset)

    def _shares(self, matrix: Matrix, first_row: Value) -> Iterator[_Share]:
        """The chunks of 16 bytes that this thread copies, one in each slab of each of its rows."""
        k, layout = self.k, self.tile.layout
        first = self.tile.pointer(self._row, self._column)
        along = k.cvt(self._column * layout.dtype.nbytes, dtype=u64)
        for down in range(0, layout.rows, self._rows_at_once):
            row = first_row + k.signed(self._row + down)
            start = matrix.row(k, row) + along
            for slab in range(layout.slabs):
                left = matrix.columns - slab * layout.slab_columns
                if left <= 0:
                    continue
                exists = row < matrix.rows
                if left < layout.slab_columns:
                    exists = exists & (self._column < left)
                yield _Share(
                    first.plus_bytes(slab * layout.slab_bytes + down * layout.row_bytes),
                    Pointer(start, "global", b16, slab * layout.row_bytes),
                    exists,
                )
