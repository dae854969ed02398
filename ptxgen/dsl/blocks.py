"""`Block`, the context manager of `with k.loop(...)`, `with k.when(...)` and the like.

Any use of a block other than in `with` raises `TypeMismatchError`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import field
from types import TracebackType
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, Protocol, TypeVar

from ptxgen.dsl.early_exits import Outer, refuse_early_exits, refuse_outer_exits
from ptxgen.errors import TypeMismatchError
from ptxgen.ir import Origin
from ptxgen.records import dataclass


@dataclass
class Account:
    """The misused `with` blocks of a kernel: `not_entered` are blocks without `with`, `left_early` are
    messages about blocks that an exception ended, the innermost first.
    """

    kernel: str
    not_entered: list[Block[Any]] = field(default_factory=list)
    left_early: list[str] = field(default_factory=list)


class Opener(Protocol):
    """The part of a kernel builder that a `Block` uses."""

    account: Account

    def origin(self) -> Origin:
        """The line of the kernel's Python source that is being executed, with its file."""


K = TypeVar("K", bound=Opener)
P = ParamSpec("P")
T = TypeVar("T")


class Block(Generic[T]):
    """One `with` block of a kernel; `origin` is the Python line that made it.

    A block can be entered once, and begins there. `KernelBuilder.build` raises `ConfigError` for a
    block that was never entered.
    """

    __slots__ = ("_context", "_entered", "_k", "_outer", "kind", "origin")

    def __init__(self, k: Opener, kind: str, context: AbstractContextManager[T], origin: Origin) -> None:
        self._k = k
        self._context = context
        self._entered = False
        self._outer: tuple[Outer, ...] = ()
        self.kind = kind
        self.origin = origin

    def __enter__(self) -> T:
        if self._entered:
            raise TypeMismatchError(
                f"this block of k.{self.kind} has been entered before; make another one with "
                f"k.{self.kind}(...)"
            )
        self._entered = True
        self._settle()
        self._outer = refuse_early_exits(self._k.account.kernel, self.kind, sys._getframe(1))
        return self._context.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        if kind is not None:
            self._k.account.left_early.append(f"k.{self.kind} from {self.origin}: {_how(kind)}")
        elif self._outer:
            refuse_outer_exits(self._outer, sys._getframe(1))
        return self._context.__exit__(kind, error, traceback)

    def __bool__(self) -> NoReturn:
        raise self._misused("Python cannot branch on it, and 'if' would guard nothing on the GPU")

    def __iter__(self) -> NoReturn:
        raise self._misused("Python cannot iterate over it")

    def _settle(self) -> None:
        """Remove this block from the never entered blocks, which `build` reports."""
        if self in self._k.account.not_entered:
            self._k.account.not_entered.remove(self)

    def _misused(self, why: str) -> TypeMismatchError:
        """The error of a block used without `with`; `build` does not report that block again."""
        self._settle()
        return TypeMismatchError(
            f"k.{self.kind}(...) is a block that runs on the GPU: {why}; use 'with k.{self.kind}(...):'"
        )


def _how(kind: type[BaseException]) -> str:
    """A phrase that says how an exception of this type left a block."""
    if issubclass(kind, GeneratorExit):
        return "the generator that entered it was closed before its end, as by a 'break' in a loop over it"
    return f"{kind.__name__} was raised in it, and caught outside"


def block(make: Callable[Concatenate[K, P], Iterator[T]]) -> Callable[Concatenate[K, P], Block[T]]:
    """Decorate a generator method as `contextlib.contextmanager` does; its calls return a `Block`."""
    begin = contextmanager(make)
    kind = make.__name__

    @functools.wraps(make)
    def method(self: K, /, *args: P.args, **kwargs: P.kwargs) -> Block[T]:
        opened = Block(self, kind, begin(self, *args, **kwargs), self.origin())
        self.account.not_entered.append(opened)
        return opened

    return method
