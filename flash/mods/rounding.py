"""The rounding error of a traced function in f32, propagated through its steps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from flash.mods.evaluate import Array, Evaluation
from flash.mods.slopes import SLOPES
from flash.mods.trace import Trace
from ptxgen.types import f32, pred

# The error of each operation in units of 2**-24: of its result, and absolute. Operations that are
# not named here are rounded once, or exact.
_EXACT: Final = frozenset(("input", "const", "load", "where", "neg", "abs", "min", "max"))
_TANH: Final = 6.0  # `flash/mods/hyperbolic.py`: 3 units in the last place
_EXP: Final = 6.0  # `KernelBuilder.exp`: (|x| + 3) * 2**-23
_LOG: Final = 6.0  # `KernelBuilder.log`: 1.3 * 2**-22 of the result
_LOG_NEAR_1: Final = 4.0  # `KernelBuilder.log`: 2**-22, absolutely


def rounding(trace: Trace, inputs: Mapping[str, Array], arrays: Mapping[str, Array]) -> Array:
    """A bound of the error of the result in f32, for exact inputs, in units of 2**-24. It is of first
    order. A condition on f32 that the errors of its operands may turn counts with the whole
    difference of the choices.
    """
    with np.errstate(all="ignore"):
        return _rounding(trace, Evaluation(trace, inputs, arrays, np.dtype(np.float64)))


def _rounding(trace: Trace, of: Evaluation) -> Array:
    errors: list[Any] = []
    doubtful: list[Any] = []  # of conditions: whether errors may turn them
    for n, step in enumerate(trace.steps):
        args = [of.values[at] for at in step.args]
        before = [errors[at] for at in step.args]
        error: Any = 0.0
        doubt: Any = False
        if step.kind is pred:
            doubt = functools.reduce(np.logical_or, [doubtful[at] for at in step.args], False)
            if step.op in ("lt", "le", "eq", "ne") and trace.steps[step.args[0]].kind is f32:
                doubt = np.abs(args[0] - args[1]) <= (before[0] + before[1]) * 2.0**-24
                doubt &= (before[0] + before[1]) > 0
        elif step.kind is f32:
            error = _own(step.op, args, of.values[n])
            if step.op == "where":
                apart = np.abs(args[1] - args[2]) * 2.0**24
                kept = np.where(args[0], before[1], before[2])
                turned = np.maximum(before[1], before[2]) + np.where(np.isfinite(apart), apart, np.inf)
                error = np.where(doubtful[step.args[0]], turned, kept)
            elif step.op in SLOPES:
                for slope, given in zip(_partial(step.op, args, of.values[n]), before, strict=True):
                    error = error + np.where(given == 0, 0, np.abs(slope) * given)
        errors.append(error)
        doubtful.append(doubt)
    return np.asarray(errors[-1])


def _own(op: str, args: list[Array], result: Array) -> Any:
    """The error of the operation itself."""
    if op in _EXACT:
        return 0.0
    if op == "float":  # rounded, and in a kernel a rounded sum
        return np.where(np.abs(result) > 2.0**24, 2 * np.abs(result), 0)
    if op == "exp":
        return (2 * np.abs(args[0]) + _EXP) * np.maximum(np.abs(result), 2.0**-126)
    if op == "log":
        return _LOG * np.abs(result) + _LOG_NEAR_1
    return (_TANH if op == "tanh" else 1.0) * np.abs(result)


def _partial(op: str, args: list[Array], y: Array) -> tuple[Any, ...]:
    """The magnitudes of the partial derivatives; those of `SLOPES`, in numbers."""
    if op == "mul":
        return args[1], args[0]
    if op == "div":
        return 1 / args[1], y / args[1]
    if op == "log":
        return (1 / args[0],)
    of_result: dict[str, Callable[[], Any]] = {
        "exp": lambda: y,
        "sqrt": lambda: 0.5 / y,
        "tanh": lambda: 1 - y * y,
    }
    return (of_result[op](),) if op in of_result else (1.0,) * len(args)
