"""Tensor memory in the DSL: products, rings, pairs of CTAs and scale factors, run on the interpreter."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from dsl.kernels import LOCKSTEP, launch

from ptxgen.dsl import KernelBuilder
from ptxgen.errors import TrapError
from ptxgen.runtime.assembler import find_assembler
from ptxgen.text import render
from ptxgen.types import bf16, f16, f16x2, f32, u8, u32

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
        operands = [
            tile.T if turn else tile.part(0, tile.rows)
            for tile, turn in zip((stage.a, stage.b), turned, strict=True)
        ]
        if fp8:
            operands = [operand.as_fp8(name) for operand, name in zip(operands, fp8, strict=True)]
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


@pytest.mark.sample(3, gate=6)
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


def chained(ctas: int = 1) -> KernelBuilder:
    """O = (Q K' + 1 as f16) V: threads load the first product, and store the left operand of the second."""
    k = builder(cluster=ctas)
    Q, K, V, O = (k.tma.tensor_map(name, t) for name, t in (("Q", f16), ("K", f16), ("V", f16), ("O", f32)))
    middle, loading, multiplying = roles(k)
    memory = k.tensor_memory(256, cta_group=ctas)
    tiles = {"q": ((ROWS, 64), f16), "k": ((64 // ctas, 64), f16), "v": ((64, 32 // ctas), f16)}
    inputs = k.tma.ring(1, loading, multiplying, released_by=memory, **tiles)
    scores = memory.ring(1, multiplying, middle, s=(ROWS * ctas, 64))
    weights = memory.ring(1, middle, multiplying, written=True, p=((ROWS * ctas, 64), f16))
    results = memory.ring(1, multiplying, middle, o=(ROWS * ctas, 32))
    out = k.tma.tile("out", (ROWS, 32), f32)
    rank = k.cluster.rank()
    with loading, inputs.fill() as stage:
        k.tma.load(stage.q, Q[rank * ROWS, 0])
        k.tma.load(stage.k, K[rank * (64 // ctas), 0])
        k.tma.load(stage.v, V[0, rank * (32 // ctas)])
    with multiplying, inputs.drain() as stage:
        with scores.fill() as first:
            first.s.mma(stage.q, stage.k.T, use=False)
        with results.fill() as second, weights.drain() as left:
            second.o.mma(left.p, stage.v, use=False)
    with middle:
        with scores.drain() as first, weights.write() as left:
            for column in range(0, 64, 16):
                left.p.store([v + 1.0 for v in first.s.load(column, 16)], column)
        with results.drain() as second:
            second.o.write(out)
        k.tma.store(out, O[rank * ROWS, 0])
    return k


@pytest.mark.parametrize("ctas", [1, 2])
def test_left_operands_in_tensor_memory(ctas: int) -> None:
    q, key, v = integers((ROWS * ctas, 64), f16, 0), integers((64, 64), f16, 1), integers((64, 32), f16, 2)
    o, k = np.zeros((ROWS * ctas, 32), np.float32), chained(ctas)
    launch(k, q, key, v, o, grid=ctas)
    np.testing.assert_array_equal(o, (exact(q, key.T) + 1) @ v.astype(np.float32))
    assembled(k)


def persistent(stages: int = 2) -> KernelBuilder:
    """Tiles of C = A B', several for each CTA, with the sums of two tiles in tensor memory at once."""
    k = builder()
    A, B, C = k.tma.tensor_map("A", bf16), k.tma.tensor_map("B", bf16), k.tma.tensor_map("C", f32)
    tiles, steps = k.param("tiles", u32), k.param("steps", u32)
    storing, loading, multiplying = roles(k)
    scheduler = k.tile_scheduler(tiles)
    memory = k.tensor_memory(128)
    layouts = {"a": ((ROWS, 32), bf16), "b": ((64, 32), bf16)}
    inputs = k.tma.ring(3, loading, multiplying, released_by=memory, **layouts)
    sums = memory.ring(stages, multiplying, storing, c=(ROWS, 64))
    out = k.tma.tile("out", (ROWS, 64), f32)
    with loading, scheduler.tiles() as tile, k.loop(0, steps) as step, inputs.fill() as stage:
        k.tma.load(stage.a, A[0, step * 32])
        k.tma.load(stage.b, B[tile * 64, step * 32])
    with multiplying, scheduler.tiles(), sums.fill() as c, k.loop(0, steps) as n, inputs.drain() as stage:
        c.c.mma(stage.a, stage.b.T, use=n > 0)
    with storing, scheduler.tiles() as tile:
        with sums.drain() as result:
            result.c.store([v * 2.0 for v in result.c.load(8, 24)], 8)
            result.c.write(out)
        k.tma.store(out, C[0, tile * 64])
    return k


def of_persistent() -> tuple[Any, Any, Any, Any]:
    a, b = integers((ROWS, 96), bf16, 0), integers((5 * 64, 96), bf16, 1)
    wanted = exact(a, b.T)
    wanted.reshape(ROWS, 5, 64)[:, :, 8:32] *= 2
    return a, b, np.zeros((ROWS, 5 * 64), np.float32), wanted


def largest(target: str, waits: bool = True) -> KernelBuilder:
    """O = (Q K' less the largest of its row, as f16) V, stored in pieces, the last ones as pairs of f16, of
    which the last store waits. The warp that multiplies waits as a whole, and goes round a loop.
    """
    k = builder(target=target)
    Q, K, V, O = (k.tma.tensor_map(name, t) for name, t in (("Q", f16), ("K", f16), ("V", f16), ("O", f32)))
    middle, loading, multiplying = roles(k)
    memory = k.tensor_memory(256)
    tiles = {"q": ((ROWS, 64), f16), "k": ((64, 64), f16), "v": ((64, 32), f16)}
    inputs = k.tma.ring(1, loading, multiplying, released_by=memory, **tiles)
    scores = memory.ring(1, multiplying, middle, s=(ROWS, 64), p=((ROWS, 64), f16, "s"), o=(ROWS, 32))
    out = k.tma.tile("out", (ROWS, 32), f32)
    with loading, k.loop(0, 2), inputs.fill() as stage:
        for tile, array in ((stage.q, Q), (stage.k, K), (stage.v, V)):
            k.tma.load(tile, array[0, 0])
    with multiplying, memory.by_warp(), k.loop(0, 2), inputs.drain() as stage:
        key = memory.operand(stage.k.T)
        with scores.fill() as first, memory.one_thread():
            first.s.mma(stage.q, key, use=False)
        with scores.fill() as second, memory.one_thread():
            second.o.mma(second.p, stage.v, use=False)
    with middle, k.loop(0, 2) as n:
        with scores.drain() as first:
            values, top = first.s.load_with_largest()
            for column in range(0, 64, 16):
                some = [value - top for value in values[column : column + 16]]
                if column < 32:
                    first.p.store(some, column, waits=False)
                    continue
                pairs = [k.cvt(some[i + 1], some[i], rnd="rn", dtype=f16x2) for i in range(0, 16, 2)]
                first.p.store_pairs(pairs, column, waits=waits and column == 48)
        with scores.drain() as second:
            second.o.write(out)
        k.tma.store(out, O[n * ROWS, 0])
    return k


@pytest.mark.parametrize("target", ["sm_100a", "sm_103a"])
def test_loads_with_the_largest_of_a_row(target: str) -> None:
    q, key, v = integers((ROWS, 64), f16, 0), integers((64, 64), f16, 1), integers((64, 32), f16, 2)
    o, k = np.zeros((2 * ROWS, 32), np.float32), largest(target)
    assert ("tcgen05.ld.red" in render(k.build())) is (target == "sm_103a")
    launch(k, q, key, v, o)
    scores = exact(q, key.T)
    wanted = (scores - scores.max(1, keepdims=True)) @ v.astype(np.float32)
    np.testing.assert_array_equal(o, np.concatenate([wanted, wanted]))


def test_stores_that_nothing_waits_for_are_noticed() -> None:
    q, key, v = integers((ROWS, 64), f16, 0), integers((64, 64), f16, 1), integers((64, 32), f16, 2)
    with pytest.raises(TrapError, match=r"tcgen05\.st"):
        launch(largest("sm_100a", waits=False), q, key, v, np.zeros((2 * ROWS, 32), np.float32))


def test_sums_of_two_tiles_at_once() -> None:
    a, b, c, wanted = of_persistent()
    k = persistent()
    launch(k, a, b, c, 5, 3, grid=2)
    np.testing.assert_array_equal(c, wanted)
    assembled(k)


def paired(columns: int = 128) -> KernelBuilder:
    """C = A B of 256 rows in a pair of CTAs, over several steps."""
    k = builder(cluster=2)
    A, B, C = k.tma.tensor_map("A", f16), k.tma.tensor_map("B", f16), k.tma.tensor_map("C", f32)
    steps = k.param("steps", u32)
    storing, loading, multiplying = roles(k)
    memory = k.tensor_memory(2 * columns, cta_group=2)
    tiles = {"a": ((ROWS, 32), f16), "b": ((32, columns // 2), f16)}
    inputs = k.tma.ring(2, loading, multiplying, released_by=memory, **tiles)
    sums = memory.ring(2, multiplying, storing, c=(2 * ROWS, columns))
    out = k.tma.tile("out", (ROWS, columns), f32)
    rank = k.cluster.rank()
    with loading, k.loop(0, 3), k.loop(0, steps) as step, inputs.fill() as stage:
        k.tma.load(stage.a, A[rank * ROWS, step * 32])
        k.tma.load(stage.b, B[step * 32, rank * (columns // 2)])
    with multiplying, k.loop(0, 3), sums.fill() as result, k.loop(0, steps) as step, inputs.drain() as stage:
        result.c.mma(stage.a, stage.b, use=step > 0)
    with storing, k.loop(0, 3) as n:
        with sums.drain() as result:
            result.c.write(out)
        k.tma.store(out, C[rank * ROWS, n * columns])
    return k


def of_pair(columns: int = 128) -> tuple[Any, Any, Any]:
    a, b = integers((2 * ROWS, 96), f16, 0), integers((96, columns), f16, 1)
    return a, b, np.zeros((2 * ROWS, 3 * columns), np.float32)


@pytest.mark.parametrize("columns", [128, 256])
def test_pairs_of_ctas_multiply_together(columns: int) -> None:
    a, b, c = of_pair(columns)
    k = paired(columns)
    launch(k, a, b, c, 3, grid=2)
    np.testing.assert_array_equal(c, np.tile(exact(a, b), 3))
    assembled(k)


def scaled(form: str, columns: int, pair: bool = False) -> KernelBuilder:
    """C = A B' of elements with scale factors of their blocks, 128 bytes of each row at a time."""
    block = 16 if form == "nvf4" else 32
    depth = 128 if form == "mxf8" else 256
    ctas = 1 + pair
    k = builder(cluster=ctas)
    A, B, C = k.tma.tensor_map("A", u8), k.tma.tensor_map("B", u8), k.tma.tensor_map("C", f32)
    of_a, of_b = k.tma.tensor_map("SA", u32, 3), k.tma.tensor_map("SB", u32, 3)
    steps = k.param("steps", u32)
    storing, loading, multiplying = roles(k)
    memory = k.tensor_memory(512, cta_group=ctas)
    factors = depth // block
    blocks = -(-columns // 128)
    tiles = {"a": ((ROWS, 128), u8), "b": ((columns // ctas, 128), u8)}
    both = {"sa": ((1, factors // 4, 128), u32, "none"), "sb": ((blocks, factors // 4, 128), u32, "none")}
    inputs = k.tma.ring(2, loading, multiplying, released_by=memory, **tiles, **both)
    sums = memory.ring(1, multiplying, storing, c=(ROWS * ctas, columns))
    scales = memory.scales(ROWS, factors, form), memory.scales(columns, factors, form)
    out = k.tma.tile("out", (ROWS, columns), f32)
    rank = k.cluster.rank()
    with loading, k.loop(0, steps) as step, inputs.fill() as stage:
        k.tma.load(stage.a, A[rank * ROWS, step * 128])
        k.tma.load(stage.b, B[rank * (columns // ctas), step * 128])
        k.tma.load(stage.sa, of_a[rank, step * (factors // 4), 0])
        k.tma.load(stage.sb, of_b[0, step * (factors // 4), 0])
    with multiplying, sums.fill() as result, k.loop(0, steps) as step, inputs.drain() as stage:
        for of, tile in zip(scales, (stage.sa, stage.sb), strict=True):
            of.copy(tile)
        a, b = stage.a.part(0, ROWS), stage.b.T
        if form == "mxf8":
            a, b = a.as_fp8("e4m3"), b.as_fp8("e5m2")
        result.c.mma(a, b, use=step > 0, scales=scales)
    with storing:
        with sums.drain() as result:
            result.c.write(out)
        k.tma.store(out, C[rank * ROWS, 0])
    return k


def scaled_from_tensor_memory() -> KernelBuilder:
    """C = A B with scale factors of 32 elements; element j of row i of A is i % 4 + j % 8, stored as e4m3 by
    threads, and the rows of B in memory are those of K.
    """
    k = builder()
    B, C = k.tma.tensor_map("B", u8), k.tma.tensor_map("C", f32)
    of_a, of_b = k.tma.tensor_map("SA", u32), k.tma.tensor_map("SB", u32)
    storing, loading, multiplying = roles(k)
    memory = k.tensor_memory(256)
    both = {"sa": ((1, 128), u32, "none"), "sb": ((1, 128), u32, "none")}
    inputs = k.tma.ring(1, loading, multiplying, released_by=memory, b=((128, 64), u8), **both)
    left = memory.ring(1, storing, multiplying, written=True, a=((ROWS, 128), "e4m3"))
    sums = memory.ring(1, multiplying, storing, c=(ROWS, 64))
    scales = memory.scales(ROWS, 4, "mxf8"), memory.scales(64, 4, "mxf8")
    out = k.tma.tile("out", (ROWS, 64), f32)
    with loading, inputs.fill() as stage:
        k.tma.load(stage.b, B[0, 0])
        k.tma.load(stage.sa, of_a[0, 0])
        k.tma.load(stage.sb, of_b[0, 0])
    with multiplying, sums.fill() as result, inputs.drain() as stage, left.drain() as operand:
        for of, tile in zip(scales, (stage.sa, stage.sb), strict=True):
            of.copy(tile)
        result.c.mma(operand.a, stage.b.part(0, 128).as_fp8("e4m3"), use=False, scales=scales)
    with storing:
        with left.write() as operand:
            first = k.cvt(operand.a.row & 3, dtype=f32)
            for column in range(0, 128, 32):
                operand.a.store([first + float(j % 8) for j in range(32)], column)
        with sums.drain() as result:
            result.c.write(out)
        k.tma.store(out, C[0, 0])
    return k


def quantised(form: str, type: str, rows: int, columns: int, seed: int) -> tuple[Any, Any, Any]:
    """The bytes of a matrix, its scale factors in the layout of copies, and what they stand for."""
    rng = np.random.default_rng(seed)
    if form == "mxf8":
        elements = rng.integers(-4, 5, (rows, columns)).astype(NUMPY[type])
        data, values, block = elements.view(np.uint8), elements.astype(np.float64), 32
    else:
        codes = rng.integers(0, 16, (rows, columns), np.uint8)
        data, values, block = codes[:, ::2] | codes[:, 1::2] << 4, E2M1[codes], 16 if form == "nvf4" else 32
    power = rng.integers(-3, 4, (rows, columns // block))
    factors = 2.0**power
    bytes_ = (power + 127).astype(np.uint8)
    if form == "nvf4":
        bytes_ = (
            (factors := rng.integers(1, 16, power.shape) * 0.25)
            .astype(ml_dtypes.float8_e4m3fn)
            .view(np.uint8)
        )
    whole = np.zeros((-(-rows // 128) * 128, columns // block), np.uint8)
    whole[:rows] = bytes_
    blocks = whole.reshape(-1, 4, 32, columns // block // 4, 4).transpose(0, 3, 2, 1, 4)
    laid = np.ascontiguousarray(blocks).reshape(*blocks.shape[:2], 512).view(np.uint32)
    return data, laid, values * np.repeat(factors, block, axis=1)


@pytest.mark.sample(2, gate=4)
@pytest.mark.parametrize(
    ("form", "columns", "pair"),
    [
        ("nvf4", 128, False),
        ("nvf4", 192, False),
        ("mxf4", 64, False),
        ("mxf8", 128, False),
        ("nvf4", 256, True),
    ],
)
def test_products_with_scale_factors(form: str, columns: int, pair: bool) -> None:
    rows, depth = ROWS * (1 + pair), 256 if form == "mxf8" else 512
    a, of_a, left = quantised(form, "e4m3", rows, depth, 0)
    b, of_b, right = quantised(form, "e5m2", columns, depth, 1)
    c = np.zeros((rows, columns), np.float32)
    k = scaled(form, columns, pair)
    launch(k, a, b, c, of_a, of_b, 2, grid=1 + pair, schedules=LOCKSTEP)
    np.testing.assert_array_equal(c, (left @ right.T).astype(np.float32))
    assembled(k)


def test_a_left_operand_in_tensor_memory_has_scale_factors() -> None:
    powers = np.array([127, 129, 126, 128], np.uint8)  # of each row of A
    rows, depth = np.arange(ROWS)[:, None], np.arange(128)
    left = (rows % 4 + depth % 8) * 2.0 ** (np.repeat(powers, 32).astype(int) - 127)
    b, of_b, right = quantised("mxf8", "e4m3", 64, 128, 1)
    c = np.zeros((ROWS, 64), np.float32)
    k = scaled_from_tensor_memory()
    of_a = np.full((1, 128), powers.view(np.uint32))
    launch(k, np.ascontiguousarray(b.T), c, of_a, of_b[:, 0], schedules=LOCKSTEP)
    np.testing.assert_array_equal(c, (left @ right.T).astype(np.float32))
    assembled(k)
