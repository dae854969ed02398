"""How a command ends that is interrupted, or whose reader leaves early."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ptxgen.commands import main as program
from ptxgen.commands.parts.quiet import quietly

ROOT = Path(__file__).parents[2]


def interrupted() -> int:
    raise KeyboardInterrupt


def test_an_interrupt_is_130_and_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert quietly(interrupted) == 130
    assert capsys.readouterr() == ("", "")


def test_an_interrupt_during_the_import_of_a_command_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program.importlib, "import_module", lambda _: interrupted())
    assert program.command("emit", []) == 130


def test_the_exit_code_stays_if_the_reader_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def flush(self) -> None:
            raise BrokenPipeError

        def fileno(self) -> int:
            return os.open(os.devnull, os.O_WRONLY)

    monkeypatch.setattr(sys, "stdout", Closed())
    assert quietly(lambda: 3) == 3


def test_other_errors_are_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        quietly(lambda: 1 // 0)


# In a process of its own: other tests may have handlers of signals, and threads.
_CHILDREN = """
import signal, subprocess, sys, threading
from ptxgen.commands.parts.quiet import children_without_interrupts
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start background jobs without it
arrived = False
with children_without_interrupts():
    child = subprocess.Popen([sys.executable, "-c", "print(1, flush=True); input()"], stdin=-1, stdout=-1)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # what was sent arrives
    except KeyboardInterrupt:
        arrived = True
assert arrived
assert child.stdout.readline() == b"1\\n"
child.send_signal(signal.SIGINT)
child.communicate(b"\\n")
assert child.returncode == 0
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_children_do_not_see_an_interrupt_and_their_parent_does() -> None:
    subprocess.run([sys.executable, "-c", _CHILDREN], check=True, cwd=ROOT)
