"""The order of instructions among the threads of a CTA that barriers of all threads prove.

Where the launch alone decides which barriers of all threads come, in loops and under conditions, all threads
come to the same ones in the same order. So an instruction to which no path leads from such a barrier has been
executed by all of its threads before any thread passes the barrier.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from ptxgen.check.prove.barriers.sites import WARP, waits_for_all
from ptxgen.check.prove.barriers.sites import sites_of as barriers_of
from ptxgen.check.prove.listing.rows import THREAD, NotListedError
from ptxgen.check.prove.listing.search import InstrSite, Search
from ptxgen.check.prove.program.domain import Shape
from ptxgen.check.prove.program.graph import Graph
from ptxgen.ir import Special
from ptxgen.types import u32

_ARRIVE: Final = "barrier.cluster.arrive"
_WAIT: Final = "barrier.cluster.wait"


class _Barrier(NamedTuple):
    """A barrier of all threads: where each of them arrives, and where it waits."""

    arrival: InstrSite
    wait: InstrSite


class Order:
    """The order of a kernel's instructions among the threads of a CTA."""

    def __init__(self, search: Search, graph: Graph, shape: Shape) -> None:
        self._search = search
        self._graph = graph
        self._shape = shape
        self._barriers = [*self._of_cta(), *self._of_cluster()]
        self._masks: dict[tuple[int, int], tuple[int, ...] | None] = {}

    def is_before(self, one: InstrSite, other: InstrSite) -> bool:
        """Whether all threads that ever come to `one` have executed it before any executes `other`."""
        if any(self._dominates(b.wait, other) and not self.leads_to(b.arrival, one) for b in self._barriers):
            return True
        warps = self.warps(one)
        return (
            warps is not None
            and len(warps) == 1
            and self.warps(other) == warps
            and not self.leads_to(other, one)
        )

    def leads_to(self, one: InstrSite, other: InstrSite) -> bool:
        """Whether a path leads from the end of an instruction to another one."""
        if one.block == other.block and one.position < other.position:
            return True
        leading = self._graph.leading(other.block)
        return any(after in leading for after in self._graph.blocks[one.block].successors)

    def warps(self, site: InstrSite) -> tuple[int, ...] | None:
        """The warps that execute an instruction once in every launch; None if they are not known, because
        more than the numbers of threads decides it.
        """
        key = site.block, site.position
        if key not in self._masks:
            self._masks[key] = self._executing(site)
        return self._masks[key]

    # ------------------------------------------------------------------------------ helpers

    def _executing(self, site: InstrSite) -> tuple[int, ...] | None:
        search = self._search
        guards = search.paths.guards_around(site.block)
        if site.instr.guard is not None:
            guards.append(search.values.at(site.instr.guard.register, site.block, site.position))
        known = all(guard is not None and search.agreement.lanes(guard) is not None for guard in guards)
        if not known or self.leads_to(site, site):
            return None
        thread = search.values.operand(Special("%tid.x"), u32, site.block, site.position)
        try:
            _, table = search.table([thread], search.condition(site), True, search.bases(0))
        except NotListedError:
            return None
        if not table.sure.all():
            return None
        return tuple(np.unique(table.columns[THREAD] // WARP).tolist())

    def _dominates(self, one: InstrSite, other: InstrSite) -> bool:
        if one.block == other.block:
            return one.position < other.position
        return self._graph.dominates(one.block, other.block)

    def _is_unconditional(self, site: InstrSite) -> bool:
        return site.instr.guard is None and not self._graph.controlling(site.block)

    def _is_for_all(self, site: InstrSite) -> bool:
        """Whether the launch decides for all threads alike whether they come to an instruction."""
        paths = self._search.paths
        guards = paths.guards_around(site.block)
        return site.instr.guard is None and all(g is not None and paths.uniform(g) for g in guards)

    def _sites(self, *prefixes: str) -> list[InstrSite]:
        return [
            InstrSite(block, position, instr)
            for block in self._graph.order
            for position, instr in enumerate(self._graph.blocks[block].instrs)
            if instr.opcode.startswith(prefixes)
        ]

    def _of_cta(self) -> list[_Barrier]:
        """The barriers of all threads whose number no other barrier has."""
        others: set[int] = set()
        of_all: list[tuple[int, InstrSite]] = []
        for barrier in barriers_of(self._graph, self._search.values):
            numbers = None if barrier is None else self._search.listed(barrier.number)
            if barrier is None or numbers is None:
                return []
            instr = self._graph.blocks[barrier.block].instrs[barrier.position]
            site = InstrSite(barrier.block, barrier.position, instr)
            known = barrier.number.kind == "const"
            if known and waits_for_all(instr, self._shape.threads) and self._is_for_all(site):
                of_all.append((barrier.number.data, site))
            else:
                others.update(numbers.tolist())
        return [_Barrier(site, site) for number, site in of_all if number not in others]

    def _of_cluster(self) -> list[_Barrier]:
        """The barriers of clusters, each arrival with its wait."""
        sites = self._sites(_ARRIVE, _WAIT)
        if not all(map(self._is_unconditional, sites)):
            return []
        pairs = zip(sites[::2], sites[1::2], strict=False)
        barriers = [_Barrier(arrival, wait) for arrival, wait in pairs]
        right = all(
            b.arrival.instr.opcode.startswith(_ARRIVE) and b.wait.instr.opcode.startswith(_WAIT)
            for b in barriers
        )
        return barriers if right else []
