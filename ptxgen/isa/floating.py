"""Single- and double-precision arithmetic (PTX ISA, "Floating-Point Instructions").

Rows with a rounding come first, so that generated code prints it. Without one the rounding is to
nearest, too, but the assembler may fuse a product and a sum; the interpreter never does. The result
of an approximate instruction is the correctly rounded one, flushed as the modifier requires;
`max_ulp` is the largest difference of the GPU's result from it (infinite if the manual bounds only
the absolute error: see `accuracy`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.isa import elementary, numeric, numeric_f64
from ptxgen.isa.declare import each, inst
from ptxgen.isa.elementary import Elementary, rounded
from ptxgen.isa.numeric import ROUNDINGS, quiet
from ptxgen.isa.spec import gate
from ptxgen.types import bf16, f16, f32, f64

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes
    from ptxgen.types import ScalarType

FLOAT: Final = "Floating-Point Instructions"
MIXED: Final = "Mixed Precision Floating-Point Instructions"
_ONE_F32: Final[Any] = np.float32(1)
_ONE_F64: Final[Any] = np.float64(1)

# ---------------------------------------- add, sub, mul, fma


def _sub_f32(a: Lanes, b: Lanes, rnd: str) -> Lanes:
    return numeric.add_f32(a, -b, rnd)


def _sub_f64(a: Lanes, b: Lanes, rnd: str) -> Lanes:
    return numeric_f64.add_f64(a, -b, rnd)


@inst(
    "<name><modifiers>.<type> d, a, b",
    each(
        "name sign of_f32 of_f64",
        ("add", "+", numeric.add_f32, numeric_f64.add_f64),
        ("sub", "-", _sub_f32, _sub_f64),
        ("mul", "*", numeric.mul_f32, numeric_f64.mul_f64),
    ),
    each(
        "modifiers type sm rounded",
        (".rnd{.ftz}{.sat}", f32, 10, "once"),
        (".rnd", f64, 13, "once"),
        ("{.ftz}{.sat}", f32, 10, "once, to nearest"),
        ("", f64, 13, "once, to nearest"),
    ),
    rnd=ROUNDINGS,
    section=f"{FLOAT}: <name>",
)
def binary(
    a: Lanes,
    b: Lanes,
    *,
    of_f32: Callable[..., Lanes],
    of_f64: Callable[..., Lanes],
    type: ScalarType,
    rnd: str = "rn",
    ftz: bool = False,
    sat: bool = False,
) -> Lanes:
    """d = a <sign> b, rounded <rounded>."""
    if type is f64:
        return of_f64(a, b, rnd)
    return numeric.finish(of_f32(numeric.flush(a, ftz), numeric.flush(b, ftz), rnd), ftz, sat)


_FUSED: Final = each("name same", ("fma", ""), ("mad", ": the same as fma"))


@inst(
    "<name>.rnd{.ftz}{.sat}.f32 d, a, b, c",
    _FUSED,
    rnd=ROUNDINGS,
    ptx=(2, 0),
    sm=20,
    section=f"{FLOAT}: <name>",
)
def fma_f32(a: Lanes, b: Lanes, c: Lanes, *, rnd: str, ftz: bool, sat: bool) -> Lanes:
    """d = a * b + c, rounded once<same>."""
    a, b, c = (numeric.flush(x, ftz) for x in (a, b, c))
    return numeric.finish(numeric.fma_f32(a, b, c, rnd), ftz, sat)


@inst("<name>.rnd.f64 d, a, b, c", _FUSED, rnd=ROUNDINGS, sm=13, ptx=(1, 4), section=f"{FLOAT}: <name>")
def fma_f64(a: Lanes, b: Lanes, c: Lanes, *, rnd: str) -> Lanes:
    """d = a * b + c, rounded once<same>."""
    return numeric_f64.fma_f64(a, b, c, rnd)


# ---------------------------------------- pairs of f32 in 64 bits


def _pairs(function: Callable[..., Lanes], ftz: bool, *lanes: Lanes) -> Lanes:
    """`function` of the float32 halves of the lanes, twice as many, with canonical NaN."""
    whole = np.broadcast_shapes(*(np.shape(x) for x in lanes))
    split = [
        numeric.flush(np.ascontiguousarray(np.broadcast_to(x, whole or (1,))).view(np.float32), ftz)
        for x in lanes
    ]
    result = numeric.canonical(numeric.flush(function(*split), ftz)).view(np.uint64)
    return result if whole else result[0]


_OF_F32: Final = each(
    "operation sign function",
    ("add", "+", numeric.add_f32),
    ("sub", "-", _sub_f32),
    ("mul", "*", numeric.mul_f32),
)


@inst(
    "<operation>{.rnd}{.ftz}.f32x2 d:b64, a:b64, b:b64",
    _OF_F32,
    name="<operation>_f32x2",
    rnd=ROUNDINGS,
    ptx=(8, 6),
    sm=100,
    section=f"{FLOAT}: <operation>",
)
def binary_f32x2(a: Lanes, b: Lanes, *, function: Callable[..., Lanes], rnd: str | None, ftz: bool) -> Lanes:
    """d = a <sign> b in both halves, each rounded once, to nearest by default."""
    return _pairs(lambda x, y: function(x, y, rnd or "rn"), ftz, a, b)


@inst(
    "fma.rnd{.ftz}.f32x2 d:b64, a:b64, b:b64, c:b64",
    name="fma_f32x2",
    rnd=ROUNDINGS,
    ptx=(8, 6),
    sm=100,
    section=f"{FLOAT}: fma",
)
def fma_f32x2(a: Lanes, b: Lanes, c: Lanes, *, rnd: str, ftz: bool) -> Lanes:
    """d = a * b + c in both halves, each rounded once."""
    return _pairs(lambda x, y, z: numeric.fma_f32(x, y, z, rnd), ftz, a, b, c)


# ---------------------------------------- f32 with 16-bit operands


@inst(
    "<operation>{.rnd}{.sat}.f32.atype d:f32, a:atype, c:f32",
    _OF_F32[:2],
    name="<operation>_mixed",
    rnd=ROUNDINGS,
    atype=(f16, bf16),
    ptx=(8, 6),
    sm=100,
    section=f"{MIXED}: <operation>",
)
def binary_mixed(a: Lanes, c: Lanes, *, function: Callable[..., Lanes], rnd: str | None, sat: bool) -> Lanes:
    """d = a <sign> c, with a widened first; rounded once, to nearest by default."""
    return numeric.saturate(function(numeric.widen(a, f32), c, rnd or "rn"), sat)


@inst(
    "fma.rnd{.sat}.f32.abtype d:f32, a:abtype, b:abtype, c:f32",
    name="fma_mixed",
    rnd=ROUNDINGS,
    abtype=(f16, bf16),
    ptx=(8, 6),
    sm=100,
    section=f"{MIXED}: fma",
)
def fma_mixed(a: Lanes, b: Lanes, c: Lanes, *, rnd: str, sat: bool) -> Lanes:
    """d = a * b + c, with a and b widened first; rounded once."""
    a, b = numeric.widen(a, f32), numeric.widen(b, f32)
    return numeric.saturate(numeric.fma_f32(a, b, c, rnd), sat)


# ---------------------------------------- sign, min, max


_TYPES: Final = each("flush type sm", ("{.ftz}", f32, 10), ("", f64, 13))


@inst(
    "<name><flush>.<type> d, a",
    each("name function value", ("neg", np.negative, "-a"), ("abs", np.abs, "|a|")),
    _TYPES,
    section=f"{FLOAT}: <name>",
)
def sign_bit(a: Lanes, *, function: Callable[..., Lanes], ftz: bool = False) -> Lanes:
    """d = <value>."""
    return function(numeric.flush(a, ftz))


_EXTREMES: Final = each(
    "name which function", ("min", "smaller", numeric.minimum), ("max", "larger", numeric.maximum)
)


@inst(
    "<name>{.ftz}{.NaN}.f32 d, a, b",
    _EXTREMES,
    NaN={True: gate(ptx=(7, 0), sm=80)},
    section=f"{FLOAT}: <name>",
)
def extreme_f32(a: Lanes, b: Lanes, *, function: Callable[..., Lanes], ftz: bool, NaN: bool | None) -> Lanes:
    """d = the <which> of a and b (-0 < +0); a NaN is ignored, or with .NaN makes d NaN."""
    return numeric.canonical(function(numeric.flush(a, ftz), numeric.flush(b, ftz), bool(NaN)))


@inst("<name>.f64 d, a, b", _EXTREMES, sm=13, section=f"{FLOAT}: <name>")
def extreme_f64(a: Lanes, b: Lanes, *, function: Callable[..., Lanes]) -> Lanes:
    """d = the <which> of a and b (-0 < +0); a NaN is ignored."""
    return function(a, b, False)


@inst("<name>{.ftz}{.NaN}.xorsign.abs.f32 d, a, b", _EXTREMES, ptx=(7, 2), sm=86, section=f"{FLOAT}: <name>")
def extreme_size_f32(a: Lanes, b: Lanes, *, function: Callable[..., Lanes], ftz: bool, NaN: bool) -> Lanes:
    """d = the <which> of |a| and |b|, negative if exactly one of a and b is; a NaN is ignored, or
    with .NaN makes d NaN.
    """
    a, b = numeric.flush(a, ftz), numeric.flush(b, ftz)
    chosen = function(np.abs(a), np.abs(b), NaN)
    return numeric.canonical(numeric.with_xor_sign(chosen, a, b))


@inst("<name>{.ftz}{.NaN}{.abs}.f32 d, a, b, c", _EXTREMES, ptx=(8, 8), sm=100, section=f"{FLOAT}: <name>")
def extreme_of_3_f32(
    a: Lanes, b: Lanes, c: Lanes, *, function: Callable[..., Lanes], ftz: bool, NaN: bool, abs: bool
) -> Lanes:
    """d = the <which> of a, b and c (-0 < +0), or with .abs of their magnitudes; a NaN is ignored,
    or with .NaN makes d NaN.
    """
    a, b, c = (np.abs(x) if abs else x for x in (numeric.flush(y, ftz) for y in (a, b, c)))
    return numeric.canonical(function(function(a, b, NaN), c, NaN))


@inst("copysign.type d, a, b", type=(f32, f64), ptx=(2, 0), sm=20, section=f"{FLOAT}: copysign")
def copysign(a: Lanes, b: Lanes) -> Lanes:
    """d = b with the sign of a."""
    return np.copysign(b, a)


_TESTS: Final = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")


@inst("testp.op.type p:pred, a", op=_TESTS, type=(f32, f64), ptx=(2, 0), sm=20, section=f"{FLOAT}: testp")
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
    """d = a / b, approximately; with .approx, a b beyond 2^126 in magnitude gives 0 for finite a
    and NaN for infinite a.
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
    "rcp.approx{.ftz}.f32 d, a", name="rcp", ptx=(1, 4), max_ulp=1, accuracy="1 ulp", section=f"{FLOAT}: rcp"
)
def rcp_approx(a: Lanes, *, ftz: bool) -> Lanes:
    """d = 1 / a, approximately."""
    return _approximate(lambda x: 1.0 / x, a, ftz)


@inst("rcp.rnd{.ftz}.f32 d, a", name="rcp_rn", rnd=ROUNDINGS, ptx=(1, 4), sm=20, section=f"{FLOAT}: rcp")
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


@inst("sqrt.rnd{.ftz}.f32 d, a", name="sqrt_rn", rnd=ROUNDINGS, ptx=(1, 4), sm=20, section=f"{FLOAT}: sqrt")
def sqrt_f32(a: Lanes, *, rnd: str, ftz: bool) -> Lanes:
    """d = the square root of a, rounded once; NaN below zero, and -0 for -0."""
    return numeric.finish(numeric.sqrt_f32(numeric.flush(a, ftz), rnd), ftz)


@inst("sqrt.rnd.f64 d, a", name="sqrt_rn", rnd=ROUNDINGS, ptx=(1, 4), sm=13, section=f"{FLOAT}: sqrt")
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
    """d = 1 / the square root of a, approximately; a zero gives an infinity of its sign, a negative
    number NaN.
    """
    return _approximate(lambda x: 1.0 / np.sqrt(x), a, ftz)


_HIGH_WORD: Final = np.uint64(0xFFFFFFFF00000000)
_HALF_OF_IT: Final = np.uint64(0x80000000)
_MIN_NORMAL_F64: Final = np.float64(2.0**-1022)
_GROSS: Final = "none promised; only the upper 32 bits of a are read, those below in d are zero"


@quiet
def _gross(function: Callable[[Any], Any], a: Lanes) -> Lanes:
    """`function` of the upper words of float64 lanes, flushed and rounded to the upper word."""
    upper = np.bitwise_and(a.view(np.uint64), _HIGH_WORD).view(np.float64)
    exact = function(np.where(np.abs(upper) < _MIN_NORMAL_F64, np.copysign(0.0, upper), upper))
    exact = np.where(np.abs(exact) < _MIN_NORMAL_F64, np.copysign(0.0, exact), exact)
    bits = np.bitwise_and(exact.view(np.uint64) + _HALF_OF_IT, _HIGH_WORD)
    return np.where(np.isnan(a), np.nan, bits.view(np.float64))


@inst(
    "rcp.approx.ftz.f64 d, a",
    name="rcp",
    ptx=(2, 1),
    sm=20,
    max_ulp=math.inf,
    accuracy=_GROSS,
    section=f"{FLOAT}: rcp.approx.ftz.f64",
)
def rcp_gross(a: Lanes) -> Lanes:
    """d = 1 / a, to the 21 bits of its upper word."""
    return _gross(lambda x: 1.0 / x, a)


@inst(
    "rsqrt.approx.f64 d, a",
    name="rsqrt",
    ptx=(1, 4),
    sm=13,
    max_ulp=math.inf,
    accuracy="none promised",
    section=f"{FLOAT}: rsqrt",
)
@quiet
def rsqrt_f64(a: Lanes) -> Lanes:
    """d = 1 / the square root of a, approximately; a zero gives an infinity of its sign, a negative
    number NaN.
    """
    inverse: Lanes = np.divide(_ONE_F64, np.sqrt(a))
    return inverse


@inst(
    "rsqrt.approx.ftz.f64 d, a",
    name="rsqrt",
    ptx=(4, 0),
    sm=20,
    max_ulp=math.inf,
    accuracy=_GROSS,
    section=f"{FLOAT}: rsqrt.approx.ftz.f64",
)
def rsqrt_gross(a: Lanes) -> Lanes:
    """d = 1 / the square root of a, to the 21 bits of its upper word."""
    return _gross(lambda x: 1.0 / np.sqrt(x), a)


# ---------------------------------------- transcendental


_SINE: Final = "absolute error 2^-20.5 for a in [-2 pi, 2 pi], 2^-14.7 in [-100 pi, 100 pi]"


@inst(
    "<name>.approx{.ftz}.f32 d, a",
    each(
        "name function max_ulp accuracy value",
        ("ex2", elementary.EXP2, 2, "2 ulp", "2 to the power of a, approximately"),
        (
            "lg2",
            elementary.LOG2,
            math.inf,
            "absolute error 2^-22 for a in (0.5, 2), else relative error 2^-22",
            "the logarithm of a to base 2, approximately; -inf for a zero, NaN below zero",
        ),
        ("sin", elementary.SIN, math.inf, _SINE, "the sine of a radians, approximately"),
        ("cos", elementary.COS, math.inf, _SINE, "the cosine of a radians, approximately"),
    ),
    ptx=(1, 4),
    section=f"{FLOAT}: <name>",
)
@quiet
def transcendental(a: Lanes, *, function: Elementary, ftz: bool) -> Lanes:
    """d = <value>."""
    return numeric.finish(rounded(function, numeric.flush(a, ftz).astype(np.float64), f32), ftz)


@inst(
    "tanh.approx.f32 d, a",
    name="tanh",
    ptx=(7, 0),
    sm=75,
    max_ulp=8192,
    accuracy="relative error 2^-11",
    section=f"{FLOAT}: tanh",
)
def tanh(a: Lanes) -> Lanes:
    """d = the hyperbolic tangent of a, approximately; subnormal results are kept."""
    return transcendental(a, function=elementary.TANH, ftz=False)  # type: ignore[no-any-return]
