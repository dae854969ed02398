"""`k.while_` and `k.break_if`: loops whose number of rounds is known only on the GPU."""

from __future__ import annotations

import numpy as np
import pytest
from dsl.kernels import SCHEDULES, builder, computed, lanes, launch
from error_texts import refused

from ptxgen.errors import TypeMismatchError
from ptxgen.types import s32, u32


def collatz(n: int) -> int:
    steps = 0
    while n != 1:
        n, steps = (n // 2 if n % 2 == 0 else 3 * n + 1), steps + 1
    return steps


def test_the_body_runs_while_the_condition_holds_in_each_thread():
    def body(k, x):
        n, steps = k.var(u32, x + 1), k.var(u32, 0)
        with k.while_(lambda: n != 1):
            n.set(k.selp(3 * n + 1, n // 2, n % 2 == 1))
            steps.set(steps + 1)
        return steps

    assert computed(body, lanes()).tolist() == [collatz(n + 1) for n in range(32)]


def test_a_thread_leaves_the_innermost_loop_where_the_condition_holds():
    def body(k, x):
        total = k.var(s32, 0)
        with k.loop(0, 3), k.loop(0, 100) as i:
            with k.when(i % 2 == 1):
                k.break_if(i >= x)
            total.set(total + 1)
        return total

    wanted = [3 * next(i for i in range(101) if i == 100 or (i % 2 and i >= x)) for x in range(32)]
    assert computed(body, lanes("int32")).tolist() == wanted


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_barriers_stand_in_loops_on_which_all_threads_agree(schedule):
    k = builder(threads=64)
    P = k.pointer("P", u32)
    t = k.thread_id()
    tile = k.shared("tile", (1, 64), u32)
    tile[0, t] = t
    k.barrier()
    rounds = k.var(u32, 0)
    with k.while_(lambda: rounds < 10, uniform=True):
        k.break_if(rounds == 3, uniform=True)
        near = tile[0, (t + 1) % 64]
        k.barrier()
        tile[0, t] = near
        k.barrier()
        rounds.set(rounds + 1)
    P[t] = tile[0, t]
    p = np.zeros(64, np.uint32)
    launch(k, p, schedules=(schedule,))
    assert p.tolist() == [(t + 3) % 64 for t in range(64)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_condition_may_be_a_sum_over_the_cta(schedule):
    k = builder(threads=128)
    P = k.pointer("P", u32)
    value = k.var(u32, k.thread_id())
    with k.while_(lambda: k.block.sum(value) < sum(range(128)) + 1000, uniform=True):
        value.set(value + 1)
    P[k.thread_id()] = value
    p = np.zeros(128, np.uint32)
    launch(k, p, schedules=(schedule,))
    assert p.tolist() == [t + 8 for t in range(128)]


def test_a_condition_that_waits_for_all_threads_needs_a_promise():
    k = builder(threads=64)
    t = k.thread_id()
    message = (
        "block.sum inside 'while_': threads where the condition is false never arrive; move it out, or "
        "promise that all threads agree with k.while_(condition, uniform=True)"
    )
    with refused(TypeMismatchError, message), k.while_(lambda: k.block.sum(t) < t):
        pass
    message = (
        "break_if: block.sum in the same loop waits for threads that have left it; move it out, or promise "
        "that all threads agree with k.break_if(condition, uniform=True)"
    )
    with k.while_(lambda: k.block.sum(t) < 5, uniform=True), refused(TypeMismatchError, message):
        k.break_if(t < 3)


def test_a_barrier_where_threads_may_be_missing_is_refused():
    k = builder(threads=64)
    t = k.thread_id()
    with k.while_(lambda: t < 5):
        message = (
            "barrier inside 'while_': threads where the condition is false never arrive; move it out, or "
            "promise that all threads agree with k.while_(condition, uniform=True)"
        )
        with refused(TypeMismatchError, message):
            k.barrier()
    with k.loop(0, 5):
        k.break_if(t == 3)
        message = (
            "block.sum in a loop that some threads have left by break_if: they never arrive; move it out, or "
            "promise that all threads agree with k.break_if(condition, uniform=True)"
        )
        with refused(TypeMismatchError, message):
            k.block.sum(t)
    with k.loop(0, 5):
        k.barrier()
        message = (
            "break_if: barrier in the same loop waits for threads that have left it; move it out, or promise "
            "that all threads agree with k.break_if(condition, uniform=True)"
        )
        with refused(TypeMismatchError, message):
            k.break_if(t == 3)
        k.break_if(t < 64, uniform=True)
        with k.when(t < 3), refused(TypeMismatchError, message):  # only some threads arrive here
            k.break_if(t < 64, uniform=True)
    with k.loop(0, 5), k.loop(0, 5):
        k.break_if(t == 3)
    k.barrier()


def test_misuse_is_refused():
    k = builder()
    t = k.thread_id()
    message = (
        "while_: the condition must be a function, which is evaluated before each round, such as "
        f"k.while_(lambda: i < n), got {t < 3!r}".replace("%p0", "%p1")
    )
    with refused(TypeMismatchError, message), k.while_(t < 3):
        pass
    with (
        refused(TypeMismatchError, f"while_ takes a predicate, such as row < seq_q, got {t!r}"),
        k.while_(lambda: t),
    ):
        pass
    with refused(TypeMismatchError, "break_if leaves a loop, and there is none around it"):
        k.break_if(t < 3)
