"""How long a launch takes: blocks of queries on multiprocessors, by the clocks of the issue model.

A block of a kernel with warpgroups takes a CTA the clocks of its instructions, from first to last
(`ptxgen.report.issue_block`), and next to them

* Q and O once through DRAM at the multiprocessor's share of its bandwidth, because multiprocessors begin
  and end their blocks at about the same time: the memory of Q is free for the next block when O has left it;
* DRAM_CLOCKS until Q comes, and where the kernel waits until O is in memory, CACHE_CLOCKS until it is.

A persistent CTA prepares its barriers once, and its warpgroups begin a block while others finish the one
before. What passes through DRAM while it computes does not lengthen a block (`Blocks.hidden`): O, if it has
a tile of its own, and Q, if there are two tiles of it. A block takes at least as long as its memory, and what
is hidden stands once beside all blocks of a CTA. No launch is shorter than Q, K, V and O once through DRAM.

A block of n tiles of other kernels takes n iterations of the main loop (`issue_model`), and next to them the
rows of Q and O, the last product, half of the clocks that a warp keeps tensor cores busy in an iteration, and
half an iteration, which persistent CTAs hide.

Which blocks run at a time, and which wait for which, is the model of `tools/cta_order.py`, which lies here.
It knows neither clocks that change with the load, nor how long a CTA takes to begin, nor what the cache
keeps of Q and O. docs/measurements.md ("Launches and the clock") has the times of an H200.
"""

from __future__ import annotations

import functools
import heapq
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from flash.contract.catalogue import Build
from flash.device.cta_order import heads_per_section
from flash.families.wgmma import WGMMA_ROWS
from flash.families.wgmma_fp8 import FP8
from flash.launch.key_splits import OVERHEAD
from flash.launch.scheduler_choice import HIDDEN, mirrored, time_mirrored, time_of_grid
from flash.problem.persistence import GRID, MIRRORED
from ptxgen.rates import Device
from ptxgen.report.issue_block import BlockClocks, Walk, block_clocks
from ptxgen.report.issue_model import Busy
from ptxgen.runtime.assembler import find_assembler
from ptxgen.runtime.sass import SassInstr, block_of, find_disassembler
from ptxgen.target import Target

CACHE_BYTES: Final = 60 << 20  # L2 of an H200, as its driver says
# Clocks until global memory answers, from DRAM and from L2, of an H100: Luo et al., "Benchmarking and
# Dissecting the Nvidia Hopper GPU Architecture" (2024).
DRAM_CLOCKS: Final = 479
CACHE_CLOCKS: Final = 260
_QUERIES: Final = re.compile(r"// region ring_1_q: offset \d+, (\d+) bytes")  # of all stages of Q
_OUTPUTS: Final = "// region out:"  # O has a tile of its own
_LEFT: Final = "cp.async.bulk.wait_group.read"  # waits until O has left shared memory


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
    """The order with sections of `width` heads; in each section the last blocks of all its heads come
    first.
    """
    return [
        (head, block)
        for first in range(0, launch.heads, width)
        for block in reversed(range(len(launch.tiles)))
        for head in range(first, min(first + width, launch.heads))
    ]


def time_static(costs: Sequence[float], slots: int) -> float:
    """The time of `slots` CTAs, each of which takes every `slots`-th of the blocks with these `costs`
    (`flash/problem/persistence.py`, static).
    """
    return max(sum(costs[first::slots]) for first in range(min(slots, len(costs))))


def time_of_tickets(costs: Sequence[float], slots: int) -> float:
    """The time of `slots` CTAs, each of which takes the next block when it begins another one: the number of
    a block is known one block ahead (`k.tile_scheduler`, order "ticket").
    """
    count = min(slots, len(costs))
    # When a CTA begins the block that it has taken, and the cost of that.
    begins = [(0.0, cost) for cost in costs[:count]]
    heapq.heapify(begins)
    for cost in costs[count:]:
        clock, taken = begins[0]
        heapq.heapreplace(begins, (clock + taken, cost))
    return max(clock + taken for clock, taken in begins)


def times_of_schedulers(
    launch: Launch, order: Order, slots: int, hidden: float, hidden_share: float = OVERHEAD
) -> dict[str, float]:
    """The time of a launch with each scheduler, in tiles; a block costs `hidden_share` tiles more than it
    visits. Of each block but a CTA's first, the share `hidden` of that overhead passes while the previous
    block is finished.
    """
    grid = [launch.tiles[block] + hidden_share for _, block in order(launch)]
    persistent = [cost - (hidden * OVERHEAD if n >= slots else 0.0) for n, cost in enumerate(grid)]
    return {
        "grid": time_of_grid(grid, slots),
        "static": time_static(persistent, slots),
        "mirrored": time_mirrored(np.asarray(grid), slots, hidden * OVERHEAD),
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


@dataclass(frozen=True, slots=True)
class Blocks:
    """The clocks `of` a kernel's blocks of queries, whether it waits until O is in memory, and which of the
    arrays Q and O are `hidden`: of persistent CTAs, those whose rows for the next block come, or of the block
    before leave, while a block is computed.
    """

    of: BlockClocks
    awaits_rows: bool
    hidden: str = ""


def estimate(
    forward: Build, busy: Busy, ctas: int, sizes: Sizes, device: Device, block: Blocks | None = None
) -> Estimate:
    """The estimate of a launch of a forward kernel, of which `ctas` CTAs are resident on a multiprocessor
    and whose main loop is `busy`; `block` are the clocks of its blocks (`clocks_of_blocks`), if they are
    known.
    """
    kernel, resources = forward.config, forward.resources
    t = kernel.tiling
    iteration, once = busy.clocks_of_ctas(t.computing_threads, ctas), 0.0
    heads = sizes.batch * sizes.heads
    group = sizes.heads // sizes.kv_heads
    one_head = sizes.keys * (t.head_dim + t.head_dim_v) * kernel.dtype.nbytes
    tiles = tuple(map(int, resources.tiles_of_blocks(sizes.queries, sizes.keys)))
    width = heads_per_section(heads, group, one_head, CACHE_BYTES)
    if kernel.scheduler == MIRRORED and block is not None and "Q" in block.hidden:
        of_head = sizes.queries, sizes.keys, group
        width = mirrored(kernel, of_head, heads, width, device.multiprocessors)[1]
    launch = Launch(heads, group, tiles, width)
    order = sections if kernel.hides_keys else by_head_from_first
    memory = {"Q": t.head_dim * kernel.dtype.nbytes, "O": t.head_dim_v * kernel.output.nbytes}
    rows = {array: t.block_q * nbytes / device.bytes_per_clock for array, nbytes in memory.items()}
    overhead = sum(rows.values())
    if block is None:
        overhead += busy.tensor * iteration / 2 + iteration * HIDDEN * OVERHEAD * (kernel.scheduler == GRID)
        costs = [overhead + iteration * n for n in tiles]
    else:
        beside = sum(rows[array] for array in block.hidden) + DRAM_CLOCKS * ("Q" in block.hidden)
        serial = overhead + DRAM_CLOCKS + CACHE_CLOCKS * block.awaits_rows - beside
        walks = [walks_of(t, sizes, nth, n, is_causal=kernel.hides_keys) for nth, n in enumerate(tiles)]
        persistent = kernel.scheduler != GRID
        once = beside + block.of.once * persistent
        computed = [block.of.clocks(of_block, persistent=persistent) for of_block in walks]
        costs = [max(serial + clocks, overhead) for clocks in computed]
    slots = device.multiprocessors * ctas
    clocks = once + _time(kernel.scheduler, [costs[nth] for _, nth in order(launch)], slots)
    if block is not None:
        moved = heads * sizes.queries * sum(memory.values()) + heads // group * one_head
        clocks = max(clocks, moved / (device.bytes_per_clock * device.multiprocessors))
    needed = resources.useful_flops(sizes.batch, sizes.heads, sizes.queries, sizes.keys)
    work = busy.tensor * iteration * heads * sum(tiles)
    return Estimate(clocks, needed, work / (slots * clocks))


def _time(scheduler: str, costs: Sequence[float], slots: int) -> float:
    return {
        "grid": lambda: time_of_grid(costs, slots),
        "static": lambda: time_static(costs, slots),
        "mirrored": lambda: time_mirrored(np.asarray(costs), slots, 0.0),
        "ticket": lambda: time_of_tickets(costs, slots),
    }[scheduler]()


def walks_of(t: Any, sizes: Sizes, block: int, tiles: int, *, is_causal: bool) -> tuple[Walk, ...]:
    """The tiles that each warpgroup of a CTA of tiling `t` meets for the block of queries `block`, which
    visits `tiles` tiles; if causal, a mask cuts those that a warpgroup's first row does not see whole.
    """
    if not is_causal:
        return tuple(Walk(0, 0, 0, tiles) for _ in range(t.consumers))

    first = block * t.block_q

    def seen(row: int) -> int:
        return max(min(row, sizes.queries - 1) + 1 + sizes.keys - sizes.queries, 0)

    others = min(seen(first) // t.tile, tiles)

    def walk(row: int) -> Walk:
        end = min(max(-(-seen(row + WGMMA_ROWS - 1) // t.tile), others + 1), tiles)
        whole = min(seen(row) // t.tile, end)
        return Walk(tiles - end, end - whole, whole - others, others)

    return tuple(walk(first + n * WGMMA_ROWS) for n in range(t.consumers))


@functools.lru_cache(maxsize=1)
def machine_code(text: str, target: Target) -> list[SassInstr]:
    """The instructions of a kernel's text. Raises `BackendError` without the tools for it."""
    assembly = find_assembler(target=target.name).assemble(text, target.name)
    return find_disassembler().instructions(assembly.cubin)


def clocks_of_blocks(forward: Build, target: Target, text: str = "") -> Blocks | None:
    """The clocks of a block of queries of a forward kernel, or of its `text` if that was emitted by another
    version; None for kernels without tensor copies, or with additional traffic of shared memory
    (`moved_bytes`) that is no transposition of V. Raises `BackendError` without the tools for it.
    """
    t = forward.config.tiling
    moves = t.moved_bytes is not None and forward.config.family is not FP8
    if not forward.config.family.mapped or moves:
        return None
    text = text or forward.text
    block = block_of(machine_code(text, target))
    if block is None:
        return None
    hidden = ""
    if forward.config.is_persistent:
        queries = _QUERIES.search(text)
        tile = t.block_q * t.score_columns * forward.config.dtype.nbytes
        hidden += "Q" * (queries is not None and int(queries[1]) > tile)
        hidden += "O" * (_OUTPUTS in text)
    return Blocks(block_clocks(block, target, t.consumers, t.moved_bytes), _LEFT not in text, hidden)
