"""Caches of e5m2: infinities, which e4m3 does not have, and conversion without an instruction for it."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import flash
from flash.decode.plan import AppendCall, append_step
from flash.host.stored_rows import stored
from flash.operands.dtypes import E5M2
from ptxgen.arrays.views import view
from ptxgen.target import target

pytestmark = pytest.mark.usefixtures("unproved")

Array = NDArray[Any]

KEYS, DIM = 40, 8


def edges() -> Array:
    """Each number of e5m2, the middle between neighbours, and the f32 next to these, either sign; further
    what is beyond the largest, and what is no number.
    """
    numbers = np.arange(0x7C, dtype=np.uint8).view(ml_dtypes.float8_e5m2).astype(np.float32)
    middles = (numbers[1:] + numbers[:-1]) / 2
    at = np.concatenate([numbers, middles, np.float32([61439, 61440, 65504, 65520, 1e30, np.inf, 2.0**-140])])
    found = np.concatenate([at, np.nextafter(at, np.float32(0)), np.nextafter(at, np.float32(np.inf))])
    return np.concatenate([found, -found, np.float32([np.nan])])


@pytest.mark.parametrize("name", ["sm_80", "sm_89"])
def test_numbers_are_rounded_once_whatever_the_target_has(name: str) -> None:
    """Scales of 1 and 2, so that quotients are exact or subnormal."""
    x = edges()
    rows = -(-x.size // 256)
    new = np.resize(x, (1, 1, rows, 256))
    caches = [np.zeros((1, 1, rows, 256), E5M2.numpy) for _ in "kv"]
    scales = [np.float32([1.0]), np.float32([2.0])]
    operands = {"seqused_k": np.array([rows], np.int32), "k_scale": scales[0], "v_scale": scales[1]}
    arrays = {"K_NEW": new, "V_NEW": new, "K": caches[0], "V": caches[1], **operands}
    call = AppendCall({name: view(array, name) for name, array in arrays.items()}, page_size=0)
    append_step(target(name), call).interpret()
    for cache, scale in zip(caches, scales, strict=True):
        wanted = stored(new, E5M2, scale)
        assert (cache.view(np.uint8) == wanted.view(np.uint8)).all()
        assert (cache.view(np.uint8)[np.isnan(new)] == 0x7F).all()


def call(**how: Any) -> tuple[flash.DecodeKernel, dict[str, Any]]:
    """Two causal queries to 40 keys of one head, which are small numbers."""
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 1, n, DIM), np.float32) / 4 for n in (2, KEYS, KEYS))
    arrays = {
        "q": q.astype(np.float16),
        "k_cache": k.astype(E5M2.numpy),
        "v_cache": v.astype(E5M2.numpy),
        "seqused_k": np.array([KEYS], np.int32),
        "k_scale": np.float32([0.5]),
        "v_scale": np.float32([2.0]),
    }
    config = flash.AttentionConfig(DIM, dtype="f16", causal=True, **how)
    return flash.DecodeKernel(config), arrays


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
def test_infinity_and_nan_of_a_value_reach_the_rows_that_see_its_key(backend: Any) -> None:
    kernel, arrays = call()
    expected = kernel.launch(**arrays, backend=backend).astype(np.float32)
    arrays["v_cache"][0, 0, -1, :3] = np.inf, -np.inf, np.nan  # the last key: of the second query
    out = kernel.launch(**arrays, backend=backend).astype(np.float32)
    assert (out[0, 0, 0] == expected[0, 0, 0]).all()
    np.testing.assert_array_equal(out[0, 0, 1, :3], [np.inf, -np.inf, np.nan])
    assert (out[0, 0, 1, 3:] == expected[0, 0, 1, 3:]).all()


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
def test_infinity_of_a_key_makes_the_rows_that_see_it_nan_or_leaves_it_out(backend: Any) -> None:
    """A score of infinity is NaN beside the others, one of minus infinity a weight of 0."""
    kernel, arrays = call()
    arrays["q"][...] = np.abs(arrays["q"]) + np.float16(0.1)
    arrays["k_cache"][0, 0, -1, 0] = -np.inf
    out = kernel.launch(**arrays, backend=backend).astype(np.float32)
    shorter = dict(arrays, seqused_k=np.array([KEYS - 1], np.int32), q=arrays["q"][:, :, 1:])
    without = kernel.launch(**shorter, backend=backend).astype(np.float32)
    np.testing.assert_allclose(out[0, 0, 1], without[0, 0, 0], rtol=2e-3, atol=1e-5)
    arrays["k_cache"][0, 0, -1, 0] = np.inf
    out = kernel.launch(**arrays, backend=backend).astype(np.float32)
    assert np.isnan(out[0, 0, 1]).all()
    assert np.isfinite(out[0, 0, 0]).all()
