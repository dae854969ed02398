"""Tiles of two shards, against masks of all scores."""

from __future__ import annotations

import random

import numpy as np
import pytest

from flash.distributed.layouts import LAYOUTS, Sharding
from flash.distributed.plan import compacted
from flash.distributed.tiles import Document, Limits, needed, tiles_of
from ptxgen.errors import ConfigError


def _visible(queries: int, keys: int, limits: Limits) -> np.ndarray:
    distance = np.arange(queries)[:, None] + limits.shift - np.arange(keys)
    result = np.ones((queries, keys), bool)
    if limits.left is not None:
        result &= distance <= limits.left
    if limits.right is not None:
        result &= -distance <= limits.right
    return result


def _documents(chance: random.Random, queries: int, keys: int) -> tuple[Document, ...]:
    count = chance.randint(1, 5)
    ends_q, ends_k = (sorted(chance.randint(0, n) for _ in range(count + 1)) for n in (queries, keys))
    cuts = zip(ends_q, ends_q[1:], ends_k, ends_k[1:], strict=False)
    return tuple(Document(n, *cut, chance.randint(-3, 3)) for n, cut in enumerate(cuts))


def _rows(sharding: Sharding, rank: int, length: int) -> np.ndarray:
    whole = np.arange(length)
    return np.concatenate([whole[run.positions] for run in sharding.runs(rank, length)])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("of_documents", [False, True])
def test_tiles_have_each_visible_score_once_and_no_other(layout: str, of_documents: bool) -> None:
    chance = random.Random(f"{layout} {of_documents}")
    for _ in range(150):
        sharding = Sharding(layout, chance.randint(1, 5))  # type: ignore[arg-type]
        queries, keys = chance.randint(0, 40), chance.randint(0, 40)
        sides = chance.choice([None, 0, 1, 3, 7, 50]), chance.choice([None, 0, 0, 1, 5, 60])
        limits = Limits(*sides, chance.choice([0, keys - queries, 3, -4]))
        documents = _documents(chance, queries, keys) if of_documents else ()
        want = np.zeros((queries, keys), int) if of_documents else _visible(queries, keys, limits).astype(int)
        for one in documents:
            part = want[one.first_query : one.end_query, one.first_key : one.end_key]
            part += _visible(*part.shape, limits._replace(shift=one.shift))
        got = np.zeros_like(want)
        for rank in range(sharding.world):
            of_q = _rows(sharding, rank, queries)
            for source in range(sharding.world):
                of_k = _rows(sharding, source, keys)
                runs = sharding.runs(source, keys)
                tiles = tuple(tiles_of(sharding.runs(rank, queries), runs, limits, documents))
                asked = needed(tiles, runs)
                sent = np.concatenate([of_k[part] for part in asked])
                for tile, moved in zip(tiles, compacted(tiles, asked, runs), strict=True):
                    rows, columns = tile.sizes
                    seen = _visible(rows, columns, Limits(tile.left, tile.right, columns - rows))
                    at = documents[tile.document] if documents else Document(0, 0, 0, 0, 0, 0)
                    assert seen.sum() == tile.scores
                    assert (sent[moved.keys] == of_k[tile.keys]).all()
                    assert (np.arange(keys)[tile.columns] == of_k[tile.keys]).all()
                    assert tile.first_query == of_q[tile.queries][0] - at.first_query
                    assert tile.first_key == of_k[tile.keys][0] - at.first_key
                    got[np.ix_(of_q[tile.queries], of_k[tile.keys])] += seen
        assert (got == want).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_row_lies_on_one_rank(layout: str) -> None:
    for world in range(1, 6):
        for length in (0, 1, world, 7, 30):
            sharding = Sharding(layout, world)  # type: ignore[arg-type]
            rows = [_rows(sharding, rank, length) for rank in range(world)]
            assert sorted(np.concatenate(rows)) == list(range(length))
            assert [len(r) for r in rows] == [sharding.rows(rank, length) for rank in range(world)]
            assert all((np.diff(r) > 0).all() for r in rows)


def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        Sharding("zig-zag", 2)  # type: ignore[arg-type]
    assert str(error.value) == (
        "ContextParallel: layout must be one of zigzag, striped, contiguous, got 'zig-zag'; did you "
        "mean 'zigzag'?"
    )
