from __future__ import annotations

import numpy as np
import pytest
from interpreter.programs import ELEMENT, line_of, ptx

from ptxgen.errors import TrapError, TypeMismatchError
from ptxgen.interpreter import run

STORE = "\n    st.global.u32 [%rd0], %r4;\n    ret;\n"
MBARRIER = {"shared": 128, "version": "7.8", "target": "sm_90"}


def program(body: str, **more: object) -> str:
    """Kernel k(x); ends by writing %r4 to the thread's element of x."""
    return ptx(ELEMENT + body + STORE, "u64 x", **more)  # type: ignore[arg-type]


def result_of(
    body: str, threads: int = 32, grid: int = 1, launch: dict[str, object] | None = None, **more: object
) -> list[int]:
    x = np.zeros(threads * grid, np.uint32)
    text = program(body, **more)
    run(text, grid=grid, block=threads, args=[x], **(launch or {}))  # type: ignore[arg-type]
    return x.tolist()


def stuck(text: str, threads: int = 32, grid: int = 1, **more: object) -> str:
    x = np.zeros(threads * grid, np.uint32)
    with pytest.raises(TrapError) as caught:
        run(text, grid=grid, block=threads, args=[x], **more)  # type: ignore[arg-type]
    return str(caught.value)


def names(first: int, count: int) -> str:
    """How a message names threads from `first` on."""
    shown = ", ".join(f"({n}, 0, 0)" for n in range(first, first + min(count, 4)))
    more = f" and {count - 4} more" if count > 4 else ""
    return f"{count} threads ({shown}{more})"


# ---- barriers of a CTA --------------------------------------------------------------------------


def test_threads_that_have_exited_at_different_places_are_not_waited_for() -> None:
    body = """
    setp.lt.u32 %p1, %r3, 5;
    @%p1 exit;
    bar.sync 0;
    setp.lt.u32 %p1, %r3, 20;
    @%p1 ret;
    bar.sync 0;
    setp.lt.u32 %p1, %r3, 40;
    @%p1 exit;
    bar.sync 0;
    mov.u32 %r4, 1;
    """
    assert result_of(body, 70) == [0] * 40 + [1] * 30


def test_threads_may_leave_a_loop_of_barriers_one_after_another() -> None:
    body = """
    mov.u32 %r4, 0;
$again:
    st.global.u32 [%rd0], %r4;
    setp.ge.u32 %p1, %r4, %r3;
    @%p1 exit;
    bar.sync 0;
    add.u32 %r4, %r4, 1;
    setp.lt.u32 %p2, %r4, 50;
    @%p2 bra $again;
    """
    assert result_of(body, 70) == [min(i, 50) for i in range(70)]


def test_the_same_barrier_may_be_reached_by_different_instructions() -> None:
    body = """
    shl.b32 %r5, %r3, 2;
    mov.u32 %r6, buf;
    add.u32 %r5, %r5, %r6;
    setp.lt.u32 %p1, %r3, 32;
    @%p1 bra $low;
    st.shared.u32 [%r5], 7;
    barrier.sync 0;
    bra $end;
$low:
    st.shared.u32 [%r5], 9;
    barrier.sync 0;
$end:
    xor.b32 %r5, %r5, 128;
    ld.shared.u32 %r4, [%r5];
    """
    got = result_of(body, 64, shared=256, launch={"sanitize": True})
    assert got == [7] * 32 + [9] * 32


def test_barriers_with_different_numbers_deadlock() -> None:
    text = program(
        """
    setp.lt.u32 %p1, %r3, 10;
    @%p1 bra $other;
    bar.sync 0;
    bra $end;
$other:
    bar.sync 1;
$end:
    mov.u32 %r4, 1;
    """
    )
    assert stuck(text, 48) == (
        f"kernel k: deadlock in CTA (0, 0, 0): {names(10, 38)} wait at barrier 0 in bar.sync 0; "
        f"(line {line_of(text, 'bar.sync 0')}); {names(0, 10)} wait at barrier 1 in bar.sync 1; "
        f"(line {line_of(text, 'bar.sync 1')}); 0 of 48 threads have exited"
    )


def test_a_count_that_is_not_reached_deadlocks_and_one_of_two_ctas_is_named() -> None:
    text = program(
        """
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra $end;
    bar.sync 3, 96;
$end:
    mov.u32 %r4, 1;
    """
    )
    assert stuck(text, 64, grid=3) == (
        f"kernel k: deadlock in CTA (1, 0, 0) and 1 others: {names(0, 64)} wait at barrier 3 (64 "
        f"of 96 threads have come) in bar.sync 3, 96; (line {line_of(text, 'bar.sync 3')}); "
        "0 of 64 threads have exited"
    )


def test_arrivals_alone_do_not_wait_and_hand_over_again_and_again() -> None:
    body = """
    setp.lt.u32 %p1, %r3, 32;
    mov.u32 %r4, 0;
$again:
    @%p1 bar.arrive 1, 64;
    @!%p1 bar.sync 1, 64;
    @!%p1 bar.arrive 2, 64;
    @%p1 bar.sync 2, 64;
    add.u32 %r4, %r4, 1;
    setp.lt.u32 %p2, %r4, 5;
    @%p2 bra $again;
    """
    assert result_of(body, 64) == [5] * 64


def test_barriers_vote_over_the_threads_of_a_partial_warp() -> None:
    body = """
    setp.lt.u32 %p1, %r3, 10;
    barrier.red.popc.u32 %r4, 0, %p1;
    bar.red.and.pred %p2, 0, %p1;
    bar.red.or.pred %p3, 0, %p1;
    @%p2 add.u32 %r4, %r4, 100;
    @%p3 add.u32 %r4, %r4, 1000;
    setp.ge.u32 %p1, %r3, 0;
    bar.red.and.pred %p2, 0, !%p1;
    @%p2 add.u32 %r4, %r4, 10000;
    bar.red.and.pred %p2, 0, %p1;
    @%p2 add.u32 %r4, %r4, 20000;
    """
    assert result_of(body, 45) == [21010] * 45


def test_a_vote_of_some_warps_counts_those() -> None:
    body = """
    mov.u32 %r4, 0;
    setp.ge.u32 %p4, %r3, 64;
    @%p4 bra $end;
    setp.lt.u32 %p1, %r3, 40;
    bar.red.popc.u32 %r4, 1, 64, %p1;
$end:
    """
    assert result_of(body, 96) == [40] * 64 + [0] * 32


# ---- warps --------------------------------------------------------------------------------------


def test_a_shuffle_that_its_members_never_reach_names_where_they_are() -> None:
    text = program(
        """
    setp.lt.u32 %p1, %r3, 16;
    @%p1 bra $low;
    shfl.sync.idx.b32 %r4, %r3, 3, 31, -1;
    bra $end;
$low:
    shfl.sync.idx.b32 %r4, %r3, 20, 31, -1;
$end:
    """
    )
    words = "wait for the other lanes of their warp in shfl.sync.idx.b32 %r4, %r3,"
    assert stuck(text) == (
        f"kernel k: deadlock in CTA (0, 0, 0): {names(16, 16)} {words} 3, 31, -1; "
        f"(line {line_of(text, 'r3, 3,')}); {names(0, 16)} {words} 20, 31, -1; "
        f"(line {line_of(text, 'r3, 20,')}); 0 of 32 threads have exited"
    )


def test_each_half_of_a_warp_shuffles_where_it_is_under_its_own_mask() -> None:
    body = """
    setp.lt.u32 %p1, %r3, 16;
    @%p1 bra $low;
    shfl.sync.idx.b32 %r4, %r3, 20, 31, 0xffff0000;
    bra $end;
$low:
    shfl.sync.idx.b32 %r4, %r3, 3, 31, 0xffff;
$end:
    """
    assert result_of(body) == [3] * 16 + [20] * 16


def test_members_that_have_exited_are_not_waited_for() -> None:
    body = """
    setp.lt.u32 %p1, %r3, 16;
    @%p1 ret;
    shfl.sync.idx.b32 %r4, %r3, 20, 31, -1;
    """
    assert result_of(body) == [0] * 16 + [20] * 16


def test_lanes_leave_nested_loops_at_different_times_and_shuffle_together() -> None:
    body = """
    mov.u32 %r4, 0;
    mov.u32 %r5, 0;
$outer:
    setp.ge.u32 %p1, %r5, %r3;
    @%p1 bra $after;
    and.b32 %r6, %r5, 3;
$inner:
    setp.eq.u32 %p2, %r6, 0;
    @%p2 bra $next;
    add.u32 %r4, %r4, %r6;
    sub.u32 %r6, %r6, 1;
    bra $inner;
$next:
    add.u32 %r5, %r5, 1;
    bra $outer;
$after:
    shfl.sync.bfly.b32 %r4, %r4, 1, 31, -1;
    """
    own = [sum(n % 4 * (n % 4 + 1) // 2 for n in range(i)) for i in range(32)]
    assert result_of(body, launch={"sanitize": True}) == [own[i ^ 1] for i in range(32)]


def test_a_vote_in_a_loop_counts_the_lanes_that_are_left() -> None:
    body = """
    mov.u32 %r4, 0;
    mov.u32 %r6, 0;
$again:
    activemask.b32 %r7;
    vote.sync.ballot.b32 %r5, %p9, %r7;
    vote.sync.ballot.b32 %r5, !%p9, %r7;
    popc.b32 %r5, %r5;
    add.u32 %r4, %r4, %r5;
    add.u32 %r6, %r6, 1;
    setp.lt.u32 %p1, %r6, %r3;
    @%p1 bra $again;
    """
    body = "    setp.ne.u32 %p9, %r3, %r3;\n" + body
    want = [sum(32 if n == 0 else 31 - n for n in range(max(i, 1))) for i in range(32)]
    assert result_of(body) == want


# ---- other threads ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setter", "threads", "grid"),
    [("%r3, 31", 32, 1), ("%r3, 70", 96, 1), ("%r1, 2", 1, 3), ("%r1, 0", 1, 3)],
    ids=["a lane", "a warp", "a later CTA", "an earlier CTA"],
)
@pytest.mark.parametrize("order", ["setter first", "setter last"])
def test_threads_spin_until_another_one_has_set_a_flag(
    setter: str, threads: int, grid: int, order: str
) -> None:
    spin = """
$spin:
    ld.volatile.global.u32 %r5, [flag];
    setp.eq.u32 %p2, %r5, 0;
    @%p2 bra $spin;
    bra $end;
"""
    work = """
$set:
    mov.u32 %r6, 500;
$work:
    sub.u32 %r6, %r6, 1;
    setp.ne.u32 %p3, %r6, 0;
    @%p3 bra $work;
    st.volatile.global.u32 [flag], 5;
    mov.u32 %r5, 6;
    bra $end;
"""
    parts = (work, spin) if order == "setter first" else (spin, work)
    body = f"    setp.eq.u32 %p1, {setter};\n    @%p1 bra $set;\n    bra $spin;"
    text = program(body + "".join(parts) + "$end:\n    mov.u32 %r4, %r5;")
    text = text.replace(".visible", ".global .u32 flag;\n.visible")
    x = np.zeros(threads * grid, np.uint32)
    run(text, grid=grid, block=threads, args=[x])
    assert sorted(x.tolist()) == [5] * (threads * grid - 1) + [6]


@pytest.mark.parametrize("threads", [32, 64])
@pytest.mark.parametrize(
    "release", ["atom.global.exch.b32 %r5, [lock], 0;", "st.volatile.global.u32 [lock], 0;"]
)
def test_lanes_of_a_warp_take_turns_at_a_lock(threads: int, release: str) -> None:
    body = f"""
$try:
    atom.global.cas.b32 %r5, [lock], 0, 1;
    setp.ne.u32 %p1, %r5, 0;
    @%p1 bra $try;
    ld.volatile.global.u32 %r4, [count];
    add.u32 %r6, %r4, 1;
    st.volatile.global.u32 [count], %r6;
    membar.gl;
    {release}
    """
    text = program(body).replace(".visible", ".global .u32 lock;\n.global .u32 count;\n.visible")
    x = np.zeros(3 * threads, np.uint32)
    result = run(text, grid=3, block=threads, args=[x], max_instructions=300_000)
    assert sorted(x.tolist()) == list(range(3 * threads))
    assert result.variables["count"].view(np.uint32)[0] == 3 * threads


def test_all_ctas_meet_at_a_counter_in_global_memory() -> None:
    body = """
    setp.ne.u32 %p1, %r3, 0;
    @%p1 bra $wait;
    atom.global.add.u32 %r5, [arrived], 1;
$spin:
    ld.acquire.gpu.global.u32 %r5, [arrived];
    setp.lt.u32 %p2, %r5, 20;
    @%p2 bra $spin;
$wait:
    bar.sync 0;
    ld.volatile.global.u32 %r4, [arrived];
    """
    text = program(body).replace(".visible", ".global .u32 arrived;\n.visible")
    x = np.zeros(20 * 64, np.uint32)
    run(text, grid=20, block=64, args=[x])
    assert (x == 20).all()


def test_loops_that_do_not_end_are_stopped_with_the_threads_in_them() -> None:
    text = program(
        """
    setp.lt.u32 %p2, %r3, 7;
    @%p2 ret;
    mov.u32 %r4, 0;
$again:
    sub.u32 %r4, %r4, 1;
    setp.ne.u32 %p3, %r4, 5;
    @%p3 bra $again;
    """
    )
    assert stuck(text, 40, grid=2, max_instructions=5000) == (
        "kernel k: still running after 5000 instructions in a row, at sub.u32 %r4, %r4, 1; "
        f"(line {line_of(text, 'sub.u32')}): thread (7, 0, 0) of CTA (0, 0, 0) and 65 others; "
        "if it is not an endless loop, raise max_instructions"
    )


@pytest.mark.parametrize("body", ["$again:\n    bra $again;", "$a:\n    bra $b;\n$b:\n    bra $a;"])
def test_loops_of_jumps_alone_are_stopped(body: str) -> None:
    text = program(body)
    assert stuck(text, max_instructions=20).startswith(
        "kernel k: still running after 20 instructions in a row, at bra $"
    )
    assert stuck(text).startswith(
        "kernel k: endless loop in CTA (0, 0, 0): 32 threads ((0, 0, 0), (1, 0, 0), (2, 0, 0), (3, 0, 0) and "
        "28 more) repeat a loop in which nothing changes on which its branches depend, in bra $"
    )


def test_waiting_for_a_flag_that_nobody_sets_is_stopped() -> None:
    text = program(
        """
$spin:
    ld.volatile.global.u32 %r4, [%rd0];
    setp.eq.u32 %p2, %r4, 0;
    @%p2 bra $spin;
    """
    )
    assert stuck(text) == (
        "kernel k: endless loop in CTA (0, 0, 0): 32 threads ((0, 0, 0), (1, 0, 0), (2, 0, 0), (3, 0, 0) and "
        "28 more) repeat a loop in which no register and no memory changes, and read byte 0 of x, which no "
        f"thread is left to write, in ld.volatile.global.u32 %r4, [%rd0]; (line {line_of(text, 'ld.vol')}); "
        "0 of 32 threads have exited; a loop ends if it changes what its condition reads, or another thread "
        "does"
    )


# ---- mbarriers and clusters ---------------------------------------------------------------------


def test_an_mbarrier_that_is_not_completed_deadlocks() -> None:
    text = program(
        """
    mov.u32 %r5, buf;
    setp.ne.u32 %p1, %r3, 0;
    @%p1 bra $made;
    mbarrier.init.shared.b64 [%r5+8], 33;
$made:
    bar.sync 0;
    mbarrier.arrive.shared.b64 %rd3, [%r5+8];
$wait:
    mbarrier.try_wait.shared.b64 %p2, [%r5+8], %rd3;
    @!%p2 bra $wait;
    mov.u32 %r4, 1;
    """,
        **MBARRIER,
    )
    assert stuck(text) == (
        f"kernel k: deadlock in CTA (0, 0, 0): {names(0, 32)} wait at the end of a phase of parity "
        "0 of the mbarrier at 0x8 (buf), whose phase waits for 1 arrival more, in "
        "mbarrier.try_wait.shared.b64 %p2, [%r5+8], %rd3; "
        f"(line {line_of(text, 'try_wait')}); 0 of 32 threads have exited"
    )


def test_an_mbarrier_goes_from_phase_to_phase() -> None:
    body = """
    mov.u32 %r5, buf;
    setp.ne.u32 %p1, %r3, 0;
    @%p1 bra $made;
    mbarrier.init.shared.b64 [%r5], 64;
$made:
    bar.sync 0;
    mov.u32 %r4, 0;
    shl.b32 %r6, %r3, 2;
    add.u32 %r6, %r6, %r5;
$again:
    and.b32 %r7, %r4, 1;
    xor.b32 %r8, %r3, 63;
    mad.lo.u32 %r9, %r7, 256, %r6;
    mad.lo.u32 %r10, %r4, 100, %r3;
    st.shared.u32 [%r9+16], %r10;
    mbarrier.arrive.shared.b64 %rd3, [%r5];
$wait:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r5], %r7;
    @!%p2 bra $wait;
    shl.b32 %r8, %r8, 2;
    add.u32 %r8, %r8, %r5;
    mad.lo.u32 %r8, %r7, 256, %r8;
    ld.shared.u32 %r11, [%r8+16];
    add.u32 %r4, %r4, 1;
    setp.lt.u32 %p3, %r4, 7;
    @%p3 bra $again;
    mov.u32 %r4, %r11;
    """
    got = result_of(body, 64, **{**MBARRIER, "shared": 16 + 512})
    assert got == [600 + 63 - i for i in range(64)]


CLUSTER = {"version": "7.8", "target": "sm_90"}


def test_a_cluster_waits_for_all_of_its_ctas() -> None:
    body = """
    mov.u32 %r5, %cluster_ctarank;
    mov.u32 %r6, buf;
    setp.ne.u32 %p1, %r3, 0;
    @%p1 bra $meet;
    st.shared.u32 [%r6], %r0;
$meet:
    barrier.cluster.arrive;
    barrier.cluster.wait;
    xor.b32 %r5, %r5, 1;
    mapa.shared::cluster.u32 %r7, %r6, %r5;
    ld.shared::cluster.u32 %r4, [%r7];
    barrier.cluster.arrive;
    barrier.cluster.wait;
    """
    got = result_of(body, 32, grid=6, launch={"cluster": 2}, shared=4, **CLUSTER)
    assert got == [32 * (n ^ 1) for n in range(6) for _ in range(32)]


def test_a_cta_that_does_not_come_to_the_barrier_of_its_cluster_deadlocks() -> None:
    text = program(
        """
    setp.ne.u32 %p1, %r1, 1;
    @%p1 bra $meet;
    bar.sync 1, 64;
$meet:
    barrier.cluster.arrive;
    barrier.cluster.wait;
    mov.u32 %r4, 1;
    """,
        **CLUSTER,
    )
    assert stuck(text, 32, grid=2, cluster=2) == (
        f"kernel k: deadlock in CTA (0, 0, 0) and 1 others: {names(0, 32)} wait at the barrier of "
        f"the cluster in barrier.cluster.wait; (line {line_of(text, 'cluster.wait')}); "
        "0 of 32 threads have exited"
    )


def test_ctas_that_have_ended_are_not_waited_for_in_a_cluster() -> None:
    body = """
    setp.eq.u32 %p1, %r1, 1;
    @%p1 ret;
    barrier.cluster.arrive;
    barrier.cluster.wait;
    mov.u32 %r4, 1;
    """
    got = result_of(body, 32, grid=2, launch={"cluster": 2}, **CLUSTER)
    assert got == [1] * 32 + [0] * 32


# ---- jumps through a table ----------------------------------------------------------------------

TABLE = """
    mov.u32 %r4, 5;
    table: .branchtargets $a, $b, $c;
    {jump}
    bra $end;
$a:
    mov.u32 %r4, 10;
    bra $end;
$b:
    mov.u32 %r4, 20;
    bra $end;
$c:
    mov.u32 %r4, 30;
$end:
"""


def test_lanes_jump_to_where_their_index_says() -> None:
    body = "    rem.u32 %r5, %r3, 3;" + TABLE.format(jump="brx.idx %r5, table;")
    assert result_of(body) == [10 * (i % 3 + 1) for i in range(32)]
    body = "    setp.lt.u32 %p1, %r3, 2;" + TABLE.format(jump="@%p1 brx.idx %r3, table;")
    assert result_of(body) == [10, 20] + [5] * 30


@pytest.mark.parametrize(
    ("index", "lane", "got"), [("and.b32 %r5, %r3, 3;", 3, 3), ("sub.u32 %r5, 2, %r3;", 3, 4294967295)]
)
def test_an_index_outside_the_table_is_refused(index: str, lane: int, got: int) -> None:
    text = program(f"    {index}" + TABLE.format(jump="brx.idx %r5, table;"))
    assert stuck(text) == (
        f"kernel k: brx.idx %r5, table; (line {line_of(text, 'brx')}): thread ({lane}, 0, 0) of "
        f"CTA (0, 0, 0): index {got} of 3 targets"
    )


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ("bra $nowhere;", "label '$nowhere'"),
        ("@%p1 bra $inside;", "label '$inside'"),
        ("brx.idx %r4, nowhere;", "table of targets 'nowhere'"),
    ],
)
def test_jumps_to_what_the_kernel_does_not_have_are_refused(wrong: str, what: str) -> None:
    text = program(f"    setp.eq.u32 %p1, %r3, 0;\n    mov.u32 %r4, 0;\n    {wrong}")
    text = text.replace(".visible", ".func other()\n{\n$inside:\n\tret;\n}\n.visible")
    with pytest.raises(TypeMismatchError) as caught:
        run(text, grid=1, block=32, args=[np.zeros(32, np.uint32)])
    assert str(caught.value) == (f"the interpreter: {wrong} (line {line_of(text, wrong)}): k has no {what}")


def test_what_is_no_register_is_not_written() -> None:
    text = program("    mov.u32 %tid.x, 3;")
    with pytest.raises(TypeMismatchError) as caught:
        run(text, grid=1, block=32, args=[np.zeros(32, np.uint32)])
    assert str(caught.value) == (
        f"the interpreter: mov.u32 %tid.x, 3; (line {line_of(text, '%tid.x, 3')}): "
        "the operand d cannot be %tid.x"
    )


# ---- lanes that come to instructions of whole warps one by one ---------------------------------

# Lane 5 of each of the first four warps waits for the fifth one; the others go on meanwhile.
ONE_WAITS = """
    mov.u32 %r0, %tid.x;
    mov.u32 %r3, buf;
    setp.ne.u32 %p0, %r0, 0;
    @%p0 bra $ready;
    mbarrier.init.shared.b64 [%r3], 1;
$ready:
    bar.sync 0;
    setp.ge.u32 %p1, %r0, 128;
    @%p1 bra $other;
    and.b32 %r1, %r0, 31;
    setp.ne.u32 %p0, %r1, 5;
    @%p0 bra $meet;
$wait:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0;
    @!%p2 bra $wait;
$meet:
    mov.u32 %r2, 0;
    {instruction}
    ret;
$other:
    setp.eq.u32 %p2, %r0, 128;
    @%p2 mbarrier.arrive.shared.b64 _, [%r3];
    ret;
"""


@pytest.mark.parametrize("stepwise", [False, True])
@pytest.mark.parametrize(
    "instruction",
    [
        "wgmma.fence.sync.aligned;",
        "wgmma.commit_group.sync.aligned;",
        "wgmma.wait_group.sync.aligned 0;",
        "setmaxnreg.dec.sync.aligned.u32 24;",
        "setmaxnreg.inc.sync.aligned.u32 128;",
        "wgmma.fence.sync.aligned; mov.u32 %r2, 1; wgmma.fence.sync.aligned;",
    ],
)
def test_lanes_wait_for_each_other_at_instructions_of_warpgroups(instruction: str, stepwise: bool) -> None:
    body = ONE_WAITS.format(instruction=instruction)
    text = ptx(body, shared=8, version="8.0", target="sm_90a")
    text = text.replace("\n)\n{", "\n) .maxnreg 128\n{")
    result = run(text, grid=1, block=160, args=[], sanitize="all", schedule="pct:1", stepwise=stepwise)
    opcode = instruction.split(";")[-2].split()[0]
    times = instruction.count(opcode)
    assert result.counters.by_opcode[opcode] == 4 * times  # each warp executes it as a whole
