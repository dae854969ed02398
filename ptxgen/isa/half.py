"""16-bit floating-point arithmetic (PTX ISA, "Half Precision Floating-Point Instructions").

Packed pairs (f16x2, bf16x2) are held in 32-bit registers and computed as 16-bit lanes. A NaN result
is 0x7fff. The result of an approximate instruction is that of f32, cut off to 16 bits instead of
rounded, as was recorded on sm_90 (tests/vectors); of 65536 numbers 1 (`ex2` of f16), 2 (`tanh` of
bf16), 62 (`tanh` of f16) and 199 (`ex2` of bf16) have another result there, one unit away. `max_ulp`
is the largest difference of the GPU's result from the correctly rounded one (infinite if the manual
bounds only the absolute error: see `accuracy`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.isa import elementary, numeric
from ptxgen.isa.declare import each, inst
from ptxgen.isa.elementary import Elementary, rounded
from ptxgen.isa.spec import gate
from ptxgen.types import bf16, bf16x2, f16, f16x2, f32

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes
    from ptxgen.types import ScalarType

HALF: Final = "Half Precision Floating-Point Instructions"
NARROW: Final = ("rn",)  # 16-bit arithmetic has no other rounding
HALVES: Final = {f16x2: f16, bf16x2: bf16}
_F16: Final = (f16, f16x2)
_BF16: Final = (bf16, bf16x2)
# The value that TMA writes for an element outside a tensor when asked for NaN. The manual names it
# "OOB NaN" (section "Tensors") without its bits, which are these in every 16-bit format. `fma.oob`
# takes it with either sign, as was recorded on sm_90 for f16 (tests/vectors).
OOB_NAN: Final = np.uint16(0x7FF7)


def _elementwise(type: ScalarType, function: Callable[..., Lanes], *lanes: Lanes) -> Lanes:
    """`function` of 16-bit lanes, with canonical NaN; pairs count as twice as many lanes."""
    if type not in HALVES:
        return numeric.canonical_narrow(function(*lanes))
    whole = np.broadcast_shapes(*(np.shape(x) for x in lanes))
    split = [np.ascontiguousarray(np.broadcast_to(x, whole or (1,))).view(HALVES[type].dtype) for x in lanes]
    result = numeric.canonical_narrow(function(*split)).view(np.uint32)
    return result if whole else result[0]


def _element(type: ScalarType) -> ScalarType:
    return HALVES.get(type, type)


def _flushed(type: ScalarType, ftz: bool, sat: bool, function: Callable[..., Lanes], *lanes: Lanes) -> Lanes:
    """`function` of 16-bit lanes as in `_elementwise`, flushed and saturated."""

    def one(*x: Lanes) -> Lanes:
        result = function(*(numeric.flush(y, ftz) for y in x))
        return numeric.saturate(numeric.flush(result, ftz), sat)

    return _elementwise(type, one, *lanes)


# ---------------------------------------- add, sub, mul


@numeric.quiet
def _difference(x: Lanes, y: Lanes, type: ScalarType) -> Lanes:
    return numeric.add_narrow(x, np.negative(y), type)


@inst(
    "<name><modifiers>.type d, a, b",
    each(
        "name sign function",
        ("add", "+", numeric.add_narrow),
        ("sub", "-", _difference),
        ("mul", "*", numeric.mul_narrow),
    ),
    each(
        "modifiers type ptx sm",
        (".rnd{.ftz}{.sat}", _F16, (4, 2), 53),
        ("{.ftz}{.sat}", _F16, (4, 2), 53),
        (".rnd", _BF16, (7, 8), 90),
        ("", _BF16, (7, 8), 90),
    ),
    rnd=NARROW,
    ignores=("rnd",),
    section=f"{HALF}: <name>",
)
def binary(
    a: Lanes,
    b: Lanes,
    *,
    function: Callable[..., Lanes],
    ftz: bool = False,
    sat: bool = False,
    type: ScalarType,
) -> Lanes:
    """d = a <sign> b, rounded once."""
    element = _element(type)
    return _flushed(type, ftz, sat, lambda x, y: function(x, y, element), a, b)


# ---------------------------------------- fma


_RELU: Final = "; with .relu max(d, 0), where NaN stays NaN"
_OOB: Final = ", but +0 where a or b is 0x7ff7, the NaN that TMA writes outside a tensor, or 0xfff7"


@inst(
    "fma.rnd<modifiers>.type d, a, b, c",
    each(
        "modifiers type ptx sm value rest",
        ("{.ftz}{.sat}", _F16, (4, 2), 53, "a * b + c", ""),
        ("{.ftz}.relu", _F16, (7, 0), 80, "max(a * b + c, 0)", "; NaN stays NaN"),
        ("{.relu}", _BF16, (7, 0), 80, "a * b + c", _RELU),
        (".oob{.relu}", (*_F16, *_BF16), (8, 1), 90, "a * b + c", f"{_OOB}{_RELU}"),
    ),
    rnd=NARROW,
    relu=(True,),
    oob=(True,),
    ignores=("rnd",),
    section=f"{HALF}: fma",
)
def fma(
    a: Lanes,
    b: Lanes,
    c: Lanes,
    *,
    ftz: bool = False,
    sat: bool = False,
    relu: bool = False,
    oob: bool = False,
    type: ScalarType,
) -> Lanes:
    """d = <value>, rounded once<rest>."""
    element = _element(type)

    def one(x: Lanes, y: Lanes, z: Lanes) -> Lanes:
        result = numeric.fma_narrow(x, y, z, element)
        if relu:
            result = numeric.relu(result)
        if not oob:
            return result
        outside = (_size(x).view(np.uint16) == OOB_NAN) | (_size(y).view(np.uint16) == OOB_NAN)
        return np.where(outside, np.uint16(0), result.view(np.uint16)).view(x.dtype)

    return _flushed(type, ftz, sat, one, a, b, c)


# ---------------------------------------- sign, min, max

_SIGN_GATES: Final = dict.fromkeys(_F16, gate(ptx=(6, 0), sm=53))
_ABS_GATES: Final = dict.fromkeys(_F16, gate(ptx=(6, 5), sm=53))
_BF16_GATES: Final = dict.fromkeys(_BF16, gate(ptx=(7, 0), sm=80))


@inst(
    "<name><modifiers>.type d, a",
    each(
        "name modifiers type operation mask value",
        ("neg", "{.ftz}", _SIGN_GATES, np.bitwise_xor, 0x8000, "-a"),
        ("neg", "", _BF16_GATES, np.bitwise_xor, 0x8000, "-a"),
        ("abs", "{.ftz}", _ABS_GATES, np.bitwise_and, 0x7FFF, "|a|"),
        ("abs", "", _BF16_GATES, np.bitwise_and, 0x7FFF, "|a|"),
    ),
    section=f"{HALF}: <name>",
)
def sign_bits(a: Lanes, *, ftz: bool = False, type: ScalarType, operation: Any, mask: int) -> Lanes:
    """d = <value>."""
    if type not in HALVES:  # a NaN has no canonical form here
        bits = numeric.flush(a, ftz).view(np.uint16)
        return operation(bits, np.uint16(mask)).view(a.dtype)  # type: ignore[no-any-return]
    if ftz:
        split = np.ascontiguousarray(np.atleast_1d(a)).view(HALVES[type].dtype)
        a = numeric.flush(split, ftz).view(np.uint32).reshape(np.shape(a))[()]
    return operation(a, np.uint32(mask << 16 | mask))  # type: ignore[no-any-return]


_FORMS: Final = each("modifiers type", ("{.ftz}{.NaN}", _F16), ("{.NaN}", _BF16))
_EXTREMES: Final = each(
    "name which function", ("min", "smaller", numeric.minimum), ("max", "larger", numeric.maximum)
)


@inst("<name><modifiers>.type d, a, b", _EXTREMES, _FORMS, ptx=(7, 0), sm=80, section=f"{HALF}: <name>")
def extreme(
    a: Lanes, b: Lanes, *, ftz: bool = False, NaN: bool, type: ScalarType, function: Callable[..., Lanes]
) -> Lanes:
    """d = the <which> of a and b (-0 < +0); a NaN is ignored, or with .NaN makes d NaN."""
    return _flushed(type, ftz, False, lambda x, y: function(x, y, NaN), a, b)


@inst(
    "<name><modifiers>.xorsign.abs.type d, a, b",
    _EXTREMES,
    _FORMS,
    ptx=(7, 2),
    sm=86,
    section=f"{HALF}: <name>",
)
def extreme_size(
    a: Lanes, b: Lanes, *, ftz: bool = False, NaN: bool, type: ScalarType, function: Callable[..., Lanes]
) -> Lanes:
    """d = the <which> of |a| and |b|, negative if exactly one of a and b is; a NaN is ignored, or
    with .NaN makes d NaN.
    """

    def one(x: Lanes, y: Lanes) -> Lanes:
        return numeric.with_xor_sign(function(_size(x), _size(y), NaN), x, y)

    return _flushed(type, ftz, False, one, a, b)


def _size(x: Lanes) -> Lanes:
    magnitude: Lanes = np.bitwise_and(x.view(np.uint16), numeric.NAN_16_BITS).view(x.dtype)
    return magnitude


# ---------------------------------------- transcendental


@numeric.quiet
def _approximate(
    function: Elementary, a: Lanes, type: ScalarType, ftz: bool, *, low: float = 0.0, high: float = math.inf
) -> Lanes:
    """`function` of `a` in f32, cut off where |a| lies between `low` and `high` and rounded elsewhere."""
    element = _element(type)

    def one(x: Lanes) -> Lanes:
        wide = numeric.flush(x, ftz).astype(np.float64)
        value, size = rounded(function, wide, f32), np.abs(wide)
        cut = (low < size) & (size < high)
        result = np.where(cut, numeric.cut_off(value, element), value.astype(element.dtype))
        return numeric.flush(result, ftz)

    return _elementwise(type, one, a)


_TANH_GATES: Final = {f16: None, f16x2: None, bf16: gate(ptx=(7, 8), sm=90), bf16x2: gate(ptx=(7, 8), sm=90)}


@inst(
    "tanh.approx.type d, a",
    name="tanh",
    type=_TANH_GATES,
    ptx=(7, 0),
    sm=75,
    max_ulp=math.inf,
    accuracy="absolute error 2^-10.987 for f16; for bf16 relative error 2^-8 (on sm_90 2^-7)",
    section=f"{HALF}: tanh",
)
def tanh_narrow(a: Lanes, *, type: ScalarType) -> Lanes:
    """d = the hyperbolic tangent of a, approximately; subnormal numbers are kept."""
    return _approximate(elementary.TANH, a, type, False, low=2.0**-8, high=8.0)


@inst(
    "ex2.approx.type d, a",
    name="ex2",
    type=_F16,
    ptx=(7, 0),
    sm=75,
    max_ulp=2.2,
    accuracy="relative error 2^-9.9",
    section=f"{HALF}: ex2",
)
def ex2_f16(a: Lanes, *, type: ScalarType) -> Lanes:
    """d = 2 to the power of a, approximately; subnormal numbers are kept."""
    return _approximate(elementary.EXP2, a, type, False)


@inst(
    "ex2.approx.ftz.type d, a",
    name="ex2",
    ftz=(True,),
    type=_BF16,
    ptx=(7, 8),
    sm=90,
    max_ulp=2,
    accuracy="relative error 2^-7",
    section=f"{HALF}: ex2",
)
def ex2_bf16(a: Lanes, *, ftz: bool, type: ScalarType) -> Lanes:
    """d = 2 to the power of a, approximately; subnormal numbers become zero."""
    return _approximate(elementary.EXP2, a, type, ftz)
