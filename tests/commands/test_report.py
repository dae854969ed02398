"""The command `tools/report.py`: what it reports on, what it writes, how it ends."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest
from command_line import Command
from report.kernels import CONFLICTS, RACE

from ptxgen.commands import report as tool
from ptxgen.commands.parts.named_objects import named

PROGRAM = "ptxgen report"

RUN = ["--grid", "1", "--arg", "zeros:u32:64", "--no-assemble"]
KERNELS = """
import numpy as np
import ptxgen as px
from ptxgen import Pointer, f32, u32

@px.kernel(threads=64)
def scale(k, X: Pointer[f32], n: u32, *, factor=2.0, steps=1):
    i = k.block_id() * 64 + k.thread_id()
    with k.when(i < n):
        for _ in range(steps):
            X[i] = X[i] * factor

def example():
    return 2, (np.ones(100, np.float32), 100), {"steps": 2}

def wrong():
    return "2", ()

other = 5
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.ptx").write_text(CONFLICTS)
    (tmp_path / "race.ptx").write_text(RACE)
    (tmp_path / "kernels.py").write_text(KERNELS)
    return tmp_path


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    assert tool.main([*words, "--no-assemble", "--json"]) in (tool.OK, tool.FAILED)
    return json.loads(capsys.readouterr().out)


def test_a_file_is_reported_on(call: Command) -> None:
    said = call("good.ptx", *RUN, "-o", "report.html")
    assert said.code == tool.OK
    assert said.out == "conflicts: 0 errors, 0 unproved, 2 lints; written to report.html\n"
    assert said.err.splitlines()[0] == "[1/6] reading"
    assert said.err.splitlines()[-1] == "[6/6] laying out the page"
    text = Path("report.html").read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert "<title>conflicts for sm_80: kernel report</title>" in text


def test_standard_input_and_output_are_taken(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(CONFLICTS.encode())))
    assert call.out("-", "--no-assemble").rstrip().endswith("</html>")


def test_errors_give_exit_code_1_and_the_page(call: Command) -> None:
    errors = re.fullmatch(
        r"conflicts: (\d+) errors, .*; written to report.html\n",
        call.out("race.ptx", *RUN, "-o", "report.html", code=tool.FAILED),
    )
    assert errors is not None
    assert int(errors[1]) > 0
    assert "sanitizer, race" in Path("report.html").read_text(encoding="utf-8")


def test_json_has_the_data_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    result = document(capsys, "good.ptx", *RUN)
    assert result["schema"] == tool.SCHEMA
    assert result["kernel"] == "conflicts"
    assert [access["wavefronts"] for access in result["shared"]["accesses"]] == [32, 32]
    assert result["config"] == [["file", "good.ptx"]]
    assert result["run"]["arguments"] == ["out = uint32 [64]"]


def test_a_function_in_a_file_is_launched_by_its_example(capsys: pytest.CaptureFixture[str]) -> None:
    result = document(capsys, "kernels.py:scale", "--example", "kernels.py:example")
    assert result["kernel"] == "scale"
    assert result["run"]["grid"] == [2, 1, 1]
    assert [file["name"] for file in result["sources"]] == ["kernels.py"]
    assert ["steps", "2"] in result["config"]
    assert [line["text"].strip() for line in result["ptx"] if "mul.rn" in line["text"]] == [
        "mul.rn.f32 %f1, %f0, 0f40000000;",
        "mul.rn.f32 %f3, %f2, 0f40000000;",
    ]


def test_a_function_takes_arguments_and_static_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--grid", "2", "--arg", "random:f32:100", "--arg", "u32:100", "--static", "factor=0.5"]
    result = document(capsys, "kernels.py:scale", *words, "--target", "sm_90")
    assert result["target"] == "sm_90"
    assert ["factor", "0.5"] in result["config"]
    of_global = next(one for one in result["proved"] if one["kind"] == "global memory")
    assert of_global["holds_for"] == "every launch with X[n]" or of_global["proved"] == 2


def test_a_module_is_imported_from_the_current_folder(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "module_of_report_test.py").write_text(KERNELS)
    monkeypatch.setattr(sys, "path", list(sys.path))
    result = document(capsys, "module_of_report_test:scale")
    assert result["kernel"] == "scale"
    assert result["run"] is None


@pytest.mark.slow
def test_an_attention_kernel_is_reported_on(capsys: pytest.CaptureFixture[str]) -> None:
    result = document(
        capsys, "attention", "--head-dim", "64", "--dtype", "f16", "--causal", "--stages", "2", "--seq", "130"
    )
    assert result["pipeline"]["lanes"][0]["flights"]
    assert result["proved"][0]["proved"] == result["proved"][0]["total"] > 0
    assert ["head dim", "64"] in result["config"]
    assert not [f for f in result["findings"] if f["severity"] == "error"]


@pytest.mark.slow
def test_an_attention_kernel_with_more_arrays_is_reported_on(capsys: pytest.CaptureFixture[str]) -> None:
    result = document(
        capsys, "attention", "--head-dim", "16", "--mask", "--return-lse", "--seq", "40", "--window", "8,"
    )
    assert result["run"]["clean"]


@pytest.mark.slow
def test_a_kernel_of_a_cache_is_reported_on_without_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    result = document(capsys, "append", "--head-dim", "64", "--dtype", "f16", "--page-size", "16")
    assert result["run"] is None
    assert ["page size", "16"] in result["config"]
    of_global = next(one for one in result["proved"] if one["kind"] == "global memory")
    assert of_global["proved"] == of_global["total"] > 0
    assert dict(result["missing"])["pipeline"] == "no launch was given"


def test_two_kernels_are_compared_with_the_same_or_with_other_options(call: Command) -> None:
    said = call("race.ptx", *RUN, "--against", "good.ptx", "-o", "both.html")
    assert said.code == tool.FAILED  # the race
    assert said.out.startswith("conflicts against conflicts: ")
    assert said.out.endswith(" worse; written to both.html\n")
    assert said.err.count("/12] ") == 12
    assert "New findings" in Path("both.html").read_text(encoding="utf-8")
    said = call(
        "kernels.py:scale", "--example", "kernels.py:example", "--no-assemble", "--json",
        "--against", "kernels.py:scale --grid 2 --arg zeros:f32:100 --arg u32:100 --static steps=3",
    )  # fmt: skip
    assert said.code == tool.OK
    compared = json.loads(said.out)
    assert [row for row in compared["opcodes"] if row["name"] == "mul.rn.f32"] == [
        {"name": "mul.rn.f32", "before": 3, "after": 2}
    ]


WRONG = [
    (["good.ptx", "--against", " "], tool.USAGE, "--against needs a kernel, such as old.py:scale or 'old.py"),
    (["good.ptx", "--against", "missing.ptx"], tool.FAILED, "cannot read missing.ptx: No such file"),
    (["good.ptx", "--arg", "u32:1"], tool.USAGE, "--arg needs --grid"),
    (
        ["good.ptx", "--static", "a=1"],
        tool.USAGE,
        "--static is for a kernel function, and good.ptx is PTX text",
    ),
    (["kernels.py:scale", "--entry", "k"], tool.USAGE, "--entry and --source are for PTX text"),
    (["good.ptx", "--static", "a"], tool.USAGE, "must be NAME=VALUE, got 'a'"),
    (["kernels.py:scale", "--example", "kernels.py:example", "--grid", "1"], tool.USAGE, "leave out --grid"),
    (["attention"], tool.USAGE, "--head-dim is required"),
    (["merge"], tool.USAGE, "--head-dim-v is required"),
    (["good.ptx", "--grid", "1"], tool.USAGE, "takes 1 argument"),
    (["good.ptx", "--entry", "conflict"], tool.USAGE, "did you mean 'conflicts'?"),
    (["kernels.py:other"], tool.USAGE, "kernels.py:other is no kernel function; decorate it with"),
    (["kernels.py:scales"], tool.USAGE, "kernels.py has no 'scales'; did you mean 'scale'?"),
    (["kernels.py:scale", "--example", "kernels.py:wrong"], tool.USAGE, "must return a grid of positive"),
    (["kernels.py:scale", "--block", "32,2"], tool.USAGE, "has one extent, its threads"),
    (["missing.ptx"], tool.FAILED, "cannot read missing.ptx: No such file or directory"),
    (["missing.py:f"], tool.FAILED, "cannot read missing.py: there is no such file"),
    (["no_such_module_at_all:f"], tool.FAILED, "cannot import no_such_module_at_all"),
    (["good.ptx", "--source", "missing.cu"], tool.FAILED, "cannot read missing.cu"),
    (["kernels"], tool.FAILED, "cannot read kernels"),
    (["kernels.py"], tool.USAGE, "kernels.py is Python; name its kernel function, kernels.py:NAME"),
    (
        ["kernels.py:scale", "--example", "example"],
        tool.USAGE,
        "'example' must be MODULE:FUNCTION or FILE.py:FUNCTION, such as kernels.py:softmax",
    ),
    (["good.ptx", "-o", "missing/report.html"], tool.FAILED, "cannot write missing/report.html"),
    (["kernels.py:scale", "--target", "sm_91"], tool.UNSUPPORTED, "unknown target 'sm_91'"),
    (["attention", "--head-dim", "1000"], tool.UNSUPPORTED, "head_dim"),
]


@pytest.mark.parametrize(("words", "code", "message"), WRONG, ids=[" ".join(w) for w, _, _ in WRONG])
def test_wrong_requests_are_refused(
    words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        ended = tool.main([*words, "--no-assemble"])
    except SystemExit as stop:
        ended = stop.code
    assert ended == code
    said = capsys.readouterr()
    assert message in said.err
    assert said.out == ""


def test_help_has_examples_and_exit_codes(call: Command) -> None:
    said = call.help()
    assert "examples:" in said
    assert "exit codes:" in said


# ------------------------------------------------------------------------------- stalls, and a walk


@pytest.mark.ptxas
@pytest.mark.usefixtures("disassembler")
def test_what_warps_wait_for_is_a_table(call: Command) -> None:
    text = call.out("kernels.py:scale", "--example", "kernels.py:example", "--stalls")
    head, of, *rows = text.splitlines()
    assert head == "scale for sm_80: clocks of the issue model, none of them measured"
    match = re.fullmatch(r"the kernel without a loop, 16 warps of a scheduler: ([\d,]+) clocks of a warp", of)
    assert match is not None
    by_source = rows[rows.index("   clocks    share  by line of Python") :]
    number = 1 + KERNELS.splitlines().index("            X[i] = X[i] * factor")
    line = next(n for n, row in enumerate(by_source) if f"kernels.py:{number}  X[i] = X[i] * factor" in row)
    assert "global memory" in by_source[line + 1]
    parts = [row.split() for row in rows[1 : rows.index("   clocks    share  by line of Python") - 1]]
    total = int(match[1].replace(",", ""))
    assert sum(int(clocks.replace(",", "")) for clocks, *_ in parts) == pytest.approx(total, abs=len(parts))


def test_without_an_assembler_the_table_says_why_it_is_missing(call: Command) -> None:
    words = "error: what warps wait for is not known: no assembler was asked\n"
    assert call("good.ptx", *RUN, "--stalls").err.endswith(words)


def test_a_walk_is_recorded_for_a_thread(capsys: pytest.CaptureFixture[str]) -> None:
    walk = document(
        capsys, "kernels.py:scale", "--example", "kernels.py:example", "--walk", "37", "--walk-cta", "1"
    )
    walk = walk["walk"]
    assert (walk["cta"], walk["warp"], walk["lane"]) == ([1, 0, 0], 1, 5)
    # The warp has elements 96 to 99 of 100, so that its first four lanes are active.
    assert 0b1111 in {step["active"] for step in walk["steps"]}


@pytest.mark.parametrize("option", ["--walk", "--stalls"])
def test_a_comparison_has_no_walk_and_no_stalls(call: Command, option: str) -> None:
    said = call("good.ptx", "--against", "race.ptx", option, "--no-assemble")
    words = f"ptxgen report: error: {option} shows one kernel; leave out --against\n"
    assert (said.code, said.err) == (tool.USAGE, words)


def test_files_of_the_same_name_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    for name, factor in (("old", "2.0"), ("new", "3.0")):
        Path(name).mkdir()
        Path(name, "k.py").write_text(KERNELS.replace("factor=2.0", f"factor={factor}"))
    words = "old/k.py:scale --example old/k.py:example"
    both = document(capsys, "new/k.py:scale", "--example", "new/k.py:example", "--against", words)
    assert [both[side]["config"][0] for side in ("before", "after")] == [
        ["function", "old/k.py:scale"],
        ["function", "new/k.py:scale"],
    ]
    modules = [named(f"{name}/k.py:scale").__module__ for name in ("new", "old", "new")]
    assert modules[0] == modules[2] != modules[1]
