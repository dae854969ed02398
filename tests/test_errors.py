"""Suggestions for names that do not exist."""

from __future__ import annotations

import difflib
import random
from typing import Any

import pytest

from ptxgen import errors
from ptxgen.check.verify import verify
from ptxgen.errors import Suggestions, did_you_mean
from ptxgen.isa.spec import ROWS
from ptxgen.parse import parse

MOST = 60_000  # characters of words times characters of names, of each test


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The work of each comparison that is made during the test."""
    result: list[int] = []
    real = difflib.get_close_matches

    def counting(word: str, known: Any, **how: Any) -> list[str]:
        result.append(len(word) * sum(map(len, known)))
        return real(word, known, **how)

    monkeypatch.setattr(errors, "_MOST_COMPARED", MOST)
    monkeypatch.setattr(difflib, "get_close_matches", counting)
    return result


def labels(count: int, prefix: str = "$L__BB0_") -> list[str]:
    return [f"{prefix}{n}" for n in range(count)]


def test_of_few_names_the_nearest_is_suggested() -> None:
    assert did_you_mean("shll", ROWS) == "; did you mean 'shl'?"
    assert did_you_mean("quux", ["alpha", "beta"]) == ""
    words = random.Random(3).sample(sorted(ROWS), 5)
    for word in words:
        near = difflib.get_close_matches(word + "x", list(ROWS), n=1, cutoff=0.6)
        assert did_you_mean(word + "x", ROWS) == f"; did you mean {near[0]!r}?"


def test_of_too_many_names_those_with_the_same_ends_are_compared(compared: list[int]) -> None:
    names = [*labels(2000), "$Loop_17_head"]
    random.Random(5).shuffle(names)
    assert did_you_mean("$Loop_18_head", names) == "; did you mean '$Loop_17_head'?"
    assert sum(compared) <= MOST


def test_names_that_are_too_long_are_not_compared(compared: list[int]) -> None:
    assert did_you_mean("a" * 20_000, ["a" * 19_999, "b" * 41_000]) == ""
    assert sum(compared) <= MOST


def test_many_questions_share_one_limit(compared: list[int]) -> None:
    suggestions = Suggestions()
    answers = [suggestions.did_you_mean(name, labels(100)) for name in labels(100, "$M__BB0_")]
    assert answers[0] == "; did you mean '$L__BB0_0'?"
    assert answers[-1] == ""
    assert sum(compared) <= MOST


def test_a_text_of_wrong_labels_is_refused_in_bounded_time(compared: list[int]) -> None:
    lines = [f"$L__BB0_{n}:\nbra $M__BB0_{n};" for n in range(60)]
    bodies = [f".visible .entry k{n}()\n{{\n{chr(10).join(lines)}\nret;\n}}" for n in range(2)]
    text = "\n".join([".version 8.0", ".target sm_80", ".address_size 64", *bodies])
    problems = verify(parse(text))
    assert [p.kind for p in problems] == ["label"] * 120
    assert problems[0].message == "no label '$M__BB0_0' in this kernel; did you mean '$L__BB0_0'?"
    assert problems[-1].message == "no label '$M__BB0_59' in this kernel"
    assert sum(compared) <= MOST
