"""Floating-point arithmetic (PTX ISA, "Floating-Point Instructions" and "Half Precision
Floating-Point Instructions").

The rounding is always printed: without it the assembler may fuse a product and a sum. Approximate
instructions mean the correctly rounded result, flushed as the modifier says; `max_ulp` says how far
the GPU may be from it (infinite where the manual bounds only the absolute error: see `accuracy`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.isa import numeric
from ptxgen.isa.numeric import ROUNDINGS, quiet
from ptxgen.isa.spec import gate, inst
from ptxgen.types import bf16, bf16x2, f16, f16x2, f32, f64

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes
    from ptxgen.types import ScalarType

FLOAT: Final = "Floating-Point Instructions"
HALF: Final = "Half Precision Floating-Point Instructions"
_ONE_F32: Final[Any] = np.float32(1)
_ONE_F64: Final[Any] = np.float64(1)
NARROW: Final = ("rn",)  # 16-bit arithmetic has no other rounding
HALVES: Final = {f16x2: f16, bf16x2: bf16}


def _each_half(x2: bool, type: ScalarType, function: Callable[..., Lanes], *lanes: Lanes) -> Lanes:
    """`function` of 16-bit lanes, applied to both halves when the lanes are packed pairs."""
    if not x2:
        return numeric.canonical_narrow(function(*lanes))
    split = [numeric.halves(x, type) for x in lanes]
    return numeric.join(
        *(numeric.canonical_narrow(function(*half)) for half in zip(*split, strict=True))
    )


def _scalar(type: ScalarType) -> tuple[bool, ScalarType]:
    """Whether a 16-bit type is a packed pair, and the type of its elements."""
    return type in HALVES, HALVES.get(type, type)


# ---------------------------------------- add, sub, mul, fma


@inst("add.rnd{.ftz}{.sat}.f32 d, a, b", rnd=ROUNDINGS, section=f"{FLOAT}: add")
def add_f32(a: Lanes, b: Lanes, *, rnd: str, ftz: bool, sat: bool) -> Lanes:
    """d = a + b, rounded once."""
    return numeric.finish(
        numeric.add_f32(numeric.flush(a, ftz), numeric.flush(b, ftz), rnd), ftz, sat
    )


@inst("add.rnd.f64 d, a, b", rnd=ROUNDINGS, sm=13, section=f"{FLOAT}: add")
def add_f64(a: Lanes, b: Lanes, *, rnd: str) -> Lanes:
    """d = a + b, rounded once."""
    return numeric.add_f64(a, b, rnd)


@inst("sub.rnd{.ftz}{.sat}.f32 d, a, b", rnd=ROUNDINGS, section=f"{FLOAT}: sub")
def sub_f32(a: Lanes, b: Lanes, *, rnd: str, ftz: bool, sat: bool) -> Lanes:
    """d = a - b, rounded once."""
    return numeric.finish(
        numeric.add_f32(numeric.flush(a, ftz), -numeric.flush(b, ftz), rnd), ftz, sat
    )


@inst("sub.rnd.f64 d, a, b", rnd=ROUNDINGS, sm=13, section=f"{FLOAT}: sub")
def sub_f64(a: Lanes, b: Lanes, *, rnd: str) -> Lanes:
    """d = a - b, rounded once."""
    return numeric.add_f64(a, -b, rnd)


@inst("mul.rnd{.ftz}{.sat}.f32 d, a, b", rnd=ROUNDINGS, section=f"{FLOAT}: mul")
def mul_f32(a: Lanes, b: Lanes, *, rnd: str, ftz: bool, sat: bool) -> Lanes:
    """d = a * b, rounded once."""
    return numeric.finish(
        numeric.mul_f32(numeric.flush(a, ftz), numeric.flush(b, ftz), rnd), ftz, sat
    )


@inst("mul.rnd.f64 d, a, b", rnd=ROUNDINGS, sm=13, section=f"{FLOAT}: mul")
def mul_f64(a: Lanes, b: Lanes, *, rnd: str) -> Lanes:
    """d = a * b, rounded once."""
    return numeric.mul_f64(a, b, rnd)


@inst(
    "fma.rnd{.ftz}{.sat}.f32 d, a, b, c", rnd=ROUNDINGS, ptx=(2, 0), sm=20, section=f"{FLOAT}: fma"
)
def fma_f32(a: Lanes, b: Lanes, c: Lanes, *, rnd: str, ftz: bool, sat: bool) -> Lanes:
    """d = a * b + c, rounded once."""
    a, b, c = (numeric.flush(x, ftz) for x in (a, b, c))
    return numeric.finish(numeric.fma_f32(a, b, c, rnd), ftz, sat)


@inst("fma.rnd.f64 d, a, b, c", rnd=ROUNDINGS, sm=13, ptx=(1, 4), section=f"{FLOAT}: fma")
def fma_f64(a: Lanes, b: Lanes, c: Lanes, *, rnd: str) -> Lanes:
    """d = a * b + c, rounded once."""
    return numeric.fma_f64(a, b, c, rnd)


_F16: Final = {f16: None, f16x2: None}
_BF16: Final = {bf16: None, bf16x2: None}


@inst(
    "add.rnd{.ftz}{.sat}.type d, a, b",
    rnd=NARROW,
    type=_F16,
    ptx=(4, 2),
    sm=53,
    section=f"{HALF}: add",
)
def add_f16(a: Lanes, b: Lanes, *, rnd: str, ftz: bool, sat: bool, type: ScalarType) -> Lanes:
    """d = a + b, rounded once."""
    return _f16(type, ftz, sat, lambda x, y: numeric.add_narrow(x, y, f16, rnd), a, b)


@inst("add.rnd.type d, a, b", rnd=NARROW, type=_BF16, ptx=(7, 8), sm=90, section=f"{HALF}: add")
def add_bf16(a: Lanes, b: Lanes, *, rnd: str, type: ScalarType) -> Lanes:
    """d = a + b, rounded once."""
    return _bf16(type, lambda x, y: numeric.add_narrow(x, y, bf16, rnd), a, b)


@inst(
    "sub.rnd{.ftz}{.sat}.type d, a, b",
    rnd=NARROW,
    type=_F16,
    ptx=(4, 2),
    sm=53,
    section=f"{HALF}: sub",
)
def sub_f16(a: Lanes, b: Lanes, *, rnd: str, ftz: bool, sat: bool, type: ScalarType) -> Lanes:
    """d = a - b, rounded once."""
    return _f16(type, ftz, sat, lambda x, y: numeric.add_narrow(x, -y, f16, rnd), a, b)


@inst("sub.rnd.type d, a, b", rnd=NARROW, type=_BF16, ptx=(7, 8), sm=90, section=f"{HALF}: sub")
def sub_bf16(a: Lanes, b: Lanes, *, rnd: str, type: ScalarType) -> Lanes:
    """d = a - b, rounded once."""
    return _bf16(type, lambda x, y: numeric.add_narrow(x, -y, bf16, rnd), a, b)


@inst(
    "mul.rnd{.ftz}{.sat}.type d, a, b",
    rnd=NARROW,
    type=_F16,
    ptx=(4, 2),
    sm=53,
    section=f"{HALF}: mul",
)
def mul_f16(a: Lanes, b: Lanes, *, rnd: str, ftz: bool, sat: bool, type: ScalarType) -> Lanes:
    """d = a * b, rounded once."""
    return _f16(type, ftz, sat, lambda x, y: numeric.mul_narrow(x, y, f16, rnd), a, b)


@inst("mul.rnd.type d, a, b", rnd=NARROW, type=_BF16, ptx=(7, 8), sm=90, section=f"{HALF}: mul")
def mul_bf16(a: Lanes, b: Lanes, *, rnd: str, type: ScalarType) -> Lanes:
    """d = a * b, rounded once."""
    return _bf16(type, lambda x, y: numeric.mul_narrow(x, y, bf16, rnd), a, b)


@inst(
    "fma.rnd{.ftz}{.sat}.type d, a, b, c",
    rnd=NARROW,
    type=_F16,
    ptx=(4, 2),
    sm=53,
    section=f"{HALF}: fma",
)
def fma_f16(
    a: Lanes, b: Lanes, c: Lanes, *, rnd: str, ftz: bool, sat: bool, type: ScalarType
) -> Lanes:
    """d = a * b + c, rounded once."""
    return _f16(type, ftz, sat, lambda x, y, z: numeric.fma_narrow(x, y, z, f16, rnd), a, b, c)


@inst(
    "fma.rnd{.ftz}.relu.type d, a, b, c",
    rnd=NARROW, relu=(True,), type=_F16, ptx=(7, 0), sm=80, section=f"{HALF}: fma",
)  # fmt: skip
def fma_relu_f16(
    a: Lanes, b: Lanes, c: Lanes, *, rnd: str, ftz: bool, relu: bool, type: ScalarType
) -> Lanes:
    """d = max(a * b + c, 0), rounded once; NaN stays NaN."""
    del relu  # always true: without it, the row above is meant
    return _f16(
        type,
        ftz,
        False,
        lambda x, y, z: numeric.relu(numeric.fma_narrow(x, y, z, f16, rnd)),
        a,
        b,
        c,
    )


@inst(
    "fma.rnd{.relu}.type d, a, b, c",
    rnd=NARROW,
    type=_BF16,
    ptx=(7, 0),
    sm=80,
    section=f"{HALF}: fma",
)
def fma_bf16(a: Lanes, b: Lanes, c: Lanes, *, rnd: str, relu: bool, type: ScalarType) -> Lanes:
    """d = a * b + c, rounded once; with .relu max(d, 0), where NaN stays NaN."""
    positive = numeric.relu if relu else _same
    return _bf16(type, lambda x, y, z: positive(numeric.fma_narrow(x, y, z, bf16, rnd)), a, b, c)


def _same(x: Lanes) -> Lanes:
    return x


def _f16(
    type: ScalarType, ftz: bool, sat: bool, function: Callable[..., Lanes], *lanes: Lanes
) -> Lanes:
    def one(*x: Lanes) -> Lanes:
        return numeric.saturate(
            numeric.flush(function(*(numeric.flush(y, ftz) for y in x)), ftz), sat
        )

    return _each_half(type is f16x2, f16, one, *lanes)


def _bf16(type: ScalarType, function: Callable[..., Lanes], *lanes: Lanes) -> Lanes:
    return _each_half(type is bf16x2, bf16, function, *lanes)


# ---------------------------------------- sign, min, max


_SIGN_GATES: Final = {
    f16: gate(ptx=(6, 0), sm=53),
    f16x2: gate(ptx=(6, 0), sm=53),
}
_ABS_GATES: Final = {f16: gate(ptx=(6, 5), sm=53), f16x2: gate(ptx=(6, 5), sm=53)}
_BF16_GATES: Final = {bf16: gate(ptx=(7, 0), sm=80), bf16x2: gate(ptx=(7, 0), sm=80)}


@inst("neg{.ftz}.f32 d, a", section=f"{FLOAT}: neg")
def neg_f32(a: Lanes, *, ftz: bool) -> Lanes:
    """d = -a."""
    return np.negative(numeric.flush(a, ftz))


@inst("neg.f64 d, a", sm=13, section=f"{FLOAT}: neg")
def neg_f64(a: Lanes) -> Lanes:
    """d = -a."""
    return np.negative(a)


@inst("neg{.ftz}.type d, a", type=_SIGN_GATES, section=f"{HALF}: neg")
def neg_f16(a: Lanes, *, ftz: bool, type: ScalarType) -> Lanes:
    """d = -a."""
    return _sign_bits(a, type, ftz, np.bitwise_xor, 0x8000)


@inst("neg.type d, a", type=_BF16_GATES, section=f"{HALF}: neg")
def neg_bf16(a: Lanes, *, type: ScalarType) -> Lanes:
    """d = -a."""
    return _sign_bits(a, type, False, np.bitwise_xor, 0x8000)


@inst("abs{.ftz}.f32 d, a", section=f"{FLOAT}: abs")
def abs_f32(a: Lanes, *, ftz: bool) -> Lanes:
    """d = |a|."""
    return np.abs(numeric.flush(a, ftz))


@inst("abs.f64 d, a", sm=13, section=f"{FLOAT}: abs")
def abs_f64(a: Lanes) -> Lanes:
    """d = |a|."""
    return np.abs(a)


@inst("abs{.ftz}.type d, a", type=_ABS_GATES, section=f"{HALF}: abs")
def abs_f16(a: Lanes, *, ftz: bool, type: ScalarType) -> Lanes:
    """d = |a|."""
    return _sign_bits(a, type, ftz, np.bitwise_and, 0x7FFF)


@inst("abs.type d, a", type=_BF16_GATES, section=f"{HALF}: abs")
def abs_bf16(a: Lanes, *, type: ScalarType) -> Lanes:
    """d = |a|."""
    return _sign_bits(a, type, False, np.bitwise_and, 0x7FFF)


def _sign_bits(a: Lanes, type: ScalarType, ftz: bool, operation: Any, mask: int) -> Lanes:
    x2, element = _scalar(type)

    def one(x: Lanes) -> Lanes:
        bits = numeric.flush(x, ftz).view(np.uint16)
        return operation(bits, np.uint16(mask)).view(element.dtype)  # type: ignore[no-any-return]

    if not x2:
        return one(a)
    low, high = numeric.halves(a, element)
    return numeric.join(one(low), one(high))


_NAN: Final = {True: gate(ptx=(7, 0), sm=80)}


@inst("min{.ftz}{.NaN}.f32 d, a, b", NaN=_NAN, section=f"{FLOAT}: min")
def min_f32(a: Lanes, b: Lanes, *, ftz: bool, NaN: bool | None) -> Lanes:
    """d = the smaller of a and b (-0 < +0); a NaN is ignored, or with .NaN makes d NaN."""
    return numeric.canonical(
        numeric.minimum(numeric.flush(a, ftz), numeric.flush(b, ftz), bool(NaN))
    )


@inst("max{.ftz}{.NaN}.f32 d, a, b", NaN=_NAN, section=f"{FLOAT}: max")
def max_f32(a: Lanes, b: Lanes, *, ftz: bool, NaN: bool | None) -> Lanes:
    """d = the larger of a and b (-0 < +0); a NaN is ignored, or with .NaN makes d NaN."""
    return numeric.canonical(
        numeric.maximum(numeric.flush(a, ftz), numeric.flush(b, ftz), bool(NaN))
    )


@inst("min.f64 d, a, b", sm=13, section=f"{FLOAT}: min")
def min_f64(a: Lanes, b: Lanes) -> Lanes:
    """d = the smaller of a and b (-0 < +0); a NaN is ignored."""
    return numeric.minimum(a, b, False)


@inst("max.f64 d, a, b", sm=13, section=f"{FLOAT}: max")
def max_f64(a: Lanes, b: Lanes) -> Lanes:
    """d = the larger of a and b (-0 < +0); a NaN is ignored."""
    return numeric.maximum(a, b, False)


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
    return _bf16(type, lambda x, y: numeric.minimum(x, y, NaN), a, b)


@inst("max{.NaN}.type d, a, b", type=_BF16, ptx=(7, 0), sm=80, section=f"{HALF}: max")
def max_bf16(a: Lanes, b: Lanes, *, NaN: bool, type: ScalarType) -> Lanes:
    """d = the larger of a and b (-0 < +0); a NaN is ignored, or with .NaN makes d NaN."""
    return _bf16(type, lambda x, y: numeric.maximum(x, y, NaN), a, b)


@inst("copysign.type d, a, b", type=(f32, f64), ptx=(2, 0), sm=20, section=f"{FLOAT}: copysign")
def copysign(a: Lanes, b: Lanes) -> Lanes:
    """d = b with the sign of a."""
    return np.copysign(b, a)


_TESTS: Final = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")


@inst(
    "testp.op.type p:pred, a",
    op=_TESTS,
    type=(f32, f64),
    ptx=(2, 0),
    sm=20,
    section=f"{FLOAT}: testp",
)
def testp(a: Lanes, *, op: str) -> Lanes:
    """p = whether a is of the kind that op names (zero counts as normal)."""
    subnormal = (np.abs(a) < np.finfo(a.dtype).smallest_normal) & (a != 0)
    return {  # type: ignore[no-any-return]
        "finite": np.isfinite(a),
        "infinite": np.isinf(a),
        "number": ~np.isnan(a),
        "notanumber": np.isnan(a),
        "normal": np.isfinite(a) & ~subnormal,
        "subnormal": subnormal,
    }[op]


# ---------------------------------------- division, roots


@inst("div.rnd{.ftz}.f32 d, a, b", rnd=("rn",), ptx=(1, 4), sm=20, section=f"{FLOAT}: div")
def div_f32(a: Lanes, b: Lanes, *, rnd: str, ftz: bool) -> Lanes:
    """d = a / b, rounded once."""
    return numeric.finish(numeric.div_f32(numeric.flush(a, ftz), numeric.flush(b, ftz), rnd), ftz)


@inst("div.rnd.f64 d, a, b", rnd=("rn",), ptx=(1, 4), sm=13, section=f"{FLOAT}: div")
def div_f64(a: Lanes, b: Lanes, *, rnd: str) -> Lanes:
    """d = a / b, rounded once."""
    return numeric.div_f64(a, b, rnd)


@inst(
    "div.mode{.ftz}.f32 d, a, b",
    name="div_approx",
    mode=("approx", "full"),
    ptx=(1, 4),
    max_ulp=2,
    accuracy="2 ulp; .approx only for b between 2^-126 and 2^126 in magnitude",
    section=f"{FLOAT}: div",
)
def div_approx(a: Lanes, b: Lanes, *, mode: str, ftz: bool) -> Lanes:
    """d = a / b, approximately; with .approx, b beyond 2^126 gives 0 for finite a and NaN for
    infinite a.
    """
    a, b = numeric.flush(a, ftz), numeric.flush(b, ftz)
    quotient = numeric.div_f32(a, b, "rn")
    if mode == "approx":
        huge = (np.abs(b) > np.float32(2.0**126)) & np.isfinite(b)
        beyond = np.where(
            np.isinf(a), numeric.NAN_F32, numeric.mul_f32(np.copysign(np.float32(0), a), b, "rn")
        )
        quotient = np.where(huge & ~np.isnan(a), beyond, quotient)
    return numeric.finish(quotient, ftz)


@quiet
def _approximate(function: Callable[[Any], Any], a: Lanes, ftz: bool) -> Lanes:
    """`function` of `a` computed in float64 and rounded once to float32."""
    exact = function(numeric.flush(a, ftz).astype(np.float64))
    return numeric.finish(exact.astype(np.float32), ftz)


@inst(
    "rcp.approx{.ftz}.f32 d, a",
    name="rcp",
    ptx=(1, 4),
    max_ulp=1,
    accuracy="1 ulp",
    section=f"{FLOAT}: rcp",
)
def rcp_approx(a: Lanes, *, ftz: bool) -> Lanes:
    """d = 1 / a, approximately."""
    return _approximate(lambda x: 1.0 / x, a, ftz)


@inst(
    "rcp.rnd{.ftz}.f32 d, a", name="rcp_rn", rnd=("rn",), ptx=(1, 4), sm=20, section=f"{FLOAT}: rcp"
)
def rcp_f32(a: Lanes, *, rnd: str, ftz: bool) -> Lanes:
    """d = 1 / a, rounded once."""
    return numeric.finish(numeric.div_f32(_ONE_F32, numeric.flush(a, ftz), rnd), ftz)


@inst("rcp.rnd.f64 d, a", name="rcp_rn", rnd=("rn",), ptx=(1, 4), sm=13, section=f"{FLOAT}: rcp")
def rcp_f64(a: Lanes, *, rnd: str) -> Lanes:
    """d = 1 / a, rounded once."""
    return numeric.div_f64(_ONE_F64, a, rnd)


@inst(
    "sqrt.approx{.ftz}.f32 d, a",
    name="sqrt",
    ptx=(1, 4),
    max_ulp=2,
    accuracy="relative error 2^-23",
    section=f"{FLOAT}: sqrt",
)
def sqrt_approx(a: Lanes, *, ftz: bool) -> Lanes:
    """d = the square root of a, approximately; NaN below zero, and -0 for -0."""
    return _approximate(np.sqrt, a, ftz)


@inst(
    "sqrt.rnd{.ftz}.f32 d, a",
    name="sqrt_rn",
    rnd=("rn",),
    ptx=(1, 4),
    sm=20,
    section=f"{FLOAT}: sqrt",
)
def sqrt_f32(a: Lanes, *, rnd: str, ftz: bool) -> Lanes:
    """d = the square root of a, rounded once; NaN below zero, and -0 for -0."""
    return numeric.finish(numeric.sqrt(numeric.flush(a, ftz), rnd), ftz)


@inst("sqrt.rnd.f64 d, a", name="sqrt_rn", rnd=("rn",), ptx=(1, 4), sm=13, section=f"{FLOAT}: sqrt")
def sqrt_f64(a: Lanes, *, rnd: str) -> Lanes:
    """d = the square root of a, rounded once; NaN below zero, and -0 for -0."""
    return numeric.sqrt(a, rnd)


@inst(
    "rsqrt.approx{.ftz}.f32 d, a",
    ptx=(1, 4),
    max_ulp=2.2,
    accuracy="relative error 2^-22.9",
    section=f"{FLOAT}: rsqrt",
)
def rsqrt(a: Lanes, *, ftz: bool) -> Lanes:
    """d = 1 / the square root of a, approximately; an infinity of its sign for a zero, NaN below
    zero.
    """
    return _approximate(lambda x: 1.0 / np.sqrt(x), a, ftz)


# ---------------------------------------- transcendental


@inst(
    "ex2.approx{.ftz}.f32 d, a",
    name="ex2",
    ptx=(1, 4),
    max_ulp=2,
    accuracy="2 ulp",
    section=f"{FLOAT}: ex2",
)
def ex2(a: Lanes, *, ftz: bool) -> Lanes:
    """d = 2 to the power of a, approximately."""
    return _approximate(np.exp2, a, ftz)


@inst(
    "lg2.approx{.ftz}.f32 d, a",
    name="lg2",
    ptx=(1, 4),
    max_ulp=math.inf,
    accuracy="absolute error 2^-22 for a in (0.5, 2), else relative error 2^-22",
    section=f"{FLOAT}: lg2",
)
def lg2(a: Lanes, *, ftz: bool) -> Lanes:
    """d = the logarithm of a to base 2, approximately; -inf for a zero, NaN below zero."""
    return _approximate(np.log2, a, ftz)


_SINE: Final = "absolute error 2^-20.5 for a in [-2 pi, 2 pi], 2^-14.7 in [-100 pi, 100 pi]"


@inst(
    "sin.approx{.ftz}.f32 d, a",
    name="sin",
    ptx=(1, 4),
    max_ulp=math.inf,
    accuracy=_SINE,
    section=f"{FLOAT}: sin",
)
def sin(a: Lanes, *, ftz: bool) -> Lanes:
    """d = the sine of a radians, approximately."""
    return _approximate(np.sin, a, ftz)


@inst(
    "cos.approx{.ftz}.f32 d, a",
    name="cos",
    ptx=(1, 4),
    max_ulp=math.inf,
    accuracy=_SINE,
    section=f"{FLOAT}: cos",
)
def cos(a: Lanes, *, ftz: bool) -> Lanes:
    """d = the cosine of a radians, approximately."""
    return _approximate(np.cos, a, ftz)


@inst(
    "tanh.approx.f32 d, a", name="tanh", ptx=(7, 0), sm=75, max_ulp=8192,
    accuracy="relative error 2^-11", section=f"{FLOAT}: tanh",
)  # fmt: skip
def tanh(a: Lanes) -> Lanes:
    """d = the hyperbolic tangent of a, approximately; subnormal results are kept."""
    return _approximate(np.tanh, a, False)
