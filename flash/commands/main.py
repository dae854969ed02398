"""`ptxgen COMMAND …`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence


def command(name: str, argv: Sequence[str] | None = None) -> int:
    """Run a command with arguments, by default those of the process; returns the exit code."""
    module = importlib.import_module(f"flash.commands.{name.replace('-', '_')}")
    return int(module.main(sys.argv[1:] if argv is None else argv))
