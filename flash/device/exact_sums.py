"""Exact sums of f32 in global memory, whatever the order in which CTAs add.

A sum is `PLANES` integers of 64 bits. A normal number, with a mantissa m of 24 bits and the exponent e in its
bits, is m 2^(e - 150). It is added as m 2^(e mod 24), which has 47 bits: the lower 24 to plane e / 24, the
others to the next. So a plane takes 2^39 numbers without overflow. The last plane counts what is not finite.
Integers have the same sum in any order (Neal, "Fast exact summation using small and large superaccumulators",
arXiv:1505.05571, sums f64 so).
"""

from __future__ import annotations

from typing import Final

from flash.problem.gradients import PLANE_BITS, PLANES
from ptxgen.dsl import KernelBuilder, Pointer, Value
from ptxgen.dsl.source_regions import marked
from ptxgen.types import f32, f64, s32, s64, u32, u64

_MANTISSA: Final = (1 << PLANE_BITS - 1) - 1
_FIRST_BIT: Final = 1 << PLANE_BITS - 1  # of the mantissa, which memory does not hold
_LOWER: Final = (1 << PLANE_BITS) - 1
_EXPONENT: Final = 255
_BIAS: Final = 150  # of the exponent of the last bit of the mantissa
_NUMBERS: Final = PLANES - 1  # planes of finite numbers: 255 // 24 + 2
LEAST_TERM: Final = 2.0**-126  # the least normal f32: less counts as 0


@marked("exact sums: add")
def add_exactly(k: KernelBuilder, at: Value, plane_bytes: Value, x: Value) -> None:
    """Add `x`, f32, to the sum whose planes are `plane_bytes` (s64) apart, the first at the address `at`
    (u64). A magnitude below `LEAST_TERM` adds nothing.
    """
    with k.when(~(k.abs(x) < LEAST_TERM)):
        bits = x.as_(u32)
        exponent = bits >> PLANE_BITS - 1 & _EXPONENT
        plane = exponent // PLANE_BITS
        shift = exponent - plane * PLANE_BITS
        mantissa = bits & _MANTISSA | _FIRST_BIT
        first = at + (k.cvt(plane, dtype=s64) * plane_bytes).as_(u64)
        second = first + plane_bytes.as_(u64)
        parts = (mantissa << shift) & _LOWER, mantissa >> PLANE_BITS - shift
        for where, part in zip((first, second), parts, strict=True):
            _add(k, where, k.selp(-part.as_(s32), part.as_(s32), x < 0.0))
        with k.when(exponent == _EXPONENT):
            _add(k, at + (plane_bytes * _NUMBERS).as_(u64), k.mov(1, type=s32))


def _add(k: KernelBuilder, at: Value, x: Value) -> None:
    k.red(Pointer(at, "global", u64), k.cvt(x, dtype=s64).as_(u64), op="add", type=u64)


@marked("exact sums: rounding")
def rounded_sum(k: KernelBuilder, at: Value, plane_bytes: Value) -> Value:
    """The f32 nearest to a sum, but for the rounding of an f64 before; NaN if a term was not finite. The
    planes become digits of 24 bits, which f64 sums from the highest on.
    """
    planes = [k.load(Pointer(at + (plane_bytes * n).as_(u64), "global", s64)) for n in range(PLANES)]
    carry, digits = planes[0] >> PLANE_BITS, [planes[0] & _LOWER]
    for plane in planes[1:_NUMBERS]:
        value = plane + carry
        digits.append(value & _LOWER)
        carry = value >> PLANE_BITS
    total = k.cvt(carry, dtype=f64, rnd="rn")
    for digit in reversed(digits):
        total = k.fma(total, float(1 << PLANE_BITS), k.cvt(digit, dtype=f64, rnd="rn"))
    result = k.cvt(total * 2.0**-_BIAS, dtype=f32, rnd="rn")
    return k.selp(result, float("nan"), planes[_NUMBERS] == 0)
