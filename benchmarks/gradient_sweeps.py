"""Compares ways to sum dQ by counts: two sweeps, one sweep with atomics, one in a fixed order.

    python benchmarks/gradient_sweeps.py --target sm_90
    python benchmarks/gradient_sweeps.py --target sm_120 --kind tf32 --head-dim 64 128 192

The interpreter runs the kernels of a small problem; the issue model of `ptxgen report` divides what
their warps did by the rates of a multiprocessor's units. It knows no latency. For the fixed order, where
the CTAs of a head take turns at each block of queries, a simulation adds the waiting: a CTA may add its part
once the CTA of the previous keys has added its own and has signalled that through the L2 cache.
"""

from __future__ import annotations

import argparse
import heapq
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import flash
from flash.calls.step import Step
from flash.contract.gradients import GradientBuild, gradient_build
from flash.gradients.checks import WRITTEN, Checks
from flash.gradients.steps import GradientCall, memory_of, steps_of
from flash.host.caller import Caller
from flash.problem.gradient_choice import gradient_config
from flash.problem.gradients import KEYS, GradientConfig
from flash.reference import attention_reference
from ptxgen.arrays.views import view
from ptxgen.rates import DEVICES
from ptxgen.report.limits import limits
from ptxgen.target import Target
from ptxgen.target import target as find_target

_CTAS_PER_SM = 2  # by registers, of all kernels by keys here
_HEADS = 32  # of all batch items
_TILE = 64  # scores are counted in tiles of 64 x 64
_LEFT_OUT = "global memory"  # the model has no caches
KINDS: dict[str, dict[str, Any]] = {
    "f16": {"dtype": "f16"},
    "tf32": {"precision": "tf32"},
    "f32_grade": {"precision": "f32_grade"},
}


def launches(
    config: flash.AttentionConfig,
    on: Target,
    seq: int,
    *,
    one_sweep: bool,
    build: Callable[[GradientConfig], GradientBuild] = gradient_build,
) -> list[Step]:
    """The launches of a call of one head; `build` makes the kernel of a configuration, maybe with other
    tiles.
    """
    rng, shape = np.random.default_rng(0), (1, 1, seq, config.head_dim)
    kind = np.float16 if config.dtype == "f16" else np.float32
    arrays = {n: rng.standard_normal(shape).astype(kind) for n in ("dout", "q", "k", "v")}
    out, lse = attention_reference(*(arrays[n] for n in "qkv"))
    arrays |= {"out": out.astype(kind), "lse": lse.astype(np.float32)}
    arrays |= {name: np.empty_like(arrays[of]) for name, of in WRITTEN.items()}
    views = {name: view(array, name) for name, array in arrays.items()}
    checked = Checks(config, Caller("gradient_sweeps")).check(views, {}, "bhsd", (None, None))
    call = GradientCall(config, checked, "bhsd", config.scale, views, {}, {}, {}, one_sweep)
    memory = {
        n: view(np.zeros(m.shape, np.float32), n) for n, m in memory_of(call, on, "AttentionGradient").items()
    }
    return list(steps_of(call, on, memory, "gradient_sweeps", build=build))


def clocks_of(step: Step) -> dict[str, float]:
    """The clocks of a multiprocessor's units that a launch takes."""
    counters = step.interpret(profile=True).counters
    ctas = step.plan.grid[0]
    bounds = limits(step.build.target, step.build.threads, 0, 0, ctas, counters).bounds
    return {bound.unit: bound.cycles * ctas for bound in bounds}


def ordered(
    blocks: int, tiles: int, work: float, handover: float, slots: int, *, causal: bool, up: bool
) -> float:
    """The clocks of a grid whose CTAs add to dQ in the order of their keys: of `_HEADS` heads with
    `blocks` blocks of keys and `tiles` tiles of queries. A CTA has `work` clocks of each tile; the next
    may add `handover` clocks after it has. `up`: CTAs walk from the first query to the last. CTAs get one of
    `slots` in their order; that the neighbour of a waiting CTA runs faster is not modelled.
    """
    next_block: dict[tuple[int, int], int] = defaultdict(int)  # by head and tile: the block that adds next
    since: dict[tuple[int, int], float] = defaultdict(float)
    waiting: dict[tuple[int, int, int], tuple[float, Iterator[int]]] = {}
    free, events, end = [0.0] * slots, list[tuple[float, int, int, int, Iterator[int]]](), 0.0
    todo = iter([(head, block) for head in range(_HEADS) for block in range(blocks)])

    def begin(time: float) -> None:
        for head, block in todo:
            first = block * tiles // blocks if causal else 0
            walk = iter(range(first, tiles) if up else range(tiles - 1, first - 1, -1))
            heapq.heappush(events, (time + work, head, block, next(walk), walk))
            return

    for time in free:
        begin(time)
    while events:
        time, head, block, tile, walk = heapq.heappop(events)
        index = head, tile
        if next_block[index] < block:
            waiting[head, tile, block] = time, walk
            continue
        time = max(time, since[index])
        next_block[index], since[index] = block + 1, time + handover
        follower = waiting.pop((head, tile, block + 1), None)
        if follower is not None:
            again = max(follower[0], since[index])
            heapq.heappush(events, (again, head, block + 1, tile, follower[1]))
        end = max(end, time)
        following = next(walk, None)
        if following is None:
            begin(time)
        else:
            heapq.heappush(events, (time + work, head, block, following, walk))
    return end


def say(line: str) -> None:
    """Write a line."""
    sys.stdout.write(f"{line}\n")


def main(argv: list[str]) -> int:
    """Print the clocks of the ways that the command line asks about."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--target", default="sm_90", help="sm_80, sm_90, … (default: sm_90)")
    parser.add_argument("--seq", type=int, default=256, help="queries and keys of the run (default: 256)")
    parser.add_argument("--long", type=int, default=4096, help="those of the simulation (default: 4096)")
    parser.add_argument(
        "--handover", type=int, default=800, help="clocks from one CTA's sums to the next's (default: 800)"
    )
    parser.add_argument("--kind", choices=KINDS, default="f16", help="how elements are multiplied")
    parser.add_argument(
        "--head-dim", type=int, nargs="+", default=[64, 128, 256], help="(default: 64 128 256)"
    )
    how = parser.parse_args(argv)
    on, ways = find_target(how.target), {"two sweeps": False, "one sweep": True}
    slots = _CTAS_PER_SM * DEVICES[on.sm].multiprocessors
    say(f"{on}: clocks of a multiprocessor for {_TILE} x {_TILE} scores")
    for head_dim in how.head_dim:
        config = flash.AttentionConfig(head_dim, **KINDS[how.kind])
        per = (how.seq // _TILE) ** 2
        total = {}
        for way, one_sweep in ways.items():
            each = [clocks_of(step) for step in launches(config, on, how.seq, one_sweep=one_sweep)]
            units = {u: sum(c.get(u, 0.0) for c in each) / per for u in each[-1] | each[0] | each[1]}
            total[way] = sum(max(n for u, n in c.items() if u != _LEFT_OUT) for c in each) / per
            shown = ", ".join(f"{u} {n:.0f}" for u, n in sorted(units.items(), key=lambda x: -x[1]))
            say(f"d {head_dim}, {way}: busiest {total[way]:.0f} ({shown})")
        say(f"d {head_dim}: one sweep takes {total['one sweep'] / total['two sweeps']:.2f} times two sweeps")
        tile = gradient_config(config, KEYS, on, 16, one_sweep=True).tiling.tile
        work = _CTAS_PER_SM * total["one sweep"] * tile / _TILE
        blocks, tiles = how.long // _TILE, how.long // tile
        for causal in (False, True):
            free, in_order = (
                min(
                    ordered(blocks, tiles, work, n, slots, causal=causal, up=up) / work
                    for up in (True, False)
                )
                for n in (0.0, how.handover)
            )
            alone = (
                _HEADS * sum(tiles - (b * tiles // blocks if causal else 0) for b in range(blocks)) / slots
            )
            say(
                f"d {head_dim}, {'causal' if causal else 'full'}, {how.long} keys: in a fixed order "
                f"{in_order / alone:.2f} times one sweep with atomics ({free / alone:.2f} with handovers "
                f"that take no time), two sweeps {total['two sweeps'] / total['one sweep']:.2f} times"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
