"""What a command prints, though its reader may leave early."""

from __future__ import annotations

import os
import sys


def tell(text: str) -> None:
    """Print a text and a line end. A reader such as `head` that has ended is no error."""
    try:
        print(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # Redirected, so that the flush at the end of the process succeeds.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
