"""Attention over a cache: step by step as at once, sequence by sequence, and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from device_arrays import CudaArray
from flash_oracles import torch_attention
from judge import assert_attention_is_accurate, assert_close, assert_items_are_accurate, rounded_normal
from kernel_runs import nightly
from refusals import refusal

import flash
from flash.error_bound import PARTS_OF_F32, arithmetic_of, attention_bound
from flash.operands.dtypes import FP8_DTYPES
from flash.problem.rotary import rotary_tables, rotated
from flash.reference import attention_reference
from ptxgen.errors import CacheFullError, ConfigError, LaunchError

pytestmark = [pytest.mark.grid, pytest.mark.judged, pytest.mark.usefixtures("unproved")]

Array = np.ndarray[Any, Any]

HEADS, KV_HEADS, DIM, DIM_V = 4, 2, 16, 8
TYPES: dict[str, Any] = {
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    **dict.fromkeys(FP8_DTYPES, ml_dtypes.bfloat16),
}
ROWS_OF = dict.fromkeys(FP8_DTYPES, "bf16")  # the type of new rows, where that of the cache is narrow
EVERY_TYPE = pytest.mark.parametrize("dtype", TYPES)
EITHER_LAYOUT = pytest.mark.parametrize("page_size", [None, 16], ids=["contiguous", "paged"])


def cache_of(batch: int = 3, capacity: int = 64, layers: int = 1, **how: Any) -> flash.KVCache:
    """A cache full of NaN, which must not reach anything, and for e4m3 with scales."""
    built = flash.KVCache(layers, batch, KV_HEADS, DIM, capacity, **{"head_dim_v": DIM_V, **how})
    built.memory.k[...] = np.nan
    built.memory.v[...] = np.nan
    if built.dtype in FP8_DTYPES:
        built.set_scales([0.01, 0.02], 0.015)
    return built


def rows_of(count: int, batch: int = 3, dtype: Any = np.float32, seed: int = 0) -> Any:
    """Queries, keys and values of so many tokens."""
    rng = np.random.default_rng([count, batch, seed])
    shapes = ((batch, HEADS, count, DIM), (batch, KV_HEADS, count, DIM), (batch, KV_HEADS, count, DIM_V))
    return tuple(rounded_normal(rng, shape, dtype) for shape in shapes)


def cached(cache: flash.KVCache, layer: int, sequence: int, first: int = 0) -> Any:
    """Keys and values of a sequence, as a batch."""
    return (cache.keys(layer, sequence)[None, :, first:], cache.values(layer, sequence)[None, :, first:])


def every(cache: flash.KVCache, layer: int = 0, sequences: Iterable[int] | None = None) -> list[Any]:
    """Keys and values of sequences, by default of all, as batches."""
    return [cached(cache, layer, b) for b in (range(cache.batch) if sequences is None else sequences)]


def ragged(lengths: Any = (0, 7, 30), **how: Any) -> flash.KVCache:
    """A cache whose sequences have these lengths in every layer."""
    cache = cache_of(len(lengths), **how)
    for layer in range(cache.layers):
        _, k, v = rows_of(max(lengths), len(lengths), TYPES[cache.dtype], seed=layer)
        cache.append(layer, k, v, counts=lengths)
    return cache


# ------------------------------------------------------------------------------------------
# accuracy


@pytest.mark.slow
@EVERY_TYPE
@EITHER_LAYOUT
@pytest.mark.parametrize(
    ("backend", "steps"), [("cpu", 100), ("interpreter", 3), nightly("interpreter", 100)]
)
def test_prefill_and_steps_are_one_causal_attention(
    dtype: str, page_size: int | None, backend: Any, steps: int
) -> None:
    prefill, layers, on_cpu = 37, 2, backend == "cpu"
    cache = cache_of(2, prefill + steps, layers, dtype=dtype, page_size=page_size, backend=backend)
    arithmetic = None if on_cpu else arithmetic_of(ROWS_OF.get(dtype, dtype), parts=PARTS_OF_F32)
    for layer in range(layers if on_cpu else 1):
        q, k, v = rows_of(prefill + steps, 2, TYPES[dtype], seed=layer)
        results = []
        for a, b in itertools.pairwise([0, *range(prefill, prefill + steps + 1)]):
            new, splits = (x[:, :, a:b] for x in (q, k, v)), 2 + a % 2 if a else 1
            how: dict[str, Any] = {"layer": layer, "return_lse": True, "splits": splits}
            results.append(flash.attention_with_kvcache(next(new), cache, *new, **how))
        out, lse = (np.concatenate(each, axis=2) for each in zip(*results, strict=True))
        keys, values = (np.concatenate(each) for each in zip(*every(cache, layer), strict=True))
        if dtype not in FP8_DTYPES:
            np.testing.assert_array_equal(keys, k)
            np.testing.assert_array_equal(values, v)
        assert_attention_is_accurate(out, lse, q, keys, values, causal=True, arithmetic=arithmetic)
        assert (cache.lengths[layer] == prefill + steps).all()


FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "full": {"causal": False},
    "window": {"window": (9, 2)},
    "causal_window": {"causal": "bottom_right", "window": (5, None)},
    "scores": {"softcap": 2.0, "softmax_scale": 0.7},
    "operands": {
        "alibi_slopes": np.float32([0.1, 0.5, 0, 1]),
        "sink": np.arange(12, dtype=np.float32).reshape(3, 4) - 6,
    },
}


@EITHER_LAYOUT
@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize("seq_q", [1, 5])
def test_each_sequence_has_its_own_length(name: str, seq_q: int, page_size: int | None) -> None:
    how = {"causal": True, **FEATURES[name]}
    cache = ragged(page_size=page_size)
    q, k, v = rows_of(seq_q)
    out, lse = flash.attention_with_kvcache(q, cache, k, v, layer=0, return_lse=True, **how)
    assert cache.lengths.tolist() == [[seq_q, 7 + seq_q, 30 + seq_q]]
    assert_items_are_accurate(out, lse, q, every(cache), **how)


@EITHER_LAYOUT
@pytest.mark.parametrize("seq_q", [1, 4])
def test_pytorch_agrees(torch: Any, seq_q: int, page_size: int | None) -> None:
    cache = ragged((2, 7, 30), page_size=page_size)
    q, k, v = rows_of(seq_q)
    out = flash.attention_with_kvcache(q, cache, k, v, layer=0)
    for b in range(3):
        own = q[b : b + 1], *cached(cache, 0, b)
        wanted = torch_attention(torch, *own, causal="bottom_right")
        allowed = attention_bound(*own, out.dtype, causal=True).out_error
        assert_close("out", out[b : b + 1], wanted, allowed)


@pytest.mark.sample(3)
@pytest.mark.parametrize("page_size", [None, 1, 4, 16, 128])
def test_a_token_at_many_lengths(page_size: int | None) -> None:
    lengths = (1, 11, 99, 339, 799, 1763, 3577, 9999)
    cache = cache_of(len(lengths), max(lengths), page_size=page_size)
    q, k, v = rows_of(max(lengths), len(lengths))
    counts = [length - 1 for length in lengths]
    cache.append(0, k[:, :, 1:], v[:, :, 1:], counts=counts)
    now = (x[:, :, :1] for x in (q, k, v))
    out, lse = flash.attention_with_kvcache(next(now), cache, *now, layer=0, return_lse=True)
    assert cache.lengths.tolist() == [list(lengths)]
    both = [[np.roll(x[b : b + 1, :, :n], -1, axis=2) for b, n in enumerate(lengths)] for x in (k, v)]
    assert_items_are_accurate(out, lse, q[:, :, :1], zip(*both, strict=True), causal=True)


@EITHER_LAYOUT
def test_without_new_keys_queries_see_those_that_there_are(page_size: int | None) -> None:
    cache = ragged(page_size=page_size)
    q, _, _ = rows_of(2)
    out, lse = flash.attention_with_kvcache(q, cache, layer=0, return_lse=True)
    assert cache.lengths.tolist() == [[0, 7, 30]]
    assert (out[0] == 0).all()
    assert (lse[0] == -np.inf).all()
    assert_items_are_accurate(out[1:], lse[1:], q[1:], every(cache)[1:], causal=True)


@EITHER_LAYOUT
def test_a_layer_is_not_another(page_size: int | None) -> None:
    cache = ragged(layers=3, page_size=page_size)
    q, k, v = rows_of(1)
    out = flash.attention_with_kvcache(q, cache, k, v, layer=1)
    assert cache.lengths[:, 1].tolist() == [7, 8, 7]
    assert_attention_is_accurate(out[1:2], None, q[1:2], *cached(cache, 1, 1), causal=True)


@EITHER_LAYOUT
def test_items_may_be_any_sequences_of_the_cache(page_size: int | None) -> None:
    cache = ragged((3, 7, 30, 12), page_size=page_size)
    q, k, v = rows_of(2, 2)
    out = flash.attention_with_kvcache(q, cache, k, v, layer=0, cache_batch_idx=np.array([3, 0], np.int32))
    assert cache.lengths.tolist() == [[5, 7, 30, 14]]
    assert_items_are_accurate(out, None, q, every(cache, 0, (3, 0)), causal=True)
    same = flash.attention_with_kvcache(q[[0, 0]], cache, layer=0, cache_batch_idx=[1, 1])
    assert same[0].tobytes() == same[1].tobytes()


def test_bits_do_not_depend_on_the_rest_of_the_batch() -> None:
    cache = ragged()
    q, _, _ = rows_of(1)
    all_three = flash.attention_with_kvcache(q, cache, layer=0)
    alone = flash.attention_with_kvcache(q[2:], cache, layer=0, cache_batch_idx=[2])
    assert alone.tobytes() == all_three[2:].tobytes()


@EITHER_LAYOUT
def test_padding_on_the_left_is_as_if_it_were_not_there(page_size: int | None) -> None:
    padding = [6, 0, 3]
    q, k, v = rows_of(6)
    how: dict[str, Any] = {"layer": 0, "return_lse": True, "window": (4, None)}
    wild = k.copy()
    for b, count in enumerate(padding):
        wild[b, :, :count] = np.nan
    cache = cache_of(page_size=page_size)
    out, lse = flash.attention_with_kvcache(q, cache, wild, v, leftpad=padding, **how)
    for b, count in enumerate(padding):
        assert (out[b, :, :count] == 0).all()
        assert (lse[b, :, :count] == -np.inf).all()
        own = (x[b : b + 1, :, count:] for x in (q, k, v))
        assert_attention_is_accurate(
            out[b : b + 1, :, count:], lse[b : b + 1, :, count:], *own, causal=True, window=(4, None)
        )


def test_views_and_torch_tensors_are_read_in_place(torch: Any) -> None:
    q, k, v = rows_of(3, dtype="bf16")
    wanted = flash.attention_with_kvcache(q, cache_of(dtype="bf16"), k, v, layer=0)
    tensors = [
        torch.from_numpy(x.swapaxes(1, 2).astype(np.float32)).to(torch.bfloat16).transpose(1, 2)
        for x in (q, k, v)
    ]
    got, lse = flash.attention_with_kvcache(
        tensors[0], cache_of(dtype="bf16"), *tensors[1:], layer=0, return_lse=True
    )
    assert (got.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    np.testing.assert_array_equal(got.float().numpy(), wanted.astype(np.float32))


def test_out_is_written_and_returned() -> None:
    q, k, v = rows_of(3)
    wanted = flash.attention_with_kvcache(q, cache_of(), k, v, layer=0)
    out = np.zeros((3, 3, HEADS, DIM_V), np.float32).swapaxes(1, 2)
    assert flash.attention_with_kvcache(q, cache_of(), k, v, layer=0, out=out) is out
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("items", [0, 2])
def test_there_may_be_no_items_or_no_queries(items: int) -> None:
    cache = ragged()
    q, k, v = rows_of(0, items)
    out, lse = flash.attention_with_kvcache(
        q, cache, k, v, layer=0, cache_batch_idx=list(range(items)), return_lse=True
    )
    assert out.shape == (items, HEADS, 0, DIM_V)
    assert lse.shape == (items, HEADS, 0)


# ------------------------------------------------------------------------------------------
# masks

# Two guesses of what comes next, and for each of these one of what comes then.
TREE = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1]], bool)


@EITHER_LAYOUT
@pytest.mark.parametrize("causal", [True, False])
def test_a_tree_of_guesses_sees_the_past_and_its_own_branch(causal: bool, page_size: int | None) -> None:
    cache = ragged(page_size=page_size)
    q, k, v = rows_of(4)
    out = flash.attention_with_kvcache(q, cache, k, v, layer=0, mask=TREE, causal=causal)
    masks = [np.concatenate([np.ones((4, length), bool), TREE], axis=1) for length in (0, 7, 30)]
    assert_items_are_accurate(out, None, q, every(cache), masks=masks)


@pytest.mark.parametrize("shape", [(9,), (5, 9), (HEADS, 1, 9), (3, 1, 5, 9), (3, HEADS, 5, 40)])
def test_masks_are_broadcast_and_aligned_to_the_last_keys(shape: tuple[int, ...]) -> None:
    cache = ragged()
    q, k, v = rows_of(5)
    mask = np.random.default_rng(1).random(shape) < 0.6
    out = flash.attention_with_kvcache(q, cache, k, v, layer=0, mask=mask, causal=False)
    wide = np.broadcast_to(mask, (3, HEADS, 5, shape[-1]))
    masks = [np.ones((1, HEADS, 5, length), bool) for length in (5, 12, 35)]
    for b, shown in enumerate(masks):
        last = min(shown.shape[3], shape[-1])
        shown[..., shown.shape[3] - last :] = wide[b : b + 1, ..., shape[-1] - last :]
    assert_items_are_accurate(out, None, q, every(cache), masks=masks)


# ------------------------------------------------------------------------------------------
# rotary embedding


@EVERY_TYPE
@pytest.mark.parametrize("interleaved", [False, True])
def test_rows_are_turned_by_their_positions_and_rounded_once(dtype: str, interleaved: bool) -> None:
    cache, prefill = cache_of(dtype=dtype), 6
    tables = rotary_tables(12, 8)
    padding = [0, 2, 6]
    q, k, v = rows_of(10, dtype=TYPES[dtype])
    outs = [
        flash.attention_with_kvcache(
            q[:, :, a:b],
            cache,
            k[:, :, a:b],
            v[:, :, a:b],
            layer=0,
            leftpad=padding,
            rotary_cos=tables[0],
            rotary_sin=tables[1],
            rotary_interleaved=interleaved,
        )
        for a, b in [(0, prefill), *((n, n + 1) for n in range(prefill, 10))]
    ]
    out = np.concatenate(outs, axis=2)
    for b, first in enumerate(padding):
        at = np.arange(10 - first)[None]
        turned_q, turned_k = (
            rotated(x[b : b + 1, :, first:], *tables, at, interleaved=interleaved) for x in (q, k)
        )
        keys, values = cached(cache, 0, b, first)
        if dtype in FP8_DTYPES:
            plain = cache_of(dtype=dtype)
            plain.append(0, turned_k, v[b : b + 1, :, first:].astype(np.float32), [0])
            np.testing.assert_array_equal(keys[0], plain.keys(0, 0))
        else:
            np.testing.assert_array_equal(keys, turned_k.astype(TYPES[dtype]))
        assert_attention_is_accurate(
            out[b : b + 1, :, first:], None, turned_q.astype(TYPES[dtype]), keys, values, causal=True
        )


def test_products_depend_on_how_far_apart_positions_are_only() -> None:
    q, k, v = rows_of(4, dtype=np.float32)
    cos, sin = rotary_tables(40, DIM)
    how: dict[str, Any] = {"layer": 0, "rotary_cos": cos, "rotary_sin": sin}
    near = flash.attention_with_kvcache(q, cache_of(), k, v, **how)
    far_cache = cache_of()
    far_cache.append(0, *rows_of(30)[1:])
    far = flash.attention_with_kvcache(q, far_cache, k, v, window=(3, None), **how)
    wanted, _ = attention_reference(q, k, v, causal=True)
    assert np.abs(near[:, :, 3] - wanted[:, :, 3]).max() > 0.01  # they do turn something
    np.testing.assert_allclose(far[:, :, 3], near[:, :, 3], atol=2e-5)


# ------------------------------------------------------------------------------------------
# refusals

Q, K, V = rows_of(2)
COS, SIN = rotary_tables(9, DIM)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no_cache": (
        {"cache": None},
        "cache must be a flash.KVCache, got NoneType; make one with flash.KVCache(layers, batch, kv_heads, "
        "head_dim, capacity)",
    ),
    "layer": ({"layer": 1}, "layer must be an integer from 0 to 0, got 1"),
    "one_of_two": ({"v": None}, "k is given without v; give both, or neither"),
    "one_table": ({"rotary_sin": SIN}, "rotary_sin is given without rotary_cos; give both, or neither"),
    "no_array": (
        {"sink": "none"},
        "sink must be an array (numpy, torch, or with __cuda_array_interface__ or __dlpack__), "
        "got str; convert with numpy.asarray(sink, numpy.float32)",
    ),
    "sequences": (
        {"cache_batch_idx": [0, 1, 3]},
        "cache_batch_idx must be integers from 0 to 2, got [0, 1, 3]",
    ),
    "repeated": (
        {"cache_batch_idx": [0, 2, 2]},
        "cache_batch_idx must name each sequence once, got [0, 2, 2]",
    ),
    "type_and_shape": (
        {"q": Q[:2].astype(np.float16)},
        "2 problems\n"
        "  q must be float32, as the cache is of 'f32', got float16; convert with "
        "q.astype('float32')\n"
        "  q must be [batch, heads, seq_q, head_dim] = [3, heads, seq_q, 16], got [2, 4, 2, 16]",
    ),
    "heads": ({"q": Q[:, :3]}, "the heads of q must be a multiple of those of the cache, got 3 and 2"),
    "rows": (
        {"k": K[:, :, :1]},
        "v must be [sequences, kv_heads, n, head_dim_v] = [3, 2, 1, 8], got [3, 2, 2, 8]",
    ),
    "device": (
        {"q": CudaArray(4096, Q)},
        "q must be on the host, where the cache is, got cuda:?; copy it there",
    ),
    "operands": (
        {"sink": np.zeros(3, np.float32), "mask": np.ones((3, 2), np.uint8)},
        "3 problems\n"
        "  mask must be bool, got uint8; convert with mask.astype('bool')\n"
        "  mask must be [batch, heads, seq_q, last_keys] = [3, 4, 2, 2], or of a shape that "
        "broadcasts to it, got [3, 2]\n"
        "  sink must be [batch, heads] = [3, 4], or of a shape that broadcasts to it, got [3]",
    ),
    "mask": (
        {"mask": np.ones((), bool)},
        "mask must have a dimension of keys, the last m of a sequence, got none",
    ),
    "leftpad": (
        {"leftpad": [0, 0, 33]},
        "leftpad must be 3 integers, from 0 to the lengths of their sequences, [2, 9, 32], got [0, 0, 33]",
    ),
    "tables": (
        {"rotary_cos": COS, "rotary_sin": SIN[:, :3]},
        "rotary_sin must be [positions, rotary_dim / 2] = [9, 8], got [9, 3]",
    ),
    "type_of_tables": (
        {"rotary_cos": COS, "rotary_sin": SIN.astype(np.float64)},
        "2 problems\n"
        "  rotary_sin must be one of float32, float16, bfloat16, got float64; "
        "convert with rotary_sin.astype('float32')\n"
        "  rotary_cos and rotary_sin must have a row for each of 32 positions, got 9",
    ),
    "out": (
        {"out": np.zeros((3, 4, 2, 16), np.float32)},
        "out must have shape [3, 4, 2, 8], got [3, 4, 2, 16]; leave out=None to have it made",
    ),
    "type_of_out": (
        {"out": np.zeros((3, 4, 2, 8), np.float16)},
        "out must be float32, as q is, got float16; leave out=None to have it made",
    ),
    "shared": (
        {"out": np.lib.stride_tricks.as_strided(V, (3, 4, 2, 8), (256, 64, 32, 4))},
        "out must not share memory with v; leave out=None, or pass an array of its own",
    ),
    "splits": ({"splits": 0}, "splits must be 'auto' or an integer from 1 to 32768, got 0"),
    "place": (
        {"backend": "cuda"},
        "backend 'cuda' computes on a GPU, but the cache is of 'cpu'; make one with backend='cuda'",
    ),
    "stream": ({"stream": 0}, "stream is for a GPU, but the backend is 'cpu'; leave out the stream"),
}


CHOICES: dict[str, tuple[dict[str, Any], str]] = {
    "backend": (
        {"backend": "gpu"},
        "backend must be one of auto, cuda, interpreter, cpu, compiled, got 'gpu'; did you mean 'cuda'?",
    ),
    "causal": (
        {"causal": "top_left"},
        "causal must be True, False or 'bottom_right', got 'top_left': the newest query is at the position "
        "of the newest key",
    ),
    "rotary_interleaved": ({"rotary_interleaved": 1}, "rotary_interleaved must be True or False, got 1"),
    "window": (
        {"window": [1, -2]},
        "window must be (left, right), each a number of keys from 0 to 1073741568, or None or -1 for no "
        "limit, got [1, -2]",
    ),
    "softcap": (
        {"softcap": -1.0},
        "softcap must be a number from 9.53674e-07 to 1.04858e+06, or None or 0 for no cap, got -1.0",
    ),
}


@pytest.mark.parametrize(
    ("how", "message", "error"),
    [(*of, LaunchError) for of in REFUSED.values()] + [(*of, ConfigError) for of in CHOICES.values()],
    ids=[*REFUSED, *CHOICES],
)
def test_what_does_not_fit_is_refused_and_the_cache_is_as_it_was(
    how: dict[str, Any], message: str, error: type[Exception]
) -> None:
    cache = ragged()
    arguments = {"q": Q, "cache": cache, "k": K, "v": V, "layer": 0, **how}
    refused = refusal(flash.attention_with_kvcache, error=error, **arguments)
    assert refused == f"attention_with_kvcache: {message}"
    assert cache.lengths.tolist() == [[0, 7, 30]]


def test_a_full_cache_is_as_it_was() -> None:
    cache = ragged((0, 7, 30), capacity=31)
    out = np.full((3, HEADS, 2, DIM_V), 7, np.float32)
    assert refusal(flash.attention_with_kvcache, Q, cache, K, V, error=CacheFullError, layer=0, out=out) == (
        "attention_with_kvcache: sequence 2 has 30 of 31 tokens in layer 0, which leaves no room "
        "for 2 more; truncate or reset it, or make a cache with a larger capacity"
    )
    assert cache.lengths.tolist() == [[0, 7, 30]]
    assert (out == 7).all()
