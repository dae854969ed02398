"""Tensor memory in the DSL: products, rings, pairs of CTAs and scale factors, run on the interpreter."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from dsl.kernels import LOCKSTEP, changed, is_noticed, launch

from ptxgen.dsl import KernelBuilder
from ptxgen.runtime.assembler import find_assembler
from ptxgen.text import render
from ptxgen.types import bf16, f16, f32, u8, u32

NUMPY = {
    f16: np.dtype(np.float16),
    bf16: np.dtype(ml_dtypes.bfloat16),
    f32: np.dtype(np.float32),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
ROWS = 128
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E2M1 = np.concatenate([E2M1, -E2M1])


def builder(threads: int = 192, target: str = "sm_100a", **how: Any) -> KernelBuilder:
    return KernelBuilder("blackwell", target=target, threads=threads, **how)


def roles(k: KernelBuilder) -> tuple[Any, Any, Any]:
    return k.warpgroup_role("storing"), k.warp_role("loading"), k.warp_role("multiplying")


def integers(shape: tuple[int, ...], dtype: Any, seed: int) -> Any:
    """Small integers, whose products and sums are exact."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(NUMPY[dtype])


def exact(a: Any, b: Any) -> Any:
    return a.astype(np.float32) @ b.astype(np.float32)


def assembled(k: KernelBuilder) -> None:
    """The assembler takes a kernel, without spills."""
    (usage,) = find_assembler(target="sm_100a").assemble(render(k.build()), "sm_100a").kernels
    assert usage.spill_store_bytes == 0


def product(
    dtype: Any, sizes: tuple[int, int], turned: tuple[bool, bool], swizzles: Any, of_b: Any = None
) -> KernelBuilder:
    """C = A @ B of 128 rows; a turned operand lies transposed in memory."""
    inner, columns = sizes
    fp8 = (dtype, of_b or dtype) if isinstance(dtype, str) else ()
    memory_type = u8 if fp8 else dtype
    k = builder()
    A, B, C = (k.tma.tensor_map(name, t) for name, t in (("A", memory_type), ("B", memory_type), ("C", f32)))
    storing, loading, multiplying = roles(k)
    memory = k.tensor_memory(256)
    shape_a = (inner, ROWS) if turned[0] else (ROWS, inner)
    shape_b = (columns, inner) if turned[1] else (inner, columns)
    tiles = {"a": (shape_a, memory_type, swizzles[0]), "b": (shape_b, memory_type, swizzles[1])}
    ring = k.tma.ring(1, loading, multiplying, released_by=memory, **tiles)
    sums = memory.ring(1, multiplying, storing, c=(ROWS, columns))
    out = k.tma.tile("out", (ROWS, columns), f32, swizzle="32B")
    with loading, ring.fill() as stage:
        k.tma.load(stage.a, A[0, 0])
        k.tma.load(stage.b, B[0, 0])
    with multiplying, sums.fill() as result, ring.drain() as stage:
        operands = [tile.T if turn else tile.part(0, tile.rows) for tile, turn in zip((stage.a, stage.b), turned)]
        if fp8:
            operands = [operand.as_fp8(name) for operand, name in zip(operands, fp8)]
        result.c.mma(*operands, use=False)
    with storing:
        with sums.drain() as result:
            result.c.write(out)
        k.tma.store(out, C[0, 0])
    return k


def multiplied(k: KernelBuilder, a: Any, b: Any, turned: tuple[bool, bool], columns: int, **how: Any) -> Any:
    c = np.full((ROWS, columns), np.nan, np.float32)
    left, right = (np.ascontiguousarray(x.T) if turn else x for x, turn in zip((a, b), turned, strict=True))
    if a.dtype.itemsize == 1:
        left, right = left.view(np.uint8), right.view(np.uint8)
    launch(k, left, right, c, **how)
    return c


@pytest.mark.parametrize(
    ("dtype", "sizes", "turned", "swizzles"),
    [
        (f16, (64, 128), (False, True), ("128B", "128B")),
        (f16, (64, 64), (False, False), ("128B", "128B")),
        (f16, (96, 32), (True, False), ("64B", "64B")),
        (bf16, (128, 96), (True, True), ("128B", "64B")),
        (bf16, (16, 256), (False, False), ("32B", "32B")),
        (f16, (256, 8), (False, True), ("64B", "32B")),
        (f32, (64, 64), (False, True), ("128B", "64B")),
        ("e4m3", (128, 64), (False, True), ("128B", "128B")),
        ("e5m2", (64, 96), (False, False), ("64B", "32B")),
        ("e4m3", (32, 16), (True, True), ("128B", "32B")),
    ],
)
def test_products_of_all_layouts(dtype: Any, sizes: Any, turned: Any, swizzles: Any) -> None:
    inner, columns = sizes
    a, b = integers((ROWS, inner), dtype, 0), integers((inner, columns), dtype, 1)
    k = product(dtype, sizes, turned, swizzles)
    np.testing.assert_array_equal(multiplied(k, a, b, turned, columns, schedules=LOCKSTEP), exact(a, b))
    assembled(k)


def test_products_of_two_types_of_fp8() -> None:
    a, b = integers((ROWS, 64), "e4m3", 0), integers((64, 32), "e5m2", 1)
    k = product("e4m3", (64, 32), (False, True), ("64B", "64B"), "e5m2")
    np.testing.assert_array_equal(multiplied(k, a, b, (False, True), 32), exact(a, b))
