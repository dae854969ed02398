"""The verdicts on the instructions that lanes execute together.

PTX ISA, "shfl.sync", "vote.sync", "match.sync", "redux.sync": the instruction waits until all non-exited
threads of the membermask have executed it with the same qualifiers and the same membermask, and is undefined
if the executing thread is not in the membermask; so CUDA C++ says of `__syncwarp`. A shuffle from a thread
that is inactive or not in the membermask gives an undefined value. An `.aligned` instruction is undefined
in conditional code unless all threads of the warp evaluate the condition identically, and `mma` also if one
of them has exited.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from ptxgen.check.prove.barriers.sites import WARP
from ptxgen.check.prove.convergence.arrivals import Arrivals, arrivals
from ptxgen.check.prove.convergence.sites import WARPGROUP, Site, sites_of
from ptxgen.check.prove.listing.search import Finding
from ptxgen.check.prove.program.agreement import Agreement
from ptxgen.check.prove.program.domain import Shape
from ptxgen.check.prove.program.graph import Graph
from ptxgen.check.prove.program.inlining import Source
from ptxgen.check.prove.program.values import Node, Values
from ptxgen.check.prove.subject import Judged, judged
from ptxgen.check.prove.verdicts import PROVED, UNKNOWN, VIOLATION
from ptxgen.isa.warp import source_lanes

Lanes = np.ndarray[Any, np.dtype[Any]]

_NO_SHAPE: Final = "the instruction is not in the table"
_NAMES: Final = {WARP: "warp", WARPGROUP: "warpgroup"}
_MATRICES: Final = ("mma.", "wmma.")  # instructions that are undefined if a thread of the warp has exited
_MEMBERS: Final = "the lanes that its membermask names are not known"
_READ: Final = "which lanes it reads is not known, and perhaps not all lanes of the warp come to it"


_PROVED: Final = Finding(PROVED)


class Group(NamedTuple):
    """The lanes of warp or warpgroup `number` that come to an instruction, those that have ended or are not
    in the block, and those that go on elsewhere; bool, one for each lane.
    """

    number: int
    come: Lanes
    ended: Lanes
    elsewhere: Lanes


class ConvergenceProver:
    """The proof of one kernel's instructions that lanes execute together. `agreements` has what is known of
    the values of its warps and of its warpgroups, by the number of threads.
    """

    def __init__(
        self,
        graph: Graph,
        values: Values,
        shape: Shape,
        sources: Sequence[Source],
        agreements: dict[int, Agreement],
    ) -> None:
        self._graph = graph
        self._values = values
        self._shape = shape
        self._sources = sources
        self._agreements = agreements
        self._arrivals: dict[tuple[Any, ...], Arrivals] = {}
        self._sites = list(sites_of(graph, values))
        self._lists: dict[tuple[Any, ...], list[Group]] = {}
        self._shown: set[tuple[Any, ...]] = set()  # what is proved of all sites that are alike

    def run(self) -> Iterator[Judged]:
        """Judge each instruction that lanes execute together: the verdicts in the order of the PTX text."""
        for site in self._sites:
            source = self._sources[self._graph.blocks[site.block].start + site.position]
            yield judged(source, 0, self._judged(site))

    def _judged(self, site: Site) -> Finding:
        if not site.is_known:
            return Finding(UNKNOWN, _NO_SHAPE)
        key, came = self._come(site)
        operands = tuple(node and node.id for node in (site.members, site.lane, site.clamp))
        alike = *key, *operands, site.instr.opcode
        if alike in self._shown:
            return _PROVED
        may_lack = came.reason.format(group=_NAMES[site.width])
        if came.reason and not (came.may_end and self._goes_without_ended(site)):
            return Finding(UNKNOWN, may_lack)
        judge = self._aligned if site.is_aligned else self._masked
        worst = _PROVED
        if key not in self._lists:
            self._lists[key] = list(self._groups(site, came))
        for group in self._lists[key]:
            finding = judge(site, group)
            if finding.verdict == VIOLATION:
                return finding if not self._may_meet(site, came) else finding._replace(verdict=UNKNOWN)
            worst = finding if worst == _PROVED else worst
        if worst == _PROVED:
            self._shown.add(alike)
        return worst

    def _come(self, site: Site) -> tuple[tuple[Any, ...], Arrivals]:
        """The threads that come to an instruction, and the key of all to which the same come."""
        guard: tuple[Node, bool] | None = None
        key: tuple[Any, ...] = (site.block, site.width)
        if site.instr.guard is not None:
            register, negated = site.instr.guard
            guard = self._values.at(register, site.block, site.position), negated
            key = *key, guard[0].id, negated
        if key not in self._arrivals:
            agreement = self._agreements[site.width]
            self._arrivals[key] = arrivals(
                self._graph, self._values, agreement, self._shape.threads, site.block, guard
            )
        return key, self._arrivals[key]

    def _goes_without_ended(self, site: Site) -> bool:
        """Whether an instruction is defined whichever threads of its group have ended before it."""
        if site.members is None or site.is_shuffle:
            return False
        members = self._lanes(site, site.members)
        return members is not None and bool((members == _WHOLE).all())

    def _lanes(self, site: Site, node: Any) -> Lanes | None:
        return self._agreements[site.width].lanes(node)

    def _groups(self, site: Site, came: Arrivals) -> Iterator[Group]:
        """The warps or warpgroups of which at least one thread comes to an instruction."""
        width, threads = site.width, self._shape.threads
        for number in range(-(-threads // width)):
            here = slice(number * width, (number + 1) * width)
            lacking = width - len(came.come[here])
            come, ended, elsewhere = (
                np.append(lanes[here], np.full(lacking, never))
                for lanes, never in ((came.come, False), (came.ended, True), (came.elsewhere, False))
            )
            if come.any():
                yield Group(number, come, ended, elsewhere)

    def _may_meet(self, site: Site, came: Arrivals) -> bool:
        """Whether threads that go on elsewhere may come to another instruction of the same kind, which
        those that come to this one wait for, too.
        """
        return any(
            other is not site
            and other.instr.opcode == site.instr.opcode
            and any(way in self._graph.leading(other.block) for way in came.ways)
            for other in self._sites
        )

    # ------------------------------------------------------------------------------ one group

    def _aligned(self, site: Site, group: Group) -> Finding:
        name = _NAMES[site.width]
        rule = f"and all threads of a {name} must execute it together"
        if group.elsewhere.any():
            message = _phrase(group, group.elsewhere, "does not come to it", "do not come to it", name)
            return Finding(VIOLATION, f"{message}, {rule}")
        if group.ended.any():
            verdict = VIOLATION if site.instr.opcode.startswith(_MATRICES) else UNKNOWN
            message = _phrase(group, group.ended, "has ended or is", "have ended or are", name)
            return Finding(verdict, f"{message} not in the block, {rule}")
        return _PROVED

    def _masked(self, site: Site, group: Group) -> Finding:
        all_members = self._lanes(site, site.members)
        if all_members is None:
            return Finding(UNKNOWN, _MEMBERS)
        members = _of_group(all_members, group)
        named = (members[:, None] >> _BITS & 1).astype(np.bool_)  # [lane, lane that it names]
        unnamed: Lanes = group.come & ~named.diagonal()
        if unnamed.any():
            message = _phrase(group, unnamed, "executes it, but is", "execute it, but are")
            return Finding(VIOLATION, f"{message} not in its membermask {members[unnamed.argmax()]:#010x}")
        lacking: Lanes = named[group.come] & group.elsewhere
        if lacking.any():
            mask = members[group.come][lacking.any(axis=1).argmax()]
            absent = np.any(lacking, axis=0)
            message = _phrase(group, absent, "does not come to it, but is", "do not come to it, but are")
            return Finding(VIOLATION, f"{message} in its membermask {mask:#010x}")
        both = named & group.come & group.come[:, None]
        if (both & (members[:, None] != members)).any():
            message = f"lanes of warp {group.number} that name each other have different membermasks"
            return Finding(UNKNOWN, message)
        return self._shuffled(site, group, named) if site.is_shuffle else _PROVED

    def _shuffled(self, site: Site, group: Group, named: Lanes) -> Finding:
        """The verdict on the lanes that a shuffle reads."""
        if group.come.all() and named.all():
            return _PROVED
        lane, clamp = (self._lanes(site, node) for node in (site.lane, site.clamp))
        if lane is None or clamp is None:
            return Finding(UNKNOWN, _READ)
        lanes, mode = np.arange(WARP), site.instr.opcode.split(".")[2]
        source, inside = source_lanes(lanes, _of_group(lane, group), _of_group(clamp, group), mode)
        read = np.where(inside, source, lanes) & (WARP - 1)
        outside = group.come & ~named[lanes, read]
        absent = group.come & ~group.come[read]
        for wrong, which in ((outside, "outside of the membermask"), (absent, _ABSENT)):
            if wrong.any():
                is_certain = wrong is outside and (outside == group.come).all()
                message = _phrase(group, wrong, "reads a lane", "read lanes")
                such = f"{which}, such as lane {read[wrong.argmax()]}, and the result is undefined"
                return Finding(VIOLATION if is_certain else UNKNOWN, f"{message} {such}")
        return _PROVED


_ABSENT: Final = "that has ended or is not in the block"
_WHOLE: Final = 0xFFFFFFFF
_BITS: Final = np.arange(WARP, dtype=np.int64)


def _of_group(lanes: Lanes, group: Group) -> Lanes:
    """The elements of an array over a block's threads for the lanes of one warp; zero outside the block."""
    values = np.zeros(WARP, np.int64)
    here = lanes[group.number * WARP : (group.number + 1) * WARP]
    values[: len(here)] = here.astype(np.int64) & _WHOLE
    return values


def _phrase(group: Group, which: Lanes, one: str, more: str, name: str = "warp") -> str:
    """The lanes of a group in words, and what they do: `one` for a single lane, `more` for several."""
    verb = one if np.count_nonzero(which) == 1 else more
    return f"{_in_words(which)} of {name} {group.number} {verb}"


def _in_words(which: Lanes) -> str:
    """The lanes of a mask in words, such as `lanes 0 to 3`."""
    lanes = np.flatnonzero(which).tolist()
    if len(lanes) == 1:
        return f"lane {lanes[0]}"
    if lanes == list(range(lanes[0], lanes[-1] + 1)):
        return f"lanes {lanes[0]} to {lanes[-1]}"
    shown = lanes[:_SHOWN]
    more = f" and {len(lanes) - len(shown)} more" if len(lanes) > len(shown) else ""
    return f"lanes {', '.join(map(str, shown))}{more}"


_SHOWN: Final = 4
