"""Integer, carry and comparison rows: meanings for `cases.py`, by syntax."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace as M
from typing import Any

# ---------------------------------------- integers


def pattern(x: int, bits: int) -> int:
    """A signed number as the unsigned one with the same bits."""
    return x % (1 << bits)


def signed(x: int, bits: int) -> int:
    """The lowest bits of x as a signed number."""
    x = pattern(x, bits)
    return x - (1 << bits) if x >> bits - 1 else x


def limited(x: int) -> int:
    return min(max(x, -(1 << 31)), (1 << 31) - 1)


def pieces(x: int, bits: int, is_signed: bool) -> list[int]:
    cut = [pattern(x, 32) >> n & (1 << bits) - 1 for n in range(0, 32, bits)]
    return [signed(piece, bits) for piece in cut] if is_signed else cut


def in_halves(function: Callable[[int, int], int]) -> Callable[..., int]:
    """A function of 16-bit numbers, for both halves of packed pairs."""

    def both(m: M, a: int, b: int) -> int:
        is_signed = getattr(m, "pair", "s16x2") == "s16x2"
        pairs = zip(pieces(a, 16, is_signed), pieces(b, 16, is_signed), strict=True)
        low, high = (max(function(*p), 0) if getattr(m, "relu", 0) else function(*p) for p in pairs)
        return pattern(low, 16) | pattern(high, 16) << 16

    return both


def naturals(function: Callable[[int, int], int]) -> Callable[..., int]:
    return lambda _, a, b: in_halves(function)(M(pair="u16x2"), a, b)


def product24(m: M, a: int, b: int) -> int:
    x, y = (signed(v, 24) if m.type.is_signed else v % (1 << 24) for v in (a, b))
    return x * y >> 16 if getattr(m, "mode", "hi") == "hi" else x * y


def dot(a_signed: bool, b_signed: bool | None, bits: int) -> Callable[..., int]:
    """dp4a (8 bits) or dp2a (16 bits); whether b is signed may be left to the slot `btype`."""

    def dotted(m: M, a: int, b: int, c: int) -> int:
        of_b = m.btype.is_signed if b_signed is None else b_signed
        bytes_of_b = pieces(b, 8, of_b)[2 if getattr(m, "mode", "lo") == "hi" else 0 :]
        return c + sum(x * y for x, y in zip(pieces(a, bits, a_signed), bytes_of_b, strict=False))

    return dotted


def nth_one(_: M, mask: int, base: int, offset: int) -> int:
    if base > 31:
        return 0xFFFFFFFF
    if offset == 0:
        return base if mask >> base & 1 else 0xFFFFFFFF
    where = range(base, 32) if offset > 0 else range(base, -1, -1)
    ones = [n for n in where if mask >> n & 1]
    return ones[abs(offset) - 1] if abs(offset) <= len(ones) else 0xFFFFFFFF


def mask_of(m: M, a: int, b: int) -> int:
    first, width = (a % 32, b % 32) if m.mode == "wrap" else (a, b)
    return sum(1 << n for n in range(32) if first <= n < first + width)


def extended(m: M, a: int, b: int) -> int:
    width = b % 32 if m.mode == "wrap" else min(b, 32)
    if width == 0:
        return 0
    return signed(a, width) if m.type.is_signed else a % (1 << width)


def table_bits(a: int, b: int, c: int, lut: int) -> int:
    """lop3, one bit after the other."""
    index = [(a >> n & 1) * 4 + (b >> n & 1) * 2 + (c >> n & 1) for n in range(32)]
    return sum((lut >> i & 1) << n for n, i in enumerate(index))


def table_and_test(m: M, a: int, b: int, c: int, lut: int, e: bool) -> tuple[int, bool]:
    d = table_bits(a, b, c, lut)
    return d, (d != 0 or e) if m.combine == "or" else (d != 0 and e)


# ---------------------------------------- video instructions

LANEWISE: dict[str, Callable[[int, int], int]] = {
    "vadd": lambda x, y: x + y,
    "vsub": lambda x, y: x - y,
    "vavrg": lambda x, y: (x + y + 1) // 2 if x + y >= 0 else math.floor((x + y) / 2),
    "vabsdiff": lambda x, y: abs(x - y),
    "vmin": min,
    "vmax": max,
}


def lanewise(width: int, function: Callable[..., int] | None) -> tuple[Callable[..., int], ...]:
    """The meaning of a video instruction on parts of so many bits, and of the one with .add."""

    def parts(m: M, a: int, b: int) -> list[int]:
        xs, ys = pieces(a, width, m.atype.is_signed), pieces(b, width, m.btype.is_signed)
        of = function or (lambda x, y: int(holds(m.cmp, x, y)))
        return [of(x, y) for x, y in zip(xs, ys, strict=True)]

    def apart(m: M, a: int, b: int, _: int) -> int:
        results = parts(m, a, b)
        if getattr(m, "sat", False):
            low = -(1 << width - 1) if m.dtype.is_signed else 0
            results = [min(max(r, low), low + (1 << width) - 1) for r in results]
        return sum(pattern(r, width) << n * width for n, r in enumerate(results))

    return apart, lambda m, a, b, c: c + sum(parts(m, a, b))


# ---------------------------------------- carries


def bits(m: M, x: int) -> int:
    """A number of the row's type as the unsigned number with the same bits."""
    return pattern(x, m.type.bits)


def upper(m: M, a: int, b: int) -> int:
    """The half of a product that `mode` names, as an unsigned number."""
    return bits(m, a * b >> m.type.bits if m.mode == "hi" else a * b)


# ---------------------------------------- comparisons

SUBNORMAL_BELOW = {"f32": 2.0**-126, "f16": 2.0**-14}


def holds(cmp: str, a: Any, b: Any) -> bool:
    if a != a or b != b:
        return cmp == "nan" or (len(cmp) == 3 and cmp.endswith("u"))
    answers: dict[str, bool] = {
        "eq": a == b,
        "ne": a != b,
        "lt": a < b,
        "le": a <= b,
        "gt": a > b,
        "ge": a >= b,
        "lo": a < b,
        "ls": a <= b,
        "hi": a > b,
        "hs": a >= b,
        "equ": a == b,
        "neu": a != b,
        "ltu": a < b,
        "leu": a <= b,
        "gtu": a > b,
        "geu": a >= b,
        "num": True,
        "nan": False,
    }
    return answers[cmp]


def joined(m: M, first: bool, c: bool) -> bool:
    return {"and": first and c, "or": first or c, "xor": first != c}[m.combine]


def compared(m: M, a: Any, b: Any) -> bool:
    return holds(m.cmp, a, b)


def combined(m: M, a: Any, b: Any, c: bool) -> bool:
    return joined(m, holds(m.cmp, a, b), c)


def and_opposite(m: M, a: Any, b: Any) -> tuple[bool, bool]:
    return holds(m.cmp, a, b), not holds(m.cmp, a, b)


def combined_and_opposite(m: M, a: Any, b: Any, c: bool) -> tuple[bool, bool]:
    return joined(m, holds(m.cmp, a, b), c), joined(m, not holds(m.cmp, a, b), c)


def each(m: M, a: tuple[float, ...], b: tuple[float, ...]) -> tuple[bool, bool]:
    """The comparisons of packed f16 or bf16, with .ftz after flushing f16."""
    if getattr(m, "ftz", False):
        a, b = (tuple(0.0 if abs(x) < SUBNORMAL_BELOW["f16"] else x for x in v) for v in (a, b))
    return holds(m.cmp, a[0], b[0]), holds(m.cmp, a[1], b[1])


def each_combined(m: M, a: Any, b: Any, c: bool) -> tuple[bool, bool]:
    low, high = each(m, a, b)
    return joined(m, low, c), joined(m, high, c)


def number(m: M, truth: bool) -> int:
    return int(truth) if m.dtype.kind in "fx" else -int(truth)


def set_pair(m: M, a: Any, b: Any, c: bool | None = None) -> int:
    """The masks of both halves; where d is a packed pair, of the one half given."""
    if m.dtype.kind == "x":
        return int(compared(m, a, b) if c is None else combined(m, a, b, c))
    low, high = each(m, a, b) if c is None else each_combined(m, a, b, c)
    return 0xFFFF * low | 0xFFFF0000 * high


def chosen_by_float(m: M, a: Any, b: Any, c: Any) -> Any:
    if math.isnan(c):
        return b
    tiny = m.ftz and abs(c) < SUBNORMAL_BELOW["f32"]
    return a if c >= 0 or tiny else b


SET = "set.cmp.dtype.stype d:dtype, a:stype, b:stype"
SET_FTZ = "set.cmp{.ftz}.dtype.stype d:dtype, a:stype, b:stype"
SET_WITH = "set.cmp.combine.dtype.stype d:dtype, a:stype, b:stype, c:pred"
SET_WITH_FTZ = "set.cmp.combine{.ftz}.dtype.stype d:dtype, a:stype, b:stype, c:pred"


def set_if(m: M, a: Any, b: Any) -> int:
    return number(m, compared(m, a, b))


def set_if_with(m: M, a: Any, b: Any, c: bool) -> int:
    return number(m, combined(m, a, b, c))


MEANING: dict[str, Callable[..., Any]] = {
    # integers
    "add.pair d:b32, a:b32, b:b32": in_halves(lambda a, b: a + b),
    "min.u16x2 d:b32, a:b32, b:b32": naturals(min),
    "max.u16x2 d:b32, a:b32, b:b32": naturals(max),
    "min{.relu}.s16x2 d:b32, a:b32, b:b32": in_halves(min),
    "max{.relu}.s16x2 d:b32, a:b32, b:b32": in_halves(max),
    "min.relu.s32 d, a, b": lambda _, a, b: max(0, min(a, b)),
    "max.relu.s32 d, a, b": lambda _, a, b: max(0, a, b),
    "min.s32.relu d:s32, a:s32, b:s32": lambda _, a, b: max(0, min(a, b)),
    "max.s32.relu d:s32, a:s32, b:s32": lambda _, a, b: max(0, a, b),
    "min.s16x2.relu d:b32, a:b32, b:b32": in_halves(lambda a, b: max(0, min(a, b))),
    "max.s16x2.relu d:b32, a:b32, b:b32": in_halves(lambda a, b: max(0, a, b)),
    "mad.hi.sat.s32 d, a, b, c": lambda _, a, b, c: limited((a * b >> 32) + c),
    "mul24.mode.type d, a, b": product24,
    "mad24.mode.type d, a, b, c": lambda m, a, b, c: product24(m, a, b) + c,
    "mad24.hi.sat.s32 d, a, b, c": lambda m, a, b, c: limited(product24(m, a, b) + c),
    "sad.type d, a, b, c": lambda _, a, b, c: c + abs(a - b),
    "dp4a.u32.u32 d:u32, a:u32, b:u32, c:u32": dot(False, False, 8),
    "dp4a.u32.s32 d:s32, a:u32, b:s32, c:s32": dot(False, True, 8),
    "dp4a.s32.btype d:s32, a:s32, b:btype, c:s32": dot(True, None, 8),
    "dp2a.mode.u32.u32 d:u32, a:u32, b:u32, c:u32": dot(False, False, 16),
    "dp2a.mode.u32.s32 d:s32, a:u32, b:s32, c:s32": dot(False, True, 16),
    "dp2a.mode.s32.btype d:s32, a:s32, b:btype, c:s32": dot(True, None, 16),
    "cnot.type d, a": lambda _, a: int(not a),
    "lop3.combine.b32 d|p:pred, a, b, c, lut:imm, e:pred": table_and_test,
    "bmsk.mode.b32 d, a:u32, b:u32": mask_of,
    "szext.mode.type d, a, b:u32": extended,
    "fns.b32 d, mask, base, offset:s32": nth_one,
    # comparisons
    "setp.cmp.type p:pred, a, b": compared,
    "setp.cmp.f64 p:pred, a, b": compared,
    "setp.cmp{.ftz}.f32 p:pred, a, b": compared,
    "setp.cmp{.ftz}.f16 p:pred, a, b": compared,
    "setp.cmp.bf16 p:pred, a, b": compared,
    "setp.cmp.combine.type p:pred, a, b, c:pred": combined,
    "setp.cmp.combine.f64 p:pred, a, b, c:pred": combined,
    "setp.cmp.combine{.ftz}.f32 p:pred, a, b, c:pred": combined,
    "setp.cmp.combine{.ftz}.f16 p:pred, a, b, c:pred": combined,
    "setp.cmp.combine.bf16 p:pred, a, b, c:pred": combined,
    "setp.cmp.type p:pred|q:pred, a, b": and_opposite,
    "setp.cmp.f64 p:pred|q:pred, a, b": and_opposite,
    "setp.cmp{.ftz}.f32 p:pred|q:pred, a, b": and_opposite,
    "setp.cmp.combine.type p:pred|q:pred, a, b, c:pred": combined_and_opposite,
    "setp.cmp.combine.f64 p:pred|q:pred, a, b, c:pred": combined_and_opposite,
    "setp.cmp.combine{.ftz}.f32 p:pred|q:pred, a, b, c:pred": combined_and_opposite,
    "setp.cmp{.ftz}.f16x2 p:pred|q:pred, a, b": each,
    "setp.cmp.bf16x2 p:pred|q:pred, a, b": each,
    "setp.cmp.combine{.ftz}.f16x2 p:pred|q:pred, a, b, c:pred": each_combined,
    "setp.cmp.combine.bf16x2 p:pred|q:pred, a, b, c:pred": each_combined,
    "set.cmp.dtype.bf16 d:dtype, a:bf16, b:bf16": set_if,
    "set.cmp{.ftz}.dtype.f16 d:dtype, a:f16, b:f16": set_if,
    SET: set_if,
    SET_FTZ: set_if,
    "set.cmp{.ftz}.dtype.f16x2 d:dtype, a:f16x2, b:f16x2": set_pair,
    "set.cmp.dtype.bf16x2 d:dtype, a:bf16x2, b:bf16x2": set_pair,
    "set.cmp.combine.dtype.bf16 d:dtype, a:bf16, b:bf16, c:pred": set_if_with,
    "set.cmp.combine{.ftz}.dtype.f16 d:dtype, a:f16, b:f16, c:pred": set_if_with,
    SET_WITH: set_if_with,
    SET_WITH_FTZ: set_if_with,
    "set.cmp.combine{.ftz}.dtype.f16x2 d:dtype, a:f16x2, b:f16x2, c:pred": set_pair,
    "set.cmp.combine.dtype.bf16x2 d:dtype, a:bf16x2, b:bf16x2, c:pred": set_pair,
    "selp.type d, a, b, c:pred": lambda _, a, b, c: a if c else b,
    "slct.dtype.s32 d:dtype, a:dtype, b:dtype, c:s32": lambda _, a, b, c: a if c >= 0 else b,
    "slct{.ftz}.dtype.f32 d:dtype, a:dtype, b:dtype, c:f32": chosen_by_float,
}
for _width in (8, 16):
    for _op, _function in LANEWISE.items():
        _types = f"{_op}{32 // _width}.dtype.atype.btype"
        _apart, _added = lanewise(_width, _function)
        MEANING[_types + "{.sat} d:b32, a:b32, b:b32, c:b32"] = _apart
        MEANING[_types + ".add d:b32, a:b32, b:b32, c:b32"] = _added
    _apart, _added = lanewise(_width, None)
    MEANING[f"vset{32 // _width}.atype.btype.cmp d:b32, a:b32, b:b32, c:b32"] = _apart
    MEANING[f"vset{32 // _width}.atype.btype.cmp.add d:b32, a:b32, b:b32, c:b32"] = _added
MEMORY: dict[str, Callable[..., Any]] = {}
WARP: dict[str, Callable[..., Any]] = {}
CALLS: dict[str, list[tuple[Any, ...]]] = {}
IMMEDIATES: dict[str, tuple[int, ...]] = {}

# The whole sum or difference of unsigned numbers, before it is cut to its width; the flag that is
# written says whether that changes it. `flag` is the one that was there before.
CARRY: dict[str, Callable[..., int]] = {
    "add.cc.type d, a, b": lambda m, _, a, b: bits(m, a) + bits(m, b),
    "addc{.cc}.type d, a, b": lambda m, flag, a, b: bits(m, a) + bits(m, b) + flag,
    "sub.cc.type d, a, b": lambda m, _, a, b: bits(m, a) - bits(m, b),
    "subc{.cc}.type d, a, b": lambda m, flag, a, b: bits(m, a) - bits(m, b) - flag,
    "mad.mode.cc.type d, a, b, c": lambda m, _, a, b, c: upper(m, a, b) + bits(m, c),
    "madc.mode{.cc}.type d, a, b, c": lambda m, flag, a, b, c: upper(m, a, b) + bits(m, c) + flag,
}
