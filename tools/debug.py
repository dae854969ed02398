"""`ptxgen debug` from a checkout, installed or not."""

import sys
from pathlib import Path

if not __package__:  # run as a script, maybe in a bare checkout
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from ptxgen.interrupts import leave_quietly

    leave_quietly()

from ptxgen.commands.main import command

if __name__ == "__main__":
    sys.exit(command("debug"))
