"""Keys and values in pages, for the `cpu` backend, which gathers a block of them at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class KeyPlace(NamedTuple):
    """Some keys of some key/value heads of an item of the batch: an index of [batch, kv_heads, n, dim]."""

    batch: int
    heads: slice
    keys: slice

    @property
    def count(self) -> int:
        """The number of keys."""
        return int(self.keys.stop - self.keys.start)


class PagedRows:
    """Rows `first` to `first + count` - 1 of one sequence of K or V in `pages` [pages, kv_heads,
    page_size, dim]: row r is row r % page_size of page table[r // page_size]. It is a batch of one
    item.
    """

    def __init__(self, pages: Array, table: Array, count: int, first: int = 0) -> None:
        self._pages = pages
        self._table = table
        self._first = first
        self.dtype: np.dtype[Any] = pages.dtype
        self.shape: tuple[int, ...] = (1, pages.shape[1], count, pages.shape[3])

    def parts(self, heads: slice, keys: slice) -> Iterator[tuple[slice, Array]]:
        """The rows `keys` of some key/value heads: views or copies of runs of them, [kv_heads, rows,
        dim] or [kv_heads, pages, page_size, dim], each with its place among `keys`.
        """
        size = self._pages.shape[2]
        row, stop = self._first + keys.start, self._first + keys.stop
        while row < stop:
            page, skipped = divmod(row, size)
            begin = row - keys.start - self._first
            pages = (stop - row) // size
            if skipped or not pages:
                rows = min(size - skipped, stop - row)
                part = self._pages[self._table[page], heads, skipped : skipped + rows]
            else:
                rows = pages * size
                part = self._gathered(heads, slice(page, page + pages))
            yield slice(begin, begin + rows), part
            row += rows

    def _gathered(self, heads: slice, pages: slice) -> Array:
        """A copy of whole pages of some heads, [kv_heads, pages, page_size, dim]. It is in the order of
        memory, in which numpy copies in half the time.
        """
        numbers = self._table[pages]
        _, of_head, of_row, _ = self._pages.strides
        if of_head < of_row:
            return self._pages.swapaxes(1, 2)[numbers, :, heads].transpose(2, 0, 1, 3)
        return self._pages[numbers, heads].swapaxes(0, 1)


KeyRows = Array | PagedRows  # K or V [batch, kv_heads, n, dim]
