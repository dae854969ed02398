"""The allocator of tensor memory: addresses, waits for room and for the other CTA of a pair, and mistakes."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest
from interpreter.both_paths import run_both_ways
from interpreter.programs import at, deadlock, located, named, ptx
from interpreter.reported import kinds, messages, trap

from ptxgen.interpreter import run

ALLOC: Final = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"
FREE: Final = "tcgen05.dealloc.cta_group::1.sync.aligned.b32"
RELINQUISH: Final = "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;"
# The warp's number in %r1, the buffer in %r2, and the address of x in %rd1.
HEAD: Final = """
    ld.param.u64 %rd1, [x];
    mov.u32 %r0, %tid.x;
    shr.u32 %r1, %r0, 5;
    mov.u32 %r2, buf;
"""


def text_of(body: str) -> str:
    return ptx(HEAD + body, "u64 x", shared=64, target="sm_100a", version="8.8")


def allocated(columns: int, slot: int) -> str:
    """Allocate columns, with their address in register %r10 + slot."""
    at = f"%r2+{4 * slot}" if slot else "%r2"
    return f"{ALLOC} [{at}], {columns};\nbar.warp.sync 0xffffffff;\nld.shared.u32 %r{10 + slot}, [{at}];"


def freed(columns: int, slot: int) -> str:
    return f"{FREE} %r{10 + slot}, {columns};"


def written(*slots: int) -> str:
    return "\n".join(f"st.global.u32 [%rd1+{4 * n}], %r{10 + slot};" for n, slot in enumerate(slots))


def result_of(body: str, count: int, warps: int = 1) -> list[int]:
    x = np.zeros(count, np.uint32)
    run_both_ways(text_of(body), args=[x], grid=1, block=32 * warps)
    return x.tolist()


def test_an_allocation_of_all_columns_begins_at_0() -> None:
    assert result_of("\n".join([allocated(512, 0), written(0), freed(512, 0)]), 1) == [0]


def test_an_allocation_takes_the_lowest_columns_that_are_free_side_by_side() -> None:
    body = [
        *(allocated(n, slot) for slot, n in enumerate((128, 128, 64, 64))),
        freed(128, 1),
        freed(64, 3),
        allocated(64, 4),  # the beginning of what 1 had
        allocated(64, 5),
        allocated(64, 6),  # where 3 was: after 4 and 5 there is no room below
        allocated(32, 7),
        written(0, 1, 2, 3, 4, 5, 6, 7),
        *(freed(n, slot) for slot, n in ((0, 128), (2, 64), (4, 64), (5, 64), (6, 64), (7, 32))[:1]),
        *(freed(64, slot) for slot in (2, 4, 5, 6)),
        freed(32, 7),
    ]
    assert result_of("\n".join(body), 8) == [0, 128, 256, 320, 128, 192, 320, 384]


WAITING: Final = f"""
    setp.eq.u32 %p0, %r1, 0;
    @!%p0 bra $second;
    {allocated(512, 0)}
    bar.sync 1, 64;
    {{first}}
    bra $end;
$second:
    bar.sync 1, 64;
    {allocated(256, 1)}
    st.global.u32 [%rd1], %r11;
    {freed(256, 1)}
$end:
"""


@pytest.mark.parametrize("schedule", ["lockstep", "pct:0", "pct:1", "pct:2"])
def test_a_warp_waits_for_columns_until_another_has_freed_them(schedule: str) -> None:
    work = "\n".join(["add.u32 %r3, %r3, 1;"] * 20)
    x = np.full(1, 7, np.uint32)
    text = text_of(WAITING.format(first=f"mov.u32 %r3, 0;\n{work}\n{freed(512, 0)}"))
    run_both_ways(text, args=[x], grid=1, block=64, schedule=schedule)
    assert x[0] == 0


def test_columns_that_nobody_frees_are_waited_for_for_ever() -> None:
    text = text_of(WAITING.format(first="bar.sync 2, 64;"))
    wanted = [
        f"{named(0, 32)} wait at barrier 2 (32 of 64 threads have come) in {located(text, 'bar.sync 2')}",
        f"{named(32, 32)} wait at 256 columns of tensor memory side by side (the CTA has allocated columns 0 "
        f"to 511) in {located(text, '256;')}",
    ]
    assert trap(text, [np.zeros(1, np.uint32)], block=64) == deadlock(wanted, 0, 64)


def test_a_warp_waits_for_the_allocation_of_another_that_has_asked_before() -> None:
    """Warps 1 and 2 ask for 256 columns each, while warp 0 has all."""
    text = text_of(WAITING.format(first="bar.sync 2, 96;").replace("bar.sync 1, 64;", "bar.sync 1, 96;"))
    wanted = [
        f"{named(0, 32)} wait at barrier 2 (32 of 96 threads have come) in {located(text, 'bar.sync 2')}",
        f"{named(32, 32)} wait at 256 columns of tensor memory side by side (the CTA has allocated columns 0 "
        f"to 511) in {located(text, '256;')}",
        f"{named(64, 32)} wait at the tcgen05.alloc that another warp of the CTA has begun before in "
        f"{located(text, '256;')}",
    ]
    assert trap(text, [np.zeros(1, np.uint32)], block=96) == deadlock(wanted, 0, 96)


def test_columns_that_are_freed_go_to_all_warps_that_have_room_in_them() -> None:
    """Warps 1 and 2 free their columns behind a barrier of both."""
    slot = "$second:\nshl.b32 %r3, %r1, 2;\nadd.u32 %r2, %r2, %r3;"
    text = WAITING.format(first=freed(512, 0)).replace("bar.sync 1, 64;", "bar.sync 1, 96;")
    text = text.replace("$second:", slot)
    text = text_of(
        text.replace("st.global.u32 [%rd1], %r11;", "bar.sync 3, 64;\nred.global.add.u32 [%rd1], %r11;")
    )
    x = np.zeros(1, np.uint32)
    run_both_ways(text, args=[x], grid=1, block=96)
    assert x[0] == 32 * 256


def test_an_allocation_has_no_values_of_an_earlier_one() -> None:
    cells = "%r14, [%r10];\ntcgen05.wait::ld.sync.aligned;"
    body = [
        *(allocated(32, 0), "mov.u32 %r9, 7;", "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r10], {%r9};"),
        *("tcgen05.wait::st.sync.aligned;", freed(32, 0), allocated(32, 5)),
        *(f"tcgen05.ld.sync.aligned.32x32b.x1.b32 {cells}".replace("%r14", "{%r14}"), written(4)),
        freed(32, 5),
    ]
    text, x = text_of("\n".join(body)), np.zeros(1, np.uint32)
    assert messages(text, [x]) == [
        at(text, "st.global").replace("+0]", "]")
        + "uninitialised: byte 0 of x when the kernel ends depends on tensor address 0x0, which nothing has "
        + f"written; it was read by {located(text, 'tcgen05.ld')}"
    ]
    assert x.tolist() == [0x7FC0DEAD]


def test_the_most_columns_that_a_cta_had_are_counted() -> None:
    body = [allocated(128, 0), allocated(32, 1), freed(128, 0), allocated(32, 2), freed(32, 1), freed(32, 2)]
    for text, most in ((text_of("\n".join(body)), 160), (text_of(RELINQUISH), 0)):
        assert run(text, grid=1, block=32, args=[np.zeros(1, np.uint32)]).counters.tensor_columns == most


def test_ctas_have_tensor_memory_of_their_own() -> None:
    body = "\n".join(
        [
            "mov.u32 %r5, %ctaid.x;",
            "mul.wide.u32 %rd2, %r5, 4;",
            "add.u64 %rd1, %rd1, %rd2;",
            allocated(512, 0),
        ]
    )
    x = np.full(3, 7, np.uint32)
    run_both_ways(text_of("\n".join([body, written(0), freed(512, 0)])), args=[x], grid=3, block=32)
    assert x.tolist() == [0, 0, 0]


def test_an_allocation_by_a_generic_address_is_written_there() -> None:
    generic = ALLOC.replace(".shared::cta", "")
    body = f"""
    cvta.shared.u64 %rd2, buf;
    {generic} [%rd2+8], 32;
    bar.warp.sync 0xffffffff;
    ld.shared.u32 %r10, [%r2+8];
    {RELINQUISH}
    {written(0)}
    {freed(32, 0)}
    """
    assert result_of(body, 1) == [0]


def test_who_reads_the_address_without_a_barrier_races() -> None:
    body = f"""
    setp.eq.u32 %p0, %r1, 0;
    @!%p0 bra $read;
    {allocated(32, 0)}
    {freed(32, 0)}
    bra $end;
$read:
    ld.shared.u32 %r11, [%r2];
    st.global.u32 [%rd1], %r11;
$end:
    """
    assert kinds(text_of(body), [np.zeros(1, np.uint32)], block=64, sanitize="race") == ["race"]


# ---------------------------------------- mistakes

SIZE: Final = "wanted 32, 64, 128, 256 or 512 columns of tensor memory, got"
COUNT: Final = "expected one number of columns for all threads of a warp, got"
TAKEN: Final = (
    "but the CTA has allocated columns 0 to 63; give the address that tcgen05.alloc has written, and its "
    "number of columns"
)
MISTAKES: Final = (
    (f"mov.u32 %r9, 48;\n{ALLOC} [%r2], %r9;", f"{SIZE} 48"),
    (f"mov.u32 %r9, 1024;\n{ALLOC} [%r2], %r9;", f"{SIZE} 1024"),
    (f"mov.u32 %r9, 0;\n{ALLOC} [%r2], %r9;", f"{SIZE} 0"),
    (f"add.u32 %r9, %r0, 32;\n{ALLOC} [%r2], %r9;", f"{COUNT} 0x20 and 0x21"),
    (
        f"{RELINQUISH}\n{ALLOC} [%r2], 32;",
        "the CTA has promised with tcgen05.relinquish_alloc_permit to allocate no more; allocate before that "
        "instruction",
    ),
    (
        f"{ALLOC} [%r2], 32;\n{ALLOC} [%r2], 64;",
        "an allocation of 64 columns of tensor memory follows one of 32, and a CTA's later allocations are "
        "not larger; allocate the largest first",
    ),
    (f"{allocated(64, 0)}\n{FREE} %r10, 32;", f"frees 32 columns of tensor memory at 0x0, {TAKEN}"),
    (f"{allocated(64, 0)}\n{FREE} 64, 64;", f"frees 64 columns of tensor memory at 0x40, {TAKEN}"),
    (
        f"{allocated(64, 0)}\n{FREE} %r0, 64;",
        "expected one address of tensor memory for all threads of a warp, got 0x0 and 0x1",
    ),
    (
        f"{allocated(64, 0)}\n{freed(64, 0)}\n{FREE} %r10, 64;",
        "frees 64 columns of tensor memory at 0x0, but the CTA has allocated none; give the address that "
        "tcgen05.alloc has written, and its number of columns",
    ),
    (
        "tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r2], 64;",
        "a pair has two CTAs of one cluster, and the cluster has 1; launch the kernel with an even cluster",
    ),
)


@pytest.mark.parametrize(("body", "why"), MISTAKES)
def test_a_mistake_stops_the_kernel(body: str, why: str) -> None:
    text = text_of(body)
    last = body.splitlines()[-1]
    nth = text.count(last) - 1
    assert trap(text, [np.zeros(1, np.uint32)]) == at(text, last, nth=nth) + why


def test_a_cta_that_keeps_tensor_memory_to_its_end_stops_the_kernel() -> None:
    text = text_of("\n".join([allocated(64, 0), allocated(32, 1), freed(64, 0)]))
    assert trap(text, [np.zeros(1, np.uint32)], grid=2) == (
        f"kernel k: {located(text, ' 32;')}: CTA (0, 0, 0) ends with the columns 64 to 95 of tensor memory "
        "allocated; free them with tcgen05.dealloc before the last thread ends"
    )


# ---------------------------------------- pairs

PAIR: Final = f"""
    mov.u32 %r5, %ctaid.x;
    mul.wide.u32 %rd2, %r5, 4;
    add.u64 %rd1, %rd1, %rd2;
    mov.u32 %r6, %cluster_ctarank;
    {{before}}
    {allocated(128, 0)}
    {{between}}
    {allocated(64, 1)}
    st.global.u32 [%rd1], %r11;
    {RELINQUISH}
    {freed(128, 0)}
    {freed(64, 1)}
""".replace("cta_group::1", "cta_group::2")


@pytest.mark.parametrize("schedule", ["lockstep", "pct:0", "pct:1"])
def test_both_ctas_of_a_pair_allocate_together(schedule: str) -> None:
    x = np.zeros(4, np.uint32)
    run_both_ways(
        text_of(PAIR.format(before="", between="")), args=[x], grid=4, block=32, cluster=2, schedule=schedule
    )
    assert x.tolist() == [128] * 4


def test_a_cta_waits_for_the_other_of_its_pair() -> None:
    text = text_of(PAIR.format(before="setp.eq.u32 %p0, %r6, 1;\n@%p0 exit;", between=""))
    waits = (
        f"{named(0, 32)} wait at the tcgen05.alloc of the other CTA of its pair in {located(text, ' 128;')}"
    )
    got = trap(text, [np.zeros(2, np.uint32)], grid=2, cluster=2)
    assert got == deadlock([waits], 0, 32)


def test_both_ctas_of_a_pair_allocate_the_same() -> None:
    text = text_of(
        PAIR.format(before="", between="mov.u32 %r9, 64;\nshr.u32 %r9, %r9, %r6;").replace(
            "], 64;", "], %r9;"
        )
    )
    got = trap(text, [np.zeros(2, np.uint32)], grid=2, cluster=2)
    assert got == at(text, "], %r9;") + (
        "both CTAs of a pair give the same number of columns, and this one gives 64, the other 32"
    )


def test_an_allocation_of_a_pair_is_not_larger_than_an_earlier_one_of_either_cta() -> None:
    for rank in (0, 1):
        alone = f"setp.eq.u32 %p0, %r6, {rank};\n@%p0 {ALLOC} [%r2+8], 32;"
        text = text_of(
            PAIR.format(before="", between="").replace(
                "mov.u32 %r6, %cluster_ctarank;", "mov.u32 %r6, %cluster_ctarank;\n" + alone
            )
        )
        got = trap(text, [np.zeros(2, np.uint32)], grid=2, cluster=2)
        assert got.endswith(
            "an allocation of 128 columns of tensor memory follows one of 32, and a CTA's later allocations "
            "are not larger; allocate the largest first"
        )


def test_a_pair_gets_columns_that_are_free_in_both_ctas() -> None:
    alone = f"mov.u32 %r6, %cluster_ctarank;\nsetp.eq.u32 %p0, %r6, 1;\n@%p0 {ALLOC} [%r2+8], 128;"
    text = PAIR.format(before="", between="").replace("mov.u32 %r6, %cluster_ctarank;", alone)
    got = trap(text_of(text), [np.zeros(2, np.uint32)], grid=2, cluster=2)
    assert got.endswith(
        "ends with the columns 0 to 127 of tensor memory allocated; free them with "
        "tcgen05.dealloc before the last thread ends"
    )
