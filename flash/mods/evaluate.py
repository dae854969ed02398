"""A traced function in numpy, for the cpu backend and the float64 reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flash.mods.trace import Step, Trace
from ptxgen.types import ScalarType, f32, pred, s32

Array = NDArray[Any]

OPERATIONS: Final[dict[str, Callable[..., Any]]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "neg": np.negative,
    "abs": np.abs,
    "min": np.fmin,
    "max": np.fmax,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
    "not": np.logical_not,
    "where": np.where,
    "floordiv": np.floor_divide,
    "mod": np.mod,
}


class Evaluation:
    """The results of all steps of a trace, in their order, with f32 computed as `dtype`, and integers
    as int32, which wrap round. `inputs` are arrays that broadcast to each other, and `arrays` those
    of `aux`. An index outside of an array is that of its nearest element.
    """

    def __init__(
        self, trace: Trace, inputs: Mapping[str, Array], arrays: Mapping[str, Array], dtype: np.dtype[Any]
    ) -> None:
        self.trace = trace
        self.dtype = dtype
        self.inputs = inputs
        self._arrays = arrays
        self.values: list[Array] = []
        with np.errstate(all="ignore"):  # as in a kernel: infinity, NaN, and integers that wrap
            for step in trace.steps:
                self.values.append(self._value(step))

    @property
    def result(self) -> Array:
        """The value of the function, of a shape that broadcasts to that of the scores."""
        return self.values[-1]

    def _value(self, step: Step) -> Array:
        args = [self.values[n] for n in step.args]
        if step.op == "input":
            return np.asarray(self.inputs[str(step.value)], self._type(step.kind))
        if step.op == "const":
            return np.asarray(step.value, self._type(step.kind))
        if step.op == "float":
            return args[0].astype(self.dtype)
        if step.op == "load":
            return self._loaded(step, args)
        if step.value is not None:
            args.append(np.asarray(step.value, np.int32))
        return np.asarray(OPERATIONS[step.op](*args))

    def _loaded(self, step: Step, indices: list[Array]) -> Array:
        table = self._arrays[str(step.value)]
        inside = [np.clip(index, 0, n - 1) for index, n in zip(indices, table.shape, strict=True)]
        return np.asarray(table[tuple(inside)]).astype(self._type(step.kind))

    def _type(self, kind: ScalarType) -> np.dtype[Any]:
        return {f32: self.dtype, s32: np.dtype(np.int32), pred: np.dtype(bool)}[kind]
