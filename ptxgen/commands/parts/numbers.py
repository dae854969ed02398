"""Numbers on the command line."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def whole(least: int) -> Callable[[str], int]:
    """A function that reads an integer of at least `least`; it raises `argparse.ArgumentTypeError`."""

    def number(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, got {text!r}")
        return int(text)

    return number


def tolerance(text: str) -> float:
    """Read a tolerance, a number of at least 0. Raises `argparse.ArgumentTypeError`."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of at least 0, got {text!r}")
    return number


def seconds(text: str) -> float:
    """Read a time of more than 0 s. Raises `argparse.ArgumentTypeError`."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not number > 0:
        raise argparse.ArgumentTypeError(f"must be more than 0 seconds, got {text!r}")
    return number
