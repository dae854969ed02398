"""Traces functions of scores: calls them once with values that record what is computed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol

from flash.mods.arithmetic import as_float
from flash.mods.closures import with_indexed_arrays
from flash.mods.trace import INDICES, SCORE, AuxArray, Recorder, Trace
from flash.mods.values import Traced, TracedArray, lifted
from ptxgen.errors import ConfigError, LaunchError, TypeMismatchError, shown
from ptxgen.types import ScalarType, f32, pred, s32

SCORE_MOD: Final = "score_mod"
MASK_MOD: Final = "mask_mod"
_PARAMETERS: Final[dict[str, tuple[str, ...]]] = {SCORE_MOD: (SCORE, *INDICES), MASK_MOD: INDICES}
_WANTED: Final = {
    SCORE_MOD: (f32, "the new score, a number"),
    MASK_MOD: (pred, "a condition: whether the query sees the key"),
}


class Capturing(Protocol):
    """Declares the arrays that a function indexes although they are no parameters."""

    def __call__(self, array: Any) -> AuxArray:
        """The declaration of an array that a function indexes."""

    @property
    def declared(self) -> list[AuxArray]:
        """The declarations of all arrays so far."""


@contextmanager
def naming(caller: str) -> Iterator[None]:
    """A context in which errors about functions and their arrays begin with the called function `caller`."""
    try:
        yield
    except (ConfigError, LaunchError, TypeMismatchError) as error:
        if not str(error).startswith(f"{caller}: "):
            error.args = (f"{caller}: {error}",)
        raise


def traced(
    name: str, function: object, arrays: Iterable[AuxArray], captured: Capturing | None = None
) -> Trace:
    """The trace of a function that is given as `name`, "score_mod" or "mask_mod"; a trace is returned
    as it is. Parameters after the usual ones are arrays of `aux`, by their names. `captured` declares
    arrays that the function indexes although they are no parameters; without it these are refused.

    Raises `ConfigError` for a function whose parameters or result do not fit, `TypeMismatchError` where the
    function uses a value in a way that cannot be traced.
    """
    known = {array.name: array for array in arrays}
    if isinstance(function, Trace):
        return _checked(name, function, known)
    if not callable(function):
        raise _no_function(name, function)
    names = _array_names(name, function, known)
    recorder = Recorder(capture=captured)
    inputs = [Traced(recorder, *_input(recorder, parameter)) for parameter in _PARAMETERS[name]]
    result = with_indexed_arrays(function)(*inputs, **{n: TracedArray(recorder, known[n]) for n in names})
    kind, words = _WANTED[name]
    try:
        value = lifted(recorder, result, kind)
    except TypeMismatchError:
        raise ConfigError(f"{name} must return {words}, got {shown(result)}") from None
    if name == SCORE_MOD and value.kind is s32:
        value = as_float(value)
    if value.kind is not kind:
        cure = (
            "use where(condition, score, float('-inf'))" if name == SCORE_MOD else "compare it, as in x > 0"
        )
        raise ConfigError(f"{name} must return {words}, got {value!r}; {cure}")
    every = [*known.values(), *([] if captured is None else captured.declared)]
    return Trace(name, recorder.steps, value.index, sorted(every, key=lambda array: array.name))


def _input(recorder: Recorder, name: str) -> tuple[int, ScalarType]:
    kind = f32 if name == SCORE else s32
    return recorder.record("input", kind, value=name), kind


def _signature(name: str, *more: str) -> str:
    return f"({', '.join((*_PARAMETERS[name], *more))})"


def _no_function(name: str, argument: object) -> ConfigError:
    return ConfigError(f"{name} must be a function {_signature(name)}, or None, got {shown(argument)}")


def _checked(name: str, trace: Trace, known: Mapping[str, AuxArray]) -> Trace:
    """The trace, after a check that it was made for the argument `name` and for arrays of the types in
    `known`.
    """
    if trace.name != name:
        raise ConfigError(f"{name} must be a function {_signature(name)}, got a traced {trace.name}")
    for array in trace.arrays:
        if known.get(array.name) != array:
            passed = known.get(array.name)
            raise ConfigError(
                f"{name} was traced with aux {array}, got {'no such array' if passed is None else passed}"
            )
    return trace


def _array_names(name: str, function: Callable[..., Any], known: Mapping[str, AuxArray]) -> list[str]:
    """The names of the function's parameters that are arrays of `aux`."""
    usual = _PARAMETERS[name]
    try:
        got = inspect.signature(function)
    except (TypeError, ValueError):  # of a class or a function that is not written in Python
        raise _no_function(name, function) from None
    parameters = [*got.parameters.values()]
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    first = [p for p in parameters[: len(usual)] if p.kind in kinds]
    rest = [p for p in parameters[len(usual) :] if p.default is p.empty or p.name in known]
    unnamed = [p for p in rest if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.POSITIONAL_ONLY)]
    if len(first) < len(usual) or unnamed:
        raise ConfigError(
            f"{name} must take {_signature(name)} and the names of arrays of aux, got parameters {got}"
        )
    missing = [p.name for p in rest if p.name not in known]
    if missing:
        there = ", ".join(known) or "no array"
        raise ConfigError(
            f"{name} takes {', '.join(missing)}, which aux does not have; aux has {there}: give "
            f"aux={{{missing[0]!r}: array}}"
        )
    return [p.name for p in rest]
