"""Functions of scores that are called with other indices than the kernel's."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

from flash.distributed.agreement import array_words
from flash.mods.record import MASK_MOD, SCORE_MOD, traced
from flash.mods.trace import AUX
from flash.scores.aux_arrays import arrays_of_call, given_arrays, with_captured

OF_SCORE_MOD: Final = ("score", "batch", "head", "query", "key")
OF_MASK_MOD: Final = OF_SCORE_MOD[1:]


def array_names(function: Callable[..., Any], usual: tuple[str, ...]) -> list[str]:
    """The parameters of a function of scores that are arrays."""
    found = list(inspect.signature(function).parameters.values())[len(usual) :]
    return [p.name for p in found if p.default is p.empty]


def with_parameters(function: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    """The function, with a signature of these parameters."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    of: Any = function
    of.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])
    return function


def function_words(score_mod: object, mask_mod: object, aux: object) -> dict[str, str]:
    """Functions of scores and their arrays as words that ranks compare: digests of what is computed.

    Raises `LaunchError`, `ConfigError` and `TypeMismatchError` for what is no such function or array.
    """
    given = with_captured({SCORE_MOD: score_mod, MASK_MOD: mask_mod, AUX: aux})
    arrays = arrays_of_call(given)
    found = {}
    for name in (SCORE_MOD, MASK_MOD):
        digest = "None" if given[name] is None else traced(name, given[name], arrays).digest
        found[f"digest of {name}"] = digest
    return found | {f"aux[{name!r}]": array_words(array) for name, array in given_arrays(given).items()}
