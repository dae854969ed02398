"""`k.tma.async_stores`: copies from tiles to global memory that are started now and waited for later."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from dsl.kernels import SCHEDULES, changed, is_noticed, launch
from error_texts import refused

from ptxgen.arrays.elements import numpy_type
from ptxgen.dsl import KernelBuilder
from ptxgen.errors import ConfigError, TypeMismatchError
from ptxgen.isa.bulk import BOX_REDUCTIONS
from ptxgen.runtime.assembler import find_assembler
from ptxgen.text import render
from ptxgen.types import bf16, f16, f32, u32

WARPGROUP = 128  # threads
ROWS, COLUMNS = 8, 32  # of the tile of a warpgroup: two elements for each thread
ROUNDS = 3
HERE = "tests/dsl/test_async_stores.py"


def rounds(
    threads: Any,
    *,
    roles: bool = True,
    box: bool = False,
    op: Any = None,
    dtype: Any = f32,
    stages: int = 1,
) -> KernelBuilder:
    """In each round each of two warpgroups writes 8 x 32 elements to a stage of a tile: the number of the round,
    from 1, plus that of the warpgroup. They are stored to other rows in each round, or by `op` combined with the
    same rows in all. A copy starts in one round, and its tile is written again `stages` rounds later.
    """
    k = KernelBuilder("rounds", target="sm_90", threads=(2 + roles) * WARPGROUP)
    out, count = k.pointer("out", dtype), k.param("count", u32)
    to = k.tma.tensor_map("to", dtype) if box else None
    # The columns of a warpgroup, which are a slab, or its rows are one after another in shared memory.
    shape, swizzle = ((ROWS, 2 * COLUMNS), "128B") if box else ((2 * ROWS, COLUMNS), "none")
    tiles = [k.tma.tile(f"tile_{stage}", shape, dtype, swizzle=swizzle) for stage in range(stages)]
    others = k.warpgroup_role("others") if roles else nullcontext()
    role = k.warpgroup_role("main", warpgroups=2) if roles else None
    with others:
        pass
    with role or nullcontext():
        stores = k.tma.async_stores(threads)
        thread, leads = (role.thread, role.leads) if role else (k.thread_id(), k.thread_id() == 0)
        warpgroup = thread >> 7

        def meet() -> None:
            role.barrier.sync() if role else k.barrier()

        def write(tile: Any, round: Any) -> None:
            value = k.cvt(round + warpgroup + 1, dtype=dtype, rnd="rn")
            for half in range(2):
                index = (thread & 127) + half * WARPGROUP
                row, column = index >> 5, index & 31
                if box:
                    tile[row, column + warpgroup * COLUMNS] = value
                else:
                    tile[row + warpgroup * ROWS, column] = value

        def send(tile: Any, row: Any) -> None:
            """Copy a tile, or the half of the warpgroup, to rows of the result from `row` on."""
            how: Any = {}
            half = threads == "warpgroup"
            if half and not box:
                how = {"first": warpgroup * (ROWS * COLUMNS), "count": ROWS * COLUMNS}
            if to is None:
                at: Any = out.element((row * 2 + (warpgroup * ROWS if half else 0)) * COLUMNS)
            else:
                at = to[row, warpgroup * COLUMNS if half else 0]
                tile = tile.from_column(warpgroup * COLUMNS, COLUMNS) if half else tile
            if op is None:
                stores.store(tile, at, **how)
            else:
                stores.reduce(tile, at, op, **how)

        def start(tile: Any, row: Any) -> None:
            if threads != "thread":
                send(tile, row)
                return
            k.fence_proxy_async(space="shared::cta")
            meet()
            with k.when(leads):
                send(tile, row)

        def wait(pending: int) -> None:
            if threads != "thread":
                stores.wait_read(pending)
                return
            with k.when(leads):
                stores.wait_read(pending)
            meet()

        with k.loop(0, count, stages) as first:
            for stage, tile in enumerate(tiles):
                wait(stages - 1)
                write(tile, first + stage)
                start(tile, k.mul(first + stage, 0 if op else ROWS, mode="lo"))
        wait(0)
    return k


def result(k: KernelBuilder, *, box: bool, op: str | None, dtype: Any = f32, count: int = ROUNDS) -> Any:
    """The result of a kernel of two warpgroups, which is the same in three orders of warps, without reports."""
    results = []
    for schedule in SCHEDULES:
        shape = (1 if op else count, *((ROWS, 2) if box else (2, ROWS)), COLUMNS)
        out = np.ones(shape, numpy_type(dtype.dtype_name))
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
