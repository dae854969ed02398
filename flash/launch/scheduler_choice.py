"""Which launches have persistent CTAs where the config leaves it to them, and how many CTAs these are.

A CTA that takes several parts prepares its barriers once, and copies the first tiles of a part while the
part before is finished. Without causality all parts cost the same, and every order is as good as the
GPU's own. With causality they do not: dealt round-robin they end later than in a grid, whose next CTA begins
when one has ended. Mirrored rounds even that out where the parts are sorted, the longest first, over several
rounds; they are sorted in each section of heads whose K and V have room in the cache. Sections that are an
even number of whole rounds, or nearly, end the most evenly: of widths that have room a launch takes the one
that ends first, where Q and O overlap. Whether it ends before a grid is computed from the tiles of keys of
all parts. `tools/cta_order.py --schedulers` has the whole model, docs/tuning.md its figures next to those of
an H200.

What a block costs in addition to its tiles follows `benchmarks/measure/launch_model.py`. In a grid these are
three tiles (2.97 of 192x128 with head_dim 64, 3.0 of 128x128 with 128, 3.5 of 128x128 with 64), of which a
persistent CTA hides two (1.8, 2.1 and 2.0) if the next Q comes and O leaves while it computes. For other
kernels an H200 agrees with OVERHEAD, of which half is hidden.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flash.contract.resources import KernelResources
from flash.device.cta_order import USUAL_CACHE_BYTES
from flash.families.wgmma import WgmmaTiling
from flash.launch.checks import Geometry, grid_ctas, section
from flash.launch.key_splits import OVERHEAD
from flash.problem.features import Features
from flash.problem.kernel_config import KernelConfig
from flash.problem.persistence import GRID, MIRRORED, STATIC, scheduled
from flash.scores.window import Window

# Multiprocessors of an H100 SXM (NVIDIA H100 Tensor Core GPU Architecture, "H100 GPU"), used if no device
# gives its own.
USUAL_MULTIPROCESSORS: Final = 132


# The part of a CTA's work in addition to its tiles that a persistent one does while it finishes the part
# before: barriers and tensor maps, and the way of the first tiles.
HIDDEN: Final = 0.5
# Tiles that a block of a grid costs in addition to its own, if a persistent CTA has two tiles of Q.
_OF_BLOCK: Final = 3.0
_OVERLAPPED: Final = 2.0  # of these, those that a persistent CTA hides
_CLEARLY: Final = 0.95  # of the time of a grid; the model and an H200 have differed by no more
_FEW_ROUNDS: Final = 8
_WIDTHS: Final = 64  # the most widths of sections that a launch compares
_MOST_PARTS: Final = 1 << 18  # of all comparisons together, which take the host some milliseconds

Costs = NDArray[np.float64]


class Device(NamedTuple):
    """The device properties on which the choice depends; by default an H100 with the L2 cache of an A100."""

    multiprocessors: int = USUAL_MULTIPROCESSORS
    cache_bytes: int = USUAL_CACHE_BYTES


USUAL_DEVICE: Final = Device()


def scheduled_launch(asked: str, kernel: KernelConfig, geometry: Geometry, device: Device) -> KernelConfig:
    """The kernel of a launch whose config asks for the scheduler `asked`: for "auto", if there are more parts
    than multiprocessors, with that of `_best`; else unchanged.
    """
    if asked != "auto" or grid_ctas(kernel, geometry) <= device.multiprocessors:
        return kernel
    scheduler = _best(kernel, geometry, device)
    scheduler, tiling = scheduled(scheduler, kernel.tiling, kernel.features, kernel.target)
    return replace(kernel, scheduler=scheduler, tiling=tiling)


def _best(kernel: KernelConfig, geometry: Geometry, device: Device) -> str:
    """The tile scheduler of a launch with more work tiles than the GPU has multiprocessors."""
    features = kernel.features
    if _has_unknown_costs(features) or features.splits:
        return GRID
    if not kernel.hides_keys:
        return STATIC
    heads = (geometry.kv_heads if kernel.packed else geometry.heads) * geometry.batch
    width = section(kernel, geometry, device.cache_bytes)
    sizes = geometry.seq_q, geometry.seq_k, geometry.group
    return MIRRORED if _mirrored_ends_first(kernel, sizes, heads, width, device.multiprocessors) else GRID


def _has_unknown_costs(features: Features) -> bool:
    """Whether the costs of query blocks depend on arrays of lengths, or blocks are in no order of cost."""
    return features.varlen or features.hides_anywhere or features.has(Window)


def width_of_sections(kernel: KernelConfig, geometry: Geometry, device: Device) -> int:
    """The number of heads in a section of a launch (`flash/device/cta_order.py`): as many as have room in the
    cache, and for mirrored rounds the number up to that with which they end first.
    """
    width = section(kernel, geometry, device.cache_bytes)
    features = kernel.features
    if kernel.scheduler != MIRRORED or not kernel.hides_keys or _has_unknown_costs(features):
        return width
    heads = (geometry.kv_heads if kernel.packed else geometry.heads) * geometry.batch
    sizes = geometry.seq_q, geometry.seq_k, geometry.group
    return mirrored(kernel, sizes, heads, width, device.multiprocessors)[1]


@functools.lru_cache(maxsize=1024)
def _mirrored_ends_first(
    kernel: KernelConfig, sizes: tuple[int, int, int], heads: int, width: int, multiprocessors: int
) -> bool:
    """Whether mirrored rounds end before a grid; `sizes` are rows of queries, keys, and heads of a group, and
    `width` heads are a section. A grid of many rounds, whose CTAs take a while to go through, is said to take
    as long as its work spread evenly and its shortest part, which is the last to begin. Mirrored rounds
    are chosen if they end first by the costs that an H200 agrees with, or clearly first by those of kernels
    whose Q and O overlap, which no GPU has timed.
    """
    tiles, slots = _tiles_and_slots(kernel, sizes, multiprocessors)

    def ends_of_grid(of_block: float) -> float:
        costs = of_block + costs_in_order(tiles, heads, width)
        few = costs.size <= _FEW_ROUNDS * slots
        return float(time_of_grid(costs.tolist(), slots) if few else costs.sum() / slots + costs.min())

    in_widest = OVERHEAD + costs_in_order(tiles, heads, width)
    if time_mirrored(in_widest, slots, HIDDEN * OVERHEAD) <= ends_of_grid(OVERHEAD):
        return True
    ends = mirrored(kernel, sizes, heads, width, multiprocessors)[0]
    return _overlaps(kernel) and ends <= _CLEARLY * ends_of_grid(_OF_BLOCK)


@functools.lru_cache(maxsize=1024)
def mirrored(
    kernel: KernelConfig, sizes: tuple[int, int, int], heads: int, width: int, multiprocessors: int
) -> tuple[float, int]:
    """When mirrored rounds end, in tiles, with sections of at most `width` heads, and the width of sections
    with which they do.
    """
    tiles, slots = _tiles_and_slots(kernel, sizes, multiprocessors)
    of_block, hidden = (_OF_BLOCK, _OVERLAPPED) if _overlaps(kernel) else (OVERHEAD, HIDDEN * OVERHEAD)
    group = 1 if kernel.packed else sizes[2]
    count = min(_WIDTHS, max(_MOST_PARTS // (heads * len(tiles)), 1)) if _overlaps(kernel) else 1
    widths = range(width, max(width - count * group, 0), -group)
    times = (time_mirrored(of_block + costs_in_order(tiles, heads, n), slots, hidden) for n in widths)
    return min(zip(times, widths, strict=True), key=lambda one: (one[0], -one[1]))


def _tiles_and_slots(
    kernel: KernelConfig, sizes: tuple[int, int, int], multiprocessors: int
) -> tuple[NDArray[Any], int]:
    """The tiles of keys of the blocks of a head, and the number of CTAs that run at once; `sizes` are rows of
    queries, keys, and heads of a group.
    """
    t = kernel.tiling
    resources = KernelResources(kernel, t.registers, False, t.shared_bytes)
    seq_q, seq_k, group = sizes
    tiles = resources.tiles_of_blocks(seq_q, seq_k, None, group)
    return tiles, multiprocessors * max(resources.ctas_per_sm, 1)


def _overlaps(kernel: KernelConfig) -> bool:
    """Whether a persistent CTA of the kernel loads the next Q and stores O while it computes."""
    _, tiling = scheduled(MIRRORED, kernel.tiling, kernel.features, kernel.target)
    return isinstance(tiling, WgmmaTiling) and tiling.query_stages > 1


def costs_in_order(tiles: NDArray[Any], heads: int, width: int) -> Costs:
    """The tiles of keys of all parts in the order of CTAs with causality (`flash/device/cta_order.py`), where
    the blocks of a head have `tiles` and `width` heads are a section.
    """
    backwards = np.asarray(tiles, np.float64)[::-1]
    whole, rest = divmod(heads, width)
    of_sections = np.tile(np.repeat(backwards, width), whole)
    return np.concatenate([of_sections, np.repeat(backwards, rest)])


def time_of_grid(costs: Sequence[float], slots: int) -> float:
    """The time of `slots` CTAs, each of which takes the next work tile when it is done, as in a grid."""
    running: list[float] = []
    for cost in costs:
        now = heapq.heappop(running) if len(running) >= slots else 0.0
        heapq.heappush(running, now + cost)
    return max(running)


def time_mirrored(costs: Costs, slots: int, hidden: float) -> float:
    """The time of `slots` CTAs that take parts of these costs, where every other round is dealt from the last
    CTA to the first, and `hidden` of each part but a CTA's first passes while the part before is finished.
    """
    loads = np.zeros((-(-costs.size // slots), slots))
    loads.flat[: costs.size] = costs
    loads.flat[slots : costs.size] -= hidden
    loads[1::2] = loads[1::2, ::-1]
    return float(loads.sum(axis=0).max())


def ctas_at_once(resources: KernelResources, parts: int, multiprocessors: int) -> int:
    """The number of CTAs of a persistent launch: as many as run at once, and no more than work tiles."""
    return min(multiprocessors * max(resources.ctas_per_sm, 1), parts)
