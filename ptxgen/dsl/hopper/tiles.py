"""Tiles in shared memory that tensor copies fill and `wgmma` reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ptxgen.dsl.hopper.layouts import SWIZZLE_ROWS, Layout, span_of
from ptxgen.dsl.hopper.pending_reads import Extent
from ptxgen.dsl.hopper.products import Operand, Owner, Product, RegisterOperand
from ptxgen.dsl.hopper.roles import Roles
from ptxgen.dsl.tiles import DIMENSIONS, TilePointer
from ptxgen.dsl.values import Pointer, Scalar, Value, is_count, is_int
from ptxgen.errors import ConfigError, TypeMismatchError, shown
from ptxgen.tensormap import CHUNK
from ptxgen.types import u32

_SWIZZLE_SHIFT = 7  # the address bits from 7 on are XORed to those from 4 on


class _Anybody:
    """The owner of a tile whose memory may always be used."""

    def use(self, what: str) -> None:
        """Allow any use: this owner never refuses one."""


ANYBODY: Final = _Anybody()


class BoxTile:
    """A matrix in shared memory, in the layout of tensor copies; `k.tma.tile` and rings make it.

    `at` points to its beginning; `owner` is asked before each use.
    """

    def __init__(self, k: Roles, name: str, layout: Layout, at: TilePointer, owner: Owner) -> None:
        self.k = k
        self.name = name
        self.layout = layout
        self._at = at
        self.owner = owner

    def __repr__(self) -> str:
        shape, dtype, swizzle = self.layout.shape, self.layout.dtype, self.layout.swizzle
        return f"BoxTile({self.name!r}, {shape}, {dtype}, swizzle {swizzle})"

    @property
    def rows(self) -> int:
        """The number of rows of the tile: the product of its dimensions but the last."""
        return self.layout.rows

    @property
    def columns(self) -> int:
        """The number of columns of the tile: its last dimension, in elements."""
        return self.layout.columns

    def slab(self, number: int) -> TilePointer:
        """The pointer to the beginning of the tile's slab (columns as wide as the swizzle) `number`."""
        self.owner.use(f"tile {self.name!r}")
        return self._at.plus_bytes(number * self.layout.slab_bytes)

    def at(self, nbytes: Scalar) -> TilePointer:
        """The pointer at an offset in bytes: a u32 value, such as an `offset`, or an int."""
        self.owner.use(f"tile {self.name!r}")
        return self._plus(nbytes)

    # --------------------------------------------------------------------------- ordinary accesses

    def pointer(self, row: Scalar, column: Scalar) -> TilePointer:
        """The pointer to an element, which the swizzle has moved; both are u32 or s32 values or ints.

        The elements of one 16-byte chunk of a row are contiguous.
        """
        return self._plus(self.offset(row, column))

    def offset(self, row: Scalar, column: Scalar) -> Scalar:
        """The bytes from the beginning of the tile to an element: what `pointer` adds, which is the same in
        all stages of a ring.
        """
        for what, index, most in (("row", row, self.rows), ("column", column, self.columns)):
            if isinstance(index, Value):
                known = index.type.is_integer and index.type.bits == u32.bits
            else:
                known = is_int(index) and 0 <= index < most
            if not known:
                raise TypeMismatchError(
                    f"tile {self.name!r}: {what} must be an integer of 32 bits, below {most} if it is "
                    f"known, got {shown(index)}"
                )
        self.owner.use(f"tile {self.name!r}")
        layout = self.layout
        slab: Scalar
        within: Scalar
        if isinstance(column, Value):
            slab, within = self._split(column.as_(u32))
        else:
            slab, within = divmod(int(column), layout.slab_columns)
        line = (row.as_(u32) if isinstance(row, Value) else int(row)) * layout.row_bytes
        lane = _xor(within * layout.dtype.nbytes, self._moved_by(line))
        return _sum(_sum(slab * layout.slab_bytes, line), lane)

    def __getitem__(self, index: tuple[Scalar, Scalar]) -> Value:
        """Load the element of the tile at [row, column] from shared memory."""
        return self.k.load(self.pointer(*self._row_and_column(index)))

    def __setitem__(self, index: tuple[Scalar, Scalar], value: Scalar) -> None:
        """Store a value to the element of the tile at [row, column] in shared memory."""
        self.k.store(self.pointer(*self._row_and_column(index)), value)
        self.k.note_write(self.extent)

    @property
    def extent(self) -> Extent:
        """The bytes of shared memory that the tile takes, as an `Extent`."""
        return Extent.of(self._at, self.layout.tile_bytes)

    def _row_and_column(self, index: object) -> tuple[Scalar, Scalar]:
        if not isinstance(index, tuple) or len(index) != DIMENSIONS:
            raise TypeMismatchError(f"tile {self.name!r}: an element is [row, column], got [{shown(index)}]")
        return index

    def _split(self, column: Value) -> tuple[Scalar, Value]:
        """The slab of the tile that has a column, and the column's index in the slab."""
        width = self.layout.slab_columns  # a power of two if there are several slabs
        if self.layout.slabs == 1:
            return 0, column
        return column >> width.bit_length() - 1, column & width - 1

    def _moved_by(self, line: Scalar) -> Scalar:
        """The mask that the swizzle XORs to the byte offsets in the row at byte `line` of a slab."""
        span = span_of(self.layout.swizzle)
        if not span:
            return 0
        mask = span // 16 - 1
        if isinstance(line, Value):
            return ((line >> _SWIZZLE_SHIFT) & mask) << 4
        return (int(line) >> _SWIZZLE_SHIFT & mask) << 4

    def _plus(self, nbytes: Scalar) -> TilePointer:
        if isinstance(nbytes, Value):
            return self._at.moved(self._at.value + nbytes)
        return self._at.plus_bytes(int(nbytes))

    def chunks(self, thread: Value, threads: int, *, start: Scalar = 0, rows: int = 0) -> Iterator[Pointer]:
        """The address of each chunk of 16 bytes that falls to the `thread`-th (u32) of `threads` threads,
        as four words, of `rows` rows (0: all) from row `start` on, both multiples of 8. Where a chunk is in
        the matrix is not known. Code between one address and the next is run by the threads that have it.
        """
        self.owner.use(f"tile {self.name!r}")
        layout, k = self.layout, self.k
        count = (rows or self.rows) * layout.row_bytes // CHUNK
        at = self._plus(start * layout.row_bytes) if isinstance(start, Value) or start else self._at
        at = at.moved(k.mad(thread, CHUNK, at.value, mode="lo"))
        for slab in range(layout.slabs):
            for first in range(0, count, threads):
                moved = at.plus_bytes(slab * layout.slab_bytes + first * CHUNK)
                chunk = Pointer(moved.value, "shared", u32, moved.offset)
                if first + threads <= count:
                    yield chunk
                    continue
                with k.when(thread < count - first):
                    yield chunk

    def over(self, name: str, layout: Layout) -> BoxTile:
        """A tile in the memory of this one, for use after the last use of this one. Raises `ConfigError` if
        it is larger, or aligned to more.
        """
        if layout.tile_bytes > self.layout.tile_bytes or layout.align > self.layout.align:
            raise ConfigError(
                f"tile {name!r}: it needs {layout.tile_bytes} bytes, aligned to {layout.align}, but tile "
                f"{self.name!r} has {self.layout.tile_bytes}, aligned to {self.layout.align}"
            )
        return BoxTile(self.k, name, layout, self._at, self.owner)

    def from_column(self, start: Scalar, count: int) -> BoxTile:
        """Columns `start` to `start` + `count` - 1 as a separate tile in the same memory. Both are multiples
        of the columns of a slab, `start` an int or a u32 value.
        """
        layout, width = self.layout, self.layout.slab_columns
        right = is_count(count) and count % width == 0 and count <= self.columns
        if isinstance(start, Value):
            right = right and start.type is u32
        else:
            right = right and is_int(start) and start % width == 0 and 0 <= start <= self.columns - count
        if not right:
            raise ConfigError(
                f"tile {self.name!r}: a part of its columns begins at a multiple of the {width} columns of a "
                f"slab, a u32 value or an int, and has a multiple of {width}, of {self.columns} in all; got "
                f"start={shown(start)}, count={shown(count)}"
            )
        # A slab has a multiple of its columns as bytes; a product, because a division takes long.
        at = self._plus(start * (layout.slab_bytes // width))
        part = replace(layout, shape=(*layout.shape[:-1], count))
        return BoxTile(self.k, self.name, part, at, self.owner)

    # --------------------------------------------------------------------------- operands of wgmma

    @property
    def T(self) -> Operand:
        """The transposed tile, as an operand of a `wgmma` product; no element is moved."""
        return self._operand().T

    def __matmul__(self, other: Operand | BoxTile) -> Product:
        """The product of two tiles, which an accumulator takes: `acc += a @ b`."""
        return self._operand() @ (other._operand() if isinstance(other, BoxTile) else other)

    def __rmatmul__(self, other: Operand | RegisterOperand) -> Product:
        return other @ self._operand()

    def part(self, start: Scalar, count: int) -> Operand:
        """Rows `start` to `start` + `count` - 1, as an operand of a product.

        `start` is a multiple of 8, an int or a u32 value, `count` a multiple of 8.
        """
        right = is_count(count) and count % SWIZZLE_ROWS == 0 and count <= self.rows
        if isinstance(start, Value):
            right = right and start.type is u32
        else:
            right = right and is_int(start) and start % SWIZZLE_ROWS == 0 and 0 <= start <= self.rows - count
        if not right:
            raise ConfigError(
                f"tile {self.name!r}: the rows of a part begin at a multiple of {SWIZZLE_ROWS}, a u32 "
                f"value or an int, and are a multiple of {SWIZZLE_ROWS}, of {self.rows} rows in all; got "
                f"start={shown(start)}, count={shown(count)}"
            )
        return self._operand(start, count)

    def _operand(self, start: Scalar = 0, rows: int | None = None) -> Operand:
        self.owner.use(f"tile {self.name!r}")
        at = self._plus(start * self.layout.row_bytes) if isinstance(start, Value) or start else self._at
        return Operand(
            self.k, self.name, self.layout, at, self.owner, rows or self.rows, self.columns, transposed=False
        )


def _sum(a: Scalar, b: Scalar) -> Scalar:
    """The sum a + b of Python ints, without an instruction, or of u32 values."""
    if isinstance(a, Value):
        return a if not isinstance(b, Value) and not b else a + b
    return b if isinstance(b, Value) and not a else b + a


def _xor(a: Scalar, b: Scalar) -> Scalar:
    """The bitwise exclusive or a ^ b of Python ints, without an instruction, or of u32 values."""
    if isinstance(a, Value):
        return a if not isinstance(b, Value) and not b else a ^ b
    if isinstance(b, Value):
        return b ^ a if a else b
    return int(a) ^ int(b)
