"""A forward call whose keys are divided: a launch that attends to each split of them, and one that merges
what these find.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from flash.contract.catalogue import Build
from flash.device.cta_order import USUAL_CACHE_BYTES
from flash.launch.calls import Call, make_plan
from flash.launch.checks import Geometry, grid_ctas
from flash.launch.merge_launch import MergeCall, merging
from flash.launch.step import Step, require_grid
from flash.launch.workspace import piece
from flash.operands.dtypes import F32, F32_BYTES
from ptxgen.arrays.dlpack import dense_strides
from ptxgen.arrays.views import ArrayView, view

_ALIGNED: Final = 16 // F32_BYTES  # elements of which each array in the memory of parts has a multiple


class Parts(NamedTuple):
    """The shapes of partial results: O [batch, heads, seq_q, splits, head_dim_v] and LSE [batch, heads,
    seq_q, splits], f32, dense.
    """

    outs: tuple[int, ...]
    lses: tuple[int, ...]

    @classmethod
    def of(cls, call: Call, splits: int) -> Parts:
        """The partial results of a call."""
        g = call.geometry
        lses = (g.batch, g.heads, g.seq_q, splits)
        return cls((*lses, call.config.value_dim), lses)

    @property
    def size(self) -> int:
        """The f32 that both arrays take, one behind the other."""
        return sum(map(_size, self))

    def within(self, space: ArrayView) -> tuple[ArrayView, ArrayView]:
        """Both arrays, in the memory of `space`."""
        behind = _size(self.outs) * F32_BYTES
        return piece(space, 0, self.outs, F32), piece(space, behind, self.lses, F32)


def geometry_of_units(g: Geometry, count: int) -> Geometry:
    """The geometry of a call with so many units of one with geometry `g` (`key_splits.units_of`)."""
    if g.batch > 1:
        return replace(g, batch=count)
    return replace(g, heads=count * g.group, kv_heads=count)


def units(call: Call, first: int, end: int) -> tuple[Call, tuple[int, ...]]:
    """The units of a call from `first` to `end`, exclusive, as a call of their own (`units_of`), and by how
    many bytes its Q, K, V, O and LSE lie behind those of the call.
    """
    g = call.geometry
    axis = 0 if g.batch > 1 else 1
    count = end - first
    geometry = geometry_of_units(g, count)
    of_queries = first * (g.group if axis else 1)
    firsts = (of_queries, first, first, of_queries)
    moved = [n * three[axis] * g.nbytes for n, three in zip(firsts, g.strides, strict=True)]
    moved.append(of_queries * (1 if axis else g.heads) * g.seq_q * F32_BYTES)  # LSE is dense
    arrays = (call.q, call.k, call.v, call.out)
    q, k, v, out = (
        array._replace(pointer=array.pointer + n) for array, n in zip(arrays, moved, strict=False)
    )
    lse = None
    if call.lse is not None:
        shape = (geometry.batch, geometry.heads, geometry.seq_q)
        pointer = call.lse.pointer + moved[-1]
        lse = call.lse._replace(pointer=pointer, shape=shape, strides=dense_strides(shape))
    return call._replace(geometry=geometry, q=q, k=k, v=v, out=out, lse=lse), tuple(moved)


class Divided(NamedTuple):
    """The launches of a call, in order. The first has the arrays Q, K, V, partial O, partial LSE and the
    operands, the second partial O, partial LSE, O and, if it is wanted, LSE.
    """

    attending: Step
    merging: Step


def divided(
    call: Call, made: Build, splits: int, space: ArrayView, cache_bytes: int = USUAL_CACHE_BYTES
) -> Divided:
    """The launches of a call with several `splits`, whose kernel is `made`; `space` has room for
    `Parts.size` f32, `cache_bytes` is as for `make_plan`. Raises `LaunchError` for a grid that is too large.
    """
    g = call.geometry
    outs, lses = Parts.of(call, splits).within(space)
    inputs = (call.q, call.k, call.v)
    arrays = (*inputs, outs, lses, *call.operands.values())
    # An array without elements is not read, so any non-null address will do.
    addresses = tuple([array.pointer or call.q.pointer for array in arrays])
    require_grid("launch", grid_ctas(made.config, g) * splits)
    plan = make_plan(made, g, call.scale, addresses, call.numbers, cache_bytes, splits)
    rows = (g.batch, g.heads, g.seq_q)
    merge = MergeCall(
        outs,
        lses._replace(shape=(math.prod(rows), splits), strides=(splits, 1)),
        call.out._replace(shape=(*rows, call.config.value_dim), strides=(*g.strides[-1], 1)),
        call.lse,
    )
    return Divided(Step(made, arrays, plan), merging(merge, made.target, made.config.alignment))


def run_divided(call: Call, made: Build, splits: int) -> None:
    """Interpret the launches of a call on the host."""
    parts = np.empty(Parts.of(call, splits).size, np.float32)
    for step in divided(call, made, splits, view(parts, "parts")):
        step.interpret()


def _size(shape: tuple[int, ...]) -> int:
    return -(-math.prod(shape) // _ALIGNED) * _ALIGNED
