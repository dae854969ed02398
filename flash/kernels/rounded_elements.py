"""The kernel that rounds exact sums (`flash/device/exact_sums.py`), the gradients of an array that a
`score_mod` reads: a thread has an element.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flash.device.exact_sums import rounded_sum
from flash.operands.declared import Operand
from flash.operands.dtypes import F32, I64, DType
from flash.problem.gradients import PLANES
from ptxgen import ir
from ptxgen.dsl import KernelBuilder, Pointer
from ptxgen.dsl.source_regions import marked
from ptxgen.target import Target
from ptxgen.types import b16, f32, s64, u32, u64

THREADS: Final = 128


@dataclass(frozen=True, slots=True)
class ElementsConfig:
    """The configuration of a kernel that rounds exact sums: the target, and the type of the result."""

    target: Target
    dtype: DType

    @property
    def arrays(self) -> tuple[Operand, Operand]:
        """The arrays of the kernel: the exact sums that it reads, and the rounded sums that it writes."""
        sums = (str(PLANES), "elements")
        return (
            Operand("X", I64, sums, role="the exact sums, read", is_dense=True),
            Operand("Y", self.dtype, ("elements",), role="the sums, written", is_written=True, is_dense=True),
        )

    @property
    def name(self) -> str:
        """The name of the kernel's entry point, made from the configuration."""
        return f"rounded_elements_{self.dtype.name}"


@marked("exact sums: element of a thread")
def rounded_elements(config: ElementsConfig) -> ir.Module:
    """Generate the kernel of this configuration: its PTX module."""
    k = KernelBuilder(config.name, target=config.target, threads=THREADS)
    X, Y = (k.pointer(array.name).value for array in config.arrays)
    elements = k.param("elements", u32)
    nth = k.block_id() * THREADS + k.thread_id()
    with k.when(nth < elements):
        index = k.cvt(nth, dtype=s64)
        plane_bytes = k.cvt(elements, dtype=s64) * u64.nbytes
        result = rounded_sum(k, X + (index * u64.nbytes).as_(u64), plane_bytes)
        at = Y + (index * config.dtype.nbytes).as_(u64)
        if config.dtype is F32:
            k.store(Pointer(at, "global", f32), result)
        else:
            rounded = k.cvt(result, dtype=config.dtype.scalar, rnd="rn")
            k.store(Pointer(at, "global", b16), rounded.as_(b16))
    return k.finish()
