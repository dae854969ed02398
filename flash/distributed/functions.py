"""Functions of scores that are called with other indices than the kernel's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from flash.distributed.agreement import array_words
from flash.mods.record import MASK_MOD, SCORE_MOD, traced
from flash.mods.trace import AUX
from flash.scores.aux_arrays import array_arguments, arrays_of_call, with_captured
from ptxgen.errors import LaunchError

OF_SCORE_MOD: Final = ("score", "batch", "head", "query", "key")
RESERVED: Final = "shard_"  # with which the names of arrays begin that this package adds to aux
OF_MASK_MOD: Final = OF_SCORE_MOD[1:]


def array_names(function: Callable[..., Any], usual: tuple[str, ...]) -> list[str]:
    """The parameters of a function of scores that are arrays."""
    parameters = list(inspect.signature(function).parameters.values())[len(usual) :]
    return [p.name for p in parameters if p.default is p.empty]


def with_parameters(function: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    """`function` with a signature of the parameters `names`."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    of: Any = function
    of.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])
    return function


def with_internal_arrays(
    functions: Mapping[str, Callable[..., Any]], internal: Mapping[str, Any], aux: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The arguments score_mod, mask_mod and aux of a call: `functions`, by these names, traced, and the
    arrays that they index. Of the arrays of `internal` those that no function indexes are left out; all
    arrays of `aux`, which the caller passes, are kept, so that a superfluous one is refused as on one device.
    """
    passed = {} if aux is None else aux
    arguments: dict[str, Any] = with_captured("attention", {**functions, AUX: {**passed, **internal}})
    indexed = {array.name for name in functions for array in arguments[name].arrays}
    arrays = {name: array for name, array in arguments[AUX].items() if name in passed or name in indexed}
    return {**arguments, AUX: arrays}


def function_words(caller: str, score_mod: object, mask_mod: object, aux: object) -> dict[str, str]:
    """Functions of scores and their arrays as words that ranks compare: digests of what is computed.

    Raises `LaunchError`, `ConfigError` and `TypeMismatchError` for a value that is no such function or array,
    and `LaunchError` for an array with a name that is reserved.
    """
    arguments = with_captured(caller, {SCORE_MOD: score_mod, MASK_MOD: mask_mod, AUX: aux})
    arrays = arrays_of_call(arguments)
    for array in arrays:
        if array.name.startswith(RESERVED):
            raise LaunchError(
                f"{caller}: aux has {array.name!r}, but names that begin with {RESERVED!r} are those of "
                "arrays that attention across ranks adds; rename it"
            )
    words = {}
    for name in (SCORE_MOD, MASK_MOD):
        function = arguments[name]
        words[f"digest of {name}"] = "None" if function is None else traced(name, function, arrays).digest
    return words | {
        f"aux[{name!r}]": array_words(array) for name, array in array_arguments(arguments).items()
    }
