"""Tiles in shared memory that `ldmatrix` and 16-byte accesses read and write without bank
conflicts.

The columns of a tile lie in panels, each with its rows one after another. A row of a panel is 8, 4
or 2 chunks of 16 bytes (64, 32 or 16 columns of 16 bits); chunk `c` of row `r` lies where chunk
`c ^ phase(r)` would, with `phase(r) = r / (8 / chunks) % chunks`. So one chunk of eight consecutive
rows lies in eight different groups of four banks. These are the 128-, 64- and 32-byte swizzles of
TMA and `wgmma` (PTX ISA, "Swizzling Modes"; FlashAttention-2 calls the first `Swizzle<3, 3, 3>`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Final

from ptxgen.dsl.control import Control
from ptxgen.dsl.tiles import SharedTile, TilePointer, require_row_and_column
from ptxgen.dsl.values import Scalar, Value
from ptxgen.errors import ConfigError, TypeMismatchError, shown
from ptxgen.records import dataclass
from ptxgen.types import ScalarType, u32

CHUNK_BYTES: Final = 16  # bytes of the widest access
BLOCK_CHUNKS: Final = 2  # chunks that one `ldmatrix` of two by two 8 x 8 matrices of b16 spans
SWIZZLE_ROWS: Final = 8  # rows after which the phases repeat
_PANELS: Final = (8, 4, 2)  # chunks in a row of a panel, the widest first
ALIGNMENT: Final = 128  # bytes of the widest panel's rows: xor then moves within a row


@dataclass(frozen=True, slots=True)
class Panel:
    """Some columns of a tile: `chunks` chunks of each row, from chunk `first` of that row on."""

    first: int
    chunks: int
    offset: int  # bytes, in a stage of the tile

    @property
    def row_bytes(self) -> int:
        """The bytes from one row of the panel to the next."""
        return self.chunks * CHUNK_BYTES


def panels_of(rows: int, row_bytes: int) -> tuple[Panel, ...]:
    """The panels of a tile whose rows are a multiple of 32 bytes."""
    panels = []
    first, end = 0, row_bytes // CHUNK_BYTES
    while first < end:
        chunks = next(n for n in _PANELS if first + n <= end)
        panels.append(Panel(first, chunks, rows * first * CHUNK_BYTES))
        first += chunks
    return tuple(panels)


def check_row(name: str, columns: int, dtype: ScalarType) -> None:
    """Raise `ConfigError` unless the bytes of a row of these elements are a multiple of 32 bytes."""
    nbytes = columns * dtype.nbytes
    if nbytes % (CHUNK_BYTES * _PANELS[-1]):
        raise ConfigError(
            f"swizzled tile {name!r}: no swizzle fits rows of {columns} {dtype} ({nbytes} bytes); make "
            f"them a multiple of {CHUNK_BYTES * _PANELS[-1]} bytes"
        )


class SwizzledTile:
    """`stages` tiles of rows x columns in shared memory; a row is a multiple of 32 bytes.

    `tile[row, column]` loads and stores elements of the first stage.
    """

    def __init__(self, memory: SharedTile, rows: int, stages: int) -> None:
        self.k: Control = memory.k
        self.name = memory.name
        self.rows = rows
        self.columns = memory.columns
        self.stages = stages
        self.dtype = memory.dtype
        self.panels = panels_of(rows, memory.row_bytes)
        self._memory = memory
        self._begin: Value | None = None  # the byte of the first panel, u32; None: 0

    @property
    def chunk(self) -> int:
        """The number of elements in a chunk, which has 16 bytes."""
        return CHUNK_BYTES // self.dtype.nbytes

    @property
    def stage_bytes(self) -> int:
        """The bytes of shared memory that one stage takes."""
        return self.rows * self.columns * self.dtype.nbytes

    def chunk_pointer(self, chunks: int, row: Value, chunk: Value) -> TilePointer:
        """The address of `chunk` of `row` in a panel that has `chunks` chunks in a row and begins
        at offset 0 of the tile.
        """
        k = self.k
        phase = (row >> (SWIZZLE_ROWS // chunks).bit_length() - 1) & (chunks - 1)
        within = ((chunk ^ phase) << (CHUNK_BYTES.bit_length() - 1)).as_(u32)
        start = self._memory.pointer()
        if self._begin is not None:
            start = start.moved(start.value + self._begin)
        base = k.mad(row.as_(u32), chunks * CHUNK_BYTES, start.value + within, mode="lo")
        return TilePointer(self._memory, base, start.offset)

    def pointer(self, row: Scalar, column: Scalar) -> TilePointer:
        """The address of an element of the first stage; `row` and `column` are Python ints or u32.

        Raises `TypeMismatchError` for anything else.
        """
        row, column = self._index("row", row), self._index("column", column)
        k, nbytes = self.k, self.dtype.nbytes
        chunk = column // self.chunk
        within = column % self.chunk * nbytes
        offset: Value | None = None
        for chunks in dict.fromkeys(panel.chunks for panel in self.panels):
            panels = [panel for panel in self.panels if panel.chunks == chunks]
            first, end = panels[0].first, panels[-1].first + chunks
            # Clamped, so that the proof sees an address in the tile whatever the column is.
            nth = k.min(k.max(chunk, first), end - 1) - first
            panel_bytes = self.rows * chunks * CHUNK_BYTES
            at = self.chunk_pointer(chunks, row, nth % chunks).value + nth // chunks * panel_bytes
            at = at + (panels[0].offset + within)
            offset = at if offset is None else k.selp(at, offset, chunk >= first)
        assert offset is not None  # a tile has columns
        return self._memory.pointer().moved(offset)

    def _index(self, what: str, index: Scalar) -> Value:
        if isinstance(index, Value) and index.type is u32:
            return index
        most = self.rows if what == "row" else self.columns
        if isinstance(index, int) and not isinstance(index, bool) and 0 <= index < most:
            return self.k.emit("mov", (index,), {"type": u32})
        raise TypeMismatchError(
            f"swizzled tile {self.name!r}: {what} must be u32 or an integer from 0 to {most - 1}, got "
            f"{shown(index)}"
        )

    def __getitem__(self, index: tuple[Scalar, Scalar]) -> Value:
        """Load the element at [row, column], in the type of the elements."""
        return self.k.load(self.pointer(*require_row_and_column("swizzled tile", self.name, index)))

    def __setitem__(self, index: tuple[Scalar, Scalar], value: Scalar) -> None:
        """Store `value`, which has the type of the elements, at [row, column]."""
        if isinstance(value, Sequence):
            raise TypeMismatchError(
                f"swizzled tile {self.name!r}: [row, column] = v stores one element, got {shown(value)}"
            )
        self.k.store(self.pointer(*require_row_and_column("swizzled tile", self.name, index)), value)

    def part(self, number: int | Value, parts: int) -> SwizzledTile:
        """The columns of part `number` of `parts` equal ones, which are whole panels, as a tile. `number` is
        a Python int or u32.

        Raises `ConfigError` if the panels do not divide so.
        """
        each, rest = divmod(len(self.panels), parts)
        if isinstance(number, Value):
            part = self.part(0, parts)
            part._begin = number * part.stage_bytes
            return part
        if rest or not 0 <= number < parts:
            raise ConfigError(
                f"swizzled tile {self.name!r}: part {number} of {parts} is no whole number of its "
                f"{len(self.panels)} panels"
            )
        mine = self.panels[each * number : each * (number + 1)]
        part = copy(self)
        part.panels = tuple(replace(panel, first=panel.first - mine[0].first) for panel in mine)
        part.columns = sum(panel.chunks for panel in mine) * self.chunk
        return part

    def panel_of(self, chunk: int) -> Panel:
        """The panel of the tile that holds a chunk of its rows. Raises `ConfigError` if there is no such
        chunk.
        """
        for panel in self.panels:
            if panel.first <= chunk < panel.first + panel.chunks:
                return panel
        raise ConfigError(f"swizzled tile {self.name!r}: chunk {chunk} is in none of its panels")


class BlockReader:
    """This lane's addresses for reads of 16 bytes in one tile, such as those of `ldmatrix`.

    `row` and `chunk` are the lane's in the first block of two chunks, or in the first panel. Other
    blocks lie in the same row, one xor away; rows that differ by a multiple of 8 are a static
    number of bytes apart.
    """

    def __init__(self, tile: SwizzledTile, row: Value, chunk: Value) -> None:
        self.tile = tile
        widths = dict.fromkeys(panel.chunks for panel in tile.panels)
        self._first = {chunks: tile.chunk_pointer(chunks, row, chunk) for chunks in widths}

    def stage(self, offset: Value | None = None) -> Callable[[int, int], TilePointer]:
        """The addresses in the stage that begins `offset` bytes into the tile, as a function of the
        block of two chunks and a static number of rows further down, a multiple of 8.

        The function keeps one register for each of up to four blocks of a panel; call `stage` where
        the addresses are used, so that the registers need not live longer.
        """
        first = self._first
        if offset is not None:
            first = {chunks: at.moved(at.value + offset) for chunks, at in first.items()}
        known: dict[tuple[int, int], TilePointer] = {}

        def block(column_block: int, row: int) -> TilePointer:
            first_chunk = BLOCK_CHUNKS * column_block
            panel = self.tile.panel_of(first_chunk)
            chunk = first_chunk - panel.first
            if (panel.chunks, chunk) not in known:
                at = first[panel.chunks]
                known[panel.chunks, chunk] = at.moved(at.value ^ (chunk * CHUNK_BYTES)) if chunk else at
            return known[panel.chunks, chunk].plus_bytes(panel.offset + row * panel.row_bytes)

        return block
