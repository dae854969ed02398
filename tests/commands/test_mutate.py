"""`ptxgen mutate` of a user's kernel: who notices, what survives, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from command_line import Command, words

import ptxgen
from ptxgen.commands import mutate as tool
from ptxgen.commands.parts.exits import FAILED, OK, UNSUPPORTED, USAGE
from ptxgen.target import TARGETS

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "ptxgen mutate"
ONE = words("kernels.py:sums --example kernels.py:one")
SEVERAL = words("kernels.py:sums --example kernels.py:several")
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


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with kernels.py."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernels.py").write_text(KERNELS)
    return tmp_path


@pytest.fixture
def mutate(capsys: pytest.CaptureFixture[str]) -> Command:
    """`ptxgen mutate` that judges in this process."""

    def main(argv: list[str]) -> int:
        tool._judges.cache_clear()
        return tool.main([*argv, "--jobs", "1"])

    return Command(main, "ptxgen mutate", capsys)


def document(mutate: Command, *argv: str) -> tuple[int, dict[str, Any]]:
    code, out, _ = mutate(*argv, "--json")
    return code, json.loads(out)


def test_survivors_are_listed_with_their_line_and_their_need(mutate: Command) -> None:
    lines = mutate.out(*ONE, "--kind", "loop-bound", code=FAILED).splitlines()
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


def test_more_problems_leave_no_survivor(mutate: Command) -> None:
    assert mutate.out(*SEVERAL, "--kind", "loop-bound").splitlines()[-1] == (
        "4 mutants, 2 problems, 0 equivalent; of the other 4, 4 are noticed and 0 survive"
    )


def test_a_problem_is_one_word_of_the_command_line(mutate: Command) -> None:
    argv = words("kernels.py:sums --kind loop-bound --grid 2 --arg random:f32:200 --arg zeros:f32:2")
    more = ("--arg", "u32:100", "--problem", "3 random:f32:30 zeros:f32:3 u32:10")
    code, result = document(mutate, *argv, *more)
    assert (code, result["kernels"][0]["problems"]) == (OK, [0, 1])
    assert result["counts"]["judged"] == 4


def test_the_json_has_every_verdict(mutate: Command) -> None:
    code, result = document(mutate, *ONE, "--kind", "loop-bound", "--kind", "barrier")
    assert (code, result["schema"]) == (FAILED, 1)
    (kernel,) = result["kernels"]
    assert (kernel["name"], kernel["entry"], kernel["judged"]) == ("sums", "sums", len(result["mutants"]))
    assert kernel["mutants"] > kernel["judged"]
    survivors = [m for m in result["mutants"] if m["caught_by"] == "survived"]
    assert len(survivors) == result["counts"]["survived"] == kernel["kinds"]["loop-bound"]["survived"] == 2
    assert survivors[0]["line"] == "with k.strided(columns) as i:"
    assert survivors[0]["reach"] == "no other result"
    assert survivors[0]["needs"].startswith("a problem in which a thread compares equal operands")
    caught = [m for m in result["mutants"] if m["kind"] == "barrier"]
    assert {(m["caught_by"], m["problem"], m["needs"]) for m in caught} == {("sanitizer", 0, "")}


def test_the_example_may_make_several_kernels(mutate: Command) -> None:
    _, result = document(mutate, *words("kernels.py:sums --example kernels.py:twice --short"))
    assert [(k["name"], k["problems"]) for k in result["kernels"]] == [("sums", [0]), ("sums #2", [1])]
    kinds = [m["kind"] for m in result["mutants"] if m["kernel"] == "sums"]
    assert len(kinds) == len(set(kinds)) > 3


def test_reasons_stand_beside_the_kernel(folder: Path, mutate: Command) -> None:
    argv = [*ONE, "--kind", "loop-bound"]
    (folder / "equivalent.toml").write_text(REASON)
    listed = "sums: 2 equivalent, a sum is a sum\n  loop-bound: ge to gt @12\n  loop-bound: never taken"
    assert listed in mutate.quiet(*argv)
    (folder / "equivalent.toml").rename(folder / "other.toml")
    assert mutate(*argv).code == FAILED
    stale = REASON.replace('["loop-bound", "ge to gt", ""]', '["loop-bound", "lt to ge", ""]')
    (folder / "other.toml").write_text(stale)
    code, _, err = mutate(*argv, "--reasons", "other.toml")
    note = "ptxgen mutate: note: a reason is about no mutant: loop-bound: lt to ge, a sum is a sum\n"
    assert (code, err) == (FAILED, note)


def test_what_is_right_may_be_said_by_a_function(mutate: Command) -> None:
    code, result = document(mutate, *SEVERAL, "--kind", "loop-bound", "--expect", "kernels.py:expect")
    assert code == OK
    assert {m["what"].partition(":")[0] for m in result["mutants"] if m["caught_by"] == "value"} == {"expect"}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["kernels.py:sums", "--arg", "u32:1"], "--arg needs --grid"),
        (["kernels.py:sums"], "it needs a problem to run: --example, --grid with --arg, or --problem"),
        (["kernels.py", "--grid", "1"], "kernels.py is Python; name its kernel function, kernels.py:NAME"),
        (
            ["sums", "--grid", "1"],
            "KERNEL must be MODULE:FUNCTION, FILE.py:FUNCTION, FILE.ptx or FILE.cu, got 'sums'",
        ),
        (["kernels.py:sums", "--grid", "1", "--entry", "k"], "--entry is for PTX and CUDA C++"),
        (words("k.ptx --grid 1 --static a=1"), "--static is for a kernel function, and k.ptx is text"),
        (
            ["kernels.py:sums", "--problem", "'1"],
            'argument --problem: must be a grid and arguments, got "\'1": No closing quotation',
        ),
        (["kernels.py:sums", "--problem", ""], "argument --problem: must be a grid and arguments, got ''"),
        (
            ["kernels.py:sums", "--grid", "1", "--rtol", "-1"],
            "argument --rtol: must be a number of at least 0, got '-1'",
        ),
        (
            ["kernels.py:sums", "--grid", "1", "--kind", "barier"],
            f"argument --kind: invalid choice: 'barier' (choose from {', '.join(map(repr, tool.KINDS))}); "
            "did you mean 'barrier'?",
        ),
    ],
)
def test_wrong_usage_is_2(argv: list[str], message: str, mutate: Command) -> None:
    assert mutate.usage(*argv) == message


@pytest.mark.parametrize(
    ("argv", "code", "message"),
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
        ([*ONE, "--expect", "kernels.py:number"], USAGE, "kernels.py:number is no function, it is 3"),
        (
            [*ONE, "--expect", "kernels.py:wrong"],
            FAILED,
            "sums: the kernel itself is found wrong on problem 0: expect: AssertionError: it must be 3",
        ),
        (
            [*ONE, "--target", "sm_1"],
            UNSUPPORTED,
            f"unknown target 'sm_1'; did you mean 'sm_121'? Known targets: {', '.join(TARGETS)}",
        ),
        ([*ONE, "--reasons", "none.toml"], FAILED, "cannot read none.toml: No such file or directory"),
        (
            [*ONE, "--reasons", "kernels.py"],
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
def test_what_cannot_be_mutated_says_why(argv: list[str], code: int, message: str, mutate: Command) -> None:
    assert mutate.error(*argv) == (code, message)


@pytest.mark.slow
def test_two_processes_say_what_one_says(capsys: pytest.CaptureFixture[str]) -> None:
    call = Command(tool.main, "ptxgen mutate", capsys)
    one, two = (call(*SEVERAL, "--json", "--kind", "warp", "--jobs", jobs) for jobs in ("1", "2"))
    assert (one.code, json.loads(one.out)) == (two.code, json.loads(two.out))


def test_a_ptx_file_is_mutated(folder: Path, mutate: Command) -> None:
    shutil.copy(SAXPY, folder / "saxpy.ptx")
    (folder / "equivalent.toml").write_text(
        '[[reason]]\nwhy = "so"\nlines = ["bra $L__BB3_7"]\nchanges = [["mask", "dropped", "@%p3"]]\n'
    )
    argv = words(
        "saxpy.ptx --entry saxpy --block 256 --grid 4 --arg f32:2 --arg random:f32:1000 "
        "--arg zeros:f32:1000 --arg u64:1000 --kind mask"
    )
    code, result = document(mutate, *argv)
    assert code == FAILED
    by_name = {
        m["before"]: m["caught_by"] for m in result["mutants"] if m["name"].startswith("mask: dropped")
    }
    assert by_name["@%p3 bra $L__BB3_7;"] == "equivalent"
    assert all(m["where"].startswith("line ") and m["line"] == m["before"] for m in result["mutants"])


@pytest.mark.usefixtures("nvrtc")
def test_cuda_is_mutated(folder: Path, mutate: Command) -> None:
    (folder / "scale.cu").write_text(CU)
    argv = words("scale.cu --block 32 --grid 4 --arg i32:100 --arg random:f32:100")
    code, result = document(mutate, *argv)
    assert code == OK  # one thread compares 100 with 100
    assert {m["where"] for m in result["mutants"]} == {"scale.cu:4"}
    assert result["mutants"][0]["line"] == "if (i < n) x[i] = 2 * x[i];"


@pytest.mark.usefixtures("triton")
def test_triton_is_mutated(folder: Path, mutate: Command) -> None:
    (folder / "adding.py").write_text(TRITON)
    code, result = document(mutate, "adding.py:add", "--example", "adding.py:example")
    assert code in (OK, FAILED)
    assert result["kernels"][0]["name"] == "add"
    assert result["counts"]["judged"] > 5
    assert {m["where"].partition(":")[0] for m in result["mutants"]} == {"adding.py"}
    assert result["counts"]["trap"] + result["counts"]["value"] > 3


def test_without_a_kernel_it_needs_a_checkout(
    monkeypatch: pytest.MonkeyPatch, call: Command, tmp_path: Path
) -> None:
    monkeypatch.setattr(ptxgen, "__file__", str(tmp_path / "ptxgen" / "__init__.py"))
    assert call.error("--short") == (
        USAGE,
        "without a KERNEL it mutates the kernels that this project ships, which needs a checkout of it "
        "(tools/campaign); give a KERNEL first, such as kernels.py:softmax",
    )


def test_without_a_kernel_a_checkout_mutates_its_own(call: Command) -> None:
    assert "--survivors" in call.help("--short")
