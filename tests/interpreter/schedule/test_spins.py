"""Threads that poll for what nobody will do are a deadlock; others are left alone."""

from __future__ import annotations

import numpy as np
import pytest
from interpreter.both_paths import run_both_ways
from interpreter.programs import line_of, ptx
from interpreter.reported import messages, trap

from ptxgen.interpreter.schedule import policies

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
    ret;
    """
OTHER = """
$second:
    mbarrier.test_wait.parity.shared.b64 %p2, [bars], 0;
    @!%p2 bra $second;
    mbarrier.arrive.shared.b64 %rd0, [bars+8];
    """


def spinning(more: str = "", other: str = "") -> str:
    return ptx(SPIN.format(more=more, other=other), version="8.0", target="sm_90a")


def polls(text: str, first: int, last: int, address: str, *, threads: str) -> str:
    line = line_of(text, f"test_wait.parity.shared.b64 %p2, [bars{'+8' * (address == '0x8')}]")
    instr = text.splitlines()[line - 1].strip()
    return (
        f"{threads} threads ({', '.join(f'({n}, 0, 0)' for n in range(first, first + 4))} and "
        f"{last - first - 4} more) poll the mbarrier at {address} (bars), "
        f"whose phase waits for 1 arrival more, in {instr} (line {line})"
    )


@pytest.mark.parametrize("more", ["", "nanosleep.u32 20;", "ld.shared.u32 %r9, [%r3+8];"])
def test_a_poll_that_nobody_can_end_is_a_deadlock(more: str) -> None:
    text = spinning(more)
    found = trap(text, [], block=64).splitlines()
    assert found[0] == (
        "kernel k: deadlock in CTA (0, 0, 0): "
        + polls(text, 32, 64, "0x8", threads="32")
        + "; 32 of 64 threads have exited"
    )


@pytest.mark.parametrize("schedule", ["lockstep", "pct:3"])
def test_two_warps_that_poll_for_each_other_are_a_deadlock(
    schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "_PATIENCE", 2000)  # each has its turn sooner
    text = spinning(other=OTHER)
    assert trap(text, [], block=64, schedule=schedule) == (
        "kernel k: deadlock in CTA (0, 0, 0): "
        + polls(text, 32, 64, "0x8", threads="32")
        + "; "
        + polls(text, 0, 32, "0x0", threads="32")
        + "; 0 of 64 threads have exited"
    )


def test_others_that_wait_are_named_with_those_that_poll() -> None:
    text = spinning(other="bar.sync 1, 64;")
    bar = line_of(text, "bar.sync 1")
    assert trap(text, [], block=64) == (
        "kernel k: deadlock in CTA (0, 0, 0): "
        + polls(text, 32, 64, "0x8", threads="32")
        + "; 32 threads ((0, 0, 0), (1, 0, 0), (2, 0, 0), (3, 0, 0) and 28 more) wait at barrier 1 "
        f"(32 of 64 threads have come) in bar.sync 1, 64; (line {bar}); 0 of 64 threads have exited"
    )


COUNTER = """red.shared.add.u32 [count], 1;
    ld.shared.u32 %r5, [count];
    shr.u32 %r5, %r5, 13;
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


@pytest.mark.parametrize("seed", range(6))
def test_a_copy_that_is_late_may_end_a_poll(seed: int) -> None:
    text = ptx(
        """
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
    ret;
    """,
        "u64 x",
        version="8.0",
        target="sm_90a",
    )
    x = np.array([7, 0, 0, 0], np.uint32)
    assert messages(text, [x], block=1, schedule=f"pct:{seed}") == []
    assert x[1] == 7


def test_a_poll_that_changes_and_never_ends_is_named_at_the_cap() -> None:
    text = spinning("add.u32 %r3, %r3, 1;")
    line = line_of(text, "test_wait")
    instr = text.splitlines()[line - 1].strip()
    assert trap(text, [], block=64, max_instructions=2500) == (
        f"kernel k: still running after 2500 instructions in a row, at {instr} (line {line}): "
        "thread (32, 0, 0) of CTA (0, 0, 0) and 31 others; if it is not an endless loop, raise "
        f"max_instructions; (32, 0, 0) polls the mbarrier at 0x8 (bars), whose phase waits for 1 "
        f"arrival more, in {instr} (line {line})"
    )
