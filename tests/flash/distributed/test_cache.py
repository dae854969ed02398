"""A KV cache on ranks of gloo, against one cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from distributed_ranks import Ranks

from flash.distributed.layouts import Sharding
from flash.distributed.tokens import Tokens

BOUND = 64 * 2.0**-24  # as in test_attention.py

CASES: dict[str, dict[str, Any]] = {
    "pages, forks and a tree": {
        "layout": "striped", "prompt": 20, "steps": 30, "pages": {"page_size": 4}, "forks": True,
        "merge": "tree",
    },
    "several queries, a window, ALiBi and a sink": {
        "layout": "zigzag", "prompt": 20, "steps": 30, "queries": 3, "window": (11, None),
        "scores": ("alibi_slopes", "sink"),
    },
    "functions, ranks without a row": {
        "layout": "zigzag", "prompt": 0, "steps": 12, "window": (5, 0), "scores": ("score_mod", "mask_mod"),
    },
}  # fmt: skip


def _check(ranks: Ranks, case: dict[str, Any]) -> list[dict[str, Any]]:
    result = ranks.run("decode", 4, **case)
    for of_rank in result:
        assert of_rank["prompt"] <= BOUND
        assert of_rank["error"] <= BOUND
        assert of_rank["same bits"]
        assert of_rank["lengths"]
    return result


@pytest.mark.slow
@pytest.mark.judged
def test_a_prompt_by_the_ring_and_a_hundred_tokens_are_those_of_one_cache(ranks: Ranks) -> None:
    result = _check(ranks, {"layout": "zigzag", "prompt": 61, "steps": 100})
    # 61 rows as shards of 15 or 16; then blocks of 8 from position 61 on, in turn.
    assert [of_rank["rows"] for of_rank in result] == [[40, 40], [40, 40], [38, 38], [43, 43]]
    # An out of 16 columns and an lse in f32 for each of 2 x 4 rows, to three others.
    assert {of_rank["sent"] for of_rank in result} == {3 * 8 * (16 + 1) * 4}


@pytest.mark.slow
@pytest.mark.judged
@pytest.mark.parametrize("name", CASES)
def test_decoding_is_that_of_one_cache(ranks: Ranks, name: str) -> None:
    _check(ranks, CASES[name])


@pytest.mark.parametrize("layout", ["zigzag", "striped", "contiguous"])
def test_each_token_lies_on_one_rank_and_stays_there(layout: str) -> None:
    sharding = Sharding(layout, 3)  # type: ignore[arg-type]
    every = [Tokens(sharding, 4, rank) for rank in range(3)]
    for number, are_shards in [(20, True), (1, False), (30, False), (7, True), (5, False)]:
        for tokens in every:
            tokens.extend(tokens.next(number, are_shards=are_shards))
    before = [tokens.copy() for tokens in every]
    for length in (63, 55, 52, 21, 9, 0):
        positions = np.sort(np.concatenate([tokens.held for tokens in every]))
        assert positions.tolist() == list(range(every[0].length))
        for tokens in every:
            assert [tokens.count(rank) for rank in range(3)] == [len(of.held) for of in every]
            assert (np.diff(tokens.held) > 0).all()
        for tokens in every:
            tokens.cut(length)
            assert tokens.length == length
    for tokens in before:
        assert tokens.length == 63
        late = tokens.held[tokens.held >= 20]
        blocks = late[late < 51]
        assert (blocks // 4 % 3 == tokens.rank).all()
