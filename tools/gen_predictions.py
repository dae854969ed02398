"""Write `benchmarks/results/predictions.json`, the models' predictions for kernels that a GPU is going to
run, or check that it is up to date. It needs ptxas and nvdisasm.

With `--texts FILE ...` it writes nothing, and prints what the model of roles says of kernels with `tcgen05`
whose PTX these files have, for instance those that `benchmarks/flash_attn_4_forward.py --target sm_100a`
leaves.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

if not __package__:  # run as a script, maybe in a bare checkout
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measure.predictions import PREDICTIONS, render
from benchmarks.measure.static_blackwell import table
from ptxgen.commands.parts.quiet import quietly
from tools.commands.generated_file import CURRENT, write_or_check

TEXTS = "--texts"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the file and return 0; with `--check` write nothing, and return 1 if it is outdated. With
    `--texts` print the table of the files that follow.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments[:1] == [TEXTS]:
        print(table([Path(name) for name in arguments[1:]]))
        return CURRENT
    return write_or_check(argv, "gen_predictions.py", __doc__, PREDICTIONS, "the models say", render)


if __name__ == "__main__":
    sys.exit(quietly(main))
