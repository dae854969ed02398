"""The pytest plugin: the fixture, the options, the summary, with and without workers."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import ptxgen.frontends.dispatch  # noqa: F401  # once for all runs in this process

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[1]
KERNELS = f"""
import numpy as np
import pytest

BUG = {str(ROOT / "tests" / "ptx" / "bugs" / "missing_barrier.ptx")!r}
GOOD = {str(ROOT / "tests" / "ptx" / "nvcc" / "stencils.sm_80.ptx")!r}

def arrays():
    return np.arange(256, dtype=np.float32), np.zeros(1, np.float32)

def test_right(run_ptx):
    x, y = np.ones(40, np.float32), np.ones(40, np.float32)
    outcome = run_ptx(GOOD, 2, 32, [2, x, y, 40], entry="saxpy")
    assert (y == 3).all()
    assert outcome.counters.by_opcode["fma.rn.f32"] == 2

def test_racy(run_ptx):
    x, total = arrays()
    run_ptx(BUG, 1, 256, [x, total])
    assert total[0] == x.sum()

def test_told(run_ptx):
    x, total = arrays()
    outcome = run_ptx(BUG, 1, 256, [x, total], raise_on_report=False)
    assert outcome.findings.reports[0].kind == "race"

def test_schedules(run_ptx, monkeypatch, request):
    from ptxgen import interpreter

    run, schedules = interpreter.run, []
    monkeypatch.setattr(interpreter, "run", lambda *a, **h: schedules.append(h["schedule"]) or run(*a, **h))
    run_ptx(GOOD, 2, 32, [2, *arrays(), 1], entry="saxpy")
    assert len(set(schedules)) == request.config.getoption("--ptx-schedules")
    assert schedules[-1] == "lockstep"

def test_other():
    pass
"""


@pytest.fixture
def kernels(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(test_kernels=KERNELS)
    pytester.makeini("[pytest]\naddopts = -p ptxgen.pytest_plugin")
    return pytester


def summary(result: pytest.RunResult) -> list[list[str]]:
    lines = result.outlines
    start = next(n for n, line in enumerate(lines) if "kernels on the PTX interpreter ===" in line)
    return [line.split() for line in lines[start + 1 : start + 4]]


def test_a_test_fails_with_what_is_found(kernels: pytest.Pytester) -> None:
    result = kernels.runpytest_inprocess()
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(
        [
            "kernel block_sum on the PTX interpreter:",
            "kernel block_sum: ld.shared.f32 *(line 29): thread * race: shared address * no barrier orders *",
        ]
    )
    saxpy, block_sum, together = summary(result)
    assert saxpy[:3] == ["saxpy", "2", "runs"]
    assert saxpy[-2:] == ["0", "findings"]
    assert block_sum[:3] == ["block_sum", "2", "runs"]
    assert block_sum[-2:] == ["1", "finding"]
    assert together[:3] == ["all", "4", "runs"]
    counted = [int(words[3].replace(",", "")) for words in (saxpy, block_sum, together)]
    assert counted[0] + counted[1] == counted[2] > 500


@pytest.mark.slow
def test_workers_send_what_they_ran(kernels: pytest.Pytester) -> None:
    result = kernels.runpytest_subprocess("-n", "2")
    result.assert_outcomes(passed=4, failed=1)
    assert summary(result)[2][:3] == ["all", "4", "runs"]


@pytest.mark.parametrize(
    ("options", "failing"),
    [
        (["--ptx-sanitize=none"], "test_told"),  # which wants a finding
        (["--ptx-sanitize=bounds,init"], "test_told"),
        (["--ptx-sanitize=race", "--ptx-schedules=3"], "test_racy"),
        (["--ptx-schedules=3"], "test_racy"),
    ],
)
def test_options(kernels: pytest.Pytester, options: list[str], failing: str) -> None:
    result = kernels.runpytest_inprocess(*options)
    result.assert_outcomes(passed=4, failed=1)
    assert any(line.startswith(f"FAILED test_kernels.py::{failing} ") for line in result.outlines)


def test_the_limit_of_the_command_line_stops_kernels(kernels: pytest.Pytester) -> None:
    result = kernels.runpytest_inprocess("--ptx-max-instructions=10", "-k", "test_right")
    result.assert_outcomes(failed=1, deselected=4)
    assert "still running after 10 instructions in a row" in result.stdout.str()


def test_a_schedule_without_sanitizers_shows_the_damage_in_the_values(kernels: pytest.Pytester) -> None:
    test = """
    import numpy as np
    from test_kernels import BUG, arrays

    def test_values(run_ptx):
        x, total = arrays()
        run_ptx(BUG, 1, 256, [x, total], sanitize=False, schedule="pct:1")
        assert total[0] == x.sum()
    """
    kernels.makepyfile(test_values=test)
    kernels.runpytest_inprocess("test_values.py").assert_outcomes(failed=1)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--ptx-schedules=0", "--ptx-schedules must be at least 1, got 0"),
        ("--ptx-max-instructions=0", "--ptx-max-instructions must be at least 1, got 0"),
        ("--ptx-sanitize=races", "--ptx-sanitize: sanitize must be True, False or names among bounds, "
         "init, race, sync, proxy, mbarrier_init, determinism, tensor_fence, tensor_order, all, got 'races'; "
         "did you mean 'race'?"),
    ],
)  # fmt: skip
def test_options_that_are_none(kernels: pytest.Pytester, option: str, message: str) -> None:
    result = kernels.runpytest_inprocess(option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert message in result.stderr.str()


def test_without_kernels_there_is_no_summary(kernels: pytest.Pytester) -> None:
    result = kernels.runpytest_inprocess("-k", "other")
    result.assert_outcomes(passed=1, deselected=4)
    assert "PTX interpreter" not in result.stdout.str()


def test_the_help_names_the_options(kernels: pytest.Pytester) -> None:
    text = kernels.runpytest_inprocess("--help").stdout.str()
    assert "--ptx-sanitize=NAMES" in text
    assert "--ptx-schedules=N" in text
    assert "--ptx-triton-target=NAME" in text
    assert "--ptx-max-instructions=N" in text


def test_importing_the_plugin_imports_nothing_heavy() -> None:
    seen = "[n for n in sorted(sys.modules) if n.startswith(('ptxgen', 'numpy'))]"
    code = f"import ptxgen.pytest_plugin, sys; print({seen})"
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    assert told.strip() == "['ptxgen', 'ptxgen.pytest_plugin']"


def test_the_package_registers_the_plugin_by_the_name_of_its_module() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"ptxgen.pytest_plugin": "ptxgen.pytest_plugin"}
    assert re.search(r"^def pytest_addoption", (ROOT / "ptxgen" / "pytest_plugin.py").read_text(), re.M)


MUTATED = """
import numpy as np
import ptxgen as px
from ptxgen import Pointer, f32, u32

@px.kernel(threads=32)
def scaled(k, X: Pointer[f32], n: u32):
    i = k.block_id() * 32 + k.thread_id()
    with k.when(i < n):
        X[i] = X[i] * 2

def problem(ctas, n):
    return ctas, (np.ones(n, np.float32), n)

def test_missed(mutate_ptx):
    mutate_ptx(scaled, [problem(2, 64)], kinds=["bound"])

def test_noticed(mutate_ptx):
    found = mutate_ptx(scaled, [problem(2, 50)])
    assert {v.kind for v in found} == {"bound", "mask"}

def test_by_a_reference(mutate_ptx):
    def expect(x, n):
        assert (x == 2).all(), "it must be doubled"

    assert mutate_ptx(scaled, [problem(2, 50)], expect=expect, short=True)

def test_wrong_itself(mutate_ptx):
    def expect(x, n):
        assert (x == 3).all(), "it must be three times as much"

    mutate_ptx(scaled, [problem(2, 50)], expect=expect)
"""


def test_a_test_fails_with_the_mutants_that_survive(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_mutated=MUTATED)
    pytester.makeini("[pytest]\naddopts = -p ptxgen.pytest_plugin")
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(
        [
            "1 of 1 mutants of scaled survive:",
            "scaled: survived, bound: lt to le @*",
            "  from    test_mutated.py:8, in scaled: with k.when(i < n):",
            "  before  setp.lt.u32 *;",
            "  after   setp.le.u32 *;",
            "  needs   a problem in which a thread compares equal operands; so far none does",
            "*PtxGenError: scaled: the kernel itself is found wrong on problem 0: expect: AssertionError: it "
            "must be three times as much*",
        ]
    )
