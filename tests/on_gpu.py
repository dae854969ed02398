"""`pytest --on-gpu`: launches that tests give to the interpreter run on a GPU instead.

A test of what a kernel computes then judges what a GPU computes. What only the interpreter knows
(counters, reports of sanitizers, memory of its own) skips the test that asks for it. A GPU may not say
that a kernel is wrong: tests of a trap, of instructions as run, and of kernels that were made wrong are
marked `interpreter`, and skipped as a whole.
"""

from __future__ import annotations

from typing import Any, NoReturn

import gpu_runs
import pytest

import ptxgen.interpreter
from ptxgen import ir
from ptxgen.text import render

# Arguments of `ptxgen.interpreter.run` that a GPU has no use for.
_OF_THE_INTERPRETER = {
    "sanitize",
    "profile",
    "schedule",
    "stepwise",
    "max_instructions",
    "raise_on_report",
    "progress",
    "in_flight",
    "cluster",  # the text names its clusters
}


class Unwatched:
    """The result of a run on a GPU: it is in the arrays, and nothing else is known."""

    def __getattr__(self, name: str) -> NoReturn:
        pytest.skip(f"a GPU does not tell the {name} of a run")


def run(
    ptx_or_module: str | ir.Module,
    entry: str | None = None,
    *,
    args: Any,
    grid: Any,
    block: Any,
    dynamic_smem: int = 0,
    **how: Any,
) -> Unwatched:
    """Run a kernel on the GPU, with the arguments of `ptxgen.interpreter.run`. Skips the running test for
    what a GPU cannot do.
    """
    if unknown := set(how) - _OF_THE_INTERPRETER:
        pytest.skip(f"a GPU has no {', '.join(sorted(unknown))}")
    if not how.get("raise_on_report", True):
        pytest.skip("a GPU makes no reports of sanitizers")
    text = ptx_or_module if isinstance(ptx_or_module, str) else render(ptx_or_module)
    gpu_runs.run_on_gpu(text, entry, args=args, grid=grid, block=block, dynamic_smem=dynamic_smem)
    return Unwatched()


def install() -> None:
    """Put `run` in the place of the interpreter's, before test modules import that."""
    ptxgen.interpreter.run = run  # type: ignore[assignment]
