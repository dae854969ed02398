"""The bounds of an integer instruction's result, from the bounds of its operands.

A `Range` is the set of integers first, first + step, … up to last, each modulo 2**bits of the
register that holds it; negative integers are allowed if no two integers of the range are equal
modulo 2**bits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple


class Range(NamedTuple):
    """`first`, `first + step`, … `last`; a step of 0 is a single value."""

    first: int
    last: int
    step: int

    @property
    def size(self) -> int:
        """The number of integers that the range has."""
        return (self.last - self.first) // self.step + 1 if self.step else 1


def spaced(first: int, last: int, step: int) -> Range:
    """The range from `first` in steps of `step` to the last value that is no more than `last`."""
    if not step or last - first < step:
        return Range(first, first, 0)
    return Range(first, last - (last - first) % step, step)


def whole(bits: int) -> Range:
    """The range of all values that a register of `bits` bits may have."""
    return spaced(0, (1 << bits) - 1, 1)


def single(value: int) -> Range:
    """The range that has one value alone."""
    return Range(value, value, 0)


def unsigned(r: Range, bits: int) -> Range:
    """A range of register contents, read as unsigned numbers from 0 to 2**bits - 1."""
    if r.first >= 0 and r.last < 1 << bits:
        return r
    if r.last < 0 and r.first >= -(1 << bits):
        return Range(r.first + (1 << bits), r.last + (1 << bits), r.step)
    return whole(bits)


def signed(r: Range, bits: int) -> Range:
    """A range of register contents, read as signed numbers of `bits` bits."""
    half = 1 << (bits - 1)
    if r.first >= -half and r.last < half:
        return r
    if r.first >= half and r.last < 2 * half:
        return Range(r.first - 2 * half, r.last - 2 * half, r.step)
    return Range(-half, half - 1, 1)


def wrapped(r: Range, bits: int) -> Range:
    """The range of a result, or of every value if the result may have overflowed."""
    half = 1 << (bits - 1)
    if (r.first >= -half and r.last < half) or (r.first >= 0 and r.last < 2 * half):
        return r
    return whole(bits)


def _add(a: Range, b: Range) -> Range:
    return Range(a.first + b.first, a.last + b.last, math.gcd(a.step, b.step))


def _sub(a: Range, b: Range) -> Range:
    return Range(a.first - b.last, a.last - b.first, math.gcd(a.step, b.step))


def _mul(a: Range, b: Range) -> Range:
    corners = [x * y for x in (a.first, a.last) for y in (b.first, b.last)]
    if not a.step or not b.step:
        step = abs(a.step * b.first if not b.step else b.step * a.first)
    else:
        # (f + ns)(g + mt) differs from fg by multiples of ft, gs and st.
        step = math.gcd(a.first * b.step, b.first * a.step, a.step * b.step)
    return Range(min(corners), max(corners), step)


def _min(a: Range, b: Range) -> Range:
    return _hull(min(a.first, b.first), min(a.last, b.last), a, b)


def _max(a: Range, b: Range) -> Range:
    return _hull(max(a.first, b.first), max(a.last, b.last), a, b)


def _hull(first: int, last: int, a: Range, b: Range) -> Range:
    return spaced(first, last, math.gcd(a.step, b.step, a.first - b.first))


def union(a: Range, b: Range) -> Range:
    """A range that contains all values of two ranges."""
    return _hull(min(a.first, b.first), max(a.last, b.last), a, b)


def _div(a: Range, b: Range) -> Range | None:
    if b.step or b.first <= 0 or a.first < 0:
        return None
    return spaced(a.first // b.first, a.last // b.first, 1)


def _rem(a: Range, b: Range) -> Range | None:
    if b.step or b.first <= 0:
        return None
    low = 0 if a.first >= 0 else 1 - b.first
    if a.first >= 0 and a.last < b.first:
        return a
    return spaced(low, b.first - 1, 1)


def _and(a: Range, b: Range) -> Range | None:
    if a.step == 0:
        a, b = b, a
    if b.step or b.first < 0 or a.first < 0:
        return None
    mask = b.first
    return spaced(0, min(mask, a.last), mask & -mask)


def _or(a: Range, b: Range) -> Range | None:
    if a.first < 0 or b.first < 0:
        return None
    bits = max(a.last, b.last).bit_length()
    return spaced(max(a.first, b.first), (1 << bits) - 1, 1)


def _xor(a: Range, b: Range) -> Range | None:
    if a.first < 0 or b.first < 0:
        return None
    return spaced(0, (1 << max(a.last, b.last).bit_length()) - 1, 1)


def _shl(a: Range, b: Range) -> Range | None:
    return None if b.step or not 0 <= b.first < 64 else _mul(a, single(1 << b.first))


def _shr(a: Range, b: Range) -> Range | None:
    if b.step or not 0 <= b.first < 64:
        return None
    return spaced(a.first >> b.first, a.last >> b.first, 1)


def _bfe(a: Range, b: Range, c: Range) -> Range | None:
    del a, b
    return None if c.step or not 0 <= c.first < 64 else spaced(0, (1 << c.first) - 1, 1)


def _mad(a: Range, b: Range, c: Range) -> Range:
    return _add(_mul(a, b), c)


def _selp(a: Range, b: Range, c: Range) -> Range:
    del c
    return union(a, b)


Rule = Callable[..., "Range | None"]
# By the first word of the opcode, for operands read with the instruction's type.
_RULES: Final[dict[str, Rule]] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "mad": _mad,
    "min": _min,
    "max": _max,
    "div": _div,
    "rem": _rem,
    "and": _and,
    "or": _or,
    "xor": _xor,
    "shl": _shl,
    "shr": _shr,
    "selp": _selp,
    "mov": lambda a: a,
    "cvt": lambda a: a,
    "bfe": _bfe,
}
# The words besides types that an opcode may have. With any other (saturated, packed, high half) the
# rule does not give the result.
_WORDS: Final = {"mul": {"lo", "wide"}, "mad": {"lo", "wide"}}
_TYPE: Final = re.compile("[bsu](8|16|32|64)")


def rule_of(opcode: str) -> Rule | None:
    """The function that gives the range of an instruction's result; None if no rule applies."""
    head, *rest = opcode.split(".")
    plain = all(_TYPE.fullmatch(word) for word in rest if word not in _WORDS.get(head, ()))
    signed_field = head == "bfe" and rest[0].startswith("s")
    return _RULES.get(head) if plain and not signed_field else None


def result(
    rule: Rule, operands: Sequence[Range], kinds: Sequence[tuple[int, bool]], bits: int, is_signed: bool
) -> Range:
    """The range of an instruction's result of `bits` bits. `operands` are the ranges of its
    operands; `kinds` gives the bits of each and whether it is signed.
    """
    read = [signed(r, n) if sign else unsigned(r, n) for r, (n, sign) in zip(operands, kinds, strict=True)]
    bounds = rule(*read)
    if bounds is None:
        return whole(bits)
    fitting = signed if is_signed else unsigned
    return fitting(wrapped(bounds, bits), bits)
