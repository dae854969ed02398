"""The accesses to flags that threads poll, found in the text of a program.

Two volatile accesses are strong, and morally strong relative to each other, so they are no data
race in the memory model (PTX ISA, "Conflict and Data-races"); but nothing orders them either, and
the value of a load is undetermined unless a barrier or a fence orders it. A thread that polls a
flag allows for that: it loads from one address again and again, until the value lets it go on. A
volatile reduction without its barriers does not; `ptxgen.interpreter.sanitizers.shared_race`
reports it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ptxgen.check import flow
from ptxgen.interpreter.program.linking import Linked
from ptxgen.interpreter.program.segments import Step
from ptxgen.ir import Address, Function, Instr, Kernel, Reg
from ptxgen.isa.table import op_of

_VOLATILE = ("ld.volatile", "st.volatile")
_ATOMIC = ("atom.", "red.")


def unpolled(linked: Linked) -> frozenset[int]:
    """The numbers of the volatile accesses of a program that are not to flags: they are not loads
    that poll, and their address, as written, is not that of such a load or of an atomic operation.
    """
    numbers: set[int] = set()
    before = 0
    for routine in linked.routines:
        instrs = [s for s in routine.source.body or () if isinstance(s, Instr)]
        volatile = {n for n, x in enumerate(instrs) if x.opcode.startswith(_VOLATILE)}
        if volatile:
            loads = {n for n in volatile if instrs[n].opcode.startswith("ld")}
            polls = _polls(routine.source, loads)
            flags = {_address(instrs[n]) for n in polls}
            flags |= {_address(x) for x in instrs if x.opcode.startswith(_ATOMIC)}
            numbers |= {before + n for n in volatile - polls if _address(instrs[n]) not in flags}
        before += len(instrs)
    return frozenset(numbers)


def tickets(linked: Linked) -> frozenset[int]:
    """The numbers of the atomic operations of a program that return a value, and do not poll by it: a thread
    draws a ticket, once.
    """
    numbers: set[int] = set()
    before = 0
    for routine in linked.routines:
        instrs = [s for s in routine.source.body or () if isinstance(s, Instr)]
        drawn = {n for n, x in enumerate(instrs) if x.opcode.startswith("atom.")}
        if drawn:
            numbers |= {before + n for n in drawn - _polls(routine.source, drawn)}
        before += len(instrs)
    return frozenset(numbers)


def _address(instr: Instr) -> Address | None:
    return next((o for o in instr.operands if isinstance(o, Address)), None)


def _polls(routine: Kernel | Function, loads: set[int]) -> set[int]:
    """The `loads`, or atomic operations, that poll: a loop repeats them at the same address, and their values
    decide whether the loop goes on.
    """
    graph = flow.blocks(routine)
    steps = {b.index: [Step(b.start + n, x, op_of(x)) for n, x in enumerate(b.instrs)] for b in graph}
    polls = set()
    for block in graph:
        for step in steps[block.index]:
            if step.number in loads and _is_poll(graph, steps, block, step):
                polls.add(step.number)
    return polls


def _is_poll(
    graph: Sequence[flow.Block], steps: dict[int, list[Step]], block: flow.Block, load: Step
) -> bool:
    address = _address(load.instr)
    base = address.base.name if address is not None and isinstance(address.base, Reg) else ""
    keeps = {b.index for b in graph if not any(r.name == base for s in steps[b.index] for r in s.written)}
    loop = _loop(graph, block.index, keeps)
    if not loop:
        return False
    known = {r.name for r in load.written}
    inside = [s for index in sorted(loop) for s in steps[index]]
    size = -1
    while size != len(known):
        size = len(known)
        for step in inside:
            if known & {r.name for r in step.read}:
                known |= {r.name for r in step.written}
    return any(
        s.op.row.name == "bra" and s.instr.guard is not None and s.instr.guard.register.name in known
        for s in inside
    )


def _loop(graph: Sequence[flow.Block], head: int, inside: set[int]) -> set[int]:
    """The blocks on paths from `head` back to it through the blocks `inside`; empty if there are none."""
    after: set[int] = set()
    todo = [head]
    while todo:
        more = {s for s in graph[todo.pop()].successors if s in inside} - after
        after |= more
        todo += more
    before = flow.predecessors(graph)
    back: set[int] = set()
    todo = [head]
    while todo:
        more = {p for p in before[todo.pop()] if p in after} - back
        back |= more
        todo += more
    return back
