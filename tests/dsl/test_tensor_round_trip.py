"""Stages of tensor memory that go from products to the threads of two roles and back: `memory.ring` with
`then` and `dealt`, and operands that threads store for the next products of their stage.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from dsl.kernels import LOCKSTEP, launch
from error_texts import refused

from ptxgen.dsl import KernelBuilder
from ptxgen.errors import ConfigError, TypeMismatchError
from ptxgen.runtime.assembler import find_assembler
from ptxgen.text import render
from ptxgen.types import f16, f32

ROWS, KEYS, WIDTH = 128, 64, 32
STEPS = 3


def roles(k: KernelBuilder, groups: int) -> tuple[Any, Any, Any, Any]:
    first = k.warpgroup_role("first", warpgroups=groups)
    second, others = k.warpgroup_role("second"), k.warpgroup_role("others")
    return first, second, others, others.warp_role("multiplying")


def builder(groups: int = 2) -> KernelBuilder:
    return KernelBuilder("round_trip", target="sm_100a", threads=128 * (groups + 2))


def weighed(groups: int = 2) -> KernelBuilder:
    """O = Σ factor(n) · max(Q K[n]ᵀ, 0) V[n]: `first` stores the left operands, `second` scales O between."""
    k = builder(groups)
    Q, K, V = (k.tma.tensor_map(name, f16) for name in "QKV")
    O = k.tma.tensor_map("O", f32)
    (first, second, others, multiplying), memory = roles(k, groups), k.tensor_memory(256)
    loading = others.warp_role("loading")
    rows = memory.ring(
        groups, multiplying, first, then=second, dealt=True,
        s=(ROWS, KEYS), p=((ROWS, KEYS), f16, "s"), o=(ROWS, WIDTH),
    )  # fmt: skip
    queries = k.tma.ring(1, loading, multiplying, released_by=memory, q=((groups * ROWS, 64), f16))
    keys = k.tma.ring(2, loading, multiplying, released_by=memory, k=((KEYS, 64), f16))
    values = k.tma.ring(2, loading, multiplying, released_by=memory, v=((KEYS, WIDTH), f16))
    factors = k.shared("factors", (groups, ROWS), f32)
    out = k.tma.tile("out", (groups * ROWS, WIDTH), f32)
    with first:
        at = factors.pointer(first.thread // ROWS, first.thread % ROWS)
        with k.loop(0, STEPS) as n, rows.drain() as stage:
            k.store(at, k.cvt(n + 1, dtype=f32, rnd="rn"))
            stage.hand_on()
            stage.p.store([k.max(x, 0.0) for x in stage.s.load()])
        with rows.drain() as stage:
            k.store(at, 0.5)
            stage.hand_on()
    with second:
        at = factors.pointer(0, second.thread)
        with k.loop(0, STEPS) as n:
            for i in range(groups):
                with rows.drain() as stage, k.when(n > 0, uniform="warp"):
                    stage.o.scale(k.load(at.step(rows=i)))
        for i in range(groups):
            with rows.drain() as stage:
                stage.o.write(out, ROWS * i, factor=k.load(at.step(rows=i)))
        k.tma.store(out, O[0, 0])
    with others:
        with multiplying, memory.one_thread(), queries.drain() as query:
            Q_i = [query.q.part(ROWS * i, ROWS) for i in range(groups)]
            for n in range(STEPS + 1):
                with ExitStack() as blocks:
                    value = blocks.enter_context(values.drain()) if n > 0 else None
                    key = blocks.enter_context(keys.drain()) if n < STEPS else None
                    for q in Q_i:
                        with rows.fill() as stage:
                            if value is not None:
                                stage.o.mma(stage.p, value.v, use=n > 1)
                            if key is not None:
                                stage.s.mma(q, key.k.T, use=False)
        with loading:
            with queries.fill() as stage:
                k.tma.load(stage.q, Q[0, 0])
            with k.loop(0, STEPS) as n:
                with keys.fill() as stage:
                    k.tma.load(stage.k, K[n * KEYS, 0])
                with values.fill() as stage:
                    k.tma.load(stage.v, V[n * KEYS, 0])
    return k


@pytest.mark.parametrize("groups", [1, 2])
def test_stages_go_from_products_to_two_roles_and_back(groups: int) -> None:
    rng = np.random.default_rng(0)
    shapes = (groups * ROWS, 64), (STEPS * KEYS, 64), (STEPS * KEYS, WIDTH)
    q, key, v = (rng.integers(-4, 5, shape).astype(np.float16) for shape in shapes)
    o = np.full((groups * ROWS, WIDTH), np.nan, np.float32)
    k = weighed(groups)
    launch(k, q, key, v, o, schedules=LOCKSTEP)
    wanted = np.zeros(o.shape)
    for n in range(STEPS):
        tile = slice(n * KEYS, (n + 1) * KEYS)
        wanted = wanted * (n + 1) + np.maximum(q.astype(float) @ key[tile].T, 0) @ v[tile]
    np.testing.assert_array_equal(o, wanted * 0.5)
    (usage,) = find_assembler(target="sm_100a").assemble(render(k.build()), "sm_100a").kernels
    assert usage.spill_store_bytes == 0


def rings(**how: Any) -> Any:
    """A ring whose consumer has two warpgroups."""
    k = builder()
    first, second, _, multiplying = roles(k, 2)
    memory = k.tensor_memory(512)
    how = {"stages": 2, "then": second, "dealt": True, "s": (ROWS, KEYS), **how}
    return k, first, memory.ring(how.pop("stages"), multiplying, first, **how)


def test_refused_rings_of_two_consumers() -> None:
    with refused(
        ConfigError,
        "tensor_memory.ring: dealt=True gives a stage to each warpgroup of role 'first', expected 2 stages, "
        "got 3",
    ):
        rings(stages=3)
    with refused(
        ConfigError,
        "tensor_memory.ring: dealt=True and then=… are for stages that threads drain, but products drain "
        "those of a ring made with written=True; leave out one of both",
    ):
        rings(written=True)
    for over, columns in (("t", 32), ("s", 256)):
        with refused(
            ConfigError,
            f"tensor_memory.ring: matrix 'p' needs {columns // 2 if over == 's' else 16} columns, expected "
            f"the name of sums before it that have as many, got {over!r}",
        ):
            rings(p=((ROWS, columns), f16, over))


def test_stages_are_handed_on_once_in_each_drain() -> None:
    _, first, ring = rings()
    with (
        refused(
            ConfigError,
            "ring 'tensor_ring_1': a drain of role 'first' does not hand its stage on, so that role 'second' "
            "waits for ever; call stage.hand_on() in it",
        ),
        first,
        ring.drain() as stage,
    ):
        stage.s.load()
    _, first, ring = rings()
    with (
        refused(
            TypeMismatchError,
            "ring 'tensor_ring_1': hand_on is for a drain of the first consumer of a ring made with then=…, "
            "once in each; leave it out here",
        ),
        first,
        ring.drain() as stage,
    ):
        stage.hand_on()
        stage.hand_on()
