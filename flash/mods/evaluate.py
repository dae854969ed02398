"""A traced function in numpy, for the cpu backend and the float64 reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flash.mods.operations import LEAST, MOST, OPERATIONS
from flash.mods.trace import Step, Trace
from ptxgen.types import ScalarType, f32, pred, s32

Array = NDArray[Any]


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
        """The array of the function's values, of a shape that broadcasts to that of the scores."""
        return self.values[-1]

    def _value(self, step: Step) -> Array:
        args = [self.values[n] for n in step.args]
        if step.op == "input":
            return np.asarray(self.inputs[str(step.value)], self._type(step.kind))
        if step.op == "const":
            return np.asarray(step.value, self._type(step.kind))
        if step.op == "load":
            return self._loaded(step, args)
        if step.value is not None:
            args.append(np.asarray(step.value, np.int32))
        result = np.asarray(OPERATIONS[step.op].numpy(*args))
        return result.astype(self._type(step.kind), copy=False)

    def _loaded(self, step: Step, indices: list[Array]) -> Array:
        table = self._arrays[str(step.value)]
        inside = [np.clip(index, 0, n - 1) for index, n in zip(indices, table.shape, strict=True)]
        elements = np.asarray(table[tuple(inside)])
        if step.kind is s32:
            elements = np.clip(elements, LEAST, MOST)
        return elements.astype(self._type(step.kind))

    def _type(self, kind: ScalarType) -> np.dtype[Any]:
        return {f32: self.dtype, s32: np.dtype(np.int32), pred: np.dtype(bool)}[kind]
