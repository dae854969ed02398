"""What the sanitizers say of the operands of products: scale factors, A in tensor memory, other CTAs."""

from __future__ import annotations

import numpy as np
import pytest
from interpreter.programs import at, located
from interpreter.reported import messages
from interpreter.sanitizers.test_tensor_memory import (
    ADDRESS,
    AFTER,
    BEFORE,
    LAST,
    LOAD,
    MMA,
    MMA_LINES,
    NO_COMMIT,
    NO_PAIR,
    STORE,
    USE,
    WAIT_LD,
    WAIT_ST,
    WRITE,
    N,
    of_thread,
    reported,
    strict,
    undefined,
    unwritten,
)
from interpreter.tensor_texts import (
    BUFFER,
    LANES,
    MBARRIERS,
    TENSOR,
    THREAD,
    by_one_thread,
    commit,
    instruction,
    kernel,
    wait,
)

NO_FENCE = "its thread has executed no tcgen05.fence::before_thread_sync after it"

# A product whose A is at column 64 of tensor memory, and the columns of A that each thread stores.
OF_A = by_one_thread([f"add.u32 %r80, {TENSOR}, 64;", *MMA[:-1], LAST.replace("%rd1", "[%r80]"), commit()])
STORE_A = f"tcgen05.st.sync.aligned.32x32b.x8.b32 [%r2+64], {{{', '.join(['%r93'] * 8)}}};"


@pytest.mark.parametrize("meet", ["", "bar.sync 0;"])
def test_a_product_comes_after_the_stores_of_a_by_a_barrier(meet: str) -> None:
    text, got = reported(ADDRESS, STORE_A, WAIT_ST, meet, OF_A, wait())
    wanted = (
        f"{at(text, '[%r80]')}race: tensor address 0x200040 was written by thread (32, 0, 0) in "
        f"{located(text, STORE_A)}; no barrier orders the two"
    )
    assert got == [wanted] * (not meet)


def test_the_manual_asks_for_a_fence_behind_the_stores_of_a_though_d_has_one() -> None:
    text, got = strict(WRITE, BEFORE, STORE_A, WAIT_ST, "bar.sync 0;", AFTER, OF_A, wait())
    assert got == [
        f"{at(text, '[%r80]')}tensor_fence: tensor address 0x200040 was written by thread (32, 0, 0) in "
        f"{located(text, STORE_A)}; its thread has executed no tcgen05.fence::before_thread_sync after it"
    ]


def test_what_the_manual_asks_for_is_reported_of_one_access() -> None:
    """Neither a load nor a store that follows an access without its fence lacks anything."""
    start = by_one_thread([*MMA[:5], commit()])  # a single product
    for later in (LOAD, f"{STORE}\n{WAIT_ST}"):
        got = strict(BEFORE, WRITE, "bar.sync 0;", AFTER, start, wait(), ADDRESS, later)[1]
        assert [m.rpartition("; ")[2] for m in got] == [NO_FENCE]


def test_a_fence_after_the_synchronisation_is_none_before_it() -> None:
    got = strict(WRITE, AFTER, "bar.sync 0;", AFTER, by_one_thread([*MMA, commit()]), wait())[1]
    assert [m.rpartition("; ")[2] for m in got] == [NO_FENCE]


def test_the_manual_asks_each_warp_for_its_fence() -> None:
    """All but warp 3 execute it."""
    skip = f"shr.u32 %r3, {THREAD}, 5;\nsetp.eq.u32 %p6, %r3, 3;\n@%p6 bra $none;\n{BEFORE}\n$none:"
    text, got = strict(WRITE, skip, "bar.sync 0;", AFTER, by_one_thread([*MMA, commit()]), wait())
    assert got == [
        f"{at(text, 'tcgen05.mma')}tensor_fence: tensor address 0x600000 was written by thread (96, 0, 0) in "
        f"{located(text, STORE)}; {NO_FENCE}"
    ]


@pytest.mark.parametrize("access", ["ld", "st"])
def test_the_manual_asks_for_nothing_before_cells_without_an_access(access: str) -> None:
    """Of two columns, the warps have accessed only the first."""
    two = f"tcgen05.{access}.sync.aligned.32x32b.x2.b32 "
    two += "{%r9, %r10}, [%r2];" if access == "ld" else "[%r2], {%r93, %r93};"
    assert strict(WRITE, LOAD, WAIT_LD, two, WAIT_LD, WAIT_ST)[1] == []


# Products with the first 16 columns of D, which the manual does not order before those with all of it.
SMALL = [f"mov.u32 %r5, {instruction(128, 16, 'f16')};", *MMA[1:5]]


@pytest.mark.parametrize(
    ("asked", "lacking"),
    [("tensor_fence", [NO_FENCE]), ("tensor_order", [NO_PAIR]), ("tensor_fence,tensor_order", [NO_PAIR])],
)
def test_an_order_that_is_not_asked_for_hides_no_fence(asked: str, lacking: list[str]) -> None:
    """A product whose D is that of a smaller one, and of a store without a fence."""
    store = STORE.replace("[%r2]", "[%r2+16]")
    start = by_one_thread([*SMALL, MMA[0], MMA[4], commit()])
    got = reported(ADDRESS, store, WAIT_ST, "bar.sync 0;", start, wait(), sanitize=asked)[1]
    assert [m.rpartition("; ")[2] for m in got] == lacking


@pytest.mark.parametrize(
    ("asked", "lacking"),
    [("tensor_fence", [NO_FENCE]), ("tensor_order", [NO_PAIR]), ("tensor_fence,tensor_order", [NO_FENCE])],
)
def test_a_fence_that_is_not_asked_for_hides_no_order(asked: str, lacking: list[str]) -> None:
    """A product whose A has been stored without a fence, and whose D is that of a smaller one."""
    of_a = [f"add.u32 %r80, {TENSOR}, 64;", MMA[0], LAST.replace("%rd1", "[%r80]")]
    start = by_one_thread([*SMALL, *of_a, commit()])
    got = reported(ADDRESS, STORE_A, WAIT_ST, "bar.sync 0;", start, wait(), sanitize=asked)[1]
    assert [m.rpartition("; ")[2] for m in got] == lacking


def test_64_rows_of_a_in_tensor_memory_are_written_before_a_product_reads_them() -> None:
    """Warp 0 alone stores its rows."""
    start = OF_A.replace(MMA[0], f"mov.u32 %r5, {instruction(64, N, 'f16')};")
    body = [ADDRESS, f"@!%p9 bra $stored;\n{STORE_A}\n$stored:", WAIT_ST, "bar.sync 0;", start, wait(), LOAD]
    text, got = reported(*body, of_thread(32), sanitize="init")
    assert got == unwritten(text, 32, 32 << 16 | 64, "[%r80],")


def test_an_undefined_register_is_followed_through_a_in_tensor_memory() -> None:
    store = STORE_A.replace("%r93}", "%r397}")
    body = [ADDRESS, store, WAIT_ST, "bar.sync 0;", OF_A, wait(), LOAD, of_thread(0)]
    text, got = reported(*body, sanitize="init")
    assert got == undefined(text, "%r397", store)


@pytest.mark.parametrize("byte", [4, 12, 16])
def test_each_word_of_shared_memory_has_its_origin(byte: int) -> None:
    """The word is of the first row of A."""
    spoil = f"@%p8 st.shared.u32 [{BUFFER}+{MBARRIERS + byte}], %r399;"
    other = spoil.replace(f"{MBARRIERS + byte}]", f"{MBARRIERS + byte + 4}]").replace("%r399", "%r398")
    start = by_one_thread([*MMA, commit()])
    text, got = reported(
        other, spoil, "fence.proxy.async;", start, wait(), ADDRESS, LOAD, of_thread(0), sanitize="init"
    )
    assert got == undefined(text, "%r399", spoil)


def test_the_manual_orders_no_products_whose_d_begins_at_different_columns() -> None:
    """The second product has as many columns as the first, and shares the first half of its own with it."""
    shifted = [f"add.u32 %r80, {TENSOR}, {N // 2};", MMA_LINES[-1].replace("[%r90]", "[%r80]")]
    got = strict(by_one_thread([*MMA, *shifted, commit()]), wait())[1]
    assert [m.rpartition("; ")[2] for m in got] == [NO_PAIR]


@pytest.mark.parametrize("waits", [False, True])
def test_each_quarter_of_the_lanes_has_scale_factors_of_16_columns(waits: bool) -> None:
    """Warp 1 stores to those of its lanes."""
    store = "tcgen05.st.sync.aligned.32x32b.x4.b32 [%r2+64], {%r93, %r93, %r93, %r93};"
    mma = "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale [%r90], %rd1, %rd2, %r5, [%r80], [%r81], %p1;"
    idesc = f"mov.u32 %r5, {1 << 27 | 16 >> 3 << 17 | 1 << 23};"
    ready = [f"add.u32 %r80, {TENSOR}, 64;", f"add.u32 %r81, {TENSOR}, 96;", "setp.ne.u32 %p1, %r5, %r5;"]
    start = by_one_thread([*MMA[:4], idesc, *ready, mma, commit()])
    later = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r2+96], {%r93};"
    second = f"shr.u32 %r3, {THREAD}, 5;\nsetp.eq.u32 %p6, %r3, 1;\n@!%p6 bra $others;\n{later}\n$others:"
    factors = [ADDRESS, store, later, WAIT_ST, "bar.sync 0;"]
    text, got = reported(*factors, start, wait() if waits else "", second, WAIT_ST, "" if waits else wait())
    wanted = (
        f"{at(text, later, 32, 1)}race: tensor address 0x200060 may still be read by thread (0, 0, 0) in "
        f"{located(text, mma)}; {NO_COMMIT}"
    )
    assert got == [wanted] * (not waits)


def test_undefined_columns_of_b_leave_rows_of_a_in_tensor_memory_alone() -> None:
    eight = ", ".join(["%r93"] * 8)
    store = f"tcgen05.st.sync.aligned.32x32b.x8.b32 [%r2+64], {{{eight}}};"
    spoil = [f"@%p8 st.shared.u32 [{BUFFER}+{MBARRIERS + (1 << 15)}], %r399;", "fence.proxy.async;"]
    start = by_one_thread(
        [f"add.u32 %r80, {TENSOR}, 64;", *MMA[:-1], LAST.replace("%rd1", "[%r80]"), commit()]
    )
    for column in (0, 1):
        load = LOAD.replace("[%r2]", f"[%r2+{column}]")
        body = [*spoil, ADDRESS, store, WAIT_ST, "bar.sync 0;", start, wait(), load, of_thread(32)]
        got = reported(*body, sanitize="init")[1]
        assert [("depends on %r399" in m) for m in got] == [True] * (column == 0)


def test_undefined_bits_are_those_of_the_product_s_cta() -> None:
    second = "mov.u32 %r3, %ctaid.x;\nsetp.eq.and.u32 %p6, %r3, 1, %p8;"
    spoil = f"{second}\n@%p6 st.shared.u32 [{BUFFER}+{MBARRIERS}], %r399;"
    start = by_one_thread([*MMA, commit()])
    use = f"setp.eq.and.u32 %p6, %r3, {{}}, %p8;\n@%p6 {USE}"
    for cta in range(3):
        body = [
            *(spoil, "fence.proxy.async;", start, wait(), ADDRESS, LOAD, "mov.u32 %r3, %ctaid.x;"),
            use.format(cta),
        ]
        text = kernel("\n".join(body), nbytes=1 << 16)
        args = [np.zeros(3 << 16, np.uint8), np.zeros((LANES, N), np.uint32)]
        got = messages(text, args, grid=3, block=LANES, sanitize="init")
        assert [("depends on %r399" in m) for m in got] == [True] * (cta == 1)
