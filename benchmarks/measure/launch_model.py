"""How long a launch takes: blocks of queries on multiprocessors, by the clocks of the issue model.

A block of n tiles of keys takes n iterations of the main loop (`issue_model`), and beside them

* for W warpgroups, which begin one after another, 1 - 1 / W iterations;
* the last product, half of the clocks that a warpgroup keeps tensor cores busy in an iteration, and 49
  clocks until its sums are there (`issue_model`);
* Q and O once through DRAM at the multiprocessor's share of its bandwidth, because multiprocessors begin
  and end their blocks at about the same time;
* in a grid, half an iteration more, which persistent CTAs hide (`flash.launch.scheduler_choice.HIDDEN`).

Which blocks run at a time, and which wait for which, is the model of `tools/cta_order.py`, which lies here.
It knows neither clocks that fall under load, nor what the cache keeps of Q and O, nor that tiles which a
mask cuts take longer. Beside rates that an H200 measured it is right within a tenth for full attention
(docs/tuning.md, "Launches beside the clock").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from flash.commands.measure.static_quality import threads_of_loop
from flash.contract.catalogue import Build
from flash.device.cta_order import heads_per_section
from flash.launch.key_splits import BESIDE
from flash.launch.scheduler_choice import HIDDEN, time_mirrored, time_of_grid
from flash.problem.persistence import GRID
from flash.problem.wgmma_tiling import WgmmaTiling
from ptxgen.report.issue_model import WARPGROUP_CLOCKS, Busy
from ptxgen.report.rates import Device

# NVIDIA H200 Tensor Core GPU, data sheet: 4.8 TB/s; otherwise an H100 SXM (`ptxgen.report.rates`).
H200: Final = Device("H200 SXM 141 GB", 132, 1980, 4800, 2048)
CACHE_BYTES: Final = 60 << 20  # L2 of an H200, as its driver says


@dataclass(frozen=True, slots=True)
class Launch:
    """The CTAs of a launch: of `heads` query heads of all batch items, of which each `group`
    consecutive ones share a head of K and V. `tiles` holds the number of key tiles that each block
    of query rows of a head visits; `section` is the number of heads whose CTAs take turns.
    """

    heads: int
    group: int
    tiles: tuple[int, ...]
    section: int


Cta = tuple[int, int]  # head, and block of query rows
Order = Callable[[Launch], list[Cta]]


def by_head_from_first(launch: Launch) -> list[Cta]:
    """The order of kernels without causality: head by head, in each head the first block first."""
    blocks = range(len(launch.tiles))
    return [(head, block) for head in range(launch.heads) for block in blocks]


def sections(launch: Launch) -> list[Cta]:
    """The order of kernels with causality (`flash/device/cta_order.py`), and of FlashAttention-3's
    scheduler: section by section of the heads whose K and V fit into the cache, in each section the
    last blocks of all its heads first.
    """
    return in_sections(launch, launch.section)


def in_sections(launch: Launch, width: int) -> list[Cta]:
    """The order with sections of so many heads, in each the last blocks of all its heads first."""
    return [
        (head, block)
        for first in range(0, launch.heads, width)
        for block in reversed(range(len(launch.tiles)))
        for head in range(first, min(first + width, launch.heads))
    ]


def time_in_turn(costs: Sequence[float], slots: int) -> float:
    """The time of CTAs that take every so many of these blocks (`flash/problem/persistence.py`, static)."""
    return max(sum(costs[first::slots]) for first in range(min(slots, len(costs))))


def times_of_schedulers(
    launch: Launch, order: Order, slots: int, hidden: float, beside: float = BESIDE
) -> dict[str, float]:
    """The time of a launch with each scheduler, in tiles, of which a block costs `beside` more than it
    visits. Of each block but a CTA's first, `hidden` of a tile passes while the block before is finished.
    """
    grid = [launch.tiles[block] + beside for _, block in order(launch)]
    kept = [cost - (hidden * BESIDE if n >= slots else 0.0) for n, cost in enumerate(grid)]
    return {
        "grid": time_of_grid(grid, slots),
        "static": time_in_turn(kept, slots),
        "mirrored": time_mirrored(np.asarray(grid), slots, hidden * BESIDE),
    }


@dataclass(frozen=True, slots=True)
class Sizes:
    """A launch's arrays: items of the batch, heads of Q, of K and V, and rows of queries and of keys."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the model says of a launch: clocks of a multiprocessor, operations that the result needs, and the
    share of the clocks of all multiprocessors in which tensor cores are busy, 0 to 1.
    """

    clocks: float
    operations: int
    tensor: float

    def tflops(self, device: Device) -> float:
        """TFLOP/s that the result needs, at the device's boost clock."""
        return self.operations * device.mhz * 1e6 / self.clocks / 1e12


def estimate(forward: Build, busy: Busy, ctas: int, sizes: Sizes, device: Device) -> Estimate:
    """The estimate of a launch of a forward kernel, of which so many CTAs are resident on a multiprocessor
    and whose main loop is `busy`. Raises `KeyError` for the scheduler "ticket", which is not in the model.
    """
    kernel, resources = forward.config, forward.resources
    t = kernel.tiling
    warpgroups = t.consumers if isinstance(t, WgmmaTiling) else 1
    iteration = busy.clocks_of_ctas(threads_of_loop(t), ctas)
    of_rows = t.block_q * (t.head_dim * kernel.dtype.nbytes + t.head_dim_v * kernel.output.nbytes)
    last = busy.tensor * iteration / warpgroups / 2 + WARPGROUP_CLOCKS
    beside = 1 - 1 / warpgroups + (last + of_rows / device.bytes_per_clock) / iteration
    beside += HIDDEN * BESIDE * (kernel.scheduler == GRID)
    heads = sizes.batch * sizes.heads
    group = sizes.heads // sizes.kv_heads
    one_head = sizes.keys * (t.head_dim + t.head_dim_v) * kernel.dtype.nbytes
    tiles = resources.tiles_of_blocks(sizes.queries, sizes.keys)
    launch = Launch(
        heads, group, tuple(map(int, tiles)), heads_per_section(heads, group, one_head, CACHE_BYTES)
    )
    order = sections if kernel.hides_keys else by_head_from_first
    slots = device.multiprocessors * ctas
    clocks = iteration * times_of_schedulers(launch, order, slots, 0.0, beside)[kernel.scheduler]
    needed = resources.useful_flops(sizes.batch, sizes.heads, sizes.queries, sizes.keys)
    work = busy.tensor * iteration * heads * float(tiles.sum())
    return Estimate(clocks, needed, work / (slots * clocks))
