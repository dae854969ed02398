"""Tiles of K and V whose rows are wherever a page table says: all threads of the producer look them up and
copy them by `cp.async`, 16 bytes at a time, into the layout that `wgmma` reads.

Each warp has a quarter of a tile, neighbouring rows. A lane reads the page of one of these rows, so that a
warp reads 32 neighbouring entries of the table at once, and tells the other lanes by a shuffle. Lanes that
copy one row, or the part of it that a swizzle spans, are neighbours. Rows that do not exist, and columns that
K and V do not have, become zero and are not read.
"""

from __future__ import annotations

from typing import ClassVar

from flash.device.cta import Cta
from flash.device.pages import PagedMatrix
from flash.device.tma_pipeline import TmaPipeline
from ptxgen.dsl import KernelBuilder, Pointer, Role, TilePointer, Value, Var
from ptxgen.dsl.hopper import BoxTile, Layout
from ptxgen.dsl.hopper.layouts import SWIZZLE_ROWS
from ptxgen.records import dataclass
from ptxgen.target import WARP_SIZE
from ptxgen.tensormap import CHUNK
from ptxgen.types import b16, s32, s64, u32, u64


class GatheredPipeline(TmaPipeline):
    """See `TmaPipeline`; the producer copies the rows of K and V one by one. Q and O have tensor maps."""

    gathered: ClassVar[bool] = True

    def load(self, cta: Cta) -> None:
        """See `TmaPipeline`."""
        k = self.k
        self.load_queries(cta)
        assert isinstance(cta.K, PagedMatrix)  # rows are gathered from pages
        assert isinstance(cta.V, PagedMatrix)
        first, ahead = self.first_key(-cta.tiles), not cta.mask.has_gaps
        keys = Copier(k, self.producer, cta.K, self.keys.tile("k"))
        values = Copier(k, self.producer, cta.V, self.values.tile("v"))
        of_keys = Lookup(k, keys, first, ahead=ahead)
        of_values = of_keys if values.share == keys.share else Lookup(k, values, first, ahead=ahead)
        with self.each_tile(cta) as (n, row):
            rows = of_keys.rows(row)
            with self.keys.gather() as stage:
                keys.copy(stage.k, rows)
            rows = rows if of_values is of_keys else of_values.rows(row)
            clearing = self.clearing(cta, row, self.follows(cta, n))
            with clearing as hides, self.values.gather(reworked=hides) as stage:
                values.copy(stage.v, rows)
        self.end_loads(cta)


@dataclass(frozen=True)
class _Share:
    """The division of the chunks of a tile of `rows` rows: `lanes` neighbouring lanes have those of one row
    of a slab, and each of `warps` warps an equal number of neighbouring rows.
    """

    rows: int
    warps: int
    lanes: int

    @classmethod
    def of(cls, layout: Layout, warps: int) -> _Share:
        """The division of a tile of this layout among the warps of the producer."""
        return cls(layout.rows, warps, layout.row_bytes // CHUNK)

    @property
    def rows_of_warp(self) -> int:
        """The number of rows of a tile that one warp copies."""
        return self.rows // self.warps

    @property
    def at_once(self) -> int:
        """The number of rows of a tile that a warp copies in one iteration."""
        return WARP_SIZE // self.lanes

    @property
    def iterations(self) -> int:
        """The iterations in which a warp copies all of its rows; in the last one fewer rows may be left."""
        return -(-self.rows_of_warp // self.at_once)

    @property
    def asked(self) -> int:
        """Rows of a thread that are looked up in the page table, one in each iteration. Up to `lanes`, their
        number is rounded up to a power of two, so that lanes can divide the lookups among themselves.
        """
        return self.iterations if self.iterations > self.lanes else 1 << (self.iterations - 1).bit_length()


@dataclass(frozen=True)
class Rows:
    """A thread's lookups for the rows of a tile, its own and those for other lanes: entries of the page
    table, s32, and indices of the rows in their pages, u32 (None: a page has one row). `left` is the number
    of existing rows, s32, from the first on that the thread copies.
    """

    entries: list[Value]
    rows_in_page: list[Value] | None
    left: Value


class Copier:
    """Copies a thread's chunks of each tile of `matrix`, whose layout is that of `like`. Tiles begin at
    columns up to `last_column` of the matrix, a multiple of those of a slab.
    """

    def __init__(
        self, k: KernelBuilder, producer: Role, matrix: PagedMatrix, like: BoxTile, last_column: int = 0
    ) -> None:
        self.k = k
        self.matrix = matrix
        self.layout = layout = like.layout
        self.share = share = _Share.of(layout, producer.warps)
        lane = producer.thread % WARP_SIZE
        self.nth = lane % share.lanes
        down = lane // share.lanes  # of the rows that a warp copies at once
        self.row = producer.thread // WARP_SIZE * share.rows_of_warp + down
        column = self.nth * (CHUNK // layout.dtype.nbytes)
        self._start = matrix.first + k.cvt(column * layout.dtype.nbytes, dtype=u64)
        # The swizzle of a row depends on the last bits of its index.
        self._offsets = [
            like.offset(self.row + n if n else self.row, column)
            for n in range(0, SWIZZLE_ROWS, share.at_once)
        ]
        spare = share.iterations * share.at_once - share.rows_of_warp
        self._has_last = down < share.at_once - spare if spare else None
        self._column = column
        self._left = left = matrix.columns - (layout.slabs - 1) * layout.slab_columns  # in the last slab
        self._is_column = column < left if left < layout.slab_columns else None
        self._is_cut = left - last_column < layout.slab_columns

    def copy(self, tile: BoxTile, rows: Rows, first: Value | int = 0) -> None:
        """Start copying these rows to a tile, from column `first` (s32) of the matrix on. Addresses of an
        iteration are computed in that iteration, for K and for V, because a thread of the producer has few
        registers.
        """
        k, share, layout = self.k, self.share, self.layout
        start, is_column = self._start, self._is_column
        if not isinstance(first, int) or first:
            start, is_column = self._from(first)
        firsts = [tile.at(offset) for offset in self._offsets]
        for iteration in range(share.iterations):
            down = iteration * share.at_once
            repeats = down // SWIZZLE_ROWS * SWIZZLE_ROWS
            to = firsts[iteration % len(firsts)].plus_bytes(repeats * layout.row_bytes)
            at = self._row_of(rows, iteration, start)
            if self._has_last is None or iteration < share.iterations - 1:
                self._copy_row(to, at, rows.left > down, is_column)
            else:
                with k.when(self._has_last):
                    self._copy_row(to, at, rows.left > down, is_column)

    def _from(self, first: Value | int) -> tuple[Value, Value | None]:
        """The address, u64, of the first element that this thread copies of a row of page 0, from column
        `first` on; and whether the last slab has its columns, None if it has all.
        """
        k, nbytes = self.k, self.layout.dtype.nbytes
        if isinstance(first, int):
            return self._start + first * nbytes, self._column < self._left - first if self._is_cut else None
        start = self._start + k.cvt(first * nbytes, dtype=s64).as_(u64)
        return start, k.signed(self._column) < self._left - first if self._is_cut else None

    def _row_of(self, rows: Rows, iteration: int, start: Value) -> Value:
        """The address, u64, of the first element that this thread copies of its row in an iteration; `start`
        is that of a row of page 0.
        """
        k, pages, asked = self.k, self.matrix.pages, (iteration, self.share.asked, self.share.lanes)
        page = pages.page_of(k, rows.entries, *asked)
        row_in_page = None if rows.rows_in_page is None else pages.index_of(k, rows.rows_in_page, *asked)
        return self.matrix.in_page(k, page, row_in_page, start)

    def _copy_row(self, to: TilePointer, at: Value, exists: Value, is_column: Value | None) -> None:
        """Start copying this thread's chunks of a row; `is_column` is whether the last slab has its columns,
        None if it has all.
        """
        k, layout = self.k, self.layout
        size = k.selp(CHUNK, 0, exists, type=u32)
        for slab in range(layout.slabs):
            if slab == layout.slabs - 1 and is_column is not None:
                size = k.selp(CHUNK, 0, exists & is_column, type=u32)
            source = Pointer(at, "global", b16, slab * layout.row_bytes)
            k.copy_async(to.plus_bytes(slab * layout.slab_bytes), source, CHUNK, size)


class Lookup:
    """Looks up the rows of one tile after another, for all copiers with a share like that of `copier`;
    `first` is the first key of the first tile. If no tile is skipped, the entries of the page table are read
    `ahead`: while the tile before is copied.
    """

    def __init__(self, k: KernelBuilder, copier: Copier, first: Value, *, ahead: bool) -> None:
        self.k = k
        self.matrix = copier.matrix
        self.share = copier.share
        self.nth = copier.nth
        self.local_row = k.signed(copier.row)
        self._next: list[Var] = [k.var(s32, e) for e in self._read(first)] if ahead else []

    def rows(self, first: Value) -> Rows:
        """The rows of the tile whose first key is `first`; if entries are read ahead, of the tile of this
        iteration.
        """
        k, index = self.k, first + self.local_row
        if self._next:
            entries = [k.mov(entry, type=s32) for entry in self._next]
            for entry, read in zip(self._next, self._read(first - self.share.rows), strict=True):
                entry.set(read)
        else:
            entries = self._read(first)
        rows_in_page = None
        if self.matrix.pages.page_size > 1:
            rows_in_page = self.matrix.pages.indices_of(k, *self._asked(first))
        return Rows(entries, rows_in_page, self.matrix.rows - index)

    def _read(self, first: Value) -> list[Value]:
        """The entries of the page table that this lane reads for the tile whose first key is `first`."""
        return self.matrix.pages.entries_of(self.k, *self._asked(first))

    def _asked(self, first: Value) -> tuple[Value, int, int, Value, int]:
        """The arguments of `Pages.shared` for the rows of the tile whose first key is `first`."""
        begin, row, share = self.matrix.begin, first + self.local_row, self.share
        # Padding comes before the keys of a sequence.
        row = row if begin is None else row + begin
        return row, share.at_once, share.asked, self.nth, share.lanes
