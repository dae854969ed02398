"""Static parameters of kernel functions on the command line."""

from __future__ import annotations

import argparse
import json
from typing import Any


def static(text: str) -> tuple[str, Any]:
    """A static parameter: a number, true or false if the value reads as one in JSON, else the text."""
    name, equals, words = text.partition("=")
    if not name.isidentifier() or not equals:
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, got {text!r}")
    try:
        return name, json.loads(words)
    except json.JSONDecodeError:
        return name, words
