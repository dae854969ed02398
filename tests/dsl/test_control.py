from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
from dsl.kernels import builder, computed, instructions, lanes
from error_texts import refused

from ptxgen import ir
from ptxgen.errors import ConfigError, TypeMismatchError
from ptxgen.interpreter import run
from ptxgen.types import f32, s32, u32

# ---------------------------------------- when, otherwise


def test_when_runs_the_threads_where_the_condition_holds():
    def body(k, x):
        v = k.var(u32, 7)
        with k.when(x < 5):
            v.set(x)
        return v

    n = lanes()
    assert (computed(body, n) == np.where(n < 5, n, 7)).all()


def test_otherwise_runs_the_others():
    def body(k, x):
        v = k.var(u32, 0)
        with k.when(x < 5):
            v.set(x + 100)
        with k.otherwise():
            v.set(x + 200)
        return v

    n = lanes()
    assert (computed(body, n) == np.where(n < 5, n + 100, n + 200)).all()


def test_both_arms_may_hold_both_arms():
    def body(k, x):
        v = k.var(u32, 0)
        with k.when(x < 16):
            with k.when((x & 1) == 0):
                v.set(1)
            with k.otherwise():
                v.set(2)
        with k.otherwise():
            with k.when(x < 24):
                v.set(3)
            with k.otherwise():
                v.set(4)
        return v

    n = lanes()
    want = np.where(n < 16, np.where(n % 2 == 0, 1, 2), np.where(n < 24, 3, 4))
    assert (computed(body, n) == want).all()


def test_otherwise_belongs_to_the_outer_when_behind_an_inner_one():
    def body(k, x):
        v = k.var(u32, 0)
        with k.when(x < 16), k.when(x < 8):
            v.set(1)
        with k.otherwise():
            v.set(2)
        return v

    n = lanes()
    assert (computed(body, n) == np.where(n < 8, 1, np.where(n < 16, 0, 2))).all()


def test_an_empty_arm_is_allowed():
    def body(k, x):
        v = k.var(u32, 1)
        with k.when(x < 5):
            pass
        with k.otherwise():
            v.set(2)
        return v

    assert computed(body, lanes()).tolist() == [1] * 5 + [2] * 27


OTHERWISE = "otherwise must follow directly after the end of a 'with k.when(...)' block"


@pytest.mark.parametrize("before", ["nothing", "a note", "another otherwise", "a loop"])
def test_otherwise_follows_a_when(before):
    k = builder()
    if before == "a loop":
        with k.loop(0, 3):
            pass
    elif before != "nothing":
        with k.when(k.thread_id() < 5):
            pass
    if before == "a note":
        k.note("between")
    if before == "another otherwise":
        with k.otherwise():
            pass
    with refused(TypeMismatchError, OTHERWISE), k.otherwise():
        pass


@pytest.mark.parametrize("condition", [True, 1, None, "Value(%r0: u32)"])
def test_when_takes_a_predicate(condition):
    k = builder()
    value = k.thread_id() if isinstance(condition, str) else condition
    message = f"when takes a predicate, such as row < seq_q, got {condition}"
    with refused(TypeMismatchError, message), k.when(value):
        pass


def test_a_condition_of_another_kernel_is_refused():
    k, other = builder("mine"), builder("theirs")
    condition = other.thread_id() < 3
    message = (
        "{}: Value(%p0: pred) belongs to kernel 'theirs', not to 'mine'; "
        "a value lives in the KernelBuilder that made it"
    )
    with refused(TypeMismatchError, message.format("when")), k.when(condition):
        pass
    with refused(TypeMismatchError, message.format("only_if")), k.only_if(condition):
        pass


# ---------------------------------------- loops


def turns(*bounds, **options):
    """How often the body of a loop runs, and the sum of its index."""

    def body(k, x):
        total = k.var(u32, 0)
        with k.loop(*[b(k, x) if callable(b) else b for b in bounds], **options) as i:
            total.set(total + 1000 + i.as_(u32))
        return total

    return [divmod(int(n), 1000) for n in computed(body, lanes())]


def test_a_loop_between_numbers():
    assert turns(2, 11, step=3) == [(3, 2 + 5 + 8)] * 32


@pytest.mark.parametrize("bounds", [(3, 3), (4, 3), (-1, -2)])
def test_a_loop_that_is_over_before_it_begins(bounds):
    assert turns(*bounds) == [(0, 0)] * 32


@pytest.mark.parametrize("step", [1, 5])
def test_a_loop_of_one_turn(step):
    assert turns(7, 8, step=step) == [(1, 7)] * 32


def test_bounds_known_only_on_the_gpu():
    got = turns(lambda _, x: (x & 3).as_(s32), lambda _, x: (x >> 2).as_(s32))
    want = [range(n & 3, n >> 2) for n in range(32)]
    assert got == [(len(r), sum(r)) for r in want]


def test_an_unsigned_loop_reaches_beyond_the_signed_numbers():
    def body(k, _):
        count = k.var(u32, 0)
        with k.loop(2**31 - 2, 2**31 + 2, type=u32):
            count.set(count + 1)
        return count

    assert (computed(body, lanes()) == 4).all()


def test_loops_nest():
    def body(k, x):
        total = k.var(u32, 0)
        with k.loop(0, 4) as i, k.loop(0, i):
            total.set(total + x)
        return total

    assert (computed(body, lanes()) == 6 * lanes()).all()


def test_a_loop_in_a_branch_and_a_branch_in_a_loop():
    def body(k, x):
        total = k.var(u32, 0)
        with k.when(x < 8), k.loop(0, 5) as i:
            with k.when((i & 1) == 0):
                total.set(total + 1)
            with k.otherwise():
                total.set(total + 10)
        return total

    assert computed(body, lanes()).tolist() == [23] * 8 + [0] * 24


def test_a_variable_carries_state_round_a_loop_and_a_python_name_does_not():
    def body(k, x):
        carried, rebound = k.var(u32, 0), x
        with k.loop(0, 5):
            carried.set(carried + x)
            rebound = rebound + x
        return k.shl(carried, 16) | rebound

    assert (computed(body, lanes()) == (5 * lanes() << 16 | 2 * lanes())).all()


def test_the_head_of_a_loop_asks_the_assembler_not_to_unroll_it():
    k = builder()
    with k.loop(0, 3):
        pass
    labels = [s for s in k.build().kernels[0].body if isinstance(s, ir.Label)]
    assert labels == [ir.Label("$loop_1", "nounroll"), ir.Label("$done_2")]


@pytest.mark.parametrize(
    ("bounds", "options", "message"),
    [
        *(
            ((0, 3), {"step": step}, f"step must be a positive Python integer, got {step!r}")
            for step in (0, -1, 1.0, True, None)
        ),
        ((0.0, 3), {"type": s32}, "start must be s32, got 0.0"),
        ((0, True), {"type": s32}, "stop must be s32, got True"),
        ((-1, 3), {"type": u32}, "start must be u32, got -1"),
        ((0, 2**31), {"type": s32}, "stop must be s32, got 2147483648"),
        ((0, 2**32), {"type": u32}, "stop must be u32, got 4294967296"),
        ((0, 3), {"type": f32}, "type must be an integer type such as s32, got f32"),
    ],
)
def test_the_bounds_of_a_loop_fit_its_type(bounds, options, message):
    k = builder()
    with refused(TypeMismatchError, f"loop: {message}"), k.loop(*bounds, **options):
        pass
    assert k.build() == builder().build()


def test_a_bound_of_another_type_names_the_cure():
    k = builder()
    message = "loop: stop must be s32, got Value(%r0: u32); reinterpret or convert it, or loop with type=u32"
    with refused(TypeMismatchError, message), k.loop(0, k.thread_id(), type=s32):
        pass


# ---------------------------------------- only_if


def test_only_if_predicates_each_instruction():
    def body(k, x):
        v = k.var(u32, 0)
        with k.only_if(x < 5):
            v.set(x)
            k.add(v, 1, into=v)
        return v

    n = lanes()
    assert (computed(body, n) == np.where(n < 5, n + 1, 0)).all()


def test_only_if_takes_no_branch():
    k = builder()
    v = k.var(u32, 0)
    condition = k.thread_id() < 5
    with k.only_if(condition):
        v.set(1)
    guarded = [i for i in instructions(k) if i.guard]
    assert guarded == [ir.Instr("mov.u32", (v.reg, ir.IntImm(1)), ir.Guard(ir.Reg("%p0", "pred")))]


def test_only_if_does_not_nest():
    k = builder()
    condition = k.thread_id() < 5
    message = "only_if cannot be nested; combine the conditions with &"
    with k.only_if(condition), refused(TypeMismatchError, message), k.only_if(condition):
        pass


@pytest.mark.parametrize("what", ["loop", "when", "barrier"])
def test_control_flow_is_refused_inside_only_if(what):
    k = builder()
    condition = k.thread_id() < 5
    message = (
        f"{what} inside 'only_if', which predicates single instructions; "
        "branch with 'with k.when(condition):' instead"
    )
    with k.only_if(condition), refused(TypeMismatchError, message):
        if what == "loop":
            k.loop(0, 3).__enter__()
        elif what == "when":
            k.when(condition).__enter__()
        else:
            k.barrier()


# ---------------------------------------- barriers

REFUSED = (
    "barrier inside 'when': threads where the condition is false never arrive; move it "
    "out, or promise that all threads agree with k.when(condition, uniform=True)"
)


def exchanged(k, x):
    """Each thread's neighbour's value, through shared memory."""
    tile = k.shared("T", (1, 64), u32)
    k.store(tile.pointer(0, k.thread_id()), x)
    with k.when(k.block_id() == 0, uniform=True):
        k.barrier()
    with k.otherwise():
        k.barrier(3)
    return k.load(tile.pointer(0, k.thread_id() ^ 1))


def test_a_barrier_is_allowed_in_both_arms_of_a_uniform_branch():
    assert (computed(exchanged, lanes(threads=64), threads=64) == lanes(threads=64) ^ 1).all()


@pytest.mark.parametrize("arm", ["when", "otherwise", "loop in when", "uniform in when"])
def test_a_barrier_is_refused_where_threads_may_be_missing(arm):
    k = builder()
    condition = k.thread_id() < 5
    with contextlib.ExitStack() as stack:
        if arm == "otherwise":
            with k.when(condition):
                pass
            stack.enter_context(k.otherwise())
        else:
            stack.enter_context(k.when(condition))
        if arm == "loop in when":
            stack.enter_context(k.loop(0, 3))
        if arm == "uniform in when":
            stack.enter_context(k.when(condition, uniform=True))
        with refused(TypeMismatchError, REFUSED):
            k.barrier()


def test_a_barrier_of_some_threads_is_allowed_in_a_branch():
    def body(k, x):
        with k.when(x < 32):
            k.barrier(1, threads=32)
        return x

    assert (computed(body, lanes(threads=64), threads=64) == lanes(threads=64)).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(((number,), f"number must be 0..15, got {number!r}") for number in (-1, 16, 1.0)),
        *(
            ((0, threads), f"threads must be a positive multiple of 32, got {threads}")
            for threads in (0, 31, 33, -32)
        ),
    ],
)
def test_there_are_sixteen_barriers_which_count_whole_warps(arguments, message):
    with refused(ConfigError, f"barrier: {message}"):
        builder().barrier(*arguments)


# ---------------------------------------- a body that raises


def test_blocks_are_closed_when_their_bodies_raise():
    k = builder()
    x, v = k.param("x", u32), k.var(u32, 0)
    for block in (lambda: k.when(x < 5), k.otherwise, lambda: k.loop(0, 3), lambda: k.only_if(x < 3)):
        with contextlib.suppress(TypeMismatchError), block():
            v.set(v + 1)
            v.set(k.mov(0.0, type=f32))
    k.barrier()  # no branch is open
    with pytest.raises(ConfigError, match="Python left a block before its end"):
        k.build()


# ---------------------------------------- blocks that are not entered


def line_of(word: str) -> int:
    """The number of the line in this file that has a word to itself as its comment."""
    lines = Path(__file__).read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if line.endswith(f"# {word}"))


IS_A_BLOCK = "k.{0}(...) is a block that runs on the GPU: Python cannot {1}; use 'with k.{0}(...):'"
BRANCH = "branch on it, and 'if' would guard nothing on the GPU"


@pytest.mark.parametrize(
    ("kind", "block"),
    [
        ("when", lambda k, x: k.when(x < 3)),
        ("only_if", lambda k, x: k.only_if(x < 3)),
        ("loop", lambda k, _: k.loop(0, 4)),
    ],
)
def test_a_block_is_no_condition_of_python_but_may_still_be_entered(kind, block):
    k = builder()
    entered = block(k, k.param("x", u32))
    before = len(instructions(builder()))
    with refused(TypeMismatchError, IS_A_BLOCK.format(kind, BRANCH)):
        if entered:
            k.store(k.pointer("out"), 1.0)
    with refused(TypeMismatchError, IS_A_BLOCK.format(kind, "iterate over it")):
        list(entered)
    with entered:
        pass
    assert len(instructions(k)) > before
    assert [i for i in instructions(k) if i.opcode.startswith("st")] == []


def test_build_refuses_blocks_that_were_never_entered():
    k = builder()
    x = k.param("x", u32)
    k.only_if(x < 3)  # dropped
    k.loop(0, 4)  # lost
    with pytest.raises(ConfigError) as caught:
        k.build()
    here = f"{__file__}:{{}}, in test_build_refuses_blocks_that_were_never_entered"
    assert str(caught.value) == (
        "kernel 'kernel': blocks that were never entered guard nothing; write 'with' before each:"
        f"\n  k.only_if from {here.format(line_of('dropped'))}"
        f"\n  k.loop from {here.format(line_of('lost'))}"
    )


def test_a_block_begins_once():
    k = builder()
    block = k.when(k.param("x", u32) < 3)
    with block:
        pass
    message = "this block of k.when has been entered before; make another one with k.when(...)"
    with refused(TypeMismatchError, message), block:
        pass
    assert k.build()


@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 100])
def test_a_share_of_a_number_of_python_needs_a_loop_only_beyond_the_threads(n):
    k = builder()
    P = k.pointer("P", u32)
    with k.strided(n) as i:
        P[i] = i + 1
        i.set(i)
    module = k.build()
    backwards = [s for s in module.kernels[0].body if isinstance(s, ir.Label) and s.pragma]
    assert len(backwards) == (n > 32)
    p = np.zeros(100, np.uint32)
    run(module, grid=1, block=32, args=[p], sanitize=True)
    assert p.tolist() == [i + 1 if i < n else 0 for i in range(100)]
