"""Calls of the ranks of a group that differ, for tests of `flash.distributed`."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from distributed_cases import distance_mod, mask_mod
from messages import outcome
from torch.utils.checkpoint import checkpoint

import flash
from flash.commands import context_parallel
from flash.distributed import ContextParallel, Machine, ShardedKVCache
from flash.distributed.exchange import Peers
from flash.distributed.local import TileAttention
from ptxgen.errors import PeerError

_ARRAYS = ("alibi_slopes", "sink", "key_bias", "bias", "mask", "slopes", "cu_seqlens_q", "cu_seqlens_k")
_OF_PARALLEL = ("layout", "scheme", "degree", "machine")
_FUNCTIONS = {"score_mod": distance_mod, "mask_mod": mask_mod}


def _arguments(options: dict[str, Any]) -> dict[str, Any]:
    """The arguments of these words: lists are arrays, functions are named, and slopes are of `aux`."""
    result = dict(options)
    for name in result.keys() & set(_ARRAYS):
        result[name] = torch.tensor(result[name])
    for name in result.keys() & _FUNCTIONS.keys():
        result[name] = _FUNCTIONS[result[name]]
    if "slopes" in result:
        result["aux"] = {"slopes": result.pop("slopes")}
    if "flops" in result:
        result["machine"] = Machine(flops=result.pop("flops"))
    return result


def forward(
    options: dict[str, Any], different: dict[int, dict[str, Any]], what: str = "attention"
) -> tuple[str, bool]:
    """The error of a call in which some ranks have other options, and whether a right call works after it.

    "shape" is that of q, k and v; "dtype", "requires_grad" and "tensors" (the layout) are theirs as well.
    """
    own = _arguments({**options, **different.get(dist.get_rank(), {})})
    shape, dtype = own.pop("shape", (1, 2, 8, 8)), getattr(torch, own.pop("dtype", "float32"))
    x = torch.ones(shape, dtype=dtype, requires_grad=own.pop("requires_grad", False))
    axis = own.pop("axis", -2)
    of = {name: own.pop(name) for name in _OF_PARALLEL if name in own}
    if "tensors" in own:
        own["layout"] = own.pop("tensors")
    what = own.pop("what", what)

    def call() -> object:
        cp = ContextParallel(**of)
        if what == "unshard":
            return cp.unshard(own.get("x", x), axis)
        return getattr(cp, what)(own.pop("q", x), x, x, **own)

    return outcome(call), _works()


def _works() -> bool:
    """Whether a call on the group of all gives its result. Scores are 0, so that weights and their sum are
    exact on every CPU.
    """
    x, v = torch.zeros(1, 2, 8, 8), torch.ones(1, 2, 8, 8)
    return bool(ContextParallel().attention(x, x, v).eq(1).all())


def gradients(how: str) -> tuple[str, bool]:
    """The error of a backward pass that differs on rank 2, and whether a right call works after it."""
    cp, differs = ContextParallel(scheme="ring"), dist.get_rank() == 2
    x, y = (torch.ones(1, 2, 8, 8, requires_grad=True) for _ in range(2))
    first, second = (cp.attention(t, t, t) for t in (x, y))

    def call() -> None:
        if how == "another call":
            (second if differs else first).sum().backward()
        elif how == "forward instead":
            if differs:
                cp.attention(x, x, x)
            first.sum().backward()
        elif how == "a changed tensor":
            if differs:
                with torch.no_grad():
                    x.add_(1)
            first.sum().backward()

    return outcome(call), _works()


def gradients_of_lse(scheme: Any, ranks: list[int]) -> float:
    """The largest difference of the gradient of q from that of one device, if only `ranks` use the LSE."""
    cp = ContextParallel(scheme=scheme)
    make = torch.Generator().manual_seed(0)
    whole = [torch.randn((1, 4, 32, 8), generator=make) for _ in range(3)]
    weights = torch.zeros(32)
    for rank in ranks:
        for run in cp.sharding.runs(rank, 32):
            weights[run.positions] = 1
    q, k, v = (cp.shard(t).requires_grad_() for t in whole)
    out, lse = cp.attention(q, k, v, causal=True, return_lse=True)
    loss = out.sum()
    if dist.get_rank() in ranks:
        loss = loss + lse.sum()
    loss.backward()
    own_dq = q.grad
    assert own_dq is not None
    want, of_lse = flash.attention(*whole, causal=True, return_lse=True)
    dlse = weights.expand(1, 4, 32).contiguous()
    q, k, v = whole
    result = flash.attention_backward(torch.ones_like(want), q, k, v, want, of_lse, dlse=dlse, causal=True)
    return float((cp.unshard(own_dq) - result.dq).abs().max() / result.dq.abs().max())


_OF_CACHE = ("kv_heads", "capacity", "block", "page_size", "pages", "layout")


def cached(
    steps: tuple[str, ...], options: dict[str, Any], different: dict[int, dict[str, Any]]
) -> tuple[str, bool, bool]:
    """The error of the last of `steps`, calls of a cache of three sequences in which some ranks have other
    options; whether it left the cache of the rank as it was; and whether a right call works after it.

    "rows" are those appended to the sequences 0 and 1, "source" is forked, "cut" is the length that is left
    of sequence 0, "heads" are those of q, and "step" is another last step.
    """
    own = _arguments({"capacity": 64, "block": 4, **options, **different.get(dist.get_rank(), {})})
    of = {name: own.pop(name) for name in _OF_CACHE if name in own}
    cp = ContextParallel(layout=of.pop("layout", "zigzag"))
    kv_heads, layers = of.pop("kv_heads", 2), 1
    cache = ShardedKVCache(cp, layers, 3, kv_heads, 8, **of)
    rows, heads, source, cut = (
        own.pop(n, d) for n, d in (("rows", 6), ("heads", 4), ("source", 0), ("cut", 2))
    )
    layer, sequences = own.pop("layer", 0), own.pop("sequences", [0, 1])
    new = torch.ones(2, kv_heads, own.pop("given", rows), 8)
    token = torch.ones(2, kv_heads, 1, 8)
    q = own.pop("q", torch.ones(2, heads, 1, 8))
    calls: dict[str, Callable[[], object]] = {
        "append": lambda: cache.append(layer, new, own.get("v", new), sequences),
        "append_shard": lambda: cache.append_shard(
            layer, new[:, :, : len(cp.positions(rows))], new[:, :, : len(cp.positions(rows))], rows, sequences
        ),
        "fork": lambda: cache.fork(source, 2),
        "truncate": lambda: cache.truncate(cut, [0]),
        "attention": lambda: cache.attention(q, layer, sequences=sequences, **own),
        "decode": lambda: cache.attention(q, layer, token, token, sequences=sequences, **own),
    }
    *first, last = steps
    last = own.pop("step", last)
    for step in first:
        calls[step]()
    before = _state(cache)
    said = outcome(calls[last])
    return said, _state(cache) == before, _works()


def _state(cache: ShardedKVCache) -> list[Any]:
    """The tokens of a cache, and its memory, on this rank."""
    tokens = [cache.positions(0, sequence).tolist() for sequence in range(3)]
    table = cache.local.block_table
    pages = None if table is None else table.tolist()
    return [cache.lengths.tolist(), cache.local.lengths.tolist(), tokens, cache.local.free_pages, pages]


def in_two_threads(own_groups: bool) -> list[str]:
    """What two threads say that call at once: the second begins when the first waits for a slow rank."""
    begun, late = threading.Event(), dist.get_rank() == 0
    groups = [dist.new_group() for _ in range(2)] if own_groups else [None, None]
    x = torch.ones(1, 2, 8, 8)
    result = ["", ""]

    def first() -> None:
        begun.set()
        result[0] = outcome(lambda: ContextParallel(groups[0]).attention(x, x, x))

    thread = threading.Thread(target=first)
    if late:
        time.sleep(0.3)
    thread.start()
    begun.wait()
    if not late:
        time.sleep(0.1)
        result[1] = outcome(lambda: ContextParallel(groups[1]).attention(x, x, x))
        thread.join()
    else:
        thread.join()
        if own_groups:
            result[1] = outcome(lambda: ContextParallel(groups[1]).attention(x, x, x))
    return result


def packed(layout: Any, window: Any, scores: dict[str, Any]) -> tuple[list[bool], int, int]:
    """Whether results and gradients of 60 documents have the same bits in packs as one by one; and how many
    calls there are, forward and backward, in packs and one by one.
    """
    lengths = [(7 * n) % 13 for n in range(60)]
    ends = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
    own = _arguments(scores)
    cp = ContextParallel(layout=layout, scheme="ring")
    make = torch.Generator().manual_seed(0)
    whole = [torch.randn((int(ends[-1]) + 5, heads, 8), generator=make) for heads in (4, 2, 2)]
    result, numbers = [], []
    for tiles in (False, True):
        calls = 0

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **more: Any) -> Any:
                nonlocal calls
                calls += 1
                return function(*args, **more)

            return call

        names = ("attention", "attention_varlen", "attention_backward", "attention_varlen_backward")
        with contextlib.ExitStack() as stack:
            for name in names:
                stack.enter_context(mock.patch.object(flash, name, counted(getattr(flash, name))))
            if tiles:
                one_by_one = mock.patch.object(TileAttention, "together", lambda _, tiles, __=None: tiles)
                stack.enter_context(one_by_one)
            q, k, v = (cp.shard(t, 0).requires_grad_() for t in whole)
            out, lse = cp.attention(
                q, k, v, cu_seqlens_q=ends, causal=True, window=window, return_lse=True, **own
            )
            torch.where(lse == -torch.inf, 0.0, lse).sum().add(out.square().sum()).backward()
        result.append((out, lse, q.grad, k.grad, v.grad))
        numbers.append(calls)
    few, many = numbers
    return [torch.equal(a, b) for a, b in zip(*result, strict=True)], few, many


def lost(victim: int, function: str, step: str, how: str) -> list[Any] | None:
    """What the other rank says when one ends or stops as it would begin a step: the error and its peer,
    whether its cache and gradient are as they were, and the error of a call after it. The victim does not
    return.
    """
    cp = ContextParallel(None, "striped", "ring")
    x, token = torch.ones(1, 2, 8, 8, requires_grad=True), torch.ones(1, 2, 1, 8)
    out = cp.attention(x, x, x)
    cache = ShardedKVCache(cp, 1, 3, 2, 8, 64, page_size=4)
    cache.append(0, token, token, [0])
    calls: dict[str, Callable[[], object]] = {
        "backward": lambda: out.sum().backward(),
        "append": lambda: cache.append(0, token, token, [0]),
        "decode": lambda: cache.attention(token, 0, token, token, sequences=[0]),
        "unshard": lambda: cp.unshard(out),
    }
    if dist.get_rank() == victim:
        _end_at(step, how)
    before = _state(cache)
    try:
        calls[function]()
    except PeerError as error:
        return [str(error), error.peer, _state(cache) == before and x.grad is None, outcome(calls["append"])]
    return None


def _end_at(step: str, how: str) -> None:
    """Let this process end or stop when it would begin a step."""
    start = Peers.start

    def ending(self: Peers, sends: Any, receives: Any, what: str, like: Any) -> Any:
        if what == step:
            os.kill(os.getpid(), getattr(signal, how))
        return start(self, sends, receives, what, like)

    Peers.start = ending  # type: ignore[method-assign]


def failing() -> tuple[str, str, str]:
    """The messages of three calls: one in which rank 1 has no memory for the first merge, the next one on the
    same group, and one on another group. A call that succeeds has no message.
    """
    x, group = torch.ones(1, 2, 8, 8), dist.new_group()

    def full(*_: object, **__: object) -> Any:
        raise MemoryError("no memory")

    with contextlib.ExitStack() as stack:
        if dist.get_rank() == 1:
            stack.enter_context(mock.patch.object(flash, "merge_partials", full))
        first = outcome(lambda: ContextParallel(scheme="ring").attention(x, x, x))
    return (
        first,
        outcome(lambda: ContextParallel().attention(x, x, x)),
        outcome(lambda: ContextParallel(group).attention(x, x, x)),
    )


def refused_groups() -> tuple[str, str]:
    """What is said to ranks that are not in a group of ranks 0 and 1, and of a tensor on no device."""
    group = dist.new_group([0, 1])
    x = torch.ones(1, 2, 8, 8, device="meta")
    return outcome(lambda: ContextParallel(group)), outcome(lambda: ContextParallel().unshard(x))


def recomputed(compiled: bool) -> list[bool]:
    """Whether a checkpoint, or a compiled function, has the gradients of a call."""
    cp = ContextParallel(scheme="ring")
    make = torch.Generator().manual_seed(dist.get_rank())
    q, k, v = (torch.randn((1, 2, 8, 8), generator=make).requires_grad_() for _ in range(3))
    call = functools.partial(cp.attention, causal=True)
    result = []
    for number in range(2):
        of: Any = call
        if number and compiled:
            of = torch.compile(lambda *x: call(*x) * 1.0, backend="eager")
        elif number:
            of = functools.partial(checkpoint, call, use_reentrant=False)
        result.append(torch.autograd.grad(of(q, k, v).square().sum(), (q, k, v)))
    return [torch.equal(a, b) for a, b in zip(*result, strict=True)]


def command(options: list[str]) -> tuple[int, str]:
    """The exit code of `ptxgen context-parallel` on the group of these ranks, and what it prints."""
    said = io.StringIO()
    with (
        mock.patch.object(dist, "is_torchelastic_launched", return_value=True),
        mock.patch.object(dist, "init_process_group"),
        mock.patch.object(dist, "destroy_process_group"),
        contextlib.redirect_stdout(said),
    ):
        return context_parallel.main(options), said.getvalue()
