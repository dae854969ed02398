"""Exact numbers: arrays whose elements are known as residues modulo two primes, so that sums, products,
quotients and powers of two of real numbers are computed without rounding.

Two real expressions of the same inputs that are equal have the same residues. Two that differ have the same
residues for inputs drawn at random with a probability of at most their degree divided by `ORDER` (Schwartz
and Zippel). Exponentials follow Wu and others, "Mirage: A Multi-Level Superoptimizer for Tensor Programs"
(OSDI 2025): an exponent is a residue modulo q, a value one modulo p = 2 q + 1, and 2 to the power of x is g
to the power of x modulo p, where g has the order q. So exp2(a + b) = exp2(a) exp2(b) holds, as in real
arithmetic. A number that depends on an exponential cannot be an exponent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ptxgen.errors import LaunchError, shown

Lanes = np.ndarray[Any, np.dtype[Any]]

ORDER: Final = 536_870_219  # q, the greatest prime below 2**29 for which 2 q + 1 is prime, too
MODULUS: Final = 2 * ORDER + 1  # p
_GENERATOR: Final = 4  # a square, so that its order is q
_DIGIT: Final = 10  # bits of an exponent for which one table has the powers of the generator
_FRACTION: Final = 53  # bits of the fraction of a float64
_LEAST: Final = -1200  # a power of two below those of all float64, the fraction as an integer

VALUE: Final = np.uint8(1)  # the residue modulo p is known
EXPONENT: Final = np.uint8(2)  # the residue modulo q is known
UNKNOWN: Final = np.uint8(0)
PLUS_INFINITY: Final = np.uint8(4)
MINUS_INFINITY: Final = np.uint8(8)
FINITE: Final = np.uint8(3)

_P, _Q = np.uint64(MODULUS), np.uint64(ORDER)


@dataclass(frozen=True, slots=True, eq=False)
class Exact:
    """An array of exact numbers. `value` and `exponent` are the residues modulo `MODULUS` and `ORDER`,
    uint64, and `kind` says which of them are known, or which infinity the number is, uint8; all have the
    same shape.

    `+`, `-`, `*`, `/` and `@` take other such arrays, numbers and arrays of numbers, and broadcast as in
    numpy. A finite float is the fraction that it is, without rounding.
    """

    value: Lanes
    exponent: Lanes
    kind: Lanes

    __array_ufunc__ = None  # an operator of a numpy array leaves the operation to this class

    @classmethod
    def of(cls, numbers: ArrayLike | Exact) -> Exact:
        """Numbers without rounding: integers, floats of up to 64 bits, booleans. NaN is unknown.

        Raises `LaunchError` for anything else.
        """
        if isinstance(numbers, Exact):
            return numbers
        floats = np.asarray(numbers)
        if floats.dtype.kind not in "fiubV" or floats.dtype.hasobject:
            raise LaunchError(f"exact numbers are made of integers and floats, got {shown(numbers)}")
        floats = floats.astype(np.float64)
        kind = np.where(np.isnan(floats), UNKNOWN, FINITE)
        kind = np.where(np.isinf(floats), np.where(floats > 0, PLUS_INFINITY, MINUS_INFINITY), kind)
        fraction, power = np.frexp(np.where(np.isfinite(floats), floats, 0.0))
        whole = (fraction * 2.0**_FRACTION).astype(np.int64)
        at = power.astype(np.int64) - _FRACTION - _LEAST
        value, exponent = (
            (whole % modulus).astype(np.uint64) * _powers_of_two(modulus)[at] % np.uint64(modulus)
            for modulus in (MODULUS, ORDER)
        )
        return cls(value, exponent, kind.astype(np.uint8))

    @classmethod
    def drawn(cls, choice: np.random.Generator, shape: Sequence[int]) -> Exact:
        """Numbers drawn uniformly, with both residues; none is 0."""
        value, exponent = (choice.integers(1, top, shape, np.uint64) for top in (MODULUS, ORDER))
        return cls(value, exponent, np.full(shape, FINITE))

    # ------------------------------------------------------------------------------- arithmetic

    def __add__(self, other: ArrayLike | Exact) -> Exact:
        other = Exact.of(other)
        return Exact(
            (self.value + other.value) % _P, (self.exponent + other.exponent) % _Q, self._both(other)
        )

    def __neg__(self) -> Exact:
        return Exact((_P - self.value) % _P, (_Q - self.exponent) % _Q, self.kind & FINITE)

    def __sub__(self, other: ArrayLike | Exact) -> Exact:
        return self + -Exact.of(other)

    def __mul__(self, other: ArrayLike | Exact) -> Exact:
        other = Exact.of(other)
        return Exact(self.value * other.value % _P, self.exponent * other.exponent % _Q, self._both(other))

    def __truediv__(self, other: ArrayLike | Exact) -> Exact:
        return self * Exact.of(other).reciprocal()

    def __radd__(self, other: ArrayLike) -> Exact:
        return self + other

    def __rsub__(self, other: ArrayLike) -> Exact:
        return -self + other

    def __rmul__(self, other: ArrayLike) -> Exact:
        return self * other

    def __rtruediv__(self, other: ArrayLike) -> Exact:
        return self.reciprocal() * other

    def __matmul__(self, other: ArrayLike | Exact) -> Exact:
        return product(self, Exact.of(other))

    def __rmatmul__(self, other: ArrayLike) -> Exact:
        return product(Exact.of(other), self)

    def sum(self, axis: int = -1) -> Exact:
        """The sum along an axis."""
        return Exact(
            self.value.sum(axis, dtype=np.uint64) % _P,
            self.exponent.sum(axis, dtype=np.uint64) % _Q,
            np.bitwise_and.reduce(self.kind, axis) & FINITE,
        )

    def exp2(self) -> Exact:
        """2 to the power of each number, of which only the value is known. Of an infinity it is unknown."""
        value = np.ones_like(self.exponent)
        for digit, table in enumerate(_powers_of_generator()):
            of_digit = self.exponent >> np.uint64(digit * _DIGIT) & np.uint64((1 << _DIGIT) - 1)
            value = value * table[of_digit] % _P
        return Exact(value, np.zeros_like(value), (self.kind & EXPONENT) >> np.uint8(1))

    def reciprocal(self) -> Exact:
        """1 divided by each number; unknown of 0."""
        kind = np.where(self.value == 0, self.kind & ~VALUE, self.kind)
        kind = np.where(self.exponent == 0, kind & ~EXPONENT, kind) & FINITE
        return Exact(_power(self.value, MODULUS - 2, _P), _power(self.exponent, ORDER - 2, _Q), kind)

    def applied(self, function: str) -> Exact:
        """A function of each number, of which nothing is known but its name: of equal values it is equal."""
        mixed = self.value + np.uint64(1)
        for letter in function.encode():
            mixed = (mixed ^ (mixed >> np.uint64(31)) ^ np.uint64(letter)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
        known = np.where(self.kind & VALUE, FINITE, UNKNOWN)
        return Exact(mixed % _P, (mixed >> np.uint64(3)) % _Q, known)

    # ------------------------------------------------------------------------------------ shapes

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        shape: tuple[int, ...] = self.value.shape
        return shape

    @property
    def T(self) -> Exact:
        """The array with its last two axes exchanged."""
        return self.each(lambda lanes: np.swapaxes(lanes, -1, -2))

    def __getitem__(self, index: Any) -> Exact:
        return self.each(lambda lanes: lanes[index])

    def each(self, change: Callable[[Lanes], Lanes]) -> Exact:
        """The same numbers in another shape or order, which `change` gives an array."""
        return Exact(change(self.value), change(self.exponent), change(self.kind))

    def where(self, condition: ArrayLike, other: ArrayLike | Exact) -> Exact:
        """These numbers where a condition holds, elsewhere `other`; the three broadcast."""
        other = Exact.of(other)
        pairs = (
            (mine, getattr(other, name)) for name, mine in zip(self.__slots__, self.lanes(), strict=True)
        )
        return Exact(*(np.where(condition, mine, others) for mine, others in pairs))

    def equals(self, other: Exact) -> NDArray[np.bool_]:
        """Where both values are known and equal, or both numbers are the same infinity."""
        known = (self.kind & other.kind & VALUE) != 0
        infinite = (self.kind == other.kind) & (self.kind > FINITE)
        result: NDArray[np.bool_] = (known & (self.value == other.value)) | infinite
        return result

    def lanes(self) -> tuple[Lanes, Lanes, Lanes]:
        """The values, the exponents and the kinds."""
        return self.value, self.exponent, self.kind

    def _both(self, other: Exact) -> Lanes:
        kinds: Lanes = self.kind & other.kind & FINITE
        return kinds


def product(a: Exact, b: Exact) -> Exact:
    """The products of matrices, `[..., m, k]` and `[..., k, n]`."""
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    value, exponent = np.zeros(shape, np.uint64), np.zeros(shape, np.uint64)
    for k in range(a.shape[-1]):
        value += a.value[..., :, k, None] * b.value[..., None, k, :] % _P
        exponent += a.exponent[..., :, k, None] * b.exponent[..., None, k, :] % _Q
    rows = np.bitwise_and.reduce(a.kind, -1)[..., :, None]
    columns = np.bitwise_and.reduce(b.kind, -2)[..., None, :]
    return Exact(value % _P, exponent % _Q, np.broadcast_to(rows & columns & FINITE, shape))


def _power(base: Lanes, exponent: int, modulus: np.uint64) -> Lanes:
    """The powers of residues; the modulus is below 2**32."""
    result = np.ones_like(base)
    while exponent:
        if exponent & 1:
            result = result * base % modulus
        base = base * base % modulus
        exponent >>= 1
    return result


@lru_cache(maxsize=2)
def _powers_of_two(modulus: int) -> Lanes:
    """The residues of the powers of two from `_LEAST` on, up to those of all float64."""
    first = pow(2, _LEAST, modulus)
    powers = [first]
    for _ in range(-2 * _LEAST):
        powers.append(powers[-1] * 2 % modulus)
    return np.array(powers, np.uint64)


@lru_cache(maxsize=1)
def _powers_of_generator() -> tuple[Lanes, ...]:
    """For each digit of an exponent a table of the powers of the generator by the digit."""
    tables = []
    base = _GENERATOR
    for _ in range(-(-ORDER.bit_length() // _DIGIT)):
        powers = [1]
        for _ in range((1 << _DIGIT) - 1):
            powers.append(powers[-1] * base % MODULUS)
        tables.append(np.array(powers, np.uint64))
        base = powers[-1] * base % MODULUS
    return tuple(tables)
