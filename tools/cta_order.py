"""In which order the CTAs of a launch begin, and what another order would be worth: a model of
multiprocessors that take the next CTA as soon as they are done with one.

`python tools/cta_order.py --head-dim 128 --dtype f16 --causal --seq 8192 --heads 32 --kv-heads 8`
"""

from __future__ import annotations

import argparse
import heapq
import importlib.util
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

if importlib.util.find_spec("ptxgen") is None:  # a bare checkout, nothing installed
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from flash.contract.catalogue import build
from flash.device.cta_order import heads_per_section
from flash.problem.config import AttentionConfig
from ptxgen.errors import ConfigError, UnsupportedTargetError

OK, UNSUPPORTED = 0, 3
MIB: Final = 1 << 20
# Of an H100 SXM (NVIDIA H100 Tensor Core GPU Architecture, "H100 GPU").
_MULTIPROCESSORS: Final = 132
_L2_MIB: Final = 50
# What a CTA does beside its tiles of keys, such as reading Q and writing O, in such tiles.
_BESIDE: Final = 1


@dataclass(frozen=True, slots=True)
class Launch:
    """CTAs of `heads` heads, of all batches, of which `group` in a row share one of K and V;
    `tiles` are those of keys that the blocks of a head visit, and `section` is how many heads take
    turns.
    """

    heads: int
    group: int
    tiles: tuple[int, ...]
    section: int


Cta = tuple[int, int]  # head and block
Order = Callable[[Launch], list[Cta]]


def by_head(launch: Launch) -> list[Cta]:
    """Head by head, in each of them the last block first."""
    return _in_sections(launch, 1)


def by_head_from_first(launch: Launch) -> list[Cta]:
    """That of the kernels without: head by head, in each of them the first block first."""
    blocks = range(len(launch.tiles))
    return [(head, block) for head in range(launch.heads) for block in blocks]


def all_heads(launch: Launch) -> list[Cta]:
    """The last blocks of all heads, then those before them."""
    return _in_sections(launch, launch.heads)


def sections(launch: Launch) -> list[Cta]:
    """The same for as many heads at a time as fit into the cache: that of the kernels with
    causality (`flash/device/cta_order.py`), and of FlashAttention-3's scheduler.
    """
    return _in_sections(launch, launch.section)


def _in_sections(launch: Launch, width: int) -> list[Cta]:
    return [
        (head, block)
        for first in range(0, launch.heads, width)
        for block in reversed(range(len(launch.tiles)))
        for head in range(first, min(first + width, launch.heads))
    ]


ORDERS: Final[dict[str, Order]] = {
    "head by head, last block first": by_head,
    "head by head, first block first": by_head_from_first,
    "all heads, last block first": all_heads,
    "heads that fit the cache": sections,
}


def simulated(launch: Launch, order: Order, slots: int) -> tuple[float, float]:
    """How much longer the launch takes than with its work spread evenly over `slots` CTAs at a
    time, as a factor; and on how many heads of K and V they work at once, on average over time.
    """
    running: list[tuple[int, int]] = []  # when each ends, and its head of K and V
    live: Counter[int] = Counter()
    now = total = 0
    head_time = 0
    for head, block in order(launch):
        while len(running) >= slots:
            now, head_time = _end_one(running, live, now, head_time)
        cost = launch.tiles[block] + _BESIDE
        total += cost
        heapq.heappush(running, (now + cost, head // launch.group))
        live[head // launch.group] += 1
    while running:
        now, head_time = _end_one(running, live, now, head_time)
    even = max(-(-total // slots), max(launch.tiles) + _BESIDE)
    return now / even, head_time / now


def _end_one(
    running: list[tuple[int, int]], live: Counter[int], now: int, head_time: int
) -> tuple[int, int]:
    """Let the next CTA end: the time then, and the sum of live heads over time."""
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
    given = _arguments(argv)
    try:
        config = AttentionConfig(
            given.head_dim, dtype=given.dtype, causal=given.causal, target=given.target
        )
        resources = build(config.kernel()).resources
    except (ConfigError, UnsupportedTargetError) as error:
        print(f"cta_order.py: error: {error}", file=sys.stderr)
        return UNSUPPORTED
    one_head = given.seq * 2 * config.head_dim * config.element.nbytes
    tiles = tuple(int(n) for n in resources.tiles_of_blocks(given.seq, given.seq))
    group = given.heads // given.kv_heads
    heads = given.batch * given.heads
    fit = heads_per_section(heads, group, one_head, given.l2_mib * MIB)
    launch = Launch(heads, group, tiles, fit)
    slots = given.multiprocessors * resources.ctas_per_sm
    print(f"{resources.config.name}, {launch.heads * len(tiles)} CTAs, {slots} at a time")
    print(f"{'order':32} {'time / even':>11} {'live K, V':>12}")
    for name, order in ORDERS.items():
        time, heads = simulated(launch, order, slots)
        print(f"{name:32} {time:11.3f} {heads * one_head / MIB:8.1f} MiB")
    return OK


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="cta_order.py", description=__doc__.splitlines()[0], allow_abbrev=False
    )
    add = parser.add_argument
    add("--head-dim", type=int, default=128, metavar="D")
    add("--dtype", default="f16")
    add("--causal", action="store_true")
    add("--target", default="sm_90")
    add("--seq", type=_positive, default=8192, metavar="N", help="queries, and keys (8192)")
    add("--heads", type=_positive, default=32, metavar="N")
    add("--kv-heads", type=_positive, metavar="N", help="default: --heads")
    add("--batch", type=_positive, default=1, metavar="N")
    add("--multiprocessors", type=_positive, default=_MULTIPROCESSORS, metavar="N")
    add("--l2-mib", type=_positive, default=_L2_MIB, metavar="MIB", help="the cache (50)")
    given = parser.parse_args(argv)
    given.kv_heads = given.kv_heads or given.heads
    if given.heads % given.kv_heads:
        parser.error(f"--heads must be a multiple of --kv-heads, got {given.heads}")
    return given


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


if __name__ == "__main__":
    sys.exit(main())
