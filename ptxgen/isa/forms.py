"""The forms of instructions: what all with one opcode and operands of the same classes have in common."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from ptxgen.errors import PtxGenError
from ptxgen.ir import Address, Arguments, Instr, Not, Operand, Pair, Reg, TensorAddress, Vector
from ptxgen.isa.spec import OF_REGISTERS
from ptxgen.isa.table import op_of, recognise

_PARAMETER: Final = "ld.param."
_Operands = tuple[Operand, ...]
Parts: TypeAlias = Callable[[_Operands], tuple[Any, ...]]

# By the class of an operand that may have registers, the source text of its parts; `o` are the operands.
_PARTS: Final[Mapping[type, tuple[str, ...]]] = {
    Reg: ("o[{0}]",),
    Not: ("o[{0}].register",),
    Address: ("o[{0}].base",),
    TensorAddress: ("o[{0}].base", "*o[{0}].coordinates"),
    Vector: ("*o[{0}].items",),
    Arguments: ("*o[{0}].items",),
    Pair: ("o[{0}].first", "o[{0}].second"),
}


class Form:
    """What the instructions with one opcode and operands of the same classes have in common. If the opcode
    has several ops, the instructions of a form have the same one. A form equals no other.

    `written` and `read` are functions that give the parts of the operands that an instruction writes and
    reads: all of their registers, and what else is in a vector or is the base of an address. `only_result` is
    the position of the operand if the instruction writes one register, -1 if more or none. `may_be_unread`
    says whether it changes nothing but registers, and at least one.
    """

    __slots__ = ("may_be_unread", "only_result", "read", "written")

    def __init__(self, instr: Instr) -> None:
        op, operands = op_of(instr), instr.operands
        results = [declared.written and not declared.address for declared in op.flat[: len(operands)]]
        written = _parts(operands, [i for i, written in enumerate(results) if written])
        self.written = tuple_of(written)
        self.read = tuple_of(_parts(operands, [i for i, written in enumerate(results) if not written]))
        alone = len(written) == 1 and operands[results.index(True)].__class__ is Reg
        self.only_result = results.index(True) if alone else -1
        changes_registers = op.effect in OF_REGISTERS or instr.opcode.startswith(_PARAMETER)
        self.may_be_unread = changes_registers and bool(written)


# By opcode and classes of the operands, or what tells the ops of one opcode apart.
_FORMS: Final[dict[tuple[object, ...], Form]] = {}


def form_of(instr: Instr) -> Form | None:
    """The form of an instruction, which keeps it; None if no row of the table has its opcode and operands."""
    form: Form | None = instr.form
    if form is None:
        form = instr.form = _FORMS.get((instr.opcode, *map(type, instr.operands))) or _form(instr)
    return form


def _form(instr: Instr) -> Form | None:
    """The form of an instruction whose opcode and classes of operands are not known to have one alone."""
    alone = len(recognise(instr.opcode)) == 1
    key = (instr.opcode, *map(type if alone else _shape, instr.operands))
    form = _FORMS.get(key)
    if form is None:
        try:
            form = _FORMS[key] = Form(instr)
        except PtxGenError:
            return None
    return form


def _shape(operand: Operand) -> object:
    """The properties of an operand by which `ptxgen.isa.table.fits` tells the ops of an opcode apart."""
    if isinstance(operand, Reg):
        return Reg, operand.declared == "pred"
    if isinstance(operand, Not):
        return Not, operand.register.declared == "pred"
    if isinstance(operand, Vector):
        return Vector, len(operand.items)
    if isinstance(operand, TensorAddress):
        return TensorAddress, len(operand.coordinates)
    return operand.__class__


def _parts(operands: _Operands, indices: Sequence[int]) -> tuple[str, ...]:
    """The source texts of the parts of the operands at these indices."""
    return tuple([part.format(i) for i in indices for part in _PARTS.get(operands[i].__class__, ())])


@functools.cache  # a process compiles few: most forms have the same classes of operands
def tuple_of(parts: tuple[str, ...]) -> Parts:
    """A function that returns the tuple of these parts, source texts, of the operands `o` that it takes."""
    return eval(f"lambda o: ({''.join(f'{part}, ' for part in parts)})")  # type: ignore[no-any-return]
