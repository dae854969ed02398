"""Integer arithmetic, logic, shifts and bit fields (PTX ISA, "Integer Arithmetic", "Logic and Shift
Instructions").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.isa.numeric import quiet
from ptxgen.isa.spec import inst
from ptxgen.types import b16, b32, b64, pred, s16, s32, s64, u16, u32, u64

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes

ARITHMETIC: Final = "Integer Arithmetic Instructions"
LOGIC: Final = "Logic and Shift Instructions"
MOVEMENT: Final = "Data Movement and Conversion Instructions"
INTEGERS: Final = (u32, s32, u64, s64, u16, s16)
SIGNED: Final = (s32, s64, s16)
LOGICAL: Final = (b32, b64, b16, pred)
BITS: Final = (b32, b64, b16)
WORDS: Final = (b32, b64)


@inst("add.type d, a, b", type=(u32, u64, s64, u16, s16), section=f"{ARITHMETIC}: add")
def add(a: Lanes, b: Lanes) -> Lanes:
    """d = a + b, wrapping around."""
    return np.add(a, b)


@inst("add{.sat}.s32 d, a, b", section=f"{ARITHMETIC}: add")
def add_s32(a: Lanes, b: Lanes, *, sat: bool) -> Lanes:
    """d = a + b, wrapping around, or with .sat clamped to the range of s32."""
    return _clamped(np.add(a, b, dtype=np.int64)) if sat else np.add(a, b)


@inst("sub.type d, a, b", type=(u32, u64, s64, u16, s16), section=f"{ARITHMETIC}: sub")
def sub(a: Lanes, b: Lanes) -> Lanes:
    """d = a - b, wrapping around."""
    return np.subtract(a, b)


@inst("sub{.sat}.s32 d, a, b", section=f"{ARITHMETIC}: sub")
def sub_s32(a: Lanes, b: Lanes, *, sat: bool) -> Lanes:
    """d = a - b, wrapping around, or with .sat clamped to the range of s32."""
    return _clamped(np.subtract(a, b, dtype=np.int64)) if sat else np.subtract(a, b)


def _clamped(x: Lanes) -> Lanes:
    info = np.iinfo(np.int32)
    return np.clip(x, info.min, info.max).astype(np.int32)


@inst("mul.mode.type d, a, b", mode=("lo", "hi"), type=INTEGERS, section=f"{ARITHMETIC}: mul")
def mul(a: Lanes, b: Lanes, *, mode: str) -> Lanes:
    """d = the lower or the upper half of a * b."""
    return np.multiply(a, b) if mode == "lo" else _high(a, b)


@inst(
    "mul.wide.type d:wide, a, b",
    name="mul_wide",
    type=(u32, s32, u16, s16),
    section=f"{ARITHMETIC}: mul",
)
def mul_wide(a: Lanes, b: Lanes) -> Lanes:
    """d = a * b, twice as wide as its factors."""
    return np.multiply(a, b, dtype=_double(a))


@inst("mad.mode.type d, a, b, c", mode=("lo", "hi"), type=INTEGERS, section=f"{ARITHMETIC}: mad")
def mad(a: Lanes, b: Lanes, c: Lanes, *, mode: str) -> Lanes:
    """d = the lower or the upper half of a * b, plus c, wrapping around."""
    product: Lanes = mul(a, b, mode=mode)
    return np.add(product, c)


@inst(
    "mad.wide.type d:wide, a, b, c:wide",
    name="mad_wide",
    type=(u32, s32, u16, s16),
    section=f"{ARITHMETIC}: mad",
)
def mad_wide(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """d = a * b + c, twice as wide as its factors, wrapping around."""
    return np.add(np.multiply(a, b, dtype=_double(a)), c)


def _double(a: Lanes) -> np.dtype[np.generic]:
    return np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")


def _high(a: Lanes, b: Lanes) -> Lanes:
    """The upper half of a * b; for 64 bits from the four products of 32-bit halves."""
    bits = 8 * a.dtype.itemsize
    if bits < 64:
        return np.right_shift(np.multiply(a, b, dtype=_double(a)), bits).astype(a.dtype)
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    x, y = a.astype(np.uint64), b.astype(np.uint64)
    x_low, x_high, y_low, y_high = x & low, x >> half, y & low, y >> half
    middle = np.add(np.multiply(x_high, y_low), np.multiply(x_low, y_low) >> half)
    other = np.add(np.multiply(x_low, y_high), middle & low)
    high = np.add(np.multiply(x_high, y_high), np.add(middle >> half, other >> half))
    if a.dtype.kind == "i":  # a negative factor was read as 2**64 too large
        high = np.subtract(
            high, np.add(np.where(a < 0, y, 0), np.where(b < 0, x, 0), dtype=np.uint64)
        )
    result: Lanes = high.astype(a.dtype)
    return result


@inst("div.type d, a, b", type=INTEGERS, section=f"{ARITHMETIC}: div")
def div(a: Lanes, b: Lanes) -> Lanes:
    """d = a / b, rounded towards zero; all ones when b is 0 (PTX leaves that value open)."""
    return np.where(b == 0, ~a.dtype.type(0), _quotient(a, b)).astype(a.dtype)


@inst("rem.type d, a, b", type=INTEGERS, section=f"{ARITHMETIC}: rem")
def rem(a: Lanes, b: Lanes) -> Lanes:
    """d = a - b * (a / b), which has the sign of a; a when b is 0 (PTX leaves that value open)."""
    return np.subtract(a, np.multiply(b, _quotient(a, b)))


@quiet
def _quotient(a: Lanes, b: Lanes) -> Lanes:
    divisor = np.where(b == 0, b.dtype.type(1), b)
    floor = np.floor_divide(a, divisor)
    inexact = np.multiply(floor, divisor) != a
    quotient: Lanes = np.add(floor, (inexact & ((a < 0) != (divisor < 0))).astype(floor.dtype))
    return quotient


@inst("abs.type d, a", type=SIGNED, section=f"{ARITHMETIC}: abs")
def abs_(a: Lanes) -> Lanes:
    """d = |a|; the most negative number is its own absolute value."""
    return np.where(a < 0, np.negative(a), a)


@inst("neg.type d, a", type=SIGNED, section=f"{ARITHMETIC}: neg")
def neg(a: Lanes) -> Lanes:
    """d = -a; the most negative number is its own negative."""
    return np.negative(a)


@inst("min.type d, a, b", type=INTEGERS, section=f"{ARITHMETIC}: min")
def min_(a: Lanes, b: Lanes) -> Lanes:
    """d = the smaller of a and b."""
    return np.minimum(a, b)


@inst("max.type d, a, b", type=INTEGERS, section=f"{ARITHMETIC}: max")
def max_(a: Lanes, b: Lanes) -> Lanes:
    """d = the larger of a and b."""
    return np.maximum(a, b)


# ---------------------------------------- logic and shifts


@inst("and.type d, a, b", name="and_", type=LOGICAL, section=f"{LOGIC}: and")
def and_(a: Lanes, b: Lanes) -> Lanes:
    """d = a & b, bit by bit."""
    return np.bitwise_and(a, b)


@inst("or.type d, a, b", name="or_", type=LOGICAL, section=f"{LOGIC}: or")
def or_(a: Lanes, b: Lanes) -> Lanes:
    """d = a | b, bit by bit."""
    return np.bitwise_or(a, b)


@inst("xor.type d, a, b", type=LOGICAL, section=f"{LOGIC}: xor")
def xor(a: Lanes, b: Lanes) -> Lanes:
    """d = a ^ b, bit by bit."""
    return np.bitwise_xor(a, b)


@inst("not.type d, a", name="not_", type=LOGICAL, section=f"{LOGIC}: not")
def not_(a: Lanes) -> Lanes:
    """d = ~a, bit by bit."""
    return np.invert(a)


@inst("lop3.b32 d, a, b, c, lut:imm", ptx=(4, 3), sm=50, section=f"{LOGIC}: lop3")
def lop3(a: Lanes, b: Lanes, c: Lanes, lut: int) -> Lanes:
    """d = any function of three bits: bit 4a + 2b + c of lut, for each bit."""
    result = np.bitwise_and(a, np.uint32(0))
    for row in range(8):
        if lut >> row & 1:
            term = np.bitwise_and(a if row & 4 else np.invert(a), b if row & 2 else np.invert(b))
            result = np.bitwise_or(result, np.bitwise_and(term, c if row & 1 else np.invert(c)))
    return result


@inst("shl.type d, a, b:u32", type=BITS, section=f"{LOGIC}: shl")
def shl(a: Lanes, b: Lanes) -> Lanes:
    """d = a << b; zero when b is at least the width of a."""
    width = 8 * a.dtype.itemsize
    shifted: Lanes = np.left_shift(a, np.minimum(b, np.uint32(width - 1)).astype(a.dtype))
    return np.where(b < width, shifted, shifted.dtype.type(0))


@inst("shr.type d, a, b:u32", type=(*INTEGERS, *BITS), section=f"{LOGIC}: shr")
def shr(a: Lanes, b: Lanes) -> Lanes:
    """d = a >> b, filled with the sign bit for signed types, otherwise with zeros; b is limited to
    the width of a.
    """
    width = 8 * a.dtype.itemsize
    shifted: Lanes = np.right_shift(a, np.minimum(b, np.uint32(width - 1)).astype(a.dtype))
    if a.dtype.kind == "i":
        return shifted
    return np.where(b < width, shifted, shifted.dtype.type(0))


@inst(
    "shf.dir.mode.b32 d, a, b, c:u32", dir=("l", "r"), mode=("wrap", "clamp"), ptx=(3, 1), sm=32,
    section=f"{LOGIC}: shf",
)  # fmt: skip
def shf(a: Lanes, b: Lanes, c: Lanes, *, dir: str, mode: str) -> Lanes:
    """d = the upper (l) or lower (r) half of the 64 bits b:a shifted by c, which is wrapped to
    0..31 or limited to 32.
    """
    amount = np.bitwise_and(c, np.uint32(31)) if mode == "wrap" else np.minimum(c, np.uint32(32))
    pair = np.bitwise_or(np.left_shift(b.astype(np.uint64), np.uint64(32)), a.astype(np.uint64))
    if dir == "r":
        return np.right_shift(pair, amount.astype(np.uint64)).astype(np.uint32)
    return np.right_shift(np.left_shift(pair, amount.astype(np.uint64)), np.uint64(32)).astype(
        np.uint32
    )


# ---------------------------------------- bit fields


@inst("popc.type d:u32, a", type=WORDS, ptx=(2, 0), sm=20, section=f"{ARITHMETIC}: popc")
def popc(a: Lanes) -> Lanes:
    """d = how many bits of a are one."""
    return np.bitwise_count(a).astype(np.uint32)


@inst("clz.type d:u32, a", type=WORDS, ptx=(2, 0), sm=20, section=f"{ARITHMETIC}: clz")
def clz(a: Lanes) -> Lanes:
    """d = how many leading bits of a are zero."""
    return (8 * a.dtype.itemsize - np.bitwise_count(_smeared(a)).astype(np.uint32)).astype(
        np.uint32
    )


def _smeared(a: Lanes) -> Lanes:
    """All ones from the highest one of a downwards."""
    shift = 1
    while shift < 8 * a.dtype.itemsize:
        a = np.bitwise_or(a, np.right_shift(a, a.dtype.type(shift)))
        shift *= 2
    return a


@inst(
    "bfind{.shiftamt}.type d:u32, a",
    type=(u32, u64, s32, s64),
    ptx=(2, 0),
    sm=20,
    section=f"{ARITHMETIC}: bfind",
)
def bfind(a: Lanes, *, shiftamt: bool) -> Lanes:
    """d = the position of the highest bit that differs from the sign, or with .shiftamt how far to
    shift it to the top; all ones if there is none.
    """
    width = 8 * a.dtype.itemsize
    magnitude = np.where(a < 0, np.invert(a), a).astype(f"u{a.dtype.itemsize}")
    position = np.bitwise_count(_smeared(magnitude)).astype(np.int64) - 1
    moved = np.where(position < 0, -1, width - 1 - position) if shiftamt else position
    return moved.astype(np.uint32)


@inst("brev.type d, a", type=WORDS, ptx=(2, 0), sm=20, section=f"{ARITHMETIC}: brev")
def brev(a: Lanes) -> Lanes:
    """d = the bits of a in reverse order."""
    of = a.dtype.type
    for shift, mask in ((1, 0x55), (2, 0x33), (4, 0x0F)):
        spread = of(int.from_bytes(bytes([mask]) * a.dtype.itemsize, "little"))
        high = np.left_shift(np.bitwise_and(a, spread), of(shift))
        a = np.bitwise_or(high, np.bitwise_and(np.right_shift(a, of(shift)), spread))
    return a.byteswap()


@inst(
    "bfe.type d, a, b:u32, c:u32",
    type=(u32, u64, s32, s64),
    ptx=(2, 0),
    sm=20,
    section=f"{ARITHMETIC}: bfe",
)
def bfe(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """d = the field of c bits of a that starts at bit b, zero- or sign-extended; b and c count
    modulo 256.
    """
    width = 8 * a.dtype.itemsize
    start, length = (np.bitwise_and(x, np.uint32(255)).astype(np.int64) for x in (b, c))
    unsigned = a.astype(f"u{a.dtype.itemsize}")
    field = np.bitwise_and(shl_right(unsigned, start), ones(length, unsigned.dtype))
    if a.dtype.kind == "u":
        return field
    last = np.minimum(start + length - 1, width - 1)
    sign = np.bitwise_and(shl_right(unsigned, np.maximum(last, 0)), unsigned.dtype.type(1))
    filled = np.minimum(length, np.maximum(width - start, 0))
    extended = np.bitwise_or(field, np.invert(ones(filled, unsigned.dtype)))
    return np.where((sign == 1) & (length > 0), extended, field).astype(a.dtype)


@inst("bfi.type d, a, b, c:u32, e:u32", type=WORDS, ptx=(2, 0), sm=20, section=f"{ARITHMETIC}: bfi")
def bfi(a: Lanes, b: Lanes, c: Lanes, e: Lanes) -> Lanes:
    """d = b with the e bits from bit c on replaced by the lowest bits of a; c and e count modulo
    256.
    """
    start, length = (np.bitwise_and(x, np.uint32(255)) for x in (c, e))
    mask = shl(ones(length.astype(np.int64), a.dtype), start)
    field: Lanes = np.bitwise_and(shl(a, start), mask)
    kept: Lanes = np.bitwise_and(b, np.invert(mask))
    return np.bitwise_or(field, kept)


def ones(length: Lanes, dtype: np.dtype[Any]) -> Lanes:
    """`length` ones in the lowest bits of an unsigned `dtype`."""
    width = 8 * dtype.itemsize
    full = np.invert(dtype.type(0))
    kept = np.right_shift(full, np.clip(width - length, 0, width - 1).astype(dtype))
    mask: Lanes = np.where(length == 0, dtype.type(0), kept)
    return mask


def shl_right(a: Lanes, amount: Lanes) -> Lanes:
    """Unsigned a >> amount, zero when the amount is at least the width."""
    width = 8 * a.dtype.itemsize
    shifted: Lanes = np.right_shift(a, np.minimum(amount, width - 1).astype(a.dtype))
    return np.where(amount < width, shifted, shifted.dtype.type(0))


PRMT_MODES: Final = ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")


@inst(
    "prmt.b32{.mode} d:b32, a:b32, b:b32, c:b32",
    mode=PRMT_MODES,
    ptx=(2, 0),
    sm=20,
    section=f"{MOVEMENT}: prmt",
)
def prmt(a: Lanes, b: Lanes, c: Lanes, *, mode: str | None) -> Lanes:
    """d = four bytes picked from the eight of b:a, each by a nibble of c (whose top bit repeats the
    byte's sign) or by mode and c.
    """
    pair = np.bitwise_or(np.left_shift(b.astype(np.uint64), np.uint64(32)), a.astype(np.uint64))
    result: Any = np.uint64(0)
    for n in range(4):
        pick = (
            np.bitwise_and(np.right_shift(c, np.uint32(4 * n)), np.uint32(15))
            if mode is None
            else _pick(c, mode, n)
        )
        index = np.bitwise_and(pick, np.uint32(7)).astype(np.uint64)
        byte = np.bitwise_and(
            np.right_shift(pair, np.multiply(index, np.uint64(8))), np.uint64(255)
        )
        sign = np.where(byte >= 128, np.uint64(255), np.uint64(0))
        byte = np.where(np.bitwise_and(pick, np.uint32(8)) != 0, sign, byte)
        result = np.bitwise_or(result, np.left_shift(byte, np.uint64(8 * n)))
    chosen: Lanes = result.astype(np.uint32)
    return chosen


def _pick(c: Lanes, mode: str, n: int) -> Lanes:
    """Which of the eight bytes goes to byte n (the manual's table of prmt modes)."""
    k = np.bitwise_and(c, np.uint32(3)).astype(np.int64)
    picked = {
        "f4e": k + n,
        "b4e": (k - n) & 7,
        "rc8": k,
        "ecl": np.maximum(k, n),
        "ecr": np.minimum(k, n),
        "rc16": (k & 1) * 2 + (n & 1),
    }[mode]
    return picked.astype(np.uint32)
