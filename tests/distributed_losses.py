"""Ranks that are lost, and groups that are made anew, for tests of `flash.distributed`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from messages import outcome

from flash.distributed import ContextParallel, ShardedKVCache
from ptxgen.errors import PeerError

_PATIENCE_S = 30  # that a slow rank waits for another to end


def lost_beside_a_slow_one(
    victim: int, slow: int, how: str, folder: str
) -> tuple[str, int | None, bool] | None:
    """What a rank says when the victim ends, stops or destroys its group, and another one comes when the
    first has said it: the error, the peer, and whether the slow one was away so long. A victim that is killed
    or stopped does not return.
    """
    rank, ended = dist.get_rank(), Path(folder) / "ended"
    cp = ContextParallel(None, "striped", "ring")
    x = torch.ones(1, 2, 6, 8)
    cp.attention(x, x, x)
    if rank == victim:
        if how != "destroyed":
            os.kill(os.getpid(), getattr(signal, how))
        dist.destroy_process_group()
    last = time.monotonic() + _PATIENCE_S
    while rank in (slow, victim) and not ended.exists() and time.monotonic() < last:
        time.sleep(0.02)
    in_time = rank not in (slow, victim) or ended.exists()
    try:
        if rank != victim:
            cp.attention(x, x, x)
    except PeerError as error:
        ended.touch()
        return str(error), error.peer, in_time
    return "nothing was raised", None, in_time


def beside_messages_of_the_program() -> bool:
    """Whether a call gives its result while messages of the program are under way on the same group, and
    those arrive after it.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    cp = ContextParallel(None, "striped", "ring")
    x = torch.zeros(1, 2, 6, 8)
    sends = [dist.isend(torch.full((3,), float(rank)), peer) for peer in range(world) if peer != rank]
    own = bool(cp.attention(x, x, x + 1).eq(1).all())
    for peer in range(world):
        if peer != rank:
            got = torch.zeros(3)
            dist.recv(got, peer)
            own = own and bool(got.eq(peer).all())
    for send in sends:
        send.wait()
    return own


def restarted(meeting: str, victim: int) -> list[Any]:
    """The errors of calls of a `ContextParallel` and a `ShardedKVCache` after a rank of their group was
    killed, before and after the other ranks have initialized a group without it; the lengths of the cache;
    and whether new objects work. The victim does not return.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    cp = ContextParallel()
    cache = ShardedKVCache(cp, 1, 1, 2, 8, 64, block=4)
    tokens, x = torch.ones(1, 2, 20, 8), torch.zeros(1, 2, 4, 8, requires_grad=True)
    cache.append(0, tokens, tokens)
    out = cp.attention(x, x, x)
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()
    q = torch.zeros(1, 2, 1, 8)
    without = outcome(lambda: cache.attention(q, 0))
    dist.init_process_group(
        "gloo", init_method=Path(meeting).as_uri(), rank=rank - (rank > victim), world_size=world - 1
    )
    calls: dict[str, Callable[[], object]] = {
        "ShardedKVCache.attention": lambda: cache.attention(q, 0),
        "ShardedKVCache.append": lambda: cache.append(0, tokens, tokens),
        "ShardedKVCache.truncate": cache.reset,
        "ContextParallel.attention": lambda: cp.attention(x, x, x),
        "ContextParallel.unshard": lambda: cp.unshard(x),
        "ContextParallel.explain": lambda: cp.explain(x, x, x),
        "ContextParallel.sum_gradients": lambda: cp.sum_gradients([x]),
        "gradients of ContextParallel.attention": lambda: out.sum().backward(),
    }
    old = {name: outcome(call) for name, call in calls.items()}
    new = ShardedKVCache(ContextParallel(), 1, 1, 2, 8, 64, block=4)
    new.append(0, tokens, tokens)
    works = bool(new.attention(q, 0).eq(1).all())
    return [without, old, cache.lengths.tolist(), works]
