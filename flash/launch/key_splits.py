"""Into how many splits the keys of a forward launch are divided, where its grid would leave
multiprocessors without work: a grid of fewer CTAs than a GPU holds at a time, or of a few more, of which
then the last ones are divided. Each split has CTAs of its own, and another kernel merges what they compute
(split-K, as in flash-decoding). `tools/cta_order.py --splits` simulates what the rule is worth.
"""

from __future__ import annotations

import functools
from typing import Final, NamedTuple

from flash.contract.resources import FLOPS_PER_FMA, KernelResources
from flash.launch.checks import Geometry, grid_ctas
from flash.operands.dtypes import F32_BYTES
from flash.problem.config import AttentionConfig
from flash.problem.kernel_config import KernelConfig

# Work of a CTA in addition to its tiles of keys, such as reading Q and writing O, in units of one tile.
OVERHEAD: Final = 1
# A merge is worth it only if the launch then takes at most this part of its time.
_WORTH_IT: Final = 0.9
# A division with fewer splits is taken if it takes at most this multiple of the least time.
_GOOD_ENOUGH: Final = 1.03
# How much faster a CTA may run that shares its multiprocessor with no other, although there is room.
_ALONE: Final = 1.5
_MOST_SPLITS: Final = 128
_MOST_BYTES: Final = 64 << 20  # of partial results, which stay allocated
_LAUNCH: Final = 4e-6  # seconds between two dependent launches of a merge


class Slots(NamedTuple):
    """The room for CTAs on a GPU: `each` of its multiprocessors runs that many at a time."""

    multiprocessors: int
    each: int

    @property
    def total(self) -> int:
        """The number of CTAs that run at a time on the GPU."""
        return self.multiprocessors * self.each


class Cost(NamedTuple):
    """The cost of the CTAs of a grid, in tiles of keys: that of the longest one, and the mean."""

    longest: int
    mean: float

    @property
    def is_even(self) -> bool:
        """Whether all CTAs of the grid cost the same number of tiles of keys."""
        return self.mean == self.longest


class Merging(NamedTuple):
    """The cost of merging, in units of the time that a CTA takes for a tile of keys: of the launch and, for
    each unit of a grid, of its results and of each split.
    """

    launch: float
    results: float
    split: float

    def cost(self, units: int, splits: int) -> float:
        """The cost of merging `units` units of a grid, each of `splits` splits."""
        return self.launch + units * (self.results + splits * self.split)


class Grid(NamedTuple):
    """The CTAs of a launch: `units` times `ctas`. A unit is what a launch of its own can compute: an item of
    the batch, or if there is one item, the heads that share a head of K and V; or everything.
    """

    units: int
    ctas: int


class Division(NamedTuple):
    """The first `whole` units of a grid have a launch without splits; the keys of the others are divided
    into `splits`.
    """

    whole: int
    splits: int


@functools.lru_cache(maxsize=1024)
def choose_division(
    grid: Grid, slots: Slots, cost: Cost, merging: Merging, most: int = _MOST_SPLITS
) -> Division:
    """The division of a grid that is the fastest by the model. `most` is how many splits all units together
    may have.

    Without splits the grid takes at least `time_at_least`, and with them at most `time_divided`. A division
    is taken only if that is at most 0.9 of the other: then a grid gets faster, whatever the order in which
    CTAs begin. Of those that take nearly the least time it is the one with the fewest splits. Units without
    splits fill a whole number of waves as far as they can, where CTAs cost the same.
    """
    ctas = grid.units * grid.ctas
    plain = time_at_least(ctas, slots, cost)
    if ctas * (cost.mean + OVERHEAD) / slots.total > _WORTH_IT * plain:
        return Division(0, 1)  # not even work without a tail and without merging takes so little time
    waves = ctas // slots.total if cost.is_even else 0
    wholes = {n * slots.total // grid.ctas for n in range(waves + 1)} - {grid.units}
    times = {
        Division(whole, n): time_divided(grid, slots, cost, merging, Division(whole, n))
        for whole in wholes
        for n in range(2, min(cost.longest, most // (grid.units - whole), _MOST_SPLITS) + 1)
    }
    best = min(times.values(), default=plain)
    if best > _WORTH_IT * plain:
        return Division(0, 1)
    near = (
        division for division, time in times.items() if time <= min(_GOOD_ENOUGH * best, _WORTH_IT * plain)
    )
    return min(near, key=lambda division: ((grid.units - division.whole) * division.splits, division.splits))


def time_divided(grid: Grid, slots: Slots, cost: Cost, merging: Merging, division: Division) -> float:
    """An upper bound of the time of a grid of which a part is divided, in tiles: the launch of whole units,
    whose CTAs cost the same, then that of splits, then merging.
    """
    whole, splits = division
    rest = grid.units - whole
    time = merging.cost(rest, splits) + time_at_most(rest * grid.ctas, slots, cost, splits)
    if not whole:
        return time
    return time + merging.launch + time_at_most(whole * grid.ctas, slots, cost, 1)


def time_at_least(ctas: int, slots: Slots, cost: Cost) -> float:
    """A lower bound of the time of a grid without splits, in tiles. CTAs that cost the same run in waves,
    of which the last may have multiprocessors with one CTA each.
    """
    alone = _ALONE if slots.each > 1 else 1.0
    if not cost.is_even:
        return max((cost.longest + OVERHEAD) / alone, ctas * (cost.mean + OVERHEAD) / slots.total)
    waves, rest = divmod(ctas, slots.total)
    last = 0.0 if not rest else 1 / alone if rest <= slots.multiprocessors else 1.0
    return (waves + last) * (cost.longest + OVERHEAD)


def time_at_most(ctas: int, slots: Slots, cost: Cost, splits: int) -> float:
    """An upper bound of the time of a grid with splits, in tiles and without merging. CTAs that cost the
    same run in waves; of others, which begin in any order as soon as there is room, no schedule takes
    longer than the even share and the longest (Graham, "Bounds for Certain Multiprocessing Anomalies").
    """
    longest = -(-cost.longest // splits) + OVERHEAD
    if cost.is_even:
        return -(-ctas * splits // slots.total) * longest
    # A split of t tiles has at most t / splits rounded up.
    total = ctas * (cost.mean + splits * OVERHEAD + splits - 1)
    return total / slots.total + longest


def fixed_splits(config: AttentionConfig) -> int:
    """The number of splits that a config asks for; "auto" is 1 where there is no GPU: the CTAs of the
    interpreter do not run at a time.
    """
    return 1 if config.splits == "auto" else int(config.splits)


def division_of(
    config: AttentionConfig, kernel: KernelConfig, geometry: Geometry, multiprocessors: int
) -> Division:
    """The division of a launch on a device with `multiprocessors`, where `kernel` would run without
    splits. "auto" is the rule of `choose_division` for kernels with the default tiles; sequences of their own
    lengths are not divided, nor keys that a mask_mod leaves out, because their number is not known, nor what
    is dealt by tickets.
    """
    if config.splits != "auto":
        return Division(0, fixed_splits(config))
    if config.tile != "auto" or config.block_q != "auto" or config.varlen or config.mask_mod is not None:
        return Division(0, 1)
    if geometry.is_empty or not geometry.seq_k or kernel.takes_tickets:
        return Division(0, 1)
    t = kernel.tiling
    resources = KernelResources(kernel, t.registers, False, t.shared_bytes)
    slots = Slots(multiprocessors, max(resources.ctas_per_sm, 1))
    tiles = resources.tiles_of_blocks(geometry.seq_q, geometry.seq_k, config.window, geometry.group)
    cost = Cost(int(tiles.max()), float(tiles.mean()))
    units = units_of(config, geometry)
    rows = geometry.batch * geometry.heads * geometry.seq_q // units
    most = _MOST_BYTES // (rows * (t.head_dim_v + 1) * F32_BYTES)
    grid = Grid(units, grid_ctas(kernel, geometry) // units)
    return choose_division(grid, slots, cost, merging_of(kernel, rows, slots), most)


def units_of(config: AttentionConfig, geometry: Geometry) -> int:
    """The number of units that launches of their own can compute: 1 if a kernel has operands, dropout or a
    score_mod, which depend on the head or the item of the batch.
    """
    if config.features.operands or config.dropout or config.score_mod is not None:
        return 1
    return geometry.batch if geometry.batch > 1 else geometry.kv_heads


def merging_of(kernel: KernelConfig, rows: int, slots: Slots) -> Merging:
    """The cost of merging, where a unit has `rows` rows of O. Partial results are f32, written once and
    read once.
    """
    t = kernel.tiling
    rate, bandwidth = kernel.family.operations(t), kernel.family.bandwidth
    operations = FLOPS_PER_FMA * t.block_q * t.tile * (t.score_columns + t.output_columns)
    tile = operations * slots.total / rate  # seconds
    of_results = rows * t.head_dim_v * kernel.output.nbytes / bandwidth
    of_split = 2 * rows * (t.head_dim_v + 1) * F32_BYTES / bandwidth
    return Merging(_LAUNCH / tile, of_results / tile, of_split / tile)
