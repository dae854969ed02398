from __future__ import annotations

import numpy as np
import pytest
from interpreter.programs import at, deadlock, located, named, program, ptx, refused, result_of

from ptxgen.errors import TypeMismatchError
from ptxgen.interpreter import run


def stuck(text: str, threads: int = 32, grid: int = 1, **how: object) -> str:
    """The error of a kernel k(x) that does not end."""
    return refused(text, [np.zeros(threads * grid, np.uint32)], grid=grid, block=threads, **how)


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
    assert result_of(body, threads=70) == [0] * 40 + [1] * 30


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
    assert result_of(body, threads=70) == [min(i, 50) for i in range(70)]


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
    assert result_of(body, threads=64, shared=256, sanitize=True) == [7] * 32 + [9] * 32


def test_barriers_with_different_numbers_deadlock() -> None:
    text = program("""
    setp.lt.u32 %p1, %r3, 10;
    @%p1 bra $other;
    bar.sync 0;
    bra $end;
$other:
    bar.sync 1;
$end:
    mov.u32 %r4, 1;
    """)
    waits = [
        f"{named(10, 38)} wait at barrier 0 in {located(text, 'bar.sync 0')}",
        f"{named(0, 10)} wait at barrier 1 in {located(text, 'bar.sync 1')}",
    ]
    assert stuck(text, threads=48) == deadlock(waits, 0, 48)


def test_a_count_that_is_not_reached_deadlocks_and_one_of_two_ctas_is_named() -> None:
    text = program("""
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra $end;
    bar.sync 3, 96;
$end:
    mov.u32 %r4, 1;
    """)
    wait = f"{named(0, 64)} wait at barrier 3 (64 of 96 threads have come) in {located(text, 'bar.sync 3')}"
    assert stuck(text, threads=64, grid=3) == deadlock([wait], 0, 64, cta=1, others=1)


def test_a_vote_of_some_warps_counts_those() -> None:
    body = """
    mov.u32 %r4, 0;
    setp.ge.u32 %p4, %r3, 64;
    @%p4 bra $end;
    setp.lt.u32 %p1, %r3, 40;
    bar.red.popc.u32 %r4, 1, 64, %p1;
$end:
    """
    assert result_of(body, threads=96) == [40] * 64 + [0] * 32


# ---- warps --------------------------------------------------------------------------------------


def test_a_shuffle_that_its_members_never_reach_names_where_they_are() -> None:
    text = program("""
    setp.lt.u32 %p1, %r3, 16;
    @%p1 bra $low;
    shfl.sync.idx.b32 %r4, %r3, 3, 31, -1;
    bra $end;
$low:
    shfl.sync.idx.b32 %r4, %r3, 20, 31, -1;
$end:
    """)
    waits = [
        f"{named(first, 16)} wait for the other lanes of their warp in {located(text, f'%r3, {source},')}"
        for first, source in ((16, 3), (0, 20))
    ]
    assert stuck(text) == deadlock(waits, 0, 32)


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
    assert result_of(body, sanitize=True) == [own[i ^ 1] for i in range(32)]


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
    body += "".join(parts) + "$end:\n    mov.u32 %r4, %r5;"
    assert sorted(result_of(body, ".global .u32 flag;\n", threads, grid)) == [5] * (threads * grid - 1) + [6]


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
    text = program(body, ".global .u32 lock;\n.global .u32 count;\n")
    x = np.zeros(3 * threads, np.uint32)
    result = run(text, grid=3, block=threads, args=[x], max_instructions=300_000)
    assert sorted(x.tolist()) == list(range(3 * threads))
    assert result.variables["count"].view(np.uint32)[0] == 3 * threads


def test_loops_that_do_not_end_are_stopped_with_the_threads_in_them() -> None:
    text = program("""
    setp.lt.u32 %p2, %r3, 7;
    @%p2 ret;
    mov.u32 %r4, 0;
$again:
    sub.u32 %r4, %r4, 1;
    setp.ne.u32 %p3, %r4, 5;
    @%p3 bra $again;
    """)
    assert stuck(text, threads=40, grid=2, max_instructions=1000) == (
        f"kernel k: still running after 1000 instructions in a row, at {located(text, 'sub.u32')}: thread "
        "(7, 0, 0) of CTA (0, 0, 0) and 65 others; if it is not an endless loop, raise max_instructions"
    )


@pytest.mark.parametrize("body", ["$again:\n    bra $again;", "$a:\n    bra $b;\n$b:\n    bra $a;"])
def test_loops_of_jumps_alone_are_stopped(body: str) -> None:
    text = program(body)
    assert stuck(text, max_instructions=20).startswith(
        "kernel k: still running after 20 instructions in a row, at bra $"
    )
    assert stuck(text).startswith(
        f"kernel k: endless loop in CTA (0, 0, 0): {named(0, 32)} repeat a loop in which nothing changes on "
        "which its branches depend, in bra $"
    )


def test_waiting_for_a_flag_that_nobody_sets_is_stopped() -> None:
    text = program("""
$spin:
    ld.volatile.global.u32 %r4, [%rd0];
    setp.eq.u32 %p2, %r4, 0;
    @%p2 bra $spin;
    """)
    loop = (
        f"{named(0, 32)} repeat a loop in which no register and no memory changes, and read byte 0 of x, "
        f"which "
        f"no thread is left to write, in {located(text, 'ld.vol')}"
    )
    hint = "; a loop ends if it changes what its condition reads, or another thread does"
    assert stuck(text) == deadlock([loop], 0, 32, "endless loop") + hint


# ---- mbarriers and clusters ---------------------------------------------------------------------


def test_a_cta_that_does_not_come_to_the_barrier_of_its_cluster_deadlocks() -> None:
    body = """
    setp.ne.u32 %p1, %r1, 1;
    @%p1 bra $meet;
    bar.sync 1, 64;
$meet:
    barrier.cluster.arrive;
    barrier.cluster.wait;
    mov.u32 %r4, 1;
    """
    text = program(body)
    wait = f"{named(0, 32)} wait at the barrier of the cluster in {located(text, 'cluster.wait')}"
    assert stuck(text, grid=2, cluster=2) == deadlock([wait], 0, 32, others=1)


def test_ctas_that_have_ended_are_not_waited_for_in_a_cluster() -> None:
    body = """
    setp.eq.u32 %p1, %r1, 1;
    @%p1 ret;
    barrier.cluster.arrive;
    barrier.cluster.wait;
    mov.u32 %r4, 1;
    """
    assert result_of(body, grid=2, cluster=2) == [1] * 32 + [0] * 32


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
    assert stuck(text) == at(text, "brx", lane) + f"index {got} of 3 targets"


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ("bra $nowhere;", "k has no label '$nowhere'"),
        ("@%p1 bra $inside;", "k has no label '$inside'"),
        ("brx.idx %r4, nowhere;", "k has no table of targets 'nowhere'"),
        ("mov.u32 %tid.x, 3;", "the operand d cannot be %tid.x"),
    ],
)
def test_labels_and_registers_that_the_kernel_does_not_have_are_refused(wrong: str, what: str) -> None:
    body = f"    setp.eq.u32 %p1, %r3, 0;\n    mov.u32 %r4, 0;\n    {wrong}"
    text = program(body, ".func other()\n{\n$inside:\n\tret;\n}\n")
    message = refused(text, [np.zeros(32, np.uint32)], TypeMismatchError)
    assert message == f"the interpreter: {located(text, wrong)}: {what}"


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
    text = ptx(body, shared=8, directives=".maxnreg 128")
    result = run(text, grid=1, block=160, args=[], sanitize="all", schedule="pct:1", stepwise=stepwise)
    opcode = instruction.split(";")[-2].split()[0]
    times = instruction.count(opcode)
    assert result.counters.by_opcode[opcode] == 4 * times  # each warp executes it as a whole
