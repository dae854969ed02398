"""A KV cache on a GPU, which the fake driver plays: what is where, and how it gets there."""

from __future__ import annotations

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
    assert_same,
    most_pages,
    run_on_both,
    tokens,
)
from device_arrays import CudaArray, interpreting, on_device, without_assembler
from fake_driver import FakeDevice, FakeDriver
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusal

import flash
from flash import KVCache
from ptxgen.arrays.views import ArrayView
from ptxgen.errors import BackendError, ConfigError
from ptxgen.runtime.cuda import CudaBackend

Array = np.ndarray[Any, Any]
EITHER_LAYOUT = pytest.mark.parametrize("page_size", [None, 4], ids=["contiguous", "paged"])
TO_HOST, TO_DEVICE, WITHIN = "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync", "cuMemcpyDtoDAsync"


@pytest.fixture(autouse=True)
def without_an_assembler(monkeypatch: pytest.MonkeyPatch) -> None:
    without_assembler(monkeypatch)


def cache_of(driver: FakeDriver | None = None, **how: Any) -> tuple[KVCache, FakeDriver]:
    """A small cache on a fake GPU, whose memory is full of NaN."""
    driver = interpreting(driver or FakeDriver())
    built = KVCache(
        LAYERS,
        BATCH,
        KV_HEADS,
        DIM,
        CAPACITY,
        backend="cuda",
        cuda=CudaBackend(driver),
        **{"head_dim_v": DIM_V, **how},
    )
    for memory in driver.memory.values():
        memory.data[:] = 0xFF
    driver.calls.clear()
    return built, driver


def fetch(driver: FakeDriver, array: ArrayView | None, dtype: Any) -> Array:
    """What lies where a view says."""
    assert array.device[0] == "cuda"
    return driver.fetch(array.pointer, np.empty(array.shape, dtype))


@pytest.mark.parametrize("page_size", [None, 3])
@settings(deadline=None, max_examples=25)
@given(steps=STEPS, spare=st.none() | st.integers(0, 4))
def test_any_steps_give_what_lists_would(page_size: int | None, steps: Any, spare: int | None) -> None:
    pages = most_pages(page_size, spare)
    cache, _ = cache_of(page_size=page_size, pages=pages)
    run_on_both(cache, steps, scarce=pages is not None)


@EITHER_LAYOUT
@pytest.mark.parametrize("order", ["dense", "rows_first", "every_other"])
def test_arrays_on_the_device_are_written_by_one_kernel(order: str, page_size: int | None) -> None:
    cache, driver = cache_of(page_size=page_size)
    lists, (k, v) = Lists(), tokens(7)
    lists.append(1, k, v, [0, 1, 2], [7] * 3)
    if order == "dense":
        given_arrays = [on_device(driver, x) for x in (k, v)]
    elif order == "rows_first":
        given_arrays = [
            CudaArray(driver.place(rotation), rotation.swapaxes(1, 2))
            for rotation in (np.ascontiguousarray(x.swapaxes(1, 2)) for x in (k, v))
        ]
    else:
        given_arrays = [
            CudaArray(driver.place(wide), wide[:, :, ::2])
            for wide in (np.repeat(x, 2, axis=2) for x in (k, v))
        ]
    cache.append(1, *given_arrays)
    names = driver.names()
    assert names.count(TO_DEVICE) == (1 if page_size is None else 2)  # lengths, and block table
    assert names.count("cuLaunchKernel") == 1
    assert not {TO_HOST, WITHIN, "cuStreamSynchronize"} & set(names)
    assert_same(cache, lists)


@pytest.mark.slow
@EITHER_LAYOUT
@pytest.mark.parametrize("dtype", ["f32", "e4m3"])
def test_items_have_as_many_rows_as_is_said(dtype: str, page_size: int | None) -> None:
    there, driver = cache_of(page_size=page_size, dtype=dtype)
    here = KVCache(LAYERS, BATCH, KV_HEADS, DIM, CAPACITY, head_dim_v=DIM_V, page_size=page_size, dtype=dtype)
    for seed, counts, sequences in ((1, [0, 5, 3], None), (2, [2, 0, 5], [1, 0, 2])):
        k, v = tokens(5, seed=seed)
        here.append(0, k, v, sequences, counts=counts)
        on_gpu = [on_device(driver, x) for x in (k, v)] if seed == 1 else [k, on_device(driver, v)]
        there.append(0, *on_gpu, sequences, counts=counts)
    assert there.lengths.tolist() == here.lengths.tolist()
    for sequence in range(BATCH):
        np.testing.assert_array_equal(there.keys(0, sequence), here.keys(0, sequence))
        np.testing.assert_array_equal(there.values(0, sequence), here.values(0, sequence))


def test_a_written_page_is_copied_within_the_device_in_every_layer() -> None:
    cache, driver = cache_of(page_size=4)
    for layer in range(LAYERS):
        cache.append(layer, *tokens(6, 1), [0])
    cache.fork(0)
    driver.calls.clear()
    k, v = tokens(1, 1, 3)
    cache.append(0, *(on_device(driver, x) for x in (k, v)), [1])
    copies = [call.arguments[2] for call in driver.calls if call.name == WITHIN]
    pages = [4 * KV_HEADS * 4 * dim for dim in (DIM, DIM_V) for _ in range(LAYERS)]
    assert copies == pages
    assert TO_HOST not in driver.names()
    np.testing.assert_array_equal(cache.keys(0, 1)[:, 6:], k[0])
    np.testing.assert_array_equal(cache.keys(1, 1), cache.keys(1, 0))


def test_a_fork_of_contiguous_memory_copies_the_rows_that_there_are_in_every_layer() -> None:
    cache, driver = cache_of()
    for layer in range(LAYERS):
        cache.append(layer, *tokens(6 - layer, 2, layer), [0, 1])
    driver.calls.clear()
    cache.fork(1)
    copies = [call.arguments[2] for call in driver.calls if call.name == WITHIN]
    assert copies == [6 * 4 * dim for dim in (DIM, DIM_V) for _ in range(LAYERS * KV_HEADS)]
    for layer in range(LAYERS):
        np.testing.assert_array_equal(cache.keys(layer, 2), cache.keys(layer, 1))
        np.testing.assert_array_equal(cache.values(layer, 2), cache.values(layer, 1))


@EITHER_LAYOUT
def test_kernels_are_given_the_memory_of_a_layer_and_what_changed(page_size: int | None) -> None:
    cache, driver = cache_of(page_size=page_size, dtype="e4m3")
    cache.set_scales([[1, 2], [3, 4]], 0.5)
    cache.append(1, *tokens(6))
    result = cache.arrays(1)
    assert fetch(driver, result.lengths, np.int32).tolist() == [6, 6, 6]
    assert fetch(driver, result.k_scale, np.float32).tolist() == [3, 4]
    assert fetch(driver, result.v_scale, np.float32).tolist() == [0.5, 0.5]
    location = 2
    if page_size is None:
        assert result.block_table is None
    else:
        table = fetch(driver, result.block_table, np.int32)
        np.testing.assert_array_equal(table, cache.block_table)
        location = table[2, 0]
    keys, values = (fetch(driver, x, ml_dtypes.float8_e4m3fn).astype(np.float32) for x in result[:2])
    np.testing.assert_array_equal(keys[location, 1, 3] * 4, cache.keys(1, 2)[1, 3])
    np.testing.assert_array_equal(values[location, 1, 3] * 0.5, cache.values(1, 2)[1, 3])

    driver.calls.clear()
    assert cache.arrays(1)[:2] == result[:2]
    assert TO_DEVICE not in driver.names()
    cache.truncate(0)
    again = cache.arrays(1)
    assert again.lengths.pointer == result.lengths.pointer
    assert fetch(driver, again.lengths, np.int32).tolist() == [0, 0, 0]
    if page_size is not None:
        assert (fetch(driver, again.block_table, np.int32) == -1).all()


def test_lengths_of_all_layers_are_brought_there_at_once_and_stay_where_they_are() -> None:
    cache, driver = cache_of(page_size=4)
    before = [cache.arrays(layer).lengths.pointer for layer in range(LAYERS)]
    for layer in range(LAYERS):
        cache.append(layer, *tokens(3 + layer))
    cache.grow(2)
    driver.calls.clear()
    cache.truncate(4)
    result = [cache.arrays(layer).lengths for layer in range(LAYERS)]
    assert [array.pointer for array in result] == before
    assert [fetch(driver, x, np.int32).tolist() for x in result] == [[4] * BATCH] * 2
    assert driver.names().count(TO_DEVICE) == 2  # lengths, and the block table


def test_what_is_stored_is_what_a_cache_on_the_host_stores() -> None:
    there, driver = cache_of(dtype="e4m3", page_size=4)
    here = KVCache(LAYERS, BATCH, KV_HEADS, DIM, CAPACITY, head_dim_v=DIM_V, dtype="e4m3")
    k, v = tokens(6, dtype=ml_dtypes.bfloat16)
    k[0, 0, 0] = [1e30, -1e30, np.inf, np.nan]
    k[0, 0, 1] = [1e-6, -3e-7, 0, 1e-9]
    for cache in (there, here):
        cache.set_scales([[1e-7, 2], [3, 4]], 0.5)
        cache.append(0, k, v.astype(np.float32))  # of another type than k
    for sequence in range(BATCH):
        np.testing.assert_array_equal(there.keys(0, sequence), here.keys(0, sequence))
        np.testing.assert_array_equal(there.values(0, sequence), here.values(0, sequence))
    assert driver.names().count(TO_HOST) > 0


@EITHER_LAYOUT
def test_tokens_have_the_scales_that_they_have_on_the_host(page_size: int | None) -> None:
    how: dict[str, Any] = {"dtype": "e4m3", "scale_per": "token", "page_size": page_size}
    there, driver = cache_of(**how)
    here = KVCache(LAYERS, BATCH, KV_HEADS, DIM, CAPACITY, head_dim_v=DIM_V, **how)
    k, v = tokens(6, dtype=ml_dtypes.bfloat16)
    k[0, 0, 0] = [1e30, -1e30, np.inf, np.nan]
    k[0, 0, 1] = [1e-6, -3e-7, 0, 1e-9]
    v[1, 1, 2] = 0
    for cache in (there, here):
        cache.append(
            0, *((k, v) if cache is here else (on_device(driver, x) for x in (k, v))), counts=[6, 5, 6]
        )
        cache.append(1, k[2:], v[2:], [2])
        cache.truncate(0, [0])
        cache.fork(2, 0)
        for layer in range(LAYERS):
            cache.append(layer, k[:1, :, :2], v[:1, :, :2], [0])
    for layer, sequence in ((0, 0), (0, 1), (0, 2), (1, 0)):
        for read in ("keys", "values"):
            result = [getattr(cache, read)(layer, sequence) for cache in (there, here)]
            np.testing.assert_array_equal(*result)
        for got, wanted in zip(*(c.token_scales(layer, sequence) for c in (there, here)), strict=True):
            np.testing.assert_array_equal(got, wanted)
    assert there.nbytes == here.nbytes


def test_work_is_put_on_the_callers_stream_behind_that_of_the_producer() -> None:
    cache, driver = cache_of(FakeDriver(FakeDevice(), FakeDevice()), device=1)
    stream, producer = driver.make_stream(1), driver.make_stream(1)
    k, v = (on_device(driver, x, 1, stream=producer) for x in tokens(2))
    cache.append(0, k, v, stream=stream)
    waits = [call.arguments[0] for call in driver.calls if call.name == "cuStreamSynchronize"]
    assert waits == [producer] * 2
    cache.reset(2)
    cache.fork(0, 2, stream=stream)
    cache.arrays(0, stream)
    used = {call.arguments[3] for call in driver.calls if call.name in (WITHIN, TO_DEVICE)}
    used |= {call.arguments[8] for call in driver.calls if call.name == "cuLaunchKernel"}
    assert used == {stream}
    cache.keys(0, 2)
    waits = [call.arguments[0] for call in driver.calls if call.name == "cuStreamSynchronize"]
    assert waits == [producer] * 2 + [stream]
    assert {memory.ordinal for memory in driver.memory.values()} == {1}


def test_rows_from_the_host_are_there_on_return() -> None:
    cache, driver = cache_of()
    stream = driver.make_stream()
    cache.append(0, *tokens(2), stream=stream)
    assert [call.arguments[0] for call in driver.calls if call.name == "cuStreamSynchronize"] == [
        stream,
        stream,
    ]


def test_no_rows_are_appended_without_a_copy() -> None:
    cache, driver = cache_of()
    cache.append(0, *(CudaArray(0, x) for x in tokens(0)))
    assert not cache.lengths.any()
    assert driver.calls == []


def test_memory_is_freed_with_the_cache() -> None:
    cache, driver = cache_of(page_size=4)
    cache.append(0, *tokens(2))
    cache.arrays(0)
    assert driver.memory
    assert cache.nbytes == KVCache(2, 3, 2, 4, 20, head_dim_v=3, page_size=4).nbytes
    del cache
    assert not driver.memory


def test_no_memory_is_kept_where_there_is_too_little() -> None:
    driver = FakeDriver(FakeDevice(memory=3000))
    with pytest.raises(BackendError, match="cuMemAlloc returned CUDA_ERROR_OUT_OF_MEMORY"):
        cache_of(driver)
    assert not driver.memory


def test_rows_from_elsewhere_are_refused() -> None:
    driver = FakeDriver(FakeDevice(), FakeDevice())
    cache, _ = cache_of(driver)
    k, v = tokens(2)
    assert refusal(cache.append, 0, on_device(driver, k, 1), on_device(driver, v)) == (
        "KVCache.append: k must be on cuda:0, where the cache is, or on the host, got cuda:?"
    )
    rotation = np.ascontiguousarray(k.swapaxes(2, 3))
    assert refusal(cache.append, 0, CudaArray(driver.place(rotation), rotation.swapaxes(2, 3)), v) == (
        "KVCache.append: k must be dense in its last dimension (stride 1), got strides [16, 8, 1, 2]; copy it"
    )
    cache, _ = cache_of(driver, dtype="e4m3")
    assert refusal(cache.append, 0, k.astype(np.float16), on_device(driver, v)) == (
        "KVCache.append: k and v on a GPU must be of one type, got float16, float32; convert them"
    )
    assert not cache.lengths.any()


def test_a_gpu_that_does_not_round_to_one_byte_has_no_such_cache() -> None:
    driver = FakeDriver(FakeDevice(sm=86))
    assert refusal(cache_of, driver, error=ConfigError, dtype="e4m3") == (
        "KVCache: dtype='e4m3' needs a GPU of sm_89 or later, which rounds and widens its numbers, "
        "got sm_86; use dtype='bf16', or backend='cpu'"
    )
    assert not driver.memory


def test_attention_on_the_cpu_does_not_fetch_a_cache() -> None:
    cache, driver = cache_of()
    q = np.zeros((BATCH, KV_HEADS, 1, DIM), np.float32)
    assert refusal(flash.attention_with_kvcache, q, cache, layer=0, backend="cpu") == (
        "attention_with_kvcache: backend 'cpu' computes on the host, but the cache is of 'cuda'; "
        "make one with backend='cpu'"
    )
    assert refusal(flash.attention_with_kvcache, q, cache, layer=0) == (
        "attention_with_kvcache: q must be on cuda:0, where the cache is, got cpu; copy it there"
    )
    assert driver.calls == []
