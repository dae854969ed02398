"""exp2 of an f32 value without the unit of special functions: a polynomial, for loops that wait for that
unit.

x is split into an integer n, the nearest, and r of [-1/2, 1/2] (Cody and Waite, 1980), exactly. 2^r is a
polynomial of degree 5 whose first coefficient is 1, fitted by minimax of the relative error, 9.2e-8
(flash-attn-4 takes degree 3 on Blackwell, 8.8e-5). In f32 its relative error is at most 2^-22.47, 1.72e-7,
for every x from -126 to 128 (`benchmarks/polynomial_exp2.py` measures all); that of `ex2.approx` may be 2^-22
(PTX ISA, ex2). Below -126.5 it is 0 as there, from 128 on infinity; NaN stays NaN.
"""

from __future__ import annotations

from typing import Final

from ptxgen.dsl import KernelBuilder, Pair, Value
from ptxgen.types import f32, u32

# The polynomial is 1 + r (C[0] + r (C[1] + …)).
COEFFICIENTS: Final = tuple(
    float.fromhex(c)
    for c in ("0x1.62e42ap-1", "0x1.ebf9bcp-3", "0x1.c6b752p-5", "0x1.3cea88p-7", "0x1.5bba14p-10")
)
LEAST: Final = -127.0  # 2^n is 0 for it, as `ex2.approx.ftz` gives for all below -126
MOST: Final = 128.0  # 2^n is infinity for it
_EXPONENT_BITS: Final = 23  # the lowest bit of the exponent of an f32, which is n + 127 for 2^n
# An f32 that is added to a number of [-127, 128] leaves n + 127 in the lowest bits of the sum.
SPLITTER: Final = 1.5 * 2.0**23 + 127


def polynomial_exp2(k: KernelBuilder, x: Value) -> Value:
    """Compute 2^x of an f32 value by a polynomial, in place of `ex2.approx`."""
    x = k.min(k.max(x, LEAST, NaN=True), MOST, NaN=True)
    split = x + SPLITTER
    rest = x - (split - SPLITTER)
    series: Value | float = COEFFICIENTS[-1]
    for coefficient in [*reversed(COEFFICIENTS[:-1]), 1.0]:
        series = k.fma(rest, series, coefficient)
    return series * (split.as_(u32) << _EXPONENT_BITS).as_(f32)


def polynomial_exp2_of_pair(k: KernelBuilder, x: Pair) -> Pair:
    """2^x of both halves of a pair, which are below 128 or NaN: the same numbers as those of
    `polynomial_exp2`, by fewer instructions.
    """
    low, high = (k.max(half, LEAST, NaN=True) for half in x.halves())
    x = k.pair(low, high)
    split = x + SPLITTER
    rest = x - (split - SPLITTER)
    series = rest.fma(COEFFICIENTS[-1], COEFFICIENTS[-2])
    for coefficient in [*reversed(COEFFICIENTS[:-2]), 1.0]:
        series = rest.fma(series, coefficient)
    low, high = ((half.as_(u32) << _EXPONENT_BITS).as_(f32) for half in split.halves())
    return series * k.pair(low, high)
