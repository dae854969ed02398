"""Kernels under test made of launches: what is right, and what is told of what is wrong."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from messages import message as message_of

import ptxgen as px
from ptxgen import Pointer, f32, u32
from ptxgen.errors import PtxGenError
from ptxgen.mutation.judge import (
    CATCHERS,
    EQUIVALENT,
    HOLE,
    NOT_EXECUTED,
    NOT_INFECTED,
    NOT_PROPAGATED,
    WITHIN_TOLERANCE,
    Judge,
    Verdict,
)
from ptxgen.mutation.reasons import load
from ptxgen.mutation.survivors import needs, survivor
from ptxgen.mutation.testing import judges, reasons_file, reasons_of, sample

Values = dict[str, Any]


@px.kernel(threads=64)
def scaled(k: Any, X: Pointer[f32], n: u32, factor: f32) -> None:  # type: ignore[valid-type]
    """X = factor * X, in place."""
    i = k.block_id() * 64 + k.thread_id()
    with k.when(i < n):
        X[i] = X[i] * factor


@px.kernel(threads=64)
def sums(k: Any, X: Pointer[f32], Y: Pointer[f32], columns: u32, *, twice: bool = False) -> None:  # type: ignore[valid-type]
    """Y[row] is the sum of the row, of which each thread has every 64th column."""
    total = k.var(f32, 0)
    row = X.row(k.block_id(), columns)
    with k.strided(columns) as i:
        total.set(total + row[i])
    whole = k.block.sum(total)
    with k.when(k.thread_id() == 0):
        Y[k.block_id()] = whole + whole if twice else whole


def numbers(count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


def of_rows(rows: int, columns: int) -> tuple[int, tuple[Any, ...]]:
    return rows, (numbers(rows * columns), np.zeros(rows, np.float32), columns)


def one(kernel: Any, problems: Sequence[Any], **how: Any) -> Judge:
    (judge,) = judges(kernel, problems, **how).values()
    return judge


def verdicts(judge: Judge, kind: str = "", change: str = "") -> list[Verdict]:
    chosen = sample(judge, [kind] if kind else None)
    return [judge.verdict(n) for n in chosen if change in judge.mutants[n].name]


def wrong_value(judge: Judge, kind: str = "warp", change: str = "double distance") -> str:
    """The message about the results of the first mutant that wrong values give away."""
    chosen = (n for n in sample(judge, [kind]) if change in judge.mutants[n].name)
    return next(v.what for v in map(judge.verdict, chosen) if v.caught_by == "value")


def test_the_bits_of_the_kernel_itself_are_right() -> None:
    what = wrong_value(one(sums, [of_rows(2, 100)]))
    assert re.fullmatch(r"Y\[[01]\] is \S+, wanted \S+; (1 element differs|2 elements differ)", what)


def test_each_run_begins_with_the_values_of_the_problem() -> None:
    x = numbers(128)
    judge = one(scaled, [(2, (x, 128, 0.5))])
    right = judge.right(judge.kernel.problems[0]).results
    assert np.frombuffer(right, np.float32).tolist() == (numbers(128) * np.float32(0.5)).tolist()
    (inverted,) = verdicts(judge, "mask", "inverted")
    assert inverted.caught_by == "value"
    assert judge.kernel.run(judge.kernel.module, judge.kernel.problems[0]).results == right


def test_every_catcher_but_the_schedules_and_the_proof_notices_mistakes_in_sums() -> None:
    result = Counter(v.caught_by for v in verdicts(one(sums, [of_rows(2, 70), of_rows(1, 10)])))
    assert result["value"] > 3
    assert result["proof"] > 3
    assert result["sanitizer"] > 1
    assert result["trap"] > 1
    assert set(result) <= {*CATCHERS, EQUIVALENT, HOLE}


def test_a_mistake_within_the_tolerance_survives_and_says_so() -> None:
    problems = [of_rows(1, 200)]
    exact = one(sums, problems)
    loose = one(sums, problems, rtol=10.0)
    distances = [n for n, m in enumerate(exact.mutants) if "double distance" in m.name]
    assert {exact.verdict(n).caught_by for n in distances} <= {"value", "proof"}
    (v, *_) = (v for v in map(loose.verdict, distances) if v.caught_by == HOLE)
    assert v.reach == WITHIN_TOLERANCE
    assert needs(v) == (
        "a smaller tolerance, or a problem with a larger error: results differ within what is allowed"
    )


def test_a_survivor_says_how_far_its_change_comes() -> None:
    judge = one(sums, [of_rows(1, 100)])
    (unequal,) = (v for v in verdicts(judge, "loop-bound", "ge to gt"))
    assert (unequal.caught_by, unequal.reach) == (HOLE, NOT_INFECTED)
    assert needs(unequal) == "a problem in which a thread compares equal operands; so far none does"
    told = survivor(judge, unequal)
    assert told.startswith(f"sums: survived, {unequal.name}\n  from    test_problems.py:")
    assert told.splitlines()[1].endswith(", in sums: with k.strided(columns) as i:")
    assert [line.split()[0] for line in told.splitlines()] == ["sums:", "from", "before", "after", "needs"]


@px.kernel(threads=32)
def branched(k: Any, X: Pointer[f32], n: u32) -> None:  # type: ignore[valid-type]
    """X[thread] = 0 or 1, and a further store where n is 7."""
    i = k.thread_id()
    X[i] = k.selp(1.0, 0.0, i < 16, type=f32)
    with k.when(n == 7), k.when(i < 3):
        X[i] = 2.0
    with k.when(i < 40):
        X[i] = X[i] * 1.0


@functools.cache
def reaches(of_seven: int) -> dict[str, tuple[str, str]]:
    """By change and instruction, who catches the mutants of `branched`, and how far their changes come."""
    judge = one(branched, [(1, (np.zeros(32, np.float32), of_seven))])
    return {
        f"{v.name.partition(' @')[0]}, {v.before.partition(' ')[0]} {v.before.rpartition(' ')[2]}": (
            v.caught_by,
            v.reach,
        )
        for v in verdicts(judge)
    }


def test_what_is_not_executed_and_what_is_not_propagated_are_told_apart() -> None:
    result = reaches(1)
    assert result["bound: +1, setp.lt.u32 3;"] == (HOLE, NOT_EXECUTED)
    assert result["mask: dropped, @!%p2 $end_2;"] == (HOLE, NOT_EXECUTED)
    assert result["bound: +1, setp.eq.u32 7;"] == (HOLE, NOT_INFECTED)
    assert result["mask: inverted, @!%p3 $end_3;"] == (HOLE, NOT_PROPAGATED)  # it leaves out a factor of 1
    assert result["bound: +1, setp.lt.u32 16;"] == ("value", "")
    result = reaches(7)
    assert result["bound: +1, setp.lt.u32 3;"] == ("value", "")
    assert result["mask: dropped, @!%p1 $end_1;"] == (HOLE, NOT_INFECTED)


def test_an_equivalent_mutant_is_proved() -> None:
    result = reaches(7)
    for change in ("bound: +1, setp.lt.u32 40;", "mask: dropped, @!%p3 $end_3;"):
        assert result[change] == (EQUIVALENT, NOT_INFECTED)


def assert_sum(x: Any, y: Any, columns: int) -> None:
    np.testing.assert_allclose(y, x.reshape(-1, columns).astype(np.float64).sum(1), rtol=1e-4)


def test_expect_judges_by_its_assertions() -> None:
    judge = one(sums, [of_rows(2, 100)], expect=assert_sum)
    assert wrong_value(judge).startswith("expect: AssertionError: Not equal to tolerance rtol=0.0001, atol=0")


def test_expect_may_return_what_is_right() -> None:
    def expect(x: Any, _: Any, columns: int) -> Values:
        return {"Y": x.reshape(-1, columns).astype(np.float64).sum(1)}

    judge = one(sums, [of_rows(2, 100)], expect=expect, rtol=1e-4)
    assert wrong_value(judge).startswith("Y[0] is ")


def test_expect_gets_the_arguments_before_the_run() -> None:
    def expect(_: Any, n: int, factor: float, before: Any) -> Values:
        assert (n, factor) == before[1:]
        return {"X": before[0] * np.float32(factor)}

    judge = one(scaled, [(2, (numbers(128), 128, 0.5))], expect=expect)
    assert wrong_value(judge, "mask", "").startswith("X[0] is ")


def failing(*_: Any) -> None:
    raise KeyError("no such column")


@pytest.mark.parametrize(
    ("expect", "message"),
    [
        (failing, "sums: expect fails on problem 0: KeyError: 'no such column'"),
        (
            lambda *_: 3,
            "sums: expect must return a mapping from names of parameters to the right arrays, or None after "
            "its own assertions, got 3",
        ),
        (
            lambda *_: {"Z": 0},
            "sums: expect returns 'Z', which is no array of the launch (its arrays are X, Y)",
        ),
        (lambda *_: {"Y": np.zeros(3)}, "sums: expect returns Y of shape (3,), and the array has (2,)"),
    ],
)
def test_an_expect_that_is_wrong_says_so(expect: Callable[..., Any], message: str) -> None:
    judge = one(sums, [of_rows(2, 100)], expect=expect)
    assert message_of(lambda: judge.right(judge.kernel.problems[0])) == message


def test_a_kernel_that_is_wrong_itself_has_no_verdicts() -> None:
    def expect(*_: Any) -> Values:
        return {"Y": np.zeros(2)}

    judge = one(sums, [of_rows(2, 100)], expect=expect)
    assert message_of(lambda: judge.verdict(sample(judge, ["loop-bound"])[0]), PtxGenError).startswith(
        "sums: the kernel itself is found wrong on problem 0: Y[0] is "
    )


def test_a_kernel_that_faults_itself_has_no_verdicts() -> None:
    judge = one(scaled, [(2, (numbers(90), 100, 0.5))])
    assert message_of(lambda: judge.verdict(0), PtxGenError).startswith(
        "scaled: the kernel itself is found wrong on problem 0: kernel scaled:"
    )


def test_static_parameters_make_kernels_of_their_own() -> None:
    problems = [of_rows(2, 100), (*of_rows(2, 100), {"twice": True}), of_rows(1, 10)]
    result = judges(sums, problems)
    assert list(result) == ["sums", "sums #2"]
    assert [[str(p) for p in judge.kernel.problems] for judge in result.values()] == [
        ["problem 0", "problem 2"],
        ["problem 1"],
    ]


@pytest.mark.parametrize(
    ("problems", "message"),
    [
        ([], "mutation testing needs a problem to run the kernel on, got none"),
        ([3], "problem 0 must be (grid, arguments) or (grid, arguments, statics), got 3"),
        ([(1,)], "problem 0 must be (grid, arguments) or (grid, arguments, statics), got (1,)"),
    ],
)
def test_problems_that_are_none_are_refused(problems: list[Any], message: str) -> None:
    assert message_of(lambda: judges(sums, problems)) == message


def test_a_text_has_no_static_parameters() -> None:
    text = Path(__file__).parents[1] / "ptx" / "nvcc" / "stencils.sm_80.ptx"
    assert (
        message_of(lambda: judges(text, [(1, (), {"tile": 3})], entry="saxpy", block=32))
        == "problem 0 has static parameters, and a text has none; leave them out"
    )


REASONS = """
[[reason]]
why = "the sum is the same"
lines = ["k.strided(columns)"]
changes = [["loop-bound", "ge to gt", "setp.ge"]]
"""


def test_a_reason_is_about_a_line_of_the_source(tmp_path: Path) -> None:
    file = tmp_path / "equivalent.toml"
    file.write_text(REASONS)
    judge = one(sums, [of_rows(1, 100)], reasons=reasons_of(sums, file))
    (known,) = verdicts(judge, "loop-bound", "ge to gt")
    assert (known.caught_by, known.what) == (EQUIVALENT, "the sum is the same")
    other = one(sums, [of_rows(1, 100)], reasons=tuple(load(REASONS.replace("strided", "loop"))))
    (unknown,) = verdicts(other, "loop-bound", "ge to gt")
    assert unknown.caught_by == HOLE


def test_reasons_are_next_to_the_source() -> None:
    assert reasons_file(sums) == Path(__file__).with_name("equivalent.toml")
    assert reasons_file("some/kernel.cu") == Path("some/equivalent.toml")
    assert reasons_of(sums) == ()


def test_a_short_choice_has_one_mutant_of_each_kind() -> None:
    judge = one(sums, [of_rows(1, 100)])
    kinds = [judge.mutants[n].kind for n in sample(judge, short=True)]
    assert sorted(kinds) == sorted({m.kind for m in judge.mutants})
    assert sample(judge, short=True) == sample(judge, short=True)
    assert [judge.mutants[n].kind for n in sample(judge, ["bound"], short=True)] == ["bound"]


@px.kernel(threads=64)
def added(k: Any, X: Pointer[f32], Y: Pointer[f32]) -> None:  # type: ignore[valid-type]
    """Y[0] is the sum of 64 numbers, in any order."""
    i = k.thread_id()
    with k.when(i < 64):
        k.atomic.add(Y.element(0), X[i])


def test_results_that_depend_on_the_order_of_warps_need_a_tolerance() -> None:
    x = np.array([2.0**25, *[1.0] * 63], np.float32)
    problems = [(1, (x, np.zeros(1, np.float32)))]
    judge = one(added, problems)
    schedules = [f"pct:{seed}" for seed in range(1, 9)]
    with pytest.raises(PtxGenError) as refused:
        _ = [judge.right(judge.kernel.problems[0], schedule) for schedule in schedules]
    assert re.fullmatch(
        r"added: the kernel itself is found wrong on problem 0: Y\[0\] is \S+, wanted \S+; 1 element differs "
        r"\(under pct:\d: if results depend on the order of warps, allow a tolerance\)",
        str(refused.value),
    )
    tolerant = one(added, problems, rtol=1e-5)
    assert all(tolerant.right(tolerant.kernel.problems[0], schedule).wrong == "" for schedule in schedules)


@px.kernel(threads=32)
def doubled(k: Any, X: Pointer[f32]) -> None:  # type: ignore[valid-type]
    """X = 2 * X, without anything that an operator changes."""
    X[k.thread_id()] = X[k.thread_id()] * 2.0


def test_a_kernel_without_a_mutant_is_judged_itself() -> None:
    judge = one(doubled, [(1, (numbers(32),))])
    judge.require_right()
    assert judge.mutants == []
    wrong = one(doubled, [(1, (numbers(31),))])
    with pytest.raises(PtxGenError, match="the kernel itself is found wrong on problem 0: kernel doubled"):
        wrong.require_right()
