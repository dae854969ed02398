"""The end of commands: exit codes, and the messages of a command that fails."""

from __future__ import annotations

import sys
from typing import Final

from ptxgen.interrupts import INTERRUPTED

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNSUPPORTED: Final = 3
NO_GPU: Final = 4

# What each exit code means in every command; docs/commands.md has this table.
EXIT_CODES: Final = {
    OK: "done, and nothing was found",
    FAILED: "a check failed, something was found, or a file could not be read or written",
    USAGE: "wrong usage, arguments that do not fit, or an environment variable with an unusable value",
    UNSUPPORTED: "a configuration or a target that is not supported",
    NO_GPU: "a GPU was asked for and there is none",
    INTERRUPTED: "interrupted by Ctrl-C",
}


class StopError(Exception):
    """Ends a command with exit code `code`."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def note(command: str, message: str) -> None:
    """Print a note on an unexpected effect of a successful command, on standard error."""
    print(f"{command}: note: {message}", file=sys.stderr)


def fail(command: str, code: int, error: Exception | str) -> int:
    """Print an error as argparse does, with the command's name; returns the exit code."""
    print(f"{command}: error: {error}", file=sys.stderr)
    return code
