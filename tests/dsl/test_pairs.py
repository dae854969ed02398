"""Pairs of f32, with which one instruction computes at once."""

from __future__ import annotations

import numpy as np
from dsl.kernels import THREADS, builder, launch
from error_texts import refused

from ptxgen.dsl import KernelBuilder
from ptxgen.errors import TypeMismatchError, UnsupportedTargetError
from ptxgen.types import f32, u64


def pairs(target: str = "sm_100a") -> KernelBuilder:
    """y = the six numbers of a thread's four."""
    k = builder("pairs", on=target)
    x, y = k.pointer("x", f32), k.pointer("y", f32)
    own = k.cvt(k.thread_id(), dtype=u64)
    a, b, c, d = (k.load(x.plus(own * 16 + n * 4)) for n in range(4))
    first, second = k.pair(a, b), k.pair(c, 2.0)
    low = k.var(f32, 0.0)
    high = k.var(f32, 0.0)
    first.fma(second, d).halves(into=[low, high])
    results = [low, high, *(first + second).halves(), *(first * 3.0 - second).halves()]
    for n, result in enumerate(results):
        k.store(y.plus(own * 24 + n * 4), result)
    return k


def test_both_halves_are_rounded_once() -> None:
    x = np.random.default_rng(0).standard_normal((THREADS, 4)).astype(np.float32)
    y = np.zeros((THREADS, 6), np.float32)
    launch(pairs(), x, y)
    a, b, c, d = x.T
    two = np.full_like(a, 2)
    fused = [(p.astype(np.float64) * q + d).astype(np.float32) for p, q in ((a, c), (b, two))]
    three = np.float32(3)
    wanted = [*fused, a + c, b + two, a * three - c, b * three - two]
    np.testing.assert_array_equal(y, np.stack(wanted, axis=1))


def test_refused_pairs() -> None:
    message = "fma.rn.f32x2 needs sm_100 / PTX 8.6, but kernel 'pairs' targets sm_90a"
    with refused(UnsupportedTargetError, message):
        pairs("sm_90a")
    k = builder(on="sm_100a")
    with refused(TypeMismatchError, "pair: expected pairs, f32 values or numbers, got 'x'"):
        k.pair(1.0, "x")  # type: ignore[arg-type]
    other = k.mov(1, type=u64)
    with refused(TypeMismatchError, f"pair: expected pairs, f32 values or numbers, got {other!r}"):
        k.pair(1.0, 2.0) + other
