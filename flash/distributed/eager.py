"""Calls that `torch.compile` does not look into: they talk to other ranks while they are traced."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])

_COMPILER: Final = "torch._dynamo"  # a second to import, which only programs that compile need


def eager(function: F) -> F:
    """A decorator for a function that torch.compile leaves uncompiled: a compiled program calls it between
    two graphs.
    """
    disabled: list[Callable[..., Any]] = []

    @functools.wraps(function)
    def call(*args: Any, **more: Any) -> Any:
        if _COMPILER not in sys.modules:
            return function(*args, **more)
        if not disabled:
            disabled.append(torch.compiler.disable(function))
        return disabled[0](*args, **more)

    wrapped: Any = call
    return wrapped  # type: ignore[no-any-return]
