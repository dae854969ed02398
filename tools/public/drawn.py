"""A plugin for pytest that runs a sample of the collected tests, drawn with a seed, and writes a verdict on
each: `-p tools.public.drawn --drawn 200 --drawn-seed 202649 --drawn-file verdicts.jsonl`.
"""

from __future__ import annotations

import json
import random
import signal
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Final, TextIO

import numpy as np
import pytest

PASSED: Final = "passed"
SKIPPED: Final = "skipped"
FAILED: Final = "failed"
REFUSED: Final = "refused"
LONG: Final = "long"
_SENTENCE: Final = 2000  # characters of a failure that are stored


class TooLongError(BaseException):
    """A test ran past its limit of seconds; a base exception, so that no test catches it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("drawn", "a drawn sample of the tests")
    group.addoption("--drawn", type=int, default=None, metavar="N", help="run N tests (default: all)")
    group.addoption("--drawn-seed", type=int, default=0, metavar="SEED", help="draw them with SEED")
    group.addoption("--drawn-seconds", type=int, default=120, metavar="S", help="stop a test after S seconds")
    group.addoption("--drawn-file", type=Path, required=True, metavar="FILE", help="append verdicts to FILE")


def pytest_configure(config: pytest.Config) -> None:
    """Open the file of verdicts."""
    path = config.getoption("--drawn-file")
    before = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    done = {json.loads(line)["test"] for line in before}
    config.pluginmanager.register(_Drawn(config, done, path.open("a", encoding="utf-8")), "drawn")


class _Drawn:
    """The sample, and the verdict on each test of it. Tests that the file has already do not run again."""

    def __init__(self, config: pytest.Config, done: set[str], file: TextIO) -> None:
        self._count = config.getoption("--drawn")
        self._seed = config.getoption("--drawn-seed")
        self._seconds = config.getoption("--drawn-seconds")
        self._done = done
        self._file = file

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the drawn tests, in the order of the drawing: of two samples with one seed, the smaller one
        is the beginning of the larger one.
        """
        drawn = sorted(items, key=lambda item: item.nodeid)
        random.Random(self._seed).shuffle(drawn)
        items[:] = [item for item in drawn[: self._count] if item.nodeid not in self._done]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Seed the generators, so that a test has the same numbers whichever tests ran before it."""
        import torch

        seed = zlib.crc32(f"{self._seed} {item.nodeid}".encode())
        random.seed(seed)
        np.random.seed(seed)  # the generator that the tests use
        torch.default_generator.manual_seed(seed)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        """Stop a test that runs past the limit."""
        before = signal.signal(signal.SIGALRM, _too_long)
        signal.alarm(self._seconds)
        try:
            yield
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Generator[None, Any, Any]:
        """Write the verdict, when the test has run or its setup has failed or skipped it."""
        report = yield
        if call.when == "call" or (call.when == "setup" and not report.passed):
            error = None if call.excinfo is None else call.excinfo.value
            line = {
                "test": item.nodeid,
                "verdict": _verdict(report, error),
                "launches": sum(name == "ptxgen_run" for name, _ in item.user_properties),
                "seconds": round(call.stop - call.start, 1),
                "why": "" if error is None else f"{type(error).__name__}: {error}"[:_SENTENCE],
            }
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        return report


def _too_long(*_: object) -> None:
    raise TooLongError


def _verdict(report: Any, error: BaseException | None) -> str:
    from ptxgen.errors import PtxGenError, TrapError

    if isinstance(error, TooLongError):
        return LONG
    if isinstance(error, PtxGenError) and not isinstance(error, TrapError):
        return REFUSED
    return str(report.outcome)
