"""The forms of instructions: what all with one opcode and operands of the same classes have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Final

from ptxgen.errors import PtxGenError
from ptxgen.ir import (
    FloatImm,
    Instr,
    IntImm,
    Not,
    Operand,
    Reg,
    Special,
    Symbol,
    TensorAddress,
    Vector,
    registers_of,
)
from ptxgen.isa.spec import OF_REGISTERS
from ptxgen.isa.table import op_of, recognise

_PARAMETER: Final = "ld.param."
_WITHOUT_REGISTERS: Final = (IntImm, FloatImm, Special, Symbol)
_Operands = tuple[Operand, ...]
_Registers = Callable[[_Operands], Sequence[Reg]]


class Form:
    """What the instructions with one opcode and operands of the same classes have in common: functions that
    give the registers that one writes and reads, and whether it changes nothing but registers. If the opcode
    has several ops, the instructions of a form have the same one. A form equals no other.
    """

    __slots__ = ("has_only_results", "read", "written")

    def __init__(self, instr: Instr) -> None:
        op, operands = op_of(instr), instr.operands
        results = [declared.written and not declared.address for declared in op.flat[: len(operands)]]
        self.written = _registers(operands, [i for i, written in enumerate(results) if written])
        self.read = _registers(operands, [i for i, written in enumerate(results) if not written])
        self.has_only_results = op.effect in OF_REGISTERS or instr.opcode.startswith(_PARAMETER)


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


def _registers(operands: _Operands, indices: Sequence[int]) -> _Registers:
    """A function that gives the registers in the operands at these indices, of the classes of `operands`."""
    indices = [i for i in indices if not isinstance(operands[i], _WITHOUT_REGISTERS)]
    if all(operands[i].__class__ is Reg for i in indices):
        if len(indices) > 1:
            return itemgetter(*indices)
        return itemgetter(slice(indices[0], indices[0] + 1)) if indices else lambda _: ()
    return lambda operands: [register for i in indices for register in registers_of(operands[i])]
