"""Ctrl-C ends a command at once: exit code 130, no traceback, and no temporary file is left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120.0  # after which a process counts as hanging
ENDLESS = """\
.version 7.0
.target sm_80
.address_size 64
.visible .entry endless()
{
LOOP:
    bra LOOP;
}
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="process groups, FIFOs and /proc"),
]

Process = subprocess.Popen[bytes]
Ready = Callable[[Process, Path], int | None]  # a file descriptor to keep open until the end


def says(process: Process, _: Path) -> None:
    """The command has written its first line, of progress or of a proof, to standard error."""
    assert process.stderr is not None
    assert process.stderr.readline()


def reads(process: Process, folder: Path) -> int:
    """The command reads a FIFO, and waits for what is written to it."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        assert process.poll() is None
        try:
            file = os.open(folder / "input", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # nobody reads yet
            time.sleep(0.01)
            continue
        # A signal between the calls that open and read the FIFO is noticed only when the read returns.
        while not all(_is_asleep(process) for _ in range(3)):
            assert time.monotonic() < end, "the command does not wait for its input"
        return file
    raise AssertionError("the command does not read its input")


def _is_asleep(process: Process) -> bool:
    """Whether a process waits, as it does in a read, 5 ms from now."""
    time.sleep(0.005)
    state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "S"


def runs(process: Process, folder: Path) -> None:
    """The command has read a kernel that does not end."""
    file = reads(process, folder)
    os.write(file, ENDLESS.encode())
    os.close(file)


def maps(process: str) -> str:
    """What a process has mapped into its memory; nothing if it has ended."""
    try:
        return Path(f"/proc/{process}/maps").read_text()
    except OSError:
        return ""


def has_children(count: int, with_module: str = "") -> Ready:
    """The command has started so many processes that have loaded an extension module."""

    def ready(process: Process, _: Path) -> None:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        end = time.monotonic() + DEADLINE_S
        while sum(with_module in maps(n) for n in children.read_text().split()) < count:
            assert process.poll() is None
            assert time.monotonic() < end, "the command starts no processes"
            time.sleep(0.01)

    return ready


COMMANDS: dict[str, tuple[list[str], Ready]] = {
    # The assembler runs after the first line, for longer than the signal takes.
    "emit": (["--head-dim", "256", "--dtype", "f16", "--prove", "--assemble", "-o", "output"], says),
    "run": (["input", "--entry", "endless", "--grid", "1", "--block", "32"], runs),
    "check": (["input"], reads),
    "report": (["input", "-o", "report.html"], reads),
    "bench": (["--only", "emit", "--output", "a.json"], says),
    "tune": (["--head-dim", "64", "--static", "--output", "a.json"], says),
    "mutate": (["--short", "--jobs", "2", "--output", "a.json"], has_children(2, "_multiarray_umath")),
    "demo": ([], says),
    "run-program": (["/bin/sleep", "100"], has_children(1)),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.ptxas] if name == "emit" else []) for name in COMMANDS]
)
def test_an_interrupted_command_is_quiet_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    if name == "run-program" and not shutil.which("cc"):
        pytest.skip("the library that answers a program's calls needs a C compiler")
    options, ready = COMMANDS[name]
    work, temporary, cache = (tmp_path / folder for folder in ("work", "temporary", "cache"))
    for folder in (work, temporary):
        folder.mkdir()
    os.mkfifo(work / "input")
    process = subprocess.Popen(
        [sys.executable, "-m", "ptxgen", name, *options],
        cwd=work,
        env=dict(os.environ, PYTHONPATH=str(ROOT), TMPDIR=str(temporary), PTXGEN_CACHE_DIR=str(cache)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # A shell starts background jobs with SIGINT ignored, and what they start inherits it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # one thread here
    )
    try:
        kept = ready(process, work)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: all processes of the command
        out, err = process.communicate(timeout=DEADLINE_S)
        if kept is not None:
            os.close(kept)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 130, err.decode()
    assert b"Traceback" not in err
    assert b"KeyboardInterrupt" not in err
    assert out == b""
    assert list(temporary.iterdir()) == []
    left = {path.name for path in work.iterdir()} - {"input"}
    assert left <= {"a.json"}  # of tune, which writes it whole after each tile


@pytest.mark.parametrize(
    ("command", "module"),
    [
        (["-m", "ptxgen", "check"], "ptxgen.commands.main"),
        (["-m", "ptxgen", "check"], "ptxgen.commands.check"),
        (["-m", "ptxgen", "emit"], "flash.commands"),
        (["tools/check.py"], "ptxgen.commands.main"),
        (["tools/gen_api_docs.py"], "ptxgen.commands.parts.quiet"),
        (["tools/cta_order.py"], "numpy"),
    ],
)
def test_an_interrupt_of_the_first_imports_is_quiet(command: list[str], module: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"""\
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
""")
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=dict(os.environ, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}"),
        capture_output=True,
        timeout=DEADLINE_S,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # one thread here
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_other_errors_have_their_traceback(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(
        "from ptxgen.interrupts import leave_quietly\nleave_quietly()\nprint(unknown)\n"
    )
    done = subprocess.run(
        [sys.executable, tmp_path / "wrong.py"],
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.endswith("NameError: name 'unknown' is not defined\n")


def test_an_interrupt_of_generated_code_ends_a_command_as_any_other(tmp_path: Path) -> None:
    """CPython ends a process by the signal if a plain KeyboardInterrupt has left an `exec` of source text."""
    (tmp_path / "interrupted.py").write_text("""\
import os, signal, sys
from ptxgen.commands.parts.quiet import quietly

sys.exit(quietly(lambda: exec("os.kill(os.getpid(), signal.SIGINT)\\nwhile True: pass")))
""")
    search = os.pathsep.join((str(ROOT), str(tmp_path)))
    done = subprocess.run(
        [sys.executable, "-m", "interrupted"],
        env=dict(os.environ, PYTHONPATH=search),
        capture_output=True,
        timeout=DEADLINE_S,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # one thread here
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")
