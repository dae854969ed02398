"""Subjects of reports made of kernel functions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Any

import numpy as np

from ptxgen import ir
from ptxgen.check.prove import Proofs
from ptxgen.kernels import BuiltFunction, KernelFunction
from ptxgen.kernels.built import GRID
from ptxgen.kernels.launch import checked, interpreted
from ptxgen.report.collect import Launch, Subject


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of the functions and comprehensions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


# What loads the parameters, in the name of the user's function.
_EMITTERS = tuple(
    code for f in (KernelFunction._emit, KernelFunction._declared) for code in _with_inner(f.__code__)
)


def subject_of_function(
    function: KernelFunction,
    grid: tuple[int, ...] | None = None,
    arguments: tuple[Any, ...] = (),
    *,
    target: str | None = None,
    threads: int | None = None,
    statics: Mapping[str, Any] | None = None,
) -> Subject:
    """The subject of a kernel function and, with a `grid` of 1 to 3 extents, of its launch with these
    arguments, which must be on the host. Then the proofs are of launches with arrays of these shapes.

    Raises `LaunchError` for arguments that do not fit, and what `KernelFunction.build` raises.
    """
    built = function.build(target=target, threads=threads, **(statics or {}))
    names = function.signature.parameters
    launch = prove = None
    if grid is not None:
        values, _ = function.signature.bind(arguments, dict(statics or {}))
        call = checked(function.name, names, values, None)
        launch = Launch(grid, interpreted(built, call))
        numbers = {n: int(v) for n, v in zip(names, values, strict=True) if _is_size(v)}
        prove = functools.partial(
            _proofs, built, grid, {n: tuple(a.shape) for n, a in call.views.items()}, numbers
        )
    code = inspect.unwrap(function).__code__
    config = [("function", f"{function.__module__}.{function.name}")]
    config += [(name, str(value)) for name, value in function.signature.static_values(statics or {}).items()]
    return Subject(
        built.module,
        block=built.block,
        launch=launch,
        prove=prove,
        config=tuple(config),
        renamed=dict.fromkeys(_EMITTERS, ir.Origin(code, code.co_firstlineno)),
    )


def _is_size(value: object) -> bool:
    return isinstance(value, int | np.integer) and bool(value > 0)


def _proofs(
    built: BuiltFunction,
    grid: tuple[int, ...],
    shapes: Mapping[str, tuple[int, ...]],
    numbers: Mapping[str, int],
) -> tuple[Proofs, str]:
    """The proofs for all launches whose arrays have dimensions that depend on the parameters as those
    of this launch seem to, if these proofs are complete; else those for this launch alone.
    """
    if len(grid) == 1 or grid[1:] == (1,) * len(grid[1:]):
        names = {value: name for name, value in numbers.items()} | {grid[0]: GRID}
        dims = {n: tuple(names.get(size, size) for size in s) or (1,) for n, s in shapes.items()}
        general = built.prove(dims, {}, GRID)
        if general.complete:
            words = ", ".join(f"{n}[{', '.join(map(str, d))}]" for n, d in dims.items())
            return general, f"every launch with {words}"
    exact = {name: (value, value) for name, value in numbers.items()}
    proofs = built.prove({n: s or (1,) for n, s in shapes.items()}, exact, grid)
    return proofs, "launches with arrays and numbers of these sizes"
