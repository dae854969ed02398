"""Which cases of a test with parameters a run has: the markers `grid` and `sample`, `--share`, `pairwise`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pytest

_GOLDEN: Final = (5**0.5 - 1) / 2
_OF_SLOW: Final = 7  # `.ci/run` has one case of this many of a slow test
_OF_QUICK: Final = 4  # `make test` has one case of this many of a test without a marker


def dispensable(items: Iterable[pytest.Item]) -> Iterator[tuple[pytest.Function, str]]:
    """The cases that `make test` can do without, of tests with one of two markers, and whether
    `.ci/run` has them ("slow") or can do without them as well ("nightly").

    Of a `grid` both can do without cases as long as each value of each parameter still occurs; of
    `sample(count)` both can do without all but `count`, but of `sample(count, gate=more)` `.ci/run` has
    `more`. Of a test without a marker `make test` has a quarter of the cases, and `.ci/run` all. Of a test
    all of whose cases are `slow`, `make test` has none, and `.ci/run` has a seventh, or of `sample(count)` no
    more than `count`; of `sample(count, gate=more)` it has more only while a value of a parameter is missing.
    Other cases marked `slow`, and those marked `nightly` or `gpu`, do not count.
    """
    tests: dict[str, list[pytest.Function]] = {}
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        if not any(map(item.get_closest_marker, ("nightly", "gpu"))):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for result in tests.values():
        cases = [case for case in result if not case.get_closest_marker("slow")]
        if not cases:
            yield from _nightly(result)
            continue
        values = [_values(case) for case in cases]
        sample = cases[0].get_closest_marker("sample")
        if sample is not None:
            few = sample.args[0]
            order = sampled(values, sample.kwargs.get("gate", few))
            kept, gate = set(order[:few]), set(order)
        elif cases[0].get_closest_marker("grid"):
            kept = gate = covering(values)
        else:
            kept, gate = set(_spread(len(cases))[: -(-len(cases) // _OF_QUICK)]), set(range(len(cases)))
        for number, case in enumerate(cases):
            if number not in kept:
                yield case, "slow" if number in gate else "nightly"


def _nightly(slow: Sequence[pytest.Function]) -> Iterator[tuple[pytest.Function, str]]:
    """The cases of a slow test that `.ci/run` can do without, as `dispensable` has them."""
    sample = slow[0].get_closest_marker("sample")
    values = [_values(case) for case in slow]
    if sample is None:
        count = -(-len(slow) // _OF_SLOW)
    else:
        few = sample.args[0]
        count = max(few, min(sample.kwargs.get("gate", few), len(covering(values))))
    chosen = sampled(values, count)
    yield from ((case, "nightly") for number, case in enumerate(slow) if number not in chosen)


def share_of(count: int, part: int, parts: int) -> range:
    """The indices of `count` tests that share number `part` of `parts` has: every `parts`-th one. The shares
    together have each test once.
    """
    return range(part % parts, count, parts)


def sampled(cases: Sequence[frozenset[object]], count: int) -> list[int]:
    """The indices of `count` cases, or of all if there are fewer: the first of them, however many,
    have as many values as that many cases can have, and otherwise are spread over all.
    """
    left = _spread(len(cases))
    chosen: list[int] = []
    missing = frozenset[object]()
    while left and len(chosen) < count:
        missing = missing or frozenset().union(*(cases[n] for n in left))
        best = max(left, key=lambda n: len(cases[n] & missing))
        chosen.append(best)
        left.remove(best)
        missing -= cases[best]
    return chosen


def _spread(count: int) -> list[int]:
    """The indices of `count` cases, in an order of which the first n, for any n, are spread over all."""
    # Multiples of the golden ratio, less their integers, fill an interval evenly.
    return sorted(range(count), key=lambda n: n * _GOLDEN % 1)


def covering(cases: Sequence[frozenset[object]]) -> set[int]:
    """The indices of a few cases in which each value of all cases occurs.

    Greedy: it repeatedly takes the first of the cases with the most values that no case taken so
    far has.
    """
    missing = frozenset[object]().union(*cases)
    chosen: set[int] = set()
    while missing:
        best = max(range(len(cases)), key=lambda n: (len(cases[n] & missing), -n))
        chosen.add(best)
        missing -= cases[best]
    return chosen


def pairwise(cases: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """A few of the cases, in their order, in which each two values occur together that one of all cases has:
    a covering array of strength two. Values are the same if `str` of them is.

    For tests that would take hours with the whole product of their parameters, and whose failures come from
    one or two of these.
    """
    rows = list(cases)
    chosen = covering([frozenset(itertools.combinations(enumerate(map(str, row)), 2)) for row in rows])
    return [rows[n] for n in sorted(chosen)]


def _values(case: pytest.Function) -> frozenset[object]:
    """The values that the `parametrize` decorators of a test give to one case. A decorator of
    several names gives one value, a tuple.
    """
    result: set[object] = set()
    for mark in case.iter_markers("parametrize"):
        names = mark.args[0] if isinstance(mark.args[0], str) else ",".join(mark.args[0])
        # Values need not be hashable. The decorator keeps them alive, so an id is one value.
        arguments = (id(case.callspec.params[name.strip()]) for name in names.split(","))
        result.add((names, *arguments))
    return frozenset(result)
