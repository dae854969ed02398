"""How commands end that cannot do what they are asked."""

from __future__ import annotations

import sys


class StopError(Exception):
    """Ends a command with a given exit code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def fail(command: str, code: int, error: Exception | str) -> int:
    """Print an error as argparse does, with the command's name; returns the exit code."""
    print(f"{command}: error: {error}", file=sys.stderr)
    return code
