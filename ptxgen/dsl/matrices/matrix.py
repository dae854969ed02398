"""Matrices in global memory, and copies of their blocks into shared memory and back."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from ptxgen.dsl.matrices.lanes import LANE_COLUMNS
from ptxgen.dsl.matrices.layout import Layout, plus
from ptxgen.dsl.matrices.registers import PackedTile, RegisterTile
from ptxgen.dsl.matrices.rows import CopiedRow, CopiedRows, Neighbours, RowOf, SelectedRows, Selection
from ptxgen.dsl.shared import SharedMemory
from ptxgen.dsl.swizzle import SWIZZLE_ROWS, Panel, SwizzledTile
from ptxgen.dsl.tiles import TilePointer
from ptxgen.dsl.values import Pointer, Scalar, Value, Var, is_count, is_int
from ptxgen.errors import ConfigError, TypeMismatchError, shown
from ptxgen.records import dataclass
from ptxgen.types import ScalarType, b8, b16, b32, s32, u16, u32

_LEAST_COPY: Final = 4  # bytes of the smallest asynchronous copy (PTX ISA, "cp.async")
_BITS: Final = {1: b8, 2: b16}  # the type under which smaller pieces are moved, by their bytes


class Matrix:
    """`rows` x `columns` elements in global memory, row-major, neighbouring rows `stride` elements
    apart (`k.matrix`).

    Accesses take `width` elements: the pointer is aligned to them, and stride and columns are
    multiples of it. What lies outside the matrix is read as zeros and never written. With a `selection`
    the rows are those that it names.
    """

    def __init__(
        self,
        k: SharedMemory,
        first: Pointer,
        rows: Scalar,
        columns: Scalar,
        stride: Scalar,
        width: int,
        selection: Selection | None = None,
    ) -> None:
        self.k = k
        self.first = first
        self.rows = rows
        self.columns = columns
        self.stride = stride
        self.width = width
        self.selection = selection

    def __repr__(self) -> str:
        return f"Matrix({self.first!r}, width {self.width})"

    @property
    def dtype(self) -> ScalarType:
        """The type of the matrix's elements in global memory."""
        return self.first.dtype

    def rows_at(self, rows: Pointer | RowOf, count: Scalar) -> Matrix:
        """The matrix of `count` rows, u32 or an int, whose row i is row `rows[i]` of this one, in the same
        memory: its blocks are gathered, and `store` scatters. A row that this matrix does not have, such as
        -1, is read as zeros and never written. If two rows that are stored are the same one, either remains.

        `rows` points to u32 or s32 in global memory, or is a function of i, u32, that returns the row as u32
        or s32, such as `lambda i: PAGES[i // 16] * 16 + i % 16`; it runs in a `k.when` of i < `count`.
        Rows are looked up when a `k.pipeline` or `k.staged` begins, and those of `down` again for each block.
        Raises `TypeMismatchError` for other arguments, and for a matrix whose rows are selected already.
        """
        require_extent("rows_at: count", count)
        if self.selection is not None:
            raise TypeMismatchError(
                "rows_at: the rows of this matrix are selected already; compose both in a function of the row"
            )
        selection = Selection.by(self.k, rows, self.rows)
        return Matrix(self.k, self.first, count, self.columns, self.stride, self.width, selection)

    def across(self, shape: tuple[int, int], row: Scalar = 0, *, stop: Scalar | None = None) -> Walk:
        """The blocks of `shape` side by side from the left: at (row, 0), (row, shape[1]), …, as a
        walk for `k.pipeline`. Columns from `stop` on, a multiple of `width`, are not read.
        """
        if stop is not None:
            require_multiple(self.k, "across: stop", stop, self.width)
        return Walk(self, shape, row, 0, 1, stop)

    def down(self, shape: tuple[int, int], column: Scalar = 0, *, stop: Scalar | None = None) -> Walk:
        """The blocks of `shape` one below another from the top: at (0, column), (shape[0], column), …,
        as a walk for `k.pipeline`. Rows from `stop` on are not read.
        """
        return Walk(self, shape, 0, column, 0, stop)

    def block(self, shape: tuple[int, int], row: Scalar = 0, column: Scalar = 0) -> Walk:
        """The one block of `shape` at (row, column), for `k.staged`."""
        return Walk(self, shape, row, column, None)

    def element(self, row: Scalar, column: Scalar) -> Pointer:
        """The pointer to an element; the row's offset is computed in 64 bits."""
        k = self.k
        if is_int(row) and row == 0:
            return self.first.element(column)
        at = row if isinstance(row, Value) else k.mov(row, type=u32)
        return self.first.element(k.mul_wide(at, self.stride)).element(column)

    def rows_bytes(self, rows: int) -> Scalar:
        """The bytes from a row of the matrix to the row that is `rows` further down: u64, or an int."""
        step = rows * self.dtype.nbytes
        return self.k.mul_wide(self.stride, step) if isinstance(self.stride, Value) else self.stride * step

    def store(self, tile: RegisterTile | PackedTile, row: Scalar = 0, column: Scalar = 0) -> None:
        """Store a tile of registers, whose first element goes to (row, column); elements outside the
        matrix are left out. Raises `TypeMismatchError` for elements of another type than the
        matrix has; `tile.to(f16)` rounds them.
        """
        if not isinstance(tile, RegisterTile | PackedTile):
            raise TypeMismatchError(f"store: takes a tile of registers, got {shown(tile)}")
        if tile.dtype is not self.dtype:
            raise TypeMismatchError(
                f"store: the elements of the matrix are {self.dtype}, got {tile!r}; convert them with "
                f"tile.to({self.dtype}) or tile.map(...)"
            )
        if tile.shape != (tile.layout.rows, tile.layout.columns):
            raise TypeMismatchError(f"store: takes a whole tile, got {tile!r}")
        with self.k.placed():
            self._store(tile, row, column)

    def _store(self, tile: RegisterTile | PackedTile, row: Scalar, column: Scalar) -> None:
        k, layout = self.k, tile.layout
        pairs = layout.lane_columns[::LANE_COLUMNS]
        # One store may take both elements of a pair, because either both lie in the matrix or neither.
        at_once = min(self.width, LANE_COLUMNS)
        targets = self._lane_rows(layout, *layout.first(row, column))
        for elements, (at, inside, left_right) in zip(tile.row_elements(), targets, strict=True):
            for j, first in enumerate(pairs):
                for n in range(0, LANE_COLUMNS, at_once):
                    to = at.at(first + n)
                    present = inside & (left_right > first + n + at_once - 1)
                    with k.only_if(present):
                        if isinstance(tile, PackedTile):
                            self._store_packed(to, elements[j], n)
                        elif self.width > 1:
                            k.store(to, [elements[2 * j], elements[2 * j + 1]])
                        else:
                            k.store(to, elements[2 * j + n])

    def _lane_rows(
        self, layout: Layout, first_row: Value, first_column: Value
    ) -> Iterator[tuple[Pointer, Value, Value]]:
        """For each row of a lane: the pointer to its first element, whether the matrix has the row, and the
        columns from that element on.
        """
        k = self.k
        if self.selection is not None:
            left_right = _left(k, self.columns, first_column)
            for row in layout.lane_rows:
                number = self.selection.find(plus(row, first_row), self.rows)
                yield self.element(number, first_column), self.selection.has(number), left_right
            return
        left_below = _left(k, self.rows, first_row)
        left_right = _left(k, self.columns, first_column)
        at = self.element(first_row, first_column)
        step = self.rows_bytes(layout.lane_rows[1])
        for row in layout.lane_rows:
            at = at.plus(step) if row else at
            yield at, left_below > row, left_right

    def _store_packed(self, to: Pointer, word: Value, n: int) -> None:
        k = self.k
        if self.width > 1:
            k.store(Pointer(to.base, "global", b32, to.offset), word.as_(b32))
            return
        bits = word.as_(u32) if n == 0 else word.as_(u32) >> b16.bits
        k.store(Pointer(to.base, "global", b16, to.offset), k.cvt(bits, dtype=u16).as_(b16))


@dataclass(frozen=True)
class Walk:
    """Blocks of a matrix one after another, along axis 0 (down) or 1 (across), None for one block;
    from (row, column) on.
    """

    matrix: Matrix
    shape: tuple[int, int]
    row: Scalar
    column: Scalar
    axis: int | None
    stop: Scalar | None = None

    @property
    def end(self) -> Scalar:
        """The first index along the axis that is not read: the matrix's extent or `stop`."""
        matrix = self.matrix
        extent = matrix.rows if self.axis == 0 else matrix.columns
        if self.stop is None:
            return extent
        if is_int(extent) and is_int(self.stop):
            return min(extent, self.stop)
        return matrix.k.min(extent, self.stop)

    def iterations(self) -> Scalar:
        """The number of blocks in the walk: u32, or an int if it is known while building."""
        assert self.axis is not None
        step, end = self.shape[self.axis], self.end
        return self.matrix.k.divide_up(end, step) if isinstance(end, Value) else -(-int(end) // step)

    def origin(self, n: Scalar) -> tuple[Scalar, Scalar]:
        """The row and column of the matrix at which block `n` of the walk begins."""
        if self.axis == 0:
            return n * self.shape[0], self.column
        return self.row, n * self.shape[1]


@dataclass(frozen=True)
class _Share:
    """A thread's share of the copy of panels of one width: the same chunk in every `rows_at_once`-th row.

    `columns_left` is how many columns the matrix has from its first one on, s32; None if it is known to have
    enough.
    """

    panels: tuple[Panel, ...]
    rows_at_once: int
    row: Value
    address: TilePointer
    rows: CopiedRows
    columns_left: Var | None


class BlockCopier:
    """Copies the blocks of a walk into the stages of a tile, 16 bytes at a time, or as many as the
    matrix allows; less than 4 bytes go through registers.

    Thread t takes chunk t % chunks of every row that is t / chunks modulo threads / chunks.
    """

    def __init__(self, walk: Walk, tile: SwizzledTile) -> None:
        self.walk = walk
        self.tile = tile
        self.k = walk.matrix.k
        self._width = min(walk.matrix.width, tile.chunk)
        self._shares = list(self._dealt())

    def _dealt(self) -> Iterator[_Share]:
        k, walk, tile, matrix = self.k, self.walk, self.tile, self.walk.matrix
        for chunks in dict.fromkeys(panel.chunks for panel in tile.panels):
            panels = tuple(p for p in tile.panels if p.chunks == chunks)
            rows_at_once = k.threads // chunks
            if k.threads % (chunks * SWIZZLE_ROWS):
                raise ConfigError(
                    f"{tile.name}: copies into rows of {chunks * tile.chunk} {tile.dtype} take a multiple of "
                    f"{chunks * SWIZZLE_ROWS} threads, and the kernel has {k.threads}"
                )
            thread = k.thread_index()
            row, chunk = thread >> chunks.bit_length() - 1, thread & chunks - 1
            local_column = chunk * tile.chunk
            if panels[0].first:
                local_column = local_column + panels[0].first * tile.chunk
            first_row, first_column = plus(walk.row, row), plus(walk.column, local_column)
            selection = matrix.selection
            at = matrix.element(first_row, first_column) if selection is None else matrix.first
            rows_end, columns_end = (
                walk.end if walk.axis == axis else extent
                for axis, extent in enumerate((matrix.rows, matrix.columns))
            )
            columns_left: Var | None = None
            if walk.axis == 1 or not _holds(columns_end, walk.column, tile.columns):
                columns_left = k.var(s32, _left(k, columns_end, first_column))
            firsts = range(0, tile.rows, rows_at_once)
            if selection is not None:
                locate = functools.partial(matrix.element, column=first_column)
                rows: CopiedRows = SelectedRows(
                    selection, first_row, rows_end, firsts, locate, across=walk.axis != 0
                )
            else:
                rows_left = k.var(s32, _left(k, rows_end, first_row))
                source = k.var(at.value.type, at.value)
                rows = Neighbours(source, rows_left, firsts, matrix.rows_bytes)
            address = tile.chunk_pointer(chunks, row, chunk)
            yield _Share(panels, rows_at_once, row, address, rows, columns_left)

    def start(self, stage: Value | int) -> None:
        """Begin copying the block into the stage that begins `stage` bytes into the tile."""
        for share in self._shares:
            address = share.address
            address = (
                address.moved(address.value + stage)
                if isinstance(stage, Value)
                else address.plus_bytes(stage)
            )
            for row in share.rows.rows():
                with self._rows_of(share, row.first):
                    self._copy_row(share, address, row)

    def advance(self) -> None:
        """Go on to the next block of the walk: the next `start` copies it."""
        walk = self.walk
        for share in self._shares:
            down = walk.axis == 0
            share.rows.move(walk.shape[0] if down else 0, walk.shape[1] * self.tile.dtype.nbytes)
            if not down and share.columns_left is not None:
                share.columns_left.set(share.columns_left - walk.shape[1])

    def _rows_of(self, share: _Share, first: int) -> AbstractContextManager[object]:
        """A context for code of the threads whose row, moved down by `first`, is in the tile."""
        if first + share.rows_at_once <= self.tile.rows:
            return nullcontext()
        return self.k.when(share.row < self.tile.rows - first)

    def _copy_row(self, share: _Share, address: TilePointer, row: CopiedRow) -> None:
        tile, dtype = self.tile, self.tile.dtype
        for panel in share.panels:
            to = address.plus_bytes(panel.offset + row.first * panel.row_bytes)
            beyond = (panel.first - share.panels[0].first) * tile.chunk
            for piece in range(0, tile.chunk, self._width):
                column = beyond + piece
                present = row.is_present()
                if share.columns_left is not None:
                    present = present & (share.columns_left > column + self._width - 1)
                at = Pointer(row.source, "global", dtype, column * dtype.nbytes)
                self._copy(to.plus_bytes(piece * dtype.nbytes), at, present)

    def _copy(self, to: Pointer, at: Pointer, present: Value) -> None:
        k, nbytes = self.k, self._width * self.tile.dtype.nbytes
        if nbytes >= _LEAST_COPY:
            k.copy_async(to, at, nbytes, k.selp(nbytes, 0, present, type=u32))
            return
        bits = _BITS[nbytes]
        value = Var(k, k.var(b16, 0).reg, bits)  # both types have registers of 16 bits
        with k.only_if(present):
            k.load(Pointer(at.base, at.space, bits, at.offset), into=value)
        k.store(Pointer(to.base, to.space, bits, to.offset), value)


def _holds(extent: Scalar, start: Scalar, length: int) -> bool:
    """Whether it is known while building that start + length is within the extent."""
    return isinstance(extent, int) and isinstance(start, int) and start + length <= extent


def _left(k: SharedMemory, extent: Scalar, start: Value) -> Value:
    """The number of elements from index `start` to the end `extent` of an axis, s32."""
    end = extent.as_(s32) if isinstance(extent, Value) else k.mov(extent, type=s32)
    return end - start.as_(s32)


def require_multiple(k: SharedMemory, caller: str, extent: Scalar, width: int) -> None:
    """Raise `ConfigError` for an int that is no multiple of `width`; for a value emit a trap if it is none at
    run time, or with `asserts` an assertion. Accesses of `width` elements would otherwise silently leave out
    the last elements.
    """
    if isinstance(extent, int) and extent % width:
        raise ConfigError(
            f"{caller} must be a multiple of width {width}, got {extent}; pass a smaller width="
        )
    if isinstance(extent, Value) and width > 1:
        if k.asserts:
            cure = f"{caller} must be a multiple of width {width}; pass a smaller width="
            k.device_assert((extent & width - 1) == 0, cure)
            return
        with k.only_if((extent & width - 1) != 0):
            k.trap()


def require_extent(caller: str, extent: Scalar) -> None:
    """Raise `TypeMismatchError` unless an extent is u32 or a positive int below 2**31."""
    if isinstance(extent, Value):
        known = extent.type is u32
    else:
        known = is_count(extent) and extent < 1 << (u32.bits - 1)
    if not known:
        raise TypeMismatchError(f"{caller} must be a u32 value or a positive integer, got {shown(extent)}")
