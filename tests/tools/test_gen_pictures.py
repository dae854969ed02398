"""The pictures of pipelines and barriers show what can happen."""

from __future__ import annotations

from itertools import pairwise

from tools import gen_barrier_picture
from tools.gen_pipeline_picture import STAGES, TILES, schedule


def test_a_stage_is_filled_when_it_is_empty_and_read_when_it_is_full() -> None:
    tiles = schedule(TILES)
    for tile, later in zip(tiles, tiles[STAGES:], strict=False):
        assert tile.start < tile.full <= tile.read < tile.empty <= later.start
    for tile, later in pairwise(tiles):
        assert tile.empty <= later.read
    # docs/hopper.md: the consumer waits for tiles 2 and 4.
    assert [n for n, tile in enumerate(tiles) if n and tile.read > tiles[n - 1].empty] == [2, 4]


def test_the_order_that_the_barrier_picture_shows_is_one_of_barriers() -> None:
    result = gen_barrier_picture.rounds()
    for one, later in pairwise(result):
        assert one.empty < one.full < min(one.loaded)
        assert max(one.loaded) == later.empty
