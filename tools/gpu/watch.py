"""Runs the processes of one part until they are done or the time of the part is over. A process that crashes,
or whose unit hangs, is started again without that unit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from tools.gpu.journal import BEGIN, COMPLETE, END, Journal, Line
from tools.gpu.results import CRASHED, CUT, HUNG

_STEP_S: Final = 0.05  # between two looks at the processes
_GONE_S: Final = 5.0  # in which a killed process ends; one whose GPU hangs may not
_SHOWN: Final = 300  # characters of the end of a process's output


class Process(Protocol):
    """A running process that does the units of a part."""

    def poll(self) -> int | None:
        """The process's exit code, or None while it runs."""

    def kill(self) -> None:
        """End the process and all processes that it has started."""

    def last_output(self) -> str:
        """The last lines that the process printed."""


@dataclass(slots=True)
class _Watched:
    number: int
    process: Process
    unit: str = ""  # that it does now
    since: float = 0.0
    ended: int = 0  # units since it was started
    complete: bool = False
    over: bool = False


@dataclass(slots=True)
class Watch:
    """The processes of a part: `start` starts one, by its number; `unit_s` is the most seconds of a unit, and
    `deadline` is the time by `clock` at which all are ended. `merge` takes the lines of the journal.
    """

    start: Callable[[int], Process]
    journal: Journal
    merge: Callable[[Sequence[Line]], None]
    unit_s: float
    deadline: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def run(self, processes: int) -> list[str]:
        """Run until all is done or the time is over; returns the errors other than verdicts of units."""
        wrong: list[str] = []
        watched: list[_Watched] = []
        try:
            watched += [_Watched(n, self.start(n), since=self.clock()) for n in range(processes)]
            while not all(one.over for one in watched):
                self._read(watched)
                now = self.clock()
                for one in watched:
                    if not one.over:
                        wrong += self._look(one, watched, now)
                if not all(one.over for one in watched):
                    self.sleep(_STEP_S)
        finally:
            for one in watched:
                one.process.kill()
        self._read(watched)
        return wrong

    def _read(self, watched: Sequence[_Watched]) -> None:
        lines = self.journal.new()
        for line in lines:
            one = watched[line["worker"]] if line.get("worker", -1) in range(len(watched)) else None
            if one is None:
                continue
            if line["event"] == BEGIN:
                one.unit, one.since = line["unit"], self.clock()
            elif line["event"] == END:
                one.unit, one.ended = "", one.ended + 1
            elif line["event"] == COMPLETE:
                one.complete = True
        self.merge(lines)

    def _look(self, one: _Watched, watched: Sequence[_Watched], now: float) -> list[str]:
        """Check whether one process has ended or hangs; returns the errors."""
        if now >= self.deadline:
            one.process.kill()
            self._read(watched)
            self._end(one, watched, CUT, "the time of the part was over")
            one.over = True
            return []
        if one.unit and now - one.since > self.unit_s:
            one.process.kill()
            self._read(watched)
            self._end(one, watched, HUNG, f"not done within {self.unit_s:g} s")
            return self._again(one, watched)
        code = one.process.poll()
        if code is None:
            return []
        self._read(watched)
        if one.complete:
            one.over = True
            return []
        self._end(one, watched, CRASHED, f"its process ended with {code}: {one.process.last_output()}")
        return self._again(one, watched)

    def _end(self, one: _Watched, watched: Sequence[_Watched], verdict: str, message: str) -> None:
        """Write a verdict on the unit that a process was doing to the journal."""
        if one.unit:
            seconds = round(self.clock() - one.since, 1)
            self.journal.write(
                END,
                unit=one.unit,
                worker=one.number,
                verdict=verdict,
                said=message,
                seconds=seconds,
                when=now_utc(),
            )
            self._read(watched)

    def _again(self, one: _Watched, watched: Sequence[_Watched]) -> list[str]:
        """Start a process for the units that are left, unless the last one did not get to any."""
        del watched
        if not one.ended:
            one.over = True
            output = one.process.last_output() or "no output"
            return [f"process {one.number} ended before its first unit: {output}"]
        one.process.kill()
        one.process, one.ended, one.since = self.start(one.number), 0, self.clock()
        return []


def now_utc() -> str:
    """The time as ISO 8601, in seconds and UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class Child:
    """A process in a new session, so that all processes that it has started end with it. Its standard input
    stays open as long as this process lives.
    """

    def __init__(self, command: Sequence[str], folder: Path, output: Path) -> None:
        self._output = output
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def poll(self) -> int | None:
        """The process's exit code, or None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """End the process and all processes that it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GONE_S)
        if self._process.stdin is not None:
            self._process.stdin.close()

    def last_output(self) -> str:
        """The last lines that the process printed."""
        return self._output.read_text(errors="replace").strip()[-_SHOWN:]
