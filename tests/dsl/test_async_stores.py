"""`k.tma.async_stores`: copies from tiles to global memory that are started now and waited for later."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from dsl.kernels import LOCKSTEP, SCHEDULES, changed, is_noticed, launch
from dsl.test_tensor_reductions import OPERATIONS, one_by_one, operands
from error_texts import refused

from ptxgen.dsl import KernelBuilder
from ptxgen.errors import ConfigError, TypeMismatchError, UnsupportedTargetError
from ptxgen.runtime.assembler import find_assembler
from ptxgen.text import render
from ptxgen.types import f32, u32

WARPGROUP = 128  # threads
ROWS, COLUMNS = 8, 32  # of the tile of a warpgroup: two elements for each thread
ROUNDS = 3
HERE = "tests/dsl/test_async_stores.py"


class Rounds:
    """A kernel that repeats this: each of two warpgroups writes 8 x 32 elements to a stage of a tile, the
    number of the round from 1 plus that of the warpgroup; they are stored to other rows in each round, or
    by `op` combined with the same rows in all. A copy starts in one round, and its tile is written again
    `stages` rounds later.
    """

    def __init__(
        self, threads: Any, *, roles: bool = True, box: bool = False, op: Any = None, stages: int = 1
    ) -> None:
        self.threads = threads
        self.op = op
        self.k = k = KernelBuilder("rounds", target="sm_90", threads=(2 + roles) * WARPGROUP)
        self.out, count = k.pointer("out", f32), k.param("count", u32)
        self.to = k.tma.tensor_map("to", f32) if box else None
        # The columns of a warpgroup, which are a slab, or its rows are one after another in shared memory.
        shape, swizzle = ((ROWS, 2 * COLUMNS), "128B") if box else ((2 * ROWS, COLUMNS), "none")
        self.tiles = [k.tma.tile(f"tile_{n}", shape, f32, swizzle=swizzle) for n in range(stages)]
        if not roles:
            self.run(count)
            return
        others, main = k.warpgroup_role("others"), k.warpgroup_role("main", warpgroups=2)
        with others:
            pass
        with main:
            self.run(count)

    def run(self, count: Any) -> None:
        k, role, stages = self.k, self.k.present_role, len(self.tiles)
        self.stores = k.tma.async_stores(self.threads)
        self.thread = role.thread if role else k.thread_id()
        self.warpgroup = self.thread >> 7
        self.leads = role.leads if role else self.thread == 0
        with k.loop(0, count, stages) as first:
            for stage, tile in enumerate(self.tiles):
                self.wait(stages - 1)
                self.write(tile, first + stage)
                self.start(tile, k.mul(first + stage, 0 if self.op else ROWS, mode="lo"))
        self.wait(0)

    def meet(self) -> None:
        role = self.k.present_role
        role.barrier.sync() if role else self.k.barrier()

    def write(self, tile: Any, round: Any) -> None:
        value = self.k.cvt(round + self.warpgroup + 1, dtype=f32, rnd="rn")
        for half in range(2):
            index = (self.thread & 127) + half * WARPGROUP
            row, column = index >> 5, index & 31
            if self.to is not None:
                tile[row, column + self.warpgroup * COLUMNS] = value
            else:
                tile[row + self.warpgroup * ROWS, column] = value

    def send(self, tile: Any, row: Any) -> None:
        """Copy a tile, or the half of the warpgroup, to rows of the result from `row` on."""
        half, how = self.threads == "warpgroup", {}
        if half and self.to is None:
            how = {"first": self.warpgroup * (ROWS * COLUMNS), "count": ROWS * COLUMNS}
        if self.to is None:
            at: Any = self.out.element((row * 2 + (self.warpgroup * ROWS if half else 0)) * COLUMNS)
        else:
            at = self.to[row, self.warpgroup * COLUMNS if half else 0]
            tile = tile.from_column(self.warpgroup * COLUMNS, COLUMNS) if half else tile
        if self.op is None:
            self.stores.store(tile, at, **how)
        else:
            self.stores.reduce(tile, at, self.op, **how)

    def start(self, tile: Any, row: Any) -> None:
        if self.threads != "thread":
            self.send(tile, row)
            return
        self.k.fence_proxy_async(space="shared::cta")
        self.meet()
        with self.k.when(self.leads):
            self.send(tile, row)

    def wait(self, pending: int) -> None:
        if self.threads != "thread":
            self.stores.wait_read(pending)
            return
        with self.k.when(self.leads):
            self.stores.wait_read(pending)
        self.meet()


def rounds(threads: str, **how: Any) -> KernelBuilder:
    return Rounds(threads, **how).k


def result(k: KernelBuilder, *, box: bool, op: str | None, count: int) -> Any:
    """The result of a kernel, which is the same in three orders of warps, without reports."""
    results = []
    for schedule in SCHEDULES:
        shape = (1 if op else count, *((ROWS, 2) if box else (2, ROWS)), COLUMNS)
        out = np.ones(shape, np.float32)
        maps = [out.reshape(-1, 2 * COLUMNS)] if box else []
        launch(k, out, count, *maps, schedules=(schedule,))
        results.append(out.swapaxes(1, 2) if box else out)
    assert all(np.array_equal(results[0], r) for r in results)
    return results[0]


@pytest.mark.grid
@pytest.mark.parametrize("threads", ["all", "warpgroup", "thread"])
@pytest.mark.parametrize("roles", [True, False])
@pytest.mark.parametrize("box", [True, False])
@pytest.mark.parametrize("op", [None, "add"])
@pytest.mark.parametrize("stages", [1, 2])
def test_copies_run_on_while_threads_compute(
    threads: str, roles: bool, box: bool, op: str | None, stages: int
) -> None:
    k = rounds(threads, roles=roles, box=box, op=op, stages=stages)
    got = result(k, box=box, op=op, count=2 * stages)
    each = np.arange(1, 2 * stages + 1)[:, None] + np.arange(2)  # by round and warpgroup
    wanted = each.sum(axis=0, keepdims=True) + 1 if op else each
    assert np.array_equal(got, np.broadcast_to(wanted[..., None, None], got.shape))


def blocks(op: Any) -> KernelBuilder:
    """For each type of elements, two CTAs combine 2 x 64 elements each with a block of global memory by `op`;
    one of them stores the second half of its elements after that block.
    """
    k = KernelBuilder("blocks", target="sm_90", threads=64)
    thread, cta = k.thread_id(), k.block_id()
    pointers = [(k.pointer(f"A_{dtype}", dtype), k.pointer(f"X_{dtype}", dtype)) for dtype in OPERATIONS[op]]
    tiles = [k.shared(f"tile_{dtype}", (2, 64), dtype) for dtype in OPERATIONS[op]]
    stores = k.tma.async_stores()
    for tile, (a, x) in zip(tiles, pointers, strict=True):
        for row in range(2):
            tile[row, thread] = a[cta * 128 + row * 64 + thread]
        stores.reduce(tile, x, op)
        with k.when(cta == 0, uniform=True):
            stores.store(tile, x.at(128), first=64)
    stores.wait_read()
    return k


@pytest.mark.parametrize("op", list(OPERATIONS))
def test_blocks_of_consecutive_elements_of_each_type_are_combined_and_stored(op: str) -> None:
    arguments, wanted, held = [], [], []
    for seed, dtype in enumerate(OPERATIONS[op]):
        x, tiles = operands(op, dtype, seed)
        x, tiles = x.reshape(-1)[:192].copy(), tiles.reshape(2, -1)
        right = x.copy()
        with np.errstate(over="ignore"):
            for cta, n in np.ndindex(2, 128):
                right[n] = one_by_one(op, right[n], tiles[cta, n])
        right[128:] = tiles[0, 64:]
        arguments += [tiles, x]
        held.append(x)
        wanted.append(right)
    launch(blocks(op), *arguments, grid=2, schedules=LOCKSTEP)
    for got, right in zip(held, wanted, strict=True):
        assert np.array_equal(got, right), right.dtype


@pytest.mark.ptxas
def test_the_assembler_takes_every_form() -> None:
    for op in OPERATIONS:
        assert find_assembler(target="sm_90").assemble(render(blocks(op).build()), "sm_90")
    for threads in ("all", "warpgroup", "thread"):
        for box in (True, False):
            k = rounds(threads, box=box, op="add", stages=2)
            assert find_assembler(target="sm_90").assemble(render(k.build()), "sm_90")


@pytest.mark.parametrize("threads", ["all", "warpgroup", "thread"])
@pytest.mark.parametrize(
    ("pattern", "by"),
    [
        (r"cp.async.bulk.wait_group.read 0;", ""),  # the tile is written while it is read
        (r"cp.async.bulk.wait_group.read 0;", "cp.async.bulk.wait_group.read 1;"),
        (r"fence.proxy.async.shared::cta;", ""),
        (r"(fence.proxy.async.shared::cta;\s*)bar.sync [^;]*;", r"\1"),
        (r"(cp.async.bulk.wait_group.read 0;\s*\$\w+:\s*)bar.sync [^;]*;", r"\1"),
    ],
)
def test_a_missing_wait_fence_or_barrier_is_noticed(threads: str, pattern: str, by: str) -> None:
    k = rounds(threads)
    out = np.zeros((ROUNDS, 2, ROWS, COLUMNS), np.float32)
    assert is_noticed(k, changed(k, pattern, by), out, ROUNDS)


def told_by_a_barrier(*, before: bool) -> KernelBuilder:
    """A warpgroup adds its thread numbers to an array twice. The thread that starts the copies waits before
    the barrier for another tile, which tells the others, or after it.
    """
    k = KernelBuilder("later", target="sm_90", threads=WARPGROUP)
    out, thread = k.pointer("out"), k.thread_id()
    tile, other = k.shared("tile", (1, WARPGROUP), f32), k.shared("other", (1, WARPGROUP), f32)
    stores = k.tma.async_stores("warpgroup")
    with k.loop(0, 2, type=u32):
        other[0, thread] = k.cvt(thread, dtype=f32, rnd="rn")
        if before:
            stores.wait_read(meet=False)
        k.barrier()
        if not before:
            stores.wait_read(meet=False)
        tile[0, thread] = other[0, thread ^ 1]
        stores.reduce(tile, out, "add")
    with k.when(stores.leads):
        out[WARPGROUP] = 1.0
    stores.wait_read(meet=False)
    return k


def test_a_later_barrier_tells_the_others_that_a_tile_has_been_read() -> None:
    k = told_by_a_barrier(before=True)
    for schedule in SCHEDULES:
        out = np.zeros(WARPGROUP + 1, np.float32)
        launch(k, out, schedules=(schedule,))
        assert out.tolist() == [*(2 * (np.arange(WARPGROUP) ^ 1)), 1]
    k, out = told_by_a_barrier(before=False), np.zeros(WARPGROUP + 1, np.float32)
    (result,) = launch(k, out, schedules=LOCKSTEP, raise_on_report=False)
    assert [r.kind for r in result.reports] == ["race"]


# ---------------------------------------------------------------------------- what the build refuses


def lone(threads: int = 128) -> tuple[KernelBuilder, Any, Any]:
    """A kernel, a tensor and a tile of 64 x 32 elements."""
    k = KernelBuilder("lone", target="sm_90a", threads=threads)
    return k, k.tma.tensor_map("X", f32), k.tma.tile("tile", (64, 32), f32)


def line(after: int) -> str:
    """The line of the caller, moved by `after` lines, as errors name it."""
    frame = sys._getframe(1)
    code = frame.f_code
    return f"{code.co_filename}:{frame.f_lineno + after}, in {code.co_name}"


def test_a_tile_that_is_read_is_not_written() -> None:
    k, X, tile = lone()
    acc, stores = k.wgmma.accumulator(64, 32), k.tma.async_stores()
    started, written = line(1), line(4)
    stores.store(tile, X[0, 0])
    said = f"tile 'tile' is written at {written} while the copy started at {started} may still read it; "
    with refused(TypeMismatchError, f"{said}wait before with wait_read()"):
        tile[k.thread_id() & 63, 0] = 1.0
    with refused(TypeMismatchError, f"{said.replace(written, line(1))}wait before with wait_read()"):
        acc.write(tile)
    with refused(TypeMismatchError, f"{said.replace(written, line(1))}wait before with wait_read()"):
        k.store(tile.pointer(k.thread_id() & 63, 0), 1.0)
    other = k.tma.tile("other", (64, 16), f32, over=tile)
    with refused(TypeMismatchError, f"{said.replace(written, line(1))}wait before with wait_read()"):
        k.store(other.pointer(0, 0), 1.0)
    stores.wait_read()
    acc.write(tile)
    k.build()


def test_a_tile_that_a_copy_of_the_iteration_before_reads_is_not_written() -> None:
    k, X, tile = lone()
    stores = k.tma.async_stores()
    written, started = line(4), line(5)
    said = f"tile 'tile' is written at {written} while the copy started at {started} in the iteration before "
    with refused(TypeMismatchError, f"{said}may still read it; wait before with wait_read()"), k.loop(0, 4):
        stores.wait_read(1)
        tile[k.thread_id() & 63, 0] = 1.0
        stores.store(tile, X[0, 0])


@pytest.mark.parametrize("pending", [0, 1])
def test_all_but_the_newest_copies_have_read_their_tiles(pending: int) -> None:
    k, X, tile = lone()
    block, out = k.shared("block", (8, 32), f32), k.pointer("out", f32)
    stores = k.tma.async_stores()
    stores.store(block, out, count=128)
    stores.store(tile, X[0, 0])
    stores.wait_read(pending)
    block[0, 0] = 1.0  # the older copy has read it
    if pending:
        with pytest.raises(TypeMismatchError, match="tile 'tile' is written"):
            tile[0, 0] = 1.0
    else:
        tile[0, 0] = 1.0
    stores.wait_read()
    stores.reduce(block, out, "add", first=128, count=128)
    block[0, 0] = 1.0  # the first half
    with pytest.raises(TypeMismatchError, match="tile 'block' is written"):
        block[4, 0] = 1.0


def test_what_may_be_right_is_not_refused() -> None:
    k, X, tile = lone()
    stores, first = k.tma.async_stores(), k.param("first", u32) == 0
    with k.when(first, uniform=True):
        stores.store(tile, X[0, 0])
    with k.otherwise():
        tile[0, 0] = 1.0
    with pytest.raises(TypeMismatchError, match="tile 'tile' is written"):
        tile[0, 0] = 1.0
    stores.wait_read()
    stages = k.shared("stages", (2, 32), f32)
    to = k.pointer("out", f32)
    with k.loop(0, 4) as i:  # two stages by index, one pending
        stores.wait_read(1)
        stages[i & 1, k.thread_id() & 31] = 1.0
        stores.store(stages, to, first=(i & 1).as_(u32) * 32, count=32)
    k.tma.store(tile, X[0, 0])  # its thread waits for all its copies
    k.build()


def test_a_kernel_waits_for_its_reads() -> None:
    k, X, tile = lone(256)
    first, second = k.warpgroup_role("first"), k.warpgroup_role("second")
    with first:
        stores = k.tma.async_stores()
        started = line(1)
        stores.store(tile, X[0, 0])
    with second:
        tile[0, 0] = 1.0  # which may wait at a barrier
    with refused(
        TypeMismatchError,
        f"kernel 'lone': the copy of tile 'tile' started at {started} may still read it where the code of "
        "its threads ends; wait after it with wait_read()",
    ):
        k.build()


def test_a_stage_is_not_released_while_a_copy_reads_it() -> None:
    k, X, _ = lone(256)
    producer, consumer = k.warpgroup_role("producer"), k.warpgroup_role("consumer")
    ring = k.tma.ring(2, producer, consumer, x=((64, 32), f32))
    with producer, ring.fill() as stage:
        k.tma.load(stage.x, X[0, 0])
    with consumer:
        stores, stage = k.tma.async_stores(), ring.acquire()
        started, released = line(1), line(4)
        stores.store(stage.x, X[64, 0])
        said = f"a stage of ring 'ring_1' is released at {released} while the copy of tile 'x' started at "
        with refused(TypeMismatchError, f"{said}{started} may still read it; wait before with wait_read()"):
            stage.release()
        stores.wait_read()
        stage.release()
    k.build()


def test_arguments_of_other_kinds_are_refused() -> None:
    k, X, tile = lone(96)
    out, ints = k.pointer("out", f32), k.pointer("ints", u32)
    padded, stores = k.shared("padded", (4, 30), f32, pitch=32), k.tma.async_stores()
    caller = "async_stores.store"
    block = (
        f"{caller}: a block begins at a multiple of 4 elements (16 bytes) and has such a multiple, of the "
    )
    for error, said, call in (
        (
            ConfigError,
            "tma.async_stores: threads must be one of all, warpgroup, thread, got 'threads'; did you mean "
            "'thread'?",
            lambda: k.tma.async_stores("threads"),  # type: ignore[arg-type]  # what is tested
        ),
        (
            ConfigError,
            "tma.async_stores: threads='warpgroup' is for whole warpgroups of 4 warps, but the CTA has 96 "
            "threads; use threads='all'",
            lambda: k.tma.async_stores("warpgroup"),
        ),
        (
            ConfigError,
            "async_stores.leads: with threads='thread' the kernel chooses the thread itself",
            lambda: k.tma.async_stores("thread").leads,
        ),
        (
            TypeMismatchError,
            f"{caller}: it takes a tile, and a box of a tensor, such as A[row, column], or a pointer to "
            f"global memory, got {tile!r} and 3",
            lambda: stores.store(tile, 3),  # type: ignore[arg-type]  # what is tested
        ),
        (
            TypeMismatchError,
            f"{caller}: tile 'tile' has elements of f32, the pointer is to u32",
            lambda: stores.store(tile, ints),
        ),
        (
            ConfigError,
            f"{caller}: tile 'padded' has gaps between its rows or slabs, and a block of consecutive "
            "elements none; copy it to a box of a tensor",
            lambda: stores.store(padded, out),
        ),
        (
            ConfigError,
            f"{block}2048 of tile 'tile'; got first=2, count=None",
            lambda: stores.store(tile, out, first=2),
        ),
        (
            ConfigError,
            f"{block}2048 of tile 'tile'; got first=2044, count=8",
            lambda: stores.store(tile, out, first=2044, count=8),
        ),
        (
            ConfigError,
            f"{caller}: a box takes the whole tile; first and count are for a pointer, got first=0 and "
            "count=4",
            lambda: stores.store(tile, X[0, 0], count=4),
        ),
        (
            ConfigError,
            "async_stores.reduce: op must be one of add, min, max, inc, dec, and, or, xor, got 'sub'",
            lambda: stores.reduce(tile, out, "sub"),  # type: ignore[arg-type]  # what is tested
        ),
        (
            TypeMismatchError,
            "async_stores.reduce: 'tile': max combines elements of u32, s32, u64, s64, f16, bf16, got f32",
            lambda: stores.reduce(tile, out, "max"),
        ),
        (
            ConfigError,
            "async_stores.wait_read: pending must be an integer of at least 0, got -1",
            lambda: stores.wait_read(-1),
        ),
        (
            TypeMismatchError,
            "async_stores.store is for one thread, but several come here; put it into 'with "
            "k.when(role.leads):', or outside of roles into 'with k.when(k.thread_id() == 0):'",
            lambda: k.tma.async_stores("thread").store(tile, out),
        ),
    ):
        with refused(error, said):
            call()


def test_other_threads_than_those_of_the_stores_are_refused() -> None:
    k, X, tile = lone(256)
    first, second = k.warpgroup_role("first"), k.warpgroup_role("second")
    with first:
        stores = k.tma.async_stores()
        with (
            refused(
                TypeMismatchError,
                "async_stores.store inside 'when': all threads of the role 'first' must come here; move it "
                "out, or promise that they agree with k.when(condition, uniform=True)",
            ),
            k.when(first.leads),
        ):
            stores.store(tile, X[0, 0])
    with (
        second,
        refused(
            TypeMismatchError,
            "async_stores.wait_read: these async_stores are for threads of the role 'first', and are used in "
            "the code of the role 'second'; make others there with k.tma.async_stores()",
        ),
    ):
        stores.wait_read()


def test_targets_without_bulk_copies_are_refused() -> None:
    k = KernelBuilder("old", target="sm_80", threads=32)
    with refused(
        UnsupportedTargetError,
        "tma.async_stores needs sm_90, but kernel 'old' targets sm_80; build it with target='sm_90a'",
    ):
        k.tma.async_stores()
