"""Tensor copies, rings, roles, products of warpgroups and clusters in the DSL, run on the interpreter."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from dsl.kernels import LOCKSTEP, SCHEDULES, changed, is_noticed, launch
from error_texts import refused

from ptxgen.dsl import KernelBuilder
from ptxgen.dsl.hopper import Layout
from ptxgen.errors import ConfigError, PtxGenError, TrapError, TypeMismatchError, UnsupportedTargetError
from ptxgen.runtime.assembler import find_assembler
from ptxgen.text import render
from ptxgen.types import bf16, f16, f32, u8, u32, u64

NUMPY = {f16: np.dtype(np.float16), bf16: np.dtype(ml_dtypes.bfloat16), f32: np.dtype(np.float32)}


def builder(threads: int = 256, target: str = "sm_90a", **how: Any) -> KernelBuilder:
    return KernelBuilder("hopper", target=target, threads=threads, **how)


def integers(shape: tuple[int, ...], dtype: Any, seed: int) -> Any:
    """Small integers, whose products and sums are exact."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(NUMPY[dtype])


def exact(a: Any, b: Any) -> Any:
    return a.astype(np.float32) @ b.astype(np.float32)


def product(
    dtype: Any, sizes: tuple[int, int, int], turned: tuple[bool, bool], swizzles: Any
) -> KernelBuilder:
    """C = A @ B of one warpgroup; a turned operand lies transposed in memory."""
    rows, inner, columns = sizes
    k = builder(threads=256)
    A, B, C = k.tma.tensor_map("A", dtype), k.tma.tensor_map("B", dtype), k.pointer("C", f32)
    producer, consumer = k.warpgroup_role("producer"), k.warpgroup_role("consumer")
    shape_a = (inner, rows) if turned[0] else (rows, inner)
    shape_b = (columns, inner) if turned[1] else (inner, columns)
    ring = k.tma.ring(1, producer, consumer, a=(shape_a, dtype, swizzles[0]), b=(shape_b, dtype, swizzles[1]))
    with producer, ring.fill() as stage:
        k.tma.load(stage.a, A[0, 0])
        k.tma.load(stage.b, B[0, 0])
    with consumer:
        acc = k.wgmma.accumulator(rows, columns)
        with ring.drain() as stage:
            acc += (stage.a.T if turned[0] else stage.a) @ (stage.b.T if turned[1] else stage.b)
            k.wgmma.wait()
        acc.store(C, columns)
    return k


@pytest.mark.parametrize(
    ("dtype", "sizes", "turned", "swizzles"),
    [
        (f16, (64, 64, 64), (False, False), ("128B", "128B")),
        (f16, (64, 128, 96), (False, True), ("128B", "64B")),
        (f16, (64, 32, 128), (True, False), ("64B", "128B")),
        (bf16, (64, 48, 64), (True, True), ("128B", "32B")),
        (bf16, (128, 32, 32), (True, False), ("32B", "64B")),
        (f16, (128, 96, 16), (False, False), ("64B", "32B")),
        (f16, (64, 16, 256), (False, True), ("32B", "32B")),
        (f16, (192, 64, 8), (True, True), ("64B", "128B")),
    ],
)
def test_products_of_all_layouts(dtype: Any, sizes: Any, turned: Any, swizzles: Any) -> None:
    rows, inner, columns = sizes
    a, b = integers((rows, inner), dtype, 0), integers((inner, columns), dtype, 1)
    c = np.full((rows, columns), np.nan, np.float32)
    left, right = (np.ascontiguousarray(x.T) if turn else x for x, turn in zip((a, b), turned, strict=True))
    launch(product(dtype, sizes, turned, swizzles), left, right, c, schedules=LOCKSTEP)
    assert np.array_equal(c, exact(a, b))


@pytest.mark.sample(2, gate=4)
@pytest.mark.parametrize("swizzle", ["none", "32B", "64B", "128B"])
def test_elements_lie_where_copies_put_them(swizzle: str) -> None:
    """Ordinary loads and stores of a tile agree with tensor copies; rows of two slabs, or of one."""
    k = builder(threads=64)
    columns = {"none": 24, "32B": 32, "64B": 64, "128B": 128}[swizzle]
    X, Y, Z = k.tma.tensor_map("X", f16), k.tma.tensor_map("Y", f16), k.pointer("Z", f16)
    producer, consumer = k.warp_role("producer"), k.warp_role("consumer")
    ring = k.tma.ring(1, producer, consumer, x=((48, columns), f16, swizzle))
    out = k.tma.tile("out", (48, columns), f16, swizzle=swizzle)
    with producer, ring.fill() as stage:
        k.tma.load(stage.x, X[0, 0])
    with consumer:
        lane = consumer.thread
        with ring.drain() as stage:
            for column in range(0, columns, 5):  # by constants, and by values below
                Z[lane * columns + column] = stage.x[lane, column]
            with k.loop(lane, columns, 32, type=u32) as column:
                for row in range(48):
                    out[row, column] = stage.x[row, column]
        k.tma.store(out, Y[0, 0])
    x = np.arange(48 * columns).astype(np.float16).reshape(48, columns)
    y, z = np.zeros_like(x), np.zeros((32, columns), np.float16)
    launch(k, x, y, z, schedules=LOCKSTEP)
    assert np.array_equal(y, x)
    assert np.array_equal(z[:, ::5], x[:32, ::5])


@pytest.mark.sample(3, gate=5)
@pytest.mark.parametrize(
    ("dtype", "rows", "columns", "swizzle"),
    [
        (f16, 64, 96, "64B"),
        (bf16, 128, 16, "32B"),
        (f16, 64, 24, "none"),
        (f32, 128, 32, "128B"),
        (f16, 64, 128, None),
    ],
)
def test_sums_are_written_to_tiles_of_all_types(dtype: Any, rows: int, columns: int, swizzle: Any) -> None:
    """A product is written from row 64 of a tile on, and stored to a tensor."""
    k = builder(threads=128)
    Y = k.tma.tensor_map("Y", dtype)
    out = k.tma.tile("out", (rows + 64, columns), dtype, swizzle=swizzle)
    acc = k.wgmma.accumulator(rows, columns)
    for down, across, pair in acc.pairs():
        for i, v in enumerate(pair):
            row, column = acc.row + down, acc.column + (across + i)
            v.set(k.cvt((row * 3 + column) % 256, dtype=f32, rnd="rn"))
    with k.loop(k.thread_id(), columns, 128, type=u32) as column:
        for row in range(64):
            out[row, column] = k.cvt(0.5, dtype=dtype, rnd="rn") if dtype is not f32 else 0.5
    acc.write(out, 64)
    k.tma.store(out, Y[0, 0])
    y = np.zeros((rows + 64, columns), NUMPY[dtype])
    assert ("stmatrix" in render(k.build())) == (dtype is not f32 and columns % 16 == 0)
    launch(k, y, schedules=LOCKSTEP)
    wanted = (np.arange(rows)[:, None] * 3 + np.arange(columns)) % 256
    assert (y[:64] == 0.5).all()
    assert np.array_equal(y[64:], wanted.astype(np.float32).astype(NUMPY[dtype]))


@pytest.mark.parametrize(("dtype", "rows"), [(f32, 50), (f16, 64), (bf16, 7)])
def test_sums_are_stored_to_matrices_up_to_a_row(dtype: Any, rows: int) -> None:
    k = builder(threads=128)
    Y, columns, left = k.pointer("Y", dtype), k.param("columns", u32), k.param("left", u32)
    acc = k.wgmma.accumulator(64, 16, zero=False)
    acc.fill(3.0)
    acc.store(Y.at(4), columns, rows_left=left)
    y = np.zeros((66, 20), NUMPY[dtype])
    launch(k, y, 20, rows, schedules=LOCKSTEP)
    wanted = np.zeros((66 * 20,), np.float32)
    for row in range(rows):
        wanted[4 + 20 * row : 20 + 20 * row] = 3
    assert np.array_equal(y.astype(np.float32).reshape(-1), wanted)


@pytest.mark.parametrize("where", ["kernel", "loop", "role"])
def test_a_product_that_the_kernel_never_waits_for_is_refused_with_its_line(where: str) -> None:
    k = builder(threads=128)
    a, b = k.tma.tile("a", (64, 64), f16), k.tma.tile("b", (64, 32), f16)

    acc = k.wgmma.accumulator(64, 32)

    def start() -> None:
        acc.set(a @ b)

    if where == "kernel":
        start()
    elif where == "loop":
        with k.loop(0, 3):
            start()
            k.wgmma.wait(1)  # which leaves the product of the last iteration
    else:
        with k.warpgroup_role("one"):
            start()
    line = start.__code__.co_firstlineno + 1
    said = (
        f"kernel 'hopper': the product started at {__file__}:{line}, in {start.__qualname__} is still under "
        "way where the code of its warps ends; wait after it with k.wgmma.wait()"
    )
    with pytest.raises(TypeMismatchError, match=f"^{re.escape(said)}$"):
        k.build()


@pytest.mark.parametrize("fenced", [True, False])
def test_tiles_that_threads_write_are_fenced_before_a_product(fenced: bool) -> None:
    k = builder(threads=128)
    A, B, C = k.pointer("A", f16), k.pointer("B", f16), k.pointer("C", f32)
    a, b = k.tma.tile("a", (64, 32), f16), k.tma.tile("b", (32, 16), f16)
    acc, t = k.wgmma.accumulator(64, 16, zero=False), k.thread_id()
    with k.loop(t, 64 * 32, 128, type=u32) as i:
        a[i >> 5, i & 31] = A[i]
    with k.loop(t, 32 * 16, 128, type=u32) as i:
        b[i >> 4, i & 15] = B[i]
    if fenced:
        k.fence_proxy_async(space="shared::cta")
    k.barrier()
    acc.set(a @ b)
    k.wgmma.wait()
    acc.store(C, 16)
    x, y, c = integers((64, 32), f16, 1), integers((32, 16), f16, 2), np.zeros((64, 16), np.float32)
    if fenced:
        launch(k, x, y, c, schedules=LOCKSTEP)
        assert np.array_equal(c, exact(x, y))
    else:
        with pytest.raises(TrapError, match="proxy"):
            launch(k, x, y, c, schedules=LOCKSTEP)


def test_products_in_a_group_have_one_fence_and_one_commit() -> None:
    k = builder(threads=128)
    a, b = k.tma.tile("a", (64, 16), f16), k.tma.tile("b", (16, 32), f16)
    one, other = k.wgmma.accumulator(64, 32), k.wgmma.accumulator(64, 32)
    with k.wgmma.group():
        one += a @ b
        other += a @ b
        with pytest.raises(TypeMismatchError, match=r"is used at .* writes it; wait before"):
            one[0, 0].set(0.0)
        with pytest.raises(ConfigError, match=r"wgmma\.group is inside another one"), k.wgmma.group():
            pass
    k.wgmma.wait()
    text = render(k.build())
    assert [text.count(f"wgmma.{word}") for word in ("fence", "mma_async", "commit_group")] == [1, 2, 1]


@pytest.mark.parametrize(
    ("dtype", "columns", "swizzle"), [(f16, 128, None), (f16, 40, "none"), (f32, 24, None)]
)
def test_tiles_of_few_rows_begin_where_the_swizzle_does(dtype: Any, columns: int, swizzle: Any) -> None:
    """Three rows in three stages: neither a slab nor a stage ends where the swizzle repeats."""
    k = builder(threads=64)
    X, Y = k.tma.tensor_map("X", dtype), k.pointer("Y", dtype)
    producer, consumer = k.warp_role("producer"), k.warp_role("consumer")
    ring = k.tma.ring(3, producer, consumer, x=((3, columns), dtype, swizzle))
    with producer, k.loop(0, 15, 3) as row, ring.fill() as stage:
        k.tma.load(stage.x, X[row, 0])
    with consumer, k.loop(0, 15, 3, type=u32) as row, ring.drain() as stage:
        for n in range(3):
            with k.loop(consumer.thread, columns, 32, type=u32) as column:
                Y[(row + n) * columns + column] = stage.x[n, column]
    x = np.arange(15 * columns).reshape(15, columns).astype(NUMPY[dtype])
    y = np.zeros_like(x)
    launch(k, x, y, schedules=LOCKSTEP)
    assert np.array_equal(y, x)


def image(layout: Layout, values: Any) -> Any:
    """The bytes of a tile, as 16-byte chunks, in the words of the PTX manual: within a slab chunk j of
    row i lies at chunk j XOR (i mod 8) for 128 B, j XOR (i / 2 mod 4) for 64 B, j XOR (i / 4 mod 2) for 32 B.
    """
    width = layout.slab_columns
    result = np.zeros((layout.slabs, layout.rows, width), values.dtype)
    per = 16 // values.itemsize
    turn: dict[str, Callable[[int], int]] = {
        "128B": lambda i: i % 8,
        "64B": lambda i: i // 2 % 4,
        "32B": lambda i: i // 4 % 2,
        "none": lambda _: 0,
    }
    for slab in range(layout.slabs):
        for i in range(layout.rows):
            for j in range(width // per):
                to = (j ^ turn[layout.swizzle](i)) * per
                start = slab * width + j * per
                result[slab, i, to : to + per] = values[i, start : start + per]
    return result


@pytest.mark.parametrize(
    ("shape", "dtype", "swizzle"),
    [((80, 128), f16, None), ((24, 96), f16, None), ((40, 16), bf16, None), ((16, 96), f32, "128B")],
)
def test_the_image_of_a_tile_is_that_of_the_manual(shape: Any, dtype: Any, swizzle: Any) -> None:
    layout = Layout.of("tile", shape, dtype, swizzle)
    k = builder(threads=64)
    X, raw = k.tma.tensor_map("X", dtype), k.pointer("raw", dtype)
    producer, consumer = k.warp_role("producer"), k.warp_role("consumer")
    ring = k.tma.ring(1, producer, consumer, x=layout)
    with producer, ring.fill() as stage:
        k.tma.load(stage.x, X[0, 0])
    with consumer, ring.drain() as stage:
        start, count = stage.x.slab(0), layout.nbytes // dtype.nbytes
        with k.loop(consumer.thread, count, 32, type=u32) as i:
            raw[i] = k.load(start.element(i))
    x = (np.arange(shape[0] * shape[1]) % 1000).astype(NUMPY[dtype]).reshape(shape)
    got = np.zeros(x.size, NUMPY[dtype])
    launch(k, x, got, schedules=LOCKSTEP)
    assert np.array_equal(got, image(layout, x).reshape(-1))


def test_tensors_of_more_dimensions_fill_rows_of_a_tile() -> None:
    """Heads and positions together are the rows: PackGQA by one copy."""
    k = builder(threads=64)
    X, Y = k.tma.tensor_map("X", f16, 4), k.pointer("Y", f16)
    producer, consumer = k.warp_role("producer"), k.warp_role("consumer")
    ring = k.tma.ring(1, producer, consumer, x=((4, 2, 64), f16))
    with producer, ring.fill() as stage:
        k.tma.load(stage.x, X[1, 6, 0, 64])
    with consumer, ring.drain() as stage:
        for row in range(8):
            Y[row * 32 + k.signed(consumer.thread)] = stage.x[row, consumer.thread]
    x = np.arange(2 * 9 * 2 * 128).astype(np.float16).reshape(2, 9, 2, 128)
    y = np.zeros((8, 32), np.float16)
    launch(k, x, y)
    wanted = np.zeros((4, 2, 32), np.float16)
    wanted[:3] = x[1, 6:9, :, 64:96]  # what is outside of the tensor is zero
    assert np.array_equal(y, wanted.reshape(8, 32))


# ------------------------------------------------------------------------------------- rings and roles


def sums(stages: int, *, consumers: int = 2) -> KernelBuilder:
    """Each of the consumer's warps adds up the rows of all tiles; there are more tiles than stages."""
    k = builder(threads=32 * (1 + consumers))
    X, Y, n = k.tma.tensor_map("X", f32), k.pointer("Y", f32), k.param("n", u32)
    producer, consumer = k.warp_role("producer"), k.warp_role("consumer", warps=consumers)
    ring = k.tma.ring(stages, producer, consumer, x=((8, 32), f32))
    with producer, k.loop(0, n, 8) as row, ring.fill() as stage:
        k.tma.load(stage.x, X[row, 0])
    with consumer:
        total = k.var(f32, 0)
        with k.loop(0, n, 8), ring.drain() as stage:
            for row in range(8):
                total.set(total + stage.x[row, consumer.thread % 32])
        Y[consumer.thread] = total
    return k


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_rings_turn_round(stages: int) -> None:
    x = integers((40, 32), f32, 3)
    y = np.zeros((2, 32), np.float32)
    launch(sums(stages), x, y, 40)
    assert np.array_equal(y, np.broadcast_to(x.sum(0), (2, 32)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("was", "now"),
    [
        (r"(mbarrier\.init.*), 2;", r"\1, 1;"),  # the empty barriers count one warp of two
        (r"(expect_tx.*), 1024;", r"\1, 512;"),  # the bytes of half a tile
        (r"(expect_tx.*), 1024;", r"\1, 2048;"),
        (r"(mov\.u32 %r\d+), 1;", r"\1, 0;"),  # the producer's first phase
    ],
)
def test_the_sanitizers_see_a_broken_ring(was: str, now: str) -> None:
    """A ring of which one number is wrong races, or never ends."""
    k = sums(3)
    x, y = integers((72, 32), f32, 3), np.zeros((2, 32), np.float32)
    assert is_noticed(k, changed(k, was, now), x, y, 72)


def overlapped(tiles: int, columns: int = 32) -> KernelBuilder:
    """Products of which one stays under way; each of `tiles` rows of tiles starts anew."""
    k = builder(threads=256)
    A, B, C = k.tma.tensor_map("A", f16), k.tma.tensor_map("B", f16), k.pointer("C", f32)
    n = k.param("n", u32)
    producer, consumer = k.warpgroup_role("producer"), k.warpgroup_role("consumer")
    ring = k.tma.ring(2, producer, consumer, overlapped=True, a=((64, 32), f16), b=((32, columns), f16))
    with producer, k.loop(0, 64 * tiles, 64) as row, k.loop(0, n, 32) as i, ring.fill() as stage:
        k.tma.load(stage.a, A[row, i])
        k.tma.load(stage.b, B[i, 0])
    with consumer:
        acc = k.wgmma.accumulator(64, columns)
        with k.loop(0, tiles, type=u32) as tile:
            with k.loop(0, n, 32), ring.drain() as stage:
                acc += stage.a @ stage.b
            ring.finish()
            acc.store(C.element(tile * (64 * columns)), columns)
            acc.fill(0.0)
    return k


def test_products_stay_under_way_in_an_overlapped_ring() -> None:
    a, b = integers((128, 96), f16, 4), integers((96, 32), f16, 5)
    c = np.full((128, 32), np.nan, np.float32)
    k = overlapped(2)
    launch(k, a, b, c, 96)
    assert np.array_equal(c, exact(a, b))
    waits = re.findall(r"wgmma\.wait_group\.sync\.aligned (\d)", render(k.build()))
    assert waits == ["1", "0"]


@pytest.mark.slow
def test_an_overlapped_ring_that_gives_back_too_early_races() -> None:
    k = overlapped(2)
    a, b, c = integers((128, 96), f16, 4), integers((96, 32), f16, 5), np.zeros((128, 32), np.float32)
    assert is_noticed(k, changed(k, r"(wait_group\.sync\.aligned) 1", r"\1 2", 1), a, b, c, 96)


def reworked() -> KernelBuilder:
    """Products of tiles of which the producer changes the signs of one."""
    k = builder(threads=256)
    A, B, C = k.tma.tensor_map("A", f16), k.tma.tensor_map("B", f16), k.pointer("C", f32)
    n = k.param("n", u32)
    producer, consumer = k.warpgroup_role("producer"), k.warpgroup_role("consumer")
    ring = k.tma.ring(2, producer, consumer, reworked=True, a=((64, 32), f16), b=((32, 128), f16))
    with producer, k.loop(0, n, 32) as i:
        with ring.fill() as stage:
            k.tma.load(stage.a, A[0, i])
            k.tma.load(stage.b, B[i, 0])
        with ring.rework() as stage:
            for at in stage.a.chunks(producer.thread, producer.threads):
                k.store(at, [word ^ 0x8000_8000 for word in k.load(at, 4)])
    with consumer:
        left, right = (k.wgmma.accumulator(64, 64) for _ in range(2))
        with k.loop(0, n, 32), ring.drain() as stage:
            of_b = stage.b.part(0, 32)
            left += stage.a.part(0, 64) @ of_b.slabs(0, 1)
            right += stage.a.part(0, 64) @ of_b.slabs(1, 1)
            k.wgmma.wait()
        left.store(C, 128)
        right.store(C.at(64), 128)
    return k


def test_the_producer_of_a_reworked_ring_changes_what_copies_have_brought() -> None:
    a, b = integers((64, 96), f16, 4), integers((96, 128), f16, 5)
    c = np.full((64, 128), np.nan, np.float32)
    launch(reworked(), a, b, c, 96)
    assert np.array_equal(c, -exact(a, b))


@pytest.mark.slow
@pytest.mark.parametrize(
    "was",
    [
        r"fence\.proxy\.async\.shared::cta;",  # products do not see what was written
        r"mbarrier\.arrive\.shared::cta\.b64 [^;]*;",  # nobody hands on, or gives back
    ],
)
def test_the_sanitizers_see_a_reworked_ring_without_its_order(was: str) -> None:
    k = reworked()
    broken = re.sub(was, "", text := render(k.build()), count=1)
    assert broken != text
    a, b, c = integers((64, 96), f16, 4), integers((96, 128), f16, 5), np.zeros((64, 128), np.float32)
    assert is_noticed(k, broken, a, b, c, 96)


def shared_columns() -> KernelBuilder:
    """Two CTAs of a cluster with rows of their own and the same columns, of which each loads half."""
    k = builder(threads=256, cluster=(1, 2))
    A, B, C = k.tma.tensor_map("A", f16), k.tma.tensor_map("B", f16), k.tma.tensor_map("C", f32)
    n = k.param("n", u32)
    producer, consumer = k.warpgroup_role("producer"), k.warpgroup_role("consumer")
    ring = k.tma.ring(2, producer, consumer, multicast=True, a=((64, 32), f16), b=((32, 64), f16))
    out = k.tma.tile("out", (64, 64), f32)
    row = k.block_id("y") * 64
    with producer, k.loop(0, n, 32) as i, ring.fill() as stage:
        k.tma.load(stage.a, A[row, i])
        k.tma.load(stage.b, B[i, 0], multicast=True)
    with consumer:
        acc = k.wgmma.accumulator(64, 64)
        with k.loop(0, n, 32), ring.drain() as stage:
            acc += stage.a @ stage.b
            k.wgmma.wait()
        acc.write(out)
        k.tma.store(out, C[row, 0])
    return k


def test_ctas_of_a_cluster_share_what_they_load() -> None:
    a, b = integers((128, 96), f16, 7), integers((96, 64), f16, 8)
    c = np.full((128, 64), np.nan, np.float32)
    k = shared_columns()
    launch(k, a, b, c, 96, grid=(1, 2), schedules=SCHEDULES[:2])
    assert np.array_equal(c, exact(a, b))
    assert k.tma.boxes()["B"].box == (64, 16)  # half of the rows
    text = render(k.build())
    assert text == render(k.build())
    assert text.count("barrier.cluster.arrive") == text.count("barrier.cluster.wait") == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("was", "now"),
    [
        (r"(mbarrier\.init.*), 8;", r"\1, 4;"),  # the consumers of one CTA
        (r"\tbarrier\.cluster\.arrive.*\n\tbarrier\.cluster\.wait.*\n\tret", "\tret"),
    ],
)
def test_the_sanitizers_see_a_broken_cluster(was: str, now: str) -> None:
    k = shared_columns()
    a, b, c = integers((128, 96), f16, 7), integers((96, 64), f16, 8), np.zeros((128, 64), np.float32)
    assert is_noticed(k, changed(k, was, now), a, b, c, 96, grid=(1, 2))


def test_what_one_role_leaves_under_way_is_no_matter_of_another() -> None:
    k = builder(threads=256)
    a, b = k.tma.tile("a", (64, 64), f16), k.tma.tile("b", (64, 32), f16)
    acc = k.wgmma.accumulator(64, 32)
    with k.warpgroup_role("one"):
        acc += a @ b
    with k.warpgroup_role("other"):
        acc[0, 0].set(1.0)
    with pytest.raises(TypeMismatchError, match="is still under way where the code of its warps ends"):
        k.build()


@pytest.mark.parametrize("first", ["load", "store"])
def test_a_map_may_be_loaded_and_stored(first: str) -> None:
    """Rows are doubled in place, and stored before the next are loaded."""
    k = builder(threads=64)
    X = k.tma.tensor_map("X", f32)
    producer, consumer = k.warp_role("producer"), k.warp_role("consumer")
    ring = k.tma.ring(1, producer, consumer, x=((8, 32), f32))
    out = k.tma.tile("out", (8, 32), f32)

    def produce() -> None:
        with producer, k.loop(0, 16, 8) as row, ring.fill() as stage:
            k.tma.load(stage.x, X[row, 0])

    if first == "load":
        produce()
    with consumer, k.loop(0, 16, 8) as row, ring.drain() as stage:
        for n in range(8):
            out[n, consumer.thread] = stage.x[n, consumer.thread] * 2
        k.tma.store(out, X[row, 0])
    if first == "store":
        produce()
    boxes = k.tma.boxes()["X"]
    assert (boxes.loads, boxes.stores) == (True, True)
    x = integers((16, 32), f32, 9)
    doubled = 2 * x
    launch(k, x, schedules=LOCKSTEP)
    assert np.array_equal(x, doubled)


def test_a_tile_is_free_again_behind_its_store() -> None:
    k = builder(threads=64)
    Y = k.tma.tensor_map("Y", u32)
    out = k.tma.tile("out", (8, 32), u32)
    t = k.thread_id()
    with k.loop(0, 24, 8, type=u32) as row:
        for n in range(0, 8, 2):
            out[(t >> 5) + n, t & 31] = row * 100 + t
        k.tma.store(out, Y[row, 0])
    y = np.zeros((24, 32), np.uint32)
    launch(k, y)
    wanted = np.arange(24)[:, None] // 8 * 800 + np.arange(24)[:, None] % 2 * 32 + np.arange(32)
    assert np.array_equal(y, wanted)


def test_tiles_first_used_in_a_branch_are_there_behind_it() -> None:
    k = builder(threads=64)
    X, Y = k.tma.tensor_map("X", f32), k.pointer("Y", f32)
    producer, consumer = k.warp_role("producer"), k.warp_role("consumer")
    ring = k.tma.ring(2, producer, consumer, x=((8, 32), f32))
    with producer, ring.fill() as stage:
        k.tma.load(stage.x, X[0, 0])
    with consumer, ring.drain() as stage:
        with k.when(consumer.thread < 5):
            Y[consumer.thread] = stage.x[1, 2]
        Y.at(32)[consumer.thread] = stage.x[3, consumer.thread]
    x, y = integers((8, 32), f32, 6), np.zeros((2, 32), np.float32)
    launch(k, x, y, schedules=LOCKSTEP)
    assert np.array_equal(y[1], x[3])
    assert y[0].tolist() == [x[1, 2]] * 5 + [0] * 27


def test_roles_are_branches_of_one_chain() -> None:
    k = builder(threads=192)
    X = k.pointer("X", u32)
    first, second, third = (k.warp_role(name, warps=n) for name, n in (("a", 1), ("b", 2), ("c", 3)))
    for number, role in enumerate((first, second, third), start=1):
        k.note(f"role {number}")
        with role:
            X[k.thread_id()] = role.thread + 1000 * number
    x = np.zeros(192, np.uint32)
    launch(k, x, schedules=LOCKSTEP)
    wanted = [1000 * role + t for role, threads in ((1, 32), (2, 64), (3, 96)) for t in range(threads)]
    assert x.tolist() == wanted
    branches = [line for line in render(k.build()).splitlines() if "bra" in line]
    assert len(branches) == 4  # past a role for two, and behind the chain for two


def test_roles_apart_from_each_other_run_one_after_another() -> None:
    k = builder(threads=64)
    X = k.pointer("X", u32)
    one, other = k.warp_role("one"), k.warp_role("other")
    with one:
        X[k.thread_id()] = 1
    k.barrier()
    with other:
        X[k.thread_id()] = X[k.thread_id() - 32] + 1
    x = np.zeros(64, np.uint32)
    launch(k, x)
    assert x.tolist() == [1] * 32 + [2] * 32


def test_registers_of_roles_are_set_where_they_differ() -> None:
    k = builder(threads=384)
    low, high = k.warpgroup_role("low", registers=24), k.warpgroup_role("high", warpgroups=2, registers=240)
    with low:
        k.note("waits")
    with high:
        k.note("works")
    text = render(k.build())
    assert [line.strip() for line in text.splitlines() if "setmaxnreg" in line] == [
        "setmaxnreg.dec.sync.aligned.u32 24;",
        "setmaxnreg.inc.sync.aligned.u32 240;",
    ]
    assert ".minnctapersm 1" in text


def test_named_barriers_know_their_threads() -> None:
    """Two roles take turns, as in ping-pong: one arrives, the other waits."""
    k = builder(threads=96)
    X = k.pointer("X", u32)
    one, other, rest = k.warp_role("one"), k.warp_role("other"), k.warp_role("rest")
    turn, own = k.named_barrier(one, other), k.named_barrier(rest)
    assert (turn.number, turn.threads, own.number, own.threads) == (1, 64, 2, 32)
    with one:
        X[one.thread] = 5
        turn.arrive()
    with other:
        turn.sync()
        X[other.thread + 32] = X[other.thread] + 1
    with rest:
        own.sync()
        X[rest.thread + 64] = 7
    x = np.zeros(96, np.uint32)
    launch(k, x)
    assert x.tolist() == [5] * 32 + [6] * 32 + [7] * 32


@pytest.mark.ptxas
def test_the_assembler_has_nothing_to_say() -> None:
    """No product is serialised, and no register spilled."""
    assembly = find_assembler(target="sm_90a").assemble(render(shared_columns().build()), "sm_90a")
    assert assembly.kernel("hopper").spill_store_bytes == 0
    assert not assembly.advisories


# ------------------------------------------------------------------------------------- misuse


def test_places_of_tensors_fit_their_instruction() -> None:
    k = builder(threads=128)
    A = k.tma.tensor_map("A", f16)
    tile, barrier = k.tma.tile("t", (8, 64), f16).slab(0), k.shared("bar", (1, 1), u64, align=8).pointer()
    with pytest.raises(TypeMismatchError) as error:
        k.cp_async_bulk_tensor_load(tile, A[0, 0].pointer(0), barrier, dim="3d")
    assert "operand map must be a tensor map with 3 coordinates, got 2 coordinates" in str(error.value)
    with pytest.raises(TypeMismatchError) as error:
        k.cp_async_bulk_tensor_load(tile, tile, barrier, dim="2d")
    assert "operand map must be a tensor map with 2 coordinates, got 0 coordinates" in str(error.value)
    with pytest.raises(TypeMismatchError) as error:
        k.load(A[0, 0].pointer(0))
    assert "must be no tensor map, got 2 coordinates" in str(error.value)
    X = k.pointer("X", f16)
    with pytest.raises(TypeMismatchError, match="operand dst must point to shared memory"):
        k.cp_async_bulk_send(X, tile, 16, barrier)
    assert len(k.build().kernels[0].params) == 2
    with pytest.raises(
        TypeMismatchError, match=r"coordinate 1 of a tensor .* belongs to kernel 'hopper', not to"
    ):
        A[builder(threads=32).thread_id(), 0].pointer(0)


class Parts:
    """A kernel with a ring from one role to another, as a start for a mistake."""

    def __init__(self, threads: int = 256, **how: Any) -> None:
        self.k = builder(threads, **how)
        self.P = self.k.pointer("P", f16)
        self.X, self.Y = (self.k.tma.tensor_map(name, f16) for name in "XY")
        self.roles = self.k.warpgroup_role("producer"), self.k.warpgroup_role("consumer")
        self.producer, self.consumer = self.roles
        self.ring = self.k.tma.ring(2, *self.roles, a=((64, 64), f16), b=((64, 32), f16))

    def another(self, **how: Any) -> Any:
        """A second ring, of one tile."""
        return self.k.tma.ring(2, *self.roles, **{"c": ((64, 64), f16), **how})

    def load(self, *tiles: Any) -> None:
        for tile in tiles:
            self.k.tma.load(tile, self.X[0, 0])

    def fill(self, body: Callable[[Any], Any]) -> None:
        with self.producer, self.ring.fill() as stage:
            body(stage)

    def drain(self, body: Callable[[Any], Any]) -> Any:
        with self.consumer, self.ring.drain() as stage:
            body(stage)
        return stage

    def consume(self, body: Callable[[], Any]) -> Any:
        with self.consumer:
            return body()

    def product(self, then: Callable[[Any], Any] = lambda _: None, columns: int = 32) -> None:
        """A product in a drain, and `then` with its accumulator."""
        with self.consumer:
            acc = self.k.wgmma.accumulator(64, columns)
            with self.ring.drain() as stage:
                acc += stage.a @ stage.b
                then(acc)

    def tile(self, *shape: int, swizzle: Any = None, dtype: Any = f16) -> Any:
        return self.k.tma.tile("t", shape, dtype, swizzle=swizzle)


def entered(*blocks: Any) -> None:
    """Enter roles, and what functions give, one inside another."""
    with contextlib.ExitStack() as stack:
        for block in blocks:
            stack.enter_context(block() if callable(block) else block)


def load_in_a_branch(p: Parts) -> None:
    with p.producer, p.ring.fill() as stage, p.k.when(p.k.block_id() == 0):
        p.load(stage.a)


def product_after_its_drain(p: Parts) -> None:
    with p.consumer:
        acc = p.k.wgmma.accumulator(64, 32)
        with p.ring.drain() as stage:
            late = stage.a @ stage.b
        acc += late


def product_with_a_number(p: Parts) -> None:
    with p.consumer:
        acc = p.k.wgmma.accumulator(64, 64)
        acc += 1


def released_twice(p: Parts) -> None:
    with p.consumer:
        stage = p.ring.acquire()
        stage.release()
        stage.release()


def load_in_a_rework(p: Parts) -> None:
    ring = p.another(reworked=True)
    with p.producer, ring.rework() as stage:
        p.load(stage.c)


def release_of_an_overlapped_stage(p: Parts) -> None:
    ring = p.another(overlapped=True)
    with p.consumer, ring.drain() as stage:
        stage.release()


def fp8_with_rows_along_the_sum(p: Parts) -> None:
    a, b = (p.k.tma.tile(name, (64, 64), u8).part(0, 64).as_fp8("e4m3") for name in "tu")
    _ = a @ b


def accumulator_stored_before_the_wait(p: Parts) -> None:
    with p.consumer:
        acc = p.k.wgmma.accumulator(64, 32)
        value = acc[0, 0]
        with p.ring.drain() as stage:
            acc += stage.a @ stage.b
            _ = value * 2


def accumulators_stored_again_before_the_wait(p: Parts) -> None:
    with p.consumer:
        acc = p.k.wgmma.accumulator(64, 32)
        values = tuple(acc[0, n] for n in range(4))
        p.k.st(p.P, values, space="global", vec="v4", type=f32)
        with p.ring.drain() as stage:
            acc += stage.a @ stage.b
            p.k.st(p.P, values, space="global", vec="v4", type=f32)


def touched_in_the_next_iteration(p: Parts) -> None:
    with p.consumer:
        acc = p.k.wgmma.accumulator(64, 32)
        with p.k.loop(0, 4):
            acc[0, 0].set(1.0)
            stage = p.ring.acquire()
            acc += stage.a @ stage.b


def sixteen_barriers(p: Parts) -> None:
    for _ in range(16):
        p.k.named_barrier(threads=64)


def role_without_code(p: Parts) -> None:
    p.fill(lambda stage: (p.load(stage.a), p.k.tma.load(stage.b, p.Y[0, 0])))
    p.k.build()


def block_never_entered(p: Parts) -> None:
    with p.producer:
        p.ring.fill()
    with p.consumer:
        pass
    p.k.build()


SLABS = "a.slabs: it takes slabs of a tile that is not transposed, 1 in all; got"
MISTAKES: dict[type[PtxGenError], dict[str, Any]] = {
    ConfigError: {
        "ring 'ring_1': tile 'a' is loaded in a block inside the fill": load_in_a_branch,
        "ring: a tile cannot be called 'full', a word of stages; rename it": lambda p: p.k.tma.ring(
            2, *p.roles, full=((64, 64), f16)
        ),
        "ring: multicast=True is for clusters; build the kernel with": lambda p: p.another(multicast=True),
        "a multicast needs a ring made with multicast=True": lambda p: p.fill(
            lambda stage: p.k.tma.load(stage.a, p.X[0, 0], multicast=True)
        ),
        "accumulator.store: the columns must be even": lambda p: p.consume(
            lambda: p.k.wgmma.accumulator(64, 32).store(p.P, 33)
        ),
        "tile 't': with the 64B swizzle a row must be a multiple of 64 bytes (32 f16 elements), got 48 "
        "elements of 2 bytes; widen the rows, or choose a narrower swizzle": lambda p: p.tile(
            64, 48, swizzle="64B"
        ),
        "tile 't': a row must be a multiple of 16 bytes, got 12 elements": lambda p: p.tile(64, 12),
        "tile 't': a copy moves at most 256 elements along a dimension, got 512": lambda p: p.tile(512, 64),
        "tile 't': swizzle must be one of none, 32B, 64B, 128B, got '16B'": lambda p: p.tile(
            64, 64, swizzle="16B"
        ),
        "ring 'ring_1': a stage has 12288 bytes, of which the loads bring 8192; load b too": lambda p: p.fill(
            lambda stage: p.load(stage.a)
        ),
        "ring 'ring_1': tile 'a' is loaded twice in one fill, but the barrier counts": lambda p: p.fill(
            lambda stage: p.load(stage.a, stage.a)
        ),
        "ring 'ring_1': tma.load is in a drain; the producer loads in ring.fill()": lambda p: p.drain(
            lambda stage: p.load(stage.a)
        ),
        "X: a tensor map has one box and one swizzle; a copy before has box [64, 64] (innermost first) "
        "with swizzle 128B, this one [32, 64] with 64B; declare another parameter, and pass the array "
        "twice": lambda p: p.fill(lambda stage: p.load(stage.a, stage.b)),
        "ring 'ring_1': fill is inside another fill of the same ring": lambda p: entered(
            p.producer, p.ring.fill, p.ring.fill
        ),
        "is declared inside 'role'; declare it before the block begins": lambda p: entered(
            p.producer, p.another
        ),
        "ring 'ring_2': fill is for copies; the threads of this ring use": lambda p: entered(
            p.producer, p.another(written=True).fill
        ),
        "ring 'ring_1': write is for rings made with written=True": lambda p: entered(
            p.producer, p.ring.write
        ),
        "t @ u: of fp8, wgmma takes the rows of a and the columns": fp8_with_rows_along_the_sum,
        "ring: tile 'c' must be (shape, dtype) or (shape, dtype, swizzle)": lambda p: p.another(
            c=(8, 64, 1, 1)
        ),
        "ring 'ring_2': a step of an overlapped ring starts a product": lambda p: entered(
            p.consumer, p.another(overlapped=True).drain
        ),
        "ring 'ring_1': finish is for rings made with overlapped=True": lambda p: p.consume(p.ring.finish),
        "ring 'ring_1': rework is for rings made with reworked=True": lambda p: entered(
            p.producer, p.ring.rework
        ),
        "ring 'ring_2': tma.load is in a rework; the producer loads in ring.fill()": load_in_a_rework,
        f"{SLABS} first=1, count=1": lambda p: p.drain(lambda stage: stage.a.part(0, 64).slabs(1, 1)),
        f"{SLABS} first=0, count=1": lambda p: p.drain(lambda stage: stage.a.T.slabs(0, 1)),
        "ring: an overlapped ring needs two stages or more, got 1": lambda p: p.k.tma.ring(
            1, *p.roles, overlapped=True, c=((64, 64), f16)
        ),
        "the product has 64 x 32 elements, the accumulator of a warpgroup 64 x 64": lambda p: p.product(
            columns=64
        ),
        "b @ a: the columns of a must be the rows of b, got 64 x 32 and 64 x 64": lambda p: p.drain(
            lambda stage: stage.b @ stage.a
        ),
        "tile 'a': the rows of a part begin at a multiple of 8": lambda p: p.drain(
            lambda stage: stage.a.part(4, 16)
        ),
        "accumulator: rows must be a multiple of 64, got 32": lambda p: p.consume(
            lambda: p.k.wgmma.accumulator(32, 64)
        ),
        "accumulator: columns must be a multiple of 8 up to 256, got 264": lambda p: p.consume(
            lambda: p.k.wgmma.accumulator(64, 264)
        ),
        "wgmma.wait: pending must be 0..7, got 8": lambda p: p.consume(lambda: p.k.wgmma.wait(pending=8)),
        "threads= as a multiple of 32 up to 256, got () and threads=48": lambda p: p.k.named_barrier(
            threads=48
        ),
        "named_barrier: a CTA has 15, and all are taken": sixteen_barriers,
        "warp_role 'third': warps must be 1 to 0, which the 8 warps of the CTA": lambda p: p.k.warp_role(
            "third", warps=1
        ),
        "role 'producer' has its code already; a role is one branch of the kernel": lambda p: (
            entered(p.producer),
            entered(p.producer),
        ),
        "role 'consumer' is inside 'role'; move it before the block, or after it": lambda p: entered(
            *p.roles
        ),
        "role 'consumer' has no code; enter it: 'with role:'": role_without_code,
        "blocks that were never entered guard nothing": block_never_entered,
    },
    TypeMismatchError: {
        "X has 2 dimensions (TensorMap[f16, 2]), got 1 coordinates": lambda p: p.fill(
            lambda stage: p.k.tma.load(stage.a, p.X[0])
        ),
        "coordinate 0 of a tensor (innermost first) must be an s32 or u32": lambda p: p.fill(
            lambda stage: p.k.tma.load(stage.a, p.X[0, 1.5])
        ),
        "tile 'a' of ring 'ring_1' is used after its drain": lambda p: p.drain(lambda _: None).a[0, 0],
        "a product of ring 'ring_1' is used after its drain": product_after_its_drain,
        "ring 'ring_1': drain belongs into 'with' of the role 'consumer'": lambda p: entered(
            p.producer, p.ring.drain
        ),
        "belongs into 'with' of the role 'producer', but is outside of all": lambda p: entered(p.ring.fill),
        "the stage of ring 'ring_1' is used after its drain": released_twice,
        "ring 'ring_2': write belongs into 'with' of the role 'prod": lambda p: entered(
            p.consumer, p.another(written=True).write
        ),
        "a.as_fp8: elements of u8 are taken as one of e4m3, e5m2, got f16": lambda p: p.drain(
            lambda stage: stage.a.part(0, 64).as_fp8("e4m3")
        ),
        "t.as_fp8: elements of u8 are taken as one of e4m3, e5m2, got": lambda p: (
            p.tile(64, 64, dtype=u8).part(0, 64).as_fp8("e3m4")
        ),
        "Accumulator(64 x 32) is used at ": (
            lambda p: p.product(lambda acc: acc[0, 0].set(1.0)),
            accumulator_stored_before_the_wait,
            accumulators_stored_again_before_the_wait,
        ),
        "shared memory is given back at ": Parts.product,
        "in the iteration before writes it; wait before": touched_in_the_next_iteration,
        "ring 'ring_2' is overlapped: the end of the next drain": release_of_an_overlapped_stage,
        "ring 'ring_2': rework belongs into 'with' of the role 'producer'": lambda p: entered(
            p.consumer, p.another(reworked=True).rework
        ),
        "ring 'ring_1': drain inside 'when': all threads of the role": lambda p: entered(
            p.consumer, lambda: p.k.when(p.consumer.thread < 64), p.ring.drain
        ),
        "an accumulator takes a product of tiles, a @ b, got 1": product_with_a_number,
        "barrier inside a role: the threads of other roles never arrive": lambda p: p.consume(p.k.barrier),
        "barrier 1 is for the threads of 'producer', but is used in the role": lambda p: p.consume(
            p.k.named_barrier(p.producer).sync
        ),
        "consumer.thread belongs into 'with' of the role 'consumer', but is in": lambda p: entered(
            p.producer, lambda: p.consumer.thread
        ),
    },
}


@pytest.mark.parametrize(
    ("error", "message", "mistake"),
    [(error, message, use) for error, table in MISTAKES.items() for message, use in table.items()],
)
def test_a_mistake_is_an_error_at_its_line(error: Any, message: str, mistake: Any) -> None:
    for one in mistake if isinstance(mistake, tuple) else (mistake,):
        with pytest.raises(error) as raised:
            one(Parts())
        assert message in str(raised.value)


def test_a_tile_that_a_stage_lacks_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"Ring\('ring_1', 2 stages of a, b\) has no tile 'c'"):
        Parts().drain(lambda stage: stage.c)


@pytest.mark.parametrize(
    ("how", "roles", "message"),
    [
        (
            {"threads": 384},
            [(1, 24), (2, 248)],
            "the CTA has 64512 registers (168 for each of its 384 threads), but the roles need 66560: 24 "
            "x 128 (r0) + 248 x 256 (r1); give a role fewer",
        ),
        (
            {"threads": 256, "min_ctas": 2},
            [(1, 240)],
            "the CTA has 32768 registers (128 for each of its 256 threads), but the roles need 33792: 240 "
            "x 128 (r0), and 3072 for threads without a role yet; give a role fewer",
        ),
        ({"threads": 384}, [(1, 20)], "registers must be a multiple of 8 from 24 to 256, got 20"),
    ],
)
def test_registers_of_all_roles_fit_the_cta(how: Any, roles: Any, message: str) -> None:
    k = builder(**how)
    *first, (warpgroups, registers) = roles
    for number, (count, arguments) in enumerate(first):
        k.warpgroup_role(f"r{number}", warpgroups=count, registers=arguments)
    with pytest.raises(ConfigError) as error:
        k.warpgroup_role(f"r{len(first)}", warpgroups=warpgroups, registers=registers)
    assert message in str(error.value)


def test_registers_are_set_for_whole_warpgroups() -> None:
    k = builder(threads=160)
    with refused(
        ConfigError,
        "warp_role 'one': registers are set for whole warpgroups of 4 warps, but the role has warps 0 to "
        "0; use warpgroup_role",
    ):
        k.warp_role("one", warps=1, registers=40)
    k.warp_role("one", warps=1)
    with pytest.raises(ConfigError) as error:
        k.warpgroup_role("group")
    assert "a warpgroup begins at a warp divisible by 4, but 1 warps have a role" in str(error.value)


def test_products_are_for_whole_warpgroups() -> None:
    k = builder(threads=160)
    k.warp_role("one")
    message = (
        "accumulator: wgmma is for whole warpgroups of 4 warps, but role 'rest' has 4 warps, from warp 1 on"
    )
    with k.warp_role("rest", warps=4), refused(ConfigError, message):
        k.wgmma.accumulator(64, 64)
    with pytest.raises(ConfigError, match="but the CTA has 160 threads"):
        builder(threads=160).wgmma.accumulator(64, 64)


def test_what_a_target_lacks_is_an_error_at_the_line() -> None:
    with pytest.raises(
        UnsupportedTargetError, match=r"tma\.tile needs sm_90, but kernel 'hopper' targets sm_80"
    ):
        builder(target="sm_80").tma.tile("t", (64, 64), f16)
    p = Parts(target="sm_90")
    with pytest.raises(UnsupportedTargetError, match=r"wgmma.fence.sync.aligned needs sm_90 \(only sm_90a\)"):
        p.product(lambda acc: acc[0, 0].set(1.0))


def test_unswizzled_tiles_and_other_types_are_no_operands() -> None:
    k = builder(threads=128)
    plain = k.tma.tile("plain", (64, 64), f16, swizzle="none")
    bytes_ = k.tma.tile("bytes", (64, 128), u8)
    good = k.tma.tile("good", (64, 64), f16)
    with pytest.raises(ConfigError, match="tile 'plain' has no swizzle, so wgmma cannot read it"):
        _ = plain @ good
    with pytest.raises(
        TypeMismatchError, match="bytes @ good: wgmma multiplies two f16, two bf16 or two fp8 matrices"
    ):
        _ = bytes_ @ good
    with pytest.raises(TypeError, match="unsupported operand"):
        _ = good @ 3  # type: ignore[operator]
