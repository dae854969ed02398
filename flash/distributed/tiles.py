"""The parts of the scores that a rank computes: a run of its queries meets a run of keys.

Both runs have the same step, so that the keys that a query sees, by their positions, are those within
fixed distances of the query's index in its run: query i of the one run and key j of the other are at
the positions a + s i and b + s j, and b + s j <= a + s i + right is j <= i + (a - b + right) // s. Cut
to the queries that see a key and to the keys that are seen, such a tile is attention with a window of
nonnegative sides whose last query is at the last key: what `flash.attention` computes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from flash.distributed.layouts import Run

Side = int | None


class Limits(NamedTuple):
    """How many positions before and after its position a query sees; None for all. Query 0 of the sequence
    is at the position of key `shift`.
    """

    left: Side
    right: Side
    shift: int = 0


NO_LIMITS: Final = Limits(None, None)


class Document(NamedTuple):
    """A piece of the sequence whose queries see only its keys: its first query and key, the query and key
    after its last ones, and its number. Its first query is at the position of its key `shift`.
    """

    number: int
    first_query: int
    end_query: int
    first_key: int
    end_key: int
    shift: int


@dataclass(frozen=True)
class Tile:
    """Queries and keys of two shards that meet: `queries` and `keys` are rows of the shards, functions
    of scores and dropout count from `first_query` and `first_key`, as a call on one device would number them,
    and `document`; `step` is the distance of adjacent rows.

    A query sees keys from `left` before the position of the key at the query's distance from the last
    one, up to `right` after it; None for no limit.
    """

    queries: slice
    keys: slice
    first_query: int
    first_key: int
    key_column: int
    document: int
    step: int
    position: int
    left: Side
    right: Side

    @property
    def sizes(self) -> tuple[int, int]:
        """The numbers of queries and keys."""
        return self.queries.stop - self.queries.start, self.keys.stop - self.keys.start

    @property
    def columns(self) -> slice:
        """The rows of the sequence at which the keys are, as a slice."""
        return slice(self.key_column, self.key_column + self.sizes[1] * self.step, self.step)

    @cached_property
    def scores(self) -> int:
        """How many scores the queries see."""
        rows, keys = self.sizes
        count = rows * keys
        if self.right is not None:  # row r before the last does not see the last r - right keys
            count -= _triangle(rows - 1 - self.right)
        if self.left is not None:  # row r does not see the first keys - rows + r - left keys
            count -= _triangle(keys - 1 - self.left) - _triangle(keys - 1 - self.left - rows)
        return count


def _triangle(n: int) -> int:
    """1 + 2 + … + n; 0 for a negative n."""
    return n * (n + 1) // 2 if n > 0 else 0


def tiles_of(
    queries: Sequence[Run], keys: Sequence[Run], limits: Limits, documents: Sequence[Document] = ()
) -> Iterator[Tile]:
    """The tiles of two shards that some query sees a key of. With `documents`, which lie in order,
    those of each document; `limits.shift` is not used then.
    """
    for q in queries:
        for k in keys:
            if not documents:
                end_q, end_k = q.first + q.step * q.count, k.first + k.step * k.count
                yield from _tile(q, k, limits, Document(0, 0, end_q, 0, end_k, limits.shift))
            for one in _meeting(q, k, documents):
                yield from _tile(q, k, limits, one)


def _meeting(q: Run, k: Run, documents: Sequence[Document]) -> Sequence[Document]:
    """The documents that may have rows in both runs."""
    end_q, end_k = q.first + q.step * q.count, k.first + k.step * k.count
    begin = max(
        bisect_right(documents, q.first, key=lambda one: one.end_query),
        bisect_right(documents, k.first, key=lambda one: one.end_key),
    )
    end = min(
        bisect_left(documents, end_q, key=lambda one: one.first_query),
        bisect_left(documents, end_k, key=lambda one: one.first_key),
    )
    return documents[begin:end]


def _tile(q: Run, k: Run, limits: Limits, of: Document) -> Iterator[Tile]:
    """The tile of the rows of a document in two runs, if any query sees a key."""
    q, k = _within(q, of.first_query, of.end_query), _within(k, of.first_key, of.end_key)
    if not (q.count and k.count):
        return
    step = q.step
    apart = (q.first - of.first_query + of.shift) - (k.first - of.first_key)
    low = None if limits.left is None else -((limits.left - apart) // step)
    high = None if limits.right is None else (apart + limits.right) // step
    if low is not None and high is not None and high < low:
        return
    # Query i sees the keys from i + low to i + high.
    begin = 0 if high is None else max(0, -high)
    end = q.count if low is None else min(q.count, k.count - low)
    if begin >= end:
        return
    first = 0 if low is None else max(0, begin + low)
    last = k.count - 1 if high is None else min(k.count - 1, end - 1 + high)
    rows, count = end - begin, last - first + 1
    at = count - rows - (begin - first)  # the last query of the tile is at its last key
    left = None if low is None or end - 1 + low <= first else at - low
    right = None if high is None or begin + high >= last else high - at
    yield Tile(
        slice(q.start + begin, q.start + end),
        slice(k.start + first, k.start + last + 1),
        q.first + begin * step - of.first_query,
        k.first + first * step - of.first_key,
        k.first + first * step,
        of.number,
        step,
        of.shift,
        left,
        right,
    )


def _within(run: Run, begin: int, end: int) -> Run:
    """The part of a run that lies in rows `begin` to `end` - 1 of the sequence."""
    skipped = max(0, -(-(begin - run.first) // run.step))
    stop = min(run.count, max(0, -(-(end - run.first) // run.step)))
    return Run(run.start + skipped, run.first + skipped * run.step, run.step, max(0, stop - skipped))


def needed(tiles: Sequence[Tile], runs: Sequence[Run]) -> tuple[slice, ...]:
    """The rows of each run of a shard of keys that some tile reads, from the first to the last; empty slices
    for runs that no tile reads.
    """
    slices = []
    for run in runs:
        of_run = [t.keys for t in tiles if run.start <= t.keys.start < run.start + run.count]
        start = min((rows.start for rows in of_run), default=run.start)
        slices.append(slice(start, max((rows.stop for rows in of_run), default=start)))
    return tuple(slices)
