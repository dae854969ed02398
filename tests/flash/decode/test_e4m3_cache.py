"""Caches of one byte an element, attended to by kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from judge import assert_attention_is_accurate
from numpy.typing import NDArray

import flash
from flash.contract.catalogue import build
from flash.decode.plan import CacheCall, kernel_of, oldest_target
from flash.error_bound import PARTS_OF_F32, arithmetic_of
from flash.operands.dtypes import DTYPES, E4M3, FP8_DTYPES, DType
from ptxgen.arrays.views import view
from ptxgen.errors import LaunchError
from ptxgen.runtime.assembler import Assembler
from ptxgen.target import target

pytestmark = [pytest.mark.grid, pytest.mark.judged, pytest.mark.usefixtures("unproved")]

Array = NDArray[Any]

BATCH, HEADS, KV_HEADS, DIM, DIM_V = 2, 4, 2, 24, 40
# The last queries see the keys before the last, or not.
MASK = np.arange(8).reshape(4, 1, 2) % 3 > 0


def cache_of(
    backend: str = "interpreter", page_size: int | None = None, dim: int = DIM, **how: Any
) -> flash.KVCache:
    made = flash.KVCache(
        2,
        BATCH,
        KV_HEADS,
        dim,
        50,
        head_dim_v=DIM_V,
        dtype="e4m3",
        page_size=page_size,
        backend=backend,
        **how,
    )
    made.set_scales([[0.5, 2.0], [1.0, 0.7]], 0.03)
    if backend != "cuda":
        made.memory.k[...] = np.nan
        made.memory.v[...] = np.nan
    return made


def tokens(count: int, dtype: str, dim: int = DIM) -> list[Array]:
    rng = np.random.default_rng(count)
    shapes = [(BATCH, h, count, d) for h, d in ((HEADS, dim), (KV_HEADS, dim), (KV_HEADS, DIM_V))]
    return [rng.standard_normal(s, np.float32).astype(DTYPES[dtype].numpy) for s in shapes]


@pytest.mark.sample(0, gate=3)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("page_size", [None, 3, 16])
def test_prefill_and_steps_are_attention_to_what_the_cache_has(dtype: str, page_size: int | None) -> None:
    cache, layer = cache_of(page_size=page_size), 1
    for count, splits in ((37, 1), (1, 1), (3, 2)):
        q, k, v = tokens(count, dtype)
        out, lse = flash.attention_with_kvcache(q, cache, k, v, layer=layer, return_lse=True, splits=splits)
        for b in range(BATCH):
            keys, values = (rows(layer, b)[None] for rows in (cache.keys, cache.values))
            assert_attention_is_accurate(
                out[b : b + 1],
                lse[b : b + 1],
                q[b : b + 1],
                keys,
                values,
                causal=True,
                arithmetic=arithmetic_of(dtype, parts=PARTS_OF_F32 * (splits > 1)),
            )


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


@pytest.mark.parametrize(
    ("dtype", "dim", "message"),
    [
        (
            "f32",
            DIM,
            "q must be float16 or bfloat16 for a cache of 'e4m3' with backend "
            "'interpreter', got float32; convert it, or use backend='cpu'",
        ),
        (
            "f16",
            20,
            "head_dim and head_dim_v of a cache of 'e4m3' must be multiples of 8 for "
            "backend 'interpreter', got 20 and 40; use backend='cpu', or a cache of the queries' type",
        ),
    ],
)
def test_what_kernels_do_not_widen_is_refused(dtype: str, dim: int, message: str) -> None:
    cache = cache_of(dim=dim)
    with pytest.raises(LaunchError) as caught:
        flash.attention_with_kvcache(*_three(tokens(2, dtype, dim), cache), layer=0)
    assert str(caught.value) == f"attention_with_kvcache: {message}"
    assert not cache.lengths.any()


def _three(arrays: list[Array], cache: flash.KVCache) -> tuple[Any, ...]:
    q, k, v = arrays
    return q, cache, k, v


def call_of(dtype: str, dim: int, page_size: int, stored: DType = E4M3) -> CacheCall:
    config = flash.AttentionConfig(dim, dtype=dtype, causal=True)
    q = np.zeros((1, 8, 1, dim), config.element.numpy)
    shape = (4, 1, page_size or 64, dim)
    operands = {
        "seqused_k": np.zeros(1, np.int32),
        "k_scale": np.ones(1, np.float32),
        "v_scale": np.ones(1, np.float32),
    }
    if page_size:
        operands["block_table"] = np.zeros((1, 4), np.int32)
    views = {name: view(array, name) for name, array in operands.items()}
    k, v = (view(np.zeros(shape, stored.numpy), "cache") for _ in range(2))
    return CacheCall(config, view(q, "q"), k, v, view(np.zeros_like(q), "out"), {}, views, page_size, 64, 1.0)


@pytest.mark.sample(0, gate=2)
@pytest.mark.ptxas
@pytest.mark.parametrize("name", ["sm_80", "sm_89", "sm_90", "sm_120"])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize(("dim", "page_size"), [(64, 0), (128, 16), (256, 16)])
@pytest.mark.parametrize("stored", FP8_DTYPES.values(), ids=list(FP8_DTYPES))
def test_kernels_are_proved_and_do_not_spill(
    dim: int, page_size: int, dtype: str, name: str, stored: DType, assembler: Assembler
) -> None:
    if target(name).sm < oldest_target(stored).sm:
        pytest.skip(f"{name} does not convert {stored.name}")
    kernel = kernel_of(call_of(dtype, dim, page_size, stored), target(name), 4)
    made = build(kernel)
    assert made.proof.complete
    assert made.global_proof.complete
    usage = assembler.assemble(made.text, name).kernel(kernel.name)
    assert usage.spill_store_bytes + usage.spill_load_bytes + usage.stack_bytes == 0


def test_a_kernel_that_widens_says_so_in_its_name() -> None:
    kernel = kernel_of(call_of("f16", 64, 0), target("sm_89"), 1)
    plain = replace(kernel, features=replace(kernel.features, kv_dtype=None))
    assert kernel.name == plain.name.replace("usedk", "usedk_kv_e4m3")


@pytest.mark.parametrize("softcap", [None, 30.0])
def test_each_row_of_bf16_queries_has_a_power_of_two_of_its_own(softcap: float | None) -> None:
    """f16, in which kernels multiply, has neither 2**60 nor 2**-60."""
    cache, (q, k, v) = cache_of(), tokens(4, "bf16")
    powers = np.array([2.0**60, 1.0, 2.0**-60, 2.0**-120], np.float32)  # of the heads
    q = (q.astype(np.float32) * powers[:, None, None]).astype(q.dtype)
    out, lse = flash.attention_with_kvcache(q, cache, k, v, layer=0, return_lse=True, softcap=softcap)
    for b in range(BATCH):
        keys, values = (rows(0, b)[None] for rows in (cache.keys, cache.values))
        here = slice(b, b + 1)
        assert_attention_is_accurate(
            out[here],
            lse[here],
            q[here],
            keys,
            values,
            causal=True,
            softcap=softcap,
            arithmetic=arithmetic_of("bf16"),
        )


@pytest.mark.parametrize("odd", [np.inf, np.nan])
def test_a_bf16_query_that_is_not_finite_makes_its_own_row_nan(odd: float) -> None:
    cache, (q, k, v) = cache_of(), tokens(3, "bf16")
    expected = flash.attention_with_kvcache(q, cache, k, v, layer=0)
    q[1, 2, 0, 5] = odd
    out = flash.attention_with_kvcache(q, cache, layer=0)
    others = np.ones(out.shape, bool)
    others[1, 2, 0] = False
    assert np.isnan(out[1, 2, 0].astype(np.float32)).all()
    assert (out[others] == expected[others]).all()
