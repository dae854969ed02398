"""The kernels of gradients, for the mutation campaign: their problems, and the right results.

Each kernel runs alone: what the forward pass and the kernels before it write is computed in float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np

from flash.calls.step import Step
from flash.contract.gradients import GradientBuild
from flash.families.wgmma_gradient import CONSUMERS
from flash.gradients.checks import WRITTEN, Checks
from flash.gradients.steps import GradientCall, memory_of, steps_of
from flash.host.caller import Caller
from flash.operands.dtypes import F32
from flash.problem.config import AttentionConfig
from flash.problem.features import GRADIENT_SCALE, SCALES
from flash.problem.gradients import BEGUN_CTAS, ORDER_OF_SUMS, QUERIES, SCORES, SUMS_OF_QUERIES, WIDE, WIDENED
from flash.problem.sequences import each_sequence
from flash.reference import scaled_numbers
from flash.scores.features import split_by_axes
from ptxgen.arrays.views import view
from ptxgen.dsl import thread_order
from ptxgen.mutation.comparison import difference
from ptxgen.mutation.kernel_under_test import Array, KernelUnderTest, Launch
from tools.campaign import fp8
from tools.campaign.arrays import alike, arrays_of, margins_changed, with_margins
from tools.campaign.gradient_bound import GradientBound, GradientInputs
from tools.campaign.gradient_problems import GradientSettings, problems_of
from tools.campaign.launches import of_step
from tools.campaign.problems import SAMPLED, Problem

_SEED: Final = 20253
_CALLER: Final = "the campaign"
_CHUNK: Final = 8  # columns; each of these begins a copy of 16 bytes


def gradient_subject(name: str, *, attention: dict[str, Any], **settings: Any) -> KernelUnderTest:
    """The subject of the kernel with these `GradientSettings`, of which `attention` are those of the
    config.
    """
    options = GradientSettings(config=AttentionConfig(return_lse=True, **attention), **settings)
    problems = problems_of(options)

    def prepare(problem: Problem) -> Launch:
        arrays = GradientArrays.of(options, problem)
        return of_step(arrays.step, tuple(arrays.results.values()), arrays.wrong)

    build = GradientArrays.of(options, problems[0]).step.build
    return KernelUnderTest(
        name,
        build.kernel.name,
        build.threads,
        build.module,
        problems,
        prepare,
        scheduled=2 if options.owner == SCORES else 1,
        params=build.smallest_maps,
        sampled=SAMPLED if options.has_wgmma else None,
        deterministic=options.in_order or not options.one_sweep,
    )


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
            name: with_margins(inputs.matrices[of].shape, config.output, None, reverse=p.reverse)
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
            *(config, sizes, "bhsd", config.scale, views, operands, numbers, sums),
            *(settings.one_sweep, settings.in_order),
        )
        memory = {
            name: np.full(needed.shape, 0 if needed.is_cleared else np.nan, needed.dtype.numpy)
            for name, needed in memory_of(call, settings.target, _CALLER).items()
        }
        if config.is_fp8:
            widened = _numbers(inputs.matrices, inputs.operands)
            for name, of in zip(WIDENED, ("q", "k", "dout"), strict=True):
                memory[f"{name}{WIDE}"][...] = widened[of]
        if settings.owner != QUERIES:
            memory["D"][...] = inputs.bounds["D"].gradient.reshape(memory["D"].shape)
        step = _step(settings, call, memory)
        names = {"dQ": "dq", "dK": "dk", "dV": "dv"}
        every = memory | {name: written[of] for name, of in names.items()}
        results = {array.name: every[array.name] for array in step.build.arrays if array.is_written}
        for name in (ORDER_OF_SUMS, BEGUN_CTAS):  # of which a call needs nothing after it
            results.pop(name, None)
        return cls(step, results, inputs, bool(config.dropout))

    def wrong(self) -> str:
        """A description of the first wrong result; empty if all are right. Where the exact gradient is
        NaN or infinite, as where a row sees NaN, either is right.
        """
        return next(filter(None, (self._wrong(*result) for result in self.results.items())), "")

    def _wrong(self, name: str, gradient: Array) -> str:
        block = self.step.build.config.sum_block
        if name == SUMS_OF_QUERIES and block is not None:
            gradient = _in_rows(gradient, block, self.inputs.bounds[name].gradient.shape)
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


def _in_rows(sums: Array, block: tuple[int, int], shape: tuple[int, ...]) -> Array:
    """Sums of dQ as [batch, heads, rows, columns] of a shape, from blocks in the order of threads, whose
    halves have the columns of one warpgroup each.
    """
    rows, columns = block
    half = columns // CONSUMERS
    where = thread_order(np.arange(rows * half), half)
    blocks = sums.reshape(*shape[:2], -1, CONSUMERS, rows * half)
    whole = np.empty((*blocks.shape[:3], rows, columns), sums.dtype)
    for group in range(CONSUMERS):
        whole[..., where.row, group * half + where.column] = blocks[:, :, :, group]
    return whole.reshape(*shape[:2], -1, columns)[:, :, : shape[2], : shape[3]]


def _step(settings: GradientSettings, call: GradientCall, memory: Mapping[str, Array]) -> Step:
    """The launch of the kernel under test, among those of a call."""
    views = {name: view(array, name) for name, array in memory.items()}
    for step in steps_of(call, settings.target, views, _CALLER, build=settings.build):
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
    out = with_margins(shape, config.output, None, reverse=p.reverse)
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
    matrices, operands = {"dout": dout, "q": of.q, "k": of.k, "v": of.v, "out": out}, of.operands
    numbers = dict(matrices)
    if config.is_fp8:
        scale = fp8.scales(random, (p.batch, p.kv_heads)).astype(F32.numpy)
        operands = {**operands, GRADIENT_SCALE: scale}
        numbers |= _numbers(matrices, operands)
        how = {name: x for name, x in how.items() if name not in SCALES}
    dout, q, k, v = (numbers[name] for name in ("dout", "q", "k", "v"))
    inputs = GradientInputs(config, dout, q, k, v, out, lse, dlse, how, written=config.output.numpy)
    bounds = (
        _bounds_of_sequences(inputs, of.lengths, settings.wanted)
        if of.lengths
        else inputs.bounds(settings.wanted)
    )
    names = {"q": "dQ", "k": "dK", "v": "dV", **{name: f"d{name}" for name in settings.wanted}}
    return _Inputs(
        matrices,
        {"lse": lse} | ({} if dlse is None else {"dlse": dlse}),
        operands,
        {names.get(name, name): bound for name, bound in bounds.items()},
        {"dQ": of.queries, "dK": of.keys, "dV": of.keys},
    )


def _numbers(matrices: Mapping[str, Array], operands: Mapping[str, Array]) -> dict[str, Array]:
    """Q, K, V and dO of fp8 as the numbers that they stand for, in float64, by the names of arguments."""
    names = [name.removesuffix("_scale") for name in (*SCALES, GRADIENT_SCALE)]
    return {name: scaled_numbers(matrices[name], operands[f"{name}_scale"]) for name in names}


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
