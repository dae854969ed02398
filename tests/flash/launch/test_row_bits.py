"""With a number of splits the bits of a row depend on the row, its keys and the config alone: which kernels
launches have, and the bits of these kernels on the interpreter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from kernel_runs import Problem, nightly, run_forward

from flash.decode import plan
from flash.decode.plan import CacheCall
from flash.kernel import AttentionKernel
from flash.launch.checks import check
from flash.launch.kernel_choice import kernel_of
from flash.launch.scheduler_choice import Device
from flash.problem.config import AttentionConfig
from flash.problem.kernel_config import KernelConfig
from flash.problem.persistence import GRID
from flash.problem.row_bits import by_rows
from ptxgen.arrays.views import ArrayView, view
from ptxgen.target import target as find_target

Array = np.ndarray[Any, Any]

TARGETS = ("sm_80", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_120")
HEAD_DIMS = (64, 128, 256)
DTYPES: dict[str, dict[str, Any]] = {
    "f32": {"dtype": "f32"},
    "f32_grade": {"dtype": "f32", "precision": "f32_grade"},
    "tf32": {"dtype": "f32", "precision": "tf32"},
    "f16": {"dtype": "f16"},
    "bf16": {"dtype": "bf16"},
}
NUMPY: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}
# Batch, heads, heads of K, queries of the longest sequence, and keys. A small device has few multiprocessors
# for the same blocks.
CALLS = (
    *((1, 8, 8, 1, 70), (9, 8, 1, 1, 1024), (1, 8, 1, 9, 1), (2, 32, 8, 33, 20000), (1, 8, 8, 129, 1024)),
    (9, 32, 8, 4096, 4096),
)
DEVICES = (Device(), Device(multiprocessors=16))


def array(shape: Sequence[int], dtype: Any) -> ArrayView:
    """A view of a dense array that nobody reads, of which one element exists."""
    one = np.empty(1, dtype)
    strides = np.cumprod([one.itemsize, *reversed(shape[1:])])[::-1]
    return view(np.lib.stride_tricks.as_strided(one, shape, strides), "array")


def of_batches(config: AttentionConfig) -> Iterator[KernelConfig]:
    """The kernels of batches of sequences of one length."""
    dtype, target = config.element.numpy, find_target(str(config.target))
    for (batch, heads, kv_heads, seq_q, seq_k), device in product(CALLS, DEVICES):
        q = array((batch, heads, seq_q, config.head_dim), dtype)
        k = array((batch, kv_heads, seq_k, config.head_dim), dtype)
        yield kernel_of(config, check(config, q, k, k, None), target, 16, device=device)


def of_packed(config: AttentionConfig) -> Iterator[KernelConfig]:
    """The kernels of packed sequences, with keys in pages if the config has a page size."""
    dtype, target, size = config.element.numpy, find_target(str(config.target)), config.page_size
    for batch, heads, kv_heads, longest, seq_k in CALLS:
        q = array((longest + 3 * (batch - 1), heads, config.head_dim), dtype)
        operands = {"cu_seqlens_q": array((batch + 1,), np.int32)}
        if size is None:
            k = array((seq_k, kv_heads, config.head_dim), dtype)
            operands["cu_seqlens_k"] = operands["cu_seqlens_q"]
        else:
            k = array((99, kv_heads, size, config.head_dim), dtype)
            operands["seqused_k"] = array((batch,), np.int32)
            operands["block_table"] = array((batch, -(-seq_k // size)), np.int32)
        geometry = check(config, q, k, k, None, operands=operands, max_seqlen_q=longest)
        yield kernel_of(config, geometry, target, 16)


def of_caches(
    config: AttentionConfig, page_size: int = 0, stored: Any = None, splits: int | None = 1
) -> Iterator[KernelConfig]:
    """The kernels of attention over a cache, whose rows of a `stored` type have a scale each."""
    dtype, target = config.element.numpy, find_target(str(config.target))
    for batch, heads, kv_heads, seq_q, capacity in CALLS:
        q = array((batch, heads, seq_q, config.head_dim), dtype)
        rows = (99, kv_heads, page_size) if page_size else (batch, kv_heads, capacity)
        k = array((*rows, config.head_dim), dtype if stored is None else stored)
        operands = {"seqused_k": array((batch,), np.int32)}
        if page_size:
            operands["block_table"] = array((batch, -(-capacity // page_size)), np.int32)
        if stored is not None:
            operands |= {name: array(rows, np.float32) for name in ("k_scale", "v_scale")}
        call = CacheCall(config, q, k, k, q, {}, operands, page_size, capacity, config.scale)
        yield plan.kernel_of(call, target, splits or 1, same_bits=splits is not None)


def of_one_arithmetic(kernels: Iterable[KernelConfig]) -> bool:
    """Whether the kernels compute a row alike, whatever the other rows of its warp are."""
    result = list(kernels)
    assert all(by_rows(kernel.tiling) == kernel.tiling for kernel in result)
    return len({(kernel.tiling.row_arithmetic, kernel.alignment) for kernel in result}) == 1


EVERY_CASE = pytest.mark.parametrize(
    ("target", "dtype", "head_dim"), list(product(TARGETS, DTYPES, HEAD_DIMS))
)


@pytest.mark.sample(4, gate=8)
@EVERY_CASE
def test_all_batches_have_one_kernel_but_for_packed_heads_and_what_ctas_take(
    target: str, dtype: str, head_dim: int
) -> None:
    config = AttentionConfig(head_dim, causal=True, target=target, splits=1, **DTYPES[dtype])
    texts = {replace(kernel, scheduler=GRID, packed=False) for kernel in of_batches(config)}
    assert len({replace(t, tiling=config.kernel().tiling) for t in texts}) == 1
    assert of_one_arithmetic(texts)
    assert {(t.tiling.tile, t.tiling.block_q) for t in texts} == {
        (config.kernel().tiling.tile, config.kernel().tiling.block_q)
    }


@pytest.mark.sample(4, gate=8)
@EVERY_CASE
def test_all_packed_batches_compute_a_row_alike(target: str, dtype: str, head_dim: int) -> None:
    how: dict[str, Any] = {"target": target, "varlen": True, "causal": True, "splits": 1, **DTYPES[dtype]}
    for page_size in (None, 1, 16):
        assert of_one_arithmetic(of_packed(AttentionConfig(head_dim, page_size=page_size, **how)))


@pytest.mark.sample(4, gate=8)
@EVERY_CASE
def test_all_calls_over_a_cache_compute_a_row_alike(target: str, dtype: str, head_dim: int) -> None:
    config = AttentionConfig(head_dim, causal=True, target=target, **DTYPES[dtype])
    assert all(of_one_arithmetic(of_caches(config, size, splits=n)) for size in (0, 16) for n in (1, 3))


@pytest.mark.parametrize("target", TARGETS[1:])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_all_calls_over_a_cache_with_scales_of_tokens_compute_a_row_alike(target: str, head_dim: int) -> None:
    config = AttentionConfig(head_dim, causal=True, target=target, dtype="bf16")
    assert of_one_arithmetic(of_caches(config, 16, ml_dtypes.float8_e4m3fn))


def test_few_rows_have_small_blocks_all_the_same() -> None:
    how: dict[str, Any] = {"dtype": "f16", "causal": True}
    for target, sizes in (("sm_80", {32, 128}), ("sm_90a", {64, 128})):
        packed = AttentionConfig(64, target=target, varlen=True, page_size=16, splits=1, **how)
        assert {kernel.tiling.block_q for kernel in of_packed(packed)} == sizes
        cached = AttentionConfig(64, target=target, **how)
        assert {kernel.tiling.block_q for kernel in of_caches(cached)} >= {min(sizes)}


def test_without_a_number_of_splits_kernels_follow_the_lengths() -> None:
    how: dict[str, Any] = {"dtype": "f16", "target": "sm_90a"}
    plain, paged = AttentionConfig(128, **how), AttentionConfig(128, varlen=True, page_size=16, **how)
    for kernels in of_batches(plain), of_packed(paged), of_caches(plain, 16, splits=None):
        assert not of_one_arithmetic(kernels)


def test_a_kernel_that_takes_all_maxima_says_so_in_its_name() -> None:
    for target in ("sm_80", "sm_90a"):
        kernel = AttentionConfig(64, dtype="f16", target=target).kernel()
        assert replace(kernel, tiling=by_rows(kernel.tiling)).name == f"{kernel.name}_by_rows"
        assert by_rows(by_rows(kernel.tiling)) == by_rows(kernel.tiling) != kernel.tiling
    plain = AttentionConfig(128, dtype="f16", target="sm_90a").kernel().tiling
    assert by_rows(plain) == plain


# ------------------------------------------------------------------------------------------ bits

KINDS: dict[str, dict[str, Any]] = {
    "f32": {"dtype": "f32"},
    "f16": {"dtype": "f16", "tile": 64},
    "tf32": {"dtype": "f32", "precision": "tf32"},
    "f32_grade": {"dtype": "f32", "precision": "f32_grade"},
    "wgmma": {"dtype": "f16", "target": "sm_90a"},
    "wgmma of f32": {"dtype": "f32", "precision": "f32_grade", "target": "sm_90a", "tile": 32},
    "tcgen05": {"dtype": "f16", "target": "sm_100a"},
}
FEW_KINDS = [kind if kind in ("f16", "wgmma", "tcgen05") else nightly(kind) for kind in KINDS]
BLOCKS = {"wgmma": (64, 128, 192), "wgmma of f32": (64, 128), "tcgen05": (128, 256)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", FEW_KINDS)
@pytest.mark.parametrize("causal", [False, nightly(True)])
def test_kernels_of_one_arithmetic_give_the_same_bits(kind: str, causal: bool) -> None:
    arguments: dict[str, Any] = {"tile": 16, "causal": causal, "return_lse": True, **KINDS[kind]}
    q, k, v = Problem(40, 150, 16, 16, heads=2).arrays(dtype=NUMPY[arguments["dtype"]])
    k[..., 40:48, :] *= 8  # scores that move the shifts of some rows, in a tile that no mask cuts
    result: dict[Any, set[bytes]] = {}
    for block_q, packed in product(BLOCKS.get(kind, (32, 64, 128)), (False, True)):
        config = AttentionConfig(16, block_q=block_q, **arguments)
        kernel = config.kernel()
        kernel = replace(kernel, tiling=by_rows(kernel.tiling), packed=packed)
        out, lse, _ = run_forward(config, (q, k, v), kernel=kernel)
        result.setdefault(kernel.tiling.row_arithmetic, set()).add(out.tobytes() + lse.tobytes())
    assert all(len(bits) == 1 for bits in result.values())
    assert kind == "f32" or len(result) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", FEW_KINDS)
def test_a_query_alone_has_the_bits_that_it_has_in_a_prompt(kind: str) -> None:
    arguments: dict[str, Any] = {"tile": 16, "causal": True, "return_lse": True, "splits": 1, **KINDS[kind]}
    launch = AttentionKernel(AttentionConfig(16, **arguments)).launch
    q, k, v = Problem(70, 70, 16, 16, heads=2).arrays(dtype=NUMPY[arguments["dtype"]])
    out, lse = launch(q, k, v, backend="interpreter")
    for at in (17, 69):
        one = q[:, :, at : at + 1], k[:, :, : at + 1], v[:, :, : at + 1]
        alone = launch(*one, backend="interpreter")
        assert alone[0].tobytes() == out[:, :, at].tobytes()
        assert alone[1].tobytes() == lse[:, :, at].tobytes()


def paged(config: AttentionConfig, lengths: Sequence[tuple[int, int]], which: Sequence[int]) -> list[bytes]:
    """The bits of O and LSE of each of some sequences, of (queries, keys), in one batch of these."""
    rng = np.random.default_rng(3)
    heads, kv_heads, size, d = 4, 2, config.page_size or 0, config.head_dim
    each = -(-max(keys for _, keys in lengths) // size)
    shape = (each * len(lengths), kv_heads, size, d)
    k, v = (rng.standard_normal(shape, np.float32).astype(np.float16) for _ in range(2))
    queries = [rng.standard_normal((n, heads, d), np.float32).astype(np.float16) for n, _ in lengths]
    table = np.arange(shape[0], dtype=np.int32).reshape(-1, each)
    ends = np.cumsum([0, *(lengths[i][0] for i in which)], dtype=np.int32)
    out, lse = AttentionKernel(config).launch(
        np.concatenate([queries[i] for i in which]),
        k,
        v,
        cu_seqlens_q=ends,
        seqused_k=np.array([lengths[i][1] for i in which], np.int32),
        block_table=table[list(which)],
        backend="interpreter",
    )
    return [out[a:b].tobytes() + np.ascontiguousarray(lse[:, a:b]).tobytes() for a, b in pairwise(ends)]


LENGTHS = ((1, 150), (9, 131), (0, 20), (3, 0), (70, 75))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
def test_sequences_over_pages_have_the_same_bits_alone_and_beside_others(target: str) -> None:
    how: dict[str, Any] = {"dtype": "f16", "target": target, "causal": True, "return_lse": True}
    config = AttentionConfig(16, varlen=True, page_size=16, splits=1, **how)
    together = paged(config, LENGTHS, range(len(LENGTHS)))
    assert together == [paged(config, LENGTHS, [i])[0] for i in range(len(LENGTHS))]
    assert together[:2] == paged(config, LENGTHS, [0, 1])


@pytest.mark.slow
def test_packed_sequences_have_the_same_bits_whatever_queries_follow_theirs() -> None:
    config = AttentionConfig(
        16, dtype="f16", target="sm_90a", varlen=True, return_lse=True, tile=16, block_q=192, splits=1
    )
    rng, queries, shapes = np.random.default_rng(0), 13, ((43, 4), (130, 1), (130, 1))
    q, k, v = (rng.standard_normal((*shape, 16)).astype(np.float16) for shape in shapes)
    # What the keys of each tile score moves the shift of queries that read column 0, from the last tile on.
    q[..., 0], k[:, 0, 0] = 0, 80 - np.arange(130) // 16 * 10
    ends: dict[str, Any] = {"cu_seqlens_q": np.array([0, queries, len(q)], np.int32)}
    ends["cu_seqlens_k"] = np.array([0, 130, 130], np.int32)
    bits = set()
    for follow in (0, 4):
        q[queries:, :, 0] = follow
        out, lse = AttentionKernel(config).launch(q, k, v, **ends, backend="interpreter")
        bits.add(out[:queries].tobytes() + lse[:, :queries].tobytes())
    assert len(bits) == 1


def test_a_shift_moves_by_the_scores_of_its_row_alone() -> None:
    # The exponent of the second score, 8 * (1 + 2**-23), is just above what moves a shift, and as one
    # multiply-add with the rounded shift of the first score just below.
    config = AttentionConfig(
        16, dtype="f16", tile=16, block_q=32, return_lse=True, softmax_scale=scale_of_one()
    )
    q, k, v = (np.zeros((1, 1, n, 16), np.float16) for n in (2, 32, 32))
    q[..., 0, 0], k[..., 16:, 0], k[..., 0, 0] = 1, 1000, 1008
    k[..., :16, 1] = 100
    # Weights of other keys, relative to that of the first or of the second score, are f16 of 11 or 5 bits.
    k[..., 1:16, 0], v[..., 1:16, :] = 988.5, 60000
    bits = set()
    for neighbour in (0, 1):
        q[..., 1, 1] = neighbour
        out, lse, _ = run_forward(config, (q, k, v))
        bits.add(out[..., 0, :].tobytes() + lse[..., 0].tobytes())
    assert len(bits) == 1


def scale_of_one() -> float:
    """A softmax scale that is 1 + 2**-23 in units of log2."""
    factor, wanted = np.float32(np.log2(np.e)), np.float32(1 + 2.0**-23)
    scale = np.nextafter(wanted / factor, np.float32(1))
    assert {s * factor for s in (scale, wanted / factor)} >= {wanted}
    return float(next(s for s in (scale, wanted / factor) if s * factor == wanted))
