"""Rules of asynchronous instructions that the text of a kernel shows: no run is needed.

`wgmma.fence` comes before the first `wgmma.mma_async` and again after its registers were written;
these registers are not touched until `wgmma.wait_group` (PTX ISA, "Asynchronous Warpgroup Level
Matrix Instructions"). Copies by `mov` after the fence are let pass, as nvcc moves them there and
the assembler joins them. A wait that may give up says so in a predicate, which must be looked at
("mbarrier.test_wait, mbarrier.try_wait").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from ptxgen.check import flow
from ptxgen.interpreter.segments import Step, registers_written
from ptxgen.ir import (
    Address,
    Function,
    Instr,
    IntImm,
    Kernel,
    Not,
    Pair,
    Reg,
    TensorAddress,
    Vector,
)
from ptxgen.isa.table import op_of

_OLDEST: Final = 16  # groups that a wait tells apart

Finding = tuple[int, str]  # an instruction of the routine, and what is wrong with it


@dataclass(slots=True)
class _State:
    """What may be so before an instruction: whether a fence may be missing, the registers written
    since one, and those under way with how many groups have been closed since.
    """

    fenced: bool = False
    written: set[str] = field(default_factory=set)
    under_way: dict[str, int] = field(default_factory=dict)

    def copy(self) -> _State:
        return _State(self.fenced, set(self.written), dict(self.under_way))

    def meet(self, other: _State) -> bool:
        """Take in what may be so on another way; whether that is anything new."""
        before = self.copy()
        self.fenced &= other.fenced
        self.written |= other.written
        for name, groups in other.under_way.items():
            self.under_way[name] = min(groups, self.under_way.get(name, groups))
        return self != before


def broken_rules(routine: Kernel | Function) -> list[Finding]:
    """The instructions of a routine, by number, that break a rule on some way through it."""
    graph = flow.blocks(routine)
    found: dict[int, str] = {}
    if any(_multiplies(x) for block in graph for x in block.instrs):
        found |= _wgmma(graph)
    for block in graph:
        for n, instr in enumerate(block.instrs):
            if instr.opcode.startswith(("mbarrier.try_wait", "mbarrier.test_wait")):
                done = _named(instr.operands[0])
                if not any(_is_read(graph, block.index, n + 1, name) for name in done):
                    found[block.start + n] = (
                        "the wait may give up, and nothing looks at its predicate"
                    )
    return sorted(found.items())


def _wgmma(graph: Sequence[flow.Block]) -> dict[int, str]:
    into: dict[int, _State] = {0: _State()}
    found: dict[int, str] = {}
    todo = [0]
    while todo:
        block = graph[todo.pop()]
        state = into[block.index].copy()
        for n, instr in enumerate(block.instrs, block.start):
            wrong = _advance(state, instr, n)
            if wrong:
                found.setdefault(n, wrong)
        for after in block.successors:
            if after not in into:
                into[after] = state.copy()
            elif not into[after].meet(state):
                continue
            todo.append(after)
    return found


def _advance(state: _State, instr: Instr, number: int) -> str:
    """Carry out an instruction on a state; what is wrong with it, or nothing."""
    if _multiplies(instr):
        return _multiply(state, instr)
    if instr.opcode.startswith("wgmma.fence"):
        state.fenced, state.written = True, set()
    elif instr.opcode.startswith("wgmma.commit"):
        state.under_way = {r: min(n + 1, _OLDEST) for r, n in state.under_way.items()}
    elif instr.opcode.startswith("wgmma.wait"):
        (count,) = instr.operands
        assert isinstance(count, IntImm)
        state.under_way = {r: n for r, n in state.under_way.items() if n <= count.value}
    else:
        if not instr.opcode.startswith("mov."):
            state.written |= _writes(instr, number)
        touched = sorted(set(_registers(instr)) & state.under_way.keys())
        if touched:
            return f"touches {touched[0]}, which a wgmma.mma_async that was not waited for may use"
    return ""


def _multiply(state: _State, instr: Instr) -> str:
    used = [r for o in instr.operands[:2] if isinstance(o, Vector) for r in _named(o)]
    wrong = ""
    changed = [r for r in used if r in state.written]
    if not state.fenced:
        wrong = "no wgmma.fence comes before it"
    elif changed:
        wrong = f"no wgmma.fence comes between it and what wrote {changed[0]}"
    state.under_way |= dict.fromkeys(used, 0)
    return wrong


def _is_read(graph: Sequence[flow.Block], first: int, start: int, name: str) -> bool:
    """Whether a register may be read from an instruction of a block on, before it is written."""
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


def _multiplies(instr: Instr) -> bool:
    return instr.opcode.startswith("wgmma.mma_async")


def _writes(instr: Instr, number: int) -> set[str]:
    return {r.name for r in registers_written(Step(number, instr, op_of(instr), resumes=True))}


def _registers(instr: Instr) -> Iterator[str]:
    if instr.guard is not None:
        yield instr.guard.register.name
    for operand in instr.operands:
        yield from _named(operand)


def _named(operand: object) -> Iterator[str]:
    """The registers in an operand."""
    parts: tuple[object, ...] = ()
    match operand:
        case Reg():
            yield operand.name
        case Not():
            yield operand.register.name
        case Vector():
            parts = operand.items
        case Pair():
            parts = operand.first, operand.second
        case Address():
            parts = (operand.base,)
        case TensorAddress():
            parts = operand.base, *operand.coordinates
    for part in parts:
        yield from _named(part)
