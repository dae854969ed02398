"""Tiles of documents in packs, each of which one call of a kernel computes."""

from __future__ import annotations

import importlib
import itertools
import random
from typing import Any

import numpy as np
import pytest
from distributed_ranks import Ranks

from flash.distributed.layouts import LAYOUTS, Sharding
from flash.distributed.tiles import Document, Limits, Side, tiles_of


def _seen(rows: int, keys: int, left: Side, right: Side) -> np.ndarray:
    """Which keys queries see, the last of which is at the last key."""
    distance = np.arange(rows)[:, None] + keys - rows - np.arange(keys)
    result = np.ones((rows, keys), bool)
    if left is not None:
        result &= distance <= left
    if right is not None:
        result &= -distance <= right
    return result


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_packs_have_each_tile_once_with_limits_that_hide_the_same_keys(layout: str) -> None:
    packs_of = importlib.import_module("flash.distributed.packs").packs_of
    chance = random.Random(layout)
    packed = single = 0
    for _ in range(60):
        world = chance.randint(1, 4)
        sharding = Sharding(layout, world)  # type: ignore[arg-type]
        ends = [0, *itertools.accumulate(chance.randint(0, 9) for _ in range(20))]
        documents = tuple(Document(n, a, b, a, b, 0) for n, (a, b) in enumerate(itertools.pairwise(ends)))
        limits = Limits(chance.choice([None, 0, 2, 5, 50]), chance.choice([None, 0, 0, 1, 4]))
        rank, source = chance.randrange(world), chance.randrange(world)
        tiles = list(
            tiles_of(sharding.runs(rank, ends[-1]), sharding.runs(source, ends[-1]), limits, documents)
        )
        packs = packs_of(tiles)
        assert sorted(map(str, tiles)) == sorted(str(tile) for pack in packs for tile in pack.tiles)
        for pack in packs:
            assert pack.scores == sum(tile.scores for tile in pack.tiles)
            for a, b in itertools.pairwise(pack.tiles):
                assert a.queries.stop <= b.queries.start
                assert a.keys.stop <= b.keys.start
            for tile in pack.tiles:
                assert tile.step == pack.step
                want = _seen(*tile.sizes, tile.left, tile.right)
                assert (_seen(*tile.sizes, pack.left, pack.right) == want).all()
        packed, single = packed + len(packs), single + len(tiles)
    assert packed < single / 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "window", "scores"),
    [
        ("zigzag", None, {}),
        ("striped", (3, 0), {"alibi_slopes": [0.1, 0.2, 0.3, 0.4]}),
        ("contiguous", None, {"mask_mod": "mask_mod", "sink": [0.1, 0.2, 0.3, 0.4]}),
    ],
)
def test_documents_in_packs_have_the_same_bits_by_few_calls(
    ranks: Ranks, layout: str, window: Any, scores: dict[str, Any]
) -> None:
    for same, few, many in ranks.run("distributed_calls.packed", layout, window, scores):
        assert all(same)
        assert few <= 1 + 8  # the first call is for no row, and checks arguments
        assert many >= 28
