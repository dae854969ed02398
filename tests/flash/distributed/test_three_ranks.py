"""Who is named when one of three ranks is lost: that one, by all others, also if another is slow."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

WORLD = 3
VICTIM = 2
SLOW = 1
_PATIENCE_S = 20  # that a slow rank waits for the first one to end


def _call_of(torch: Any, what: str, before: Callable[[int], object] = lambda _: None) -> Callable[[int], Any]:
    """A call, which all ranks begin when all have a `ContextParallel`, after something else."""
    from flash.distributed import ContextParallel, ShardedKVCache

    x = torch.arange(384, dtype=torch.float32).reshape(1, 3, 16, 8).sin()
    all_there = threading.Barrier(WORLD, timeout=_PATIENCE_S)

    def call(rank: int) -> Any:
        ContextParallel()
        all_there.wait()
        before(rank)
        if what == "decode":
            cache = ShardedKVCache(ContextParallel(), 1, 1, 3, 8, 64)
            return cache.attention(x[:, :, :1], 0, x[:, :, :1], x[:, :, :1]).tolist()
        if what == "backward":
            leaf = x.clone().requires_grad_()
            ContextParallel(None, "striped", "ring").attention(leaf, leaf, leaf).sum().backward()
            return leaf.grad.tolist()
        return ContextParallel(None, "zigzag", what).attention(x, x, x, causal=True).tolist()  # type: ignore[arg-type]

    return call


@pytest.mark.slow
@pytest.mark.sample(3, gate=8)
@pytest.mark.parametrize("how", ["dies", "raises", "sends too little"])
@pytest.mark.parametrize("what", ["ring", "gather", "ulysses", "decode", "backward"])
def test_every_rank_names_the_one_that_is_lost(torch: ModuleType, what: str, how: str) -> None:
    from thread_ranks import Fault, ThreadRanks, one_thread

    from ptxgen.errors import PeerError

    call, step, named = _call_of(torch, what), 0, 0
    with one_thread():
        want = [rank.gave for rank in ThreadRanks(WORLD).run(call)]
        while True:
            *others, victim = ThreadRanks(WORLD, Fault(VICTIM, step, how)).run(call)
            if not victim.met:
                break
            for rank in others:
                if rank.error is None:  # it had all that it needed
                    assert rank.gave == want[rank.rank]
                else:
                    assert isinstance(rank.error, PeerError)
                    assert rank.error.peer == VICTIM, (step, rank.rank, str(rank.error))
                    named += 1
            step += 1
    assert step >= 6
    assert named >= step // 2  # of messages that it sends and that it awaits


def _slow_until_the_first_has_ended(torch: Any) -> tuple[Callable[[int], Any], list[bool]]:
    """A call for which rank 1 comes when that of rank 0 has ended, and a list for whether it has."""
    first_ended, in_time = threading.Event(), []

    def come_late(rank: int) -> None:
        if rank == SLOW:
            in_time.append(first_ended.wait(_PATIENCE_S))

    attend = _call_of(torch, "ring", come_late)

    def call(rank: int) -> Any:
        try:
            return attend(rank)
        finally:
            if rank == 0:
                first_ended.set()

    return call, in_time


@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_lost_rank_is_named_while_another_is_slow(torch: ModuleType, step: int) -> None:
    from thread_ranks import Fault, ThreadRanks, one_thread

    from ptxgen.errors import PeerError

    call, in_time = _slow_until_the_first_has_ended(torch)

    with one_thread():
        first, slow, _ = ThreadRanks(WORLD, Fault(VICTIM, step, "dies")).run(call)
    assert in_time == [True]
    assert isinstance(first.error, PeerError)
    assert isinstance(slow.error, PeerError)
    assert (first.error.peer, slow.error.peer) == (VICTIM, VICTIM)


def test_a_rank_that_waits_for_a_slow_one_is_told_of_a_loss(torch: ModuleType) -> None:
    """Rank 2 sends rank 0 what it needs of it, and its call fails: rank 0 waits for rank 1 alone."""
    from thread_ranks import Fault, ThreadRanks, one_thread

    from ptxgen.errors import PeerError

    call, in_time = _slow_until_the_first_has_ended(torch)

    with one_thread():
        first, slow, _ = ThreadRanks(WORLD, Fault(VICTIM, 3, "raises")).run(call)
    assert in_time == [True]
    for rank in (first, slow):
        assert isinstance(rank.error, PeerError)
        assert rank.error.peer == VICTIM
        caller = "ContextParallel.attention"
        assert str(rank.error) == (
            f"{caller}: rank {rank.rank} of 3 lost rank 2 in the step 'comparison of calls': "
            "it ended, or did not answer within the timeout of the group; there is no result; restart the "
            "group (it raised MemoryError: no memory)"
        )


def test_later_calls_name_the_lost_rank_and_the_one_whose_call_failed_itself(torch: ModuleType) -> None:
    from thread_ranks import Fault, ThreadRanks, one_thread

    from flash.distributed import ContextParallel
    from ptxgen.errors import PeerError

    attend, peers = _call_of(torch, "ring"), {}

    def after(rank: int) -> None:
        x = torch.ones(1, 2, 4, 8)
        try:
            ContextParallel().attention(x, x, x)
        except PeerError as error:
            peers[rank] = error.peer

    with one_thread():
        ThreadRanks(WORLD, Fault(VICTIM, 5, "raises")).run(attend, after)
    assert peers == dict.fromkeys(range(WORLD), VICTIM)
