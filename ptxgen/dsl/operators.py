"""The operators of values: the instructions that they emit, and those that change a variable."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias, TypeVar

# Rows of the instruction table with one result, which the operators of values stand for.
Operator: TypeAlias = Literal[
    "add",
    "and_",
    "cvt",
    "div",
    "mad",
    "mad_wide",
    "mov",
    "mul",
    "mul_wide",
    "neg",
    "not_",
    "or_",
    "rem",
    "setp",
    "shl",
    "shr",
    "sub",
    "xor",
]


_Variable = TypeVar("_Variable")


def _augmented(operate: Callable[[Any, Any], Any]) -> Callable[[_Variable, Any], _Variable]:
    def method(self: Any, other: Any) -> Any:
        self.set(operate(self, other))
        return self

    return method


class InPlace:
    """`v += a` means `v.set(v + a)`, and so do the other operators with `=`; the class has `set`."""

    __slots__ = ()

    __iadd__ = _augmented(operator.add)
    __isub__ = _augmented(operator.sub)
    __imul__ = _augmented(operator.mul)
    __itruediv__ = _augmented(operator.truediv)
    __ifloordiv__ = _augmented(operator.floordiv)
    __imod__ = _augmented(operator.mod)
    __iand__ = _augmented(operator.and_)
    __ior__ = _augmented(operator.or_)
    __ixor__ = _augmented(operator.xor)
    __ilshift__ = _augmented(operator.lshift)
    __irshift__ = _augmented(operator.rshift)


def _reflected(operate: Callable[[Any, Any], Any]) -> Callable[[Any, int], Any]:
    def method(self: Any, number: int) -> Any:
        self._require_integer(_SIGNS[operate])
        return operate(self.k.emit("mov", (number,), {"type": self.type}), self)

    return method


_SIGNS: Final = {
    operator.floordiv: "//",
    operator.mod: "%",
    operator.lshift: "<<",
    operator.rshift: ">>",
    operator.and_: "&",
    operator.or_: "|",
    operator.xor: "^",
}


class Reflected:
    """Operators of integers with a number of Python on the left, which becomes a value of the same type."""

    __slots__ = ()

    __rfloordiv__ = _reflected(operator.floordiv)
    __rmod__ = _reflected(operator.mod)
    __rlshift__ = _reflected(operator.lshift)
    __rrshift__ = _reflected(operator.rshift)
    __rand__ = _reflected(operator.and_)
    __ror__ = _reflected(operator.or_)
    __rxor__ = _reflected(operator.xor)
