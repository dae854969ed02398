"""Threads that poll for what nobody will do are a deadlock; others are left alone."""

from __future__ import annotations

import numpy as np
import pytest
from interpreter.both_paths import run_both_ways
from interpreter.programs import deadlock, located, named, ptx, refused
from interpreter.reported import messages, trap

from ptxgen.interpreter import PCT, launch, run
from ptxgen.interpreter.schedule import policies, spins
from ptxgen.interpreter.schedule.policies import Schedule

SPIN = """
    .shared .align 8 .b64 bars[2];
    mov.u32 %r0, %tid.x;
    mov.u32 %r3, 0;
    mov.u32 %r4, %clock;
    setp.eq.u32 %p0, %r0, 0;
    @%p0 mbarrier.init.shared.b64 [bars], 1;
    @%p0 mbarrier.init.shared.b64 [bars+8], 1;
    bar.sync 0;
    setp.lt.u32 %p1, %r0, 32;
    @%p1 bra $other;
$first:
    mbarrier.test_wait.parity.shared.b64 %p2, [bars+8], 0;
    {more}
    @!%p2 bra $first;
    mbarrier.arrive.shared.b64 %rd0, [bars];
    ret;
$other:
    {other}
    """
OTHER = """
$second:
    mbarrier.test_wait.parity.shared.b64 %p2, [bars], 0;
    @!%p2 bra $second;
    mbarrier.arrive.shared.b64 %rd0, [bars+8];
    """


def spinning(more: str = "", other: str = "") -> str:
    return ptx(SPIN.format(more=more, other=other))


ONE_MORE = "whose phase waits for 1 arrival more"


def polls(text: str, first: int, address: str) -> str:
    poll = located(text, f"test_wait.parity.shared.b64 %p2, [bars{'+8' * (address == '0x8')}]")
    return f"{named(first, 32)} poll the mbarrier at {address} (bars), {ONE_MORE}, in {poll}"


def at_barrier(text: str, first: int) -> str:
    return (
        f"{named(first, 32)} wait at barrier 1 (32 of 64 threads have come) in {located(text, 'bar.sync 1')}"
    )


@pytest.mark.parametrize("more", ["", "nanosleep.u32 20;", "ld.shared.u32 %r9, [%r3+8];"])
def test_a_poll_that_nobody_can_end_is_a_deadlock(more: str) -> None:
    text = spinning(more)
    result = trap(text, block=64).splitlines()
    assert result[0] == deadlock([polls(text, 32, "0x8")], 32, 64)


@pytest.mark.parametrize("schedule", ["lockstep", "pct:3"])
def test_two_warps_that_poll_for_each_other_are_a_deadlock(
    schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "_PATIENCE", 2000)  # each has its turn sooner
    text = spinning(other=OTHER)
    waits = [polls(text, 32, "0x8"), polls(text, 0, "0x0")]
    assert trap(text, block=64, schedule=schedule) == deadlock(waits, 0, 64)


def test_others_that_wait_are_named_with_those_that_poll() -> None:
    text = spinning(other="bar.sync 1, 64;")
    waits = [polls(text, 32, "0x8"), at_barrier(text, 0)]
    assert trap(text, block=64) == deadlock(waits, 0, 64)


COUNTER = """red.shared.add.u32 [count], 1;
    ld.shared.u32 %r5, [count];
    shr.u32 %r5, %r5, 12;
    setp.ne.or.u32 %p2, %r5, 0, %p2;"""


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "more",
    [
        "add.u32 %r3, %r3, 1;\n    setp.gt.or.u32 %p2, %r3, 256, %p2;",
        "mov.u32 %r5, %clock;\n    sub.u32 %r5, %r5, %r4;\n    shr.u32 %r5, %r5, 11;\n"
        "    setp.ne.or.u32 %p2, %r5, 0, %p2;",
        COUNTER,
    ],
    ids=["counter", "clock", "memory"],
)
@pytest.mark.parametrize("schedule", ["lockstep", "pct:3"])
def test_polls_that_give_up_in_the_end_are_left_alone(more: str, schedule: str) -> None:
    text = spinning(more).replace("bars[2];", "bars[2];\n    .shared .b32 count;\n", 1)
    text = text.replace("bar.sync 0;", "st.shared.u32 [count], 0;\n    bar.sync 0;", 1)
    arrive = "mbarrier.arrive.shared.b64 %rd0, [bars];"
    text = text.replace(arrive, f"setp.eq.u32 %p3, %r0, 32;\n    @%p3 {arrive}")  # one lane for its warp
    run_both_ways(text, grid=1, block=64, args=[], schedule=schedule, sanitize="sync")


@pytest.mark.parametrize("poll", [0, 1000])
def test_threads_that_have_not_had_their_turn_may_end_a_poll(
    poll: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "_POLL", poll)  # 0: those that poll are served for long
    monkeypatch.setattr(policies, "_PATIENCE", 2000)
    arrive = "mbarrier.arrive.shared.b64 %rd0, [bars];"
    early = spinning(other=f"@%p0 {arrive.replace('bars', 'bars+8')}").replace(f"    {arrive}", "")
    run_both_ways(early, grid=1, block=64, args=[], sanitize=False)
    first = "mbarrier.test_wait.parity.shared.b64 %p2, [bars+8], 0;"
    one = f"setp.eq.u32 %p3, %r0, 32;\n    @%p3 {arrive}"
    late = spinning(other=OTHER[: OTHER.rindex("mbarrier")]).replace(arrive, one)
    late = late.replace(first, "setp.ne.u32 %p2, %r0, 0;")
    run_both_ways(late, grid=1, block=64, args=[], sanitize=False)


@pytest.mark.parametrize("seed", range(3))
def test_a_copy_that_is_late_may_end_a_poll(seed: int) -> None:
    text = ptx("""
    .shared .align 16 .b8 tile[16];
    .shared .align 8 .b64 bar;
    mov.u32 %r0, %tid.x;
    ld.param.u64 %rd0, [x];
    mbarrier.init.shared.b64 [bar], 1;
    fence.proxy.async;
    mbarrier.arrive.expect_tx.shared.b64 %rd1, [bar], 16;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%rd0], 16, [bar];
$wait:
    mbarrier.test_wait.shared.b64 %p0, [bar], %rd1;
    @!%p0 bra $wait;
    ld.shared.u32 %r1, [tile];
    st.global.u32 [%rd0+4], %r1;
    """)
    x = np.array([7, 0, 0, 0], np.uint32)
    assert messages(text, [x], block=1, schedule=f"pct:{seed}") == []
    assert x[1] == 7


def test_a_poll_that_changes_and_never_ends_is_named_at_the_cap() -> None:
    text = spinning("add.u32 %r3, %r3, 1;")
    poll = located(text, "test_wait")
    assert trap(text, block=64, max_instructions=1200) == (
        f"kernel k: still running after 1200 instructions in a row, at {poll}: thread (32, 0, 0) of CTA (0, "
        f"0, 0) "
        "and 31 others; if it is not an endless loop, raise max_instructions; (32, 0, 0) polls the mbarrier "
        "at "
        f"0x8 (bars), {ONE_MORE}, in {poll}"
    )


# ---------------------------------------- loops whose state repeats

LOOP = """
    ld.param.u64 %rd0, [x];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, 0;
    mul.wide.u32 %rd1, %r0, 4;
    add.s64 %rd1, %rd0, %rd1;
$again:
    BODY
    setp.eq.u32 %p0, %r2, 0;
    @%p0 bra $again;
    st.global.u32 [%rd0+4], %r2;
"""
UNCHANGED = "repeat a loop in which no register and no memory changes"


def looping(body: str) -> str:
    return ptx(LOOP.replace("BODY", body))


READ = ", and read byte {} of x, which no thread is left to write"
ENDS = (
    "; 0 of 64 threads have exited; a loop ends if it changes what its condition reads, or another thread "
    "does"
)
COUNTED = "repeat a loop in which nothing changes on which its branches depend"
STUCK = [
    ("ld.global.u32 %r2, [%rd0];", UNCHANGED + READ.format(0)),
    ("atom.global.cas.b32 %r2, [%rd0+4], 1, 2;", UNCHANGED + READ.format(4)),
    ("ld.global.u32 %r2, [%rd0];\n    st.global.u32 [%rd0+4], %r2;", UNCHANGED + READ.format(0)),
    ("mov.u32 %r3, 5;", COUNTED),
    ("st.global.u32 [%rd1], %r0;", COUNTED),
    ("bar.sync 0;", COUNTED),
    ("shfl.sync.idx.b32 %r3, %r0, 0, 31, -1;\n    membar.gl;\n    nanosleep.u32 20;", COUNTED),
    ("setp.ne.u32 %p1, %r2, 0;\n    @%p1 ret;", COUNTED),
    # Sums in a register and in memory, which grow for ever.
    ("ld.global.u32 %r4, [%rd1];\n    add.u32 %r3, %r3, %r4;", COUNTED),
    ("ld.global.u32 %r4, [%rd1];\n    add.u32 %r4, %r4, 1;\n    st.global.u32 [%rd1], %r4;", COUNTED),
    ("st.global.u32 [%rd1], 1;\n    bar.sync 0;\n    st.global.u32 [%rd1], 0;\n    bar.sync 0;", COUNTED),
]


@pytest.mark.parametrize(("body", "what"), STUCK)
def test_a_loop_in_which_nothing_changes_is_reported_at_once(body: str, what: str) -> None:
    result = trap(looping(body), [np.zeros(64, np.uint32)], block=64, max_instructions=2000)
    assert result.startswith(f"kernel k: endless loop in CTA (0, 0, 0): {named(0, 64)} {what}, in ")
    assert result.endswith(ENDS)


@pytest.mark.parametrize(("body", "what"), [STUCK[0], STUCK[3], STUCK[5]])
def test_warps_in_another_order_do_not_hide_it(body: str, what: str) -> None:
    how = {"schedule": "pct:3", "max_instructions": 60_000}
    message = refused(looping(body), [np.zeros(64, np.uint32)], block=64, **how)
    assert message.startswith("kernel k: endless loop in CTA (0, 0, 0): ")
    assert f"{what}, in " in message
    assert message.endswith(ENDS)


def test_a_loop_of_some_threads_is_a_deadlock_of_those_that_wait_for_them() -> None:
    loop = LOOP.replace("BODY", "setp.ge.u32 %p1, %r0, 32;\n    @%p1 bra $out;")
    text = ptx(loop + "$out:\n    bar.sync 1, 64;")
    waits = [f"{named(0, 32)} {COUNTED}, in {located(text, 'setp.ge')}", at_barrier(text, 32)]
    x = np.zeros(64, np.uint32)
    assert trap(text, [x], block=64, max_instructions=2000) == deadlock(waits, 0, 64)


def test_a_flag_that_only_later_ctas_could_write_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_MAX_LANES", 64 * 5)
    text = looping("ld.global.u32 %r2, [%rd0];")
    message = refused(text, [np.zeros(64, np.uint32)], grid=7, block=64, max_instructions=2000)
    assert (
        "and read byte 0 of x, which only CTAs that have not begun could write: the interpreter runs 5 "
        "CTAs at once, and 2 come later, in "
    ) in message


@pytest.mark.parametrize(
    ("body", "result"),
    [
        # Another warp, or another CTA, writes the flag, which is read by a plain load.
        (
            "ld.global.u32 %r2, [%rd0];\n    mad.lo.u32 %r3, %r1, 64, %r0;\n    setp.eq.u32 %p1, %r3, 127;\n"
            "    @%p1 st.global.u32 [%rd0], 3;",
            3,
        ),
        # Memory changes in each iteration, and no register does until the end.
        ("red.global.add.u32 [%rd0+8], 1;\n    ld.global.u32 %r2, [%rd0+8];\n    shr.u32 %r2, %r2, 13;", 1),
        # What is stored differs from the value before, but not after the second store.
        (
            "ld.global.u32 %r4, [%rd0+12];\n    add.u32 %r4, %r4, 1;\n    st.global.u32 [%rd0+12], %r4;\n"
            "    shr.u32 %r2, %r4, 8;\n    mov.u32 %r4, 0;",
            1,
        ),
        ("mov.u32 %r2, %clock;\n    shr.u32 %r2, %r2, 12;", 1),
    ],
    ids=["flag", "counter in memory", "store", "clock"],
)
@pytest.mark.parametrize("schedule", ["lockstep", "pct:3", PCT(1, apart=True)], ids=str)
def test_a_loop_that_ends_is_left_alone(body: str, result: int, schedule: Schedule) -> None:
    x = np.zeros(64, np.uint32)
    run(looping(body), grid=2, block=64, args=[x], schedule=schedule, max_instructions=600_000)
    assert x[1] == result


@pytest.mark.parametrize(
    "body",
    [
        # What others see of memory may differ in another order, so nothing is said of the state.
        "st.global.u32 [%rd0], 1;\n    bar.sync 0;\n    st.global.u32 [%rd0], 0;\n    bar.sync 0;\n"
        "    ld.global.u32 %r2, [%rd0];",
        # The way depends on a register that a load has changed, and on one that counts.
        "ld.global.u32 %r4, [%rd1];\n    add.u32 %r5, %r5, 1;\n    and.b32 %r4, %r4, %r5;\n"
        "    setp.gt.u32 %p1, %r4, 7;\n    @%p1 ret;",
        # It ends at the end of the array, though its branches do not change.
        "add.s64 %rd2, %rd2, 4;\n    add.s64 %rd3, %rd0, %rd2;\n    prefetch.global.L2 [%rd3];",
    ],
)
def test_loops_that_may_end_are_left_to_the_limit(body: str) -> None:
    text = looping(body).replace("$again:", "mov.u64 %rd2, 0;\n    mov.u32 %r5, 0;\n$again:", 1)
    result = trap(text, [np.zeros(64, np.uint32)], block=64, max_instructions=700)
    assert result.startswith("kernel k: still running after 700 instructions in a row, at ")


def test_memory_that_is_too_large_to_compare_is_left_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spins, "_COMPARED", 100)
    text = looping("ld.global.u32 %r2, [%rd0];\n    st.global.u32 [%rd1], %r2;")
    result = trap(text, [np.zeros(64, np.uint32)], block=64, max_instructions=700)
    assert result.startswith("kernel k: still running after 700 instructions in a row, at ")


def test_a_loop_that_reads_unchanged_memory_lets_others_run_soon() -> None:
    body = """ld.global.u32 %r2, [%rd0];
    setp.lt.u32 %p1, %r0, 32;
    @%p1 bra $test;
    st.global.u32 [%rd0], 3;
$test:"""
    x = np.zeros(64, np.uint32)
    run(looping(body), grid=1, block=64, args=[x], max_instructions=2000)
    assert x[1] == 3
