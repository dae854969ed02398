"""Functions of scores that are called with other indices than the kernel's."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

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
