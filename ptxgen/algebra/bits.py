"""Integer instructions that move halves of registers, such as those that pack two numbers of 16 bits, or
round a float to fewer bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.algebra.operands import UNIT_BITS, doubled
from ptxgen.algebra.words import F32, RAISED, has_format, in_format, unknown

if TYPE_CHECKING:
    from ptxgen.algebra.operands import Executed

Lanes = np.ndarray[Any, np.dtype[Any]]

_ONES: Final = (1 << UNIT_BITS) - 1
_BYTES: Final = UNIT_BITS // 8
_HALF: Final = 1 << (UNIT_BITS - 1)
_OF_FLOAT: Final = 2  # words of a float of 32 bits


def _shift(now: Executed) -> None:
    """`shl`, `shr`: the halves move by multiples of 16 bits; a signed one to the right fills with a sign."""
    units = _units(now, "d")
    if now.words(now["b"], _OF_FLOAT).any():
        now.lose()
        return
    words, by = now.words(now["a"], units), now.held("b").astype(np.int64)
    amounts = np.minimum(by // UNIT_BITS, units)
    source = np.arange(units) + amounts[:, None] * (-1 if now.name == "shl" else 1)
    inside = (source >= 0) & (source < units)
    moved = np.where(inside, np.take_along_axis(words, np.clip(source, 0, units - 1), 1), 0)
    fills = now.name == "shr" and now.type_of("d").is_signed
    has_words = words.any(1)
    _write(now, moved, (by % UNIT_BITS == 0) & ~(has_words & fills), has_words)


def _and(now: Executed) -> None:
    """A half of the mask is all ones or 0."""
    _masked(now, lambda mask: mask == _ONES, lambda mask: mask == 0)


def _or(now: Executed) -> None:
    """A half without a word is 0."""
    _masked(now, lambda other: other == 0, lambda other: other < 0)


def _masked(now: Executed, keeps: Callable[[Lanes], Lanes], drops: Callable[[Lanes], Lanes]) -> None:
    units = _units(now, "d")
    words = [now.words(now[name], units) for name in "ab"]
    halves = [_halves(now.held(name), units) for name in "ab"]
    if now.name == "and_" and units == _OF_FLOAT and _rounds(now, words, halves):
        return
    result, known = np.zeros_like(words[0]), np.ones(words[0].shape, np.bool_)
    for mine, other, other_bits in ((*words, halves[1]), (*words[::-1], halves[0])):
        has_word = mine != 0
        result = np.where(has_word & keeps(other_bits), mine, result)
        known &= ~has_word | ((other == 0) & (keeps(other_bits) | drops(other_bits)))
    result = np.where(known, result, unknown(now.step.number))
    now.write(now["d"], result)


def _rounds(now: Executed, words: list[Lanes], halves: list[Lanes]) -> bool:
    """Whether a mask keeps the upper half of floats of 32 bits, which rounds them to fewer bits."""
    for mine, other, mask in ((*words, halves[1]), (*words[::-1], halves[0])):
        if (
            _are_floats(mine, F32, RAISED)
            and not other.any()
            and (mask[:, 1] == _ONES).all()
            and mask[:, 0].any()
        ):
            now.write(now["d"], in_format(mine, F32))
            return True
    return False


def _add(now: Executed) -> None:
    """A sum with at most half of the lower 16 bits is a step of rounding a float of 32 bits to fewer bits."""
    for name, other in ("ab", "ba"):
        words = now.words(now[name], _OF_FLOAT)
        small = now.held(other).astype(np.int64)
        is_small = ((small >= 0) & (small <= _HALF)).all() and not now.words(now[other], 1).any()
        if is_small and now.type_of("d").bits == _OF_FLOAT * UNIT_BITS and _are_floats(words, F32):
            now.write(now["d"], in_format(words, RAISED))
            return
    now.lose()


def _are_floats(words: Lanes, *formats: int) -> bool:
    """Whether words `[n, 2]` are the halves of floats in some formats, or there is none in a lane."""
    are_halves = words[:, 1] == doubled(words[:, :1])[:, 1]
    return bool(words.any() and (are_halves & has_format(words[:, 0], *formats)).all())


def _prmt(now: Executed) -> None:
    """PTX ISA, "prmt": without a mode each digit of c chooses a byte of {b, a}; pairs of bytes are halves."""
    if now.words(now["c"], 2).any():
        now.lose()
        return
    words = np.concatenate([now.words(now["a"], 2), now.words(now["b"], 2)], 1)
    digits = now.held("c").astype(np.int64)[:, None] >> (4 * np.arange(4)) & 15
    lower, upper = digits[:, ::2], digits[:, 1::2]
    whole = (lower % _BYTES == 0) & (upper == lower + 1) & (lower < 8)
    chosen = np.take_along_axis(words, np.minimum(lower // _BYTES, 3), 1)
    has_words = words.any(1)
    plain = not now.modifiers.get("mode")
    _write(now, chosen, whole.all(1) & plain, has_words)


def _write(now: Executed, words: Lanes, known: Any, has_words: Any) -> None:
    lost = np.where(has_words, unknown(now.step.number), np.uint64(0))
    now.write(now["d"], np.where(known[:, None], words, lost[:, None]))


def _halves(held: Lanes, units: int) -> Lanes:
    shifts = UNIT_BITS * np.arange(units)
    bits: Lanes = held.astype(np.int64)[:, None] >> shifts & _ONES
    return bits


def _units(now: Executed, name: str) -> int:
    return max(now.type_of(name).bits // UNIT_BITS, 1)


def widen(now: Executed) -> None:
    """`cvt` between integers: the lower halves stay, and what is beyond them is 0 or a sign."""
    if now.modifiers.get("sat") or min(now.type_of(name).bits for name in "da") < UNIT_BITS:
        now.lose()
        return
    units = _units(now, "d")
    words = now.words(now["a"], max(units, _units(now, "a")))
    fills = now.type_of("a").is_signed and units > _units(now, "a")
    has_words = words.any(1)
    _write(now, words[:, :units], ~(has_words & fills), has_words)


BITS: Final[Mapping[str, Callable[[Executed], None]]] = {
    "shl": _shift,
    "shr": _shift,
    "and_": _and,
    "or_": _or,
    "prmt": _prmt,
    "add": _add,
}


def is_integer_conversion(now: Executed) -> bool:
    """Whether the instruction converts integers to integers."""
    return now.name == "cvt" and all(now.type_of(name).is_integer for name in "da")
