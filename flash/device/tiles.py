"""Blocks of a matrix in global memory, copies into shared memory, and stores from registers."""

from __future__ import annotations

from collections.abc import Callable

from flash.families.mma import FIRST_ASYNCHRONOUS
from flash.families.simt import F32_BYTES
from ptxgen.dsl import KernelBuilder, Pointer, SharedTile, TilePointer, Value, Var, marked
from ptxgen.records import dataclass
from ptxgen.types import f32, s32, s64, u32, u64

# A warp reads at most one row at a time, so that it reads 512 contiguous bytes of wide rows.
_MOST_LANES_PER_ROW = 32
# Rows in flight through registers at once, where copies are not asynchronous.
_COPIES_IN_FLIGHT = 4
# Entries of a page table in flight at once: each of them, and its address, takes registers.
_LOOKUPS_IN_FLIGHT = 16


@dataclass(frozen=True)
class Strip:
    """What one thread copies of a tile of `rows` rows: every `apart`-th row, and of each row some chunks.

    The first one is row `row` of the matrix, s32, and row `tile_row` of the tile, u32, which is less than
    `apart`. `within()` emits the offset of the first chunk in a row, in bytes, u64. `lanes` adjacent threads
    share the rows, and this thread has number `nth` among them.
    """

    row: Value
    tile_row: Value
    apart: int
    rows: int
    nth: Value
    lanes: int
    within: Callable[[], Value]


@dataclass(frozen=True)
class Matrix:
    """One head of Q, K, V or O in global memory: `columns` elements in each of `rows` rows.

    `first` points to its first row; `row_bytes` (s64) is the distance between rows; `width` is how
    many columns an aligned access may take. If `written_from` is given, another CTA writes the
    columns before it.
    """

    first: Value
    row_bytes: Value
    rows: Value
    columns: int
    width: int
    written_from: Value | None = None  # s32

    @property
    def is_even(self) -> bool:
        """Whether all neighbouring rows of the matrix are equally far apart in memory."""
        return True

    def row(self, k: KernelBuilder, index: Value) -> Value:
        """The address of a row of the matrix, u64, computed in 64 bits throughout."""
        return self.first + self.offset(k, index)

    def offset(self, k: KernelBuilder, index: Value) -> Value:
        """The offset of a row of the matrix from the address `first`, in bytes, u64."""
        return (k.cvt(index, dtype=s64) * self.row_bytes).as_(u64)

    def further(self, k: KernelBuilder, strip: Strip) -> Callable[[int], Value]:
        """A function of `down`, a multiple of `strip.apart`, that gives the address of the thread's first
        element in the row that lies `down` below its first one; all threads of a CTA call it alike.
        """

        def find(down: int) -> Value:
            within = strip.within()
            return self.row(k, strip.row + down if down else strip.row) + within

        return find

    def lookups(self, apart: int, rows: int) -> int:
        """The number of entries of a page table that `further` reads to find each `apart`-th row of a tile of
        `rows` rows.
        """
        del apart, rows
        return 0

    def step(self, rows: int) -> Value | None:
        """The distance between rows that are `rows` apart, in bytes, u64; None if it is not the
        same everywhere.
        """
        if not self.is_even:
            return None
        return (self.row_bytes * rows).as_(u64)


def access_width(columns: int, alignment: int, nbytes: int = F32_BYTES) -> int:
    """The number of columns of `nbytes` that one access may take when rows start at multiples of `alignment`
    bytes: a power of two.
    """
    width = alignment // nbytes
    while columns % width:
        width //= 2
    return width


class TileLoader:
    """Copies a block of rows of a matrix into a tile, again and again, walking down the matrix.

    Thread t of the CTA takes every `lanes`-th access of a row, beginning with access t % lanes, in
    every `rows_at_once`-th row. Rows beyond the matrix become zeros and are not read. From sm_80 on
    copies are asynchronous: complete for this thread after `commit_copies` and `await_copies`, and
    for the CTA after a subsequent barrier.
    """

    @marked("tile loader: share of a thread")
    def __init__(
        self, k: KernelBuilder, matrix: Matrix, tile: SharedTile, first_row: Value | None = None
    ) -> None:
        self.k = k
        self.matrix = matrix
        self.tile = tile
        accesses = matrix.columns // matrix.width
        self.lanes = min(_MOST_LANES_PER_ROW, 1 << (accesses - 1).bit_length(), k.threads)
        self.rows_at_once = k.threads // self.lanes
        self.iterations = -(-tile.rows // self.rows_at_once)
        self.accesses = accesses

        thread = k.thread_id()
        # The first row of the tile that this thread copies.
        self.row = k.signed(thread // self.lanes)
        self.lane = thread % self.lanes
        row_in_matrix = self.row if first_row is None else first_row + self.row
        column_bytes = k.cvt(self.lane * (matrix.width * F32_BYTES), dtype=u64)
        # The address that this thread reads next, and how many rows are left from there; both
        # move down with `advance`.
        self.source: Var | None = None
        if matrix.is_even:
            self.source = k.var(u64, matrix.row(k, row_in_matrix) + column_bytes)
        self.rows_left = k.var(s32, matrix.rows - row_in_matrix)
        self.column_bytes = column_bytes
        self.step_bytes = matrix.step(self.rows_at_once)
        self.tile_bytes = matrix.step(tile.rows)
        self.pointer = tile.pointer(self.row, self.lane * matrix.width)

    @property
    def _iterations_at_once(self) -> int:
        """How many iterations are unrolled: all, unless too many registers would be in flight."""
        if not copies_are_asynchronous(self.k):
            return _COPIES_IN_FLIGHT
        looks_up_many = self.matrix.lookups(self.rows_at_once, self.tile.rows) > _LOOKUPS_IN_FLIGHT
        return min(self.iterations, _LOOKUPS_IN_FLIGHT) if looks_up_many else self.iterations

    @marked("tile loader: turns")
    def start(self) -> None:
        """Begin copying the next `tile.rows` rows of the matrix to the tile in shared memory."""
        k = self.k
        source = None if self.source is None else k.var(u64, self.source)
        rows_left = k.var(s32, self.rows_left)
        pointer = self.pointer.cursor()

        at_once = self._iterations_at_once

        def here(first: int) -> Value:
            """The address that this thread reads in the row `first` rows further down than
            `rows_left` says.
            """
            if source is not None:
                return source
            if at_once < self.iterations:  # `rows_left` goes down
                return self.matrix.row(k, self.matrix.rows - rows_left + first) + self.column_bytes
            return find(first)

        if source is None:
            strip = Strip(
                self.matrix.rows - rows_left,
                self.row.as_(u32),
                self.rows_at_once,
                self.tile.rows,
                self.lane,
                self.lanes,
                lambda: self.column_bytes,
            )
            find = self.matrix.further(k, strip)

        def copy_rows(n: int) -> None:
            first = n * self.rows_at_once
            if self.rows_at_once > self.tile.rows:  # more threads than the tile has rows for
                with k.when(self.row < self.tile.rows):
                    self._copy_row(here(first), pointer.step(first), rows_left > first)
            else:
                self._copy_row(here(first), pointer.step(first), rows_left > first)
            if source is not None and self.step_bytes is not None:
                k.add(source, self.step_bytes, into=source)

        def advance(iterations: int) -> None:
            pointer.advance(iterations * self.rows_at_once)
            k.sub(rows_left, iterations * self.rows_at_once, into=rows_left)

        repeat(k, self.iterations, at_once, copy_rows, advance)

    def advance(self) -> None:
        """Move the loader to the next block of `tile.rows` rows of the matrix."""
        if self.source is not None and self.tile_bytes is not None:
            self.k.add(self.source, self.tile_bytes, into=self.source)
        self.k.sub(self.rows_left, self.tile.rows, into=self.rows_left)

    def _copy_row(self, source: Value, pointer: TilePointer, present: Value) -> None:
        k, width = self.k, self.matrix.width
        for start in range(0, self.accesses, self.lanes):
            at = Pointer(source, "global", f32, start * width * F32_BYTES)
            to = pointer.step(columns=start * width)
            if start + self.lanes > self.accesses:  # fewer accesses left in the row than lanes
                with k.when(self.lane < self.accesses - start):
                    self._copy(to, at, present)
            else:
                self._copy(to, at, present)

    @marked("tile loader: access")
    def _copy(self, to: TilePointer, at: Pointer, present: Value) -> None:
        k, width = self.k, self.matrix.width
        nbytes = width * F32_BYTES
        if copies_are_asynchronous(k):
            k.copy_async(to, at, nbytes, k.selp(nbytes, 0, present, type=u32))
            return
        values = [k.var(f32, 0.0) for _ in range(width)]
        with k.when(present):
            loaded = k.load(at, width)
            parts = loaded if isinstance(loaded, tuple) else (loaded,)
            for variable, value in zip(values, parts, strict=True):
                variable.set(value)
        k.store(to, values)


def copies_are_asynchronous(k: KernelBuilder) -> bool:
    """Whether the target copies from global to shared memory without passing through registers."""
    return k.target.sm >= FIRST_ASYNCHRONOUS


@marked("copies: group")
def commit_copies(k: KernelBuilder) -> None:
    """Make one group of the copies started since the last group (`cp.async.commit_group`)."""
    if copies_are_asynchronous(k):
        k.cp_async_commit_group()


@marked("copies: wait")
def await_copies(k: KernelBuilder, in_flight: int = 0) -> None:
    """Wait until this thread's copies of all groups but the last `in_flight` have arrived."""
    if copies_are_asynchronous(k):
        k.cp_async_wait_group(in_flight)


@marked("copies: wait for unread ones")
def await_every_copy(k: KernelBuilder) -> None:
    """Wait until all of this thread's copies have arrived, those that belong to no group, too."""
    if copies_are_asynchronous(k):
        k.cp_async_wait_all()


@marked("tile: padding")
def clear_padding(k: KernelBuilder, tile: SharedTile, used: int, read: int) -> None:
    """Put zeros into columns `used` to `read` - 1 of every row: whole chunks are read, and copies
    write only the used part.
    """
    if used == read:
        return
    for first in range(0, tile.rows, k.threads):
        row = k.thread_id() + first
        with k.when(row < tile.rows):
            at = tile.pointer(row, used)
            for column in range(read - used):
                k.store(at.step(columns=column), 0.0)


def repeat(
    k: KernelBuilder,
    iterations: int,
    unroll: int,
    body: Callable[[int], None],
    advance: Callable[[int], None],
) -> None:
    """Run `body` `iterations` times, `unroll` times in each iteration of a device loop. `body(i)` emits
    iteration i, counted from the cursors; `advance(n)` moves them by n iterations.
    """
    loops, rest = divmod(iterations, unroll)
    if loops <= 1:
        unrolled = iterations
    else:
        with k.loop(0, loops):
            for i in range(unroll):
                body(i)
            advance(unroll)
        unrolled = rest
    for i in range(unrolled):
        body(i)


def store_chunk(k: KernelBuilder, at: Value, values: list[Value], width: int) -> None:
    """Write consecutive f32 values to global memory, `width` at a time."""
    for start in range(0, len(values), width):
        k.store(Pointer(at, "global", f32, start * F32_BYTES), values[start : start + width])
