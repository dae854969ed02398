"""16-bit floating-point arithmetic (PTX ISA, "Half Precision Floating-Point Instructions").

Packed pairs (f16x2, bf16x2) lie in 32-bit registers and are worked on as 16-bit lanes. A NaN
result is 0x7fff. Approximate instructions mean the correctly rounded result; `max_ulp` says how far
the GPU may be from it (infinite where the manual bounds only the absolute error: see `accuracy`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.isa import elementary, numeric
from ptxgen.isa.elementary import Elementary, rounded
from ptxgen.isa.spec import gate, inst
from ptxgen.types import bf16, bf16x2, f16, f16x2

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes
    from ptxgen.types import ScalarType

HALF: Final = "Half Precision Floating-Point Instructions"
NARROW: Final = ("rn",)  # 16-bit arithmetic has no other rounding
HALVES: Final = {f16x2: f16, bf16x2: bf16}
_F16: Final = (f16, f16x2)
_BF16: Final = (bf16, bf16x2)
# What TMA writes for an element outside a tensor when asked for NaN: the manual names it "OOB NaN"
# (section "Tensors") without giving its bits; it has these in every 16-bit format.
OOB_NAN: Final = np.uint16(0x7FF7)


def _elementwise(type: ScalarType, function: Callable[..., Lanes], *lanes: Lanes) -> Lanes:
    """`function` of 16-bit lanes, with canonical NaN; pairs are taken as twice as many lanes."""
    if type not in HALVES:
        return numeric.canonical_narrow(function(*lanes))
    whole = np.broadcast_shapes(*(np.shape(x) for x in lanes))
    split = [
        np.ascontiguousarray(np.broadcast_to(x, whole or (1,))).view(HALVES[type].dtype)
        for x in lanes
    ]
    result = numeric.canonical_narrow(function(*split)).view(np.uint32)
    return result if whole else result[0]


def _element(type: ScalarType) -> ScalarType:
    return HALVES.get(type, type)


def _f16(
    type: ScalarType, ftz: bool, sat: bool, function: Callable[..., Lanes], *lanes: Lanes
) -> Lanes:
    def one(*x: Lanes) -> Lanes:
        return numeric.saturate(
            numeric.flush(function(*(numeric.flush(y, ftz) for y in x)), ftz), sat
        )

    return _elementwise(type, one, *lanes)


# ---------------------------------------- add, sub, mul


def _add_f16(x: Lanes, y: Lanes) -> Lanes:
    return numeric.add_narrow(x, y, f16)


@numeric.quiet
def _sub_f16(x: Lanes, y: Lanes) -> Lanes:
    return numeric.add_narrow(x, np.negative(y), f16)


def _mul_f16(x: Lanes, y: Lanes) -> Lanes:
    return numeric.mul_narrow(x, y, f16)


def _add_bf16(x: Lanes, y: Lanes) -> Lanes:
    return numeric.add_narrow(x, y, bf16)


@numeric.quiet
def _sub_bf16(x: Lanes, y: Lanes) -> Lanes:
    return numeric.add_narrow(x, np.negative(y), bf16)


def _mul_bf16(x: Lanes, y: Lanes) -> Lanes:
    return numeric.mul_narrow(x, y, bf16)


@inst(
    "add.rnd{.ftz}{.sat}.type d, a, b",
    rnd=NARROW, type=_F16, ptx=(4, 2), sm=53, section=f"{HALF}: add",
)  # fmt: skip
def add_f16(a: Lanes, b: Lanes, *, rnd: str, ftz: bool, sat: bool, type: ScalarType) -> Lanes:
    """d = a + b, rounded once."""
    del rnd  # there is only one
    return _f16(type, ftz, sat, _add_f16, a, b)


@inst("add{.ftz}{.sat}.type d, a, b", type=_F16, ptx=(4, 2), sm=53, section=f"{HALF}: add")
def add_f16_default(a: Lanes, b: Lanes, *, ftz: bool, sat: bool, type: ScalarType) -> Lanes:
    """d = a + b, rounded once."""
    return _f16(type, ftz, sat, _add_f16, a, b)


@inst("add.rnd.type d, a, b", rnd=NARROW, type=_BF16, ptx=(7, 8), sm=90, section=f"{HALF}: add")
def add_bf16(a: Lanes, b: Lanes, *, rnd: str, type: ScalarType) -> Lanes:
    """d = a + b, rounded once."""
    del rnd  # there is only one
    return _elementwise(type, _add_bf16, a, b)


@inst("add.type d, a, b", type=_BF16, ptx=(7, 8), sm=90, section=f"{HALF}: add")
def add_bf16_default(a: Lanes, b: Lanes, *, type: ScalarType) -> Lanes:
    """d = a + b, rounded once."""
    return _elementwise(type, _add_bf16, a, b)


@inst(
    "sub.rnd{.ftz}{.sat}.type d, a, b",
    rnd=NARROW, type=_F16, ptx=(4, 2), sm=53, section=f"{HALF}: sub",
)  # fmt: skip
def sub_f16(a: Lanes, b: Lanes, *, rnd: str, ftz: bool, sat: bool, type: ScalarType) -> Lanes:
    """d = a - b, rounded once."""
    del rnd  # there is only one
    return _f16(type, ftz, sat, _sub_f16, a, b)


@inst("sub{.ftz}{.sat}.type d, a, b", type=_F16, ptx=(4, 2), sm=53, section=f"{HALF}: sub")
def sub_f16_default(a: Lanes, b: Lanes, *, ftz: bool, sat: bool, type: ScalarType) -> Lanes:
    """d = a - b, rounded once."""
    return _f16(type, ftz, sat, _sub_f16, a, b)


@inst("sub.rnd.type d, a, b", rnd=NARROW, type=_BF16, ptx=(7, 8), sm=90, section=f"{HALF}: sub")
def sub_bf16(a: Lanes, b: Lanes, *, rnd: str, type: ScalarType) -> Lanes:
    """d = a - b, rounded once."""
    del rnd  # there is only one
    return _elementwise(type, _sub_bf16, a, b)


@inst("sub.type d, a, b", type=_BF16, ptx=(7, 8), sm=90, section=f"{HALF}: sub")
def sub_bf16_default(a: Lanes, b: Lanes, *, type: ScalarType) -> Lanes:
    """d = a - b, rounded once."""
    return _elementwise(type, _sub_bf16, a, b)


@inst(
    "mul.rnd{.ftz}{.sat}.type d, a, b",
    rnd=NARROW, type=_F16, ptx=(4, 2), sm=53, section=f"{HALF}: mul",
)  # fmt: skip
def mul_f16(a: Lanes, b: Lanes, *, rnd: str, ftz: bool, sat: bool, type: ScalarType) -> Lanes:
    """d = a * b, rounded once."""
    del rnd  # there is only one
    return _f16(type, ftz, sat, _mul_f16, a, b)


@inst("mul{.ftz}{.sat}.type d, a, b", type=_F16, ptx=(4, 2), sm=53, section=f"{HALF}: mul")
def mul_f16_default(a: Lanes, b: Lanes, *, ftz: bool, sat: bool, type: ScalarType) -> Lanes:
    """d = a * b, rounded once."""
    return _f16(type, ftz, sat, _mul_f16, a, b)


@inst("mul.rnd.type d, a, b", rnd=NARROW, type=_BF16, ptx=(7, 8), sm=90, section=f"{HALF}: mul")
def mul_bf16(a: Lanes, b: Lanes, *, rnd: str, type: ScalarType) -> Lanes:
    """d = a * b, rounded once."""
    del rnd  # there is only one
    return _elementwise(type, _mul_bf16, a, b)


@inst("mul.type d, a, b", type=_BF16, ptx=(7, 8), sm=90, section=f"{HALF}: mul")
def mul_bf16_default(a: Lanes, b: Lanes, *, type: ScalarType) -> Lanes:
    """d = a * b, rounded once."""
    return _elementwise(type, _mul_bf16, a, b)


# ---------------------------------------- fma


def _fma_f16(x: Lanes, y: Lanes, z: Lanes) -> Lanes:
    return numeric.fma_narrow(x, y, z, f16)


def _fma_bf16(x: Lanes, y: Lanes, z: Lanes) -> Lanes:
    return numeric.fma_narrow(x, y, z, bf16)


@inst(
    "fma.rnd{.ftz}{.sat}.type d, a, b, c",
    rnd=NARROW, type=_F16, ptx=(4, 2), sm=53, section=f"{HALF}: fma",
)  # fmt: skip
def fma_f16(
    a: Lanes, b: Lanes, c: Lanes, *, rnd: str, ftz: bool, sat: bool, type: ScalarType
) -> Lanes:
    """d = a * b + c, rounded once."""
    del rnd  # there is only one
    return _f16(type, ftz, sat, _fma_f16, a, b, c)


@inst(
    "fma.rnd{.ftz}.relu.type d, a, b, c",
    rnd=NARROW, relu=(True,), type=_F16, ptx=(7, 0), sm=80, section=f"{HALF}: fma",
)  # fmt: skip
def fma_relu_f16(
    a: Lanes, b: Lanes, c: Lanes, *, rnd: str, ftz: bool, relu: bool, type: ScalarType
) -> Lanes:
    """d = max(a * b + c, 0), rounded once; NaN stays NaN."""
    del rnd, relu  # there is only one, and it is always true: else the row above is meant
    return _f16(type, ftz, False, lambda *x: numeric.relu(_fma_f16(*x)), a, b, c)


@inst(
    "fma.rnd{.relu}.type d, a, b, c",
    rnd=NARROW, type=_BF16, ptx=(7, 0), sm=80, section=f"{HALF}: fma",
)  # fmt: skip
def fma_bf16(a: Lanes, b: Lanes, c: Lanes, *, rnd: str, relu: bool, type: ScalarType) -> Lanes:
    """d = a * b + c, rounded once; with .relu max(d, 0), where NaN stays NaN."""
    del rnd  # there is only one
    if not relu:
        return _elementwise(type, _fma_bf16, a, b, c)
    return _elementwise(type, lambda *x: numeric.relu(_fma_bf16(*x)), a, b, c)


@inst(
    "fma.rnd.oob{.relu}.type d, a, b, c",
    rnd=NARROW, oob=(True,), type=(*_F16, *_BF16), ptx=(8, 1), sm=90, section=f"{HALF}: fma",
)  # fmt: skip
def fma_oob(
    a: Lanes, b: Lanes, c: Lanes, *, rnd: str, oob: bool, relu: bool, type: ScalarType
) -> Lanes:
    """d = a * b + c, rounded once, but +0 where a or b is the NaN 0x7ff7 that TMA writes outside a
    tensor; with .relu max(d, 0), where NaN stays NaN.
    """
    del rnd, oob  # there is only one, and it is always true: else a row above is meant
    function = _fma_f16 if _element(type) is f16 else _fma_bf16

    def one(x: Lanes, y: Lanes, z: Lanes) -> Lanes:
        bits = numeric.relu(function(x, y, z)) if relu else function(x, y, z)
        outside = (x.view(np.uint16) == OOB_NAN) | (y.view(np.uint16) == OOB_NAN)
        return np.where(outside, np.uint16(0), bits.view(np.uint16)).view(x.dtype)

    return _elementwise(type, one, a, b, c)


# ---------------------------------------- sign, min, max


_SIGN_GATES: Final = {
    f16: gate(ptx=(6, 0), sm=53),
    f16x2: gate(ptx=(6, 0), sm=53),
}
_ABS_GATES: Final = {f16: gate(ptx=(6, 5), sm=53), f16x2: gate(ptx=(6, 5), sm=53)}
_BF16_GATES: Final = {bf16: gate(ptx=(7, 0), sm=80), bf16x2: gate(ptx=(7, 0), sm=80)}


@inst("neg{.ftz}.type d, a", type=_SIGN_GATES, section=f"{HALF}: neg")
def neg_f16(a: Lanes, *, ftz: bool, type: ScalarType) -> Lanes:
    """d = -a."""
    return _sign_bits(a, type, ftz, np.bitwise_xor, 0x8000)


@inst("neg.type d, a", type=_BF16_GATES, section=f"{HALF}: neg")
def neg_bf16(a: Lanes, *, type: ScalarType) -> Lanes:
    """d = -a."""
    return _sign_bits(a, type, False, np.bitwise_xor, 0x8000)


@inst("abs{.ftz}.type d, a", type=_ABS_GATES, section=f"{HALF}: abs")
def abs_f16(a: Lanes, *, ftz: bool, type: ScalarType) -> Lanes:
    """d = |a|."""
    return _sign_bits(a, type, ftz, np.bitwise_and, 0x7FFF)


@inst("abs.type d, a", type=_BF16_GATES, section=f"{HALF}: abs")
def abs_bf16(a: Lanes, *, type: ScalarType) -> Lanes:
    """d = |a|."""
    return _sign_bits(a, type, False, np.bitwise_and, 0x7FFF)


def _sign_bits(a: Lanes, type: ScalarType, ftz: bool, operation: Any, mask: int) -> Lanes:
    """`operation` of the bits of each element and the mask; NaN is bits like any other."""
    if type not in HALVES:
        bits = numeric.flush(a, ftz).view(np.uint16)
        return operation(bits, np.uint16(mask)).view(a.dtype)  # type: ignore[no-any-return]
    if ftz:
        split = np.ascontiguousarray(np.atleast_1d(a)).view(HALVES[type].dtype)
        a = numeric.flush(split, ftz).view(np.uint32).reshape(np.shape(a))[()]
    return operation(a, np.uint32(mask << 16 | mask))  # type: ignore[no-any-return]


@inst("min{.ftz}{.NaN}.type d, a, b", type=_F16, ptx=(7, 0), sm=80, section=f"{HALF}: min")
def min_f16(a: Lanes, b: Lanes, *, ftz: bool, NaN: bool, type: ScalarType) -> Lanes:
    """d = the smaller of a and b (-0 < +0); a NaN is ignored, or with .NaN makes d NaN."""
    return _f16(type, ftz, False, lambda x, y: numeric.minimum(x, y, NaN), a, b)


@inst("max{.ftz}{.NaN}.type d, a, b", type=_F16, ptx=(7, 0), sm=80, section=f"{HALF}: max")
def max_f16(a: Lanes, b: Lanes, *, ftz: bool, NaN: bool, type: ScalarType) -> Lanes:
    """d = the larger of a and b (-0 < +0); a NaN is ignored, or with .NaN makes d NaN."""
    return _f16(type, ftz, False, lambda x, y: numeric.maximum(x, y, NaN), a, b)


@inst("min{.NaN}.type d, a, b", type=_BF16, ptx=(7, 0), sm=80, section=f"{HALF}: min")
def min_bf16(a: Lanes, b: Lanes, *, NaN: bool, type: ScalarType) -> Lanes:
    """d = the smaller of a and b (-0 < +0); a NaN is ignored, or with .NaN makes d NaN."""
    return _elementwise(type, lambda x, y: numeric.minimum(x, y, NaN), a, b)


@inst("max{.NaN}.type d, a, b", type=_BF16, ptx=(7, 0), sm=80, section=f"{HALF}: max")
def max_bf16(a: Lanes, b: Lanes, *, NaN: bool, type: ScalarType) -> Lanes:
    """d = the larger of a and b (-0 < +0); a NaN is ignored, or with .NaN makes d NaN."""
    return _elementwise(type, lambda x, y: numeric.maximum(x, y, NaN), a, b)


def _smaller(x: Lanes, y: Lanes, nan: bool) -> Lanes:
    return numeric.with_xor_sign(numeric.minimum(_size(x), _size(y), nan), x, y)


def _larger(x: Lanes, y: Lanes, nan: bool) -> Lanes:
    return numeric.with_xor_sign(numeric.maximum(_size(x), _size(y), nan), x, y)


def _size(x: Lanes) -> Lanes:
    magnitude: Lanes = np.bitwise_and(x.view(np.uint16), numeric.NAN_16_BITS).view(x.dtype)
    return magnitude


@inst(
    "min{.ftz}{.NaN}.xorsign.abs.type d, a, b",
    type=_F16, ptx=(7, 2), sm=86, section=f"{HALF}: min",
)  # fmt: skip
def min_xorsign_f16(a: Lanes, b: Lanes, *, ftz: bool, NaN: bool, type: ScalarType) -> Lanes:
    """d = the smaller of |a| and |b|, negative where just one of a and b is; a NaN is ignored, or
    with .NaN makes d NaN.
    """
    return _f16(type, ftz, False, lambda x, y: _smaller(x, y, NaN), a, b)


@inst("min{.NaN}.xorsign.abs.type d, a, b", type=_BF16, ptx=(7, 2), sm=86, section=f"{HALF}: min")
def min_xorsign_bf16(a: Lanes, b: Lanes, *, NaN: bool, type: ScalarType) -> Lanes:
    """d = the smaller of |a| and |b|, negative where just one of a and b is; a NaN is ignored, or
    with .NaN makes d NaN.
    """
    return _elementwise(type, lambda x, y: _smaller(x, y, NaN), a, b)


@inst(
    "max{.ftz}{.NaN}.xorsign.abs.type d, a, b",
    type=_F16, ptx=(7, 2), sm=86, section=f"{HALF}: max",
)  # fmt: skip
def max_xorsign_f16(a: Lanes, b: Lanes, *, ftz: bool, NaN: bool, type: ScalarType) -> Lanes:
    """d = the larger of |a| and |b|, negative where just one of a and b is; a NaN is ignored, or
    with .NaN makes d NaN.
    """
    return _f16(type, ftz, False, lambda x, y: _larger(x, y, NaN), a, b)


@inst("max{.NaN}.xorsign.abs.type d, a, b", type=_BF16, ptx=(7, 2), sm=86, section=f"{HALF}: max")
def max_xorsign_bf16(a: Lanes, b: Lanes, *, NaN: bool, type: ScalarType) -> Lanes:
    """d = the larger of |a| and |b|, negative where just one of a and b is; a NaN is ignored, or
    with .NaN makes d NaN.
    """
    return _elementwise(type, lambda x, y: _larger(x, y, NaN), a, b)


# ---------------------------------------- transcendental


@numeric.quiet
def _approximate(function: Elementary, a: Lanes, type: ScalarType, ftz: bool) -> Lanes:
    """`function` rounded once."""

    def one(x: Lanes) -> Lanes:
        wide = numeric.flush(x, ftz).astype(np.float64)
        return numeric.flush(rounded(function, wide, _element(type)), ftz)

    return _elementwise(type, one, a)


_TANH_GATES: Final = {
    f16: None, f16x2: None, bf16: gate(ptx=(7, 8), sm=90), bf16x2: gate(ptx=(7, 8), sm=90),
}  # fmt: skip


@inst(
    "tanh.approx.type d, a", name="tanh", type=_TANH_GATES, ptx=(7, 0), sm=75, max_ulp=math.inf,
    accuracy="absolute error 2^-10.987 for f16, relative error 2^-8 for bf16",
    section=f"{HALF}: tanh",
)  # fmt: skip
def tanh_narrow(a: Lanes, *, type: ScalarType) -> Lanes:
    """d = the hyperbolic tangent of a, approximately; subnormal numbers are kept."""
    return _approximate(elementary.TANH, a, type, False)


@inst(
    "ex2.approx.type d, a", name="ex2", type=_F16, ptx=(7, 0), sm=75, max_ulp=2.2,
    accuracy="relative error 2^-9.9", section=f"{HALF}: ex2",
)  # fmt: skip
def ex2_f16(a: Lanes, *, type: ScalarType) -> Lanes:
    """d = 2 to the power of a, approximately; subnormal numbers are kept."""
    return _approximate(elementary.EXP2, a, type, False)


@inst(
    "ex2.approx.ftz.type d, a", name="ex2", ftz=(True,), type=_BF16, ptx=(7, 8), sm=90, max_ulp=2,
    accuracy="relative error 2^-7", section=f"{HALF}: ex2",
)  # fmt: skip
def ex2_bf16(a: Lanes, *, ftz: bool, type: ScalarType) -> Lanes:
    """d = 2 to the power of a, approximately; subnormal numbers become zero."""
    return _approximate(elementary.EXP2, a, type, ftz)
