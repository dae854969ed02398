"""The command `ptxgen debug`: sessions, with all that they print. A file of `debug_sessions` has the command
line, the commands with what they print, and the exit code; commands are read from standard input.
"""

from __future__ import annotations

import io
import re
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import Command
from interpreter.tensor_texts import kernel, moved

from ptxgen.commands import debug as tool  # noqa: F401  # the fixture `call` runs it

PROGRAM = "ptxgen debug"

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "debugging.md").read_text(encoding="utf-8")
ON_PAGE = re.findall(r"^```console\n\$ ptxgen debug (.*)\n((?:.*\n)*?)```", PAGE, re.MULTILINE)
FOLDER = Path(__file__).with_name("debug_sessions")
SESSIONS = sorted(path.stem for path in FOLDER.glob("*.txt"))
RACE = shlex.split("reverse.ptx --grid 1 --block 64 --arg zeros:u32:64 --sanitize --schedule")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    for path in FOLDER.glob("*.ptx"):
        shutil.copy(path, tmp_path)
    Path("tensor.ptx").write_text(kernel(moved(0, 8, to="tensor")))
    np.save("x.npy", np.arange(1024, dtype=np.int32).reshape(128, 8))
    function = re.search(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert function is not None
    Path("kernels.py").write_text(function[1])


@pytest.mark.parametrize(("words", "shown"), ON_PAGE, ids=["watch", "break"])
def test_the_sessions_of_the_page_print_what_it_shows(words: str, shown: str, call: Command) -> None:
    assert call.quiet(*shlex.split(words)) == shown


@pytest.mark.parametrize("name", SESSIONS)
def test_a_session_prints_what_its_file_shows(
    name: str, call: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = (FOLDER / f"{name}.txt").read_text()
    line, *printed = shown.splitlines()
    typed = [row.removeprefix("(ptxgen) ") for row in printed if row.startswith("(ptxgen) ")]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(typed)))
    code, out, err = call(*shlex.split(line)[3:])
    assert (f"{line}\n{out}[{code}]\n", err) == (shown, "")


def test_a_drawn_schedule_is_the_same_each_time(call: Command, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("# forwards and back\ncontinue\nback\nback\nstep\nregisters all\n\nreverse\nwarps\n")
    runs = [call.quiet(*RACE, schedule, "--script", "script") for schedule in ("pct:3", "pct:3", "lockstep")]
    assert runs[0] == runs[1] != runs[2]


WRONG = [
    ("kernels.py", 2, "kernels.py is Python; name its kernel function, kernels.py:NAME"),
    ("-", 2, "commands are read from standard input, so the kernel must be in a file"),
    ("reverse.ptx", 2, "--grid is needed"),
    ("reverse.ptx --grid 1 --example a:b", 2, "--example is for a kernel function, and reverse.ptx is none"),
    ("kernels.py:transposed", 2, "a kernel function needs --grid, or --example, which says the grid"),
    (
        "kernels.py:transposed --grid 1 --entry a",
        2,
        "--entry and --symbol are for PTX and CUDA C++, not for a kernel function",
    ),
    ("reverse.ptx --grid 1", 2, "reverse does not say how many threads a block has; give --block"),
    ("reverse.ptx --grid 1 --block 64", 2, "reverse takes 1 arguments (out: u64), got 0"),
    ("absent.ptx --grid 1", 1, "cannot read absent.ptx: No such file or directory"),
    ("reverse.ptx --grid 1 --block 64 --script absent", 1, "cannot read absent: No such file or directory"),
]


@pytest.mark.parametrize(("words", "code", "message"), WRONG)
def test_what_cannot_be_debugged_is_said(words: str, code: int, message: str, call: Command) -> None:
    ended = call(*words.split())
    assert (ended.code, ended.err.splitlines()[-1]) == (code, f"{PROGRAM}: error: {message}")
