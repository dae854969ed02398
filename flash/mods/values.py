"""The values that a function of scores computes with while it is traced, and their functions."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable
from typing import Any, ClassVar, Final, NoReturn

from flash.mods.trace import AuxArray, Constant, Recorder
from ptxgen.errors import TypeMismatchError, did_you_mean, shown
from ptxgen.types import ScalarType, f32, pred, s32

_MOST: Final = 2**31 - 1  # the largest s32
_WORDS: Final = {f32: "a number (f32)", s32: "an integer (s32)", pred: "a condition"}


class Traced:
    """A value of a function that is being traced: f32, s32 or a condition. Operators and functions
    of this module record what they compute.
    """

    __slots__ = ("index", "kind", "recorder")
    __array_ufunc__: ClassVar[None] = None  # a numpy scalar leaves its operators to this class
    __hash__ = object.__hash__

    def __init__(self, recorder: Recorder, index: int, kind: ScalarType) -> None:
        self.recorder = recorder
        self.index = index
        self.kind = kind

    def __repr__(self) -> str:
        return f"<{_WORDS[self.kind]} of a traced function>"

    def _refuse(self, what: str, cure: str) -> NoReturn:
        raise TypeMismatchError(f"{what} {_WORDS[self.kind]} that is known only in the kernel; {cure}")

    def __bool__(self) -> NoReturn:
        self._refuse(
            "Python cannot branch on",
            "use where(condition, a, b) instead of if, & and | instead of and and or, minimum and "
            "maximum instead of min and max, and two comparisons instead of a chain",
        )

    def __index__(self) -> NoReturn:
        self._refuse("Python cannot index with", "only arrays given as aux can be indexed by it")

    def __float__(self) -> NoReturn:
        self._refuse("Python cannot compute with", f"use the functions of flash.mods: {_KNOWN}")

    __int__ = __float__

    def __iter__(self) -> NoReturn:
        self._refuse("Python cannot iterate over", "it is a single value")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # asked for by copy, pickle, numpy and others
            raise AttributeError(name)
        raise TypeMismatchError(
            f"{_WORDS[self.kind]} of a traced function has no attribute {name!r}"
            f"{did_you_mean(name, FUNCTIONS)}; the functions are {_KNOWN}"
        )

    @classmethod
    def __torch_function__(
        cls, function: Any, types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Traced:
        """A function of PyTorch, such as `torch.where`, by its name."""
        name = getattr(function, "__name__", str(function))
        if name not in FUNCTIONS or kwargs:
            raise TypeMismatchError(
                f"torch.{name} is no operation of a traced function"
                f"{did_you_mean(name, FUNCTIONS)}; the functions are {_KNOWN}"
            )
        return FUNCTIONS[name](*args)

    def __add__(self, other: Any) -> Traced:
        return _binary("add", self, other)

    def __radd__(self, other: Any) -> Traced:
        return _binary("add", other, self)

    def __sub__(self, other: Any) -> Traced:
        return _binary("sub", self, other)

    def __rsub__(self, other: Any) -> Traced:
        return _binary("sub", other, self)

    def __mul__(self, other: Any) -> Traced:
        return _binary("mul", self, other)

    def __rmul__(self, other: Any) -> Traced:
        return _binary("mul", other, self)

    def __truediv__(self, other: Any) -> Traced:
        return _divided(self, other)

    def __rtruediv__(self, other: Any) -> Traced:
        return _divided(other, self)

    def __floordiv__(self, other: Any) -> Traced:
        return _by_constant("floordiv", "//", self, other)

    def __rfloordiv__(self, other: Any) -> Traced:
        return _by_constant("floordiv", "//", other, self)

    def __mod__(self, other: Any) -> Traced:
        return _by_constant("mod", "%", self, other)

    def __rmod__(self, other: Any) -> Traced:
        return _by_constant("mod", "%", other, self)

    def __neg__(self) -> Traced:
        return _unary("neg", self)

    def __abs__(self) -> Traced:
        return _unary("abs", self)

    def __pow__(self, other: Any) -> NoReturn:
        raise TypeMismatchError("** is no operation of a traced function; write x * x, or exp(y * log(x))")

    def __and__(self, other: Any) -> Traced:
        return _logical("and", "&", self, other)

    def __or__(self, other: Any) -> Traced:
        return _logical("or", "|", self, other)

    def __xor__(self, other: Any) -> Traced:
        return _logical("xor", "^", self, other)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __invert__(self) -> Traced:
        return logical_not(self)

    def __lt__(self, other: Any) -> Traced:
        return _compared("lt", self, other)

    def __le__(self, other: Any) -> Traced:
        return _compared("le", self, other)

    def __gt__(self, other: Any) -> Traced:
        return _compared("lt", other, self)

    def __ge__(self, other: Any) -> Traced:
        return _compared("le", other, self)

    def __eq__(self, other: Any) -> Traced:  # type: ignore[override]  # known only in the kernel
        return _compared("eq", self, other)

    def __ne__(self, other: Any) -> Traced:  # type: ignore[override]  # known only in the kernel
        return _compared("ne", self, other)


class TracedArray:
    """An array of `aux` while a function is traced: an index for each axis gives an element."""

    __slots__ = ("_array", "_recorder")

    def __init__(self, recorder: Recorder, array: AuxArray) -> None:
        self._recorder = recorder
        self._array = array

    def __getitem__(self, indices: Any) -> Traced:
        given, array = indices if isinstance(indices, tuple) else (indices,), self._array
        if len(given) != array.rank:
            raise TypeMismatchError(
                f"{array.name} has {array.rank} axes: an element has {array.rank} indices, got {len(given)}"
            )
        found = [lifted(self._recorder, index, s32) for index in given]
        if any(index.kind is not s32 for index in found):
            raise TypeMismatchError(
                f"the indices of {array.name} must be integers, got "
                f"{', '.join(_WORDS[index.kind] for index in found)}"
            )
        at = self._recorder.record("load", array.kind, *[i.index for i in found], value=array.name)
        return Traced(self._recorder, at, array.kind)

    def __iter__(self) -> NoReturn:
        raise TypeMismatchError(f"{self._array.name} is indexed by an index for each axis, not iterated over")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise TypeMismatchError(
            f"{self._array.name} is an array: index an element, such as {self._array.name}[query]; it has "
            f"no attribute {name!r}"
        )


def _number(value: Any) -> Constant | None:
    """A number of Python, numpy or PyTorch; None for anything else."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, (bool, int, float)):
        return value
    return float(value) if isinstance(value, numbers.Real) else None


def lifted(recorder: Recorder, value: Any, like: ScalarType) -> Traced:
    """A value, or a constant as a value; a Python int beside an f32 is an f32."""
    if isinstance(value, Traced):
        return value
    number = _number(value)
    if number is None:
        raise TypeMismatchError(
            f"an operand must be a value of the traced function or a number, got {shown(value)}; arrays "
            "are given as aux, and indexed"
        )
    if isinstance(number, bool):
        return Traced(recorder, recorder.constant(number, pred), pred)
    kind = s32 if isinstance(number, int) and like is not f32 else f32
    if kind is s32 and abs(number) > _MOST:
        raise TypeMismatchError(f"an integer must fit 32 bits, got {shown(number)}; write it as a float")
    return Traced(recorder, recorder.constant(number, kind), kind)


def _both(operator: str, a: Any, b: Any) -> tuple[Traced, Traced]:
    """Two operands of one numeric type: f32 if one of them is."""
    like = a if isinstance(a, Traced) else b
    one, other = lifted(like.recorder, a, like.kind), lifted(like.recorder, b, like.kind)
    if pred in (one.kind, other.kind):
        raise TypeMismatchError(
            f"{operator} is for numbers, got {_WORDS[one.kind]} and {_WORDS[other.kind]}; use "
            "where(condition, 1, 0) to make a number of a condition"
        )
    if one.kind is not other.kind:
        return as_float(one), as_float(other)
    return one, other


_SIGNS: Final = {"add": "+", "sub": "-", "mul": "*", "lt": "<", "le": "<=", "eq": "==", "ne": "!="}


def _binary(op: str, a: Any, b: Any) -> Traced:
    one, other = _both(_SIGNS.get(op, op), a, b)
    return Traced(one.recorder, one.recorder.record(op, one.kind, one.index, other.index), one.kind)


def _compared(op: str, a: Any, b: Any) -> Traced:
    one, other = _both(_SIGNS[op], a, b)
    return Traced(one.recorder, one.recorder.record(op, pred, one.index, other.index), pred)


def _divided(a: Any, b: Any) -> Traced:
    one, other = (as_float(x) for x in _both("/", a, b))
    return Traced(one.recorder, one.recorder.record("div", f32, one.index, other.index), f32)


def _by_constant(op: str, sign: str, a: Any, b: Any) -> Traced:
    """Integer division by a positive Python int, rounded down as in Python."""
    if not isinstance(a, Traced) or a.kind is not s32:
        raise TypeMismatchError(f"{sign} is for integers, got {shown(a)}; divide numbers with /")
    by = None if isinstance(b, Traced) else _number(b)
    if isinstance(by, bool) or not isinstance(by, int) or not 0 < by <= _MOST:
        raise TypeMismatchError(
            f"{sign} divides by a positive Python int, got {shown(b)}; divide numbers with /"
        )
    return Traced(a.recorder, a.recorder.record(op, s32, a.index, value=by), s32)


def _unary(op: str, a: Traced) -> Traced:
    if a.kind is pred:
        raise TypeMismatchError(f"{op} is for numbers, got {_WORDS[pred]}")
    return Traced(a.recorder, a.recorder.record(op, a.kind, a.index), a.kind)


def _logical(op: str, sign: str, a: Traced, b: Any) -> Traced:
    other = lifted(a.recorder, b, a.kind)
    if not a.kind is other.kind is pred:
        raise TypeMismatchError(
            f"{sign} is for conditions, got {_WORDS[a.kind]} and {_WORDS[other.kind]}; put comparisons "
            "in parentheses: (query >= key) & (key < 8)"
        )
    return Traced(a.recorder, a.recorder.record(op, pred, a.index, other.index), pred)


def _traced(name: str, *values: Any) -> Traced:
    """The first traced value of a call of the function `name`."""
    for value in values:
        if isinstance(value, Traced):
            return value
    raise TypeMismatchError(
        f"{name} is for values of a traced function, got {', '.join(map(shown, values))}; compute numbers "
        "with Python"
    )


def as_float(a: Any) -> Traced:
    """An integer as f32, rounded to nearest; a number unchanged."""
    value = _traced("as_float", a)
    if value.kind is f32:
        return value
    if value.kind is pred:
        raise TypeMismatchError(f"a number is needed, got {_WORDS[pred]}; use where(condition, 1.0, 0.0)")
    step, record = value.recorder.steps[value.index], value.recorder
    if step.op == "const":
        return Traced(record, record.constant(step.value, f32), f32)  # type: ignore[arg-type]  # a number
    if step.op in ("abs", "neg"):  # the same, of a sum whose conversion is cheaper
        return _unary(step.op, as_float(Traced(record, step.args[0], s32)))
    return Traced(record, record.record("float", f32, value.index), f32)


def logical_not(a: Any) -> Traced:
    """Whether a condition does not hold; of integers the opposite comparison."""
    value = _traced("logical_not", a)
    if value.kind is not pred:
        raise TypeMismatchError(f"~ is for conditions, got {_WORDS[value.kind]}")
    record, step = value.recorder, value.recorder.steps[value.index]
    opposite = {"lt": "le", "le": "lt", "eq": "ne", "ne": "eq"}.get(step.op)
    if opposite is not None and record.steps[step.args[0]].kind is s32:
        args = step.args if step.op in ("eq", "ne") else step.args[::-1]
        return Traced(record, record.record(opposite, pred, *args), pred)
    return Traced(record, record.record("not", pred, value.index), pred)


def where(condition: Any, a: Any, b: Any) -> Traced:
    """`a` where the condition holds, else `b`; both are computed."""
    given = _traced("where", condition, a, b)
    chosen = lifted(given.recorder, condition, pred)
    if chosen.kind is not pred:
        raise TypeMismatchError(f"where: the first operand must be a condition, got {_WORDS[chosen.kind]}")
    numeric = a if isinstance(a, Traced) else b
    like = numeric.kind if isinstance(numeric, Traced) else f32
    one, other = lifted(given.recorder, a, like), lifted(given.recorder, b, like)
    if pred in (one.kind, other.kind):
        if one.kind is not other.kind:
            raise TypeMismatchError("where: both choices must be numbers, or both conditions")
    elif one.kind is not other.kind:
        one, other = as_float(one), as_float(other)
    record = given.recorder
    at = record.record("where", one.kind, chosen.index, one.index, other.index)
    return Traced(record, at, one.kind)


def minimum(a: Any, b: Any) -> Traced:
    """The smaller of two numbers; NaN is ignored unless both are NaN."""
    _traced("minimum", a, b)
    return _binary("min", a, b)


def maximum(a: Any, b: Any) -> Traced:
    """The larger of two numbers; NaN is ignored unless both are NaN."""
    _traced("maximum", a, b)
    return _binary("max", a, b)


def _function(op: str, a: Any) -> Traced:
    value = as_float(_traced(op, a))
    return Traced(value.recorder, value.recorder.record(op, f32, value.index), f32)


def absolute(a: Any) -> Traced:
    """|a|; also written abs(a)."""
    return _unary("abs", _traced("absolute", a))


def exp(a: Any) -> Traced:
    """e to the power of a number."""
    return _function("exp", a)


def log(a: Any) -> Traced:
    """The natural logarithm; -inf of 0, NaN of a negative number."""
    return _function("log", a)


def sqrt(a: Any) -> Traced:
    """The square root; NaN of a negative number."""
    return _function("sqrt", a)


def tanh(a: Any) -> Traced:
    """The hyperbolic tangent."""
    return _function("tanh", a)


FUNCTIONS: Final[dict[str, Callable[..., Traced]]] = {
    "where": where,
    "minimum": minimum,
    "maximum": maximum,
    "absolute": absolute,
    "abs": absolute,
    "exp": exp,
    "log": log,
    "sqrt": sqrt,
    "tanh": tanh,
    "logical_not": logical_not,
    # What PyTorch calls the operators of a tensor with a value.
    **{
        name: functools.partial(_logical, name[8:], {"and": "&", "or": "|", "xor": "^"}[name[8:]])
        for name in ("logical_and", "logical_or", "logical_xor")
    },
}
_KNOWN: Final = "where, minimum, maximum, abs, exp, log, sqrt and tanh"
