"""Ends a command without a traceback after Ctrl-C, or when the reader of its output has ended."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ptxgen.commands.parts.exits import FAILED, OK, fail
from ptxgen.commands.parts.standard_output import OutputError, drop_standard_output
from ptxgen.interrupts import INTERRUPTED

_DISTRIBUTIONS: Final = {"cuda": "cuda-python"}  # whose name is not that of its package


class Interrupted(KeyboardInterrupt):
    """Raised for Ctrl-C instead of KeyboardInterrupt: if that class itself, not a subclass, leaves an `exec`
    or `eval` of source text, CPython ends the process by the signal although the exception was caught further
    out.
    """


def quietly(run: Callable[[], int], name: str = "") -> int:
    """The exit code of a command: what `run` returns, INTERRUPTED after Ctrl-C, OK if the reader of
    standard output, such as `head`, ended before the command had one, and FAILED with an error if standard
    output cannot be written, or a package is missing. `name` is that of the command, by default of the
    script that runs.
    """
    code, caller = OK, name or Path(sys.argv[0]).name
    try:
        try:
            with _interrupts_as(Interrupted):
                code = run()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        drop_standard_output()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not package or (sys.modules.get(package) and package not in _DISTRIBUTIONS):
            raise  # a fault of this program: the package is there, and lacks a module
        return fail(caller, FAILED, f"the package {package} is needed; {_cure(package)}")
    except OutputError as error:
        return fail(caller, FAILED, str(error))
    return code


def _cure(package: str) -> str:
    """How to install the distribution that has a package."""
    return f"pip install {_DISTRIBUTIONS.get(package, package.replace('_', '-'))}"


@contextmanager
def _interrupts_as(interrupt: type[KeyboardInterrupt]) -> Iterator[None]:
    """A context in which Ctrl-C raises `interrupt`, unless the process has another handler for it."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(_number: int, _frame: object) -> None:
        raise interrupt

    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def children_without_interrupts() -> Iterator[None]:
    """A context in which started processes ignore Ctrl-C, which a terminal sends to all processes: the parent
    process gets it, and has to end them.
    """
    if not hasattr(signal, "pthread_sigmask"):  # on Windows they print what interrupts them
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
