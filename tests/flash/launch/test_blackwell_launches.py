"""Launches for Blackwell: which kernel they have, what `explain` says of it, and their results."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from kernel_runs import Problem

from flash.families.mma import MMA
from flash.families.tcgen05 import TCGEN05
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
