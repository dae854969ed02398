"""Comparison and selection (PTX ISA, "Comparison and Selection Instructions" and "Half Precision
Comparison Instructions").

A comparison of floating-point numbers with a NaN is false, except for `nan` and the comparisons that
end in `u` (`ltu`, …), which are true.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.isa import numeric
from ptxgen.isa.declare import each, inst, times
from ptxgen.isa.spec import gate
from ptxgen.isa.undefined import BITWISE, COMPARED
from ptxgen.types import b16, b32, b64, bf16, bf16x2, f16, f16x2, f32, f64, s16, s32, s64, u16, u32, u64

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes
    from ptxgen.types import ScalarType

_BFLOAT16: Final = "V"  # the kind of that type of ml_dtypes, which is not asked: it may not be installed
SELECTION: Final = "Comparison and Selection Instructions"
HALF_SELECTION: Final = "Half Precision Comparison Instructions"

ORDERED: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
UNSIGNED: Final[dict[str, Callable[[Any, Any], Any]]] = {  # lower, same, higher
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
EQUALITY: Final = ("eq", "ne")
UNORDERED: Final = ("equ", "neu", "ltu", "leu", "gtu", "geu")
FLOATING: Final = (*ORDERED, *UNORDERED, "num", "nan")
COMBINE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}
INTEGERS: Final = (u32, s32, u64, s64, u16, s16)
NATURALS: Final = (u32, u64, u16)
BITS: Final = (b32, b64, b16)

# The legal comparisons depend on the types compared.
_CLASSES: Final = ((tuple(ORDERED), INTEGERS), (tuple(UNSIGNED), NATURALS), (EQUALITY, BITS))
_INTEGER: Final = {**ORDERED, **UNSIGNED}
_HALF_SETP: Final = f"{HALF_SELECTION}: setp"
_HALF_SET: Final = f"{HALF_SELECTION}: set"


@numeric.quiet
def compared(a: Lanes, b: Lanes, cmp: str, *, ftz: bool = False) -> Lanes:
    """a <cmp> b. If a or b is NaN, the ordered comparisons are false, and the unordered ones
    (`ltu`, …) are true. With `ftz`, subnormal numbers count as zeros.
    """
    if a.dtype.kind in "iu":
        return _INTEGER[cmp](a, b)  # type: ignore[no-any-return]
    a, b = _comparable(a, ftz), _comparable(b, ftz)
    if cmp in ORDERED and cmp != "ne":
        return ORDERED[cmp](a, b)  # type: ignore[no-any-return]
    unordered = np.isnan(a) | np.isnan(b)
    if cmp in ("num", "nan"):
        return unordered if cmp == "nan" else ~unordered
    if cmp == "ne":
        return np.not_equal(a, b) & ~unordered
    return ORDERED[cmp.removesuffix("u")](a, b) | unordered  # type: ignore[no-any-return]


def _comparable(x: Lanes, ftz: bool) -> Lanes:
    """`x` flushed if `ftz`; bfloat16 as float32, which holds it exactly, since numpy compares it slowly."""
    return numeric.widen(x, f32) if x.dtype.kind == _BFLOAT16 else numeric.flush(x, ftz)


def _combined(truth: Lanes, combine: str, c: Lanes | None) -> Lanes:
    return COMBINE[combine](truth, c) if combine else truth


_TRUTH: Final = "a <cmp> b"
_COMBINED: Final = "(a <cmp> b) <combine> c"

# ---------------------------------------- setp

_INTEGER_TYPES: Final = each("cmp type", *_CLASSES)
_SETP: Final[dict[str, Any]] = {
    "cmp": FLOATING,
    "combine": tuple(COMBINE),
    "flush": "",
    "undefined": COMPARED,
    "section": f"{SELECTION}: setp",
}


@inst(
    "setp.cmp<combining><flush>.<type> p:pred, a, b<operand>",
    each(
        "name combining operand truth",
        ("setp", "", "", _TRUTH),
        ("setp_with", ".combine", ", c:pred", _COMBINED),
    ),
    _INTEGER_TYPES
    + each("type sm", (f64, 13))
    + each("type ptx sm section", (bf16, (7, 8), 90, _HALF_SETP))
    + each("flush type", ("{.ftz}", f32))
    + each("flush type ptx sm section", ("{.ftz}", f16, (4, 2), 53, _HALF_SETP)),
    **_SETP,
)
def setp(
    a: Lanes, b: Lanes, c: Lanes | None = None, *, cmp: str, combine: str = "", ftz: bool = False
) -> Lanes:
    """p = <truth>."""
    return _combined(compared(a, b, cmp, ftz=ftz), combine, c)


@inst(
    "setp.cmp<combining><flush>.<type> p:pred|q:pred, a, b<operand>",
    each(
        "name combining operand truth inverse",
        ("setp_pair", "", "", _TRUTH, "not p"),
        ("setp_pair_with", ".combine", ", c:pred", _COMBINED, "(not a <cmp> b) <combine> c"),
    ),
    _INTEGER_TYPES + each("flush type sm", ("", f64, 13), ("{.ftz}", f32, 10)),
    **_SETP,
)
def setp_pair(
    a: Lanes, b: Lanes, c: Lanes | None = None, *, cmp: str, combine: str = "", ftz: bool = False
) -> tuple[Lanes, Lanes]:
    """p = <truth>; q = <inverse>."""
    truth: Lanes = compared(a, b, cmp, ftz=ftz)
    return _combined(truth, combine, c), _combined(np.logical_not(truth), combine, c)


def _both(a: Lanes, b: Lanes, type: ScalarType, cmp: str, *, ftz: bool = False) -> tuple[Lanes, Lanes]:
    """The comparisons of the lower and of the upper halves of packed pairs of `type`."""
    (a_low, a_high), (b_low, b_high) = (numeric.halves(x, type) for x in (a, b))
    return compared(a_low, b_low, cmp, ftz=ftz), compared(a_high, b_high, cmp, ftz=ftz)


@inst(
    "setp.cmp<combining><flush>.<type> p:pred|q:pred, a, b<operand>",
    each(
        "name combining operand truth",
        ("setp_pair", "", "", _TRUTH),
        ("setp_pair_with", ".combine", ", c:pred", _COMBINED),
    ),
    each("flush type half ptx sm", ("{.ftz}", f16x2, f16, (4, 2), 53), ("", bf16x2, bf16, (7, 8), 90)),
    cmp=FLOATING,
    combine=tuple(COMBINE),
    section=_HALF_SETP,
)
def setp_halves(
    a: Lanes,
    b: Lanes,
    c: Lanes | None = None,
    *,
    cmp: str,
    combine: str = "",
    ftz: bool = False,
    half: ScalarType,
) -> tuple[Lanes, Lanes]:
    """p = <truth> for the lower halves; q = <truth> for the upper halves."""
    low, high = _both(a, b, half, cmp, ftz=ftz)
    return _combined(low, combine, c), _combined(high, combine, c)


# ---------------------------------------- set


def _as_number(truth: Lanes, dtype: ScalarType) -> Lanes:
    """Truth values as lanes: 1.0 or 0.0 of a floating-point type, all ones or 0 of an integer type."""
    if dtype.is_float:
        return truth.astype(np.float32).astype(dtype.dtype)
    ones: Lanes = np.negative(truth.astype(f"i{dtype.nbytes}"))
    return ones.astype(dtype.dtype)


_ONE_HALF: Final = {f16x2: 0x3C00, bf16x2: 0x3F80}  # the bits of 1.0


def _as_pair(low: Lanes, high: Lanes, dtype: ScalarType) -> Lanes:
    """Two 16-bit results in one: 1.0 or 0.0 each, or all ones or 0 if the type is an integer."""
    one = _ONE_HALF.get(dtype, 0xFFFF)
    lower = np.where(low, np.uint32(one), np.uint32(0))
    upper = np.where(high, np.uint32(one << 16), np.uint32(0))
    return np.bitwise_or(lower, upper).astype(dtype.dtype)


_NUMBERS: Final = (u32, s32, f32)  # legal types of the result
_SHORT: Final = (u16, s16, u32, s32)  # legal types of the result if 16-bit floats are compared
_LATER: Final = gate(ptx=(6, 5))
_INTEGER_SOURCES: Final = each("cmp stype", *_CLASSES)
_HALF: Final = each("section ptx sm", (_HALF_SET, (4, 2), 53))
_BRAIN: Final = each("section ptx sm", (_HALF_SET, (7, 8), 90))
_PAIR: Final = each("subject where", ("Each half of d", " in that half"))


@inst(
    "set.cmp<combining><flush>.dtype.<stype> d:dtype, a:<stype>, b:<stype><operand>",
    each(
        "name combining operand truth",
        ("set_", "", "", _TRUTH),
        ("set_with", ".combine", ", c:pred", _COMBINED),
    ),
    times(each("dtype", _NUMBERS), _INTEGER_SOURCES)
    + times(each("dtype", (f16,)), _HALF, _INTEGER_SOURCES)
    + times(each("dtype", (bf16,)), _BRAIN, _INTEGER_SOURCES)
    + each("dtype stype sm", (_NUMBERS, (f64,), 13))
    + times(each("dtype stype", ((f16,), (f64,))), _HALF)
    + times(each("dtype stype", ((bf16,), (bf16, f16, f32, f64)), (_SHORT, bf16)), _BRAIN)
    + each("flush dtype stype", ("{.ftz}", _NUMBERS, (f32,)))
    + times(
        each(
            "flush dtype stype",
            ("{.ftz}", (f16,), (f16, f32)),
            ("{.ftz}", dict.fromkeys(_SHORT, _LATER), f16),
        ),
        _HALF,
    )
    + times(
        each("flush dtype stype half", ("{.ftz}", {f16x2: None, u32: _LATER, s32: _LATER}, f16x2, f16)),
        _HALF,
        _PAIR,
    )
    + times(each("dtype stype half", ((bf16x2, u32, s32), bf16x2, bf16)), _BRAIN, _PAIR),
    cmp=FLOATING,
    combine=tuple(COMBINE),
    flush="",
    subject="d",
    where="",
    undefined=COMPARED,
    section=f"{SELECTION}: set",
)
def set_(
    a: Lanes,
    b: Lanes,
    c: Lanes | None = None,
    *,
    cmp: str,
    combine: str = "",
    ftz: bool = False,
    dtype: ScalarType,
    half: ScalarType | None = None,
) -> Lanes:
    """<subject> = 1.0, or all ones of an integer type, if <truth><where>, else 0."""
    if half is None:
        return _as_number(_combined(compared(a, b, cmp, ftz=ftz), combine, c), dtype)
    low, high = _both(a, b, half, cmp, ftz=ftz)
    return _as_pair(_combined(low, combine, c), _combined(high, combine, c), dtype)


# ---------------------------------------- selection


@inst(
    "selp.type d, a, b, c:pred",
    type=(*BITS, *INTEGERS, f32, f64),
    undefined=BITWISE,
    section=f"{SELECTION}: selp",
)
def selp(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """d = a if c, else b."""
    return np.where(c, a, b)


_SELECTED: Final = {**dict.fromkeys((*BITS, *INTEGERS, f32)), f64: gate(sm=13)}


@inst(
    "slct.dtype.s32 d:dtype, a:dtype, b:dtype, c:s32",
    dtype=_SELECTED,
    undefined=BITWISE,
    section=f"{SELECTION}: slct",
)
def slct(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """d = a if c >= 0, else b."""
    return np.where(c >= 0, a, b)


@inst(
    "slct{.ftz}.dtype.f32 d:dtype, a:dtype, b:dtype, c:f32",
    dtype=_SELECTED,
    undefined=BITWISE,
    section=f"{SELECTION}: slct",
)
def slct_f32(a: Lanes, b: Lanes, c: Lanes, *, ftz: bool) -> Lanes:
    """d = a if c >= 0 (also for -0, and with .ftz for a subnormal c), else b, also for a NaN."""
    return np.where(compared(c, np.zeros_like(c), "ge", ftz=ftz), a, b)
