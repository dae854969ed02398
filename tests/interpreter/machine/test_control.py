from __future__ import annotations

import numpy as np
import pytest
from interpreter.programs import ELEMENT, line_of, ptx

from ptxgen.errors import TrapError
from ptxgen.interpreter import run
from ptxgen.interpreter.machine.memory import POISON


def result_of(body: str, threads: int, grid: int = 1, **more: object) -> list[int]:
    """`x` after a kernel whose threads write %r4 to their element of x."""
    text = ptx(
        ELEMENT + body + "\n    st.global.u32 [%rd0], %r4;\n    ret;\n",
        "u64 x",
        shared=int(more.pop("shared", 0)),  # type: ignore[call-overload]
    )
    x = np.zeros(threads * grid, np.uint32)
    run(text, grid=grid, block=threads, args=[x], sanitize=True, **more)  # type: ignore[arg-type]
    return x.tolist()


def trap_of(text: str, **more: object) -> str:
    with pytest.raises(TrapError) as caught:
        run(text, **more)  # type: ignore[arg-type]
    return str(caught.value)


def test_a_result_that_ignores_its_operands_is_one_of_all_lanes() -> None:
    """`lop3` with an empty table and literals, before lanes part."""
    got = result_of(
        """
    mov.u32 %r4, 7;
    lop3.b32 %r4, 3, 1, %r0, 0;
    setp.lt.u32 %p0, %r0, 20;
    @!%p0 bra $on;
    add.u32 %r4, %r4, 5;
$on:
""",
        threads=64,
    )
    assert got == [5] * 20 + [0] * 44


def test_nested_branches_take_each_thread_its_own_way() -> None:
    got = result_of(
        """
    mov.u32 %r4, 0;
    and.b32 %r5, %r0, 1;
    setp.eq.u32 %p0, %r5, 0;
    @%p0 bra $even;
    setp.lt.u32 %p1, %r0, 20;
    @!%p1 bra $join;
    add.u32 %r4, %r4, 1;
    bra $join;
$even:
    add.u32 %r4, %r4, 100;
    setp.lt.u32 %p1, %r0, 40;
    @!%p1 bra $join;
    add.u32 %r4, %r4, 10;
$join:
    add.u32 %r4, %r4, 1000;
    """,
        64,
    )
    assert got == [1000 + (100 + 10 * (i < 40) if i % 2 == 0 else int(i < 20)) for i in range(64)]


def test_loops_run_as_often_as_each_thread_asks_and_threads_meet_after_them() -> None:
    text = ptx(
        ELEMENT
        + """
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
    ret;
    """,
        "u64 x",
    )
    x = np.zeros(96, np.uint32)
    counters = run(text, grid=3, block=32, args=[x]).counters
    assert x.tolist() == [i * (i - 1) // 2 + 1 for i in range(96)]
    assert counters.by_opcode["st.global.u32"] == 3  # all lanes of a warp together


def test_a_guard_keeps_the_old_value_of_a_loaded_register() -> None:
    got = result_of(
        """
    mov.u32 %r4, 5;
    setp.lt.u32 %p0, %r3, 7;
    st.global.u32 [%rd0], 9;
    @%p0 ld.global.u32 %r4, [%rd0];
    setp.gt.u32 %p0, %r3, 999;
    @%p0 ld.global.u32 %r4, [0];
    """.replace("[0]", "[%rd5]").replace("mov.u32 %r4, 5;", "mov.u32 %r4, 5;\n    mov.u64 %rd5, 0;"),
        64,
    )
    assert got == [9] * 7 + [5] * 57


def test_threads_may_exit_early() -> None:
    got = result_of(
        """
    setp.ge.u32 %p0, %r3, 33;
    @%p0 exit;
    mov.u32 %r4, 1;
    bar.sync 0;
    """,
        64,
        grid=2,
    )
    assert got == ([1] * 33 + [0] * 31) * 2


REDUCTION = (
    ELEMENT
    + """
    mov.u32 %r5, buf;
    shl.b32 %r6, %r3, 2;
    add.u32 %r5, %r5, %r6;
    ld.global.u32 %r4, [%rd0];
    st.shared.u32 [%r5], %r4;
    mov.u32 %r7, 64;
$step:
    bar.sync 0;
    setp.ge.u32 %p0, %r3, %r7;
    @%p0 bra $skip;
    shl.b32 %r8, %r7, 2;
    add.u32 %r9, %r5, %r8;
    ld.shared.u32 %r10, [%r9];
    ld.shared.u32 %r11, [%r5];
    add.u32 %r11, %r11, %r10;
    st.shared.u32 [%r5], %r11;
$skip:
    shr.u32 %r7, %r7, 1;
    setp.ne.u32 %p1, %r7, 0;
    @%p1 bra $step;
    setp.ne.u32 %p2, %r3, 0;
    @%p2 bra $end;
    st.global.u32 [%rd0], %r11;
$end:
    ret;
"""
)


def test_a_reduction_with_barriers_sums_every_block() -> None:
    x = np.arange(5 * 128, dtype=np.uint32)
    want = x.reshape(5, 128).sum(axis=1)
    run(ptx(REDUCTION, "u64 x", shared=512), grid=5, block=128, args=[x], sanitize=True)
    assert (x.reshape(5, 128)[:, 0] == want).all()


@pytest.mark.parametrize("threads", [32, 64, 96])
def test_shuffles_sum_each_warp(threads: int) -> None:
    body = "    mov.u32 %r4, %r0;"
    for distance in (16, 8, 4, 2, 1):
        body += f"""
    shfl.sync.bfly.b32 %r5, %r4, {distance}, 31, -1;
    add.u32 %r4, %r4, %r5;"""
    got = np.reshape(result_of(body, threads, grid=2), (-1, 32))
    want = np.arange(threads * 2).reshape(-1, 32).sum(axis=1)
    assert (got == want[:, None]).all()


def test_a_shuffle_reads_the_lanes_that_are_there_in_a_partial_warp() -> None:
    got = result_of("    shfl.sync.idx.b32 %r4, %r0, 3, 31, -1;", 40)
    assert got == [3] * 32 + [35] * 8


def test_a_shuffle_from_a_lane_that_is_not_there_gives_poison() -> None:
    body = "    shfl.sync.idx.b32 %r4, %r0, 20, 31, -1;"
    assert result_of(body, 16, raise_on_report=False) == [POISON] * 16


def test_a_shuffle_whose_members_wait_elsewhere_is_a_deadlock_that_names_both() -> None:
    text = ptx(
        """
    mov.u32 %r0, %tid.x;
    setp.ge.u32 %p0, %r0, 20;
    @%p0 bra $end;
    shfl.sync.idx.b32 %r4, %r0, 3, 31, -1;
$end:
    bar.sync 0;
    ret;
    """
    )
    assert trap_of(text, grid=1, block=32, args=[]) == (
        "kernel k: deadlock in CTA (0, 0, 0): 20 threads ((0, 0, 0), (1, 0, 0), (2, 0, 0), "
        "(3, 0, 0) and 16 more) wait for the other lanes of their warp in "
        f"shfl.sync.idx.b32 %r4, %r0, 3, 31, -1; (line {line_of(text, 'shfl')}); "
        "12 threads ((20, 0, 0), (21, 0, 0), (22, 0, 0), (23, 0, 0) and 8 more) wait at barrier 0 "
        f"in bar.sync 0; (line {line_of(text, 'bar.sync')}); 0 of 32 threads have exited"
    )


def test_a_shuffle_waits_for_lanes_that_come_by_another_path() -> None:
    text = ptx(
        """
    ld.param.u64 %rd0, [x];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd1, %r0, 4;
    add.u64 %rd0, %rd0, %rd1;
    setp.ge.u32 %p0, %r0, 20;
    @%p0 bra $late;
    add.u32 %r1, %r0, 100;
$meet:
    mov.u32 %r2, 0;
    shfl.sync.bfly.b32 %r4, %r1, 16, 31, -1;
    add.u32 %r2, %r4, %r2;
    st.global.u32 [%rd0], %r2;
    ret;
$late:
    mov.u32 %r3, 50;
$loop:
    sub.u32 %r3, %r3, 1;
    setp.ne.u32 %p1, %r3, %r0;
    @%p1 bra $loop;
    add.u32 %r1, %r0, 200;
    bra $meet;
    """,
        "u64 x",
    )
    x = np.zeros(32, np.uint32)
    run(text, grid=1, block=32, args=[x])
    lane = np.arange(32)
    given = lane + np.where(lane >= 20, 200, 100)
    np.testing.assert_array_equal(x, given[lane ^ 16])


def test_a_lane_outside_its_own_membermask_is_refused() -> None:
    text = ptx("    bar.warp.sync 1;\n    ret;")
    assert trap_of(text, grid=1, block=32, args=[]) == (
        f"kernel k: bar.warp.sync 1; (line {line_of(text, 'bar.warp')}): "
        "thread (1, 0, 0) of CTA (0, 0, 0): its own lane is not in the membermask 0x00000001; "
        "the active lanes are 0xffffffff"
    )


def test_votes_see_the_active_lanes() -> None:
    got = result_of(
        """
    setp.lt.u32 %p0, %r3, 3;
    vote.sync.ballot.b32 %r4, %p0, -1;
    """,
        64,
    )
    assert got == [7] * 32 + [0] * 32


def test_shared_atomics_count_a_histogram() -> None:
    text = ptx(
        ELEMENT
        + """
    mov.u32 %r5, buf;
    shl.b32 %r6, %r3, 2;
    add.u32 %r6, %r6, %r5;
    st.shared.u32 [%r6], 0;
    bar.sync 0;
    ld.global.u32 %r7, [%rd0];
    and.b32 %r7, %r7, 63;
    shl.b32 %r7, %r7, 2;
    add.u32 %r7, %r7, %r5;
    atom.shared.add.u32 %r8, [%r7], 1;
    bar.sync 0;
    ld.shared.u32 %r4, [%r6];
    ld.param.u64 %rd3, [counts];
    mul.wide.u32 %rd4, %r3, 4;
    add.u64 %rd3, %rd3, %rd4;
    red.global.add.u32 [%rd3], %r4;
    ret;
    """,
        "u64 x, u64 counts",
        shared=256,
    )
    x = np.random.default_rng(0).integers(0, 1 << 30, 64 * 20).astype(np.uint32)
    counts = np.zeros(64, np.uint32)
    run(text, grid=20, block=64, args=[x, counts], sanitize=True)
    assert (counts == np.bincount(x % 64, minlength=64)).all()


def test_atomics_on_one_address_take_turns_in_lane_order() -> None:
    text = ptx(
        ELEMENT
        + """
    ld.param.u64 %rd3, [next];
    atom.global.add.u32 %r4, [%rd3], 2;
    st.global.u32 [%rd0], %r4;
    ret;
    """,
        "u64 x, u64 next",
    )
    x, following = np.zeros(96, np.uint32), np.full(1, 10, np.uint32)
    run(text, grid=3, block=32, args=[x, following])
    assert x.tolist() == [10 + 2 * i for i in range(96)]
    assert following[0] == 10 + 2 * 96


WORKLOADS = """
    mov.u32 %r0, %tid.x;
    shl.b32 %r1, %r0, 2;
    mov.u32 %r2, buf;
    add.u32 %r2, %r2, %r1;
    setp.ge.u32 %p0, %r0, 32;
    @%p0 bra $consumer;
    st.shared.u32 [%r2], %r0;
    bar.arrive 1, 64;
    bra $end;
$consumer:
    bar.sync 1, 64;
    ld.shared.u32 %r4, [%r2+-128];
    ld.param.u64 %rd0, [x];
    mul.wide.u32 %rd1, %r0, 4;
    add.u64 %rd0, %rd0, %rd1;
    st.global.u32 [%rd0+-128], %r4;
$end:
    ret;
"""


def test_a_named_barrier_hands_values_from_one_warp_to_another() -> None:
    x = np.zeros(32, np.uint32)
    run(ptx(WORKLOADS, "u64 x", shared=128), grid=1, block=64, args=[x], sanitize=True)
    assert (x == np.arange(32)).all()


def test_a_barrier_with_a_count_can_be_used_again() -> None:
    text = ptx(
        """
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, 0;
$again:
    setp.ge.u32 %p0, %r0, 32;
    @!%p0 bar.arrive 1, 64;
    @%p0 bar.sync 1, 64;
    bar.sync 0;
    add.u32 %r1, %r1, 1;
    setp.lt.u32 %p1, %r1, 3;
    @%p1 bra $again;
    ret;
    """
    )
    counters = run(text, grid=1, block=64, args=[]).counters
    assert counters.by_opcode["bar.arrive"] == 6  # both warps, three times


def test_a_count_is_of_whole_warps_even_if_the_last_one_is_not_full() -> None:
    text = ptx("    bar.sync 1, 64;\n    ret;")
    run(text, grid=1, block=48, args=[])
    assert "deadlock" in trap_of(text, grid=1, block=32, args=[])


def test_a_named_barrier_that_nobody_completes_is_a_deadlock() -> None:
    text = ptx(WORKLOADS.replace("bar.arrive 1, 64;", ""), "u64 x", shared=128)
    x = np.zeros(32, np.uint32)
    assert trap_of(text, grid=2, block=64, args=[x]) == (
        "kernel k: deadlock in CTA (0, 0, 0) and 1 others: 32 threads ((32, 0, 0), (33, 0, 0), "
        f"(34, 0, 0), (35, 0, 0) and 28 more) wait at barrier 1 (32 of 64 threads have come) "
        f"in bar.sync 1, 64; (line {line_of(text, 'bar.sync')}); 32 of 64 threads have exited"
    )


def test_threads_that_wait_at_different_barriers_are_a_deadlock() -> None:
    text = ptx(
        """
    mov.u32 %r0, %tid.x;
    setp.lt.u32 %p0, %r0, 2;
    @%p0 bra $other;
    bar.sync 0;
    ret;
$other:
    bar.sync 3;
    ret;
    """
    )
    first, second = (line_of(text, b) for b in ("bar.sync 0", "bar.sync 3"))
    assert trap_of(text, grid=1, block=32, args=[]) == (
        "kernel k: deadlock in CTA (0, 0, 0): 30 threads ((2, 0, 0), (3, 0, 0), (4, 0, 0), "
        f"(5, 0, 0) and 26 more) wait at barrier 0 in bar.sync 0; (line {first}); 2 threads "
        f"((0, 0, 0), (1, 0, 0)) wait at barrier 3 in bar.sync 3; (line {second}); "
        "0 of 32 threads have exited"
    )


def test_barriers_have_numbers_to_15_and_counts_of_whole_warps() -> None:
    text = ptx("    bar.sync 16;\n    ret;")
    assert trap_of(text, grid=1, block=32, args=[]) == (
        f"kernel k: bar.sync 16; (line {line_of(text, 'bar.sync')}): thread (0, 0, 0) of "
        "CTA (0, 0, 0): barriers are numbered 0 to 15, got barrier 16, count 0"
    )
    text = ptx("    bar.sync 1, 40;\n    ret;")
    assert trap_of(text, grid=1, block=64, args=[]) == (
        f"kernel k: bar.sync 1, 40; (line {line_of(text, 'bar.sync')}): thread (0, 0, 0) of "
        "CTA (0, 0, 0): a barrier's count is a multiple of 32, got barrier 1, count 40"
    )


def test_an_endless_loop_is_stopped() -> None:
    text = ptx(
        """
    mov.u32 %r0, 0;
$again:
    add.u32 %r0, %r0, 1;
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra $again;
    """
    )
    assert trap_of(text, grid=1, block=64, args=[], max_instructions=1000) == (
        "kernel k: still running after 1000 instructions in a row, at add.u32 %r0, %r0, 1; "
        f"(line {line_of(text, 'add.u32')}): thread (0, 0, 0) of CTA (0, 0, 0) and 63 others; "
        "if it is not an endless loop, raise max_instructions"
    )


def test_few_active_warps_compute_what_all_of_them_would() -> None:
    """Lanes are picked out below three quarters of the warps; the shared memory of their CTAs is
    theirs still.
    """
    body = """
    mov.u32 %r5, buf;
    shl.b32 %r6, %r3, 2;
    add.u32 %r5, %r5, %r6;
    mov.u32 %r4, 7;
    setp.ne.u32 %p0, %r1, {cta};
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
    got = np.reshape(result_of(body.replace("{cta}", "2"), 64, grid=5, shared=256), (5, 64))
    assert (got[[0, 1, 3, 4]] == 7).all()
    lane = np.arange(64)
    assert (got[2] == 128 + (lane ^ 1 ^ 2) + 1000 * (lane < 3)).all()


def test_threads_that_expect_different_counts_at_one_barrier_are_refused() -> None:
    text = ptx(
        """
    mov.u32 %r0, %tid.x;
    and.b32 %r1, %r0, 64;
    add.u32 %r1, %r1, 64;
    bar.sync 2, %r1;
    ret;
    """
    )
    assert trap_of(text, grid=1, block=96, args=[]) == (
        f"kernel k: bar.sync 2, %r1; (line {line_of(text, 'bar.sync')}): thread (0, 0, 0) of "
        "CTA (0, 0, 0): comes to barrier 2 for 64 threads, but others have come to it for 128 "
        "threads"
    )
