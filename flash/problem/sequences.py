"""Batches of packed sequences, each with lengths of its own: the rows with which each begins and
ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Sequence(NamedTuple):
    """The rows of one sequence of a batch among the rows of all sequences."""

    number: int
    queries: slice
    keys: slice

    @property
    def lengths(self) -> tuple[int, int]:
        """The numbers of queries and of keys of the sequence."""
        return self.queries.stop - self.queries.start, self.keys.stop - self.keys.start


def each_sequence(
    cu_seqlens_q: Array,
    cu_seqlens_k: Array | None = None,
    seqused_q: Array | None = None,
    seqused_k: Array | None = None,
) -> Iterator[Sequence]:
    """The sequences of a batch: `cu_seqlens_*` are [batch + 1]; `seqused_*` are [batch], or
    broadcast to that. Without `cu_seqlens_k` the keys of each sequence are counted from 0, in pages
    of its own.
    """
    queries = _slices(cu_seqlens_q, seqused_q)
    first = np.zeros_like(cu_seqlens_q) if cu_seqlens_k is None else cu_seqlens_k
    for number, (of_q, of_k) in enumerate(zip(queries, _slices(first, seqused_k), strict=True)):
        yield Sequence(number, of_q, of_k)


def _slices(ends: Array, used: Array | None) -> list[slice]:
    first = ends[:-1].astype(np.int64)
    count = np.diff(ends.astype(np.int64)) if used is None else used
    return [slice(int(a), int(b)) for a, b in np.broadcast(first, first + count)]
