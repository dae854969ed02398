"""Registers that some path reads before it writes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from itertools import chain

from ptxgen.check.flow import Block, predecessors, reverse_post_order
from ptxgen.ir import Guard, Instr, Reg
from ptxgen.records import dataclass


@dataclass(slots=True)
class Uses:
    """The registers that one block writes, and those that it reads before it writes them.

    A guarded write alone does not count as a write. It counts together with a write under the
    opposite guard, and for a read under the same guard, within one block and while the guard's
    register keeps its value. So every register that counts as written has been written. `maybe` are
    the registers with guarded writes that do not count yet, and their guards; `guards` has at least the
    names of the registers of these.
    """

    written: set[Reg] = field(default_factory=set)
    exposed: dict[Reg, Instr] = field(default_factory=dict)
    maybe: dict[Reg, Guard] = field(default_factory=dict)
    guards: set[str] = field(default_factory=set)

    def read(self, register: Reg, instr: Instr) -> None:
        """Record that `instr` reads a register."""
        if register in self.written or register in self.exposed:
            return
        if self.maybe and instr.guard is not None and self.maybe.get(register) == instr.guard:
            return
        self.exposed[register] = instr

    def read_all(self, registers: Iterable[Reg], instr: Instr) -> None:
        """Record that `instr` reads several registers."""
        if self.maybe:
            for register in registers:
                self.read(register, instr)
            return
        for register in registers:
            if register not in self.written:
                self.exposed.setdefault(register, instr)

    def write(self, register: Reg, guard: Guard | None) -> None:
        """Record that an instruction under `guard` writes a register."""
        if register.name in self.guards:
            self.maybe = {r: g for r, g in self.maybe.items() if g.register.name != register.name}
        if guard is None or register in self.written:
            self.written.add(register)
            return
        opposite = Guard(guard.register, not guard.negated)
        if self.maybe.get(register) == opposite:
            self.written.add(register)
        else:
            self.maybe[register] = guard
            self.guards.add(guard.register.name)


def undefined(graph: Sequence[Block], uses: Sequence[Uses]) -> Mapping[Reg, Instr]:
    """Registers that some path reads without writing them before, with the first such read.

    `uses` has an entry for each block. Code that cannot be reached does not count.
    """
    order = reverse_post_order(graph)
    # Only registers that are live across blocks get a bit.
    live = dict.fromkeys(chain.from_iterable(uses[index].exposed for index in order))
    bit = {register: 1 << i for i, register in enumerate(live)}
    if not bit:
        return {}
    at_start = _written_before(graph, uses, order, bit)
    reads: dict[Reg, Instr] = {}
    for index in sorted(order):
        for register, instr in uses[index].exposed.items():
            if not at_start[index] & bit[register]:
                reads.setdefault(register, instr)
    return reads


def _written_before(
    graph: Sequence[Block], uses: Sequence[Uses], order: Sequence[int], bit: Mapping[Reg, int]
) -> Mapping[int, int]:
    """For each block in `order`, the bits of the registers that every path to it has written."""
    everything = (1 << len(bit)) - 1
    written = {i: sum(bit[r] for r in bit.keys() & uses[i].written) for i in order}
    at_start = {}
    at_end = dict.fromkeys(order, everything)
    before = predecessors(graph)
    changed = True
    while changed:
        changed = False
        for index in order:
            known = everything if index else 0
            for previous in before[index]:
                known &= at_end.get(previous, everything)
            at_start[index] = known
            after = known | written[index]
            changed = changed or after != at_end[index]
            at_end[index] = after
    return at_start
