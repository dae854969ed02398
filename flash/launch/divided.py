"""A forward call whose keys are divided: a launch that attends to each split of them, and one that merges
their results.
"""

from __future__ import annotations

import math
from dataclasses import replace

from flash.calls.memory import Memory
from flash.calls.step import Step, require_grid
from flash.contract.catalogue import Build
from flash.launch.calls import MATRICES, Call, step_of
from flash.launch.checks import Geometry, grid_ctas
from flash.launch.merge_launch import MergeCall, merging
from flash.launch.scheduler_choice import USUAL_DEVICE, Device
from flash.operands.dtypes import F32, F32_BYTES
from flash.problem.outputs import LSE
from ptxgen.arrays.dlpack import dense_strides


def geometry_of_units(g: Geometry, count: int) -> Geometry:
    """The sizes of `count` units (batch items, or heads of K and V) of a call with the sizes `g`."""
    if g.batch > 1:
        return replace(g, batch=count)
    return replace(g, heads=count * g.group, kv_heads=count)


def units(call: Call, first: int, end: int) -> Call:
    """The units (batch items, or heads of K and V) `first` to `end` - 1 of a call, as a separate call."""
    g = call.geometry
    axis = 0 if g.batch > 1 else 1
    geometry = geometry_of_units(g, end - first)
    of_queries = first * (g.group if axis else 1)
    firsts = (of_queries, first, first, of_queries)
    moved = {
        name: call.arrays[name]._replace(pointer=call.arrays[name].pointer + n * three[axis] * g.nbytes)
        for name, n, three in zip(MATRICES, firsts, g.strides, strict=True)
    }
    for output in call.outputs:  # dense
        array, of_head = call.arrays[output.name], math.prod(output.shape(1, 1, g.seq_q, packed=False))
        shape = output.shape(geometry.batch, geometry.heads, g.seq_q, packed=False)
        pointer = array.pointer + of_queries * (1 if axis else g.heads) * of_head * F32_BYTES
        moved[output.name] = array._replace(pointer=pointer, shape=shape, strides=dense_strides(shape))
    return call._replace(geometry=geometry, arrays={**call.arrays, **moved})


def divided(
    call: Call, kernel: Build, splits: int, memory: Memory, device: Device = USUAL_DEVICE
) -> tuple[Step, Step]:
    """The launches of a call with several `splits`, whose kernel is `kernel`: one that attends to each split,
    and one that merges their results, which are in `memory`: O [batch, heads, seq_q, splits, head_dim_v] and
    LSE [batch, heads, seq_q, splits], f32. Raises `LaunchError` for a grid that is too large.
    """
    g = call.geometry
    rows = (g.batch, g.heads, g.seq_q)
    outs = memory.array((*rows, splits, call.config.value_dim), F32)
    lses = memory.array((*rows, splits), F32)
    require_grid("launch", grid_ctas(kernel.config, g) * splits)
    of_splits = call._replace(arrays={**call.arrays, "out": outs, LSE.name: lses})
    attending = step_of(of_splits, kernel, memory, device, splits)
    merge = MergeCall(
        outs,
        lses._replace(shape=(math.prod(rows), splits), strides=(splits, 1)),
        call.arrays["out"]._replace(shape=(*rows, call.config.value_dim), strides=(*g.strides[-1], 1)),
        call.arrays.get(LSE.name),
    )
    return attending, merging(merge, kernel.target, kernel.config.alignment)
