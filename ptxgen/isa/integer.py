"""Integer arithmetic, logic, shifts and bit fields (PTX ISA, "Integer Arithmetic", "Logic and Shift
Instructions").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.ir import Instr, IntImm
from ptxgen.isa.declare import each, inst, times
from ptxgen.isa.numeric import quiet
from ptxgen.isa.undefined import BITWISE, MOVES_A, MOVES_AB, SUMS
from ptxgen.types import b16, b32, b64, pred, s16, s32, s64, u16, u32, u64

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes
    from ptxgen.types import ScalarType

ARITHMETIC: Final = "Integer Arithmetic Instructions"
LOGIC: Final = "Logic and Shift Instructions"
VIDEO: Final = "SIMD Video Instructions"
MOVEMENT: Final = "Data Movement and Conversion Instructions"
INTEGERS: Final = (u32, s32, u64, s64, u16, s16)
SIGNED: Final = (s32, s64, s16)
LOGICAL: Final = (b32, b64, b16, pred)
PAIRS: Final = ("u16x2", "s16x2")  # two 16-bit integers in one b32
BITS: Final = (b32, b64, b16)
WORDS: Final = (b32, b64)


def subtracts(instr: Instr) -> bool:
    """Whether an instruction takes a number from another one, also by adding a negative literal."""
    last = instr.operands[-1]
    is_negative = isinstance(last, IntImm) and last.value < 0
    return instr.opcode.startswith("sub.") or (instr.opcode.startswith("add.") and is_negative)


_SUMS: Final = each("name sign function", ("add", "+", np.add), ("sub", "-", np.subtract))


@inst(
    "<name>.type d, a, b",
    _SUMS,
    type=(u32, u64, s64, u16, s16),
    undefined=SUMS,
    section=f"{ARITHMETIC}: <name>",
)
def sum_(a: Lanes, b: Lanes, *, function: Callable[..., Lanes]) -> Lanes:
    """d = a <sign> b, wrapping around."""
    return function(a, b)


@inst("<name>{.sat}.s32 d, a, b", _SUMS, undefined=SUMS, section=f"{ARITHMETIC}: <name>")
def sum_s32(a: Lanes, b: Lanes, *, function: Callable[..., Lanes], sat: bool) -> Lanes:
    """d = a <sign> b, wrapping around, or with .sat clamped to the range of s32."""
    return _clamped(function(a, b, dtype=np.int64)) if sat else function(a, b)


def _clamped(x: Lanes) -> Lanes:
    info = np.iinfo(np.int32)
    return np.clip(x, info.min, info.max).astype(np.int32)


@inst(
    "add.pair d:b32, a:b32, b:b32",
    name="add_pair",
    pair=PAIRS,
    ptx=(8, 0),
    sm=90,
    section=f"{ARITHMETIC}: add",
)
def add_pair(a: Lanes, b: Lanes, *, pair: str) -> Lanes:
    """d = a + b for each of the two 16-bit halves, wrapping around."""
    return _each_half(np.add, a, b, pair)


@quiet
def _each_half(function: Callable[..., Lanes], a: Lanes, b: Lanes, pair: str) -> Lanes:
    """`function` of the lower and of the upper halves of `a` and `b`, as a packed pair."""
    half = np.dtype(np.int16 if pair == "s16x2" else np.uint16)
    low, high = (
        function(*(np.right_shift(x, np.uint32(n)).astype(np.uint16).astype(half) for x in (a, b)))
        for n in (0, 16)
    )
    upper = np.left_shift(high.astype(np.uint16).astype(np.uint32), np.uint32(16))
    return np.bitwise_or(upper, low.astype(np.uint16).astype(np.uint32))


@inst("mul.mode.type d, a, b", mode=("lo", "hi"), type=INTEGERS, undefined=SUMS, section=f"{ARITHMETIC}: mul")
def mul(a: Lanes, b: Lanes, *, mode: str) -> Lanes:
    """d = the lower or the upper half of a * b."""
    return np.multiply(a, b) if mode == "lo" else _high(a, b)


@inst(
    "mul.wide.type d:wide, a, b",
    name="mul_wide",
    type=(u32, s32, u16, s16),
    undefined=SUMS,
    section=f"{ARITHMETIC}: mul",
)
def mul_wide(a: Lanes, b: Lanes) -> Lanes:
    """d = a * b, twice as wide as its factors."""
    return np.multiply(a, b, dtype=_double(a))


@inst(
    "mad.mode.type d, a, b, c", mode=("lo", "hi"), type=INTEGERS, undefined=SUMS, section=f"{ARITHMETIC}: mad"
)
def mad(a: Lanes, b: Lanes, c: Lanes, *, mode: str) -> Lanes:
    """d = the lower or the upper half of a * b, plus c, wrapping around."""
    product: Lanes = mul(a, b, mode=mode)
    return np.add(product, c)


@inst(
    "mad.wide.type d:wide, a, b, c:wide",
    name="mad_wide",
    type=(u32, s32, u16, s16),
    undefined=SUMS,
    section=f"{ARITHMETIC}: mad",
)
def mad_wide(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """d = a * b + c, twice as wide as its factors, wrapping around."""
    return np.add(np.multiply(a, b, dtype=_double(a)), c)


@inst("mad.hi.sat.s32 d, a, b, c", name="mad_sat", section=f"{ARITHMETIC}: mad")
def mad_sat(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """d = the upper half of a * b, plus c, clamped to the range of s32."""
    return _clamped(np.add(_high(a, b), c, dtype=np.int64))


@inst("mul24.mode.type d, a, b", mode=("lo", "hi"), type=(u32, s32), section=f"{ARITHMETIC}: mul24")
def mul24(a: Lanes, b: Lanes, *, mode: str) -> Lanes:
    """d = the lower 32 (lo) or the upper 32 (hi) of the 48 bits of the product of the lowest 24
    bits of a and of b; the upper eight bits of a and b are ignored.
    """
    return _product24(a, b, mode)


@inst("mad24.mode.type d, a, b, c", mode=("lo", "hi"), type=(u32, s32), section=f"{ARITHMETIC}: mad24")
@quiet
def mad24(a: Lanes, b: Lanes, c: Lanes, *, mode: str) -> Lanes:
    """d = the result of mul24 plus c, wrapping around."""
    return np.add(_product24(a, b, mode), c)


@inst("mad24.hi.sat.s32 d, a, b, c", name="mad24_sat", section=f"{ARITHMETIC}: mad24")
def mad24_sat(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """d = the result of mul24.hi plus c, clamped to the range of s32."""
    return _clamped(np.add(_product24(a, b, "hi"), c, dtype=np.int64))


def _product24(a: Lanes, b: Lanes, mode: str) -> Lanes:
    x, y = (  # 24 bits, zero- or sign-extended
        np.right_shift(np.left_shift(v, v.dtype.type(8)), v.dtype.type(8)).astype(np.int64) for v in (a, b)
    )
    product: Lanes = np.right_shift(np.multiply(x, y), 16 if mode == "hi" else 0)
    return product.astype(a.dtype)


@inst("sad.type d, a, b, c", type=INTEGERS, section=f"{ARITHMETIC}: sad")
@quiet
def sad(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """d = c + |a - b|, wrapping around."""
    return np.add(c, np.where(a < b, np.subtract(b, a), np.subtract(a, b)))


def _parts(x: Lanes, bits: int) -> list[Lanes]:
    """The 32 bits of `x` as int64 lanes of `bits` bits, lowest first, signed if `x` is."""
    part = np.dtype(f"{x.dtype.kind}{bits // 8}")
    word = x.astype(np.int64)
    return [
        np.right_shift(word, n).astype(f"u{bits // 8}").astype(part).astype(np.int64)
        for n in range(0, 32, bits)
    ]


_DP4A: Final = f"{ARITHMETIC}: dp4a"
_DP2A: Final = f"{ARITHMETIC}: dp2a"
_HALF: Final = ("lo", "hi")


@inst("dp4a.u32.s32 d:s32, a:u32, b:s32, c:s32", ptx=(5, 0), sm=61, section=_DP4A)
@inst("dp4a.s32.btype d:s32, a:s32, b:btype, c:s32", btype=(s32, u32), ptx=(5, 0), sm=61, section=_DP4A)
@inst("dp4a.u32.u32 d:u32, a:u32, b:u32, c:u32", ptx=(5, 0), sm=61, section=_DP4A)
def dp4a(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """d = c + the sum of the products of the four bytes of a and b, wrapping around."""
    total = c.astype(np.int64)
    for x, y in zip(_parts(a, 8), _parts(b, 8), strict=True):
        total = np.add(total, np.multiply(x, y))
    return total.astype(c.dtype)


@inst("dp2a.mode.u32.s32 d:s32, a:u32, b:s32, c:s32", mode=_HALF, ptx=(5, 0), sm=61, section=_DP2A)
@inst(
    "dp2a.mode.s32.btype d:s32, a:s32, b:btype, c:s32",
    mode=_HALF,
    btype=(s32, u32),
    ptx=(5, 0),
    sm=61,
    section=_DP2A,
)
@inst("dp2a.mode.u32.u32 d:u32, a:u32, b:u32, c:u32", mode=_HALF, ptx=(5, 0), sm=61, section=_DP2A)
def dp2a(a: Lanes, b: Lanes, c: Lanes, *, mode: str) -> Lanes:
    """d = c + the sum of the products of the two halves of a and the two lower (lo) or upper (hi)
    bytes of b, wrapping around.
    """
    factors = _parts(b, 8)[2:] if mode == "hi" else _parts(b, 8)[:2]
    total = c.astype(np.int64)
    for x, y in zip(_parts(a, 16), factors, strict=True):
        total = np.add(total, np.multiply(x, y))
    return total.astype(c.dtype)


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
    if a.dtype.kind == "i":  # a negative factor counts 2**64 too much
        high = np.subtract(high, np.add(np.where(a < 0, y, 0), np.where(b < 0, x, 0), dtype=np.uint64))
    result: Lanes = high.astype(a.dtype)
    return result


@inst("div.type d, a, b", type=INTEGERS, section=f"{ARITHMETIC}: div")
def div(a: Lanes, b: Lanes) -> Lanes:
    """d = a / b, rounded towards zero; all ones when b is 0 (PTX does not define that value; the
    assembler's code gives it for every width).
    """
    return np.where(b == 0, ~a.dtype.type(0), _quotient(a, b)).astype(a.dtype)


@inst("rem.type d, a, b", type=INTEGERS, section=f"{ARITHMETIC}: rem")
def rem(a: Lanes, b: Lanes) -> Lanes:
    """d = a - b * (a / b), which has the sign of a; all ones when b is 0, as for div."""
    rest = np.subtract(a, np.multiply(b, _quotient(a, b)))
    return np.where(b == 0, ~a.dtype.type(0), rest).astype(a.dtype)


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


@inst("neg.type d, a", type=SIGNED, undefined=SUMS, section=f"{ARITHMETIC}: neg")
def neg(a: Lanes) -> Lanes:
    """d = -a; the most negative number is its own negative."""
    return np.negative(a)


_EXTREMES: Final = each(
    "operation which function", ("min", "smaller", np.minimum), ("max", "larger", np.maximum)
)


@inst("<operation>.type d, a, b", _EXTREMES, type=INTEGERS, section=f"{ARITHMETIC}: <operation>")
def extreme(a: Lanes, b: Lanes, *, function: Callable[..., Lanes]) -> Lanes:
    """d = the <which> of a and b."""
    return function(a, b)


@inst(
    "<operation><modifiers> d:b32, a:b32, b:b32",
    times(_EXTREMES, each("name modifiers pair rest", ("<operation>_u16x2", ".u16x2", "u16x2", "")))
    + times(
        _EXTREMES,
        each(
            "name modifiers pair relu rest",
            ("<operation>_s16x2", "{.relu}.s16x2", "s16x2", None, ", with .relu at least 0"),
            (
                "<operation>_s16x2_relu",
                ".s16x2.relu",
                "s16x2",
                True,
                ", at least 0 (the other order of the modifiers, which CUDA's headers write)",
            ),
        ),
    ),
    ptx=(8, 0),
    sm=90,
    section=f"{ARITHMETIC}: <operation>",
)
def extreme_of_halves(
    a: Lanes, b: Lanes, *, function: Callable[..., Lanes], pair: str, relu: bool = False
) -> Lanes:
    """d = the <which> of a and b in each of the two 16-bit halves<rest>."""
    return _each_half(lambda x, y: _relu(function(x, y)) if relu else function(x, y), a, b, pair)


@inst(
    "<operation>.<modifiers>",
    _EXTREMES,
    each("modifiers", "relu.s32 d, a, b", "s32.relu d:s32, a:s32, b:s32"),
    name="<operation>_relu",
    ptx=(8, 0),
    sm=90,
    section=f"{ARITHMETIC}: <operation>",
)
def extreme_relu(a: Lanes, b: Lanes, *, function: Callable[..., Lanes]) -> Lanes:
    """d = the <which> of a and b, at least 0."""
    return _relu(function(a, b))


def _relu(x: Lanes) -> Lanes:
    limited: Lanes = np.maximum(x, x.dtype.type(0))
    return limited


# ---------------------------------------- logic and shifts


@inst(
    "<operation>.type d, a, b",
    each(
        "name operation sign function",
        ("and_", "and", "&", np.bitwise_and),
        ("or_", "or", "|", np.bitwise_or),
        ("xor", "xor", "^", np.bitwise_xor),
    ),
    type=LOGICAL,
    undefined=BITWISE,
    section=f"{LOGIC}: <operation>",
)
def logical(a: Lanes, b: Lanes, *, function: Callable[..., Lanes]) -> Lanes:
    """d = a <sign> b, bit by bit."""
    return function(a, b)


@inst("not.type d, a", name="not_", type=LOGICAL, undefined=BITWISE, section=f"{LOGIC}: not")
def not_(a: Lanes) -> Lanes:
    """d = ~a, bit by bit."""
    return np.invert(a)


@inst("cnot.type d, a", type=BITS, section=f"{LOGIC}: cnot")
def cnot(a: Lanes) -> Lanes:
    """d = 1 if a is 0, else 0."""
    return np.equal(a, 0).astype(a.dtype)


@inst("lop3.b32 d, a, b, c, lut:imm", ptx=(4, 3), sm=50, undefined=BITWISE, section=f"{LOGIC}: lop3")
def lop3(a: Lanes, b: Lanes, c: Lanes, lut: int) -> Lanes:
    """d = any function of three bits: for each bit position, bit 4a + 2b + c of lut."""
    # Zeros in all lanes, with a dependence on operands that lut ignores.
    result = np.bitwise_and(np.bitwise_or(np.bitwise_or(a, b), c), np.uint32(0))
    for row in range(8):
        if lut >> row & 1:
            term = np.bitwise_and(a if row & 4 else np.invert(a), b if row & 2 else np.invert(b))
            result = np.bitwise_or(result, np.bitwise_and(term, c if row & 1 else np.invert(c)))
    return result


@inst(
    "lop3.combine.b32 d|p:pred, a, b, c, lut:imm, e:pred",
    name="lop3_pred",
    combine=("or", "and"),
    ptx=(8, 2),
    sm=70,
    undefined=BITWISE,
    section=f"{LOGIC}: lop3",
)
def lop3_pred(a: Lanes, b: Lanes, c: Lanes, lut: int, e: Lanes, *, combine: str) -> tuple[Lanes, Lanes]:
    """d = the result of lop3; p = (d is not 0) <combine> e."""
    d: Lanes = lop3(a, b, c, lut)
    return d, (np.logical_or if combine == "or" else np.logical_and)(d != 0, e)


@inst("shl.type d, a, b:u32", type=BITS, undefined=MOVES_A, section=f"{LOGIC}: shl")
def shl(a: Lanes, b: Lanes) -> Lanes:
    """d = a << b; zero when b is at least the width of a."""
    width = 8 * a.dtype.itemsize
    shifted: Lanes = np.left_shift(a, np.minimum(b, np.uint32(width - 1)).astype(a.dtype))
    return np.where(b < width, shifted, shifted.dtype.type(0))


@inst("shr.type d, a, b:u32", type=(*INTEGERS, *BITS), undefined=MOVES_A, section=f"{LOGIC}: shr")
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
    "shf.dir.mode.b32 d, a, b, c:u32",
    dir=("l", "r"),
    mode=("wrap", "clamp"),
    ptx=(3, 1),
    sm=32,
    undefined=MOVES_AB,
    section=f"{LOGIC}: shf",
)
def shf(a: Lanes, b: Lanes, c: Lanes, *, dir: str, mode: str) -> Lanes:
    """d = the upper (l) or lower (r) half of the 64 bits b:a shifted by c, which is wrapped to
    0..31 or limited to 32.
    """
    amount = np.bitwise_and(c, np.uint32(31)) if mode == "wrap" else np.minimum(c, np.uint32(32))
    pair = np.bitwise_or(np.left_shift(b.astype(np.uint64), np.uint64(32)), a.astype(np.uint64))
    if dir == "r":
        return np.right_shift(pair, amount.astype(np.uint64)).astype(np.uint32)
    return np.right_shift(np.left_shift(pair, amount.astype(np.uint64)), np.uint64(32)).astype(np.uint32)


# ---------------------------------------- bit fields


@inst("popc.type d:u32, a", type=WORDS, ptx=(2, 0), sm=20, section=f"{ARITHMETIC}: popc")
def popc(a: Lanes) -> Lanes:
    """d = the number of one bits of a."""
    return np.bitwise_count(a).astype(np.uint32)


@inst("clz.type d:u32, a", type=WORDS, ptx=(2, 0), sm=20, section=f"{ARITHMETIC}: clz")
def clz(a: Lanes) -> Lanes:
    """d = the number of leading zero bits of a."""
    return (8 * a.dtype.itemsize - np.bitwise_count(_smeared(a)).astype(np.uint32)).astype(np.uint32)


def _smeared(a: Lanes) -> Lanes:
    """All ones from the highest one bit of `a` downwards."""
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
    """d = the position of the highest bit that differs from the sign, or with .shiftamt the left
    shift that brings it to the top; all ones if there is none.
    """
    width = 8 * a.dtype.itemsize
    magnitude = np.where(a < 0, np.invert(a), a).astype(f"u{a.dtype.itemsize}")
    position = np.bitwise_count(_smeared(magnitude)).astype(np.int64) - 1
    moved = np.where(position < 0, -1, width - 1 - position) if shiftamt else position
    return moved.astype(np.uint32)


@inst("brev.type d, a", type=WORDS, ptx=(2, 0), sm=20, undefined=MOVES_A, section=f"{ARITHMETIC}: brev")
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
    undefined=MOVES_A,
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


@inst(
    "bfi.type d, a, b, c:u32, e:u32",
    type=WORDS,
    ptx=(2, 0),
    sm=20,
    undefined=MOVES_AB,
    section=f"{ARITHMETIC}: bfi",
)
def bfi(a: Lanes, b: Lanes, c: Lanes, e: Lanes) -> Lanes:
    """d = b with the e bits from bit c on replaced by the lowest bits of a; c and e count modulo
    256.
    """
    start, length = (np.bitwise_and(x, np.uint32(255)) for x in (c, e))
    mask = shl(ones(length.astype(np.int64), a.dtype), start)
    field: Lanes = np.bitwise_and(shl(a, start), mask)
    rest: Lanes = np.bitwise_and(b, np.invert(mask))
    return np.bitwise_or(field, rest)


def ones(length: Lanes, dtype: np.dtype[Any]) -> Lanes:
    """`length` ones in the lowest bits of an unsigned `dtype`."""
    width = 8 * dtype.itemsize
    full = np.invert(dtype.type(0))
    shifted = np.right_shift(full, np.clip(width - length, 0, width - 1).astype(dtype))
    mask: Lanes = np.where(length == 0, dtype.type(0), shifted)
    return mask


def shl_right(a: Lanes, amount: Lanes) -> Lanes:
    """Unsigned a >> amount, zero when the amount is at least the width."""
    width = 8 * a.dtype.itemsize
    shifted: Lanes = np.right_shift(a, np.minimum(amount, width - 1).astype(a.dtype))
    return np.where(amount < width, shifted, shifted.dtype.type(0))


@inst(
    "bmsk.mode.b32 d, a:u32, b:u32", mode=("clamp", "wrap"), ptx=(7, 6), sm=70, section=f"{ARITHMETIC}: bmsk"
)
def bmsk(a: Lanes, b: Lanes, *, mode: str) -> Lanes:
    """d = b ones from bit a on; a and b count modulo 32 (wrap), or bits beyond 31 are cut off (clamp)."""
    if mode == "wrap":
        a, b = (np.bitwise_and(x, np.uint32(31)) for x in (a, b))
    mask: Lanes = shl(ones(np.minimum(b, np.uint32(32)).astype(np.int64), np.dtype(np.uint32)), a)
    return mask


@inst(
    "szext.mode.type d, a, b:u32",
    mode=("clamp", "wrap"),
    type=(u32, s32),
    ptx=(7, 6),
    sm=70,
    undefined=MOVES_A,
    section=f"{ARITHMETIC}: szext",
)
def szext(a: Lanes, b: Lanes, *, mode: str) -> Lanes:
    """d = the lowest b bits of a, zero- or sign-extended; b counts modulo 32 (wrap), or a b from 32
    on leaves a unchanged (clamp).
    """
    length = np.bitwise_and(b, np.uint32(31)) if mode == "wrap" else np.minimum(b, np.uint32(32))
    extended: Lanes = bfe(a, np.uint32(0), length)
    return extended


@inst("fns.b32 d, mask, base, offset:s32", ptx=(6, 0), sm=30, section=f"{ARITHMETIC}: fns")
def fns(mask: Lanes, base: Lanes, offset: Lanes) -> Lanes:
    """d = the position of the |offset|-th one bit of mask, counted from bit base upwards, or
    downwards if offset is negative; bit base itself counts as the first, and must be one if offset
    is 0. All ones if there is none, or if base is above 31 (PTX does not define that case).
    """
    wanted = np.maximum(np.abs(offset.astype(np.int64)), 1)
    first = base.astype(np.int64)
    step = np.where(offset > 0, 1, np.where(offset < 0, -1, 99))  # 99: nowhere
    result: Any = np.uint32(0xFFFFFFFF)
    for distance in range(32):
        position = first + step * distance
        bit = np.right_shift(mask, np.clip(position, 0, 31).astype(np.uint32))
        inside = (first < 32) & (position >= 0) & (position < 32)
        one = inside & (np.bitwise_and(bit, np.uint32(1)) == 1)
        result = np.where(one & (wanted == 1), position.astype(np.uint32), result)
        wanted = wanted - one
    return result  # type: ignore[no-any-return]


PRMT_MODES: Final = ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")


@inst(
    "prmt.b32{.mode} d:b32, a:b32, b:b32, c:b32",
    mode=PRMT_MODES,
    ptx=(2, 0),
    sm=20,
    undefined=MOVES_AB,
    section=f"{MOVEMENT}: prmt",
)
def prmt(a: Lanes, b: Lanes, c: Lanes, *, mode: str | None) -> Lanes:
    """d = four bytes of the eight bytes b:a, each selected by a nibble of c (whose top bit
    replicates the byte's sign) or by mode and c.
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
        byte = np.bitwise_and(np.right_shift(pair, np.multiply(index, np.uint64(8))), np.uint64(255))
        sign = np.where(byte >= 128, np.uint64(255), np.uint64(0))
        byte = np.where(np.bitwise_and(pick, np.uint32(8)) != 0, sign, byte)
        result = np.bitwise_or(result, np.left_shift(byte, np.uint64(8 * n)))
    chosen: Lanes = result.astype(np.uint32)
    return chosen


def _pick(c: Lanes, mode: str, n: int) -> Lanes:
    """The index of the byte, of eight, that goes to byte n (the manual's table of prmt modes)."""
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


# ---------------------------------------- video instructions
#
# The manual's selectors of bytes (`a.b0`) and masks (`d.b310`) are not declared: every part of d is
# computed from the same parts of a and b, and c counts only with .add. Operands are b32 because the
# opcode's types apply to the parts, and no operand may be a literal.


def _rounded_half(x: Lanes, y: Lanes) -> Lanes:
    total: Lanes = np.add(x, y)
    rounded: Lanes = np.right_shift(np.add(total, total >= 0), 1)
    return rounded


_LANEWISE: Final = each(
    "operation function value",
    ("vadd", np.add, "x + y"),
    ("vsub", np.subtract, "x - y"),
    ("vavrg", _rounded_half, "the average of x and y, halves rounded away from zero"),
    ("vabsdiff", lambda x, y: np.abs(np.subtract(x, y)), "|x - y|"),
    ("vmin", np.minimum, "the smaller of x and y"),
    ("vmax", np.maximum, "the larger of x and y"),
)
_COMPARED: Final[dict[str, Callable[..., Any]]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_WORD: Final = (u32, s32)


def _apart(parts: list[Lanes], c: Lanes, bits: int) -> Lanes:
    """Parts of `bits` bits, lowest first, in one uint32; higher bits are cut off. `c` is an
    operand, but no bit of it is kept.
    """
    total = np.zeros(np.broadcast_shapes(parts[0].shape, c.shape), np.int64)
    for n, part in enumerate(parts):
        cut = np.bitwise_and(part, (1 << bits) - 1)
        total = np.bitwise_or(total, np.left_shift(cut, n * bits))
    return total.astype(np.uint32)


def _added(parts: list[Lanes], c: Lanes) -> Lanes:
    total = c.astype(np.int64)
    for part in parts:
        total = np.add(total, part)
    return total.astype(np.uint32)


@inst(
    "<operation><count>.<types><rest> d:b32, a:b32, b:b32, c:b32",
    each("count part bits", (2, "half", 16), (4, "byte", 8)),
    times(
        _LANEWISE,
        each(
            "name types rest summed does",
            (
                "<operation><count>",
                "dtype.atype.btype",
                "{.sat}",
                False,
                "Each <part> of d = <value>, for each <part> x of a and y of b, cut off or with .sat clamped",
            ),
            (
                "<operation><count>_add",
                "dtype.atype.btype",
                ".add",
                True,
                "d = c + the sum of <value>, for each <part> x of a and y of b",
            ),
        ),
    )
    + each(
        "name operation types rest summed does",
        (
            "vset<count>",
            "vset",
            "atype.btype.cmp",
            "",
            False,
            "Each <part> of d = 1 if the <part> of a <cmp> the <part> of b, else 0",
        ),
        (
            "vset<count>_add",
            "vset",
            "atype.btype.cmp",
            ".add",
            True,
            "d = c + the number of <part>s of a that are <cmp> the <part> of b",
        ),
    ),
    dtype=_WORD,
    atype=_WORD,
    btype=_WORD,
    cmp=tuple(_COMPARED),
    ptx=(3, 0),
    sm=30,
    section=f"{VIDEO}: <operation><count>",
)
def video(
    a: Lanes,
    b: Lanes,
    c: Lanes,
    *,
    bits: int,
    summed: bool,
    atype: ScalarType,
    btype: ScalarType,
    function: Callable[..., Any] | None = None,
    cmp: str = "",
    dtype: ScalarType = u32,
    sat: bool = False,
) -> Lanes:
    """<does>."""
    x, y = _parts(a.astype(atype.dtype), bits), _parts(b.astype(btype.dtype), bits)
    combine = function or _COMPARED[cmp]
    parts = [combine(*pair).astype(np.int64) for pair in zip(x, y, strict=True)]
    if summed:
        return _added(parts, c)
    if sat:
        low = -(1 << bits - 1) if dtype.is_signed else 0
        parts = [np.clip(part, low, low + (1 << bits) - 1) for part in parts]
    return _apart(parts, c, bits)
