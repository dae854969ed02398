"""Triton programs as they are: `kernel[grid](…)` runs on the interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from ptxgen.frontends import triton as front
from ptxgen.frontends.packages import require
from ptxgen.frontends.program import FoundError, Outcome

_WHO: Final = "ptxgen.frontends.triton_launches"


@contextmanager
def interpreted(*, target: str = front.DEFAULT_TARGET, **how: Any) -> Iterator[list[Outcome]]:
    """Within the context, each launch of a Triton kernel in this process, by whatever code, runs on
    the CPU, on arrays of the host; the list gets the outcome of each.

    `how` are the arguments of `ptxgen.frontends.triton.run` that are the same for all launches, such
    as `sanitize` and `schedule`, and options of Triton's compiler for launches that do not give them, such
    as `enable_fp_fusion`. An autotuned kernel runs with the first of its configurations that
    its pruning keeps. Hooks of launches are not called.

    A launch raises what `ptxgen.frontends.triton.run` does.
    """
    triton = require(_WHO, "triton", "triton")
    common = dict(how.pop("options", None) or {})
    kernels, tuners = triton.runtime.JITFunction, triton.runtime.Autotuner
    outcomes: list[Outcome] = []

    def launch(kernel: Any, *args: Any, grid: Any, warmup: bool = False, **named: Any) -> None:
        if warmup:
            return
        names = [param.name for param in kernel.params]
        own = {name: named.pop(name) for name in list(named) if name not in names}
        positional = dict(zip(names, args, strict=False))
        arguments = args if len(args) > len(names) else positional
        try:
            outcome = front.run(kernel, grid, arguments, named, target=target, options=common | own, **how)
        except FoundError as error:
            outcomes.append(error.outcome)
            raise
        outcomes.append(outcome)

    def tune(tuner: Any, *args: Any, **named: Any) -> Any:
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        kept = tuner.prune_configs(named) if len(tuner.configs) > 1 else tuner.configs
        chosen = kept[0].all_kwargs()
        if kept[0].pre_hook is not None:
            kept[0].pre_hook({**tuner.nargs, **named, **chosen})
        tuner.nargs = None
        return tuner.fn.run(*args, **named, **chosen)

    before = kernels.run, tuners.run
    kernels.run, tuners.run = launch, tune
    try:
        yield outcomes
    finally:
        kernels.run, tuners.run = before
