"""The kernels of gradients, for the mutation campaign: their problems, and the right results.

Each kernel runs alone: what the forward pass and the kernels before it write is computed in float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np

from flash.calls.step import Step
from flash.contract.gradients import GradientBuild, verified_gradient
from flash.families.mma import MMA_ROWS
from flash.gradients.checks import WRITTEN, Checks
from flash.gradients.steps import GradientCall, memory_of, steps_of
from flash.host.caller import Caller
from flash.operands.dtypes import F32
from flash.problem.config import DEFAULT_TARGET, AttentionConfig
from flash.problem.gradients import KEYS, QUERIES, SCORES, SUMS_OF_QUERIES, GradientConfig
from flash.problem.sequences import each_sequence
from flash.scores.features import split_by_axes
from ptxgen.arrays.views import view
from ptxgen.mutation.comparison import difference
from ptxgen.mutation.kernel_under_test import Array, KernelUnderTest, Launch
from ptxgen.target import Target, target
from tools.campaign.arrays import alike, arrays_of, margins_changed, with_margins
from tools.campaign.gradient_bound import GradientBound, GradientInputs
from tools.campaign.launches import of_step
from tools.campaign.problems import LARGE_SOFTCAP, Problem

_SEED: Final = 20253
_CALLER: Final = "the campaign"
_BLOCK: Final = 32  # rows of a CTA: of two warps
_WARPS: Final = 2
_TILE: Final = 16
_PANEL: Final = 64  # columns of 16 bits in 128 bytes
_CHUNK: Final = 8  # columns; each of these begins a copy of 16 bytes
_ITERATIONS: Final = 3  # whole tiles, with which each stage is used again
# Rows of the last block and of the last tile, which end with any of a lane's or of a thread's copies.
_ENDS: Final = ((1, 8), (2, 1), (8, 2), (16, 9), (24, 16), (10, 10))
# Rows of the last block and of the last tile that end in the second half of a tile of twice as many rows.
_ENDS_OF_PARTS: Final = ((_TILE + 1, 8), (_TILE + 2, 1), (_TILE + 10, 3), (_TILE + 10, 10))
# Queries, keys and odd queries: rows that see few keys or none, in two tiles rows that see others than
# their neighbours, and the last rows of a tile.
_NONFINITE: Final = (
    (_BLOCK, 6, tuple(range(_BLOCK - 2))),
    (_BLOCK, _BLOCK, (*range(4), *range(_TILE, _TILE + 4))),
    (_BLOCK, _BLOCK, (_TILE - 1,)),
    (_BLOCK, _BLOCK, (_TILE - 3, _TILE - 2, _TILE - 1)),
)

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
    in `slices`, or with `across` warps that share them. With `in_parts`, registers hold the scores of half a
    tile at once, and both matrices that the CTA owns. In `one_sweep` a kernel by keys also adds to sums of
    dQ.
    """

    owner: str
    config: AttentionConfig
    wanted: tuple[str, ...] = ()
    with_dlse: bool = False
    stages: int = 2
    slices: int = 1
    across: int = 1
    in_parts: bool = False
    one_sweep: bool = False

    @property
    def tile(self) -> int:
        """Rows of one tile."""
        return (2 if self.in_parts else 1) * self.across * _TILE

    def build(self, kernel: GradientConfig) -> GradientBuild:
        """The kernel of a configuration with tiles for small problems. Its proofs are left to the judge."""
        stages = 1 if kernel.owner == SCORES else self.stages
        slices, across = (self.slices, self.across) if kernel.owner == KEYS else (1, 1)
        step, count = (_TILE, 2) if self.in_parts else (0, 0)
        if kernel.has_wgmma:
            return verified_gradient(replace(kernel, tiling=replace(kernel.wgmma, tile=self.tile)))
        small = replace(kernel.mma, block=_BLOCK, tile=self.tile, warps=across * _WARPS, across=across)
        small = replace(small, stages=stages, slices=slices, step=step, resident=count)
        return verified_gradient(replace(kernel, tiling=small))


def gradient_subject(name: str, *, attention: dict[str, Any], **settings: Any) -> KernelUnderTest:
    """The subject of the kernel with these `GradientSettings`, of which `attention` are those of the
    config.
    """
    options = GradientSettings(config=AttentionConfig(return_lse=True, **attention), **settings)
    problems = _problems_of(options)

    def prepare(problem: Problem) -> Launch:
        arrays = GradientArrays.of(options, problem)
        return of_step(arrays.step, tuple(arrays.results.values()), arrays.wrong)

    build = GradientArrays.of(options, problems[0]).step.build
    scheduled = 2 if options.owner == SCORES else 1
    return KernelUnderTest(name, build.kernel.name, build.threads, build.module, problems, prepare, scheduled)


# ---------------------------------------------------------------------------------------- problems


def _problems_of(settings: GradientSettings) -> tuple[Problem, ...]:
    """Problems with ragged ends of every kind, of queries and of keys. The first, or the second, uses all
    buffers repeatedly; some have rows that see no key, keys that no row sees, NaN and
    infinity in queries, or nothing to walk over.
    """
    config, tile = settings.config, settings.tile
    if config.varlen:
        return tuple(_varlen(settings))
    iterations, ends = _ITERATIONS * tile + 6, (*_ENDS, *(_ENDS_OF_PARTS if tile > _TILE else ()))
    first = Problem(iterations, iterations + 4, heads=2)
    problems = [
        *([] if settings.owner == SCORES else [_of_one_cta(settings)]),
        first,
        Problem(_BLOCK + 5, tile - 3, batch=2, heads=4, kv_heads=2),
        Problem(_BLOCK + tile + 9, tile + 4),
        *_with_nan(settings),
        Problem(3, 0) if settings.owner == QUERIES else Problem(0, 3),
        *(Problem(_BLOCK, 2 * tile, times=times, heads=1) for times in (-1.0, 0.0)),
        Problem(_TILE - 3, tile + _TILE - 3, times=0.0, heads=1),
        Problem(2 * _BLOCK, 3 * tile, scores="growing", heads=1),
        replace(first, reverse=True),
        replace(first, alike=True),
        *(Problem(_BLOCK + end, n, heads=1, reverse=True) for end, n in ends),
        *(Problem(n, _BLOCK + end, heads=1, reverse=True) for end, n in ends),
        *(
            [Problem(_BLOCK, n, softcap=LARGE_SOFTCAP) for n in (tile + 1, 3 * tile)]
            if config.softcap is not None
            else []
        ),
        *(
            Problem(n, n, heads=1, dropout_seed=seed)
            for seed, n in _AT_THRESHOLD[settings.owner]
            if config.dropout
        ),
        *(Problem(q, k, heads=1, odd=rows) for q, k, rows in _nonfinite(config)),
        *(_of_larger_tiles() if config.causal == "bottom_right" and tile > _TILE else []),
        *(_low(tile) if settings.owner == QUERIES and config.causal != "bottom_right" else []),
        *(_infinite(settings) if config.softcap is None else []),
    ]
    if settings.owner == SCORES:
        problems = [p for p in problems if p.seq_q and p.seq_k]
        shared = Problem(_BLOCK + 5, tile + 3, batch=2, heads=4, kv_heads=2)
        problems += [replace(shared, broadcast=axes) for axes in (("batch",), ("heads",), ("batch", "heads"))]
    return tuple(problems)


def _of_larger_tiles() -> Iterator[Problem]:
    """Problems in which the last query of a tile of twice as many rows has NaN in dO, and keys of a later CTA
    do not see it; and in which the random number of query 1 and key 0, whose weight counts, equals the
    threshold of dropout.
    """
    yield Problem(_BLOCK + _TILE, 2 * _BLOCK, heads=1, odd=(_BLOCK - 1,))
    yield Problem(_BLOCK, _BLOCK, heads=1, dropout_seed=17669)


def _low(tile: int) -> Iterator[Problem]:
    """Problems in which keys after the last one, with a score of 0, would have infinite weights: in each
    problem another of a lane's keys is the first of these. The queries of the last CTA see all keys.
    """
    for part in range(0, tile, MMA_ROWS):
        for end in (1, 2, 8, 9, 10):
            yield Problem(_BLOCK + tile, tile + part + end, heads=1, scores="low")


def _nonfinite(config: AttentionConfig) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Numbers of queries and keys, and the rows of Q with NaN or infinity: those of `_NONFINITE`; one among
    the last rows of a CTA, of which only the last sees a key; and one with NaN in each panel of 16 bits of
    Q and of dO after the first.
    """
    yield from _NONFINITE
    right = None if config.window is None else config.window[1]
    if config.causal == "bottom_right" or right is not None:
        yield _TILE + _BLOCK - 1 + (right or 0), _TILE, (_BLOCK - 8,)
    if config.head_dim > _PANEL:  # in either half of a tile
        yield from ((2 * _BLOCK, 2 * _BLOCK, (first, first + _BLOCK + 2)) for first in (0, 8))
    for panel in range(1, -(-config.value_dim // _PANEL)):
        for first in (panel * _BLOCK, panel * _BLOCK + _TILE):  # in either half of a tile of 32 rows
            rows = (panel + 1) * _BLOCK
            yield rows, rows, (0, first, first + 2)


def _infinite(settings: GradientSettings) -> Iterator[Problem]:
    """Problems with scores of -inf. In kernels by queries some rows have no other; where no row is without
    a key else, also such rows with NaN and infinity in dO. In others keys are infinite, whose products with
    queries after the last one, which are 0, would be NaN: each of a lane's queries in turn is the first
    of these.
    """
    tile = settings.tile
    if settings.owner == QUERIES:
        parting = Problem(_BLOCK, 2 * tile + 5, heads=1, scores="parting")
        yield parting
        if settings.config.causal == "top_left":
            yield Problem(_BLOCK, tile + 5, heads=1, scores="none of queries", odd=tuple(range(0, _BLOCK, 4)))
        return
    for part in range(0, tile, MMA_ROWS):
        for end in (1, 2, 9, 10):
            yield Problem(tile + part + end, _BLOCK - 3, heads=1, scores="none")


def _of_one_cta(settings: GradientSettings) -> Problem:
    """A problem with one CTA, which walks over more tiles than it has stages."""
    rows = 2 * settings.tile + 6
    return Problem(_BLOCK, rows, heads=1) if settings.owner == QUERIES else Problem(rows, _BLOCK, heads=2)


def _with_nan(settings: GradientSettings) -> list[Problem]:
    """Problems with NaN in keys of tiles that a block reads, which no row sees; if the kernel makes dQ,
    also in keys that rows of other blocks, or some rows of the block, see.
    """
    config, more = settings.config, settings.tile + 5
    problems = []
    if config.causal == "top_left":
        problems.append(Problem(more, _BLOCK + more, nan_from=more))
    if config.window is not None:
        left = config.window[0] or 0
        ends = (more, _BLOCK - 1)
        problems += [Problem(_BLOCK, _BLOCK + left + n, heads=1, nan_before=n) for n in ends]
    makes_queries = settings.owner == QUERIES or settings.one_sweep
    if makes_queries and config.causal == "bottom_right":
        problems.append(Problem(2 * _BLOCK, 2 * _BLOCK + more, heads=1, nan_from=_BLOCK + more))
    elif makes_queries:
        problems.append(Problem(_BLOCK, _BLOCK, heads=1, nan_from=_BLOCK - 3))
    return problems


def _varlen(settings: GradientSettings) -> list[Problem]:
    """Problems of packed sequences: blocks and tiles of which all, some or no rows belong to one."""
    b, t = _BLOCK, settings.tile
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
    ends = [(b + 8, 8), (16, b + 24), (b + 24, b + 16), (8, b + 8), (b + 16, 16)]
    packed += [Problem(0, 0, lengths=(of,), heads=1, reverse=True) for of in ends]
    # A sequence without rows, which no row precedes.
    empty = ((0, 7), (3, 2)), ((7, 0), (2, 3))
    packed += [Problem(0, 0, lengths=of, heads=1, reverse=True) for of in empty]
    packed += [replace(packed[3], times=times) for times in (-1.0, 0.0)]
    packed += [replace(packed[1], reverse=True), replace(packed[3], alike=True)]
    packed += [
        Problem(0, 0, lengths=((q, k),), heads=1, odd=rows) for q, k, rows in _nonfinite(settings.config)
    ]
    packed += [replace(p, seq_q=0, seq_k=0, lengths=p.sequences) for p in _infinite(settings)]
    return [Problem(0, 0, lengths=small.sequences, heads=small.heads), *packed]


# ------------------------------------------------------------------------------------------- arrays


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The arrays that the kernels of a call read, [batch, heads, rows, columns] within margins, and the right
    results, by the names of the kernels' pointers. `rows` says, by the names of written matrices, which of
    their rows are of a sequence.
    """

    matrices: Mapping[str, Array]
    of_rows: Mapping[str, Array]
    operands: Mapping[str, Array]
    bounds: Mapping[str, GradientBound]
    rows: Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class GradientArrays:
    """The launch of a kernel on a problem; the arrays that it writes, and the right results, by the names of
    its pointers. `is_dropping`: dropout drops weights.
    """

    step: Step
    results: Mapping[str, Array]
    inputs: _Inputs
    is_dropping: bool

    @classmethod
    def of(cls, settings: GradientSettings, p: Problem) -> GradientArrays:
        """The launch on a problem, with equal contents of the arrays at each call."""
        inputs, config = _inputs(settings, p), p.config(settings.config)
        written = {
            name: with_margins(inputs.matrices[of].shape, config.element, None, reverse=p.reverse)
            for name, of in WRITTEN.items()
        }
        packed = {
            name: array[0].swapaxes(0, 1) if config.varlen else array
            for name, array in {**inputs.matrices, **written}.items()
        }
        rows = {name: array[0] if config.varlen else array for name, array in inputs.of_rows.items()}
        views = {name: view(array, name) for name, array in {**packed, **rows}.items()}
        operands = {name: view(array, name) for name, array in inputs.operands.items()}
        sizes = Checks(config, Caller(_CALLER)).check(views, operands, "bhsd", (None, None))
        sums = {name: view(np.empty(operands[name].shape, np.float32), name) for name in settings.wanted}
        seed = {"dropout_seed": p.dropout_seed} if config.dropout else {}
        numbers = {**config.numbers, **seed}
        call = GradientCall(
            config, sizes, "bhsd", config.scale, views, operands, numbers, sums, settings.one_sweep
        )
        memory = {
            name: np.full(needed.shape, 0 if needed.is_cleared else np.nan, np.float32)
            for name, needed in memory_of(call, _target_of(settings)).items()
        }
        if settings.owner != QUERIES:
            memory["D"][...] = inputs.bounds["D"].gradient.reshape(memory["D"].shape)
        step = _step(settings, call, memory)
        names = {"dQ": "dq", "dK": "dk", "dV": "dv"}
        every = memory | {name: written[of] for name, of in names.items()}
        results = {array.name: every[array.name] for array in step.build.arrays if array.is_written}
        return cls(step, results, inputs, bool(config.dropout))

    def wrong(self) -> str:
        """A description of the first wrong result; empty if all are right. Where the exact gradient is
        NaN or infinite, as where a row sees NaN, either is right.
        """
        return next(filter(None, (self._wrong(*result) for result in self.results.items())), "")

    def _wrong(self, name: str, gradient: Array) -> str:
        right, allowed = (x.reshape(gradient.shape) for x in self.inputs.bounds[name])
        rows = self.inputs.rows.get(name)
        outside = "" if rows is None else margins_changed(gradient, rows, name)
        free: Array = ~np.isfinite(right) & ~np.isfinite(gradient)
        if name == "dV":
            free |= self._free_values(right)
        if rows is not None:
            free &= rows[:, None]
        return difference(name, np.where(free, right, gradient), right, allowed) or outside

    def _free_values(self, right: Array) -> Array:
        """Where dV may be anything (docs/numerics.md, "NaN and infinity"): in the rows in which dK is not
        finite, unless dV is not and no weight is dropped.
        """
        nonfinite = ~np.isfinite(self.inputs.bounds["dK"].gradient).all(axis=3, keepdims=True)
        free: Array = nonfinite & (np.isfinite(right) | self.is_dropping)
        return free


def _target_of(settings: GradientSettings) -> Target:
    """The target of a kernel."""
    return target(str(settings.config.target or DEFAULT_TARGET))


def _step(settings: GradientSettings, call: GradientCall, memory: Mapping[str, Array]) -> Step:
    """The launch of the kernel under test, among those of a call."""
    views = {name: view(array, name) for name, array in memory.items()}
    on = _target_of(settings)
    for step in steps_of(call, on, views, _CALLER, build=settings.build):
        if isinstance(step.build, GradientBuild) and step.build.config.owner == settings.owner:
            return step
    raise AssertionError(f"no launch by {settings.owner}")


@lru_cache(maxsize=64)
def _inputs(settings: GradientSettings, p: Problem) -> _Inputs:
    """The inputs of a problem and the bounds of its gradients; equal at each call."""
    config, random, of = (
        p.config(settings.config),
        np.random.default_rng(_SEED),
        arrays_of(settings.config, p),
    )
    hidden = np.asarray(np.isnan(of.v).all(axis=3))
    of.k[hidden] = np.nan
    hidden[:, :, ~of.keys] = hidden[:, :, ::2] = False
    of.v[hidden] = 1  # every other key with NaN has it in K alone
    shape = of.out.shape
    dout = with_margins(shape, config.element, random, reverse=p.reverse)
    out = with_margins(shape, config.element, None, reverse=p.reverse)
    if p.alike:
        dout, out = alike(dout), alike(out)
    dlse = random.standard_normal(shape[:3]).astype(F32.numpy) if settings.with_dlse else None
    has_nan = np.isnan(of.out).any(axis=3) & ~np.isneginf(of.lse)
    lse = np.where(has_nan, np.nan, of.lse).astype(F32.numpy)  # keys that have NaN have it in K
    out[...] = np.where(np.isneginf(lse)[..., None], np.nan, of.out)  # what is there does not matter
    _make_nonfinite(p, dout, of.q, out, lse)
    dout[:, :, ~of.queries] = np.nan
    how = {"causal": config.causal, "softmax_scale": config.scale, **config.score_arguments}
    how |= {name: array for name, array in of.operands.items() if name not in of.lengths}
    how |= {"dropout_seed": p.dropout_seed} if config.dropout else {}
    inputs = GradientInputs(config, dout, of.q, of.k, of.v, out, lse, dlse, how)
    bounds = (
        _bounds_of_sequences(inputs, of.lengths, settings.wanted)
        if of.lengths
        else inputs.bounds(settings.wanted)
    )
    names = {"q": "dQ", "k": "dK", "v": "dV", **{name: f"d{name}" for name in settings.wanted}}
    return _Inputs(
        {"dout": dout, "q": of.q, "k": of.k, "v": of.v, "out": out},
        {"lse": lse} | ({} if dlse is None else {"dlse": dlse}),
        of.operands,
        {names.get(name, name): bound for name, bound in bounds.items()},
        {"dQ": of.queries, "dK": of.keys, "dV": of.keys},
    )


def _make_nonfinite(p: Problem, dout: Array, q: Array, out: Array, lse: Array) -> None:
    """Put NaN and infinity into the odd rows of a problem, in turn in the ways that `Problem` lists, by
    their distance from the first of them, each into another chunk of columns.
    """
    ways = (dout, np.nan), (dout, np.inf), (q, np.nan), (out, np.inf)
    for row in p.odd:
        column, way = divmod(row - p.odd[0], len(ways))
        array, nonfinite = ways[way]
        array[:, :, row, _CHUNK * column % array.shape[3]] = nonfinite
        if array is q:
            out[:, :, row] = np.nan
            lse[:, :, row] = np.where(np.isneginf(lse[:, :, row]), -np.inf, np.nan)


def _bounds_of_sequences(
    call: GradientInputs, lengths: Mapping[str, Array], wanted: Sequence[str]
) -> dict[str, GradientBound]:
    """The bounds of packed sequences, whose rows are those of one batch item; NaN for rows of none.
    What rows add to gradients of arrays of scores is [sequences, heads, longest], 0 after the last
    row.
    """
    every = list(each_sequence(**lengths))
    heads = call.q.shape[1]
    of_heads, how = split_by_axes(call.arguments, (len(every), heads))
    longest = max(queries.stop - queries.start for _, queries, _ in every)
    whole: dict[str, GradientBound] = {}
    for b, queries, keys in every:
        sides = {"q": queries, "k": keys, "v": keys, "D": queries, SUMS_OF_QUERIES: queries}
        one = replace(
            call,
            dout=call.dout[:, :, queries],
            q=call.q[:, :, queries],
            k=call.k[:, :, keys],
            v=call.v[:, :, keys],
            out=call.out[:, :, queries],
            lse=call.lse[:, :, queries],
            dlse=None if call.dlse is None else call.dlse[:, :, queries],
            arguments={**how, **{name: array[b : b + 1] for name, array in of_heads.items()}},
        )
        for name, bound in one.bounds(wanted).items():
            if name in sides:
                like = {"k": call.k, "v": call.v, "D": call.lse}.get(name, call.q)
                start = GradientBound(np.full(like.shape, np.nan), np.zeros(like.shape))
                at: Any = (slice(None), slice(None), sides[name])
            elif name in wanted:
                continue
            else:
                shape = (len(every), heads, longest)
                start = GradientBound(np.zeros(shape), np.zeros(shape))
                at = (slice(b, b + 1), slice(None), slice(queries.stop - queries.start))
            for into, part in zip(whole.setdefault(name, start), bound, strict=True):
                into[at] = part
    return whole
