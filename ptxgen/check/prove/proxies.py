"""Ordinary stores to shared memory that an asynchronous operation reads without a proxy fence.

Copies in bulk and of tensors, `wgmma`, and products and copies of `tcgen05` belong to the asynchronous proxy:
they see an ordinary store only after a `fence.proxy.async` of the thread that stored (PTX ISA, "Async
proxy"). Reported are reads where

* a way through the text leads from a store of the same bytes to the read, passes no fence, and not more
  than one barrier nor any other wait, so that no copy can have written the bytes since; or
* no copy writes the bytes anywhere, and a way leads from a store to the read and passes no fence; or
* no copy writes the bytes anywhere, and no fence follows any store that may have written them, nor
  before the read, as where one role stores and another one reads.

Other fences may be missing, so nothing here shows that a kernel is right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from ptxgen.check.problems import Problem
from ptxgen.check.prove.barriers.shared_flags import Touched
from ptxgen.check.prove.listing.search import InstrSite, Search
from ptxgen.check.prove.program.graph import Graph
from ptxgen.check.prove.program.inlining import Source
from ptxgen.check.prove.program.operands import pairs
from ptxgen.check.prove.subject import verdict_of
from ptxgen.check.prove.verdicts import PROVED, UNKNOWN
from ptxgen.check.verify.shapes import shape_of
from ptxgen.ir import Instr, IntImm
from ptxgen.text import render_instr

_FENCE: Final = "fence"
_BARRIER: Final = "barrier"
_WAIT: Final = "wait"
_FENCES: Final = "fence.proxy.async"
_OTHER_FENCES: Final = f"{_FENCES}.global"  # fences that do not order shared memory
_STORES: Final = ("st.", "stmatrix.", "atom.", "red.", "wmma.store.", "cp.async.ca.", "cp.async.cg.")
_FROM_REGISTERS: Final = ("st.async.", "red.async.")
_BULK: Final = ("cp.async.bulk.", "cp.reduce.async.bulk.")
_MATRICES: Final = ("wgmma.mma_async.", "tcgen05.mma.", "tcgen05.cp.")  # read them through descriptors
_BARRIERS: Final = ("bar.", "barrier.")
# With these a thread may learn that others have written memory.
_WAITS: Final = (
    "mbarrier.test_wait",
    "mbarrier.try_wait",
    "ld.acquire",
    "ld.relaxed",
    "ld.volatile",
    "atom.",
)
_WIDEST_ROW: Final = 128  # bytes of a row of a matrix with the widest swizzle

_Site = tuple[int, int]  # the block of an instruction, and its position there


class _Span(NamedTuple):
    """The bytes from `low` up to `high` of a variable."""

    variable: str
    low: int
    high: int

    def meets(self, other: _Span) -> bool:
        return self.variable == other.variable and self.low < other.high and other.low < self.high

    def may_meet(self, other: _Span, static: frozenset[str]) -> bool:
        """Whether two spans of shared memory may overlap. Variables that are not in `static` may begin at one
        address.
        """
        if self.variable == other.variable:
            return self.meets(other)
        return self.variable not in static and other.variable not in static


class _Access(NamedTuple):
    """An access; the span is None if it is not known. `is_certain` says that all of the span is accessed at
    once, or that it is a region, which a kernel has for one purpose.
    """

    site: InstrSite
    span: _Span | None
    is_certain: bool = False


class _Sorted(NamedTuple):
    """The accesses to shared memory by proxy: ordinary stores, and asynchronous reads and writes."""

    stores: list[_Access]
    reads: list[_Access]
    fills: list[_Access]


def unfenced_reads(
    search: Search,
    graph: Graph,
    sources: Sequence[Source],
    touched: Iterable[Touched],
    static: frozenset[str],
) -> tuple[Problem, ...]:
    """A problem for each store that an asynchronous read does not see. `touched` has all accesses to shared
    memory, `static` the variables there that begin at an address of their own.
    """
    accesses = _sorted(search, touched)
    if not accesses.reads or any(_is_call(instr) for b in graph.order for instr in graph.blocks[b].instrs):
        return ()
    return tuple(_unfenced(_Ways(graph), sources, accesses, static))


def _is_call(instr: Instr) -> bool:
    return instr.opcode.startswith("call")  # the function may have a fence


def _unfenced(
    ways: _Ways, sources: Sequence[Source], accesses: _Sorted, static: frozenset[str]
) -> Iterator[Problem]:
    reported: set[_Site] = set()  # each store is reported once
    for read in accesses.reads:
        span = read.span
        if span is None or not read.is_certain:
            continue
        meeting = [store for store in accesses.stores if store.span is not None and store.span.meets(span)]
        is_filled = any(fill.span is None or fill.span.may_meet(span, static) for fill in accesses.fills)
        most = 1 if is_filled else None
        unseen = next((s for s in meeting if ways.of(s.site, most).leads_to(read.site)), None)
        if unseen is None and meeting and not is_filled and not ways.is_after_fence(read.site):
            may_be = [s for s in accesses.stores if s.span is None or s.span.may_meet(span, static)]
            unseen = None if any(ways.of(s.site, None).is_fenced for s in may_be) else meeting[0]
        if unseen is not None and unseen.site[:2] not in reported:
            reported.add(unseen.site[:2])
            yield _problem(ways.graph, sources, unseen.site, read.site)


def _problem(graph: Graph, sources: Sequence[Source], store: InstrSite, read: InstrSite) -> Problem:
    source, other = (sources[graph.blocks[s.block].start + s.position] for s in (read, store))
    of = verdict_of(source, UNKNOWN, "")
    where = f" ({other.instr.origin})" if other.instr.origin is not None else ""
    message = (
        f"no fence.proxy.async is between {render_instr(other.instr)}{where} and this asynchronous read of "
        "what it stores; each thread that stores needs one, before the barrier"
    )
    return Problem("proxy", message, of.kernel, of.instr, of.where, line=of.line, source=of.source)


# ------------------------------------------------------------------------------ accesses


def _sorted(search: Search, touched: Iterable[Touched]) -> _Sorted:
    accesses = _Sorted([], [], [])
    for one in touched:
        opcode, which = one.site.instr.opcode, _operand(one)
        if opcode.startswith(_MATRICES) or (opcode.startswith(_BULK) and which == "src"):
            accesses.reads.append(_read(search, one))
        elif opcode.startswith((*_BULK, *_FROM_REGISTERS)):
            if which == "dst":
                accesses.fills.append(_Access(one.site, _fill(search, one)))
        elif opcode.startswith(_STORES):
            accesses.stores.append(
                _Access(one.site, _span(search, one) if one.finding.verdict == PROVED else None)
            )
    return accesses


def _operand(one: Touched) -> str:
    """The name of the operand with the address of an access; empty for that of a matrix."""
    op = shape_of(one.site.instr).op
    if op is None:
        return ""
    return next((want.name for want, got in pairs(op, one.site.instr) if got is one.touch.address), "")


def _read(search: Search, one: Touched) -> _Access:
    span = _span(search, one)
    if span is None:
        return _Access(one.site, None)
    number, matrix = one.touch.number, one.touch.matrix
    if matrix is not None:
        most = matrix.rows * _WIDEST_ROW
    else:
        most = one.touch.fixed + one.touch.scale * (number.value if isinstance(number, IntImm) else 0)
    is_region = one.finding.allocation in search.regions
    return _Access(one.site, span, is_region or span.high - span.low <= most)


def _fill(search: Search, one: Touched) -> _Span | None:
    """What an asynchronous write may write: if the size is not known, all up to the end of the allocation."""
    return _span(search, one, whole=one.finding.verdict != PROVED)


def _span(search: Search, one: Touched, *, whole: bool = False) -> _Span | None:
    """The bytes of an access; with `whole`, all up to the end of its allocation, and from the allocation's
    beginning if the bytes are not known. None if neither is known.
    """
    name, first, last = one.finding.allocation, one.finding.first, one.finding.last
    home = search.regions.get(name) or search.homes.get(name)
    if home is None or (whole and not home.known):
        return None
    if whole:
        first, last = first if first <= last else 0, home.nbytes - 1
    if last < first:
        return None
    variable = search.dynamic if home.name in search.regions else home.name
    return _Span(variable, home.start + first, home.start + last + 1)


# ------------------------------------------------------------------------------ ways


class _Ways:
    """The ways through a kernel. In each block, the fences, barriers and waits are marked."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.marks = {
            b: [(n, mark) for n, instr in enumerate(graph.blocks[b].instrs) if (mark := _mark(instr))]
            for b in graph.order
        }
        self._known: dict[tuple[_Site, int | None], _Way] = {}

    def of(self, start: InstrSite, most: int | None) -> _Way:
        """The `_Way` from an instruction that passes at most `most` barriers."""
        key = start[:2], most
        if key not in self._known:
            self._known[key] = _Way(self, start, most)
        return self._known[key]

    def is_after_fence(self, site: InstrSite) -> bool:
        """Whether a path of control leads from a proxy fence to an instruction."""
        if any(n < site.position for n, mark in self.marks[site.block] if mark == _FENCE):
            return True
        seen: set[int] = set()
        todo = list(self.graph.before[site.block])
        while todo:
            block = todo.pop()
            if any(mark == _FENCE for _, mark in self.marks[block]):
                return True
            todo += (b for b in self.graph.before[block] if b not in seen)
            seen.add(block)
        return False


class _Way:
    """Where a thread may get from an instruction without a proxy fence, and with no waits but at most `most`
    barriers (None: any number of waits and barriers). `is_fenced` says whether it may come to a fence.
    """

    def __init__(self, ways: _Ways, start: InstrSite, most: int | None) -> None:
        self._marks, self._start, self._most = ways.marks, start, most
        self.is_fenced = False
        self._barriers: dict[int, int] = {}  # the fewest barriers before each reached block
        todo = [(start.block, start.position + 1, 0)]
        while todo:
            block, first, barriers = todo.pop()
            passed = self._passed(block, first, None, barriers)
            if passed is None:
                continue
            for after in ways.graph.blocks[block].successors:
                if passed < self._barriers.get(after, passed + 1):
                    self._barriers[after] = passed
                    todo.append((after, 0, passed))

    def leads_to(self, site: InstrSite) -> bool:
        """Whether the path of control leads to an instruction."""
        first = self._start.position + 1
        ahead = site.block == self._start.block and site.position >= first
        if ahead and self._passed(site.block, first, site.position, 0) is not None:
            return True
        barriers = self._barriers.get(site.block)
        return barriers is not None and self._passed(site.block, 0, site.position, barriers) is not None

    def _passed(self, block: int, first: int, last: int | None, barriers: int) -> int | None:
        """The number of barriers passed after the instructions of a block from `first` to before `last`,
        `barriers` of them before the block; None if the way ends there.
        """
        for n, mark in self._marks[block]:
            if n < first or (last is not None and n >= last):
                continue
            if mark == _FENCE:
                self.is_fenced = True
                return None
            barriers += mark == _BARRIER
            if self._most is not None and (mark == _WAIT or barriers > self._most):
                return None
        return 0 if self._most is None else barriers


def _mark(instr: Instr) -> str:
    """The kind of an instruction: a fence, a barrier or a wait; empty for any other."""
    if instr.opcode.startswith(_FENCES):
        return "" if instr.opcode.startswith(_OTHER_FENCES) else _FENCE
    if instr.opcode.startswith(_BARRIERS):
        return _BARRIER
    return _WAIT if instr.opcode.startswith(_WAITS) else ""
