"""Exact numbers as words of 64 bits, one for each 16 bits of a register or of memory, so that an instruction
that moves bits moves the numbers that they stand for.

A word of 0 says that the bits are what the interpreter has: an integer, an address, or a number that no
symbol has entered. The upper half of a number of 32 bits has the number's word with one more bit set. Words
say the format of the number's bits, since bits that are read in another format are another number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ptxgen.algebra.residues import EXPONENT, FINITE, MINUS_INFINITY, PLUS_INFINITY, UNKNOWN, VALUE, Exact

Lanes = np.ndarray[Any, np.dtype[Any]]

UPPER: Final = np.uint64(1 << 63)  # the upper half of a number of 32 bits
_EXPONENT_AT: Final = np.uint64(30)
_FORMAT_AT: Final = np.uint64(59)
_KIND_AT: Final = np.uint64(61)
_VALUE_BITS: Final = np.uint64((1 << 30) - 1)
_EXPONENT_BITS: Final = np.uint64((1 << 29) - 1)
_FORMAT_BITS: Final = np.uint64(3)
# Formats of bits. One that is raised has a part of the last place of a shorter format added, before a mask
# or a product of tf32 leaves out the bits beyond that place.
PARTS: Final = (1 << 29) - 1  # in place of the number of an instruction: stores of parts of an element
F32, F16, BF16, RAISED = range(4)
FORMATS: Final = {"f32": F32, "tf32": F32, "f16": F16, "f16x2": F16, "bf16": BF16, "bf16x2": BF16}
# What the value's bits say where no residue is known.
_UNKNOWN, _PLUS, _MINUS = np.uint64(1), np.uint64(2), np.uint64(3)


def packed(numbers: Exact, format: int, at: int | Lanes) -> Lanes:
    """The words of numbers in a format, uint64; unknown ones say that the instruction with the number `at`
    made them.
    """
    kind = (numbers.kind & FINITE).astype(np.uint64)
    value = np.where(numbers.kind & VALUE, numbers.value, 0)
    exponent = np.where(numbers.kind & EXPONENT, numbers.exponent, 0)
    words = value | exponent << _EXPONENT_AT | kind << _KIND_AT
    words = np.where(numbers.kind == UNKNOWN, unknown(at), words)
    words = np.where(numbers.kind == PLUS_INFINITY, _PLUS, words)
    words = np.where(numbers.kind == MINUS_INFINITY, _MINUS, words)
    return in_format(words, format)


def in_format(words: Lanes, format: int) -> Lanes:
    """The words of the same numbers after a conversion to a format."""
    at_format = np.uint64(format) << _FORMAT_AT
    result: Lanes = np.where(_is_number(words), words & ~(_FORMAT_BITS << _FORMAT_AT) | at_format, words)
    return result


def has_format(words: Lanes, *formats: int) -> Lanes:
    """Whether words are numbers in one of some formats; True of words of 0 and of unknown ones."""
    result: Lanes = ~_is_number(words) | np.isin(words >> _FORMAT_AT & _FORMAT_BITS, formats)
    return result


def _is_number(words: Lanes) -> Lanes:
    result: Lanes = (words != 0) & (maker(words) < 0)
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
