"""mma, wmma, ldmatrix, stmatrix and movmatrix rows, said a second time: `test_matrix.py` runs them.

The places of elements are the manual's formulas, one for each shape, by lane and number of the
element. A meaning in `WARP` takes the op's opcode as a list of words and the operands of one warp,
and gives what each lane gets; those of wmma, whose fragments the manual leaves open, take matrices.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from fractions import Fraction
from typing import Any

MEANING: dict[str, Callable[..., Any]] = {}
MEMORY: dict[str, Callable[..., Any]] = {}
CALLS: dict[str, list[tuple[Any, ...]]] = {}
IMMEDIATES: dict[str, tuple[int, ...]] = {}

# ---------------------------------------- numbers

BITS = {
    "f64": 64,
    "f32": 32,
    "s32": 32,
    "tf32": 32,
    "f16": 16,
    "bf16": 16,
    "e4m3": 8,
    "e5m2": 8,
    "s8": 8,
    "u8": 8,
    "s4": 4,
    "u4": 4,
    "b1": 1,
}
SPLIT = {  # exponent bits, stored significant bits
    "f64": (11, 52),
    "f32": (8, 23),
    "tf32": (8, 23),
    "bf16": (8, 7),
    "f16": (5, 10),
    "e5m2": (5, 2),
    "e4m3": (4, 3),
}


def value_of(type: str, bits: int) -> Any:
    """The number that finite bits stand for."""
    if type in ("u8", "u4", "b1"):
        return bits
    if type in ("s8", "s4", "s32"):
        return bits - (bits >> BITS[type] - 1 << BITS[type])
    if type == "tf32":
        bits &= ~0x1FFF
    exponent_bits, stored = SPLIT[type]
    sign = -1 if bits >> exponent_bits + stored else 1
    exponent = bits >> stored & (1 << exponent_bits) - 1
    fraction = bits & (1 << stored) - 1
    bias = (1 << exponent_bits - 1) - 1
    whole = fraction + (1 << stored if exponent else 0)
    return sign * whole * Fraction(2) ** (max(exponent, 1) - bias - stored)


def elements_of(type: str, registers: list[int]) -> list[Any]:
    """The values side by side in registers, the lowest bits first."""
    bits = BITS[type]
    width = max(bits, 32)
    mask = (1 << bits) - 1
    return [value_of(type, r >> at & mask) for r in registers for at in range(0, width, bits)]


# ---------------------------------------- places


# Row and column of element i of A and of B, with g = %laneid >> 2 and t = %laneid % 4.
Place = Callable[[int, int, int], tuple[int, int]]

PLACES_A: dict[tuple[str, int], Place] = {
    ("m8n8k4", 64): lambda g, t, _: (g, t),
    ("m16n8k4", 64): lambda g, t, i: (g if i == 0 else g + 8, t),
    ("m16n8k8", 64): lambda g, t, i: (g if i in (0, 2) else g + 8, t if i in (0, 1) else t + 4),
    ("m16n8k16", 64): lambda g, t, i: (g, i * 2 + t) if i % 2 == 0 else (g + 8, i * 2 - 2 + t),
    ("m16n8k4", 32): lambda g, t, i: (g if i == 0 else g + 8, t),
    ("m16n8k8", 32): lambda g, t, i: (g if i in (0, 2) else g + 8, t if i in (0, 1) else t + 4),
    ("m16n8k8", 16): lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)),
    ("m16n8k16", 16): lambda g, t, i: (
        g if 0 <= i < 2 or 4 <= i < 6 else g + 8,
        t * 2 + (i & 1) if i < 4 else t * 2 + (i & 1) + 8,
    ),
    ("m8n8k16", 8): lambda g, t, i: (g, t * 4 + i),
    ("m16n8k16", 8): lambda g, t, i: (g if i < 4 else g + 8, t * 4 + (i & 3)),
    ("m16n8k32", 8): lambda g, t, i: (
        g if 0 <= i < 4 or 8 <= i < 12 else g + 8,
        t * 4 + (i & 3) if i < 8 else t * 4 + (i & 3) + 16,
    ),
    ("m8n8k32", 4): lambda g, t, i: (g, t * 8 + i),
    ("m16n8k32", 4): lambda g, t, i: (g if i < 8 else g + 8, t * 8 + (i & 7)),
    ("m16n8k64", 4): lambda g, t, i: (
        g if 0 <= i < 8 or 16 <= i < 24 else g + 8,
        t * 8 + (i & 7) if i < 16 else t * 8 + (i & 7) + 32,
    ),
    ("m8n8k128", 1): lambda g, t, i: (g, t * 32 + i),
    ("m16n8k128", 1): lambda g, t, i: (g if i < 32 else g + 8, t * 32 + (i & 31)),
    ("m16n8k256", 1): lambda g, t, i: (
        g if 0 <= i < 32 or 64 <= i < 96 else g + 8,
        t * 32 + (i & 31) if i < 64 else t * 32 + (i & 31) + 128,
    ),
}
PLACES_B: dict[tuple[str, int], Place] = {
    ("m8n8k4", 64): lambda g, t, _: (t, g),
    ("m16n8k4", 64): lambda g, t, _: (t, g),
    ("m16n8k8", 64): lambda g, t, i: (t if i == 0 else t + 4, g),
    ("m16n8k16", 64): lambda g, t, i: (t + i * 4, g),
    ("m16n8k4", 32): lambda g, t, _: (t, g),
    ("m16n8k8", 32): lambda g, t, i: (t if i == 0 else t + 4, g),
    ("m16n8k8", 16): lambda g, t, i: (t * 2 + i, g),
    ("m16n8k16", 16): lambda g, t, i: (t * 2 + (i & 1) if i < 2 else t * 2 + (i & 1) + 8, g),
    ("m8n8k16", 8): lambda g, t, i: (t * 4 + i, g),
    ("m16n8k16", 8): lambda g, t, i: (t * 4 + i, g),
    ("m16n8k32", 8): lambda g, t, i: (t * 4 + (i & 3) if i < 4 else t * 4 + (i & 3) + 16, g),
    ("m8n8k32", 4): lambda g, t, i: (t * 8 + i, g),
    ("m16n8k32", 4): lambda g, t, i: (t * 8 + i, g),
    ("m16n8k64", 4): lambda g, t, i: (t * 8 + (i & 7) if i < 8 else t * 8 + (i & 7) + 32, g),
    ("m8n8k128", 1): lambda g, t, i: (t * 32 + i, g),
    ("m16n8k128", 1): lambda g, t, i: (t * 32 + i, g),
    ("m16n8k256", 1): lambda g, t, i: (t * 32 + (i & 31) if i < 32 else t * 32 + (i & 31) + 128, g),
}


def place_c(lane: int, i: int) -> tuple[int, int]:
    """Row and column of an accumulator; with eight rows there are only two."""
    group, thread = lane >> 2, lane % 4
    return group if i < 2 else group + 8, thread * 2 + (i & 1)


# mma.m8n8k4 on f16: which of the four products, row and column.


def quad(lane: int) -> int:
    return next(n for n in range(4) if lane in (*range(4 * n, 4 * n + 4), *range(16 + 4 * n, 20 + 4 * n)))


def place_quad_a(layout: str, lane: int, i: int) -> tuple[int, int, int]:
    up = 0 if lane < 16 else 4
    return (quad(lane), lane % 4 + up, i) if layout == "row" else (quad(lane), i + up, lane % 4)


def place_quad_b(layout: str, lane: int, i: int) -> tuple[int, int, int]:
    up = 0 if lane < 16 else 4
    return (quad(lane), lane % 4, i + up) if layout == "row" else (quad(lane), i, lane % 4 + up)


def place_quad_c(type: str, lane: int, i: int) -> tuple[int, int, int]:
    up = 0 if lane < 16 else 4
    if type == "f16":
        return quad(lane), lane % 4 + up, i
    return quad(lane), (lane & 0b1) + (i & 0b10) + up, (i & 0b100) + (lane & 0b10) + (i & 0b1)


# ---------------------------------------- products


class Sum:
    """An exact sum, the sum of the sizes of its terms, and its terms in order."""

    def __init__(self, c: Any) -> None:
        self.exact, self.size, self.terms = c, abs(c), [(1, c)]

    def add(self, x: Any, y: Any) -> None:
        self.exact += x * y
        self.size += abs(x * y)
        self.terms.append((x, y))


def multiplied(
    a: dict[Any, Any], b: dict[Any, Any], c: dict[Any, Any], op: str | None = None
) -> dict[Any, Any]:
    """D of matrices given as `{(…, row, column): value}`; `op` combines single bits."""
    depth = 1 + max(location[-1] for location in a)
    out = {}
    for location, start in c.items():
        *which, row, column = location
        total = out[location] = Sum(start)
        for k in range(depth):
            x, y = a[(*which, row, k)], b[(*which, k, column)]
            if op is None:
                total.add(x, y)
            else:
                total.add({"xor": x ^ y, "and": x & y}[op], 1)
    return out


Warp = dict[str, list[list[int]]]  # by operand: the registers of each lane, as bits


def collected(type: str, lanes: list[list[int]], place: Callable[[int, int], Any]) -> Any:
    return {
        place(lane, i): x
        for lane, registers in enumerate(lanes)
        for i, x in enumerate(elements_of(type, registers))
    }


def mma_types(words: list[str]) -> tuple[str, str, str, str]:
    """Types of D, A, B and C: the last four words that name types."""
    d, a, b, c = [w for w in words if w in BITS][-4:]
    return d, a, b, c


def mma(words: list[str], warp: Warp) -> list[list[Sum]]:
    shape = next(w for w in words if w[0] == "m" and w[1:2].isdigit())
    d, a, b, c = mma_types(words)
    op = words[-2] if words[-1] == "popc" else None
    if shape == "m8n8k4" and a == "f16":
        at = words.index(shape)
        sums = multiplied(
            collected(a, warp["a"], lambda n, i: place_quad_a(words[at + 1], n, i)),
            collected(b, warp["b"], lambda n, i: place_quad_b(words[at + 2], n, i)),
            collected(c, warp["c"], lambda n, i: place_quad_c(c, n, i)),
        )
        return [[sums[place_quad_c(d, n, i)] for i in range(8)] for n in range(32)]
    sums = multiplied(
        collected(a, warp["a"], lambda n, i: PLACES_A[shape, BITS[a]](n >> 2, n % 4, i)),
        collected(b, warp["b"], lambda n, i: PLACES_B[shape, BITS[b]](n >> 2, n % 4, i)),
        collected(c, warp["c"], place_c),
        op,
    )
    held = 2 if shape.startswith("m8") else 4
    return [[sums[place_c(n, i)] for i in range(held)] for n in range(32)]


def wmma(words: list[str], matrices: dict[str, Any]) -> dict[Any, Sum]:
    op = words[2] if "popc" in words else None
    return multiplied(matrices["a"], matrices["b"], matrices["c"], op)


def moved(words: list[str], matrices: dict[str, Any]) -> dict[Any, Any]:
    """A load or a store of wmma leaves every element where it is."""
    del words
    return matrices


# ---------------------------------------- moves


def halves_of(row: bytes) -> tuple[int, ...]:
    return struct.unpack("<8H", row)


def loaded(words: list[str], rows: list[bytes]) -> list[list[int]]:
    """What each lane gets from the rows, 16 bytes for each lane's address."""
    count = next(int(w[1:]) for w in words if w in ("x1", "x2", "x4"))
    out = []
    for lane in range(32):
        registers = []
        for m in range(count):
            matrix = [halves_of(rows[8 * m + row]) for row in range(8)]
            if "trans" in words:
                matrix = list(zip(*matrix, strict=True))
            low, high = matrix[lane // 4][2 * (lane % 4) : 2 * (lane % 4) + 2]
            registers.append(low | high << 16)
        out.append(registers)
    return out


def stored(words: list[str], lanes: list[list[int]]) -> list[bytes]:
    """The rows that the addresses of the first lanes get."""
    out = []
    for m in range(len(lanes[0])):
        matrix = [[0] * 8 for _ in range(8)]
        for lane, registers in enumerate(lanes):
            row, column = lane // 4, 2 * (lane % 4)
            matrix[row][column] = registers[m] & 0xFFFF
            matrix[row][column + 1] = registers[m] >> 16
        if "trans" in words:
            matrix = [list(column) for column in zip(*matrix, strict=True)]
        out += [struct.pack("<8H", *row) for row in matrix]
    return out


def transposed(_: list[str], lanes: list[list[int]]) -> list[list[int]]:
    rows = stored(["trans"], lanes)
    return loaded(["x1"], rows)


_ABC = "d:f32*nc, a:b32*na, b:b32*nb, c:f32*nc"
_ABC_HALF = "d:b32*nc, a:b32*na, b:b32*nb, c:b32*nc"
_ABC_INT = "d:s32*nc, a:b32*na, b:b32*nb, c:s32*nc"
_INT2 = "d:s32*2, a:b32*1, b:b32*1, c:s32*2"
_AT = "[addr:u64]{, stride:u32}"
_WMMA = "wmma.mma.sync.aligned.alayout.blayout"
_QUAD = "mma.sync.aligned.m8n8k4.alayout.blayout"

MMA: dict[str, Callable[..., Any]] = dict.fromkeys(
    (
        f"mma.sync.aligned.shape.row.col.f32.f16.f16.f32 {_ABC}",
        f"mma.sync.aligned.shape.row.col.f16.f16.f16.f16 {_ABC_HALF}",
        f"{_QUAD}.f32.f16.f16.f32 d:f32*8, a:b32*2, b:b32*2, c:f32*8",
        f"{_QUAD}.f32.f16.f16.f16 d:f32*8, a:b32*2, b:b32*2, c:b32*4",
        f"{_QUAD}.f16.f16.f16.f16 d:b32*4, a:b32*2, b:b32*2, c:b32*4",
        f"mma.sync.aligned.shape.row.col.f32.bf16.bf16.f32 {_ABC}",
        f"mma.sync.aligned.shape.row.col.f32.tf32.tf32.f32 {_ABC}",
        f"mma.sync.aligned.shape.row.col.f32.atype.btype.f32 {_ABC}",
        f"mma.sync.aligned.shape.row.col.f16.atype.btype.f16 {_ABC_HALF}",
        "mma.sync.aligned.shape.row.col{.rnd}.f64.f64.f64.f64 d:f64*nc, a:f64*na, b:f64*nb, c:f64*nc",
        f"mma.sync.aligned.shape.row.col{{.satfinite}}.s32.atype.btype.s32 {_ABC_INT}",
        f"mma.sync.aligned.shape.row.col.s32.b1.b1.s32.op.popc {_ABC_INT}",
    ),
    mma,
)
WMMA: dict[str, Callable[..., Any]] = dict.fromkeys(
    (
        f"{_WMMA}.shape.f32.f32 d:f32*8, a:b32*8, b:b32*8, c:f32*8",
        f"{_WMMA}.shape.f16.f16 d:b32*4, a:b32*8, b:b32*8, c:b32*4",
        f"{_WMMA}.shape.f32.f16 d:f32*8, a:b32*8, b:b32*8, c:b32*4",
        f"{_WMMA}.shape.f16.f32 d:b32*4, a:b32*8, b:b32*8, c:f32*8",
        f"{_WMMA}.shape.f32.bf16.bf16.f32 d:f32*8, a:b32*na, b:b32*nb, c:f32*8",
        f"{_WMMA}.m16n16k8.f32.tf32.tf32.f32 d:f32*8, a:b32*4, b:b32*4, c:f32*8",
        f"{_WMMA}.m8n8k4{{.rnd}}.f64.f64.f64.f64 d:f64*2, a:f64*1, b:f64*1, c:f64*2",
        f"{_WMMA}.m8n8k4.f64.f64.f64.f64.rnd d:f64*2, a:f64*1, b:f64*1, c:f64*2",
        f"{_WMMA}.shape.s32.s8.s8.s32{{.satfinite}} d:s32*8, a:b32*na, b:b32*nb, c:s32*8",
        f"{_WMMA}.shape.s32.u8.u8.s32{{.satfinite}} d:s32*8, a:b32*na, b:b32*nb, c:s32*8",
        f"wmma.mma.sync.aligned.row.col.m8n8k32.s32.s4.s4.s32{{.satfinite}} {_INT2}",
        f"wmma.mma.sync.aligned.row.col.m8n8k32.s32.u4.u4.s32{{.satfinite}} {_INT2}",
        f"wmma.mma.op.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32 {_INT2}",
    ),
    wmma,
)
WMMA_MOVES: dict[str, Callable[..., Any]] = dict.fromkeys(
    (
        f"wmma.load.operand.sync.aligned.layout.shape{{.space}}.f16 d:b32*8, {_AT}",
        f"wmma.load.a.sync.aligned.layout.shape{{.space}}.type d:b32*na, {_AT}",
        f"wmma.load.b.sync.aligned.layout.shape{{.space}}.type d:b32*nb, {_AT}",
        f"wmma.load.operand.sync.aligned.layout.m16n16k8{{.space}}.tf32 d:b32*4, {_AT}",
        f"wmma.load.operand.sync.aligned.layout.m8n8k4{{.space}}.f64 d:f64*1, {_AT}",
        f"wmma.load.a.sync.aligned.row.m8n8k32{{.space}}.type d:b32*1, {_AT}",
        f"wmma.load.b.sync.aligned.col.m8n8k32{{.space}}.type d:b32*1, {_AT}",
        f"wmma.load.a.sync.aligned.row.m8n8k128{{.space}}.b1 d:b32*1, {_AT}",
        f"wmma.load.b.sync.aligned.col.m8n8k128{{.space}}.b1 d:b32*1, {_AT}",
        f"wmma.load.c.sync.aligned.layout.shape{{.space}}.f16 d:b32*4, {_AT}",
        f"wmma.load.c.sync.aligned.layout.shape{{.space}}.type d*nc, {_AT}",
        "wmma.store.d.sync.aligned.layout.shape{.space}.f16 [addr:u64], a:b32*4{, stride:u32}",
        "wmma.store.d.sync.aligned.layout.shape{.space}.type [addr:u64], a*nc{, stride:u32}",
    ),
    moved,
)
MOVES: dict[str, Callable[..., Any]] = {
    "ldmatrix.sync.aligned.m8n8.num{.trans}{.space}.b16 d:b32*num, [addr:u64]": loaded,
    "ldmatrix.sync.aligned.num{.trans}.m8n8{.space}.b16 d:b32*num, [addr:u64]": loaded,
    "stmatrix.sync.aligned.m8n8.num{.trans}{.space}.b16 [addr:u64], a:b32*num": stored,
    "stmatrix.sync.aligned.num{.trans}.m8n8{.space}.b16 [addr:u64], a:b32*num": stored,
    "movmatrix.sync.aligned.m8n8.trans.b16 d:b32, a:b32": transposed,
}
WARP: dict[str, Callable[..., Any]] = {**MMA, **WMMA, **WMMA_MOVES, **MOVES}
