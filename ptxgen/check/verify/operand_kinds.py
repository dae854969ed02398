"""The parts of an instruction's operands that tell whether another instruction is checked like it.

The kinds of all operands are what a shape depends on (`ptxgen.check.verify.shapes`), but to find them takes
longer than to check an instruction. Most instructions have registers, vectors of registers, addresses and
literals at the same positions as the one before with the same opcode: compiled code lists their parts at
once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any, Final

from ptxgen.ir import (
    Address,
    FloatImm,
    IntImm,
    Not,
    Operand,
    Reg,
    RegisterRange,
    Sink,
    Special,
    Symbol,
    Vector,
)
from ptxgen.isa.forms import Parts, tuple_of
from ptxgen.isa.spec import BoundOperand
from ptxgen.register_names import REGISTERS
from ptxgen.types import REGISTER_PREFIX

_NAMED: Final = 10_000  # registers of a range that are looked up as they are; a larger range is searched


def part_kind(part: Any) -> object:
    """The key of a part of an instruction's operands on which the instruction's shape depends."""
    if isinstance(part, Reg):
        return part.declared
    return part if isinstance(part, int | str | type) else part.__class__


class PartKinds(dict[object, object]):
    """The kinds of parts in one body; None for a register that the body declares otherwise. `ranges` are
    those of the body, and `class_of` gives how it declares a register that is in none of these.
    """

    def __init__(self, ranges: Iterable[RegisterRange], class_of: Callable[[str], str | None]) -> None:
        super().__init__()
        self._class_of = class_of
        for r in ranges:
            numbers = range(min(r.count, _NAMED))
            if REGISTER_PREFIX.get(r.declared) == r.prefix:
                registers: Iterable[object] = map(REGISTERS[r.declared].__getitem__, numbers)
            else:  # tuples that equal the registers, made without a call for each
                registers = zip([f"{r.prefix}{i}" for i in numbers], repeat(r.declared))
            self.update(dict.fromkeys(registers, r.declared))

    def __missing__(self, part: object) -> object:
        if isinstance(part, Reg) and self._class_of(part.name) != part.declared:
            return None
        kind = self[part] = part_kind(part)
        return kind


def parts_of(wanted: Sequence[tuple[BoundOperand, Operand]]) -> Parts | None:
    """A function that returns the parts of all operands of the same classes as these: their registers, the
    written ones first, and after them all else that a shape depends on. None if registers and other items may
    be mixed in one operand. `wanted` has each operand of the row with the operand that is there.
    """
    written: list[str] = []
    read: list[str] = []
    others: list[str] = []
    lengths: list[str] = []
    for i, (bound, got) in enumerate(wanted):
        into = written if bound.written else read
        match got:
            case Reg():
                into.append(f"o[{i}]")
            case Vector() if all(isinstance(item, Reg) for item in got.items):
                into.append(f"*o[{i}].items")
                lengths.append(f"len(o[{i}].items)")
            case Address():
                (into if isinstance(got.base, Reg) else others).append(f"o[{i}].base")
            case Not():
                into.append(f"o[{i}].register")
            case FloatImm():
                others.append(f"o[{i}].width")
            case Special():
                others.append(f"o[{i}].name")
            case IntImm() | Symbol() | Sink():
                pass
            case _:
                return None
    # The number of parts is the length of one vector.
    sources = [*written, *read, *others, *lengths[1:]]
    if sources == [f"o[{i}]" for i in range(len(wanted))]:
        return tuple
    return tuple_of(tuple(sources))
