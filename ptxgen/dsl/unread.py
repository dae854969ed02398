"""Instructions whose results no other instruction needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from ptxgen.ir import (
    FloatImm,
    Instr,
    IntImm,
    Not,
    Operand,
    Reg,
    Special,
    Statement,
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
_Reads = Callable[[_Operands], Sequence[Reg]]


class _Form(NamedTuple):
    """The properties of all instructions with one opcode and operands of the same classes: functions that
    give the registers that one writes and reads, and whether it changes nothing but registers.
    """

    written: _Reads
    read: _Reads
    only_results: bool


# By opcode and classes of the operands, or what tells the ops of one opcode apart.
_FORMS: Final[dict[tuple[object, ...], _Form]] = {}


def needed(body: Sequence[Statement]) -> tuple[Statement, ...]:
    """The statements without the instructions that change nothing but registers which no remaining
    instruction reads. Loads of parameters belong to these; all other accesses to memory remain.
    """
    live: set[Reg] = set()  # registers that remaining instructions read
    unsettled: list[tuple[int, Sequence[Reg], Sequence[Reg], Reg | None]] = []  # the last of the text first
    form_of = _FORMS.get
    number = len(body)
    for statement in reversed(body):
        number -= 1
        if statement.__class__ is not Instr:
            continue
        operands = statement.operands
        form = form_of((statement.opcode, *map(type, operands))) or _form(statement)
        guard = None if statement.guard is None else statement.guard.register
        if form.only_results and (written := form.written(operands)) and live.isdisjoint(written):
            unsettled.append((number, written, form.read(operands), guard))
            continue
        live.update(form.read(operands))
        if guard is not None:
            live.add(guard)
    remain = -1
    while remain != len(unsettled):  # in straight-line code, a walk over what is left changes nothing
        remain = len(unsettled)
        unread = []
        for candidate in unsettled:
            _, written, read, guard = candidate
            if live.isdisjoint(written):
                unread.append(candidate)
                continue
            live.update(read)
            if guard is not None:
                live.add(guard)
        unsettled = unread
    dropped = {candidate[0] for candidate in unsettled}
    return tuple([s for number, s in enumerate(body) if number not in dropped]) if dropped else tuple(body)


def _form(instr: Instr) -> _Form:
    """The form of an instruction whose opcode and classes of operands are not known to have one alone."""
    operands = instr.operands
    alone = len(recognise(instr.opcode)) == 1
    key = (instr.opcode, *map(type if alone else _shape, operands))
    form = _FORMS.get(key)
    if form is None:
        op = op_of(instr)
        results = [declared.written and not declared.address for declared in op.flat[: len(operands)]]
        form = _FORMS[key] = _Form(
            _registers(operands, [i for i, written in enumerate(results) if written]),
            _registers(operands, [i for i, written in enumerate(results) if not written]),
            op.effect in OF_REGISTERS or instr.opcode.startswith(_PARAMETER),
        )
    return form


def _shape(operand: Operand) -> object:
    """The properties of an operand by which `ptxgen.isa.table.fits` tells the ops of an opcode apart."""
    if isinstance(operand, Reg):
        return operand.declared
    if isinstance(operand, Not):
        return Not, operand.register.declared
    if isinstance(operand, Vector):
        return Vector, len(operand.items)
    if isinstance(operand, TensorAddress):
        return TensorAddress, len(operand.coordinates)
    return operand.__class__


def _registers(operands: _Operands, indices: Sequence[int]) -> _Reads:
    """A function that gives the registers in the operands at these indices, of the classes of `operands`."""
    indices = [i for i in indices if not isinstance(operands[i], _WITHOUT_REGISTERS)]
    if all(operands[i].__class__ is Reg for i in indices):
        if len(indices) > 1:
            return itemgetter(*indices)
        return itemgetter(slice(indices[0], indices[0] + 1)) if indices else lambda _: ()
    return lambda operands: [register for i in indices for register in registers_of(operands[i])]
