"""The KV cache against a list for each layer and sequence, in both layouts, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cache_model import (
    BATCH,
    CAPACITY,
    DIM,
    DIM_V,
    KV_HEADS,
    LAYERS,
    STEPS,
    Lists,
    assert_pages_add_up,
    assert_same,
    most_pages,
    run_on_both,
    tokens,
)
from device_arrays import CudaArray
from fake_driver import FakeDriver
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusal

from flash import KVCache
from flash.operands.blocks import SCALED_NAMES, STORED_DTYPES
from flash.operands.dtypes import FP8_DTYPES
from flash.pages.placement import Journal, PagePool, Stretch
from ptxgen.arrays.views import host_array
from ptxgen.errors import CacheFullError, ConfigError
from ptxgen.runtime.cuda import CudaBackend

Array = np.ndarray[Any, Any]


def append(cache: KVCache, lists: Lists, layer: int, count: int, which: list[int], seed: int = 0) -> None:
    """Append the same tokens to sequences of a cache and of lists."""
    k, v = tokens(count, len(which), seed)
    cache.append(layer, k, v, which)
    lists.append(layer, k, v, which, [count] * len(which))


PAGE_SIZES = [None, 1, 3, 16]
EITHER_LAYOUT = pytest.mark.parametrize("page_size", [None, 4], ids=["contiguous", "paged"])


def cache_of(**how: Any) -> KVCache:
    """A small cache full of NaN, which must not reach anything."""
    built = KVCache(LAYERS, BATCH, KV_HEADS, DIM, CAPACITY, **{"head_dim_v": DIM_V, **how})
    built.memory.k[...] = np.nan
    built.memory.v[...] = np.nan
    return built


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("page_size", PAGE_SIZES)
@settings(deadline=None, max_examples=60)
@given(steps=STEPS, spare=st.none() | st.integers(0, 4))
def test_any_steps_give_what_lists_would(page_size: int | None, steps: Any, spare: int | None) -> None:
    pages = most_pages(page_size, spare)
    run_on_both(cache_of(page_size=page_size, pages=pages), steps, scarce=pages is not None)


# ------------------------------------------------------------------------------------------
# what it holds


@EITHER_LAYOUT
def test_all_sequences_get_their_rows_in_order_by_default(page_size: int | None) -> None:
    cache, lists = cache_of(page_size=page_size), Lists()
    for count in (5, 0, 1, 6):
        k, v = tokens(count)
        cache.append(1, k, v)
        lists.append(1, k, v, [0, 1, 2], [count] * 3)
    assert_same(cache, lists)
    assert cache.lengths.tolist() == [[0, 0, 0], [12, 12, 12]]


@EITHER_LAYOUT
def test_lengths_truncated_at_once_may_differ(page_size: int | None) -> None:
    cache = cache_of(page_size=page_size)
    for layer in range(LAYERS):
        cache.append(layer, *tokens(9))
    cache.truncate([3, 0, 9])
    assert cache.lengths.tolist() == [[3, 0, 9]] * LAYERS
    cache.truncate(2, np.array([2, 0]))
    assert cache.lengths.tolist() == [[2, 0, 2]] * LAYERS
    cache.truncate(0, [1])
    cache.reset()
    assert not cache.lengths.any()
    assert_pages_add_up(cache)


@EITHER_LAYOUT
def test_a_truncated_step_that_failed_halfway_leaves_layers_alike(page_size: int | None) -> None:
    cache, lists = cache_of(page_size=page_size), Lists()
    for layer in range(LAYERS):
        append(cache, lists, layer, 4, [0, 1, 2])
    cache.append(0, *tokens(1))
    cache.truncate(4)
    assert_same(cache, lists)


def test_views_of_any_strides_are_appended() -> None:
    cache = cache_of()
    k, v = tokens(4)
    cache.append(0, np.ascontiguousarray(k.swapaxes(1, 2)).swapaxes(1, 2), v[:, :, ::-1])
    np.testing.assert_array_equal(cache.keys(0, 1), k[1])
    np.testing.assert_array_equal(cache.values(0, 1), v[1, :, ::-1])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_torch_tensors_are_appended(torch: Any, dtype: Any) -> None:
    name = np.dtype(dtype).name
    cache = cache_of(dtype={"float16": "f16", "bfloat16": "bf16"}[name])
    k, v = tokens(2, dtype=dtype)
    both = [torch.from_numpy(x.astype(np.float32)).to(getattr(torch, name)) for x in (k, v)]
    cache.append(0, *both)
    np.testing.assert_array_equal(cache.keys(0, 2), k[2])
    assert cache.values(0, 2).dtype == dtype


# ------------------------------------------------------------------------------------------
# pages


def filled(length: int = 10) -> tuple[KVCache, Lists]:
    """A cache with pages of 4 whose sequence 0 has so many tokens in every layer."""
    cache, lists = cache_of(page_size=4), Lists()
    for layer in range(LAYERS):
        append(cache, lists, layer, length, [0])
    return cache, lists


def test_a_fork_shares_all_pages_and_copies_one_when_it_is_written() -> None:
    cache, lists = filled(10)
    assert cache.fork(0) == 1
    lists.fork(0, 1)
    assert cache.block_table[:2].tolist() == [[0, 1, 2, -1, -1]] * 2
    assert cache.free_pages == 12
    for layer in range(LAYERS):
        append(cache, lists, layer, 1, [1, 0], seed=layer)
        assert cache.block_table[:2].tolist() == [[0, 1, 2, -1, -1], [0, 1, 3, -1, -1]]
    assert_same(cache, lists)


def test_a_fork_at_the_end_of_a_page_copies_nothing() -> None:
    cache, _ = filled(8)
    cache.fork(0, 2)
    cache.append(0, *tokens(1, 1), [2])
    assert cache.block_table[[0, 2]].tolist() == [[0, 1, -1, -1, -1], [0, 1, 2, -1, -1]]


def test_a_fork_between_two_layers_of_a_step_keeps_both_layers() -> None:
    cache, lists = filled(7)
    append(cache, lists, 0, 2, [0], seed=5)
    cache.fork(0, 1)
    lists.fork(0, 1)
    for sequence, seed in ((0, 5), (1, 6)):
        append(cache, lists, 1, 2, [sequence], seed)
    assert_same(cache, lists)
    assert_pages_add_up(cache)


def test_a_shared_page_stays_until_its_last_user_is_reset() -> None:
    cache, _ = filled(10)
    cache.fork(0)
    cache.fork(1)
    for sequence, free in ((1, 12), (0, 12), (2, 15)):
        cache.reset(sequence)
        assert cache.free_pages == free


def test_beams_share_the_pages_of_the_one_they_go_on_from() -> None:
    cache, lists = filled(10)
    for layer in range(LAYERS):
        append(cache, lists, layer, 3, [1], seed=1)
    cache.reorder([1, 0, 0])
    lists.reorder([1, 0, 0])
    assert cache.block_table.tolist() == [[3, -1, -1, -1, -1], [0, 1, 2, -1, -1], [0, 1, 2, -1, -1]]
    assert cache.free_pages == 11
    append(cache, lists, 0, 1, [1, 2], seed=2)  # the first of two gets a copy of their last page
    assert cache.free_pages == 10
    assert_same(cache, lists)
    assert_pages_add_up(cache)


def test_a_sequence_may_go_on_from_one_that_others_leave_alone() -> None:
    cache, _ = filled(10)
    keys = cache.keys(1, 0).tobytes()
    cache.reorder([0], [2])
    assert cache.lengths.tolist() == [[10, 0, 10]] * 2
    assert cache.keys(1, 2).tobytes() == keys
    cache.reorder([1], [0])  # a source without tokens empties a sequence
    assert cache.lengths.tolist() == [[0, 0, 10]] * 2
    assert cache.free_pages == 12
    assert_pages_add_up(cache)


def test_contiguous_sequences_cannot_share_rows() -> None:
    cache = cache_of()
    cache.append(0, *tokens(2))
    cache.reorder([0, 1, 2])
    assert refusal(cache.reorder, [2, 0], [0, 1]) == (
        "KVCache.reorder: sequences of contiguous memory cannot share rows, but [0, 1] shall hold what "
        "[2, 0] hold; make the cache with page_size, such as page_size=16"
    )


def test_room_is_counted_with_the_copies_that_forks_will_need() -> None:
    cache = cache_of(page_size=4, pages=4)
    cache.append(0, *tokens(6, 1), [0])
    cache.fork(0, 1)
    cache.fork(0, 2)
    assert refusal(cache.append, 0, *tokens(3), error=CacheFullError) == (
        "KVCache.append: 5 more pages are needed, but 2 of 4 are free; truncate or reset "
        "sequences, or make a cache with more pages"
    )
    cache.append(0, *tokens(2))  # two of the three copy the page, the last writes it in place
    assert cache.free_pages == 0


def test_lower_pages_are_taken_first() -> None:
    pool = PagePool(3)
    journal = Journal()
    assert [pool.take(journal), pool.take(journal)] == [0, 1]
    pool.release(0, journal)
    assert [pool.take(journal), pool.take(journal)] == [0, 2]


def test_a_page_is_released_once_for_each_user() -> None:
    pool, journal = PagePool(2), Journal()
    page = pool.take(journal)
    pool.share(page, journal)
    pool.release(page, journal)
    assert (pool.users(page), pool.free) == (1, 1)
    pool.release(page, journal)
    for act, what in ((pool.release, "released"), (pool.share, "shared")):
        assert refusal(act, page, journal) == (
            f"PagePool: a page that is {what} must be in use, but page 0 of 2 is not; release each "
            "page once for each time it was taken or shared"
        )
    assert pool.free == 2
    with pytest.raises(CacheFullError) as full:
        [pool.take(journal) for _ in range(3)]
    assert str(full.value) == ("PagePool: all 2 pages are in use; release one before taking another")


def test_rows_lie_where_the_block_table_says() -> None:
    cache, _ = filled(10)
    runs = list(cache.placement.runs(Stretch(0, 3, 9)))
    assert runs == [(0, 3, 1), (1, 0, 4), (2, 0, 1)]
    keys = np.concatenate(
        [cache.memory.k[1, location, :, first : first + rows] for location, first, rows in runs], axis=1
    )
    np.testing.assert_array_equal(keys, cache.keys(1, 0)[:, 3:9])


@EITHER_LAYOUT
def test_the_memory_of_a_layer_is_its_own_and_not_copied(page_size: int | None) -> None:
    cache = cache_of(page_size=page_size, dtype="e4m3")
    cache.set_scales([[1, 2], [3, 4]], 0.5)
    result = cache.arrays(1)
    cache.append(1, *tokens(7))
    k, v, lengths = (host_array(array) for array in result[:3])
    places = (BATCH, CAPACITY) if page_size is None else (15, page_size)
    assert k.shape == (places[0], KV_HEADS, places[1], DIM)
    assert v.shape == (places[0], KV_HEADS, places[1], DIM_V)
    assert lengths.tolist() == [7, 7, 7]
    assert host_array(result.k_scale).tolist() == [3, 4]
    assert host_array(result.v_scale).tolist() == [0.5, 0.5]
    location = 2
    if page_size is not None:
        location = host_array(result.block_table)[2, 0]
    first = k[location, 1, 3].astype(np.float32) * 4
    np.testing.assert_array_equal(first, cache.keys(1, 2)[1, 3])
    assert cache_of().arrays(0)[3:] == (None, None, None)


# ------------------------------------------------------------------------------------------
# e4m3


@pytest.mark.parametrize("page_size", [None, 4])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_e4m3_is_rounded_to_nearest_under_the_scale_of_its_layer_and_head(
    dtype: Any, page_size: int | None
) -> None:
    cache = cache_of(dtype="e4m3", page_size=page_size)
    scales = np.array([[0.25, 2.0], [3.0, 0.01]], np.float32)
    cache.set_scales(scales, 0.5)
    for layer in range(LAYERS):
        k, v = tokens(6, dtype=dtype)
        cache.append(layer, k, v)
        for sequence in range(BATCH):
            for got, new, scale in (
                (cache.keys(layer, sequence), k, scales[layer, :, None, None]),
                (cache.values(layer, sequence), v, np.float32(0.5)),
            ):
                x = new[sequence].astype(np.float64)
                assert got.dtype == np.float32
                # Half a unit of 3 fraction bits, or of the smallest number, 2^-9; and f32's own.
                error = np.maximum(np.abs(x) / 16, scale / 1024) * (1 + 2.0**-20)
                assert (np.abs(got - x) <= error).all()


def test_e4m3_saturates_and_keeps_nan() -> None:
    cache = cache_of(dtype="e4m3")
    cache.set_scales(2.0, 1.0)
    k, v = tokens(1, 1)
    k[0, 0, 0] = [np.inf, -np.inf, np.nan, 3e38]
    v[0, 0, 0] = [-500, 448, 2.0**-140]
    cache.append(0, k, v, [0])
    np.testing.assert_array_equal(cache.keys(0, 0)[0, 0], [896, -896, np.nan, 896])
    np.testing.assert_array_equal(cache.values(0, 0)[0, 0], [-448, 448, 0])


def test_e5m2_saturates_keeps_nan_and_is_rounded_once() -> None:
    cache = cache_of(dtype="e5m2")
    cache.set_scales(2.0, 1.0)
    k, v = tokens(1, 1)
    k[0, 0, 0] = [np.inf, -np.inf, np.nan, 3e38]
    v[0, 0, 0] = [-1.125, 57344 * 1.05, 1.125 * (1 + 2.0**-20)]
    cache.append(0, k, v, [0])
    np.testing.assert_array_equal(cache.keys(0, 0)[0, 0], [2 * 57344, -2 * 57344, np.nan, 2 * 57344])
    np.testing.assert_array_equal(cache.values(0, 0)[0, 0], [-1.0, 57344, 1.25])


@EITHER_LAYOUT
@pytest.mark.parametrize("dtype", FP8_DTYPES)
def test_each_token_has_the_scale_of_its_largest_number(dtype: Any, page_size: int | None) -> None:
    info = ml_dtypes.finfo(FP8_DTYPES[dtype].numpy)
    cache = cache_of(dtype=dtype, scale_per="token", page_size=page_size)
    arguments = {}
    for count in (3, 6):  # across the end of a page
        k, v = tokens(count)
        k *= 2.0 ** np.random.default_rng(count).integers(-30, 30, (*k.shape[:3], 1))
        v[1, 0, 0] = 0
        cache.append(1, k, v)
        arguments[count] = k, v
    for sequence in range(BATCH):
        scales, numbers = (
            cache.token_scales(1, sequence),
            (cache.keys(1, sequence), cache.values(1, sequence)),
        )
        for n, (scale, got) in enumerate(zip(scales, numbers, strict=True)):
            x = np.concatenate([arguments[3][n][sequence], arguments[6][n][sequence]], axis=1)
            wanted = np.maximum(np.abs(x).max(-1) / np.float32(info.max), np.float32(2.0**-126))
            np.testing.assert_array_equal(scale, wanted.astype(np.float32))
            assert (np.abs(got - x) <= np.abs(x).max(-1, keepdims=True) * float(info.eps) / 2).all()


@EITHER_LAYOUT
def test_scales_of_tokens_go_where_their_rows_go(page_size: int | None) -> None:
    cache = cache_of(dtype="e4m3", scale_per="token", page_size=page_size)
    for layer in range(LAYERS):
        k, v = tokens(7, 1, layer)
        cache.append(layer, k, v, [0])
    assert cache.fork(0) == 1
    before = [array.copy() for array in (*cache.token_scales(0, 0), cache.keys(0, 0))]
    cache.truncate(6, [1])
    cache.append(0, 100 * k[:, :, :3], 100 * v[:, :, :3], [1])
    cache.append(1, k[:, :, :3], v[:, :, :3], [1])
    for array, last in zip(before, (*cache.token_scales(0, 0), cache.keys(0, 0)), strict=True):
        np.testing.assert_array_equal(last, array)
    for array, forked in zip(before, (*cache.token_scales(0, 1), cache.keys(0, 1)), strict=True):
        np.testing.assert_array_equal(forked[:, :6], array[:, :6])
    np.testing.assert_array_equal(cache.token_scales(0, 1)[0][:, 6:], np.abs(100 * k[0, :, :3]).max(-1) / 448)
    if page_size is not None:
        cache.reorder([1, 0, 1])
        np.testing.assert_array_equal(cache.token_scales(0, 1)[0], before[0])


def test_what_has_scales_is_asked_of_the_right_cache() -> None:
    of_tokens, of_heads = cache_of(dtype="e4m3", scale_per="token"), cache_of(dtype="e4m3")
    assert of_tokens.scales is None
    assert "dtype='e4m3', " in repr(of_tokens)
    assert "scale_per='token'" in repr(of_tokens)
    assert "scale_per" not in repr(of_heads)
    assert (
        of_tokens.nbytes
        == of_heads.nbytes + 4 * 2 * LAYERS * BATCH * KV_HEADS * CAPACITY - 8 * LAYERS * KV_HEADS
    )
    assert refusal(of_tokens.set_scales, 1.0, 1.0) == (
        "KVCache.set_scales: scales are set for heads, but this cache has scale_per='token': each token gets "
        "its own when it is appended; leave out set_scales, or make a cache with scale_per='head'"
    )
    assert refusal(of_heads.token_scales, 0, 0) == (
        "KVCache.token_scales: tokens have scales in a cache with scale_per='token', which this one has not; "
        "see KVCache.scales"
    )
    assert refusal(cache_of, error=ConfigError, dtype="f16", scale_per="token") == (
        f"KVCache: scale_per='token' is for a cache of {SCALED_NAMES}, whose numbers have scales; leave "
        "it out"
    )
    assert refusal(cache_of, error=ConfigError, dtype="e4m3", scale_per="tokens") == (
        "KVCache: scale_per must be one of head, token, got 'tokens'; did you mean 'token'?"
    )


def test_scales_are_those_that_were_set_and_copies() -> None:
    cache = cache_of(dtype="e4m3")
    result = cache.scales
    assert result[0].tolist() == result[1].tolist() == [[1, 1], [1, 1]]
    cache.set_scales([[1], [2]], np.float16([3, 4]))
    result[0][...] = 7
    result = cache.scales
    assert result[0].tolist() == [[1, 1], [2, 2]]
    assert result[1].tolist() == [[3, 4], [3, 4]]
    assert cache_of().scales is None


# ------------------------------------------------------------------------------------------
# what it says of itself


def test_bytes_are_those_of_memory_and_tables() -> None:
    assert KVCache(2, 3, 2, 4, 20).nbytes == 2 * 2 * 3 * 2 * 4 * 20 * 4 + 2 * 3 * 4
    paged = KVCache(2, 3, 2, 4, 20, head_dim_v=3, dtype="e4m3", page_size=16, pages=5)
    assert paged.nbytes == 2 * 5 * 2 * 16 * (4 + 3) + 2 * 3 * 4 + 3 * 2 * 4 + 2 * (2 * 2 * 4)


def test_it_prints_what_it_is() -> None:
    cache = cache_of()
    cache.append(1, *tokens(2))
    assert repr(cache) == (
        "<KVCache(2, 3, 2, 4, 20, head_dim_v=3, dtype='f32', backend='cpu'): lengths [2, 2, 2], 6744 bytes>"
    )
    paged = KVCache(2, 3, 2, 4, 20, page_size=8, backend="interpreter")
    assert repr(paged) == (
        "<KVCache(2, 3, 2, 4, 20, dtype='f32', page_size=8, pages=9, backend='interpreter'): "
        "lengths [0, 0, 0], 9 pages free, 9276 bytes>"
    )


def test_a_contiguous_cache_has_no_pages() -> None:
    cache = cache_of()
    assert (cache.page_size, cache.free_pages, cache.block_table) == (None, None, None)
    assert cache_of(page_size=16).page_size == 16


# ------------------------------------------------------------------------------------------
# refusals


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"layers": 0}, "layers must be an integer from 1 to 2147483647, got 0"),
        ({"batch": True}, "batch must be an integer from 1 to 2147483647, got True"),
        ({"kv_heads": 1.0}, "kv_heads must be an integer from 1 to 2147483647, got 1.0"),
        ({"head_dim": 577}, "head_dim must be an integer from 1 to 576, got 577"),
        ({"head_dim_v": 513}, "head_dim_v must be an integer from 1 to 512, got 513"),
        ({"capacity": -1}, "capacity must be an integer from 1 to 1073741568, got -1"),
        (
            {"dtype": "e4m4"},
            f"dtype must be one of {', '.join(STORED_DTYPES)}, got 'e4m4'; did you mean 'e4m3'?",
        ),
        ({"page_size": 257}, "page_size must be an integer from 1 to 256, got 257"),
        ({"page_size": 4, "pages": 0}, "pages must be an integer from 1 to 2147483647, got 0"),
        ({"pages": 3}, "pages=3 is for paged memory; give page_size, too, or leave out pages"),
        (
            {"backend": "gpu"},
            "backend must be one of cuda, interpreter, cpu, compiled, got 'gpu'; did you mean 'cuda'?",
        ),
        (
            {"backend": "cpu", "device": 1},
            "device=1 is for backend='cuda', got backend='cpu'; leave out the device",
        ),
        (
            {"backend": "cuda", "device": -1, "cuda": CudaBackend(FakeDriver())},
            "device must be the number of a GPU, from 0 on, got -1",
        ),
    ],
)
def test_caches_that_cannot_be_are_refused(how: dict[str, Any], message: str) -> None:
    sizes = {"layers": 1, "batch": 1, "kv_heads": 1, "head_dim": 4, "capacity": 8}
    assert refusal(KVCache, error=ConfigError, **{**sizes, **how}) == f"KVCache: {message}"


K, V = tokens(2)
REFUSED: dict[str, tuple[Callable[[KVCache], object], str]] = {
    "layer": (lambda c: c.append(2, K, V), "append: layer must be an integer from 0 to 1, got 2"),
    "no_layer": (
        lambda c: c.keys(None, 0),  # type: ignore[arg-type]  # what is tested
        "keys: layer must be an integer from 0 to 1, got None",
    ),
    "sequence": (lambda c: c.values(0, -1), "values: sequence must be an integer from 0 to 2, got -1"),
    "sequences": (
        lambda c: c.append(0, K, V, [0, 3, 1]),
        "append: sequences must be integers from 0 to 2, got [0, 3, 1]",
    ),
    "sequences_that_are_none": (
        lambda c: c.append(0, K, V, 1.5),
        "append: sequences must be integers from 0 to 2, got 1.5",
    ),
    "ragged_sequences": (
        lambda c: c.append(0, K, V, [[0], [1, 2]]),
        "append: sequences must be integers from 0 to 2, got [[0], [1, 2]]",
    ),
    "repeated": (
        lambda c: c.append(0, K, V, [0, 1, 0]),
        "append: sequences must name each sequence once, got [0, 1, 0]",
    ),
    "no_array": (
        lambda c: c.append(0, [1.0], V),
        "append: k must be an array (numpy, torch, or with __cuda_array_interface__ or "
        "__dlpack__), got list; convert with numpy.asarray(k, numpy.float32)",
    ),
    "shapes": (
        lambda c: c.append(0, K[:, :1], V[0]),
        "append: 2 problems\n"
        "  k must be [sequences, kv_heads, n, head_dim] = [3, 2, n, 4], got [3, 1, 2, 4]\n"
        "  v must be [sequences, kv_heads, n, head_dim_v] = [3, 2, n, 3], got [2, 2, 3]",
    ),
    "items": (
        lambda c: c.append(0, K, V, [1]),
        "append: 2 problems\n"
        "  k must be [sequences, kv_heads, n, head_dim] = [1, 2, n, 4], got [3, 2, 2, 4]\n"
        "  v must be [sequences, kv_heads, n, head_dim_v] = [1, 2, n, 3], got [3, 2, 2, 3]",
    ),
    "rows": (
        lambda c: c.append(0, K, V[:, :, :1]),
        "append: v must be [sequences, kv_heads, n, head_dim_v] = [3, 2, 2, 3], got [3, 2, 1, 3]",
    ),
    "types": (
        lambda c: c.append(0, K.astype(np.float16), V.astype(np.float64)),
        "append: 2 problems\n"
        "  k must be float32, as the cache is of 'f32', got float16; convert with "
        "k.astype('float32')\n"
        "  v must be float32, as the cache is of 'f32', got float64; convert with "
        "v.astype('float32')",
    ),
    "device": (
        lambda c: c.append(0, CudaArray(4096, K), V),
        "append: k must be on the host, where the cache is, got cuda:?; copy it there",
    ),
    "counts": (
        lambda c: c.append(0, K, V, counts=[1, 3, 2]),
        "append: counts must be 3 integers from 0 to 2, one for each sequence, got [1, 3, 2]",
    ),
    "too_few_counts": (
        lambda c: c.append(0, K, V, counts=[1, 2]),
        "append: counts must be 3 integers from 0 to 2, one for each sequence, got [1, 2]",
    ),
    "longer": (
        lambda c: c.truncate([4, 5, 6]),
        "truncate: sequence 1 has 4 tokens in layer 0, which cannot become 5; give at most that number",
    ),
    "length": (
        lambda c: c.truncate(-1),
        "truncate: length must be an integer of at least 0, or 3 of them, one for each sequence, got -1",
    ),
    "lengths": (
        lambda c: c.truncate([1, 2], [0, 1, 2]),
        "truncate: length must be an integer of at least 0, or 3 of them, one for each sequence, got [1, 2]",
    ),
    "empty": (
        lambda c: c.reset(2),
        "reset: sequence 2 has no tokens: it was reset before, or never appended to; "
        "truncate(0, [2]) empties a sequence that may be empty",
    ),
    "itself": (lambda c: c.fork(0, 0), "fork: source and target must be two sequences, got 0 twice"),
    "taken": (
        lambda c: c.fork(0, 1),
        "fork: target must be without tokens, but sequence 1 has 5; reset it first",
    ),
    "no_target": (lambda c: c.fork(0, 3), "fork: target must be an integer from 0 to 2, got 3"),
    "no_source": (
        lambda c: c.fork("0"),  # type: ignore[arg-type]  # what is tested
        "fork: source must be an integer from 0 to 2, got '0'",
    ),
    "stream": (
        lambda c: c.append(0, K, V, stream=0),
        "append: stream is for a GPU, but the cache is of 'cpu'; leave out the stream",
    ),
    "stream_of_a_fork": (
        lambda c: c.fork(0, 2, stream=7),
        "fork: stream is for a GPU, but the cache is of 'cpu'; leave out the stream",
    ),
    "sources": (
        lambda c: c.reorder([0, 3, 1]),
        "reorder: sources must be integers from 0 to 2, got [0, 3, 1]",
    ),
    "few_sources": (
        lambda c: c.reorder([0, 1]),
        "reorder: sources must be 3 integers, one for each sequence, got [0, 1]",
    ),
    "targets": (
        lambda c: c.reorder([0, 1], [2, 2]),
        "reorder: sequences must name each sequence once, got [2, 2]",
    ),
    "scales": (
        lambda c: c.set_scales(1, 1),
        f"set_scales: scales are for dtype={SCALED_NAMES}, but this cache is of 'f32'; append to it without "
        "scales",
    ),
}


def state_of(cache: KVCache) -> list[Any]:
    return [
        cache.lengths.tolist(),
        str(cache.block_table),
        cache.free_pages,
        cache.memory.k.tobytes(),
        cache.memory.v.tobytes(),
    ]


@EITHER_LAYOUT
@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_and_changes_nothing(name: str, page_size: int | None) -> None:
    cache = cache_of(page_size=page_size)
    cache.append(0, *tokens(4, 2), [0, 1])
    cache.append(1, *tokens(5, 2), [0, 1])
    act, message = REFUSED[name]
    before = state_of(cache)
    assert refusal(act, cache) == f"KVCache.{message}"
    assert state_of(cache) == before


@EITHER_LAYOUT
def test_no_sequence_is_appended_to_where_one_has_no_room(page_size: int | None) -> None:
    cache = cache_of(page_size=page_size)
    cache.append(1, *tokens(19, 1), [1])
    before = state_of(cache)
    assert refusal(cache.append, 1, *tokens(2), error=CacheFullError) == (
        "KVCache.append: sequence 1 has 19 of 20 tokens in layer 1, which leaves no room for 2 "
        "more; truncate or reset it, or make a cache with a larger capacity"
    )
    assert state_of(cache) == before
    cache.append(1, *tokens(1, 1), [1])


def test_no_fork_without_a_sequence_for_it() -> None:
    cache = cache_of()
    cache.append(0, *tokens(1, 2), [1, 2])
    assert refusal(cache.fork, 0, error=CacheFullError) == (
        "KVCache.fork: all other of 3 sequences have tokens; reset one, or make a cache with a larger batch"
    )


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (0.0, "must be finite and above 0 in float32, got 0.0 for layer 0, head 0"),
        ([1, -2.0], "must be finite and above 0 in float32, got -2.0 for layer 0, head 1"),
        ([[1], [np.nan]], "must be finite and above 0 in float32, got nan for layer 1, head 0"),
        (1e-60, "must be finite and above 0 in float32, got 0.0 for layer 0, head 0"),
        ("big", "must be numbers of a shape that broadcasts to [layers, kv_heads] = [2, 2], got 'big'"),
        (
            np.ones(3),
            "must be numbers of a shape that broadcasts to [layers, kv_heads] = [2, 2], got shape [3]",
        ),
    ],
)
def test_scales_that_are_none_are_refused(scale: Any, message: str) -> None:
    cache = cache_of(dtype="e4m3")
    assert refusal(cache.set_scales, 1.0, scale) == f"KVCache.set_scales: v_scale {message}"
    result = cache.scales
    assert (result[0] == 1).all()


def test_scales_are_refused_once_there_are_tokens() -> None:
    cache = cache_of(dtype="e4m3")
    cache.append(1, *tokens(3))
    assert refusal(cache.set_scales, 2.0, 2.0) == (
        "KVCache.set_scales: scales must be set before anything is appended, but sequences have "
        "up to 3 tokens; reset() the cache first"
    )


def test_a_cache_of_e4m3_takes_what_can_be_converted() -> None:
    assert refusal(cache_of(dtype="e4m3").append, 0, K, V.astype(np.int32)) == (
        "KVCache.append: v must be one of float32, float16, bfloat16, as the cache is of 'e4m3', "
        "got int32; convert with v.astype('float32')"
    )
