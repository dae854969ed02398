"""Each operation of a function of scores in a kernel is what numpy says, within its bound of errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from mod_kernel import LANES, ROWS, inputs_of_kernel, results_of_kernel

from flash.mods import (
    as_condition,
    as_float,
    as_integer,
    ceil,
    cos,
    div,
    elu,
    erf,
    exp,
    exp2,
    floor,
    gelu,
    leaky_relu,
    log,
    log2,
    maximum,
    minimum,
    relu,
    round,
    rsqrt,
    sigmoid,
    sign,
    silu,
    sin,
    softplus,
    sqrt,
    tanh,
    trunc,
    where,
)
from flash.mods.evaluate import Evaluation
from flash.mods.operations import OPERATIONS, Emission
from flash.mods.record import traced
from flash.mods.rounding import rounding
from flash.mods.trace import AuxArray, Step
from flash.operands.dtypes import BF16, BOOL, F16, F32, I32, U8
from ptxgen.dsl import KernelBuilder
from ptxgen.interpreter import run
from ptxgen.types import f32

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
    "exponentials": lambda s, b, h, q, k: (
        2.0**s + exp2(s * q - 5) * 1.5**s - log2(s * s + 0.25) + 3.0 ** (q - k)
    ),
    "roots": lambda s, b, h, q, k: (
        rsqrt(s * s + 0.125) + (s * s) ** 0.5 - (s * s + 1) ** -0.5 + s**3 - (s + 4) ** -2
    ),
    "powers of integers": lambda s, b, h, q, k: q**2 - k**3 + 2 ** (q % 5) + s * 0,
    "powers": lambda s, b, h, q, k: abs(s) ** (s * s + 0.1) + (s * 0.01 + 1) ** q,
    "angles": lambda s, b, h, q, k: sin(s * 9) * cos(k * 0.25) - sin((q - k) * 100.0) + cos(k * 4096.25),
    "logistic": lambda s, b, h, q, k: sigmoid(s * 8) - sigmoid(k * -2.0) * sigmoid(s),
    "error function": lambda s, b, h, q, k: erf(s * 2) + erf(s / 8) * erf((q - k) * 0.05),
    "of networks": lambda s, b, h, q, k: (
        relu(s) + silu(s) - gelu(s) * gelu(s * 2, approximate="tanh") + softplus(s) * elu(s) - leaky_relu(s)
    ),
    "whole numbers": lambda s, b, h, q, k: (
        floor(k / 8 + 0.3) - ceil(k / 4 - 0.3) * round(k / 3 + 0.1) + trunc((q - k) / 5 + 0.1) + s
    ),
    "conversions": lambda s, b, h, q, k: (
        as_integer((k - 9) / 4 + 0.03) + (k > q) * s + as_float(k > 3) - as_condition(q) + sign(q - k)
    ),
    "bits": lambda s, b, h, q, k: ((q << 3) ^ (k >> 1) | (k & q)) - (~(q - k) & 7) + (k & 6) * s,
    "bits by values": lambda s, b, h, q, k: (1 << (k & 31)) // 3 + ((q - k) >> (k - 20)) + ((k - 9) << q) + s,
    "quotients by values": lambda s, b, h, q, k: (q - k) // (k - 3) + 10 * ((k - 9) % (q - 1)) + s,
    "quotients by negatives": lambda s, b, h, q, k: (
        (q - k) // -3 + 10 * ((k - 9) % -4) + (q - k) // -4 + s * 0
    ),
    "quotients of floats": lambda s, b, h, q, k: (k + 0.3) // 2.5 + (q - k + 0.2) % 3.0 + s,
    "truncated quotients": lambda s, b, h, q, k: div(q - k, 3, "trunc") + div(k - q + 0.5, 3, "trunc") + s,
    "equal conditions": lambda s, b, h, q, k: where(
        ((q > k) == (k > 5)) & ((q > 2) != (k < 9)) | ((q > 2) < (k < 9)) & ((q > 3) <= (k > 1)), s, -s
    ),
    "a number": lambda s, b, h, q, k: 0.75,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_kernel_computes_what_numpy_does(name: str) -> None:
    declared = [AuxArray(n, dtype, array.ndim) for n, (dtype, array) in ARRAYS.items()]
    trace = traced("score_mod", FUNCTIONS[name], declared)
    columns = 2
    scores = _RNG.standard_normal((ROWS, LANES * columns)).astype(np.float32)
    arrays = {array.name: ARRAYS[array.name][1] for array in trace.arrays}
    out = results_of_kernel(trace, scores, arrays)
    inputs = inputs_of_kernel(scores)
    exact = np.broadcast_to(Evaluation(trace, inputs, arrays, np.dtype(np.float64)).result, scores.shape)
    allowed = np.broadcast_to(rounding(trace, inputs, arrays), scores.shape) * 2.0**-24
    assert (np.abs(out - exact) <= allowed * (1 + 1e-6)).all()
    single = np.broadcast_to(Evaluation(trace, inputs, arrays, np.dtype(np.float32)).result, scores.shape)
    np.testing.assert_allclose(single, exact, rtol=1e-5, atol=1e-5)


def test_every_operation_is_emitted() -> None:
    declared = [AuxArray(n, dtype, array.ndim) for n, (dtype, array) in ARRAYS.items()]
    result = {step.op for f in FUNCTIONS.values() for step in traced("score_mod", f, declared).steps}
    assert result == {*OPERATIONS, "input", "const", "load"}


# What operations that are made of many instructions err by, in units of 2**-24: of the exact result, or
# absolute.
ACCURATE = {
    "sin": (np.sin, 0.0, 2.0, 2.0**18),
    "cos": (np.cos, 0.0, 2.0, 2.0**18),
    "erf": (np.vectorize(math.erf), 8.0, 0.0, 6.0),
    "tanh": (np.tanh, 6.0, 0.0, 12.0),
}


@pytest.mark.parametrize("op", ACCURATE)
def test_functions_of_many_instructions_are_as_accurate_as_stated(op: str) -> None:
    exact, relative, absolute, largest = ACCURATE[op]
    k = KernelBuilder("accurate", target="sm_80", threads=LANES)
    X, Y, block = k.pointer("X"), k.pointer("Y"), k.block_id() * LANES
    at = k.thread_id() + block
    step = Step(op, f32, (0,))
    k.store(Y.element(at), OPERATIONS[op].emit(Emission(k, step, rounds_once=True), k.load(X.element(at))))
    size = np.concatenate(
        [np.geomspace(1e-6, largest, 2000), np.linspace(0, min(largest, 7), 2000), np.arange(64) * np.pi / 4]
    ).astype(np.float32)
    x = np.concatenate([size, -size, [np.nan]])[: 2 * size.size // LANES * LANES].astype(np.float32)
    y = np.empty_like(x)
    run(k.build(), "accurate", grid=x.size // LANES, block=LANES, args=[x, y])
    wanted = exact(x.astype(np.float64))
    assert (np.abs(y - wanted) <= (relative * np.abs(wanted) + absolute) * 2.0**-24).all()


@pytest.mark.parametrize("op", ["sin", "cos", "erf", "sigmoid", "floor", "round", "exp2", "log2", "rsqrt"])
def test_numbers_that_are_not_finite_are_those_of_numpy(op: str) -> None:
    k = KernelBuilder("ends", target="sm_80", threads=LANES)
    X, Y, at = k.pointer("X"), k.pointer("Y"), k.thread_id()
    emission = Emission(k, Step(op, f32, (0,)), rounds_once=True)
    k.store(Y.element(at), OPERATIONS[op].emit(emission, k.load(X.element(at))))
    x = np.resize(np.array([np.nan, np.inf, -np.inf, 0.0], np.float32), LANES)
    y = np.empty_like(x)
    run(k.build(), "ends", grid=1, block=LANES, args=[x, y])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(y, OPERATIONS[op].numpy(x))
