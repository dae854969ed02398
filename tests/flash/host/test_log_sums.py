"""The log-sum-exp in base 2, in the order of FlashInfer, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from device_arrays import on_device
from fake_driver import FakeDevice, FakeDriver

import flash
from ptxgen.errors import LaunchError


def test_each_number_is_one_multiplication_from_base_2() -> None:
    lse = np.array([[0.5, -np.inf, 3], [-80.25, np.inf, np.nan]], np.float32)
    result = flash.lse_to_log2(lse)
    assert (result.dtype, result.shape, result.flags.c_contiguous) == (np.float32, (3, 2), True)
    np.testing.assert_array_equal(result, lse.T * np.float32(np.log2(np.e)))
    back = flash.lse_from_log2(result)
    assert (back.dtype, back.shape, back.flags.c_contiguous) == (np.float32, (2, 3), True)
    np.testing.assert_array_equal(back, result.T * np.float32(np.log(2)))
    np.testing.assert_allclose(back, lse, rtol=2.0**-22)


def test_sums_of_powers_of_two_are_the_base_2() -> None:
    rng = np.random.default_rng(0)
    q, k = (rng.standard_normal((5, 2, 8), dtype=np.float32) for _ in range(2))
    ends = np.array([0, 5], np.int32)
    _, lse = flash.attention_varlen(q, k, k, ends, ends, return_lse=True, backend="cpu")
    scores = np.einsum("ihd,jhd->ihj", q.astype(float), k.astype(float)) * 8**-0.5 * np.log2(np.e)
    np.testing.assert_allclose(flash.lse_to_log2(lse), np.log2((2**scores).sum(axis=2)), rtol=1e-6)


@pytest.mark.parametrize("library", ["torch", "jax.numpy"])
def test_the_result_is_of_the_callers_library(library: str) -> None:
    of: Any = pytest.importorskip(library)
    lse = np.array([[0.5, -2, 3]], np.float32)
    arguments = of.asarray(lse)
    result = flash.lse_to_log2(arguments)
    assert type(result) is type(arguments)
    np.testing.assert_array_equal(np.asarray(result), flash.lse_to_log2(lse))


@pytest.mark.parametrize(
    ("lse", "message"),
    [
        (np.zeros(3, np.float32), "lse must be [heads, total_q], got shape [3]"),
        (np.zeros((3, 2)), "lse must be float32, got float64"),
    ],
)
def test_an_array_that_is_no_lse_is_refused(lse: Any, message: str) -> None:
    with pytest.raises(LaunchError) as caught:
        flash.lse_to_log2(lse)
    assert str(caught.value) == f"lse_to_log2: {message}"


def test_an_array_without_arithmetic_is_refused() -> None:
    there = on_device(FakeDriver(FakeDevice()), np.zeros((2, 3), np.float32))
    with pytest.raises(LaunchError) as caught:
        flash.lse_from_log2(there)
    assert str(caught.value) == (
        "lse_from_log2: lse must be an array of a library with arithmetic, such as numpy, torch, cupy or "
        f"jax, got {type(there).__name__}; convert it there, such as with torch.from_dlpack(lse)"
    )
