"""`P.vec(4)[i]`: several elements at once; and literals of half precision."""

from __future__ import annotations

import numpy as np
import pytest
from dsl.kernels import LOCKSTEP, builder, launch
from error_texts import refused

from ptxgen.errors import TypeMismatchError
from ptxgen.interpreter import run
from ptxgen.types import TYPES, bf16, f16, u32


@pytest.mark.parametrize(
    ("dtype", "count"), [("f32", 2), ("f32", 4), ("f16", 2), ("f16", 4), ("u64", 2), ("u8", 4)]
)
def test_vectors_are_loaded_and_stored(dtype, count):
    k = builder()
    X, Y = (k.pointer(name, TYPES[dtype]) for name in "XY")
    t = k.thread_id()
    Y.vec(count)[t] = tuple(reversed(X.vec(count)[t]))
    Y.vec(count)[32] = X.vec(count)[1]
    x = np.arange(33 * count).astype(TYPES[dtype].dtype)
    y = np.zeros_like(x)
    run(k.build(), grid=1, block=32, args=[x, y], sanitize=True)
    assert (y[: 32 * count].reshape(-1, count) == x[: 32 * count].reshape(-1, count)[:, ::-1]).all()
    assert (y[32 * count :] == x[count : 2 * count]).all()


def test_vectors_in_shared_memory():
    k = builder()
    P, tile = k.pointer("P"), k.shared("tile", (1, 128))
    t = k.thread_id()
    tile.pointer().vec(4)[t] = P.vec(4)[t]
    k.barrier()
    P[t] = tile[0, 127 - t]
    p = np.arange(128, dtype=np.float32)
    launch(k, p, schedules=LOCKSTEP)
    assert p[:32].tolist() == list(range(127, 95, -1))


def test_misuse_is_refused():
    k = builder()
    P = k.pointer("P")
    message = (
        f"{P!r}.vec: a vector has 2 or 4 elements, got 3; load several, P.vec(4)[2 * i] "
        "and P.vec(4)[2 * i + 1]"
    )
    with refused(TypeMismatchError, message):
        P.vec(3)
    message = f"{P!r}.vec(4)[i] = values stores 4 elements, got (1.0, 2.0); give a tuple of 4"
    with refused(TypeMismatchError, message):
        P.vec(4)[0] = (1.0, 2.0)
    with refused(
        TypeMismatchError, f"{P!r}.vec(2) does not know how many vectors it has; use 'with k.loop(...)'"
    ):
        list(P.vec(2))


@pytest.mark.parametrize("type", [f16, bf16])
@pytest.mark.parametrize("number", [0.0, -0.0, 1.5, 3, 1e-6, 1e9, float("-inf")])
def test_a_number_is_stored_as_the_half_that_it_rounds_to(type, number):
    k = builder()
    P = k.pointer("P", type)
    kept = k.var(type, number)
    P[0] = kept
    P.vec(2)[1] = (number, kept)
    p = np.zeros(4, type.dtype)
    run(k.build(), grid=1, block=1, args=[p])
    with np.errstate(over="ignore"):
        wanted = np.array([number, 0, number, number]).astype(type.dtype)
    assert p.tobytes() == wanted.tobytes()


def test_what_is_no_number_is_no_half():
    k = builder()
    P = k.pointer("P", f16)
    with refused(TypeMismatchError, "f16 must be given by a value of the kernel, got True"):
        P[0] = True
    with refused(TypeMismatchError, "f16x2 must be given by a value of the kernel, got 1.0"):
        k.pointer("Q", TYPES["f16x2"])[0] = 1.0


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "max"])
def test_packed_pairs_are_computed_as_pairs(dtype, name):
    """`add.s32` of two pairs would carry from one element into the other."""
    k = builder(on="sm_90")
    X, Y = k.pointer("X", u32), k.pointer("Y", u32)
    t, pair = k.thread_id(), TYPES[f"{dtype}x2"]
    a, b = (X[t + first].as_(pair) for first in (0, 32))
    operators = {"add": a + b, "sub": a - b, "mul": a * b, "max": k.max(a, b)}
    assert {value.type for value in operators.values()} == {pair}
    Y[t] = operators[name].as_(u32)
    Y[t + 32] = getattr(k, name)(a, b).as_(u32)
    x = np.random.default_rng(1).standard_normal((2, 64)).astype(TYPES[dtype].dtype)
    y = np.zeros(64, np.uint32)
    run(k.build(), grid=1, block=32, args=[x.view(np.uint32), y], sanitize=True)
    wanted = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum}[name](*x)
    assert (y.view(x.dtype).reshape(2, 64) == wanted).all()


def test_pairs_of_floats_are_no_integers():
    k = builder()
    x = k.pointer("X", u32)[0]
    message = (
        "bfe: operand b must be u32, got Value(%r0: f16x2); reinterpret with .as_(u32) or convert with "
        "k.cvt(value, dtype=u32)"
    )
    with refused(TypeMismatchError, message):
        k.bfe(x, x.as_(TYPES["f16x2"]), 4)
