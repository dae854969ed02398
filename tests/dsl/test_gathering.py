"""Instructions that the lanes of a warp execute together are refused where some lanes do not come, and
nowhere else.
"""

# Each body takes the builder, the array and its length, whatever it uses.
# ruff: noqa: ARG001, ARG005

from __future__ import annotations

import numpy as np
import pytest

import ptxgen as px
from ptxgen import Pointer, ir, u32
from ptxgen.check.prove import prove_shared
from ptxgen.dsl.divergence import Divergence
from ptxgen.errors import TypeMismatchError

FALSE = (
    "inside 'when': lanes of a warp where the condition is false never arrive; move it out, where these "
    "lanes give a neutral element, such as k.selp(value, 0, condition), or promise that the lanes of each "
    "warp agree with k.when(condition, uniform='warp')"
)
SHARE = (
    "lanes of a warp whose share has ended never arrive; move it out, or loop with k.loop(start, stop) and "
    "bounds on which the lanes of a warp agree, and give those after the end a neutral element, such as "
    "k.selp(value, 0, i < n)"
)
FEWER = (
    "inside 'loop': lanes of a warp that have fewer iterations never arrive; move it out, or take bounds on "
    "which the lanes of a warp agree, and give those after the end a neutral element, such as "
    "k.selp(value, 0, i < n)"
)
LEFT = (
    "lanes of a warp that have left never arrive; move it out, where these lanes give a neutral element, "
    "such as k.selp(value, 0, condition), or promise that the lanes of each warp agree with "
    "k.break_if(condition, uniform='warp')"
)


def built(body, threads=128):
    """Build a kernel whose body is a function of the builder, the array and its length."""

    @px.kernel(threads=threads)
    def kernel(k, X: Pointer[u32], n: u32):
        body(k, X, n)

    return kernel.build()


def refused(body, threads=128) -> str:
    with pytest.raises(TypeMismatchError) as error:
        built(body, threads)
    return str(error.value)


# Conditions on which lanes agree for reasons that the proof of convergence does not follow.
FOR_THE_CALLER = {
    "a sum",
    "threads of whole warps of the grid",
    "from whole warps on",
    "no thread, or some",
    "a variable",
    "the same number on both sides",
}


def thread_of_grid(k):
    return k.block_id() * k.threads + k.thread_id()


# Conditions on which the lanes of a warp agree, of the builder and n.
AGREED = {
    "the number of a warp": lambda k, n: k.thread_id() // 32 == 0,
    "whole warps": lambda k, n: k.thread_id() < 64,
    "warps by the launch": lambda k, n: k.thread_id() >> 5 < n,
    "warps of the grid": lambda k, n: thread_of_grid(k) // 32 < n,
    "threads of whole warps of the grid": lambda k, n: thread_of_grid(k) < n * 32,
    "from whole warps on": lambda k, n: thread_of_grid(k) >= n << 5,
    "the first thread of a warp": lambda k, n: (thread_of_grid(k) & 0xFFFFFFE0) < n,
    "the launch": lambda k, n: n > 3,
    "the CTA": lambda k, n: k.block_id() < n,
    "memory": lambda k, n: k.load(k.pointer("Y", u32)) < n,
    "a vote": lambda k, n: k.warp.any(k.thread_id() < n),
    "a sum": lambda k, n: k.warp.sum(k.thread_id()) < n,
    "whole warps and the launch": lambda k, n: (k.thread_id() < 64) & (n > 3),
    "no thread, or some": lambda k, n: (k.thread_id() >= 128) & (k.thread_id() < n),
    "a variable": lambda k, n: k.var(u32, k.thread_id()) < n,
    "the same number on both sides": lambda k, n: n + k.thread_id() < n + 64,
}
SPLIT = {
    "few threads": lambda k, n: k.thread_id() < 5,
    "one lane": lambda k, n: (k.thread_id() & 31) == 0,
    "threads by the launch": lambda k, n: k.thread_id() < n,
    "one thread by the launch": lambda k, n: k.thread_id() == n,
    "threads of the grid": lambda k, n: thread_of_grid(k) < n,
    "threads of half warps": lambda k, n: thread_of_grid(k) < n * 16,
    "up to a whole warp's first": lambda k, n: thread_of_grid(k) <= n * 32,
    "half warps of the grid": lambda k, n: thread_of_grid(k) // 16 < n,
    "few threads and the launch": lambda k, n: (k.thread_id() < 5) & (n > 3),
    "few threads or the launch": lambda k, n: (n > 3) | (k.thread_id() < 5),
    "not few threads": lambda k, n: ~(k.thread_id() >= 5),
}


@pytest.mark.parametrize("name", AGREED)
def test_a_condition_on_which_lanes_agree_is_never_refused(name):
    def body(k, X, n):
        with k.when(AGREED[name](k, n)):
            X[0] = k.warp.sum(X[1])

    built(body)


@pytest.mark.parametrize("name", SPLIT)
def test_a_condition_that_splits_a_warp_is_refused(name):
    def body(k, X, n, **promise):
        with k.when(SPLIT[name](k, n), **promise):
            X[0] = k.warp.sum(X[1])

    assert refused(body) == f"warp.sum {FALSE}"
    built(lambda k, X, n: body(k, X, n, uniform="warp"))


@pytest.mark.parametrize("name", [*AGREED, *SPLIT])
def test_what_is_refused_is_not_proved(name):
    @px.kernel(threads=128)
    def kernel(k, X: Pointer[u32], n: u32):
        with k.when({**AGREED, **SPLIT}[name](k, n), uniform="warp"):
            X[0] = k.shfl(n, 0, 31, -1, mode="idx")
        X[1] = 0  # so that the other lanes do not end at once

    last = prove_shared(kernel.build().module, block=128).convergence[-1]
    if name in SPLIT:
        assert last.verdict != "proved"
    else:
        assert last.verdict == "proved" or name in FOR_THE_CALLER


def behind(k, X, n, word):
    with k.when(k.thread_id() < 5):
        word(k, X[0])


@pytest.mark.parametrize("word", ["sum", "max", "min", "scan"])
def test_each_word_of_a_warp_is_refused(word):
    assert refused(lambda k, X, n: behind(k, X, n, lambda k, v: getattr(k.warp, word)(v))) == (
        f"warp.{word} {FALSE}"
    )


def test_votes_and_instructions_with_a_membermask_are_refused():
    named = FALSE.replace("; move", "; name those that do in its membermask, or move")
    assert refused(lambda k, X, n: behind(k, X, n, lambda k, v: k.warp.any(v > 0))) == f"warp.any {FALSE}"
    words = {
        "shfl": lambda k, v: k.shfl(v, 0, 31, -1, mode="idx"),
        "redux": lambda k, v: k.redux(v, -1, op="add"),
        "bar_warp_sync": lambda k, v: k.bar_warp_sync(-1),
    }
    for name, word in words.items():
        assert refused(lambda k, X, n, word=word: behind(k, X, n, word)) == f"{name} {named}"


def test_a_membermask_names_the_lanes_that_come():
    built(lambda k, X, n: behind(k, X, n, lambda k, v: k.shfl(v, 0, 31, 0x1F, mode="idx")))


def test_matrix_words_are_refused():
    def body(k, X, n):
        with k.when(k.thread_id() < 5):
            k.movmatrix(X[0])

    assert refused(body).startswith(f"movmatrix {FALSE}")


@pytest.mark.parametrize(
    ("threads", "word", "message"),
    [
        (
            48,
            lambda k, X: k.movmatrix(X[0]),
            "movmatrix needs all lanes of a warp, and the last one of a CTA of 48 threads has 16; take a "
            "multiple of 32 threads",
        ),
        (
            48,
            lambda k, X: k.butterfly(X[0], 16),
            "shfl: lane 0 of the last warp reads lane 16, but it has 16 lanes in a CTA of 48 threads; take a "
            "multiple of 32 threads, or a word of k.warp, which leaves out the lanes that a warp lacks",
        ),
    ],
)
def test_lanes_that_a_block_lacks_are_not_read(threads, word, message):
    assert refused(lambda k, X, n: word(k, X), threads) == message


def test_words_of_warps_take_blocks_of_any_size():
    built(lambda k, X, n: k.warp.sum(X[0]) + k.warp.scan(X[1]) + k.butterfly(X[2], 8), 48)


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        (lambda k, n: k.strided(n), f"inside 'strided': {SHARE}"),
        (lambda k, n: k.strided(200), f"inside 'strided': {SHARE}"),
        (lambda k, n: k.strided(100), f"inside 'strided': {SHARE}"),
        (lambda k, n: k.grid_strided(n), f"inside 'grid_strided': {SHARE}"),
        (lambda k, n: k.loop(k.thread_id(), n, 128), FEWER),
        (lambda k, n: k.loop(0, k.thread_id(), 1), FEWER),
        (lambda k, n: k.strided(256), ""),
        (lambda k, n: k.strided(64), ""),
        (lambda k, n: k.strided(n * 32), ""),
        (lambda k, n: k.grid_strided(n * 32), ""),
        (lambda k, n: k.loop(0, n), ""),
        (lambda k, n: k.loop(k.thread_id() // 32, n, 4), ""),
        (lambda k, n: k.loop(k.block_id(), n, 4), ""),
    ],
)
def test_a_loop_is_left_by_whole_warps(loop, message):
    def body(k, X, n):
        with loop(k, n) as i:
            X[0] = k.warp.sum(i)

    if message:
        assert refused(body) == f"warp.sum {message}"
    else:
        built(body)


@pytest.mark.parametrize("first", [True, False])
def test_lanes_do_not_leave_a_loop_before_others(first):
    def body(k, X, n, split=True, **promise):
        with k.loop(0, n) as i:
            left = (k.thread_id() if split else k.block_id()) > n
            if first:
                k.break_if(left, **promise)
            X[i] = k.warp.sum(X[i])
            if not first:
                k.break_if(left, **promise)

    caller = "warp.sum in a loop with break_if:" if first else "break_if: warp.sum is in the same loop, and"
    assert refused(body) == f"{caller} {LEFT}"
    built(lambda k, X, n: body(k, X, n, uniform="warp"))
    built(lambda k, X, n: body(k, X, n, split=False))


def test_the_other_branch_is_refused_too():
    def body(k, X, n):
        with k.when(k.thread_id() < 5):
            X[0] = 1
        with k.otherwise():
            X[1] = k.warp.sum(X[2])

    words = FALSE.replace("'when'", "'otherwise'").replace("is false never", "holds never")
    assert refused(body) == f"warp.sum {words}"


def test_a_promise_is_one_that_is_known():
    def body(k, X, n):
        with k.when(n > 3, uniform="lane"):
            X[0] = 1

    assert refused(body) == "when: uniform must be True, False or 'warp', got 'lane'"


def test_a_promise_for_warps_is_none_for_the_block():
    def body(k, X, n):
        with k.when(k.thread_id() < 32, uniform="warp"):
            k.barrier()

    assert refused(body).startswith(
        "barrier inside 'when': threads where the condition is false never arrive"
    )


def test_the_cure_sums_what_lanes_have():
    @px.kernel(threads=64)
    def total(k, X: Pointer[u32], Y: Pointer[u32], n: u32):
        i = k.thread_id()
        v = k.var(u32, 0)
        with k.when(i < n):
            v.set(X[i])
        Y[i] = k.warp.sum(v)

    x, y = np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)
    total[1](x, y, 40, backend="interpreter")
    assert [y[0], y[63]] == [x[:32].sum(), x[32:40].sum()]


def test_a_loop_is_judged_anew_when_its_bound_is_written_again():
    bound, thread = ir.Reg("%r0", "b32"), ir.Special("%tid.x")
    statements = [ir.Instr("mov.u32", (bound, thread))]
    divergence = Divergence(statements, (64, 1, 1))
    assert [divergence.splits_loop(0, bound, 1, u32) for _ in range(2)] == [True, True]
    assert not divergence.splits_loop(0, 7, 1, u32)
    statements.append(ir.Instr("mov.u32", (bound, ir.IntImm(3))))
    assert not divergence.splits_loop(0, bound, 1, u32)
