"""Where all warps of a CTA are, and what two such states have in common that differ only in iterations."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from ptxgen.check.prove.barriers.control import Control
from ptxgen.check.prove.barriers.terms import Counter, Family, Term, Terms
from ptxgen.check.prove.barriers.values import SharedAddress, Value


class Warp(NamedTuple):
    """Where a warp is: before barrier number `barrier` of a block, with the values of `merged`. It
    waits at a barrier if `waits` is not negative, and for the outcome of a condition if `wants` has
    its term; at `EXIT` it has ended. `begun` has the number of loops of each family that it began.
    """

    block: int
    barrier: int = 0
    merged: tuple[tuple[int, Value], ...] = ()
    waits: int = -1
    wants: Term | None = None
    begun: tuple[tuple[Family, int], ...] = ()


class Phase(NamedTuple):
    """The arrivals at a barrier since it was complete: the number of threads that they give (0: all),
    the kinds of their sites, the warps that came, and those that wait. Bit n of `knows` says that one
    of them comes after the last completion of barrier n.
    """

    wanted: int = 0
    kinds: frozenset[str] = frozenset()
    came: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    knows: int = 0


@dataclass
class State:
    """The state of all warps and barriers of a CTA, and the outcomes chosen for conditions. Bit n of a warp's
    `knows` says that it comes after the last completion of barrier n; bits from `BARRIERS` on are accesses to
    words, and a warp's `did` has the bits of its own accesses. `words` has the values of words. `chosen` is
    the number of outcomes chosen so far.
    """

    warps: list[Warp]
    phases: list[Phase]
    knows: list[int]
    did: list[int]
    words: dict[SharedAddress, Term] = field(default_factory=dict)
    outcomes: dict[Term, bool] = field(default_factory=dict)
    chosen: int = 0

    def where(self, term: Term, outcome: bool) -> State:
        """A copy of the state in which the condition `term` has the outcome `outcome`."""
        outcomes = {**self.outcomes, term: outcome}
        return replace(
            self,
            warps=list(self.warps),
            phases=list(self.phases),
            knows=list(self.knows),
            did=list(self.did),
            words=dict(self.words),
            outcomes=outcomes,
            chosen=self.chosen + 1,
        )

    def note(self, bit: int, number: int) -> None:
        """Record that warp `number` made the access of `bit`: only operations after this one know of it."""
        self.knows = [knows & ~bit for knows in self.knows]
        self.did = [did & ~bit for did in self.did]
        for barrier, phase in enumerate(self.phases):
            self.phases[barrier] = phase._replace(knows=phase.knows & ~bit)
        self.did[number] |= bit


def common(state: State, control: Control, terms: Terms) -> Hashable:
    """A key of a state, equal for states that differ only in the iterations of loops."""
    may_begin = [control.may_begin(w.block) for w in state.warps]
    begun = [dict(w.begun) for w in state.warps]
    held = [{v for v in (w.wants, *(v for _, v in w.merged)) if isinstance(v, Term)} for w in state.warps]
    counters = [frozenset[Counter]().union(*map(terms.counters, of_warp)) for of_warp in held]
    words = frozenset[Counter]().union(*map(terms.counters, state.words.values()))
    # The run of a family that counts as the first.
    first: dict[Family, int] = {counter.family: 0 for counter in words}
    for warp, of_warp in enumerate(counters):
        families = {c.family for c in of_warp} | {f for b in begun for f in b if f[-1] in may_begin[warp]}
        for family in families:
            number = begun[warp].get(family, 0)
            first[family] = min(first.get(family, number), number)

    def is_to_begin(counter: Counter) -> bool:
        """Whether a warp may still enter the loop whose iterations a counter counts."""
        return any(
            counter.depth in may and done.get(counter.family, 0) <= counter.entry
            for may, done in zip(may_begin, begun, strict=True)
        )

    earliest: dict[Hashable, int] = {}  # the iteration of a run that counts as the first
    live = words.union(*counters)
    for counter in live.union(*map(terms.counters, state.outcomes)):
        if is_to_begin(counter):
            earliest[counter.run] = 0
        elif counter in live:
            earliest[counter.run] = min(earliest.get(counter.run, counter.iteration), counter.iteration)
    # An outcome that no counter can come to any more is forgotten: then it may be any again.
    state.outcomes = {
        term: outcome
        for term, outcome in state.outcomes.items()
        if all(c.iteration >= earliest.get(c.run, c.iteration + 1) for c in terms.counters(term))
    }
    known: dict[Term, Term] = {}

    def move(counter: Counter) -> Counter:
        entry = counter.entry - first[counter.family]
        return counter._replace(entry=entry, iteration=counter.iteration - earliest[counter.run])

    def plain(value: Value) -> Hashable:
        if isinstance(value, np.ndarray):
            return value.tobytes()
        return None if value is None else terms.moved(value, move, known)

    warps = tuple(
        (
            (w.block, w.barrier, w.waits, plain(w.wants), tuple((n, plain(v)) for n, v in w.merged)),
            frozenset((f, n - first[f]) for f, n in w.begun if f in first),
        )
        for w in state.warps
    )
    outcomes = frozenset((plain(term), outcome) for term, outcome in state.outcomes.items())
    held_by_words = frozenset((address, plain(word)) for address, word in state.words.items())
    return warps, tuple(state.phases), tuple(state.knows), tuple(state.did), held_by_words, outcomes
