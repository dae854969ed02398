"""The instructions at barriers of a CTA, and their operands; and places of other events between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from ptxgen.check.prove.program.graph import Graph
from ptxgen.check.prove.program.operands import WORD, pairs
from ptxgen.check.prove.program.values import Node, Values
from ptxgen.check.verify.shapes import shape_of
from ptxgen.ir import Instr, IntImm

_HEADS: Final = ("bar", "barrier")
_KINDS: Final = ("sync", "arrive", "red")
READ: Final = "read"
WRITE: Final = "write"


class Site(NamedTuple):
    """A barrier instruction. `kind` is `sync`, `arrive`, or for a reduction its opcode. `number` is
    the value of the barrier's number, `threads` that of the number of threads it waits for, None for
    all of the block. `guard` is the predicate of a guarded instruction.

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

    @property
    def is_access(self) -> bool:
        """Whether this is an access to a word, and no barrier."""
        return self.kind in (READ, WRITE)


def kind_of(instr: Instr) -> str:
    """`sync`, `arrive`, or `red` for an instruction at a barrier of the CTA; empty for any other."""
    words = instr.opcode.split(".")
    if words[0] not in _HEADS:
        return ""
    word = words[2] if words[1] == "cta" else words[1]
    return word if word in _KINDS else ""


def waits_for_all(instr: Instr, threads: int) -> bool:
    """Whether a barrier instruction waits for all threads of the block, whose number is `threads`."""
    shape = shape_of(instr)
    if shape.complaints or shape.op is None or kind_of(instr) == "arrive":
        return False
    counts = [got for want, got in pairs(shape.op, instr) if want.name == "b"]
    given = counts[0] if counts else None
    return given is None or (isinstance(given, IntImm) and given.value == threads)


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
            found = {}
            for want, got in pairs(shape.op, instr):
                if want.name in ("a", "b") and got is not None and want.type is not None:
                    found[want.name] = values.operand(got, want.type, block, position)
            if kind == "red":
                kind = instr.opcode
            guard = instr.guard
            node = values.at(guard.register, block, position) if guard else None
            negated = guard is not None and guard.negated
            yield Site(block, position, kind, found["a"], found.get("b"), node, negated)


WARP: Final = WORD
