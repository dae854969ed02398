"""Keys and values in pages, for the `cpu` backend, which gathers a block of them at a time."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

Array = NDArray[Any]


class KeyIndex(NamedTuple):
    """Some keys of some key/value heads of an item of the batch: an index of [batch, kv_heads, n, dim]."""

    batch: int
    heads: slice
    keys: slice

    @property
    def length(self) -> int:
        """The number of keys."""
        return int(self.keys.stop - self.keys.start)


class Walk(NamedTuple):
    """Slices that select pages, one after the other. `order` has their positions in the block table
    of the sequence, or is None if they are read in the order of the sequence.
    """

    runs: list[slice]
    order: Array | None

    @classmethod
    def of(cls, numbers: Array) -> Walk:
        """The walk to these page numbers: in the given order, or in ascending order if that takes less than
        half as many slices.
        """
        runs = _runs(numbers)
        if len(runs) > 1:
            order = np.argsort(numbers, kind="stable")
            ascending = _runs(numbers[order])
            if 2 * len(ascending) < len(runs):
                return cls(ascending, order)
        return cls(runs, None)


class PagedRows:
    """Rows `first` to `first + count` - 1 of one sequence of K or V in `pages` [pages, kv_heads,
    page_size, dim]: row r is row r % page_size of page table[r // page_size]. It is a batch of one
    item. The caller has checked the numbers in the table.
    """

    def __init__(self, pages: Array, table: Array, count: int, first: int = 0) -> None:
        self._pages = pages
        self._table = table
        self._first = first
        self._memory = _rows_in_memory(pages)
        nothing = np.empty(0, np.intp)
        self._last: tuple[tuple[int, int], tuple[Array, Array]] = (0, 0), (nothing, nothing)
        self._last_walk: tuple[tuple[int, int], Walk] = (0, 0), Walk([], None)
        self.dtype: np.dtype[Any] = pages.dtype
        self.shape: tuple[int, ...] = (1, pages.shape[1], count, pages.shape[3])

    def read(self, heads: slice, keys: slice, out: Array) -> None:
        """Copy the rows `keys` of some key/value heads to `out` [kv_heads, keys, dim], of the same
        dtype, whose planes are dense.
        """
        pages, inside = self._located(keys)
        if self._memory is None:
            for head, plane in zip(range(heads.start, heads.stop), out, strict=True):
                plane[...] = self._pages[pages, head, inside]
            return
        memory, (of_page, of_head, of_row) = self._memory
        first = pages * of_page + inside * of_row
        for head, plane in zip(range(heads.start, heads.stop), out, strict=True):
            # One copy of each row, and no buffer as with mode="raise".
            memory[head * of_head :].take(first, axis=0, out=plane, mode="clip")

    def in_memory(self, heads: slice, keys: slice) -> tuple[Array, Array, int] | None:
        """The memory of all pages as one dense array, the offsets in it of the rows `keys` of the first of
        some key/value heads, and the stride of heads, in elements. None if pages do not consist of
        dense rows.
        """
        if self._memory is None or not self._pages.flags.aligned:
            return None
        memory, (of_page, of_head, of_row) = self._memory
        size, dim = self._pages.shape[2:]
        first_page, skipped = divmod(self._first + keys.start, size)
        stop_page = -(-(self._first + keys.stop) // size)
        pages = self._table[first_page:stop_page].astype(np.intp) * (of_page * dim)
        rows = np.arange(size) * (of_row * dim) + heads.start * of_head * dim
        offsets = (pages[:, None] + rows).reshape(-1)
        return memory.reshape(-1), offsets[skipped : skipped + keys.stop - keys.start], of_head * dim

    def gathered(self) -> Array:
        """A copy of all rows, [1, kv_heads, count, dim]."""
        rows = np.empty(self.shape, self.dtype)
        _, heads, count, _ = self.shape
        self.read(slice(0, heads), slice(0, count), rows[0])
        return rows

    def in_chunks(self, heads: slice, chunk: int) -> Array | None:
        """All pages, of some key/value heads, as chunks of `chunk` rows, without a copy: [pages, chunks of a
        page, kv_heads, chunk, dim]. None if pages do not consist of such chunks.
        """
        pages, kv_heads, size, dim = self._pages.shape
        if size % chunk:
            return None
        return self._pages.reshape(pages, kv_heads, size // chunk, chunk, dim).swapaxes(1, 2)[:, :, heads]

    def begins_page(self, row: int) -> bool:
        """Whether the row is the first of its page."""
        return not (self._first + row) % int(self._pages.shape[2])

    def page_of(self, row: int) -> int:
        """The number of the row's page."""
        return int(self._table[(self._first + row) // self._pages.shape[2]])

    def walk(self, keys: slice) -> Walk:
        """The walk that reads the rows `keys`, which are those of whole pages."""
        cached_range, walk = self._last_walk  # one assignment, here and below: threads share this object
        if (keys.start, keys.stop) != cached_range:
            first, last = ((self._first + row) // self._pages.shape[2] for row in (keys.start, keys.stop))
            walk = Walk.of(self._table[first:last])
            self._last_walk = (keys.start, keys.stop), walk
        return walk

    def _located(self, keys: slice) -> tuple[Array, Array]:
        """The pages of the rows `keys`, and their row numbers in these; cached for the next heads."""
        cached_range, location = self._last  # one assignment, here and below: threads share this object
        if (keys.start, keys.stop) != cached_range:
            rows = np.arange(self._first + keys.start, self._first + keys.stop)
            numbers, inside = np.divmod(rows, self._pages.shape[2])
            location = self._table[numbers].astype(np.intp), inside
            self._last = (keys.start, keys.stop), location
        return location


def _runs(numbers: Array) -> list[slice]:
    """Slices that select these page numbers, in order, each as long as possible, from the first on."""
    if not numbers.size:
        return []
    apart = np.diff(numbers)
    # Distance n differs from the one before: a run that began before number n ends with it.
    ends = [*(np.flatnonzero(apart[1:] != apart[:-1]) + 1).tolist(), len(apart)]
    runs, first = [], 0
    for end in ends:
        if end > first or end == len(apart):
            runs += _slices(int(numbers[first]), int(numbers[end]), end - first + 1)
            first = end + 1
    return runs


def _slices(first: int, last: int, count: int) -> list[slice]:
    """Slices that select `count` equally distant numbers from `first` to `last`."""
    if first == last:
        return [slice(first, first + 1)] * count
    step = (last - first) // (count - 1)
    stop = last + (1 if step > 0 else -1)
    return [slice(first, None if stop < 0 else stop, step)]


def _rows_in_memory(pages: Array) -> tuple[Array, tuple[int, ...]] | None:
    """The memory of `pages` as dense rows [n, dim], and by how many rows consecutive pages, heads and
    rows of pages are apart; None if there are no such rows.
    """
    *strides, unit = pages.strides
    row = pages.shape[3] * pages.itemsize
    if not pages.size or unit != pages.itemsize or any(stride < 0 or stride % row for stride in strides):
        return None
    apart = tuple(stride // row for stride in strides)
    count = 1 + sum((n - 1) * step for n, step in zip(pages.shape, apart, strict=False))
    # numpy does not stride all types of one byte.
    words = as_strided(pages.view(f"u{unit}"), (count, pages.shape[3]), (row, unit), writeable=False)
    return words.view(pages.dtype), apart


KeyRows = Array | PagedRows  # K or V [batch, kv_heads, n, dim]


def gathered_rows(rows: KeyRows) -> Array:
    """K or V of all keys, [batch, kv_heads, n, dim]; a copy if they are in pages."""
    return rows.gathered() if isinstance(rows, PagedRows) else rows
