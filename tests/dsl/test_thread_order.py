"""Accumulators in the order of threads in memory, and numbers of columns, on the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dsl.kernels import LOCKSTEP, SCHEDULES, changed, is_noticed, launch
from error_texts import refused

from ptxgen.check.prove import prove_shared
from ptxgen.dsl import KernelBuilder, thread_order
from ptxgen.errors import ConfigError
from ptxgen.runtime.assembler import find_assembler
from ptxgen.text import render
from ptxgen.types import f16, f32, u32

WARPGROUP = 128


def positions(rows: int, columns: int) -> Any:
    """What an accumulator has at [row, column] in the tests: its position, row by row."""
    return np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)


def numbered(k: KernelBuilder, rows: int, columns: int) -> Any:
    """An accumulator of these numbers."""
    acc = k.wgmma.accumulator(rows, columns, zero=False)
    for down, across, pair in acc.pairs():
        for i, variable in enumerate(pair):
            at = (acc.row + down) * columns + acc.column + (across + i)
            variable.set(k.cvt(at, dtype=f32, rnd="rn"))
    return acc


def is_assembled_and_proved(k: KernelBuilder, **params: Any) -> bool:
    module = k.build()
    find_assembler(target="sm_90a").assemble(render(module), "sm_90a")
    return prove_shared(module, block=k.threads, params=params or None).complete


# ------------------------------------------------------------------------ sums of blocks


def reduced(rows: int, columns: int, kind: str) -> KernelBuilder:
    """Each of two warpgroups of a role adds its accumulator, times its number + 1, to its block of SUMS."""
    k = KernelBuilder("reduced", target="sm_90a", threads=3 * WARPGROUP)
    SUMS = k.pointer("SUMS", f32)
    idle, role = k.warpgroup_role("idle"), k.warpgroup_role("role", warpgroups=2)
    count = rows * columns
    block: Any = k.shared("block", (1, 2 * count), f32, align=128)
    if kind == "tile":
        block = k.tma.tile("sums", (2 * count // 64, 64), f32, swizzle="none")
    with idle:
        pass
    with role:
        leads, barrier, first = role.warpgroup_leads, role.warpgroup_barrier, role.warpgroup * count
        here = block.pointer(0, 0) if kind != "tile" else block.at(0)
        acc = numbered(k, rows, columns)
        for variable in acc.all():
            variable.set(variable * k.cvt(role.warpgroup + 1, dtype=f32, rnd="rn"))
        acc.write_in_thread_order(here if kind == "pointer" else block, first)
        k.fence_proxy_async(space="shared::cta")
        barrier.sync()
        with k.when(leads):
            mine = here.moved(k.mad(first, 4, here.value, mode="lo"))
            k.cp_reduce_async_bulk_add(SUMS.element(first), mine, 4 * count, type=f32)
            k.cp_async_bulk_commit_group()
            k.cp_async_bulk_wait_group(0)
    return k


def converted(rows: int, columns: int) -> KernelBuilder:
    """Y, a matrix for each CTA, from its block of SUMS."""
    k = KernelBuilder("converted", target="sm_90a", threads=WARPGROUP)
    SUMS, Y = k.pointer("SUMS", f32), k.pointer("Y", f32)
    acc = k.wgmma.accumulator(rows, columns, zero=False)
    acc.read_in_thread_order(SUMS, k.block_id() * (rows * columns))
    acc.store(Y.element(k.block_id() * (rows * columns)), columns)
    return k


@pytest.mark.ptxas
@pytest.mark.parametrize(
    ("rows", "columns", "kind"),
    [(64, 64, "shared"), (64, 8, "pointer"), (128, 24, "tile"), (64, 120, "tile")],
)
def test_bulk_reductions_add_blocks_that_another_kernel_reads(rows: int, columns: int, kind: str) -> None:
    k, size = reduced(rows, columns, kind), rows * columns
    for schedule in SCHEDULES:
        sums = np.ones((2, size), np.float32)
        (ran,) = launch(k, sums, grid=3, schedules=(schedule,), profile=True)
        wanted = [1 + 3 * (n + 1) * positions(rows, columns) for n in range(2)]
        at = thread_order(np.arange(size), columns)
        for block, matrix in zip(sums, wanted, strict=True):
            assert np.array_equal(block, matrix[at.row, at.column])
        assert ran.counters.shared_conflicts == 0
    y = np.zeros((2, rows, columns), np.float32)
    launch(converted(rows, columns), sums, y, grid=2, schedules=LOCKSTEP)
    assert np.array_equal(y, wanted)
    assert is_assembled_and_proved(k)


@pytest.mark.parametrize(
    ("was", "count"), [(r"fence\.proxy\.async\.shared::cta;", 1), (r"bar\.sync [^;]*;", 1)]
)
def test_a_reduction_that_does_not_wait_for_the_stores_is_noticed(was: str, count: int) -> None:
    k = reduced(64, 16, "shared")
    assert is_noticed(k, changed(k, was, "", count), np.ones((2, 64 * 16), np.float32))


def test_a_block_in_shared_memory_is_read_back() -> None:
    k = KernelBuilder("read_back", target="sm_90a", threads=WARPGROUP)
    Y, first = k.pointer("Y", f32), k.param("first", u32)
    block = k.shared("block", (2, 64 * 16), f32)
    acc = numbered(k, 64, 16)
    acc.write_in_thread_order(block, 64 * 16)
    acc.fill(0.0)
    acc.write_in_thread_order(block)
    acc.read_in_thread_order(block, first)  # each thread reads what it has written
    acc.store(Y, 16)
    for start in (0, 64 * 16):
        y = np.full((64, 16), np.nan, np.float32)
        launch(k, y, start, schedules=LOCKSTEP)
        assert np.array_equal(y, positions(64, 16) * (start > 0))


@pytest.mark.parametrize(("rows", "columns"), [(64, 8), (128, 48), (64, 256)])
def test_the_function_has_each_element_once(rows: int, columns: int) -> None:
    at = thread_order(np.arange(rows * columns), columns)
    assert sorted((at.row * columns + at.column).tolist()) == list(range(rows * columns))
    assert (at.row[777 % len(at.row)], at.column[777 % len(at.row)]) == thread_order(
        777 % len(at.row), columns
    )
    if columns % 16 == 0:  # thread 33 has the second row, here in the second 8 columns
        assert thread_order(512 + 33 * 4 + 3, columns) == (16 + 8, 8 + 2 + 1)


def test_a_kernel_computes_the_element_at_a_position() -> None:
    k = KernelBuilder("elements", target="sm_90a", threads=WARPGROUP)
    ROW, COLUMN = k.pointer("ROW", u32), k.pointer("COLUMN", u32)
    acc = k.wgmma.accumulator(64, 24, zero=False)
    position = k.block_id() * WARPGROUP + k.thread_id()
    at = acc.element_in_thread_order(position)
    ROW[position], COLUMN[position] = at.row, at.column
    row, column = np.zeros(64 * 24, np.uint32), np.zeros(64 * 24, np.uint32)
    launch(k, row, column, grid=12, schedules=LOCKSTEP)
    wanted = thread_order(np.arange(64 * 24), 24)
    assert np.array_equal(row, wanted.row)
    assert np.array_equal(column, wanted.column)


# ------------------------------------------------------------------------ numbers of columns


@pytest.mark.ptxas
@pytest.mark.parametrize("kind", ["box", "shared"])
@pytest.mark.parametrize("columns", [8, 72])
def test_each_pair_has_the_numbers_of_its_columns(kind: str, columns: int) -> None:
    """Y = (position) x (number of the column), with the numbers of row `row` of a tile."""
    k = KernelBuilder("columns", target="sm_90a", threads=WARPGROUP)
    Y, row = k.pointer("Y", f32), k.param("row", u32)
    tile: Any = k.shared("numbers", (3, columns), f32, pitch=columns + 2)
    if kind == "box":
        tile = k.tma.tile("numbers_box", (3, columns), f32, swizzle="none")
    with k.when(k.thread_id() < columns):
        for n in range(3):
            tile[n, k.thread_id()] = k.cvt(k.thread_id() * (n + 1), dtype=f32, rnd="rn")
    k.barrier()
    acc = numbered(k, 128, columns)
    numbers, fixed = acc.column_pairs(tile, row), acc.column_pairs(tile)
    for _, across, pair in acc.pairs():
        for variable, number, other in zip(pair, numbers[across // 8], fixed[across // 8], strict=True):
            variable.set(variable * number + other)
    acc.store(Y, columns)
    assert render(k.build()).count("ld.shared.v2.f32") == 2 * columns // 8
    assert is_assembled_and_proved(k, row=(0, 2))
    for n in range(3):
        y = np.zeros((128, columns), np.float32)
        launch(k, y, n, schedules=LOCKSTEP)
        assert np.array_equal(
            y, positions(128, columns) * (np.arange(columns) * (n + 1)) + np.arange(columns)
        )


# ------------------------------------------------------------------------ misuse

BLOCK = (
    "a contiguous block of f32 in {} memory, such as k.shared('sums', (1, 1024), f32, align=128), a tile "
    "with swizzle='none' or a pointer, with 1024 elements from first on, a multiple of 4, an int or a u32 "
    "value; got "
)


def misuse(use: Callable[[KernelBuilder, Any], object]) -> Callable[[], object]:
    def call() -> object:
        k = KernelBuilder("refused", target="sm_90a", threads=WARPGROUP)
        return use(k, k.wgmma.accumulator(64, 16, zero=False))

    return call


REFUSED: list[tuple[Callable[[], object], str]] = [
    (
        misuse(lambda k, acc: acc.write_in_thread_order(k.pointer("P", f32))),
        f"accumulator.write_in_thread_order: it takes {BLOCK.format('shared')}Pointer(global f32 [%rd1+0]) "
        "and first 0",
    ),
    (
        misuse(lambda k, acc: acc.read_in_thread_order(k.pointer("P", f16))),
        f"accumulator.read_in_thread_order: it takes {BLOCK.format('shared or global')}Pointer(global f16 "
        "[%rd1+0]) and first 0",
    ),
    (
        misuse(lambda k, acc: acc.write_in_thread_order(k.tma.tile("t", (64, 16), f32, swizzle="64B"))),
        f"accumulator.write_in_thread_order: it takes {BLOCK.format('shared')}BoxTile('t', (64, 16), f32, "
        "swizzle 64B) and first 0",
    ),
    (
        misuse(lambda k, acc: acc.write_in_thread_order(k.tma.tile("t", (64, 16), f32, swizzle="none"), 4)),
        f"accumulator.write_in_thread_order: it takes {BLOCK.format('shared')}BoxTile('t', (64, 16), f32, "
        "swizzle none) and first 4",
    ),
    (
        misuse(lambda k, acc: acc.read_in_thread_order(k.pointer("P", f32), 2)),
        f"accumulator.read_in_thread_order: it takes {BLOCK.format('shared or global')}Pointer(global f32 "
        "[%rd1+0]) and first 2",
    ),
    (
        misuse(lambda k, acc: acc.column_pairs(k.tma.tile("t", (1, 32), f32, swizzle="none"))),
        "accumulator.column_pairs: it takes a tile of f32 in shared memory with 16 columns and without a "
        "swizzle, such as ((1, 16), f32, 'none') of a ring, got BoxTile('t', (1, 32), f32, swizzle none)",
    ),
    (
        misuse(lambda k, acc: acc.column_pairs(k.tma.tile("t", (8, 16), f32))),
        "accumulator.column_pairs: it takes a tile of f32 in shared memory with 16 columns and without a "
        "swizzle, such as ((1, 16), f32, 'none') of a ring, got BoxTile('t', (8, 16), f32, swizzle 64B)",
    ),
]


@pytest.mark.parametrize(("call", "text"), REFUSED)
def test_misuse_is_refused(call: Callable[[], object], text: str) -> None:
    with refused(ConfigError, text):
        call()
