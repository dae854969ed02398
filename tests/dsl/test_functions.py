"""`k.exp` and `k.log`: their bounds of the error, against float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dsl.kernels import builder, instructions
from error_texts import refused

from ptxgen.errors import TypeMismatchError
from ptxgen.interpreter import run
from ptxgen.runtime.assembler import Assembler
from ptxgen.text import render
from ptxgen.types import f16, f32, f64, u32

ULP = 2.0**-23
SMALLEST = 2.0**-126  # normal number


def computed(word, values):
    """What k.exp or k.log gives for each of many values."""
    k = builder(threads=256)
    X, Y, n = k.pointer("X"), k.pointer("Y"), k.param("n", u32)
    with k.grid_strided(n) as i:
        Y[i] = getattr(k, word)(X[i])
    arguments = np.zeros_like(values)
    run(k.build(), grid=16, block=256, args=[values, arguments, len(values)])
    return arguments.astype(np.float64)


def exponents():
    rng = np.random.default_rng(3)
    dense = np.linspace(-110, 88.7, 200_000)
    small = np.ldexp(rng.uniform(-1, 1, 50_000), rng.integers(-140, 2, 50_000))
    return np.concatenate([dense, small]).astype(np.float32)


def positives():
    rng = np.random.default_rng(4)
    bits = rng.integers(1, 0x7F800000, 200_000).astype(np.uint32)  # every size, subnormal ones too
    near_one = np.linspace(0.4, 2.2, 100_000)
    return np.concatenate([bits.view(np.float32), near_one]).astype(np.float32)


def exp_bound(x):
    return (np.abs(x) + 3) * ULP * np.maximum(np.exp(x), SMALLEST)


def log_bound(x):
    exact = np.log(x)
    return np.where((x > 0.5) & (x < 2), 2.0**-22, 1.3 * 2.0**-22 * np.abs(exact))


@pytest.mark.parametrize(
    ("word", "numbers", "exact", "bound"),
    [("exp", exponents, np.exp, exp_bound), ("log", positives, np.log, log_bound)],
)
def test_a_function_errs_by_no_more_than_its_bound(word, numbers, exact, bound):
    x = numbers()
    wide = x.astype(np.float64)
    assert (np.abs(computed(word, x) - exact(wide)) <= bound(wide)).all()


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_bound_of_the_exponential_holds_for_the_worst_ex2_that_the_isa_allows(sign):
    x = exponents()
    exponent = (x * np.float32(math.log2(math.e))).astype(np.float64)
    result = np.exp2(exponent)
    result += sign * 2.5 * ULP * np.maximum(2.0 ** np.floor(exponent), SMALLEST)
    x = x.astype(np.float64)
    assert (np.abs(result - np.exp(x)) <= exp_bound(x)).all()


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_bound_of_the_logarithm_holds_for_the_worst_lg2_that_the_isa_allows(sign):
    x = positives()
    exact = np.log2(x.astype(np.float64))
    logarithm = exact + sign * 2.0**-22 * np.where((x > 0.5) & (x < 2), 1, np.abs(exact))
    result = logarithm.astype(np.float32) * np.float32(math.log(2))
    slack = 2.0**-24 * np.abs(exact)  # the rounding of `logarithm` to f32, which the ISA's bound includes
    x = x.astype(np.float64)
    assert (np.abs(result - np.log(x)) <= log_bound(x) + slack).all()


def test_values_without_a_number_for_a_result():
    inf, nan = math.inf, math.nan
    x = np.array([-inf, inf, nan, 0.0, -200, 89], np.float32)
    np.testing.assert_array_equal(computed("exp", x), [0, inf, nan, 1, 0, inf])
    x = np.array([0.0, -0.0, inf, nan, -1, 1], np.float32)
    np.testing.assert_array_equal(computed("log", x), [-inf, -inf, inf, nan, nan, 0])


@pytest.mark.parametrize("word", ["exp", "log"])
def test_they_are_two_instructions(word, assembler: Assembler):
    k = builder()
    X = k.pointer("X")
    x = X[0]
    before = len(instructions(k))
    X[0] = getattr(k, word)(x)
    want = {"exp": ["mul.rn.f32", "ex2.approx.f32"], "log": ["lg2.approx.f32", "mul.rn.f32"]}[word]
    assert [i.opcode for i in instructions(k)[before - 1 :]] == [*want, "st.global.f32", "ret"]
    assert assembler.assemble(render(k.build()), "sm_80").cubin


@pytest.mark.parametrize("word", ["exp", "log"])
@pytest.mark.parametrize(
    ("type", "cure"),
    [
        (u32, "reinterpret with .as_(f32) or convert with k.cvt(value, dtype=f32)"),
        (f64, "convert with k.cvt(value, dtype=f32)"),
        (f16, "convert with k.cvt(value, dtype=f32)"),
    ],
)
def test_their_operand_is_f32(word, type, cure):
    value = builder().fresh(type)
    with refused(TypeMismatchError, f"{word}: the operand must be f32, got {value!r}; {cure}"):
        getattr(value.k, word)(value)


@pytest.mark.parametrize("word", ["exp", "log"])
def test_a_number_of_python_has_its_own_functions(word):
    with refused(TypeMismatchError, f"{word}: the operand must be a value of the kernel, got 1.0"):
        getattr(builder(), word)(1.0)


def test_infinity_is_the_beginning_of_a_maximum():
    k = builder()
    Y = k.pointer("Y")
    top = k.var(f32, -k.inf)
    Y[k.thread_id()] = k.max(top, -3.0)
    y = np.zeros(32, np.float32)
    run(k.build(), grid=1, block=32, args=[y])
    assert (y == -3).all()


@pytest.mark.parametrize("type", [f32, u32])
def test_functions_of_the_table_take_numbers(type):
    k = builder()
    Y = k.pointer("Y", type)
    t = k.thread_id()
    x = t if type is u32 else k.cvt(t, dtype=f32, rnd="rn")
    Y[t] = k.selp(k.max(k.min(x, 20), 10), 0, t < 30)
    y = np.zeros(32, type.dtype)
    run(k.build(), grid=1, block=32, args=[y])
    assert y.tolist() == [*np.clip(np.arange(30), 10, 20).tolist(), 0, 0]
