"""Conversions (PTX ISA, "Data Movement and Conversion Instructions: cvt").

Rows are one per kind of conversion, because the legal roundings differ. `dtype` is the type of the
result, `atype` that of the operand. Integers of 8 bits live in 16-bit registers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ptxgen.isa import numeric
from ptxgen.isa.numeric import ROUNDINGS
from ptxgen.isa.spec import gate, inst
from ptxgen.types import (
    bf16,
    bf16x2,
    f16,
    f16x2,
    f32,
    f64,
    s8,
    s16,
    s32,
    s64,
    u8,
    u16,
    u32,
    u64,
)  # fmt: skip

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes
    from ptxgen.types import ScalarType

CVT: Final = "Data Movement and Conversion Instructions: cvt"
INTEGERS: Final = (u32, s32, u64, s64, u16, s16, u8, s8)
TO_INTEGER: Final = {"rni": "rn", "rzi": "rz", "rmi": "rm", "rpi": "rp"}  # printed name: rounding
_HOPPER: Final = gate(ptx=(7, 8), sm=90)


# ---------------------------------------- integers


@inst("cvt.dtype.atype d:dtype, a:atype", dtype=INTEGERS, atype=INTEGERS, section=CVT)
def cvt_integer(a: Lanes, *, dtype: ScalarType) -> Lanes:
    """d = a, cut off, or extended by zeros or the sign."""
    return a.astype(dtype.dtype)


def _saturating(dtype: ScalarType) -> tuple[ScalarType, ...]:
    """The types with values outside dtype's range: for others .sat is not allowed."""
    to = numeric.range_of(dtype.dtype)
    return tuple(
        t
        for t in INTEGERS
        if numeric.range_of(t.dtype).min < to.min or numeric.range_of(t.dtype).max > to.max
    )


def _cvt_sat(a: Lanes, *, sat: bool, dtype: ScalarType) -> Lanes:
    """d = a limited to the range of dtype; only where a may lie outside it."""
    del sat  # always true: without it, the row above is meant
    of, to = numeric.range_of(a.dtype), numeric.range_of(dtype.dtype)
    low, high = max(of.min, to.min), min(of.max, to.max)
    return np.clip(a, a.dtype.type(low), a.dtype.type(high)).astype(dtype.dtype)


for _dtype in INTEGERS:
    inst(
        "cvt.sat.dtype.atype d:dtype, a:atype",
        sat=(True,),
        dtype=(_dtype,),
        atype=_saturating(_dtype),
        section=CVT,
    )(_cvt_sat)


# ---------------------------------------- integers and floats


@inst(
    "cvt.rnd.dtype.atype d:dtype, a:atype",
    rnd=ROUNDINGS,
    dtype=(f32, f64, f16),
    atype=INTEGERS,
    section=CVT,
)
def cvt_from_integer(a: Lanes, *, rnd: str, dtype: ScalarType) -> Lanes:
    """d = a, rounded once."""
    return numeric.from_integer(a, dtype, rnd)


@inst(
    "cvt.rnd{.ftz}.dtype.atype d:dtype, a:atype",
    rnd=tuple(TO_INTEGER),
    dtype=INTEGERS,
    atype=(f32,),
    section=CVT,
)
def cvt_to_integer(a: Lanes, *, rnd: str, ftz: bool, dtype: ScalarType) -> Lanes:
    """d = a rounded to an integer and limited to the range of dtype; NaN gives 0, or only the top
    bit for 64 bits.
    """
    return numeric.to_integer(numeric.flush(a, ftz), dtype, TO_INTEGER[rnd])


@inst(
    "cvt.rnd.dtype.atype d:dtype, a:atype",
    rnd=tuple(TO_INTEGER),
    dtype=INTEGERS,
    atype=(f64, f16),
    section=CVT,
)
def cvt_wide_to_integer(a: Lanes, *, rnd: str, dtype: ScalarType) -> Lanes:
    """d = a rounded to an integer and limited to the range of dtype; NaN gives 0, or only the top
    bit for 64 bits or f64.
    """
    return numeric.to_integer(a, dtype, TO_INTEGER[rnd])


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
    "cvt.rnd.dtype.atype d:dtype, a:atype",
    rnd=tuple(TO_INTEGER),
    dtype=(f64,),
    atype=(f64,),
    section=CVT,
)
def cvt_integral_f64(a: Lanes, *, rnd: str) -> Lanes:
    """d = a rounded to an integral value, still as a floating-point number."""
    return numeric.integral(a, TO_INTEGER[rnd])


# ---------------------------------------- floats


@inst(
    "cvt.rnd{.ftz}{.sat}.dtype.atype d:dtype, a:atype",
    rnd=ROUNDINGS,
    dtype=(f32,),
    atype=(f64,),
    section=CVT,
)
def cvt_f32_f64(a: Lanes, *, rnd: str, ftz: bool, sat: bool) -> Lanes:
    """d = a, rounded once."""
    return numeric.finish(numeric.narrow(a, f32, rnd), ftz, sat)


@inst("cvt{.ftz}.dtype.atype d:dtype, a:atype", dtype=(f64,), atype=(f32,), section=CVT)
def cvt_f64_f32(a: Lanes, *, ftz: bool) -> Lanes:
    """d = a, exactly."""
    return numeric.widen(numeric.flush(a, ftz), f64)


@inst(
    "cvt.rnd.dtype.atype d:dtype, a:atype", rnd=ROUNDINGS, dtype=(f16,), atype=(f64,), section=CVT
)
def cvt_f16_f64(a: Lanes, *, rnd: str) -> Lanes:
    """d = a, rounded once."""
    return numeric.canonical_narrow(numeric.narrow(a, f16, rnd))


@inst("cvt.dtype.atype d:dtype, a:atype", dtype=(f64,), atype=(f16,), section=CVT)
def cvt_f64_f16(a: Lanes) -> Lanes:
    """d = a, exactly."""
    return numeric.widen(a, f64)


@inst("cvt{.ftz}.dtype.atype d:dtype, a:atype", dtype=(f32,), atype=(f16,), section=CVT)
def cvt_f32_f16(a: Lanes, *, ftz: bool) -> Lanes:
    """d = a, exactly; no f16 becomes a subnormal f32, so .ftz changes nothing."""
    return numeric.finish(numeric.widen(a, f32), ftz)


@inst(
    "cvt.dtype.atype d:dtype, a:atype", dtype=(f32,), atype=(bf16,), ptx=(7, 1), sm=80, section=CVT
)
def cvt_f32_bf16(a: Lanes) -> Lanes:
    """d = a, exactly."""
    return numeric.widen(a, f32)


@inst(
    "cvt.rnd{.ftz}.dtype.atype d:dtype, a:atype",
    rnd=ROUNDINGS,
    dtype=(f16,),
    atype=(f32,),
    section=CVT,
)
def cvt_f16_f32(a: Lanes, *, rnd: str, ftz: bool) -> Lanes:
    """d = a, rounded once."""
    return _narrowed(numeric.flush(a, ftz), f16, rnd, relu=False)


@inst(
    "cvt.rnd.relu.dtype.atype d:dtype, a:atype",
    rnd=("rn", "rz"), relu=(True,), dtype=(f16,), atype=(f32,), ptx=(7, 0), sm=80, section=CVT,
)  # fmt: skip
def cvt_relu_f16_f32(a: Lanes, *, rnd: str, relu: bool) -> Lanes:
    """d = max(a, 0), rounded once; NaN stays NaN."""
    return _narrowed(a, f16, rnd, relu)


@inst(
    "cvt.rnd{.relu}.dtype.atype d:dtype, a:atype",
    rnd=("rn", "rz"), dtype=(bf16,), atype=(f32,), ptx=(7, 0), sm=80, section=CVT,
)  # fmt: skip
def cvt_bf16_f32(a: Lanes, *, rnd: str, relu: bool) -> Lanes:
    """d = a, rounded once; with .relu max(d, 0), where NaN stays NaN."""
    return _narrowed(a, bf16, rnd, relu)


@inst(
    "cvt.rnd{.relu}.dtype.atype d:dtype, a:atype, b:atype",
    rnd=("rn", "rz"), dtype=(f16x2, bf16x2), atype=(f32,), ptx=(7, 0), sm=80, section=CVT,
)  # fmt: skip
def cvt_pack(a: Lanes, b: Lanes, *, rnd: str, relu: bool, dtype: ScalarType) -> Lanes:
    """d = a in the upper and b in the lower half, each rounded once; with .relu max(d, 0), where
    NaN stays NaN.
    """
    element = f16 if dtype is f16x2 else bf16
    return numeric.join(_narrowed(b, element, rnd, relu), _narrowed(a, element, rnd, relu))


@inst(
    "cvt.rnd.tf32.f32 d:b32, a:f32", name="cvt_tf32",
    rnd={"rna": None, "rn": _HOPPER, "rz": _HOPPER}, ptx=(7, 0), sm=80, section=CVT,
)  # fmt: skip
def cvt_tf32(a: Lanes, *, rnd: str) -> Lanes:
    """d = a rounded once to 11 significant bits, as the bits of an f32; .rna rounds ties away from
    zero.
    """
    return numeric.to_tf32(a, rnd).view(np.uint32)


def _narrowed(a: Lanes, type: ScalarType, rnd: str, relu: bool) -> Lanes:
    narrowed = numeric.canonical_narrow(numeric.narrow(a, type, rnd))
    return numeric.relu(narrowed) if relu else narrowed
