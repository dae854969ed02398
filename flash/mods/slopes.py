"""The derivative of a traced function, as another trace."""

from __future__ import annotations

import functools

from flash.mods import functions
from flash.mods.operations import OPERATIONS
from flash.mods.trace import SCORE, Recorder, Step, Trace
from flash.mods.values import Traced
from ptxgen.types import f32, pred


@functools.lru_cache(maxsize=256)
def derivative(trace: Trace, by: int | None = None) -> Trace:
    """The derivative of a score_mod by the score, or by the f32 that step `by` loads, as a function of the
    same arguments. At a kink it is the derivative of one side, and 0 for abs; conditions and indices have no
    derivative.
    """
    recorder = Recorder(trace.steps)
    if by is None:
        by = next(
            (n for n, step in enumerate(trace.steps) if step.op == "input" and step.value == SCORE), None
        )
    slopes: list[Traced | float] = []  # 0.0 where a step does not depend on step `by`
    for n, step in enumerate(trace.steps):
        slope = 1.0 if n == by else _slope(recorder, n, step, slopes) if step.kind is f32 else 0.0
        slopes.append(slope)
    slope = slopes[-1]
    result = slope.index if isinstance(slope, Traced) else recorder.constant(slope, f32)
    return Trace(f"d {trace.name}", recorder.steps, result, trace.arrays)


def _slope(recorder: Recorder, n: int, step: Step, slopes: list[Traced | float]) -> Traced | float:
    if all(_is_zero(slopes[at]) for at in step.args):
        return 0.0
    if step.op == "where":
        condition = Traced(recorder, step.args[0], pred)
        return functions.where(condition, slopes[step.args[1]], slopes[step.args[2]])
    args = [Traced(recorder, at, f32) for at in step.args]
    of = OPERATIONS[step.op].slopes
    assert of is not None  # an operation on f32 with an f32 result
    partial = of(functions, *args, Traced(recorder, n, f32))
    total: Traced | float = 0.0
    for by, at in zip(partial, step.args, strict=True):
        total = _sum(total, _product(by, slopes[at]))
    return total


def _is_zero(slope: Traced | float) -> bool:
    return not isinstance(slope, Traced) and slope == 0.0


def _product(a: Traced | float, b: Traced | float) -> Traced | float:
    for one, other in ((a, b), (b, a)):
        if not isinstance(one, Traced):
            if one == 0.0:
                return 0.0
            if one == 1.0:
                return other
            if one == -1.0:
                return -other
    return a * b


def _sum(a: Traced | float, b: Traced | float) -> Traced | float:
    if _is_zero(a):
        return b
    return a if _is_zero(b) else a + b
