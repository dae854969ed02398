"""The rounding error of a traced function in f32, propagated through its steps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from flash.mods.evaluate import Array, Evaluation
from flash.mods.operations import OPERATIONS
from flash.mods.trace import Step, Trace
from ptxgen.types import f32

_COMPARED: Final = ("lt", "le", "eq", "ne")


def rounding(trace: Trace, inputs: Mapping[str, Array], arrays: Mapping[str, Array]) -> Array:
    """A bound of the error of the result in f32, for exact inputs, in units of 2**-24. It is of first
    order. A condition on f32 that the errors of its operands may change counts with the whole difference of
    the choices; where they may change an integer, the error of what depends on it is unbounded.
    """
    with np.errstate(all="ignore"):
        return _rounding(trace, Evaluation(trace, inputs, arrays, np.dtype(np.float64)))


def _rounding(trace: Trace, of: Evaluation) -> Array:
    errors: list[Any] = []
    doubtful: list[Any] = []  # of conditions and integers: whether errors may change them
    for n, step in enumerate(trace.steps):
        args = [of.values[at] for at in step.args]
        before = [errors[at] for at in step.args]
        doubts = [doubtful[at] for at in step.args]
        error: Any = 0.0
        doubt: Any = False
        if step.kind is f32:
            error = _error(step, args, of.values[n], before, doubts)
        elif step.op in _COMPARED and trace.steps[step.args[0]].kind is f32:
            doubt = _within(np.abs(args[0] - args[1]), before[0] + before[1])
        elif (jump := _jump(step)) is not None:
            doubt = _within(jump(args[0]), before[0])
        else:
            doubt = functools.reduce(np.logical_or, doubts, False)
        errors.append(error)
        doubtful.append(doubt)
    return np.asarray(errors[-1])


def _within(apart: Any, error: Any) -> Any:
    """Whether an error, in units of 2**-24, is not 0 and reaches the distance `apart`, so that it may change
    a choice.
    """
    return (apart <= error * 2.0**-24) & (error > 0)


def _jump(step: Step) -> Callable[[Any], Any] | None:
    operation = OPERATIONS.get(step.op)
    return None if operation is None else operation.jump


def _error(step: Step, args: list[Array], result: Array, before: list[Any], doubts: list[Any]) -> Any:
    """The error of an f32 step in units of 2**-24, from those of its operands, `before`; `doubts` are whether
    errors may change operands that are conditions or integers.
    """
    if step.op in ("input", "const", "load"):
        unknown = functools.reduce(np.logical_or, doubts, False)
        return np.where(unknown, np.inf, 0.0)
    if step.op == "where":
        apart = np.abs(args[1] - args[2]) * 2.0**24
        chosen = np.where(args[0], before[1], before[2])
        either = np.maximum(before[1], before[2]) + np.where(np.isfinite(apart), apart, np.inf)
        return np.where(doubts[0], either, chosen)
    operation = OPERATIONS[step.op]
    error = operation.error(*args, result)
    if operation.jump is not None:
        return before[0] + np.where(_within(operation.jump(args[0]), before[0]), 2.0**24, 0.0)
    if operation.slopes is None:  # of an integer
        return np.where(doubts[0], np.inf, error)
    slopes = operation.steepest or operation.slopes(np, *args, result)
    for slope, error_before in zip(slopes, before, strict=True):
        error = error + np.where(error_before == 0, 0, np.abs(slope) * error_before)
    return error
