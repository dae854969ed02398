"""Findings for code review, and the hook for pre-commit."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from command_line import Command

from ptxgen.commands import check as tool
from ptxgen.commands.main import main
from ptxgen.commands.parts.check_findings import ERROR, LINT, UNPROVED, Finding, assembled
from ptxgen.commands.parts.check_formats import FileFindings, github, sarif
from ptxgen.ir import Location
from ptxgen.runtime.assembler_log import refusal_error

PROGRAM = "ptxgen check"

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


def run_of(call: Command, *argv: str, code: int) -> dict[str, Any]:
    result = call.document(*argv, "--no-assemble", "--format", "sarif", code=code)
    assert result["version"] == "2.1.0"
    (run,) = result["runs"]
    assert isinstance(run, dict)
    return run


def test_sarif_has_what_the_standard_requires(call: Command) -> None:
    run = run_of(call, "undefined.ptx", "good.ptx", "unused.ptx", "no PTX.ptx", code=1)
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


def test_sarif_names_file_line_rule_and_kernel_of_each_finding(call: Command) -> None:
    run = run_of(call, "undefined.ptx", "unused.ptx", "no PTX.ptx", code=1)
    actual = [
        (
            result["level"],
            result["ruleId"],
            result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"],
            result["locations"][0]["physicalLocation"]["region"]["startLine"],
            [location["name"] for location in result["locations"][0].get("logicalLocations", [])],
        )
        for result in run["results"]
    ]
    assert actual == [
        ("error", "verifier", "undefined.ptx", 9, ["undefined"]),
        ("note", "unused", "unused.ptx", 4, ["unused"]),  # where the kernel begins
        ("error", "parse", "no%20PTX.ptx", 1, []),
    ]


def test_without_findings_the_run_is_empty_and_the_code_0(call: Command) -> None:
    run = run_of(call, "good.ptx", code=0)
    assert run["results"] == run["tool"]["driver"]["rules"] == []


def test_lints_fail_a_review_with_strict_alone(call: Command) -> None:
    run_of(call, "unused.ptx", code=0)
    run_of(call, "unused.ptx", "--strict", code=1)


def test_an_absolute_path_and_standard_input_have_a_uri() -> None:
    finding = Finding(ERROR, "proof", "wrong")
    files = [FileFindings(path, "", [finding]) for path in ("/a b/k.ptx", "-")]
    results = sarif(files)["runs"][0]["results"]
    uris = [r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in results]
    assert uris == ["file:///a%20b/k.ptx", "stdin"]


def test_annotations_of_a_workflow(call: Command) -> None:
    assert call.out(
        "undefined.ptx", "unused.ptx", "--no-assemble", "--format", "github", code=1
    ).splitlines() == [
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


def test_the_line_of_a_run_is_that_of_the_instruction(call: Command) -> None:
    bug = str(ROOT / "tests" / "ptx" / "bugs" / "missing_barrier.ptx")
    launch = ["--grid", "1", "--block", "256", "--arg", "random:f32:256", "--arg", "zeros:f32:1"]
    run = run_of(call, bug, "--entry", "block_sum", *launch, code=1)
    (race,) = [result for result in run["results"] if result["ruleId"] == "sanitizer"]
    line = race["locations"][0]["physicalLocation"]["region"]["startLine"]
    assert "shared" in Path(bug).read_text().splitlines()[line - 1]


def compiled(text: str, source: str) -> str:
    """The text with a `.loc` directive before each instruction: line 100 + n of the source for line n."""
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"\s+(@|[a-z])[^:]*;", line):
            lines.append(f"\t.loc 1 {100 + number} 5")
        lines.append(line)
    return "\n".join([*lines, f'.file 1 "{source}"', ""])


RACE = (ROOT / "tests" / "ptx" / "bugs" / "missing_barrier.ptx").read_text()
BLOCK_SUM = ["--entry", "block_sum", "--grid", "1", "--block", "256"]
BLOCK_SUM += ["--arg", "random:f32:256", "--arg", "zeros:f32:1"]


def places_of(result: dict[str, Any], key: str = "locations") -> list[tuple[str, int]]:
    actual = [location["physicalLocation"] for location in result.get(key, [])]
    return [(location["artifactLocation"]["uri"], location["region"]["startLine"]) for location in actual]


def test_a_finding_about_compiled_code_is_at_its_line_of_the_source(folder: Path, call: Command) -> None:
    text = compiled(RACE, f"{folder}/sum.cu")
    (folder / "sum.ptx").write_text(text)
    (folder / "sum.cu").write_text("")
    run = run_of(call, "sum.ptx", *BLOCK_SUM, code=1)
    (race,) = [result for result in run["results"] if result["ruleId"] == "sanitizer"]
    ((uri, line),) = places_of(race)
    assert uri == "sum.cu"
    assert "shared" in RACE.splitlines()[line - 101]
    ((uri, line),) = places_of(race, "relatedLocations")
    assert uri == "sum.ptx"
    assert "shared" in text.splitlines()[line - 1]
    said = call.out("sum.ptx", *BLOCK_SUM, "--no-assemble", "--format", "github", code=1)
    assert f"::error file=sum.cu,line={places_of(race)[0][1]},title=sanitizer%2C race::" in said
    assert f"%0Aalso sum.ptx:{line}\n" in said


def test_a_finding_about_compiled_code_is_at_the_line_of_ptx_if_the_source_is_elsewhere(
    folder: Path, call: Command
) -> None:
    text = compiled(RACE, "/build/of/others/sum.cu")
    (folder / "sum.ptx").write_text(text)
    run = run_of(call, "sum.ptx", *BLOCK_SUM, code=1)
    (race,) = [result for result in run["results"] if result["ruleId"] == "sanitizer"]
    ((uri, line),) = places_of(race)
    assert uri == "sum.ptx"
    assert "shared" in text.splitlines()[line - 1]
    ((uri, line),) = places_of(race, "relatedLocations")
    assert uri == "file:///build/of/others/sum.cu"
    assert "shared" in RACE.splitlines()[line - 101]


def test_code_that_was_inlined_from_elsewhere_is_at_the_line_of_its_call(folder: Path) -> None:
    (folder / "mine.cu").write_text("")
    call = Location("mine.cu", 7)
    finding = Finding(ERROR, "proof", "x", line=3, source=Location("/usr/include/cub.cuh", 9, 0, "", call))
    file = FileFindings("k.ptx", "", [finding])
    assert file.lines(finding) == [("mine.cu", 7), ("k.ptx", 3)]


def test_a_number_in_a_message_is_no_line() -> None:
    finding = Finding(ERROR, "run", "line 12 of the array is missing", where="line 13")
    assert FileFindings("k.ptx", "", [finding]).lines(finding) == [("k.ptx", 1)]


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("    ld.param.u64 %rd0, [out];\n    st.global.u32 [%rd0+4096], 1;", "st.global"),
        ("    ld.param.u64 %rd0, [out];\n    trap;", "trap"),
        ("    bar.warp.sync 3;", "bar.warp"),
    ],
    ids=["access", "trap", "deadlock"],
)
def test_the_line_of_what_stops_a_run_is_that_of_the_instruction(
    folder: Path, call: Command, body: str, wanted: str
) -> None:
    registers = "    .reg .b64 %rd<2>;\n"
    text = compiled(KERNEL.format(name="stopped", body=registers + body), "/elsewhere/k.cu")
    (folder / "stopped.ptx").write_text(text)
    launch = ["--entry", "stopped", "--grid", "1", "--block", "32", "--arg", "zeros:u32:1"]
    run = run_of(call, "stopped.ptx", *launch, code=1)
    (stop,) = [result for result in run["results"] if result["ruleId"] == "run"]
    ((uri, line),) = places_of(stop)
    assert uri == "stopped.ptx"
    assert wanted in text.splitlines()[line - 1]


def test_a_refusal_of_the_assembler_has_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refuses:
        def assemble(self, text: str, target: str) -> None:
            log = "ptxas kernel.ptx, line 9; error   : Unknown symbol 'x'"
            raise refusal_error("ptxas 13.0", log, text, target, "exit 255")

    monkeypatch.setattr("ptxgen.commands.parts.check_findings.find_assembler", lambda **_: Refuses())
    _, (finding,) = assembled(GOOD, "sm_80")
    assert FileFindings("k.ptx", GOOD, [finding]).lines(finding) == [("k.ptx", 9)]


def test_a_file_that_cannot_be_read_does_not_end_the_others(call: Command) -> None:
    said = call("none.ptx", "no PTX.ptx", "good.ptx", "--no-assemble")
    assert said.code == 1
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


ON_ONE_PATH = KERNEL.format(
    name="chosen",
    body="""    .reg .pred %p0;
    ld.param.u32 %r0, [out];
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra $join;
    mov.u32 %r1, 7;
$join:
    selp.u32 %r2, %r0, %r1, %p0;
    add.u32 %r3, %r2, %r2;""",
)


def test_a_register_that_one_path_does_not_write_is_unproved_and_no_error(
    folder: Path, call: Command
) -> None:
    (folder / "chosen.ptx").write_text(ON_ONE_PATH)
    run_of(call, "chosen.ptx", "--strict", code=1)
    run = run_of(call, "chosen.ptx", code=0)
    (result,) = run["results"]
    assert (result["level"], result["ruleId"]) == ("warning", "verifier")
    assert result["message"]["text"].startswith(
        "chosen: %r1 may be read before it is written: a path to here does not write it; write it on every"
    )
