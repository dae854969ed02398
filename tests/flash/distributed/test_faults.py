"""Ranks that end, stop or come late."""

from __future__ import annotations

import datetime
from types import ModuleType

import pytest
from distributed_ranks import Ranks

pytestmark = pytest.mark.slow

_TIMEOUT = datetime.timedelta(seconds=3)
_VICTIM = 1


def _survivors(how: str, world: int) -> list[tuple[str, int | None, float]]:
    """What the other ranks say."""
    ranks = Ranks(world, _TIMEOUT)
    try:
        ranks.start("lost", _VICTIM, how, 1)
        return [ranks.result(rank) for rank in range(world) if rank != _VICTIM]
    finally:
        ranks.close()


def _start(rank: int, world: int, step: str) -> str:
    return (
        f"ContextParallel.attention: rank {rank} of {world} lost rank {_VICTIM} in the step {step!r}: it "
        "ended, or did not answer within the timeout of the group; there is no result; restart the group ("
    )


def test_a_rank_that_is_killed_between_messages_ends_the_others(torch: ModuleType) -> None:  # noqa: ARG001
    found = _survivors("killed between messages", 4)
    for rank, step, (said, peer, _) in zip((0, 2, 3), (1, 1, 2), found, strict=True):
        assert said.startswith(_start(rank, 4, f"keys and values, step {step}"))
        assert peer == _VICTIM


def test_a_rank_that_is_stopped_ends_the_others_by_the_timeout(torch: ModuleType) -> None:  # noqa: ARG001
    [(said, peer, seconds)] = _survivors("stopped", 2)
    assert said.startswith(_start(0, 2, "comparison of calls"))
    assert peer == _VICTIM
    assert seconds >= _TIMEOUT.total_seconds() * 0.9


def test_a_rank_that_comes_late_is_waited_for(ranks: Ranks) -> None:
    assert ranks.run("slow", 0.5) == [True] * 4
