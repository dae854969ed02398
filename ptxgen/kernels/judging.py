"""Errors of a kernel before its launch: problems of its verification, and violations of its proof."""

from __future__ import annotations

from typing import Final

from ptxgen import ir
from ptxgen.check.problems import Problem
from ptxgen.check.verify import require_valid
from ptxgen.errors import ConfigError, VerifyError
from ptxgen.kernels.built import BuiltFunction
from ptxgen.kernels.launch import Call

_UNSET: Final = (
    "What Python computes inside a loop or a branch of the GPU is unknown after it: make the variable "
    "before it, total = k.var(f32, 0), and write it inside, total += x"
)


def require_verified(name: str, module: ir.Module, *, programmatic: bool) -> None:
    """Raise `VerifyError` if the module is no valid PTX, and `ConfigError` if the kernel begins before the
    grid before it has ended (`programmatic`) and never executes `griddepcontrol.wait`.
    """
    try:
        require_valid(module)
    except VerifyError as error:
        unset = any(isinstance(p, Problem) and p.kind == "undefined" for p in error.problems)
        cure = f"\n{_UNSET}" if unset else ""
        raise VerifyError(f"{error}{cure}", error.problems) from None
    if programmatic and not _waits_for_grids(module):
        raise ConfigError(
            f"kernel {name}: programmatic=True lets the kernel begin before the grid before it has "
            "ended, so it must call k.griddepcontrol_wait() before it reads what that grid wrote"
        )


def require_not_refuted(built: BuiltFunction, call: Call) -> None:
    """Raise `VerifyError` if the kernel's proof of shared memory and barriers has a violation for the numbers
    of this call. The proof runs once for a kernel, with a limit of steps; what it does not decide passes.
    """
    if not built.refutations():
        return
    names = built.signature.parameters
    numbers = [
        (name, value)
        for name, value in zip(names, call.values, strict=True)
        if name not in call.views and isinstance(value, int)
    ]
    refutations = built.refutations(tuple(numbers))
    if refutations:
        listed = "\n".join(f"* {text}" for text in refutations)
        raise VerifyError(
            f"{built.signature.name}: the kernel's proof says that the launch goes wrong:\n{listed}\n"
            "Mend it; if the proof is wrong about your launches, @ptxgen.kernel(..., proved=False) does not "
            "ask it"
        )


def _waits_for_grids(module: ir.Module) -> bool:
    """Whether a kernel executes `griddepcontrol.wait`."""
    return any(
        isinstance(statement, ir.Instr) and statement.opcode == "griddepcontrol.wait"
        for kernel in module.kernels
        for statement in kernel.body
    )
