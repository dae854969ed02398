"""Follows all warps of a CTA from barrier to barrier.

The warps of a CTA run in any order, but one order represents all of them if each arrival at a barrier
comes after the barrier's completion before it, by the order of the warp's own instructions and of
completed barriers: then the arrivals of each completion are the same in every order, by induction on
the first that would differ, and a warp that waits in one order waits in all. So one order is
followed, and the condition is checked at each arrival (`knows`).

Conditions that the launch decides are terms; both outcomes are followed, the same for all warps that
meet the same term. In loops whose counters are terms, a state that differs from an earlier one only
in iterations has the same future, because equal terms stay equal if the counters of a run of a loop
are replaced by those of a later iteration. Warps that begin a loop count from its first iteration, so
this holds only of runs that no warp is still to begin, and runs are numbered.

A number that warps read from a word (`words.py`) is a term, too, one for each write. It is the same for
all readers in every order if each read comes after the write, and the next write after each read, by
the order above; `knows` has this as well, by a bit for the last write of each word and one for the last
read of each warp. A warp knows what its own threads did only after a barrier that it waits at, since
nothing else orders them.
"""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Hashable
from typing import Final

import numpy as np

from ptxgen.check.prove.barriers.control import Branch, Control, Step
from ptxgen.check.prove.barriers.sites import WARP, WRITE, Site
from ptxgen.check.prove.barriers.states import Phase, State, Warp, common
from ptxgen.check.prove.barriers.teams import teams
from ptxgen.check.prove.barriers.terms import Counter, Family, Term, Terms
from ptxgen.check.prove.barriers.values import SharedAddress, Value, WarpValues, operand
from ptxgen.check.prove.program.domain import Shape
from ptxgen.check.prove.program.graph import EXIT
from ptxgen.check.prove.program.values import Node

BARRIERS: Final = 16  # PTX ISA, section "bar"
_STEPS: Final = 50_000  # blocks that warps go through, in all runs
_MOST_CHOICES: Final = 128  # outcomes that are chosen one after another
_ALL: Final = -1  # no access to a word has been yet, either

_LANES: Final = "a condition on the way to it may differ between the threads of a warp"
_TABLE: Final = "a jump through a table decides whether it is reached"
_SPENT: Final = f"following the warps from barrier to barrier takes more than {_STEPS} steps"
_WRITERS: Final = "more than one thread may write a word that decides which barriers others come to"
_WHERE: Final = "where a word is written that decides which barriers others come to is not known"
_ENDED: Final = "have ended"
_ELSEWHERE: Final = "wait at other barriers"
_ENDLESS: Final = f"more than {_MOST_CHOICES} conditions in a row decide which barriers the warps come to"


class UnprovedError(Exception):
    """The warps do not come together at a barrier, or it is not shown that they do. `site` is where
    one of them is, if it is at a barrier; `certain` says that it happens in every launch.
    """

    def __init__(self, reason: str, site: Site | None = None, *, certain: bool = False) -> None:
        super().__init__(reason)
        self.site = site
        self.certain = certain


def follow(control: Control, shape: Shape, *, counting: bool) -> None:
    """Follow every run of the warps of a CTA. Raises `UnprovedError` unless all warps come to the end in each
    of them. With `counting`, loop counters are terms; without it, numbers.
    """
    together = Meetings(control, shape, counting=counting, together=True)
    try:
        together.follow()
    except UnprovedError as error:
        if together.is_apart or str(error) == _SPENT:
            raise
        # A reason names warps, not teams.
        Meetings(control, shape, counting=counting, together=False).follow()


class Meetings:
    """The simulation of all warps of a CTA that `follow` makes. With `together`, each team of warps
    (`teams.py`) is followed as one.
    """

    def __init__(self, control: Control, shape: Shape, *, counting: bool, together: bool) -> None:
        self._control = control
        self._shape = shape
        self._counting = counting
        self._terms = Terms()
        values = [WarpValues(shape, n, self._terms, control.leaves) for n in range(shape.threads // WARP)]
        members = teams(control, values) if together else [[n] for n in range(len(values))]
        self._values = [values[first] for first, *_ in members]
        self._threads = [WARP * len(team) for team in members]
        self._warps = len(members)
        self.is_apart = len(members) == len(values)
        self._steps = 0
        self._last: Site | None = None
        self._bits: dict[SharedAddress, int] = {}  # the first bit of each word

    def follow(self) -> None:
        """Follow every run of the CTA's warps. Raises `UnprovedError` unless all warps end in each run."""
        start = self._control.graph.order[0]
        warps = [Warp(start)] * self._warps
        todo = [State(warps, [Phase()] * BARRIERS, [_ALL] * self._warps, [0] * self._warps)]
        seen: set[Hashable] = set()
        while todo:
            state = todo.pop()
            self._run(state)
            wants = Count[Term]()
            for warp, threads in zip(state.warps, self._threads, strict=True):
                if warp.wants is not None:
                    wants[warp.wants] += threads
            if not wants:
                self._check_end(state)
                continue
            # The condition that most threads wait for is decided first: these threads then reach their next
            # barrier before other threads have more conditions to decide.
            wanted = max(wants, key=lambda term: wants[term])
            key = common(state, self._control, self._terms)
            if key in seen:
                continue
            seen.add(key)
            if state.chosen == _MOST_CHOICES:
                raise UnprovedError(_ENDLESS, self._last)
            todo += (state.where(wanted, outcome) for outcome in (False, True))

    def _run(self, state: State) -> None:
        """Let warps run until each has ended, or waits for a barrier or an outcome."""
        running = True
        while running:
            running = False
            for number, warp in enumerate(state.warps):
                decided = warp.wants is None or warp.wants in state.outcomes
                if warp.block != EXIT and warp.waits < 0 and decided:
                    state.warps[number] = warp._replace(wants=None)
                    self._advance(state, number)
                    running = True
                    if state.warps[number].block == EXIT:
                        self._end(state)

    def _end(self, state: State) -> None:
        """Let the barriers complete that wait for no warp any more, since one has ended."""
        for barrier, phase in enumerate(state.phases):
            if phase.came and not phase.wanted and self._come(phase) == self._wanted(state, 0):
                self._complete(state, barrier, self._waits_in(state, phase.waiting[0]))

    def _wanted(self, state: State, count: int) -> int:
        """How many threads a barrier waits for: `count`, or if that is 0 all that have not ended."""
        living = (n for w, n in zip(state.warps, self._threads, strict=True) if w.block != EXIT)
        return count or sum(living)

    def _waits_in(self, state: State, number: int) -> Site:
        """The barrier instruction at which a warp of the simulation waits."""
        warp = state.warps[number]
        return self._control.sites[warp.block][warp.barrier - 1]

    def _check_end(self, state: State) -> None:
        """Raise `UnprovedError` if a warp waits when no other can run."""
        number = next((n for n, warp in enumerate(state.warps) if warp.waits >= 0), None)
        if number is None:
            return
        barrier = state.warps[number].waits
        phase = state.phases[barrier]
        ended = any(w.block == EXIT for w in state.warps)
        elsewhere = any(w.waits >= 0 and w.waits != barrier for w in state.warps)
        done = [what for what, is_so in ((_ENDED, ended), (_ELSEWHERE, elsewhere)) if is_so]
        raise UnprovedError(
            f"warp {number} waits at barrier {barrier} for {self._wanted(state, phase.wanted)} threads, but "
            f"{self._come(phase)} have come and the others {' or '.join(done)}",
            self._waits_in(state, number),
            certain=not state.chosen,
        )

    # ------------------------------------------------------------------------------ one warp

    def _advance(self, state: State, number: int) -> None:
        """Let a warp run until it ends, or waits for a barrier or an outcome."""
        while True:
            self._steps += 1
            if self._steps > _STEPS:
                raise UnprovedError(_SPENT, self._last)
            warp = state.warps[number]
            if warp.block == EXIT:
                return
            values = self._values[number]
            values.go_to(dict(warp.merged))
            sites = self._control.sites.get(warp.block, ())
            if warp.barrier < len(sites) and sites[warp.barrier].is_access:
                state.warps[number] = warp._replace(barrier=warp.barrier + 1)
                self._access(state, number, sites[warp.barrier], values)
                continue
            if warp.barrier < len(sites):
                site = self._last = sites[warp.barrier]
                comes = self._outcome(state, number, values, site.guard, site.negated, site)
                if comes is None:
                    return
                state.warps[number] = warp._replace(barrier=warp.barrier + 1)
                if comes and self._arrive(state, number, site, values):
                    return
                continue
            branch = self._control.branches.get(warp.block)
            if branch is None:
                self._go(state, number, self._control.after(warp.block), values)
            elif not self._choose(state, number, branch, values):
                return

    def _outcome(
        self,
        state: State,
        number: int,
        values: WarpValues,
        guard: Node | None,
        negated: bool,
        site: Site | None,
    ) -> bool | None:
        """Whether a branch's guard holds for a whole warp; None if the warp waits for its outcome."""
        if guard is None:
            return True
        value = operand(values.of(guard))
        if value is None:
            raise UnprovedError(_LANES, site or self._last)
        if isinstance(value, Term):
            if value not in state.outcomes:
                state.warps[number] = state.warps[number]._replace(wants=value)
                return None
            value = state.outcomes[value]
        return bool(value) != negated

    def _choose(self, state: State, number: int, branch: Branch, values: WarpValues) -> bool:
        """Let a warp take a branch; false if the warp has to wait for the branch's outcome."""
        if not self._control.decides(state.warps[number].block):
            self._skip(state, number, branch)
            return True
        known = None if branch.guard is None else operand(values.of(branch.guard))
        if not branch.barriers and (branch.again or not isinstance(known, int)):
            self._skip(state, number, branch)
            return True
        if branch.guard is None:
            raise UnprovedError(_TABLE, self._decided(branch))
        holds = self._outcome(state, number, values, branch.guard, branch.negated, self._decided(branch))
        if holds is None:
            return False
        self._go(state, number, branch.taken if holds else branch.passed, values)
        return True

    def _decided(self, branch: Branch) -> Site | None:
        """The first barrier between a branch and the meeting of its two ways; None if there is none."""
        sites = (site for b in sorted(branch.between) for site in self._control.sites.get(b, ()))
        return next((site for site in sites if not site.is_access), None)

    def _skip(self, state: State, number: int, branch: Branch) -> None:
        """Let a warp go on where the two ways of a branch meet, whichever way its threads took."""
        block, warp = branch.meeting, state.warps[number]
        if block == EXIT:
            state.warps[number] = Warp(EXIT)
            return
        lost = {*branch.between, block}
        needed = {n.id for n in self._control.needed[block] if n.block not in lost}
        needed_values = tuple(item for item in warp.merged if item[0] in needed)
        state.warps[number] = Warp(block, 0, needed_values, begun=warp.begun)

    def _go(self, state: State, number: int, block: int, values: WarpValues) -> None:
        """Let a warp go from its block to the next, with the values that merge there."""
        if block == EXIT:
            state.warps[number] = Warp(EXIT)
            return
        warp, control = state.warps[number], self._control
        merged = dict(warp.merged)
        arrived = {n.id: merged[n.id] for n in control.needed[block] if n.block != block and n.id in merged}
        begun = dict(warp.begun)
        for node in control.merged_at(block):
            step = control.steps.get(node.id) if self._counting else None
            if step is None:
                arrived[node.id] = values.of(control.coming(node, warp.block))
            elif control.is_back(warp.block, block):
                counter = merged.get(node.id)
                arrived[node.id] = self._terms.next_value(counter) if isinstance(counter, Term) else None
            else:
                arrived[node.id] = self._begin(node, step, warp.block, values, begun)
        items = tuple(sorted(arrived.items(), key=lambda item: item[0]))
        state.warps[number] = Warp(block, 0, items, begun=tuple(begun.items()))

    def _begin(
        self, node: Node, step: Step, before: int, values: WarpValues, begun: dict[Family, int]
    ) -> Term | None:
        """The value of a counter when a warp comes to its loop from block `before`."""
        start = operand(values.of(self._control.coming(node, before)))
        by = operand(values.of(step.value))
        if start is None or by is None or (isinstance(by, Term) and self._terms.counters(by)):
            return None
        how = self._terms.of("step", step.name, step.operand, node.bits, by)
        counter = Counter(start, how, self._control.depth(node.block), 0, 0)
        entry = begun.get(counter.family, 0)
        begun[counter.family] = entry + 1
        return self._terms.counter(counter._replace(entry=entry))

    # ------------------------------------------------------------------------------ barriers

    def _arrive(self, state: State, number: int, site: Site, values: WarpValues) -> bool:
        """Let a warp arrive at a barrier; true if the warp then waits there."""
        barrier, count = operand(values.of(site.number)), 0
        if site.threads is not None:
            threads = operand(values.of(site.threads))
            if not isinstance(threads, int) or not threads or threads % WARP:
                shown = f"is {threads}, no multiple of {WARP}" if isinstance(threads, int) else "is not known"
                raise UnprovedError(f"the number of threads that it waits for {shown}", site)
            count = threads
        if not isinstance(barrier, int) or not 0 <= barrier < BARRIERS:
            raise UnprovedError("which barrier it is is not known", site)
        phase = state.phases[barrier]
        if not state.knows[number] >> barrier & 1:
            raise UnprovedError(
                f"warp {number} may come to barrier {barrier} before it is complete for the arrivals before",
                site,
            )
        if phase.came and phase.wanted != count:
            raise UnprovedError(
                f"warp {number} comes to barrier {barrier} for {_threads(count)}, but others have come to "
                f"it for {_threads(phase.wanted)}",
                site,
            )
        kinds = phase.kinds | {site.kind}
        if len(kinds) > 1 and any(".red." in kind for kind in kinds):
            raise UnprovedError(
                f"barrier {barrier} is reduced by some warps, and others come to it otherwise", site
            )
        waits = site.kind != "arrive"
        waiting = (*phase.waiting, number) if waits else phase.waiting
        knows = phase.knows | state.knows[number] | state.did[number]
        phase = Phase(count, kinds, (*phase.came, number), waiting, knows)
        state.phases[barrier] = phase
        if waits:
            state.warps[number] = state.warps[number]._replace(waits=barrier)
        come, wanted = self._come(phase), self._wanted(state, count)
        if come > wanted:
            raise UnprovedError(f"more than {wanted} threads come to barrier {barrier} at once", site)
        if come == wanted:
            self._complete(state, barrier, site)
        return state.warps[number].waits >= 0

    def _come(self, phase: Phase) -> int:
        """The number of threads that came to a barrier."""
        return sum(self._threads[number] for number in phase.came)

    def _complete(self, state: State, barrier: int, site: Site) -> None:
        """Let the warps go on that wait at a barrier that is complete."""
        phase, bit = state.phases[barrier], 1 << barrier
        ended = not phase.wanted and self._come(phase) < self._shape.threads
        if ended and any(self._waits_in(state, number).go_on for number in phase.waiting):
            raise UnprovedError(f"barrier {barrier} goes on without warps that do not come to it", site)
        times = Count(phase.came)
        if len(set(times.values())) > 1:
            number = max(times, key=lambda n: times[n])
            raise UnprovedError(
                f"warp {number} comes to barrier {barrier} {times[number]} times before the others have", site
            )
        for other, was in enumerate(state.phases):
            state.phases[other] = was._replace(knows=was.knows & ~bit)
        state.knows = [knows & ~bit for knows in state.knows]
        for number in phase.waiting:
            state.warps[number] = state.warps[number]._replace(waits=-1)
            state.knows[number] |= phase.knows & ~bit | bit
        state.phases[barrier] = Phase()

    # ------------------------------------------------------------------------------ words

    def _access(self, state: State, number: int, site: Site, values: WarpValues) -> None:
        """Let a warp read a word, or one of its threads write it."""
        address = values.shared_address(site.number, site.offset)
        if site.kind == WRITE:
            self._write(state, number, address, _writers(values, site))
            return
        assert site.value is not None  # the site is a read
        word = None if address is None else state.words.get(address)
        first = 0 if address is None else self._first_bit(address)
        if not state.knows[number] & first:
            word = None  # the write may come later, or the warp may see what was there before
        merged = {n: value for n, value in state.warps[number].merged if n != site.value.id}
        if word is not None:
            state.note(first << 1 + number, number)
            merged[site.value.id] = word
        state.warps[number] = state.warps[number]._replace(merged=tuple(sorted(merged.items(), key=_node)))

    def _write(self, state: State, number: int, address: SharedAddress | None, writers: int | None) -> None:
        """Let `writers` threads of a warp write a word; None if it is not known how many do."""
        if writers == 0:
            return
        if writers != 1 or self._threads[number] > WARP:
            raise UnprovedError(_WRITERS)
        if address is None:
            raise UnprovedError(_WHERE)
        first = self._first_bit(address)
        others = first * ((1 << 1 + self._warps) - 1)
        if state.knows[number] & others != others:
            raise UnprovedError(
                f"warp {number} may write a word that decides which barriers others come to before they have "
                "read what it held"
            )
        word = state.words.get(address)
        state.words[address] = self._terms.written(address) if word is None else self._rewritten(word)
        state.note(first, number)

    def _rewritten(self, word: Term) -> Term:
        later = self._terms.next_value(word)
        assert later is not None  # a word holds a counter
        return later

    def _first_bit(self, address: SharedAddress) -> int:
        """The bit of `knows` for the last write of a word; above it are those for the reads of each warp."""
        at = self._bits.setdefault(address, BARRIERS + len(self._bits) * (1 + self._warps))
        return 1 << at


def _writers(values: WarpValues, site: Site) -> int | None:
    """How many threads of a warp an instruction runs in; None if that is not known."""
    lanes = None if site.guard is None else values.of(site.guard)
    if site.guard is None:
        return WARP
    return int((lanes != site.negated).sum()) if isinstance(lanes, np.ndarray) else None


def _node(item: tuple[int, Value]) -> int:
    return item[0]


def _threads(count: int) -> str:
    return f"{count} threads" if count else "all threads"
