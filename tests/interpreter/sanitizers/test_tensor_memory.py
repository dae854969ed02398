"""What the sanitizers say of tensor memory: each report with the text that earns it, and with its correct
twin, which has none.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest
from interpreter.machine.test_tcgen05_products import drawn, image, steps, with_rows
from interpreter.programs import at, located
from interpreter.reported import messages
from interpreter.tensor_texts import (
    BUFFER,
    LANE,
    LANES,
    MBARRIER,
    MBARRIERS,
    TENSOR,
    THREAD,
    by_one_thread,
    commit,
    instruction,
    kernel,
    moved,
    wait,
)

N: Final = 32
IDESC: Final = instruction(128, N, "f16")
MMA: Final = steps("f16", IDESC)
MMA_LINES: Final = [line for line in MMA if "tcgen05.mma" in line]
ADDRESS: Final = f"add.u32 %r2, {TENSOR}, {LANE};"
NO_COMMIT: Final = "this thread has not waited for the mbarrier of a tcgen05.commit after it"
NO_WAIT: Final = "its warp has not waited for it with tcgen05.wait::st"
LOAD: Final = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r9}, [%r2];"
STORE: Final = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r2], {%r93};"
USE: Final = "st.global.u32 [%rd91], %r9;"
WAIT_ST: Final = "tcgen05.wait::st.sync.aligned;"
WRITE: Final = f"{ADDRESS}\n{STORE}\n{WAIT_ST}"


def reported(
    *body: str, sanitize: str = "race,sync,proxy", target: str = "sm_100a", block: int = LANES
) -> tuple[str, list[str]]:
    """A kernel and what sanitizers say of it."""
    text = kernel("\n".join(body), nbytes=1 << 16, target=target)
    x = with_rows(image(drawn("f16", 128), drawn("f16", N, 2)), np.zeros((LANES, N), np.float32))
    return text, messages(text, [x, np.zeros((LANES, N), np.uint32)], block=block, sanitize=sanitize)


def race(
    text: str, here: str, there: str, lacking: str, thread: int = 0, nth: tuple[int, int] = (0, 0)
) -> str:
    """The report of an instruction, after another one of thread 0, at the first cell."""
    what = "was read by" if there.startswith("tcgen05.ld") else "was written by"
    return (
        f"{at(text, here, thread, nth[0])}race: tensor address {thread << 16:#x} {what} "
        f"thread ({thread}, 0, 0) in {located(text, there, nth[1])}; {lacking}"
    )


def test_a_product_is_there_for_who_has_waited_for_its_commit() -> None:
    start = by_one_thread([*MMA, commit()])
    text, got = reported(start, "bar.sync 0;", moved(0, N, to="out"), wait())
    assert got == [
        f"{at(text, 'tcgen05.ld', nth=n).replace('+0]', ']')}race: tensor address {8 * n:#x} "
        f"was written by thread (0, 0, 0) in {located(text, 'tcgen05.mma', 3)}; {NO_COMMIT}"
        for n in range(N // 8)
    ]
    assert reported(start, wait(), moved(0, N, to="out"))[1] == []
    assert reported(start, "bar.sync 0;", moved(0, N, to="out"), wait(), sanitize="sync")[1] == []
    # One thread may wait for all, who come after it by a barrier.
    only = wait().replace("$wait0:", "@!%p8 bra $over;\n$wait0:") + "\n$over:\nbar.sync 0;"
    assert reported(start, only, moved(0, N, to="out"))[1] == []


@pytest.mark.parametrize("waits", [False, True])
def test_d_is_not_stored_to_under_a_product(waits: bool) -> None:
    start = by_one_thread([*MMA, commit()])
    text, got = reported(start, wait() if waits else "bar.sync 0;", WRITE, "" if waits else wait())
    wanted = race(text, STORE, "tcgen05.mma", NO_COMMIT, nth=(0, 3))
    assert got == [wanted] * (not waits)


@pytest.mark.parametrize("waits", [False, True])
def test_a_store_is_there_for_others_behind_its_wait(waits: bool) -> None:
    body = [ADDRESS, STORE, WAIT_ST if waits else "", "bar.sync 0;", by_one_thread([*MMA, commit()]), wait()]
    text, got = reported(*body)
    wanted = (
        f"{at(text, 'tcgen05.mma')}pending: tensor address 0x0 may still be written by "
        f"{located(text, STORE)}; {NO_WAIT}"
    )
    assert got == [wanted] * (not waits)


@pytest.mark.parametrize("waits", [False, True])
def test_a_warp_does_not_load_what_it_has_stored_without_a_wait(waits: bool) -> None:
    text, got = reported(ADDRESS, STORE, WAIT_ST if waits else "", LOAD, WAIT_ST, USE)
    wanted = (
        f"{at(text, LOAD)}pending: tensor address 0x0 may still be written by "
        f"{located(text, STORE)}; {NO_WAIT}"
    )
    assert [m for m in got if "tensor" in m] == [wanted] * (not waits)


def test_stores_of_one_warp_need_no_wait_between_them() -> None:
    assert reported(ADDRESS, STORE, STORE, WAIT_ST)[1] == []


def test_each_warp_that_may_load_a_lane_is_waited_for() -> None:
    """Warps 0 and 4 load the same lanes, and warp 4 stores to them."""
    later = f"setp.ge.u32 %p6, {THREAD}, 128;\n@!%p6 bra $stored;\n{STORE}\n{WAIT_ST}\n$stored:"
    lanes = f"and.b32 {LANE}, {LANE}, {3 << 21};"
    start = f"{lanes}\n@%p6 bra $written;\n{WRITE}\n$written:\n{ADDRESS}\nbar.sync 0;"
    text, got = reported(f"setp.ge.u32 %p6, {THREAD}, 128;", start, LOAD, later, block=256)
    wanted = (
        f"{at(text, STORE, 128, 1)}race: tensor address 0x0 was read by thread (0, 0, 0) in "
        f"{located(text, LOAD)}; no barrier orders the two"
    )
    assert got == [wanted]
    assert reported(f"setp.ge.u32 %p6, {THREAD}, 128;", start, LOAD, "bar.sync 0;", later, block=256)[1] == []


@pytest.mark.parametrize("meet", ["", "bar.sync 0;"])
def test_a_product_comes_after_loads_and_stores_by_a_barrier(meet: str) -> None:
    body = [WRITE, LOAD, meet, by_one_thread([*MMA, commit()]), wait()]
    text, got = reported(*body)
    no_barrier = "no barrier orders the two"
    wanted = (
        f"{at(text, 'tcgen05.mma')}race: tensor address 0x200000 was written by thread (32, 0, 0) in "
        f"{located(text, STORE)}; {no_barrier}"
    )
    assert got == [wanted] * (not meet)
    text, got = reported(WRITE, "bar.sync 0;", LOAD, meet, by_one_thread([*MMA, commit()]), wait())
    wanted = (
        f"{at(text, 'tcgen05.mma')}race: tensor address 0x200000 was read by thread (32, 0, 0) in "
        f"{located(text, LOAD)}; {no_barrier}"
    )
    assert got == [wanted] * (not meet)


@pytest.mark.parametrize("waits", [False, True])
def test_a_stage_is_free_behind_the_wait_for_its_commit(waits: bool) -> None:
    store = f"st.shared.u32 [{BUFFER}+{MBARRIERS}], %r9;"
    start = by_one_thread([*MMA, commit()])
    text, got = reported(start, wait() if waits else "", f"@%p8 {store}", "" if waits else wait())
    wanted = (
        f"{at(text, store)}race: shared address {MBARRIERS:#x} (buf) may still be read by "
        f"thread (0, 0, 0) in {located(text, 'tcgen05.mma')}; {NO_COMMIT}"
    )
    assert got == [wanted] * (not waits)


def test_a_stage_is_that_of_the_product_s_cta() -> None:
    store = f"st.shared.u32 [{BUFFER}+{MBARRIERS}], %r9;"
    second = f"mov.u32 %r3, %ctaid.x;\nsetp.eq.and.u32 %p6, %r3, 1, %p8;\n@%p6 {store}"
    text = kernel("\n".join([by_one_thread([*MMA, commit()]), second, wait()]), nbytes=1 << 16)
    args = [np.zeros(3 << 16, np.uint8), np.zeros((LANES, N), np.uint32)]
    (got,) = messages(text, args, grid=3, block=LANES, sanitize="race")
    assert "thread (0, 0, 0) of CTA (1, 0, 0)" in got


@pytest.mark.parametrize("fence", ["", "fence.proxy.async;"])
def test_products_read_shared_memory_through_the_asynchronous_proxy(fence: str) -> None:
    store = f"st.shared.u32 [{BUFFER}+{MBARRIERS}], %r9;"
    text, got = reported(f"@%p8 {store}", fence, by_one_thread([*MMA, commit()]), wait())
    wanted = (
        f"{at(text, 'tcgen05.mma')}proxy: shared address {MBARRIERS:#x} (buf) was "
        f"written by thread (0, 0, 0) in {located(text, store)}; no fence.proxy.async lets asynchronous "
        "operations see it"
    )
    assert got == [wanted] * (not fence)


def test_columns_are_freed_behind_the_wait_for_products() -> None:
    text, got = reported(by_one_thread(MMA))
    assert got == [race(text, "tcgen05.dealloc", "tcgen05.mma", NO_COMMIT, nth=(0, 3))]


@pytest.mark.parametrize("where", ["none", "same", "later"])
def test_arrivals_are_waited_for_before_the_end(where: str) -> None:
    other = commit().replace(f"[{MBARRIER}]", f"[{MBARRIER}+8]")
    init = f"@%p8 mbarrier.init.shared.b64 [{MBARRIER}+8], 1;\nbar.sync 0;"
    # An arrival behind the same operations comes with the one that has been waited for.
    lines = {
        "none": [*MMA, commit()],
        "same": [*MMA, commit(), other],
        "later": [*MMA, commit(), MMA[-1], other],
    }
    text, got = reported(init, by_one_thread(lines[where]), wait())
    wanted = (
        f"{at(text, other)}sync: shared address 0x8 (buf): the arrival may still be under way when all "
        "threads have ended: none has waited for it"
        if where == "later"
        else ""
    )
    assert [m for m in got if "arrival" in m] == [wanted] * (where == "later")


# ---------------------------------------- which cells an operation uses

HALF: Final = "tcgen05.ld.sync.aligned.16x64b.x1.b32 {%r9}, [%r2];"
LAST: Final = MMA_LINES[-1]


@pytest.mark.parametrize("waits", [False, True])
def test_a_in_tensor_memory_is_free_behind_the_wait_for_its_commit(waits: bool) -> None:
    held = [f"add.u32 %r80, {TENSOR}, 64;", *MMA[:-1], LAST.replace("%rd1", "[%r80]"), commit()]
    store = ["add.u32 %r2, %r2, 64;", STORE, WAIT_ST, "" if waits else wait()]
    start = [by_one_thread(held), wait() if waits else ""]
    text, got = reported("bar.sync 0;", *start, ADDRESS, *store)
    wanted = (
        f"{at(text, STORE)}race: tensor address 0x40 may still be read by thread (0, 0, 0) in "
        f"{located(text, '[%r80]')}; {NO_COMMIT}"
    )
    assert got == [wanted] * (not waits)


@pytest.mark.parametrize("waits", [False, True])
def test_a_copy_is_there_for_who_has_waited_for_its_commit(waits: bool) -> None:
    copy = "tcgen05.cp.cta_group::1.128x256b [%r90], %rd1;"
    start = by_one_thread([*MMA[:4], copy, commit()])
    text, got = reported(start, wait() if waits else "bar.sync 0;", ADDRESS, LOAD, "" if waits else wait())
    assert got == [race(text, LOAD, copy, NO_COMMIT)] * (not waits)


@pytest.mark.parametrize(("mask", "m", "wrong"), [(0, 128, True), (0xFFFF, 128, False), (0, 64, False)])
def test_lanes_that_a_product_does_not_write_may_be_loaded(mask: int, m: int, wrong: bool) -> None:
    """A product with M of 64 from lane 16 on leaves the lower half of each quarter alone."""
    lanes = [f"mov.u32 %r{80 + n}, {mask if n == 0 else 0};" for n in range(4)]
    d = f"add.u32 %r84, {TENSOR}, {0x100000 if m == 64 else 0};"
    one = LAST.replace("[%r90]", "[%r84]").replace("%p1;", "{%r80, %r81, %r82, %r83}, %p1;")
    idesc = f"mov.u32 %r5, {instruction(m, N, 'f16')};"
    start = by_one_thread([*lanes, d, *MMA[:-1], idesc, one, commit()]).replace(MMA_LINES[0], "")
    text, got = reported(
        start, "bar.sync 0;", ADDRESS, "@%p9 bra $first;\nbra.uni $others;\n$first:", HALF, "$others:", wait()
    )
    assert got == [race(text, HALF, "[%r84]", NO_COMMIT)] * wrong


# ---------------------------------------- undefined bits


@pytest.mark.parametrize("written", [False, True])
def test_cells_that_nothing_has_written_do_not_leave_the_kernel(written: bool) -> None:
    text, got = reported(WRITE if written else ADDRESS, LOAD, f"@%p8 {USE}", sanitize="init")
    wanted = (
        f"{at(text, USE)}uninitialised: byte 0 of out when the kernel ends depends on tensor address 0x0, "
        f"which nothing has written; it was read by {located(text, LOAD)}"
    )
    assert got == [wanted] * (not written)


@pytest.mark.parametrize("use", [False, True])
def test_a_product_adds_to_what_has_been_written(use: bool) -> None:
    lines = [line.replace("%p1;", "%p6;") for line in MMA] if use else MMA
    start = by_one_thread(["setp.eq.u32 %p6, %r93, %r93;", *lines, commit()])
    got = reported(start, wait(), ADDRESS, LOAD, f"@%p8 {USE}", sanitize="init")[1]
    assert [("tensor address 0x0, which nothing has written" in m) for m in got] == [True] * use


def test_undefined_registers_are_followed_through_tensor_memory() -> None:
    store = "tcgen05.st.sync.aligned.32x32b.x2.b32 [%r2], {%r93, %r399};"
    load = "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r9, %r10}, [%r2];"
    body = [ADDRESS, store, WAIT_ST, load]
    assert reported(*body, f"@%p8 {USE}", sanitize="init")[1] == []
    text, got = reported(*body, "@%p8 st.global.u32 [%rd91], %r10;", sanitize="init")
    assert got == [
        f"{at(text, 'st.global.u32')}undefined: byte 0 of out when the kernel ends depends on %r399, which "
        f"it has not written; it was read by {located(text, store)}"
    ]


def test_one_undefined_bit_is_followed_through_tensor_memory() -> None:
    bit = "and.b32 %r398, %r399, 1;"
    text, got = reported(
        bit, ADDRESS, STORE.replace("%r93", "%r398"), WAIT_ST, LOAD, f"@%p8 {USE}", sanitize="init"
    )
    assert got == [
        f"{at(text, USE)}undefined: byte 0 of out when the kernel ends depends on %r399, which it has not "
        f"written; it was read by {located(text, bit)}"
    ]


@pytest.mark.parametrize("thread", [0, 1])
@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize("operand", ["A", "B"])
def test_a_row_of_a_and_a_column_of_b_make_d_undefined(operand: str, thread: int, column: int) -> None:
    byte = MBARRIERS + (1 << 15) * (operand == "B")
    spoil = [f"@%p8 st.shared.u32 [{BUFFER}+{byte}], %r399;", "fence.proxy.async;"]
    start = by_one_thread([*MMA, commit()])
    load = LOAD.replace("[%r2]", f"[%r2+{column}]" if column else "[%r2]")
    use = f"setp.eq.u32 %p6, %r93, {thread};\n@%p6 {USE}"
    text, got = reported(*spoil, start, wait(), ADDRESS, load, use, sanitize="init")
    wrong = thread == 0 if operand == "A" else column == 0
    assert [m.partition("undefined: ")[2] for m in got] == [
        "byte 0 of out when the kernel ends depends on %r399, which it has not written; it was read by "
        f"{located(text, 'st.shared.u32')}"
    ] * wrong


@pytest.mark.parametrize(("written", "of_a", "of_b"), [(False, 80, 81), (True, 80, 80), (False, 81, 80)])
def test_scale_factors_make_d_undefined(written: bool, of_a: int, of_b: int) -> None:
    """Those at register 80 are at column 64, those at register 81 are written."""
    scales = f"[%r{of_a}], [%r{of_b}]"
    mma = f"tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale [%r90], %rd1, %rd2, %r5, {scales}, %p1;"
    idesc = f"mov.u32 %r5, {1 << 27 | N >> 3 << 17 | 1 << 23};"
    store = "tcgen05.st.sync.aligned.32x32b.x4.b32 [%r2+64], {%r93, %r93, %r93, %r93};"
    other = store.replace("+64", "+96")
    ready = [ADDRESS, other, store if written else "", WAIT_ST, "bar.sync 0;"]
    ready += [f"add.u32 %r80, {TENSOR}, 64;", f"add.u32 %r81, {TENSOR}, 96;"]
    start = by_one_thread([*MMA[:4], idesc, "setp.ne.u32 %p1, %r5, %r5;", mma, commit()])
    text, got = reported(*ready, start, wait(), ADDRESS, LOAD, f"@%p8 {USE}", sanitize="init")
    wanted = (
        f"{at(text, USE)}uninitialised: byte 0 of out when the kernel ends depends on tensor address 0x40, "
        f"which nothing has written; it was read by {located(text, mma)}"
    )
    assert got == [wanted] * (not written)


def of_thread(thread: int) -> str:
    return f"setp.eq.u32 %p6, %r93, {thread};\n@%p6 {USE}"


def undefined(text: str, register: str, reader: str) -> list[str]:
    """The report of a use of a register that has not been written, or of a cell."""
    return [
        f"{at(text, f'@%p6 {USE}')}undefined: byte 0 of out when the kernel ends depends on {register}, "
        f"which it has not written; it was read by {located(text, reader)}"
    ]


def unwritten(text: str, thread: int, address: int, reader: str) -> list[str]:
    return [
        f"{at(text, f'@%p6 {USE}', thread)}uninitialised: byte 0 of out when the kernel ends depends on "
        f"tensor address {address:#x}, which nothing has written; it was read by {located(text, reader)}"
    ]


@pytest.mark.parametrize("thread", [0, 16])
def test_a_store_to_half_of_a_warps_lanes_leaves_the_others_undefined(thread: int) -> None:
    half = "tcgen05.st.sync.aligned.16x64b.x1.b32 [%r2], {%r93};"
    text, got = reported(ADDRESS, half, WAIT_ST, LOAD, of_thread(thread), sanitize="init")
    assert got == (unwritten(text, 16, 16 << 16, LOAD) if thread else [])


@pytest.mark.parametrize("thread", [0, 16])
def test_a_product_of_64_rows_leaves_the_other_lanes_undefined(thread: int) -> None:
    start = by_one_thread([*steps("f16", instruction(64, N, "f16")), commit()])
    text, got = reported(start, wait(), ADDRESS, LOAD, of_thread(thread), sanitize="init")
    assert got == (unwritten(text, 16, 16 << 16, LOAD) if thread else [])


def test_undefined_products_leave_the_origin_of_other_undefined_cells_alone() -> None:
    spoil = [f"@%p8 st.shared.u32 [{BUFFER}+{MBARRIERS}], %r399;", "fence.proxy.async;"]
    store = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r2+100], {%r397};"
    start = [ADDRESS, store, WAIT_ST, by_one_thread([*MMA, commit()]), wait()]
    text, got = reported(*spoil, *start, LOAD.replace("[%r2]", "[%r2+100]"), of_thread(0), sanitize="init")
    assert got == undefined(text, "%r397", store)


def test_one_undefined_bit_is_followed_through_a_copy() -> None:
    bit = "and.b32 %r398, %r399, 1;"
    spoil = [bit, f"@%p8 st.shared.u32 [{BUFFER}+{MBARRIERS}], %r398;", "fence.proxy.async;"]
    start = by_one_thread([*MMA[:4], "tcgen05.cp.cta_group::1.128x256b [%r90], %rd1;", commit()])
    text, got = reported(*spoil, start, wait(), ADDRESS, LOAD, of_thread(0), sanitize="init")
    assert got == undefined(text, "%r399", bit)


@pytest.mark.parametrize("all_warps", [False, True])
def test_rows_of_a_in_tensor_memory_are_written_before_a_product_reads_them(all_warps: bool) -> None:
    eight = ", ".join(["%r93"] * 8)
    store = f"tcgen05.st.sync.aligned.32x32b.x8.b32 [%r2+64], {{{eight}}};"
    first = store if all_warps else f"@!%p9 bra $stored;\n{store}\n$stored:"
    mma = LAST.replace("%rd1", "[%r80]")
    start = by_one_thread([f"add.u32 %r80, {TENSOR}, 64;", *MMA[:-1], mma, commit()])
    body = [ADDRESS, first, WAIT_ST, "bar.sync 0;", start, wait(), LOAD, of_thread(32)]
    text, got = reported(*body, sanitize="init")
    assert got == ([] if all_warps else unwritten(text, 32, 32 << 16 | 64, mma))


def test_a_row_of_a_in_tensor_memory_is_undefined_if_one_of_its_cells_is() -> None:
    store = "tcgen05.st.sync.aligned.32x32b.x4.b32 [%r2+64], {%r93, %r93, %r93, %r93};"  # 4 columns of 8
    mma = LAST.replace("%rd1", "[%r80]")
    start = by_one_thread([f"add.u32 %r80, {TENSOR}, 64;", *MMA[:-1], mma, commit()])
    body = [ADDRESS, store, WAIT_ST, "bar.sync 0;", start, wait(), LOAD, of_thread(32)]
    text, got = reported(*body, sanitize="init")
    assert got == unwritten(text, 32, 68, mma)


@pytest.mark.parametrize("register", ["%r10", "%r11"])
def test_the_extreme_of_undefined_cells_is_undefined(register: str) -> None:
    load = "tcgen05.ld.red.sync.aligned.32x32b.x2.min.u32 {%r9, %r10}, %r11, [%r2];"
    text, got = reported(
        WRITE, load, f"@%p8 {USE}".replace("%r9", register), sanitize="init", target="sm_103a"
    )
    assert got == [
        f"{at(text, 'st.global.u32')}uninitialised: byte 0 of out when the kernel ends depends on tensor "
        f"address 0x1, which nothing has written; it was read by {located(text, load)}"
    ]


# ---------------------------------------- the order of the manual

BEFORE: Final = "tcgen05.fence::before_thread_sync;"
AFTER: Final = "tcgen05.fence::after_thread_sync;"
WAIT_LD: Final = "tcgen05.wait::ld.sync.aligned;"


def strict(*body: str) -> tuple[str, list[str]]:
    return reported(*body, sanitize="all,tensor_fence,tensor_order")


def test_the_manual_asks_for_a_fence_behind_the_wait_for_a_commit() -> None:
    start = by_one_thread([*MMA, commit()])
    text, got = strict(start, wait().replace(AFTER, ""), ADDRESS, LOAD, WAIT_LD, f"@%p8 {USE}")
    assert got == [
        f"{at(text, LOAD)}tensor_fence: tensor address 0x0 was written by thread (0, 0, 0) in "
        f"{located(text, 'tcgen05.mma', len(MMA_LINES) - 1)}; this thread has executed no "
        "tcgen05.fence::after_thread_sync since the two were ordered"
    ]
    assert strict(start, wait(), ADDRESS, LOAD, WAIT_LD, f"@%p8 {USE}")[1] == []


def test_the_manual_asks_for_a_fence_before_a_load_of_any_cell_of_a_product() -> None:
    """The load has a column of the product, and one that its warp has stored."""
    store, two = STORE.replace("[%r2]", f"[%r2+{N}]"), "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r9, %r10}"
    start = [ADDRESS, store, WAIT_ST, by_one_thread([*MMA, commit()])]
    for after, count in (("", 1), (AFTER, 0)):
        load = [wait().replace(AFTER, after), f"{two}, [%r2+{N - 1}];", WAIT_LD]
        got = strict(*start, *load)[1]
        assert len([m for m in got if "no tcgen05.fence::after_thread_sync" in m]) == len(got) == count


@pytest.mark.parametrize("at_fence", [0, 1, 2])
def test_the_manual_asks_for_a_fence_behind_stores_and_before_a_barrier(at_fence: int) -> None:
    start = by_one_thread([*MMA, commit()])
    lines = [WRITE, "bar.sync 0;"]
    lines.insert(at_fence, BEFORE)
    fence = at_fence == 1
    text, got = strict(*lines, AFTER, start, wait())
    wanted = (
        f"{at(text, 'tcgen05.mma')}tensor_fence: tensor address 0x200000 was written by thread (32, 0, 0) in "
        f"{located(text, STORE)}; its thread has executed no tcgen05.fence::before_thread_sync after it"
    )
    assert got == [wanted] * (not fence)


@pytest.mark.parametrize("waits", [False, True])
def test_the_manual_asks_for_a_wait_behind_loads(waits: bool) -> None:
    start = by_one_thread([*MMA, commit()])
    loads = [LOAD, WAIT_LD] if waits else [WAIT_LD, LOAD]
    body = [WRITE, *loads, BEFORE, "bar.sync 0;", AFTER, start, wait()]
    text, got = strict(*body)
    wanted = (
        f"{at(text, 'tcgen05.mma')}tensor_fence: tensor address 0x0 was read by thread (0, 0, 0) in "
        f"{located(text, LOAD)}; its warp has not waited for it with tcgen05.wait::ld"
    )
    assert got == [wanted] * (not waits)


@pytest.mark.parametrize("n", [16, N])
def test_the_manual_orders_products_of_one_thread_with_one_d_and_shape(n: int) -> None:
    idesc = instruction(128, n, "f16")
    further = [f"mov.u32 %r5, {idesc};", MMA_LINES[-1]]
    text, got = strict(by_one_thread([*MMA, *further, commit()]), wait())
    wanted = (
        f"{at(text, 'tcgen05.mma', nth=len(MMA_LINES))}tensor_order: tensor address 0x0 was written by "
        f"thread (0, 0, 0) in {located(text, 'tcgen05.mma', len(MMA_LINES) - 1)}; the manual does not order "
        "these two operations of one thread without a wait between them"
    )
    assert got == [wanted] * (n != N)


NO_PAIR: Final = "the manual does not order these two operations of one thread without a wait between them"


def test_the_manual_orders_no_products_that_share_a_part_of_d() -> None:
    small = [f"mov.u32 %r5, {instruction(128, 16, 'f16')};", *MMA[1:5]]
    further = [f"mov.u32 %r5, {IDESC};", MMA[4]]
    got = strict(by_one_thread([*small, *further, commit()]), wait())[1]
    assert [m.rpartition("; ")[2] for m in got] == [NO_PAIR]


@pytest.mark.parametrize("before", [False, True])
def test_the_manual_orders_a_copy_before_a_product(before: bool) -> None:
    copy = "tcgen05.cp.cta_group::1.128x256b [%r90], %rd1;"
    lines = [*MMA[:4], copy, MMA[4]] if before else [*MMA[:5], copy]
    got = strict(by_one_thread([*lines, commit()]), wait())[1]
    assert [m.rpartition("; ")[2] for m in got] == [NO_PAIR] * (not before)


def test_the_manual_asks_for_no_wait_behind_loads_of_what_the_warp_has_stored_since() -> None:
    start = by_one_thread([*MMA, commit()])
    body = [WRITE, LOAD, STORE, WAIT_ST, BEFORE, "bar.sync 0;", AFTER, start, wait()]
    assert strict(*body)[1] == []
