"""Mutation testing of anyone's kernel: its judges, by a kernel of any language and problems to run it on."""

from __future__ import annotations

import inspect
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ptxgen.errors import LaunchError, shown
from ptxgen.frontends import dispatch
from ptxgen.frontends.program import Program
from ptxgen.kernels import KernelFunction
from ptxgen.mutation.argument import Reason
from ptxgen.mutation.comparison import Tolerance
from ptxgen.mutation.judge import Judge
from ptxgen.mutation.operators import KINDS
from ptxgen.mutation.problems import Expect, Problem, kernels_under_test
from ptxgen.mutation.reasons import FILE, load

_SEED: Final = 5  # seed of the choice of a sample of mutants
_PARTS: Final = (2, 3)  # length of a problem: grid, arguments and maybe static parameters


def judges(
    kernel: Any,
    problems: Sequence[Sequence[Any]],
    *,
    expect: Expect | None = None,
    rtol: float = 0.0,
    atol: float = 0.0,
    deterministic: bool = False,
    reasons: Sequence[Reason] = (),
    block: Any = None,
    entry: str | None = None,
    **how: Any,
) -> dict[str, Judge]:
    """The judges of a kernel's mutants, by name: several if static parameters or a compiler make several
    kernels of it.

    `kernel` is what `ptxgen.frontends.dispatch.run` takes; it runs in place on the arrays. Each of `problems`
    is (grid, arguments) or (grid, arguments, statics), the latter a mapping of static parameters, which
    Triton calls constexprs. Without `expect`, what the kernel writes on a problem is right, and floats may
    err by `atol + rtol * |right|`; `expect` is that of `ptxgen.mutation.problems.kernels_under_test`.
    With `deterministic`, sums of floating-point numbers whose order nothing fixes are wrong, too. `reasons`
    say why some mutants are equivalent (`reasons_of`). `how` are further arguments of the front
    end and of `ProgramKernel.run`.

    Raises `LaunchError` for arguments that do not fit, and what the front end raises.
    """
    launched = [_problem(kernel, n, each, block, entry, how) for n, each in enumerate(problems)]
    if not launched:
        raise LaunchError("mutation testing needs a problem to run the kernel on, got none")
    tests = kernels_under_test(launched, expect, Tolerance(rtol, atol), deterministic=deterministic)
    return {test.name: Judge(test, reasons) for test in tests}


def _problem(
    kernel: Any, number: int, problem: Sequence[Any], block: Any, entry: str | None, how: Mapping[str, Any]
) -> Problem:
    if not isinstance(problem, tuple | list) or len(problem) not in _PARTS:
        raise LaunchError(
            f"problem {number} must be (grid, arguments) or (grid, arguments, statics), got {shown(problem)}"
        )
    grid, arguments, *more = problem
    statics = dict(more[0]) if more else {}
    if statics and not isinstance(kernel, KernelFunction):
        if isinstance(kernel, str | Path | Program):
            raise LaunchError(f"problem {number} has static parameters, and a text has none; leave them out")
        statics = {"constexprs": {**how.get("constexprs", {}), **statics}}
    launch = dispatch.launch(kernel, grid, block, arguments, entry=entry, **{**how, **statics})
    return Problem(number, launch, arguments)


def reasons_of(kernel: Any, file: Path | str | None = None) -> tuple[Reason, ...]:
    """The reasons in a file, by default that of `reasons_file`, which need not exist.

    Raises `OSError` for a file that cannot be read, and `ValueError` for one that has other tables.
    """
    path = reasons_file(kernel) if file is None else Path(file)
    if path is None or (file is None and not path.is_file()):
        return ()
    return tuple(load(path.read_text(encoding="utf-8")))


def reasons_file(kernel: Any) -> Path | None:
    """The file with reasons for a kernel's mutants: `equivalent.toml` next to its source. None for a program
    that is no file.
    """
    if isinstance(kernel, str | Path):
        return Path(kernel).parent / FILE
    if isinstance(kernel, Program):
        return Path(kernel.name).parent / FILE
    function = kernel
    while hasattr(function, "fn") or hasattr(function, "py_func"):  # decorators of Triton; of Numba
        function = getattr(function, "fn", None) or function.py_func
    try:
        source = inspect.getsourcefile(inspect.unwrap(function))
    except TypeError:
        return None
    return None if source is None else Path(source).parent / FILE


def sample(judge: Judge, kinds: Sequence[str] | None = None, *, short: bool = False) -> list[int]:
    """The indices of a judge's mutants, in their order: of all `kinds` if none are given; if `short`, of one
    mutant of each.
    """
    numbers: dict[str, list[int]] = {}
    for number, mutant in enumerate(judge.mutants):
        if mutant.kind in (kinds or KINDS):
            numbers.setdefault(mutant.kind, []).append(number)
    if short:
        choice = random.Random(_SEED)
        numbers = {kind: [choice.choice(of_kind)] for kind, of_kind in numbers.items()}
    return sorted(number for of_kind in numbers.values() for number in of_kind)
