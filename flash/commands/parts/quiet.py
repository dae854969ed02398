"""A command ends without a traceback when Ctrl-C interrupts it, or its reader has enough."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flash.commands.parts.exits import INTERRUPTED, OK
from flash.commands.parts.standard_output import drop_standard_output


def quietly(run: Callable[[], int]) -> int:
    """The exit code of a command: what `run` returns, INTERRUPTED after Ctrl-C, and OK if the reader of
    standard output, such as `head`, ended before the command had one.
    """
    code = OK
    try:
        try:
            code = run()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        drop_standard_output()
    return code


@contextmanager
def children_without_interrupts() -> Iterator[None]:
    """Processes that are started inside do not see Ctrl-C, which a terminal sends to all processes:
    whoever starts them sees it, and has to end them.
    """
    if not hasattr(signal, "pthread_sigmask"):  # on Windows they print what interrupts them
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
