"""What the sanitizers find of barriers that count warps."""

from __future__ import annotations

import numpy as np
import pytest
from interpreter.both_paths import run_both_ways
from interpreter.programs import at, deadlock, located, named, ptx
from interpreter.reported import messages, trap


def in_warps(*bodies: str) -> str:
    """Each warp runs a body of its own; then all write what is in %r4 to their word of x."""
    text = ["mov.u32 %r0, %tid.x;", "shr.u32 %r1, %r0, 5;", "mov.u32 %r4, 0;"]
    for n, body in enumerate(bodies):
        text += [f"setp.ne.u32 %p0, %r1, {n};", f"@%p0 bra $next{n};", body, f"$next{n}:"]
    store = "mul.wide.u32 %rd1, %r0, 4;\nadd.u64 %rd0, %rd0, %rd1;\nst.global.u32 [%rd0], %r4;"
    return ptx("\n".join([*text, "ld.param.u64 %rd0, [x];", store, "ret;"]))


def stuck(text: str, first: int, barrier: str, instruction: str, exited: int) -> str:
    """The message about a warp that waits, of three."""
    return deadlock([f"{named(first, 32)} wait at {barrier} in {located(text, instruction)}"], exited, 96)


def test_each_warp_may_use_one_barrier_by_itself() -> None:
    body = """
    mov.u32 %r0, %tid.x;
    and.b32 %r1, %r0, 63;
    setp.lt.u32 %p0, %r1, 40;
    bar.red.popc.u32 %r4, 1, 32, %p0;
    ld.param.u64 %rd0, [x];
    mul.wide.u32 %rd1, %r0, 4;
    add.u64 %rd0, %rd0, %rd1;
    st.global.u32 [%rd0], %r4;
    """
    x = np.zeros(128, np.uint32)
    assert messages(ptx(body), [x], block=128) == []
    assert x.tolist() == [32] * 32 + [8] * 32 + [32] * 32 + [8] * 32


def test_more_warps_than_a_barrier_counts_are_found_and_the_first_go_on() -> None:
    text = ptx("bar.sync 1, 64;")
    open_ = "threads have come to barrier 1 at once, which waits for 64: which of them go on together"
    assert messages(text, block=128) == [at(text, "bar", 127) + f"sync: 128 {open_} is open"]
    assert [line.strip() for line in trap(text, block=96).splitlines()] == [
        stuck(text, 64, "barrier 1 (32 of 64 threads have come)", "bar.sync 1, 64;", 64),
        "before that, kernel k: the sanitizer reports 1 problem:",
        at(text, "bar", 95) + f"sync: 96 {open_} is open",
    ]


def test_fewer_warps_than_a_barrier_counts_wait_for_ever() -> None:
    text = in_warps("bar.sync 2, 96;", "bar.arrive 2, 96;", "")
    assert trap(text, [np.zeros(96, np.uint32)], block=96) == stuck(
        text, 0, "barrier 2 (64 of 96 threads have come)", "bar.sync 2, 96;", 64
    )


def test_a_warp_that_arrives_twice_at_a_barrier_without_waiting_is_found() -> None:
    arrive = "bar.arrive 1, 96;"
    text = in_warps(f"{arrive}\nmov.u32 %r4, 7;\n{arrive}", "bar.sync 1, 96;")
    x = np.zeros(64, np.uint32)
    assert messages(text, [x], block=64) == [
        at(text, arrive, nth=1) + "sync: comes to barrier 1 again before the others have: it counts twice"
    ]
    assert x.tolist() == [7] * 32 + [0] * 32


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("second", ["bar.arrive 1, 96;", "bar.sync 1, 96;"])
def test_a_warp_may_arrive_and_wait_at_a_barrier_if_no_other_comes_later(second: str, late: bool) -> None:
    wait, meet = "bar.sync 1, 96;", "bar.sync 2, 64;"
    first = f"bar.arrive 1, 96;\n{wait}\nmov.u32 %r4, 7;\n{meet}"
    text = in_warps(first, second, f"{meet}\n" + "bar.arrive 1, 96;" * late)
    x = np.zeros(96, np.uint32)
    twice = "sync: comes to barrier 1 again before the others have: it counts twice"
    assert messages(text, [x], block=96) == [at(text, wait) + twice] * late
    assert x.tolist() == [7] * 32 + [0] * 64


@pytest.mark.parametrize("threads", [32, 64, 96])
def test_warps_may_arrive_at_a_barrier_and_wait_there_if_all_that_come_do(threads: int) -> None:
    count = 2 * threads
    text = ptx(f"bar.arrive 1, {count};\nbar.sync 1, {count};")
    assert messages(text, block=threads) == []


def test_a_warp_may_let_itself_begin_to_take_turns() -> None:
    text = ptx("""
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, 0;
    setp.lt.u32 %p0, %r0, 32;
    @%p0 bar.arrive 1, 64;
$again:
    @%p0 bar.sync 1, 64;
    @%p0 bar.arrive 2, 64;
    @!%p0 bar.sync 2, 64;
    @!%p0 bar.arrive 1, 64;
    add.u32 %r1, %r1, 1;
    setp.lt.u32 %p1, %r1, 3;
    @%p1 bra $again;
    """)
    assert messages(text, block=64) == []


def test_arrivals_complete_a_barrier_that_nobody_waits_at() -> None:
    text = ptx("""
    mov.u32 %r0, %tid.x;
    setp.lt.u32 %p0, %r0, 32;
    bar.arrive 1, 64;
    @%p0 bar.arrive 1, 64;
    @!%p0 bar.sync 1, 64;
    """)
    assert messages(text, block=64) == []


def test_two_warps_may_hand_over_to_each_other_again_and_again() -> None:
    text = ptx("""
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, 0;
    setp.lt.u32 %p0, %r0, 32;
$again:
    @%p0 bar.arrive 1, 64;
    @!%p0 bar.sync 1, 64;
    @!%p0 bar.arrive 2, 64;
    @%p0 bar.sync 2, 64;
    add.u32 %r1, %r1, 1;
    setp.lt.u32 %p1, %r1, 3;
    @%p1 bra $again;
    """)
    assert messages(text, block=64) == []


def test_a_barrier_is_not_used_with_another_count_while_some_wait_there() -> None:
    text = in_warps("bar.sync 1, 64;", "bar.arrive 1, 96;", "bar.sync 1;")
    assert trap(text, [np.zeros(64, np.uint32)], block=64) == (
        at(text, "bar.arrive", 32)
        + "comes to barrier 1 for 96 threads, but others have come to it for 64 threads"
    )
    text = in_warps("bar.sync 1, 64;", "bar.sync 1;")
    assert trap(text, [np.zeros(64, np.uint32)], block=64) == (
        at(text, "bar.sync 1;", 32)
        + "comes to barrier 1 for all threads, but others have come to it for 64 threads"
    )


@pytest.mark.parametrize("barrier", [0, 15])
def test_a_cta_has_sixteen_barriers(barrier: int) -> None:
    text = ptx(f"bar.sync {barrier};\n    barrier.sync {barrier}, 64;")
    run_both_ways(text, grid=2, block=64, args=[])
