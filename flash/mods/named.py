"""The names of functions of values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from flash.mods.values import FUNCTIONS, Traced
from ptxgen.errors import TypeMismatchError, shown

F = TypeVar("F", bound=Callable[..., Any])


def named(*names: str) -> Callable[[F], F]:
    """A decorator that registers a function of values by its own name and `names`."""

    def register(function: F) -> F:
        FUNCTIONS.update(dict.fromkeys((function.__name__, *names), function))
        return function

    return register


def first_traced(name: str, *operands: Any) -> Traced:
    """The first traced value of a call of the function `name`."""
    for value in operands:
        if isinstance(value, Traced):
            return value
    raise TypeMismatchError(
        f"{name} is for values of a traced function, got {', '.join(map(shown, operands))}; compute numbers "
        "with Python"
    )
