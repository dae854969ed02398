"""The verdicts on the barriers of a kernel.

A barrier for all threads of the block is proved if no condition on the way to it differs between
threads. A barrier without a number of threads waits for those that have not ended, so threads may also
end at once instead of coming to it. For what this does not prove, all warps are followed from barrier to
barrier.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from ptxgen.check.prove.barriers.barrier_simulation import UnprovedError, follow
from ptxgen.check.prove.barriers.control import Control
from ptxgen.check.prove.barriers.shared_flags import Touched, accesses_of_words
from ptxgen.check.prove.barriers.sites import WARP, kind_of, sites_of, waits_for_all, waits_for_living
from ptxgen.check.prove.listing.rows import Effort, NotListedError, SpentError
from ptxgen.check.prove.listing.search import SPACING, Search
from ptxgen.check.prove.program.domain import Shape
from ptxgen.check.prove.program.graph import EXIT
from ptxgen.check.prove.program.inlining import Source
from ptxgen.check.prove.program.paths import ALWAYS
from ptxgen.check.prove.program.values import Node
from ptxgen.check.prove.subject import Judged, verdict_of
from ptxgen.check.prove.verdicts import PROVED, UNKNOWN, VIOLATION
from ptxgen.ir import Instr, IntImm

_UNSURE: Final = "a condition on the way to it may differ between threads"
_GO_ON: Final = ", and those that do not come to it go on without it"
_TABLE: Final = "a jump through a table decides whether it is reached"
_CALL: Final = "a function that is called is not followed, and may come to barriers"
_NO_SHAPE: Final = "the instruction is not in the table"
_PARTIAL: Final = f"warps are followed in blocks of whole warps of {WARP} threads only"


class _BarrierSite(NamedTuple):
    """The position of a barrier instruction in the kernel's text, and its operands."""

    block: int
    position: int
    instr: Instr


class BarrierProver:
    """The proof of one kernel's barriers. Each condition may take `steps` steps of `effort`. `touched` has
    all accesses to shared memory, `static` the variables there that begin at an address of their own.
    """

    def __init__(
        self,
        search: Search,
        effort: Effort,
        shape: Shape,
        sources: Sequence[Source],
        steps: int,
        touched: Sequence[Touched] = (),
        static: frozenset[str] = frozenset(),
    ) -> None:
        self._search = search
        self._values = search.values
        self._paths = search.paths
        self._graph = search.paths.graph
        self._effort = effort
        self._shape = shape
        self._sources = sources
        self._steps = steps
        self._touched = touched
        self._static = static
        self._barriers = [
            _BarrierSite(b, n, instr)
            for b in sorted(self._graph.order)
            for n, instr in enumerate(self._graph.blocks[b].instrs)
            if kind_of(instr)
        ]

    def run(self) -> list[Judged]:
        """Judge each barrier of the kernel: the verdicts in the order of the PTX text."""
        judged = {site: self._alone(site) for site in self._barriers if self._is_apart(site)}
        verdicts = [verdict for verdict, _ in judged.values()]
        if VIOLATION not in verdicts and (UNKNOWN in verdicts or len(judged) < len(self._barriers)):
            wrong = self._unproved()
            judged = {site: self._together(site, wrong, judged.get(site)) for site in self._barriers}
        return [(source, 0, verdict_of(source, *judged[site])) for source, site in self._numbered()]

    def _numbered(self) -> Iterator[tuple[Source, _BarrierSite]]:
        for site in self._barriers:
            yield self._sources[self._graph.blocks[site.block].start + site.position], site

    # ------------------------------------------------------------------------------ all warps together

    def _unproved(self) -> UnprovedError | None:
        """The reason why the warps are not shown to come together at all barriers; None if they are."""
        if any(i.opcode.startswith("call") for b in self._graph.order for i in self._graph.blocks[b].instrs):
            return UnprovedError(_CALL)
        if self._shape.threads % WARP:
            return UnprovedError(_PARTIAL)
        sites = list(sites_of(self._graph, self._values))
        known = [site for site in sites if site is not None]
        if len(known) < len(sites):
            return UnprovedError(_NO_SHAPE)
        control = Control(self._graph, self._values, known)
        wrong = []
        for counting in (True, False):
            try:
                follow(control, self._shape, counting=counting)
                return None
            except UnprovedError as error:
                wrong.append(error)
        words = accesses_of_words(self._search, control, self._touched, self._static)
        if words:
            try:
                follow(Control(self._graph, self._values, [*known, *words]), self._shape, counting=True)
                return None
            except UnprovedError as error:
                wrong.insert(0, error)
        return next((error for error in wrong if error.certain), wrong[0])

    def _together(
        self, site: _BarrierSite, wrong: UnprovedError | None, alone: tuple[str, str] | None
    ) -> tuple[str, str]:
        """The verdict on a barrier and its reason. `wrong` is why the warps may not come together at all
        barriers (None: they do), `alone` the verdict on this barrier by itself.
        """
        if wrong is None or alone == (PROVED, ""):
            return PROVED, ""
        here = wrong.site is None or wrong.site[:2] == site[:2]
        reason = str(wrong) if here else f"at another barrier, {wrong}"
        if alone is not None and (alone[1] in (_UNSURE, _TABLE) or alone[1].endswith(_GO_ON)):
            reason = alone[1]
        return (VIOLATION if wrong.certain and here else UNKNOWN), reason

    # ------------------------------------------------------------------------------ one barrier alone

    def _is_apart(self, site: _BarrierSite) -> bool:
        """Whether a barrier, and all barriers that may have its number, wait for all threads of the block."""
        number = _number(site.instr)
        others = [other.instr for other in self._barriers if _number(other.instr) in (number, None)]
        return number is not None and all(waits_for_all(instr, self._shape.threads) for instr in others)

    def _alone(self, site: _BarrierSite) -> tuple[str, str]:
        """The verdict on a barrier for all threads, and the reason: proved if all threads that the barrier
        waits for reach it together.
        """
        ended = {b for b, at_once in self._graph.other_ways(site.block) if at_once}
        guards = self._paths.guards_around(site.block, ended if waits_for_living(site.instr) else ())
        if site.instr.guard is not None:
            guards.append(self._values.at(site.instr.guard.register, site.block, site.position))
        verdict, reason = PROVED, ""
        for guard in guards:
            verdict, reason = self._agreed(guard, site)
            if verdict != PROVED:
                break
        return verdict, reason

    def _agreed(self, guard: Node | None, site: _BarrierSite) -> tuple[str, str]:
        """The verdict on a predicate that decides whether a barrier is reached: proved if all
        threads agree on it.
        """
        if guard is None:
            return UNKNOWN, _TABLE
        if self._paths.uniform(guard):
            return PROVED, ""
        simple = all(
            n.kind not in ("join", "header", "opaque", "param", "function")
            for n in self._paths.sources(guard)
        )
        if not simple:
            return UNKNOWN, _UNSURE
        try:
            if not self._search.dependence.of(guard).is_fixed:
                return UNKNOWN, _UNSURE
            bases = dict.fromkeys(self._search.homes, SPACING)
            self._effort.allow(self._steps)
            lister, table = self._search.table([guard], ALWAYS, True, bases)
            holds = lister.evaluate(table, guard)
        except (NotListedError, SpentError):
            return UNKNOWN, _UNSURE
        if holds.all() or not holds.any():
            return PROVED, ""
        other = int(np.argmax(holds != holds[0]))
        first, second = (_thread(n, self._shape) for n in (0, other))
        differ = f"threads {first} and {second} differ in a condition on the way to it"
        if not self._skipped(site):
            return UNKNOWN, differ
        if waits_for_living(site.instr):
            return UNKNOWN, f"{differ}{_GO_ON}"
        return VIOLATION, f"{differ}, so not all threads come to it"

    def _skipped(self, site: _BarrierSite) -> bool:
        """Whether this is the kernel's only barrier, and threads that do not reach it go on running."""
        deciding = self._graph.controlling(site.block)
        return len(self._barriers) == 1 and all(self._graph.post.get(b, EXIT) != EXIT for b in deciding)


def _number(instr: Instr) -> int | None:
    """The number of the barrier that an instruction is at; None if it is not a literal."""
    at = len(("result",)) if ".red." in instr.opcode else 0
    operand = instr.operands[at] if at < len(instr.operands) else None
    return operand.value if isinstance(operand, IntImm) else None


def _thread(number: int, shape: Shape) -> tuple[int, int, int]:
    x, y, _ = shape
    return number % x, number // x % y, number // (x * y)
