"""Faster forms of frequent instructions; each gives the same bits as its row's own function.

A row's function tests its modifiers and all special cases. A faster form is made for fixed
modifiers; one cheap pass over the lanes shows that no special case occurs, and otherwise the row's
own function computes the lanes. `tests/interpreter/program/test_blocks.py` compares all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ptxgen.isa import floating, integer, numeric
from ptxgen.isa.compare import ORDERED

Lanes = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Fast:
    """A faster form of an instruction. With `widened`, it takes each operand twice: also as float64."""

    function: Callable[..., Any]
    widened: bool = False


# The 29 bits of a float64 that a float32 lacks, shifted to the top, if the value lies halfway
# between two float32.
_HALFWAY: Final = -(1 << 63)
_SHIFT: Final = np.int64(64 - 29)
_MIN_NORMAL: Final = np.float32(2.0**-126)


def sub(a: Lanes, b: Lanes) -> Lanes:
    """The function of sub.rn.f32 and sub.f32. `np.subtract` gives another sign of a NaN."""
    difference: Lanes = np.add(a, np.negative(b))
    return difference


def fma(a: Lanes, b: Lanes, c: Lanes, wide_a: Lanes, wide_b: Lanes, wide_c: Lanes) -> Lanes:
    """The function of fma.rn.f32 and mad.rn.f32.

    The product is exact in float64. Rounding the float64 sum to float32 goes wrong only if the sum
    lies halfway between two float32, or if the result is subnormal.
    """
    total = np.multiply(wide_a, wide_b)
    total += wide_c
    result: Lanes = total.astype(np.float32)
    size = np.abs(result)
    tail = total.view(np.int64) << _SHIFT
    # The first comparison is false for NaN, too.
    if np.minimum.reduce(size) >= _MIN_NORMAL and np.minimum.reduce(tail) != _HALFWAY:
        return result
    doubtful = np.flatnonzero((tail == _HALFWAY) | ~((size >= _MIN_NORMAL) | (total == 0)))
    if len(doubtful) and not _is_exact(total[doubtful], doubtful, wide_a, wide_b, wide_c):
        few = [x[doubtful] if np.ndim(x) else x for x in (a, b, c)]
        result[doubtful] = floating.fma_f32(*few, rnd="rn", ftz=False, sat=False)
    return result


def _is_exact(total: Lanes, lanes: Lanes, a: Lanes, b: Lanes, c: Lanes) -> bool:
    """Whether `total` is exactly a * b + c in all of the lanes, so that the result has been rounded
    only once.
    """
    a, b, c = (x[lanes] if np.ndim(x) else x for x in (a, b, c))
    product = np.multiply(a, b)
    rest = total - product
    # The rounding error of a sum (Knuth); NaN, which counts as an error here, if an operand is not
    # finite.
    error = (product - (total - rest)) + (c - rest)
    return not np.logical_or.reduce(error != 0)


def fma_ftz(a: Lanes, b: Lanes, c: Lanes, wide_a: Lanes, wide_b: Lanes, wide_c: Lanes) -> Lanes:
    """The function of fma.rn.ftz.f32 and mad.rn.ftz.f32."""
    if any(map(_has_subnormal, (a, b, c))):
        flushed: Lanes = floating.fma_f32(a, b, c, rnd="rn", ftz=True, sat=False)
        return flushed
    return numeric.flush(fma(a, b, c, wide_a, wide_b, wide_c), True)


def _has_subnormal(x: Lanes) -> bool:
    small = np.abs(x) < _MIN_NORMAL
    return bool(small.any() and (small & (x != 0)).any())


def _shift(whole: Callable[[Lanes, Lanes], Any], function: np.ufunc) -> Callable[[Lanes, Lanes], Any]:
    """The function `whole` of shl or shr, with a shorter way for literals below the width."""

    def shift(a: Lanes, b: Lanes) -> Any:
        if b.ndim or b >= 8 * a.dtype.itemsize:
            return whole(a, b)
        return function(a, b.astype(a.dtype))

    return shift


_INTEGERS: Final = ("u16", "s16", "u32", "s32", "u64", "s64")
_BITS: Final = ("b16", "b32", "b64")
_INTEGER_FORMS: Final[tuple[tuple[str, Callable[..., Any], tuple[str, ...]], ...]] = (
    ("add", np.add, _INTEGERS),
    ("sub", np.subtract, _INTEGERS),
    ("mul.lo", np.multiply, _INTEGERS),
    ("and", np.bitwise_and, (*_BITS, "pred")),
    ("or", np.bitwise_or, (*_BITS, "pred")),
    ("xor", np.bitwise_xor, (*_BITS, "pred")),
    ("not", np.invert, (*_BITS, "pred")),
    ("shl", _shift(integer.shl, np.left_shift), _BITS),
    ("shr", _shift(integer.shr, np.right_shift), (*_BITS, *_INTEGERS)),
    *(
        (f"setp.{name}", function, (*_INTEGERS, *_BITS) if name in ("eq", "ne") else _INTEGERS)
        for name, function in ORDERED.items()
    ),
)

FAST: Final[dict[str, Fast]] = {
    **{f"{name}.{type}": Fast(function) for name, function, types in _INTEGER_FORMS for type in types},
    "add.rn.f32": Fast(np.add),
    "add.f32": Fast(np.add),
    "sub.rn.f32": Fast(sub),
    "sub.f32": Fast(sub),
    "mul.rn.f32": Fast(np.multiply),
    "mul.f32": Fast(np.multiply),
    "fma.rn.f32": Fast(fma, widened=True),
    "mad.rn.f32": Fast(fma, widened=True),
    "fma.rn.ftz.f32": Fast(fma_ftz, widened=True),
    "mad.rn.ftz.f32": Fast(fma_ftz, widened=True),
}
