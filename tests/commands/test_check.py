from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import Command
from report import kernels

from flash.contract.catalogue import build
from flash.problem.config import AttentionConfig
from ptxgen.commands import check as tool
from ptxgen.commands.parts import check_findings
from ptxgen.errors import AssemblerError, BackendError
from ptxgen.runtime.assembler import Assembly, KernelUsage
from ptxgen.runtime.assembler_log import Advisory

PROGRAM = "ptxgen check"

HEAD = kernels.HEAD
# Each thread stores its number to shared memory and reads its neighbour's.
GOOD = kernels.CONFLICTS.replace("conflicts(", "good(").replace("words[4096]", "words[128]")
GOOD = GOOD.replace(", 128, %r1;", ", 4, %r1;")
LONG = GOOD.replace("words[128]", "words[124]")  # the last thread is outside
RACE = GOOD.replace("\tbar.sync 0;\n", "")
STRIDED = GOOD.replace("mul.wide.u32 %rd1, %r0, 4", "mul.wide.u32 %rd1, %r0, 32")
CONFLICTS = GOOD.replace("words[128]", "words[4096]").replace(", 4, %r1;", ", 128, %r1;")
WRONG = GOOD.replace("mov.u32 %r0, %tid.x;", "mov.u32 %r0, %rd0;")
UNUSED = GOOD.replace(".param .u64 out\n", ".param .u64 out,\n\t.param .u32 n\n").replace(
    "\t.shared", "\t.shared .align 4 .b8 spare[8];\n\t.shared"
)
# The address comes out of memory.
UNKNOWN = GOOD.replace("mov.u32 %r0, %tid.x;", "ld.global.u32 %r0, [%rd0];")
ANY_BLOCK = GOOD.replace(".maxntid 32, 1, 1\n", "")

# Each thread stores to word n + thread of 64.
BOUNDED = GOOD.replace(".param .u64 out\n", ".param .u64 out,\n\t.param .u32 n\n")
BOUNDED = BOUNDED.replace("words[128]", "words[256]").replace(
    "mad.lo.u32 %r2, %r0, 4, %r1;",
    "ld.param.u32 %r5, [n];\n\tadd.u32 %r2, %r0, %r5;\n\tmad.lo.u32 %r2, %r2, 4, %r1;",
)

RUN = ["--entry", "good", "--grid", "1", "--arg", "zeros:u32:32"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in globals().items():
        if name.isupper() and isinstance(text, str) and ".entry" in text:
            Path(f"{name.lower()}.ptx").write_text(text)
    return tmp_path


def document(argv: list[str], code: int, call: Command) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(call.quiet(*argv, "--json", code=code))
    return result


def findings(found: dict[str, Any]) -> list[dict[str, str]]:
    return [*found["findings"], *(f for entry in found["entries"] for f in entry["findings"])]


# --------------------------------------------------------------------------------------- the report


def test_a_right_kernel(call: Command) -> None:
    assert call.quiet("good.ptx") == (
        "PTX 7.0 for sm_80\n"
        "\n"
        "good\n"
        "  block      32 threads\n"
        "  shared     128 bytes static, 0 dynamic\n"
        "  live       5 registers, 0 predicates\n"
        "  barriers   1 of 16\n"
        "  mix        2 ld, 2 mad, 2 mov, 2 st, 1 add, 1 bar\n"
        "  proof      2 of 2 shared accesses and 1 of 1 barriers proved\n"
        "    allocation        proved  violation  unknown  bytes\n"
        "    words                  2          0        0  0 to 127\n"
        "  races      not judged; a run looks for them (--grid, --arg)\n"
        "\n"
        "0 errors, 0 unproved, 0 lints\n"
    )


def test_what_the_verifier_finds_is_1_and_ends_the_checks(call: Command) -> None:
    result = call.quiet("wrong.ptx", code=1)
    assert result.startswith("PTX 7.0 for sm_80\n\nerror: verifier, operand: good: ")
    assert result.endswith("\n\n1 errors, 0 unproved, 0 lints\n")
    assert "proof" not in result


def test_a_violation_is_1_and_names_the_thread(call: Command) -> None:
    (first, *_) = findings(document(["long.ptx"], 1, call))
    assert (first["severity"], first["kind"], first["kernel"]) == ("error", "proof", "good")
    assert first["instr"] == "st.shared.u32 [%r2], %r0;"
    assert first["message"].endswith(": thread (31, 0, 0)")
    assert "words" in first["message"]


def test_unproved_is_1_with_strict_alone(call: Command) -> None:
    result = findings(document(["unknown.ptx"], 0, call))
    assert {(f["severity"], f["kind"]) for f in result} == {("unproved", "proof")}
    assert findings(document(["unknown.ptx", "--strict"], 1, call)) == result


def test_what_nobody_reads_is_a_lint(call: Command) -> None:
    result = call.quiet("unused.ptx")
    assert result.endswith(
        "lint: unused: good: no instruction reads n\n"
        "lint: unused: good: no instruction names spare, of 8 bytes\n"
        "\n"
        "0 errors, 0 unproved, 2 lints\n"
    )
    call.quiet("unused.ptx", "--strict", code=1)


def test_a_run_finds_a_race(call: Command) -> None:
    result = findings(document(["race.ptx", *RUN], 1, call))
    assert [(f["severity"], f["kind"]) for f in result] == [("error", "sanitizer, race")]
    assert result[0]["message"].startswith("ld.shared.u32 %r4, [%r3]; (line 20): thread (0, 0, 0) of ")
    assert "(words)" in result[0]["message"]


def test_a_run_that_stops_is_an_error(call: Command) -> None:
    argv = ["good.ptx", "--entry", "good", "--grid", "1", "--arg", "zeros:u32:31"]
    result = document(argv, 1, call)
    (one,) = findings(result)
    assert (one["severity"], one["kind"]) == ("error", "run")
    assert result["entries"][0]["run"] is None


COUNTS = GOOD.replace(
    "\tret;",
    "\t.reg .pred %p0;\n$on:\n\tadd.u32 %r0, %r0, 1;\n\tsetp.ne.u32 %p0, %r0, 0;\n\t@%p0 bra $on;\n\tret;",
)
REPEATS = GOOD.replace("\tret;", "$on:\n\tbra $on;")


def test_a_run_ends_at_the_limit(call: Command) -> None:
    (one,) = findings(document(["counts.ptx", *RUN, "--max-instructions", "100"], 1, call))
    assert (one["severity"], one["kind"]) == ("error", "run")
    assert one["message"].startswith("still running after 100 instructions in a row, at add.u32 %r0, %r0, 1;")


def test_a_run_whose_state_repeats_ends_at_once(call: Command) -> None:
    (one,) = findings(document(["repeats.ptx", *RUN], 1, call))
    assert (one["severity"], one["kind"]) == ("error", "run")
    assert one["message"].startswith("endless loop in CTA (0, 0, 0): 32 threads ")


def test_a_run_finds_the_costly_lines(call: Command) -> None:
    conflicts = findings(document(["conflicts.ptx", *RUN], 0, call))
    assert [(f["severity"], f["kind"], f["message"], f["instr"]) for f in conflicts] == [
        ("lint", "bank conflicts", "31 bank conflicts: 32 wavefronts instead of 1 in 1 requests", instr)
        for instr in ("st.shared.u32 [%r2], %r0; (line 17)", "ld.shared.u32 %r4, [%r3]; (line 21)")
    ]
    argv = ["strided.ptx", "--entry", "good", "--grid", "1", "--arg", "zeros:u32:256"]
    sectors = findings(document(argv, 0, call))
    assert [(f["severity"], f["kind"], f["message"]) for f in sectors] == [
        ("lint", "uncoalesced", "28 avoidable sectors: 32 of 32 bytes instead of 4 in 1 requests")
    ]
    assert "0 bank conflicts, 28 avoidable sectors" in call.quiet(*argv)


def test_only_the_entry_that_is_asked_for(call: Command) -> None:
    Path("two.ptx").write_text(GOOD + GOOD.removeprefix(HEAD).replace(" good(", " other("))
    entries = document(["two.ptx"], 0, call)["entries"]
    assert [e["entry"] for e in entries] == ["good", "other"]
    entries = document(["two.ptx", "--entry", "other"], 0, call)["entries"]
    assert [e["entry"] for e in entries] == ["other"]


def test_the_block_is_asked_for_or_the_kernels_own(call: Command) -> None:
    assert document(["good.ptx"], 0, call)["entries"][0]["block"] == [32]
    Path("req.ptx").write_text(GOOD.replace(".maxntid 32, 1, 1", ".reqntid 16, 2, 1"))
    assert document(["req.ptx"], 0, call)["entries"][0]["block"] == [16, 2, 1]
    result = document(["any_block.ptx", "--block", "8"], 0, call)
    assert result["entries"][0]["block"] == [8]
    document(["any_block.ptx", "--block", "64"], 1, call)
    assert call.error("any_block.ptx") == (2, "good does not say how many threads a block has; use --block")


def test_our_kernels_are_proved(call: Command) -> None:
    built = build(AttentionConfig(head_dim=16, tile=16, block_q=16).kernel())
    Path("attention.ptx").write_text(built.text)
    (entry,) = document(["attention.ptx", "--strict"], 0, call)["entries"]
    assert entry["proof"]["complete"]
    assert entry["resources"]["dynamic_shared"] == built.kernel.dynamic_shared_bytes


def test_standard_input(monkeypatch: pytest.MonkeyPatch, call: Command) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(GOOD.encode())))
    assert call.quiet("-").startswith("PTX 7.0 for sm_80\n\ngood\n")


def test_long_lists_are_cut_short(monkeypatch: pytest.MonkeyPatch, call: Command) -> None:
    monkeypatch.setattr(tool, "_SHOWN", 1)
    assert call.quiet("unused.ptx").endswith(
        "lint: unused: good: no instruction reads n\n"
        "\n"
        "and 1 more of severity lint; --json has all\n"
        "\n"
        "0 errors, 0 unproved, 2 lints\n"
    )


def test_the_json_has_everything(call: Command) -> None:
    result = document(["good.ptx", *RUN], 0, call)
    assert list(result) == ["schema", "ptx_version", "target", "counts", "findings", "entries"]
    assert result["schema"] == 1
    assert result["counts"] == {"error": 0, "unproved": 0, "lint": 0}
    (entry,) = result["entries"]
    assert list(entry) == ["entry", "block", "resources", "assembled", "proof", "run", "findings"]
    assert entry["assembled"] is None
    assert entry["resources"]["shared_total"] == 128
    assert entry["resources"]["mix"]["mad"] == 2
    assert entry["run"]["shared_requests"] == 2
    assert [v["verdict"] for v in entry["proof"]["accesses"]] == ["proved", "proved"]


# ------------------------------------------------------------------------------------ the assembler


def no_assembler(**_: object) -> None:
    raise BackendError("no assembler was found")


@pytest.fixture(autouse=True)
def _without_an_assembler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("ptxas") is None:
        monkeypatch.setattr(check_findings, "find_assembler", no_assembler)


@pytest.fixture
def assembling(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the tool's assembler do what the test wants."""

    def use(assemble: Any) -> None:
        result = SimpleNamespace(assemble=assemble)
        monkeypatch.setattr(check_findings, "find_assembler", lambda **_: result)

    return use


def test_the_assemblers_figures(assembling: Any, call: Command) -> None:
    usage = KernelUsage("good", 24, spill_store_bytes=4, spill_load_bytes=8, stack_bytes=16)
    advisory = Advisory("C7500", "something is slow", 12)
    built = Assembly(b"", "ptxas", "13.0.88", "sm_80", (usage,), (advisory,), "")
    assembling(lambda *_: built)
    result = call.quiet("good.ptx")
    assert "  assembled  24 registers, 16 bytes of stack, 12 spilled\n" in result
    assert result.endswith(
        "lint: assembler: C7500 something is slow\n"
        "    from line 12\n"
        "lint: assembler: good: registers are spilled: 4 bytes are stored and 8 loaded\n"
        "\n"
        "0 errors, 0 unproved, 2 lints\n"
    )


def test_what_the_assembler_refuses_is_an_error(assembling: Any, call: Command) -> None:
    def refuse(*_: object) -> None:
        raise AssemblerError("ptxas: refused")

    assembling(refuse)
    assert call.quiet("good.ptx", code=1) == (
        "PTX 7.0 for sm_80\n\nerror: assembler: ptxas: refused\n\n1 errors, 0 unproved, 0 lints\n"
    )


def test_an_assembler_may_be_left_alone(assembling: Any, call: Command) -> None:
    assembling(lambda *_: pytest.fail("it was asked"))
    assert document(["good.ptx", "--no-assemble"], 0, call)["entries"][0]["assembled"] is None


def test_no_assembler_is_1_only_if_one_is_asked_for(call: Command) -> None:
    assert document(["good.ptx"], 0, call)["entries"][0]["assembled"] is None
    assert call.error("good.ptx", "--assemble") == (1, "no assembler was found")


@pytest.mark.ptxas
def test_the_real_assembler_agrees(call: Command) -> None:
    (entry,) = document(["good.ptx", "--assemble"], 0, call)["entries"]
    assert entry["assembled"]["static_shared_bytes"] == 128


# ------------------------------------------------------------------------------------------- errors


TMA = Path(__file__).parents[1] / "ptx" / "nvcc" / "tma.sm_90a.ptx"
IMAGE = [str(TMA), "--entry", "tma_image", "--block", "64", "--no-assemble"]
MAP = "map:64x{rows}:128B:random:f16:16x128"


def test_the_box_of_a_tensor_map_is_in_the_proof(call: Command) -> None:
    (result,) = findings(document(IMAGE, 0, call))
    assert (result["severity"], result["message"]) == (
        "unproved",
        "the size of the box is in the tensor map, tma_image_param_0, which is not given",
    )
    known = [*IMAGE, "--param", f"tma_image_param_0={MAP}"]
    assert findings(document([word.format(rows=8) for word in known], 0, call)) == []
    (result,) = findings(document([word.format(rows=9) for word in known], 1, call))
    assert (result["severity"], result["kind"]) == ("error", "proof")
    assert result["message"].startswith(
        "bytes 0 to 1151 are outside _ZZ9tma_imageE4tile, which has 1024 bytes"
    )


def test_a_tensor_map_of_a_run_is_in_the_proof_too(call: Command) -> None:
    words = [MAP.format(rows=8), "zeros:u16:512", "u32:64", "u32:4"]
    run = [*IMAGE, "--grid", "1", *(part for word in words for part in ("--arg", word))]
    assert findings(document(run, 0, call)) == []


@pytest.mark.parametrize(
    ("bound", "message"),
    [
        ("n=32", ""),
        ("n=1..32", ""),
        ("n=-1..32", "bytes -4 to -1 are outside words, which has 256 bytes"),
        ("n=33", "bytes 256 to 259 are outside words, which has 256 bytes"),
    ],
)
def test_bounds_of_parameters_are_in_the_proof(bound: str, message: str, call: Command) -> None:
    argv = ["bounded.ptx", "--entry", "good", "--no-assemble", "--param", bound]
    result = findings(document(argv, 1 if message else 0, call))
    assert [f["message"].partition(":")[0] for f in result] == [message] * bool(message)


def test_dynamic_memory_may_be_known_to_be_aligned(call: Command) -> None:
    """As Triton's kernels need it: the proof of its matrices hangs on that alone."""
    path = TMA.parents[1] / "triton" / "attention.sm_90a.ptx"
    argv = [str(path), "--dynamic-smem", "65536", "--no-assemble"]
    before = document(argv, 0, call)["counts"]["unproved"]
    after = document([*argv, "--dynamic-align", "1024"], 0, call)["counts"]["unproved"]
    assert after < before


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["good.ptx", "--arg", "u32:1"], "--arg needs --grid"),
        (["good.ptx", "--param", "n=1"], "--param needs --entry"),
        *(
            (
                ["good.ptx", "--entry", "good", "--param", wrong],
                f"argument --param: must be NAME=NUMBER, NAME=LOWEST..HIGHEST or NAME=map:…, got {wrong!r}",
            )
            for wrong in ("n", "n=x", "n=1..", "=1", "n=1..2..3", "n=zeros:f32:4")
        ),
        (["good.ptx", "--grid", "1"], "--grid needs --entry"),
        (
            ["good.ptx", "--block", "0"],
            "argument --block: must be one to three numbers from 1, such as 4, 4,2 or 4x2x1, got '0'",
        ),
        (
            ["good.ptx", "--dynamic-smem", "x"],
            "argument --dynamic-smem: must be a whole number of at least 0, got 'x'",
        ),
    ],
)
def test_wrong_usage_is_2(argv: list[str], message: str, call: Command) -> None:
    assert call.usage(*argv) == message


def test_arguments_that_do_not_fit_are_2(call: Command) -> None:
    assert call.error("good.ptx", "--entry", "god") == (
        2,
        "the file has no entry 'god'; did you mean 'good'? (it has good)",
    )
    assert call.error("good.ptx", "--entry", "good", "--param", "in=1") == (
        2,
        "prove: good has no parameter 'in'",
    )
    argv = ["good.ptx", "--entry", "good", "--grid", "1"]
    assert call.error(*argv) == (2, "good takes 1 arguments (out: u64), got 0")
    assert call.error(*argv, "--arg", "u32:1") == (2, "argument 0 (out) must have the type u64, got u32:1")


def test_a_file_that_cannot_be_read_is_1(call: Command) -> None:
    assert call.error("none.ptx") == (1, "cannot read none.ptx: No such file or directory")
    Path("bad.ptx").write_text("no PTX")
    assert "bad.ptx" not in call.error("bad.ptx")[1]


def test_a_comparison_that_holds_for_every_number_is_a_lint(call: Command, tmp_path: Path) -> None:
    text = (Path(__file__).parents[1] / "ptx" / "bugs" / "missing_barrier.ptx").read_text()
    head, body = text.split("{", 1)
    (tmp_path / "k.ptx").write_text(
        f"{head}{{\n.reg .pred %q; .reg .b32 %s<2>; mov.u32 %s0, %tid.x;\nsub.u32 %s1, %s0, 1;\n"
        f"setp.ge.u32 %q, %s1, 0;\n{body}"
    )
    result = call.document(str(tmp_path / "k.ptx"), "--block", "256", "--json", "--no-assemble")["entries"][
        0
    ]["findings"]
    (lint,) = [f for f in result if f["kind"] == "comparison"]
    assert lint["severity"] == "lint"
    assert lint["message"].startswith("%s1 >= 0 holds for every unsigned number; sub.u32 %s1, %s0, 1; wraps")
