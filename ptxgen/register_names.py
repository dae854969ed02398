"""Registers by number and by name, and the ranges that declare them, such as `%r<5>` for `%r3`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ptxgen.ir import Reg, RegisterRange
from ptxgen.types import REGISTER_PREFIX

_DIGITS: Final = "0123456789"
_MOST_DIGITS: Final = 20  # decimal digits of a 64-bit integer


class _Numbered(dict[int, Reg]):
    """By number, the registers of a declared type, such as %f0 and %f1."""

    def __init__(self, declared: str) -> None:
        super().__init__()
        self._declared = declared

    def __missing__(self, number: int) -> Reg:
        # Another thread may be making it, too.
        return self.setdefault(number, Reg(f"{REGISTER_PREFIX[self._declared]}{number}", self._declared))


# By declared type; all kernels that were built share these objects, which makes comparisons of them fast.
REGISTERS: Final = {declared: _Numbered(declared) for declared in REGISTER_PREFIX}


def range_of(name: str, ranges: Mapping[str, RegisterRange]) -> RegisterRange | None:
    """The range that declares register `name`, such as `%r<5>` for `%r3`; None if there is none.

    `ranges` maps the prefix of each range to the range.
    """
    for prefix, number in splits(name):
        candidate = ranges.get(prefix)
        if candidate is not None and is_index(number, candidate.count):
            return candidate
    return None


def splits(name: str) -> Iterator[tuple[str, str]]:
    """All splits of a register name into prefix and index; a prefix may itself end in digits."""
    for length in range(len(name.rstrip(_DIGITS)), len(name)):
        yield name[:length], name[length:]


def is_index(number: str, count: int) -> bool:
    """Whether `number` is the index of a register in a range of `count`, without leading zeros."""
    if len(number) > _MOST_DIGITS or (number[0] == "0" and number != "0"):
        return False
    return int(number) < count
