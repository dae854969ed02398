"""The program `ptxgen`; `python -m ptxgen COMMAND …` is `ptxgen COMMAND …`."""

from __future__ import annotations

from ptxgen.interrupts import leave_quietly


def main() -> int:
    """Run the command that the arguments of the process name; returns its exit code."""
    leave_quietly()
    from ptxgen.commands.main import main as run

    return run()


if __name__ == "__main__":
    raise SystemExit(main())
