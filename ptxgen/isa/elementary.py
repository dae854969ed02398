"""Elementary functions rounded once, with the same bits on every CPU.

numpy's float64 functions have errors in their last bits, which depend on the CPU and on the
mathematical library. If such an error could change a rounded result, the value is computed again
with many digits: Ziv, "Fast evaluation of elementary mathematical functions with correctly rounded
last bit", 1991.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_EVEN, Context, Decimal, localcontext
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ptxgen.isa import numeric
from ptxgen.types import f32

if TYPE_CHECKING:
    from ptxgen.isa.numeric import Lanes
    from ptxgen.types import ScalarType

# A relative error well above that of numpy's functions in any implementation, about 2^-51.
_ERROR: Final = 2.0**-44
_BELOW: Final = np.float64(1 - _ERROR)
_ABOVE: Final = np.float64(1 + _ERROR)
# Decimal digits: those of a number below 2^128, those that tanh loses for the smallest f32, and
# some to decide the rounding. Only exp2 of an integer may lie halfway between two floats, and it
# has fewer digits.
_DIGITS: Final = 39 + 45 + 60
_PRECISE: Final = Context(prec=_DIGITS, rounding=ROUND_HALF_EVEN, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[])


@cache
def _ln2() -> Decimal:
    return Decimal(2).ln()


@cache
def _pi() -> Decimal:
    """pi by Machin's formula: pi / 4 = 4 arctan(1 / 5) - arctan(1 / 239)."""

    def arctan_of_inverse(n: int) -> Decimal:
        power = total = Decimal(1) / n
        for k in range(3, 3 * _DIGITS, 2):
            power /= -n * n
            total += power / k
        return total

    return 16 * arctan_of_inverse(5) - 4 * arctan_of_inverse(239)


def _exp2(x: Decimal) -> Decimal:
    return Decimal(2) ** x if x == x.to_integral_value() else (x * _ln2()).exp()


def _log2(x: Decimal) -> Decimal:
    return x.ln() / _ln2()


def _tanh(x: Decimal) -> Decimal:
    power = (-2 * abs(x)).exp()
    return ((1 - power) / (1 + power)).copy_sign(x)


def _sin(x: Decimal) -> Decimal:
    return _series(x, Decimal(0))


def _cos(x: Decimal) -> Decimal:
    return _series(x, Decimal(1))


def _series(x: Decimal, quarter: Decimal) -> Decimal:
    """sin(x + quarter * pi / 2), by the Taylor series around the nearest multiple of pi."""
    half_periods = (x / _pi() + quarter / 2).to_integral_value()
    rest = x - (half_periods - quarter / 2) * _pi()
    total = term = rest
    for k in range(2, 2 * _DIGITS, 2):
        term *= -rest * rest / (k * (k + 1))
        total += term
    return -total if half_periods % 2 else total


class Elementary(NamedTuple):
    """An elementary function: in float64 by numpy, and with `_DIGITS` decimal digits."""

    near: Callable[[Lanes], Lanes]
    precise: Callable[[Decimal], Decimal]


EXP2: Final = Elementary(np.exp2, _exp2)
LOG2: Final = Elementary(np.log2, _log2)
TANH: Final = Elementary(np.tanh, _tanh)
SIN: Final = Elementary(np.sin, _sin)
COS: Final = Elementary(np.cos, _cos)


@numeric.quiet
def rounded(function: Elementary, x: Lanes, type: ScalarType) -> Lanes:
    """`function` of `x` (float64 values that f32 holds) as lanes of `type` (f32, f16 or bf16),
    rounded once, to nearest even.
    """
    near = function.near(x)
    if type is f32:  # the frequent case, without `narrow`
        result, other = near * _BELOW, near * _ABOVE
        result, other = result.astype(np.float32), other.astype(np.float32)
        doubtful = np.not_equal(result.view(np.uint32), other.view(np.uint32))  # a NaN equals itself
    else:
        result, other = (numeric.narrow(near * factor, type) for factor in (_BELOW, _ABOVE))
        doubtful = np.not_equal(result.view(np.uint16), other.view(np.uint16))
    if not doubtful.any():
        return result
    every, where = np.array(result), np.asarray(doubtful)
    every[where] = _precisely(function, np.asarray(x)[where], type)
    lanes: Lanes = every[()]
    return lanes


def _precisely(function: Elementary, x: Lanes, type: ScalarType) -> Lanes:
    """A function's values, computed with many digits and rounded once. Each distinct number takes
    about a millisecond.
    """
    numbers, inverse = np.unique(x, return_inverse=True)
    values = precise_values(function, numbers)
    near = [float(value) for value in values]
    with localcontext(_PRECISE):
        errors = [float(value - Decimal(at)) for value, at in zip(values, near, strict=True)]
    exact = numeric.sum_to_odd(np.array(near), np.array(errors))
    lanes: Lanes = numeric.narrow(exact, type)[inverse]
    return lanes


def precise_values(function: Elementary, x: Lanes) -> list[Decimal]:
    """`function` of each number of `x`, finite and in its domain, with many digits."""
    with localcontext(_PRECISE):
        return [function.precise(Decimal(float(number))) for number in x]
