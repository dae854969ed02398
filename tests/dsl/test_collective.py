"""`k.warp` and `k.block`: what the threads of a warp or of a CTA compute together."""

from __future__ import annotations

import contextlib
import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
from dsl.kernels import builder, instructions, smem
from error_texts import refused

from ptxgen import ir
from ptxgen.check.verify import require_valid
from ptxgen.errors import ConfigError, TrapError, TypeMismatchError
from ptxgen.interpreter import PCT, run
from ptxgen.parse import parse
from ptxgen.runtime.assembler import Assembler
from ptxgen.text import render
from ptxgen.types import TYPES, f16, f32, f64, pred, s32, u32

THREADS = [1, 7, 31, 32, 33, 64, 100, 256, 1000, 1024]
DTYPES = {"float32": f32, "uint32": u32, "int32": s32}
WORDS = ["sum", "max", "min"]
JOIN = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def data(dtype, threads, count=1):
    rng = np.random.default_rng(threads)
    if dtype == "float32":
        return rng.standard_normal((count, threads)).astype(dtype)
    return rng.integers(-(2**31), 2**31, (count, threads)).astype(dtype)  # sums wrap around


def warp_joined(values, join):
    """What lane 0 of each warp gets in the documented order, for the whole warp."""
    result = []
    for warp in (values[first : first + 32] for first in range(0, len(values), 32)):
        lanes = list(warp)
        for distance in (16, 8, 4, 2, 1):
            lanes = [
                join(v, lanes[i + distance]) if i + distance < len(lanes) else v for i, v in enumerate(lanes)
            ]
        result.append(lanes[0])
    return result


def joined(values, join):
    first, *others = warp_joined(values, join)
    for other in others:
        first = join(first, other)
    return first


def kernel(body, threads, dtype=f32):
    """A module that gives each thread's own X to body(k, x), and stores what it gives in Y."""
    k = builder(threads=threads)
    X, Y = k.pointer("X", dtype), k.pointer("Y", dtype)
    t = k.thread_id()
    Y[t] = body(k, X[t])
    module = k.build()
    require_valid(module)
    assert parse(render(module)) == module
    return module


def result_of(module, x, schedule="lockstep"):
    y = np.zeros_like(x)
    size = smem(module)
    run(module, grid=1, block=x.size, args=[x, y], dynamic_smem=size, sanitize=True, schedule=schedule)
    return y


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("word", WORDS)
def test_all_threads_of_a_warp_get_the_result(word, threads, dtype):
    x = data(dtype, threads)[0]
    y = result_of(kernel(lambda k, x: getattr(k.warp, word)(x), threads, DTYPES[dtype]), x)
    with np.errstate(over="ignore"):
        assert (y == np.repeat(warp_joined(x, JOIN[word]), 32)[:threads]).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("word", WORDS)
def test_all_threads_of_a_cta_get_the_result(word, threads, dtype):
    x = data(dtype, threads)[0]
    y = result_of(kernel(lambda k, x: getattr(k.block, word)(x), threads, DTYPES[dtype]), x)
    with np.errstate(over="ignore"):
        assert (y == joined(x, JOIN[word])).all()


def test_the_sum_of_a_cta_is_the_sum():
    x = data("float32", 1000)[0]
    y = result_of(kernel(lambda k, x: k.block.sum(x), 1000), x)
    assert abs(y[0] - x.sum(dtype=np.float64)) < 1e-4


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", THREADS)
def test_a_scan_adds_up_the_lower_lanes(threads, dtype):
    x = data(dtype, threads)[0]
    y = result_of(kernel(lambda k, x: k.warp.scan(x), threads, DTYPES[dtype]), x)
    for first in range(0, threads, 32):
        want = x[first : first + 32]
        with np.errstate(over="ignore"):
            for distance in (1, 2, 4, 8, 16):
                want = np.concatenate([want[:distance], want[distance:] + want[:-distance]])
        assert (y[first : first + 32] == want).all()
    if dtype != "float32":
        assert (y[:32] == np.cumsum(x[:32], dtype=x.dtype)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", THREADS)
def test_a_scan_of_a_cta_adds_up_the_lower_threads(threads, dtype):
    x = data(dtype, threads)[0]
    inside = result_of(kernel(lambda k, x: k.warp.scan(x), threads, DTYPES[dtype]), x)
    y = result_of(kernel(lambda k, x: k.block.scan(x), threads, DTYPES[dtype]), x)
    total = None
    for first in range(0, threads, 32):
        part = inside[first : first + 32]
        with np.errstate(over="ignore"):
            assert (y[first : first + 32] == (part if total is None else total + part)).all()
            total = part[-1] if total is None else total + part[-1]
    if dtype != "float32":
        assert (y == np.cumsum(x, dtype=x.dtype)).all()


@pytest.mark.parametrize("schedule", ["lockstep", PCT(0), PCT(1)])
def test_scans_after_each_other_wait_for_each_other(schedule):
    module = kernel(lambda k, x: k.block.scan(k.block.scan(x)) + k.block.sum(x), 100, u32)
    x = data("uint32", 100)[0]
    wanted = np.cumsum(np.cumsum(x, dtype=x.dtype), dtype=x.dtype) + x.sum(dtype=x.dtype)
    assert (result_of(module, x, schedule) == wanted).all()


@pytest.mark.parametrize("threads", [7, 32, 100])
def test_votes(threads):
    def body(k, x):
        some, every = k.warp.any(x == 5.0), k.warp.all(x < 40.0)
        return k.selp(1.0, 0.0, some, type=f32) + k.selp(2.0, 0.0, every, type=f32)

    x = np.arange(threads, dtype=np.float32)
    want = [(1 if n < 32 else 0) + (2 if n < 32 else 0) for n in range(threads)]
    assert result_of(kernel(body, threads), x).tolist() == want


def test_a_nan_is_ignored_by_extremes_and_kept_by_sums():
    x = np.arange(64, dtype=np.float32)
    x[40] = np.nan
    for word, want in (("max", 63), ("min", 0), ("sum", np.nan)):
        y = result_of(kernel(lambda k, x, word=word: getattr(k.block, word)(x), 64), x)
        np.testing.assert_array_equal(y, np.float32(want))


@pytest.mark.parametrize("threads", [64, 100, 256])
@pytest.mark.parametrize("target", ["sm_75", "sm_90"])
def test_what_threads_compute_together_assembles(threads, target, assembler: Assembler):
    k = builder(on=target, threads=threads)
    X = k.pointer("X")
    x = X[k.thread_id()]
    X[0] = k.block.sum(k.block.max(x) + k.warp.scan(k.warp.sum(x)))
    with k.when(k.warp.any(x > 0) & k.warp.all(x < 5)):
        X[1] = 0.0
    assert assembler.assemble(render(k.build()), target).cubin


# ---------------------------------------- the slots in shared memory


def in_a_row(k, x):
    """Three reductions in a row, the last in a loop of three turns."""
    low = k.block.min(x)
    total = k.var(f32, k.block.sum(x - low))
    with k.loop(0, 3):
        total.set(k.block.max(total + x) - k.block.sum(low))
    return total


def computed_in_a_row(x):
    total = np.full_like(x, joined(x - x.min(), np.add))
    for _ in range(3):
        total = np.full_like(x, (total + x).max() - joined(np.full_like(x, x.min()), np.add))
    return total


@pytest.mark.parametrize("threads", [32, 33, 64, 200])
def test_reductions_in_a_row_and_in_a_loop(threads):
    x = data("float32", threads)[0]
    assert (result_of(kernel(in_a_row, threads), x) == computed_in_a_row(x)).all()


@pytest.mark.parametrize("seed", range(4))
def test_reductions_in_a_row_under_any_order_of_warps(seed):
    x = data("float32", 200)[0]
    y = result_of(kernel(in_a_row, 200), x, PCT(seed))
    assert (y == computed_in_a_row(x)).all()


BARRIERS = 1 + 2 + 2 + 2


def barriers(module):
    return [n for n, s in enumerate(module.kernels[0].body) if isinstance(s, ir.Instr) and "bar" in s.opcode]


def without(module, place):
    (only,) = module.kernels
    return replace(module, kernels=(replace(only, body=(*only.body[:place], *only.body[place + 1 :])),))


@pytest.mark.parametrize("number", range(BARRIERS))
def test_each_barrier_of_reductions_in_a_row_is_needed(number):
    x = data("float32", 64)[0]
    module = kernel(in_a_row, 64)
    places = barriers(module)
    assert len(places) == BARRIERS
    with pytest.raises(TrapError) as caught:
        result_of(without(module, places[number]), x)
    assert re.search(r"race: shared address 0x[04] \(k\.block\) was .*no barrier orders", str(caught.value))


def test_a_first_reduction_in_a_loop_waits_for_the_one_of_the_turn_before():
    def body(k, x):
        total = k.var(f32, 0.0)
        with k.loop(0, 3):
            total.set(k.block.max(total + x))
        return total

    x = data("float32", 64)[0]
    module = kernel(body, 64)
    places = barriers(module)
    assert len(places) == 2
    total = np.float32(0)
    for _ in range(3):
        total = (total + x).max()
    assert (result_of(module, x) == total).all()
    for location in places:
        with pytest.raises(TrapError, match=r"race: shared address 0x[04] \(k\.block\) was"):
            result_of(without(module, location), x)


def test_the_slots_lie_beside_tiles_declared_before_and_after():
    def body(k, x):
        before = k.shared("Before", (1, 64))
        before[0, k.thread_id()] = x
        total = k.var(f32, 0.0)
        with k.when(k.block_id() == 0, uniform=True):
            total.set(k.block.sum(x))
        after = k.shared("After", (1, 64))
        after[0, k.thread_id()] = total
        return k.block.max(before[0, k.thread_id()] + after[0, k.thread_id()])

    x = data("float32", 64)[0]
    module = kernel(body, 64)
    assert [(r.name, r.offset, r.nbytes) for r in module.kernels[0].regions] == [
        ("Before", 0, 256),
        ("k.block", 256, 8),
        ("After", 272, 256),
    ]
    assert (result_of(module, x) == (x + joined(x, np.add)).max()).all()


def test_a_first_reduction_in_a_block_leaves_no_register_behind_that_others_read():
    def body(k, x):
        total = k.var(f32, x)
        with k.when(k.block_id() == 1, uniform=True):
            total.set(k.block.sum(x))
        return k.block.max(total)

    x = data("float32", 64)[0]
    assert (result_of(kernel(body, 64), x) == x.max()).all()


def test_a_cta_of_one_warp_needs_no_shared_memory():
    module = kernel(lambda k, x: k.block.sum(x), 32)
    assert (smem(module), barriers(module)) == (0, [])


# ---------------------------------------- operators of the author


def affine(k):
    """Composes maps h -> a h + b, the first one of lower threads: it is associative and does not commute."""
    return lambda one, two: (one[0] * two[0], k.fma(one[1], two[0], two[1]))


def composed(maps):
    """Each composition of the first maps, exactly."""
    a, b, every = 1.0, 0.0, []
    for scale, shift in maps.astype(np.float64).T:
        a, b = a * scale, b * scale + shift
        every.append((a, b))
    return np.array(every).T


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("group", ["warp", "block"])
def test_an_operator_composes_in_the_order_of_the_threads(group, threads):
    k = builder(threads=threads)
    A, B, OUT = k.pointer("A"), k.pointer("B"), k.pointer("OUT")
    t, of = k.thread_id(), getattr(k, group)
    OUT.vec(4)[t] = *of.scan((A[t], B[t]), affine(k)), *of.reduce((A[t], B[t]), affine(k))
    maps = np.random.default_rng(threads).uniform(0.5, 1.3, (2, threads)).astype(np.float32)
    out, module = np.zeros((threads, 4), np.float32), k.build()
    require_valid(module)
    run(module, grid=1, block=threads, args=[*maps, out], dynamic_smem=smem(module), sanitize=True)
    size = 32 if group == "warp" else threads
    for first in range(0, threads, size):
        exact = composed(maps[:, first : first + size])
        here = out[first : first + size].T
        assert np.allclose(here[:2], exact, rtol=1e-4)
        assert np.allclose(here[2:], exact[:, -1:], rtol=1e-4)


def test_an_operator_on_single_values_is_a_sum_if_it_adds():
    x = data("float32", 100)[0]
    difference = kernel(lambda k, x: k.block.scan(x, lambda a, b: a + b) - k.block.scan(x), 100)
    assert abs(result_of(difference, x)).max() < 1e-5
    assert (result_of(kernel(lambda k, x: k.block.broadcast(x, 70), 100), x) == x[70]).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [1, 31, 32, 100, 256])
@pytest.mark.parametrize("word", ["argmax", "argmin"])
@pytest.mark.parametrize("group", ["warp", "block"])
def test_the_index_of_an_extreme_is_the_least_of_equal_ones(group, word, threads, dtype):
    x = (data(dtype, threads)[0] % 5).astype(dtype)
    if dtype == "float32":
        x[::3] = np.nan
        x[:32] = np.nan if threads > 32 else x[:32]
    k = builder(threads=threads)
    X, V, I = k.pointer("X", DTYPES[dtype]), k.pointer("V", DTYPES[dtype]), k.pointer("I", s32)
    t = k.thread_id()
    V[t], I[t] = getattr(getattr(k, group), word)(X[t], t.as_(s32) - 7)
    v, i, module = np.zeros_like(x), np.zeros(threads, np.int32), k.build()
    run(module, grid=1, block=threads, args=[x, v, i], dynamic_smem=smem(module), sanitize=True)
    size = 32 if group == "warp" else threads
    for first in range(0, threads, size):
        here, at = x[first : first + size], i[first : first + size] + 7 - first
        has_number = not np.isnan(here).all()
        wanted = getattr(np, "nan" + word)(here) if has_number else 0
        assert (at == wanted).all()
        assert np.array_equal(v[first : first + size], np.repeat(here[wanted], here.size), equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [2, 32, 64, 256])
@pytest.mark.parametrize("descending", [False, True])
def test_a_sort_is_stable_and_total(descending, threads, dtype):
    x = data(dtype, threads)[0]
    x[threads // 2 :] = x[: threads - threads // 2]
    if dtype == "float32":
        x[:2], x[-1] = (np.inf, -0.0), -np.nan
    k = builder(threads=threads)
    X, V, I = k.pointer("X", DTYPES[dtype]), k.pointer("V", DTYPES[dtype]), k.pointer("I", u32)
    t = k.thread_id()
    V[t], I[t] = k.block.sort((X[t], t), descending=descending)
    K = k.pointer("K", DTYPES[dtype])
    K[t] = k.block.sort(X[t], descending=descending)
    v, i, alone, module = np.zeros_like(x), np.zeros(threads, np.uint32), np.zeros_like(x), k.build()
    require_valid(module)
    run(module, grid=1, block=threads, args=[x, v, i, alone], dynamic_smem=smem(module), sanitize=True)
    order = np.argsort(x, kind="stable")
    if descending:
        order = threads - 1 - np.argsort(x[::-1], kind="stable")[::-1]
    signed = x + 0 if dtype == "float32" else x
    assert np.array_equal(signed[i], signed[order], equal_nan=True)
    assert sorted(i) == list(range(threads))
    same = [(a, b) for a, b in itertools.pairwise(i) if x[a] == x[b] and x[a] != 0]
    assert all(a < b for a, b in same)
    assert np.array_equal(v, x[i], equal_nan=True)
    assert np.array_equal(alone, v, equal_nan=True)


def test_random_words_are_those_of_philox():
    """The known answers of the authors' tests (Random123, kat_vectors, philox4x32)."""
    cases = {
        (10, 0, 0): (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
        (10, 0xFFFF_FFFF, 0xFFFF_FFFF): (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        (7, 0, 0): (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48),
    }
    k = builder(threads=32)
    P = k.pointer("P", u32)
    for number, (rounds, counter, key) in enumerate(cases):
        P.at(4 * number).vec(4)[0] = k.philox([counter] * 4, [key] * 2, rounds=rounds)
    p, module = np.zeros((len(cases), 4), np.uint32), k.build()
    run(module, grid=1, block=32, args=[p])
    assert [tuple(row) for row in p.tolist()] == list(cases.values())


def test_uniform_numbers_are_below_one():
    words = np.array([0, 255, 256, 0x8000_0000, 0xFFFF_FFFF], np.uint32)
    k = builder(threads=5)
    W, P = k.pointer("W", u32), k.pointer("P")
    P[k.thread_id()] = k.uniform(W[k.thread_id()])
    p = np.zeros(5, np.float32)
    run(k.build(), grid=1, block=5, args=[words, p])
    assert p.tolist() == [0, 0, 2.0**-24, 0.5, 1 - 2.0**-24]


# ---------------------------------------- refused


CALLS = [(group, word) for group in ("warp", "block") for word in (*WORDS, "scan")]


@pytest.mark.parametrize(("group", "word"), CALLS)
@pytest.mark.parametrize("value", [f16, f64, pred, TYPES["u64"], TYPES["b32"], 1.0, 3, None, [1.0]], ids=str)
def test_values_have_32_bits(group, word, value):
    k = builder(threads=64)
    value = k.fresh(value) if isinstance(value, type(f16)) else value
    message = (
        f"{group}.{word} takes an f32, u32 or s32 value of the kernel, got {value!r}; convert it with "
        "k.cvt(value, dtype=f32), or make a value of a Python number with k.mov(1.0, type=f32)"
    )
    with refused(TypeMismatchError, message):
        getattr(getattr(k, group), word)(value)
    assert [i.opcode for i in instructions(k)] == ["ret"]


@pytest.mark.parametrize("word", ["any", "all"])
def test_votes_are_over_predicates(word):
    k = builder()
    message = f"warp.{word} takes a predicate, such as row < seq_q, got Value(%r0: u32)"
    with refused(TypeMismatchError, message):
        getattr(k.warp, word)(k.thread_id())


@pytest.mark.parametrize(("group", "word"), [*CALLS, ("warp", "any"), ("warp", "all")])
def test_predicated_threads_compute_nothing_together(group, word):
    k = builder(threads=64)
    x = k.thread_id()
    value = x < 5 if word in ("any", "all") else x
    message = (
        f"{group}.{word} inside 'only_if', which predicates single instructions; "
        "branch with 'with k.when(condition):' instead"
    )
    with k.only_if(x < 5), refused(TypeMismatchError, message):
        getattr(getattr(k, group), word)(value)


@pytest.mark.parametrize("word", [*WORDS, "scan"])
@pytest.mark.parametrize("threads", [32, 64])
def test_a_reduction_of_a_cta_is_refused_where_threads_may_be_missing(word, threads):
    k = builder(threads=threads)
    x = k.thread_id()
    when = (
        f"block.{word} inside 'when': threads where the condition is false never arrive; move it out, or "
        "promise that all threads agree with k.when(condition, uniform=True)"
    )
    with k.when(x < 5), refused(TypeMismatchError, when):
        getattr(k.block, word)(x)
    strided = (
        f"block.{word} inside 'strided': threads whose share has ended never arrive; move it out, or "
        "loop with k.loop(start, stop) and bounds on which all threads agree"
    )
    with k.strided(100), refused(TypeMismatchError, strided):
        getattr(k.block, word)(x)


def test_a_reduction_in_a_uniform_branch_is_allowed():
    k = builder(threads=64)
    x = k.thread_id()
    with contextlib.ExitStack() as stack:
        stack.enter_context(k.when(k.block_id() == 0, uniform=True))
        stack.enter_context(k.loop(0, 3))
        k.block.sum(x)
    assert k.build()


def test_a_value_of_another_kernel_is_refused():
    k, other = builder("mine", threads=64), builder("theirs")
    with refused(
        TypeMismatchError,
        "shfl: Value(%r0: u32) belongs to kernel 'theirs', not to 'mine'; "
        "a value lives in the KernelBuilder that made it",
    ):
        k.block.sum(other.thread_id())


OPERATORS = {
    "two values": (
        lambda k, x: k.warp.scan((x, x)),
        "warp.scan adds single values; give combine= for 2 values",
    ),
    "no function": (
        lambda k, x: k.block.reduce(x, 3),
        "block.reduce: combine must be a function of two values, got 3",
    ),
    "another type": (
        lambda k, x: k.warp.reduce(x, lambda a, b: a < b),
        "warp.reduce: combine must return u32, as its operands are, got Value(%p1: pred)",
    ),
    "too few": (
        lambda k, x: k.warp.reduce((x, x), lambda a, b: a[0] + b[0]),
        "warp.reduce: combine must return a tuple of u32, u32, as its operands are, got Value(%r3: u32)",
    ),
    "index": (
        lambda k, x: k.block.argmax(x, 1.5),
        "block.argmax takes a u32 or s32 value as its index, got 1.5",
    ),
    "word": (
        lambda k, x: k.philox((x, 0, 0, 1.5), (0, 0)),
        "philox takes u32 values and numbers from 0 to 2**32 - 1, got 1.5",
    ),
}


@pytest.mark.parametrize("case", OPERATORS)
def test_operators_that_do_not_fit_are_refused(case):
    call, message = OPERATORS[case]
    k = builder(threads=64)
    with refused(TypeMismatchError, message):
        call(k, k.thread_id())


def test_a_sort_needs_a_power_of_two_threads_and_philox_its_words():
    k = builder(threads=96)
    message = (
        "block.sort: it sorts the values of 2, 4, 8, … threads, but the CTA has 96; launch more, and give "
        "those without a value one that comes last, such as k.inf"
    )
    with refused(ConfigError, message):
        k.block.sort(k.thread_id())
    with refused(
        ConfigError,
        "philox: it takes 4 words of a counter, 2 of a key and rounds of at least 1, got (0, 0), "
        "(0, 0) and 10",
    ):
        k.philox((0, 0), (0, 0))
