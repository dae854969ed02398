"""Ctrl-C while Python still imports what a program needs: no traceback, and exit code 130."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import Final

INTERRUPTED: Final = 130  # 128 plus the number of SIGINT, as shells have it


def leave_quietly() -> None:
    """Have this process end without a traceback when no code catches the KeyboardInterrupt of Ctrl-C.
    Programs call it before their other imports.
    """
    sys.excepthook = _without_traceback


def _without_traceback(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
        return
    os._exit(INTERRUPTED)  # not by the signal, with which CPython would end the process
