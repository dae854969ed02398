"""The markers `grid` and `sample`: of a test with parameters, `make test` runs few cases."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from grids import covering, dispensable, pairwise, sampled, share_of

GRID = """
import pytest

@pytest.mark.grid
@pytest.mark.parametrize("a", [[1], [2], pytest.param([3], marks=pytest.mark.nightly)])
@pytest.mark.parametrize(("b", "c"), [(5, 6), (6, 5), (6, 6), (5, 5)])
def test_of_two_parameters(a, b, c): ...

@pytest.mark.grid
@pytest.mark.parametrize("a", range(3))
@pytest.mark.parametrize("b", range(3))
def test_of_a_square(a, b): ...

@pytest.mark.parametrize("a", range(3))
def test_without_the_marker(a): ...

@pytest.mark.grid
def test_without_parameters(): ...

@pytest.mark.sample(2, gate=4)
@pytest.mark.parametrize("a", [0, 1, pytest.param(2, marks=pytest.mark.nightly), *range(3, 9)])
def test_of_a_sample(a): ...

@pytest.mark.sample(0, gate=1)
@pytest.mark.parametrize("a", [0, 1])
def test_of_two_samples(a): ...

@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("a", range(3))
def test_of_a_slow_sample(a): ...

@pytest.mark.slow
@pytest.mark.sample(1, gate=4)
@pytest.mark.parametrize("a", range(2))
@pytest.mark.parametrize("b", range(3))
def test_of_a_slow_sample_of_two(a, b): ...

@pytest.mark.slow
@pytest.mark.parametrize("a", range(3))
def test_that_is_slow(a): ...
"""


def test_each_value_occurs_in_the_few_cases_that_cover_a_grid() -> None:
    cases = [
        frozenset({("a", a), ("b", b), ("c", c)})
        for a, b, c in itertools.product(range(3), range(5), range(2))
    ]
    chosen = covering(cases)
    assert frozenset().union(*(cases[n] for n in chosen)) == frozenset().union(*cases)
    assert len(chosen) == 5
    assert covering([]) == set()


def test_each_pair_of_values_occurs_in_the_few_cases_that_cover_all_pairs() -> None:
    cases = [
        (a, b, {"c": c}, d)
        for a, b, c, d in itertools.product(range(5), "xyz", range(4), (False, True))
        if (a, c) != (1, 2)  # which is refused
    ]

    def pairs(cases: list[tuple[object, ...]]) -> set[object]:
        return {pair for case in cases for pair in itertools.combinations(enumerate(map(str, case)), 2)}

    few = pairwise(cases)
    assert pairs(few) == pairs(cases)
    assert few == [case for case in cases if case in few]
    assert 5 * 4 - 1 <= len(few) < 30 < len(cases) == 114
    assert pairwise([]) == []


def test_a_sample_is_spread_over_all_cases_and_has_all_sizes() -> None:
    line = [frozenset({n}) for n in range(34)]
    assert sorted(sampled(line, 4)) == [0, 5, 13, 26]
    assert sorted(sampled(line, 34)) == sorted(sampled(line, 99)) == list(range(34))
    assert sampled([], 3) == []


def test_a_sample_of_a_grid_has_as_many_values_as_it_can() -> None:
    cases = [frozenset({("a", a), ("b", b)}) for a, b in itertools.product(range(4), range(4))]
    for count in range(1, 5):
        values = frozenset().union(*(cases[n] for n in sampled(cases, count)))
        assert len(values) == 2 * count
    assert len(sampled(cases, 9)) == 9


@pytest.mark.slow
def test_the_rest_of_grids_and_samples_is_dispensable_and_nothing_else(tmp_path: Path) -> None:
    result: list[str] = []
    left_out: dict[str, str] = {}

    class Collected:
        def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
            left_out.update((case.name, marker) for case, marker in dispensable(items))
            result.extend(item.name for item in items if item.name not in left_out)

    path = tmp_path / "test_few.py"
    path.write_text(GRID)
    options = ["--collect-only", "-qq", "--noconftest", "-p", "no:cacheprovider", "-p", "no:xdist"]
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  grid\n  sample\n  slow\n  nightly\n")
    assert pytest.main([str(path), *options], plugins=[Collected()]) == 0
    kept = [name for name in result if name.startswith("test_of_two_parameters")]
    square = [name for name in result if name.startswith("test_of_a_square")]
    assert kept == [
        *(f"test_of_two_parameters[5-6-a{n}]" for n in (0, 2)),
        "test_of_two_parameters[6-5-a1]",
        "test_of_two_parameters[6-5-a2]",
        "test_of_two_parameters[6-6-a0]",
        "test_of_two_parameters[6-6-a2]",
        "test_of_two_parameters[5-5-a0]",
        "test_of_two_parameters[5-5-a2]",
    ]
    assert square == ["test_of_a_square[0-0]", "test_of_a_square[1-1]", "test_of_a_square[2-2]"]
    assert [n for n in result if n not in kept and n not in square] == [
        *("test_without_the_marker[0]", "test_without_parameters", "test_of_a_sample[0]"),
        *("test_of_a_sample[2]", "test_of_a_sample[6]", "test_of_a_slow_sample[0]"),
        *("test_of_a_slow_sample[2]", "test_of_a_slow_sample_of_two[0-0]"),
        *("test_of_a_slow_sample_of_two[1-0]", "test_of_a_slow_sample_of_two[2-1]", "test_that_is_slow[0]"),
    ]
    squares = {f"test_of_a_square[{a}-{b}]" for a, b in itertools.product(range(3), range(3))}
    nightly = {name for name, marker in left_out.items() if marker == "nightly"}
    assert squares - set(square) <= nightly
    assert not squares & (set(left_out) - nightly)
    assert {"test_of_a_slow_sample[1]", "test_of_two_samples[1]"} <= nightly
    assert {"test_that_is_slow[1]", "test_that_is_slow[2]"} <= nightly
    slow = {"test_of_two_samples[0]", "test_without_the_marker[1]", "test_without_the_marker[2]"}
    assert {left_out[name] for name in slow} == {"slow"}
    rest = [marker for name, marker in left_out.items() if name.startswith("test_of_a_sample")]
    assert sorted(rest) == ["nightly"] * 4 + ["slow"] * 2


def test_shares_have_every_case_once() -> None:
    assert list(share_of(7, 1, 2)) == [1, 3, 5]
    assert list(share_of(7, 2, 2)) == [0, 2, 4, 6]
    assert share_of(7, 2, 1) == range(7)
