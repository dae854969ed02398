"""Words of shared memory through which one thread passes others a number, on which it depends which
barriers they come to: the next part of the work, for example.

What warps read from such a word is one number for all of them if a single thread wrote it before each
read, and the next write comes after all of these. Barriers say what comes before what, and
`barrier_simulation.py` follows them; here are the accesses that it needs to know. They are all that there
are: no other access of the kernel, of any thread or of a copy, may be to the variable or the region of the
word, as the proof of accesses shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from ptxgen.check.prove.barriers.control import Control
from ptxgen.check.prove.barriers.sites import READ, WRITE, Site
from ptxgen.check.prove.listing.search import Finding, InstrSite, Search
from ptxgen.check.prove.program.operands import WORD
from ptxgen.check.prove.program.shared_accesses import Touch
from ptxgen.check.prove.program.values import Node
from ptxgen.check.prove.verdicts import PROVED
from ptxgen.ir import Address, Instr, Reg
from ptxgen.types import TYPES

_TYPES: Final = ("b32", "u32", "s32")
_FORMS: Final = tuple(f"{space}.{type}" for space in ("shared", "shared::cta") for type in _TYPES)
_LOADS: Final = frozenset(f"ld.{form}" for form in _FORMS)
_STORES: Final = frozenset(f"st.{form}" for form in _FORMS)


class Touched(NamedTuple):
    """An access to shared memory, and the verdict on it."""

    site: InstrSite
    touch: Touch
    finding: Finding


def accesses_of_words(
    search: Search, control: Control, touched: Iterable[Touched], static: frozenset[str]
) -> list[Site]:
    """The accesses to words whose values decide which barriers warps come to, in the order of the text;
    empty if there are none, or if other accesses may be to the same memory. `static` has the variables
    that begin at an address of their own.
    """
    touched = [t for t in touched if t.touch.matrix is None]  # a product reads its matrices only
    wanted = frozenset(node.id for node in _deciding(search, control))
    reads = [t for t in touched if _is_plain(t.site.instr, _LOADS) and _read(search, t.site).id in wanted]
    homes = frozenset(t.finding.allocation for t in reads)
    if not homes or not all(_is_placed(search, t) for t in touched):
        return []
    if any(may_share(search, t.finding.allocation, home, static) for t in touched for home in homes):
        return []
    inside = [t for t in touched if t.finding.allocation in homes]
    writes = [t for t in inside if not t.site.instr.opcode.startswith("ld.")]
    if not all(_is_plain(t.site.instr, _STORES) for t in writes):
        return []
    sites = [*(_site(search, t, READ) for t in reads), *(_site(search, t, WRITE) for t in writes)]
    return sorted(sites, key=lambda site: site[:2])


def _deciding(search: Search, control: Control) -> Iterator[Node]:
    """The values that conditions on the way to barriers are computed from."""
    stack = [b.guard for b in control.branches.values() if b.barriers and b.guard is not None]
    seen = set(stack)
    while stack:
        node = stack.pop()
        yield node
        more = list(node.args)
        if node.kind in ("join", "header"):
            more += [value for _, value in search.values.meeting(node)]
        stack += (other for other in more if other not in seen)
        seen.update(more)


def _is_plain(instr: Instr, opcodes: frozenset[str]) -> bool:
    """Whether an instruction is one of `opcodes`, with one register; a load has one of 32 bits and is not
    predicated.
    """
    if instr.opcode not in opcodes or not all(isinstance(o, Reg | Address) for o in instr.operands):
        return False
    if instr.opcode in _STORES:
        return True
    # A wider register has the sign above the word, or zeros: two loads may give two numbers.
    register = instr.operands[0]
    return instr.guard is None and isinstance(register, Reg) and TYPES[register.declared].bits == WORD


def _read(search: Search, site: InstrSite) -> Node:
    """The value of the register that a load of a shared word writes."""
    register = site.instr.operands[0]
    assert isinstance(register, Reg)  # the load is plain
    return search.values.at(register, site.block, site.position + 1)


def _is_placed(search: Search, t: Touched) -> bool:
    """Whether an access is shown to be inside one variable, or one region of it."""
    base, _ = search.values.address(t.touch.address, t.site.block, t.site.position)
    in_regions = t.finding.allocation == search.dynamic and bool(search.regions)
    return t.finding.verdict == PROVED and len(search.provenance.symbols(base)) == 1 and not in_regions


def may_share(search: Search, one: str, other: str, static: frozenset[str]) -> bool:
    """Whether two allocations of different names may have bytes in common."""
    if one == other:
        return False
    regions = search.regions
    if one in regions and other in regions:
        first, second = sorted((regions[one], regions[other]), key=lambda home: home.start)
        return first.start + first.nbytes > second.start
    return one not in static and other not in static


def _site(search: Search, t: Touched, kind: str) -> Site:
    block, position, instr = t.site
    base, offset = search.values.address(t.touch.address, block, position)
    value = _read(search, t.site) if kind == READ else None
    guard = None if instr.guard is None else search.values.at(instr.guard.register, block, position)
    negated = instr.guard is not None and instr.guard.negated
    return Site(block, position, kind, base, None, guard, negated, offset, value)
