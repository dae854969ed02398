"""The program `ptxgen`; `python -m ptxgen COMMAND …` is `ptxgen COMMAND …`."""

from __future__ import annotations

import importlib
import sys

from ptxgen import distribution


def main() -> int:
    """Run the command that the arguments of the process name; returns its exit code."""
    if why := distribution.why_not_ours():
        sys.stderr.write(f"ptxgen: error: {why}\n")
        return 1
    # By name, because the commands lie above this package; they are in the same distribution.
    return int(importlib.import_module("flash.commands.main").main())


if __name__ == "__main__":
    sys.exit(main())
