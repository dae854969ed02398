"""Errors for operations of Python, `math` and numpy that values of a kernel do not have, with hints."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ptxgen.errors import TypeMismatchError

if TYPE_CHECKING:
    from ptxgen.types import ScalarType

# Functions of numpy that operators of values stand for; a number of numpy on their left calls them.
_OPERATORS: Final = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
    "left_shift": operator.lshift,
    "right_shift": operator.rshift,
}
_WORDS: Final = {
    "absolute": "k.abs(v)",
    "cos": "k.cos(v)",
    "exp": "k.exp(v)",
    "exp2": "k.ex2(v)",
    "fabs": "k.abs(v)",
    "fmax": "k.max(a, b)",
    "fmin": "k.min(a, b)",
    "log": "k.log(v)",
    "log2": "k.lg2(v)",
    "maximum": "k.max(a, b)",
    "minimum": "k.min(a, b)",
    "reciprocal": "1 / v, or k.rcp(v)",
    "sin": "k.sin(v)",
    "sqrt": "k.sqrt(v)",
    "square": "v * v",
    "tanh": "k.tanh(v)",
}
_ANY_WORD: Final = "a word of k, such as k.exp(v), k.sqrt(v) or k.max(a, b)"


class Foreign:
    """The operations of Python and numpy that a kernel's value refuses, each with a hint."""

    __slots__ = ()

    type: ScalarType

    def __bool__(self) -> NoReturn:
        raise TypeMismatchError(
            f"{self!r} is known only on the GPU, so Python cannot branch on it; use 'with "
            "k.when(condition):' for a branch, k.selp(a, b, condition) for a choice, k.max and k.min for max "
            "and min, and &, | and ~ for and, or and not"
        )

    def __index__(self) -> NoReturn:
        raise TypeMismatchError(
            f"{self!r} is known only on the GPU, so Python cannot count with it; "
            "use 'with k.loop(start, stop) as i:' for a loop and P[i] for an element"
        )

    def __iter__(self) -> NoReturn:
        raise TypeMismatchError(f"{self!r} is a single value and cannot be iterated")

    def __float__(self) -> NoReturn:
        raise TypeMismatchError(
            f"{self!r} is known only on the GPU, so float() and functions of math cannot take it; compute "
            f"with k.exp(v), k.log(v), k.sqrt(v), k.sin(v), k.cos(v) and k.tanh(v){self._as_float()}"
        )

    def __complex__(self) -> NoReturn:
        self.__float__()

    def __int__(self) -> NoReturn:
        raise self._not_rounded("int()", "rzi")

    def __trunc__(self) -> NoReturn:
        raise self._not_rounded("math.trunc", "rzi")

    def __floor__(self) -> NoReturn:
        raise self._not_rounded("math.floor", "rmi")

    def __ceil__(self) -> NoReturn:
        raise self._not_rounded("math.ceil", "rpi")

    def __round__(self, digits: int | None = None) -> NoReturn:
        raise self._not_rounded("round()", "rni")

    def __abs__(self) -> NoReturn:
        raise self._refused("abs()", "k.abs(v)")

    def __pow__(self, exponent: object) -> NoReturn:
        raise self._refused("**", "v * v for a square, or k.ex2(k.lg2(v) * exponent) of f32")

    def __rpow__(self, base: object) -> NoReturn:
        raise self._refused("**", "k.ex2(v) for 2 ** v, and k.exp(v) for e ** v")

    def __divmod__(self, by: object) -> NoReturn:
        raise self._refused("divmod()", "v // n and v % n")

    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **how: Any) -> Any:
        """The result of an operator between a number or an array of numpy on the left and a value on the
        right. Raises `TypeMismatchError` for other functions of numpy.
        """
        import numpy as np

        if any(isinstance(operand, np.ndarray) for operand in inputs):
            return getattr(function, method)(*map(_boxed, inputs), **how)
        operate = _OPERATORS.get(function.__name__)
        if operate is None or method != "__call__" or how:
            name = function.__name__
            raise self._refused(f"numpy.{name}", _WORDS.get(name, _ANY_WORD))
        return operate(
            *(operand.item() if isinstance(operand, np.generic) else operand for operand in inputs)
        )

    def _as_float(self) -> str:
        if self.type.name == "f32":
            return ""
        rounding = "" if self.type.is_float else ", rnd='rn'"
        return f"; k.cvt(v, dtype=f32{rounding}) makes an f32 of it"

    def _not_rounded(self, what: str, rounding: str) -> TypeMismatchError:
        if self.type.is_integer:
            return self._refused(what, "the value itself, which is an integer, or k.cvt(v, dtype=s32)")
        return self._refused(what, f"k.cvt(v, dtype=s32, rnd={rounding!r})")

    def _refused(self, what: str, cure: str) -> TypeMismatchError:
        return TypeMismatchError(f"{self!r} is known only on the GPU, so {what} cannot take it; write {cure}")


def _boxed(operand: Any) -> Any:
    """A value as an array of dtype object without dimensions, so that numpy takes it for a Python object."""
    if not isinstance(operand, Foreign):
        return operand
    import numpy as np

    box = np.empty((), object)
    box[()] = operand
    return box
