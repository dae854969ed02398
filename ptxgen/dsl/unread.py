"""Instructions whose results no other instruction needs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from ptxgen.ir import Instr, Reg, Statement, registers_of
from ptxgen.isa.spec import OF_REGISTERS
from ptxgen.isa.table import op_of

_PARAMETER: Final = "ld.param."


def needed(body: Sequence[Statement]) -> tuple[Statement, ...]:
    """The statements without the instructions that change nothing but registers which no remaining
    instruction reads. Loads of parameters belong to these; all other accesses to memory remain.
    """
    writers: defaultdict[Reg, list[int]] = defaultdict(list)
    reads: dict[int, list[Reg]] = {}
    waiting: list[int] = []  # of the instructions that remain, those whose sources are not followed yet
    for number, statement in enumerate(body):
        if not isinstance(statement, Instr):
            continue
        op = op_of(statement)
        written: list[Reg] = []
        read = [] if statement.guard is None else [statement.guard.register]
        for declared, operand in zip(op.flat, statement.operands, strict=False):
            is_result = declared.written and not declared.address
            (written if is_result else read).extend(registers_of(operand))
        reads[number] = read
        for register in written:
            writers[register].append(number)
        only_results = op.effect in OF_REGISTERS or statement.opcode.startswith(_PARAMETER)
        if not (written and only_results):
            waiting.append(number)
    remaining = set(waiting)
    while waiting:
        for register in reads[waiting.pop()]:
            more = writers.pop(register, ())
            waiting += (number for number in more if number not in remaining)
            remaining.update(more)
    return tuple(s for number, s in enumerate(body) if number in remaining or not isinstance(s, Instr))
