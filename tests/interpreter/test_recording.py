"""The recording of a CTA's warps: clocks, waits, copies in flight, accesses to shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from interpreter.machine.test_tcgen05_products import steps
from interpreter.programs import ptx
from interpreter.tensor_texts import by_one_thread, commit, instruction, moved, ran, wait
from interpreter.tensor_texts import kernel as kernel_of_tensor_memory

from ptxgen.errors import LaunchError
from ptxgen.interpreter import run
from ptxgen.interpreter.recording import IDLE, Flight, Recorder, Recording, Wait
from ptxgen.interpreter.traffic import words_in_banks


def kernel(body: str) -> str:
    return ptx(f".shared .align 128 .b8 words[1024];\n{body}", "u64 X")


def recorded(body: str, *, threads: int = 64, grid: int = 1, most_slots: int = 100, **how: Any) -> Recording:
    """The recording of a kernel with these instructions, which has an array as its parameter."""
    text = kernel(body)
    recorder = Recorder(most_slots)
    args = [np.arange(1024, dtype=np.uint32)]
    run(text, grid=grid, block=threads, args=args, recorder=recorder, **how)
    return recorder.recording


# Warp 1 executes three instructions more before the barrier.
LATE = """
    mov.u32 %r0, %tid.x;
    setp.lt.u32 %p0, %r0, 32;
    @%p0 bra $together;
    add.u32 %r1, %r0, 1;
    add.u32 %r1, %r1, 1;
    add.u32 %r1, %r1, 1;
$together:
    bar.sync 0;
    mov.u32 %r2, words;
"""


def test_a_warp_waits_at_a_barrier_for_the_latest() -> None:
    result = recorded(LATE)
    assert result.waits == [Wait(0, 4, 7, 6, "barrier"), Wait(1, 7, 7, 6, "barrier")]
    assert result.lengths == (9, 9)
    assert result.slots.tolist() == [[0, 1, 2, 6, IDLE, IDLE, IDLE, 7, 8], [0, 1, 2, 3, 4, 5, 6, 7, 8]]


def test_a_barrier_that_threads_only_arrive_at_is_waited_for() -> None:
    result = recorded("""
    mov.u32 %r0, %tid.x;
    setp.lt.u32 %p0, %r0, 32;
    @%p0 bra $waits;
    mov.u32 %r1, 1;
    mov.u32 %r1, 2;
    bar.arrive 1, 64;
    bra $end;
$waits:
    bar.sync 1, 64;
$end:
    """)
    assert result.waits == [Wait(0, 4, 6, 7, "barrier")]


def test_only_the_first_slots_are_kept() -> None:
    result = recorded(LATE, most_slots=5)
    assert result.recorded_slots == 5
    assert result.lengths == (9, 9)
    assert result.slots.tolist() == [[0, 1, 2, 6, IDLE], [0, 1, 2, 3, 4]]


COPY = """
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, words;
    mad.lo.u32 %r1, %r0, 16, %r1;
    ld.param.u64 %rd0, [X];
    cvta.to.global.u64 %rd0, %rd0;
    cp.async.cg.shared.global [%r1], [%rd0], 16;
    cp.async.commit_group;
    cp.async.cg.shared.global [%r1+512], [%rd0], 16;
    cp.async.commit_group;
    cp.async.wait_group 1;
    mov.u32 %r2, 0;
    cp.async.wait_group 0;
"""


def test_copies_are_in_flight_until_they_are_waited_for() -> None:
    result = recorded(COPY, threads=32)
    assert result.flights == [Flight(0, 5, 9, 5, 512), Flight(0, 7, 11, 7, 512)]


def test_a_copy_that_nobody_waits_for_has_no_end() -> None:
    result = recorded(COPY.replace("    cp.async.wait_group 0;\n", ""), threads=32)
    assert result.flights == [Flight(0, 5, 9, 5, 512), Flight(0, 7, -1, 7, 512)]


def test_a_bulk_copy_flies_until_its_mbarrier_is_waited_for() -> None:
    body = """
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, words;
    setp.ne.u32 %p0, %r0, 0;
    ld.param.u64 %rd0, [X];
    cvta.to.global.u64 %rd0, %rd0;
    @%p0 bra $ready;
    mbarrier.init.shared::cta.b64 [%r1], 1;
    fence.mbarrier_init.release.cluster;
$ready:
    bar.sync 0;
    @%p0 bra $wait;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 256;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1+128], [%rd0], 256, [%r1];
$wait:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;
    @!%p1 bra $wait;
    """
    result = recorded(body, threads=64)
    (flight,) = result.flights
    assert (flight.warp, flight.at, flight.nbytes) == (0, 11, 256)
    waits = [wait for wait in result.waits if wait.kind == "mbarrier"]
    assert {wait.warp for wait in waits} == {0, 1}
    # Warp 1 comes to the mbarrier first, and waits for the copy that warp 0 starts.
    assert min(wait.end for wait in waits) > flight.start
    assert next(wait for wait in waits if wait.warp == 1).start == flight.start == 11
    assert flight.end == min(wait.end for wait in waits)
    assert result.bulk_bytes == 256


def test_sites_have_their_bytes_and_their_banks() -> None:
    result = recorded("""
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, words;
    mad.lo.u32 %r2, %r0, 8, %r1;
    st.shared.u32 [%r2], %r0;
    """)
    (site,) = result.sites.values()
    assert (site.first, site.last) == (0, 63 * 8 + 3)
    assert site.banks == (2, 0) * 16
    assert result.regions == (("words", 0, 1024),)


def test_other_ctas_of_the_cluster_run_but_have_no_sites() -> None:
    body = """
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, words;
    mad.lo.u32 %r2, %r0, 512, %r1;
    st.shared.u32 [%r2], %r0;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    """
    result = recorded(body, grid=4, cluster=2)
    (site,) = result.sites.values()
    assert (site.first, site.last) == (0, 3)
    assert result.lengths == (7, 7)
    assert {wait.kind for wait in result.waits} == {"cluster"}


def test_the_first_cta_alone_is_run_and_recorded() -> None:
    result = recorded("mov.u32 %r0, %ctaid.x;", grid=3)
    assert result.lengths == (2, 2)


def test_a_recorder_and_sanitizers_exclude_each_other() -> None:
    with pytest.raises(LaunchError) as raised:
        recorded("", sanitize=True)
    assert str(raised.value) == "a run with a recorder has no sanitizers; leave out sanitize, or run twice"


def test_lanes_of_a_bank_are_counted_by_words() -> None:
    lanes = np.arange(32)
    result = words_in_banks(lanes * 4 % 16, lanes < 8, 4, 128)
    assert result.tolist() == [[1, 1, 1, 1] + [0] * 28]


def test_instructions_are_counted_by_their_number() -> None:
    counters = run(kernel(LATE), grid=3, block=64, args=[np.zeros(1)]).counters
    assert counters.by_instruction == {0: 6, 1: 6, 2: 6, 3: 3, 4: 3, 5: 3, 6: 6, 7: 6, 8: 6}


def test_a_product_uses_columns_until_threads_have_waited_for_its_commit() -> None:
    recorder = Recorder()
    products = by_one_thread([*steps("f16", instruction(128, 32, "f16"), count=2), commit()])
    text = kernel_of_tensor_memory("\n".join([products, wait(), moved(0, 16, to="out")]), nbytes=1 << 16)
    ran(text, np.zeros(1 << 16, np.uint8), (128, 16), recorder=recorder)
    record = recorder.recording
    opcodes = [record.instrs[use.at].opcode.split(".")[1] for use in record.column_uses]
    assert opcodes == ["mma"] * 2 + ["ld"] * 8
    first, second, *loads = record.column_uses
    assert (first.warp, first.first, first.columns, first.writes) == (0, 0, 32, True)
    assert first.start < second.start < first.end == second.end
    committed = 1 + next(
        slot
        for slot, number in enumerate(record.slots[0].tolist())
        if record.instrs[number].opcode.startswith("tcgen05.commit")
    )
    ends = {one.warp: one.end for one in record.waits if one.kind == "mbarrier"}
    assert set(ends) == {0, 1, 2, 3}
    assert min(ends.values()) == committed
    for use in loads:
        assert (use.columns, use.writes, use.end) == (8, False, use.start + 1)
        assert use.start >= ends[use.warp]


def test_a_product_that_nobody_commits_has_no_end() -> None:
    recorder = Recorder()
    text = kernel_of_tensor_memory(
        by_one_thread(steps("f16", instruction(128, 32, "f16"), count=1)), nbytes=1 << 16
    )
    ran(text, np.zeros(1 << 16, np.uint8), (128, 16), recorder=recorder)
    assert [(use.columns, use.end) for use in recorder.recording.column_uses] == [(32, -1)]
