"""Rules of asynchronous instructions that can be checked in the text of a kernel, without a run.

A wait that may give up returns a predicate, which must be read (PTX ISA, "mbarrier.test_wait,
mbarrier.try_wait").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ptxgen.check import flow
from ptxgen.interpreter.program.segments import Step
from ptxgen.ir import Function, Instr, Kernel, registers_of
from ptxgen.isa.table import op_of

if TYPE_CHECKING:
    from ptxgen.interpreter.program.linking import Linked

Finding = tuple[int, str]  # the number of an instruction, and the rule that it breaks in words


def broken_rules(linked: Linked) -> tuple[Finding, ...]:
    """The instructions of a program, by number, that break a rule on some path through a routine."""
    before = 0
    broken: list[Finding] = []
    for routine in linked.routines:
        broken += ((before + at, why) for at, why in _broken_in(routine.source))
        before += sum(isinstance(s, Instr) for s in routine.source.body or ())
    return tuple(broken)


def _broken_in(routine: Kernel | Function) -> list[Finding]:
    graph = flow.blocks(routine)
    messages: dict[int, str] = {}
    for block in graph:
        for n, instr in enumerate(block.instrs):
            if instr.opcode.startswith(("mbarrier.try_wait", "mbarrier.test_wait")):
                done = (r.name for r in registers_of(instr.operands[0]))
                if not any(_is_read(graph, block.index, n + 1, name) for name in done):
                    messages[block.start + n] = "the wait may give up, and nothing looks at its predicate"
    return sorted(messages.items())


def _is_read(graph: Sequence[flow.Block], first: int, start: int, name: str) -> bool:
    """Whether a register may be read, from an instruction of a block on, before it is written."""
    seen: set[int] = set()
    todo = [(first, start)]
    while todo:
        index, begin = todo.pop()
        block = graph[index]
        over = False
        for n, instr in enumerate(block.instrs[begin:], begin):
            writes = _writes(instr, block.start + n)
            if list(_registers(instr)).count(name) > (name in writes):
                return True
            over = name in writes and instr.guard is None
            if over:
                break
        if not over:
            todo += [(s, 0) for s in block.successors if s not in seen]
            seen |= set(block.successors)
    return False


def _writes(instr: Instr, number: int) -> set[str]:
    return {r.name for r in Step(number, instr, op_of(instr), resumes=True).written}


def _registers(instr: Instr) -> Iterator[str]:
    if instr.guard is not None:
        yield instr.guard.register.name
    for operand in instr.operands:
        yield from (r.name for r in registers_of(operand))
