"""Runs a kernel both ways, by generated code and each instruction by itself, and wants the same
bits everywhere.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ptxgen.errors import TrapError
from ptxgen.interpreter import DeviceArena, Result, run
from ptxgen.tensormap import TensorMap
from ptxgen.texture import Surface

Array = np.ndarray[Any, np.dtype[Any]]


def run_both_ways(
    ptx: Any, entry: str | None = None, *, args: Sequence[Any], arena: DeviceArena | None = None, **how: Any
) -> Result:
    """As `run` with all sanitizers, which it calls twice."""
    how.setdefault("sanitize", "all")
    kept = [x for x in memory_of(args, arena) if x.flags.writeable]
    before = [x.copy() for x in kept]
    arena = DeviceArena() if arena is None else arena
    twin = copy.copy(arena)  # of the same memory, but a new module gets variables of its own
    twin.modules = dict(arena.modules)
    outcome = _outcome(ptx, entry, args=args, arena=twin, stepwise=True, **how)
    stepwise = [x.copy() for x in kept]
    for array, old in zip(kept, before, strict=True):
        array[...] = old
    generated = _outcome(ptx, entry, args=args, arena=arena, **how)
    for array, want in zip(kept, stepwise, strict=True):
        assert_same_bits(array, want)
    if isinstance(generated, TrapError):
        assert str(generated) == str(outcome)
        raise generated
    assert not isinstance(outcome, TrapError), outcome
    assert generated.counters == outcome.counters
    assert generated.reports == outcome.reports
    assert generated.printed == outcome.printed
    for name, value in outcome.variables.items():
        assert_same_bits(generated.variables[name], value)
    return generated


def assert_same_bits(got: Array, want: Array) -> None:
    """All bytes of the two are equal."""
    one, other = (np.frombuffer(x.tobytes(), np.uint8) for x in (got, want))
    wrong = np.flatnonzero(one != other)
    assert not len(wrong), f"{len(wrong)} bytes differ, the first is number {wrong[0]}"


def _outcome(*args: Any, **how: Any) -> Result | TrapError:
    try:
        return run(*args, **how)
    except TrapError as error:
        return error


def memory_of(args: Iterable[Any], arena: DeviceArena | None) -> list[Array]:
    """What a kernel may write."""
    result = [x.base if isinstance(x, TensorMap) else x.array if isinstance(x, Surface) else x for x in args]
    if arena is not None:
        result += [buffer.window.data for buffer in arena.buffers]
        result += [memory.constant for memory in arena.modules.values()]
    return [x for x in result if isinstance(x, np.ndarray)]
