"""Comparison and selection (PTX ISA, "Comparison and Selection Instructions")."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.isa import numeric
from ptxgen.isa.spec import inst
from ptxgen.types import b16, b32, b64, f32, f64, s16, s32, s64, u16, u32, u64

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes

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
EQUALITY: Final = ("eq", "ne")
UNORDERED: Final = ("equ", "neu", "ltu", "leu", "gtu", "geu")
FLOATING: Final = (*ORDERED, *UNORDERED, "num", "nan")
COMBINE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}
INTEGERS: Final = (u32, s32, u64, s64, u16, s16)
BITS: Final = (b32, b64, b16)


@numeric.quiet
def compared(a: Lanes, b: Lanes, cmp: str) -> Lanes:
    """a <cmp> b: the ordered comparisons are false, the unordered ones (`ltu`, …) true if a or b is
    NaN.
    """
    if cmp in ORDERED and cmp != "ne":
        return ORDERED[cmp](a, b)  # type: ignore[no-any-return]
    if a.dtype.kind in "iu":
        return np.not_equal(a, b)
    unordered = np.isnan(a) | np.isnan(b)
    if cmp in ("num", "nan"):
        return unordered if cmp == "nan" else ~unordered
    if cmp == "ne":
        return np.not_equal(a, b) & ~unordered
    return ORDERED[cmp.removesuffix("u")](a, b) | unordered  # type: ignore[no-any-return]


@inst("setp.cmp.type p:pred, a, b", cmp=tuple(ORDERED), type=INTEGERS, section=f"{SELECTION}: setp")
def setp(a: Lanes, b: Lanes, *, cmp: str) -> Lanes:
    """p = a <cmp> b."""
    return compared(a, b, cmp)


@inst("setp.cmp.type p:pred, a, b", cmp=EQUALITY, type=BITS, section=f"{SELECTION}: setp")
def setp_bits(a: Lanes, b: Lanes, *, cmp: str) -> Lanes:
    """p = a <cmp> b."""
    return compared(a, b, cmp)


@inst("setp.cmp{.ftz}.f32 p:pred, a, b", cmp=FLOATING, section=f"{SELECTION}: setp")
def setp_f32(a: Lanes, b: Lanes, *, cmp: str, ftz: bool) -> Lanes:
    """p = a <cmp> b; with a NaN the ordered comparisons are false, those ending in u true."""
    return compared(numeric.flush(a, ftz), numeric.flush(b, ftz), cmp)


@inst("setp.cmp.f64 p:pred, a, b", cmp=FLOATING, sm=13, section=f"{SELECTION}: setp")
def setp_f64(a: Lanes, b: Lanes, *, cmp: str) -> Lanes:
    """p = a <cmp> b; with a NaN the ordered comparisons are false, those ending in u true."""
    return compared(a, b, cmp)


@inst(
    "setp.cmp{.ftz}.f16 p:pred, a, b",
    cmp=FLOATING,
    ptx=(4, 2),
    sm=53,
    section=f"{HALF_SELECTION}: setp",
)
def setp_f16(a: Lanes, b: Lanes, *, cmp: str, ftz: bool) -> Lanes:
    """p = a <cmp> b; with a NaN the ordered comparisons are false, those ending in u true."""
    return compared(numeric.flush(a, ftz), numeric.flush(b, ftz), cmp)


@inst(
    "setp.cmp.bf16 p:pred, a, b", cmp=FLOATING, ptx=(7, 8), sm=90, section=f"{HALF_SELECTION}: setp"
)
def setp_bf16(a: Lanes, b: Lanes, *, cmp: str) -> Lanes:
    """p = a <cmp> b; with a NaN the ordered comparisons are false, those ending in u true."""
    return compared(numeric.widen(a, f32), numeric.widen(b, f32), cmp)


@inst(
    "setp.cmp.combine.type p:pred, a, b, c:pred", name="setp_with",
    cmp=tuple(ORDERED), combine=tuple(COMBINE), type=INTEGERS, section=f"{SELECTION}: setp",
)  # fmt: skip
def setp_with(a: Lanes, b: Lanes, c: Lanes, *, cmp: str, combine: str) -> Lanes:
    """p = (a <cmp> b) <combine> c."""
    return COMBINE[combine](compared(a, b, cmp), c)  # type: ignore[no-any-return]


@inst(
    "setp.cmp.combine{.ftz}.f32 p:pred, a, b, c:pred", name="setp_with",
    cmp=FLOATING, combine=tuple(COMBINE), section=f"{SELECTION}: setp",
)  # fmt: skip
def setp_with_f32(a: Lanes, b: Lanes, c: Lanes, *, cmp: str, combine: str, ftz: bool) -> Lanes:
    """p = (a <cmp> b) <combine> c; with a NaN the ordered comparisons are false, those ending in u
    true.
    """
    flushed = compared(numeric.flush(a, ftz), numeric.flush(b, ftz), cmp)
    return COMBINE[combine](flushed, c)  # type: ignore[no-any-return]


@inst("selp.type d, a, b, c:pred", type=(*BITS, *INTEGERS, f32, f64), section=f"{SELECTION}: selp")
def selp(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """d = a if c, else b."""
    return np.where(c, a, b)
