"""Two f32 as two elements of 16 bits in a register, with the instructions that the target has."""

from __future__ import annotations

from typing import Final

from ptxgen.dsl import KernelBuilder, Value
from ptxgen.types import ScalarType, b16, f16, f16x2

_FIRST_WITH_PAIRS: Final = 80  # cvt with two sources (PTX ISA, "cvt")


def rounded_pair(k: KernelBuilder, low: Value, high: Value, pair: ScalarType) -> Value:
    """`low` and `high`, f32, rounded to the elements of `pair`, f16x2 or bf16x2. Targets before sm_80 have no
    bf16x2, and round one f16 at a time.
    """
    if k.target.sm >= _FIRST_WITH_PAIRS:
        return k.cvt(high, low, rnd="rn", dtype=pair)
    return k.pack([k.cvt(x, rnd="rn", dtype=f16).as_(b16) for x in (low, high)]).as_(f16x2)
