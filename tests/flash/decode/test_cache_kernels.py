"""Kernels whose keys lie in a cache: as many as each sequence has by now, from behind its padding
on, in any sequence of K and V, in pages, and shared out among several CTAs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from judge import assert_attention_is_accurate
from numpy.typing import NDArray

from flash.contract.catalogue import build
from flash.decode.merge import merge_partials
from flash.error_bound import PARTS_OF_F32, arithmetic_of_config
from flash.operands.dtypes import E4M3
from flash.problem.config import AttentionConfig, KernelConfig
from ptxgen.interpreter import run

pytestmark = [pytest.mark.grid, pytest.mark.judged, pytest.mark.usefixtures("unproved")]

Array = NDArray[Any]

BATCH, HEADS, KV_HEADS = 3, 4, 2


def cached(config: AttentionConfig, **features: Any) -> KernelConfig:
    kernel = config.kernel()
    return replace(kernel, features=replace(kernel.features, **features))


def normal(shape: tuple[int, ...], config: AttentionConfig, seed: int) -> Array:
    numbers = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return numbers.astype(config.element.numpy)


def attend(
    config: AttentionConfig,
    kernel: KernelConfig,
    q: Array,
    k: Array,
    v: Array,
    splits: int = 1,
    **operands: Array,
) -> tuple[Array, Array]:
    """O and LSE of each split, [batch, heads, seq_q, splits, ...]; what is not written is NaN."""
    made, t = build(kernel), kernel.tiling
    batch, heads, seq_q = q.shape[:3]
    kv_heads = k.shape[1]
    page_size = kernel.features.page_size
    seq_k = operands["block_table"].shape[1] * page_size if page_size else k.shape[2]
    parts = (splits,) if kernel.features.splits else ()
    out = np.full((batch, heads, seq_q, *parts, v.shape[3]), np.nan, kernel.output.numpy)
    lse = np.full((batch, heads, seq_q, *parts), np.nan, np.float32)
    values: dict[str, Any] = {
        **operands,
        **config.numbers,
        "Q": q,
        "K": k,
        "V": v,
        "O": out,
        "LSE": lse,
        "seq_q": seq_q,
        "seq_k": seq_k,
        "heads": heads,
        "group": heads // kv_heads,
        "splits": splits,
        "section": 2,
        "softmax_scale": np.float32(config.scale),
        "kv_batch": k.shape[0],
        "pages": k.shape[0],
    }
    steps = {"Q": q, "K": k, "V": v, "O": out}
    for name, array in steps.items():
        names = [*kernel.features.steps_of(name)]
        for step, stride in zip(names, array.strides, strict=False):
            values[f"{name}_{step}_stride"] = stride // array.itemsize
    for operand in kernel.features.operands:
        array = operands[operand.name]
        for axis, stride in zip(operand.axes, array.strides, strict=True):
            values[operand.stride(axis)] = stride // array.itemsize
    rows, of = (seq_q * heads // kv_heads, kv_heads) if kernel.packed else (seq_q, heads)
    run(
        made.module,
        grid=(-(-rows // t.block_q) * of * batch * t.value_slices * splits, 1, 1),
        block=(t.threads, 1, 1),
        args=[values[parameter["name"]] for parameter in made.contract["parameters"]],
        dynamic_smem=made.kernel.dynamic_shared_bytes,
        sanitize=True,
    )
    return out, lse


def in_pages(array: Array, page_size: int, table: Array) -> Array:
    """[batch, kv_heads, seq_k, dim] in pages as `table` says; other slots are NaN."""
    pages = np.full((table.max() + 2, array.shape[1], page_size, array.shape[3]), np.nan, array.dtype)
    for b, n in np.ndindex(*table.shape):
        rows = array[b, :, n * page_size : (n + 1) * page_size]
        pages[table[b, n], :, : rows.shape[1]] = rows
    return pages


KERNELS = {
    "f32": {"tile": 16, "block_q": 16},
    "f16": {"dtype": "f16", "tile": 16, "block_q": 32},
    "bf16": {"dtype": "bf16", "tile": 32, "block_q": 32},
    "f32_grade": {"precision": "f32_grade", "tile": 16, "block_q": 32},
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize(
    ("page_size", "head_dim_v"), [(0, 24), (3, 21), (16, 24)], ids=["whole", "pages-3", "pages-16"]
)
def test_keys_of_a_cache_are_those_of_each_sequence(
    name: str, splits: int, page_size: int, head_dim_v: int
) -> None:
    config = AttentionConfig(24, head_dim_v, causal=True, pack_gqa=True, return_lse=True, **KERNELS[name])
    kernel = cached(
        config, seqused_k=True, splits=splits > 1, page_size=page_size, leftpad_k=True, cache_batch_idx=True
    )
    capacity, seq_q = 75, 2
    index = np.array([4, 0, 2], np.int32)
    used = np.array([75, 0, 40], np.int32)
    padding = np.array([3, 0, 39], np.int32)
    q = normal((BATCH, HEADS, seq_q, 24), config, 1)
    k = normal((5, KV_HEADS, capacity, 24), config, 2)
    v = normal((5, KV_HEADS, capacity, head_dim_v), config, 3)
    for b in range(BATCH):  # what is no key is never looked at
        for array in (k, v):
            array[index[b], :, used[b] :] = np.nan
            array[index[b], :, : padding[b]] = np.nan
    arrays, operands = (k, v), {}
    if page_size:
        columns = -(-capacity // page_size)
        table = np.random.default_rng(5).permutation(5 * columns).astype(np.int32)
        table = table.reshape(5, columns)
        operands["block_table"] = table
        arrays = tuple(in_pages(array, page_size, table) for array in (k, v))
    out, lse = attend(
        config,
        kernel,
        q,
        *arrays,
        splits,
        seqused_k=used,
        leftpad_k=padding,
        cache_batch_idx=index,
        **operands,
    )
    if splits > 1:
        out, lse = merge_partials(np.moveaxis(out, 3, 0), np.moveaxis(lse, 3, 0))
        out, lse = out.astype(config.element.numpy), lse.astype(np.float32)
    for b in range(BATCH):
        rows = slice(padding[b], used[b])
        assert_attention_is_accurate(
            out[b : b + 1],
            lse[b : b + 1],
            q[b : b + 1],
            k[index[b], None, :, rows],
            v[index[b], None, :, rows],
            causal=True,
            arithmetic=arithmetic_of_config(config, PARTS_OF_F32 * (splits > 1)),
        )


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize(("splits", "page_size"), [(1, 0), (3, 4)])
def test_keys_of_one_byte_are_widened_and_have_scales(dtype: str, splits: int, page_size: int) -> None:
    config = AttentionConfig(
        24, 40, dtype, causal=True, pack_gqa=True, return_lse=True, tile=16, block_q=32, target="sm_89"
    )
    kernel = cached(config, seqused_k=True, splits=splits > 1, page_size=page_size, kv_dtype=E4M3)
    used = np.array([75, 0, 40], np.int32)
    q = normal((BATCH, HEADS, 2, 24), config, 1)
    scales = {f"{n}_scale": np.array(s, np.float32) for n, s in (("k", (0.5, 2)), ("v", (4, 0.25)))}
    codes, wide = [], []
    for n, (name, dim) in enumerate((("k", 24), ("v", 40))):
        stored = normal((BATCH, KV_HEADS, 75, dim), config, 2 + n).astype(E4M3.numpy)
        codes.append(stored)
        wide.append(stored.astype(np.float32) * scales[f"{name}_scale"][:, None, None])
    for array in codes:
        for b in range(BATCH):
            array[b, :, used[b] :] = np.nan
    operands = {"seqused_k": used, **scales}
    if page_size:
        table = np.random.default_rng(5).permutation(BATCH * 19).astype(np.int32)
        operands["block_table"] = table = table.reshape(BATCH, 19)
        codes = [in_pages(array, page_size, table) for array in codes]
    raw = [array.view(np.uint8) for array in codes]
    out, lse = attend(config, kernel, q, *raw, splits, **operands)
    if splits > 1:
        out, lse = merge_partials(np.moveaxis(out, 3, 0), np.moveaxis(lse, 3, 0))
        out = out.astype(config.element.numpy)
    for b in range(BATCH):
        rows = slice(0, used[b])
        k, v = (array[b, None, :, rows] for array in wide)
        assert_attention_is_accurate(
            out[b : b + 1],
            lse[b : b + 1],
            q[b : b + 1],
            k,
            v,
            causal=True,
            arithmetic=arithmetic_of_config(config, PARTS_OF_F32 * (splits > 1)),
        )


def test_nan_of_one_byte_reaches_the_rows_that_see_it() -> None:
    config = AttentionConfig(
        16, dtype="f16", causal=True, return_lse=True, tile=16, block_q=32, target="sm_89"
    )
    kernel = cached(config, seqused_k=True, kv_dtype=E4M3)
    q = normal((1, 1, 8, 16), config, 1)
    k, v = (normal((1, 1, 40, 16), config, n).astype(E4M3.numpy) for n in (2, 3))
    v[0, 0, 36] = np.nan  # queries 4 to 7 see it, at their positions 36 to 39
    ones = np.ones(1, np.float32)
    out, _ = attend(
        config,
        kernel,
        q,
        k.view(np.uint8),
        v.view(np.uint8),
        k_scale=ones,
        v_scale=ones,
        seqused_k=np.array([40], np.int32),
    )
    assert np.isnan(out[0, 0, 4:]).all()
    assert np.isfinite(out[0, 0, :4]).all()
