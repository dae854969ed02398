"""The value of each register at each point of a kernel, as an expression of thread indices,
parameters and values that merge at joins: static single assignment form, built on demand.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from ptxgen.check.prove.program.graph import Graph
from ptxgen.check.prove.program.operands import ADDRESSES, SHUFFLES, WORD, operation, pairs, type_of, written
from ptxgen.check.prove.program.readonly import ReadOnly
from ptxgen.check.verify.shapes import shape_of
from ptxgen.ir import Address, Function, Instr, IntImm, Kernel, Reg, Special, Symbol, Vector, registers_of
from ptxgen.isa.spec import BoundOperand, Op
from ptxgen.types import TYPES, ScalarType

THREAD: Final = frozenset({"%tid.x", "%tid.y", "%tid.z", "%laneid"})
# Special registers with the same value in all threads of a block.
_UNIFORM: Final = (
    "%ctaid",
    "%nctaid",
    "%clusterid",
    "%nclusterid",
    "%cluster_",
    "%gridid",
    "%dynamic_smem_size",
    "%total_smem_size",
    "%nsmid",
    "%nwarpid",
)


class Node:
    """One value.

    `kind` says what `data` and `args` are:

    * `const`: `data` is an integer. `thread`: a special register. `symbol`: the address of a shared
      variable.
    * `function`: a value that is not computed here but depends on args[0] alone: memory at that
      address that is not written while the kernel runs, or the address in another space. `data` is
      a description and further keys.
    * `param`: bytes of a parameter: its name, the offset of the first byte, and whether they are
      all of it.
    * `extended`: args[0] in a wider register, sign-extended if `data` is true.
    * `opaque`: an unknown value; `data` describes it, and `uniform` says whether all threads of a
      block have the same.
    * `join`, `header`: the register `data` at the beginning of `block`, where its values merge;
      `header` if the block is a loop header.
    * `apply`: an instruction applied to `args`. `choose`: args[1] where args[0] holds, else
      args[2].
    * `shuffle`: args[0] in the lane args[1], in `block`.
    * `offset`: args[0] plus `data`, perhaps in a register of another size.
    * `window`: the generic address of args[0], an address in shared memory. `unwindowed`: the
      address in shared memory of a generic one. `mapped`: the address of the same byte in the CTA
      of rank args[1].
    """

    __slots__ = ("args", "bits", "block", "call", "data", "id", "kind", "uniform")

    def __init__(
        self, id: int, kind: str, bits: int, data: Any, args: tuple[Node, ...], block: int, uniform: bool
    ) -> None:
        self.id = id
        self.kind = kind
        self.bits = bits
        self.data = data
        self.args = args
        self.block = block
        self.uniform = uniform
        self.call: Any = None  # kept by `domain.computed`

    def __repr__(self) -> str:
        inner = ", ".join(str(a.id) for a in self.args)
        return f"Node({self.id}: {self.kind} {self.data} [{inner}])"


class Applied(NamedTuple):
    """An instruction with its operands, and which of its results the value is. Each slot is an operand's
    name, its value and its type: a literal as -1 - value, an index in the node's `args`, or several indices.
    """

    op: Op
    slots: tuple[tuple[str, Any, ScalarType | None], ...]
    result: int
    element: int
    type: ScalarType

    def __str__(self) -> str:
        return self.op.opcode


class Site(NamedTuple):
    """The point where a register gets its value: an instruction of a block, or the block's beginning (-1)."""

    block: int
    position: int
    register: str


_NOWHERE: Final = Site(-1, -1, "")


class Values:
    """The values of the registers of one kernel or function.

    `specials` has the special registers with a known value, `shared` the names of shared variables, `params`
    the bits of each parameter (0 if it is not a number), and `params_known` the values of known parameters.
    `like` are other values of the same kernel or function, whose analysis is shared. Loads of addresses of
    tensor memory, given by block and position in `addresses`, have the value of the parameter that is named
    there, one of `params`.
    """

    def __init__(
        self,
        graph: Graph,
        specials: Mapping[str, int],
        shared: frozenset[str],
        params_known: Mapping[str, int],
        params: Mapping[str, int],
        like: Values | None = None,
        addresses: Mapping[tuple[int, int], str] | None = None,
    ) -> None:
        self.graph = graph
        self._specials = specials
        self._shared = shared
        self._params_known = params_known
        self._params = params
        self._defs: dict[str, dict[int, list[int]]] = _definitions(graph) if like is None else like._defs
        self._joins: dict[str, frozenset[int]] = {} if like is None else like._joins
        self._like = like
        self._addresses = addresses or {}
        self._known: dict[Site, Node] = {}
        # The instructions whose results are not computed, by the number of the value: block and position.
        self.origins: dict[int, tuple[int, int, Instr]] = {}
        self._meetings: dict[int, tuple[tuple[int, Node], ...]] = {}
        self._nodes: dict[tuple[Any, ...], Node] = {}
        self._declared: dict[str, str] = {}

    def in_launch(self, specials: Mapping[str, int], params_known: Mapping[str, int]) -> Values:
        """The values of the same kernel in a launch, with more special registers and parameters known."""
        return Values(self.graph, specials, self._shared, params_known, self._params, self, self._addresses)

    @property
    def count(self) -> int:
        """The number of values (nodes) that the graph has so far."""
        return len(self._nodes)

    @functools.cached_property
    def _read_only(self) -> ReadOnly:
        if self._like is not None:
            return self._like._read_only
        return ReadOnly(i for b in self.graph.order for i in self.graph.blocks[b].instrs)

    # ------------------------------------------------------------------------------- queries

    def at(self, register: Reg, block: int, position: int) -> Node:
        """The value of the register just before an instruction."""
        return self._value(self._site(register, block, position))

    def operand(self, got: Any, want: ScalarType, block: int, position: int) -> Node:
        """The value of an operand just before its instruction."""
        if isinstance(got, Reg):
            return self.at(got, block, position)
        node = self._simple(got, want, block)
        return node or self._opaque(f"the operand {got}", want.bits, block)

    def address(self, address: Address, block: int, position: int) -> tuple[Node, int]:
        """The value of an address's base just before the instruction, and the offset."""
        if isinstance(address.base, Reg):
            return self.at(address.base, block, position), address.offset
        if address.base is None:
            return self.constant(address.offset, 64), 0
        return self._symbol(address.base.name, 64), address.base.offset + address.offset

    def meeting(self, node: Node) -> tuple[tuple[int, Node], ...]:
        """For a `join` or a `header`, the predecessors of its block with the value from each."""
        meeting = self._meetings.get(node.id)
        if meeting is None:
            register = Reg(node.data, self._declared[node.data])
            blocks = self.graph.blocks
            meeting = tuple(
                (p, self.at(register, p, len(blocks[p].instrs))) for p in self.graph.before[node.block]
            )
            self._meetings[node.id] = meeting
        return meeting

    def parameter(self, base: Reg | Symbol, block: int, position: int) -> str:
        """The parameter whose value, or whose generic address (by one `cvta.param`), is the base of an
        address; empty if the base is neither or not known.
        """
        if isinstance(base, Symbol):
            return base.name if base.name in self._params else ""
        node = _copied(self.at(base, block, position))
        name = ""
        if node.kind == "param" and not node.data[1] and self._params[node.data[0]]:
            name = node.data[0]  # a number; the first bytes of a structure are no address of it
        elif node.kind == "function" and node.data[0] == CONVERTED and node.data[1] in _PARAM_TO_GENERIC:
            name = address_of(_copied(node.args[0]))
        return name if name in self._params else ""

    def constant(self, value: int, bits: int) -> Node:
        """The node of an integer literal."""
        return self._node("const", bits, value & ((1 << bits) - 1), uniform=True)

    # ----------------------------------------------------------------------- definition sites

    def _site(self, register: Reg, block: int, position: int) -> Site:
        name = register.name
        self._declared[name] = register.declared
        positions = self._defs.get(name)
        if positions is None:
            return _NOWHERE._replace(register=name)
        inside = positions.get(block)
        if inside:
            before = bisect_left(inside, position)
            if before:
                return Site(block, inside[before - 1], name)
        joins = self._joins.get(name)
        if joins is None:
            joins = self._joins[name] = self.graph.joins_of(tuple(positions))
        root = self.graph.order[0]
        while True:
            if block in joins:
                return Site(block, -1, name)
            if block == root:
                return _NOWHERE._replace(register=name)
            block = self.graph.idom[block]
            if block in positions:
                return Site(block, positions[block][-1], name)

    def _value(self, wanted: Site) -> Node:
        known = self._known
        stack = [wanted]
        needed: set[Site] = set()  # sites for which all that they need is on the stack above them
        while stack:
            site = stack[-1]
            if site in known:
                stack.pop()
                continue
            if site.position < 0:
                known[site] = self._met(site)
                continue
            missing = () if site in needed else [s for s in self._needs(site) if s not in known]
            if missing:
                needed.add(site)
                stack += missing
            else:
                self._define(site)
        return known[wanted]

    def _met(self, site: Site) -> Node:
        """The value of a register at the beginning of a block, or of a register that was never written."""
        bits = TYPES[self._declared[site.register]].bits
        graph, block = self.graph, site.block
        if block < 0:
            return self._opaque(f"{site.register}, which has no value there", bits, 0)
        if block in graph.wild or TYPES[self._declared[site.register]].is_float:
            return self._opaque(f"{site.register} of a loop with two entries", bits, block)
        kind = "header" if block in graph.latches else "join"
        return self._node(kind, bits, site.register, block=block)

    # ---------------------------------------------------------------------------- new values

    def _needs(self, site: Site) -> Iterator[Site]:
        """The points where the registers that an instruction reads get their values."""
        instr = self.graph.blocks[site.block].instrs[site.position]
        op = operation(instr)
        if op is not None:
            for want, got in pairs(op, instr):
                if not want.written:
                    for register in registers_of(got):
                        yield self._site(register, site.block, site.position)
        if instr.guard is not None:
            yield self._site(instr.guard.register, site.block, site.position)
            old = Reg(site.register, self._declared[site.register])
            yield self._site(old, site.block, site.position)

    def _define(self, site: Site) -> None:
        """Make the node of the value that an instruction writes to a register."""
        instr = self.graph.blocks[site.block].instrs[site.position]
        declared = TYPES[self._declared[site.register]]
        op = operation(instr)
        if site[:2] in self._addresses:
            new = self._param(self._addresses[site[:2]], 0, WORD)
        elif op is None or declared.is_float:
            new = self._opaque_result(instr, declared.bits, site)
            if new.kind == "opaque" and instr.guard is None:
                self.origins[new.id] = site.block, site.position, instr
        else:
            new = self._computed(op, instr, site, declared)
        if instr.guard is not None:
            register, negated = instr.guard
            guard = self.at(register, site.block, site.position)
            old = self.at(Reg(site.register, declared.register), site.block, site.position)
            chosen = (guard, old, new) if negated else (guard, new, old)
            new = self._node("choose", declared.bits, "choose", chosen)
        self._known[site] = new

    def _computed(self, op: Op, instr: Instr, site: Site, declared: ScalarType) -> Node:
        args: list[Node] = []
        slots: list[tuple[str, Any, ScalarType | None]] = []
        result = element = 0
        written: ScalarType | None = None
        of_results = 0
        for want, got in pairs(op, instr):
            if want.written:
                for n, item in enumerate(got.items if isinstance(got, Vector) else (got,)):
                    if isinstance(item, Reg) and item.name == site.register:
                        result, element, written = of_results, n, want.type
                of_results += 1
            else:
                slots.append(self._slot(want, got, site, args))
        assert written is not None
        if op.row.name in ADDRESSES:
            return self._converted(op, args, declared.bits)
        if op.row.name in SHUFFLES:
            between = tuple(args[:2])
            return self._node("shuffle", declared.bits, instr.opcode, between, block=site.block)
        data = Applied(
            op,
            tuple(slots),
            result if of_results > 1 else -1,
            element if any(o.written and o.count for o in op.operands) else -1,
            written,
        )
        return self._node("apply", declared.bits, data, tuple(args))

    def _converted(self, op: Op, args: list[Node], bits: int) -> Node:
        """The address that `cvta` or `mapa` converts to another space. A generic address in global
        memory equals its `.global` address (PTX ISA, "Generic Addressing").
        """
        if op.row.name == "mapa":
            return self._node("mapped", bits, op.opcode, tuple(args))
        if str(op.modifiers["space"]) == "global":
            return self._resized(args[0], bits)
        kind = "window" if op.row.name == "cvta" else "unwindowed"
        return self._node(kind, bits, "", tuple(args))

    def _slot(
        self, want: BoundOperand, got: Any, site: Site, args: list[Node]
    ) -> tuple[str, Any, ScalarType | None]:
        if want.kind == "imm":
            return want.name, -1 - got.value, None
        assert want.type is not None
        items = got.items if isinstance(got, Vector) else (got,)
        first = len(args)
        args += [self.operand(item, want.type, site.block, site.position) for item in items]
        where = tuple(range(first, len(args))) if isinstance(got, Vector) else first
        return want.name, where, want.type

    def _simple(self, got: Any, want: ScalarType, block: int) -> Node | None:
        """The value of an operand that is not a register; None for one of another kind."""
        match got:
            case IntImm():
                return self.constant(got.value, want.bits)
            case Special(name) if name in THREAD:
                return self._node("thread", WORD, name)
            case Special(name) if name in self._params:  # a special register with known bounds
                return self._param(name, 0, WORD)
            case Special(name) if name in self._specials:
                return self.constant(self._specials[name], WORD)
            case Special(name):
                if name.startswith(_UNIFORM):
                    return self._node("opaque", want.bits, name, uniform=True)
                return self._opaque(name, want.bits, block)
            case Symbol(name, offset):
                return self._moved(self._symbol(name, want.bits), offset, want)
            case _:
                return None

    def _moved(self, node: Node, offset: int, type: ScalarType) -> Node:
        """The node of the address `name+offset` of a variable, as `mov` reads it."""
        return self._node("offset", type.bits, offset, (node,)) if offset else node

    def _symbol(self, name: str, bits: int) -> Node:
        if name in self._shared:
            return self._node("symbol", bits, name, uniform=True)
        return self._node("opaque", bits, (ADDRESS_OF + name, name), uniform=True)

    def _resized(self, node: Node, bits: int) -> Node:
        """The node of an address that was converted to a register of another size."""
        return node if node.bits == bits else self._node("offset", bits, 0, (node,))

    def _opaque_result(self, instr: Instr, bits: int, site: Site) -> Node:
        """The result of an instruction that cannot be computed here."""
        block = site.block
        head = instr.opcode.partition(".")[0]
        source = instr.operands[-1] if instr.operands else None
        if instr.opcode.startswith("ld.param") and isinstance(source, Address):
            base = source.base
            if isinstance(base, Symbol) and base.name in self._params:
                loaded = self._loaded(instr, base.name, base.offset + source.offset, bits, site)
                if loaded is not None:
                    return loaded
        read = source if instr.opcode.startswith("ld.global.nc.") else None
        if isinstance(read, Address) and self._read_only.holds(read):
            # PTX ISA, "ld.global.nc": the memory is read-only for as long as the kernel runs.
            result = next(n for n, r in enumerate(written(instr)) if r == site.register)
            address, offset = self.address(read, block, site.position)
            data = ("a value from memory", instr.opcode, offset, result)
            return self._node("function", bits, data, (address,))
        if head == "cvta" and isinstance(source, Reg):
            address = self.at(source, block, site.position)
            return self._node("function", bits, (CONVERTED, instr.opcode), (address,))
        constant = instr.opcode.startswith("ld.const") and isinstance(source, Address)
        uniform = constant and not isinstance(getattr(source, "base", None), Reg)
        if head in _BARRIERS and ".red." in instr.opcode:  # all threads take part if no number is given
            uniform = len(instr.operands) == _RED_OF_ALL
        what = "a value from memory" if head in ("ld", "ldu", "atom") else f"a result of {head}"
        return self._opaque(what, bits, block, uniform=uniform)

    def _loaded(self, instr: Instr, name: str, offset: int, bits: int, site: Site) -> Node | None:
        """The value that a load from a parameter gives a register of `bits` bits: the bytes of the
        element that goes to this register, extended as the load's type says.
        """
        type = None if shape_of(instr).complaints else type_of(instr)
        if type is None or type.bits > bits:
            return None
        offset += written(instr).index(site.register) * type.nbytes
        loaded = self._param(name, offset, type.bits)
        if type.bits == bits:
            return loaded
        return self._node("extended", bits, type.is_signed, (loaded,))

    def _param(self, name: str, offset: int, bits: int) -> Node:
        of = self._params[name]
        if name in self._params_known and offset >= 0 and 8 * offset + bits <= of:
            return self.constant(self._params_known[name] >> 8 * offset, bits)
        data = (name, offset, offset == 0 and bits == of)
        return self._node("param", bits, data, uniform=True)

    def _opaque(self, what: str, bits: int, block: int, *, uniform: bool = False) -> Node:
        # Each computation may give another value, so no two opaque values are equal.
        data = (what, len(self._nodes))
        return self._node("opaque", bits, data, block=block, uniform=uniform)

    def _node(
        self,
        kind: str,
        bits: int,
        data: Any,
        args: tuple[Node, ...] = (),
        *,
        block: int = 0,
        uniform: bool = False,
    ) -> Node:
        key = (kind, bits, data, block, *[a.id for a in args])
        node = self._nodes.get(key)
        if node is None:
            node = Node(len(self._nodes), kind, bits, data, args, block, uniform)
            self._nodes[key] = node
        return node


_BARRIERS: Final = frozenset({"bar", "barrier"})
_RED_OF_ALL: Final = 3  # operands of a reduction by all threads: result, barrier, predicate
# Prefix of the description of an address outside shared memory.
ADDRESS_OF: Final = "the address of "
CONVERTED: Final = "a result of cvta"
_PARAM_TO_GENERIC: Final = ("cvta.param.u64", "cvta.param::entry.u64")


def address_of(node: Node) -> str:
    """The variable outside shared memory or the parameter whose address a value is; empty for any other."""
    is_address = node.kind == "opaque" and node.data[0].startswith(ADDRESS_OF)
    return str(node.data[1]) if is_address else ""


def _copied(node: Node) -> Node:
    """The value that `node` copies by `mov` or by widening an address; `node` itself if it is no copy."""
    while len(node.args) == 1 and (
        (node.kind == "offset" and not node.data)
        or (node.kind == "apply" and node.data.op.opcode.startswith(("mov.", "cvt.u64.u32")))
    ):
        node = node.args[0]
    return node


def param_bits(kernel: Kernel | Function) -> dict[str, int]:
    """The bits of each parameter that is a number; 0 for a structure or a tensor map."""
    return {p.name: TYPES[p.type].bits if not p.count and p.type in TYPES else 0 for p in kernel.params}


def _definitions(graph: Graph) -> dict[str, dict[int, list[int]]]:
    """By register and block, the positions of the instructions that write the register."""
    definitions: dict[str, dict[int, list[int]]] = {}
    for index in graph.order:
        for position, instr in enumerate(graph.blocks[index].instrs):
            for register in written(instr):
                definitions.setdefault(register, {}).setdefault(index, []).append(position)
    return definitions
