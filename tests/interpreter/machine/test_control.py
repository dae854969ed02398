from __future__ import annotations

import functools

import numpy as np
from interpreter import programs
from interpreter.programs import at, on_elements, ptx, refused

from ptxgen.interpreter import run
from ptxgen.interpreter.machine.memory import POISON

result_of = functools.partial(programs.result_of, sanitize=True)


def test_a_result_that_ignores_its_operands_is_one_of_all_lanes() -> None:
    """`lop3` with an empty table and literals, before lanes part."""
    body = """
    mov.u32 %r4, 7;
    lop3.b32 %r4, 3, 1, %r0, 0;
    setp.lt.u32 %p0, %r0, 20;
    @!%p0 bra $on;
    add.u32 %r4, %r4, 5;
$on:
"""
    assert result_of(body, threads=64) == [5] * 20 + [0] * 44


def test_loops_run_as_often_as_each_thread_asks_and_threads_meet_after_them() -> None:
    text = on_elements("""
    mov.u32 %r4, 0;
    mov.u32 %r5, 0;
$head:
    setp.ge.u32 %p0, %r5, %r0;
    @%p0 bra $done;
    add.u32 %r4, %r4, %r5;
    add.u32 %r5, %r5, 1;
    bra $head;
$done:
    add.u32 %r4, %r4, 1;
    st.global.u32 [%rd0], %r4;
    """)
    x = np.zeros(96, np.uint32)
    counters = run(text, grid=3, block=32, args=[x]).counters
    assert x.tolist() == [i * (i - 1) // 2 + 1 for i in range(96)]
    assert counters.by_opcode["st.global.u32"] == 3  # all lanes of a warp together


def test_a_guard_keeps_the_old_value_of_a_loaded_register() -> None:
    body = """
    mov.u32 %r4, 5;
    mov.u64 %rd5, 0;
    setp.lt.u32 %p0, %r3, 7;
    st.global.u32 [%rd0], 9;
    @%p0 ld.global.u32 %r4, [%rd0];
    setp.gt.u32 %p0, %r3, 999;
    @%p0 ld.global.u32 %r4, [%rd5];
    """
    assert result_of(body, threads=64) == [9] * 7 + [5] * 57


def test_a_shuffle_reads_the_lanes_that_are_there_in_a_partial_warp_and_else_poison() -> None:
    body = "    shfl.sync.idx.b32 %r4, %r0, 3, 31, -1;"
    assert result_of(body, threads=40) == [3] * 32 + [35] * 8
    body = body.replace(" 3,", " 20,")
    assert result_of(body, threads=16, raise_on_report=False) == [POISON] * 16


def test_a_lane_outside_its_own_membermask_is_refused() -> None:
    text = ptx("    bar.warp.sync 1;")
    assert refused(text) == at(text, "bar.warp", 1) + (
        "its own lane is not in the membermask 0x00000001; the active lanes are 0xffffffff"
    )


def test_votes_see_the_active_lanes() -> None:
    body = """
    setp.lt.u32 %p0, %r3, 3;
    vote.sync.ballot.b32 %r4, %p0, -1;
    """
    assert result_of(body, threads=64) == [7] * 32 + [0] * 32


def test_atomics_on_one_address_take_turns_in_lane_order() -> None:
    text = on_elements("""
    ld.param.u64 %rd3, [next];
    atom.global.add.u32 %r4, [%rd3], 2;
    st.global.u32 [%rd0], %r4;
    """)
    x, following = np.zeros(96, np.uint32), np.full(1, 10, np.uint32)
    run(text, grid=3, block=32, args=[x, following])
    assert x.tolist() == [10 + 2 * i for i in range(96)]
    assert following[0] == 10 + 2 * 96


def test_a_count_is_of_whole_warps_even_if_the_last_one_is_not_full() -> None:
    text = ptx("    bar.sync 1, 64;")
    run(text, grid=1, block=48, args=[])
    assert "deadlock" in refused(text)


def test_barriers_have_numbers_to_15_and_counts_of_whole_warps() -> None:
    for barrier, why in (
        ("bar.sync 16;", "barriers are numbered 0 to 15, got barrier 16, count 0"),
        ("bar.sync 1, 40;", "a barrier's count is a multiple of 32, got barrier 1, count 40"),
    ):
        assert refused(ptx(barrier), block=64) == at(ptx(barrier), barrier) + why


def test_few_active_warps_compute_what_all_of_them_would() -> None:
    """Lanes are picked out below three quarters of the warps; the shared memory of their CTAs is
    theirs still.
    """
    body = """
    mov.u32 %r5, buf;
    shl.b32 %r6, %r3, 2;
    add.u32 %r5, %r5, %r6;
    mov.u32 %r4, 7;
    setp.ne.u32 %p0, %r1, 2;
    @%p0 bra $skip;
    st.shared.u32 [%r5], %r0;
    bar.warp.sync -1;
    xor.b32 %r5, %r5, 4;
    ld.shared.u32 %r4, [%r5];
    shfl.sync.bfly.b32 %r4, %r4, 2, 31, -1;
    setp.lt.u32 %p1, %r3, 3;
    @%p1 add.u32 %r4, %r4, 1000;
$skip:
    """
    got = np.reshape(result_of(body, threads=64, grid=5, shared=256), (5, 64))
    assert (got[[0, 1, 3, 4]] == 7).all()
    lane = np.arange(64)
    assert (got[2] == 128 + (lane ^ 1 ^ 2) + 1000 * (lane < 3)).all()


def test_threads_that_expect_different_counts_at_one_barrier_are_refused() -> None:
    text = ptx("""
    mov.u32 %r0, %tid.x;
    and.b32 %r1, %r0, 64;
    add.u32 %r1, %r1, 64;
    bar.sync 2, %r1;
    """)
    assert refused(text, block=96) == at(text, "bar.sync") + (
        "comes to barrier 2 for 64 threads, but others have come to it for 128 threads"
    )
