"""Left operands of fp8 in tensor memory, which threads store between two products."""

from __future__ import annotations

import numpy as np
import pytest
from dsl.kernels import LOCKSTEP, launch
from dsl.test_blackwell import NUMPY, ROWS, builder, integers, roles
from error_texts import refused

from ptxgen.dsl import KernelBuilder
from ptxgen.errors import ConfigError, shown
from ptxgen.runtime.assembler import find_assembler
from ptxgen.text import render
from ptxgen.types import f32, u8

KEYS, WIDTH = 64, 64
TYPES = ("e4m3", "e5m2")


def weighed(kind: str, of_values: str) -> KernelBuilder:
    """O = P V, where rows of V in memory are those of the sum, P = |Q Kᵀ| / 4 as `kind`; the sums of P."""
    k = builder()
    Q, K, V = (k.tma.tensor_map(name, u8) for name in "QKV")
    O, L = (k.tma.tensor_map(name, f32) for name in "OL")
    storing, loading, multiplying = roles(k)
    memory = k.tensor_memory(256)
    tiles = {"q": ((ROWS, 32), u8), "k": ((KEYS, 32), u8), "v": ((KEYS, WIDTH), u8)}
    inputs = k.tma.ring(1, loading, multiplying, released_by=memory, **tiles)
    weights = memory.ring(
        1, multiplying, storing, s=(ROWS, KEYS), p=((ROWS, KEYS), kind, "s"), o=(ROWS, WIDTH), l=(ROWS, 8)
    )
    ones, out = k.tma.tile("ones", (8, KEYS), u8), k.tma.tile("out", (ROWS, WIDTH), f32)
    sums = k.tma.tile("sums", (ROWS, 8), f32)
    with loading, inputs.fill() as stage:
        k.tma.load(stage.q, Q[0, 0])
        k.tma.load(stage.k, K[0, 0])
        k.tma.load(stage.v, V[0, 0])
    with multiplying:
        for at in ones.chunks(multiplying.thread, multiplying.threads):
            k.store(at, [(0x38 if kind == "e4m3" else 0x3C) * 0x0101_0101] * 4)
        k.fence_proxy_async(space="shared::cta")
        k.bar_warp_sync(-1)
        with inputs.drain() as stage:
            with weights.fill() as first:
                first.s.mma(stage.q.part(0, ROWS).as_fp8("e4m3"), stage.k.T.as_fp8("e4m3"), use=False)
            with weights.fill() as second:
                second.o.mma(second.p, stage.v.part(0, KEYS).as_fp8(of_values), use=False)
                second.l.mma(second.p, ones.T.as_fp8(kind), use=False)
    with storing:
        with weights.drain() as stage:
            values = [k.abs(x) * 0.25 for x in stage.s.load()]
            stage.p.store(values[:32])
            stage.p.store(values[32:], 32)
        with weights.drain() as stage:
            stage.o.write(out)
            stage.l.write(sums)
        k.tma.store(out, O[0, 0])
        k.tma.store(sums, L[0, 0])
    return k


@pytest.mark.parametrize("of_values", TYPES)
@pytest.mark.parametrize("kind", TYPES)
def test_weights_of_fp8_are_rounded_and_multiplied_with_rows_of_memory(kind: str, of_values: str) -> None:
    q, key = (integers((rows, 32), "e4m3", rows) for rows in (ROWS, KEYS))
    v = integers((KEYS, WIDTH), of_values, 1)
    o, sums = np.full((ROWS, WIDTH), np.nan, np.float32), np.full((ROWS, 8), np.nan, np.float32)
    k = weighed(kind, of_values)
    launch(k, *(x.view(np.uint8) for x in (q, key, v)), o, sums, schedules=LOCKSTEP)
    p = (np.abs(q.astype(np.float32) @ key.astype(np.float32).T) / 4).astype(NUMPY[kind]).astype(np.float32)
    np.testing.assert_array_equal(o, p @ v.astype(np.float32))
    np.testing.assert_array_equal(sums, np.repeat(p.sum(axis=1, keepdims=True), 8, axis=1))
    assert find_assembler(target="sm_100a").assemble(render(k.build()), "sm_100a").advisories == ()


def test_numbers_beyond_the_largest_become_that() -> None:
    q, key = np.full((ROWS, 32), 16.0).astype(NUMPY["e4m3"]), np.full((KEYS, 32), 16.0).astype(NUMPY["e4m3"])
    v = np.eye(KEYS, WIDTH).astype(NUMPY["e4m3"])
    o, sums = np.zeros((ROWS, WIDTH), np.float32), np.zeros((ROWS, 8), np.float32)
    launch(weighed("e4m3", "e4m3"), *(x.view(np.uint8) for x in (q, key, v)), o, sums, schedules=LOCKSTEP)
    assert (o == 448).all()
    assert (sums == 448 * KEYS).all()


def test_refused_operands_of_fp8() -> None:
    for columns, kind in ((48, "e4m3"), (64, "e2m1"), (64, u8)):
        k = builder()
        storing, _, multiplying = roles(k)
        memory = k.tensor_memory(256)
        with refused(
            ConfigError,
            "tensor_memory.ring: expected matrix 'p' as (128, columns) for sums, in multiples of 8 columns "
            "up to 256, or as ((128, columns), f16 or bf16 or 'e4m3' or 'e5m2') for an operand, in multiples "
            f"of 16 columns, of fp8 of 32; got {shown(((ROWS, columns), kind))}",
        ):
            memory.ring(1, storing, multiplying, written=True, p=((ROWS, columns), kind))
    k = builder()
    storing, _, multiplying = roles(k)
    ring = k.tensor_memory(256).ring(1, storing, multiplying, written=True, p=((ROWS, 64), "e4m3"))
    with (
        storing,
        ring.write() as stage,
        refused(
            ConfigError,
            "operand.store: expected a first column and a number of values in multiples of 4, among the 64 "
            "columns of matrix 'p', got first 2 and 4 values",
        ),
    ):
        stage.p.store([k.mov(0.0, type=f32)] * 4, 2)
