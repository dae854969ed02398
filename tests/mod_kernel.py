"""A kernel that computes a function of scores and nothing else, run by the interpreter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from flash.mods.emit import AuxElements, Elements, Emitted
from flash.mods.trace import Trace
from ptxgen.dsl import KernelBuilder, Value
from ptxgen.interpreter import run
from ptxgen.types import f32, pred, s32, s64, u32

ROWS, LANES = 3, 32
BATCH_AND_HEAD: Final = 1  # the item and the head whose scores are computed
APART: Final = 2  # queries from row to row


def kernel_of(trace: Trace, columns: int) -> Any:
    """A kernel whose thread t computes the function for the keys t, t + LANES, … of each row."""
    k = KernelBuilder("mods", target="sm_80", threads=LANES)
    S, O = k.pointer("S"), k.pointer("O")
    pointers = {array.name: k.pointer(array.operand) for array in trace.arrays}
    batch, head = (k.param(name, s32) for name in ("batch", "head"))
    arrays = {}
    for array in trace.arrays:
        steps = [k.param(f"{array.operand}_{n}_step", s64) for n in range(array.rank)]
        last = [k.param(f"{array.operand}_{n}_size", u32) - 1 for n in range(array.rank)]
        arrays[array.name] = AuxElements(pointers[array.name].value, steps, last)
    of_cta = {"batch": batch, "head": head}
    emitted = Emitted(k, trace, of_cta, arrays, rounds_once=True)
    lane = k.signed(k.thread_id())
    keys = [LANES * n for n in range(columns)]
    elements = Elements(emitted, keys)
    for j, apart in enumerate(keys):
        for i in range(ROWS):
            location = (lane + (i * LANES * columns + apart)).as_(u32)
            score = k.load(S.element(location))
            result = elements.at(
                i,
                j,
                {
                    "score": lambda score=score: score,
                    "query": lambda i=i: k.mov(APART * i, type=s32),
                    "key": lambda apart=apart: lane + apart,
                    "first_key": lambda: lane,
                },
            )
            k.store(O.element(location), _as_number(k, result))
    return k.build()


def _as_number(k: KernelBuilder, found: Any) -> Value:
    """A result as f32: of a condition 0 or 1."""
    if not isinstance(found, Value):
        return k.mov(float(found), type=f32)
    return k.selp(1.0, 0.0, found, type=f32) if found.type is pred else found


def results_of_kernel(trace: Trace, scores: Any, arrays: Mapping[str, Any]) -> Any:
    """The results for f32 scores [ROWS, keys], a multiple of LANES; arrays in the order of the trace."""
    out = np.full_like(scores, np.nan)
    layout: list[Any] = []
    for array in arrays.values():
        layout += [*array.strides, *array.shape]
    args = [scores, out, *arrays.values(), BATCH_AND_HEAD, BATCH_AND_HEAD, *layout]
    run(kernel_of(trace, scores.shape[1] // LANES), "mods", grid=1, block=LANES, args=args)
    return out


def inputs_of_kernel(scores: Any) -> dict[str, Any]:
    """The inputs of these results, as arrays that broadcast to their shape."""
    return {
        "score": scores,
        "batch": np.array(BATCH_AND_HEAD),
        "head": np.array(BATCH_AND_HEAD),
        "query": APART * np.arange(len(scores))[:, None],
        "key": np.arange(scores.shape[1]),
    }
