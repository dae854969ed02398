"""Values that a proof of barriers does not know as numbers: expressions of launch constants and of
the iterations of loops.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import NamedTuple


class Term(NamedTuple):
    """A value that is the same in all threads that compute it: two equal terms are equal numbers."""

    number: int


class Counter(NamedTuple):
    """The value of a loop's counter in iteration `iteration`: `start`, to which `step` was applied that
    often. `depth` is the number of loops around it, its own included; `entry` says how many loops of
    its `family` were begun before, by the warp that counts. Or any value that write number `iteration` put in
    the word `start`: at depth 0, since no loop begins it.
    """

    start: Hashable
    step: Hashable
    depth: int
    entry: int
    iteration: int

    @property
    def family(self) -> Family:
        """The key of the counter's family: its start if that is a number, its step and its depth."""
        return self.start if isinstance(self.start, int) else None, self.step, self.depth

    @property
    def run(self) -> tuple[Hashable, ...]:
        """The key of the counter's run, the same in all iterations."""
        return self[:-1]


Family = tuple[Hashable, Hashable, int]  # a start, if it is a number, a step, and a depth


class Terms:
    """All terms, symbolic values of registers, that a proof of barriers uses, each once."""

    def __init__(self) -> None:
        self._contents: list[tuple[Hashable, ...] | Counter] = []
        self._known: dict[tuple[str, tuple[Hashable, ...]], Term] = {}
        self._counters: list[frozenset[Counter]] = []

    def of(self, *what: Hashable) -> Term:
        """The term of an operation and its arguments, terms or numbers."""
        return self._term(what)

    def counter(self, counter: Counter) -> Term:
        """The term that stands for the value of a loop counter."""
        return self._term(counter)

    def written(self, word: Hashable) -> Term:
        """The term of what is first written to a word; of what is written later it is `next_value`."""
        return self.counter(Counter(word, "written", 0, 0, 0))

    def _term(self, what: tuple[Hashable, ...] | Counter) -> Term:
        key = (type(what).__name__, what)
        term = self._known.get(key)
        if term is None:
            term = self._known[key] = Term(len(self._contents))
            itself = {what} if isinstance(what, Counter) else set()
            self._contents.append(what)
            self._counters.append(frozenset(itself).union(*(self._counters[t.number] for t in _terms(what))))
        return term

    def counters(self, term: Term) -> frozenset[Counter]:
        """The loop counters on whose values a term depends."""
        return self._counters[term.number]

    def next_value(self, term: Term) -> Term | None:
        """The term of a counter one iteration or write later; None if the term is not that of a counter."""
        content = self._contents[term.number]
        if not isinstance(content, Counter):
            return None
        return self.counter(content._replace(iteration=content.iteration + 1))

    def moved(self, term: Term, move: Callable[[Counter], Counter], known: dict[Term, Term]) -> Term:
        """The term with each counter replaced. `known` keeps results."""
        stack = [term]
        while stack:
            top = stack[-1]
            if top in known:
                stack.pop()
                continue
            if not self._counters[top.number]:
                known[top] = top
                continue
            content = self._contents[top.number]
            missing = [t for t in _terms(content) if t not in known]
            if missing:
                stack += missing
                continue
            parts = [known[w] if isinstance(w, Term) else w for w in content]
            if isinstance(content, Counter):
                known[top] = self.counter(move(content)._replace(start=parts[0], step=parts[1]))
            else:
                known[top] = self.of(*parts)
        return known[term]


def _terms(content: tuple[Hashable, ...]) -> Iterator[Term]:
    return (w for w in content if isinstance(w, Term))
