"""Lists the addresses of one access in every thread and iteration, and gives the verdict on it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from ptxgen.check.prove.listing.refined import Refined
from ptxgen.check.prove.listing.rows import THREAD, Effort, NotListedError, Table, all_threads, thread_of
from ptxgen.check.prove.listing.tables import Lister
from ptxgen.check.prove.program.agreement import Agreement
from ptxgen.check.prove.program.domain import WINDOW, Domain, Shape
from ptxgen.check.prove.program.matrices import box_span, misplaced_boxes
from ptxgen.check.prove.program.operands import WORD
from ptxgen.check.prove.program.paths import ALWAYS, Formula, Literal, Paths
from ptxgen.check.prove.program.ranges import Range
from ptxgen.check.prove.program.shared_accesses import Home, Provenance, Touch, home_of
from ptxgen.check.prove.program.values import Node, Values
from ptxgen.check.prove.program.variable_addresses import (
    ANYHOW,
    CLUSTER,
    GENERIC,
    SHARED,
    AddressDependence,
    Placed,
    ranks_of,
)
from ptxgen.check.prove.verdicts import PROVED, UNKNOWN, VIOLATION, Witness
from ptxgen.ir import Instr, TensorAddress
from ptxgen.tensormap import TensorMap
from ptxgen.types import s32

Lanes = np.ndarray[Any, np.dtype[Any]]

SPACING: Final = 1 << 22  # bytes between variables at the addresses that are tried
_MOST_ADDRESSES: Final = 128  # addresses of a variable that are tried
_TWISTED: Final = "it may depend on the variable's address in a way that is not followed"
_SPACES: Final = {SHARED: "one in .shared", CLUSTER: "one in .shared::cluster", GENERIC: "a generic one"}
_ATTEMPTS: Final = 12


class Listing(NamedTuple):
    """The addresses of one access, counted from one base. `variable` is the index of the shared
    variable of each row, and `relative` the offset in it in bytes; `extent` is the number of bytes
    accessed beyond the fixed ones.
    """

    lister: Lister
    table: Table
    relative: Lanes
    variable: Lanes
    extent: Lanes


class Finding(NamedTuple):
    """A verdict without its instruction; of an access, with the allocation and the bytes accessed in it."""

    verdict: str
    reason: str = ""
    allocation: str = ""
    first: int = 0
    last: int = -1
    witness: Witness | None = None


class InstrSite(NamedTuple):
    """The position of an instruction in the kernel's control-flow graph: block and index in it."""

    block: int
    position: int
    instr: Instr


class Search:
    """Judges the accesses of one kernel to shared memory by listing their addresses."""

    def __init__(
        self,
        values: Values,
        paths: Paths,
        shape: Shape,
        parameters: Mapping[str, Range],
        homes: Mapping[str, Home],
        regions: Mapping[str, Home],
        dynamic: str,
        maps: Mapping[str, TensorMap],
        effort: Effort,
        ctas: int = 0,
    ) -> None:
        self.values = values
        self.paths = paths
        self.provenance = Provenance(values)
        self._shape = shape
        self._parameters = parameters
        self.homes = homes
        self.regions = regions
        self.dynamic = dynamic
        self._maps = maps
        self.names = list(homes)
        self._effort = effort
        self.ctas = ctas  # number of CTAs of a cluster, 0 if not known
        self.agreement = agreement = Agreement(values, paths, shape)
        # The result of reading a lane that does not take part in a shuffle is undefined.
        self._takes_part = lambda shuffle: agreement.come_together(shuffle.block)
        self._plain = Domain(shape, parameters, takes_part=self._takes_part)
        search = weakref.proxy(self)  # so that a proof is freed without the garbage collector
        self.dependence = AddressDependence(values, self._plain.range, lambda node: search._largest(node))
        self._refined = Refined(values, paths)
        self._listings: dict[tuple[Any, ...], Listing | str] = {}
        self._loops: dict[Any, Table | NotListedError] = {}
        self._threads: dict[tuple[int, ...], Table] = {}  # all threads, by the addresses of variables

    # ------------------------------------------------------------------------------ judging

    def judge(self, site: InstrSite, touch: Touch) -> Finding | None:
        """The verdict on an access; None if the access is not to shared memory."""
        if touch.box is not None:
            sized = self._sized(site, touch, touch.box)
            if isinstance(sized, Finding):
                return sized
            touch = sized
        base, offset = self.values.address(touch.address, site.block, site.position)
        placed = self.dependence.of(base)
        if placed == ANYHOW:
            symbols = self.provenance.symbols(base)
            return Finding(UNKNOWN, _TWISTED, self._allocation(base, offset) if symbols else "")
        if not placed.space:
            elsewhere = not self.homes or self.dependence.is_elsewhere(base)
            if touch.space == GENERIC and elsewhere:
                return None
            return Finding(UNKNOWN, "its address is not computed from a shared variable")
        reason = self._other_space(site, placed, touch, base)
        if reason:
            return Finding(UNKNOWN, reason, self._allocation(base, offset))
        size = None
        if touch.number is not None and touch.counted is not None:
            size = self.values.operand(touch.number, touch.counted, site.block, site.position)
            if not self.dependence.of(size).is_fixed:
                return Finding(UNKNOWN, _TWISTED, self._allocation(base, offset))
        finding = self._judged(site, touch, base, offset, size)
        if touch.reason and finding.verdict == PROVED:
            return finding._replace(verdict=UNKNOWN, reason=touch.reason)
        return finding

    def _other_space(self, site: InstrSite, placed: Placed, touch: Touch, base: Node) -> str:
        """Why the instruction does not take an address of this space; empty if it does."""
        if placed.space != touch.space and (placed.space, touch.space) != (SHARED, CLUSTER):
            return f"its address is {_SPACES[placed.space]}, but the instruction takes {_SPACES[touch.space]}"
        for rank in ranks_of(self.values, base):
            if not self._is_rank(site, rank):
                return "the rank of its address is not shown to be that of a CTA of the cluster"
        return ""

    def _is_rank(self, site: InstrSite, rank: Node) -> bool:
        r = self._plain.range(rank)
        if r.first >= 0 and r.last < self.ctas:
            return True
        try:
            bases = self.bases(0)
            lister, table = self.table([rank], self.condition(site), True, bases)
            ranks = lister.evaluate(table, rank)
        except NotListedError:
            return False
        return bool((ranks < self.ctas).all())

    def _sized(self, site: InstrSite, touch: Touch, box: TensorAddress) -> Touch | Finding:
        """The access of a tensor copy, with the size of the box from its tensor map."""
        name = self.values.parameter(box.base, site.block, site.position)
        of = None if box.offset else self._maps.get(name)
        if of is None:
            which = f"{name}, which is not given" if name else "which is in none of the parameters"
            return touch._replace(reason=f"the size of the box is in the tensor map, {which}")
        dims = len(box.coordinates)
        if of.rank != dims:
            return Finding(
                VIOLATION, f"the copy has {dims} dimensions, but the tensor map {name} has {of.rank}"
            )
        first = self.values.operand(box.coordinates[0], s32, site.block, site.position)
        wrong = misplaced_boxes(self._plain.range(first), of)
        return touch._replace(fixed=box_span(of), wrong=wrong)

    def _judged(self, site: InstrSite, touch: Touch, base: Node, offset: int, size: Node | None) -> Finding:
        bases = self.bases(0)
        quick = self._listed(site, base, size, touch, False, bases)
        if not isinstance(quick, str):
            finding = self._checked(quick, touch, base, offset)
            if finding.verdict == PROVED or quick.lister.has_all(self.condition(site)):
                return self._anywhere(finding, site, touch, base, offset, size)
        thorough = self._listed(site, base, size, touch, True, bases)
        if isinstance(thorough, str):
            name = self._allocation(base, offset)
            reason = quick if isinstance(quick, str) else thorough
            return Finding(UNKNOWN, f"its address cannot be listed: {reason}", name)
        finding = self._checked(thorough, touch, base, offset)
        return self._anywhere(finding, site, touch, base, offset, size)

    def _anywhere(
        self, finding: Finding, site: InstrSite, touch: Touch, base: Node, offset: int, size: Node | None
    ) -> Finding:
        """The one verdict on an access that holds for every address of the shared variables."""
        period = self.dependence.of(base).period
        align = min(self.homes[name].align for name in self.provenance.symbols(base))
        count = period // max(align, 1)
        if count <= 1:
            return finding
        if finding.verdict != PROVED or count > _MOST_ADDRESSES:
            return finding._replace(verdict=UNKNOWN, reason=_TWISTED, witness=None)
        for n in range(1, count):
            listed = self._listed(site, base, size, touch, True, self.bases(n * align))
            if isinstance(listed, str):
                return finding._replace(verdict=UNKNOWN, reason=_TWISTED)
            if self._checked(listed, touch, base, offset).verdict != PROVED:
                return finding._replace(verdict=UNKNOWN, reason=_TWISTED)
        return finding

    def bases(self, moved: int) -> dict[str, int]:
        """The addresses that the variables get while an access is tried."""
        return {name: (n + 1) * SPACING + SPACING // 2 + moved for n, name in enumerate(self.names)}

    def _allocation(self, base: Node, offset: int) -> str:
        names = sorted(self.provenance.symbols(base))
        home, _ = self._home(names[0], base, offset)
        return home.name if home is not None else names[0]

    def _home(self, name: str, base: Node, offset: int) -> tuple[Home | None, int | None]:
        """The allocation that an address computed from a variable should lie in, and the constant
        offset that selects it; the constant is None if it differs from row to row.
        """
        variable = self.homes[name]
        if name != self.dynamic or not self.regions:
            return variable, 0
        constant = self.provenance.constant(base)
        if constant is None:
            return variable, None
        return home_of(constant + offset, variable, self.regions), constant + offset

    # ------------------------------------------------------------------------------ checking

    def _checked(self, listing: Listing, touch: Touch, base: Node, offset: int) -> Finding:
        """The verdict on an access at `offset` bytes from a base that has been listed."""
        first = Finding(PROVED)
        if not len(listing.relative):
            return Finding(PROVED, "no thread gets there", self._allocation(base, offset))
        for number, rows in _each(listing.variable):
            if not 0 <= number < len(self.names):
                return self._wrong(listing, rows, offset, "it is outside every variable", "")
            finding = self._in_variable(listing, rows, touch, base, offset, self.names[number])
            if finding.verdict != PROVED:
                return finding
            first = finding
        return first

    def _in_variable(
        self, listing: Listing, rows: Lanes, touch: Touch, base: Node, offset: int, name: str
    ) -> Finding:
        start = listing.relative[rows] + offset
        end = start + touch.fixed + (listing.extent[rows] if len(listing.extent) else 0)
        home, constant = self._home(name, base, offset)
        if constant is None:
            return self._in_some_region(listing, rows, start, end, touch, name)
        if home is None:
            reason = f"byte {constant} of {name} is in none of its regions"
            return self._wrong(listing, rows, offset, reason, name)
        if not home.known and (start >= home.start).all():
            reason = f"the size of {home.name} is not given (dynamic_smem)"
            return Finding(UNKNOWN, reason, home.name)
        outside = (start < home.start) | (end > home.start + home.nbytes)
        low, high = int(start.min()) - home.start, int(end.max()) - home.start - 1
        if outside.any():
            row = self._worst(listing, rows, outside)
            at = int(start[row]) - home.start
            last = int(end[row]) - home.start - 1
            reason = f"bytes {at} to {last} are outside {home.name}, which has {home.nbytes} bytes"
            finding = self._wrong(listing, rows[row : row + 1], offset - home.start, reason, home.name)
            return finding._replace(first=low, last=high)
        if len(listing.extent):
            uneven = listing.extent[rows] % touch.multiple != 0
            if uneven.any():
                row = self._worst(listing, rows, uneven)
                size = int(listing.extent[rows[row]])
                reason = f"its {size} bytes are not a multiple of {touch.multiple}"
                return self._wrong(listing, rows[row : row + 1], offset - home.start, reason, home.name)
        return self._aligned(listing, rows, start, touch, home)._replace(first=low, last=high)

    def _aligned(self, listing: Listing, rows: Lanes, start: Lanes, touch: Touch, home: Home) -> Finding:
        past = (start % touch.align != 0) | bool(touch.wrong)
        if past.any():
            row = self._worst(listing, rows, past)
            at = int(start[row]) - home.start
            reason = touch.wrong or f"byte {at} of {home.name} is not a multiple of {touch.align} bytes"
            offset = at - int(listing.relative[rows[row]])
            return self._wrong(listing, rows[row : row + 1], offset, reason, home.name)
        if home.align % touch.align:
            reason = f"{home.name} is aligned to {home.align} bytes only, and the access needs {touch.align}"
            return Finding(UNKNOWN, reason, home.name)
        return Finding(PROVED, "", home.name)

    def _in_some_region(
        self, listing: Listing, rows: Lanes, start: Lanes, end: Lanes, touch: Touch, name: str
    ) -> Finding:
        """The verdict on an address that no constant places in a region: each access has to lie inside one
        region, which the verdict names if it is the same for all.
        """
        inside = np.zeros(len(rows), np.bool_)
        for home in self.regions.values():
            here = (start >= home.start) & (end <= home.start + home.nbytes)
            if here.all():
                finding = self._aligned(listing, rows, start, touch, home)
                return finding._replace(
                    first=int(start.min()) - home.start, last=int(end.max()) - home.start - 1
                )
            inside |= here
        if not inside.all():
            row = self._worst(listing, rows, ~inside)
            at, last = int(start[row]), int(end[row]) - 1
            reason = f"bytes {at} to {last} of {name} are not inside one region"
            offset = at - int(listing.relative[rows[row]])
            return self._wrong(listing, rows[row : row + 1], offset, reason, name)
        return self._aligned(listing, rows, start, touch, self.homes[name])

    def _worst(self, listing: Listing, rows: Lanes, wrong: Lanes) -> int:
        """The index of the first wrong row, if possible one that certainly happens."""
        certain_too = wrong & listing.table.sure[rows]
        return int(np.argmax(certain_too if certain_too.any() else wrong))

    def _wrong(self, listing: Listing, rows: Lanes, offset: int, reason: str, allocation: str) -> Finding:
        row = int(rows[0])
        verdict = VIOLATION if listing.table.sure[row] else UNKNOWN
        at = int(listing.relative[row]) + offset
        witness = self.witness(listing.lister, listing.table, row, at)
        reason = (
            f"{reason}: {witness}"
            if verdict == VIOLATION
            else (f"perhaps {reason}, but that may not happen ({witness})")
        )
        return Finding(verdict, reason, allocation, witness=witness)

    def witness(self, lister: Lister, table: Table, row: int, address: int) -> Witness:
        """The thread and the loop values of a row, with the address accessed."""
        number = thread_of(table, row)
        x, y, _ = self._shape
        thread = (number % x, number // x % y, number // (x * y))
        held = {}
        for leaf in sorted(lister.listed, key=lambda leaf: leaf.id):
            column = table.columns.get(leaf.id)
            if column is None or leaf.kind not in ("header", "join", "param"):
                continue
            name = leaf.data[0] if leaf.kind == "param" else leaf.data
            held[name] = self._number(int(column[row]), leaf)
        return Witness(thread, tuple(held.items()), address)

    def _number(self, value: int, leaf: Node) -> int:
        """A value as it is shown to a reader: an address counted from its variable, other values
        signed.
        """
        names = self.provenance.symbols(leaf)
        if names:
            return value - self.bases(0)[min(names)]
        return value - (1 << leaf.bits) if value >> (leaf.bits - 1) and leaf.bits > 1 else value

    # ------------------------------------------------------------------------------ listing

    def listed(self, node: Node) -> Lanes | None:
        """The values of a register in all threads and iterations; None if they cannot be listed."""
        try:
            lister, table = self.table([node], ALWAYS, True, self.bases(0))
            return lister.evaluate(table, node)
        except NotListedError:
            return None

    def _largest(self, node: Node) -> int | None:
        """The largest value of a register in any thread and iteration; None if it cannot be listed."""
        values = self.listed(node)
        return None if values is None else int(values.max(initial=0))

    def condition(self, site: InstrSite) -> Formula:
        """The condition under which a thread executes the instruction, as a formula of predicates."""
        reach = self.paths.reach(site.block)
        guard = site.instr.guard
        if guard is None:
            return reach
        node = self.values.at(guard.register, site.block, site.position)
        return Formula((*((reach,) if reach.parts else ()), Literal(node, guard.negated)))

    def _listed(
        self,
        site: InstrSite,
        base: Node,
        size: Node | None,
        touch: Touch,
        thorough: bool,
        bases: dict[str, int],
    ) -> Listing | str:
        """The listing of a base, or the reason why there is none."""
        guard = site.instr.guard
        node = self.values.at(guard.register, site.block, site.position) if guard else None
        key = (
            base.id,
            size and size.id,
            site.block,
            node and node.id,
            guard and guard.negated,
            thorough,
            touch.lanes,
            touch.scale,
            bases[self.names[0]],
        )
        listing = self._listings.get(key)
        if listing is None:
            condition = self.condition(site)
            listing = self._tried(base, size, condition, touch, thorough, bases)
            self._listings[key] = listing
        return listing

    def _tried(
        self,
        base: Node,
        size: Node | None,
        condition: Formula,
        touch: Touch,
        thorough: bool,
        bases: dict[str, int],
    ) -> Listing | str:
        nodes = [base] if size is None else [base, size]
        try:
            lister, table = self.table(nodes, condition, thorough, bases)
            thread = table.columns.get(THREAD)
            if touch.lanes < WORD and thread is not None:
                table = table.take(np.flatnonzero(thread % WORD < touch.lanes))
            addresses = lister.evaluate(table, base).astype(np.int64)
            extent = np.zeros(0, np.int64)
            if size is not None:
                extent = lister.evaluate(table, size).astype(np.int64) * touch.scale
        except NotListedError as error:
            return str(error)
        if self.dependence.of(base).space == GENERIC:
            addresses -= WINDOW
        names = self.provenance.symbols(base)
        variable = addresses // SPACING - 1
        if len(names) == 1:
            variable = np.full(len(addresses), self.names.index(min(names)))
        known = np.clip(variable, 0, len(self.names) - 1)
        starts = np.array([bases[name] for name in self.names], np.int64)
        return Listing(lister, table, addresses - starts[known], variable, extent)

    def table(
        self, nodes: list[Node], condition: Formula, thorough: bool, bases: dict[str, int]
    ) -> tuple[Lister, Table]:
        """The table of some values where a condition holds; `NotListedError` if one cannot be listed."""
        domain = self._plain
        failed: set[int] = set()
        refined: dict[int, Range] = {}
        addresses = tuple(bases.values())
        threads = self._threads.get(addresses) or all_threads(self._shape)
        self._threads[addresses] = threads
        for _ in range(_ATTEMPTS):
            lister = Lister(
                self.values,
                self.paths,
                domain,
                self.dependence,
                bases,
                thorough,
                self._loops,
                threads,
                self._effort,
            )
            try:
                return lister, lister.table(nodes, condition)
            except NotListedError as error:
                node = error.node
                if node is None:
                    raise
                if node.kind in ("header", "join") and node.id not in failed:
                    failed.add(node.id)
                elif refined:
                    raise
                else:
                    refined = self._refined.bounds(nodes, condition, domain)
                    if not refined:
                        raise
            domain = Domain(self._shape, self._parameters, failed, refined, self._takes_part)
        raise NotListedError("too many of its values change in loops without an end")


def _each(numbers: Lanes) -> Iterator[tuple[int, Lanes]]:
    """Each distinct number of an array, with the indices of its rows; mostly there is only one."""
    first = int(numbers[0])
    if (numbers == first).all():
        yield first, np.arange(len(numbers))
        return
    for number in np.unique(numbers):
        yield int(number), np.flatnonzero(numbers == number)
