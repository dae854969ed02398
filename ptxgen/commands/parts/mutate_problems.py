"""The judges of the kernel that `ptxgen mutate` mutates, from the command line."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ptxgen.commands.parts.files import FileError
from ptxgen.commands.parts.named_objects import launches_of, named
from ptxgen.commands.parts.run_arguments import ArgumentText, argument_text, checked_values, extents
from ptxgen.commands.parts.run_program import program_of
from ptxgen.errors import LaunchError, shown
from ptxgen.ir import Param
from ptxgen.kernels import KernelFunction
from ptxgen.mutation import testing
from ptxgen.mutation.argument import Reason
from ptxgen.mutation.judge import Judge

_TEXTS = (".ptx", ".cu")


class Asked(NamedTuple):
    """A problem of the command line: the grid, and one argument for each parameter."""

    grid: tuple[int, ...]
    arguments: tuple[ArgumentText, ...]


def problem(text: str) -> Asked:
    """A problem as one word: a grid, then an argument for each parameter. Raises
    `argparse.ArgumentTypeError`.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a grid and arguments, got {text!r}: {error}") from error
    if not words:
        raise argparse.ArgumentTypeError(f"must be a grid and arguments, got {text!r}")
    return Asked(extents(words[0]), tuple(map(argument_text, words[1:])))


def is_text(name: str) -> bool:
    """Whether a KERNEL is a file of PTX or CUDA C++, not a function."""
    return name.endswith(_TEXTS)


def judges(arguments: argparse.Namespace) -> dict[str, Judge]:
    """The judges of the kernels that the arguments name (`ptxgen.mutation.testing.judges`).

    Raises `FileError`, `LaunchError`, and what compiling, building or parsing raises.
    """
    kernel, params, how = _text(arguments) if is_text(arguments.kernel) else _function(arguments)
    return testing.judges(
        kernel,
        list(_asked(arguments, params)),
        expect=_callable(arguments.expect) if arguments.expect else None,
        rtol=arguments.rtol,
        atol=arguments.atol,
        deterministic=arguments.deterministic,
        reasons=_reasons(kernel, arguments.reasons),
        **how,
    )


def _reasons(kernel: Any, file: Path | None) -> tuple[Reason, ...]:
    try:
        return testing.reasons_of(kernel, file)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise FileError(f"cannot read {file or testing.reasons_file(kernel)}: {why}") from error


def _text(arguments: argparse.Namespace) -> tuple[Any, Sequence[Param], dict[str, Any]]:
    """A program of PTX or CUDA C++, the parameters of its kernel, and further arguments of its launches."""
    program = program_of(argparse.Namespace(**{**vars(arguments), "ptx": arguments.kernel}))
    entry = program.only() if arguments.entry is None else program[arguments.entry]
    how = {"block": arguments.block, "entry": entry.name, "cluster": arguments.cluster}
    if arguments.dynamic_smem is not None:
        how["shared"] = arguments.dynamic_smem
    return program, entry.kernel.params, how


def _function(arguments: argparse.Namespace) -> tuple[Any, Sequence[Param], dict[str, Any]]:
    """A kernel function, no parameters, and further arguments of its launches."""
    function, statics, block = named(arguments.kernel), dict(arguments.static), arguments.block
    if isinstance(function, KernelFunction):
        if block is not None and len(block) > 1:
            raise LaunchError("the block of a kernel function has one extent, its threads")
        how = {**statics, "block": None if block is None else block[0]}
    else:
        how = {"block": block, **({"constexprs": statics} if statics else {})}
    return function, (), how if arguments.target is None else {**how, "target": arguments.target}


def _asked(arguments: argparse.Namespace, params: Sequence[Param]) -> Iterator[tuple[Any, ...]]:
    """The problems that are asked for; arguments of the command line must have the types of `params`."""
    if arguments.example:
        yield from launches_of(arguments.example)
    of_options = [Asked(arguments.grid, tuple(arguments.arg))] if arguments.grid is not None else []
    for asked in (*of_options, *arguments.problem):
        yield asked.grid, checked_values(asked.arguments, params)


def _callable(name: str) -> Callable[..., Any]:
    function = named(name)
    if not callable(function):
        raise LaunchError(f"{name} is no function, it is {shown(function)}")
    return function  # type: ignore[no-any-return]
