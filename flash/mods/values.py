"""The values that a function of scores computes with while it is traced, and their operators."""

from __future__ import annotations

import functools
import inspect
import numbers
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, NoReturn

import numpy as np

from flash.mods.trace import AuxArray, Constant, Recorder
from ptxgen.errors import TypeMismatchError, did_you_mean, shown
from ptxgen.types import ScalarType, f32, pred, s32

_MOST: Final = 2**31 - 1  # the largest s32
WORDS: Final = {f32: "a number (f32)", s32: "an integer (s32)", pred: "a condition"}
_DTYPES: Final = {f32: "float32", s32: "int32", pred: "bool"}

# The functions of values, by the names that Python, PyTorch and numpy have for them; and methods whose
# operands are in another order. `flash/mods/functions.py` and `conversions.py` fill both.
FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {}
METHODS: Final[dict[str, Callable[..., Any]]] = {}


KNOWN: Final = (
    "where, minimum, maximum, clamp, abs, exp, exp2, log, log2, sqrt, rsqrt, tanh, sigmoid, erf, sin, cos, "
    "floor and those made of them (docs/score-functions.md)"
)


def _operator(name: str, *args: Any) -> Traced:
    result: Traced = FUNCTIONS[name](*args)
    return result


def _both_ways(name: str) -> tuple[Callable[[Traced, Any], Traced], Callable[[Traced, Any], Traced]]:
    """Two methods for the operator `name`: with the value as the left operand, and as the right one."""

    def first(self: Traced, other: Any) -> Traced:
        return _operator(name, self, other)

    def second(self: Traced, other: Any) -> Traced:
        return _operator(name, other, self)

    return first, second


class Traced:
    """A value of a function that is being traced: f32, s32 or a condition. Operators and functions
    of `flash.mods` record what they compute.
    """

    __slots__ = ("index", "kind", "recorder")
    __hash__ = object.__hash__

    def __init__(self, recorder: Recorder, index: int, kind: ScalarType) -> None:
        self.recorder = recorder
        self.index = index
        self.kind = kind

    def __repr__(self) -> str:
        return f"<{WORDS[self.kind]} of a traced function>"

    def _refuse(self, what: str, cure: str) -> NoReturn:
        raise TypeMismatchError(f"{what} {WORDS[self.kind]} that is known only in the kernel; {cure}")

    def __bool__(self) -> NoReturn:
        self._refuse(
            "Python cannot branch on",
            "use where(condition, a, b) instead of if, & and | instead of and and or, minimum and "
            "maximum instead of min and max, and two comparisons instead of a chain",
        )

    def __index__(self) -> NoReturn:
        self._refuse(
            "Python cannot index with", "only arrays of aux, of numpy and of PyTorch can be indexed by it"
        )

    def __float__(self) -> NoReturn:
        self._refuse("Python cannot compute with", f"use the functions of flash.mods: {KNOWN}")

    __int__ = __float__

    def __iter__(self) -> NoReturn:
        self._refuse("Python cannot iterate over", "it is a single value")

    @property
    def shape(self) -> tuple[()]:
        """(): a value is a single number."""
        return ()

    ndim: ClassVar[int] = 0
    device: ClassVar[str] = "cpu"  # for constants that a function makes

    @property
    def dtype(self) -> Any:
        """The type of the value, as a dtype of PyTorch if it is imported, else of numpy."""
        name = _DTYPES[self.kind]
        torch = sys.modules.get("torch")
        return np.dtype(name) if torch is None else getattr(torch, name)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):  # asked for by copy, pickle, numpy and others
            raise AttributeError(name)
        function = METHODS.get(name) or FUNCTIONS.get(name)
        if function is None:
            raise TypeMismatchError(
                f"{WORDS[self.kind]} of a traced function has no attribute {name!r}"
                f"{did_you_mean(name, FUNCTIONS)}; the functions are {KNOWN}"
            )
        return functools.partial(called, f".{name}", function, self)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """The result of a function of PyTorch, such as `torch.where`, by its name; or an element of a
        tensor.
        """
        name = getattr(function, "__name__", str(function)).removeprefix("special_").split(".")[0]
        if name == "__getitem__":
            return captured(*args)
        operator = str(function) if "OpOverload" in type(function).__name__ else "aten."
        if not operator.startswith("aten."):  # a library has registered it: its name says nothing
            return _of_library(f"torch.ops.{operator}", None, args, kwargs)
        of_method = METHODS.get(name) if inspect.ismethoddescriptor(function) else None
        return _of_library(f"torch.{name}", of_method or FUNCTIONS.get(name), args, kwargs or {})

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        """The result of an elementwise function of numpy, such as `numpy.exp`, or of an operator of a numpy
        scalar, by its name.
        """
        function = FUNCTIONS.get(ufunc.__name__) if method == "__call__" else None
        return _of_library(f"numpy.{ufunc.__name__}", function, args, kwargs)

    def __array_function__(self, function: Any, types: object, args: Any, kwargs: Any) -> Any:
        """The result of another function of numpy, such as `numpy.where`, by its name."""
        return _of_library(f"numpy.{function.__name__}", FUNCTIONS.get(function.__name__), args, kwargs)

    __add__, __radd__ = _both_ways("add")
    __sub__, __rsub__ = _both_ways("sub")
    __mul__, __rmul__ = _both_ways("mul")
    __truediv__, __rtruediv__ = _both_ways("div")
    __floordiv__, __rfloordiv__ = _both_ways("floor_divide")
    __mod__, __rmod__ = _both_ways("remainder")
    __pow__, __rpow__ = _both_ways("pow")
    __and__, __rand__ = _both_ways("bitwise_and")
    __or__, __ror__ = _both_ways("bitwise_or")
    __xor__, __rxor__ = _both_ways("bitwise_xor")
    __lshift__, __rlshift__ = _both_ways("left_shift")
    __rshift__, __rrshift__ = _both_ways("right_shift")
    __lt__, __gt__ = _both_ways("lt")
    __le__, __ge__ = _both_ways("le")
    __eq__ = _both_ways("eq")[0]  # type: ignore[assignment]  # known only in the kernel
    __ne__ = _both_ways("ne")[0]  # type: ignore[assignment]  # known only in the kernel

    def __neg__(self) -> Traced:
        return _operator("neg", self)

    def __abs__(self) -> Traced:
        return _operator("abs", self)

    def __invert__(self) -> Traced:
        return _operator("logical_not", self)

    def __pos__(self) -> Traced:
        return self


# Arguments of PyTorch's functions about the memory of their results, which mean nothing for a value.
_WITHOUT_MEANING: Final = frozenset(
    ("inplace", "device", "non_blocking", "copy", "memory_format", "layout", "requires_grad", "pin_memory")
)


def called(name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result of a function of values, called `name` in errors. Raises `TypeMismatchError` for arguments
    that it does not take.
    """
    kwargs = {key: value for key, value in kwargs.items() if key not in _WITHOUT_MEANING}
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise TypeMismatchError(f"{name} of a traced function: {error}") from None
    return function(*args, **kwargs)


def _of_library(name: str, function: Callable[..., Any] | None, args: Any, kwargs: Any) -> Any:
    """The result of another library's function, called `name` in errors, by the `function` of values that has
    its name. Raises `TypeMismatchError` if there is none.
    """
    if function is None:
        raise TypeMismatchError(
            f"{name} is no operation of a traced function{did_you_mean(name.split('.')[-1], FUNCTIONS)}; "
            f"the functions are {KNOWN}"
        )
    return called(name, function, *args, **kwargs)


class TracedArray:
    """An array of `aux` while a function is traced: an index for each axis gives an element. Fewer indices
    give a `TracedArray` of the other axes. `by_axis` has the index of each axis, None for axes without an
    index so far.
    """

    __slots__ = ("_array", "_by_axis", "_recorder")

    def __init__(
        self, recorder: Recorder, array: AuxArray, by_axis: Sequence[Traced | None] | None = None
    ) -> None:
        self._recorder = recorder
        self._array = array
        self._by_axis = [None] * array.rank if by_axis is None else list(by_axis)  # the index of each axis

    def __getitem__(self, indices: Any) -> Any:
        array = self._array
        listed = list(indices) if isinstance(indices, tuple) else [indices]
        free = [axis for axis, index in enumerate(self._by_axis) if index is None]
        if sum(index is Ellipsis for index in listed) == 1:
            at = next(n for n, index in enumerate(listed) if index is Ellipsis)
            listed[at : at + 1] = [slice(None)] * (len(free) - len(listed) + 1)
        if len(listed) > len(free):
            raise TypeMismatchError(
                f"{array.name} has {array.rank} axes: an element has {array.rank} indices, got "
                f"{array.rank - len(free) + len(listed)}"
            )
        by_axis = list(self._by_axis)
        for axis, index in zip(free, listed, strict=False):
            if not (isinstance(index, slice) and index == slice(None)):
                by_axis[axis] = self._index(index)
        known = [index for index in by_axis if index is not None]
        if len(known) < array.rank:
            return TracedArray(self._recorder, array, by_axis)
        at = self._recorder.record("load", array.kind, *[i.index for i in known], value=array.name)
        return Traced(self._recorder, at, array.kind)

    def _index(self, argument: Any) -> Traced:
        """The index `argument` as an integer value of the trace."""
        name = self._array.name
        if isinstance(argument, slice):
            raise TypeMismatchError(f"an axis of {name} is indexed by an integer, or by :, got a slice")
        index = lifted(self._recorder, argument, s32)
        if index.kind is not s32:
            raise TypeMismatchError(f"the indices of {name} must be integers, got {WORDS[index.kind]}")
        step = self._recorder.steps[index.index]
        if step.op == "const" and int(step.value or 0) < 0:
            raise TypeMismatchError(
                f"an index of {name} must not be negative, got {step.value}; count from the first element"
            )
        return index

    def is_no_operand(self, *_: Any) -> NoReturn:
        """Refuse the array where a single value is needed."""
        missing, array = sum(index is None for index in self._by_axis), self._array
        raise TypeMismatchError(
            f"an operand must be a single value, got {array.name} with {missing} of its {array.rank} axes "
            "not indexed"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = is_no_operand
    __floordiv__ = __mod__ = __pow__ = __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = is_no_operand
    __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __abs__ = __invert__ = __bool__ = is_no_operand
    __eq__ = __ne__ = is_no_operand
    __hash__ = object.__hash__

    @classmethod
    def __torch_function__(cls, _: Any, types: object, args: Any = (), kwargs: Any = None) -> NoReturn:
        next(x for x in (*args, *(kwargs or {}).values()) if isinstance(x, cls)).is_no_operand()

    def __iter__(self) -> NoReturn:
        raise TypeMismatchError(f"{self._array.name} is indexed by an index for each axis, not iterated over")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise TypeMismatchError(
            f"{self._array.name} is an array: index an element, such as {self._array.name}[query]; it has "
            f"no attribute {name!r}"
        )


def captured(array: Any, indices: Any) -> Any:
    """The elements with these indices, some of them values, of an array that is no parameter."""
    every = indices if isinstance(indices, tuple) else (indices,)
    recorder = next(index.recorder for index in every if isinstance(index, Traced))
    return TracedArray(recorder, recorder.captured(array))[indices]


def _number(value: Any) -> Constant | None:
    """The number of Python in `value`, a number of Python, numpy or PyTorch; None for anything else."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, (bool, int, float)):
        return value
    return float(value) if isinstance(value, numbers.Real) else None


def _is_element(value: Any) -> bool:
    """Whether the kernel reads a tensor without axes, because it is on a GPU or requires gradients; any other
    one is a constant.
    """
    if isinstance(value, Traced) or getattr(value, "ndim", None) != 0 or isinstance(value, np.generic):
        return False
    on_gpu = getattr(getattr(value, "device", None), "type", "cpu") != "cpu"
    return on_gpu or bool(getattr(value, "requires_grad", False))


def lifted(recorder: Recorder, value: Any, like: ScalarType) -> Traced:
    """`value` as a value of the trace, a constant if it is a number; a Python int becomes f32 if `like` is
    f32.
    """
    if isinstance(value, Traced):
        return value
    if isinstance(value, TracedArray):
        value.is_no_operand()
    if _is_element(value):
        element: Traced = TracedArray(recorder, recorder.captured(value.reshape(1)))[0]
        return element
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
