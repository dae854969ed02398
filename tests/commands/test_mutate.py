"""`ptxgen mutate` of a user's kernel: who notices, what survives, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from command_line import words

import ptxgen
from ptxgen.commands import mutate as tool
from ptxgen.commands.parts.exits import FAILED, OK, UNSUPPORTED, USAGE
from ptxgen.target import TARGETS

ROOT = Path(__file__).resolve().parents[2]
SAXPY = str(ROOT / "tests" / "ptx" / "nvcc" / "stencils.sm_80.ptx")

KERNELS = """import numpy as np
import ptxgen as px
from ptxgen import Pointer, f32, u32


@px.kernel(threads=64)
def sums(k, X: Pointer[f32], Y: Pointer[f32], columns: u32, *, times=1):
    total = k.var(f32, 0)
    row = X.row(k.block_id(), columns)
    with k.strided(columns) as i:
        total.set(total + row[i])
    whole = k.block.sum(total)
    with k.when(k.thread_id() == 0):
        Y[k.block_id()] = whole * float(times)


def problem(rows, columns, **statics):
    x = np.random.default_rng(0).standard_normal(rows * columns).astype(np.float32)
    return rows, (x, np.zeros(rows, np.float32), columns), statics


def one():
    return problem(2, 100)


def several():
    return [problem(2, 100), problem(3, 10)]


def twice():
    yield problem(1, 10)
    yield problem(1, 10, times=2)


def expect(x, y, columns):
    np.testing.assert_allclose(y, x.reshape(-1, columns).sum(1, dtype=np.float64), rtol=1e-4)


def wrong(x, y, columns):
    assert y[0] == 3, "it must be 3"


def nothing():
    return 3


number = 3
"""
REASON = """
[[reason]]
why = "a sum is a sum"
lines = ["k.strided(columns)"]
changes = [["loop-bound", "ge to gt", ""], ["loop-bound", "never taken", "@%p"]]
"""
CU = """
extern "C" __global__ void scale(int n, float *x) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = 2 * x[i];
}
"""
TRITON = """import numpy as np
import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = i < n
    tl.store(out + i, tl.load(x + i, mask=keep) + tl.load(y + i, mask=keep), mask=keep)


def example():
    for n in (100, 1000):
        x, y = np.random.default_rng(n).standard_normal((2, n)).astype(np.float32)
        yield -(-n // 256), (x, y, np.zeros(n, np.float32), n), {"BLOCK": 256}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with kernels.py."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernels.py").write_text(KERNELS)
    return tmp_path


def ran(*words: str) -> int:
    """The exit code of a command line, judged in this process."""
    tool._judges.cache_clear()
    return tool.main([*words, "--jobs", "1"])


def document(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = ran(*words, "--json")
    return code, json.loads(capsys.readouterr().out)


def test_survivors_are_listed_with_their_line_and_their_need(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert folder.is_dir()
    code = ran("kernels.py:sums", "--example", "kernels.py:one", "--kind", "loop-bound")
    assert code == FAILED
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["sums", "judged", "trap", "value", "survived"]
    assert [line.split()[0] for line in lines[1:3]] == ["loop-bound", "all"]
    first = lines.index("sums: survived, loop-bound: ge to gt @12")
    assert lines[first + 1 : first + 5] == [
        "  from    kernels.py:10, in sums: with k.strided(columns) as i:",
        "  before  setp.ge.u32 %p0, %r3, %r0;",
        "  after   setp.gt.u32 %p0, %r3, %r0;",
        "  needs   a problem in which a thread compares equal operands; so far none does",
    ]
    assert lines[-1] == "4 mutants, 1 problem, 0 equivalent; of the other 4, 2 are noticed and 2 survive"


def test_more_problems_leave_no_survivor(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert folder.is_dir()
    assert ran("kernels.py:sums", "--example", "kernels.py:several", "--kind", "loop-bound") == OK
    assert capsys.readouterr().out.splitlines()[-1] == (
        "4 mutants, 2 problems, 0 equivalent; of the other 4, 4 are noticed and 0 survive"
    )


def test_a_problem_is_one_word_of_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert folder.is_dir()
    words = ("--kind", "loop-bound", "--grid", "2", "--arg", "random:f32:200", "--arg", "zeros:f32:2")
    more = ("--arg", "u32:100", "--problem", "3 random:f32:30 zeros:f32:3 u32:10")
    code, found = document(capsys, "kernels.py:sums", *words, *more)
    assert (code, found["kernels"][0]["problems"]) == (OK, [0, 1])
    assert found["counts"]["judged"] == 4


def test_the_json_has_every_verdict(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert folder.is_dir()
    words = ("kernels.py:sums", "--example", "kernels.py:one", "--kind", "loop-bound", "--kind", "barrier")
    code, found = document(capsys, *words)
    assert (code, found["schema"]) == (FAILED, 1)
    (kernel,) = found["kernels"]
    assert (kernel["name"], kernel["entry"], kernel["judged"]) == ("sums", "sums", len(found["mutants"]))
    assert kernel["mutants"] > kernel["judged"]
    survivors = [m for m in found["mutants"] if m["caught_by"] == "survived"]
    assert len(survivors) == found["counts"]["survived"] == kernel["kinds"]["loop-bound"]["survived"] == 2
    assert survivors[0]["line"] == "with k.strided(columns) as i:"
    assert survivors[0]["reach"] == "no other result"
    assert survivors[0]["needs"].startswith("a problem in which a thread compares equal operands")
    caught = [m for m in found["mutants"] if m["kind"] == "barrier"]
    assert {(m["caught_by"], m["problem"], m["needs"]) for m in caught} == {("sanitizer", 0, "")}


def test_the_example_may_make_several_kernels(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert folder.is_dir()
    _, found = document(capsys, "kernels.py:sums", "--example", "kernels.py:twice", "--short")
    assert [(k["name"], k["problems"]) for k in found["kernels"]] == [("sums", [0]), ("sums #2", [1])]
    kinds = [m["kind"] for m in found["mutants"] if m["kernel"] == "sums"]
    assert len(kinds) == len(set(kinds)) > 3


def test_reasons_stand_beside_the_kernel(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("kernels.py:sums", "--example", "kernels.py:one", "--kind", "loop-bound")
    (folder / "equivalent.toml").write_text(REASON)
    assert ran(*words) == OK
    said = capsys.readouterr()
    assert (
        "sums: 2 equivalent, a sum is a sum\n  loop-bound: ge to gt @12\n  loop-bound: never taken"
        in said.out
    )
    assert said.err == ""
    (folder / "equivalent.toml").rename(folder / "other.toml")
    assert ran(*words) == FAILED
    capsys.readouterr()
    stale = REASON.replace('["loop-bound", "ge to gt", ""]', '["loop-bound", "lt to ge", ""]')
    (folder / "other.toml").write_text(stale)
    assert ran(*words, "--reasons", "other.toml") == FAILED
    assert capsys.readouterr().err == (
        "ptxgen mutate: note: a reason is about no mutant: loop-bound: lt to ge, a sum is a sum\n"
    )


def test_what_is_right_may_be_said_by_a_function(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert folder.is_dir()
    words = ("kernels.py:sums", "--example", "kernels.py:several", "--kind", "loop-bound")
    code, found = document(capsys, *words, "--expect", "kernels.py:expect")
    assert code == OK
    assert {m["what"].partition(":")[0] for m in found["mutants"] if m["caught_by"] == "value"} == {"expect"}


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["kernels.py:sums", "--arg", "u32:1"], USAGE, "--arg needs --grid"),
        (["kernels.py:sums"], USAGE, "it needs a problem to run: --example, --grid with --arg, or --problem"),
        (
            ["kernels.py", "--grid", "1"],
            USAGE,
            "kernels.py is Python; name its kernel function, kernels.py:NAME",
        ),
        (
            ["sums", "--grid", "1"],
            USAGE,
            "KERNEL must be MODULE:FUNCTION, FILE.py:FUNCTION, FILE.ptx or FILE.cu, got 'sums'",
        ),
        (["kernels.py:sums", "--grid", "1", "--entry", "k"], USAGE, "--entry is for PTX and CUDA C++"),
        (words("k.ptx --grid 1 --static a=1"), USAGE, "--static is for a kernel function, and k.ptx is text"),
        (
            ["kernels.py:sums", "--problem", "'1"],
            USAGE,
            'argument --problem: must be a grid and arguments, got "\'1": No closing quotation',
        ),
        (
            ["kernels.py:sums", "--problem", ""],
            USAGE,
            "argument --problem: must be a grid and arguments, got ''",
        ),
        (
            ["kernels.py:sums", "--grid", "1", "--rtol", "-1"],
            USAGE,
            "argument --rtol: must be a number of at least 0, got '-1'",
        ),
        (
            ["kernels.py:sums", "--grid", "1", "--kind", "barier"],
            USAGE,
            f"argument --kind: invalid choice: 'barier' (choose from {', '.join(map(repr, tool.KINDS))}); "
            "did you mean 'barrier'?",
        ),
    ],
)
def test_wrong_usage_is_refused(
    words: list[str], code: int, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert folder.is_dir()
    with pytest.raises(SystemExit) as stopped:
        ran(*words)
    assert stopped.value.code == code
    assert capsys.readouterr().err.splitlines()[-1] == f"ptxgen mutate: error: {message}"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (
            ["kernels.py:sum", "--example", "kernels.py:one"],
            USAGE,
            "kernels.py has no 'sum'; did you mean 'sums'?",
        ),
        (
            ["kernels.py:sums", "--example", "kernels.py:nothing"],
            USAGE,
            "kernels.py:nothing must return (grid, arguments) or (grid, arguments, statics)",
        ),
        (
            ["kernels.py:sums", "--example", "kernels.py:one", "--expect", "kernels.py:number"],
            USAGE,
            "kernels.py:number is no function, it is 3",
        ),
        (
            ["kernels.py:sums", "--example", "kernels.py:one", "--expect", "kernels.py:wrong"],
            FAILED,
            "sums: the kernel itself is found wrong on problem 0: expect: AssertionError: it must be 3",
        ),
        (
            ["kernels.py:sums", "--example", "kernels.py:one", "--target", "sm_1"],
            UNSUPPORTED,
            f"unknown target 'sm_1'; did you mean 'sm_120'? Known targets: {', '.join(TARGETS)}",
        ),
        (
            ["kernels.py:sums", "--example", "kernels.py:one", "--reasons", "none.toml"],
            FAILED,
            "cannot read none.toml: No such file or directory",
        ),
        (
            ["kernels.py:sums", "--example", "kernels.py:one", "--reasons", "kernels.py"],
            FAILED,
            "cannot read kernels.py: Expected '=' after a key in a key/value pair (at line 1, column 8)",
        ),
        (["none.ptx", "--grid", "1"], FAILED, "cannot read none.ptx: No such file or directory"),
        (
            [SAXPY, "--grid", "1", "--block", "32"],
            USAGE,
            "the file has the kernels life, heat, sparse, saxpy, mandelbrot; say which one is to run",
        ),
        (
            [SAXPY, "--entry", "saxpy", "--grid", "1", "--arg", "f32:2"],
            USAGE,
            "saxpy: block must be given, the threads of a CTA: block=256",
        ),
        (
            [SAXPY, "--entry", "saxpy", "--grid", "1", "--block", "32", "--arg", "u32:2"],
            USAGE,
            "argument 0 (saxpy_param_0) must have the type f32, got u32:2",
        ),
    ],
)
def test_what_cannot_be_mutated_says_why(
    words: list[str], code: int, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert folder.is_dir()
    assert ran(*words) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"ptxgen mutate: error: {message}\n"


@pytest.mark.slow
def test_two_processes_say_what_one_says(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert folder.is_dir()
    words = ["kernels.py:sums", "--example", "kernels.py:several", "--json", "--kind", "warp"]
    codes = [tool.main([*words, "--jobs", jobs]) for jobs in ("1", "2")]
    first, second = capsys.readouterr().out.replace("}\n{", "}\n\n{").split("\n\n")
    assert codes[0] == codes[1]
    assert json.loads(first) == json.loads(second)


def test_a_ptx_file_is_mutated(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(SAXPY, folder / "saxpy.ptx")
    words = ("--block", "256", "--grid", "4", "--arg", "f32:2", "--arg", "random:f32:1000")
    more = ("--arg", "zeros:f32:1000", "--arg", "u64:1000", "--kind", "mask")
    (folder / "equivalent.toml").write_text(
        '[[reason]]\nwhy = "so"\nlines = ["bra $L__BB3_7"]\nchanges = [["mask", "dropped", "@%p3"]]\n'
    )
    code, found = document(capsys, "saxpy.ptx", "--entry", "saxpy", *words, *more)
    assert code == FAILED
    by_name = {m["before"]: m["caught_by"] for m in found["mutants"] if m["name"].startswith("mask: dropped")}
    assert by_name["@%p3 bra $L__BB3_7;"] == "equivalent"
    assert all(m["where"].startswith("line ") and m["line"] == m["before"] for m in found["mutants"])


@pytest.mark.usefixtures("nvrtc")
def test_cuda_is_mutated(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "scale.cu").write_text(CU)
    words = ("--block", "32", "--grid", "4", "--arg", "i32:100", "--arg", "random:f32:100")
    code, found = document(capsys, "scale.cu", *words)
    assert code == OK  # one thread compares 100 with 100
    assert {m["where"] for m in found["mutants"]} == {"scale.cu:4"}
    assert found["mutants"][0]["line"] == "if (i < n) x[i] = 2 * x[i];"


@pytest.mark.usefixtures("triton")
def test_triton_is_mutated(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "adding.py").write_text(TRITON)
    code, found = document(capsys, "adding.py:add", "--example", "adding.py:example")
    assert code in (OK, FAILED)
    assert found["kernels"][0]["name"] == "add"
    assert found["counts"]["judged"] > 5
    assert {m["where"].partition(":")[0] for m in found["mutants"]} == {"adding.py"}
    assert found["counts"]["trap"] + found["counts"]["value"] > 3


def test_without_a_kernel_it_needs_a_checkout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(ptxgen, "__file__", str(tmp_path / "ptxgen" / "__init__.py"))
    assert tool.main(["--short"]) == USAGE
    assert capsys.readouterr().err == (
        "ptxgen mutate: error: without a KERNEL it mutates the kernels that this project ships, which needs "
        "a checkout of it (tools/campaign); give a KERNEL first, such as kernels.py:softmax\n"
    )


def test_without_a_kernel_a_checkout_mutates_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        tool.main(["--short", "--help"])
    assert stopped.value.code == OK
    assert "--survivors" in capsys.readouterr().out
