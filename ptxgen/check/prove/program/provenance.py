"""The allocation of shared memory from which each address of a kernel is computed.

PTX does not say where variables lie relative to each other, so an address that is computed from one of
them has to stay inside it. No result is given for an address that may be a pointer from elsewhere, or
that is computed from two variables, or by anything but sums, masks and selections.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from ptxgen.check.flow import blocks
from ptxgen.check.prove.program.graph import Graph
from ptxgen.check.prove.program.inlining import Source, inlined
from ptxgen.check.prove.program.operands import pairs
from ptxgen.check.prove.program.shared_accesses import Home, Provenance, home_of, homes, region_home
from ptxgen.check.prove.program.values import Node, Values, param_bits
from ptxgen.check.verify.shapes import shape_of
from ptxgen.ir import Address, Instr, Kernel, Module


class Allowed(NamedTuple):
    """A part of a shared variable, or all of it, that an address may lie in."""

    variable: str
    home: Home


class Operand(NamedTuple):
    """An address operand of an instruction: the kernel or function of the instruction, the
    instruction's number in it, and the operand's name.
    """

    owner: str
    number: int
    name: str


Variables = frozenset[str]  # the variables that an address is computed from; empty for a number

_NUMBER: Final[Variables] = frozenset()


def derived(module: Module, kernel: Kernel, dynamic: int) -> dict[Operand, tuple[Allowed, ...]]:
    """For each address operand, the allocations that its access may lie in, wholly in one of them;
    operands whose allocations are not known are left out. `dynamic` is the size of dynamic shared
    memory in bytes.
    """
    whole = inlined(module, kernel)
    variables = homes(module, kernel, dynamic)
    for function in whole.functions:
        variables |= {s.name: Home(s.name, 0, s.nbytes, s.align) for s in function.shared}
    if not variables:
        return {}
    graph = Graph(blocks(whole.kernel))
    values = Values(graph, {}, frozenset(variables), {}, param_bits(kernel))
    origins = _Origins(values, kernel, variables)
    known: dict[Operand, frozenset[Allowed] | None] = {}
    for block in graph.order:
        for position, instr in enumerate(graph.blocks[block].instrs):
            source = whole.sources[graph.blocks[block].start + position]
            for operand, address in _addresses(source, instr):
                allowed = origins.allowed(address, block, position)
                before = known.get(operand, frozenset())
                known[operand] = None if allowed is None or before is None else allowed | before
    return {operand: tuple(sorted(of)) for operand, of in known.items() if of}


def _addresses(source: Source, instr: Instr) -> Iterator[tuple[Operand, Address]]:
    shape = shape_of(instr)
    if shape.complaints or shape.op is None:
        return
    for want, got in pairs(shape.op, instr):
        if want.address and isinstance(got, Address):
            yield Operand(source.owner, source.number, want.name), got


class _Origins:
    """The allocations that the addresses of a kernel may lie in."""

    def __init__(self, values: Values, kernel: Kernel, variables: dict[str, Home]) -> None:
        self._values = values
        self._provenance = Provenance(values)
        self._homes = variables
        self._dynamic = kernel.dynamic_shared
        self._regions = {}
        if self._dynamic:
            of = variables[self._dynamic]
            self._regions = {r.name: region_home(r, of) for r in kernel.regions if r.nbytes > 0}
        self._known: dict[int, Variables | None] = {}  # None: not known

    def allowed(self, address: Address, block: int, position: int) -> frozenset[Allowed] | None:
        """The allocations that an address may lie in; None if they are not known."""
        base, offset = self._values.address(address, block, position)
        variables = self._variables(base)
        if not variables:
            return None
        return frozenset(
            Allowed(name, home) for name in variables for home in self._inside(name, base, offset)
        )

    def _inside(self, name: str, base: Node, offset: int) -> tuple[Home, ...]:
        """The allocations of a variable that an address computed from it may lie in."""
        if name != self._dynamic or not self._regions:
            return (self._homes[name],)
        constant = self._provenance.constant(base)
        if constant is None:
            return tuple(self._regions.values())
        home = home_of(constant + offset, self._homes[name], self._regions)
        return (self._homes[name] if home is None else home,)

    def _variables(self, wanted: Node) -> Variables | None:
        """The variables that a value is computed from: the least solution for all values that it
        depends on, because loops carry values round. None if they are not known.
        """
        if wanted.id not in self._known:
            needed = list(self._needed(wanted))
            solution: dict[int, Variables | None] = {}
            changed = True
            while changed:
                changed = False
                for node in reversed(needed):
                    new = self._derived(node, solution)
                    if new != solution.get(node.id, _OPEN) and new is not _OPEN:
                        solution[node.id] = new
                        changed = True
            self._known |= {node.id: solution.get(node.id) for node in needed}
        return self._known[wanted.id]

    def _needed(self, node: Node) -> Iterator[Node]:
        """A value and the values that it depends on, without those already known."""
        seen, stack = {node.id}, [node]
        while stack:
            node = stack.pop()
            yield node
            for other in self._parts(node):
                if other.id not in seen and other.id not in self._known:
                    seen.add(other.id)
                    stack.append(other)

    def _parts(self, node: Node) -> tuple[Node, ...]:
        if node.kind in ("join", "header"):
            return tuple(value for _, value in self._values.meeting(node))
        if node.kind == "function":
            return ()
        if node.kind == "mapped":
            return node.args[:1]
        return node.args[1:] if node.kind == "choose" else node.args

    def _derived(self, node: Node, solution: dict[int, Variables | None]) -> Variables | None:
        """The variables that a value is computed from, by the results for its arguments so far."""
        if node.kind == "symbol":
            return frozenset({node.data})
        parts = [solution.get(p.id, self._known.get(p.id, _OPEN)) for p in self._parts(node)]
        if node.kind in ("join", "header", "choose"):
            return _either([p for p in parts if p is not _OPEN])
        if any(p is _OPEN for p in parts):
            return _OPEN
        if node.kind in ("shuffle", "window", "unwindowed", "mapped"):
            return parts[0]
        return _computed(node, parts) if parts else _NUMBER


# Not known yet: a part of a loop that has not been followed.
_OPEN: Final[Variables] = frozenset({""})


def _either(parts: list[Variables | None]) -> Variables | None:
    """The variables of a selection, if all its values are addresses or all are numbers."""
    if not parts:
        return _OPEN
    sets = [p for p in parts if p is not None]
    if len(sets) < len(parts) or len({bool(s) for s in sets}) > 1:
        return None
    return frozenset().union(*sets)


def _computed(node: Node, parts: list[Variables | None]) -> Variables | None:
    """The variables of an instruction's result: those of its one address operand, if the result is
    an address.
    """
    if not any(p is None or p for p in parts):
        return _NUMBER
    if node.kind == "offset":
        return parts[0]
    head = node.data.op.opcode.partition(".")[0]
    if head == "selp":
        return _either(parts[:2])
    if head in _CARRYING:
        carried = parts
    elif head in _CARRYING_AT:
        carried = [parts.pop(_CARRYING_AT[head])]
        if any(p is None or p for p in parts):
            return None
    else:
        return None
    addresses = [p for p in carried if p is None or p]
    return addresses[0] if len(addresses) == 1 else None


# Instructions with a result that is an address if one operand, whichever, is one.
_CARRYING: Final = frozenset({"mov", "cvt", "add", "and", "or", "xor", "lop3"})
# Instructions with a result that is an address if the operand at this index is one.
_CARRYING_AT: Final = {"sub": 0, "mad": 2}
