"""What every row means, said a second time in plain Python: exact numbers, one lane at a time.

`MEANING` has a line for each syntax in the table whose effect is `NONE`. Its function takes the
modifiers and the operands of one lane: integers as `int`, predicates as `bool`, floats as
`Fraction` when all of them are finite and as `float` otherwise. It returns an `int` (which is
wrapped to the width of the result), a `bool`, or a number that the caller rounds once as the
modifiers say. `MEMORY`, `WARP` and `CALLS` do the same for the other effects.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace as M
from typing import Any

from isa import (
    cases_control,
    cases_convert,
    cases_floats,
    cases_hopper,
    cases_integer,
    cases_matrix,
    cases_memory,
    cases_textures,
)
from isa.cases_convert import clamp
from isa.cases_floats import inverse_root, total

from ptxgen.isa import table

# ---------------------------------------- rounding

FORMATS = {  # type: significant bits, smallest exponent of a normal number, largest one
    "f64": (53, -1022, 1023),
    "f32": (24, -126, 127),
    "f16": (11, -14, 15),
    "bf16": (8, -126, 127),
    "tf32": (11, -126, 127),
}


def rounded(x: Fraction, format: str, rnd: str) -> float:
    """`x` rounded to the format by the definition of the rounding, with integers only. 0 is +0."""
    precision, low, high = FORMATS[format]
    if x == 0:
        return 0.0
    sign = 1 if x > 0 else -1
    exponent = x.numerator.bit_length() - x.denominator.bit_length()  # or one less
    exponent = max(low, exponent if abs(x) >= Fraction(2) ** exponent else exponent - 1)
    ulp = Fraction(2) ** (exponent - precision + 1)
    down = math.floor(x / ulp)
    rest = x / ulp - down
    half = Fraction(1, 2)
    up = {
        "rm": False,
        "rp": rest > 0,
        "rz": rest > 0 and x < 0,
        "rn": rest > half or (rest == half and down % 2 == 1),
        "rna": rest > half or (rest == half and x > 0),
    }[rnd]
    whole = (down + up) * ulp
    if abs(whole) >= Fraction(2) ** (high + 1):
        stays = rnd == "rz" or (rnd == "rm" and x > 0) or (rnd == "rp" and x < 0)
        largest = (2 - Fraction(2) ** (1 - precision)) * Fraction(2) ** high
        return sign * (float(largest) if stays else math.inf)
    return sign * abs(float(whole))


# ---------------------------------------- floats


def reciprocal(m: M, a: Any) -> Any:
    return 1 / a if a else math.copysign(math.inf, m.floats[0])


def quotient(m: M, a: Any, b: Any) -> Any:
    signs = [math.copysign(1.0, x) for x in m.floats]
    if getattr(m, "mode", "") == "approx" and math.isfinite(b) and abs(b) > 2.0**126:
        return 0.0 * signs[0] * signs[1] if math.isfinite(a) else math.nan
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.inf * signs[0] * signs[1]
    return a / b


def ordered(m: M, choose: Callable[..., float]) -> float:
    """min or max, where the sign decides between zeros."""
    numbers = [x for x in m.floats if not math.isnan(x)]
    if not numbers or (len(numbers) == 1 and getattr(m, "NaN", None)):
        return math.nan
    return choose(numbers, key=lambda x: (x, math.copysign(1.0, x)))


def smaller(m: M, *_: Any) -> float:
    return ordered(m, min)


def larger(m: M, *_: Any) -> float:
    return ordered(m, max)


def kind_of(m: M, a: float) -> bool:
    smallest = 2.0**-126 if m.type.bits == 32 else 2.0**-1022
    subnormal = 0 < abs(a) < smallest
    return {
        "finite": math.isfinite(a),
        "infinite": math.isinf(a),
        "number": not math.isnan(a),
        "notanumber": math.isnan(a),
        "normal": math.isfinite(a) and not subnormal,
        "subnormal": subnormal,
    }[m.op]


# ---------------------------------------- integers


def halves(m: M, product: int) -> int:
    return product >> m.type.bits if m.mode == "hi" else product


def divided(a: int, b: int) -> int:
    return -1 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def remainder(a: int, b: int) -> int:
    return -1 if b == 0 else a - b * divided(a, b)


def bits_of(m: M, a: int) -> str:
    return format(a % (1 << m.type.bits), f"0{m.type.bits}b")


def found(m: M, a: int) -> int:
    width = m.type.bits
    differing = [n for n in range(width) if (a >> n & 1) != (a < 0)]
    if not differing:
        return 0xFFFFFFFF
    return width - 1 - differing[-1] if m.shiftamt else differing[-1]


def field(m: M, a: int, b: int, c: int) -> int:
    """The manual's loop for bfe, bit by bit."""
    top, start, length = m.type.bits - 1, b & 255, c & 255
    sign = 0 if not m.type.is_signed or length == 0 else a >> min(start + length - 1, top) & 1
    picked = [a >> start + n & 1 if n < length and start + n <= top else sign for n in range(top + 1)]
    return sum(bit << n for n, bit in enumerate(picked))


def inserted(m: M, a: int, b: int, c: int, e: int) -> int:
    """The manual's loop for bfi, bit by bit."""
    start, length = c & 255, e & 255
    for n in range(min(length, m.type.bits)):
        if start + n < m.type.bits:
            b = b & ~(1 << start + n) | (a >> n & 1) << start + n
    return b


def looked_up(_: M, a: int, b: int, c: int, lut: int) -> int:
    return sum((lut >> ((a >> n & 1) << 2 | (b >> n & 1) << 1 | c >> n & 1) & 1) << n for n in range(32))


def funnel(m: M, a: int, b: int, c: int) -> int:
    n = c % 32 if m.mode == "wrap" else min(c, 32)
    return (b << 32 | a) >> n if m.dir == "r" else (b << 32 | a) << n >> 32


PRMT = {  # the manual's tables: the bytes picked for c = 0, 1, 2, 3, the lowest byte first
    "f4e": ("0123", "1234", "2345", "3456"),
    "b4e": ("0765", "1076", "2107", "3210"),
    "rc8": ("0000", "1111", "2222", "3333"),
    "ecl": ("0123", "1123", "2223", "3333"),
    "ecr": ("0000", "0111", "0122", "0123"),
    "rc16": ("0101", "2323", "0101", "2323"),
}


def permuted(m: M, a: int, b: int, c: int) -> int:
    source = struct.pack("<II", a, b)
    if m.mode:
        return int.from_bytes(bytes(source[int(n)] for n in PRMT[m.mode][c & 3]), "little")
    out = []
    for n in range(4):
        pick = c >> 4 * n & 15
        byte = source[pick & 7]
        out.append((255 if byte & 128 else 0) if pick & 8 else byte)
    return int.from_bytes(bytes(out), "little")


def shifted_right(m: M, a: int, b: int) -> int:
    return a >> min(b, m.type.bits)


def packed(width: int, a: tuple[int, ...]) -> int:
    return sum(part << n * width for n, part in enumerate(a))


def unpacked(width: int, count: int, a: int) -> tuple[int, ...]:
    return tuple(a >> n * width & (1 << width) - 1 for n in range(count))


# ---------------------------------------- one line a row


def add(_: M, a: Any, b: Any) -> Any:
    return a + b


def sub(_: M, a: Any, b: Any) -> Any:
    return a - b


def mul(_: M, a: Any, b: Any) -> Any:
    return a * b


def fma(_: M, a: Any, b: Any, c: Any) -> Any:
    return a * b + c


def same(_: M, a: Any) -> Any:
    return a


def negated(_: M, a: Any) -> Any:
    return -a


def absolute(_: M, a: Any) -> Any:
    return abs(a)


MEANING: dict[str, Callable[..., Any]] = {
    # integers
    "add.type d, a, b": add,
    "add{.sat}.s32 d, a, b": lambda m, a, b: clamp(a + b, 32, True) if m.sat else a + b,
    "sub.type d, a, b": sub,
    "sub{.sat}.s32 d, a, b": lambda m, a, b: clamp(a - b, 32, True) if m.sat else a - b,
    "mul.mode.type d, a, b": lambda m, a, b: halves(m, a * b),
    "mul.wide.type d:wide, a, b": mul,
    "mad.mode.type d, a, b, c": lambda m, a, b, c: halves(m, a * b) + c,
    "mad.wide.type d:wide, a, b, c:wide": fma,
    "div.type d, a, b": lambda _, a, b: divided(a, b),
    "rem.type d, a, b": lambda _, a, b: remainder(a, b),
    "abs.type d, a": absolute,  # of integers, and of bf16
    "neg.type d, a": negated,  # of integers, and of bf16
    "min.type d, a, b": lambda _, a, b: min(a, b),
    "max.type d, a, b": lambda _, a, b: max(a, b),
    "and.type d, a, b": lambda _, a, b: a & b,
    "or.type d, a, b": lambda _, a, b: a | b,
    "xor.type d, a, b": lambda _, a, b: a ^ b,
    "not.type d, a": lambda m, a: not a if m.type.name == "pred" else ~a,
    "lop3.b32 d, a, b, c, lut:imm": looked_up,
    "shl.type d, a, b:u32": lambda m, a, b: a << min(b, m.type.bits),
    "shr.type d, a, b:u32": shifted_right,
    "shf.dir.mode.b32 d, a, b, c:u32": funnel,
    "popc.type d:u32, a": lambda m, a: bits_of(m, a).count("1"),
    "clz.type d:u32, a": lambda m, a: m.type.bits - a.bit_length(),
    "bfind{.shiftamt}.type d:u32, a": found,
    "brev.type d, a": lambda m, a: int(bits_of(m, a)[::-1], 2),
    "bfe.type d, a, b:u32, c:u32": field,
    "bfi.type d, a, b, c:u32, e:u32": inserted,
    "prmt.b32{.mode} d:b32, a:b32, b:b32, c:b32": permuted,
    # floats
    "add.rnd{.ftz}{.sat}.f32 d, a, b": add,
    "add.rnd.f64 d, a, b": add,
    "add.rnd{.ftz}{.sat}.type d, a, b": add,
    "add.rnd.type d, a, b": add,
    "sub.rnd{.ftz}{.sat}.f32 d, a, b": sub,
    "sub.rnd.f64 d, a, b": sub,
    "sub.rnd{.ftz}{.sat}.type d, a, b": sub,
    "sub.rnd.type d, a, b": sub,
    "mul.rnd{.ftz}{.sat}.f32 d, a, b": mul,
    "mul.rnd.f64 d, a, b": mul,
    "mul.rnd{.ftz}{.sat}.type d, a, b": mul,
    "mul.rnd.type d, a, b": mul,
    "fma.rnd{.ftz}{.sat}.f32 d, a, b, c": fma,
    "fma.rnd.f64 d, a, b, c": fma,
    "fma.rnd{.ftz}{.sat}.type d, a, b, c": fma,
    "fma.rnd{.ftz}.relu.type d, a, b, c": fma,
    "fma.rnd{.relu}.type d, a, b, c": fma,
    "neg{.ftz}.f32 d, a": negated,
    "neg.f64 d, a": negated,
    "neg{.ftz}.type d, a": negated,
    "abs{.ftz}.f32 d, a": absolute,
    "abs.f64 d, a": absolute,
    "abs{.ftz}.type d, a": absolute,
    "min{.ftz}{.NaN}.f32 d, a, b": smaller,
    "min.f64 d, a, b": smaller,
    "min{.ftz}{.NaN}.type d, a, b": smaller,
    "min{.NaN}.type d, a, b": smaller,
    "max{.ftz}{.NaN}.f32 d, a, b": larger,
    "max.f64 d, a, b": larger,
    "max{.ftz}{.NaN}.type d, a, b": larger,
    "max{.NaN}.type d, a, b": larger,
    "copysign.type d, a, b": lambda m, *_: math.copysign(m.floats[1], m.floats[0]),
    "testp.op.type p:pred, a": kind_of,
    "div.rnd{.ftz}.f32 d, a, b": quotient,
    "div.rnd.f64 d, a, b": quotient,
    "div.mode{.ftz}.f32 d, a, b": quotient,
    "rcp.approx{.ftz}.f32 d, a": reciprocal,
    "rcp.rnd{.ftz}.f32 d, a": reciprocal,
    "rcp.rnd.f64 d, a": reciprocal,
    "sqrt.approx{.ftz}.f32 d, a": total(math.sqrt),
    "rsqrt.approx{.ftz}.f32 d, a": total(inverse_root),
    "ex2.approx{.ftz}.f32 d, a": total(math.exp2),
    "lg2.approx{.ftz}.f32 d, a": total(lambda a: math.log2(a) if a else -math.inf),
    "sin.approx{.ftz}.f32 d, a": total(math.sin),
    "cos.approx{.ftz}.f32 d, a": total(math.cos),
    "tanh.approx.f32 d, a": total(math.tanh),
    # data movement
    "mov.type d, a": same,
    "mov.b32 d, a:b16*2": lambda _, a: packed(16, a),
    "mov.b64 d, a:b32*2": lambda _, a: packed(32, a),
    "mov.b64 d, a:b16*4": lambda _, a: packed(16, a),
    "mov.b128 d, a:b64*2": lambda _, a: packed(64, a),
    "mov.b128 d:b64*2, a": lambda _, a: unpacked(64, 2, a),
    "mov.vec.type d*vec, a*vec": lambda _, a: a,
    "mov.b32 d, a:byte*4": lambda _, a: packed(8, a),
    "mov.b16 d, a:byte*2": lambda _, a: packed(8, a),
    "mov.b32 d:b16*2, a": lambda _, a: unpacked(16, 2, a),
    "mov.b64 d:b32*2, a": lambda _, a: unpacked(32, 2, a),
    "mov.b64 d:b16*4, a": lambda _, a: unpacked(16, 4, a),
    "mov.b32 d:byte*4, a": lambda _, a: unpacked(8, 4, a),
    "mov.b16 d:byte*2, a": lambda _, a: unpacked(8, 2, a),
    "prefetch.global.level [addr:u64]": lambda *_: (),
}

# The old values in memory and the operands of one lane; the new values and d (None: no d).
MEMORY: dict[str, Callable[..., Any]] = {}

# ---------------------------------------- warps


def shuffled(m: M, lane: int, warp: list[M]) -> tuple[int, bool]:
    """The four drawings of the manual: segments of 32 - mask lanes, which a lane does not leave."""
    me = warp[lane]
    n, c, mask = me.b & 31, me.c & 31, me.c >> 8 & 31
    first, last = lane & mask, lane & mask | c & ~mask
    source = {"up": lane - n, "down": lane + n, "bfly": lane ^ n, "idx": first | n & ~mask}[m.mode]
    inside = source >= last if m.mode == "up" else source <= last
    return warp[source if inside else lane].a, inside


def votes(lane: int, warp: list[M]) -> list[bool]:
    return [bool(x.a) for n, x in enumerate(warp) if warp[lane].membermask >> n & 1 and x.active]


def voted(m: M, lane: int, warp: list[M]) -> bool:
    cast = votes(lane, warp)
    return {"any": any(cast), "all": all(cast), "uni": all(cast) or not any(cast)}[m.mode]


def members(lane: int, warp: list[M]) -> list[int]:
    return [n for n, x in enumerate(warp) if warp[lane].membermask >> n & 1 and x.active]


def reduced(m: M, lane: int, warp: list[M]) -> int:
    values = [warp[n].a for n in members(lane, warp)]
    result = values[0]
    for value in values[1:]:
        result = cases_memory.UPDATE[m.op](result, value)
    return result


# The modifiers, a lane's number, the operands of all lanes of its warp; the result of that lane.
WARP: dict[str, Callable[..., Any]] = {
    "shfl.sync.mode.b32 d, a, b:u32, c:u32, membermask:u32": lambda m, n, w: shuffled(m, n, w)[0],
    "shfl.sync.mode.b32 d|p:pred, a, b:u32, c:u32, membermask:u32": shuffled,
    "vote.sync.mode.pred p:pred, a:pred, membermask:u32": voted,
    "vote.sync.ballot.b32 d, a:pred, membermask:u32": lambda _, n, w: sum(
        1 << i for i in members(n, w) if w[i].a
    ),
    "activemask.b32 d": lambda *a: sum(1 << i for i, x in enumerate(a[2]) if x.active),
    "redux.sync.op.type d, a, membermask:u32": reduced,
    "elect.sync d:b32|p:pred, membermask:u32": lambda _, n, w: (min(members(n, w)), n == min(members(n, w))),
    "bar.warp.sync membermask:u32": lambda *_: (),
}

# ---------------------------------------- everything else

# What the machine is asked to do: method and arguments; strings name operands and modifiers.
CALLS: dict[str, list[tuple[Any, ...]]] = {
    "bra{.uni} target:label": [],
    "ret{.uni}": [],
    "exit": [],
    "trap": [("trap", "=trap instruction")],
    "bar.sync a:u32{, b:u32}": [("barrier", "a", "b", {"wait": True})],
    "bar.arrive a:u32, b:u32": [("barrier", "a", "b", {"wait": False})],
    "membar.level": [("fence", "level")],
    "fence.sem.scope": [("fence", "scope")],
    "cp.async.ca.shared.global{.prefetch} [dst:u32], [src:u64], cp_size:imm{, src_size:u32}": [
        ("copy_async", "dst", "src", "cp_size", "src_size")
    ],
    "cp.async.cg.shared.global{.prefetch} [dst:u32], [src:u64], 16{, src_size:u32}": [
        ("copy_async", "dst", "src", 16, "src_size")
    ],
    "cp.async.commit_group": [("copy_async_commit",)],
    "cp.async.wait_group n:imm": [("copy_async_wait", "n")],
    "cp.async.wait_all": [("copy_async_wait", None)],
}

# Rows that have test files of their own: tests/isa/test_hopper.py, tests/isa/test_narrow_matrix.py,
# tests/interpreter/machine/test_tcgen05*.py.
ELSEWHERE: frozenset[str] = cases_hopper.ELSEWHERE | {
    row.syntax
    for rows in table.rows().values()
    for row in rows
    if (row.pieces[0].name == "tcgen05" or "row.col.kind::" in row.syntax) and not row.unmodelled
}

# ---------------------------------------- operands

# Literals that an `imm` operand may be; the first is used in the text given to the assembler.
IMMEDIATES: dict[str, tuple[int, ...]] = {
    "cp_size": (16, 8, 4),
    "lut": (0xE8, 0x96, 0x00, 0xFF, 0x1B),
    "n": (0, 1, 7),
}

for _part in (
    *(cases_control, cases_convert, cases_floats, cases_hopper, cases_integer, cases_matrix, cases_memory),
    cases_textures,
):
    MEANING.update(_part.MEANING)
    MEMORY.update(_part.MEMORY)
    WARP.update(_part.WARP)
    CALLS.update(_part.CALLS)
    IMMEDIATES.update(_part.IMMEDIATES)
