"""Rows of K and V in pages of a cache: a table has the number of each page of a sequence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from flash.device.tiles import Matrix, Strip
from ptxgen.dsl import KernelBuilder, Pointer, Value
from ptxgen.dsl.division import quotient, remainder
from ptxgen.dsl.matrices.lanes import of_segment
from ptxgen.records import dataclass
from ptxgen.types import s32, s64, u32, u64


@dataclass(frozen=True)
class Pages:
    """Where the rows of one sequence of K and V are: the address of the number of its page n is
    `entries` + n * `entry_bytes`. With `shared_lookups` the threads that copy one row divide the reads
    of the table among themselves and exchange what they have read.

    Quotients and remainders by the size of a page are shifts or products (`ptxgen/dsl/division.py`).
    """

    entries: Value  # u64
    entry_bytes: Value  # s64
    page_size: int
    last_page: Value  # the last page of K and V, u32
    last_row: Value  # the last row of the sequence, u32
    shared_lookups: bool

    def of_blocks(self, rows: int) -> Pages:
        """The pages of an array that has one row for each block of `rows` rows, which divide a page."""
        return replace(self, page_size=self.page_size // rows, last_row=_quotient(self.last_row, rows))

    def page(self, k: KernelBuilder, row: Value) -> Value:
        """The number of the page that holds a row of the sequence, u32. A row after the last gives the page
        of the last row, so that no table entry after that is read.
        """
        return self.existing(k, self._entry(k, row))

    def entry(self, k: KernelBuilder, n: Value) -> Value:
        """The table's entry for page n (u32) of the sequence, s32, which may be any number. Nothing writes
        the table while the kernel runs.
        """
        step = k.cvt(n, dtype=s64) * self.entry_bytes
        return k.ld_nc(Pointer(self.entries + step.as_(u64), "global", s32), type=s32)

    def _entry(self, k: KernelBuilder, row: Value) -> Value:
        """The page table's entry, which may be any number, for the page of row `row`."""
        return self.entry(k, _quotient(k.min(row.as_(u32), self.last_row), self.page_size))

    def existing(self, k: KernelBuilder, page: Value) -> Value:
        """Entry `page` of the table, s32, limited to the numbers of existing pages; u32."""
        return k.min(page.as_(u32), self.last_page)

    def shared(
        self, k: KernelBuilder, row: Value, step: int, count: int, nth: Value, lanes: int
    ) -> Callable[[int], Value]:
        """A function of n that gives the page of row `row` + n * `step`, u32, for n below `count`, a
        power of two. The thread is the `nth` (u32) of `lanes` neighbouring ones, a power of two,
        that have this row: each reads one entry in `lanes`, and the others get it from there.
        """
        entries = self.entries_of(k, row, step, count, nth, lanes)
        return lambda n: self.page_of(k, entries, n, count, lanes)

    def entries_of(
        self, k: KernelBuilder, row: Value, step: int, count: int, nth: Value, lanes: int
    ) -> list[Value]:
        """The entries, s32, that this thread reads for the others; see `shared`."""
        return [self._entry(k, mine) for mine in _read_here(k, row, step, count, nth, lanes)]

    def indices_of(
        self, k: KernelBuilder, row: Value, step: int, count: int, nth: Value, lanes: int
    ) -> list[Value]:
        """The indices in their pages, u32, of the rows whose entries this thread reads; see `shared`."""
        return [self.index(k, mine) for mine in _read_here(k, row, step, count, nth, lanes)]

    def page_of(self, k: KernelBuilder, entries: Sequence[Value], n: int, count: int, lanes: int) -> Value:
        """The n-th of `count` pages, u32, from the entries that the threads have read (`entries_of`); see
        `shared`.
        """
        return self.existing(k, _exchanged(k, entries, n, count, lanes))

    def index_of(self, k: KernelBuilder, indices: Sequence[Value], n: int, count: int, lanes: int) -> Value:
        """The n-th of `count` indices in a page, u32, from the indices of the threads (`indices_of`); see
        `shared`. It is below the size of a page whatever these are.
        """
        return k.min(_exchanged(k, indices, n, count, lanes), self.page_size - 1)

    def boxes(self, k: KernelBuilder, row: Value, rows: int, count: int) -> list[tuple[Value, Value]]:
        """The page, and the index there, of the first row of each of `count` boxes of `rows` rows, which
        divide a page, from row `row` on, a multiple of `rows`; s32. A box after the last row is in the
        page of that.
        """
        firsts = [row + n * rows if n else row for n in range(count)]
        pages = [self.page(k, first) for first in firsts]
        indices = [k.signed(first.as_(u32) % self.page_size) for first in firsts]
        return list(zip(pages, indices, strict=True))

    def index(self, k: KernelBuilder, row: Value) -> Value:
        """The index of a row in its page, u32. A row after the last gives the index of the last row."""
        return _remainder(k.min(row.as_(u32), self.last_row), self.page_size)


@dataclass(frozen=True, kw_only=True)
class PagedMatrix(Matrix):
    """The rows of one sequence of one head of K or V, from row `begin` on; `first` points to the
    head's first row in page 0.
    """

    page_bytes: Value
    pages: Pages
    begin: Value | None

    def offset(self, k: KernelBuilder, index: Value) -> Value:
        """The offset of a row of the matrix from the address `first`, in bytes, u64."""
        row = index if self.begin is None else index + self.begin
        return self._offset(k, self.pages.page(k, row), row)

    def in_page(self, k: KernelBuilder, page: Value, row: Value | None, start: Value) -> Value:
        """The address that is as far after `start`, u64, as row `row` of a page (None: its only row) is after
        `first`.
        """
        start = k.mad(k.cvt(page, dtype=s64), self.page_bytes, start.as_(s64), mode="lo")
        if row is not None:
            start = k.mad(k.cvt(row, dtype=s64), self.row_bytes, start, mode="lo")
        return start.as_(u64)

    def _offset(self, k: KernelBuilder, page: Value, row: Value) -> Value:
        return self._across(k, page) + self._down(k, self.pages.index(k, row))

    def _across(self, k: KernelBuilder, page: Value) -> Value:
        """The offset of page `page` from page 0, in bytes, u64."""
        return (k.cvt(page, dtype=s64) * self.page_bytes).as_(u64)

    def _down(self, k: KernelBuilder, row: Value) -> Value:
        """The offset of row `row`, u32, from the first row of its page, in bytes, u64."""
        return (k.cvt(row, dtype=s64) * self.row_bytes).as_(u64)

    def further(self, k: KernelBuilder, strip: Strip) -> Callable[[int], Value]:
        """See `Matrix.further`. The part of the address that all rows of one page share is computed once, if
        it is known which rows these are.
        """
        apart, rows, lanes = strip.apart, strip.rows, strip.lanes
        together = self._together(apart, rows)
        page_of = None
        if self.pages.shared_lookups and min(lanes, rows // apart) > 1 and not rows % apart:
            step = together or apart
            page_of = self.pages.shared(k, strip.row, step, rows // step, strip.nth, lanes)
        if together is not None:
            return self._in_groups(k, strip, together, page_of)
        if page_of is None:
            return super().further(k, strip)
        of_row, within = page_of, strip.within()
        return lambda down: self.first + self._offset(k, of_row(down // apart), strip.row + down) + within

    def _in_groups(
        self, k: KernelBuilder, strip: Strip, together: int, page_of: Callable[[int], Value] | None
    ) -> Callable[[int], Value]:
        """`further` where each `together` rows, which begin at a multiple of that, are in one page;
        `page_of` gives the page of the n-th of them.
        """
        pages, in_page = self.pages, self.pages.page_size // together
        first = (strip.row - k.signed(strip.tile_row)).as_(u32)  # the first row of the tile
        group, last = _quotient(first, together), _quotient(pages.last_row, together)
        step_bytes = (self.row_bytes * strip.apart).as_(u64)
        mine = self.first + self._down(k, strip.tile_row) + strip.within()
        result: dict[int, Value] = {}

        def begin(n: int) -> Value:
            """The address of a thread's first element in the n-th group of `together` rows; after the last
            row of the sequence, in the group with the last row.
            """
            nth = k.min(group + n if n else group, last)
            page = page_of(n) if page_of else pages.existing(k, pages.entry(k, _quotient(nth, in_page)))
            at = mine + self._across(k, page)
            return at if in_page == 1 else at + self._down(k, _remainder(nth, in_page) * together)

        def find(down: int) -> Value:
            if down not in result:
                n, rest = divmod(down, together)
                result[down] = find(down - strip.apart) + step_bytes if rest else begin(n)
            return result[down]

        return find

    def lookups(self, apart: int, rows: int) -> int:
        """See `Matrix.lookups`."""
        return rows // (self._together(apart, rows) or apart)

    def _together(self, apart: int, rows: int) -> int | None:
        """The number of rows, a multiple of `apart`, that are certain to be in one page with the first of
        them, in a tile of `rows` rows; None if there is no such multiple.
        """
        together = math.gcd(self.pages.page_size, rows)
        return None if self.begin is not None or together % apart else together

    @property
    def is_even(self) -> bool:
        """Whether rows are equally far apart: they are not, a row may be the last of its page."""
        return False


def _read_here(
    k: KernelBuilder, row: Value, step: int, count: int, nth: Value, lanes: int
) -> Iterator[Value]:
    """The rows whose table entries this thread reads; see `Pages.shared`."""
    among = min(lanes, count)
    mine = row + k.signed(nth & among - 1) * step
    for n in range(0, count, among):
        yield mine + n * step if n else mine


def _exchanged(k: KernelBuilder, numbers: Sequence[Value], n: int, count: int, lanes: int) -> Value:
    """The n-th of `count` numbers, of which each thread has in `numbers` those of the rows that it reads."""
    among = min(lanes, count)
    return of_segment(k, numbers[n // among], n % among, lanes)


def _quotient(value: Value, by: int) -> Value:
    """The quotient value // by of a u32 value."""
    result = quotient(value, by)
    assert result is not None  # `by` fits u32
    return result


def _remainder(value: Value, by: int) -> Value:
    """The remainder value % by of a u32 value."""
    result = remainder(value, by)
    assert result is not None  # `by` fits u32
    return result
