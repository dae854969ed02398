"""Notices of ranks that have lost another: whom they name, and how they arrive."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

_PATIENCE_S = 20
_TIMEOUT = datetime.timedelta(seconds=_PATIENCE_S)


def _together(world: int, steps: Callable[[int, Any, Callable[[], object]], Any]) -> list[Any]:
    """What the steps of each rank give, which get its peers and a function that waits for all ranks."""
    from thread_ranks import ThreadRanks

    from flash.distributed import ContextParallel

    barrier = threading.Barrier(world, timeout=_PATIENCE_S)

    def call(rank: int) -> Any:
        peers = ContextParallel().peers
        barrier.wait()
        result = steps(rank, peers, barrier.wait)
        barrier.wait()
        return result

    result = ThreadRanks(world).run(call)
    assert [rank.error for rank in result] == [None] * world
    return [rank.gave for rank in result]


def _notices(peers: Any) -> Any:
    from flash.distributed.exchange import _NOTICES

    return _NOTICES[peers.group]


def test_the_cause_is_the_loss_with_which_it_began(torch: ModuleType) -> None:  # noqa: ARG001
    from flash.distributed.notices import Notice

    received = {1: Notice(2, 1, "closed"), 3: Notice(1, 3, "closed, too"), 4: Notice(4, 4, "it raised")}

    def steps(rank: int, peers: Any, wait: Callable[[], object]) -> Any:
        notices = _notices(peers)
        if rank in received:
            notices.tell(peers.group, received[rank], _TIMEOUT)
        wait()
        return [notices.cause(Notice(lost, rank, "mine")) for lost in range(1, 5)]

    first, *_ = _together(5, steps)
    assert first == [received[1], Notice(2, 0, "mine"), received[1], received[4]]


def test_two_ranks_that_name_each_other_end_the_search(torch: ModuleType) -> None:  # noqa: ARG001
    from flash.distributed.notices import Notice

    received = {1: Notice(2, 1, "silent"), 2: Notice(1, 2, "silent, too")}

    def steps(rank: int, peers: Any, wait: Callable[[], object]) -> Any:
        notices = _notices(peers)
        if rank in received:
            notices.tell(peers.group, received[rank], _TIMEOUT)
        wait()
        return notices.cause(Notice(1, rank, "mine"))

    assert _together(3, steps)[0] == received[2]


def test_a_rank_that_others_have_given_up_names_them_and_is_named(torch: ModuleType) -> None:  # noqa: ARG001
    from flash.distributed.notices import Notice

    def steps(rank: int, peers: Any, wait: Callable[[], object]) -> Any:
        if rank == 0:
            _notices(peers).tell(peers.group, Notice(2, 0, "no answer within 3 s"), _TIMEOUT)
        wait()
        error = peers.lost((0,), "partial results", "closed") if rank == 2 else None
        wait()
        return error if rank == 2 else _notices(peers).received().get(2)

    _, other, error = _together(3, steps)
    assert (error.peer, str(error)) == (
        0,
        "ContextParallel.attention: rank 2 of 3 lost rank 0 in the step 'partial results': it ended, or did "
        "not answer within the timeout of the group; there is no result; restart the group (it lost rank 2: "
        "no answer within 3 s)",
    )
    assert other == Notice(2, 2, "rank 0 lost it: no answer within 3 s")


def test_a_notice_of_which_a_part_has_arrived_is_none(torch: ModuleType) -> None:  # noqa: ARG001
    from flash.distributed.notices import Notice

    def steps(rank: int, peers: Any, wait: Callable[[], object]) -> Any:
        notices = _notices(peers)
        if rank == 1:
            notices.tell(peers.group, Notice(1, 1, "é" * 300), _TIMEOUT)
        wait()
        if rank == 1:
            return None
        memory, _ = notices._awaited[1]
        whole = memory.clone()
        result = []
        for end in range(0, len(whole) + 1, 4):
            memory.zero_()
            memory[:end] = whole[:end]
            result.append(notices.received())
        return result

    (*parts, whole), _ = _together(2, steps)
    assert parts == [{}] * 64
    assert whole == {1: Notice(1, 1, "é" * 122)}
