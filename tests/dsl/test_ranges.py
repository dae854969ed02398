"""What a thread's share of a range is: `thread_id`, `strided`, `grid_strided`, and the type of a loop."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from dsl.kernels import builder, computed, instructions, lanes
from error_texts import refused

from ptxgen import ir
from ptxgen.errors import ModifierError, TypeMismatchError
from ptxgen.interpreter import run
from ptxgen.runtime.assembler import Assembler
from ptxgen.text import render
from ptxgen.types import f32, s32, s64, u16, u32, u64

COUNTERS = [u32, s32, u64, s64]


# ---------------------------------------- where a thread is


def test_ids_along_three_axes():
    k = builder(threads=12)
    out = k.pointer("out", u32)
    thread = (k.thread_id("z") * 2 + k.thread_id("y")) * 3 + k.thread_id("x")
    ids = [k.block_id(a) for a in "xyz"]
    counts = [k.blocks(a) for a in "xyz"]
    block = (ids[2] * counts[1] + ids[1]) * counts[0] + ids[0]
    own = out.element((block * 12 + thread) * 2)
    k.store(own, [block, counts[2]])
    got = np.zeros((3 * 2 * 4, 12, 2), np.uint32)
    run(k.build(), grid=(3, 2, 4), block=(3, 2, 2), args=[got], sanitize=True)
    assert (got[:, :, 0] == np.arange(24)[:, None]).all()
    assert (got[:, :, 1] == 4).all()


def test_without_an_axis_ids_are_along_x():
    k = builder()
    k.thread_id(), k.block_id(), k.blocks()
    assert [i.operands[1] for i in instructions(k)[:3]] == [
        ir.Special("%tid.x"),
        ir.Special("%ctaid.x"),
        ir.Special("%nctaid.x"),
    ]


@pytest.mark.parametrize("word", ["thread_id", "block_id", "blocks"])
@pytest.mark.parametrize("axis", ["w", "", "xy", 0, None])
def test_an_axis_is_x_y_or_z(word, axis):
    with refused(ModifierError, f"{word}: the axis must be 'x', 'y' or 'z', got {axis!r}"):
        getattr(builder(), word)(axis)


# ---------------------------------------- the type of a loop


@pytest.mark.parametrize("type", COUNTERS)
@pytest.mark.parametrize("which", ["start", "stop", "both"])
def test_a_loop_counts_in_the_type_of_its_bounds(type, which):
    k = builder()
    n = k.param("n", type)
    bounds = {"start": (n, 5), "stop": (0, n), "both": (n, n)}[which]
    with k.loop(*bounds) as i:
        assert i.type is type


def test_a_loop_between_numbers_counts_in_s32():
    with builder().loop(0, 3) as i:
        assert i.type is s32


def test_a_loop_over_64_bits():
    def body(k, x):
        total = k.var(u64, 0)
        first = k.cvt(x, dtype=u64) + 2**32
        with k.loop(first, first + 3) as i:
            total.set(total + i)
        return total

    assert (computed(body, lanes()) == 3 * (lanes("uint64") + 2**32) + 3).all()


@pytest.mark.parametrize(
    ("message", "start"),
    {
        "start and stop must have one type, got Value(%r0: u32) and Value(%r1: s32); "
        "reinterpret one with .as_(type) or convert it with k.cvt(value, dtype=type)": lambda k: k.param(
            "a", u32
        ),
        "start must be s32, got 2147483648": lambda _: 2**31,
    }.items(),
)
def test_bounds_have_one_type(start, message):
    k = builder()
    with refused(TypeMismatchError, f"loop: {message}"), k.loop(start(k), k.param("b", s32)):
        pass


@pytest.mark.parametrize("type", [u16, f32])
@pytest.mark.parametrize("what", ["start", "stop"])
def test_a_bound_is_an_integer_that_loops_count_in(type, what):
    k = builder()
    bound = k.fresh(type)
    message = f"loop: {what} must be u32, s32, u64 or s64, got {bound!r}"
    with refused(TypeMismatchError, message), k.loop(**{"start": 0, "stop": 0, what: bound}):
        pass


# ---------------------------------------- shares


def shares(word, n, type, *, grid, threads, literal=False):
    """How often each index 0 … 255 was in a thread's share, and the threads that had it."""
    k = builder(threads=threads)
    seen, caller = k.pointer("seen", u32), k.pointer("who", u32)
    bound = k.param("n", type)
    mine = k.block_id() * threads + k.thread_id()
    with getattr(k, word)(n if literal else bound) as i:
        assert i.type is (u32 if literal else type)
        seen[i] += 1
        caller[i] = mine
    counts, owners = np.zeros(256, np.uint32), np.full(256, -1, np.int32)
    run(k.build(), grid=grid, block=threads, args=[counts, owners.view(np.uint32), n], sanitize=True)
    return counts, owners


LENGTHS = [0, 1, 31, 32, 33, 100, 256]


@pytest.mark.parametrize(("word", "grid", "threads"), [("strided", 1, 48), ("grid_strided", 3, 32)])
@pytest.mark.parametrize("type", COUNTERS)
@pytest.mark.parametrize("n", LENGTHS)
def test_the_threads_of_a_cta_or_a_grid_share_a_range(word, grid, threads, type, n):
    counts, owners = shares(word, n, type, grid=grid, threads=threads)
    assert (counts == (np.arange(256) < n)).all()
    assert (owners[:n] == np.arange(n) % (grid * threads)).all()


@pytest.mark.parametrize("word", ["strided", "grid_strided"])
def test_a_range_known_while_building_counts_in_u32(word):
    counts, _ = shares(word, 100, u32, grid=1, threads=32, literal=True)
    assert (counts == (np.arange(256) < 100)).all()


@pytest.mark.parametrize("word", ["strided", "grid_strided"])
def test_a_share_in_s32_of_a_negative_length_is_empty(word):
    counts, _ = shares(word, -5, s32, grid=1, threads=32)
    assert not counts.any()


@pytest.mark.parametrize("word", ["strided", "grid_strided"])
@pytest.mark.parametrize("type", COUNTERS)
def test_a_share_assembles(word, type, assembler: Assembler):
    k = builder()
    X, n = k.pointer("X"), k.param("n", type)
    with getattr(k, word)(n) as i:
        X[i] = X[i] * 2
    assert assembler.assemble(render(k.build()), "sm_80").cubin


@pytest.mark.parametrize("word", ["strided", "grid_strided"])
@pytest.mark.parametrize("n", [-1, 2**32, 1.0, True, None, f32], ids=str)
def test_the_length_of_a_range_is_an_integer_that_fits_u32(word, n):
    k = builder()
    message = f"must be an integer that fits u32, got {n!r}"
    if n is f32:
        n, message = k.param("n", f32), "must be u32, s32, u64 or s64, got Value(%f0: f32)"
    with refused(TypeMismatchError, f"{word}: n {message}"), getattr(k, word)(n):
        pass


@pytest.mark.parametrize("word", ["strided", "grid_strided"])
@pytest.mark.parametrize("inner", ["", "loop", "uniform"])
def test_a_barrier_in_a_share_is_refused(word, inner):
    k = builder()
    message = (
        f"barrier inside '{word}': threads whose share has ended never arrive; move it out, or "
        "loop with k.loop(start, stop) and bounds on which all threads agree"
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(getattr(k, word)(100))
        if inner == "loop":
            stack.enter_context(k.loop(0, 3))
        if inner == "uniform":
            stack.enter_context(k.when(k.block_id() == 0, uniform=True))
        with refused(TypeMismatchError, message):
            k.barrier()
    k.barrier()


@pytest.mark.parametrize("word", ["strided", "grid_strided"])
def test_a_share_inside_only_if_is_refused(word):
    k = builder()
    message = (
        f"{word} inside 'only_if', which predicates single instructions; "
        "branch with 'with k.when(condition):' instead"
    )
    with k.only_if(k.thread_id() < 5), refused(TypeMismatchError, message):
        getattr(k, word)(4).__enter__()
