"""Kernels whose bodies are read when they are first used."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ptxgen.ir import Kernel, RegisterRange, Shared, Statement, Variable


class Body(NamedTuple):
    """The fields of a kernel or a function that come from its body."""

    registers: tuple[RegisterRange, ...]
    body: tuple[Statement, ...]
    shared: tuple[Shared, ...]
    variables: tuple[Variable, ...]


_IN_BODY: Final = frozenset(Body._fields)
_FIELDS: Final = tuple(field.name for field in dataclasses.fields(Kernel))


class UnreadKernel(Kernel):
    """A kernel whose body is read when one of the fields of `Body` is first asked for, which raises
    `ParseError` if the body is no PTX. It equals the `Kernel` that is read.
    """

    __slots__ = ("_read",)
    _read: Callable[[], Body]

    @property
    def is_read(self) -> bool:
        """Whether the body has been read."""
        try:
            object.__getattribute__(self, "body")
        except AttributeError:
            return False
        return True

    def __getattr__(self, name: str) -> Any:
        if name not in _IN_BODY:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        for field, value in self._read()._asdict().items():
            object.__setattr__(self, field, value)
        return object.__getattribute__(self, name)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Kernel):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _FIELDS)

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in _FIELDS))


def unread(read: Callable[[], Body], **head: object) -> Kernel:
    """A kernel whose body `read` returns when it is first used; `head` are its other fields."""
    kernel = object.__new__(UnreadKernel)
    object.__setattr__(kernel, "_read", read)
    for name, value in head.items():
        object.__setattr__(kernel, name, value)
    return kernel
