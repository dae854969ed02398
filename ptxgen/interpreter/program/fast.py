"""Faster forms of the instructions that kernels are made of; each gives the bits of its row's
own function.

A row's function asks what its modifiers say and looks for every case that goes wrong. Here the
modifiers are known, and one cheap pass over the lanes says that there is no such case; otherwise
the row's own function does those lanes. `tests/interpreter/test_blocks.py` compares all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ptxgen.isa import floating, numeric

Lanes = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Fast:
    """A faster form. With `widened`, it takes each operand as float64, too, after the operands
    themselves.
    """

    function: Callable[..., Any]
    widened: bool = False


# What is left of a float64 halfway between two float32 when all but the 29 bits that a float32
# lacks are shifted out.
_HALFWAY: Final = -(1 << 63)
_SHIFT: Final = np.int64(64 - 29)
_MIN_NORMAL: Final = np.float32(2.0**-126)


def sub(a: Lanes, b: Lanes) -> Lanes:
    """The function of sub.rn.f32 and sub.f32; not `np.subtract`, which treats the sign of a NaN
    otherwise.
    """
    difference: Lanes = np.add(a, np.negative(b))
    return difference


def fma(a: Lanes, b: Lanes, c: Lanes, wide_a: Lanes, wide_b: Lanes, wide_c: Lanes) -> Lanes:
    """The function of fma.rn.f32 and mad.rn.f32.

    The product is exact in float64. Rounding the float64 sum to float32 goes wrong only where it is
    halfway between two float32, or where the result is subnormal.
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
    """Whether `total` is a * b + c without an error in all of the lanes: then it has been rounded
    once.
    """
    a, b, c = (x[lanes] if np.ndim(x) else x for x in (a, b, c))
    product = np.multiply(a, b)
    rest = total - product
    # The error of a sum (Knuth); NaN, which is an error here, if anything is not finite.
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


FAST: Final[dict[str, Fast]] = {
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
