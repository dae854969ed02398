"""Launches for Blackwell: which kernel they have, what `explain` says of it, and their results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from kernel_runs import Problem

from flash.families.choice import families_of
from flash.families.mma import MMA
from flash.families.tcgen05 import TCGEN05
from flash.families.tcgen05_latent import TCGEN05_LATENT
from flash.kernel import AttentionKernel
from flash.launch.checks import check
from flash.launch.kernel_choice import kernel_of
from flash.problem.config import AttentionConfig
from flash.problem.kernel_config import KernelConfig
from ptxgen.arrays.views import view
from ptxgen.target import target as find_target
from ptxgen.target import target_for_device

PRODUCTS = "tcgen05, with tiles copied by TMA and sums in tensor memory; no GPU has run it"


def launched(seq_q: int, heads: int = 2, kv_heads: int = 2, **settings: Any) -> KernelConfig:
    """The kernel of a launch of f16, or of another type, with 64 columns and 300 keys."""
    config = AttentionConfig(64, **{"dtype": "f16", "target": "sm_100a", **settings})
    dtype = ml_dtypes.float8_e4m3fn if config.is_fp8 else np.float16
    q, k = (view(np.zeros((1, of, n, 64), dtype), "array") for of, n in ((heads, seq_q), (kv_heads, 300)))
    return kernel_of(config, check(config, q, k, k, None), find_target("sm_100a"), 16)


@pytest.mark.parametrize("capability", [(10, 0), (10, 3)])
def test_the_target_of_a_gpu_has_kernels_with_tcgen05(capability: tuple[int, int]) -> None:
    target = target_for_device(*capability)
    assert target.name == f"sm_{capability[0]}{capability[1]}a"
    assert AttentionConfig(128, dtype="bf16").kernel(target).family is TCGEN05
    assert AttentionConfig(128, dtype="bf16").kernel("sm_100").family is MMA


@pytest.mark.parametrize(
    ("how", "products", "tiles"),
    [
        ({"target": "sm_100a"}, PRODUCTS, "128 queries by 128 keys, 384 threads"),
        ({"target": "sm_103f", "block_q": 256}, PRODUCTS, "256 queries by 128 keys, 512 threads"),
        (
            {"target": "sm_100a", "block_q": 64},
            "mma.sync: block_q=64: a product has 128 rows",
            "64 queries by 64 keys, 128 threads",
        ),
        (
            {"target": "sm_100a", "pack_gqa": True},
            PRODUCTS,
            "128 queries of 2 packed heads by 128 keys, 384 threads",
        ),
    ],
)
def test_explain_says_which_kernel_computes_and_why(how: dict[str, Any], products: str, tiles: str) -> None:
    kernel = AttentionKernel(AttentionConfig(32, dtype="f16", **how))
    group = 2 if kernel.config.pack_gqa is True else 1
    arrays = Problem(40, 50, 32, 32, heads=2, kv_heads=2 // group).arrays(dtype=np.float16)
    text = kernel.explain(*arrays, backend="interpreter")
    assert f"products: {products}\n" in text
    assert f"tiles:    {tiles}\n" in text
    assert "silicon:  this text has not run on a GPU\n" in text
    out, wanted = (kernel.launch(*arrays, backend=backend) for backend in ("interpreter", "cpu"))
    np.testing.assert_allclose(out.astype(np.float32), wanted.astype(np.float32), atol=4e-3)


def test_sizes_that_tcgen05_alone_has_are_left_open_where_arrays_do_not_go_with_it() -> None:
    config = AttentionConfig(128, dtype="f16", target="sm_100a", tile=128, block_q=256)
    kernel, (q, k, v) = AttentionKernel(config), Problem(40, 50, 128, 128).arrays(dtype=np.float16)
    text = kernel.explain(q, k[:, :, ::-1], v, backend="interpreter")
    assert "products: mma.sync: a stride of K is -128 elements\n" in text
    assert "128 queries by 128 keys, 256 threads; block_q=256 is for tcgen05\n" in text


def test_latents_have_a_kernel_with_tcgen05() -> None:
    config = AttentionConfig(264, 128, dtype="f16", target="sm_100a", shared_kv=True)
    q, k, _ = Problem(9, 50, 264, 264, heads=4, kv_heads=1).arrays(dtype=np.float16)
    kernel = AttentionKernel(config)
    text = kernel.explain(q, k, backend="interpreter")
    assert f"products: {PRODUCTS.replace('tcgen05,', 'tcgen05 of latents,')}\n" in text
    assert "values:   the first 128 columns of k\n" in text
    assert "tiles:    128 queries of 4 packed heads by 64 keys, 384 threads\n" in text
    out, wanted = (kernel.launch(q, k, backend=backend) for backend in ("interpreter", "cpu"))
    np.testing.assert_allclose(out.astype(np.float32), wanted.astype(np.float32), atol=4e-3)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"head_dim_v": 328}, "head_dim_v above 256 is divided between two CTAs, in multiples of 64"),
        ({"tile": 64, "stages": 2}, "tile=64, stages=2 does not fit shared memory or registers"),
        ({"block_q": 256}, "block_q=256: a CTA has 128 rows of so many columns"),
        ({"rotates": True}, "the kernel rotates queries"),
    ],
    ids=str,
)
def test_what_no_kernel_of_latents_computes_is_left_to_others(how: dict[str, Any], why: str) -> None:
    config = AttentionConfig(576, 512, dtype="f16", target="sm_100a", shared_kv=True)
    request = replace(config.tile_request, **how)
    assert TCGEN05_LATENT.why_not(request, find_target("sm_100a")) == why
    assert families_of(request)[-1] is MMA


def test_two_ctas_compute_wide_values_and_others_have_mma() -> None:
    arrays = Problem(40, 50, 64, 512).arrays(dtype=np.float16)
    text = AttentionKernel(AttentionConfig(64, 512, dtype="f16", target="sm_100a")).explain(
        *arrays, backend="interpreter"
    )
    assert f"products: {PRODUCTS}\n" in text
    assert "and 256 of 512 columns of V" in text
    text = AttentionKernel(AttentionConfig(64, 300, dtype="f16", target="sm_100a")).explain(
        *arrays[:2], arrays[2][..., :300], backend="interpreter"
    )
    why = "tensor maps take rows of multiples of 16 bytes"
    assert f"products: mma.sync: {why}\n" in text


def test_at_most_128_queries_have_one_row_tile() -> None:
    assert [launched(n).tiling.block_q for n in (1, 128, 129)] == [128, 128, 256]
    assert launched(128, dtype="e4m3").tiling.block_q == 128
    assert launched(1, block_q=256).tiling.block_q == launched(1, splits=1).tiling.block_q == 256


def test_packed_heads_have_the_row_tiles_that_their_rows_need() -> None:
    for seq_q, block_q in ((1, 128), (16, 128), (17, 256)):
        kernel = launched(seq_q, heads=8, kv_heads=1)
        assert kernel.packed
        assert (kernel.family, kernel.tiling.block_q) == (TCGEN05, block_q)
        assert not launched(seq_q, heads=8, kv_heads=1, pack_gqa=False).packed
