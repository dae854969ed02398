"""`k.in_order`: CTAs that run a section in the order of their tickets, with copies of the asynchronous
proxy.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from dsl.kernels import LOCKSTEP, changed, is_noticed, launch
from error_texts import refused

from ptxgen.dsl import KernelBuilder
from ptxgen.errors import TrapError, TypeMismatchError
from ptxgen.interpreter import PCT
from ptxgen.runtime.assembler import find_assembler
from ptxgen.text import render
from ptxgen.types import f32, u32

CTAS = 8
BLOCK = 128  # elements, one for each thread
ORDERS = (
    *LOCKSTEP,
    *[PCT(seed=seed) for seed in range(5)],
    *[PCT(seed=seed, apart=True) for seed in range(2)],
)


def gradients(*, ordered: bool = True, threads: Any = "all") -> KernelBuilder:
    """CTA n adds its row of numbers, times 1 to CTAS, to CTAS blocks of sums. It begins at block n and goes
    round, so that it is the j-th CTA to come to the block of its step j, as in gradients of attention.
    """
    k = KernelBuilder("gradients", target="sm_90", threads=BLOCK)
    addends, sums, counters = k.pointer("rows"), k.pointer("sums"), k.pointer("counters", u32)
    tile, thread, cta = k.shared("tile", (1, BLOCK), f32), k.thread_id(), k.block_id()
    stores, leads = k.tma.async_stores(threads), thread == 0
    alone = threads == "thread"

    def wait() -> None:
        with k.when(leads) if alone else nullcontext():
            stores.wait_read()
        k.barrier()

    def add(to: Any, order: Any) -> None:
        if not alone:
            stores.reduce(tile, to, "add", order=order)
            return
        k.fence_proxy_async(space="shared::cta")
        k.barrier()
        with k.when(leads), k.in_order(*order):
            stores.reduce(tile, to, "add")
            stores.wait_written()

    mine = addends[cta * BLOCK + thread]
    with k.loop(0, CTAS, type=u32) as step:
        block = (cta + step) % CTAS
        wait()
        tile[0, thread] = mine * k.cvt(block + 1, dtype=f32, rnd="rn")
        add(sums.element(block * BLOCK), (counters.element(block), step) if ordered else None)
    wait()
    return k


def sums_of(k: KernelBuilder, schedule: Any) -> Any:
    """The sums of a kernel under one schedule, and the counters after it."""
    sums, counters = np.zeros((CTAS, BLOCK), np.float32), np.zeros(CTAS, np.uint32)
    launch(k, rows(), sums, counters, grid=CTAS, schedules=(schedule,))
    return sums, counters


def rows() -> Any:
    """Numbers of different sizes, so that the bits of a sum depend on the order of its terms."""
    rng = np.random.default_rng(0)
    numbers = rng.standard_normal((CTAS, BLOCK)) * 10.0 ** rng.integers(-3, 4, (CTAS, BLOCK))
    return numbers.astype(np.float32)


@pytest.mark.parametrize("threads", ["all", "warpgroup", "thread"])
def test_sums_in_a_fixed_order_have_the_same_bits_under_every_schedule(threads: str) -> None:
    wanted = np.zeros((CTAS, BLOCK), np.float32)
    for step in range(CTAS):
        for block in range(CTAS):  # CTA (block - step) comes to this block at this step
            wanted[block] += rows()[(block - step) % CTAS] * np.float32(block + 1)
    k = gradients(threads=threads)
    for schedule in ORDERS:
        sums, counters = sums_of(k, schedule)
        assert sums.tobytes() == wanted.tobytes(), schedule
        assert (counters == CTAS).all()


def test_without_the_counter_the_bits_depend_on_the_schedule() -> None:
    k = gradients(ordered=False)
    results = {sums_of(k, schedule)[0].tobytes() for schedule in ORDERS}
    assert len(results) > len(ORDERS) // 2


def by_turns() -> KernelBuilder:
    """CTAs add their numbers to one block in order: those with an even index by a bulk reduction, the
    others by an ordinary load and store of each element.
    """
    k = KernelBuilder("by_turns", target="sm_90", threads=32)
    out, counter = k.pointer("out"), k.pointer("counter", u32)
    tile, thread, cta = k.shared("tile", (1, 4), f32), k.thread_id(), k.block_id()
    stores = k.tma.async_stores("thread")
    with k.when(thread == 0):
        for column in range(4):
            tile[0, column] = k.cvt(cta + 1, dtype=f32, rnd="rn")
        k.fence_proxy_async(space="shared::cta")
        with k.in_order(counter, cta):
            with k.when(cta & 1 == 0):
                stores.reduce(tile, out, "add")
                stores.wait_written()
            with k.otherwise():
                for column in range(4):
                    out[column] = out[column] * 2.0 + tile[0, column]
    return k


def test_copies_and_ordinary_accesses_follow_each_other() -> None:
    wanted = 0
    for cta in range(CTAS):
        wanted = wanted * (1 + cta % 2) + cta + 1
    for schedule in ORDERS:
        out, counter = np.zeros(4, np.float32), np.zeros(1, np.uint32)
        launch(by_turns(), out, counter, grid=CTAS, schedules=(schedule,))
        assert out.tolist() == [wanted] * 4


@pytest.mark.parametrize(
    ("pattern", "by"),
    [
        (r"ld.acquire.gpu.global", "ld.relaxed.gpu.global"),
        (r"red.release.gpu.global", "red.relaxed.gpu.global"),
        (r"ld.acquire.gpu.global", "ld.acquire.cta.global"),
        (r"red.release.gpu.global", "red.release.cta.global"),
        (r"fence.proxy.async.global;", ""),
        (r"cp.async.bulk.wait_group 0;", "cp.async.bulk.wait_group.read 0;"),
    ],
)
def test_what_is_missing_of_the_order_is_noticed(pattern: str, by: str) -> None:
    k = by_turns()
    arguments = np.zeros(4, np.float32), np.zeros(1, np.uint32)
    assert is_noticed(k, changed(k, pattern, by), *arguments, grid=CTAS)


def test_a_ticket_that_nobody_counts_up_to_ends_the_run() -> None:
    k = by_turns()
    with pytest.raises(TrapError, match="which no thread is left to write"):
        launch(k, np.zeros(4, np.float32), np.full(1, 5, np.uint32), grid=CTAS)


@pytest.mark.ptxas
def test_the_assembler_takes_the_order() -> None:
    for k in (by_turns(), *[gradients(threads=threads) for threads in ("all", "warpgroup", "thread")]):
        assert find_assembler(target="sm_90").assemble(render(k.build()), "sm_90")


def refusing() -> tuple[KernelBuilder, Any, Any, Any]:
    """A kernel, a pointer, a counter and the predicate of its first thread."""
    k = KernelBuilder("refusing", target="sm_90", threads=32)
    return k, k.pointer("out"), k.pointer("counter", u32), k.thread_id() == 0


def test_an_order_of_several_threads_is_refused() -> None:
    k, _, counter, _ = refusing()
    said = (
        "in_order is for one thread, but several come here; put it into 'with k.when(role.leads):', or "
        "outside of roles into 'with k.when(k.thread_id() == 0):'"
    )
    with refused(TypeMismatchError, said), k.in_order(counter, 0):
        pass


def test_counters_and_tickets_of_other_types_are_refused() -> None:
    k, out, counter, leads = refusing()
    said = (
        "the counter must be a pointer to u32 in global memory, such as k.pointer('counters', u32)."
        f"element(block), got {out}"
    )
    with refused(TypeMismatchError, f"in_order: {said}"), k.when(leads), k.in_order(out, 0):
        pass
    said_of_ticket = "in_order: the ticket must be a u32 value or an int, got -1"
    with refused(TypeMismatchError, said_of_ticket), k.when(leads), k.in_order(counter, -1):
        pass
    tile, stores = k.shared("tile", (1, 4), f32), k.tma.async_stores()
    with refused(TypeMismatchError, f"async_stores.reduce: {said}"):
        stores.reduce(tile, out, "add", order=(out, 0))
    with refused(TypeMismatchError, "async_stores.reduce: order must be (counter, ticket), got 3"):
        stores.reduce(tile, out, "add", order=3)  # type: ignore[arg-type]  # what is tested


def test_a_copy_that_is_not_complete_where_the_next_cta_begins_is_refused() -> None:
    k, out, counter, leads = refusing()
    tile, stores = k.shared("tile", (1, 4), f32), k.tma.async_stores("thread")
    line, caller = sys._getframe().f_lineno + 6, sys._getframe().f_code.co_name
    said = (
        f"in_order: the copy of tile 'tile' started at {__file__}:{line}, in {caller} "
        "may still write where the body ends and the next CTA begins; wait in the body with wait_written()"
    )
    with refused(TypeMismatchError, said), k.when(leads), k.in_order(counter, 0):
        stores.reduce(tile, out, "add")
        stores.wait_read()
