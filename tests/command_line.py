"""Commands called in the test's process, with all that they print."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest


class Outcome(NamedTuple):
    """Exit code of a command, its standard output and its standard error."""

    code: int
    out: str
    err: str


class Command:
    """A command by its `main` function and by the name that its messages begin with. `captured` is the
    fixture `capsys` or `capfd`.
    """

    def __init__(self, main: Callable[..., int], program: str, captured: pytest.CaptureFixture[str]) -> None:
        self.main, self.program, self.captured = main, program, captured

    def __call__(self, *argv: str) -> Outcome:
        """Run the command; `SystemExit` counts as its exit code."""
        self.captured.readouterr()
        try:
            code = self.main(list(argv))
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        return Outcome(code, *self.captured.readouterr())

    def out(self, *argv: str, code: int = 0) -> str:
        """Standard output of a run with this exit code."""
        outcome = self(*argv)
        assert outcome.code == code, outcome.err
        return outcome.out

    def quiet(self, *argv: str, code: int = 0) -> str:
        """Standard output of a run with this exit code and an empty standard error."""
        outcome = self(*argv)
        assert (outcome.code, outcome.err) == (code, "")
        return outcome.out

    def document(self, *argv: str, code: int = 0) -> Any:
        """The JSON document on the standard output of a run with this exit code."""
        return json.loads(self.out(*argv, code=code))

    def error(self, *argv: str) -> tuple[int, str]:
        """Exit code and message of a run that prints nothing but `PROGRAM: error: MESSAGE`."""
        code, out, err = self(*argv)
        prefix = f"{self.program}: error: "
        assert (out, err[: len(prefix)], err[-1]) == ("", prefix, "\n"), (out, err)
        return code, err.removeprefix(prefix)[:-1]

    def usage(self, *argv: str) -> str:
        """Last line of what wrong arguments print, without `PROGRAM: error: `; they end with 2."""
        self.captured.readouterr()
        with pytest.raises(SystemExit) as stopped:
            self.main(list(argv))
        out, err = self.captured.readouterr()
        assert (stopped.value.code, out) == (2, "")
        assert err.startswith(f"usage: {self.program} ")
        return err.splitlines()[-1].removeprefix(f"{self.program}: error: ")

    def help(self, *argv: str) -> str:
        """What `--help` prints; it ends with 0."""
        with pytest.raises(SystemExit) as stopped:
            self.main([*argv, "--help"])
        assert stopped.value.code == 0
        return self.captured.readouterr().out


@pytest.fixture
def call(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command that the test's module names `tool`, with its name in `PROGRAM`."""
    return Command(request.module.tool.main, request.module.PROGRAM, capsys)


def words(line: str) -> list[str]:
    """The words of a command line, as a shell splits it."""
    return shlex.split(line)
