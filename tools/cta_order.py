"""In which order the CTAs of a launch begin, and the times with another order, or with more CTAs for splits
of the keys: a model of multiprocessors that take the next CTA as soon as they are done with one. And the
times with persistent CTAs, which take several blocks of queries, one after another.

`python tools/cta_order.py --head-dim 128 --dtype f16 --causal --seq 8192 --heads 32 --kv-heads 8`
`python tools/cta_order.py --head-dim 128 --seq 4096 --target sm_80 --multiprocessors 108 --splits`
`python tools/cta_order.py --head-dim 128 --dtype f16 --target sm_90a --causal --seq 4096 --schedulers`
"""

from __future__ import annotations

import argparse
import heapq
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

if not __package__:  # run as a script, maybe in a bare checkout
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from ptxgen.interrupts import leave_quietly

    leave_quietly()

from benchmarks.measure.launch_model import (
    Cta,
    Launch,
    Order,
    by_head_from_first,
    in_sections,
    sections,
    times_of_schedulers,
)
from flash.contract.catalogue import build
from flash.contract.resources import KernelResources
from flash.device.cta_order import heads_per_section
from flash.launch.key_splits import (
    OVERHEAD,
    Cost,
    Division,
    Grid,
    Merging,
    Slots,
    choose_division,
    merging_of,
)
from flash.launch.scheduler_choice import HIDDEN
from flash.problem.config import AttentionConfig
from ptxgen.commands.parts.exits import fail
from ptxgen.commands.parts.numbers import whole
from ptxgen.commands.parts.quiet import quietly
from ptxgen.commands.parts.standard_output import tell
from ptxgen.errors import ConfigError, UnsupportedTargetError

OK, UNSUPPORTED = 0, 3
MIB: Final = 1 << 20
# Multiprocessors of an H100 SXM (NVIDIA H100 Tensor Core GPU Architecture, "H100 GPU").
_MULTIPROCESSORS: Final = 132
_L2_MIB: Final = 50


def by_head(launch: Launch) -> list[Cta]:
    """The order head by head, in each head the last block first."""
    return in_sections(launch, 1)


def all_heads(launch: Launch) -> list[Cta]:
    """The order with the last blocks of all heads first, then the blocks before these."""
    return in_sections(launch, launch.heads)


ORDERS: Final[dict[str, Order]] = {
    "head by head, last block first": by_head,
    "head by head, first block first": by_head_from_first,
    "all heads, last block first": all_heads,
    "heads that fit the cache": sections,
}


def simulated(launch: Launch, order: Order, slots: int) -> tuple[float, float]:
    """The time of the launch as a multiple of its time with work spread evenly over `slots` CTAs at
    a time; and the number of heads of K and V that running CTAs read, averaged over time.
    """
    running: list[tuple[int, int]] = []  # end time of each running CTA, and its head of K and V
    live: Counter[int] = Counter()
    now = total = 0
    head_time = 0
    for head, block in order(launch):
        while len(running) >= slots:
            now, head_time = _end_one(running, live, now, head_time)
        cost = launch.tiles[block] + OVERHEAD
        total += cost
        heapq.heappush(running, (now + cost, head // launch.group))
        live[head // launch.group] += 1
    while running:
        now, head_time = _end_one(running, live, now, head_time)
    even = max(-(-total // slots), max(launch.tiles) + OVERHEAD)
    return now / even, head_time / now


def time_of(launch: Launch, order: Order, slots: int, splits: int = 1) -> int:
    """The time of the launch, in tiles, with a CTA for each of `splits` parts of the keys of a block, one
    after the other (`flash/device/cta_coordinates.py`).
    """
    running: list[int] = []  # end times
    now = 0
    for _, block in order(launch):
        size, longer = divmod(launch.tiles[block], splits)
        for part in range(splits):
            if len(running) >= slots:
                now = heapq.heappop(running)
            heapq.heappush(running, now + size + (part < longer) + OVERHEAD)
    return max(running)


def _end_one(running: list[tuple[int, int]], live: Counter[int], now: int, head_time: int) -> tuple[int, int]:
    """End the CTA that ends next. Returns the time, and the sum of live heads over time until then."""
    end, head = heapq.heappop(running)
    head_time += (end - now) * len(live)
    live[head] -= 1
    if not live[head]:
        del live[head]
    return end, head_time


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table; 3 for a configuration that is not supported.

    Raises SystemExit, as argparse does, with 2 for wrong arguments and 0 after `--help`.
    """
    arguments = _arguments(argv)
    try:
        config = AttentionConfig(
            arguments.head_dim, dtype=arguments.dtype, causal=arguments.causal, target=arguments.target
        )
        resources = build(config.kernel()).resources
    except (ConfigError, UnsupportedTargetError) as error:
        return fail("cta_order.py", UNSUPPORTED, error)
    one_head = arguments.seq * 2 * config.head_dim * config.element.nbytes
    tiles = tuple(int(n) for n in resources.tiles_of_blocks(arguments.queries, arguments.seq))
    group = arguments.heads // arguments.kv_heads
    heads = arguments.batch * arguments.heads
    fit = heads_per_section(heads, group, one_head, arguments.l2_mib * MIB)
    launch = Launch(heads, group, tiles, fit)
    slots = arguments.multiprocessors * resources.ctas_per_sm
    if arguments.schedulers:
        order: Order = sections if config.causal else by_head_from_first
        tell(
            f"{resources.config.name}, {launch.heads * len(tiles)} blocks, {slots} at a time; times in tiles"
        )
        tell(f"{'scheduler':10} {'time':>9} {'gain':>6} {'with overlap':>13} {'gain':>6}")
        plain, overlapped = (times_of_schedulers(launch, order, slots, part) for part in (0.0, HIDDEN))
        for name, time in plain.items():
            gains = plain["grid"] / time, plain["grid"] / overlapped[name]
            tell(f"{name:10} {time:9.1f} {gains[0]:6.3f} {overlapped[name]:13.1f} {gains[1]:6.3f}")
        return OK
    if arguments.splits:
        _tell_splits(arguments, resources, one_head)
        return OK
    tell(f"{resources.config.name}, {launch.heads * len(tiles)} CTAs, {slots} at a time")
    tell(f"{'order':32} {'time / even':>11} {'live K, V':>12}")
    for name, order in ORDERS.items():
        time, heads = simulated(launch, order, slots)
        tell(f"{name:32} {time:11.3f} {heads * one_head / MIB:8.1f} MiB")
    return OK


def _tell_splits(arguments: argparse.Namespace, resources: KernelResources, one_head: int) -> None:
    """Print a line for each number of heads up to the given one: the blocks that the rule of
    `flash/launch/key_splits.py` divides, the number of splits, and the times with and without them.
    """
    config = resources.config
    slots = Slots(arguments.multiprocessors, resources.ctas_per_sm)
    tell(f"{config.name}, {slots.total} CTAs at a time; times in tiles of keys")
    tell("heads   CTAs divided splits   without      with  of it merging   gain")
    tiles = resources.tiles_of_blocks(arguments.queries, arguments.seq)
    cost = Cost(int(tiles.max()), float(tiles.mean()))
    merging = merging_of(config, arguments.queries, slots)
    for heads in range(1, arguments.batch * arguments.heads + 1):
        fit = heads_per_section(heads, 1, one_head, arguments.l2_mib * MIB)
        launch = Launch(heads, 1, tuple(map(int, tiles)), fit)
        division = choose_division(Grid(heads, len(tiles)), slots, cost, merging)
        plain = time_of(launch, sections if config.causal else by_head_from_first, slots.total)
        time, merge = float(plain), 0.0
        if division.splits > 1:
            time, merge = simulated_division(launch, division, slots.total, merging)
        what = f"{heads:5} {heads * len(tiles):6} {(heads - division.whole) * (division.splits > 1):7}"
        times = f"{plain:9} {time:9.1f} {merge:14.1f} {plain / time:6.2f}"
        tell(f"{what} {division.splits:6} {times}")


def simulated_division(
    launch: Launch, division: Division, slots: int, merging: Merging
) -> tuple[float, float]:
    """The time, in tiles, of a launch part of which is divided into splits, and the part of it that later
    launches and merging take. Kernels with splits take blocks in order (`KernelConfig.takes_turns`).
    """
    rest = launch.heads - division.whole
    merge = merging.cost(rest, division.splits) + (merging.launch if division.whole else 0.0)
    time = time_of(replace(launch, heads=rest), by_head_from_first, slots, division.splits)
    if division.whole:
        time += time_of(replace(launch, heads=division.whole), by_head_from_first, slots)
    return time + merge, merge


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="cta_order.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--head-dim", type=int, default=128, metavar="D")
    add("--dtype", default="f16")
    add("--causal", action="store_true")
    add("--target", default="sm_90")
    add("--seq", type=whole(1), default=8192, metavar="N", help="keys (8192)")
    add("--queries", type=whole(1), metavar="N", help="default: --seq")
    add("--heads", type=whole(1), default=32, metavar="N")
    add("--kv-heads", type=whole(1), metavar="N", help="default: --heads")
    add("--batch", type=whole(1), default=1, metavar="N")
    add("--multiprocessors", type=whole(1), default=_MULTIPROCESSORS, metavar="N")
    add("--l2-mib", type=whole(1), default=_L2_MIB, metavar="MIB", help="the cache (50)")
    add("--splits", action="store_true", help="for 1 to --heads heads: splits of the keys, and their gain")
    add("--schedulers", action="store_true", help="a CTA for each block of queries beside persistent ones")
    arguments = parser.parse_args(argv)
    arguments.queries = arguments.queries or arguments.seq
    arguments.kv_heads = arguments.kv_heads or arguments.heads
    if arguments.heads % arguments.kv_heads:
        parser.error(f"--heads must be a multiple of --kv-heads, got {arguments.heads}")
    return arguments


if __name__ == "__main__":
    sys.exit(quietly(main))
