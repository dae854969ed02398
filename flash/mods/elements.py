"""The reads of array elements in a traced function, from which gradients of arrays follow: which element is
read, and the derivative of the result by it.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flash.mods.evaluate import Evaluation
from flash.mods.slopes import derivative
from flash.mods.trace import SUMMED, AuxArray, Step, Trace
from ptxgen.records import dataclass
from ptxgen.types import f32

Array = NDArray[Any]


@dataclass(frozen=True)
class ElementRead:
    """One read of an element of `array`. `element` is a function whose result is the element with the same
    indices of an array `SUMMED`, and `slope` the derivative of the traced function by the element.
    """

    array: AuxArray
    element: Trace
    slope: Trace

    @property
    def inputs(self) -> frozenset[str]:
        """The inputs that the indices depend on."""
        return self.element.inputs[self.element.result]

    def terms(self, dscore: Array, of_slope: Evaluation) -> Array:
        """The terms of all scores, from `dscore`, the gradients of the function's results. Where these are 0,
        as of hidden keys, there is no term, whatever the slope is.
        """
        terms = np.zeros_like(dscore)
        np.multiply(dscore, of_slope.result, out=terms, where=dscore != 0)
        return terms

    def add(self, total: Array, terms: Array, of_element: Evaluation) -> None:
        """Add terms to `total`, the gradient of the array, in the order of the scores."""
        step, values = self.element.steps[-1], of_element.values
        index = [np.clip(values[n], 0, m - 1) for n, m in zip(step.args, total.shape, strict=True)]
        flat = np.ravel_multi_index(tuple(np.broadcast_arrays(*index)), total.shape)
        np.add.at(total.reshape(-1), np.broadcast_to(flat, terms.shape).reshape(-1), terms.reshape(-1))


@functools.lru_cache(maxsize=256)
def element_reads(trace: Trace) -> tuple[ElementRead, ...]:
    """The reads of f32 elements in a `score_mod`, in the order of its steps."""
    reads = []
    for n, step in enumerate(trace.steps):
        if step.op != "load" or step.kind is not f32:
            continue
        array = trace.array(step)
        summed = AuxArray(SUMMED, array.dtype, array.rank)
        steps = [*trace.steps[:n], Step("load", f32, step.args, SUMMED)]
        element = Trace(f"an element of {trace.name}", steps, n, [*trace.arrays, summed])
        reads.append(ElementRead(array, element, derivative(trace, n)))
    return tuple(reads)


def differentiable(trace: Trace | None) -> tuple[AuxArray, ...]:
    """The arrays of numbers that a `score_mod` reads, by name; without one none."""
    arrays = {read.array.name: read.array for read in element_reads(trace)} if trace is not None else {}
    return tuple(arrays[name] for name in sorted(arrays))
