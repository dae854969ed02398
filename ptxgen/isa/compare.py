"""Comparison and selection (PTX ISA, "Comparison and Selection Instructions" and "Half Precision
Comparison Instructions").

A comparison of floating-point numbers is false if one of them is NaN, except those that end in `u`
(`ltu`, …) and `nan`, which are true.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.isa import numeric
from ptxgen.isa.declare import inst
from ptxgen.isa.spec import gate
from ptxgen.types import (
    b16,
    b32,
    b64,
    bf16,
    bf16x2,
    f16,
    f16x2,
    f32,
    f64,
    s16,
    s32,
    s64,
    u16,
    u32,
    u64,
)

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes
    from ptxgen.types import ScalarType

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

# Which comparisons there are depends on the types compared.
_CLASSES: Final = ((tuple(ORDERED), INTEGERS), (tuple(UNSIGNED), NATURALS), (EQUALITY, BITS))
_INTEGER: Final = {**ORDERED, **UNSIGNED}
_WITH: Final = tuple(COMBINE)
_SETP: Final = f"{SELECTION}: setp"
_SET: Final = f"{SELECTION}: set"
_HALF_SETP: Final = f"{HALF_SELECTION}: setp"
_HALF_SET: Final = f"{HALF_SELECTION}: set"


@numeric.quiet
def compared(a: Lanes, b: Lanes, cmp: str, *, ftz: bool = False) -> Lanes:
    """a <cmp> b: the ordered comparisons are false, the unordered ones (`ltu`, …) true if a or b is
    NaN. With `ftz`, subnormal numbers count as zeros.
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
    """`x` flushed if `ftz`; numpy compares bfloat16 slowly, so as float32, which holds it."""
    return numeric.widen(x, f32) if x.dtype == bf16.dtype else numeric.flush(x, ftz)


def _combined(truth: Lanes, combine: str, c: Lanes) -> Lanes:
    return COMBINE[combine](truth, c)  # type: ignore[no-any-return]


def _for_integers(syntax: str, slot: str, **rest: Any) -> Callable[[Any], Any]:
    """`@inst` for every class of integers, whose types are the choices of `slot`."""

    def declare(semantics: Any) -> Any:
        for cmp, types in _CLASSES:
            choices: dict[str, Any] = {"cmp": cmp, slot: types, **rest}
            inst(syntax, **choices)(semantics)
        return semantics

    return declare


# ---------------------------------------- setp


@inst("setp.cmp.bf16 p:pred, a, b", cmp=FLOATING, ptx=(7, 8), sm=90, section=_HALF_SETP)
@inst("setp.cmp.f64 p:pred, a, b", cmp=FLOATING, sm=13, section=_SETP)
@_for_integers("setp.cmp.type p:pred, a, b", "type", section=_SETP)
def setp(a: Lanes, b: Lanes, *, cmp: str) -> Lanes:
    """p = a <cmp> b."""
    return compared(a, b, cmp)


@inst("setp.cmp{.ftz}.f16 p:pred, a, b", cmp=FLOATING, ptx=(4, 2), sm=53, section=_HALF_SETP)
@inst("setp.cmp{.ftz}.f32 p:pred, a, b", cmp=FLOATING, section=_SETP)
def setp_ftz(a: Lanes, b: Lanes, *, cmp: str, ftz: bool) -> Lanes:
    """p = a <cmp> b."""
    return compared(a, b, cmp, ftz=ftz)


@inst(
    "setp.cmp.combine.bf16 p:pred, a, b, c:pred", name="setp_with",
    cmp=FLOATING, combine=_WITH, ptx=(7, 8), sm=90, section=_HALF_SETP,
)  # fmt: skip
@inst(
    "setp.cmp.combine.f64 p:pred, a, b, c:pred", name="setp_with",
    cmp=FLOATING, combine=_WITH, sm=13, section=_SETP,
)  # fmt: skip
@_for_integers(
    "setp.cmp.combine.type p:pred, a, b, c:pred", "type", name="setp_with",
    combine=_WITH, section=_SETP,
)  # fmt: skip
def setp_with(a: Lanes, b: Lanes, c: Lanes, *, cmp: str, combine: str) -> Lanes:
    """p = (a <cmp> b) <combine> c."""
    return _combined(compared(a, b, cmp), combine, c)


@inst(
    "setp.cmp.combine{.ftz}.f16 p:pred, a, b, c:pred", name="setp_with",
    cmp=FLOATING, combine=_WITH, ptx=(4, 2), sm=53, section=_HALF_SETP,
)  # fmt: skip
@inst(
    "setp.cmp.combine{.ftz}.f32 p:pred, a, b, c:pred", name="setp_with",
    cmp=FLOATING, combine=_WITH, section=_SETP,
)  # fmt: skip
def setp_with_ftz(a: Lanes, b: Lanes, c: Lanes, *, cmp: str, combine: str, ftz: bool) -> Lanes:
    """p = (a <cmp> b) <combine> c."""
    return _combined(compared(a, b, cmp, ftz=ftz), combine, c)


@inst("setp.cmp.f64 p:pred|q:pred, a, b", name="setp_pair", cmp=FLOATING, sm=13, section=_SETP)
@_for_integers("setp.cmp.type p:pred|q:pred, a, b", "type", name="setp_pair", section=_SETP)
def setp_pair(a: Lanes, b: Lanes, *, cmp: str) -> tuple[Lanes, Lanes]:
    """p = a <cmp> b; q = not p."""
    truth: Lanes = compared(a, b, cmp)
    return truth, np.logical_not(truth)


@inst("setp.cmp{.ftz}.f32 p:pred|q:pred, a, b", name="setp_pair", cmp=FLOATING, section=_SETP)
def setp_pair_f32(a: Lanes, b: Lanes, *, cmp: str, ftz: bool) -> tuple[Lanes, Lanes]:
    """p = a <cmp> b; q = not p."""
    truth: Lanes = compared(a, b, cmp, ftz=ftz)
    return truth, np.logical_not(truth)


@inst(
    "setp.cmp.combine.f64 p:pred|q:pred, a, b, c:pred", name="setp_pair_with",
    cmp=FLOATING, combine=_WITH, sm=13, section=_SETP,
)  # fmt: skip
@_for_integers(
    "setp.cmp.combine.type p:pred|q:pred, a, b, c:pred", "type", name="setp_pair_with",
    combine=_WITH, section=_SETP,
)  # fmt: skip
def setp_pair_with(a: Lanes, b: Lanes, c: Lanes, *, cmp: str, combine: str) -> tuple[Lanes, Lanes]:
    """p = (a <cmp> b) <combine> c; q = (not a <cmp> b) <combine> c."""
    truth: Lanes = compared(a, b, cmp)
    return _combined(truth, combine, c), _combined(np.logical_not(truth), combine, c)


@inst(
    "setp.cmp.combine{.ftz}.f32 p:pred|q:pred, a, b, c:pred", name="setp_pair_with",
    cmp=FLOATING, combine=_WITH, section=_SETP,
)  # fmt: skip
def setp_pair_with_f32(
    a: Lanes, b: Lanes, c: Lanes, *, cmp: str, combine: str, ftz: bool
) -> tuple[Lanes, Lanes]:
    """p = (a <cmp> b) <combine> c; q = (not a <cmp> b) <combine> c."""
    truth: Lanes = compared(a, b, cmp, ftz=ftz)
    return _combined(truth, combine, c), _combined(np.logical_not(truth), combine, c)


def _both(
    a: Lanes, b: Lanes, type: ScalarType, cmp: str, *, ftz: bool = False
) -> tuple[Lanes, Lanes]:
    """The comparisons of the lower and of the upper halves of packed pairs of `type`."""
    (a_low, a_high), (b_low, b_high) = (numeric.halves(x, type) for x in (a, b))
    return compared(a_low, b_low, cmp, ftz=ftz), compared(a_high, b_high, cmp, ftz=ftz)


@inst(
    "setp.cmp{.ftz}.f16x2 p:pred|q:pred, a, b", name="setp_pair",
    cmp=FLOATING, ptx=(4, 2), sm=53, section=_HALF_SETP,
)  # fmt: skip
def setp_f16x2(a: Lanes, b: Lanes, *, cmp: str, ftz: bool) -> tuple[Lanes, Lanes]:
    """p = a <cmp> b for the lower halves; q = the same for the upper halves."""
    return _both(a, b, f16, cmp, ftz=ftz)


@inst(
    "setp.cmp.bf16x2 p:pred|q:pred, a, b", name="setp_pair",
    cmp=FLOATING, ptx=(7, 8), sm=90, section=_HALF_SETP,
)  # fmt: skip
def setp_bf16x2(a: Lanes, b: Lanes, *, cmp: str) -> tuple[Lanes, Lanes]:
    """p = a <cmp> b for the lower halves; q = the same for the upper halves."""
    return _both(a, b, bf16, cmp)


@inst(
    "setp.cmp.combine{.ftz}.f16x2 p:pred|q:pred, a, b, c:pred", name="setp_pair_with",
    cmp=FLOATING, combine=_WITH, ptx=(4, 2), sm=53, section=_HALF_SETP,
)  # fmt: skip
def setp_with_f16x2(
    a: Lanes, b: Lanes, c: Lanes, *, cmp: str, combine: str, ftz: bool
) -> tuple[Lanes, Lanes]:
    """p = (a <cmp> b) <combine> c for the lower halves; q = the same for the upper halves."""
    low, high = _both(a, b, f16, cmp, ftz=ftz)
    return _combined(low, combine, c), _combined(high, combine, c)


@inst(
    "setp.cmp.combine.bf16x2 p:pred|q:pred, a, b, c:pred", name="setp_pair_with",
    cmp=FLOATING, combine=_WITH, ptx=(7, 8), sm=90, section=_HALF_SETP,
)  # fmt: skip
def setp_with_bf16x2(
    a: Lanes, b: Lanes, c: Lanes, *, cmp: str, combine: str
) -> tuple[Lanes, Lanes]:
    """p = (a <cmp> b) <combine> c for the lower halves; q = the same for the upper halves."""
    low, high = _both(a, b, bf16, cmp)
    return _combined(low, combine, c), _combined(high, combine, c)


# ---------------------------------------- set


def _as_number(truth: Lanes, dtype: ScalarType) -> Lanes:
    """1.0 or 0.0 of a floating-point type; all ones or 0 of an integer type."""
    if dtype.is_float:
        return truth.astype(np.float32).astype(dtype.dtype)
    ones: Lanes = np.negative(truth.astype(f"i{dtype.nbytes}"))
    return ones.astype(dtype.dtype)


_ONE_HALF: Final = {f16x2: 0x3C00, bf16x2: 0x3F80}  # the bits of 1.0


def _as_pair(low: Lanes, high: Lanes, dtype: ScalarType) -> Lanes:
    """Two 16-bit results in one: 1.0 or 0.0 each, or, of an integer type, all ones or 0."""
    one = _ONE_HALF.get(dtype, 0xFFFF)
    lower = np.where(low, np.uint32(one), np.uint32(0))
    upper = np.where(high, np.uint32(one << 16), np.uint32(0))
    return np.bitwise_or(lower, upper).astype(dtype.dtype)


_NUMBERS: Final = (u32, s32, f32)  # what the result of a comparison may be
_SHORT: Final = (u16, s16, u32, s32)  # the same where 16-bit floats are compared
_LATER: Final = gate(ptx=(6, 5))
_SHORT_HALF: Final = dict.fromkeys(_SHORT, _LATER)
_PAIR_HALF: Final = {f16x2: None, u32: _LATER, s32: _LATER}
_HALF: Final[dict[str, Any]] = {"ptx": (4, 2), "sm": 53, "section": _HALF_SET}
_BRAIN: Final[dict[str, Any]] = {"ptx": (7, 8), "sm": 90, "section": _HALF_SET}


@inst(
    "set.cmp.dtype.bf16 d:dtype, a:bf16, b:bf16", name="set_",
    cmp=FLOATING, dtype=_SHORT, **_BRAIN,
)  # fmt: skip
@inst(
    "set.cmp.dtype.stype d:dtype, a:stype, b:stype", name="set_",
    cmp=FLOATING, dtype=(bf16,), stype=(bf16, f16, f32, f64), **_BRAIN,
)  # fmt: skip
@inst(
    "set.cmp.dtype.stype d:dtype, a:stype, b:stype", name="set_",
    cmp=FLOATING, dtype=(f16,), stype=(f64,), **_HALF,
)  # fmt: skip
@inst(
    "set.cmp.dtype.stype d:dtype, a:stype, b:stype", name="set_",
    cmp=FLOATING, dtype=_NUMBERS, stype=(f64,), sm=13, section=_SET,
)  # fmt: skip
@_for_integers(
    "set.cmp.dtype.stype d:dtype, a:stype, b:stype", "stype", name="set_",
    dtype=(bf16,), **_BRAIN,
)  # fmt: skip
@_for_integers(
    "set.cmp.dtype.stype d:dtype, a:stype, b:stype", "stype", name="set_",
    dtype=(f16,), **_HALF,
)  # fmt: skip
@_for_integers(
    "set.cmp.dtype.stype d:dtype, a:stype, b:stype", "stype", name="set_",
    dtype=_NUMBERS, section=_SET,
)  # fmt: skip
def set_(a: Lanes, b: Lanes, *, cmp: str, dtype: ScalarType) -> Lanes:
    """d = 1.0, or all ones of an integer type, if a <cmp> b, else 0."""
    return _as_number(compared(a, b, cmp), dtype)


@inst(
    "set.cmp{.ftz}.dtype.f16 d:dtype, a:f16, b:f16", name="set_",
    cmp=FLOATING, dtype=_SHORT_HALF, **_HALF,
)  # fmt: skip
@inst(
    "set.cmp{.ftz}.dtype.stype d:dtype, a:stype, b:stype", name="set_",
    cmp=FLOATING, dtype=(f16,), stype=(f16, f32), **_HALF,
)  # fmt: skip
@inst(
    "set.cmp{.ftz}.dtype.stype d:dtype, a:stype, b:stype", name="set_",
    cmp=FLOATING, dtype=_NUMBERS, stype=(f32,), section=_SET,
)  # fmt: skip
def set_ftz(a: Lanes, b: Lanes, *, cmp: str, ftz: bool, dtype: ScalarType) -> Lanes:
    """d = 1.0, or all ones of an integer type, if a <cmp> b, else 0."""
    return _as_number(compared(a, b, cmp, ftz=ftz), dtype)


@inst(
    "set.cmp{.ftz}.dtype.f16x2 d:dtype, a:f16x2, b:f16x2", name="set_",
    cmp=FLOATING, dtype=_PAIR_HALF, **_HALF,
)  # fmt: skip
def set_f16x2(a: Lanes, b: Lanes, *, cmp: str, ftz: bool, dtype: ScalarType) -> Lanes:
    """Each half of d = 1.0, or all ones of an integer type, if a <cmp> b in that half, else 0."""
    return _as_pair(*_both(a, b, f16, cmp, ftz=ftz), dtype)


@inst(
    "set.cmp.dtype.bf16x2 d:dtype, a:bf16x2, b:bf16x2", name="set_",
    cmp=FLOATING, dtype=(bf16x2, u32, s32), **_BRAIN,
)  # fmt: skip
def set_bf16x2(a: Lanes, b: Lanes, *, cmp: str, dtype: ScalarType) -> Lanes:
    """Each half of d = 1.0, or all ones of an integer type, if a <cmp> b in that half, else 0."""
    return _as_pair(*_both(a, b, bf16, cmp), dtype)


@inst(
    "set.cmp.combine.dtype.bf16 d:dtype, a:bf16, b:bf16, c:pred", name="set_with",
    cmp=FLOATING, combine=_WITH, dtype=_SHORT, **_BRAIN,
)  # fmt: skip
@inst(
    "set.cmp.combine.dtype.stype d:dtype, a:stype, b:stype, c:pred", name="set_with",
    cmp=FLOATING, combine=_WITH, dtype=(bf16,), stype=(bf16, f16, f32, f64), **_BRAIN,
)  # fmt: skip
@inst(
    "set.cmp.combine.dtype.stype d:dtype, a:stype, b:stype, c:pred", name="set_with",
    cmp=FLOATING, combine=_WITH, dtype=(f16,), stype=(f64,), **_HALF,
)  # fmt: skip
@inst(
    "set.cmp.combine.dtype.stype d:dtype, a:stype, b:stype, c:pred", name="set_with",
    cmp=FLOATING, combine=_WITH, dtype=_NUMBERS, stype=(f64,), sm=13, section=_SET,
)  # fmt: skip
@_for_integers(
    "set.cmp.combine.dtype.stype d:dtype, a:stype, b:stype, c:pred", "stype", name="set_with",
    combine=_WITH, dtype=(bf16,), **_BRAIN,
)  # fmt: skip
@_for_integers(
    "set.cmp.combine.dtype.stype d:dtype, a:stype, b:stype, c:pred", "stype", name="set_with",
    combine=_WITH, dtype=(f16,), **_HALF,
)  # fmt: skip
@_for_integers(
    "set.cmp.combine.dtype.stype d:dtype, a:stype, b:stype, c:pred", "stype", name="set_with",
    combine=_WITH, dtype=_NUMBERS, section=_SET,
)  # fmt: skip
def set_with(a: Lanes, b: Lanes, c: Lanes, *, cmp: str, combine: str, dtype: ScalarType) -> Lanes:
    """d = 1.0, or all ones of an integer type, if (a <cmp> b) <combine> c, else 0."""
    return _as_number(_combined(compared(a, b, cmp), combine, c), dtype)


@inst(
    "set.cmp.combine{.ftz}.dtype.f16 d:dtype, a:f16, b:f16, c:pred", name="set_with",
    cmp=FLOATING, combine=_WITH, dtype=_SHORT_HALF, **_HALF,
)  # fmt: skip
@inst(
    "set.cmp.combine{.ftz}.dtype.stype d:dtype, a:stype, b:stype, c:pred", name="set_with",
    cmp=FLOATING, combine=_WITH, dtype=(f16,), stype=(f16, f32), **_HALF,
)  # fmt: skip
@inst(
    "set.cmp.combine{.ftz}.dtype.stype d:dtype, a:stype, b:stype, c:pred", name="set_with",
    cmp=FLOATING, combine=_WITH, dtype=_NUMBERS, stype=(f32,), section=_SET,
)  # fmt: skip
def set_with_ftz(
    a: Lanes, b: Lanes, c: Lanes, *, cmp: str, combine: str, ftz: bool, dtype: ScalarType
) -> Lanes:
    """d = 1.0, or all ones of an integer type, if (a <cmp> b) <combine> c, else 0."""
    return _as_number(_combined(compared(a, b, cmp, ftz=ftz), combine, c), dtype)


@inst(
    "set.cmp.combine{.ftz}.dtype.f16x2 d:dtype, a:f16x2, b:f16x2, c:pred", name="set_with",
    cmp=FLOATING, combine=_WITH, dtype=_PAIR_HALF, **_HALF,
)  # fmt: skip
def set_with_f16x2(
    a: Lanes, b: Lanes, c: Lanes, *, cmp: str, combine: str, ftz: bool, dtype: ScalarType
) -> Lanes:
    """Each half of d = 1.0, or all ones of an integer type, if (a <cmp> b) <combine> c in that
    half, else 0.
    """
    low, high = _both(a, b, f16, cmp, ftz=ftz)
    return _as_pair(_combined(low, combine, c), _combined(high, combine, c), dtype)


@inst(
    "set.cmp.combine.dtype.bf16x2 d:dtype, a:bf16x2, b:bf16x2, c:pred", name="set_with",
    cmp=FLOATING, combine=_WITH, dtype=(bf16x2, u32, s32), **_BRAIN,
)  # fmt: skip
def set_with_bf16x2(
    a: Lanes, b: Lanes, c: Lanes, *, cmp: str, combine: str, dtype: ScalarType
) -> Lanes:
    """Each half of d = 1.0, or all ones of an integer type, if (a <cmp> b) <combine> c in that
    half, else 0.
    """
    low, high = _both(a, b, bf16, cmp)
    return _as_pair(_combined(low, combine, c), _combined(high, combine, c), dtype)


# ---------------------------------------- selection


@inst("selp.type d, a, b, c:pred", type=(*BITS, *INTEGERS, f32, f64), section=f"{SELECTION}: selp")
def selp(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """d = a if c, else b."""
    return np.where(c, a, b)


_SELECTED: Final = {**dict.fromkeys((*BITS, *INTEGERS, f32)), f64: gate(sm=13)}


@inst("slct.dtype.s32 d:dtype, a:dtype, b:dtype, c:s32", dtype=_SELECTED,
      section=f"{SELECTION}: slct")  # fmt: skip
def slct(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """d = a if c >= 0, else b."""
    return np.where(c >= 0, a, b)


@inst("slct{.ftz}.dtype.f32 d:dtype, a:dtype, b:dtype, c:f32", dtype=_SELECTED,
      section=f"{SELECTION}: slct")  # fmt: skip
def slct_f32(a: Lanes, b: Lanes, c: Lanes, *, ftz: bool) -> Lanes:
    """d = a if c >= 0 (so is -0, and with .ftz a subnormal c), else b, also for a NaN."""
    return np.where(compared(c, np.zeros_like(c), "ge", ftz=ftz), a, b)
