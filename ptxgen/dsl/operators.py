"""The operators of values: the instructions that they stand for, and those that change a variable."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar

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


def _in_place(operate: Callable[[Any, Any], Any]) -> Callable[[_Variable, Any], _Variable]:
    def method(self: Any, other: Any) -> Any:
        self.set(operate(self, other))
        return self

    return method


class InPlace:
    """`v += a` means `v.set(v + a)`, and so do the other operators with `=`; the class has `set`."""

    __slots__ = ()

    __iadd__ = _in_place(operator.add)
    __isub__ = _in_place(operator.sub)
    __imul__ = _in_place(operator.mul)
    __itruediv__ = _in_place(operator.truediv)
    __ifloordiv__ = _in_place(operator.floordiv)
    __imod__ = _in_place(operator.mod)
    __iand__ = _in_place(operator.and_)
    __ior__ = _in_place(operator.or_)
    __ixor__ = _in_place(operator.xor)
    __ilshift__ = _in_place(operator.lshift)
    __irshift__ = _in_place(operator.rshift)
