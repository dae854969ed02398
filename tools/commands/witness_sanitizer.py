"""NVIDIA's compute-sanitizer: finds it, calls it, and reads its log.

The formats of the log are from the manual of Compute Sanitizer 2026.4 (CUDA 13.5), "Memcheck",
"Racecheck", "Initcheck", "Synccheck" and "Usage Guide"; those of 2025.2 (CUDA 12.9) are the same.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ptxgen.errors import BackendError, LaunchError

# The checks by name, with the options of each. Allocations are padded, because an access out of
# bounds could hit the next allocation. Failed driver calls after a failed launch are not reported.
TOOLS: Final[Mapping[str, tuple[str, ...]]] = {
    "memcheck": ("--padding", "4096", "--report-api-errors", "no"),
    "racecheck": (),
    "initcheck": ("--initcheck-address-space", "all"),
    "synccheck": (),
}
CLEAN, ERRORS, HANGS, NONE = "clean", "errors", "hangs", "none"

_PROGRAM: Final = "compute-sanitizer"
_PACKAGE: Final = "nvidia-cuda-sanitizer-api"
_ERRORS_EXIT: Final = 86  # exit code for "errors were found"; neither Python's nor a shell's own
_MOST_FINDINGS: Final = 20  # findings that the program prints
_ASKED_S: Final = 60.0  # time limit of its own --help
_STDERR_SHOWN: Final = 400  # characters of the standard error of the launch


@dataclass(frozen=True, slots=True)
class Sanitizer:
    """The compute-sanitizer at `path`; `options` are the options in `TOOLS` that it supports, and
    `general` the arguments of every call.
    """

    path: Path
    version: str
    options: Mapping[str, tuple[str, ...]]
    general: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check of one launch. `verdict` is CLEAN, ERRORS, HANGS (the launch did not
    end in time) or NONE: then `why` says how the check itself failed. `findings` are its reports,
    each with its lines.
    """

    tool: str
    verdict: str
    findings: tuple[str, ...] = ()
    why: str = ""

    @property
    def noticed(self) -> bool:
        """Whether the check found an error in the kernel."""
        return self.verdict in (ERRORS, HANGS)


# --------------------------------------------------------------------------------------- finding it


def find_sanitizer(named: Path | None = None) -> Sanitizer:
    """The compute-sanitizer to use: the one at `named`, else the first found on PATH, in CUDA_HOME
    or CUDA_PATH, next to nvcc, or in the pip package. Raises `BackendError` if there is none, or if
    it does not answer.
    """
    paths = [named] if named is not None else list(_candidates())
    program = next((path for path in paths if path.is_file()), None)
    if program is None:
        where = (
            f"{named} is not a file"
            if named is not None
            else ("none on PATH, in CUDA_HOME, beside nvcc, or among the Python packages")
        )
        raise BackendError(
            f"compute-sanitizer was not found: {where}; pip install {_PACKAGE}, or name it with --sanitizer"
        )
    help_text, version = _asked(program, "--help"), _asked(program, "--version")
    number = re.search(r"Version ([\d.]+)", version)
    options = {tool: _known(options_of, help_text) for tool, options_of in TOOLS.items()}
    # The program in the pip package for CUDA 12 does not find its own library.
    library = program.resolve().parent.parent / "lib"
    injected = (library / "libsanitizer-collection.so").exists()
    general = ("--injection-path", str(library)) if injected else ()
    return Sanitizer(program, number[1] if number else "unknown", options, general)


def _candidates() -> list[Path]:
    on_path = shutil.which(_PROGRAM)
    homes = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    paths = [Path(on_path)] if on_path else []
    for home in filter(None, homes):
        paths += [Path(home, "bin", _PROGRAM), Path(home, _PROGRAM, _PROGRAM)]
    compiler = shutil.which("nvcc")  # nvcc on PATH may be a link into a toolkit
    if compiler:
        paths.append(Path(compiler).resolve().parent / _PROGRAM)
    package = importlib.util.find_spec("nvidia")
    for folder in (package and package.submodule_search_locations) or ():
        paths += sorted(Path(folder).glob(f"*/bin/{_PROGRAM}"), reverse=True)
    return paths


def _asked(program: Path, option: str) -> str:
    try:
        ran = subprocess.run([program, option], capture_output=True, text=True, timeout=_ASKED_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise BackendError(f"{program} {option} failed: {error}; is it a compute-sanitizer?") from None
    return ran.stdout


def _known(options: Sequence[str], help_text: str) -> tuple[str, ...]:
    """The pairs of an option and its value whose option is in the program's help."""
    pairs = zip(options[::2], options[1::2], strict=True)
    return tuple(word for pair in pairs if pair[0] in help_text for word in pair)


# --------------------------------------------------------------------------------------- calling it


def examine(
    sanitizer: Sanitizer, tool: str, command: Sequence[str], entry: str, log: Path, timeout_s: float
) -> CheckResult:
    """The result of `tool`, one of TOOLS, for the launches of `entry` that `command` makes; `log`
    is the file to which its text is written. Raises `LaunchError` for another tool.
    """
    if tool not in TOOLS:
        raise LaunchError(f"examine: tool must be one of {', '.join(TOOLS)}, got {tool!r}")
    call = [
        str(sanitizer.path),
        *sanitizer.general,
        "--tool",
        tool,
        *sanitizer.options[tool],
        "--show-backtrace",
        "no",
        "--print-limit",
        str(_MOST_FINDINGS),
        "--error-exitcode",
        str(_ERRORS_EXIT),
        "--log-file",
        str(log),
        "--kernel-name",
        f"kne={entry}",
        "--",
        *command,
    ]
    ran = run(call, timeout_s)
    if ran is None:
        return CheckResult(tool, HANGS, why=f"the launch did not end within {timeout_s:g} s")
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return judged(tool, text, ran.returncode, ran.stderr)


def run(call: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str] | None:
    """Run a program to its end; None if it exceeds the time limit, when it and its children are
    killed.

    Raises `BackendError` if it cannot be started.
    """
    try:
        process = subprocess.Popen(
            call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
    except OSError as error:
        raise BackendError(f"cannot run {call[0]}: {error.strerror}") from None
    with process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return None
    return subprocess.CompletedProcess(call, process.returncode, out, err)


# ------------------------------------------------------------------------------------------ its log

_LINE: Final = re.compile(r"^ ?={8,} ?(?P<text>.*?)\s*$", re.MULTILINE)
_SUMMARY: Final = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (?P<count>\d+) ")
_IDLE: Final = re.compile(r"COMPUTE-SANITIZER$|LEAK SUMMARY|Warning: Detected overflow of tracked")
# Lines that say that the kernel was not checked, or that the launch failed; for a failed launch the
# reports give the cause.
_TROUBLE: Final = re.compile(
    r"Internal Sanitizer Error|Unable to find|(?:Error: )?Target application|"
    r"Error: (?:process didn't terminate|couldn't find exit code|No attachable)"
)


def judged(tool: str, log: str, exit_code: int, stderr: str = "") -> CheckResult:
    """The result that the text of a log and the exit code mean. Text that is neither a summary nor
    a known trouble counts as a report: hardware errors have many forms (manual, "Understanding
    Memcheck Errors").
    """
    findings: list[list[str]] = []
    trouble: list[str] = []
    count: int | None = None
    open_block: list[str] | None = None
    for line in _LINE.finditer(log):
        text = line["text"]
        if text.startswith("    "):
            if open_block is not None:
                open_block.append(text.strip())
            continue
        open_block = None
        if summary := _SUMMARY.match(text):
            count = int(summary["count"])
        elif _TROUBLE.match(text):
            trouble.append(text)
        elif text and not _IDLE.match(text):
            open_block = [text.strip()]
            findings.append(open_block)
    if findings or count:
        blocks = tuple("\n".join(block) for block in findings)
        return CheckResult(tool, ERRORS, blocks or (f"{count} errors in its summary",))
    if count == 0 and exit_code == 0 and not trouble:
        return CheckResult(tool, CLEAN)
    why = "; ".join(trouble) or f"exit code {exit_code} and no summary"
    message = stderr.strip()[-_STDERR_SHOWN:]
    return CheckResult(tool, NONE, why=f"{why}; {message}" if message else why)
