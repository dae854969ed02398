"""Conversions (PTX ISA, "Data Movement and Conversion Instructions: cvt").

There is one row for each kind of conversion, because the legal roundings differ. `dtype` is the
type of the result, `atype` that of the operand. Integers of 8 bits are held in 16-bit registers.
Conversions to and from types below 16 bits are in `narrow`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ptxgen.isa import numeric, numeric_integers
from ptxgen.isa.declare import each, inst
from ptxgen.isa.numeric import ROUNDINGS
from ptxgen.isa.spec import gate
from ptxgen.isa.undefined import CONVERTED
from ptxgen.types import bf16, bf16x2, f16, f16x2, f32, f64, s8, s16, s32, s64, u8, u16, u32, u64

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes
    from ptxgen.types import ScalarType

CVT: Final = "Data Movement and Conversion Instructions: cvt"
PACK: Final = "Data Movement and Conversion Instructions: cvt.pack"
INTEGERS: Final = (u32, s32, u64, s64, u16, s16, u8, s8)
BF16_INTEGERS: Final = (u32, s32, u64, s64, u16, s16)  # ptxas 13.0 converts no 8 bits to bf16
TO_INTEGER: Final = {"rni": "rn", "rzi": "rz", "rmi": "rm", "rpi": "rp"}  # printed name: rounding
_HOPPER: Final = gate(ptx=(7, 8), sm=90)


# ---------------------------------------- integers


@inst("cvt.dtype.atype d:dtype, a:atype", dtype=INTEGERS, atype=INTEGERS, undefined=CONVERTED, section=CVT)
def cvt_integer(a: Lanes, *, dtype: ScalarType) -> Lanes:
    """d = a, truncated, or extended by zeros or the sign."""
    return a.astype(dtype.dtype)


def _saturating(dtype: ScalarType) -> tuple[ScalarType, ...]:
    """The types with values outside dtype's range; .sat is not legal for other types."""
    to = numeric_integers.range_of(dtype.dtype)
    return tuple(
        t
        for t in INTEGERS
        if numeric_integers.range_of(t.dtype).min < to.min or numeric_integers.range_of(t.dtype).max > to.max
    )


@inst(
    "cvt.sat.dtype.atype d:dtype, a:atype",
    each("dtype atype", *(((dtype,), _saturating(dtype)) for dtype in INTEGERS)),
    sat=(True,),
    ignores=("sat",),
    section=CVT,
)
def cvt_sat(a: Lanes, *, dtype: ScalarType) -> Lanes:
    """d = a limited to the range of dtype; legal only if a may lie outside it."""
    of, to = numeric_integers.range_of(a.dtype), numeric_integers.range_of(dtype.dtype)
    low, high = max(of.min, to.min), min(of.max, to.max)
    return np.clip(a, a.dtype.type(low), a.dtype.type(high)).astype(dtype.dtype)


_BITS_OF_PACKED: Final = {"u8": 8, "s8": 8, "u4": 4, "s4": 4, "u2": 2, "s2": 2}


def _packed(a: Lanes, b: Lanes, dtype: str, bits: int) -> Lanes:
    low = -(1 << (bits - 1)) if dtype.startswith("s") else 0
    high = low + (1 << bits) - 1
    mask = np.uint32((1 << bits) - 1)
    upper, lower = (
        np.bitwise_and(np.clip(x, np.int32(low), np.int32(high)).view(np.uint32), mask) for x in (a, b)
    )
    packed: Lanes = np.bitwise_or(np.left_shift(upper, np.uint32(bits)), lower)
    return packed


@inst(
    "cvt.pack.sat.dtype.s32 d:b32, a:s32, b:s32",
    name="cvt_pack",
    dtype=("u16", "s16"),
    ptx=(6, 5),
    sm=72,
    section=PACK,
)
def cvt_pack_16(a: Lanes, b: Lanes, *, dtype: str) -> Lanes:
    """d = a in the upper and b in the lower half, each limited to the range of dtype."""
    return _packed(a, b, dtype, 16)


@inst(
    "cvt.pack.sat.dtype.s32.b32 d:b32, a:s32, b:s32, c:b32",
    name="cvt_pack",
    dtype=tuple(_BITS_OF_PACKED),
    ptx=(6, 5),
    sm=75,
    section=PACK,
)
def cvt_pack_small(a: Lanes, b: Lanes, c: Lanes, *, dtype: str) -> Lanes:
    """d = b in the lowest bits and a above it, each limited to the range of dtype, and c shifted
    left above both.
    """
    bits = _BITS_OF_PACKED[dtype]
    shifted: Lanes = np.left_shift(c, np.uint32(2 * bits))
    return np.bitwise_or(shifted, _packed(a, b, dtype, bits))


# ---------------------------------------- integers and floats


@inst(
    "cvt.rnd{.ftz}{.sat}.dtype.atype d:dtype, a:atype",
    rnd=ROUNDINGS,
    dtype=(f32,),
    atype=INTEGERS,
    section=CVT,
)
def cvt_f32_integer(a: Lanes, *, rnd: str, ftz: bool, sat: bool) -> Lanes:
    """d = a, rounded once; .ftz changes nothing."""
    del ftz  # no integer is subnormal
    return numeric.saturate(numeric_integers.from_integer(a, f32, rnd), sat)


@inst(
    "cvt.rnd{.sat}.dtype.atype d:dtype, a:atype", rnd=ROUNDINGS, dtype=(f64, f16), atype=INTEGERS, section=CVT
)
def cvt_from_integer(a: Lanes, *, rnd: str, sat: bool, dtype: ScalarType) -> Lanes:
    """d = a, rounded once."""
    return numeric.saturate(numeric_integers.from_integer(a, dtype, rnd), sat)


@inst(
    "cvt.rnd.dtype.atype d:dtype, a:atype",
    rnd=ROUNDINGS,
    dtype=(bf16,),
    atype=BF16_INTEGERS,
    ptx=(7, 8),
    sm=90,
    section=CVT,
)
def cvt_bf16_integer(a: Lanes, *, rnd: str) -> Lanes:
    """d = a, rounded once."""
    return numeric_integers.from_integer(a, bf16, rnd)


@inst(
    "cvt.rnd{.ftz}{.sat}.dtype.atype d:dtype, a:atype",
    rnd=tuple(TO_INTEGER),
    dtype=INTEGERS,
    atype=(f32,),
    section=CVT,
)
def cvt_to_integer(a: Lanes, *, rnd: str, ftz: bool, sat: bool, dtype: ScalarType) -> Lanes:
    """d = a rounded to an integer and limited to the range of dtype, with or without .sat; NaN
    gives 0, or only the top bit for 64 bits.
    """
    del sat
    return numeric_integers.to_integer(numeric.flush(a, ftz), dtype, TO_INTEGER[rnd])


@inst(
    "cvt.rnd{.sat}.dtype.atype d:dtype, a:atype",
    rnd=tuple(TO_INTEGER),
    dtype=INTEGERS,
    atype=(f64, f16),
    section=CVT,
)
def cvt_wide_to_integer(a: Lanes, *, rnd: str, sat: bool, dtype: ScalarType) -> Lanes:
    """d = a rounded to an integer and limited to the range of dtype, with or without .sat; NaN
    gives 0, or only the top bit for 64 bits or f64.
    """
    del sat
    return numeric_integers.to_integer(a, dtype, TO_INTEGER[rnd])


@inst(
    "cvt.rnd.dtype.atype d:dtype, a:atype",
    rnd=tuple(TO_INTEGER),
    dtype=BF16_INTEGERS,
    atype=(bf16,),
    ptx=(7, 8),
    sm=90,
    section=CVT,
)
def cvt_bf16_to_integer(a: Lanes, *, rnd: str, dtype: ScalarType) -> Lanes:
    """d = a rounded to an integer and limited to the range of dtype; NaN gives 0, or only the top
    bit for 64 bits.
    """
    return numeric_integers.to_integer(a, dtype, TO_INTEGER[rnd])


# ---------------------------------------- floats of one type


@inst(
    "cvt.rnd{.ftz}{.sat}.dtype.atype d:dtype, a:atype",
    rnd=tuple(TO_INTEGER),
    dtype=(f32,),
    atype=(f32,),
    section=CVT,
)
def cvt_integral_f32(a: Lanes, *, rnd: str, ftz: bool, sat: bool) -> Lanes:
    """d = a rounded to an integral value, still as a floating-point number."""
    return numeric.finish(numeric.integral(numeric.flush(a, ftz), TO_INTEGER[rnd]), ftz, sat)


@inst(
    "cvt<rounding>{.sat}.dtype.atype d:dtype, a:atype",
    each("dtype atype", ((f64,), (f64,)), ((f16,), (f16,))),
    each(
        "rounding does",
        (".rnd", "a rounded to an integral value, still as a floating-point number"),
        ("", "a; with .sat limited to [0, 1]"),
    ),
    rnd=tuple(TO_INTEGER),
    section=CVT,
)
def cvt_same(a: Lanes, *, rnd: str = "", sat: bool) -> Lanes:
    """d = <does>."""
    return numeric.saturate(numeric.integral(a, TO_INTEGER[rnd]) if rnd else a, sat)


@inst("cvt{.ftz}{.sat}.dtype.atype d:dtype, a:atype", dtype=(f32,), atype=(f32,), section=CVT)
def cvt_f32_f32(a: Lanes, *, ftz: bool, sat: bool) -> Lanes:
    """d = a; with .sat limited to [0, 1]."""
    return numeric.finish(a, ftz, sat)


@inst(
    "cvt.rnd.dtype.atype d:dtype, a:atype",
    rnd=tuple(TO_INTEGER),
    dtype=(bf16,),
    atype=(bf16,),
    ptx=(7, 8),
    sm=90,
    section=CVT,
)
def cvt_integral_bf16(a: Lanes, *, rnd: str) -> Lanes:
    """d = a rounded to an integral value, still as a floating-point number."""
    return numeric.integral(a, TO_INTEGER[rnd])


@inst("cvt.dtype.atype d:dtype, a:atype", dtype=(bf16,), atype=(bf16,), ptx=(7, 8), sm=90, section=CVT)
def cvt_bf16_bf16(a: Lanes) -> Lanes:
    """d = a."""
    return a


# ---------------------------------------- floats of two types


@inst(
    "cvt.rnd{.ftz}{.sat}.dtype.atype d:dtype, a:atype", rnd=ROUNDINGS, dtype=(f32,), atype=(f64,), section=CVT
)
def cvt_f32_f64(a: Lanes, *, rnd: str, ftz: bool, sat: bool) -> Lanes:
    """d = a, rounded once."""
    return numeric.finish(numeric.narrow(a, f32, rnd), ftz, sat)


@inst("cvt{.ftz}{.sat}.dtype.atype d:dtype, a:atype", dtype=(f64,), atype=(f32,), section=CVT)
def cvt_f64_f32(a: Lanes, *, ftz: bool, sat: bool) -> Lanes:
    """d = a, exactly; with .sat limited to [0, 1]."""
    return numeric.saturate(numeric.widen(numeric.flush(a, ftz), f64), sat)


@inst("cvt.rnd{.sat}.dtype.atype d:dtype, a:atype", rnd=ROUNDINGS, dtype=(f16,), atype=(f64,), section=CVT)
def cvt_f16_f64(a: Lanes, *, rnd: str, sat: bool) -> Lanes:
    """d = a, rounded once."""
    return numeric.saturate(_narrowed(a, f16, rnd), sat)


@inst("cvt{.sat}.dtype.atype d:dtype, a:atype", dtype=(f64,), atype=(f16,), section=CVT)
def cvt_f64_f16(a: Lanes, *, sat: bool) -> Lanes:
    """d = a, exactly; with .sat limited to [0, 1]."""
    return numeric.saturate(numeric.widen(a, f64), sat)


@inst("cvt{.ftz}{.sat}.dtype.atype d:dtype, a:atype", dtype=(f32,), atype=(f16,), section=CVT)
def cvt_f32_f16(a: Lanes, *, ftz: bool, sat: bool) -> Lanes:
    """d = a, exactly; with .sat limited to [0, 1]. No f16 becomes a subnormal f32, so .ftz changes
    nothing.
    """
    del ftz
    return numeric.saturate(numeric.widen(a, f32), sat)


@inst(
    "cvt{.rnd}{.ftz}.dtype.atype d:dtype, a:atype",
    rnd=ROUNDINGS,
    ftz={True: _HOPPER},
    dtype=(f32,),
    atype=(bf16,),
    ptx=(7, 1),
    sm=80,
    section=CVT,
)
def cvt_f32_bf16(a: Lanes, *, rnd: str | None, ftz: bool | None) -> Lanes:
    """d = a, exactly, whatever the rounding."""
    del rnd
    return numeric.flush(numeric.widen(a, f32), bool(ftz))


@inst(
    "cvt{.rnd}.dtype.atype d:dtype, a:atype",
    rnd=ROUNDINGS,
    dtype=(f64,),
    atype=(bf16,),
    ptx=(7, 8),
    sm=90,
    section=CVT,
)
def cvt_f64_bf16(a: Lanes, *, rnd: str | None) -> Lanes:
    """d = a, exactly, whatever the rounding."""
    del rnd
    return numeric.widen(a, f64)


@inst(
    "cvt.rnd{.ftz}{.sat}.dtype.atype d:dtype, a:atype", rnd=ROUNDINGS, dtype=(f16,), atype=(f32,), section=CVT
)
def cvt_f16_f32(a: Lanes, *, rnd: str, ftz: bool, sat: bool) -> Lanes:
    """d = a, rounded once."""
    return numeric.saturate(_narrowed(numeric.flush(a, ftz), f16, rnd), sat)


@inst(
    "cvt.rnd{.ftz}.dtype.atype d:dtype, a:atype",
    rnd=ROUNDINGS,
    dtype=(bf16,),
    atype=(f32,),
    ptx=(7, 0),
    sm=80,
    section=CVT,
)
def cvt_bf16_f32(a: Lanes, *, rnd: str, ftz: bool) -> Lanes:
    """d = a, rounded once."""
    return _narrowed(numeric.flush(a, ftz), bf16, rnd)


@inst(
    "cvt.rnd.dtype.atype d:dtype, a:atype",
    each("dtype atype", ((bf16,), (f64,)), ((bf16,), (f16,)), ((f16,), (bf16,))),
    rnd=ROUNDINGS,
    ptx=(7, 8),
    sm=90,
    section=CVT,
)
def cvt_between(a: Lanes, *, rnd: str, dtype: ScalarType) -> Lanes:
    """d = a, rounded once."""
    return _narrowed(a, dtype, rnd)


@inst(
    "cvt.dtype.atype d:dtype, a:atype",
    each("dtype atype", ((bf16,), (f16,)), ((f16,), (bf16,))),
    ptx=(7, 8),
    sm=90,
    section=CVT,
)
def cvt_between_nearest(a: Lanes, *, dtype: ScalarType) -> Lanes:
    """d = a, rounded to nearest even: ptxas makes the instruction of `.rn` of it."""
    return _narrowed(a, dtype, "rn")


# ---------------------------------------- floats with limits: .relu and .satfinite

# ptxas accepts the two modifiers in either order, so there are rows for both.
_RELU: Final = ("rn", "rz")
_FINITE: Final = {True: gate(ptx=(8, 1))}


@inst(
    "cvt.rnd.relu{.satfinite}.dtype.atype d:dtype, a:atype",
    rnd=_RELU,
    relu=(True,),
    satfinite=_FINITE,
    dtype=(f16, bf16),
    atype=(f32,),
    ptx=(7, 0),
    sm=80,
    section=CVT,
)
def cvt_relu(a: Lanes, *, rnd: str, relu: bool, satfinite: bool | None, dtype: ScalarType) -> Lanes:
    """d = max(a, 0), rounded once; NaN stays NaN. With .satfinite infinity becomes the largest
    number.
    """
    return _narrowed(a, dtype, rnd, relu=relu, satfinite=bool(satfinite))


@inst(
    "cvt.rnd.satfinite.relu.dtype.atype d:dtype, a:atype",
    rnd=_RELU,
    satfinite=(True,),
    relu=(True,),
    dtype=(f16, bf16),
    atype=(f32,),
    ptx=(8, 1),
    sm=80,
    section=CVT,
)
def cvt_finite_relu(a: Lanes, *, rnd: str, relu: bool, satfinite: bool, dtype: ScalarType) -> Lanes:
    """d = max(a, 0), rounded once; NaN stays NaN, infinity becomes the largest number."""
    return _narrowed(a, dtype, rnd, relu=relu, satfinite=satfinite)


@inst(
    "cvt.rnd.satfinite.dtype.atype d:dtype, a:atype",
    rnd=_RELU,
    satfinite=(True,),
    dtype={f16: None, bf16: gate(sm=80)},
    atype=(f32,),
    ptx=(8, 1),
    section=CVT,
)
def cvt_finite(a: Lanes, *, rnd: str, satfinite: bool, dtype: ScalarType) -> Lanes:
    """d = a, rounded once; an infinity becomes the largest number of its sign."""
    return _narrowed(a, dtype, rnd, satfinite=satfinite)


@inst(
    "cvt.rnd{.relu}{.satfinite}.dtype.atype d:dtype, a:atype, b:atype",
    rnd=_RELU,
    satfinite=_FINITE,
    dtype=(f16x2, bf16x2),
    atype=(f32,),
    ptx=(7, 0),
    sm=80,
    undefined=CONVERTED,
    section=CVT,
)
def cvt_pair(a: Lanes, b: Lanes, *, rnd: str, relu: bool, satfinite: bool | None, dtype: ScalarType) -> Lanes:
    """d = a in the upper and b in the lower half, each rounded once; with .relu max(d, 0), where
    NaN stays NaN. With .satfinite an infinity becomes the largest number of its sign.
    """
    return _pair(a, b, dtype, rnd, relu, bool(satfinite))


@inst(
    "cvt.rnd.satfinite.relu.dtype.atype d:dtype, a:atype, b:atype",
    rnd=_RELU,
    satfinite=(True,),
    relu=(True,),
    dtype=(f16x2, bf16x2),
    atype=(f32,),
    ptx=(8, 1),
    sm=80,
    undefined=CONVERTED,
    section=CVT,
)
def cvt_pair_finite_relu(
    a: Lanes, b: Lanes, *, rnd: str, relu: bool, satfinite: bool, dtype: ScalarType
) -> Lanes:
    """d = max(a, 0) in the upper and max(b, 0) in the lower half, each rounded once; NaN stays NaN,
    infinity becomes the largest number.
    """
    return _pair(a, b, dtype, rnd, relu, satfinite)


def _pair(a: Lanes, b: Lanes, dtype: ScalarType, rnd: str, relu: bool, satfinite: bool) -> Lanes:
    element = f16 if dtype is f16x2 else bf16
    low, high = (_narrowed(x, element, rnd, relu=relu, satfinite=satfinite) for x in (b, a))
    return numeric.join(low, high)


def _narrowed(a: Lanes, type: ScalarType, rnd: str, *, relu: bool = False, satfinite: bool = False) -> Lanes:
    exact = numeric.finite(a, type.name) if satfinite else a
    narrowed = numeric.canonical_narrow(numeric.narrow(exact, type, rnd))
    return numeric.relu(narrowed) if relu else narrowed


# ---------------------------------------- tf32

_MAGNITUDE_F32: Final = np.uint32(0x7FFFFFFF)
_INFINITY_F32: Final = np.uint32(0x7F800000)
_TF32_UNIT: Final = np.uint32(0x2000)  # from the bits of a tf32 to those of the next one


@inst(
    "cvt.rnd.tf32.f32 d:b32, a:f32",
    name="cvt_tf32",
    rnd={"rna": None, "rn": _HOPPER, "rz": _HOPPER},
    ptx=(7, 0),
    sm=80,
    section=CVT,
)
def cvt_tf32(a: Lanes, *, rnd: str) -> Lanes:
    """d = a rounded once to 11 significant bits, as the bits of an f32; .rna rounds ties away from
    zero, and only clears the lower bits of a NaN, which may leave an infinity.
    """
    return _tf32(a, rnd)


@inst(
    "cvt.rna.satfinite.tf32.f32 d:b32, a:f32",
    name="cvt_tf32",
    rna=("rna",),
    satfinite=(True,),
    ptx=(8, 1),
    sm=80,
    section=CVT,
)
def cvt_tf32_rna_finite(a: Lanes, *, rna: str, satfinite: bool) -> Lanes:
    """d = a rounded once to 11 significant bits, ties away from zero, as the bits of an f32; an
    infinity becomes the largest number of its sign, and a NaN the tf32 before it, which may be a
    number.
    """
    del satfinite
    bits = _tf32(a, rna)
    beyond = np.bitwise_and(bits, _MAGNITUDE_F32) >= _INFINITY_F32
    return np.where(beyond, bits - _TF32_UNIT, bits)


@inst(
    "cvt.rnd.relu.tf32.f32 d:b32, a:f32",
    name="cvt_tf32",
    rnd=_RELU,
    relu=(True,),
    ptx=(7, 8),
    sm=90,
    section=CVT,
)
def cvt_tf32_relu(a: Lanes, *, rnd: str, relu: bool) -> Lanes:
    """d = max(a, 0) rounded once to 11 significant bits, as the bits of an f32; NaN stays NaN."""
    return _tf32(a, rnd, relu=relu)


@inst(
    "cvt.rnd.satfinite{.relu}.tf32.f32 d:b32, a:f32",
    name="cvt_tf32",
    rnd=_RELU,
    satfinite=(True,),
    ptx=(8, 6),
    sm=100,
    section=CVT,
)
def cvt_tf32_finite(a: Lanes, *, rnd: str, satfinite: bool, relu: bool) -> Lanes:
    """d = a rounded once to 11 significant bits, as the bits of an f32; an infinity becomes the
    largest number of its sign; with .relu max(d, 0), where NaN stays NaN.
    """
    return _tf32(a, rnd, satfinite=satfinite, relu=relu)


@inst(
    "cvt.rnd.relu.satfinite.tf32.f32 d:b32, a:f32",
    name="cvt_tf32",
    rnd=_RELU,
    relu=(True,),
    satfinite=(True,),
    ptx=(8, 6),
    sm=100,
    section=CVT,
)
def cvt_tf32_relu_finite(a: Lanes, *, rnd: str, relu: bool, satfinite: bool) -> Lanes:
    """d = max(a, 0) rounded once to 11 significant bits, as the bits of an f32; NaN stays NaN,
    infinity becomes the largest number.
    """
    return _tf32(a, rnd, satfinite=satfinite, relu=relu)


def _tf32(a: Lanes, rnd: str, *, satfinite: bool = False, relu: bool = False) -> Lanes:
    rounded = numeric.to_tf32(numeric.finite(a, "tf32") if satfinite else a, rnd)
    return (numeric.relu(rounded) if relu else rounded).view(np.uint32)
