"""Measure emission, assembly, the backends and the GPU: `ptxgen bench`, from a checkout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ptxgen.commands.parts.checkout import module_of_checkout
from ptxgen.commands.parts.exits import USAGE, fail

NAME: Final = "ptxgen bench"
_MEASUREMENTS: Final = "benchmarks.bench_command"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the measurements of a checkout, whose exit codes are in `--help`; 2 without a checkout."""
    measurements = module_of_checkout(_MEASUREMENTS)
    if measurements is None:
        return fail(NAME, USAGE, "it measures in a checkout of this project (benchmarks/), which this is not")
    return int(measurements.main(argv))
