"""Tests of this project on the GPU, those marked gpu or judged ones with --on-gpu, in the order of units; the
verdict on each is journaled as soon as it is there.
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import re
import time
from collections.abc import Sequence
from typing import Any, Final

import pytest

from tools.gpu.journal import BEGIN, COMPLETE, END, UNITS, Journal
from tools.gpu.phases import LEDGER
from tools.gpu.results import FAILED, MISSING, PASSED, SKIPPED, ordered
from tools.gpu.rooms import ROOT
from tools.gpu.watch import now_utc

POISONED: Final = "PoisonedContextError"  # in the report of a test: no later one of the process can pass
MARKERS: Final = {"tests": "gpu", "drawn": "judged"}  # of the tests of each part
ROOMS: Final = {  # of the files of each part: judged tests elsewhere launch little
    "tests": ("tests",),
    "drawn": tuple(
        f"tests/{room}"
        for room in (
            "kernels",
            *(f"flash/{name}" for name in ("decode", "gradients", "hopper", "kernels", "mods", "scores")),
        )
    ),
}
# Files that tests of a rehearsal are in, one for each part.
_SMALL: Final = {
    "tests": "tests/flash/host/test_transfer.py",
    "drawn": "tests/flash/kernels/test_truncation.py",
}
_SHOWN: Final = 300  # characters of a failure


def run_tests(arguments: argparse.Namespace, journal: Journal, history: Any) -> int:
    """Run this process's share of the tests of a part, as long as there is time; 0 if it got to the end."""
    marker = MARKERS[arguments.part]
    files = [_SMALL[arguments.part]] if arguments.rehearse else files_with(marker, *ROOMS[arguments.part])
    os.environ["PTXGEN_REQUIRE"] = "gpu"
    plugin = Verdicts(arguments, journal, history)
    options = ["--ledger", str(arguments.output / LEDGER)]
    options += ["--on-gpu"] if arguments.part == "drawn" else []
    chosen = f"{marker} and not nightly"
    rewritten = "ignore:Module already imported so cannot be rewritten"  # modules that this process has
    command = [
        "-m",
        chosen,
        "-q",
        "--no-header",
        "-W",
        rewritten,
        "-p",
        "no:cacheprovider",
        "--continue-on-collection-errors",
    ]
    code = pytest.main([*command, *options, *files], plugins=[plugin])
    if plugin.asked is None:
        return 1
    journal.write(COMPLETE)
    return 0 if int(code) in (0, 1, 5) else int(code)


def files_with(marker: str, *rooms: str) -> list[str]:
    """The test files, in the folders `rooms`, whose text has the word `marker`; to collect all files takes
    longer.
    """
    word = re.compile(rf"\b{marker}\b")
    files = sorted(path for room in rooms for path in (ROOT / room).rglob("test_*.py"))
    return [str(path.relative_to(ROOT)) for path in files if word.search(path.read_text(encoding="utf-8"))]


class Verdicts:
    """A plugin of pytest that chooses and orders tests, and writes the verdict on each to the journal."""

    def __init__(self, arguments: argparse.Namespace, journal: Journal, history: Any) -> None:
        self._arguments, self._journal, self._history = arguments, journal, history
        self._began = time.monotonic()
        self._since = self._began
        self._verdict, self._message = "", ""
        self.asked: list[str] | None = None  # the tests of this process, once they are collected

    def pytest_collectreport(self, report: Any) -> None:
        """Record a file that cannot be imported as a unit that was not measured."""
        if report.failed:
            lines = str(report.longrepr).strip().splitlines()
            self._journal.write(
                END,
                unit=report.nodeid,
                verdict=MISSING,
                said=f"not collected: {lines[-1].removeprefix('E').strip()}"[:_SHOWN],
                seconds=0.0,
                when=now_utc(),
            )

    @functools.cached_property
    def _order(self) -> Any:
        return random.Random(self._arguments.seed)

    def choose(self, tests: Sequence[str]) -> list[str]:
        """This process's share of the tests, in the order in which it runs them. Judged tests are shuffled
        among those that are as urgent, by the seed of the run.
        """
        names = sorted(tests)
        if self._arguments.part == "drawn":
            self._order.shuffle(names)
        todo = ordered(names, self._history, self._arguments.run)
        mine = [name for name in names if _share(name, self._arguments.workers) == self._arguments.worker]
        chosen = set(mine)
        return [name for name in todo if name in chosen]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        """Choose and order the tests, after pytest's -m has removed others."""
        by_name = {item.nodeid: item for item in items}
        self._journal.write(UNITS, units=sorted(by_name))
        self.asked = self.choose(list(by_name))
        config.hook.pytest_deselected(items=[by_name[n] for n in by_name if n not in set(self.asked)])
        items[:] = [by_name[name] for name in self.asked]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Record that a test begins; end the run if the time is over."""
        if time.monotonic() - self._began >= self._arguments.seconds:
            self._leave()
        self._since, self._verdict, self._message = time.monotonic(), PASSED, ""
        self._journal.write(BEGIN, unit=nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keep the worst outcome of setup, call and teardown as the verdict."""
        if report.failed:
            lines = [line for line in str(report.longrepr).splitlines() if line.startswith("E ")]
            self._verdict, self._message = FAILED, " ".join(line[1:].strip() for line in lines)[:_SHOWN]
            if POISONED in str(report.longrepr):
                self._message = f"{POISONED}: {self._message}"[:_SHOWN]
        elif report.skipped and self._verdict == PASSED:
            self._verdict = SKIPPED
            self._message = str(
                report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
            )

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Journal the verdict. After a destroyed CUDA context the process ends, and another one runs the
        remaining tests.
        """
        line = {"verdict": self._verdict, "said": self._message[:_SHOWN]}
        seconds = round(time.monotonic() - self._since, 2)
        self._journal.write(END, unit=nodeid, seconds=seconds, when=now_utc(), **line)
        if self._message.startswith(POISONED):
            os._exit(1)

    def _leave(self) -> None:
        self._journal.write(COMPLETE)
        os._exit(0)


def _share(name: str, parts: int) -> int:
    """The number of the process that runs a test: the same in each run; the tests of one file are spread over
    all.
    """
    return sum(name.encode()) % parts
