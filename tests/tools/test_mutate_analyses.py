from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Command

from ptxgen.runtime.private import NotPrivateError
from tools import mutate_analyses as tool
from tools.analyses import reasons as analysis_reasons
from tools.analyses import recording
from tools.analyses.kinds import mutants, mutants_of
from tools.analyses.recording import TestMap
from tools.analyses.source import HIT, MODULE, Mutant, Source, source_of
from tools.analyses.worker import TIME, Outcome, outcome, put

PROGRAM = "mutate_analyses.py"

FLOW = "ptxgen/check/flow.py"
BUDGET = "ptxgen/check/verify/budget.py"
TWO = (FLOW, BUDGET)


# ------------------------------------------------------------------------------------- what is run

BRANCHES = '''
def f(a):
    """Words."""
    if a:
        return 1
    for b in ():
        g(b)
    return lambda: 2

class A:
    x = 1
    def f(self):
        def h():
            return 3
        return h
'''


def test_a_block_says_that_it_runs() -> None:
    source, hits = Source("a.py", BRANCHES), set[int]()
    names: dict[str, Any] = {HIT: hits.add}
    exec(compile(source.recorded(), "a.py", "exec"), names)
    assert not hits
    names["f"](0)
    names["A"]().f()
    assert [str(source.blocks[n]) for n in sorted(hits)] == ["f#0", "A.f#0"]
    names["A"]().f()()
    names["f"](1)
    assert [str(source.blocks[n]) for n in sorted(hits)] == ["f#0", "f#1", "A.f#0", "A.f#1"]
    assert names["f"].__doc__ == "Words."


def test_a_mutant_has_the_block_that_it_is_in() -> None:
    source = Source("a.py", BRANCHES)
    result = {m.before: str(source.blocks[m.block]) for m in mutants_of(source)}
    assert result == {
        "if a:": "f#0",
        "return 1": "f#1",
        "g(b)": "f#2",
        "return lambda: 2": "f#0",
        "x = 1": "<module>#0",
        "return 3": "A.f#1",
    }


def test_live_functions_get_the_code_of_another_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("class A:\n    def f(self):\n        return 1\n")
    monkeypatch.setattr("tools.analyses.worker.ROOT", tmp_path)
    names: dict[str, Any] = {}
    text = (tmp_path / "a.py").read_text()
    exec(compile(text, str(tmp_path / "a.py"), "exec"), names)
    one = names["A"]()
    live = {("A.f", 2): [names["A"].f]}
    put("a.py", text.replace("return 1", "return [2 for _ in (3,)]"), live)
    assert one.f() == [2]


@pytest.mark.parametrize(
    ("said", "ended_by", "caught_by"),
    [
        ([("begins", "a"), ("begins", "b"), ("failed", "b")], 0, "b"),
        ([("begins", "a"), ("done", "")], 0, ""),
        ([("begins", "a")], signal.SIGALRM, TIME),
        ([("begins", "a"), ("failed", TIME)], signal.SIGKILL, TIME),
        ([("begins", "a")], signal.SIGSEGV, "crash"),
        ([("begins", "a")], 0, "crash"),
    ],
)
def test_what_a_child_says_is_an_outcome(said: list[tuple[str, str]], ended_by: int, caught_by: str) -> None:
    assert outcome(said, ended_by, 0.0).caught_by == caught_by


# --------------------------------------------------------------------------------------- recording


def recorded(**seconds: float) -> TestMap:
    """Tests that all enter all of FLOW."""
    result, source = TestMap(), source_of(FLOW)
    result.tests = {name.replace("__", "/"): s for name, s in seconds.items()}
    result.functions = {f"{FLOW}:{name}": source.function_hash(name) for name in source.functions}
    result.enters = {f"{FLOW}:{block}": set(result.tests) for block in source.blocks}
    return result


def of_function(file: str = FLOW) -> Mutant:
    return next(m for m in mutants(file) if m.function != MODULE)


def test_the_quickest_tests_are_asked_first() -> None:
    assert recorded(a=0.3, b=0.1, c=0.2).chosen(of_function(), 9) == [("b", 0.1), ("c", 0.2), ("a", 0.3)]


def test_further_cases_of_a_test_are_asked_later() -> None:
    tests = recorded(b=0.3)
    tests.tests |= {"a[1]": 0.2, "a[2]": 0.2}
    tests.enters = {block: set(tests.tests) for block in tests.enters}
    assert [test for test, _ in tests.chosen(of_function(), 9)] == ["a[1]", "b", "a[2]"]


def test_kernels_of_flash_are_asked_last_with_seconds_of_their_own() -> None:
    tests = recorded(a=0.3, tests__flash__test_kernel=0.1)
    tests.tests = {t.replace("test_kernel", "test_kernel.py::b"): s for t, s in tests.tests.items()}
    tests.enters = {block: set(tests.tests) for block in tests.enters}
    chosen = [test for test, _ in tests.chosen(of_function(), 0.35)]
    assert chosen == ["a", "tests/flash/test_kernel.py::b"]


def test_the_seconds_of_tests_are_bounded() -> None:
    assert [test for test, _ in recorded(a=0.3, b=0.1).chosen(of_function(), 0.35)] == ["b"]


def test_slow_tests_judge_nothing() -> None:
    assert recorded(a=21.0).chosen(of_function(), 99) == []


def test_only_tests_judge_that_enter_the_block() -> None:
    tests, mutant = recorded(a=0.1, b=0.1), of_function()
    block = f"{FLOW}:{source_of(FLOW).blocks[mutant.block]}"
    tests.enters[block] = {"b"}
    assert tests.chosen(mutant, 9) == [("b", 0.1)]


def test_only_tests_of_some_files_judge_if_they_are_named() -> None:
    tests = recorded(a=0.1)
    tests.tests = {"tests/test_a.py::b": 0.1, "tests/test_c.py::d": 0.1}
    tests.enters = {block: set(tests.tests) for block in tests.enters}
    assert tests.chosen(of_function(), 9, ["tests/test_c.py"]) == [("tests/test_c.py::d", 0.1)]


def test_a_function_that_changed_is_judged_by_all_tests_of_its_file() -> None:
    tests, mutant = recorded(a=0.1, b=0.1), of_function()
    tests.enters[f"{FLOW}:{source_of(FLOW).blocks[mutant.block]}"] = {"b"}
    tests.functions[f"{FLOW}:{mutant.function}"] = "older"
    assert len(tests.chosen(mutant, 9)) == 2


def test_what_runs_at_import_is_known() -> None:
    tests, mutant = recorded(a=0.1), of_function()
    assert not tests.runs_at_import(mutant)
    tests.at_import = {f"{FLOW}:{source_of(FLOW).blocks[mutant.block]}"}
    assert tests.runs_at_import(mutant)
    assert tests.runs_at_import(next(m for m in mutants(FLOW) if m.function == MODULE))


def test_a_recording_is_the_same_from_its_file(tmp_path: Path) -> None:
    tests = recorded(a=0.25, b=0.5)
    tests.hashes, tests.at_import = {"tests/a.py": "1"}, {f"{FLOW}:<module>#0"}
    tests.enters[f"{FLOW}:<module>#0"] = {"b"}
    tests.save(tmp_path / "map.npz")
    assert vars(TestMap.load(tmp_path / "map.npz")) == vars(tests)


def test_a_recording_of_another_schema_is_refused(tmp_path: Path) -> None:
    head = json.dumps({"schema": 0, "tests": {}})
    np.savez_compressed(tmp_path / "map.npz", head=np.array(head), bits=np.zeros((0, 0), np.uint8))
    with pytest.raises(ValueError, match=r"^it is no map of schema 1$"):
        TestMap.load(tmp_path / "map.npz")


def test_files_of_tests_that_changed_are_recorded_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(recording, "ROOT", tmp_path)
    (tmp_path / "test_a.py").write_text("1")
    (tmp_path / "test_b.py").write_text("2")
    tests = TestMap()
    tests.hashes = {name: recording._hash(name) for name in ("test_a.py", "test_b.py")}
    (tmp_path / "test_b.py").write_text("3")
    assert tests.stale(["test_a.py", "test_b.py"]) == ["test_b.py"]


def test_files_of_tests_that_are_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(recording, "ROOT", tmp_path)
    tests = TestMap()
    tests.tests, tests.hashes = {"test_a.py::b": 0.1}, {"test_a.py": "1"}
    tests.enters = {"a#0": {"test_a.py::b"}}
    assert tests.stale([]) == []
    assert (tests.tests, tests.hashes, tests.enters) == ({}, {}, {"a#0": set()})


# ----------------------------------------------------------------------------------------- reasons

ROW = '["a.py", "f", "flag", "x = True", "x = False"]'


def test_reasons_are_read() -> None:
    result = analysis_reasons.load(f'[[reason]]\nwhy = "Speed."\nmutants = [{ROW}]\n')
    assert result == {("a.py", "f", "flag", "x = True", "x = False"): "Speed."}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[reason]]\nmutants = []", "reason 1: needs a sentence `why` and a list `mutants`"),
        (
            '[[reason]]\nwhy = "Speed."\nmutants = [["a.py", "f"]]',
            "reason 1: must name file, function, kind, the line before and the line after, got ['a.py', 'f']",
        ),
        (
            f'[[reason]]\nwhy = "Speed."\nmutants = [{ROW}, {ROW}]',
            "reason 1: ['a.py', 'f', 'flag', 'x = True', 'x = False'] has a reason already",
        ),
    ],
)
def test_wrong_reasons_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - compared whole
        analysis_reasons.load(text)
    assert str(caught.value) == message


@pytest.mark.slow
def test_every_reason_is_about_a_mutant() -> None:
    assert analysis_reasons.unmatched(analysis_reasons.reasons()) == []


def test_a_reason_that_is_about_no_mutant_is_an_error(monkeypatch: pytest.MonkeyPatch, call: Command) -> None:
    monkeypatch.setattr(analysis_reasons, "files", lambda: TWO)
    key = ("a.py", "f", "flag", "x = True", "x = False")
    monkeypatch.setattr(tool, "reasons", lambda: {key: "Speed."})
    assert call.error() == (tool.FAILED, "a reason is about no mutant: a.py, f, flag, x = True, x = False")


# ---------------------------------------------------------------------------------------- the tool


@pytest.fixture
def judging(monkeypatch: pytest.MonkeyPatch) -> list[Mutant]:
    """The mutants that the tool has judged; by a test each, but those of a guard survive."""
    judged: list[Mutant] = []

    def campaign(_: object, wanted: list[Mutant], rows: dict[Mutant, Any]) -> None:
        for mutant in wanted:
            judged.append(mutant)
            caught_by = "" if mutant.kind == "guard" else "tests/a.py::test_b"
            rows[mutant] = tool.row_of(mutant, Outcome(caught_by, 3, 0.1))

    monkeypatch.setattr(tool, "_campaign", campaign)
    monkeypatch.setattr(tool, "reasons", dict)
    return judged


MODULE_ARGUMENTS = ["--module", "ptxgen.check.flow", "--count", "20"]


@pytest.mark.slow
def test_survivors_are_shown_and_are_an_error(
    judging: list[Mutant], capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.main([*MODULE_ARGUMENTS, "--kind", "guard", "--count", "1"]) == tool.FAILED
    (one,) = judging
    shown = capsys.readouterr().out
    assert (
        f"\n{FLOW}:{one.line}, in {one.function}: guard, {one.what}; 3 tests pass\n"
        f"  before  {one.before}\n  after   {one.after}\n"
    ) in shown
    assert shown.endswith("\n1 of 1 mutants judged: 0 are caught, 0 change no verdict, 1 survive\n")


@pytest.mark.slow
def test_all_is_well_if_each_is_caught(judging: list[Mutant]) -> None:
    assert tool.main([*MODULE_ARGUMENTS, "--kind", "comparison"]) == tool.OK
    assert judging


def test_a_survivor_with_a_reason_is_no_error(
    judging: list[Mutant], monkeypatch: pytest.MonkeyPatch, call: Command
) -> None:
    known = {m.key: "Only spares work." for m in mutants(FLOW) if m.kind == "guard"}
    monkeypatch.setattr(tool, "reasons", lambda: known)
    monkeypatch.setattr(analysis_reasons, "files", lambda: TWO)
    result = call.document(*MODULE_ARGUMENTS, "--json")
    guards = sum(m.kind == "guard" for m in judging)
    assert (result["counts"]["reason"], result["counts"]["survivor"]) == (guards, 0)
    reasons = {m.get("reason") for m in result["mutants"] if m["kind"] == "guard"}
    assert reasons == {"Only spares work."}


@pytest.mark.slow
def test_what_is_judged_already_is_kept(judging: list[Mutant], tmp_path: Path) -> None:
    file = str(tmp_path / "a.json")
    tool.main([*MODULE_ARGUMENTS, "--count", "5", "--output", file])
    tool.main([*MODULE_ARGUMENTS, "--count", "8", "--output", file, "--update"])
    assert len(judging) == len(set(judging)) == 8
    assert json.loads(Path(file).read_text())["counts"]["judged"] == 8


def test_what_is_said_of_other_modules_is_kept(judging: list[Mutant], tmp_path: Path) -> None:
    file = str(tmp_path / "a.json")
    tool.main([*MODULE_ARGUMENTS, "--count", "5", "--output", file])
    other = ["--module", "ptxgen.check.verify.budget", "--count", "3"]
    tool.main([*other, "--output", file, "--update"])
    assert len(judging) == 8
    result = json.loads(Path(file).read_text())
    assert [(m["name"], m["judged"]) for m in result["modules"]] == [
        ("ptxgen.check.flow", 5),
        ("ptxgen.check.verify.budget", 3),
    ]


def test_a_function_that_changed_is_judged_again(judging: list[Mutant], tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    tool.main([*MODULE_ARGUMENTS, "--output", str(file)])
    result = json.loads(file.read_text())
    changed = result["mutants"][3]["function"]
    for row in result["mutants"]:
        row["sha256"] = "older" if row["function"] == changed else row["sha256"]
    file.write_text(json.dumps(result))
    judging.clear()
    tool.main([*MODULE_ARGUMENTS, "--output", str(file), "--update"])
    assert {m.function for m in judging} == {changed}


def test_survivors_alone_are_judged_again(judging: list[Mutant], tmp_path: Path) -> None:
    file = str(tmp_path / "a.json")
    tool.main([*MODULE_ARGUMENTS, "--output", file])
    judging.clear()
    tool.main([*MODULE_ARGUMENTS, "--output", file, "--update", "--survivors"])
    assert {m.kind for m in judging} == {"guard"}
    every = list(judging)
    judging.clear()  # a smaller sample, or another one, has nothing to do with those of the file
    other = ["--module", "ptxgen.check.flow", "--count", "1", "--seed", "9"]
    tool.main([*other, "--output", file, "--update", "--survivors"])
    assert judging == every


def test_a_file_that_cannot_be_written_is_told_before_the_first_mutant(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(tool, "_campaign", lambda *_: pytest.fail("a mutant is judged"))
    assert tool.main([*MODULE_ARGUMENTS, "--output", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert said == f"mutate_analyses.py: error: cannot write {tmp_path}: it is a folder\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--update"], "--update needs --output, the file to update"),
        (["--survivors"], "--survivors goes with --update"),
        (["--count", "0"], "argument --count: must be a whole number of at least 1, got '0'"),
        (["--tests", "tests/test_nothing.py"], "there are no tests tests/test_nothing.py in the checkout"),
        (["--budget", "x"], "argument --budget: must be more than 0 seconds, got 'x'"),
    ],
)
def test_wrong_usage_has_an_exit_code_of_its_own(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        tool.main(arguments)
    assert caught.value.code == tool.USAGE
    assert capsys.readouterr().err.endswith(f"mutate_analyses.py: error: {message}\n")


def test_a_file_that_is_no_campaign_is_not_updated(tmp_path: Path, call: Command) -> None:
    file = tmp_path / "a.json"
    file.write_text("[]")
    assert call.error("--update", "--output", str(file)) == (
        tool.FAILED,
        f"cannot update {file}: it is no campaign of schema 1",
    )


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs a system with modes of files")
def test_a_recording_that_others_can_have_written_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setattr(tool.platformdirs, "user_cache_path", lambda _: tmp_path)
    arguments = argparse.Namespace(map=None, stop_after=None, tests=None)
    with pytest.raises(NotPrivateError) as error:
        tool._campaign(arguments, [next(mutants_of(source_of(FLOW)))], {})
    assert str(error.value) == f"{tmp_path} is writable by others (mode 777, wanted 700)"


@pytest.mark.nightly
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system that can fork")
@pytest.mark.parametrize("tests", [[], ["--tests", "tests/check/test_flow.py"]])
def test_a_small_campaign_from_the_beginning(
    tests: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool, "FIRST", () if tests else ("tests/check/test_flow.py",))
    monkeypatch.setattr(tool, "LAST", ())
    arguments = [*MODULE_ARGUMENTS, "--jobs", "1", "--json", "--map", str(tmp_path / "map.npz")]
    tool.main([*arguments, "--count", "8", *tests])
    result = json.loads(capsys.readouterr().out)
    assert result["counts"]["judged"] == 8
    assert result["counts"]["test"] > 4
    caught = {m["caught_by"].partition("::")[0] for m in result["mutants"] if m["caught_by"]}
    assert "tests/check/test_flow.py" in caught
