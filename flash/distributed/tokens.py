"""On which rank each token of a cached sequence lies."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from flash.distributed.layouts import Sharding

Positions = NDArray[np.int64]


@dataclass(frozen=True)
class Segment:
    """The tokens from position `start` on: the first `stored` of `length` that came as shards, or with
    `length` 0 `stored` tokens, of which the one at position p lies on rank p // block % world.
    """

    start: int
    stored: int
    length: int = 0

    def count(self, rank: int, sharding: Sharding, block: int) -> int:
        """How many of the tokens lie on a rank."""
        if self.length:
            return sum(
                min(run.count, max(0, -(-(self.stored - run.first) // run.step)))
                for run in sharding.runs(rank, self.length)
            )
        return self._owned_before(self.start + self.stored, rank, sharding.world, block) - self._owned_before(
            self.start, rank, sharding.world, block
        )

    def positions(self, rank: int, sharding: Sharding, block: int) -> Positions:
        """The positions of the tokens on a rank, in ascending order."""
        if self.length:
            whole = np.arange(self.length)
            rows = np.concatenate([whole[run.positions] for run in sharding.runs(rank, self.length)])
        else:
            rows = np.arange(self.stored)
            rows = rows[(self.start + rows) // block % sharding.world == rank]
        positions: Positions = self.start + rows[rows < self.stored]
        return positions

    @staticmethod
    def _owned_before(end: int, rank: int, world: int, block: int) -> int:
        """How many of the tokens 0 to `end` - 1 lie on a rank."""
        rounds, rest = divmod(end, block * world)
        return rounds * block + min(block, max(0, rest - rank * block))


@dataclass
class Tokens:
    """The tokens of one sequence in one layer, and those of them that lie on rank `rank`."""

    sharding: Sharding
    block: int
    rank: int
    segments: list[Segment] = field(default_factory=list)
    _held: Positions = field(default_factory=lambda: np.zeros(16, np.int64))  # grown by doubling
    _count: int = 0

    @property
    def length(self) -> int:
        """The number of tokens on all ranks."""
        return self.segments[-1].start + self.segments[-1].stored if self.segments else 0

    @property
    def held(self) -> Positions:
        """The positions of the tokens on this rank, in ascending order."""
        return self._held[: self._count]

    def count(self, rank: int) -> int:
        """How many of the tokens lie on a rank."""
        return sum(s.count(rank, self.sharding, self.block) for s in self.segments)

    def next(self, tokens: int, *, are_shards: bool) -> Segment:
        """The segment of the next `tokens` tokens, which is not added."""
        return Segment(self.length, tokens, tokens if are_shards else 0)

    def extend(self, segment: Segment) -> None:
        """Add the tokens of a segment that `next` made."""
        if segment.stored == 0:
            return
        new = segment.positions(self.rank, self.sharding, self.block)
        total = self._count + len(new)
        if total > len(self._held):
            grown = np.zeros(max(total, 2 * len(self._held)), np.int64)
            grown[: self._count] = self.held
            self._held = grown
        self._held[self._count : total] = new
        self._count = total
        last = self.segments[-1] if self.segments else None
        if last is not None and not last.length and not segment.length:
            self.segments[-1] = replace(last, stored=last.stored + segment.stored)
        else:
            self.segments.append(segment)

    def cut(self, length: int) -> None:
        """Keep the first `length` tokens."""
        segments = [s for s in self.segments if s.start < length]
        self.segments = [replace(s, stored=min(s.stored, length - s.start)) for s in segments]
        self._count = int(np.searchsorted(self.held, length))

    def copy(self) -> Self:
        """A copy of the tokens, on the same ranks."""
        other = copy.copy(self)
        other.segments, other._held = list(self.segments), self._held.copy()
        return other
