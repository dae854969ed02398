"""The launches of a case of gradients, interpreted one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gradient_runs import Case

from flash.calls.step import Step
from flash.gradients.checks import WRITTEN, Checks
from flash.gradients.steps import GradientCall, memory_of, steps_of
from flash.host.caller import Caller
from flash.problem.gradient_choice import has_one_sweep
from flash.scores.aux_arrays import flattened
from ptxgen.arrays.views import view
from ptxgen.target import target

Array = np.ndarray[Any, Any]


def steps(of: Case, on: str | None = None) -> tuple[list[Step], dict[str, Array]]:
    """The launches of a case on the config's target or `on`, and what they write, full of NaN."""
    on = on or of.config.target or "sm_80"
    out, lse = of.forward()
    arrays = {"dout": of.dout, "q": of.q, "k": of.k, "v": of.v, "out": out, "lse": lse}
    arrays |= {} if of.dlse is None else {"dlse": of.dlse}
    written = {name: np.full_like(arrays[like], np.nan) for name, like in WRITTEN.items()}
    views = {name: view(array, name) for name, array in {**arrays, **written}.items()}
    seed = of.others.get("dropout_seed")
    others = flattened("test", of.others)
    arguments = {**of.arrays, **{n: a for n, a in others.items() if isinstance(a, np.ndarray)}}
    operands = {name: view(array, name) for name, array in arguments.items()}
    sizes = Checks(of.config, Caller("test")).check(views, operands, "bhsd", (None, None))
    result = {name: np.full_like(arguments[name], np.nan) for name in of.wanted}
    sums = {name: view(array, name) for name, array in result.items()}
    numbers = {**of.config.numbers, **({} if seed is None else {"dropout_seed": seed})}
    sweeps = of.in_order or (not of.deterministic and has_one_sweep(of.config)), of.in_order
    call = GradientCall(of.config, sizes, "bhsd", of.config.scale, views, operands, numbers, sums, *sweeps)
    space = {
        name: np.full(memory.shape, 0 if memory.is_cleared else np.nan, memory.dtype.numpy)
        for name, memory in memory_of(call, target(on), "AttentionGradient").items()
    }
    memory = {name: view(array, name) for name, array in space.items()}
    launches = list(steps_of(call, target(on), memory, "test"))
    return launches, {**written, **result, **space}


def bits(arrays: Mapping[str, Array]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in arrays.items()}


def interpret(of: Case, on: str | None = None, **how: Any) -> dict[str, bytes]:
    """What the launches of a case write."""
    launches, written = steps(of, on)
    for step in launches:
        step.interpret(**how)
    return bits(written)
