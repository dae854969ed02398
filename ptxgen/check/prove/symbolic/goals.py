"""Shows that a polynomial is never negative, from facts (polynomials that are never negative) and
from the definitions of its atoms.

Each step replaces the goal by goals that imply it, for all integer values of the atoms. The search
is short and may give up; it never accepts a goal that does not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np

from ptxgen.check.prove.polynomials import (
    ONE,
    UNBOUNDED,
    ZERO,
    Atom,
    Atoms,
    Case,
    Coefficient,
    Monomial,
    Poly,
    TooLargeError,
    put,
)

Lanes = np.ndarray[Any, np.dtype[Any]]
Facts = tuple[Poly, ...]

_STEPS: Final = 2000  # steps that one search may take
# For all searches of a kernel: attention takes less than 30,000 steps, attention in f32 with narrow
# rows, a mask and partially padded keys ten times as many.
_ALL_STEPS: Final = 400_000
_DEPTHS: Final = (2, 4, 7, 10, 14)  # tried one after the other: most goals need few steps
_BRIEF_DEPTHS: Final = _DEPTHS[:1]
_GROUPS: Final = 64  # groups of threads with different coefficients that are searched one by one


class Goals:
    """Searches for proofs that polynomials are not negative. `promised` are facts of every launch;
    `before(block)` gives the facts that held when the loop at `block` started its next iteration,
    in terms of the iteration that had just ended.
    """

    def __init__(self, atoms: Atoms, promised: Facts, before: Callable[[int], Facts]) -> None:
        self._atoms = atoms
        self._promised = promised
        self._before = before
        self._left = 0
        self._left_of_all = _ALL_STEPS
        self._deepest = 0
        self._is_cut = False  # whether the search ended somewhere because of its depth or its steps
        self._order = atoms.order  # by which the highest atom of a goal is found
        # The depth at which each goal was tried in vain, with the facts; they are stored so that
        # their id stays unique.
        self._failed: dict[tuple[Any, ...], tuple[int, Facts]] = {}

    @property
    def ran_out(self) -> str:
        """The end of the reason for a goal that is not shown, if the search ran out of steps; else empty."""
        if self._left_of_all >= 0:
            return ""
        return f"; the search for a proof ended after {_ALL_STEPS} steps"

    def holds(
        self, goal: Poly, facts: Facts = (), lanes: Lanes | None = None, *, is_brief: bool = False
    ) -> bool:
        """Whether `goal` is shown not to be negative in the threads `lanes` (default: all) in which
        no fact is negative. A brief search, for a goal that all threads share, finds short proofs only.
        """
        if self._low(goal, lanes) >= 0:
            return True
        if is_brief:
            return self._searched(goal, facts, lanes, _BRIEF_DEPTHS)
        if goal.is_uniform:
            return self._searched(goal, facts, lanes)
        groups = _groups(goal, lanes)
        return len(groups) <= _GROUPS and all(
            self._searched(goal.for_thread(g[0]), tuple(f.for_thread(g[0]) for f in facts), None)
            if len(g) == 1
            else self._searched(*_alike(goal, facts, g))
            for g in groups
        )

    def _searched(
        self, goal: Poly, facts: Facts, lanes: Lanes | None, depths: Sequence[int] = _DEPTHS
    ) -> bool:
        # The state of the search that called this one.
        outer = self._left, self._deepest, self._failed, self._is_cut
        usable = tuple(f.tightened() for f in (*facts, *self._promised) if f.is_uniform)
        holds = self._searched_with(goal, usable, lanes, depths)
        if not holds and depths is _DEPTHS:  # few goals need these facts, and they make a search long
            bounds = self._bounds_of(usable)
            holds = bool(bounds) and self._searched_with(goal, (*usable, *bounds), lanes, depths)
        if not holds and depths is _DEPTHS and self._order == self._atoms.order:
            self._order = self._atoms.nested_first
            holds = self._searched_with(goal, usable, lanes, depths)
            self._order = self._atoms.order
        self._left, self._deepest, self._failed, self._is_cut = outer
        return holds

    def _bounds_of(self, facts: Facts) -> Facts:
        """For each `min` in the facts, the facts that it is no more than either argument."""
        atoms = [self._atoms[n] for n in sorted(set().union(*[fact.atoms() for fact in facts]))]
        return tuple(of - a.poly for a in atoms if a.kind == "min" for of in a.args)

    def _searched_with(self, goal: Poly, facts: Facts, lanes: Lanes | None, depths: Sequence[int]) -> bool:
        self._left = _STEPS
        for self._deepest in depths:
            self._failed, self._is_cut = {}, False
            if self._search(goal, facts, lanes, 0, frozenset()):
                return True
            if not self._is_cut:  # a deeper search would be the same
                break
        return False

    # ------------------------------------------------------------------------------ steps

    def _search(
        self, goal: Poly, facts: Facts, lanes: Lanes | None, depth: int, split: frozenset[int]
    ) -> bool:
        key = (goal.key, id(facts), split)
        failed = self._failed.get(key)
        if failed is not None and failed[0] <= depth:
            return False
        try:
            holds = self._step(goal, facts, lanes, depth, split)
        except TooLargeError:
            holds = False
        if not holds:
            self._failed[key] = depth, facts
        return holds

    def _step(self, goal: Poly, facts: Facts, lanes: Lanes | None, depth: int, split: frozenset[int]) -> bool:
        original, goal = goal, goal.tightened()
        constant = goal.constant
        if constant is not None:
            held = np.asarray(constant) >= 0
            return bool((held if lanes is None or held.ndim == 0 else held[lanes]).all())
        if self._low(goal, lanes) >= 0:
            return True
        self._left -= 1
        self._left_of_all -= 1
        if min(self._left, self._left_of_all) < 0 or depth > self._deepest:
            self._is_cut = True
            return False
        if not goal.is_uniform:
            return False
        top = max((a for m in goal.terms for a in m), key=self._order)
        return (
            any(
                self._search(g, facts, lanes, depth + 1, split)
                for g in chain(
                    self._factors(goal), _combined(goal, top, facts), _loose(original, goal, top, facts)
                )
            )
            or self._opened(original, goal, self._atoms[top], facts, lanes, depth, split)
            or any(self._search(g, facts, lanes, depth + 1, split) for g in self._scaled(goal, top, facts))
        )

    def _scaled(self, goal: Poly, top: int, facts: Sequence[Poly]) -> Iterator[Poly]:
        """The goal less a multiple of a fact and of other atoms that are not negative, such that a product
        with the highest atom cancels, the index of a CTA: `y * columns`, where `y` is less than a number.
        """
        if self._atoms[top].kind != "index":
            return
        for m, c in goal.terms.items():
            if top not in m or len(m) == 1 or m.count(top) > 1:
                continue
            rest = list(m)
            rest.remove(top)
            if any(self._atoms[n].low < 0 for n in rest):
                continue
            for fact in facts:
                d = fact.terms.get((top,), 0)
                if isinstance(d, int) and c * d > 0 and all(n not in fact.atoms() for n in rest):
                    yield goal * abs(d) - fact * Poly({tuple(rest): abs(c)})

    def _factors(self, goal: Poly) -> Iterator[Poly]:
        """The goal without an atom that is a factor of all its terms, if that atom is not negative."""
        common = frozenset.intersection(*[frozenset(m) for m in goal.terms])
        for number in common:
            parts = goal.split(number)
            if parts is not None and self._atoms[number].low >= 0:
                yield parts[0]

    def _low(self, goal: Poly, lanes: Lanes | None) -> int:
        constant = goal.terms.get((), 0)
        if isinstance(constant, int) or lanes is None:
            return self._atoms.bounds(goal)[0]
        rest = Poly({m: c for m, c in goal.terms.items() if m})
        return self._atoms.bounds(rest)[0] + int(constant[lanes].min())

    def _opened(
        self,
        original: Poly,
        goal: Poly,
        atom: Atom,
        facts: Facts,
        lanes: Lanes | None,
        depth: int,
        split: frozenset[int],
    ) -> bool:
        """Try the definition of the goal's highest atom. `original` is the goal before it was tightened."""

        def search(goal: Poly, facts: Facts = facts, done: frozenset[int] = split) -> bool:
            return self._search(goal, facts, lanes, depth + 1, done)

        parts = goal.split(atom.number)
        factor = parts[0].constant if parts is not None else None
        if parts is not None and isinstance(factor, int):
            rest = parts[1]
            if atom.kind == "either":
                return all(
                    search(rest + c.value * factor, (*facts, *c.conditions)) or self._is_empty(c, search)
                    for c in atom.cases
                )
            if (atom.kind, factor > 0) in (("min", True), ("max", False)):
                return all(search(rest + a * factor) for a in atom.args)
            if any(search(g) for g in _implying(atom, factor, rest)):
                return True
        if any(search(g) for g in chain(self._bounded(goal, atom), self._times_divisor(goal, atom))):
            return True
        if atom.kind == "iteration" and atom.number not in split:
            return self._by_induction(original, atom, facts, split, search)
        return False

    def _is_empty(self, case: Case, search: Callable[..., bool]) -> bool:
        """Whether the facts exclude a case of one condition, such as a difference that wraps around."""
        return len(case.conditions) == 1 and search(-case.conditions[0] - 1)

    def _bounded(self, goal: Poly, atom: Atom) -> Iterator[Poly]:
        """The goal with a bound in place of the atom, where the atom's factors are not negative."""
        highest: list[Poly | None] = [Poly.of(atom.high) if atom.high < UNBOUNDED else None]
        if atom.kind == "rem":
            highest.append(atom.args[1] - 1)
        elif atom.kind == "min":
            highest += atom.args
        for high in highest:
            smaller = self._at_bounds(goal, atom, high)
            if smaller is not None:
                yield smaller

    def _at_bounds(self, goal: Poly, atom: Atom, high: Poly | None) -> Poly | None:
        """The goal with the atom's lower bound in terms with a positive coefficient, and with
        `high` in the others; None if a bound is missing or another factor may be negative.
        """
        low = Poly.of(atom.low) if atom.low > -UNBOUNDED else None
        result: dict[Monomial, Coefficient] = {}
        for m, c in goal.terms.items():
            if atom.number not in m:
                put(result, m, c)
                continue
            rest = list(m)
            rest.remove(atom.number)
            bound = low if c > 0 else high
            if bound is None or self._atoms.product(tuple(rest))[0] < 0:
                return None
            for n, d in (Poly({tuple(rest): c}) * bound).terms.items():
                put(result, n, d)
        return Poly(result)

    def _times_divisor(self, goal: Poly, atom: Atom) -> Iterator[Poly]:
        """The goal without a quotient that occurs only multiplied by its divisor: that product is
        at most the dividend, and more than the dividend less the divisor.
        """
        if atom.kind != "div" or len(atom.args[1].terms) != 1:
            return
        of, by = atom.args
        ((divisor, one),) = by.terms.items()
        parts = goal.split(atom.number)
        if parts is None or not isinstance(one, int) or one != 1 or not divisor:
            return
        result = parts[1]
        for m, c in parts[0].terms.items():
            factor = Poly({m: c}).quotient(divisor, 1, proper=False)
            if factor is not None and not factor[1].terms:
                bound = of if c < 0 else of - by + 1
            elif c > 0:
                factor, bound = (Poly({m: c}), ZERO), Poly.of(atom.low)
            else:
                return
            if self._atoms.bounds(factor[0] * c)[0] < 0:
                return
            result = result + factor[0] * bound
        yield result

    def _by_induction(
        self, goal: Poly, iteration: Atom, facts: Facts, split: frozenset[int], search: Callable[..., bool]
    ) -> bool:
        """Show the goal for the first iteration, and for every other one from the facts of the one before."""
        done = split | {iteration.number}
        replaced, number = self._atoms.all_replaced, iteration.number
        goal_0, *facts_0 = replaced((goal, *facts), number, ZERO)
        if not search(goal_0, tuple(facts_0), done):
            return False
        goal_n, *facts_n = replaced((goal, *facts), number, iteration.poly + ONE)
        before = (fact.tightened() for fact in self._before(min(iteration.blocks)))
        return search(goal_n, (*facts_n, *before), done)


def _combined(goal: Poly, top: int, facts: Sequence[Poly]) -> Iterator[Poly]:
    """A multiple of the goal less a multiple of a fact, such that a monomial with the highest atom
    cancels.
    """
    for m, c in goal.terms.items():
        if top not in m:
            continue
        for fact in facts:
            d = fact.terms.get(m, 0)
            if isinstance(d, int) and c * d > 0:
                yield goal * abs(d) - fact * abs(c)


def _loose(original: Poly, tight: Poly, top: int, facts: Sequence[Poly]) -> Iterator[Poly]:
    """`_combined` for the goal before it was tightened, if tightening rounded its constant: with
    facts that are not multiples of the common divisor, less is lost.
    """
    m = next(m for m in tight.terms if m)
    factor = original.terms[m] // tight.terms[m]
    if np.any(original.terms.get((), 0) != tight.terms.get((), 0) * factor):
        yield from _combined(original, top, facts)


def _implying(atom: Atom, factor: int, rest: Poly) -> Iterator[Poly]:
    """Goals of which each alone implies that `factor * atom + rest` is not negative."""
    if atom.kind in ("min", "max"):  # either argument is a bound
        yield from (rest + a * factor for a in atom.args)
    elif atom.kind == "div":
        of, by = atom.args
        if factor == -1:
            yield (rest + 1) * by - 1 - of
        elif factor == 1:
            yield rest * by + of
        elif factor < 0:
            yield rest * by + of * factor
        else:
            yield rest * by + (of - by + 1) * factor
        if factor < 0:
            yield rest + of * factor
    elif atom.kind == "rem":
        of, by = atom.args
        if factor < 0:
            yield rest + (by - 1) * factor
            yield rest + of * factor


def _groups(goal: Poly, lanes: Lanes | None) -> list[Lanes]:
    """Groups of threads in which each atom's coefficient is the same."""
    columns = [c for m, c in goal.terms.items() if m and not isinstance(c, int)]
    _, which = np.unique(np.stack(columns), axis=1, return_inverse=True)
    which = which.reshape(-1)
    chosen = np.arange(len(which)) if lanes is None else np.flatnonzero(lanes)
    return [chosen[which[chosen] == n] for n in np.unique(which[chosen])]


def _alike(goal: Poly, facts: Facts, group: Lanes) -> tuple[Poly, Facts, Lanes]:
    """A goal and facts with one coefficient for each atom, for threads that agree on the goal's."""
    one = goal.for_thread(int(group[0]))
    terms = {m: c for m, c in one.terms.items() if m}
    terms[()] = goal.terms.get((), 0)
    alike = []
    for fact in facts:
        columns = [c[group] for m, c in fact.terms.items() if m and not isinstance(c, int)]
        if all(bool((c == c[0]).all()) for c in columns):
            terms_of_one = dict(fact.for_thread(int(group[0])).terms)
            constant = fact.terms.get((), 0)
            if not isinstance(constant, int) and not bool((constant[group] == constant[group[0]]).all()):
                terms_of_one[()] = constant
            alike.append(Poly(terms_of_one))
    count = max(len(c) for c in goal.terms.values() if not isinstance(c, int))
    mask = np.zeros(count, np.bool_)
    mask[group] = True
    return Poly(terms), tuple(alike), mask
