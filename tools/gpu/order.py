"""The order of units whose kernels are known before they run: texts that never ran on a GPU come first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flash.silicon.ledger import Ledger, merge, read
from tools.commands.silicon_runs import entries_of, read_runs
from tools.gpu.unit import Unit

if TYPE_CHECKING:
    from benchmarks.measure.gpu_attention import Call
    from tools.commands.shipped_kernels import Shipped


def launched_by(call: Call | None, target: str) -> Shipped | None:
    """The kernel that a forward call launches, if its batch and heads are those of `shipped_kernels`."""
    # Imported here, because the worker also runs where packages that kernels need are missing.
    from tools.commands.shipped_kernels import TOKENS, WIDTH, of_launch

    if call is None or call.heads or (call.tokens, call.width) != (TOKENS, WIDTH):
        return None
    return of_launch(call.config, call.seq, target)


def gradients_launched_by(call: Call, target: str) -> Shipped:
    """The kernel that writes dK and dV in a call for gradients."""
    # Imported here, because the worker also runs where packages that kernels need are missing.
    from flash.problem.gradients import KEYS
    from tools.commands.shipped_kernels import of_gradients

    return of_gradients(call.config, KEYS, target)


def new_texts_first(names: Sequence[str], units: Mapping[str, Unit], runs: Path) -> list[str]:
    """The units in their order, but that those with a known kernel swap among themselves: first those whose
    text is neither in the ledger nor in the file of runs.
    """
    known = Ledger(merge(read(), entries_of(read_runs(runs))))

    def ran(name: str) -> bool:
        kernel = units[name].kernel
        return kernel is not None and bool(known.of(kernel.words, kernel.text)[0])

    with_kernels = [name for name in names if units[name].kernel is not None]
    ranked = iter(sorted(with_kernels, key=ran))
    return [name if units[name].kernel is None else next(ranked) for name in names]
