"""The verdicts on instructions that allocate, free and use tensor memory.

An allocation is proved if one warp makes it once, of a size that there is, before any promise to allocate no
more, and if one warp frees it. A use is proved if each column is inside its allocation, which is neither
freed before nor made later, and if its lanes are those that the instruction takes, of loads and stores those
of the warp. What is in flight is not judged: asynchronous products and copies may go on when a warp goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from ptxgen.check.prove.barriers.sites import WARP
from ptxgen.check.prove.listing.products import Products, group_of, operands_of
from ptxgen.check.prove.listing.rows import THREAD, Effort, NotListedError, SpentError, Table
from ptxgen.check.prove.listing.search import Finding, InstrSite, Search
from ptxgen.check.prove.listing.tables import Lister
from ptxgen.check.prove.program.graph import Graph
from ptxgen.check.prove.program.inlining import Source
from ptxgen.check.prove.program.operands import TENSOR
from ptxgen.check.prove.program.values import Node
from ptxgen.check.prove.subject import Judged, judged
from ptxgen.check.prove.tensor_memory.allocations import Allocation, Allocations
from ptxgen.check.prove.tensor_memory.order import Order
from ptxgen.check.prove.tensor_memory.uses import Use, use_of_copy, use_of_registers, uses_of_product
from ptxgen.check.prove.verdicts import PROVED, UNKNOWN, VIOLATION
from ptxgen.check.verify.shapes import shape_of
from ptxgen.ir import Address, Instr, Special
from ptxgen.isa.tensor_memory import ALLOCATIONS, COLUMNS, LANES, QUARTER, QUARTERS
from ptxgen.types import u16, u32

Lanes = np.ndarray[Any, np.dtype[Any]]

_NAME: Final = "tensor memory"
_LANE: Final = 16  # the lowest bit of the lane in an address
_PAIR: Final = 2  # CTAs
_JUDGED: Final = ("alloc", "dealloc", "relinquish_alloc_permit", "ld", "st", "mma", "cp", "commit")
_NO_CLUSTER: Final = "the number of CTAs of its cluster is not known (.reqnctapercluster)"
_NO_ALLOCATION: Final = "its address is not computed from that of an allocation"


def operation_of(instr: Instr) -> str:
    """The second word, such as `alloc`, of a `tcgen05` instruction that gets a verdict; else empty."""
    first, _, rest = instr.opcode.partition(".")
    what = rest.partition(".")[0]
    if first != TENSOR or what not in _JUDGED:
        return ""
    return what if what != "commit" or ".multicast" in rest else ""


def _unmodelled(instr: Instr) -> str:
    """The reason why what an instruction does is not known; empty if it is."""
    shape = shape_of(instr)
    if shape.complaints:
        return "the instruction is not in the table"
    assert shape.op is not None
    return shape.op.row.unmodelled


class TensorMemoryProver:
    """The proof of one kernel's use of tensor memory. `refuted` is the reason why no address that is loaded
    is known, `ctas` the number of CTAs of a cluster, 0 if it is not known, and `steps` those that one verdict
    may take.
    """

    def __init__(
        self,
        search: Search,
        graph: Graph,
        order: Order,
        allocations: Allocations,
        products: Products,
        refuted: str,
        effort: Effort,
        sources: Sequence[Source],
        ctas: int,
        steps: int,
    ) -> None:
        self._search = search
        self._graph = graph
        self._order = order
        self._allocations = allocations
        self._products = products
        self._refuted = refuted
        self._effort = effort
        self._sources = sources
        self._ctas = ctas
        self._steps = steps
        self._by_name = {a.name: a for a in allocations.all}
        self._sites = [
            InstrSite(block, position, instr)
            for block in sorted(graph.order)
            for position, instr in enumerate(graph.blocks[block].instrs)
            if operation_of(instr)
        ]
        self._freeing = {
            site[:2]: self._freed_by(site) for site in self._sites if operation_of(site.instr) == "dealloc"
        }

    def run(self) -> Iterator[Judged]:
        """Judge each use of tensor memory: the verdicts in the order of the PTX text."""
        for site in self._sites:
            source = self._sources[self._graph.blocks[site.block].start + site.position]
            for which, finding in enumerate(self._bounded(site)):
                yield judged(source, which, finding._replace(allocation=_NAME))

    def _bounded(self, site: InstrSite) -> list[Finding]:
        self._effort.allow(self._steps)
        try:
            return list(self._findings(site))
        except SpentError:
            return [Finding(UNKNOWN, f"listing its address takes more than {self._steps} steps")]

    def _findings(self, site: InstrSite) -> Iterator[Finding]:
        what, reason = operation_of(site.instr), _unmodelled(site.instr)
        if reason:
            yield Finding(UNKNOWN, reason)
        elif what == "alloc":
            yield self._allocated(next(a for a in self._allocations.all if a.site[:2] == site[:2]))
        elif what == "dealloc":
            yield self._freed(site)
        elif what == "relinquish_alloc_permit":
            yield Finding(PROVED)
        elif what == "commit":
            yield self._multicast(site)
        elif what in ("ld", "st"):
            yield self._used(site, use_of_registers(site.instr))
        elif what == "cp":
            yield self._used(site, use_of_copy(site.instr))
        else:
            product = self._products.of(site)
            if isinstance(product, Finding):
                yield product
                return
            for use in uses_of_product(site.instr, product):
                yield self._used(site, use)

    # ------------------------------------------------------------------------------ allocations

    def _allocated(self, of: Allocation) -> Finding:
        """The verdict on an instruction that allocates tensor memory (`tcgen05.alloc`)."""
        known = self._products.constant(of.site, operands_of(of.site.instr)["n"])
        if known is None:
            return Finding(UNKNOWN, "the number of its columns is not known")
        if not of.columns:
            sizes = ", ".join(map(str, ALLOCATIONS))
            return self._if_reached(
                of.site, f"it allocates {known} columns, and there are allocations of {sizes}"
            )
        warps = self._order.warps(of.site)
        if warps is None:
            return Finding(UNKNOWN, "which warps execute it, and how often, is not known")
        if not warps:
            return Finding(PROVED, "no thread gets there")
        if len(warps) > 1:
            return Finding(UNKNOWN, f"warps {warps[0]} to {warps[-1]} execute it, and each allocates columns")
        for finding in (
            self._paired(of.site),
            self._among_others(of),
            self._permitted(of),
            self._is_freed(of),
        ):
            if finding.verdict != PROVED:
                return finding
        return Finding(PROVED, "", _NAME, 0, of.columns - 1)

    def _paired(self, site: InstrSite) -> Finding:
        if group_of(site.instr) < _PAIR or (self._ctas and self._ctas % _PAIR == 0):
            return Finding(PROVED)
        if not self._ctas:
            return Finding(UNKNOWN, _NO_CLUSTER)
        return self._if_reached(site, f"a pair has two CTAs of one cluster, and the cluster has {self._ctas}")

    def _among_others(self, of: Allocation) -> Finding:
        """Whether an allocation of tensor memory is no larger than earlier ones, and all fit together."""
        if not all(a.columns for a in self._allocations.all):
            return Finding(UNKNOWN, "the columns of another allocation are not known")
        for other in self._allocations.all:
            if other.columns < of.columns:
                if self._order.is_before(other.site, of.site) and self._order.warps(other.site):
                    reason = f"it allocates {of.columns} columns after an allocation of {other.columns}"
                    return Finding(VIOLATION, f"{reason}, and later allocations of a CTA are not larger")
                if not self._order.is_before(of.site, other.site):
                    return Finding(UNKNOWN, f"an allocation of {other.columns} columns may come before it")
        total = sum(a.columns for a in self._allocations.all)
        if total > COLUMNS:
            return Finding(UNKNOWN, f"all allocations have {total} columns, and tensor memory has {COLUMNS}")
        return Finding(PROVED)

    def _permitted(self, of: Allocation) -> Finding:
        """Whether no promise to allocate no more comes before an allocation."""
        for site in self._sites:
            if operation_of(site.instr) != "relinquish_alloc_permit" or self._order.is_before(of.site, site):
                continue
            verdict = UNKNOWN
            if self._order.is_before(site, of.site) and self._order.warps(site):
                verdict = VIOLATION
            may = "comes" if verdict == VIOLATION else "may come"
            return Finding(verdict, f"tcgen05.relinquish_alloc_permit {may} before it")
        return Finding(PROVED)

    def _is_freed(self, of: Allocation) -> Finding:
        frees = [block for block, allocation in self._freeing.items() if allocation is of]
        if any(allocation is None for allocation in self._freeing.values()):
            return Finding(UNKNOWN, "a tcgen05.dealloc has an address that is not known")
        if not frees:
            return Finding(VIOLATION, "its columns are never freed")
        if len(frees) > 1:
            return Finding(UNKNOWN, "several instructions free its columns")
        (site,) = (s for s in self._sites if s[:2] == frees[0])
        warps = self._order.warps(site)
        if warps is None or len(warps) != 1:
            return Finding(UNKNOWN, "its columns may not be freed, or more than once")
        return Finding(PROVED)

    def _freed_by(self, site: InstrSite) -> Allocation | None:
        if shape_of(site.instr).complaints:
            return None
        node = self._search.values.operand(operands_of(site.instr)["a"], u32, site.block, site.position)
        return self._allocation_of(node)

    def _freed(self, site: InstrSite) -> Finding:
        """The verdict on an instruction that frees columns of tensor memory (`tcgen05.dealloc`)."""
        operands = operands_of(site.instr)
        of = self._freeing[site[:2]]
        if of is None:
            return Finding(UNKNOWN, self._refuted or _NO_ALLOCATION)
        known = self._products.constant(site, operands["n"])
        if known is None:
            return Finding(UNKNOWN, "the number of its columns is not known")
        if known != of.columns:
            return self._if_reached(site, f"it frees {known} columns of an allocation of {of.columns}")
        for finding in (self._paired(site), self._is_of_one_group(site, of)):
            if finding.verdict != PROVED:
                return finding
        warps = self._order.warps(site)
        if warps is None or len(warps) > 1:
            return Finding(UNKNOWN, "the warp that executes it is not known to be one")
        if not self._order.is_before(of.site, site):
            return Finding(UNKNOWN, "it may come before the allocation")
        node = self._search.values.operand(operands["a"], u32, site.block, site.position)
        return self._listed(site, node, 0, of, Use("it", Address(None), 0, 0, LANES), exactly=True)

    def _is_of_one_group(self, site: InstrSite, of: Allocation) -> Finding:
        if group_of(site.instr) == of.group:
            return Finding(PROVED)
        return Finding(
            UNKNOWN, f"it is for cta_group::{group_of(site.instr)}, its allocation for another group"
        )

    def _multicast(self, site: InstrSite) -> Finding:
        """The verdict on the CTAs at whose mbarriers a commit arrives."""
        known = self._products.constant(site, operands_of(site.instr)["ctas"], u16)
        if known is None:
            return Finding(UNKNOWN, "the CTAs of its mask are not known")
        if not self._ctas:
            return Finding(UNKNOWN, _NO_CLUSTER)
        if known >> self._ctas:
            return self._if_reached(
                site, f"it multicasts to the CTAs of mask {known:#06x} in a cluster of {self._ctas}"
            )
        return Finding(PROVED)

    def _if_reached(self, site: InstrSite, reason: str) -> Finding:
        """A violation if a thread certainly gets to an instruction."""
        if self._products.is_reached(site):
            return Finding(VIOLATION, reason)
        return Finding(UNKNOWN, f"perhaps {reason}")

    # ------------------------------------------------------------------------------ uses

    def _allocation_of(self, node: Node) -> Allocation | None:
        """The allocation that an address is computed from; of a number, one of all columns, which begin at
        0.
        """
        names = {
            n.data[0]
            for n in self._search.paths.sources(node)
            if n.kind == "param" and n.data[0] in self._by_name
        }
        if len(names) == 1:
            return self._by_name[names.pop()]
        whole = [a for a in self._allocations.all if a.columns == COLUMNS]
        return whole[0] if len(self._allocations.all) == len(whole) == 1 else None

    def _used(self, site: InstrSite, use: Use) -> Finding:
        """The verdict on an instruction's operand in tensor memory: lanes and columns."""
        base, offset = self._search.values.address(use.address, site.block, site.position)
        of = self._allocation_of(base)
        if of is None:
            return Finding(UNKNOWN, self._refuted or _NO_ALLOCATION)
        if not use.by_warp and group_of(site.instr) != of.group:
            return self._is_of_one_group(site, of)
        if not self._order.is_before(of.site, site) or not self._order.warps(of.site):
            return Finding(UNKNOWN, "it may come before the allocation")
        for freeing in (s for s in self._sites if self._freeing.get(s[:2]) is of):
            if not self._order.is_before(site, freeing):
                is_late = self._order.is_before(freeing, site) and self._order.warps(freeing)
                may = "comes" if is_late and self._order.warps(site) else "may come"
                verdict = VIOLATION if may == "comes" else UNKNOWN
                return Finding(verdict, f"it {may} after tcgen05.dealloc has freed its columns")
        if use.by_warp and not self._search.agreement.agrees(base):
            return Finding(UNKNOWN, "the threads of a warp may give different addresses")
        return self._listed(site, base, offset, of, use)

    def _listed(
        self, site: InstrSite, base: Node, offset: int, of: Allocation, use: Use, *, exactly: bool = False
    ) -> Finding:
        """The verdict on the columns and lanes of a use whose address is `base` plus `offset`; with
        `exactly`,
        the address is that of the allocation itself.
        """
        search = self._search
        if not search.dependence.of(base).is_fixed:
            return Finding(UNKNOWN, "its address depends on that of a variable in shared memory")
        thread = search.values.operand(Special("%tid.x"), u32, site.block, site.position)
        finding = Finding(UNKNOWN)
        for thorough in (False, True):
            try:
                lister, table = search.table(
                    [base, thread], search.condition(site), thorough, search.bases(0)
                )
                addresses = lister.evaluate(table, base).astype(np.int64)
            except NotListedError as error:
                finding = Finding(UNKNOWN, self._refuted or f"its address cannot be listed: {error}")
                continue
            finding = self._checked(lister, table, addresses + offset & use.mask, of, use, exactly)
            if finding.verdict == PROVED:
                break
        return finding

    def _checked(
        self, lister: Lister, table: Table, addresses: Lanes, of: Allocation, use: Use, exactly: bool
    ) -> Finding:
        if not table.n:
            return Finding(PROVED, "no thread gets there")
        begins = self._begins(lister, table, of)
        lane = (addresses >> _LANE) - (addresses >> 2 * _LANE - 1 << _LANE)  # signed
        column = addresses & (1 << _LANE) - 1
        column = column - begins
        quarter = table.columns[THREAD] // WARP % QUARTERS * QUARTER if use.by_warp else np.zeros_like(lane)
        outside = (column + use.first < 0) | (column + use.last >= of.columns)
        misplaced = ~np.isin(lane - quarter, use.starts)
        if exactly:
            outside, misplaced = column != 0, lane != 0
        wrong = outside | misplaced | bool(use.wrong)
        if not wrong.any():
            low, high = int(column.min()) + use.first, int(column.max()) + use.last
            return Finding(PROVED, "", _NAME, low, high)
        # An allocation has one of its addresses: what is wrong for some of them need not happen.
        sure = wrong & table.sure
        is_certain = all((sure & (begins == begin)).any() for begin in _each(of))
        row = int(np.argmax(sure if is_certain else wrong))
        reason = use.wrong or _mistake(
            use, of, int(lane[row]), int(column[row]), int(quarter[row]), bool(misplaced[row]), exactly
        )
        low, high = int(column[row]) + use.first, int(column[row]) + use.last
        witness = self._search.witness(lister, table, row, low)
        if is_certain:
            return Finding(VIOLATION, f"{reason}: {witness}", _NAME, low, high, witness)
        return Finding(UNKNOWN, f"perhaps {reason}, but that may not happen ({witness})", _NAME, low, high)

    def _begins(self, lister: Lister, table: Table, of: Allocation) -> Lanes:
        """The first column of the allocation in tensor memory, for each row of a table."""
        name = of.name
        leaf = next((n for n in lister.listed if n.kind == "param" and n.data[0] == name), None)
        if leaf is None:
            return np.zeros(table.n, np.int64)
        begins: Lanes = lister.evaluate(table, leaf).astype(np.int64)
        return begins


def _mistake(
    use: Use, of: Allocation, lane: int, column: int, quarter: int, misplaced: bool, exactly: bool
) -> str:
    """The words for a wrong address of a use: for its lane if `misplaced`, otherwise for its columns."""
    if exactly:
        begin = f"lane {lane} and column {column} of its allocation"
        return f"it frees columns from {begin} on, not from its address"
    name = f"{use.what}: " if use.what else ""
    if not misplaced:
        first, last = column + use.first, column + use.last
        return f"{name}columns {first} to {last} are outside its allocation, which has {of.columns} columns"
    end = lane + use.height - 1
    if use.by_warp and (lane < quarter or end >= quarter + QUARTER):
        warp = f"warp {quarter // QUARTER} of 4, which has lanes {quarter} to {quarter + QUARTER - 1}"
        return f"lanes {lane} to {end} are not those of {warp}"
    starts = [start + quarter for start in use.starts]
    which = f"{starts[0]} to {starts[-1]}" if len(starts) > _PAIR else " or ".join(map(str, starts))
    return f"{name}it begins at lane {lane}, and not at lane {which}"


def _each(of: Allocation) -> range:
    """The addresses in tensor memory at which an allocation may begin, one after another."""
    first, last, _ = of.addresses
    return range(first, last + 1, ALLOCATIONS[0])
