"""The opcodes of a kernel, in the words of the instruction table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ptxgen import ir, isa
from ptxgen.report.classes import NAMES, class_of, latency_of
from ptxgen.report.data import Instruction


def instructions(instrs: Sequence[ir.Instr], ran: Mapping[str, int] | None) -> Iterator[Instruction]:
    """The opcodes of a kernel, the most frequent first; `ran` counts the warps that executed each, None
    without a run. Opcodes that no row of the table prints are left out.
    """
    lines = Counter(instr.opcode for instr in instrs)
    for opcode, count in sorted(lines.items(), key=lambda item: (-item[1], item[0])):
        ops = isa.recognise(opcode)
        if ops:
            meaning = " ".join(ops[0].row.doc.split())
            unit, warps = NAMES[class_of(opcode)], None if ran is None else ran.get(opcode, 0)
            yield Instruction(opcode, meaning, str(ops[0].gate), unit, latency_of(opcode), count, warps)
