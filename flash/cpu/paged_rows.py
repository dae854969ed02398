"""Keys and values in pages, for the `cpu` backend, which gathers a block of them at a time."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class HeadRows(Protocol):
    """The rows [n, dim] of one head of K or V, such as a numpy array."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, dim)."""

    def __getitem__(self, rows: slice, /) -> Array:
        """Some of the rows."""


class KeyRows(Protocol):
    """K or V [batch, kv_heads, n, dim], such as a numpy array."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(batch, kv_heads, n, dim)."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements."""

    def __getitem__(self, place: tuple[int, int], /) -> HeadRows:
        """The rows of one head of one item of the batch."""


class PagedRows:
    """The first `count` rows of one sequence of K or V in `pages` [pages, kv_heads, page_size, dim]:
    row r is row r % page_size of page table[r // page_size]. It is a batch of one item.
    """

    def __init__(self, pages: Array, table: Array, count: int) -> None:
        self._pages = pages
        self._table = table
        self.dtype = pages.dtype
        self.shape: tuple[int, ...] = (1, pages.shape[1], count, pages.shape[3])

    def __getitem__(self, place: tuple[int, int], /) -> HeadRows:
        return _OfHead(self._pages[:, place[1]], self._table, self.shape[2:])


class _OfHead:
    """The rows of one head; a block of them is copied when it is asked for."""

    def __init__(self, pages: Array, table: Array, shape: tuple[int, ...]) -> None:
        self._pages = pages
        self._table = table
        self.shape = shape

    def __getitem__(self, rows: slice, /) -> Array:
        at = np.arange(rows.start, rows.stop)
        size = self._pages.shape[1]
        found: Array = self._pages[self._table[at // size], at % size]
        return found
