"""Blocks of matrices in shared memory and registers, and their products on tensor cores.

Elements are small integers, so that products and their sums are exact in every type.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dsl.kernels import builder, instructions
from error_texts import refused

import ptxgen as px
from ptxgen import Pointer, f16, f32, u32
from ptxgen.dsl.matrices.staged import StagedTile
from ptxgen.errors import ConfigError, TrapError, TypeMismatchError, UnsupportedTargetError
from ptxgen.interpreter import run
from ptxgen.runtime.assembler import find_assembler
from ptxgen.text import render
from ptxgen.types import bf16, f64, s8, s32, u8

SCHEDULES = ("lockstep", "pct:0", "pct:1")
Array = np.ndarray[Any, np.dtype[Any]]


def integers(seed: int, shape: tuple[int, ...], dtype: Any = f16) -> Array:
    low = 0 if dtype is u8 else -4
    return np.random.default_rng(seed).integers(low, 5, shape).astype(dtype.dtype)


def launch(k: Any, *arguments: Any, grid: Any = 1, **how: Any) -> Any:
    module = k.build()
    size = module.kernels[0].dynamic_shared_bytes
    return run(module, grid=grid, block=k.threads, args=arguments, dynamic_smem=size, sanitize=True, **how)


def accumulate(
    k: Any,
    pointers: Any,
    sizes: Any,
    tile: tuple[int, int, int],
    transposed: tuple[bool, bool] = (False, False),
    *,
    width: int | None = None,
    stages: int = 3,
    warps: tuple[int, int] | None = None,
) -> None:
    """The body of C = A B; a transposed operand is stored the other way round."""
    (rows, columns, step), (m, n, depth) = tile, sizes
    A = k.matrix(pointers[0], *((depth, m) if transposed[0] else (m, depth)), width=width)
    B = k.matrix(pointers[1], *((n, depth) if transposed[1] else (depth, n)), width=width)
    C = k.matrix(pointers[2], m, n, width=None if width is None else min(width, 4))
    row, column = k.block_id("y") * rows, k.block_id("x") * columns
    left = A.down((step, rows), row) if transposed[0] else A.across((rows, step), row)
    right = B.across((columns, step), column) if transposed[1] else B.down((step, columns), column)
    acc = k.accumulator((rows, columns), pointers[2].dtype, warps=warps)
    with k.pipeline(left, right, stages=stages) as (a, b):
        acc.mma(a.T if transposed[0] else a, b.T if transposed[1] else b)
    C.store(acc, row, column)


def product(k: Any, types: tuple[Any, Any, Any], *choices: Any, **how: Any) -> None:
    """C = A B in a kernel with the parameters A, B, C, m, n, depth."""
    pointers = [k.pointer(name, dtype) for name, dtype in zip("ABC", types, strict=True)]
    accumulate(k, pointers, [k.param(name, u32) for name in ("m", "n", "depth")], *choices, **how)


def check_product(
    sizes: tuple[int, int, int],
    tile: tuple[int, int, int],
    *,
    types: tuple[Any, Any, Any] = (f16, f16, f32),
    threads: int = 128,
    transposed: tuple[bool, bool] = (False, False),
    schedule: str = "lockstep",
    **how: Any,
) -> Any:
    m, n, depth = sizes
    a, b = integers(1, (m, depth), types[0]), integers(2, (depth, n), types[1])
    c = np.full((m, n), 99, types[2].dtype)
    stored = [np.ascontiguousarray(x.T) if t else x for x, t in zip((a, b), transposed, strict=True)]
    k = builder("gemm", threads=threads)
    product(k, types, tile, transposed, **how)
    grid = (-(-n // tile[1]), -(-m // tile[0]))
    result = launch(k, *stored, c, m, n, depth, grid=grid, schedule=schedule, profile=True)
    assert np.array_equal(c, a.astype(np.float64) @ b.astype(np.float64))
    return result


# ------------------------------------------------------------------------------------- products


@pytest.mark.sample(4, gate=8)
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_both_operands_may_be_transposed(transposed: tuple[bool, bool], dtype: Any) -> None:
    result = check_product((40, 72, 48), (32, 64, 32), types=(dtype, dtype, f32), transposed=transposed)
    assert result.counters.shared_conflicts == 0


@pytest.mark.parametrize(
    "types", [(f32, f32, f32), (s8, s8, s32), (u8, s8, s32), (s8, u8, s32), (u8, u8, s32)], ids=str
)
def test_tf32_and_bytes_are_multiplied_along_the_depth(types: tuple[Any, Any, Any]) -> None:
    check_product((40, 48, 80), (32, 32, 64), types=types, transposed=(False, True))


def test_f32_is_rounded_to_tf32_ties_away() -> None:
    """Between 1 and 2, tf32 numbers are 2**-10 apart."""
    k = builder(threads=64)
    A, unit, C = k.pointer("A"), k.pointer("unit"), k.pointer("C")
    a = k.staged(k.matrix(A, 32, 32).block((32, 32)))
    b = k.staged(k.matrix(unit, 32, 32).block((32, 32)))
    k.await_copies()
    k.matrix(C, 32, 32).store(k.mma(a, b.T))
    exact = 1 + np.arange(1024).reshape(32, 32) / 1024
    off = np.random.default_rng(0).choice([-0.5, -0.4, 0.0, 0.4], (32, 32)) / 1024
    c = np.zeros((32, 32), np.float32)
    launch(k, (exact + off).astype(np.float32), np.eye(32, dtype=np.float32), c)
    assert np.array_equal(c, exact)


@pytest.mark.sample(4, gate=9)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_the_stages_of_a_pipeline_do_not_overtake_each_other(stages: int, schedule: str) -> None:
    check_product((32, 32, 160), (32, 32, 16), stages=stages, schedule=schedule)


@pytest.mark.parametrize("depth", [8, 16, 24, 40])
def test_a_matrix_may_have_fewer_blocks_than_the_pipeline_has_stages(depth: int) -> None:
    check_product((16, 16, depth), (32, 64, 32), stages=4)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_any_size_is_multiplied_with_narrow_accesses(width: int) -> None:
    check_product((33, 7 * width, 5 * width), (32, 32, 32), width=width)


@pytest.mark.parametrize("sizes", [(1, 16, 41), (32, 18, 16)])
def test_a_width_that_does_not_fit_traps(sizes: tuple[int, int, int]) -> None:
    """Even where no address is misaligned: the last columns of one row would be left out."""
    with pytest.raises(TrapError, match=r"trap; \(test_matrices.py:\d+\): .*: trap instruction"):
        check_product(sizes, (32, 32, 32))


def test_a_width_that_does_not_fit_is_named_by_an_assertion() -> None:
    @px.kernel(threads=32)
    def zeros(k: Any, X: px.Pointer[f32], columns: u32) -> None:
        k.matrix(X, 32, columns).store(k.accumulator((32, 32)))

    x = np.ones((32, 12), np.float32)
    assert zeros.check(1, x, 12).clean
    assert (
        "assertion `matrix: columns must be a multiple of width 4; pass a smaller width=` failed in zeros, "
        "test_matrices.py:" in str(zeros.check(1, x, 11))
    )


def test_narrow_copies_of_bytes_go_through_registers() -> None:
    check_product((17, 9, 37), (32, 32, 32), types=(s8, s8, s32), transposed=(False, True), width=1)


@pytest.mark.sample(5, gate=14)
@pytest.mark.parametrize(
    ("threads", "tile", "warps"),
    [
        *((64, (32, 32, 16), None), (128, (64, 64, 64), (4, 1)), (128, (16, 256, 32), (1, 4))),
        *((128, (32, 128, 32), (1, 4)), (128, (64, 96, 32), (4, 1)), (256, (64, 128, 16), (2, 4))),
        (256, (128, 32, 32), None),
    ],
)
@pytest.mark.parametrize("transposed", [(False, False), (True, True)])
def test_warps_share_a_tile(
    threads: int, tile: tuple[int, int, int], warps: Any, transposed: tuple[bool, bool]
) -> None:
    if transposed[0] and tile[0] // (warps or (2, 1))[0] < 16:
        pytest.skip("the tile is too small")
    check_product((tile[0] + 8, tile[1] + 8, 40), tile, threads=threads, warps=warps, transposed=transposed)


def test_the_default_warps_read_least() -> None:
    k = builder(threads=256)
    shapes = {(128, 128): (4, 2), (64, 256): (2, 4), (128, 32): (8, 1), (16, 128): (1, 8)}
    assert {shape: k.accumulator(shape).layout.warps for shape in shapes} == shapes


@pytest.mark.sample(0, gate=4)
@pytest.mark.parametrize("seed", range(20))
def test_any_choice_of_tiles_and_sizes_is_multiplied(seed: int) -> None:
    rng = random.Random(seed)
    threads, (down, across) = rng.choice(
        [(64, (2, 1)), (64, (1, 2)), (128, (2, 2)), (128, (4, 1)), (128, (1, 4)), (256, (4, 2))]
    )
    dtype = rng.choice([f16, bf16])
    rows, columns = 16 * down * rng.randint(1, 2), 16 * across * 2 ** rng.randint(0, 2)
    step, width = 16 * rng.randint(1, 4), rng.choice([1, 2, 4, 8])
    sizes = [width * rng.randint(1, limit // width) for limit in (70, 100, 80)]
    check_product(
        (sizes[0], sizes[1], sizes[2]),
        (rows, columns, step),
        types=(dtype, dtype, f32),
        threads=threads,
        warps=(down, across),
        transposed=(rng.random() < 0.5, rng.random() < 0.5),
        width=width,
        stages=rng.randint(2, 4),
        schedule=rng.choice(SCHEDULES),
    )


# ------------------------------------------------------------------------------ tiles of registers


def over(body: Callable[..., Any], *, rows: int = 32, columns: int = 32, threads: int = 64) -> Array:
    """What `body(k, X)` gives for X = A B, with A the numbers 0, 1, … of a row and B the unit matrix."""
    k = builder(threads=threads)
    A, C = k.pointer("A", f16), k.pointer("C")
    unit = k.pointer("unit", f16)
    a = k.staged(k.matrix(A, rows, columns).block((rows, columns)))
    b = k.staged(k.matrix(unit, columns, columns).block((columns, columns)))
    k.await_copies()
    result = body(k, k.mma(a, b, warps=(threads // 32, 1)))
    k.matrix(C, rows, columns).store(result)
    c = np.zeros((rows, columns), np.float32)
    launch(k, integers(3, (rows, columns)), c, np.eye(columns, dtype=np.float16))
    return c


X = integers(3, (32, 32)).astype(np.float32)


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (lambda _k, x: x, X),
        (lambda _k, x: (x + 1) * 2 - x / 4, (X + 1) * 2 - X / 4),
        (lambda _k, x: 1 - (2 * x + x) / 8 + (3 + -x), 1 - 3 * X / 8 + (3 - X)),
        (lambda _k, x: 8 / (x + 12), 8 / (X + 12)),
        (lambda k, x: x.map(k.abs), abs(X)),
        (lambda k, x: x.map(k.fma, 3.0, x), X * 4),
        (lambda _k, x: x - x.row_max(), X - X.max(1, keepdims=True)),
        (lambda _k, x: x * 0 + x.row_sum(), X * 0 + X.sum(1, keepdims=True)),
        (lambda _k, x: x.row_sum() + x, X + X.sum(1, keepdims=True)),
        (lambda _k, x: x.per_row(2.5) + x, X + 2.5),
        (lambda k, x: k.accumulator((32, 64), warps=(2, 1)).per_row(2.5) + x, X + 2.5),
    ],
)
def test_operators_work_on_each_element(body: Callable[..., Any], wanted: Array) -> None:
    assert np.array_equal(over(body), wanted.astype(np.float32))


@pytest.mark.parametrize("threads", [32, 64])
def test_indices_are_those_of_the_matrix(threads: int) -> None:
    def body(k: Any, x: Any) -> Any:
        rows, columns = x.indices(100, 5)
        assert (rows.shape, columns.shape) == ((32, 1), (1, 32))
        return rows.map(lambda i, j: k.cvt(i * 1000 + j, dtype=f32, rnd="rn"), columns)

    i, j = np.mgrid[0:32, 0:32]
    assert np.array_equal(over(body, threads=threads), (i + 100) * 1000 + j + 5)


def test_variables_of_a_loop_are_written_by_set() -> None:
    def body(k: Any, x: Any) -> Any:
        total, largest = k.accumulator((32, 32), warps=(2, 1)), x.per_row(-k.inf)
        with k.loop(0, 3):
            total.set(total + x)
            largest.set(largest.map(k.max, total.row_max()))
        total.set(total + largest)
        return total

    assert np.array_equal(over(body), 3 * X + np.maximum(X.max(1), 3 * X.max(1))[:, None])


def test_variables_of_a_loop_are_changed_in_place() -> None:
    def body(k: Any, x: Any) -> Any:
        total, halved = k.accumulator((32, 32), warps=(2, 1)), x.per_row(64.0)
        same, result = total, x + 1
        with k.loop(0, 3):
            total += x
            total *= 2
            halved /= 2
            halved -= 1
        assert same is total
        result += halved
        return total + result

    assert np.array_equal(over(body), 14 * X + X + 1 + 6.25)


def test_a_result_is_an_operand_of_the_next_product() -> None:
    """P = A Aᵀ / 8, then P A, where P never leaves the registers."""
    k = builder(threads=64)
    A, B, C = k.pointer("A", f16), k.pointer("B", f16), k.pointer("C", f16)
    a = k.staged(k.matrix(A, 32, 64).block((32, 64)))
    b = k.staged(k.matrix(B, 64, 48).block((64, 48)))
    k.await_copies()
    first = k.mma(a, a.T, warps=(2, 1))
    second = k.mma((first * 0.125).to(f16), a, warps=(2, 1))
    third = k.accumulator((32, 48), warps=(2, 1))
    third.mma((second * 0.0).to(f16), b)
    third.mma(a, b)
    k.matrix(C, 32, 48).store((third + second.row_sum()).to(f16))
    arguments, other, c = integers(4, (32, 64)), integers(5, (64, 48)), np.zeros((32, 48), np.float16)
    launch(k, arguments, other, c)
    g = arguments.astype(np.float64)
    wanted = (g @ g.T / 8).astype(np.float16).astype(np.float64) @ g
    wanted = g @ other.astype(np.float64) + wanted.sum(1, keepdims=True)
    assert np.array_equal(c, wanted.astype(np.float16))


@pytest.mark.parametrize("width", [1, 2, 8])
@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_elements_outside_a_matrix_are_not_written(dtype: Any, width: int) -> None:
    k = builder(threads=32)
    C = k.pointer("C", dtype)
    rows, columns = 21, 5 * width
    acc = k.accumulator((32, 64))
    i, j = acc.indices()
    values = i.map(lambda i, j: k.cvt(i + j, dtype=f32, rnd="rn"), j)
    k.matrix(C, k.param("rows", u32), k.param("columns", u32), stride=96, width=width).store(
        values.to(dtype), 2, 2 * width
    )
    c = np.full((40, 96), 99, dtype.dtype)
    launch(k, c, rows, columns)
    wanted = np.full((40, 96), 99.0)
    i, j = np.mgrid[0 : rows - 2, 0 : columns - 2 * width]
    wanted[2:rows, 2 * width : columns] = i + j
    assert np.array_equal(c.astype(np.float64), wanted)


# ----------------------------------------------------------------------------- blocks and swizzles


@pytest.mark.parametrize(("columns", "dtype"), [(16, f16), (32, f16), (96, f16), (8, f32), (200, f32)])
def test_a_swizzled_tile_has_elements(columns: int, dtype: Any) -> None:
    k = builder(threads=64)
    source, to = k.pointer("X", dtype), k.pointer("Y", dtype)
    tile = k.swizzled("T", (24, columns), dtype)
    with k.strided(24 * columns) as i:
        tile[i // columns, i % columns] = source[i]
    k.barrier()
    with k.strided(24 * columns) as i:
        to[i] = tile[23 - i // columns, i % columns]
    to.at(24 * columns)[0] = tile[3, 5]
    x = integers(6, (24, columns), dtype)
    y = np.zeros(24 * columns + 1, dtype.dtype)
    launch(k, x, y)
    assert np.array_equal(y[:-1].reshape(24, columns), x[::-1])
    assert y[-1] == x[3, 5]


def test_a_part_of_a_swizzled_tile_has_its_columns() -> None:
    k = builder(threads=64)
    source, to = k.pointer("X", f16), k.pointer("Y", f16)
    tile = k.swizzled("T", (24, 256), f16)
    with k.strided(24 * 256) as i:
        tile[i // 256, i % 256] = source[i]
    k.barrier()
    right = tile.part(1, 2)
    with k.strided(24 * 128) as i:
        to[i] = right[i // 128, i % 128]
    x = integers(6, (24, 256), f16)
    y = np.zeros((24, 128), f16.dtype)
    launch(k, x, y)
    assert np.array_equal(y, x[:, 128:])
    assert (right.columns, [panel.first for panel in right.panels]) == (128, [0, 8])


@pytest.mark.parametrize(("number", "parts", "panels"), [(0, 2, 3), (2, 2, 4), (-1, 2, 4)])
def test_parts_of_a_swizzled_tile_are_whole_panels(number: int, parts: int, panels: int) -> None:
    tile = builder().swizzled("T", (16, 64 * panels), f16)
    message = f"swizzled tile 'T': part {number} of {parts} is no whole number of its {panels} panels"
    with refused(ConfigError, message):
        tile.part(number, parts)


@pytest.mark.parametrize("chunk", [-1, 24])
def test_a_chunk_of_a_swizzled_tile_is_in_one_of_its_panels(chunk: int) -> None:
    tile = builder().swizzled("T", (16, 192), f16)
    assert [tile.panel_of(n).first for n in (0, 7, 8, 23)] == [0, 0, 8, 16]
    with refused(ConfigError, f"swizzled tile 'T': chunk {chunk} is in none of its panels"):
        tile.panel_of(chunk)


def test_a_tile_written_by_hand_is_an_operand() -> None:
    k = builder(threads=32)
    source, C = k.pointer("X", f16), k.pointer("C")
    tile = k.swizzled("T", (32, 32), f16)
    with k.strided(32 * 32) as i:
        tile[i // 32, i % 32] = source[i]
    k.barrier()
    k.matrix(C, 32, 32).store(k.mma(tile, tile))
    x, c = integers(7, (32, 32)), np.zeros((32, 32), np.float32)
    launch(k, x, c)
    assert np.array_equal(c, x.astype(np.float64) @ x.astype(np.float64))


def test_a_block_has_elements_and_knows_where_it_begins() -> None:
    k = builder(threads=64)
    source, to = k.pointer("X", f16), k.pointer("Y", f16)
    rows = k.param("rows", u32)
    t = k.thread_id()
    with k.pipeline(k.matrix(source, rows, 64).down((16, 32), 32), stages=2) as (block,):
        assert (block.shape, block.T.shape) == ((16, 32), (32, 16))
        with k.loop(0, 16) as i:
            location = (block.row + i.as_(u32)) * 32 + block.column - 32
            with k.when(t < 32):
                to[location + t] = k.selp(block[i.as_(u32), t], block.T[t, i.as_(u32)], t < 16)
    x, y = integers(8, (40, 64)), np.zeros((48, 32), np.float16)
    launch(k, x, y, 40)
    assert np.array_equal(y[:40], x[:, 32:])
    assert not y[40:].any()


def test_a_walk_stops() -> None:
    """Rows behind `stop` are zeros, although the matrix has them."""
    k = builder(threads=64)
    source, C = k.pointer("X", f16), k.pointer("C")
    rows, stop = k.param("rows", u32), k.param("stop", u32)
    X = k.matrix(source, rows, 32)
    acc = k.accumulator((32, 32))
    with k.pipeline(X.down((16, 32), stop=stop), stages=3) as (x,):
        acc.mma(x.T, x)
    k.matrix(C, 32, 32).store(acc)
    x, c = integers(9, (90, 32)), np.zeros((32, 32), np.float32)
    launch(k, x, c, 90, 37)
    part = x[:37].astype(np.float64)
    assert np.array_equal(c, part.T @ part)


@pytest.mark.parametrize("stop", [16, 24, 200])
def test_a_walk_across_stops(stop: int) -> None:
    k = builder(threads=64)
    source, C = k.pointer("X", f16), k.pointer("C")
    X = k.matrix(source, 32, k.param("columns", u32))
    acc = k.accumulator((32, 32))
    with k.pipeline(X.across((32, 16), stop=k.param("stop", u32)), stages=2) as (x,):
        acc.mma(x, x.T)
    k.matrix(C, 32, 32).store(acc)
    x, c = integers(9, (32, 40)), np.zeros((32, 32), np.float32)
    launch(k, x, c, 40, stop)
    part = x[:, :stop].astype(np.float64)
    assert np.array_equal(c, part @ part.T)
    with pytest.raises(TrapError, match="trap instruction"):
        launch(k, x, c, 40, stop - 3)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_cta_may_compute_tile_after_tile(schedule: str) -> None:
    """A persistent kernel: a pipeline, and a block staged for it, inside a loop over tiles."""
    k = builder(threads=64)
    A, B, C = (k.pointer(name, dtype) for name, dtype in (("A", f16), ("B", f16), ("C", f32)))
    m, depth = k.param("m", u32), k.param("depth", u32)
    A, B, C = k.matrix(A, m, depth), k.matrix(B, depth, 32), k.matrix(C, m, 32)
    with k.loop(k.block_id() * 32, m, 64) as row:
        acc = k.accumulator((32, 32))
        first = k.staged(A.block((32, 16), row))
        with k.pipeline(A.across((32, 16), row), B.down((16, 32)), stages=3) as (a, b):
            acc.mma(a, b)
            with k.when(a.column == 0, uniform=True):
                acc.mma(first, b)
        C.store(acc, row)
    a, b = integers(1, (150, 40)), integers(2, (40, 32))
    c = np.full((150, 32), 99, np.float32)
    launch(k, a, b, c, 150, 40, grid=2, schedule=schedule)
    twice = a.astype(np.float64)
    twice[:, :16] *= 2
    assert np.array_equal(c, twice @ b.astype(np.float64))


# --------------------------------------------------------------------------------- what is refused


def operands(k: Any, a: Any = (64, 32), b: Any = (32, 64), types: Any = (f16, f16)) -> Any:
    return [k.swizzled(name, shape, dtype) for name, shape, dtype in zip("AB", (a, b), types, strict=True)]


MULTIPLIES = (
    "mma multiplies f16, bf16 or f32 (as tf32) of one type, s8 and u8 in any order, e4m3 and e5m2 in any "
    "order (as_fp8), and f16 by 4-bit integers (as_int4), got"
)
A_TIMES_B = "A (64 x 32 f16) times B (32 x 64 f16)"


@pytest.mark.parametrize(
    ("message", "use"),
    {
        "mma: A (64 x 32 f16) times B (64 x 64 f16): the columns of a must be the rows of b": lambda k: k.mma(
            *operands(k, b=(64, 64))
        ),
        f"{MULTIPLIES} f16 and bf16": lambda k: k.mma(*operands(k, types=(f16, bf16))),
        f"{MULTIPLIES} f64 and f64": lambda k: k.mma(*operands(k, types=(f64, f64))),
        "mma: B (32 x 64 f32): elements of f32 must lie in memory along the depth of the product, so "
        "that A is row-major and B is the transpose of a row-major block, b.T": lambda k: k.mma(
            *operands(k, types=(f32, f32))
        ),
        f"mma: {A_TIMES_B} is 64 x 64, which does not fit the accumulator of 64 x 128": lambda k: (
            k.accumulator((64, 128)).mma(*operands(k))
        ),
        f"mma: the sums of {A_TIMES_B} are f32, got RegisterTile(64 x 64 s32)": lambda k: k.accumulator(
            (64, 64), s32
        ).mma(*operands(k)),
        "mma: RegisterTile(64 x 64 f32) is a result, which is written once; make what a loop changes "
        "with k.accumulator or tile.per_row": lambda k: (k.accumulator((64, 64)) + 1).mma(*operands(k)),
        "mma: A (64 x 24 f16): the depth of a product of f16 must be a multiple of 16": lambda k: k.mma(
            StagedTile(tile := k.swizzled("A", (24, 64), f16)).T, tile
        ),
    }.items(),
)
def test_factors_and_sums_fit(use: Callable[..., Any], message: str) -> None:
    with refused(TypeMismatchError, message):
        use(builder())


@pytest.mark.parametrize(("row", "column"), [(16, 0), (0, -1), (0, 1.5), ("x", 0)])
def test_an_index_of_a_swizzled_tile_is_inside_of_it(row: Any, column: Any) -> None:
    tile = builder().swizzled("T", (16, 32), f16)
    what, index, most = ("row", row, 15) if column == 0 else ("column", column, 31)
    message = f"swizzled tile 'T': {what} must be u32 or an integer from 0 to {most}, got {index!r}"
    with refused(TypeMismatchError, message):
        tile[row, column]


def given(k: Any, **how: Any) -> Any:
    return k.matrix(k.pointer("X", f16), k.param("rows", u32), k.param("columns", u32), **how)


def test_a_block_is_used_after_its_copies_were_waited_for() -> None:
    k = builder(threads=64)
    a = k.staged(given(k).block((32, 32)))
    message = (
        "{} of block_1 (32 x 32 f16): its copies have not been waited for; call k.await_copies(), or use it "
        "in a k.pipeline"
    )
    with refused(ConfigError, message.format("mma")):
        k.mma(a, a)
    with refused(ConfigError, message.format("an element")):
        a[0, 0]
    k.await_copies()
    k.mma(a, a)


def test_a_pipeline_waits_for_blocks_that_were_staged_before_it() -> None:
    k = builder(threads=64)
    X = given(k)
    a = k.staged(X.block((32, 32)))
    with k.pipeline(X.down((32, 32)), stages=2) as (b,):
        k.mma(a, b)
    with pytest.raises(ConfigError, match="its copies have not been waited for"):  # there may be no turn
        k.mma(a, a)
    k.await_copies()
    k.mma(a, a)


def test_a_stage_is_not_used_behind_its_pipeline() -> None:
    k = builder(threads=64)
    with k.pipeline(given(k).down((32, 32)), stages=2) as (a,):
        pass
    message = (
        "mma of block_1 (32 x 32 f16): it is a stage of a k.pipeline that has ended, and may hold another "
        "block; use it inside"
    )
    with refused(ConfigError, message):
        k.mma(a, a.T)


@pytest.mark.parametrize("word", ["pipeline", "staged"])
def test_copies_are_not_started_by_some_threads(word: str) -> None:
    k = builder(threads=64)
    X = given(k)
    use = {
        "staged": lambda: k.staged(X.block((32, 32))),
        "pipeline": lambda: k.pipeline(X.down((32, 32))).__enter__(),
    }
    with k.when(k.thread_id() < 5), pytest.raises(TypeMismatchError, match=f"{word} inside 'when'"):
        use[word]()


def tile(k: Any, columns: int = 32, warps: tuple[int, int] | None = (2, 1), rows: int = 32) -> Any:
    return k.accumulator((rows, columns), warps=warps)


DIFFERENT = "RegisterTile(32 x 32 f32) and RegisterTile(32 x 64 f32) have different shapes"


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda k, _X: k.matrix(3, 4, 5), "matrix: takes a pointer to global memory, got 3"),
        (
            lambda k, X: k.matrix(X.first, 0, 8),
            "matrix: rows must be a u32 value or a positive integer, got 0",
        ),
        (
            lambda k, X: k.staged(X.down((32, 32))),
            "staged: takes one block, such as Q.block((64, 64), row), got ",
        ),
        (
            lambda k, X: k.pipeline(X.block((32, 32))).__enter__(),
            "pipeline: takes walks over matrices, such as A.across(shape, row) and B.down(shape), got ",
        ),
        (lambda _k, X: X.store(3), "store: takes a tile of registers, got 3"),
        (
            lambda k, X: X.store(tile(k)),
            "store: the elements of the matrix are f16, got RegisterTile(32 x 32 f32); convert them with "
            "tile.to(f16) or tile.map(...)",
        ),
        (lambda k, _X: tile(k).to(f32), "to: f32 becomes f16 or bf16, got RegisterTile(32 x 32 f32) and "),
        (
            lambda k, _X: tile(k).map(lambda _x: 3),
            "map: the function must return a value of the kernel, got 3",
        ),
        (lambda k, _X: tile(k) + tile(k, 64), DIFFERENT),
        (lambda k, _X: tile(k).per_row(0).map(lambda a, _b, _c: a, tile(k), tile(k, 64)), DIFFERENT),
        (
            lambda k, _X: tile(k, warps=(1, 2)) + tile(k),
            "RegisterTile(32 x 32 f32) is on 1 x 2 warps and RegisterTile(32 x 32 f32) on 2 x 1; give both "
            "the same warps=",
        ),
        (
            lambda k, _X: tile(k).set(tile(k).per_row(0)),
            "set: RegisterTile(32 x 32 f32) cannot take RegisterTile(32 x 1 f32)",
        ),
        (
            lambda k, _X: tile(k) + "x",
            "RegisterTile(32 x 32 f32) is combined with tiles of registers and numbers, got 'x'",
        ),
        (
            lambda k, X: k.mma(X, X),
            "mma takes blocks in shared memory, and as the first factor also a tile of registers such as "
            "P.to(f16), got ",
        ),
    ],
)
def test_wrong_operands_are_refused(use: Callable[..., Any], message: str) -> None:
    k = builder(threads=64)
    X = given(k)
    with pytest.raises(TypeMismatchError) as caught:
        use(k, X)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (
            lambda k, X: k.matrix(X.first, X.rows, X.columns, width=16),
            "matrix: width must be a power of two up to 8 elements of f16, which are 16 bytes, got 16",
        ),
        (
            lambda k, X: k.matrix(X.first, X.rows, 100),
            "matrix: columns must be a multiple of width 8, got 100; pass a smaller width=",
        ),
        (
            lambda _k, X: X.across((32, 32), stop=20),
            "across: stop must be a multiple of width 8, got 20; pass a smaller width=",
        ),
        (
            lambda k, X: k.pipeline(X.down((32, 32)), stages=1).__enter__(),
            "pipeline: stages must be an integer of at least 2, got 1",
        ),
        (
            lambda k, _X: k.swizzled("T", (32, 32), f16, stages=0),
            "swizzled tile 'T': rows, columns and stages must be positive integers, got (32, 32), stages 0",
        ),
        *(
            (
                lambda k, _X, columns=columns, dtype=dtype: k.swizzled("T", (16, columns), dtype),
                f"swizzled tile 'T': no swizzle fits rows of {columns} {dtype} ({columns * dtype.nbytes} "
                "bytes); make them a multiple of 32 bytes",
            )
            for columns, dtype in ((24, f16), (4, f32))
        ),
        (
            lambda k, _X: tile(k, rows=64, warps=(1, 2)).row_max(),
            "row_max: each row must be in one warp, but the columns of RegisterTile(64 x 32 f32) are dealt "
            "to 2 warps; make it with warps=(2, 1)",
        ),
        (
            lambda k, _X: tile(k, rows=64).per_row(0).row_sum(),
            "row_sum takes a whole tile, got RegisterTile(64 x 1 f32)",
        ),
        (
            lambda k, _X: k.mma(
                tile(k, rows=64, warps=(1, 2)).to(f16), k.swizzled("T", (32, 32), f16), warps=(1, 2)
            ),
            "mma: each row of PackedTile(64 x 32 f16) and of the sums must be in one warp; make both with "
            "warps=(2, 1)",
        ),
        (
            lambda k, _X: k.mma(k.swizzled("S", (16, 32), f16), k.swizzled("T", (32, 96), f16), warps=(1, 2)),
            "mma: T (32 x 96 f16): warps that share its columns would begin inside a panel of the swizzle; "
            "give them all to one warp with warps=, or make the columns a multiple of 64",
        ),
        (
            lambda _k, _X: tile(builder(threads=48), 64, None, 64),
            "accumulator: products take whole warps, and the kernel has 48 threads",
        ),
        (
            lambda _k, _X: tile(builder(threads=128), 32, None, 16),
            "accumulator: 16 x 32 cannot be dealt to 4 x 1 or 2 x 2 or 1 x 4 warps: each warp takes a "
            "multiple of 16 rows and of 16 columns",
        ),
        (
            lambda _k, _X: tile(builder(threads=128), 64, (3, 1), 64),
            "accumulator: warps must be (warps along the rows, warps along the columns) with the product "
            "4, got (3, 1)",
        ),
        (lambda k, _X: k.accumulator((64,)), "accumulator: the shape must be (rows, columns), got (64,)"),
        (
            lambda k, _X: k.accumulator((64, 0)),
            "accumulator: rows and columns must be positive integers, got (64, 0)",
        ),
        (
            lambda _k, _X: (k := builder(threads=32)).staged(given(k).block((32, 64))),
            "block_1: copies into rows of 64 f16 take a multiple of 64 threads, and the kernel has 32",
        ),
    ],
)
def test_wrong_choices_are_refused(use: Callable[..., Any], message: str) -> None:
    k = builder(threads=64)
    with refused(ConfigError, message):
        use(k, given(k))


def test_a_target_without_asynchronous_copies_is_refused_at_the_line() -> None:
    k = builder(on="sm_75", threads=64)
    with pytest.raises(UnsupportedTargetError, match="sm_80"):
        k.staged(given(k).block((32, 32)))


# ------------------------------------------------------------------------------- the whole kernel


@px.kernel(threads=128)
def gemm(
    k: Any,
    A: Pointer[f16],
    B: Pointer[f16],
    C: Pointer[f32],
    m: u32,
    n: u32,
    depth: u32,
    *,
    tile: tuple[int, int, int] = (128, 128, 32),
    transposed: tuple[bool, bool] = (False, False),
    width: int | None = None,
    stages: int = 3,
    warps: tuple[int, int] | None = None,
) -> None:
    accumulate(k, (A, B, C), (m, n, depth), tile, transposed, width=width, stages=stages, warps=warps)


@pytest.mark.sample(2, gate=5)
@pytest.mark.parametrize(
    ("align", "choices"),
    [
        (16, {"tile": (64, 32, 32)}),
        (16, {"tile": (32, 64, 64), "transposed": (True, True), "stages": 4}),
        (16, {"tile": (64, 96, 32), "warps": (4, 1), "transposed": (False, True), "stages": 2}),
        (8, {"tile": (64, 64, 16), "width": 4, "transposed": (True, False)}),
        (None, {"tile": (32, 32, 16), "width": 1}),
    ],
)
def test_all_accesses_are_proved_for_all_sizes(align: int | None, choices: dict[str, Any]) -> None:
    rows, columns, _ = choices["tile"]
    left, right = choices.get("transposed", (False, False))
    proofs = gemm.prove(
        A=("depth", "m") if left else ("m", "depth"),
        B=("n", "depth") if right else ("depth", "n"),
        C=("m", "n"),
        grid=(f"(n + {columns - 1}) // {columns}", f"(m + {rows - 1}) // {rows}"),
        align=align,
        **choices,
    )
    assert proofs.complete


@pytest.mark.slow
def test_rows_at_any_address_are_not_proved_for_wide_accesses() -> None:
    proofs = gemm.prove(
        A=("m", "depth"),
        B=("depth", "n"),
        C=("m", "n"),
        grid=("(n + 31) // 32", "(m + 31) // 32"),
        tile=(32, 32, 16),
    )
    assert proofs.shared.complete
    assert proofs.global_memory is not None
    assert not proofs.global_memory.complete


@pytest.mark.ptxas
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_the_assembler_spills_no_register(target: str) -> None:
    text = gemm.build(target=target).text
    built = find_assembler(target=target).assemble(text, target).kernel("gemm")
    assert built.spill_store_bytes == built.spill_load_bytes == 0
    assert built.registers <= 255


def test_a_turn_of_the_loop_has_one_barrier_and_reads_each_chunk_once() -> None:
    k = builder(threads=128)
    product(k, (f16, f16, f32), (128, 128, 32))
    opcodes = [i.opcode for i in instructions(k)]
    assert opcodes.count("bar.sync") == 1
    assert sum(o.startswith("ldmatrix") for o in opcodes) == 2 * (4 + 4)
    assert sum(o.startswith("mma") for o in opcodes) == 2 * 4 * 8


def test_the_same_kernel_has_the_same_text() -> None:
    texts = []
    for _ in range(2):
        k = builder(threads=128)
        product(k, (f16, f16, f32), (64, 64, 32))
        texts.append(render(k.build()))
    assert texts[0] == texts[1]
