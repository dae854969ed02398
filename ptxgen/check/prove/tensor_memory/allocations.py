"""The allocations of tensor memory of a kernel, and the loads of their addresses from shared memory.

`tcgen05.alloc` writes the address to a word of shared memory. A load of this word gives the address if no
other access writes the word before the load, and if the load comes after the allocation. The proof takes that
to be so, and computes with an address that may be any of those that an allocation of this size can have: its
columns begin at a multiple of 32. `Allocations.refuted` then tells, from the verdicts on all accesses,
whether it was right to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ptxgen.check.prove.barriers.shared_flags import Touched, may_share
from ptxgen.check.prove.listing.products import Products, group_of, operands_of
from ptxgen.check.prove.listing.search import InstrSite, Search
from ptxgen.check.prove.program.graph import Graph
from ptxgen.check.prove.program.operands import WORD
from ptxgen.check.prove.program.ranges import Range, spaced
from ptxgen.check.prove.program.values import Node
from ptxgen.check.prove.program.variable_addresses import SHARED
from ptxgen.check.prove.tensor_memory.order import Order
from ptxgen.check.prove.verdicts import PROVED
from ptxgen.check.verify.shapes import shape_of
from ptxgen.ir import Address, Instr, Reg
from ptxgen.isa.tensor_memory import ALLOCATIONS, COLUMNS
from ptxgen.types import TYPES

ALLOC: Final = "tcgen05.alloc"
_ADDRESS: Final = "the address of tensor memory"
_LOADS: Final = tuple(
    f"ld.{space}.{type}" for space in ("shared", "shared::cta") for type in ("b32", "u32", "s32")
)
_COPIED: Final = ("mov.", "cvt.u64.u32", "cvt.u32.u64")
_READS: Final = (
    *("ld.", "ldmatrix.", "mbarrier.test_wait", "mbarrier.try_wait"),
    *("tcgen05.mma", "tcgen05.cp", "tcgen05.shift"),
)
_MAY_WRITE: Final = "may write over the address of an allocation"
_FROM_SHARED: Final = ".global.shared::cta"  # a copy in bulk that reads shared memory


class Allocation(NamedTuple):
    """An allocation: its instruction, the number of its columns (0 if it is not known, or is none that can be
    allocated), and the parameter of the proof that stands for its address; `word` is where it is written.
    """

    site: InstrSite
    columns: int
    group: int
    name: str
    word: tuple[str, int] | None

    @property
    def addresses(self) -> Range:
        """The range of addresses in tensor memory at which the allocation may begin."""
        return spaced(0, COLUMNS - self.columns, ALLOCATIONS[0])


class Allocations:
    """The allocations of one kernel, in the order of the text; `loads` has the parameter of each load of an
    address, by block and position. Without `trusted`, no address is known.
    """

    def __init__(self, search: Search, graph: Graph, order: Order, products: Products) -> None:
        sites = [
            InstrSite(block, position, instr)
            for block in sorted(graph.order)
            for position, instr in enumerate(graph.blocks[block].instrs)
            if instr.opcode.startswith(ALLOC) and not shape_of(instr).complaints
        ]
        self._search = search
        self._order = order
        self._graph = graph
        self.all = [self._allocation(n, site, len(sites), products) for n, site in enumerate(sites)]
        self._sites = list(self._loads())
        self.loads = {site[:2]: name for site, name in self._sites}

    def _allocation(self, n: int, site: InstrSite, count: int, products: Products) -> Allocation:
        operands = operands_of(site.instr)
        known = products.constant(site, operands["n"])
        columns = known if known in ALLOCATIONS else 0
        name = _ADDRESS if count == 1 else f"{_ADDRESS} {n + 1}"
        address = operands["dst"]
        assert isinstance(address, Address)
        word = _fixed(self._search, address, site)
        return Allocation(site, columns, group_of(site.instr), name, word)

    def _loads(self) -> Iterable[tuple[InstrSite, str]]:
        words, order, graph = [a.word for a in self.all], self._order, self._graph
        for block in graph.order:
            for position, instr in enumerate(graph.blocks[block].instrs):
                if not _is_plain_load(instr):
                    continue
                address = instr.operands[1]
                assert isinstance(address, Address)
                site = InstrSite(block, position, instr)
                word = _fixed(self._search, address, site)
                if word is None or word not in words:
                    continue
                of = self.all[words.index(word)]
                if of.columns and order.is_before(of.site, site) and order.warps(of.site):
                    yield site, of.name

    @property
    def ranges(self) -> dict[str, Range]:
        """The range of addresses that each allocation may have, by the parameter that stands for it."""
        return {a.name: a.addresses for a in self.all}

    def refuted(self, touched: Sequence[Touched], static: frozenset[str]) -> str:
        """Why the word of an allocation whose address is loaded may have been written by another instruction;
        empty if it has not. `touched` has all accesses to shared memory.
        """
        if any(i.opcode.startswith("call") for b in self._graph.order for i in self._graph.blocks[b].instrs):
            return f"a function that is called, and not followed, {_MAY_WRITE}"
        loaded = set(self.loads.values())
        for allocation in self.all:
            if allocation.name in loaded:
                reason = self._overwritten(allocation, touched, static)
                if reason:
                    return reason
        return ""

    def _overwritten(self, of: Allocation, touched: Sequence[Touched], static: frozenset[str]) -> str:
        mine = next(t for t in touched if t.site[:2] == of.site[:2])
        if mine.finding.verdict != PROVED:
            return "the word that an allocation's address is written to is not proved to be in shared memory"
        word = mine.finding
        for other in touched:
            if other is mine or _only_reads(other.site.instr):
                continue
            finding = other.finding
            if finding.verdict != PROVED:
                return f"{other.site.instr.opcode}, which is not proved, {_MAY_WRITE}"
            if self._is_later(of, other):
                continue
            near = finding.allocation == word.allocation
            meets = near and finding.first <= word.last and word.first <= finding.last
            if meets or may_share(self._search, finding.allocation, word.allocation, static):
                return f"{other.site.instr.opcode} {_MAY_WRITE}"
        return ""

    def _is_later(self, of: Allocation, other: Touched) -> bool:
        """Whether an access of a CTA to its shared memory comes after all loads of an allocation's
        address.
        """
        if other.touch.space != SHARED:
            return False
        return all(self._order.is_before(site, other.site) for site, name in self._sites if name == of.name)


def _only_reads(instr: Instr) -> bool:
    return instr.opcode.startswith(_READS) or _FROM_SHARED in instr.opcode


def _is_plain_load(instr: Instr) -> bool:
    if instr.opcode not in _LOADS or instr.guard is not None or shape_of(instr).complaints:
        return False
    register = instr.operands[0]
    assert isinstance(register, Reg)
    return TYPES[register.declared].bits == WORD and not TYPES[register.declared].is_float


def _fixed(search: Search, address: Address, site: InstrSite) -> tuple[str, int] | None:
    """The variable in shared memory and the offset that an address is always; None for any other."""
    node, offset = search.values.address(address, site.block, site.position)
    while node.kind != "symbol":
        step = _step(node)
        if node.kind == "shuffle" and search.agreement.come_together(node.block):
            step = node.args[0], 0  # what it is computed from is the same in all lanes
        if step is None:
            return None
        node, more = step
        offset += more
    return node.data, offset % (1 << WORD)


def _step(node: Node) -> tuple[Node, int] | None:
    """The value that a constant is added to, and the constant; None for another value."""
    if node.kind == "offset":
        return node.args[0], int(node.data)
    if node.kind != "apply" or node.data.element >= 0:
        return None
    opcode = node.data.op.opcode
    if opcode.startswith(_COPIED) and len(node.args) == 1:
        return node.args[0], 0
    if opcode in ("add.u32", "add.s32"):
        for one, other in (node.args, node.args[::-1]):
            if other.kind == "const":
                return one, int(other.data)
    return None
