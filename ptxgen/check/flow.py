"""The control-flow graph of a kernel: its basic blocks and their successors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ptxgen.ir import Function, Instr, Kernel, Label, Statement, Symbol, Targets
from ptxgen.records import dataclass

JUMPS: Final = frozenset({"bra", "brx"})
ENDS: Final = frozenset({"ret", "exit", "trap"})


@dataclass(frozen=True, slots=True)
class Block:
    """A basic block: entered only at its first instruction, left only after its last.

    `start` is the number of the kernel's instructions before the block (labels and notes not
    counted), so instruction `i` of the kernel is `instrs[i - start]`. `successors` are indices of
    blocks: the next block if `falls_through`, then the targets of the branch. A guarded `bra`,
    `ret`, `exit` or `trap` ends a block and falls through; if the last block falls through, control
    runs off the kernel's end.
    """

    index: int
    labels: tuple[str, ...]
    instrs: tuple[Instr, ...]
    start: int
    successors: tuple[int, ...]
    falls_through: bool


def blocks(kernel: Kernel | Function) -> tuple[Block, ...]:
    """The basic blocks in the order of the text; the first is the entry. Empty for an empty body.

    A wrong program raises nothing here (`verify` reports it): a branch to a missing label has no
    successor for it, and of two equal labels the first counts.
    """
    body = kernel.body or ()
    stops = _stops(body)
    pieces = _pieces(body, stops)
    where: dict[str, int] = {}
    for index, (labels, _) in enumerate(pieces):
        for name in labels:
            where.setdefault(name, index)
    tables = {s.name: s.targets for s in map(body.__getitem__, stops) if isinstance(s, Targets)}
    graph = []
    start = 0
    for index, (labels, instrs) in enumerate(pieces):
        falls, targets = _exits(instrs, tables)
        after = [index + 1] if falls and index + 1 < len(pieces) else []
        for target in targets:
            if target in where and where[target] not in after:
                after.append(where[target])
        graph.append(Block(index, tuple(labels), tuple(instrs), start, tuple(after), falls))
        start += len(instrs)
    return tuple(graph)


def reverse_post_order(graph: Sequence[Block]) -> tuple[int, ...]:
    """Block indices in an order where each block comes after all its predecessors, except along the
    back edges of loops.

    Blocks that the entry does not reach are left out.
    """
    order: list[int] = []
    seen: set[int] = set()
    # Iterative, because a generated kernel may have more blocks than Python has stack frames.
    stack = [(0, iter(graph[0].successors))] if graph else []
    seen.update(index for index, _ in stack)
    while stack:
        index, rest = stack[-1]
        after = next((s for s in rest if s not in seen), None)
        if after is None:
            stack.pop()
            order.append(index)
        else:
            seen.add(after)
            stack.append((after, iter(graph[after].successors)))
    return tuple(reversed(order))


def predecessors(graph: Sequence[Block]) -> tuple[tuple[int, ...], ...]:
    """For each block, the indices of its predecessors, in the order of the text."""
    before: list[list[int]] = [[] for _ in graph]
    for block in graph:
        for after in block.successors:
            before[after].append(block.index)
    return tuple(map(tuple, before))


class _Leaving(dict[str, bool]):
    """Whether the instructions with an opcode may leave a block, by opcode."""

    def __missing__(self, opcode: str) -> bool:
        self[opcode] = _head(opcode) in JUMPS | ENDS
        return self[opcode]


def _stops(body: Sequence[Statement]) -> list[int]:
    """The indices of all statements but the instructions that cannot leave their block."""
    leaving = _Leaving()
    return [i for i, s in enumerate(body) if s.__class__ is not Instr or leaving[s.opcode]]


def _pieces(body: Sequence[Statement], stops: Sequence[int]) -> list[tuple[list[str], list[Instr]]]:
    """The labels and the instructions of each block; `stops` is the result of `_stops`."""
    pieces: list[tuple[list[str], list[Instr]]] = []
    labels: list[str] = []
    instrs: list[Instr] = []
    start = 0
    for stop in (*stops, len(body)):
        instrs += body[start:stop]  # type: ignore[arg-type]  # only instructions are between stops
        start = stop + 1
        last = body[stop] if stop < len(body) else None
        if isinstance(last, Instr):
            instrs.append(last)
        if (instrs and isinstance(last, Instr | Label)) or (last is None and (labels or instrs)):
            pieces.append((labels, instrs))
            labels, instrs = [], []
        if isinstance(last, Label):
            labels.append(last.name)
    return pieces


def _exits(instrs: Sequence[Instr], tables: Mapping[str, tuple[str, ...]]) -> tuple[bool, tuple[str, ...]]:
    """Whether control may go on to the next block, and the labels it may branch to."""
    if not instrs:
        return True, ()
    last = instrs[-1]
    head = _head(last.opcode)
    if head in JUMPS:
        target = last.operands[-1] if last.operands else None
        name = target.name if isinstance(target, Symbol) else ""
        return last.guard is not None, tables.get(name, ()) if head == "brx" else (name,)
    return head not in ENDS or last.guard is not None, ()


def _head(opcode: str) -> str:
    return opcode.partition(".")[0]
