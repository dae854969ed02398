"""The launches of a call for gradients, and its execution on the host."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from flash.calls.step import Step, launch_step, outer_strides, require_grid
from flash.contract.built_kernel import BuiltKernel
from flash.contract.gradients import GradientBuild, auxiliary_build, gradient_build
from flash.cpu.engine import Engine
from flash.cpu.gradients import attention_gradients_cpu
from flash.families.wgmma_gradient import CONSUMERS
from flash.gradients.checks import WRITTEN, Checked, alignment
from flash.kernels.rounded_elements import THREADS, ElementsConfig
from flash.kernels.sum_terms import AXES, WARPS, SumConfig
from flash.kernels.widened_rows import ROWS, WideConfig
from flash.launch.kernel_choice import against_map
from flash.launch.operands import Operands
from flash.launch.shapes import PACKED
from flash.launch.varlen import LENGTHS
from flash.mods.trace import AUX, AuxArray
from flash.operands.dtypes import BF16, F32, I32, I64, OF_ARRAYS, DType
from flash.problem.config import AttentionConfig
from flash.problem.features import GRADIENT_SCALE
from flash.problem.features import SCALES as SCALE_ARRAYS
from flash.problem.gradient_choice import against_wgmma, gradient_config
from flash.problem.gradients import (
    BEGUN_CTAS,
    ELEMENTS,
    KEYS,
    MOST_TERMS,
    ORDER_OF_SUMS,
    PLANES,
    SCORES,
    SUM_BLOCKS,
    SUMS_OF_QUERIES,
    WIDE,
    WIDENED,
    GradientConfig,
    exact_sums_of,
    owners_of,
    term_of,
)
from flash.problem.sequences import each_sequence
from flash.reference import scaled_numbers
from flash.scores.aux_arrays import gathered
from flash.scores.feature import ScoreFeature, summed_to
from ptxgen.arrays.dlpack import dense_strides
from ptxgen.arrays.elements import numpy_type
from ptxgen.arrays.views import ArrayView, host_array
from ptxgen.errors import LaunchError
from ptxgen.target import Target

_POINTERS = {
    "dout": "dO", "q": "Q", "k": "K", "v": "V", "out": "O", "dq": "dQ", "dk": "dK", "dv": "dV",
    "lse": "LSE", "dlse": "dLSE",
}  # fmt: skip


# Matrices of fp8 that kernels read in bf16, too, and the operands with their scales.
_SCALES = dict(zip(WIDENED, (*SCALE_ARRAYS[:2], GRADIENT_SCALE), strict=True))
_AFTER = (SCORES, ELEMENTS)  # owners of the kernels that follow those of dQ, dK and dV
_MAPPED = ("Q", "K", "V", "dO", "dQ", "dK", "dV")  # which kernels with `wgmma` copy by tensor maps


class GradientCall(NamedTuple):
    """A checked call for gradients. `arrays` are all but the operands, by the names of the caller's
    arguments; `sums` are the arrays for the gradients of arrays of scores. `layout` is the caller's.
    """

    config: AttentionConfig
    checked: Checked
    layout: str
    scale: float
    arrays: Mapping[str, ArrayView]
    operands: Operands
    numbers: Mapping[str, int | float]
    sums: Mapping[str, ArrayView]
    one_sweep: bool = False  # as `gradient_config` takes it
    in_order: bool = False  # likewise
    written: tuple[str, ...] = tuple(WRITTEN)  # of dq, dk and dv

    @property
    def dout_dtype(self) -> DType:
        """The element type of dO, the gradient of the output O."""
        return OF_ARRAYS[self.arrays["dout"].dtype]

    @property
    def owners(self) -> tuple[str, ...]:
        """The owners of the kernels that write dq, dk and dv, in the order of their launches."""
        return owners_of(
            one_sweep=self.one_sweep, writes_queries="dq" in self.written, writes_keys="dk" in self.written
        )


class Memory(NamedTuple):
    """An array that the launches of a call need. Before the first launch its elements are 0 if it
    `is_cleared`, and arbitrary otherwise.
    """

    shape: tuple[int, ...]
    is_cleared: bool = False
    dtype: DType = F32


def memory_of(call: GradientCall, target: Target, caller: str) -> dict[str, Memory]:
    """The memory that the launches of a call need on a target, by the names of their pointers. Raises
    `LaunchError` in the name of `caller` if the arrays have no kernels.
    """
    config, (geometry, longest_q, longest_k) = call.config, call.checked
    rows = tuple(call.arrays["lse"].shape)
    memory = {"D": Memory(rows)}
    if config.is_fp8:
        arrays = _in_order(call)
        memory |= {f"{name}{WIDE}": Memory(tuple(arrays[name].shape), dtype=BF16) for name in _SCALES}
    if call.one_sweep:
        sums = Memory(_shape_of_sums(call, target, rows, caller), is_cleared=True)
        memory[SUMS_OF_QUERIES] = sums
        if call.in_order:
            counters = (*sums.shape[:-1], CONSUMERS)
            memory[ORDER_OF_SUMS] = Memory(counters, is_cleared=True, dtype=I32)
            memory[BEGUN_CTAS] = Memory((1,), is_cleared=True, dtype=I32)
    heads = geometry.batch, geometry.heads
    for feature in config.scores:
        into = call.sums.get(feature.argument)
        if into is None:
            continue
        if feature.gradient_of == "scores":
            needed = Memory((*_whole(feature, into)[:2], geometry.seq_q, geometry.seq_k))
        else:  # the rows, or keys, of a packed sequence may be fewer
            name = memory_name(call, feature)
            longest = longest_k if name.startswith("key_") else longest_q
            needed = Memory((*heads, longest), is_cleared=config.varlen)
        memory[memory_name(call, feature)] = needed
    elements = _elements(call)
    if elements:
        _kernel(call, ELEMENTS, target, caller)  # which takes these arrays
        _require_few_terms(call, caller)
    for array in elements:
        shape = (PLANES, *call.sums[array.operand].shape)
        memory[exact_sums_of(array)] = Memory(shape, is_cleared=True, dtype=I64)
    return memory


def _elements(call: GradientCall) -> list[AuxArray]:
    """The arrays of `aux` whose gradients the call sums."""
    return [array for array in call.config.aux_arrays if array.operand in call.sums]


def _shape_of_sums(call: GradientCall, target: Target, rows: tuple[int, ...], caller: str) -> tuple[int, ...]:
    """The shape of the sums of dQ of rows of shape `rows`: [..., head_dim], or with blocks in the order of
    threads [..., blocks, elements].
    """
    kernel = _kernel(call, KEYS, target, caller)
    if kernel.sum_block is None:
        return (*rows, call.config.head_dim)
    block_rows, columns = kernel.sum_block
    return (*rows[:-1], _sum_blocks(call, block_rows), block_rows * columns)


def _sum_blocks(call: GradientCall, block_rows: int) -> int:
    """The number of blocks of rows of dQ for which each head has sums."""
    geometry = call.checked.geometry
    return -(-geometry.seq_q // block_rows) + (geometry.batch if call.config.varlen else 0)


def _kernel(call: GradientCall, owner: str, target: Target, caller: str) -> GradientConfig:
    """The gradient kernel of a call whose CTAs own rows of `owner`, such as keys."""
    config, one_sweep = call.config, call.one_sweep and owner not in _AFTER
    against = _against_maps(call)
    if call.in_order and against:
        raise LaunchError(
            f"{caller}: sweeps=1 with deterministic=True needs arrays that tensor maps describe, but "
            f"{against}; leave sweeps out"
        )
    return gradient_config(
        config,
        owner,
        target,
        alignment(config, call.arrays),
        with_dlse="dlse" in call.arrays and owner not in _AFTER,
        wanted=tuple(name for name in config.differentiable if name in call.sums),
        caller=caller,
        one_sweep=one_sweep,
        in_order=call.in_order,
        without_wgmma=against,
        dout_dtype=call.dout_dtype,
    )


def _whole(feature: ScoreFeature | type[ScoreFeature], into: ArrayView) -> tuple[int, ...]:
    """The shape of an array of scores with all axes of its feature, the missing ones of length 1."""
    return (1,) * (len(feature.axes) - len(into.shape)) + tuple(into.shape)


def arrays_of(call: GradientCall, memory: Mapping[str, ArrayView]) -> dict[str, ArrayView]:
    """All arrays of a call by the names of the kernels' pointers, with axes in the order of the kernels;
    `memory` is that of `memory_of`.
    """
    sums = {sum_name(name): array for name, array in call.sums.items()}
    return {**_in_order(call), **memory, **call.operands, **sums}


def sum_name(argument: str) -> str:
    """The name of the array for the gradient of an array of scores, by its argument."""
    return f"sum_{argument}"


def memory_name(call: GradientCall, feature: ScoreFeature) -> str:
    """The name of the pointer to the terms of which the gradient of a feature's array is the sum."""
    return term_of(feature, one_sweep=call.one_sweep)


def steps_of(
    call: GradientCall,
    target: Target,
    memory: Mapping[str, ArrayView],
    caller: str,
    *,
    build: Callable[[GradientConfig], GradientBuild] = gradient_build,
) -> Iterator[Step]:
    """The launches of a call, in order; `memory` holds the arrays that `memory_of` names, and `build` makes
    the kernel of a configuration, maybe with other tiles. Raises `LaunchError` if a grid is too large.
    """
    config, (geometry, longest_q, longest_k) = call.config, call.checked
    rows_q, rows_k = config.features.row_counts
    values: dict[str, int | float] = {
        rows_q: geometry.seq_q,
        rows_k: geometry.seq_k,
        "max_seqlen_q": longest_q,
        "max_seqlen_k": longest_k,
        "batch": geometry.batch,
        "kv_heads": geometry.kv_heads,
        "heads": geometry.heads,
        "group": geometry.group,
        "softmax_scale": call.scale,
        **dict(geometry.operand_sizes),
        **call.numbers,
    }
    views = arrays_of(call, memory)
    if config.is_fp8:
        yield from _widening_steps(call, target, views, values, caller)
    for owner in call.owners:
        kernel = build(_kernel(call, owner, target, caller))
        t = kernel.config.tiling
        if kernel.config.sum_block is not None:
            values[SUM_BLOCKS.name] = _sum_blocks(call, kernel.config.sum_block[0])
        rows, heads = (longest_k, geometry.kv_heads) if owner == KEYS else (longest_q, geometry.heads)
        yield from _step(
            kernel, views, values, -(-rows // t.block) * heads * geometry.batch * t.slices, caller
        )
    if "dbias" in memory:
        kernel = build(_kernel(call, SCORES, target, caller))
        batch, heads, seq_q, seq_k = memory["dbias"].shape
        t = kernel.config.tiling
        values |= {"batch": geometry.batch, "bias_batch": batch, "bias_heads": heads}
        values |= {
            "over_batch": geometry.batch // max(batch, 1),
            "over_heads": geometry.heads // max(heads, 1),
        }
        ctas = -(-seq_q // t.block) * -(-seq_k // t.tile) * batch * heads
        yield from _step(kernel, views, values, ctas, caller)
    if elements := _elements(call):
        kernel = build(_kernel(call, ELEMENTS, target, caller))
        ctas = -(-longest_q // kernel.config.tiling.block) * geometry.heads * geometry.batch
        yield from _step(kernel, views, values, ctas, caller)
        for array in elements:
            gradient = views[sum_name(array.operand)]
            rounding = auxiliary_build(ElementsConfig(target, OF_ARRAYS[gradient.dtype]))
            of_arrays, size = {"X": views[exact_sums_of(array)], "Y": gradient}, gradient.size
            yield from _step(rounding, of_arrays, {"elements": size}, -(-size // THREADS), caller)
    for feature in config.scores:
        if feature.argument in call.sums:
            terms, into = memory_name(call, feature), sum_name(feature.argument)
            yield from sum_steps(feature, views[terms], views[into], target, caller)


def _require_few_terms(call: GradientCall, caller: str) -> None:
    """Raise `LaunchError` if exact sums might overflow."""
    geometry, longest_q, longest_k = call.checked
    terms = geometry.batch * geometry.heads * longest_q * longest_k
    if terms > MOST_TERMS:
        raise LaunchError(
            f"{caller}: gradients of arrays of aux take at most {MOST_TERMS} scores, got {terms}; divide the "
            "batch"
        )


def _widening_steps(
    call: GradientCall,
    target: Target,
    views: Mapping[str, ArrayView],
    values: Mapping[str, int | float],
    caller: str,
) -> Iterator[Step]:
    """The launches that write matrices of fp8 in bf16, for kernels that read them so. Raises `ConfigError` if
    the arrays have no such kernels.
    """
    config, g = call.config, call.checked.geometry
    _kernel(call, KEYS, target, caller)  # which takes arrays that have the alignment of these
    for name, scale in _SCALES.items():
        X, (rows, heads) = views[name], (g.seq_k, g.kv_heads) if name == "K" else (g.seq_q, g.heads)
        kernel = auxiliary_build(WideConfig(target, OF_ARRAYS[X.dtype], X.shape[-1], config.scaled_rows))
        of_kernel = {**values, "rows": rows, "heads": heads, "group": heads // max(g.kv_heads, 1)}
        arrays = {"X": X, "scale": views[scale], "W": views[f"{name}{WIDE}"]}
        yield from _step(kernel, arrays, of_kernel, -(-rows // ROWS) * heads * g.batch, caller)


def why_without_wgmma(call: GradientCall, owner: str, target: Target) -> str:
    """Why the kernel of a call whose CTAs own rows of `owner` does not multiply by `wgmma`; the empty string
    if it does.
    """
    aligned = alignment(call.config, call.arrays)
    against = against_wgmma(call.config, owner, target, aligned, one_sweep=call.one_sweep)
    return against or _against_maps(call)


def _against_maps(call: GradientCall) -> str:
    """Why no tensor maps describe the matrices of a call; the empty string if they do."""
    for name, array in _in_order(call).items():
        if name not in _MAPPED:
            continue
        if not array.size:
            return f"{name} has no rows"
        *extents, _ = array.shape
        against = against_map(name, extents, outer_strides(array), numpy_type(array.dtype).itemsize)
        if against:
            return against
    return ""


def _step(
    kernel: BuiltKernel,
    views: Mapping[str, ArrayView],
    values: Mapping[str, int | float],
    ctas: int,
    caller: str,
) -> Iterator[Step]:
    """The launch of a kernel, or nothing if `ctas` is 0. Raises `LaunchError` if the grid is too large."""
    require_grid(caller, ctas)
    if ctas:
        yield launch_step(kernel, views, values, ctas)


def _in_order(call: GradientCall) -> dict[str, ArrayView]:
    """The arrays of a call by the names of pointers, with their axes in the order of the kernels."""
    layout = PACKED if call.config.varlen else call.layout
    order = {"bshd": (0, 2, 1, 3), PACKED: (1, 0, 2)}.get(layout)
    arrays = {_POINTERS[name]: array for name, array in call.arrays.items()}
    for name, array in arrays.items():
        if order is not None and len(array.shape) == len(order):
            shape, strides = (tuple([of[n] for n in order]) for of in (array.shape, array.strides))
            arrays[name] = array._replace(shape=shape, strides=strides)
    return arrays


def sum_steps(
    feature: ScoreFeature | type[ScoreFeature], terms: ArrayView, into: ArrayView, target: Target, caller: str
) -> Iterator[Step]:
    """The launch that sums the terms of a feature's array along the axes along which it was broadcast."""
    whole = _whole(feature, into)
    # Terms of numbers by rows, or by keys, have no axis of queries.
    n = tuple(terms.shape) if len(terms.shape) == AXES else (*terms.shape[:2], 1, terms.shape[2])
    m = whole if len(whole) == AXES else (*whole[:2], 1, *(whole[2:] or (1,)))
    r = tuple(a // max(b, 1) for a, b in zip(n, m, strict=True))
    sums = math.prod(m)
    if not sums or not math.prod(n):
        return
    values = {f"{of}{i}": x for of, xs in (("m", m), ("r", r)) for i, x in enumerate(xs)}
    values |= {"sums": sums, "terms": math.prod(r)}
    arrays = {"X": (terms, n), "Y": (into, m)}
    views = {
        name: array._replace(shape=shape, strides=dense_strides(shape))
        for name, (array, shape) in arrays.items()
    }
    kernel = auxiliary_build(SumConfig(target, OF_ARRAYS[into.dtype]))
    yield from _step(kernel, views, values, -(-sums // WARPS), caller)


def run_on_cpu(call: GradientCall, engine: Engine) -> None:
    """Compute the gradients of a call with numpy, packed sequences one after another."""
    config = call.config
    operands: dict[str, Any] = gathered({name: host_array(a) for name, a in call.operands.items()})
    scores: dict[str, Any] = {"causal": config.causal, **config.score_arguments}
    scores["dropout_seed"] = int(call.numbers.get("dropout_seed", 0))
    attend: Callable[..., None] = functools.partial(
        attention_gradients_cpu, softmax_scale=call.scale, engine=engine, **scores
    )
    arrays = {name: host_array(a) for name, a in call.arrays.items()}
    sums = {name: host_array(a) for name, a in call.sums.items()}
    rows: dict[str, Any] = {name: arrays.pop(name, None) for name in ("lse", "dlse")}
    if not config.varlen:
        in_order = {name: bhsd(a, call.layout) for name, a in arrays.items()}
        shape = in_order["q"].shape[:3]
        of_rows = {name: None if a is None else a.reshape(shape) for name, a in rows.items()}
        if config.is_fp8:
            in_order |= _scaled(call, in_order, operands)
        attend(**dict.fromkeys(WRITTEN) | in_order, **of_rows, arrays=sums, **operands)
        return
    by_head = {name: a.swapaxes(0, 1)[None] for name, a in arrays.items()}
    lengths = {name: operands.pop(name) for name in tuple(operands) if name in LENGTHS}
    of_heads = call.checked.geometry.batch, call.checked.geometry.heads
    of_all = {AUX: operands.pop(AUX)} if AUX in operands else {}
    wide = {name: np.broadcast_to(array, of_heads) for name, array in operands.items()}
    of_elements = {name: np.zeros(sums[name].shape) for name in sums if name in config.aux_operands}
    of_sequences = {name: np.zeros(of_heads, np.float32) for name in sums if name not in of_elements}
    for b, queries, keys in each_sequence(**lengths):
        one, terms = slice(b, b + 1), {name: np.empty_like(total) for name, total in of_elements.items()}
        rows_of = {n: a[:, :, keys if n in ("k", "v", "dk", "dv") else queries] for n, a in by_head.items()}
        attend(
            **dict.fromkeys(WRITTEN) | rows_of,
            **{name: None if a is None else a[None, :, queries] for name, a in rows.items()},
            **{name: array[one] for name, array in wide.items()},
            arrays={**{name: array[one] for name, array in of_sequences.items()}, **terms},
            **of_all,
            first_batch=b,
        )
        for name, total in of_elements.items():
            total += terms[name]
    for name, total in of_elements.items():
        sums[name][...] = total
    for name, array in of_sequences.items():
        sums[name][...] = summed_to(array, sums[name].shape)


def _scaled(call: GradientCall, arrays: Mapping[str, Any], operands: dict[str, Any]) -> dict[str, Any]:
    """Q, K, V and dO of fp8 as the numbers that they stand for, f32, whose scales are taken out of
    `operands`.
    """
    config, g = call.config, call.checked.geometry
    sizes = {"batch": g.batch, "heads": g.heads, "kv_heads": g.kv_heads}
    features = config.gradient_features
    sizes |= features.counts_of_scales({"seq_q": g.seq_q, "seq_k": g.seq_k})
    result = {}
    for operand in features.operands:
        if operand.name in (*SCALE_ARRAYS, GRADIENT_SCALE):
            scale = np.broadcast_to(operands.pop(operand.name), [sizes[axis] for axis in operand.axes])
            name = operand.name.removesuffix("_scale")
            result[name] = scaled_numbers(arrays[name], scale, config.scale_block, np.float32)
    return result


def bhsd(array: Any, layout: str) -> Any:
    """The array with its axes in the order [batch, heads, seq, dim]; a 3-D array gets batch 1."""
    if array.ndim == 3:
        return array[np.newaxis]
    return array if layout == "bhsd" else array.transpose(0, 2, 1, 3)
