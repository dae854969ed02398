"""The program `ptxgen`; `python -m ptxgen COMMAND …` is `ptxgen COMMAND …`."""

from __future__ import annotations

from ptxgen.interrupts import leave_quietly


def main() -> int:
    """Run the command that the arguments of the process name; returns its exit code."""
    leave_quietly()
    import importlib
    import sys

    from ptxgen import distribution

    if why := distribution.why_not_ours():
        sys.stderr.write(f"ptxgen: error: {why}\n")
        return 1
    # By name, because the commands lie above this package; they are in the same distribution.
    return int(importlib.import_module("flash.commands.main").main())


if __name__ == "__main__":
    raise SystemExit(main())
