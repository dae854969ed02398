from __future__ import annotations

import hashlib
import json
import multiprocessing
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Command, words

from flash.error_bound import merge_bound
from flash.problem.config import AttentionConfig
from flash.scores.philox import keep_mask
from ptxgen import interpreter, ir
from ptxgen.commands.parts import mutant_verdicts
from ptxgen.errors import PtxGenError, TrapError
from ptxgen.interpreter import Result
from ptxgen.mutation.comparison import difference
from ptxgen.mutation.judge import CATCHERS, Judge, Verdict
from ptxgen.mutation.kernel_under_test import KernelUnderTest, Launch, Ran
from ptxgen.mutation.operators import KINDS, Mutant
from ptxgen.mutation.reasons import reason
from ptxgen.text import render
from tools.campaign import arrays as mutation_arrays
from tools.campaign import shipped as tool
from tools.campaign.judging import judge, judge_of, mutants_of, reasons
from tools.campaign.kernels import subjects
from tools.campaign.problems import Problem

PROGRAM = "ptxgen mutate"

SMALL = "f32-sm_75-causal-split"  # the quickest of the kernels
COPYING = "f32-sm_80"
TENSOR_CORES = "f16-sm_80"  # two loops: over the tile that the end cuts, and over the others
FOUR_WARPS = "bf16-sm_80-causal-stages"
NARROW = "f16-sm_80-causal-narrow"  # copies element by element
TF32 = "tf32-sm_80-window-sink"
FEATURES = "f16-sm_80-features"
MERGE = "f16-sm_80-merge"
APPEND = "f16-sm_80-append-paged"
CACHE = "f16-sm_80-cache-paged"
APPENDING = "f16-sm_80-cache-paged-append"  # and attending
SUM = "bf16-sm_80-sum"
STATIC = "bf16-sm_90a-static"


def numbers(kernel: str, kind: str, change: str = "") -> list[int]:
    return [
        n
        for n, m in enumerate(mutants_of(kernel))
        if m.kind == kind and m.name.startswith(f"{kind}: {change}")
    ]


def verdict(caught_by: str, name: str = "mask: dropped @7", what: str = "why") -> Verdict:
    return Verdict(
        SMALL,
        name,
        "mask",
        "@%p0 mov.u32 %r0, 1;",
        "mov.u32 %r0, 1;",
        "a step",
        "a mark",
        "k.py:1, in k",
        caught_by,
        what,
    )


@pytest.fixture
def judging(monkeypatch: pytest.MonkeyPatch) -> list[Verdict]:
    """What the tool's judge says, one after another; the kernel has so many mutants."""
    said: list[Verdict] = []
    monkeypatch.setattr(tool, "judge", lambda _, number: said[number])
    monkeypatch.setattr(tool, "mutants_of", lambda _: masks()[: len(said)])
    return said


def masks() -> list[Mutant]:
    return [mutants_of(SMALL)[n] for n in numbers(SMALL, "mask")]


# ------------------------------------------------------------------------------------- the verdicts


@pytest.mark.sample(0, gate=1)
@pytest.mark.parametrize("kernel", list(subjects()))
def test_a_right_kernel_passes_all_its_problems(kernel: str) -> None:
    for problem in subjects()[kernel].problems:
        assert judge_of(kernel).right(problem).wrong == ""


@pytest.mark.nightly
@pytest.mark.parametrize("kernel", ["f32-sm_75", COPYING])
def test_every_barrier_wait_and_commit_is_needed(kernel: str) -> None:
    for kind in ("barrier", "copy-wait", "copy-commit"):
        for number in numbers(kernel, kind):
            result = judge(kernel, number)
            assert result.caught_by == "sanitizer", result


@pytest.mark.slow
def test_what_is_caught_says_by_whom_and_why() -> None:
    (first, *_) = numbers(COPYING, "copy-wait", "deleted")
    result = judge(COPYING, first)
    assert (result.caught_by, result.problem) == ("sanitizer", 0)
    assert result.before == "cp.async.wait_group 0;"
    assert result.after == ""
    assert "may still be written by the copy" in result.what


@pytest.mark.slow
def test_what_is_known_before_a_run_needs_none() -> None:
    result = [judge(COPYING, n) for n in numbers(COPYING, "shared-offset", "operand 0 +4")]
    before = [(v.caught_by, v.problem) for v in result if v.before.startswith("cp.async")]
    assert set(before) == {("proof", -1)}
    wide = numbers(COPYING, "shared-offset", "operand 1 +4")[0]
    assert judge(COPYING, wide).caught_by == "verifier"


@pytest.mark.nightly
def test_a_barrier_of_one_warp_may_be_that_of_the_warp() -> None:
    result = [judge(SMALL, n) for n in numbers(SMALL, "barrier", "of each warp alone")]
    assert [v.caught_by for v in result] == ["equivalent", "equivalent"]
    assert {v.what for v in result} == {"proved: the block is one warp"}


@pytest.mark.slow
def test_a_constant_that_changes_nothing_in_any_thread_is_proved_equivalent() -> None:
    # One split: its number is always 0, and so is its part of head_dim, whatever the factor.
    subject = subjects()[COPYING]
    result = {
        m.before: reason(m, subject.block, reasons())
        for m in mutants_of(COPYING)
        if m.kind == "shared-address" and m.where.endswith("Products.__init__")
    }
    proved = "proved: computed for every thread of the block, all that is read elsewhere has the "
    times_zero = [why for before, why in result.items() if before.startswith("mul.lo.u32")]
    assert times_zero == [f"{proved}same value"] * 2 + [None] * (len(times_zero) - 2)
    assert any(why is None for why in result.values())


@pytest.mark.slow
def test_what_is_right_as_well_is_right_in_every_order_of_many_warps() -> None:
    # Which a schedule runs one by one: more instructions one after another than in lockstep.
    (number,) = numbers(FOUR_WARPS, "bound", "lt to le")[:1]
    assert judge(FOUR_WARPS, number).caught_by == "equivalent"


@pytest.mark.slow
def test_a_row_without_a_score_notices_a_shift_that_another_row_moves() -> None:
    places = {  # the largest score or the old shift
        m.index: n
        for n, m in enumerate(mutants_of(TENSOR_CORES))
        if m.name.startswith("mask: always the first") and m.mark == "lazy softmax: new base"
    }
    result = judge(TENSOR_CORES, places[min(places)])
    assert result.caught_by == "value"
    assert subjects()[TENSOR_CORES].problems[result.problem].scores == "none"


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("kernel", "kind", "change", "function", "noticed_by"),
    [
        (TF32, "mask", "dropped", "_rounded", lambda p: p.scores.startswith("large")),
        (TF32, "bound", "lt to le", "_rounded", lambda p: p.scores.startswith("large")),
        (FEATURES, "mask", "always the second", "tanh", lambda p: p.softcap == 2.0**20),
        (FEATURES, "bound", "ge to gt", "AppliedDropout.drop", lambda p: p.dropout_seed < 1 << 32),
        (FEATURES, "mask", "and for or", "Mask.hides", lambda p: p.nan_before > 0),
        (CACHE, "loop-bound", "ge to gt", "RestoredValues._restore_element", lambda p: p.splits == 1),
    ],
)
def test_what_only_a_special_problem_shows_is_noticed_there(
    kernel: str, kind: str, change: str, function: str, noticed_by: Callable[[Any], bool]
) -> None:
    at = [n for n in numbers(kernel, kind, change) if mutants_of(kernel)[n].where.endswith(function)]
    result = judge(kernel, at[-1])
    assert result.caught_by == "value", result
    assert noticed_by(subjects()[kernel].problems[result.problem])


@pytest.mark.slow
def test_a_role_that_goes_on_in_a_cta_without_a_part_waits_for_ever() -> None:
    subject = subjects()[STATIC]
    problem = subject.problems[-1]
    assert problem.ctas == 2
    changed = [mutants_of(STATIC)[n] for n in numbers(STATIC, "loop-bound", "never taken")]
    entries = [m for m in changed if m.where.endswith("WorkTiles.each") and "bra $done" in m.before]
    assert len(entries) == 2  # of the producer, and of those that compute
    assert subject.run(subject.module, problem).wrong == ""
    for mutant in entries:
        with pytest.raises(TrapError, match=r"deadlock in CTA \(1, 0, 0\)"):
            subject.run(mutant.module, problem)


@pytest.mark.nightly
def test_a_read_behind_the_columns_of_a_row_stops_the_kernel() -> None:
    copies = [
        n
        for n in numbers(TF32, "mask", "always the first")
        if mutants_of(TF32)[n].mark == "panel loader: piece"
    ]
    result = judge(TF32, copies[-1])  # of a tile of K that the end does not cut
    assert result.caught_by == "trap"
    assert subjects()[TF32].problems[result.problem].alike


@pytest.mark.nightly
def test_a_read_behind_the_last_key_of_a_cache_stops_the_kernel() -> None:
    kernel = "f32-sm_80-cache"
    rows = [n for n in numbers(kernel, "bound", "-1") if mutants_of(kernel)[n].mark == "tile loader: turns"]
    result = judge(kernel, rows[-1])  # of the next tile of K
    assert result.caught_by == "trap"
    assert subjects()[kernel].problems[result.problem].full


def test_a_condition_that_holds_in_every_thread_may_be_dropped() -> None:
    # 136 columns are more than the 128 that a warp has at once, and 4 a lane: all lanes have some.
    proved = "proved: computed for every thread of the block, the condition holds"
    result = [
        reason(mutants_of(MERGE)[n], subjects()[MERGE].block, reasons())
        for n in numbers(MERGE, "mask", "dropped")
        if mutants_of(MERGE)[n].where.endswith("_add_part")
    ]
    assert result == [proved, None] * 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "nth", "place"), [(APPEND, 2, "29, 1, 5, 87"), (APPENDING, 1, "233, 1, 5, 23")]
)
def test_any_bits_that_change_in_a_cache_but_its_new_rows_are_wrong(
    kernel: str, nth: int, place: str
) -> None:
    subject = subjects()[kernel]

    def meddling(*given: Any, args: Any, **how: Any) -> Result:
        done = interpreter.run(*given, args=args, **how)
        keys = args[nth].base  # with its margins
        keys[-1, -1, -1, -1] = -keys[-1, -1, -1, -1]  # NaN as before, but for its sign
        return done

    ran = subject.run(subject.module, subject.problems[0], launch=meddling)
    assert ran.wrong == f"K[{place}] has other bits; 1 elements differ"
    assert subject.run(subject.module, subject.problems[0]).wrong == ""


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("kind", "change", "function", "catcher", "what"),
    [
        ("barrier", "deleted", "AppendedKV._write_all", "sanitizer", "cp.async"),  # read too early
        ("bound", "+1", "AppendedKV._is_read_here", "value", "K["),  # the first row of the cache is left out
        ("bound", "inverted", "AppendedKV._is_read_here", "sanitizer", "cp.async"),  # by another part
        ("bound", "ge to gt", "AppendedKV._is_read_here", "value", "O["),  # by no part
        ("loop-bound", "lt to le", "AppendedKV._write_all", "trap", "k_new"),  # one row more
        ("bound", "+1", "_inside", "sanitizer", "st.global"),  # a column twice, turned and not
    ],
)
def test_new_rows_are_written_once_in_time_by_the_part_that_reads_them(
    kind: str, change: str, function: str, catcher: str, what: str
) -> None:
    all_of = mutants_of(APPENDING)
    at = [n for n in numbers(APPENDING, kind, change) if all_of[n].where.endswith(function)]
    result = judge(APPENDING, at[0])
    assert result.caught_by == catcher, result
    assert what in result.what


def test_a_part_that_has_seen_no_key_may_hold_anything() -> None:
    parts, lses = np.array([[1.0, 2], [np.nan, 3]]), np.array([0.5, -np.inf])
    bound = merge_bound(parts, lses, np.float32)
    assert (bound.out.tolist(), bound.lse.tolist()) == ([1, 2], 0.5)
    bound = merge_bound(parts, lses - np.inf, np.float32)
    assert (bound.out.tolist(), bound.lse.tolist()) == ([0, 0], -np.inf)


def test_in_each_place_of_a_fragment_some_random_number_is_the_threshold() -> None:
    config = AttentionConfig(16, dtype="f16", dropout=0.3)
    queries, keys = np.arange(32), np.arange(32)
    location = 4 * (queries % 16 // 8)[:, None] + keys % 16 // 8 * 2 + keys % 2
    result: set[int] = set()
    seeds = {p.dropout_seed for p in subjects()[FEATURES].problems if p.dropout_seed < 1 << 32}
    for seed in seeds:
        kept_now = keep_mask(config.dropout, seed, np.zeros(1, int), queries, keys)
        kept_more = keep_mask(config.dropout - 2**-16, seed, np.zeros(1, int), queries, keys)
        result |= set(location[(kept_now != kept_more)[0]].tolist())
    assert result == set(range(8))


@pytest.mark.slow
def test_what_is_read_behind_the_last_column_reaches_a_result() -> None:
    guarded = [
        n for n in numbers(NARROW, "mask", "dropped") if "ld.global.b16" in mutants_of(NARROW)[n].before
    ]
    result = judge(NARROW, guarded[-1])
    assert result.caught_by == "value"
    assert "nan" in result.what


@pytest.mark.parametrize("element", ["f16", "f32"])
def test_any_bits_that_change_in_a_margin_are_wrong(element: str) -> None:
    dtype = {"f16": np.float16, "f32": np.float32}[element]
    whole = np.full((1, 1, 4, 8), np.nan, dtype)
    view, queries = whole[:, :, :2, :6], np.array([True, True])
    changed = mutation_arrays.margins_changed
    view[...] = 1
    assert changed(view, queries) == ""
    assert changed(view[:, :, ::-1], queries) == ""
    whole[0, 0, 2, 0] = -whole[0, 0, 2, 0]  # NaN as before, but for its sign
    assert changed(view, queries) == "O is written outside its rows and columns"


@pytest.mark.parametrize("reverse", [False, True])
def test_rows_of_no_sequence_are_a_margin(reverse: bool) -> None:
    whole = np.full((1, 1, 4, 8), np.nan, np.float32)
    view, queries = whole[:, :, :2, :6], np.array([True, False])
    view = view[:, :, ::-1] if reverse else view
    view[0, 0, 0] = 1
    assert mutation_arrays.margins_changed(view, queries) == ""
    view[0, 0, 1, 2] = 1
    wrong = mutation_arrays.margins_changed(view, queries)
    assert wrong == "O is written outside its rows and columns"


def test_results_outside_of_what_is_allowed_are_wrong() -> None:
    subject, problem = subjects()[SMALL], Problem(3, 5, heads=1)
    module = subject.module
    (kernel,) = module.kernels
    # LOG2E, the factor of the scale, becomes 1.4428, which is 1 + 7e-5 times as much.
    body = tuple(
        ir.Instr(s.opcode, (*s.operands[:2], ir.FloatImm(0x3FB8ADAC, 32)), s.guard, s.origin)
        if isinstance(s, ir.Instr) and ir.FloatImm(0x3FB8AA3B, 32) in s.operands
        else s
        for s in kernel.body
    )
    assert body != kernel.body
    off = ir.Module(
        module.version,
        module.target,
        (ir.Kernel(**{n: getattr(kernel, n) for n in kernel.__slots__} | {"body": body}),),
    )
    assert subject.run(module, problem).wrong == ""
    assert subject.run(off, problem).wrong.endswith(" elements differ")


def test_nan_is_right_only_where_it_is_wanted() -> None:
    wanted = np.array([1.0, np.nan, -np.inf])
    allowed = np.full(3, 0.1)
    assert difference("O", np.array([1.05, np.nan, -np.inf]), wanted, allowed) == ""
    assert difference("O", np.array([np.nan, np.nan, 0]), wanted, allowed) == (
        "O[0] is nan, wanted 1; 2 elements differ"
    )


def test_a_wrong_kernel_ends_the_campaign(monkeypatch: pytest.MonkeyPatch, call: Command) -> None:
    real = subjects()[SMALL]

    def wrongly(problem: Problem) -> Launch:
        return replace(real.prepare(problem), wrong=lambda _: "O[0] is 1, wanted 2; 1 elements differ")

    wrong = replace(real, problems=(Problem(1, 2),), prepare=wrongly)
    monkeypatch.setattr(tool, "judge", lambda _, number: Judge(wrong).verdict(number))
    assert call.error("--kernel", SMALL, "--short", "--jobs", "1") == (
        1,
        f"{SMALL}: the kernel itself is found wrong on Problem(seq_q=1, seq_k=2, "
        "batch=1, heads=2, kv_heads=1, nan_from=None, nan_before=0, times=1.0, "
        "scores='random', reverse=False, alike=False, section=1, window=None, softcap=None, "
        "lengths=(), dropout_seed=81985529216486895, broadcast=(), odd=(), ctas=None, nan_columns=()): "
        "O[0] is 1, wanted 2; 1 elements differ",
    )


# ------------------------------------------------------------------------------------- the record


def test_the_table_in_the_docs_is_that_of_the_recorded_campaign() -> None:
    root = Path(__file__).parents[2]
    result = json.loads((root / "benchmarks" / "results" / "mutations.json").read_text())
    names = [kernel["name"] for kernel in result["kernels"]]
    columns = ("judged", "equivalent", *CATCHERS, "hole")
    counts = [
        [sum(kind[column] for kind in kernel["kinds"].values()) for column in columns]
        for kernel in result["kernels"]
    ]
    counts.append([result["counts"][column] for column in columns])
    wanted = [
        f"| {name} | {' | '.join(map(str, row))} |"
        for name, row in zip([*(f"`{name}`" for name in names), "all"], counts, strict=True)
    ]
    lines = (root / "docs" / "campaign.md").read_text().splitlines()
    first = lines.index(f"| kernel | mutants | {' | '.join(columns[1:])} |") + 2
    assert lines[first : first + len(wanted) + 1] == [*wanted, ""]
    assert set(names) <= set(subjects())
    missing = ", ".join(f"`{name}`" for name in subjects() if name not in names)
    said = re.findall(r"Not judged whole yet: (.*?)\.", " ".join(lines))
    assert said == ([missing] if missing else [])
    assert all(kernel["judged"] == kernel["mutants"] for kernel in result["kernels"])
    assert (result["holes"], result["share_caught"]) == ([], 1)


@pytest.mark.slow
def test_the_recorded_kernels_are_those_that_ship() -> None:
    root = Path(__file__).parents[2]
    result = json.loads((root / "benchmarks" / "results" / "mutations.json").read_text())
    shipped = {
        name: hashlib.sha256(render(subject.module).encode()).hexdigest()
        for name, subject in subjects().items()
    }
    assert {kernel["name"]: kernel["sha256"] for kernel in result["kernels"]}.items() <= shipped.items()


# ----------------------------------------------------------------------------------------- the tool


@pytest.mark.nightly
def test_the_short_campaign_has_no_hole(call: Command) -> None:
    result = call.document("--short", "--kernel", SMALL, "--jobs", "1", "--json")
    assert result["holes"] == []
    assert result["share_caught"] == 1
    assert result["counts"]["judged"] == 3


@pytest.mark.nightly
def test_processes_change_nothing(call: Command) -> None:
    argv = ["--kernel", SMALL, "--kind", "barrier"]
    one = call.out(*argv, "--jobs", "1")
    assert call.out(*argv, "--jobs", "2") == one


def test_the_report(judging: list[Verdict], capsys: pytest.CaptureFixture[str]) -> None:
    judging += [verdict("sanitizer"), verdict("value"), verdict("equivalent", what="proved: so")]
    judging += [verdict("hole", "mask: dropped @9", "nothing reported; the same bits")]
    assert tool.main(["--kernel", SMALL, "--jobs", "1"]) == 1
    header = "".join(f"{c:>12}" for c in ("judged", *CATCHERS, "equivalent", "hole"))
    row = f"{4:>12}{'':>24}{1:>12}{'':>12}{1:>12}{'':>24}{1:>12}{1:>12}"
    assert capsys.readouterr().out == (
        f"{SMALL:<24}{header}\n"
        f"  mask                  {row}\n"
        f"  all                   {row}\n"
        "\n"
        f"{SMALL}: 1 equivalent, proved: so\n"
        "  mask: dropped @7\n"
        "\n"
        f"{SMALL}: hole, mask: dropped @9: nothing reported; the same bits\n"
        "  before  @%p0 mov.u32 %r0, 1;\n"
        "  after   mov.u32 %r0, 1;\n"
        "  step    a step\n"
        "  mark    a mark\n"
        "  from    k.py:1, in k\n"
        "\n"
        "4 mutants, 1 equivalent; of the other 3, 2 are caught (66.67%), 1 are holes\n"
    )


def test_the_json_and_the_file_are_the_same(judging: list[Verdict], call: Command, tmp_path: Path) -> None:
    judging += [verdict("value"), verdict("equivalent", what="proved: so"), verdict("hole")]
    path = tmp_path / "mutations.json"
    text = call.out("--kernel", SMALL, "--jobs", "1", "--json", "--output", str(path), code=1)
    assert path.read_text() == text
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    counts = {"judged": 3, **dict.fromkeys(CATCHERS, 0), "equivalent": 1, "hole": 1, "value": 1}
    assert json.loads(text) == {
        "schema": 1,
        "kernels": [
            {
                "name": SMALL,
                "entry": subjects()[SMALL].entry,
                "sha256": hashlib.sha256(render(subjects()[SMALL].module).encode()).hexdigest(),
                "mutants": 3,
                "judged": 3,
                "kinds": {"mask": counts},
            }
        ],
        "counts": counts,
        "share_caught": 0.5,
        "equivalent": [{"kernel": SMALL, "reason": "proved: so", "mutants": ["mask: dropped @7"]}],
        "holes": [
            {
                "kernel": SMALL,
                "name": "mask: dropped @7",
                "kind": "mask",
                "before": "@%p0 mov.u32 %r0, 1;",
                "after": "mov.u32 %r0, 1;",
                "step": "a step",
                "mark": "a mark",
                "where": "k.py:1, in k",
                "what": "why",
            }
        ],
    }


def test_an_update_keeps_the_kernels_that_are_not_judged(judging: list[Verdict], tmp_path: Path) -> None:
    path = tmp_path / "mutations.json"
    judging += [verdict("value"), verdict("equivalent", what="proved: so"), verdict("hole")]
    of_others = [replace(v, kernel=COPYING) for v in judging]
    both = tool.document([*judging, *of_others], {SMALL: 3, COPYING: 3})
    assert tool.main(["--kernel", SMALL, "--jobs", "1", "--output", str(path)]) == 1
    judging[:] = of_others
    argv = ["--kernel", COPYING, "--jobs", "1", "--update", "--output", str(path)]
    assert tool.main(argv) == 1
    kernels = sorted(both["kernels"], key=lambda kernel: list(subjects()).index(kernel["name"]))
    result = json.loads(path.read_text())
    assert result["kernels"] == kernels
    assert [row["kernel"] for row in result["equivalent"]] == [COPYING, SMALL]
    assert [row["kernel"] for row in result["holes"]] == [COPYING, SMALL]
    assert (result["counts"], result["share_caught"]) == (both["counts"], 0.5)
    judging[:] = [verdict("value")]
    assert tool.main([*argv[:1], SMALL, *argv[2:]]) == 1  # the hole of the other kernel is there
    assert json.loads(path.read_text())["counts"]["judged"] == 4


def test_only_what_has_changed_is_judged(
    monkeypatch: pytest.MonkeyPatch, judging: list[Verdict], tmp_path: Path
) -> None:
    path = tmp_path / "mutations.json"
    judging += [verdict("value"), verdict("trap")]
    monkeypatch.setattr(tool, "subjects", lambda: {name: subjects()[name] for name in (SMALL, COPYING)})
    argv = ["--jobs", "1", "--output", str(path)]
    assert tool.main([*argv, "--kernel", SMALL]) == 0
    asked: list[str] = []
    monkeypatch.setattr(tool, "judge", lambda kernel, n: asked.append(kernel) or judging[n])
    update = [*argv, "--changed", "--update"]
    assert tool.main(update) == 0
    assert asked == [COPYING] * 2
    assert [kernel["name"] for kernel in json.loads(path.read_text())["kernels"]] == [SMALL, COPYING]
    text = path.read_text()
    assert tool.main(update) == 0
    assert (asked, path.read_text()) == ([COPYING] * 2, text)
    result = json.loads(text)
    result["kernels"][0]["sha256"] = "0"
    path.write_text(json.dumps(result))
    assert tool.main(update) == 0
    assert asked[2:] == [SMALL] * 2
    assert path.read_text() == text


def test_survivors_are_judged_again_by_themselves(judging: list[Verdict], tmp_path: Path) -> None:
    path = tmp_path / "mutations.json"
    rest = ["--kernel", SMALL, "--jobs", "1", "--output", str(path)]
    first, second, third = (m.name for m in masks()[:3])
    judging += [verdict("equivalent", first, "so"), verdict("hole", second), verdict("hole", third)]
    assert tool.main(rest) == 1
    judging[:] = [verdict("trap", first), verdict("value", second), verdict("equivalent", third, "so")]
    assert tool.main([*rest[2:], "--survivors", "--update"]) == 0
    wanted = tmp_path / "wanted.json"
    assert tool.main([*rest[:-1], str(wanted)]) == 0
    assert json.loads(path.read_text()) == json.loads(wanted.read_text())


def test_what_a_journal_has_is_not_judged_again(
    monkeypatch: pytest.MonkeyPatch, judging: list[Verdict], tmp_path: Path
) -> None:
    journal, path = tmp_path / "verdicts", tmp_path / "mutations.json"
    names = [m.name for m in masks()[:3]]
    judging += [
        verdict(catcher, name) for catcher, name in zip(("trap", "hole", "value"), names, strict=True)
    ]
    asked: list[int] = []

    def judged(_: str, number: int) -> Verdict:
        asked.append(number)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return judging[number]

    monkeypatch.setattr(tool, "judge", judged)
    argv = ["--kernel", SMALL, "--jobs", "1", "--output", str(path), "--journal", str(journal)]
    with pytest.raises(KeyboardInterrupt):
        tool.main(argv)
    lines = journal.read_text()
    assert [json.loads(line)["name"] for line in lines.splitlines()] == names[:2]
    journal.write_text(lines + lines[:20])  # the third was not written whole
    assert tool.main(argv) == 1
    assert asked == [0, 1, 2, 2]
    assert tool.main(argv) == 1
    assert asked == [0, 1, 2, 2]
    result = json.loads(path.read_text())
    assert result == tool.document(judging, {SMALL: 3})
    other = [json.dumps(json.loads(line) | {"sha256": "0"}) for line in journal.read_text().splitlines()]
    journal.write_text("\n".join(other) + "\n")  # of another text
    assert tool.main(argv) == 1
    assert asked == [0, 1, 2, 2, 0, 1, 2]
    assert json.loads(path.read_text()) == result


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("3\n", "line 1 is no verdict"),
        ("x\n", "Expecting value: line 1 column 1 (char 0)"),
        (json.dumps({"sha256": "0", **asdict(verdict("trap")), "also": 3}) + "\n", "line 1 is no verdict"),
        (json.dumps({"sha256": "0", **asdict(verdict("trap")), "kernel": {}}) + "\n", "line 1 is no verdict"),
    ],
)
def test_a_journal_that_cannot_be_read_is_1(
    text: str, problem: str, judging: list[Verdict], call: Command, tmp_path: Path
) -> None:
    judging += [verdict("trap")]
    path = tmp_path / "verdicts"
    path.write_text(text)
    assert call.error("--kernel", SMALL, "--jobs", "1", "--journal", str(path)) == (
        1,
        f"cannot keep {path}: {problem}",
    )
    assert path.read_text() == text


def test_a_hole_that_stays_is_still_one(judging: list[Verdict], tmp_path: Path) -> None:
    path = tmp_path / "mutations.json"
    first, second = (m.name for m in masks()[:2])
    judging += [verdict("value", first), verdict("hole", second)]
    assert tool.main(["--kernel", SMALL, "--jobs", "1", "--output", str(path)]) == 1
    before = path.read_text()
    assert tool.main(["--jobs", "1", "--output", str(path), "--survivors", "--update"]) == 1
    assert path.read_text() == before


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "[Errno 2] No such file or directory: '{path}'"),
        ("3", "it is no campaign of schema 1"),
        (
            json.dumps({"schema": 1, "kernels": [{"name": COPYING, "sha256": "0"}]}),
            f"{COPYING} changed since; judge them, too: --kernel {COPYING}",
        ),
    ],
)
def test_what_cannot_be_updated_is_1(
    text: str | None, problem: str, judging: list[Verdict], call: Command, tmp_path: Path
) -> None:
    path = tmp_path / "mutations.json"
    if text is not None:
        path.write_text(text)
    judging += [verdict("value")]
    argv = ["--kernel", SMALL, "--jobs", "1", "--update", "--output", str(path)]
    said = call(*argv)
    assert said.code == 1
    assert said.err == (f"ptxgen mutate: error: cannot update {path}: {problem.format(path=path)}\n")
    assert text is None or path.read_text() == text


def test_without_a_hole_the_exit_code_is_0(judging: list[Verdict]) -> None:
    judging += [verdict("trap"), verdict("equivalent")]
    assert tool.main(["--kernel", SMALL, "--jobs", "1"]) == 0


def test_a_file_that_cannot_be_written_is_told_before_the_first_mutant(
    monkeypatch: pytest.MonkeyPatch, call: Command, tmp_path: Path
) -> None:
    monkeypatch.setattr(tool, "judge", lambda *_: pytest.fail("a mutant is judged"))
    path = tmp_path / "none" / "mutations.json"
    (tmp_path / "none").write_text("")
    assert call.error("--kernel", SMALL, "--jobs", "1", "--output", str(path)) == (
        1,
        f"cannot write {path}: {path.parent} is no folder",
    )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--update"], "--update needs --output, the file to update"),
        (
            ["--survivors", "--output", "x"],
            "--survivors goes with --update, and neither with --kind nor with --short",
        ),
        (
            ["--changed", "--update", "--output", "x", "--short"],
            "--changed goes with --update, and neither with --kind nor with --short",
        ),
        (words("--changed --survivors --update --output x"), "--survivors and --changed exclude each other"),
        (
            ["--survivors", "--update", "--output", "x", "--journal", "y"],
            "--survivors judges again what --journal would keep",
        ),
        (["--jobs", "0"], "argument --jobs: must be a whole number of at least 1, got '0'"),
        (["--jobs", "x"], "argument --jobs: must be a whole number of at least 1, got 'x'"),
        (
            ["--kind", "bariers"],
            f"argument --kind: invalid choice: bariers (choose from {', '.join(KINDS)})"
            "; did you mean barrier?",
        ),
    ],
)
def test_wrong_usage_is_2(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        tool.main(argv)
    assert stopped.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    plain = str.maketrans("", "", "'")  # Python 3.12 has no quotes
    assert last.translate(plain) == f"ptxgen mutate: error: {message}".translate(plain)


@pytest.mark.parametrize("kernel", [SMALL, MERGE, SUM])
def test_the_sample_is_fixed_and_of_different_kinds(kernel: str) -> None:
    arguments = tool._arguments(["--short", "--kernel", kernel])
    chosen = tool._chosen(kernel, arguments)
    assert chosen == sorted(chosen)
    assert chosen == tool._chosen(kernel, arguments)
    kinds = [mutants_of(kernel)[n].kind for n in chosen]
    assert len(set(kinds)) == len(kinds) == min(3, len({m.kind for m in mutants_of(kernel)}))
    few = tool._arguments(["--short", "--kind", "mask"])  # all of SUM's have reasons
    assert [mutants_of(kernel)[n].kind for n in tool._chosen(kernel, few)] == ["mask"]


@pytest.mark.slow
def test_the_sample_of_all_kernels_is_of_every_kind() -> None:
    arguments = tool._arguments(["--short"])
    every, taken = Counter[str](), Counter[str]()
    for kernel, subject in subjects().items():
        if subject.sampled is None:  # the others, whose runs take long, have mutants of fewer kinds
            every.update({m.kind for m in mutants_of(kernel)})
        taken.update(mutants_of(kernel)[n].kind for n in tool._chosen(kernel, arguments))
    assert taken.keys() == every.keys()
    assert all(count >= min(3, every[kind]) for kind, count in taken.items()), taken


def test_a_batch_is_of_one_kernel() -> None:
    pairs = [(SMALL, n) for n in range(9)] + [(MERGE, n) for n in range(3)]
    batches = list(mutant_verdicts._batches(pairs))
    assert [pair for batch in batches for pair in batch] == pairs
    assert [len(batch) for batch in batches] == [8, 1, 3]


def test_progress_is_told_now_and_then(
    monkeypatch: pytest.MonkeyPatch, judging: list[Verdict], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mutant_verdicts, "_QUIET_S", 0.0)
    judging += [verdict("hole"), verdict("value")]
    tool.main(["--kernel", SMALL, "--jobs", "1"])
    assert capsys.readouterr().err.splitlines() == [
        f"ptxgen mutate: 1 of 2 mutants; {SMALL}, 1 holes",
        f"ptxgen mutate: 2 of 2 mutants; {SMALL}, 1 holes",
    ]


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_an_interrupt_ends_the_processes_of_a_campaign() -> None:
    result = mutant_verdicts.verdicts(judge, [(SMALL, number) for number in range(24)], jobs=2)
    assert next(result).name == mutants_of(SMALL)[0].name
    with pytest.raises(KeyboardInterrupt):
        result.throw(KeyboardInterrupt())
    end = time.monotonic() + 60
    for process in multiprocessing.active_children():
        # The pool's own thread waits for the process, too: who comes second learns its end from the first.
        while process.exitcode is None and time.monotonic() < end:
            process.join(0.1)
        assert process.exitcode == -signal.SIGTERM


def test_a_mutant_that_the_interpreter_refuses_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    run = KernelUnderTest.run

    def refuses(subject: KernelUnderTest, module: ir.Module, problem: Problem, **how: Any) -> Ran:
        if module is not subject.module and module is not judge_of(subject.name).probed:
            raise PtxGenError("no such instruction")
        return run(subject, module, problem, **how)

    monkeypatch.setattr(KernelUnderTest, "run", refuses)
    (first, *_) = numbers(SMALL, "barrier")
    result = judge(SMALL, first)
    assert (result.caught_by, result.what) == ("verifier", "no such instruction")
