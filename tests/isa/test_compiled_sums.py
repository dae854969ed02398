"""Machine code and numpy compute the same bits of sums of tensor cores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from isa.test_tensor_core import ACCUMULATORS, any_bits, near_one

from ptxgen.isa import compiled_sums
from ptxgen.isa.products import operands
from ptxgen.isa.tensor_core import Adder, adder

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.usefixtures("compiled")  # with Numba comes llvmlite

# The shape, the types of A and B, that of C and D, and the adder.
PRODUCTS = {
    "f16": ("m16n8k16", "f16", "f16", "f32", adder(80, "mma", "f16")),
    "f16 in a block": ("m16n8k16", "f16", "f16", "f32", adder(90, "mma", "f16")),
    "f16 sums": ("m16n8k16", "f16", "f16", "f16", adder(80, "mma", "f16")),
    "f16 of Volta": ("m16n8k8", "f16", "f16", "f16", adder(70, "mma", "f16")),
    "bf16": ("m16n8k16", "bf16", "bf16", "f32", adder(80, "mma", "bf16")),
    "tf32": ("m16n8k8", "tf32", "tf32", "f32", adder(80, "mma", "tf32")),
    "fp8": ("m16n8k32", "e4m3", "e5m2", "f32", adder(89, "mma", "e4m3")),
    "fp8 with wide sums": ("m16n8k32", "e5m2", "e4m3", "f16", adder(120, "mma", "e5m2")),
    "wgmma of fp8": ("m16n24k32", "e4m3", "e4m3", "f32", adder(90, "wgmma", "e4m3")),
    "wgmma of f16": ("m16n24k16", "f16", "f16", "f32", adder(90, "wgmma", "f16")),
}


@pytest.fixture(params=list(PRODUCTS.values()), ids=list(PRODUCTS))
def product(request: pytest.FixtureRequest) -> tuple[Any, Adder]:
    """The operands of a product, and its adder."""
    shape, a, b, c, how = request.param
    return operands(shape, a, b, c, c), how


def problem(of: Any, warps: int, draw: Any) -> tuple[Array, Array, Array]:
    """Elements of A and B, and the registers of C."""
    rng = np.random.default_rng(warps)
    k = of.a.shape[2]
    a = draw(rng, of.type_a, (k, of.a.shape[1], warps))
    b = draw(rng, of.type_b, (k, of.b.shape[1], warps))
    c = rng.standard_normal(of.c.registers * 32 * warps * of.c.per)
    return a, b, c.astype(ACCUMULATORS["f32" if of.c.per == 1 else "f16"]).view(np.uint32)


def by_numpy(monkeypatch: pytest.MonkeyPatch, *args: Any, **more: Any) -> Array:
    with monkeypatch.context() as patched:
        patched.setattr(compiled_sums, "_llvm", lambda: None)
        return compiled_sums.multiplied(*args, **more)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each product was computed by machine code."""
    done: list[bool] = []
    compiled = compiled_sums._compiled

    def watched(*args: Any) -> Array | None:
        sums = compiled(*args)
        done.append(sums is not None)
        return sums

    monkeypatch.setattr(compiled_sums, "_compiled", watched)
    return done


def apart(elements: Array) -> Array:
    """A copy of elements in which those of a matrix lie side by side in memory."""
    return np.ascontiguousarray(elements.transpose(2, 1, 0)).transpose(2, 1, 0)


@pytest.mark.parametrize("warps", [1, 13, 16, 40])
@pytest.mark.parametrize("layout", [np.ascontiguousarray, apart], ids=["dense", "apart"])
def test_numbers_of_moderate_size(
    product: tuple[Any, Adder], warps: int, layout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    of, how = product
    a, b, c = problem(of, warps, near_one)
    a[:, 3], b[:, 2] = 0, 0  # a row and a column of zeros
    c.reshape(of.c.registers, -1)[:, ::3] = 0
    done = counted(monkeypatch)
    for negated in (False, True):
        got = compiled_sums.multiplied(how, of, layout(a), layout(b), c, negated=negated)
        want = by_numpy(monkeypatch, how, of, a, b, c, negated=negated)
        np.testing.assert_array_equal(got, want)
        assert got.dtype == want.dtype
    assert done == [True, True]


def test_an_output_without_a_factor_is_positive_zero(
    product: tuple[Any, Adder], monkeypatch: pytest.MonkeyPatch
) -> None:
    of, how = product
    a, b, c = problem(of, 16, near_one)
    minus = a.dtype.type(1 << 8 * a.itemsize - 1)
    a[:], c[:] = minus, (1 << 31 | 1 << 15 if of.c.per == 2 else 1 << 31)  # zeros below zero
    done = counted(monkeypatch)
    assert not compiled_sums.multiplied(how, of, a, b, c).any()
    assert not by_numpy(monkeypatch, how, of, a, b, c).any()
    assert done == [True]


def test_numbers_of_any_size(product: tuple[Any, Adder], monkeypatch: pytest.MonkeyPatch) -> None:
    of, how = product
    a, b, c = problem(of, 16, any_bits)
    got = compiled_sums.multiplied(how, of, a, b, c)
    np.testing.assert_array_equal(got, by_numpy(monkeypatch, how, of, a, b, c))


def test_small_and_large_numbers_that_f32_holds(
    product: tuple[Any, Adder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Subnormal elements, and sums beyond f16 or below its least number."""
    of, how = product
    rng = np.random.default_rng(0)
    a, b, c = problem(of, 32, near_one)
    if of.type_a in ("f16", "e5m2", "e4m3"):
        a[:, ::2] = rng.integers(0, 8, a[:, ::2].shape)  # the least numbers of the type
    if of.c.per == 2:
        c.view(np.float16)[::2] *= np.float16(2.0**-15)
        c.view(np.float16)[1::2] = np.float16(65504)
    done = counted(monkeypatch)
    got = compiled_sums.multiplied(how, of, a, b, c)
    np.testing.assert_array_equal(got, by_numpy(monkeypatch, how, of, a, b, c))
    # The code gives up where a block begins with an infinite sum.
    assert done == [of.c.per == 1 or how.block is None]


def test_the_adder_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not just any fraction, block and number of bits give the same sums."""
    of, how = operands("m16n8k16", "f16", "f16", "f32", "f32"), adder(80, "mma", "f16")
    a, b, c = problem(of, 16, near_one)
    want = by_numpy(monkeypatch, how, of, a, b, c)
    for other in (replace(how, fraction=23), replace(how, block=None), replace(how, significant=20)):
        assert (compiled_sums.multiplied(other, of, a, b, c) != want).any()
