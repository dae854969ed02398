"""Calls of the ranks of a group that differ, for tests of `flash.distributed`."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from distributed_cases import distance_mod, mask_mod

import flash
from flash.distributed import ContextParallel, Machine, ShardedKVCache
from flash.distributed.local import TileAttention

_ARRAYS = ("alibi_slopes", "sink", "key_bias", "bias", "mask", "slopes", "cu_seqlens_q", "cu_seqlens_k")
_OF_PARALLEL = ("layout", "scheme", "degree", "machine")
_FUNCTIONS = {"score_mod": distance_mod, "mask_mod": mask_mod}


def _said(call: Callable[[], object]) -> str:
    """The kind and text of the error of a call."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def _arguments(options: dict[str, Any]) -> dict[str, Any]:
    """The arguments of these words: lists are arrays, functions are named, and slopes are of `aux`."""
    found = dict(options)
    for name in found.keys() & set(_ARRAYS):
        found[name] = torch.tensor(found[name])
    for name in found.keys() & _FUNCTIONS.keys():
        found[name] = _FUNCTIONS[found[name]]
    if "slopes" in found:
        found["aux"] = {"slopes": found.pop("slopes")}
    if "flops" in found:
        found["machine"] = Machine(flops=found.pop("flops"))
    return found


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

    return _said(call), _works()


def _works() -> bool:
    x = torch.ones(1, 2, 8, 8)
    return bool(ContextParallel().attention(x, x, x).eq(1).all())


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

    return _said(call), _works()


def gradients_of_lse(scheme: str, ranks: list[int]) -> float:
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
    assert q.grad is not None
    want, of_lse = flash.attention(*whole, causal=True, return_lse=True)
    dlse = weights.expand(1, 4, 32).contiguous()
    found = flash.attention_backward(torch.ones_like(want), *whole, want, of_lse, dlse=dlse, causal=True)
    return float((cp.unshard(q.grad) - found.dq).abs().max() / found.dq.abs().max())


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
    said = _said(calls[last])
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
    found = ["", ""]

    def first() -> None:
        begun.set()
        found[0] = _said(lambda: ContextParallel(groups[0]).attention(x, x, x))

    thread = threading.Thread(target=first)
    if late:
        time.sleep(0.3)
    thread.start()
    begun.wait()
    if not late:
        time.sleep(0.1)
        found[1] = _said(lambda: ContextParallel(groups[1]).attention(x, x, x))
        thread.join()
    else:
        thread.join()
        if own_groups:
            found[1] = _said(lambda: ContextParallel(groups[1]).attention(x, x, x))
    return found


def packed(layout: str, window: Any, scores: dict[str, Any]) -> tuple[list[bool], int, int]:
    """Whether results and gradients of 60 documents have the same bits in packs as one by one; and how many
    calls there are, forward and backward, in packs and one by one.
    """
    lengths = [(7 * n) % 13 for n in range(60)]
    ends = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
    own = _arguments(scores)
    cp = ContextParallel(layout=layout, scheme="ring")
    make = torch.Generator().manual_seed(0)
    whole = [torch.randn((int(ends[-1]) + 5, heads, 8), generator=make) for heads in (4, 2, 2)]
    found, numbers = [], []
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
        found.append((out, lse, q.grad, k.grad, v.grad))
        numbers.append(calls)
    return [torch.equal(a, b) for a, b in zip(*found, strict=True)], *numbers
