from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.measure.decode import TRAFFIC_GOAL, Decoding, moved_bytes, traffic, unavoidable_bytes

SMALL = Decoding("f16", 64, 4, 1, 256, 2)


def test_what_is_unavoidable_is_counted_by_hand() -> None:
    # K and V 2 * 256 * 128 bytes, Q and O 2 * 4 * 128, two parts of 65 f32 for each of four heads.
    assert unavoidable_bytes(SMALL) == 2 * 256 * 128 + 2 * 4 * 128 + 2 * 2 * 4 * 65 * 4
    assert unavoidable_bytes(replace(SMALL, splits=1)) == 2 * 256 * 128 + 2 * 4 * 128
    # A row of K and of V read: that it is written is in place of its reading. And 64 angles.
    assert unavoidable_bytes(replace(SMALL, new=1)) - unavoidable_bytes(SMALL) == 2 * 128 + 64 * 4


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_every_key_is_read_once_for_all_heads_that_share_it(dtype: str) -> None:
    step = replace(SMALL, dtype=dtype)
    assert 1 <= moved_bytes(step) / unavoidable_bytes(step) < 1.1
    more = replace(step, seq_k=512)
    keys = unavoidable_bytes(more) - unavoidable_bytes(step)
    assert moved_bytes(more) - moved_bytes(step) == keys


@pytest.mark.slow
def test_a_page_that_holds_a_tile_is_looked_up_once_by_each_warp() -> None:
    """A tile has 64 keys: of K and of V, one sector for each warp of two."""
    paged = replace(SMALL, page_size=64, splits=1)
    tiles = 256 // 64
    moved = moved_bytes(paged) - moved_bytes(replace(paged, page_size=0))
    assert moved == 2 * 2 * tiles * 32


@pytest.mark.slow
def test_a_row_is_appended_without_a_launch_of_its_own() -> None:
    step = replace(SMALL, new=1, page_size=16)
    launches = traffic(step)[0]
    assert not isinstance(launches, str)
    assert launches.median == 2
    before = moved_bytes(replace(step, new=0))
    row, tables = 2 * 128, 2 * 32 * 4
    # Read, written, and read back; what turns it and, in two parts, the query, each by four heads.
    assert 2 * row < moved_bytes(step) - before <= 2 * row + 10 * tables


@pytest.mark.slow
def test_the_ratio_is_the_headline_and_has_a_goal() -> None:
    launches, moved, ratio = traffic(SMALL)
    assert not isinstance(launches, str)
    assert launches.median == 2
    assert not isinstance(moved, str)
    assert not isinstance(ratio, str)
    assert ratio.headline
    assert ratio.goal is not None
    assert ratio.goal.value == TRAFFIC_GOAL
    assert ratio.median == moved.median * 1024 / unavoidable_bytes(SMALL)
