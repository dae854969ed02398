"""A checked call, and its execution on the CPU: by numpy, or by interpreting the kernel's PTX."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flash.contract.catalogue import Build
from flash.cpu.attention import attention_cpu
from flash.device.cta_order import USUAL_CACHE_BYTES
from flash.launch.checks import Geometry, grid_ctas, section
from flash.launch.operands import Operands
from flash.launch.step import Step, plan_of
from flash.launch.varlen import LENGTHS
from flash.mods.trace import AUX
from flash.problem.config import AttentionConfig
from flash.problem.sequences import each_sequence
from flash.scores.aux_arrays import gathered
from ptxgen.arrays.views import ArrayView, host_array
from ptxgen.runtime.plan import LaunchPlan


class Call(NamedTuple):  # a NamedTuple: a dataclass takes four times as long to make
    """One checked call: the problem, its input arrays and its output arrays."""

    config: AttentionConfig
    geometry: Geometry
    layout: str
    scale: float
    q: ArrayView
    k: ArrayView
    v: ArrayView
    out: ArrayView
    lse: ArrayView | None
    operands: Operands = MappingProxyType({})
    numbers: Mapping[str, int | float] = MappingProxyType({})  # arguments of the features


def make_plan(
    build: Build,
    geometry: Geometry,
    scale: float,
    addresses: tuple[int, ...],
    numbers: Mapping[str, int | float] = MappingProxyType({}),
    cache_bytes: int = USUAL_CACHE_BYTES,
) -> LaunchPlan:
    """The launch of a kernel. `addresses` are the addresses of Q, K, V, O, the LSE if the kernel
    writes it, and the operands. `numbers` are the scalar arguments of the kernel's features,
    `cache_bytes` is the size of the device's L2 cache.
    """
    config = build.config
    per_matrix = len(config.features.steps)
    strides = [three[-per_matrix:] for three in geometry.strides]
    strides += [()] * config.return_lse
    rows_q, rows_k = config.features.row_counts
    values: dict[str, int | float] = {
        rows_q: geometry.seq_q,
        rows_k: geometry.seq_k,
        "max_seqlen_q": geometry.longest_q,
        "heads": geometry.heads,
        "group": geometry.group,
        "section": section(config, geometry, cache_bytes),
        "softmax_scale": scale,
        **dict(geometry.operand_sizes),
        **numbers,
    }
    ctas = grid_ctas(config, geometry)
    return plan_of(build, addresses, [*strides, *geometry.operand_strides], values, ctas)


def run_on_cpu(call: Call) -> None:
    """Compute the call with numpy."""
    config = call.config
    operands: dict[str, Any] = gathered({name: host_array(a) for name, a in call.operands.items()})
    scores: dict[str, Any] = {"causal": config.causal, **config.score_arguments}
    scores["dropout_seed"] = int(call.numbers.get("dropout_seed", 0))
    attend: Callable[..., None] = functools.partial(attention_cpu, softmax_scale=call.scale, **scores)
    lse = None if call.lse is None else host_array(call.lse)
    if config.varlen:
        _each_on_cpu(call, attend, operands, lse)
        return
    q, k, v, out = (_bhsd(array, call.layout) for array in (call.q, call.k, call.v, call.out))
    attend(q, k, v, out, None if lse is None else lse.reshape(out.shape[:3]), **operands)


def _each_on_cpu(
    call: Call, attend: Callable[..., None], operands: dict[str, Any], lse: NDArray[Any] | None
) -> None:
    """Compute packed sequences one after another with numpy."""
    q, k, v, out = (host_array(a).swapaxes(0, 1) for a in (call.q, call.k, call.v, call.out))
    lengths = {name: operands.pop(name) for name in tuple(operands) if name in LENGTHS}
    of_heads = call.geometry.batch, call.geometry.heads
    of_all = {AUX: operands.pop(AUX)} if AUX in operands else {}
    wide = {name: np.broadcast_to(array, of_heads) for name, array in operands.items()}
    for b, rows, keys in each_sequence(**lengths):
        attend(
            q[None, :, rows],
            k[None, :, keys],
            v[None, :, keys],
            out[None, :, rows],
            None if lse is None else lse[None, :, rows],
            **{name: array[b : b + 1] for name, array in wide.items()},
            **of_all,
            first_batch=b,
        )


def run_on_interpreter(call: Call, build: Build) -> None:
    """Run the kernel's PTX on the call's arrays, in place."""
    arrays = [call.q, call.k, call.v, call.out] + ([call.lse] if call.lse is not None else [])
    arrays += call.operands.values()
    addresses = tuple(array.pointer for array in arrays)
    plan = make_plan(build, call.geometry, call.scale, addresses, call.numbers)
    Step(build, tuple(arrays), plan).interpret()


def _bhsd(array: ArrayView, layout: str) -> NDArray[Any]:
    """The array as [batch, heads, seq, dim]; a 3-D array gets batch 1."""
    found = host_array(array)
    if found.ndim == 3:
        return found[np.newaxis]
    return found if layout == "bhsd" else found.transpose(0, 2, 1, 3)
