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
    result = _survivors("killed between messages", 4)
    for rank, step, (said, peer, _) in zip((0, 2, 3), (1, 1, 2), result, strict=True):
        assert said.startswith(_start(rank, 4, f"keys and values, step {step}"))
        assert peer == _VICTIM


def test_a_rank_that_is_stopped_ends_the_others_by_the_timeout(torch: ModuleType) -> None:  # noqa: ARG001
    [(said, peer, seconds)] = _survivors("stopped", 2)
    assert said.startswith(_start(0, 2, "comparison of calls"))
    assert peer == _VICTIM
    assert seconds >= _TIMEOUT.total_seconds() * 0.9


def test_a_rank_that_comes_late_is_waited_for(ranks: Ranks) -> None:
    assert ranks.run("slow", 0.5) == [True] * 4


def _lost(function: str, step: str, how: str) -> tuple[str, int, bool, str]:
    """What rank 0 of two says when rank 1 ends or stops."""
    ranks = Ranks(2, _TIMEOUT)
    try:
        ranks.start("distributed_calls.lost", _VICTIM, function, step, how)
        result: tuple[str, int, bool, str] = ranks.result(0)
        return result
    finally:
        ranks.close()


_LOST = [
    ("backward", "gradients of keys and values, step 1", "ContextParallel.attention"),
    ("append", "comparison of calls", "ShardedKVCache.append"),
    ("decode", "partial results", "ShardedKVCache.attention"),
]


def _check_lost(function: str, step: str, caller: str, how: str) -> None:
    said, peer, unchanged, later = _lost(function, step, how)
    start = (
        f"{caller}: rank 0 of 2 lost rank {_VICTIM} in the step {step!r}: it ended, or did not answer within "
        "the timeout of the group; there is no result; restart the group ("
    )
    assert said.startswith(start)
    assert (peer, unchanged) == (_VICTIM, True)
    assert later == (
        "PeerError: ShardedKVCache.append: an earlier call on this group ended before its last message; "
        f"there is no result; restart the group (PeerError: {said})"
    )


@pytest.mark.parametrize(("function", "step", "caller"), _LOST)
def test_a_rank_that_is_killed_in_any_call_ends_the_others(
    torch: ModuleType,  # noqa: ARG001
    function: str,
    step: str,
    caller: str,
) -> None:
    _check_lost(function, step, caller, "SIGKILL")


@pytest.mark.nightly
@pytest.mark.parametrize(("function", "step", "caller"), _LOST)
def test_a_rank_that_is_stopped_in_any_call_ends_the_others(
    torch: ModuleType,  # noqa: ARG001
    function: str,
    step: str,
    caller: str,
) -> None:
    _check_lost(function, step, caller, "SIGSTOP")


def test_after_a_call_that_fails_halfway_the_group_is_refused_and_another_one_works(
    torch: ModuleType,  # noqa: ARG001
) -> None:
    ranks = Ranks(2, _TIMEOUT)
    try:
        said = ranks.run("distributed_calls.failing")
    finally:
        ranks.close()
    assert said[1] == (
        "MemoryError: no memory",
        "PeerError: ContextParallel.attention: an earlier call on this group ended before its last message; "
        "there is no result; restart the group (MemoryError: no memory)",
        "nothing was raised",
    )


def test_groups_without_this_process_and_tensors_that_cannot_be_sent_are_refused(ranks: Ranks) -> None:
    said = ranks.run("distributed_calls.refused_groups")
    assert [of_group for of_group, _ in said] == [
        "nothing was raised",
        "nothing was raised",
        *(
            f"LaunchError: ContextParallel.attention: process {rank} is not in the group; call on its "
            "processes only"
            for rank in (2, 3)
        ),
    ]
    assert {of_tensor for _, of_tensor in said} == {
        "LaunchError: ContextParallel.unshard: x is on meta, from where a group of gloo sends nothing; move "
        "it, or make the group with a backend for this device"
    }


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_call_that_is_recomputed_or_compiled_has_the_same_gradients(ranks: Ranks, compiled: bool) -> None:
    for same in ranks.run("distributed_calls.recomputed", compiled):
        assert same == [True] * 3
