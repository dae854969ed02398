"""Conversions between integers and floating-point numbers."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ptxgen.isa.numeric import TO_INTEGER, Lanes, as_f64, narrow, quiet, stepped, sum_to_odd, two_sum
from ptxgen.types import ScalarType

# The integer operations of `atom`, `red` and `redux` that are associative and commutative.
ASSOCIATIVE: Final[dict[str, Any]] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


@quiet
def from_integer(a: Lanes, type: ScalarType, rnd: str) -> Lanes:
    """Integers as lanes of `type` (f16, bf16, f32 or f64), rounded once."""
    if rnd == "rn" and type.name in ("f32", "f64"):
        return a.astype(type.dtype)
    if a.dtype.itemsize <= 4 or (rnd == "rn" and type.name == "f16"):  # 2^53 and more overflow f16
        return narrow(a.astype(np.float64), type, rnd) if type.name != "f64" else as_f64(a)
    wide = a.astype(np.int64 if a.dtype.kind == "i" else np.uint64)
    low = np.bitwise_and(wide, wide.dtype.type(0xFFFFFFFF)).astype(np.float64)
    high = np.right_shift(wide, wide.dtype.type(32)).astype(np.float64) * 2.0**32
    if type.name != "f64":
        return narrow(sum_to_odd(high, low), type, rnd)
    nearest, error = two_sum(high, low)
    return stepped(nearest, error, rnd)


def range_of(dtype: np.dtype[Any]) -> np.iinfo[Any]:
    """The limits of an integer dtype."""
    return np.iinfo(dtype)


@quiet
def to_integer(a: Lanes, type: ScalarType, rnd: str) -> Lanes:
    """Floats rounded to an integer (`rn`, `rz`, `rm`, `rp`) and clamped to the range of `type`.

    NaN becomes 0, or, if either type has 64 bits, the integer with only its top bit set (PTX ISA,
    cvt).
    """
    if type.bits < 64:
        return _to_short_integer(TO_INTEGER[rnd](as_f64(a)), type, a.dtype == np.float64)
    wide = TO_INTEGER[rnd](a.astype(np.float64))
    info = range_of(type.dtype)
    top, bottom = float(int(info.max) + 1), float(info.min)  # both are exact powers of two, or 0
    too_large, too_small = wide >= top, wide < bottom
    wrong = np.isnan(wide)
    inside = np.where(wrong | too_large | too_small, 0.0, wide).astype(type.dtype)
    nan = type.dtype.type(1 << 63 if type.kind == "u" else info.min)
    result = np.where(too_large, info.max, np.where(too_small, info.min, inside))
    return np.where(wrong, nan, result).astype(type.dtype)


def _to_short_integer(wide: Lanes, type: ScalarType, from_f64: bool) -> Lanes:
    info = range_of(type.dtype)
    result = np.clip(wide, info.min, info.max)
    wrong = np.isnan(wide)
    if wrong.any():
        nan = (1 << (type.bits - 1) if type.kind == "u" else int(info.min)) if from_f64 else 0
        result = np.where(wrong, float(nan), result)
    return result.astype(type.dtype)
