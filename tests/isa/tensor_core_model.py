"""Tensor cores said a second time: one output at a time, in Python's floats and integers.

After `nv_fused_dot_add` of github.com/microsoft/MMA-Sim (MIT) and the tables of Khattak and
Mikaitis (2025).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from isa import cases

LEAST = {"f32": -126, "bf16": -126, "tf32": -126, "f16": -14, "e5m2": -14, "e4m3": -6}
BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1}
FP8 = ("e4m3", "e5m2")


def split(x: float, type: str) -> tuple[float, int]:
    """Significand and exponent."""
    if x == 0:
        return x, -126
    exponent = max(math.frexp(x)[1] - 1, LEAST[type])
    return math.ldexp(x, -exponent), exponent


def step(
    pairs: Sequence[tuple[float, float]],
    types: tuple[str, str],
    c: float,
    d_type: str,
    fraction: int,
    kept: int = 23,
) -> float:
    """One addition of products to C."""
    whole = sum((x * y for x, y in pairs), 0.0) + c
    if not math.isfinite(whole):
        return whole
    terms = [split(c, d_type)]
    for x, y in pairs:
        (sx, ex), (sy, ey) = split(x, types[0]), split(y, types[1])
        terms.append((sx * sy, ex + ey))
    top = max(exponent for _, exponent in terms)
    total = sum(math.trunc(math.ldexp(s, fraction + e - top)) for s, e in terms)
    exact = math.ldexp(total, top - fraction)
    if d_type == "f16":
        return nearest_f16(exact)
    significand, exponent = split(exact, "f32")
    cut = math.ldexp(math.trunc(math.ldexp(significand, kept)), exponent - kept)
    return math.copysign(math.inf, cut) if abs(cut) >= 2.0**128 else cut + 0.0


def nearest_f16(x: float) -> float:
    try:
        return float(struct.unpack("<e", struct.pack("<e", x))[0]) + 0.0
    except OverflowError:
        return math.copysign(math.inf, x)


def nearest_f32(x: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", x))[0])
    except OverflowError:
        return math.copysign(math.inf, x)


def fused(x: float, y: float, z: float) -> float:
    """x * y + z in f32, rounded once."""
    if not all(math.isfinite(n) for n in (x, y, z)):
        return x * y + z
    return cases.rounded(Fraction(x) * Fraction(y) + Fraction(z), "f32", "rn")


def emulated(pairs: Sequence[tuple[float, float]], c: float, d_type: str) -> float:
    """`mma.m8n8k4` where it is made of fused multiply-adds."""
    if d_type == "f32":
        total = 0.0
        for x, y in pairs:
            total = fused(x, y, total)
        return nearest_f32(c + total)
    for first, second in (pairs[:2], pairs[2:]):
        c = nearest_f32(c + fused(*second, nearest_f32(first[0] * first[1])))
    return nearest_f16(c)


def parameters(sm: int, family: str, type: str) -> tuple[int, int, int]:
    """Bits of the fraction, bytes of A in a step, significant bits of an f32."""
    if type in FP8 and (sm == 89 or (90 <= sm < 100 and family == "wgmma")):
        return 13, 16 if sm == 89 else 64, 13
    if sm < 75:
        return 23, 8, 23
    return (24, 16, 23) if sm < 90 else (25, 64, 23)


def dot(
    pairs: Sequence[tuple[float, float]],
    types: tuple[str, str],
    c: float,
    d_type: str,
    sm: int,
    family: str = "mma",
) -> float:
    """D of one row and one column, K in order; `d_type` is that of the accumulators."""
    if types[0] == "f16" and len(pairs) == 4 and sm >= 80:  # m8n8k4
        return emulated(pairs, c, d_type)
    if types[0] in FP8 and 90 <= sm < 120 and (family == "mma" or sm >= 100):
        low = [p for k, p in enumerate(pairs) if k % 4 < 2]
        high = [p for k, p in enumerate(pairs) if k % 4 >= 2]
        total = 0.0
        for part in (low, high):
            total = step(part, ("f16", "f16"), total, d_type, 25)
        return (nearest_f16 if d_type == "f16" else nearest_f32)(total + c)
    fraction, nbytes, kept = parameters(sm, family, types[0])
    if family == "wmma" and types[0] == "tf32":
        nbytes = 16
    length = nbytes // BYTES[types[0]]
    for first in range(0, len(pairs), length):
        c = step(pairs[first : first + length], types, c, d_type, fraction, kept)
    return c


def bits(x: float, d_type: str) -> int:
    """The bits of D."""
    if math.isnan(x):
        return 0x7FFF if d_type == "f16" else 0x7FFFFFFF
    code: Any = {"f16": ("<e", "<H"), "f32": ("<f", "<I")}[d_type]
    return int(struct.unpack(code[1], struct.pack(code[0], x))[0])
