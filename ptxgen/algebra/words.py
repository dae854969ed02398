"""Exact numbers as words of 64 bits, one for each 16 bits of a register or of memory, so that an instruction
that moves bits moves the numbers that they stand for.

A word of 0 says that the bits are what the interpreter has: an integer, an address, or a number that no
symbol has entered. The upper half of a number of 32 bits has the number's word with one more bit set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ptxgen.algebra.residues import EXPONENT, FINITE, MINUS_INFINITY, PLUS_INFINITY, UNKNOWN, VALUE, Exact

Lanes = np.ndarray[Any, np.dtype[Any]]

UPPER: Final = np.uint64(1 << 63)  # the upper half of a number of 32 bits
_EXPONENT_AT: Final = np.uint64(31)
_KIND_AT: Final = np.uint64(61)
_VALUE_BITS: Final = np.uint64((1 << 31) - 1)
_EXPONENT_BITS: Final = np.uint64((1 << 30) - 1)
# What the value's bits say where no residue is known.
_UNKNOWN, _PLUS, _MINUS = np.uint64(1), np.uint64(2), np.uint64(3)


def packed(numbers: Exact, at: int | Lanes) -> Lanes:
    """The words of numbers, uint64; unknown ones say that the instruction with the number `at` made them."""
    kind = (numbers.kind & FINITE).astype(np.uint64)
    value = np.where(numbers.kind & VALUE, numbers.value, 0)
    exponent = np.where(numbers.kind & EXPONENT, numbers.exponent, 0)
    words = value | exponent << _EXPONENT_AT | kind << _KIND_AT
    words = np.where(numbers.kind == UNKNOWN, unknown(at), words)
    words = np.where(numbers.kind == PLUS_INFINITY, _PLUS, words)
    result: Lanes = np.where(numbers.kind == MINUS_INFINITY, _MINUS, words)
    return result


def unknown(at: int | Lanes) -> Any:
    """The words of unknown numbers that the instruction with the number `at` made."""
    return _UNKNOWN | np.asarray(at).astype(np.uint64) << _EXPONENT_AT


def cause(words: Sequence[Lanes], at: int) -> Lanes:
    """The number of the instruction because of which what is computed of words, `[n, ...]` each, is unknown,
    int64 `[n, 1]`: `at` itself unless one of them is unknown already.
    """
    earlier = np.max([maker(each).reshape(len(each), -1).max(1, initial=-1) for each in words], 0)
    return np.where(earlier < 0, at, earlier)[:, None]


def maker(words: Lanes) -> Lanes:
    """The numbers of the instructions that made unknown numbers, int64; -1 of other words."""
    words = words & ~UPPER
    is_unknown = (words >> _KIND_AT == 0) & (words & _VALUE_BITS == _UNKNOWN)
    result: Lanes = np.where(is_unknown, (words >> _EXPONENT_AT & _EXPONENT_BITS).astype(np.int64), -1)
    return result


def unpacked(words: Lanes, held: Lanes) -> Exact:
    """The numbers of words; where a word is 0, of the floats `held` by the interpreter."""
    words = words & ~UPPER
    value, exponent = words & _VALUE_BITS, words >> _EXPONENT_AT & _EXPONENT_BITS
    kind = (words >> _KIND_AT).astype(np.uint8)
    special = np.choose(
        np.minimum(value, 3).astype(np.int64), [UNKNOWN, UNKNOWN, PLUS_INFINITY, MINUS_INFINITY]
    )
    numbers = Exact(value, exponent, np.where(kind == 0, special, kind).astype(np.uint8))
    is_held = words == 0
    return numbers.where(~is_held, Exact.of(held)) if is_held.any() else numbers
