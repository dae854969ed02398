"""The problems on which the mutation campaign runs a kernel of gradients, by the kernel's settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from flash.contract.gradients import GradientBuild, verified_gradient
from flash.families.mma import MMA_ROWS
from flash.families.wgmma import MAP_ALIGN, WARPGROUP, WGMMA_ROWS, WGMMA_TARGET
from flash.families.wgmma_gradient import CONSUMERS
from flash.problem.config import DEFAULT_TARGET, AttentionConfig
from flash.problem.gradient_choice import gradient_config
from flash.problem.gradients import KEYS, QUERIES, SCORES, GradientConfig
from ptxgen.target import WARP_SIZE, Target, target
from tools.campaign.problems import LARGE_SOFTCAP, Problem

_BLOCK: Final = 32  # rows of a CTA with `mma`: of two warps
_WARPS: Final = 2
_TILE: Final = 16
_PANEL: Final = 64  # columns of 16 bits in 128 bytes
_ITERATIONS: Final = 3  # whole tiles, with which each stage is used again
# Rows of the last block and of the last tile, which end with any of a lane's or of a thread's copies.
_ENDS: Final = ((1, 8), (2, 1), (8, 2), (16, 9), (24, 16), (10, 10))
# Rows of the last block and of the last tile that end in the second half of a tile of twice as many rows.
_ENDS_OF_PARTS: Final = ((_TILE + 1, 8), (_TILE + 2, 1), (_TILE + 10, 3), (_TILE + 10, 10))
# Rows of the last block, in the second warpgroup that computes, and of the last tile.
_ENDS_OF_WARPGROUPS: Final = ((WGMMA_ROWS + 1, 8), (WGMMA_ROWS + 8, 2), (WGMMA_ROWS + 41, 9))
_PANEL_APART: Final = 32  # rows: odd rows with this distance have NaN a panel of columns apart

# Seeds of dropout and numbers of queries and keys with which the random number of a score near the
# diagonal, which counts, equals the threshold, each at another index of a thread's fragment; in a
# kernel by keys the rows of a fragment are keys.
_AT_THRESHOLD: Final = {
    QUERIES: [(seed, 32) for seed in (656, 1091, 6609, 8152, 9952, 11137, 32877, 83766)],
    KEYS: [(3369, 64), *((seed, 32) for seed in (656, 704, 4719, 5261, 6609, 9396, 17672))],
    SCORES: [],
}


@dataclass(frozen=True, slots=True)
class GradientSettings:
    """The settings of a kernel of gradients whose CTAs own `owner`. `wanted` are the arrays of scores
    that have gradients; with `with_dlse` LSE has one. The kernel has `stages`, and makes its columns
    in `slices`, or with `across` warps or `column_warps` that share them. With `in_parts`, registers hold the
    scores of half a tile at once, and both matrices that the CTA owns. In `one_sweep` a kernel by keys also
    adds to sums of dQ, maybe `in_order`. On sm_90a the kernel multiplies by `wgmma`, and its tiles alone are
    smaller than those of calls.
    """

    owner: str
    config: AttentionConfig
    wanted: tuple[str, ...] = ()
    with_dlse: bool = False
    stages: int = 2
    slices: int = 1
    across: int = 1
    column_warps: int = 1
    in_parts: bool = False
    one_sweep: bool = False
    in_order: bool = False

    @property
    def target(self) -> Target:
        """The target of the kernel."""
        return target(str(self.config.target or DEFAULT_TARGET))

    @property
    def has_wgmma(self) -> bool:
        """Whether the kernel multiplies by `wgmma`, with tiles copied by TMA."""
        return self.target.name == WGMMA_TARGET

    @property
    def tile(self) -> int:
        """Rows of one tile. One sweep with `wgmma` has tiles of the rows of a product of dQ."""
        if self.has_wgmma and self.one_sweep:
            return WGMMA_ROWS
        return (2 if self.in_parts else 1) * self.across * _TILE

    @property
    def block(self) -> int:
        """Rows that a CTA owns."""
        if not self.has_wgmma:
            return _BLOCK
        one_sweep = self.one_sweep
        return gradient_config(
            self.config, self.owner, self.target, MAP_ALIGN, one_sweep=one_sweep
        ).wgmma.block

    def build(self, kernel: GradientConfig) -> GradientBuild:
        """The kernel of a configuration with tiles for small problems. Its proofs are left to the judge."""
        if kernel.has_wgmma:
            tiling = replace(kernel.wgmma, tile=self.tile, stages=self.stages)
            return verified_gradient(replace(kernel, tiling=tiling))
        stages = 1 if kernel.owner == SCORES else self.stages
        slices, across = (self.slices, self.across) if kernel.owner == KEYS else (1, 1)
        step, count = (_TILE, 2) if self.in_parts else (0, 0)
        warps = across * self.column_warps * _WARPS
        small = replace(kernel.mma, block=_BLOCK, tile=self.tile, warps=warps, across=across)
        small = replace(small, stages=stages, slices=slices, step=step, resident=count)
        small = replace(small, column_warps=self.column_warps)
        return verified_gradient(replace(kernel, tiling=small))


def problems_of(settings: GradientSettings) -> tuple[Problem, ...]:
    """Problems with ragged ends of every kind, of queries and of keys. The first, or the second, uses all
    buffers repeatedly; some have rows that see no key, keys that no row sees, NaN and
    infinity in queries, or nothing to walk over.
    """
    problems = _varlen(settings) if settings.config.varlen else _of_batches(settings)
    return tuple(_for_tensor_maps(settings, problems) if settings.has_wgmma else problems)


def _for_tensor_maps(settings: GradientSettings, problems: Iterable[Problem]) -> Iterator[Problem]:
    """The problems that tensor maps can describe, with strides above 0, and at least one query and one key.
    After them come one whose window is so wide that some tiles see all rows of a CTA, and tiles before and
    after them do not; and one with so many tiles that, at a barrier which wrongly waits for one arrival less,
    the surplus arrivals add up to a phase.
    """
    yield from dict.fromkeys(
        replace(p, reverse=False)
        for p in problems
        if all(map(sum, zip(*p.sequences, strict=True))) and not p.alike
    )
    if settings.config.window is not None:
        rows = 2 * settings.block + 50
        yield _packed(settings, Problem(rows, rows, heads=1, window=(settings.block + 40, 9)))
    if settings.owner == KEYS and settings.config.causal == "bottom_right":
        # CTAs of several keys walk over an even number of tiles of either head, of which the last has a rest.
        rows = 6 * settings.tile - 10
        yield _packed(settings, Problem(rows, rows + 4, heads=2))
    arrivals = CONSUMERS * WARPGROUP // WARP_SIZE  # at a barrier in each of its phases
    walked = (settings.stages * arrivals + 2) * settings.tile
    queries, keys = (_TILE, walked) if settings.owner == QUERIES else (walked, _TILE)
    causal = settings.config.causal
    if settings.config.window is not None:
        yield _packed(settings, Problem(queries, keys, heads=1, window=(walked, walked)))
    elif causal == "top_left" or (causal and settings.owner == KEYS):  # some rows of a square see all tiles
        yield _packed(settings, Problem(walked, walked, heads=1))
    else:
        yield _packed(settings, Problem(queries, keys, heads=1))


def _packed(settings: GradientSettings, problem: Problem) -> Problem:
    """The problem, whose batch items are packed sequences if those of the kernel are."""
    if not settings.config.varlen:
        return problem
    return replace(problem, seq_q=0, seq_k=0, lengths=problem.sequences)


def _of_batches(settings: GradientSettings) -> list[Problem]:
    """Problems of batches, whose items have the same numbers of rows."""
    config, tile, block = settings.config, settings.tile, settings.block
    ends = (*_ENDS, *(_ENDS_OF_PARTS if tile > _TILE else ()))
    if block > WGMMA_ROWS:
        ends += _ENDS_OF_WARPGROUPS
    rows = max(_ITERATIONS * tile, block) + 6
    first = Problem(rows, rows + 4, heads=2)
    problems = [
        *([] if settings.owner == SCORES else [_of_one_cta(settings)]),
        first,
        Problem(block + 5, tile - 3, batch=2, heads=4, kv_heads=2),
        Problem(block + tile + 9, tile + 4),
        *_with_nan(settings),
        Problem(3, 0) if settings.owner == QUERIES else Problem(0, 3),
        *(Problem(block, 2 * tile, times=times, heads=1) for times in (-1.0, 0.0)),
        Problem(_TILE - 3, tile + _TILE - 3, times=0.0, heads=1),
        Problem(2 * block, 3 * tile, scores="growing", heads=1),
        replace(first, reverse=True),
        replace(first, alike=True),
        *(Problem(block + end, n, heads=1, reverse=True) for end, n in ends),
        *(Problem(n, block + end, heads=1, reverse=True) for end, n in ends),
        *(
            [Problem(block, n, softcap=LARGE_SOFTCAP) for n in (tile + 1, 3 * tile)]
            if config.softcap is not None
            else []
        ),
        *(
            Problem(n, n, heads=1, dropout_seed=seed)
            for seed, n in _AT_THRESHOLD[settings.owner]
            if config.dropout
        ),
        *(Problem(q, k, heads=1, odd=rows) for q, k, rows in _nonfinite(settings)),
        *(_of_larger_tiles() if config.causal == "bottom_right" and tile > _TILE else []),
        *(_low(settings) if settings.owner == QUERIES and config.causal != "bottom_right" else []),
        *(_infinite(settings) if config.softcap is None else []),
    ]
    if settings.owner == SCORES:
        problems = [p for p in problems if p.seq_q and p.seq_k]
        shared = Problem(block + 5, tile + 3, batch=2, heads=4, kv_heads=2)
        problems += [replace(shared, broadcast=axes) for axes in (("batch",), ("heads",), ("batch", "heads"))]
    return problems


def _of_larger_tiles() -> Iterator[Problem]:
    """Problems in which the last query of a tile of twice as many rows has NaN in dO, and keys of a later CTA
    do not see it; and in which the random number of query 1 and key 0, whose weight counts, equals the
    threshold of dropout.
    """
    yield Problem(_BLOCK + _TILE, 2 * _BLOCK, heads=1, odd=(_BLOCK - 1,))
    yield Problem(_BLOCK, _BLOCK, heads=1, dropout_seed=17669)


def _low(settings: GradientSettings) -> Iterator[Problem]:
    """Problems in which keys after the last one, with a score of 0, would have infinite weights: in each
    problem another of a lane's keys is the first of these. The queries of the last CTA see all keys.
    """
    tile = settings.tile
    for part in range(0, tile, MMA_ROWS):
        for end in (1, 2, 8, 9, 10):
            yield Problem(settings.block + tile, tile + part + end, heads=1, scores="low")


def _nonfinite(settings: GradientSettings) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Numbers of queries and keys, and the rows of Q with NaN or infinity: rows that see few keys or none, in
    two tiles rows that see others than their neighbours, and the last rows of a tile; one among the last rows
    of a CTA, of which only the last sees a key; and one with NaN in each panel of 16 bits of Q and of dO
    after the first.
    """
    config, block = settings.config, settings.block
    yield block, 6, tuple(range(block - 2))
    yield block, block, (*range(4), *range(_TILE, _TILE + 4))
    yield block, block, (_TILE - 1,)
    yield block, block, (_TILE - 3, _TILE - 2, _TILE - 1)
    right = None if config.window is None else config.window[1]
    if config.causal == "bottom_right" or right is not None:
        yield _TILE + block - 1 + (right or 0), _TILE, (block - 8,)
    apart = _PANEL_APART
    for panel in range(1, -(-config.head_dim // _PANEL)):
        for first in (0, 8):  # in either half of a tile
            yield 2 * block, 2 * block, (first, first + panel * apart + 2)
    for panel in range(1, -(-config.value_dim // _PANEL)):
        for first in (panel * apart, panel * apart + _TILE):  # in either half of a tile of 32 rows
            rows = (panel + 1) * apart
            yield rows, rows, (0, first, first + 2)


def _infinite(settings: GradientSettings) -> Iterator[Problem]:
    """Problems with scores of -inf. In kernels by queries some rows have no other; where no row is without
    a key else, also such rows with NaN and infinity in dO. In others keys are infinite, whose products with
    queries after the last one, which are 0, would be NaN: each of a lane's queries in turn is the first
    of these.
    """
    tile, block = settings.tile, settings.block
    if settings.owner == QUERIES:
        parting = Problem(block, 2 * tile + 5, heads=1, scores="parting")
        yield parting
        if settings.config.causal == "top_left":
            yield Problem(block, tile + 5, heads=1, scores="none of queries", odd=tuple(range(0, block, 4)))
        return
    for part in range(0, tile, MMA_ROWS):
        for end in (1, 2, 9, 10):
            yield Problem(tile + part + end, block - 3, heads=1, scores="none")


def _of_one_cta(settings: GradientSettings) -> Problem:
    """A problem with one CTA, which walks over more tiles than it has stages."""
    rows = 2 * settings.tile + 6
    return (
        Problem(settings.block, rows, heads=1)
        if settings.owner == QUERIES
        else Problem(rows, settings.block, heads=2)
    )


def _with_nan(settings: GradientSettings) -> list[Problem]:
    """Problems with NaN in keys of tiles that a block reads, which no row sees; if the kernel makes dQ,
    also in keys that rows of other blocks, or some rows of the block, see.
    """
    config, more, block = settings.config, settings.tile + 5, settings.block
    problems = []
    if config.causal == "top_left":
        problems.append(Problem(more, block + more, nan_from=more))
    if config.window is not None:
        left = config.window[0] or 0
        ends = (more, block - 1)
        problems += [Problem(block, block + left + n, heads=1, nan_before=n) for n in ends]
    makes_queries = settings.owner == QUERIES or settings.one_sweep
    if makes_queries and config.causal == "bottom_right":
        problems.append(Problem(2 * block, 2 * block + more, heads=1, nan_from=block + more))
    elif makes_queries:
        problems.append(Problem(block, block, heads=1, nan_from=block - 3))
    return problems


def _varlen(settings: GradientSettings) -> list[Problem]:
    """Problems of packed sequences: blocks and tiles of which all, some or no rows belong to one."""
    b, t = settings.block, settings.tile
    small = _of_one_cta(settings)
    lengths = (
        ((_ITERATIONS * t + 6, _ITERATIONS * t + 10), (b + 5, t + 3), (0, 7), (3, 0), (2 * b, 1)),
        ((b, 2 * t), (1, b + 1), (t + 1, 2 * b), (b + t, b - 1)),
        ((b + 1, 5), (2, 2)),
        ((2 * b, 3 * t),),
        ((2 * b, 2 * b + t + 5),),
    )
    packed = [Problem(0, 0, lengths=of, heads=2) for of in lengths]
    if settings.config.causal == "top_left":  # NaN that no row sees
        packed.append(Problem(0, 0, lengths=((5, b + t), (t + 3, b)), nan_from=t + 3))
    elif settings.owner == QUERIES:  # NaN that the first block does not see
        packed.append(replace(packed[4], nan_from=b + t + 5))
    if settings.config.window is not None:
        packed += [_packed(settings, p) for p in _with_nan(settings)]
    ends = [(b + 8, 8), (16, b + 24), (b + 24, b + 16), (8, b + 8), (b + 16, 16)]
    packed += [Problem(0, 0, lengths=(of,), heads=1, reverse=True) for of in ends]
    # A sequence without rows, which no row precedes.
    empty = ((0, 7), (3, 2)), ((7, 0), (2, 3))
    packed += [Problem(0, 0, lengths=of, heads=1, reverse=True) for of in empty]
    packed += [replace(packed[3], times=times) for times in (-1.0, 0.0)]
    packed += [replace(packed[1], reverse=True), replace(packed[3], alike=True)]
    packed += [Problem(0, 0, lengths=((q, k),), heads=1, odd=rows) for q, k, rows in _nonfinite(settings)]
    packed += [_packed(settings, p) for p in _infinite(settings)]
    return [_packed(settings, small), *packed]
