"""Floating-point rows: meanings for `cases.py`, by syntax."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace as M
from typing import Any


def add(_: M, a: Any, b: Any) -> Any:
    return a + b


def sub(_: M, a: Any, b: Any) -> Any:
    return a - b


def mul(_: M, a: Any, b: Any) -> Any:
    return a * b


def fma(_: M, a: Any, b: Any, c: Any) -> Any:
    return a * b + c


def picked(m: M, numbers: list[float], choose: Callable[..., float]) -> float:
    """min or max, where the sign decides between zeros."""
    known = [x for x in numbers if not math.isnan(x)]
    if not known or (m.NaN and len(known) < len(numbers)):
        return math.nan
    return choose(known, key=lambda x: (x, math.copysign(1.0, x)))


def crossed(choose: Callable[..., float]) -> Callable[..., float]:
    """.xorsign.abs: the sign is + if both signs are the same."""

    def meaning(m: M, *_: Any) -> float:
        signs = [math.copysign(1.0, x) for x in m.floats]
        return math.copysign(picked(m, list(map(abs, m.floats)), choose), signs[0] * signs[1])

    return meaning


def of_three(choose: Callable[..., float]) -> Callable[..., float]:
    def meaning(m: M, *_: Any) -> float:
        return picked(m, [abs(x) if m.abs else x for x in m.floats], choose)

    return meaning


def total(function: Callable[[float], float]) -> Callable[..., float]:
    """A function of `math` that gives infinity or NaN instead of raising."""

    def wrapped(m: M, _: Any) -> float:
        try:
            return function(m.floats[0])
        except OverflowError:
            return math.inf
        except ValueError:
            return math.nan

    return wrapped


def root(m: M, a: Any) -> Any:
    """The square root to 200 bits; a digit that is not there marks what is not exact."""
    x = m.floats[0]
    if not math.isfinite(x) or x <= 0:
        return x if x == 0 or x > 0 else math.nan
    scaled = (a.numerator << 1500) // a.denominator
    result = math.isqrt(scaled)
    return Fraction(2 * result + (result * result != scaled), 2 << 750)


def inverse_root(a: float) -> float:
    return 1 / math.sqrt(a) if a else math.copysign(math.inf, a)


def upper_word(function: Callable[[float], Fraction]) -> Callable[..., float]:
    """A function of a float64 without its lower 32 bits, to 21 significant bits, flushed."""

    def meaning(m: M, _: Any) -> float:
        bits = struct.unpack("<Q", struct.pack("<d", m.floats[0]))[0]
        x = struct.unpack("<d", struct.pack("<Q", bits >> 32 << 32))[0]
        if math.isnan(m.floats[0]):
            return math.nan
        if abs(x) < 2.0**-1022:
            return math.copysign(math.inf, x)
        if math.isinf(x):
            return math.copysign(0.0, x) if x > 0 or function is inverse else math.nan
        if x < 0 and function is not inverse:
            return math.nan
        exact = function(x)
        location = Fraction(2) ** (math.frexp(float(exact))[1] - 21)
        result = float(round(exact / location) * location)
        return result if abs(result) >= 2.0**-1022 else math.copysign(0.0, x)

    return meaning


def inverse(x: float) -> Fraction:
    return 1 / Fraction(x)


def inverse_of_root(x: float) -> Fraction:
    return 1 / Fraction(math.sqrt(x))


MEANING: dict[str, Callable[..., Any]] = {
    "add{.ftz}{.sat}.f32 d, a, b": add,
    "add.f64 d, a, b": add,
    "add{.ftz}{.sat}.type d, a, b": add,
    "sub{.ftz}{.sat}.f32 d, a, b": sub,
    "sub.f64 d, a, b": sub,
    "sub{.ftz}{.sat}.type d, a, b": sub,
    "mul{.ftz}{.sat}.f32 d, a, b": mul,
    "mul.f64 d, a, b": mul,
    "mul{.ftz}{.sat}.type d, a, b": mul,
    "mul.type d, a, b": mul,
    "mad.rnd{.ftz}{.sat}.f32 d, a, b, c": fma,
    "mad.rnd.f64 d, a, b, c": fma,
    "fma.rnd.oob{.relu}.type d, a, b, c": fma,  # 0x7ff7 has a test of its own
    "add{.rnd}{.ftz}.f32x2 d:b64, a:b64, b:b64": add,
    "sub{.rnd}{.ftz}.f32x2 d:b64, a:b64, b:b64": sub,
    "mul{.rnd}{.ftz}.f32x2 d:b64, a:b64, b:b64": mul,
    "fma.rnd{.ftz}.f32x2 d:b64, a:b64, b:b64, c:b64": fma,
    "add{.rnd}{.sat}.f32.atype d:f32, a:atype, c:f32": add,
    "sub{.rnd}{.sat}.f32.atype d:f32, a:atype, c:f32": sub,
    "fma.rnd{.sat}.f32.abtype d:f32, a:abtype, b:abtype, c:f32": fma,
    "min{.ftz}{.NaN}.xorsign.abs.f32 d, a, b": crossed(min),
    "max{.ftz}{.NaN}.xorsign.abs.f32 d, a, b": crossed(max),
    "min{.ftz}{.NaN}.xorsign.abs.type d, a, b": crossed(min),
    "max{.ftz}{.NaN}.xorsign.abs.type d, a, b": crossed(max),
    "min{.NaN}.xorsign.abs.type d, a, b": crossed(min),
    "max{.NaN}.xorsign.abs.type d, a, b": crossed(max),
    "min{.ftz}{.NaN}{.abs}.f32 d, a, b, c": of_three(min),
    "max{.ftz}{.NaN}{.abs}.f32 d, a, b, c": of_three(max),
    "sqrt.rnd{.ftz}.f32 d, a": root,
    "sqrt.rnd.f64 d, a": root,
    "rcp.approx.ftz.f64 d, a": upper_word(inverse),
    "rsqrt.approx.f64 d, a": total(inverse_root),
    "rsqrt.approx.ftz.f64 d, a": upper_word(inverse_of_root),
    "tanh.approx.type d, a": total(math.tanh),
    "ex2.approx.type d, a": total(math.exp2),
    "ex2.approx.ftz.type d, a": total(math.exp2),
}
MEMORY: dict[str, Callable[..., Any]] = {}
WARP: dict[str, Callable[..., Any]] = {}
CALLS: dict[str, list[tuple[Any, ...]]] = {}
IMMEDIATES: dict[str, tuple[int, ...]] = {}
