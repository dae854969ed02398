"""Arrays that functions of scores index although they are no parameters: what a function closes over."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import numpy as np

from flash.mods.record import MASK_MOD, SCORE_MOD, traced
from flash.mods.trace import AUX, AuxArray, Trace
from flash.operands.dtypes import AUX_DTYPES, F32, I32, DType
from ptxgen.errors import TypeMismatchError

_NAME: Final = "captured"
# Types that are no types of elements in a kernel, and those to which they are converted.
_CONVERTED: Final[dict[str, DType]] = {"float64": F32, "int8": I32, "int16": I32, "uint16": I32}
MOST_AXES: Final = 4  # of an array that a function of scores indexes


class Captured:
    """The arrays that the functions of one call index from outside, by name: captured_0 is the first one
    that is indexed, so that names, and with them kernels, do not depend on those in Python. `taken` are
    the names of arrays of `aux`; `convert` converts an array to the library of the call (None: it is already
    one of this library).
    """

    def __init__(self, taken: Iterable[str], convert: Callable[[Any], Any] | None = None) -> None:
        self._taken = frozenset(taken)
        self._convert = convert
        self._known: dict[object, tuple[object, AuxArray]] = {}  # arrays, so that ids stay unique
        self.arrays: dict[str, Any] = {}

    def __call__(self, array: Any) -> AuxArray:
        """The declaration of an array that a function indexes; the same one for the same array."""
        key = _identity(array)
        if key not in self._known:
            self._known[key] = array, self._declared(array)
        return self._known[key][1]

    @property
    def declared(self) -> list[AuxArray]:
        """The declarations of all arrays so far."""
        return [declaration for _, declaration in self._known.values()]

    def _declared(self, array: Any) -> AuxArray:
        operand = array.reshape(1) if array.ndim == 0 else array
        operand = np.asarray(operand) if isinstance(operand, np.ndarray) else operand
        operand = operand if self._convert is None else self._convert(operand)
        name = str(operand.dtype).removeprefix("torch.")
        dtype = next((t for t in AUX_DTYPES if t.array_name == name), _CONVERTED.get(name))
        if dtype is None or operand.ndim > MOST_AXES:
            raise TypeMismatchError(
                f"an array that a function of scores indexes must be of {', '.join(_names())}, with at most "
                f"{MOST_AXES} axes, got {name} of shape {list(array.shape)}; convert it before the call"
            )
        if dtype.array_name != name:
            operand = _as_type(operand, dtype.array_name)
        names = (f"{_NAME}_{n}" for n in itertools.count(len(self.arrays)))
        declaration = AuxArray(next(n for n in names if n not in self._taken), dtype, operand.ndim)
        self.arrays[declaration.name] = operand
        return declaration


def _identity(array: Any) -> object:
    """A key of an array's memory: for numpy, which makes new objects for equal views, of its elements."""
    if not isinstance(array, np.ndarray):
        return id(array)
    return array.ctypes.data, array.shape, array.strides, array.dtype.str


def _names() -> list[str]:
    """The accepted element types, as array libraries write them."""
    return [*[t.array_name for t in AUX_DTYPES], *_CONVERTED]


def _as_type(array: Any, name: str) -> Any:
    """A copy of an array of numpy or PyTorch, of another type."""
    if hasattr(array, "astype"):
        return array.astype(name)
    import torch  # the array's library

    return array.to(getattr(torch, name))


def with_captured(
    arguments: Mapping[str, Any], declared: Iterable[AuxArray], convert: Callable[[Any], Any] | None = None
) -> dict[str, Any]:
    """The arguments of a call, with traces instead of functions, and with the arrays that they index from
    outside in `aux`, whose arrays are `declared`. `convert` is as in `Captured`.

    Raises what `traced` raises for the functions.
    """
    known, result = list(declared), dict(arguments)
    captured = Captured((array.name for array in known), convert)
    for name in (SCORE_MOD, MASK_MOD):
        function = arguments.get(name)
        if function is not None and not isinstance(function, Trace):
            result[name] = traced(name, function, known, captured)
    if captured.arrays:
        result[AUX] = {**(arguments.get(AUX) or {}), **captured.arrays}
    return result
