"""Printing to standard output, whose reader may end early."""

from __future__ import annotations

import os
import sys


class OutputError(Exception):
    """Standard output cannot be written; `ptxgen.commands.parts.quiet` ends the command."""


def tell(text: str, end: str = "\n") -> None:
    """Print a text and `end`. A reader such as `head` that has ended is no error, so that the
    command ends with its own exit code.

    Raises `OutputError` where the text cannot be written, such as on a full disk.
    """
    try:
        print(text, end=end)
        sys.stdout.flush()
    except BrokenPipeError:
        drop_standard_output()
    except OSError as error:
        drop_standard_output()
        raise OutputError(f"cannot write standard output: {error.strerror or error}") from error


def drop_standard_output() -> None:
    """Redirect standard output to the null device, so that the flush at exit succeeds."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
