"""Tiles of short documents, several of which one call of a kernel computes as packed sequences."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from flash.distributed.tiles import Side, Tile

Rows: TypeAlias = slice | Tensor


class _Limit(NamedTuple):
    """How far queries see on one side, None for all keys; and the least limit that hides nothing in tiles
    without a limit.
    """

    side: Side
    least: int

    def joined(self, other: _Limit) -> _Limit | None:
        """A limit for the tiles of two packs; None if no limit is right for both."""
        sides = {self.side, other.side} - {None}
        least = max(self.least, other.least)
        if len(sides) > 1 or any(side is not None and side < least for side in sides):
            return None
        return _Limit(next(iter(sides), None), least)


@dataclass
class Pack:
    """Tiles that follow each other in the rows of q and of k, without a row in common. `limits` are how far
    queries see to the left and to the right in all of them.
    """

    tiles: list[Tile]
    limits: tuple[_Limit, _Limit]

    @classmethod
    def of(cls, tile: Tile) -> Pack:
        """A pack of one tile."""
        rows, keys = tile.sizes
        left = _Limit(tile.left, keys - 1 if tile.left is None else 0)
        return cls([tile], (left, _Limit(tile.right, rows - 1 if tile.right is None else 0)))

    def add(self, tile: Tile) -> bool:
        """Add a tile after the last one if the pack can take it. Returns whether it was added."""
        last = self.tiles[-1]
        if (
            last.step != tile.step
            or last.queries.stop > tile.queries.start
            or last.keys.stop > tile.keys.start
        ):
            return False
        pairs = zip(self.limits, Pack.of(tile).limits, strict=True)
        left, right = (limit.joined(other) for limit, other in pairs)
        if left is None or right is None:
            return False
        self.tiles.append(tile)
        self.limits = left, right
        return True

    @property
    def left(self) -> Side:
        """How many keys before its position a query sees; None for all."""
        return self.limits[0].side

    @property
    def right(self) -> Side:
        """How many keys after its position a query sees; None for all."""
        return self.limits[1].side

    @property
    def step(self) -> int:
        """The distance of adjacent rows in the sequence."""
        return self.tiles[0].step

    @property
    def scores(self) -> int:
        """How many scores the queries see."""
        return sum(tile.scores for tile in self.tiles)

    @cached_property
    def queries(self) -> Rows:
        """The rows of the shard that are queries."""
        return _rows([tile.queries for tile in self.tiles])

    @cached_property
    def keys(self) -> Rows:
        """The rows of the shard that are keys."""
        return _rows([tile.keys for tile in self.tiles])

    def lengths(self, device: torch.device) -> dict[str, Any]:
        """The arguments of lengths of `flash.attention_varlen` and its gradients, with a sequence for each
        tile.
        """
        arguments: dict[str, Any] = {}
        for name, side in (("q", 0), ("k", 1)):
            sizes = [tile.sizes[side] for tile in self.tiles]
            ends = [0, *itertools.accumulate(sizes)]
            arguments[f"cu_seqlens_{name}"] = torch.tensor(ends, dtype=torch.int32, device=device)
            arguments[f"max_seqlen_{name}"] = max(sizes)
        return arguments


def packs_of(tiles: Iterable[Tile]) -> list[Pack]:
    """The tiles as few packs, in a fixed order."""
    packs: list[Pack] = []
    for tile in tiles:
        if not any(pack.add(tile) for pack in packs):
            packs.append(Pack.of(tile))
    return packs


def _rows(parts: Sequence[slice]) -> Rows:
    """Rows of a shard, as a slice if they are adjacent, else as indices."""
    if all(a.stop == b.start for a, b in itertools.pairwise(parts)):
        return slice(parts[0].start, parts[-1].stop)
    return torch.cat([torch.arange(part.start, part.stop, device="cpu") for part in parts])
