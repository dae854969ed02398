"""`pytest --ledger FILE`: appends a line to FILE for each test that launched texts on a GPU, with what came
of it (`tools/silicon.py --merge FILE` brings them into the ledger). `--unrun` skips tests of whose texts all
were right on this GPU before.

A test that fails says "wrong" of all texts that it launched: which of them it was is for the reader to find.
One that is skipped after a launch, or is expected to fail, says that they ran.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import gpu_runs
import pytest

from flash.silicon.ledger import LEDGER, RAN, RIGHT, WRONG, merge, read
from ptxgen.runtime.cuda import CudaBackend, cuda_backend
from ptxgen.runtime.cuda_driver import DeviceProperties, Driver
from tools.commands.launched_texts import driver_version, is_real, launched
from tools.commands.silicon_runs import Run, append, entries_of, read_runs, sources

DONE = "all of its texts were right on this GPU"


class SiliconPlugin:
    """What pytest calls in a process that runs tests. `backend` gives the backend of the GPU."""

    def __init__(
        self,
        file: Path,
        unrun: bool,
        counts: Callable[[Driver], bool] = is_real,
        backend: Callable[[], CudaBackend] = cuda_backend,
        ledger: Path = LEDGER,
    ) -> None:
        self._file, self._backend = file, backend
        self._failed = self._passed = False
        self._test = ""
        self._before: dict[str, Run] = {}
        self._right: set[tuple[str, str]] = set()  # text and device
        self._unrun = unrun
        if unrun:
            runs = read_runs(file)
            self._before = {run.source: run for run in runs}
            known = merge(read(ledger), entries_of(runs))
            self._right = {(e.text, e.device) for e in known if e.text and e.verdict == RIGHT}
        self._open = ExitStack()
        self._launched = self._open.enter_context(launched(counts))
        self._launched.before = self._skip_what_is_right

    def close(self) -> None:
        """Launches are no longer noted."""
        self._open.close()

    def _skip_what_is_right(self, text: str, device: DeviceProperties) -> None:
        """Skip a test of one text that is about to launch it, if that was right, whatever else changed."""
        before = self._before.get(self._test)
        if before and set(before.texts) == {text} and (text, device.name) in self._right:
            pytest.skip(DONE)

    def _all_right(self, test: str) -> bool:
        """Whether all texts that a test launches were right on this GPU."""
        before = self._before.get(test)
        if before is None or not before.project.endswith(sources()):
            return False
        device = self._backend().device_properties(gpu_runs.ORDINAL).name
        return all((text, device) in self._right for text in before.texts)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._launched.take()
        self._failed = self._passed = False
        self._test = item.nodeid
        if self._unrun and self._all_right(item.nodeid):
            pytest.skip(DONE)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, Any, Any]:
        report = yield
        self._failed |= report.failed
        self._passed |= call.when == "call" and report.passed
        if call.when == "teardown":
            self._write(item.nodeid)
        return report

    def _write(self, test: str) -> None:
        texts, device = self._launched.take(), self._launched.device
        if not texts or device is None:
            return
        verdict = WRONG if self._failed else RIGHT if self._passed else RAN
        driver = driver_version(self._backend(), device.ordinal)
        capability = f"{device.major}.{device.minor}"
        append(self._file, Run(test, device.name, capability, driver, verdict, texts))
