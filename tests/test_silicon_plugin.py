"""`pytest --ledger`: what ran on a GPU, noted on a fake driver whose GPU is the interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from error_texts import refused
from fake_driver import A100, FakeDriver
from fake_gpu import Machine
from gpu_runs import program, run_on_gpu
from silicon_plugin import SiliconPlugin

from flash.commands.measure.device import Gpu
from flash.kernel import AttentionKernel
from flash.problem.config import AttentionConfig
from flash.silicon.ledger import Entry, LedgerError, key, write
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.cuda import CudaBackend
from tools.commands import silicon_runs
from tools.commands.launched_texts import driver_version, kernel_of, launched
from tools.commands.silicon_runs import Run, append, entries_of, read_runs

pytest_plugins = ["pytester"]

TESTS = Path(__file__).parent
SAXPY = (TESTS / "ptx" / "nvcc" / "stencils.sm_80.ptx").read_text()
OTHER = SAXPY + "// another text\n"
SAXPY_KERNELS = kernel_of(SAXPY)
CONFIG = AttentionConfig(8, tile=16, block_q=16, target="sm_80")
INNER = """
import pytest

def test_right(saxpy):
    assert saxpy() == 3

def test_wrong(saxpy):
    assert saxpy(other=True) == 4

def test_skipped_after_a_launch(saxpy):
    saxpy()
    pytest.skip("for a reason")

def test_expected_to_fail(request, saxpy):
    request.applymarker(pytest.mark.xfail)
    assert saxpy() == 4

def test_of_two(saxpy):
    assert saxpy() == saxpy(other=True) == 3

def test_without_a_launch():
    pass
"""


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> CudaBackend:
    monkeypatch.setattr(CudaBackend, "compile", lambda *given: given[1].encode())
    return CudaBackend(Machine(A100))


class Fixtures:
    """What the inner tests launch with."""

    def __init__(self, backend: CudaBackend) -> None:
        self._backend = backend

    @pytest.fixture
    def saxpy(self) -> Any:
        def run(other: bool = False) -> float:
            x, y = np.ones(40, np.float32), np.ones(40, np.float32)
            text = OTHER if other else SAXPY
            run_on_gpu(text, "saxpy", args=[2.0, x, y, 40], grid=2, block=32, backend=self._backend)
            return float(y[7])

        return run


class Session:
    """Runs of the inner tests, which append to one file."""

    def __init__(self, pytester: pytest.Pytester, backend: CudaBackend) -> None:
        self._pytester, self._backend = pytester, backend
        self.file, self.ledger = pytester.path / "runs.jsonl", pytester.path / "ledger.json"
        pytester.makepyfile(test_inner=INNER)

    def run(self, *words: str, unrun: bool = False) -> dict[str, int]:
        """The outcomes of a run, counted."""
        program.cache_clear()  # as in a new process
        plugin = SiliconPlugin(self.file, unrun, lambda _: True, lambda: self._backend, self.ledger)
        options = ["-p", "no:cacheprovider", *words]
        try:
            result = self._pytester.inline_run(*options, plugins=[plugin, Fixtures(self._backend)])
        finally:
            plugin.close()
        return dict(zip(("passed", "skipped", "failed"), map(len, result.listoutcomes()), strict=True))

    @property
    def verdicts(self) -> dict[str, str]:
        """The verdict of each test's last line."""
        return {run.source.partition("::")[2]: run.verdict for run in read_runs(self.file)}


@pytest.fixture
def session(pytester: pytest.Pytester, backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setattr("silicon_plugin.driver_version", lambda *_: "590.1")
    return Session(pytester, backend)


def test_each_test_that_launches_has_a_line_with_its_verdict(session: Session) -> None:
    assert session.run() == {"passed": 3, "skipped": 2, "failed": 1}
    assert session.verdicts == {
        "test_right": "right",
        "test_wrong": "wrong",
        "test_skipped_after_a_launch": "ran",
        "test_expected_to_fail": "ran",
        "test_of_two": "right",
    }
    first, *_, last = read_runs(session.file)
    assert first == Run(
        "test_inner.py::test_right", "Fake A100", "8.0", "590.1", "right", {key(SAXPY): SAXPY_KERNELS}
    )
    assert set(last.texts) == {key(SAXPY), key(OTHER)}
    assert first.project == f"0.1.0, sources {silicon_runs.sources()}"


def test_a_launch_of_the_products_own_runtime_is_noted(backend: CudaBackend) -> None:
    kernel = AttentionKernel(CONFIG, cuda=backend, cache=ModuleCache(None))
    q, k, v = (np.ones((1, 1, rows, 8), np.float32) for rows in (5, 9, 9))
    for _ in range(2):  # the second launch loads nothing
        with launched(lambda _: True) as result:
            kernel = AttentionKernel(CONFIG, cuda=backend, cache=ModuleCache(None))
            kernel.launch(q, k, v, backend="cuda")
            taken = result.take()
            kernel.launch(q, k, v, backend="cuda")
        assert taken == result.texts == {key(kernel.ptx): f"{kernel.build.kernel.name} for sm_80"}


def test_a_fake_driver_is_no_gpu(backend: CudaBackend) -> None:
    with launched() as result:
        run_on_gpu(
            SAXPY,
            "saxpy",
            args=[2.0, np.ones(40, np.float32), np.ones(40, np.float32), 40],
            grid=2,
            block=32,
            backend=backend,
        )
    assert not result.texts


def test_the_version_of_a_driver_is_that_of_nvidia_smi_or_of_cuda(
    backend: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    for said, version in (({}, "for CUDA 13.0"), ({"driver_version": "590.1"}, "590.1")):
        monkeypatch.setattr(Gpu, "clocks", lambda _, said=said: said)
        driver_version.cache_clear()
        assert driver_version(backend, 0) == version


def test_a_launch_that_the_driver_refuses_did_not_run(backend: CudaBackend) -> None:
    driver = backend._driver._module
    assert isinstance(driver, FakeDriver)
    driver.fail("cuLaunchKernel", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES")
    arrays = [np.ones(40, np.float32) for _ in range(2)]
    with launched(lambda _: True) as result, pytest.raises(Exception, match="cuLaunchKernel"):
        run_on_gpu(SAXPY, "saxpy", args=[2.0, *arrays, 40], grid=2, block=32, backend=backend)
    assert not result.texts


# ------------------------------------------------------------------------------------ --unrun


def test_tests_whose_texts_were_right_are_skipped(session: Session) -> None:
    session.run("-k", "right")
    assert session.run(unrun=True) == {"passed": 2, "skipped": 3, "failed": 1}
    # Both texts have been right, but OTHER failed in another test.
    assert session.run("-k", "test_of_two", unrun=True) == {"passed": 1, "skipped": 0, "failed": 0}


def test_a_test_that_failed_runs_again(session: Session) -> None:
    session.run("-k", "wrong")
    assert session.run("-k", "wrong", unrun=True)["failed"] == 1


def test_of_changed_code_a_test_of_one_text_is_skipped_at_its_launch_alone(
    session: Session, backend: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.run("-k", "test_right or test_of_two")
    monkeypatch.setattr(silicon_runs, "sources", lambda: "changed")
    monkeypatch.setattr("silicon_plugin.sources", lambda: "changed")
    launches = len(backend._driver._module.launches)
    assert session.run("-k", "test_right", unrun=True) == {"passed": 0, "skipped": 1, "failed": 0}
    assert len(backend._driver._module.launches) == launches
    assert session.run("-k", "test_of_two", unrun=True)["passed"] == 1


def test_what_is_right_by_the_ledger_alone_is_right(session: Session) -> None:
    session.run("-k", "test_skipped_after_a_launch")
    assert session.run("-k", "test_skipped_after_a_launch", unrun=True)["skipped"] == 1
    assert len(read_runs(session.file)) == 2  # it ran again
    write(
        [Entry(key(SAXPY), SAXPY_KERNELS, "Fake A100", "8.0", "1", "right", "a script", "1")], session.ledger
    )
    session.run("-k", "test_skipped_after_a_launch", unrun=True)
    assert len(read_runs(session.file)) == 2


# ---------------------------------------------------------------------------------- the options

CONFTEST = f"""
import sys
from pathlib import Path

import pytest

sys.path[:0] = [{str(TESTS)!r}, {str(TESTS.parent)!r}]

from fake_gpu import Machine
from fake_driver import A100
from ptxgen.runtime.cuda import CudaBackend
from silicon_plugin import SiliconPlugin
from test_silicon_plugin import Fixtures

CudaBackend.compile = lambda *given: given[1].encode()
BACKEND = CudaBackend(Machine(A100))

def pytest_configure(config):
    file = Path(__file__).with_name("runs.jsonl")
    config.pluginmanager.register(SiliconPlugin(file, False, lambda _: True, lambda: BACKEND))
    config.pluginmanager.register(Fixtures(BACKEND))
"""


@pytest.mark.slow
def test_workers_append_to_one_file(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_inner=INNER)
    command = [sys.executable, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider"]
    subprocess.run(command, cwd=pytester.path, env=os.environ, capture_output=True, check=False)
    assert len(read_runs(pytester.path / "runs.jsonl")) == 5


def test_unrun_alone_is_refused(pytestconfig: pytest.Config) -> None:
    conftest = pytestconfig.pluginmanager.get_plugin(str(TESTS / "conftest.py"))
    options = {"--on-gpu": False, "--ledger": None, "--unrun": True}
    with refused(pytest.UsageError, "--unrun needs --ledger FILE, which says what each test launches"):
        conftest.pytest_configure(SimpleNamespace(stash={}, getoption=options.__getitem__))


# ------------------------------------------------------------------------------------ the lines


def test_a_line_that_a_stopped_process_left_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    run = Run("a script", "GPU", "9.0", "1", "ran", {"aa": "a for sm_90"}, "1")
    append(file, run)
    with file.open("a") as half:
        half.write('{"source"')
    assert read_runs(file) == [run]
    assert entries_of([run]) == [Entry("aa", "a for sm_90", "GPU", "9.0", "1", "ran", "a script", "1")]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "no JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        (
            "[]",
            "a line has the keys source, device, compute_capability, driver, verdict, texts, project, and "
            "texts is an object",
        ),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "runs.jsonl"
    file.write_text(line + "\n")
    with refused(LedgerError, f"{file}, line 1: {said}"):
        read_runs(file)


def test_a_line_with_another_verdict_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    append(file, Run("a script", "GPU", "9.0", "1", "good", {"aa": "a for sm_90"}, "1"))
    assert json.loads(file.read_text())["verdict"] == "good"
    with refused(LedgerError, f"{file}, line 1: verdict must be one of right, wrong, ran, got 'good'"):
        read_runs(file)
