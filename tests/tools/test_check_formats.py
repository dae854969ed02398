"""Findings for code review, and the hook for pre-commit."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from flash.commands import check as tool
from flash.commands.main import main
from flash.commands.parts.check_findings import ERROR, LINT, UNPROVED, Finding
from flash.commands.parts.check_formats import FileFindings, github, sarif

ROOT = Path(__file__).resolve().parents[2]
KERNEL = """\
.version 7.0
.target sm_80
.address_size 64
.visible .entry {name}(.param .u64 out)
.maxntid 32, 1, 1
{{
    .reg .b32 %r<4>;
{body}
    ret;
}}
"""
GOOD = KERNEL.format(name="good", body="    ld.param.u32 %r0, [out];")
UNUSED = KERNEL.format(name="unused", body="")
UNDEFINED = KERNEL.format(name="undefined", body="    ld.param.u32 %r0, [out];\n    add.s32 %r1, %r0, %r2;")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with files of several kinds."""
    monkeypatch.chdir(tmp_path)
    texts = {"good": GOOD, "unused": UNUSED, "undefined": UNDEFINED, "no PTX": "hello\n"}
    for name, text in texts.items():
        (tmp_path / f"{name}.ptx").write_text(text)
    return tmp_path


def run_of(capsys: pytest.CaptureFixture[str], *argv: str, code: int) -> dict[str, Any]:
    assert tool.main([*argv, "--no-assemble", "--format", "sarif"]) == code
    found = json.loads(capsys.readouterr().out)
    assert found["version"] == "2.1.0"
    (run,) = found["runs"]
    assert isinstance(run, dict)
    return run


def test_sarif_has_what_the_standard_requires(capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(capsys, "undefined.ptx", "good.ptx", "unused.ptx", "no PTX.ptx", code=1)
    driver = run["tool"]["driver"]
    assert driver["name"] == "ptxgen check"
    assert all(rule["id"] and rule["shortDescription"]["text"] for rule in driver["rules"])
    assert len({rule["id"] for rule in driver["rules"]}) == len(driver["rules"])
    for result in run["results"]:
        assert set(result) == {"ruleId", "ruleIndex", "level", "message", "locations"}
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in {"none", "note", "warning", "error"}
        assert result["message"]["text"]
        (location,) = result["locations"]
        assert location["physicalLocation"]["region"]["startLine"] >= 1


def test_sarif_names_file_line_rule_and_kernel_of_each_finding(capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(capsys, "undefined.ptx", "unused.ptx", "no PTX.ptx", code=1)
    found = [
        (
            result["level"],
            result["ruleId"],
            result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"],
            result["locations"][0]["physicalLocation"]["region"]["startLine"],
            [place["name"] for place in result["locations"][0].get("logicalLocations", [])],
        )
        for result in run["results"]
    ]
    assert found == [
        ("error", "verifier", "undefined.ptx", 9, ["undefined"]),
        ("note", "unused", "unused.ptx", 4, ["unused"]),  # where the kernel begins
        ("error", "parse", "no%20PTX.ptx", 1, []),
    ]


def test_without_findings_the_run_is_empty_and_the_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(capsys, "good.ptx", code=0)
    assert run["results"] == run["tool"]["driver"]["rules"] == []


def test_lints_fail_a_review_with_strict_alone(capsys: pytest.CaptureFixture[str]) -> None:
    run_of(capsys, "unused.ptx", code=0)
    run_of(capsys, "unused.ptx", "--strict", code=1)


def test_an_absolute_path_and_standard_input_have_a_uri() -> None:
    finding = Finding(ERROR, "proof", "wrong")
    files = [FileFindings(path, "", [finding]) for path in ("/a b/k.ptx", "-")]
    results = sarif(files)["runs"][0]["results"]
    uris = [r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in results]
    assert uris == ["file:///a%20b/k.ptx", "stdin"]


def test_annotations_of_a_workflow(capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["undefined.ptx", "unused.ptx", "--no-assemble", "--format", "github"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "::error file=undefined.ptx,line=9,title=verifier%2C undefined::undefined: %25r2 is read but never "
        "written; write it on every path before%0Ain add.s32 %25r1, %25r0, %25r2;",
        "::notice file=unused.ptx,line=4,title=unused::unused: no instruction reads out",
    ]


def test_severities_are_error_warning_and_notice() -> None:
    findings = [Finding(severity, "proof", "x") for severity in (ERROR, UNPROVED, LINT)]
    lines = list(github([FileFindings("a.ptx", "", findings)]))
    assert [line.split()[0] for line in lines] == ["::error", "::warning", "::notice"]
    results = sarif([FileFindings("a.ptx", "", findings)])["runs"][0]["results"]
    assert [result["level"] for result in results] == ["error", "warning", "note"]


def test_what_ends_a_command_of_a_workflow_is_escaped() -> None:
    finding = Finding(ERROR, "a,b:c", "100%\r\n::warning::fake")
    (line,) = github([FileFindings("a,b:c.ptx", "", [finding])])
    assert line == ("::error file=a%2Cb%3Ac.ptx,line=1,title=a%2Cb%3Ac::100%25%0D%0A::warning::fake")


def test_the_line_of_a_run_is_that_of_the_instruction(capsys: pytest.CaptureFixture[str]) -> None:
    bug = str(ROOT / "tests" / "ptx" / "bugs" / "missing_barrier.ptx")
    launch = ["--grid", "1", "--block", "256", "--arg", "random:f32:256", "--arg", "zeros:f32:1"]
    run = run_of(capsys, bug, "--entry", "block_sum", *launch, code=1)
    (race,) = [result for result in run["results"] if result["ruleId"] == "sanitizer"]
    line = race["locations"][0]["physicalLocation"]["region"]["startLine"]
    assert "shared" in Path(bug).read_text().splitlines()[line - 1]


def test_a_file_that_cannot_be_read_does_not_end_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["none.ptx", "no PTX.ptx", "good.ptx", "--no-assemble"]) == 1
    said = capsys.readouterr()
    assert said.out.startswith("good.ptx: PTX 7.0 for sm_80\n")
    first, second, *_ = said.err.splitlines()
    assert first == "ptxgen check: error: cannot read none.ptx: No such file or directory"
    assert second.startswith("ptxgen check: error: no PTX.ptx: PTX text, line 1, column 1: ")


def test_json_is_of_one_file(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        tool.main(["good.ptx", "unused.ptx", "--json"])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.endswith("--format json is of one file; sarif takes several\n")


def test_the_hook_for_pre_commit_checks_the_files_that_it_is_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = (ROOT / ".pre-commit-hooks.yaml").read_text()
    hook = dict(re.findall(r"^(?:- |  )(\w+): (.*)$", text, re.MULTILINE))
    assert set(hook) >= {"id", "name", "entry", "language"}  # what pre-commit requires
    assert [name for name in ("a.ptx", "b/c.ptx", "a.ptx.py", "ptx") if re.search(hook["files"], name)] == [
        "a.ptx",
        "b/c.ptx",
    ]
    program, *argv = shlex.split(hook["entry"])
    assert program == "ptxgen"
    assert main([*argv, "good.ptx", "unused.ptx"]) == 0
    assert main([*argv, "good.ptx", "undefined.ptx"]) == 1
    capsys.readouterr()
