"""Floating-point arithmetic as PTX defines it, on numpy lanes.

Every function takes 1-D arrays, numpy scalars or both mixed, works elementwise, and never warns.
"Exact" results are float64 values *rounded to odd* (Boldo and Melquiond, "Emulation of FMA and
correctly rounded sums", 2008): an inexact value gets an odd last bit, so that a second rounding to
at most 51 bits equals a single one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ptxgen.types import ScalarType

Lanes = np.ndarray[Any, np.dtype[Any]]

quiet: Final = np.errstate(all="ignore")  # a decorator: the GPU raises no floating-point exceptions

NAN_F32: Final = np.uint32(0x7FFFFFFF).view(np.float32)  # the canonical NaN
NAN_16_BITS: Final = np.uint16(0x7FFF)  # the canonical NaN of f16 and bf16

_MIN_NORMAL_F32: Final = np.float32(2.0**-126)
_SIGN_16: Final = np.uint16(0x8000)
_BELOW_F32: Final = np.int64((1 << 29) - 1)  # the bits of a float64 that a float32 lacks
_HALFWAY_F32: Final = np.int64(1 << 28)
_BELOW_BF16: Final = np.uint32(0xFFFF)  # the bits of a float32 that a bfloat16 lacks
_HALFWAY_BF16: Final = np.uint32(0x8000)
_ONE: Final = np.int64(1)

ROUNDINGS: Final = ("rn", "rz", "rm", "rp")
TO_INTEGER: Final[dict[str, Callable[[Any], Any]]] = {
    "rn": np.rint,
    "rz": np.trunc,
    "rm": np.floor,
    "rp": np.ceil,
    "rna": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
}


# ---------------------------------------- special values


def flush(x: Lanes, ftz: bool) -> Lanes:
    """`x` (float32, float16 or bfloat16) with subnormals replaced by zeros of the same sign, if `ftz`."""
    return _flushed(x) if ftz else x


@quiet
def _flushed(x: Lanes) -> Lanes:
    if x.dtype.itemsize == 4:
        small = np.abs(x) < _MIN_NORMAL_F32
        return np.multiply(x, ~small) if small.any() else x
    bits = x.view(np.uint16)
    subnormal = np.bitwise_and(bits, _infinity_16(x)) == 0
    return np.where(subnormal, np.bitwise_and(bits, _SIGN_16), bits).view(x.dtype)


def _infinity_16(x: Lanes) -> np.uint16:
    """The bits of infinity in the 16-bit format of `x`: all exponent bits."""
    return np.uint16(0x7C00 if x.dtype == np.float16 else 0x7F80)


def _is_nan_16(x: Lanes) -> Lanes:
    magnitude = np.bitwise_and(x.view(np.uint16), NAN_16_BITS)
    return magnitude > _infinity_16(x)


def saturate(x: Lanes, sat: bool) -> Lanes:
    """`x` limited to [0, 1], NaN becoming +0, if `sat`."""
    return _saturated(x) if sat else x


@quiet
def _saturated(x: Lanes) -> Lanes:
    if x.dtype == np.float16:  # numpy's float16 arithmetic is slow
        return _saturated(x.astype(np.float32)).astype(np.float16)
    zero, one = x.dtype.type(0), x.dtype.type(1)
    limited: Lanes = np.fmin(np.fmax(x, zero), one)
    result: Lanes = np.add(limited, zero)  # -0 becomes +0
    return result


def canonical(x: Lanes) -> Lanes:
    """`x` (float32) with every NaN replaced by 0x7fffffff, for instructions that return a canonical NaN."""
    wrong = np.isnan(x)
    return np.where(wrong, NAN_F32, x) if wrong.any() else x


def finish(x: Lanes, ftz: bool, sat: bool = False) -> Lanes:
    """`x` with subnormals flushed if `ftz` (.ftz), and limited to [0, 1] if `sat` (.sat).

    A NaN keeps the payload that numpy gives it: the PTX ISA does not define the payload of a
    single-precision NaN.
    """
    return saturate(flush(x, ftz), sat)


@quiet
def relu(x: Lanes) -> Lanes:
    """max(x, 0) as .relu defines it: NaN stays NaN, and the result is never -0."""
    if x.dtype.itemsize == 2:
        bits = x.view(np.uint16)
        negative = (bits >= _SIGN_16) & ~_is_nan_16(x)
        return np.where(negative, np.uint16(0), bits).view(x.dtype)
    return np.where(x > 0, x, np.where(np.isnan(x), x, x.dtype.type(0)))


# ---------------------------------------- exact sums


def two_sum(x: Lanes, y: Lanes) -> tuple[Lanes, Lanes]:
    """s = x + y rounded, and the error, so that s + error == x + y exactly (Knuth)."""
    s = np.add(x, y)
    t = s - x
    return s, (x - (s - t)) + (y - t)


def _to_odd(s: Lanes, error: Lanes) -> Lanes:
    """The exact value s + error (s is its nearest float64), rounded to odd."""
    bits = s.view(np.int64)
    inexact = np.isfinite(s) & (error != 0) & ((bits & _ONE) == 0)
    step = np.where((error > 0) == (s > 0), 1, -1)  # 1 away from zero, -1 towards it
    return (bits + np.where(inexact, step, 0)).view(np.float64)


def sum_to_odd(x: Lanes, y: Lanes) -> Lanes:
    """x + y rounded to odd."""
    return _to_odd(*two_sum(x, y))


def as_f64(x: Lanes) -> Lanes:
    """Lanes as float64."""
    return x.astype(np.float64)


def _f32(x: Lanes) -> Lanes:
    return x.astype(np.float32)


def zero_sign(total: Lanes, x: Lanes, y: Lanes, rnd: str) -> Lanes:
    """`total` with the sign of an exact zero sum: +0, but -0 when rounding towards minus infinity
    (IEEE 754, 6.3).
    """
    if rnd != "rm":
        return total
    return np.where((total == 0) & (np.signbit(x) != np.signbit(y)), -0.0, total)


# ---------------------------------------- narrowing

# Significant bits, exponent of the smallest normal number, largest finite number.
_FORMATS: Final = {
    "f32": (24, -126, float(np.finfo(np.float32).max)),
    "f16": (11, -14, 65504.0),
    "bf16": (8, -126, float.fromhex("0x1.fep127")),
    "tf32": (11, -126, float.fromhex("0x1.ffcp127")),
}


@quiet
def round_to(exact: Lanes, format: str, rnd: str) -> Lanes:
    """`exact` (float64, rounded to odd) rounded once to the format, still as float64.

    `format` is `f32`, `f16`, `bf16` or `tf32`; `rnd` is `rn`, `rz`, `rm`, `rp`, or `rna` (ties away
    from zero).
    """
    precision, min_exponent, largest = _FORMATS[format]
    exponent = np.maximum(np.frexp(exact)[1] - precision, min_exponent - precision + 1)
    rounded = np.ldexp(TO_INTEGER[rnd](np.ldexp(exact, -exponent)), exponent)
    limit = {
        "rz": largest,
        "rm": np.where(exact > 0, largest, np.inf),
        "rp": np.where(exact < 0, largest, np.inf),
    }
    over = np.isfinite(exact) & (np.abs(rounded) > largest)
    bound: Any = limit.get(rnd, np.inf)
    result: Lanes = np.where(over, np.copysign(bound, exact), rounded)
    return result


@quiet
def narrow(exact: Lanes, type: ScalarType, rnd: str = "rn") -> Lanes:
    """`exact` as lanes of `type` (f32, f16 or bf16), rounded once.

    `exact` is in another type, or float64 rounded to odd.
    """
    if rnd != "rn":
        return round_to(as_f64(exact), type.name, rnd).astype(type.dtype)
    if type.name != "bf16" or exact.dtype != np.float64:
        return exact.astype(type.dtype)
    near = exact.astype(np.float32)
    wrong = _halfway_bf16(near) & (near != exact)
    if wrong.any():
        return np.where(wrong, round_to(exact, "bf16", rnd), near).astype(type.dtype)
    return near.astype(type.dtype)


@quiet
def cut_off(x: Lanes, type: ScalarType) -> Lanes:
    """`x` (float32) truncated to lanes of f16 or bf16; infinite if the exponent of `x` is above those of the
    format.
    """
    near, size = x.astype(type.dtype), np.abs(x)
    end = 2.0 ** math.frexp(_FORMATS[type.name][2])[1]
    away = (np.abs(near.astype(np.float32)) > size) & (size < end)
    bits: Lanes = near.view(np.uint16) - away.astype(np.uint16)
    return bits.view(type.dtype)


def _halfway_bf16(x: Lanes) -> Lanes:
    """Whether each float32 lies halfway between two bfloat16; any other float32 rounds to the same
    bfloat16 as the exact value that it was rounded from.
    """
    halfway: Lanes = np.bitwise_and(x.view(np.uint32), _BELOW_BF16) == _HALFWAY_BF16
    return halfway


@quiet
def widen(x: Lanes, type: ScalarType) -> Lanes:
    """`x` as lanes of a wider floating-point `type`, which holds it exactly."""
    return x.astype(type.dtype)


@quiet
def integral(x: Lanes, rnd: str) -> Lanes:
    """`x` rounded to an integral value of its type."""
    if x.dtype.itemsize == 2:  # numpy's 16-bit arithmetic is slow
        return canonical_narrow(TO_INTEGER[rnd](_f32(x)).astype(x.dtype))
    return TO_INTEGER[rnd](x)  # type: ignore[no-any-return]


def finite(x: Lanes, format: str) -> Lanes:
    """`x` limited to the largest number of the format, as .satfinite defines it; NaN stays NaN."""
    largest = x.dtype.type(_FORMATS[format][2])
    limited: Lanes = np.clip(x, -largest, largest)
    return limited


_TF32_BITS: Final = np.uint32(0xFFFFE000)  # the upper bits of a float32


@quiet
def to_tf32(a: Lanes, rnd: str) -> Lanes:
    """`a` (float32) rounded once to the 11 significant bits of tf32: `rn`, `rz` or `rna`.

    The bits of floats of one sign are in the order of the floats, so a carry into the exponent
    gives the right result. A NaN is canonical, without its lower bits; `rna`, which the assembler
    makes of integer instructions, only clears these (recorded in tests/vectors).
    """
    bits: Lanes = a.view(np.uint32)
    wrong = np.isnan(a)
    if rnd == "rna":
        bits = bits + np.where(wrong, np.uint32(0), np.uint32(0x1000))
        cut: Lanes = np.bitwise_and(bits, _TF32_BITS)
        return cut.view(np.float32)
    if rnd == "rn":
        is_odd = np.bitwise_and(np.right_shift(bits, np.uint32(13)), np.uint32(1))
        bits = bits + (is_odd + np.uint32(0xFFF))
    bits = np.where(wrong, NAN_F32.view(np.uint32), bits)
    return np.bitwise_and(bits, _TF32_BITS).view(np.float32)


# ---------------------------------------- f32


@quiet
def add_f32(a: Lanes, b: Lanes, rnd: str) -> Lanes:
    """a + b, rounded once."""
    if rnd == "rn":
        return np.add(a, b)
    wide_a, wide_b = as_f64(a), as_f64(b)
    return round_to(zero_sign(sum_to_odd(wide_a, wide_b), a, b, rnd), "f32", rnd).astype(np.float32)


@quiet
def mul_f32(a: Lanes, b: Lanes, rnd: str) -> Lanes:
    """a * b, rounded once."""
    if rnd == "rn":
        return np.multiply(a, b)
    return round_to(np.multiply(a, b, dtype=np.float64), "f32", rnd).astype(np.float32)


def fma_f32(a: Lanes, b: Lanes, c: Lanes, rnd: str = "rn") -> Lanes:
    """a * b + c, rounded once.

    The product of two float32 is exact in float64, so rounding the float64 sum to float32 is wrong
    only if the sum is inexact and either lies halfway between two float32 or becomes subnormal.
    """
    if rnd == "rn":
        try:
            result, halfway = _fma_f32_twice_rounded(a, b, c)
        except FloatingPointError:
            return _fma_f32_exact(a, b, c, rnd)
        doubtful = np.flatnonzero(halfway)
        if not len(doubtful):
            return result
        if np.ndim(result):
            few = [x[doubtful] if np.ndim(x) else x for x in (a, b, c)]
            result[doubtful] = _fma_f32_exact(few[0], few[1], few[2], rnd)
            return result
    return _fma_f32_exact(a, b, c, rnd)


@np.errstate(all="ignore", under="raise")
def _fma_f32_twice_rounded(a: Lanes, b: Lanes, c: Lanes) -> tuple[Lanes, Lanes]:
    """a * b + c by way of float64, and a mask of the lanes that were halfway between two float32.

    Raises `FloatingPointError` if a result is subnormal and inexact: nothing else underflows here.
    """
    total: Lanes = np.multiply(a, b, dtype=np.float64)
    total += c  # in place: the interpreter spends most of its time here
    result = total.astype(np.float32)
    rest = total.view(np.int64)
    rest &= _BELOW_F32
    return result, rest == _HALFWAY_F32


@quiet
def _fma_f32_exact(a: Lanes, b: Lanes, c: Lanes, rnd: str) -> Lanes:
    product = np.multiply(a, b, dtype=np.float64)
    exact = zero_sign(sum_to_odd(product, as_f64(c)), product, c, rnd)
    if rnd == "rn":
        return exact.astype(np.float32)
    return round_to(exact, "f32", rnd).astype(np.float32)


@quiet
def div_f32(a: Lanes, b: Lanes, rnd: str = "rn") -> Lanes:
    """a / b, rounded once."""
    nearest = np.divide(a, b)
    if rnd == "rn":
        return nearest
    rest = as_f64(a) - np.multiply(nearest, b, dtype=np.float64)  # exact: at most 24 bits
    return stepped(nearest, quotient_error(nearest, rest, a, b), rnd)


@quiet
def sqrt_f32(a: Lanes, rnd: str = "rn") -> Lanes:
    """The square root, rounded once."""
    nearest: Lanes = np.sqrt(a)
    if rnd == "rn":
        return nearest
    return stepped(nearest, as_f64(a) - np.multiply(nearest, nearest, dtype=np.float64), rnd)


# ---------------------------------------- directed rounding


def stepped(nearest: Lanes, error: Lanes, rnd: str) -> Lanes:
    """The exact result rounded as `rnd` says, given the result rounded to nearest, and the sign of
    exact minus nearest (NaN where `nearest` is kept).
    """
    if rnd == "rp":
        wrong, goal = error > 0, np.inf
    elif rnd == "rm":
        wrong, goal = error < 0, -np.inf
    else:
        wrong, goal = np.where(nearest > 0, error < 0, error > 0) & (nearest != 0), 0.0
    return np.where(wrong, np.nextafter(nearest, nearest.dtype.type(goal)), nearest)


def quotient_error(nearest: Lanes, rest: Lanes, a: Lanes, b: Lanes) -> Lanes:
    """The sign of a / b - nearest, given rest = a - nearest * b."""
    inexact = np.isfinite(a) & np.isfinite(b) & (b != 0)
    error = np.where(np.isinf(nearest), -nearest, np.where(np.signbit(b), -rest, rest))
    return np.where(inexact, error, np.nan)


# ---------------------------------------- min and max


def minimum(a: Lanes, b: Lanes, nan: bool) -> Lanes:
    """The smaller of a and b; -0 < +0. A NaN operand is ignored, or with `nan` makes the result NaN."""
    if a.dtype.itemsize == 2:
        return _chosen_16(a, b, np.minimum, nan)
    return _chosen(a, b, np.minimum if nan else np.fmin, np.logical_or)


def maximum(a: Lanes, b: Lanes, nan: bool) -> Lanes:
    """The larger of a and b; -0 < +0. A NaN operand is ignored, or with `nan` makes the result NaN."""
    if a.dtype.itemsize == 2:
        return _chosen_16(a, b, np.maximum, nan)
    return _chosen(a, b, np.maximum if nan else np.fmax, np.logical_and)


@quiet
def _chosen(a: Lanes, b: Lanes, choose: Any, negative: Any) -> Lanes:
    zeros = (a == 0) & (b == 0)
    result = choose(a, b)
    if not zeros.any():
        return result  # type: ignore[no-any-return]
    sign = np.where(negative(np.signbit(a), np.signbit(b)), -1.0, 1.0)
    zero = np.copysign(np.float32(0), sign).astype(result.dtype)
    return np.where(zeros, zero, result)


def _key_16(x: Lanes) -> Lanes:
    """The bits of 16-bit floats as integers in the order of the floats; its own inverse."""
    bits = x.view(np.int16)
    key: Lanes = np.bitwise_xor(bits, np.bitwise_and(bits >> np.int16(15), np.int16(0x7FFF)))
    return key


def _chosen_16(a: Lanes, b: Lanes, choose: Any, nan: bool) -> Lanes:
    key_a, key_b = _key_16(a), _key_16(b)
    key = choose(key_a, key_b)
    wrong_a, wrong_b = _is_nan_16(a), _is_nan_16(b)
    if wrong_a.any() or wrong_b.any():
        if nan:
            key = np.where(wrong_a | wrong_b, NAN_16_BITS.view(np.int16), key)
        else:
            key = np.where(wrong_a, key_b, np.where(wrong_b, key_a, key))
    return _key_16(key).view(a.dtype)


def with_xor_sign(x: Lanes, a: Lanes, b: Lanes) -> Lanes:
    """|x| with the exclusive or of the sign bits of `a` and `b` (PTX ISA, .xorsign); NaN stays NaN."""
    if x.dtype.itemsize == 2:
        sign = np.bitwise_and(np.bitwise_xor(a.view(np.uint16), b.view(np.uint16)), _SIGN_16)
        signed = np.bitwise_or(np.bitwise_and(x.view(np.uint16), NAN_16_BITS), sign)
        return np.where(_is_nan_16(x), x.view(np.uint16), signed).view(x.dtype)
    signed = np.where(np.signbit(a) ^ np.signbit(b), -np.abs(x), np.abs(x))
    return np.where(np.isnan(x), x, signed)


# ---------------------------------------- 16-bit formats


def canonical_narrow(x: Lanes) -> Lanes:
    """`x` (float16 or bfloat16) with every NaN replaced by 0x7fff, as in 16-bit arithmetic."""
    wrong = _is_nan_16(x)
    if not wrong.any():
        return x
    return np.where(wrong, NAN_16_BITS, x.view(np.uint16)).view(x.dtype)


@quiet
def fma_narrow(a: Lanes, b: Lanes, c: Lanes, type: ScalarType, rnd: str = "rn") -> Lanes:
    """a * b + c in f16 or bf16, rounded once.

    The product is exact in float64. A sum of f16 is exact too, unless the lost part is too small to
    decide between two f16; a sum of bf16 may lose a part that decides.
    """
    total = np.multiply(as_f64(a), as_f64(b)) + as_f64(c)
    if rnd == "rn" and type.name == "f16":
        return total.astype(np.float16)
    if rnd != "rn" or np.ndim(total) == 0:
        return narrow(sum_to_odd(np.multiply(as_f64(a), as_f64(b)), as_f64(c)), type, rnd)
    near = total.astype(np.float32)
    result = near.astype(type.dtype)
    doubtful = np.flatnonzero(_halfway_bf16(near))
    if len(doubtful):
        few = [as_f64(x[doubtful]) if np.ndim(x) else as_f64(x) for x in (a, b, c)]
        result[doubtful] = narrow(sum_to_odd(np.multiply(few[0], few[1]), few[2]), type)
    return result


@quiet
def add_narrow(a: Lanes, b: Lanes, type: ScalarType, rnd: str = "rn") -> Lanes:
    """a + b in f16 or bf16, rounded once.

    Rounding to nearest by way of float32 equals a single rounding, because float32 has at least
    twice the significant bits of either format plus two (Figueroa, "When is double rounding
    innocuous?", 1995).
    """
    if rnd == "rn":
        return np.add(_f32(a), _f32(b)).astype(type.dtype)
    return narrow(sum_to_odd(as_f64(a), as_f64(b)), type, rnd)


@quiet
def mul_narrow(a: Lanes, b: Lanes, type: ScalarType, rnd: str = "rn") -> Lanes:
    """a * b in f16 or bf16, rounded once."""
    if rnd == "rn":
        # Exact enough for the reason that `add_narrow` gives.
        return np.multiply(_f32(a), _f32(b)).astype(type.dtype)
    return narrow(np.multiply(as_f64(a), as_f64(b)), type, rnd)


def halves(x: Lanes, type: ScalarType) -> tuple[Lanes, Lanes]:
    """The lower and the upper 16 bits of uint32 lanes, as lanes of `type` (f16 or bf16)."""
    low = np.bitwise_and(x, np.uint32(0xFFFF)).astype(np.uint16)
    return low.view(type.dtype), np.right_shift(x, np.uint32(16)).astype(np.uint16).view(type.dtype)


def join(low: Lanes, high: Lanes) -> Lanes:
    """The uint32 lanes of which `low` and `high` are the halves."""
    wide = high.view(np.uint16).astype(np.uint32)
    return np.bitwise_or(np.left_shift(wide, np.uint32(16)), low.view(np.uint16).astype(np.uint32))
