"""The kernel that sums the terms of gradients of arrays of scores, which were broadcast.

A warp has one element of the result: the sum of a block of X of `r0 x r1 x r2 x r3` elements, where an axis
along which the array was broadcast is summed whole, and the others not at all. The lanes take the elements of
a block alternately, in a fixed order, so that the same call gives the same bits.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Final

from flash.device.parameters import stride_parameters
from flash.operands.declared import Operand
from flash.operands.dtypes import F32, DType
from ptxgen import ir
from ptxgen.dsl import KernelBuilder, Pointer, Value
from ptxgen.dsl.matrices.lanes import over_lanes
from ptxgen.dsl.source_regions import marked
from ptxgen.target import WARP_SIZE, Target
from ptxgen.types import b16, f32, s64, u32, u64

WARPS: Final = 4  # warps of a CTA, each with one element of the result
THREADS: Final = WARPS * WARP_SIZE
AXES: Final = 4
_LANES: Final = [16, 8, 4, 2, 1]  # butterfly distances that join a warp


@dataclass(frozen=True, slots=True)
class SumConfig:
    """The configuration of a kernel that sums terms: the target, and the type of the result."""

    target: Target
    dtype: DType

    @property
    def arrays(self) -> tuple[Operand, Operand]:
        """The arrays of the kernel: the terms that it reads, and the sums that it writes."""
        return (
            Operand(
                "X",
                F32,
                tuple(f"n{n}" for n in range(AXES)),
                steps=tuple(f"axis{n}" for n in range(AXES)),
                role="the terms, read",
            ),
            Operand(
                "Y",
                self.dtype,
                tuple(f"m{n}" for n in range(AXES)),
                steps=tuple(f"axis{n}" for n in range(AXES)),
                role="the sums, written",
                is_written=True,
            ),
        )

    @property
    def name(self) -> str:
        """The name of the kernel's entry point, made from the configuration."""
        return f"sum_terms_{self.dtype.name}"


@marked("sums of terms: element of a warp")
def sum_kernel(config: SumConfig) -> ir.Module:
    """Generate the kernel of this configuration: its PTX module."""
    k = KernelBuilder(config.name, target=config.target, threads=THREADS, reciprocals=False)
    X, Y = config.arrays
    pointers = [k.pointer(array.name) for array in (X, Y)]
    steps_x, steps_y = (list(stride_parameters(k, array).values()) for array in (X, Y))
    m, r = ([k.param(f"{what}{n}", u32) for n in range(AXES)] for what in "mr")
    sums, terms = (k.param(name, u32) for name in ("sums", "terms"))
    k.note("an element of the result for each warp")
    thread = k.thread_id()
    lane = thread % WARP_SIZE
    nth = k.block_id() * WARPS + thread // WARP_SIZE
    with k.when(nth < sums):
        index_of_sum = _indices(k, nth, m)
        total = k.var(f32, 0.0)
        with k.loop(lane, terms, step=WARP_SIZE) as term:
            inner = _indices(k, term, r)
            index = [a * k.cvt(b, dtype=s64) for a, b in zip(_wide(k, index_of_sum), r, strict=True)]
            index = [a + b for a, b in zip(index, _wide(k, inner), strict=True)]
            result = k.load(Pointer(_address(pointers[0].value, index, steps_x, f32.nbytes), "global", f32))
            k.add(total, result, into=total)
        whole = over_lanes(k, total, _LANES, operator.add)
        with k.when(lane == 0):
            at = _address(pointers[1].value, _wide(k, index_of_sum), steps_y, config.dtype.nbytes)
            if config.dtype is F32:
                k.store(Pointer(at, "global", f32), whole)
            else:
                rounded = k.cvt(whole, dtype=config.dtype.scalar, rnd="rn")
                k.store(Pointer(at, "global", b16), rounded.as_(b16))
    return k.finish()


def _wide(k: KernelBuilder, indices: list[Value]) -> list[Value]:
    return [k.cvt(index, dtype=s64) for index in indices]


def _indices(k: KernelBuilder, nth: Value, extents: list[Value]) -> list[Value]:
    """The indices of element `nth`, in the order of a dense array. The first is in range anyway: the
    minimum states it for the proof.
    """
    result = []
    for extent in reversed(extents[1:]):
        result.append(nth % extent)
        nth = nth // extent
    return [k.min(nth, extents[0] - 1), *reversed(result)]


def _address(first: Value, indices: list[Value], steps: list[Value], nbytes: int) -> Value:
    elements = [index * step for index, step in zip(indices, steps, strict=True)]
    return first + (sum(elements[1:], elements[0]) * nbytes).as_(u64)
