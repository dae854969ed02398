from __future__ import annotations

import json
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Command
from fake_gpu import Machine

from ptxgen.errors import AssemblerError, BackendError, LaunchError
from ptxgen.parse import parse
from ptxgen.runtime.cuda import CudaBackend
from ptxgen.target import target
from tools import witness as tool
from tools.campaign.judging import mutants_of
from tools.campaign.kernels import subjects
from tools.commands import witness_launch, witness_sanitizer
from tools.commands.witness_sanitizer import CheckResult, Sanitizer, examine, find_sanitizer, judged
from tools.witness import Bench, Row

PROGRAM = "witness.py"

SMALL = "f32-sm_75-causal-split"  # the quickest of the kernels

# ------------------------------------------------------------------------------------ its log, read

# From the manual of Compute Sanitizer 2026.4; the name of the kernel is another.
OUT_OF_BOUNDS = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at attention()+0x50
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x710fdca00001 is misaligned
=========     and is inside the nearest allocation at 0x710fdca00000 of size 4 bytes
=========
========= Invalid __global__ write of size 4 bytes
=========     at attention()+0x90
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x87654320 is out of bounds
=========
========= Error: process didn't terminate successfully
========= Target application returned an error
========= ERROR SUMMARY: 2 errors
"""
ANALYSIS = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at attention()+0x90
=========     and Read access at attention()+0x100 [508 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
HAZARD = """\
========= ERROR: Potential WAW hazard detected at __shared__ 0x0 in block (0,0,0) :
=========     Write Thread (0,0,0) at WAW()+0x2f0 in raceWAW.cu:20
=========     Write Thread (1,0,0) at WAW()+0x2f0 in raceWAW.cu:20
=========     Current Value : 1, Incoming Value : 2
"""
UNINITIALISED = """\
========= Uninitialized __shared__ memory read of size 4 bytes
=========     at attention()+0x1a0
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x0
========= ERROR SUMMARY: 1 error
"""
DIVERGENT = """\
 ========= Barrier error detected. Divergent thread(s) in block.
 =========     at attention()+0x11f0
 =========     by thread (32,0,0) in block (0,0,0)
 =========
"""
RIGHT = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
NO_RACE = """\
========= COMPUTE-SANITIZER
========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)
"""
LEAKS = """\
========= COMPUTE-SANITIZER
========= LEAK SUMMARY: 0 bytes leaked in 0 allocations
========= Warning: Detected overflow of tracked cuda::barrier structures. Results might be incorrect. Try using --num-cuda-barriers to fix the issue
========= ERROR SUMMARY: 0 errors
"""  # noqa: E501
# What 2026.4 and 2025.2 print where there is no driver.
NO_DRIVER = """\
========= COMPUTE-SANITIZER
========= Error: process didn't terminate successfully
=========     The application may have hit an error when dereferencing Unified Memory from the host.
========= Error: Target application terminated before first instrumented API call
"""
NO_DRIVER_EITHER = """\
========= COMPUTE-SANITIZER
========= Error: Target application terminated before first instrumented API call
========= Error: couldn't find exit code.
"""
NO_LIBRARY = """\
========= COMPUTE-SANITIZER
========= Unable to find injection library libsanitizer-collection.so
"""
NOT_TRACKED = """\
========= Internal Sanitizer Error: The Sanitizer encountered an error while launching kernel_name
========= ERROR SUMMARY: 0 errors
"""


@pytest.mark.parametrize("log", [RIGHT, NO_RACE, LEAKS], ids=["errors", "races", "leaks"])
def test_a_summary_without_errors_is_clean(log: str) -> None:
    assert judged("memcheck", log, 0) == CheckResult("memcheck", "clean")


def test_each_report_is_a_finding_with_its_lines() -> None:
    said = judged("memcheck", OUT_OF_BOUNDS, 86)
    assert said.verdict == "errors"
    assert [f.split("\n")[0] for f in said.findings] == ["Invalid __global__ write of size 4 bytes"] * 2
    assert said.findings[1].split("\n") == [
        "Invalid __global__ write of size 4 bytes",
        "at attention()+0x90",
        "by thread (0,0,0) in block (0,0,0)",
        "Address 0x87654320 is out of bounds",
    ]


@pytest.mark.parametrize(
    ("log", "first"),
    [
        (ANALYSIS, "Error: Race reported between Write access at attention()+0x90"),
        (HAZARD, "ERROR: Potential WAW hazard detected at __shared__ 0x0 in block (0,0,0) :"),
        (UNINITIALISED, "Uninitialized __shared__ memory read of size 4 bytes"),
        (DIVERGENT, "Barrier error detected. Divergent thread(s) in block."),
    ],
)
def test_the_reports_of_all_checks_are_read(log: str, first: str) -> None:
    (result,) = judged("any", log, 86).findings
    assert result.split("\n")[0] == first


def test_what_is_not_known_is_a_finding() -> None:
    said = judged("memcheck", "========= A new kind of hardware error\n", 1)
    assert said.findings == ("A new kind of hardware error",)


def test_errors_that_are_only_counted_are_errors() -> None:
    said = judged("memcheck", "========= ERROR SUMMARY: 3 errors\n", 0)
    assert (said.verdict, said.findings) == ("errors", ("3 errors in its summary",))


@pytest.mark.parametrize(
    ("log", "code", "stderr", "why"),
    [
        (
            NO_DRIVER,
            255,
            "",
            "Error: process didn't terminate successfully; Error: Target application terminated "
            "before first instrumented API call",
        ),
        (
            NO_DRIVER_EITHER,
            255,
            "",
            "Error: Target application terminated before first instrumented API call; Error: "
            "couldn't find exit code.",
        ),
        (NO_LIBRARY, 13, "", "Unable to find injection library libsanitizer-collection.so"),
        ("", 1, "unrecognised option\n", "exit code 1 and no summary; unrecognised option"),
        (
            RIGHT,
            1,
            "witness_launch.py: error: no GPU",
            "exit code 1 and no summary; witness_launch.py: error: no GPU",
        ),
    ],
)
def test_a_check_that_did_not_come_to_look_has_no_verdict(log: str, code: int, stderr: str, why: str) -> None:
    assert judged("initcheck", log, code, stderr) == CheckResult("initcheck", "none", why=why)


def test_a_launch_that_was_not_tracked_is_not_clean() -> None:
    said = judged("racecheck", NOT_TRACKED, 0)
    assert said.verdict == "none"


# -------------------------------------------------------------------- where it is, how it is called


def program(folder: Path, body: str) -> Path:
    """A compute-sanitizer for tests."""
    path = folder / "compute-sanitizer"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable}\nimport sys, time\n{body}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


ANSWERS = """\
if sys.argv[1] == "--help":
    print("--padding arg (=0)\\n--report-api-errors arg (=explicit)")
    sys.exit(0)
if sys.argv[1] == "--version":
    print("NVIDIA (R) Compute Sanitizer\\nVersion 2025.2.1.0 (build 1)")
    sys.exit(0)
log = sys.argv[sys.argv.index("--log-file") + 1]
"""


def test_only_options_that_it_has_are_used(tmp_path: Path) -> None:
    result = find_sanitizer(program(tmp_path, ANSWERS))
    assert result.version == "2025.2.1.0"
    assert result.options == {
        "memcheck": ("--padding", "4096", "--report-api-errors", "no"),
        "racecheck": (),
        "initcheck": (),
        "synccheck": (),
    }
    assert result.general == ()


def test_the_packages_library_is_named_where_it_is_not_found(tmp_path: Path) -> None:
    library = tmp_path / "lib" / "libsanitizer-collection.so"
    library.parent.mkdir()
    library.touch()
    result = find_sanitizer(program(tmp_path / "bin", ANSWERS))
    assert result.general == ("--injection-path", str(library.parent))


def test_it_is_found_on_the_path_and_in_the_toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    program(tmp_path / "toolkit", ANSWERS)
    compiler = tmp_path / "toolkit" / "nvcc"
    compiler.touch(0o755)
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "nvcc").symlink_to(compiler)
    assert find_sanitizer().path == tmp_path / "toolkit" / "compute-sanitizer"
    in_home = program(tmp_path / "home" / "bin", ANSWERS)
    assert find_sanitizer().path == in_home
    on_path = program(tmp_path / "path", ANSWERS)
    assert find_sanitizer().path == on_path


def test_none_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness_sanitizer, "_candidates", list)
    with pytest.raises(BackendError) as refused:
        find_sanitizer()
    assert str(refused.value) == (
        "compute-sanitizer was not found: none on PATH, in CUDA_HOME, beside nvcc, or among the "
        "Python packages; pip install nvidia-cuda-sanitizer-api, or name it with --sanitizer"
    )
    with pytest.raises(BackendError, match=r"was not found: \S*nothing is not a file; pip install"):
        find_sanitizer(tmp_path / "nothing")


def test_a_program_that_does_not_answer_is_told(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"--help failed: .*; is it a compute-sanitizer\?$"):
        find_sanitizer(program(tmp_path, "sys.exit(3)\n"))


def test_the_call_and_what_comes_of_it(tmp_path: Path) -> None:
    body = f"open(log, 'w').write({ANALYSIS!r})\nopen(log + '.args', 'w').write(repr(sys.argv[1:]))\n"
    sanitizer = find_sanitizer(program(tmp_path, ANSWERS + body + "sys.exit(86)\n"))
    log = tmp_path / "log"
    said = examine(sanitizer, "racecheck", ["python", "launch.py"], "attention", log, 30)
    assert (said.tool, said.verdict, len(said.findings)) == ("racecheck", "errors", 1)
    assert (tmp_path / "log.args").read_text() == repr(
        [
            *("--tool", "racecheck", "--show-backtrace", "no", "--print-limit", "20", "--error-exitcode"),
            *("86", "--log-file", str(log), "--kernel-name", "kne=attention", "--", "python", "launch.py"),
        ]
    )


def test_a_launch_that_does_not_end_is_ended(tmp_path: Path) -> None:
    sanitizer = find_sanitizer(program(tmp_path, ANSWERS + "time.sleep(60)\n"))
    said = examine(sanitizer, "synccheck", ["x"], "k", tmp_path / "log", 0.2)
    assert said == CheckResult("synccheck", "hangs", why="the launch did not end within 0.2 s")
    assert said.noticed


def test_an_unknown_check_is_refused() -> None:
    sanitizer = Sanitizer(Path("x"), "1", {})
    with pytest.raises(LaunchError) as refused:
        examine(sanitizer, "leakcheck", [], "k", Path("log"), 1)
    assert str(refused.value) == (
        "examine: tool must be one of memcheck, racecheck, initcheck, synccheck, got 'leakcheck'"
    )


# --------------------------------------------------------------------------------------- the launch

SCALE = """\
.version 7.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 x, .param .u64 y, .param .f32 factor)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<5>;
    .reg .f32 %f<3>;
    ld.param.u64 %rd0, [x];
    ld.param.u64 %rd1, [y];
    ld.param.f32 %f0, [factor];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd2, %r0, 4;
    add.u64 %rd3, %rd0, %rd2;
    add.u64 %rd4, %rd1, %rd2;
    ld.global.f32 %f1, [%rd3];
    mul.f32 %f2, %f1, %f0;
    st.global.f32 [%rd4], %f2;
    ret;
}
"""


def stored(folder: Path, x: Any, y: Any) -> list[Any]:
    (kernel,) = parse(SCALE).kernels
    args = [x, y, np.float32(2.5)]
    return witness_launch.store(folder, SCALE.encode(), kernel, grid=1, block=32, args=args, dynamic_smem=0)


def test_arrays_go_to_the_gpu_with_what_is_around_them(tmp_path: Path) -> None:
    whole = np.full(64, np.nan, np.float32)
    x, y = whole[:32], whole[32:]  # views of one piece
    x[...] = np.arange(32)
    memory = stored(tmp_path, x, y)
    assert [m is whole for m in memory] == [True]
    machine = Machine()
    witness_launch.launch(tmp_path, CudaBackend(machine))
    witness_launch.fetch(tmp_path, memory)
    np.testing.assert_array_equal(y, 2.5 * np.arange(32, dtype=np.float32))
    np.testing.assert_array_equal(x, np.arange(32, dtype=np.float32))
    assert machine.names().count("cuMemAlloc") == machine.names().count("cuMemFree") == 1


def test_the_process_says_what_goes_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine()
    monkeypatch.setattr(witness_launch, "cuda_backend", lambda: CudaBackend(machine))
    assert witness_launch.main([]) == 2
    assert capsys.readouterr().err.startswith("usage: witness_launch.py FOLDER")
    stored(tmp_path, np.zeros(32, np.float32), np.zeros(32, np.float32))
    assert witness_launch.main([str(tmp_path)]) == 0
    machine.fail("cuLaunchKernel", "CUDA_ERROR_ILLEGAL_ADDRESS")
    assert witness_launch.main([str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("witness_launch.py: error: ")


# ----------------------------------------------------------------------------------- the comparison


def said(tool: str, verdict: str = "clean") -> CheckResult:
    return CheckResult(tool, verdict, ("Race reported",) if verdict == "errors" else (), "why")


@pytest.mark.parametrize(
    ("ours", "theirs", "agreement", "bad"),
    [
        ("sanitizer", ["clean", "errors"], "both", False),
        ("value", ["hangs", "none"], "both", False),
        ("proof", ["clean", "clean"], "ours only", False),
        ("equivalent", ["clean", "clean"], "neither", False),
        ("equivalent", ["clean", "errors"], "theirs only", True),
        ("hole", ["errors"], "theirs only", True),
        ("right", ["errors"], "theirs only", True),
        ("sanitizer", ["clean", "none"], "no verdict", True),
        ("verifier", [], "ours only", False),
    ],
)
def test_how_verdicts_compare(ours: str, theirs: Sequence[str], agreement: str, bad: bool) -> None:
    row = Row("k", "m", ours, "", "right", tuple(said("racecheck", v) for v in theirs))
    assert (row.agreement, row.bad) == (agreement, bad)


def test_wrong_results_of_a_right_kernel_need_looking_at() -> None:
    assert Row("k", "m", "right", "", "O is wrong").bad
    assert not Row("k", "m", "value", "", "O is wrong").bad


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    """Launches run on a fake GPU in this process; racecheck finds fault with all that is not the
    kernel itself.
    """
    machine = Machine()
    backend = CudaBackend(machine)
    monkeypatch.setattr(CudaBackend, "compile", lambda *given: given[1].encode())
    right = tool.render(subjects()[SMALL].module)

    def run(command: Sequence[str], _: float) -> Any:
        code = witness_launch.main([command[-1]])
        return witness_sanitizer.subprocess.CompletedProcess(command, code, "", "it failed")

    def judge(_: object, name: str, command: Sequence[str], *__: object) -> CheckResult:
        text = Path(command[-1], "program").read_bytes().decode()
        return said(name, "errors" if name == "racecheck" and text != right else "clean")

    monkeypatch.setattr(witness_launch, "cuda_backend", lambda: backend)
    monkeypatch.setattr(tool, "run", run)
    monkeypatch.setattr(tool, "examine", judge)
    return Bench(backend, Sanitizer(tmp_path, "2026.4", {}), ["memcheck", "racecheck"], 60)


def barrier_deleted() -> int:
    return next(n for n, m in enumerate(mutants_of(SMALL)) if m.name.startswith("barrier: deleted"))


@pytest.mark.slow
def test_a_kernel_and_a_mutant_on_the_gpu(bench: Bench) -> None:
    row = bench.row(SMALL, None)
    assert (row.mutant, row.ours, row.value) == ("(the kernel itself)", "right", "right")
    assert (row.agreement, row.bad) == ("neither", False)
    row = bench.row(SMALL, barrier_deleted())
    assert (row.ours, row.agreement) == ("sanitizer", "both")
    assert row.to_dict()["theirs"]["racecheck"] == {
        "verdict": "errors",
        "findings": ("Race reported",),
        "why": "why",
    }


def test_a_launch_that_fails_has_no_results(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "run", lambda *_: None)
    assert bench.row(SMALL, None).value == "hangs: the launch did not end within 60 s"


@pytest.mark.slow
def test_what_the_assembler_refuses_is_not_run(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bytes:
        raise AssemblerError("no such instruction")

    monkeypatch.setattr(CudaBackend, "compile", refuse)
    row = bench.row(SMALL, barrier_deleted())
    assert (row.value, row.theirs) == ("refused: no such instruction", ())


# -------------------------------------------------------------------------------- the command line


@pytest.fixture
def ready(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "find_sanitizer", lambda _: bench.sanitizer)
    monkeypatch.setattr(tool, "cuda_backend", lambda: bench.backend)


BARRIERS = ["--kernel", SMALL, "--kind", "barrier", "--jobs", "1"]


@pytest.mark.nightly
@pytest.mark.usefixtures("ready")
def test_the_table_tells_what_only_they_find(tmp_path: Path, call: Command) -> None:
    out = tmp_path / "witness.json"
    text = call.out(*BARRIERS, "--output", str(out), code=1)
    assert "  (the kernel itself)" in text
    assert f"{SMALL}: barrier: of each warp alone @" in text
    assert "  racecheck: Race reported\n" in text
    assert text.endswith("5 launches: 2 both, 1 neither, 0 ours only, 2 theirs only, 0 no verdict\n")
    result = json.loads(out.read_text())
    assert result["schema"] == 1
    assert result["compute_sanitizer"] == "2026.4"
    assert result["counts"] == {"both": 2, "neither": 1, "ours only": 0, "theirs only": 2, "no verdict": 0}
    assert [row["ours"] for row in result["rows"]][:2] == ["right", "sanitizer"]


@pytest.mark.nightly
@pytest.mark.usefixtures("ready")
def test_all_in_agreement_is_0(monkeypatch: pytest.MonkeyPatch, call: Command) -> None:
    monkeypatch.setattr(tool, "examine", lambda _, name, *__: said(name))
    assert call.document(*BARRIERS, "--json")["counts"]["ours only"] == 2


def test_a_file_that_cannot_be_written_is_told_before_the_gpu_is_asked(tmp_path: Path, call: Command) -> None:
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "x.json"
    assert call.error(*BARRIERS, "--output", str(out)) == (
        1,
        f"cannot write {out}: {out.parent} is no folder",
    )
    assert call.error(*BARRIERS, "--output", str(tmp_path)) == (1, f"cannot write {tmp_path}: it is a folder")


def test_no_gpu_is_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Command) -> None:
    monkeypatch.setattr(CudaBackend, "why_unavailable", lambda _: "no device")
    assert call.error("--sanitizer", str(program(tmp_path, ANSWERS))) == (
        1,
        "no GPU: no device; --list needs none",
    )


def test_a_gpu_that_does_not_run_the_kernel_is_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(target("sm_75")), "runs_on", lambda *_: False)
    with pytest.raises(BackendError, match=f"^{SMALL} is for sm_75, which .* does not run$"):
        bench.row(SMALL, None)


def test_no_compute_sanitizer_is_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["--sanitizer", str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err.startswith("witness.py: error: compute-sanitizer was not found: ")


def test_the_list_needs_no_gpu(call: Command) -> None:
    first, *others = call.out("--list", *BARRIERS).splitlines()
    assert first == f"{SMALL}  (the kernel itself)"
    assert len(others) == 4
    assert all(line.startswith(f"{SMALL}  barrier: ") for line in others)


@pytest.mark.parametrize("wrong", ["0", "-1", "x", "nan"])
def test_wrong_numbers_are_2(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        tool.main([f"--timeout={wrong}"])
    assert ended.value.code == 2
    assert f"must be more than 0 seconds, got '{wrong}'" in capsys.readouterr().err


def test_help_has_examples(call: Command) -> None:
    assert "python tools/witness.py --list\n" in call.help()
