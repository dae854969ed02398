"""The sums of `tcgen05.mma` said a second time: one output at a time, in integers, from bits to bits.

After `nv_fused_dot_add` and its relatives with scale factors in github.com/microsoft/MMA-Sim (MIT).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

# Bits of the exponent and of the mantissa.
FORMATS = {
    "f32": (8, 23),
    "tf32": (8, 23),
    "bf16": (8, 7),
    "f16": (5, 10),
    "e5m2": (5, 2),
    "e4m3": (4, 3),
    "e3m2": (3, 2),
    "e2m3": (2, 3),
    "e2m1": (2, 1),
}
WITH_INFINITY = ("f32", "tf32", "bf16", "f16", "e5m2")
NAN = {"f32": 0x7FFFFFFF, "f16": 0x7FFF}


class Number(NamedTuple):
    """`significand * 2 ** last`, whose exponent for the alignment is `exponent`; `special`: inf or NaN."""

    significand: int
    last: int
    exponent: int
    special: float = 0.0

    def times(self, other: Number) -> Number:
        """The exact product."""
        special = 0.0
        if self.special or other.special:
            x, y = (n.special or float(n.significand) for n in (self, other))
            special = math.nan if 0.0 in (x, y) else x * y
        return Number(
            self.significand * other.significand,
            self.last + other.last,
            self.exponent + other.exponent,
            special,
        )


def number(type: str, bits: int) -> Number:
    """The number with these bits."""
    if type == "ue8m0":
        return Number(1, bits - 127, bits - 127, math.nan if bits == 255 else 0.0)
    if type == "ue4m3":
        type, bits = "e4m3", bits & 0x7F
    if type == "tf32":
        bits &= 0xFFFFE000
    exponent_bits, mantissa_bits = FORMATS[type]
    bias = (1 << exponent_bits - 1) - 1
    mantissa = bits & (1 << mantissa_bits) - 1
    field = bits >> mantissa_bits & (1 << exponent_bits) - 1
    sign = -1 if bits >> mantissa_bits + exponent_bits & 1 else 1
    if type in WITH_INFINITY and field == (1 << exponent_bits) - 1:
        return Number(1, 0, 0, math.nan if mantissa else sign * math.inf)
    if type == "e4m3" and bits & 0x7F == 0x7F:
        return Number(1, 0, 0, math.nan)
    exponent = max(field, 1) - bias
    significand = mantissa | (1 << mantissa_bits if field else 0)
    return Number(sign * significand, exponent - mantissa_bits, exponent if significand else -126)


def aligned_sum(terms: Sequence[Number], fraction: int, d: str) -> int:
    """The bits of the sum of terms, each truncated to `fraction` bits below the largest exponent."""
    special = sum(t.special for t in terms)
    if math.isnan(special):
        return NAN[d]
    if special:
        exponent_bits, mantissa_bits = FORMATS[d]
        infinity = ((1 << exponent_bits) - 1) << mantissa_bits
        return infinity | (special < 0) << exponent_bits + mantissa_bits
    last = max(t.exponent for t in terms) - fraction
    total = 0
    for term in terms:
        shift = term.last - last
        size = abs(term.significand) << shift if shift >= 0 else abs(term.significand) >> -shift
        total += size if term.significand > 0 else -size
    return narrowed(total, last, d)


def narrowed(total: int, last: int, d: str) -> int:
    """The bits of `total * 2 ** last` in f32, truncated, or in f16, rounded to nearest even."""
    exponent_bits, mantissa_bits = FORMATS[d]
    bias = (1 << exponent_bits - 1) - 1
    if total == 0:
        return 0
    sign = 1 << exponent_bits + mantissa_bits if total < 0 else 0
    exponent = max(abs(total).bit_length() - 1 + last, 1 - bias)
    steps = Fraction(abs(total)) * Fraction(2) ** (last - exponent + mantissa_bits)
    whole = math.floor(steps) if d == "f32" else round(steps)
    # A significand of one bit more than the mantissa is one more in the exponent.
    bits = whole + (exponent + bias - 1 << mantissa_bits)
    return sign | min(bits, ((1 << exponent_bits) - 1) << mantissa_bits)


def dot(
    types: tuple[str, str],
    a: Sequence[int],
    b: Sequence[int],
    c: int,
    d: str,
    *,
    negated: bool = False,
    scale: tuple[str, int, int] | None = None,
    lowered: int = 0,
) -> int:
    """The bits of one output from the bits of a row, a column and C; `scale` is a type and both factors."""
    start = number(d, c)
    if lowered and start.significand:
        start = start._replace(last=start.last - lowered, exponent=start.exponent - lowered)
    terms = [start]
    for x, y in zip(a, b, strict=True):
        product = number(types[0], x).times(number(types[1], y))
        if negated:
            product = product._replace(significand=-product.significand, special=-product.special)
        if scale is not None:
            product = product.times(number(scale[0], scale[1])).times(number(scale[0], scale[2]))
        terms.append(product)
    return aligned_sum(terms, 25, d)


def dot_fp4(
    a: Sequence[int],
    b: Sequence[int],
    c: int,
    scale: str,
    scales: Sequence[tuple[int, int]],
    *,
    negated: bool = False,
) -> int:
    """The bits of one output of e2m1 whose blocks along K have the `scales`, in f32."""
    terms = [number("f32", c)]
    per_scale = len(a) // len(scales)
    for first in range(0, len(a), 16):
        pairs = zip(a[first : first + 16], b[first : first + 16], strict=True)
        quarters = 0  # all products are multiples of a quarter
        for x, y in pairs:
            product = number("e2m1", x).times(number("e2m1", y))
            quarters += product.significand << product.last + 2
        both = scales[first // per_scale]
        factor = number(scale, both[0]).times(number(scale, both[1]))
        terms.append(
            Number(
                (-quarters if negated else quarters) * factor.significand,
                factor.last - 2,
                factor.exponent,
                factor.special,
            )
        )
    return aligned_sum(terms, 35, "f32")
