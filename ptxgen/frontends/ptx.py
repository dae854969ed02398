"""PTX as it is: from a file, or text."""

from __future__ import annotations

import functools
from pathlib import Path

from ptxgen.errors import LaunchError, shown
from ptxgen.frontends.cpp_names import cpp_names
from ptxgen.frontends.program import Program
from ptxgen.frontends.sources import sources_of


def load(ptx: str | Path) -> Program:
    """The kernels of a PTX file (a path), or of PTX text (a str with several lines).

    >>> program = load("tests/ptx/nvcc/stencils.sm_80.ptx")
    >>> program["saxpy"].parameters[0]
    'saxpy_param_0: f32'

    If the PTX has line information (`nvcc -lineinfo`), findings name lines of the source, and show
    them if the file is there and no newer than the PTX file. C++ names are shown as in the source.
    Raises `LaunchError` for a file that cannot be read, and what `Program` raises.
    """
    if not isinstance(ptx, str | Path):
        raise LaunchError(f"load: the PTX must be a path or text, got {shown(ptx)}")
    if isinstance(ptx, str) and "\n" in ptx:
        return program_of(ptx, "the PTX text")
    path = Path(ptx)
    return program_of(read(path, "PTX"), str(path), path.stat().st_mtime)


@functools.lru_cache(maxsize=32)
def program_of(text: str, name: str, compiled: float | None = None) -> Program:
    """The program of a text that was `compiled` at a time, in seconds since the epoch; the same object
    for the same text, so that its kernels are translated for the interpreter once.
    """
    return Program(text, name=name, sources=sources_of(compiled=compiled), names=cpp_names(text))


def read(path: Path, what: str) -> str:
    """The text of a file. Raises `LaunchError`."""
    try:
        return path.read_text()
    except OSError as error:
        raise LaunchError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise LaunchError(f"cannot read {path}: it is no text, so it is no {what}") from error
