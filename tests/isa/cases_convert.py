"""Conversion rows: meanings for `cases.py`, by syntax."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace as M
from typing import Any


def same(_: M, a: Any) -> Any:
    return a


def clamp(x: int, bits: int, signed: bool) -> int:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return min(max(x, low), high)


# ---------------------------------------- integers and floats


def to_integer(x: Any, rnd: str) -> Any:
    """`x` rounded to an integer; infinities and NaN stay."""
    if isinstance(x, float):
        return x
    return Fraction({"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}[rnd](x))


def converted_to_integer(m: M, x: Any) -> int:
    bits = m.dtype.bits
    if isinstance(x, float):
        if math.isnan(x):
            return 1 << bits - 1 if bits == 64 or m.atype.name == "f64" else 0
        return clamp((1 if x > 0 else -1) << 100, bits, m.dtype.is_signed)
    return clamp(int(to_integer(x, m.rnd)), bits, m.dtype.is_signed)


def converted(m: M, a: Any) -> Any:
    """What the caller rounds as the modifiers say, unless the result is integral already."""
    if m.dtype.is_integer:
        return converted_to_integer(m, a)
    return to_integer(a, m.rnd) if m.rnd and m.rnd.endswith("i") else a


def pair(_: M, a: Any, b: Any) -> Any:
    return b, a  # low, high


# ---------------------------------------- cvt.pack


def packed(m: M, a: int, b: int, c: int = 0) -> int:
    """The manual's loop, bit by bit."""
    size = int(m.dtype[1:])
    low, high = (clamp(x, size, m.dtype[0] == "s") for x in (b, a))
    bits = [low >> n & 1 for n in range(size)] + [high >> n & 1 for n in range(size)]
    bits += [c >> n & 1 for n in range(32 - 2 * size)]
    return sum(bit << n for n, bit in enumerate(bits))


# ---------------------------------------- formats of at most 8 bits

SMALL = {  # exponent bits, mantissa bits, bias, code of the largest number, code of NaN
    "e4m3x2": (4, 3, 7, 0x7E, 0x7F),
    "e5m2x2": (5, 2, 15, 0x7B, 0x7F),
    "e2m3x2": (2, 3, 1, 0x1F, 0x1F),
    "e3m2x2": (3, 2, 3, 0x1F, 0x1F),
    "e2m1x2": (2, 1, 1, 0x7, 0x7),
}


def value(code: int, mantissa: int, bias: int) -> Fraction:
    """The number with these bits, without a sign."""
    exponent, fraction = code >> mantissa, code & (1 << mantissa) - 1
    if exponent:
        fraction, exponent = fraction + (1 << mantissa), exponent - 1
    return fraction * Fraction(2) ** (exponent + 1 - bias - mantissa)


def encoded(m: M, x: float) -> int:
    """The nearest code, by search; of two that are as near, the even one."""
    exponents, mantissa, bias, largest, nan = SMALL[m.dtype]
    negative = math.copysign(1.0, x) < 0
    if math.isnan(x):
        return nan
    if m.relu and negative:
        return 0
    sign = negative << exponents + mantissa
    if math.isinf(x):
        return largest | sign
    size = abs(Fraction(x))
    gaps = [(abs(value(c, mantissa, bias) - size), c & 1, c) for c in range(largest + 1)]
    return min(gaps)[2] | sign


def encoded_pair(m: M, *_: Any) -> int:
    return encoded(m, m.floats[0]) << 8 | encoded(m, m.floats[1])


def encoded_halves(m: M, a: tuple[float, float]) -> int:
    return encoded(m, a[1]) << 8 | encoded(m, a[0])


def decoded(m: M, code: int) -> float:
    exponents, mantissa, bias, largest, _ = SMALL[m.atype]
    code &= (2 << exponents + mantissa) - 1
    size, sign = code & (1 << exponents + mantissa) - 1, code >> exponents + mantissa
    if size <= largest:
        return math.copysign(float(value(size, mantissa, bias)), -1.0 if sign else 1.0)
    return (-math.inf if sign else math.inf) if size == 0x7C and exponents == 5 else math.nan


def decoded_pair(m: M, a: int) -> tuple[float, float]:
    return decoded(m, a & 255), decoded(m, a >> 8)


def fp4(m: M, x: float) -> int:
    m.dtype = "e2m1x2"
    return encoded(m, x)


def fp4_of_pair(m: M, *_: Any) -> int:
    return fp4(m, m.floats[0]) << 4 | fp4(m, m.floats[1])


def fp4_of_halves(m: M, a: tuple[float, float]) -> int:
    return fp4(m, a[1]) << 4 | fp4(m, a[0])


def from_fp4(m: M, a: int) -> tuple[float, float]:
    m.atype = "e2m1x2"
    return decoded(m, a & 15), decoded(m, a >> 4)


def power(m: M, x: float) -> int:
    """The code of the power of two next to |x|."""
    if math.isnan(x):
        return 255
    if math.isinf(x):
        return 254 if m.satfinite else 255
    exponent = -127
    while Fraction(2) ** (exponent + 1) <= abs(Fraction(x)):
        exponent += 1
    up = m.rnd == "rp" and abs(Fraction(x)) > Fraction(2) ** exponent
    code = exponent + 127 + up
    return min(code, 254) if m.satfinite else code


def powers(m: M, *_: Any) -> int:
    return power(m, m.floats[0]) << 8 | power(m, m.floats[1])


def powers_of_pair(m: M, a: tuple[float, float]) -> int:
    return power(m, a[1]) << 8 | power(m, a[0])


def from_powers(_: M, a: int) -> tuple[float, float]:
    low, high = (math.nan if c == 255 else 2.0 ** (c - 127) for c in (a & 255, a >> 8))
    return low, high


MEANING: dict[str, Callable[..., Any]] = {
    "cvt.dtype.atype d:dtype, a:atype": same,
    "cvt.sat.dtype.atype d:dtype, a:atype": lambda m, a: clamp(a, m.dtype.bits, m.dtype.is_signed),
    "cvt.rnd.dtype.atype d:dtype, a:atype": converted,
    "cvt.rnd{.sat}.dtype.atype d:dtype, a:atype": converted,
    "cvt.rnd{.ftz}.dtype.atype d:dtype, a:atype": same,
    "cvt.rnd{.ftz}{.sat}.dtype.atype d:dtype, a:atype": converted,
    "cvt{.sat}.dtype.atype d:dtype, a:atype": same,
    "cvt{.ftz}{.sat}.dtype.atype d:dtype, a:atype": same,
    "cvt{.rnd}.dtype.atype d:dtype, a:atype": same,
    "cvt{.rnd}{.ftz}.dtype.atype d:dtype, a:atype": same,
    "cvt.rnd.relu{.satfinite}.dtype.atype d:dtype, a:atype": same,
    "cvt.rnd.satfinite.relu.dtype.atype d:dtype, a:atype": same,
    "cvt.rnd.satfinite.dtype.atype d:dtype, a:atype": same,
    "cvt.rnd{.relu}{.satfinite}.dtype.atype d:dtype, a:atype, b:atype": pair,
    "cvt.rnd.satfinite.relu.dtype.atype d:dtype, a:atype, b:atype": pair,
    "cvt.rnd.tf32.f32 d:b32, a:f32": same,
    "cvt.rna.satfinite.tf32.f32 d:b32, a:f32": same,
    "cvt.rnd.relu.tf32.f32 d:b32, a:f32": same,
    "cvt.rnd.satfinite{.relu}.tf32.f32 d:b32, a:f32": same,
    "cvt.rnd.relu.satfinite.tf32.f32 d:b32, a:f32": same,
    "cvt.pack.sat.dtype.s32 d:b32, a:s32, b:s32": packed,
    "cvt.pack.sat.dtype.s32.b32 d:b32, a:s32, b:s32, c:b32": packed,
    "cvt.rn.satfinite{.relu}.dtype.f32 d:b16, a:f32, b:f32": encoded_pair,
    "cvt.rn.relu.satfinite.dtype.f32 d:b16, a:f32, b:f32": encoded_pair,
    "cvt.rn.satfinite{.relu}.dtype.f16x2 d:b16, a:f16x2": encoded_halves,
    "cvt.rn.relu.satfinite.dtype.f16x2 d:b16, a:f16x2": encoded_halves,
    "cvt.rn{.relu}.f16x2.atype d:f16x2, a:b16": decoded_pair,
    "cvt.rn{.relu}.bf16x2.atype d:bf16x2, a:b16": decoded_pair,
    "cvt.rn.satfinite{.relu}.e2m1x2.f32 d:byte, a:f32, b:f32": fp4_of_pair,
    "cvt.rn.relu.satfinite.e2m1x2.f32 d:byte, a:f32, b:f32": fp4_of_pair,
    "cvt.rn.satfinite{.relu}.e2m1x2.f16x2 d:byte, a:f16x2": fp4_of_halves,
    "cvt.rn.relu.satfinite.e2m1x2.f16x2 d:byte, a:f16x2": fp4_of_halves,
    "cvt.rn{.relu}.f16x2.e2m1x2 d:f16x2, a:byte": from_fp4,
    "cvt.rn{.relu}.bf16x2.e2m1x2 d:bf16x2, a:byte": from_fp4,
    "cvt.rnd{.satfinite}.ue8m0x2.f32 d:b16, a:f32, b:f32": powers,
    "cvt.rnd{.satfinite}.ue8m0x2.bf16x2 d:b16, a:bf16x2": powers_of_pair,
    "cvt.rn.bf16x2.ue8m0x2 d:bf16x2, a:b16": from_powers,
}
MEMORY: dict[str, Callable[..., Any]] = {}
WARP: dict[str, Callable[..., Any]] = {}
CALLS: dict[str, list[tuple[Any, ...]]] = {}
IMMEDIATES: dict[str, tuple[int, ...]] = {}
