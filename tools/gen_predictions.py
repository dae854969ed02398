"""Write `benchmarks/results/predictions.json`, the models' predictions for kernels that a GPU is going to
run, or check that it is up to date. It needs ptxas and nvdisasm.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

if not __package__:  # run as a script, maybe in a bare checkout
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measure.predictions import PREDICTIONS, render
from ptxgen.commands.parts.quiet import quietly
from tools.commands.generated_file import write_or_check


def main(argv: Sequence[str] | None = None) -> int:
    """Write the file and return 0; with `--check` write nothing, and return 1 if it is outdated."""
    return write_or_check(argv, "gen_predictions.py", __doc__, PREDICTIONS, "the models say", render)


if __name__ == "__main__":
    sys.exit(quietly(main))
