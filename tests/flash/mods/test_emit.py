"""Each operation of a function of scores in a kernel is what numpy says, within its bound of errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flash.mods import exp, log, maximum, minimum, sqrt, tanh, where
from flash.mods.emit import AuxElements, Elements, Emitted
from flash.mods.evaluate import OPERATIONS, Evaluation
from flash.mods.record import traced
from flash.mods.rounding import rounding
from flash.mods.trace import AuxArray, Trace
from flash.operands.dtypes import BF16, BOOL, F16, F32, I32, U8
from ptxgen.dsl import KernelBuilder, Value
from ptxgen.interpreter import run
from ptxgen.types import f32, s32, s64, u32

ROWS, LANES = 3, 32
_RNG = np.random.default_rng(11)
ARRAYS: dict[str, tuple[Any, np.ndarray[Any, Any]]] = {
    "slopes": (F32, _RNG.standard_normal(4).astype(np.float32)),
    "half": (F16, _RNG.standard_normal((3, 9)).astype(np.float16)),
    "brain": (BF16, _RNG.standard_normal((2, 2, 4)).astype(BF16.numpy)),
    "lengths": (I32, _RNG.integers(-20, 20, 6).astype(np.int32)),
    "kinds": (U8, _RNG.integers(0, 256, (2, 5)).astype(np.uint8)),
    "flags": (BOOL, _RNG.random(7) < 0.5),
}
FUNCTIONS = {
    "sums": lambda s, b, h, q, k: (s + 1.5) * (q - k) - s / 3,
    "powers of two": lambda s, b, h, q, k: s / 8 + 1 / (4 + s * s) + k / 16,
    "quotients of negative integers": lambda s, b, h, q, k: (q - k) // 7 + 100 * ((q - 2 * k) % 7) + s * 0,
    "quotients by powers of two": lambda s, b, h, q, k: (q - k) // 4 + 100 * ((q - k) % 8) + s * 0,
    "quotients of what is not negative": lambda s, b, h, q, k: k // 5 + 100 * (k % 6) + s * 0,
    "signs": lambda s, b, h, q, k: abs(-s) + abs(k - q) * -1.0 - abs(q - k * k),
    "extremes": lambda s, b, h, q, k: minimum(s, 0.25) + maximum(q, k) * minimum(maximum(3, k), 9),
    "functions": lambda s, b, h, q, k: exp(s) + log(s * s + 0.5) * sqrt(s * s) - tanh(s * 2),
    "choices": lambda s, b, h, q, k: where(
        ((q < k) | (k <= 3)) ^ ~(s > 0.1) & (k != 9) | (q == k), where(q > k, s, 2), k
    ),
    "choices of conditions": lambda s, b, h, q, k: (
        where(where(q > 1, k > 9, k < 20), s, -s)
        + where(where(k > 4, True, q > 1), 1.0, where(where(q > 1, s > 0, False), 2.0, 3.0))
    ),
    "sums that wrap": lambda s, b, h, q, k: where(k * 2**30 + q * 2**30 > 5, s, -s),
    "elements": lambda s, b, h, q, k, slopes, half, brain: (
        slopes[h] + half[q - 1, k - 4] * brain[b, 1, q + k] + s
    ),
    "elements by elements": lambda s, b, h, q, k, lengths, kinds, slopes: (
        slopes[lengths[k - 9]] + kinds[h, lengths[q]] * s
    ),
    "flags": lambda s, b, h, q, k, flags: where(flags[k] & ~flags[q] | flags[b], s, 0.5),
    "positions": lambda s, b, h, q, k: s * (k + 3) + (q - k) * 0.5 - where(k + 1 > q * 5, 1, 0),
    "a number": lambda s, b, h, q, k: 0.75,
}


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
            place = (lane + (i * LANES * columns + apart)).as_(u32)
            score = k.load(S.element(place))
            found = elements.at(
                i,
                j,
                {
                    "score": lambda score=score: score,
                    "query": lambda i=i: k.mov(2 * i, type=s32),
                    "key": lambda apart=apart: lane + apart,
                    "first_key": lambda: lane,
                },
            )
            k.store(O.element(place), found if isinstance(found, Value) else k.mov(found, type=f32))
    return k.build()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_kernel_computes_what_numpy_does(name: str) -> None:
    declared = [AuxArray(n, dtype, array.ndim) for n, (dtype, array) in ARRAYS.items()]
    trace = traced("score_mod", FUNCTIONS[name], declared)
    columns = 2
    scores = _RNG.standard_normal((ROWS, LANES * columns)).astype(np.float32)
    arrays = {array.name: ARRAYS[array.name][1] for array in trace.arrays}
    out = np.full_like(scores, np.nan)
    layout: list[Any] = []
    for array in arrays.values():
        layout += [*array.strides, *array.shape]
    run(
        kernel_of(trace, columns),
        "mods",
        grid=1,
        block=LANES,
        args=[scores, out, *arrays.values(), 1, 1, *layout],
    )
    inputs = {
        "score": scores,
        "batch": np.array(1),
        "head": np.array(1),
        "query": 2 * np.arange(ROWS)[:, None],
        "key": np.arange(LANES * columns),
    }
    exact = np.broadcast_to(Evaluation(trace, inputs, arrays, np.dtype(np.float64)).result, scores.shape)
    allowed = np.broadcast_to(rounding(trace, inputs, arrays), scores.shape) * 2.0**-24
    assert (np.abs(out - exact) <= allowed * (1 + 1e-6)).all()
    single = np.broadcast_to(Evaluation(trace, inputs, arrays, np.dtype(np.float32)).result, scores.shape)
    np.testing.assert_allclose(single, exact, rtol=1e-5, atol=1e-5)


def test_every_operation_is_emitted() -> None:
    declared = [AuxArray(n, dtype, array.ndim) for n, (dtype, array) in ARRAYS.items()]
    found = {step.op for f in FUNCTIONS.values() for step in traced("score_mod", f, declared).steps}
    assert found == {*OPERATIONS, "input", "const", "float", "load"}
