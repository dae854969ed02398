"""Triton programs as they are: `kernel[grid](…)` runs on the interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final

from ptxgen.frontends import triton as front
from ptxgen.frontends.packages import require
from ptxgen.frontends.program import FoundError, Outcome

_CALLER: Final = "ptxgen.frontends.triton_launches"


@contextmanager
def interpreted(
    *, target: str = front.DEFAULT_TARGET, outcomes: list[Outcome] | None = None, **how: Any
) -> Iterator[list[Outcome]]:
    """Within the context, each launch of a Triton kernel in this process, by whatever code, runs on
    the CPU, on arrays of the host; the list, `outcomes` if given, gets the outcome of each.

    `how` are the arguments of `ptxgen.frontends.triton.run` that are the same for all launches, such
    as `sanitize` and `schedule`, and options of Triton's compiler for launches that do not give them, such
    as `enable_fp_fusion`. An autotuned kernel, also of a tuner derived from Triton's, runs with the first
    of its configurations that its pruning keeps. A launch returns an object that launches the same kernel
    for other arguments, as Triton's does: `compiled[grid](*args)`. Hooks of launches are not called.

    A launch raises what `ptxgen.frontends.triton.run` does.
    """
    triton = require(_CALLER, "triton", "triton")
    common = dict(how.pop("options", None) or {})
    kernels = triton.runtime.JITFunction
    outcomes = [] if outcomes is None else outcomes

    def launch(kernel: Any, *args: Any, grid: Any, warmup: bool = False, **named: Any) -> _Launched:
        names = [param.name for param in kernel.params]
        further = {name: named.pop(name) for name in list(named) if name not in names}
        options = common | further
        positional = dict(zip(names, args, strict=False))
        arguments = args if len(args) > len(names) else positional
        compiled = front.compiled(kernel, arguments, named, target=target, options=options)
        launched = _Launched(kernel, positional | named | further, compiled)
        if warmup:
            return launched
        try:
            outcome = front.run(kernel, grid, arguments, named, target=target, options=options, **how)
        except FoundError as error:
            outcomes.append(error.outcome)
            raise
        outcomes.append(outcome)
        return launched

    def tune(tuner: Any, *args: Any, **named: Any) -> Any:
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        configs = tuner.prune_configs(named) if len(tuner.configs) > 1 else tuner.configs
        chosen = configs[0].all_kwargs()
        if configs[0].pre_hook is not None:
            configs[0].pre_hook({**tuner.nargs, **named, **chosen})
        tuner.nargs = None
        tuner.best_config = configs[0]
        return tuner.fn.run(*args, **named, **chosen)

    before = {kernels: kernels.run} | {of: of.run for of in _tuners(triton.runtime.Autotuner)}
    for of in before:
        of.run = launch if of is kernels else tune
    try:
        yield outcomes
    finally:
        for of, run in before.items():
            of.run = run


def _tuners(tuner: Any) -> Iterator[Any]:
    """A class of tuners, and those derived from it that run kernels in their own way."""
    if "run" in vars(tuner):
        yield tuner
    for derived in tuner.__subclasses__():
        yield from _tuners(derived)


class _Launched:
    """The return value of a launch: the kernel with its constants and options, for libraries that keep it.

    `asm` has the texts of Triton's stages up to `ptx`, since there is no machine code; `metadata` what Triton
    says about the kernel, such as `shared` and `num_warps`.
    """

    def __init__(self, kernel: Any, arguments: dict[str, Any], compiled: front.Compiled) -> None:
        self._kernel = kernel
        self._names = [param.name for param in kernel.params]
        self._variable = [param.name for param in kernel.params if not param.is_constexpr]
        self._fixed = {name: value for name, value in arguments.items() if name not in self._variable}
        self.asm = compiled.asm
        self.metadata = SimpleNamespace(**compiled.metadata)
        self.name = compiled.metadata["name"]

    def __getitem__(self, grid: Any) -> Any:
        """A function that launches the kernel; its arguments are all parameters in order, or those that
        are no constants.
        """

        def again(*args: Any) -> Any:
            names = self._names if len(args) == len(self._names) else self._variable
            return self._kernel.run(**self._fixed | dict(zip(names, args, strict=True)), grid=grid)

        return again
