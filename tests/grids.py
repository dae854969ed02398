"""Which cases of a test with several parameters `make test` runs: the marker `grid`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pytest


def dispensable(items: Iterable[pytest.Item]) -> Iterator[pytest.Function]:
    """The cases of tests marked `grid` without which each value of each parameter still occurs in a
    case that is neither `slow` nor `nightly`.
    """
    grids: dict[str, list[pytest.Function]] = {}
    for item in items:
        if not isinstance(item, pytest.Function) or not item.get_closest_marker("grid"):
            continue
        left_out = item.get_closest_marker("slow") or item.get_closest_marker("nightly")
        if not left_out and hasattr(item, "callspec"):
            grids.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in grids.values():
        kept = covering([_values(case) for case in cases])
        yield from (case for number, case in enumerate(cases) if number not in kept)


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


def _values(case: pytest.Function) -> frozenset[object]:
    """The values that the `parametrize` decorators of a test give to one case. A decorator of
    several names gives one value, a tuple.
    """
    found: set[object] = set()
    for mark in case.iter_markers("parametrize"):
        names = mark.args[0] if isinstance(mark.args[0], str) else ",".join(mark.args[0])
        # Values need not be hashable. The decorator keeps them alive, so an id is one value.
        given = (id(case.callspec.params[name.strip()]) for name in names.split(","))
        found.add((names, *given))
    return frozenset(found)
