"""`k.atomic`: operations of one step."""

from __future__ import annotations

import numpy as np
import pytest
from dsl.kernels import LOCKSTEP, builder, launch
from error_texts import refused

from ptxgen.errors import TypeMismatchError
from ptxgen.interpreter import PCT
from ptxgen.parse import parse
from ptxgen.text import render
from ptxgen.types import TYPES, f16, s32, u32

ALL = np.arange(64)
JOINS = {
    "add": lambda old, v: old + v,
    "min": np.minimum,
    "max": np.maximum,
    "and_": np.bitwise_and,
    "or_": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def after(word, dtype, values, initial, space="global", schedule="lockstep", **how):
    """The element after all threads did the operation on it, and what each got."""
    type = TYPES[dtype]
    k = builder(threads=64)
    X, OLD, TO = (k.pointer(name, type) for name in ("X", "OLD", "TO"))
    t = k.thread_id()
    at = TO.element(t - t)
    if space == "shared":
        at = k.shared("total", (1, 1), type).pointer()
        with k.when(t == 0):
            k.store(at, TO[0])
        k.barrier()
    OLD[t] = getattr(k.atomic, word)(at, X[t], **how)
    if space == "shared":
        k.barrier()
        with k.when(t == 0):
            TO[0] = k.load(at)
    module = k.build()
    assert parse(render(module)) == module
    x, old, to = values.astype(type.dtype), np.zeros(64, type.dtype), np.array([initial], type.dtype)
    launch(k, x, old, to, schedules=(schedule,))
    return to[0], old


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("dtype", ["u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("word", JOINS)
def test_integers(word, dtype, space):
    values = (ALL * 37) % 64 + 3
    if dtype[0] == "s":
        values = values - 40
    final, old = after(word, dtype, values, 21, space)
    wanted = np.array(21, TYPES[dtype].dtype)
    for value in values.astype(TYPES[dtype].dtype):
        wanted = JOINS[word](wanted, value)
    assert final == wanted
    assert old.dtype == wanted.dtype
    assert (old == 21).any()


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
def test_sums_of_floats(dtype):
    final, old = after("add", dtype, ALL % 3, 0.5)
    assert final == 0.5 + (ALL % 3).sum()
    assert sorted(old)[0] == 0.5


@pytest.mark.parametrize("schedule", ["lockstep", PCT(3)])
def test_one_thread_takes_the_ticket(schedule):
    k = builder(threads=64)
    LOCK, WON = k.pointer("LOCK", u32), k.pointer("WON", u32)
    t = k.thread_id()
    result = k.atomic.compare_exchange(LOCK.element(0), 0, t + 1, scope="cta", order="acq_rel")
    WON[t] = k.selp(1, 0, result == 0, type=u32)
    lock, won = np.zeros(1, np.uint32), np.zeros(64, np.uint32)
    launch(k, lock, won, schedules=(schedule,))
    assert won.sum() == 1
    assert lock[0] == np.flatnonzero(won)[0] + 1


def test_exchanged_literals_have_the_type_of_the_elements():
    k = builder()
    P, Q = k.pointer("P"), k.pointer("Q", s32)
    with k.when(k.thread_id() == 0):
        P[1] = k.atomic.exchange(P.at(0), 2.5)
        Q[1] = k.atomic.exchange(Q.at(0), -3)
        P[2] = k.atomic.compare_exchange(P.at(0), 2.5, 1)
    p, q = np.array([7, 0, 0], np.float32), np.array([9, 0], np.int32)
    launch(k, p, q, schedules=LOCKSTEP)
    assert p.tolist() == [1.0, 7.0, 2.5]
    assert q.tolist() == [-3, 9]


def test_order_and_scope_are_those_of_the_instruction():
    k = builder()
    P = k.pointer("P", u32)
    k.atomic.add(P, 1)
    k.atomic.add(P, 1, order="acquire")
    k.atomic.add(P, 1, scope="sys", order="release")
    lines = [line.split()[0] for line in render(k.build()).splitlines() if "atom" in line]
    assert lines == [
        "atom.global.add.u32",
        "atom.acquire.gpu.global.add.u32",
        "atom.release.sys.global.add.u32",
    ]


def test_misuse_is_refused():
    k = builder()
    P, H = k.pointer("P"), k.pointer("H", f16)
    with refused(TypeMismatchError, f"atomic.max takes elements of u32, s32, u64, s64, got {P!r}"):
        k.atomic.max(P, 1.0)
    with refused(
        TypeMismatchError, "atomic.add: the element must be given by a pointer, such as P.element(i), got 3"
    ):
        k.atomic.add(3, 1.0)
    t = k.thread_id()
    message = (
        f"atomic.add: the value must be f32, got {t!r}; reinterpret with .as_(f32) or convert with "
        "k.cvt(value, dtype=f32)"
    )
    with refused(TypeMismatchError, message):
        k.atomic.add(P, t)
    with refused(TypeMismatchError, f"atomic.and_ takes elements of b32, u32, s32, b64, u64, s64, got {H!r}"):
        k.atomic.and_(H, t)
