"""What `ptxgen context-parallel` measures on each rank, and compares with one process."""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

import flash
from flash.distributed import ContextParallel, Machine
from flash.distributed.exchange import Event
from flash.operands.dtypes import DTYPES, F32
from ptxgen.commands.parts.progress import progress

# The allowed error, in roundings of the largest element: f32 is summed in another order; in 16 bits parts
# and results are rounded.
_ROUNDINGS_OF_F32: Final = 64
_ROUNDINGS: Final = 8
_NAMES: Final = ("out", "lse", "dq", "dk", "dv")
_UNIT_OF_PEAK: Final = 1 if sys.platform == "darwin" else 1024  # bytes


class Measured(NamedTuple):
    """The measurements that `--json` prints, and the events of each rank in the last call."""

    record: dict[str, Any]
    events: list[list[Event]]


def measured(arguments: argparse.Namespace) -> Measured | None:
    """Run attention on all ranks; the measurements on the first rank, None on others.

    Raises what `ContextParallel.attention` raises.
    """
    machine = Machine(arguments.flops, arguments.bandwidth, arguments.latency)
    cp = ContextParallel(None, arguments.layout, arguments.scheme, degree=arguments.degree, machine=machine)
    is_first = cp.peers.rank == 0
    whole = _inputs(arguments)
    q, k, v, dout = (cp.shard(t).requires_grad_(arguments.backward) for t in whole)
    settings: dict[str, Any] = {"causal": arguments.causal, "window": arguments.window}
    explained = cp.explain(q, k, v, **settings)
    times: list[tuple[float, float]] = []  # elapsed and of this process's cores, of each call
    memory = 0
    out, lse = q, q
    jobs = arguments.repeat + 1 + (not arguments.no_check)
    with progress(jobs if is_first else 0) as begin:
        for number in range(arguments.repeat + 1):
            if is_first:
                begin(f"call {number}" if number else "first call")
            for t in (q, k, v):
                t.grad = None
            dist.barrier()
            before, busy, peak = time.perf_counter(), time.process_time(), _peak()
            out, lse = cp.attention(q, k, v, return_lse=True, **settings)
            if arguments.backward:
                out.backward(dout.detach())
            memory = max(memory, _peak() - peak)
            times.append((time.perf_counter() - before, time.process_time() - busy))
        gathered: list[Any] = [None] * cp.peers.world
        dist.all_gather_object(gathered, (_of_rank(cp, arguments, q, times, memory), cp.traffic.events))
        results = [out.detach(), lse.detach()]
        results += [t.grad for t in (q, k, v) if t.grad is not None]
        errors: dict[str, float] = {}
        one = 0.0
        if not arguments.no_check:
            unsharded = [cp.unshard(t, 2) for t in results]
            if is_first:
                begin("one process")
                begun = time.perf_counter()
                want = _one_process(whole, arguments.backward, settings)
                one = time.perf_counter() - begun
                errors = {n: _error(a, b) for n, a, b in zip(_NAMES, unsharded, want, strict=False)}
            dist.barrier()
    if not is_first:
        return None
    ranks = [of_rank for of_rank, _ in gathered]
    of = DTYPES[arguments.dtype]
    bound = (_ROUNDINGS_OF_F32 if of is F32 else _ROUNDINGS) * of.rounding[0]
    planned = all(abs(r["bytes"] - r["planned_bytes"]) <= 0.01 * r["planned_bytes"] for r in ranks)
    record = {
        "problem": _problem(arguments, cp.peers.world),
        "explained": explained,
        "seconds": statistics.median(max(r["seconds"][n] for r in ranks) for n in range(arguments.repeat)),
        "one_process_s": one,
        "ranks": ranks,
        "errors": errors,
        "bound": bound,
        "passed": planned and all(error <= bound for error in errors.values()),
    }
    return Measured(record, [events for _, events in gathered])


def _inputs(arguments: argparse.Namespace) -> list[Tensor]:
    """q, k, v and dout of the whole sequence, the same on every rank."""
    make = torch.Generator().manual_seed(0)
    heads, kv_heads = arguments.heads, arguments.kv_heads or arguments.heads
    shapes = [
        (arguments.batch, n, arguments.seq, arguments.head_dim) for n in (heads, kv_heads, kv_heads, heads)
    ]
    dtype = getattr(torch, DTYPES[arguments.dtype].array_name)
    return [torch.randn(shape, generator=make, device="cpu").to(dtype) for shape in shapes]


def _of_rank(
    cp: ContextParallel,
    arguments: argparse.Namespace,
    q: Tensor,
    times: list[tuple[float, float]],
    memory: int,
) -> dict[str, Any]:
    assert cp.plan is not None  # attention was called
    traffic, rank = [cp.traffic, *([cp.gradient_traffic] if arguments.backward else [])], cp.peers.rank
    spent = {
        kind: sum(e.end - e.begin for t in traffic for e in t.events if e.kind == kind)
        for kind in ("compute", "wait")
    }
    planned = cp.plan.bytes(rank) + (cp.plan.gradient_bytes(rank) if arguments.backward else 0)
    return {
        "rows": q.shape[2],
        "scores": cp.traffic.scores,
        "bytes": sum(t.bytes for t in traffic),
        "planned_bytes": planned,
        "seconds": [elapsed for elapsed, _ in times[1:]],
        "cpu_s": min(busy for _, busy in times[1:]),
        "compute_s": spent["compute"],
        "wait_s": spent["wait"],
        "memory_bytes": memory,
    }


def _one_process(whole: list[Tensor], backward: bool, settings: Mapping[str, Any]) -> list[Tensor]:
    q, k, v, dout = whole
    out, lse = flash.attention(q, k, v, return_lse=True, **settings)
    if not backward:
        return [out, lse]
    gradients = flash.attention_backward(dout, q, k, v, out, lse, **settings)
    return [out, lse, gradients.dq, gradients.dk, gradients.dv]


def _error(got: Tensor, want: Tensor) -> float:
    """The largest error, relative to the largest element; equal infinities have none."""
    error = torch.where(got == want, 0.0, (got.double() - want.double()).abs()).max().item()
    return float(error / max(want[want.isfinite()].abs().max().item(), 1e-30))


def _problem(arguments: argparse.Namespace, world: int) -> dict[str, Any]:
    names = ("seq", "batch", "heads", "kv_heads", "head_dim", "dtype", "causal", "window", "layout")
    sizes = {name: getattr(arguments, name) for name in names}
    return {**sizes, "kv_heads": sizes["kv_heads"] or sizes["heads"], "ranks": world}


def _peak() -> int:
    """The most memory, in bytes, that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT_OF_PEAK
