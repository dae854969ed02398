"""The instructions at barriers of a CTA with their operands, and the positions of events between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from ptxgen.check.prove.program.graph import Graph
from ptxgen.check.prove.program.operands import WORD, pairs
from ptxgen.check.prove.program.values import Node, Values
from ptxgen.check.verify.shapes import shape_of
from ptxgen.ir import Instr, IntImm
from ptxgen.isa.spec import Op

_HEADS: Final = ("bar", "barrier")
_KINDS: Final = ("sync", "arrive", "red")
READ: Final = "read"
WRITE: Final = "write"


class Site(NamedTuple):
    """A barrier instruction. `kind` is `sync`, `arrive`, or for a reduction its opcode. `number` is
    the value of the barrier's number, `threads` that of the number of threads it waits for, None for
    all of the block that have not ended. `guard` is the predicate of a guarded instruction. Threads that
    do not come to it `go_on`, unless each of them ends at once instead.

    Or the access of an instruction to a word of shared memory (`words.py`), `READ` or `WRITE`: its
    address is `number` plus `offset`, and `value` is what a read gives.
    """

    block: int
    position: int
    kind: str
    number: Node
    threads: Node | None
    guard: Node | None
    negated: bool
    offset: int = 0
    value: Node | None = None
    go_on: bool = False

    @property
    def is_access(self) -> bool:
        """Whether the site is an access to a word of shared memory, not a barrier instruction."""
        return self.kind in (READ, WRITE)


def kind_of(instr: Instr) -> str:
    """`sync`, `arrive`, or `red` for an instruction at a barrier of the CTA; empty for any other."""
    return _kind_of(instr.opcode) if instr.opcode.startswith(_HEADS) else ""


def _kind_of(opcode: str) -> str:
    words = opcode.split(".")
    if words[0] not in _HEADS:
        return ""
    word = words[2] if words[1] == "cta" else words[1]
    return word if word in _KINDS else ""


def waits_for_all(instr: Instr, threads: int) -> bool:
    """Whether a barrier instruction waits for all threads of the block, whose number is `threads`, or for
    all that have not ended.
    """
    shape = shape_of(instr)
    if shape.complaints or shape.op is None or kind_of(instr) == "arrive":
        return False
    count = _count(shape.op, instr)
    return count is None or (isinstance(count, IntImm) and count.value == threads)


def waits_for_living(instr: Instr) -> bool:
    """Whether a barrier instruction has no number of threads, and waits for all that have not ended (CUDA
    C++ Programming Guide, "Synchronization Functions" and "Independent Thread Scheduling").
    """
    op = shape_of(instr).op
    return op is not None and kind_of(instr) != "arrive" and _count(op, instr) is None


def _count(op: Op, instr: Instr) -> Any:
    """The operand with the number of threads that a barrier waits for; None if there is none."""
    return next((got for want, got in pairs(op, instr) if want.name == "b"), None)


def sites_of(graph: Graph, values: Values) -> Iterator[Site | None]:
    """The barrier instructions that the kernel's entry reaches; None for one that is not in the table."""
    for block in graph.order:
        for position, instr in enumerate(graph.blocks[block].instrs):
            kind = kind_of(instr)
            if not kind:
                continue
            shape = shape_of(instr)
            if shape.complaints or shape.op is None:
                yield None
                continue
            operands = {}
            for want, got in pairs(shape.op, instr):
                if want.name in ("a", "b") and got is not None and want.type is not None:
                    operands[want.name] = values.operand(got, want.type, block, position)
            if kind == "red":
                kind = instr.opcode
            guard = instr.guard
            node = values.at(guard.register, block, position) if guard else None
            negated = guard is not None and guard.negated
            ways = graph.other_ways(block)
            go_on = guard is not None or not ways or not all(at_once for _, at_once in ways)
            yield Site(block, position, kind, operands["a"], operands.get("b"), node, negated, go_on=go_on)


WARP: Final = WORD
