"""`python -m ptxgen COMMAND …` is `ptxgen COMMAND …`."""

from __future__ import annotations

import importlib
import sys

if __name__ == "__main__":
    # By name, because the commands lie above this package; they are in the same distribution.
    sys.exit(importlib.import_module("flash.commands.main").main())
