"""Single- and double-precision arithmetic (PTX ISA, "Floating-Point Instructions").

Rows with a rounding come first, so that generated code prints it: without one the rounding is to
nearest, too, but the assembler may fuse a product and a sum. Here it never does. Approximate
instructions mean the correctly rounded result, flushed as the modifier says; `max_ulp` says how far
the GPU may be from it (infinite where the manual bounds only the absolute error: see `accuracy`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.isa import elementary, numeric, numeric_f64
from ptxgen.isa.declare import inst
from ptxgen.isa.elementary import Elementary, rounded
from ptxgen.isa.numeric import ROUNDINGS, quiet
from ptxgen.isa.spec import gate
from ptxgen.types import bf16, f16, f32, f64

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes

FLOAT: Final = "Floating-Point Instructions"
MIXED: Final = "Mixed Precision Floating-Point Instructions"
_ONE_F32: Final[Any] = np.float32(1)
_ONE_F64: Final[Any] = np.float64(1)

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
    return numeric_f64.add_f64(a, b, rnd)


@inst("add{.ftz}{.sat}.f32 d, a, b", section=f"{FLOAT}: add")
def add_f32_default(a: Lanes, b: Lanes, *, ftz: bool, sat: bool) -> Lanes:
    """d = a + b, rounded once, to nearest."""
    return numeric.finish(
        numeric.add_f32(numeric.flush(a, ftz), numeric.flush(b, ftz), "rn"), ftz, sat
    )


@inst("add.f64 d, a, b", sm=13, section=f"{FLOAT}: add")
def add_f64_default(a: Lanes, b: Lanes) -> Lanes:
    """d = a + b, rounded once, to nearest."""
    return numeric_f64.add_f64(a, b, "rn")


@inst("sub.rnd{.ftz}{.sat}.f32 d, a, b", rnd=ROUNDINGS, section=f"{FLOAT}: sub")
def sub_f32(a: Lanes, b: Lanes, *, rnd: str, ftz: bool, sat: bool) -> Lanes:
    """d = a - b, rounded once."""
    return numeric.finish(
        numeric.add_f32(numeric.flush(a, ftz), -numeric.flush(b, ftz), rnd), ftz, sat
    )


@inst("sub.rnd.f64 d, a, b", rnd=ROUNDINGS, sm=13, section=f"{FLOAT}: sub")
def sub_f64(a: Lanes, b: Lanes, *, rnd: str) -> Lanes:
    """d = a - b, rounded once."""
    return numeric_f64.add_f64(a, -b, rnd)


@inst("sub{.ftz}{.sat}.f32 d, a, b", section=f"{FLOAT}: sub")
def sub_f32_default(a: Lanes, b: Lanes, *, ftz: bool, sat: bool) -> Lanes:
    """d = a - b, rounded once, to nearest."""
    return numeric.finish(
        numeric.add_f32(numeric.flush(a, ftz), -numeric.flush(b, ftz), "rn"), ftz, sat
    )


@inst("sub.f64 d, a, b", sm=13, section=f"{FLOAT}: sub")
def sub_f64_default(a: Lanes, b: Lanes) -> Lanes:
    """d = a - b, rounded once, to nearest."""
    return numeric_f64.add_f64(a, -b, "rn")


@inst("mul.rnd{.ftz}{.sat}.f32 d, a, b", rnd=ROUNDINGS, section=f"{FLOAT}: mul")
def mul_f32(a: Lanes, b: Lanes, *, rnd: str, ftz: bool, sat: bool) -> Lanes:
    """d = a * b, rounded once."""
    return numeric.finish(
        numeric.mul_f32(numeric.flush(a, ftz), numeric.flush(b, ftz), rnd), ftz, sat
    )


@inst("mul.rnd.f64 d, a, b", rnd=ROUNDINGS, sm=13, section=f"{FLOAT}: mul")
def mul_f64(a: Lanes, b: Lanes, *, rnd: str) -> Lanes:
    """d = a * b, rounded once."""
    return numeric_f64.mul_f64(a, b, rnd)


@inst("mul{.ftz}{.sat}.f32 d, a, b", section=f"{FLOAT}: mul")
def mul_f32_default(a: Lanes, b: Lanes, *, ftz: bool, sat: bool) -> Lanes:
    """d = a * b, rounded once, to nearest."""
    return numeric.finish(
        numeric.mul_f32(numeric.flush(a, ftz), numeric.flush(b, ftz), "rn"), ftz, sat
    )


@inst("mul.f64 d, a, b", sm=13, section=f"{FLOAT}: mul")
def mul_f64_default(a: Lanes, b: Lanes) -> Lanes:
    """d = a * b, rounded once, to nearest."""
    return numeric_f64.mul_f64(a, b, "rn")


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
    return numeric_f64.fma_f64(a, b, c, rnd)


@inst(
    "mad.rnd{.ftz}{.sat}.f32 d, a, b, c", rnd=ROUNDINGS, ptx=(2, 0), sm=20, section=f"{FLOAT}: mad"
)
def mad_f32(a: Lanes, b: Lanes, c: Lanes, *, rnd: str, ftz: bool, sat: bool) -> Lanes:
    """d = a * b + c, rounded once: the same as fma."""
    a, b, c = (numeric.flush(x, ftz) for x in (a, b, c))
    return numeric.finish(numeric.fma_f32(a, b, c, rnd), ftz, sat)


@inst("mad.rnd.f64 d, a, b, c", rnd=ROUNDINGS, sm=13, ptx=(1, 4), section=f"{FLOAT}: mad")
def mad_f64(a: Lanes, b: Lanes, c: Lanes, *, rnd: str) -> Lanes:
    """d = a * b + c, rounded once: the same as fma."""
    return numeric_f64.fma_f64(a, b, c, rnd)


# ---------------------------------------- pairs of f32 in 64 bits


def _pairs(function: Callable[..., Lanes], ftz: bool, *lanes: Lanes) -> Lanes:
    """`function` of float32 lanes, twice as many, with canonical NaN."""
    whole = np.broadcast_shapes(*(np.shape(x) for x in lanes))
    split = [
        numeric.flush(np.ascontiguousarray(np.broadcast_to(x, whole or (1,))).view(np.float32), ftz)
        for x in lanes
    ]
    result = numeric.canonical(numeric.flush(function(*split), ftz)).view(np.uint64)
    return result if whole else result[0]


@inst(
    "add{.rnd}{.ftz}.f32x2 d:b64, a:b64, b:b64", name="add_f32x2",
    rnd=ROUNDINGS, ptx=(8, 6), sm=100, section=f"{FLOAT}: add",
)  # fmt: skip
def add_f32x2(a: Lanes, b: Lanes, *, rnd: str | None, ftz: bool) -> Lanes:
    """d = a + b in both halves, each rounded once, to nearest by default."""
    return _pairs(lambda x, y: numeric.add_f32(x, y, rnd or "rn"), ftz, a, b)


@inst(
    "sub{.rnd}{.ftz}.f32x2 d:b64, a:b64, b:b64", name="sub_f32x2",
    rnd=ROUNDINGS, ptx=(8, 6), sm=100, section=f"{FLOAT}: sub",
)  # fmt: skip
def sub_f32x2(a: Lanes, b: Lanes, *, rnd: str | None, ftz: bool) -> Lanes:
    """d = a - b in both halves, each rounded once, to nearest by default."""
    return _pairs(lambda x, y: numeric.add_f32(x, -y, rnd or "rn"), ftz, a, b)


@inst(
    "mul{.rnd}{.ftz}.f32x2 d:b64, a:b64, b:b64", name="mul_f32x2",
    rnd=ROUNDINGS, ptx=(8, 6), sm=100, section=f"{FLOAT}: mul",
)  # fmt: skip
def mul_f32x2(a: Lanes, b: Lanes, *, rnd: str | None, ftz: bool) -> Lanes:
    """d = a * b in both halves, each rounded once, to nearest by default."""
    return _pairs(lambda x, y: numeric.mul_f32(x, y, rnd or "rn"), ftz, a, b)


@inst(
    "fma.rnd{.ftz}.f32x2 d:b64, a:b64, b:b64, c:b64", name="fma_f32x2",
    rnd=ROUNDINGS, ptx=(8, 6), sm=100, section=f"{FLOAT}: fma",
)  # fmt: skip
def fma_f32x2(a: Lanes, b: Lanes, c: Lanes, *, rnd: str, ftz: bool) -> Lanes:
    """d = a * b + c in both halves, each rounded once."""
    return _pairs(lambda x, y, z: numeric.fma_f32(x, y, z, rnd), ftz, a, b, c)


# ---------------------------------------- f32 with 16-bit operands


@inst(
    "add{.rnd}{.sat}.f32.atype d:f32, a:atype, c:f32", name="add_mixed",
    rnd=ROUNDINGS, atype=(f16, bf16), ptx=(8, 6), sm=100, section=f"{MIXED}: add",
)  # fmt: skip
def add_mixed(a: Lanes, c: Lanes, *, rnd: str | None, sat: bool) -> Lanes:
    """d = a + c, where a is widened first; rounded once, to nearest by default."""
    return numeric.saturate(numeric.add_f32(numeric.widen(a, f32), c, rnd or "rn"), sat)


@inst(
    "sub{.rnd}{.sat}.f32.atype d:f32, a:atype, c:f32", name="sub_mixed",
    rnd=ROUNDINGS, atype=(f16, bf16), ptx=(8, 6), sm=100, section=f"{MIXED}: sub",
)  # fmt: skip
def sub_mixed(a: Lanes, c: Lanes, *, rnd: str | None, sat: bool) -> Lanes:
    """d = a - c, where a is widened first; rounded once, to nearest by default."""
    return numeric.saturate(numeric.add_f32(numeric.widen(a, f32), -c, rnd or "rn"), sat)


@inst(
    "fma.rnd{.sat}.f32.abtype d:f32, a:abtype, b:abtype, c:f32", name="fma_mixed",
    rnd=ROUNDINGS, abtype=(f16, bf16), ptx=(8, 6), sm=100, section=f"{MIXED}: fma",
)  # fmt: skip
def fma_mixed(a: Lanes, b: Lanes, c: Lanes, *, rnd: str, sat: bool) -> Lanes:
    """d = a * b + c, where a and b are widened first; rounded once."""
    a, b = numeric.widen(a, f32), numeric.widen(b, f32)
    return numeric.saturate(numeric.fma_f32(a, b, c, rnd), sat)


# ---------------------------------------- sign, min, max


@inst("neg{.ftz}.f32 d, a", section=f"{FLOAT}: neg")
def neg_f32(a: Lanes, *, ftz: bool) -> Lanes:
    """d = -a."""
    return np.negative(numeric.flush(a, ftz))


@inst("neg.f64 d, a", sm=13, section=f"{FLOAT}: neg")
def neg_f64(a: Lanes) -> Lanes:
    """d = -a."""
    return np.negative(a)


@inst("abs{.ftz}.f32 d, a", section=f"{FLOAT}: abs")
def abs_f32(a: Lanes, *, ftz: bool) -> Lanes:
    """d = |a|."""
    return np.abs(numeric.flush(a, ftz))


@inst("abs.f64 d, a", sm=13, section=f"{FLOAT}: abs")
def abs_f64(a: Lanes) -> Lanes:
    """d = |a|."""
    return np.abs(a)


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


@inst("min{.ftz}{.NaN}.xorsign.abs.f32 d, a, b", ptx=(7, 2), sm=86, section=f"{FLOAT}: min")
def min_xorsign_f32(a: Lanes, b: Lanes, *, ftz: bool, NaN: bool) -> Lanes:
    """d = the smaller of |a| and |b|, negative where just one of a and b is; a NaN is ignored, or
    with .NaN makes d NaN.
    """
    a, b = numeric.flush(a, ftz), numeric.flush(b, ftz)
    chosen = numeric.minimum(np.abs(a), np.abs(b), NaN)
    return numeric.canonical(numeric.with_xor_sign(chosen, a, b))


@inst("min{.ftz}{.NaN}{.abs}.f32 d, a, b, c", ptx=(8, 8), sm=100, section=f"{FLOAT}: min")
def min3_f32(a: Lanes, b: Lanes, c: Lanes, *, ftz: bool, NaN: bool, abs: bool) -> Lanes:
    """d = the smaller of a, b and c (-0 < +0), or with .abs of their magnitudes; a NaN is ignored,
    or with .NaN makes d NaN.
    """
    a, b, c = (np.abs(x) if abs else x for x in (numeric.flush(y, ftz) for y in (a, b, c)))
    return numeric.canonical(numeric.minimum(numeric.minimum(a, b, NaN), c, NaN))


@inst("max{.ftz}{.NaN}.xorsign.abs.f32 d, a, b", ptx=(7, 2), sm=86, section=f"{FLOAT}: max")
def max_xorsign_f32(a: Lanes, b: Lanes, *, ftz: bool, NaN: bool) -> Lanes:
    """d = the larger of |a| and |b|, negative where just one of a and b is; a NaN is ignored, or
    with .NaN makes d NaN.
    """
    a, b = numeric.flush(a, ftz), numeric.flush(b, ftz)
    chosen = numeric.maximum(np.abs(a), np.abs(b), NaN)
    return numeric.canonical(numeric.with_xor_sign(chosen, a, b))


@inst("max{.ftz}{.NaN}{.abs}.f32 d, a, b, c", ptx=(8, 8), sm=100, section=f"{FLOAT}: max")
def max3_f32(a: Lanes, b: Lanes, c: Lanes, *, ftz: bool, NaN: bool, abs: bool) -> Lanes:
    """d = the larger of a, b and c (-0 < +0), or with .abs of their magnitudes; a NaN is ignored,
    or with .NaN makes d NaN.
    """
    a, b, c = (np.abs(x) if abs else x for x in (numeric.flush(y, ftz) for y in (a, b, c)))
    return numeric.canonical(numeric.maximum(numeric.maximum(a, b, NaN), c, NaN))


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


@inst("div.rnd{.ftz}.f32 d, a, b", rnd=ROUNDINGS, ptx=(1, 4), sm=20, section=f"{FLOAT}: div")
def div_f32(a: Lanes, b: Lanes, *, rnd: str, ftz: bool) -> Lanes:
    """d = a / b, rounded once."""
    return numeric.finish(numeric.div_f32(numeric.flush(a, ftz), numeric.flush(b, ftz), rnd), ftz)


@inst("div.rnd.f64 d, a, b", rnd=ROUNDINGS, ptx=(1, 4), sm=13, section=f"{FLOAT}: div")
def div_f64(a: Lanes, b: Lanes, *, rnd: str) -> Lanes:
    """d = a / b, rounded once."""
    return numeric_f64.div_f64(a, b, rnd)


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
    "rcp.rnd{.ftz}.f32 d, a",
    name="rcp_rn",
    rnd=ROUNDINGS,
    ptx=(1, 4),
    sm=20,
    section=f"{FLOAT}: rcp",
)
def rcp_f32(a: Lanes, *, rnd: str, ftz: bool) -> Lanes:
    """d = 1 / a, rounded once."""
    return numeric.finish(numeric.div_f32(_ONE_F32, numeric.flush(a, ftz), rnd), ftz)


@inst("rcp.rnd.f64 d, a", name="rcp_rn", rnd=ROUNDINGS, ptx=(1, 4), sm=13, section=f"{FLOAT}: rcp")
def rcp_f64(a: Lanes, *, rnd: str) -> Lanes:
    """d = 1 / a, rounded once."""
    return numeric_f64.div_f64(_ONE_F64, a, rnd)


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
    rnd=ROUNDINGS,
    ptx=(1, 4),
    sm=20,
    section=f"{FLOAT}: sqrt",
)
def sqrt_f32(a: Lanes, *, rnd: str, ftz: bool) -> Lanes:
    """d = the square root of a, rounded once; NaN below zero, and -0 for -0."""
    return numeric.finish(numeric.sqrt_f32(numeric.flush(a, ftz), rnd), ftz)


@inst(
    "sqrt.rnd.f64 d, a", name="sqrt_rn", rnd=ROUNDINGS, ptx=(1, 4), sm=13, section=f"{FLOAT}: sqrt"
)
def sqrt_f64(a: Lanes, *, rnd: str) -> Lanes:
    """d = the square root of a, rounded once; NaN below zero, and -0 for -0."""
    return numeric_f64.sqrt_f64(a, rnd)


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


_HIGH_WORD: Final = np.uint64(0xFFFFFFFF00000000)
_HALF_OF_IT: Final = np.uint64(0x80000000)
_MIN_NORMAL_F64: Final = np.float64(2.0**-1022)
_GROSS: Final = "none promised; only the upper 32 bits of a are read, those below in d are zero"


@quiet
def _gross(function: Callable[[Any], Any], a: Lanes) -> Lanes:
    """`function` of the upper words of float64 lanes, rounded to the upper word; flushes."""
    upper = np.bitwise_and(a.view(np.uint64), _HIGH_WORD).view(np.float64)
    exact = function(np.where(np.abs(upper) < _MIN_NORMAL_F64, np.copysign(0.0, upper), upper))
    exact = np.where(np.abs(exact) < _MIN_NORMAL_F64, np.copysign(0.0, exact), exact)
    bits = np.bitwise_and(exact.view(np.uint64) + _HALF_OF_IT, _HIGH_WORD)
    return np.where(np.isnan(a), np.nan, bits.view(np.float64))


@inst(
    "rcp.approx.ftz.f64 d, a", name="rcp", ptx=(2, 1), sm=20, max_ulp=math.inf,
    accuracy=_GROSS, section=f"{FLOAT}: rcp.approx.ftz.f64",
)  # fmt: skip
def rcp_gross(a: Lanes) -> Lanes:
    """d = 1 / a, to the 21 bits of its upper word."""
    return _gross(lambda x: 1.0 / x, a)


@inst(
    "rsqrt.approx.f64 d, a", name="rsqrt", ptx=(1, 4), sm=13, max_ulp=math.inf,
    accuracy="none promised", section=f"{FLOAT}: rsqrt",
)  # fmt: skip
@quiet
def rsqrt_f64(a: Lanes) -> Lanes:
    """d = 1 / the square root of a, approximately; an infinity of its sign for a zero, NaN below
    zero.
    """
    inverse: Lanes = np.divide(_ONE_F64, np.sqrt(a))
    return inverse


@inst(
    "rsqrt.approx.ftz.f64 d, a", name="rsqrt", ptx=(4, 0), sm=20, max_ulp=math.inf,
    accuracy=_GROSS, section=f"{FLOAT}: rsqrt.approx.ftz.f64",
)  # fmt: skip
def rsqrt_gross(a: Lanes) -> Lanes:
    """d = 1 / the square root of a, to the 21 bits of its upper word."""
    return _gross(lambda x: 1.0 / np.sqrt(x), a)


# ---------------------------------------- transcendental


@quiet
def _elementary(function: Elementary, a: Lanes, ftz: bool) -> Lanes:
    """`function` of `a` rounded once."""
    return numeric.finish(rounded(function, numeric.flush(a, ftz).astype(np.float64), f32), ftz)


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
    return _elementary(elementary.EXP2, a, ftz)


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
    return _elementary(elementary.LOG2, a, ftz)


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
    return _elementary(elementary.SIN, a, ftz)


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
    return _elementary(elementary.COS, a, ftz)


@inst(
    "tanh.approx.f32 d, a", name="tanh", ptx=(7, 0), sm=75, max_ulp=8192,
    accuracy="relative error 2^-11", section=f"{FLOAT}: tanh",
)  # fmt: skip
def tanh(a: Lanes) -> Lanes:
    """d = the hyperbolic tangent of a, approximately; subnormal results are kept."""
    return _elementary(elementary.TANH, a, False)
