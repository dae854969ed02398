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


def _call_of(torch: Any, what: str) -> Callable[[int], Any]:
    from flash.distributed import ContextParallel, ShardedKVCache

    x = torch.arange(384, dtype=torch.float32).reshape(1, 3, 16, 8).sin()

    def call(_: int) -> Any:
        if what == "decode":
            cache = ShardedKVCache(ContextParallel(), 1, 1, 3, 8, 64)
            return cache.attention(x[:, :, :1], 0, x[:, :, :1], x[:, :, :1]).tolist()
        if what == "backward":
            leaf = x.clone().requires_grad_()
            ContextParallel(None, "striped", "ring").attention(leaf, leaf, leaf).sum().backward()
            return leaf.grad.tolist()
        return ContextParallel(None, "zigzag", what).attention(x, x, x, causal=True).tolist()  # type: ignore[arg-type]

    return call


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


@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_lost_rank_is_named_while_another_is_slow(torch: ModuleType, step: int) -> None:
    from thread_ranks import Fault, ThreadRanks, one_thread

    from ptxgen.errors import PeerError

    attend, first_ended, in_time = _call_of(torch, "ring"), threading.Event(), []

    def call(rank: int) -> Any:
        if rank == SLOW:
            in_time.append(first_ended.wait(_PATIENCE_S))
        try:
            return attend(rank)
        finally:
            if rank == 0:
                first_ended.set()

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

    attend, first_ended, in_time = _call_of(torch, "ring"), threading.Event(), []

    def call(rank: int) -> Any:
        if rank == SLOW:
            in_time.append(first_ended.wait(_PATIENCE_S))
        try:
            return attend(rank)
        finally:
            if rank == 0:
                first_ended.set()

    with one_thread():
        first, slow, _ = ThreadRanks(WORLD, Fault(VICTIM, 3, "raises")).run(call)
    assert in_time == [True]
    for rank in (first, slow):
        assert isinstance(rank.error, PeerError)
        assert rank.error.peer == VICTIM
        who = "ContextParallel.attention"
        assert str(rank.error) == (
            f"{who}: rank {rank.rank} of 3 lost rank 2 in the step 'comparison of calls': "
            "it ended, or did not answer within the timeout of the group; there is no result; restart the "
            "group (it raised MemoryError: no memory)"
        )


def test_later_calls_name_the_lost_rank_and_the_one_whose_call_failed_itself(torch: ModuleType) -> None:
    from thread_ranks import Fault, ThreadRanks, one_thread

    from ptxgen.errors import PeerError

    attend, peers = _call_of(torch, "ring"), {}

    def after(rank: int) -> None:
        try:
            attend(rank)
        except PeerError as error:
            peers[rank] = error.peer

    with one_thread():
        ThreadRanks(WORLD, Fault(VICTIM, 5, "raises")).run(attend, after)
    assert peers == dict.fromkeys(range(WORLD), VICTIM)


def test_a_loss_of_an_older_group_of_the_same_name_is_no_loss() -> None:
    from flash.distributed.losses import Loss, Losses

    class Store:
        def __init__(self) -> None:
            self.said: dict[str, bytes] = {}

        def check(self, keys: list[str]) -> bool:
            return all(key in self.said for key in keys)

        def get(self, key: str) -> bytes:
            return self.said[key]

        def compare_set(self, key: str, _: str, value: str) -> bytes:
            return self.said.setdefault(key, value.encode())

    losses, old = Losses(Store()), Loss(2, 0, 57, "Connection closed by peer")
    assert losses.first(old) == old
    found: list[Loss] = []
    told = threading.Event()
    ended = losses.watched(3, found.append)
    assert not told.wait(0.5)
    ended.set()
    assert found == []
    new = Loss(1, 0, 3, "no answer within 3 s")
    assert losses.first(new) == new
    losses.watched(58, lambda loss: (found.append(loss), told.set()))
    assert told.wait(_PATIENCE_S)
    assert found == [old]


def test_a_store_that_does_not_answer_leaves_a_rank_its_own_loss() -> None:
    from flash.distributed.losses import Loss, Losses

    class Silent:
        def __init__(self) -> None:
            self.ended = threading.Event()

        def compare_set(self, *_: object) -> bytes:
            self.ended.wait(_PATIENCE_S)
            raise RuntimeError("Broken pipe")

    store, own = Silent(), Loss(1, 0, 3, "Connection closed by peer")
    assert Losses(store).first(own) == own
    assert not store.ended.is_set()
    store.ended.set()
