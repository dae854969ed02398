"""Queries, keys and values whose rows are split as pairs of f16 with factors of their own, or have infinity
(`flash/device/split_tile.py`).

A thread splits four neighbouring columns, a chunk, of each panel of 32 columns of a row at a time:
64 threads take eight rows at once. In kernels for Hopper the consumers take 32 queries at once, and the
producer a tile of 16 keys.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tools.campaign.problems import SPLIT_AT_ONCE

Array = NDArray[Any]

# Powers of two for rows in turn, with each of which a row gets a factor. So that neighbours in memory, in a
# thread and in a lane have different ones, their number is odd.
_POWERS: Final = np.array([2.0**7, 2.0**-14, 2.0**8, 2.0**-16, 2.0**9], np.float32)
_OUTSTANDING: Final = np.float32(2.0**4)  # a factor of one element of each row, which becomes the largest
_LEAST: Final = 4.0  # of that element, before its factor
_APART: Final = 5  # columns between those elements of neighbouring rows
_CHUNK: Final = 4
_PANEL: Final = 32  # columns
_PANELS: Final = 2
_ROUND: Final = 8  # rows that are split at once
_TILE: Final = 16  # keys
_BLOCK: Final = 32  # queries
_EVERY: Final = 3  # of so many rows of Q and K one has infinity
_LOWER: Final = np.float32(16.0)  # with a scale of 32**-0.5, weights of 2**-65


def uneven(q: Array, k: Array, v: Array, _rows: int) -> None:
    """Give each row and its neighbours other powers of two, and make one element of each row the largest;
    but of Q only in the first block.
    """
    for begin, x in enumerate((q, k, v)):
        _make_uneven(x, begin, np.arange(x.shape[2]) < (_BLOCK if x is q else x.shape[2]))


def first_uneven(q: Array, k: Array, v: Array, _rows: int) -> None:
    """As `uneven`, but only in these rows: of the first two blocks of queries those that are split first and
    second, and of every other tile of keys those that are split first.
    """
    _uneven_in_round(q, k, v, 0)


def last_uneven(q: Array, k: Array, v: Array, _rows: int) -> None:
    """As `first_uneven`, with the rows of blocks that are split third and fourth, and those of tiles that are
    split second.
    """
    _uneven_in_round(q, k, v, 1)


def uneven_rounds(q: Array, k: Array, v: Array, _rows: int) -> None:
    """Give rows factors of their own, as `uneven` does: in each head the queries that a kernel for Hopper
    splits at once, in the last head no query; of V in each head, and of K in the last one, two of every four
    tiles. The largest element of such a row is so much larger than the others that with a factor made for the
    second largest its f16 would be infinite.
    """
    for head in range(q.shape[1]):
        of_head = q[:, head : head + 1]
        _make_uneven(of_head, 0, np.arange(q.shape[2]) // SPLIT_AT_ONCE == head, _LEAST)
    for begin, (x, tiles) in enumerate(((k[:, -1:], (2, 3)), (v, (0, 3))), 1):
        _make_uneven(x, begin, np.isin(np.arange(x.shape[2]) // _TILE % 4, tiles), _LEAST)


def infinite(q: Array, k: Array, _v: Array, _rows: int) -> None:
    """Put -inf in every third query and key, whose scores all are -inf, and in others for a second panel. Q
    and K have 8 columns at least.
    """
    for first in range(0, q.shape[3], _PANEL):
        # The columns with infinity.
        of_queries, of_keys = (slice(first + n, first + n + _CHUNK) for n in (0, _CHUNK))
        k[..., of_queries], q[..., of_keys] = np.abs(k[..., of_queries]), np.abs(q[..., of_keys])
        for x, columns in ((q, of_queries), (k, of_keys)):
            _put(x[..., columns], np.arange(first // _PANEL, x.shape[2], _EVERY), -np.inf)


def infinite_values(q: Array, k: Array, v: Array, _rows: int) -> None:
    """Put infinity in the first four columns of V, in half of the keys. Their weights are so small that as
    f16 they are 0.
    """
    key = np.arange(v.shape[2])
    some = key[key % _ROUND < _CHUNK]
    q[..., 0], k[:, :, some, 0] = _LOWER, -_LOWER
    _put(v[..., :_CHUNK], some, np.inf)


def infinite_panels(q: Array, k: Array, v: Array, _rows: int) -> None:
    """Put infinity in the first four columns of both panels of V: of each tile, in the first eight keys one
    after the other, and again in the others. The weights of the former are so small that as f16 they are 0,
    and those of the latter are as usual, so that the rest of their rows counts.

    This is the first of three heads, whose last element is infinite, too. In each other head one element is
    infinite: the first one of the first tile, or of the second tile. The last head also has one in its
    last key.
    """
    key = np.arange(v.shape[2])
    q[..., 0], k[:, :, key % _TILE < _TILE // 2, 0] = _LOWER, -_LOWER
    v[:, 0, key, key // _CHUNK % _PANELS * _PANEL + key % _CHUNK] = np.inf
    for head, row, column in ((0, -1, -1), (1, 0, 0), (2, _TILE, 0), (2, -1, 1)):
        v[:, head, row, column] = np.inf


def infinite_round(_q: Array, _k: Array, v: Array, _rows: int) -> None:
    """Put infinity in the first column of each chunk of V in the keys that are split at once: other keys in
    each head.
    """
    for head in range(v.shape[1]):
        v[:, head, head * _ROUND : (head + 1) * _ROUND, ::_CHUNK] = np.inf


def _uneven_in_round(q: Array, k: Array, v: Array, part: int) -> None:
    for begin, x in enumerate((q, k, v)):
        row = np.arange(x.shape[2])
        block = row // _BLOCK
        of_queries = (block < 2) & (row % _BLOCK // _ROUND == 2 * part + block)
        of_keys = row % (2 * _TILE) // _ROUND == 2 + part
        _make_uneven(x, begin, of_queries if x is q else of_keys)


def _make_uneven(x: Array, begin: int, chosen: NDArray[np.bool_], least: float = 0.0) -> None:
    """Make the chosen rows of a matrix uneven; row 0 has the power of index `begin`. The element that becomes
    the largest is first made at least as large as `least`.
    """
    row = np.flatnonzero(chosen)
    column = row * _APART % x.shape[3]
    of_row = x[:, :, row, column]
    x[:, :, row, column] = np.copysign(np.maximum(np.abs(of_row), least), of_row) * _OUTSTANDING
    x[:, :, row] *= np.take(_POWERS, (row + begin) % len(_POWERS))[:, None]


def _put(columns: Array, row: NDArray[np.int_], what: float) -> None:
    """Put the number `what` in one of four columns of each of the rows `row`: the column changes from row to
    row.
    """
    columns[:, :, row, row % _CHUNK] = what
