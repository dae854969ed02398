from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.measure.decode import TRAFFIC_GOAL
from benchmarks.measure.serving import PREFIX, STEPS, Serving, moved_bytes, traffic, unavoidable_bytes

SMALL = Serving("f16", 64, 8, 2, 16, ((1, 100), (40, 64)))
ROW, ENTRY = 128, 4


def test_what_is_unavoidable_is_counted_by_hand() -> None:
    # Rows of four heads of a CTA: 128 rows are 32 queries.
    tokens = replace(SMALL, lengths=((1, 100),))
    assert unavoidable_bytes(tokens) == 2 * 8 * ROW + 2 * 2 * (100 * ROW + 7 * ENTRY)
    prompt = replace(SMALL, lengths=((40, 64),))
    seen = (24 + 32, 64)  # the last keys that the rows of both CTAs see
    keys = sum(2 * 2 * (n * ROW + 4 * ENTRY) for n in seen)
    assert unavoidable_bytes(prompt) == 2 * 40 * 8 * ROW + keys
    # One CTA for each of eight heads, of 64 rows: no head shares what another reads.
    alone = replace(SMALL, kv_heads=8, lengths=((1, 100),))
    assert unavoidable_bytes(alone) == 2 * 8 * ROW + 2 * 8 * (100 * ROW + 7 * ENTRY)


@pytest.mark.slow
def test_more_keys_of_a_token_are_read_once_for_all_heads_that_share_them() -> None:
    one, other = (replace(SMALL, lengths=((1, keys),)) for keys in (128, 256))
    table = 2 * 2 * 2 * 2 * 32  # K and V, heads of K, tiles, warps: a sector each
    assert moved_bytes(other) - moved_bytes(one) == 2 * 2 * 128 * ROW + table


@pytest.mark.slow
def test_a_prefix_that_tokens_share_is_read_once_if_they_are_queries_of_one_sequence() -> None:
    each, once = (
        replace(step, lengths=lengths)
        for step, lengths in zip(PREFIX, (((1, 128),) * 4, ((4, 128),)), strict=True)
    )
    of_prefix = 2 * 2 * 128 * 256
    assert unavoidable_bytes(each) - unavoidable_bytes(once) == 3 * (of_prefix + 2 * 2 * 8 * ENTRY)
    assert moved_bytes(each) - moved_bytes(once) >= 3 * of_prefix > moved_bytes(once)


@pytest.mark.slow
def test_no_key_behind_the_last_that_a_row_sees_is_read() -> None:
    """The last of 64 keys are seen by the second CTA only; a tile has 64 keys."""
    prompt = replace(SMALL, lengths=((40, 64),))
    assert 0 < moved_bytes(prompt) - unavoidable_bytes(prompt) < 8 * ROW * 2 * 2


@pytest.mark.nightly
def test_a_mixed_batch_moves_at_most_two_percent_more_than_it_must() -> None:
    _, ratio = traffic(STEPS[0])
    assert not isinstance(ratio, str)
    assert ratio.headline
    assert ratio.goal is not None
    assert ratio.goal.value == TRAFFIC_GOAL == 1.02
    assert ratio.median is not None
    assert 1 <= ratio.median <= TRAFFIC_GOAL
