"""Caches of narrow types, attended to by kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from judge import assert_items_are_accurate
from numpy.typing import NDArray
from refusals import refusal

import flash
from flash.error_bound import PARTS_OF_F32, arithmetic_of
from flash.operands.dtypes import DTYPES

pytestmark = [pytest.mark.grid, pytest.mark.judged, pytest.mark.usefixtures("unproved")]

Array = NDArray[Any]

BATCH, HEADS, KV_HEADS, DIM, DIM_V = 2, 4, 2, 24, 40
# The last queries see the keys before the last, or not.
MASK = np.arange(8).reshape(4, 1, 2) % 3 > 0


def cache_of(
    backend: str = "interpreter",
    page_size: int | None = None,
    dim: int = DIM,
    dim_v: int = DIM_V,
    dtype: Any = "e4m3",
    **how: Any,
) -> flash.KVCache:
    """A cache whose bytes are all of NaN, or of scales that are."""
    dims = {"head_dim_v": dim_v, "dtype": dtype, "page_size": page_size, "backend": backend}
    built = flash.KVCache(2, BATCH, KV_HEADS, dim, 50, **dims, **how)
    if built.scales is not None:
        built.set_scales([[0.5, 2.0], [1.0, 0.7]], 0.03)
    if backend != "cuda":
        built.memory.k.view(np.uint8)[...] = 0x7F
        built.memory.v.view(np.uint8)[...] = 0x7F
    return built


def tokens(count: int, dtype: str, dim: int = DIM, dim_v: int = DIM_V) -> list[Array]:
    rng = np.random.default_rng(count)
    shapes = [(BATCH, h, count, d) for h, d in ((HEADS, dim), (KV_HEADS, dim), (KV_HEADS, dim_v))]
    return [rng.standard_normal(s, np.float32).astype(DTYPES[dtype].numpy) for s in shapes]


def rows_of(cache: flash.KVCache, layer: int) -> list[tuple[Array, Array]]:
    """K and V of each sequence."""
    return [(cache.keys(layer, b)[None], cache.values(layer, b)[None]) for b in range(BATCH)]


@pytest.mark.sample(2, gate=4)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("page_size", [None, 3, 16])
@pytest.mark.parametrize(
    ("stored", "dims"),
    [
        ({"dtype": "e4m3"}, (DIM, DIM_V)),
        ({"dtype": "int8", "scale_per": "token"}, (DIM, DIM_V)),
        ({"dtype": "q8_0"}, (96, 32)),
        ({"dtype": "q4_0"}, (64, 160)),
    ],
    ids=lambda of: of.get("dtype") if isinstance(of, dict) else "",
)
def test_prefill_and_steps_are_attention_to_what_the_cache_has(
    dtype: str, page_size: int | None, stored: dict[str, Any], dims: tuple[int, int]
) -> None:
    cache, layer = cache_of("interpreter", page_size, *dims, **stored), 1
    for count, splits in ((37, 1), (1, 1), (3, 2)):
        q, k, v = tokens(count, dtype, *dims)
        out, lse = flash.attention_with_kvcache(q, cache, k, v, layer=layer, return_lse=True, splits=splits)
        arithmetic = arithmetic_of(dtype, parts=PARTS_OF_F32 * (splits > 1))
        assert_items_are_accurate(out, lse, q, rows_of(cache, layer), causal=True, arithmetic=arithmetic)


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"softcap": 2.0}, {"window": (5, None)}, {"leftpad": [3, 0], "mask": MASK}])
def test_kernels_and_numpy_mean_the_same(how: dict[str, Any]) -> None:
    outs = []
    for backend in ("cpu", "interpreter"):
        cache = cache_of(backend)
        for count in (20, 2):
            q, k, v = tokens(count, "f16")
            out = flash.attention_with_kvcache(q, cache, k, v, layer=0, splits=3, **how)
        outs.append(out.astype(np.float64))
    np.testing.assert_allclose(outs[1], outs[0], atol=2e-3 * np.abs(outs[0]).max())


REFUSED = {
    ("f32", DIM): (
        "q must be float16 or bfloat16 for a cache of 'e4m3' with backend 'interpreter', got float32; "
        "convert it, or use backend='cpu'"
    ),
    ("f16", 20): (
        "head_dim and head_dim_v of a cache of 'e4m3' must be multiples of 8 for backend 'interpreter', got "
        "20 and 40; use backend='cpu', or a cache of the queries' type"
    ),
}


@pytest.mark.parametrize(("dtype", "dim"), REFUSED)
def test_what_kernels_do_not_widen_is_refused(dtype: str, dim: int) -> None:
    cache, (q, k, v) = cache_of(dim=dim), tokens(2, dtype, dim)
    message = refusal(flash.attention_with_kvcache, q, cache, k, v, layer=0)
    assert message == f"attention_with_kvcache: {REFUSED[dtype, dim]}"
    assert not cache.lengths.any()


@pytest.mark.parametrize("softcap", [None, 30.0])
def test_each_row_of_bf16_queries_has_a_power_of_two_of_its_own(softcap: float | None) -> None:
    """f16, in which kernels multiply, has neither 2**60 nor 2**-60."""
    cache, (q, k, v) = cache_of(), tokens(4, "bf16")
    powers = np.array([2.0**60, 1.0, 2.0**-60, 2.0**-120], np.float32)  # of the heads
    q = (q.astype(np.float32) * powers[:, None, None]).astype(q.dtype)
    out, lse = flash.attention_with_kvcache(q, cache, k, v, layer=0, return_lse=True, softcap=softcap)
    how: dict[str, Any] = {"causal": True, "softcap": softcap, "arithmetic": arithmetic_of("bf16")}
    assert_items_are_accurate(out, lse, q, rows_of(cache, 0), **how)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_bf16_query_that_is_not_finite_makes_its_own_row_nan(bad: float) -> None:
    cache, (q, k, v) = cache_of(), tokens(3, "bf16")
    expected = flash.attention_with_kvcache(q, cache, k, v, layer=0)
    q[1, 2, 0, 5] = bad
    out = flash.attention_with_kvcache(q, cache, layer=0)
    others = np.ones(out.shape, bool)
    others[1, 2, 0] = False
    assert np.isnan(out[1, 2, 0].astype(np.float32)).all()
    assert (out[others] == expected[others]).all()
