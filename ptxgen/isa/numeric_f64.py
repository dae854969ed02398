"""Double-precision arithmetic, rounded once in every direction.

If float64 cannot hold the part that decides the rounding, errors are computed exactly (Dekker,
Knuth); the few lanes for which that fails are computed in rational numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from ptxgen.isa.numeric import Lanes, quiet, quotient_error, stepped, sum_to_odd, two_sum, zero_sign

if TYPE_CHECKING:
    from fractions import Fraction


def _exactly(formula: Callable[..., Fraction], rnd: str, *lanes: Lanes) -> Lanes:
    """`formula` of finite float64 lanes in rational arithmetic, rounded once; a zero result must be
    a sum of opposites.
    """
    # Imported at first use: few lanes need it, and a process that emits PTX waits for each import.
    from fractions import Fraction

    out = [
        _round_fraction(formula(*map(Fraction, map(float, row))), rnd)
        for row in zip(*(np.ravel(x) for x in np.broadcast_arrays(*lanes)), strict=True)
    ]
    return np.array(out).reshape(np.broadcast_shapes(*(np.shape(x) for x in lanes)))


def _round_fraction(exact: Fraction, rnd: str) -> float:
    if exact == 0:
        return -0.0 if rnd == "rm" else 0.0
    try:
        nearest = float(exact)
    except OverflowError:
        nearest = np.inf if exact > 0 else -np.inf
    too_large = nearest > exact if np.isfinite(nearest) else nearest > 0
    if rnd == "rn" or (np.isfinite(nearest) and nearest == exact):
        return nearest
    down = rnd == "rm" or (rnd == "rz" and exact > 0)
    if down == too_large:
        return float(np.nextafter(nearest, -np.inf if down else np.inf))
    return nearest


def _repaired(result: Lanes, slow: Lanes, formula: Callable[..., Fraction], rnd: str, *lanes: Lanes) -> Lanes:
    """`result` with the values of the formula in the lanes `slow` (finite operands)."""
    if not slow.any():
        return result[()]
    shape = np.broadcast_shapes(*(np.shape(x) for x in lanes))
    chosen = np.atleast_1d(slow)
    out = np.array(np.broadcast_to(result, chosen.shape))
    out[chosen] = _exactly(formula, rnd, *(np.broadcast_to(x, chosen.shape)[chosen] for x in lanes))
    return out if shape else out.reshape(())[()]


@quiet
def add_f64(a: Lanes, b: Lanes, rnd: str) -> Lanes:
    """a + b, rounded once."""
    if rnd == "rn":
        return np.add(a, b)
    nearest, error = two_sum(a, b)
    result = zero_sign(stepped(nearest, error, rnd), a, b, rnd)
    slow = ~(np.abs(nearest) < _SAFE_ADDEND) & np.isfinite(a) & np.isfinite(b)
    return _repaired(result, slow, lambda x, y: x + y, rnd, a, b)


@quiet
def mul_f64(a: Lanes, b: Lanes, rnd: str) -> Lanes:
    """a * b, rounded once."""
    if rnd == "rn":
        return np.multiply(a, b)
    nearest, error = _two_product(a, b)
    slow = ~(_is_safe(a) & _is_safe(b)) & np.isfinite(a) & np.isfinite(b) & (a != 0) & (b != 0)
    return _repaired(stepped(nearest, error, rnd), slow, lambda x, y: x * y, rnd, a, b)


@quiet
def div_f64(a: Lanes, b: Lanes, rnd: str = "rn") -> Lanes:
    """a / b, rounded once."""
    nearest = np.divide(a, b)
    if rnd == "rn":
        return nearest
    product, error = _two_product(nearest, b)
    rest = (a - product) - error
    result = stepped(nearest, quotient_error(nearest, rest, a, b), rnd)
    slow = ~(_is_safe(a) & _is_safe(b)) & np.isfinite(a) & np.isfinite(b) & (a != 0) & (b != 0)
    return _repaired(result, slow, lambda x, y: x / y, rnd, a, b)


@quiet
def sqrt_f64(a: Lanes, rnd: str = "rn") -> Lanes:
    """The square root, rounded once."""
    if rnd == "rn":
        return np.sqrt(a)
    exponent = np.where(np.isfinite(a), np.frexp(a)[1], 0) & ~1  # even
    scaled = np.ldexp(a, -exponent)
    nearest = np.sqrt(scaled)
    product, error = _two_product(nearest, nearest)
    root: Lanes = np.ldexp(stepped(nearest, (scaled - product) - error, rnd), exponent >> 1)
    return root


_SAFE_FACTOR: Final = 2.0**450  # products of factors between this and its inverse split exactly
_SAFE_ADDEND: Final = 2.0**1000
_SPLIT: Final = 2.0**27 + 1  # Veltkamp's constant for float64


def _two_product(a: Lanes, b: Lanes) -> tuple[Lanes, Lanes]:
    """p = a * b rounded, and the error, so that p + error == a * b exactly (Dekker)."""
    p = np.multiply(a, b)
    scaled_a, scaled_b = a * _SPLIT, b * _SPLIT
    a_high, b_high = scaled_a - (scaled_a - a), scaled_b - (scaled_b - b)
    a_low, b_low = a - a_high, b - b_high
    return p, ((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low


def _is_safe(x: Lanes) -> Lanes:
    size = np.abs(x)
    safe: Lanes = (size < _SAFE_FACTOR) & (size > 1 / _SAFE_FACTOR)
    return safe


@quiet
def fma_f64(a: Lanes, b: Lanes, c: Lanes, rnd: str = "rn") -> Lanes:
    """a * b + c, rounded once."""
    product, product_error = _two_product(a, b)
    # A finite product counts as finite, even if float64 cannot hold it.
    lost = np.isfinite(a) & np.isfinite(b) & ~np.isfinite(c)
    native = np.where(lost, c, product + c)
    trivial = ~(np.isfinite(a) & np.isfinite(b) & np.isfinite(c)) | (a == 0) | (b == 0)
    safe = _is_safe(a) & _is_safe(b) & (np.abs(c) < _SAFE_ADDEND)
    low, low_error = two_sum(c, product_error)
    high, high_error = two_sum(product, low)
    nearest, error = two_sum(high, sum_to_odd(high_error, low_error))
    fast = nearest if rnd == "rn" else stepped(nearest, error, rnd)
    result = zero_sign(np.where(trivial, native, fast), product, c, rnd)
    return _repaired(result, ~trivial & ~safe, lambda x, y, z: x * y + z, rnd, a, b, c)
