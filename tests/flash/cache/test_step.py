"""A decode step does again and again what the function does once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from device_arrays import CudaArray, interpret, on_device
from fake_driver import FakeDriver, Launch
from judge import rounded_normal
from refusals import refusal

import flash
from flash.operands.dtypes import DTYPES
from flash.problem.rotary import rotary_tables
from ptxgen.errors import CacheFullError
from ptxgen.runtime.cuda import CudaBackend

pytestmark = [pytest.mark.judged, pytest.mark.usefixtures("unproved")]

Array = np.ndarray[Any, Any]

BATCH, HEADS, KV_HEADS, DIM, CAPACITY = 3, 4, 2, 16, 24
EITHER_LAYOUT = pytest.mark.parametrize("page_size", [None, 4], ids=["contiguous", "paged"])
TO_HOST, TO_DEVICE, WITHIN = "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync", "cuMemcpyDtoDAsync"
MAKING_CURRENT = {"cuCtxGetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent"}
HOWS: dict[str, dict[str, Any]] = {
    "all": {},
    "turned": {"rotary": True, "leftpad": [2, 0, 1]},
    "masked": {"mask": np.arange(12).reshape(1, 4, 1, 3) % 5 > 0},
    "some": {"cache_batch_idx": [2, 0], "return_lse": True, "window": (5, None)},
}


def launches(driver: FakeDriver) -> list[str]:
    """The driver's functions by which kernels were launched."""
    return [name for name in driver.names() if name.startswith("cuLaunchKernel")]


def cache_of(backend: str, page_size: int | None, layers: int = 1, **how: Any) -> flash.KVCache:
    """A cache with 5 tokens in every sequence and layer."""
    built = flash.KVCache(
        layers,
        BATCH,
        KV_HEADS,
        DIM,
        CAPACITY,
        backend=backend,
        page_size=page_size,
        **{"dtype": "f32", **how},
    )
    for layer in range(layers):
        built.append(layer, *tokens(5, 100 + layer)[1:])
    return built


def tokens(count: int, seed: int, batch: int = BATCH) -> list[Array]:
    rng = np.random.default_rng(seed)
    f32 = DTYPES["f32"].numpy
    return [rounded_normal(rng, (batch, h, count, DIM), f32) for h in (HEADS, KV_HEADS, KV_HEADS)]


def choices(name: str) -> dict[str, Any]:
    how = dict(HOWS[name])
    if how.pop("rotary", False):
        how["rotary_cos"], how["rotary_sin"] = rotary_tables(CAPACITY, DIM)
    return how


def rewrite(driver: FakeDriver, array: CudaArray, values: Array) -> None:
    """What a model would have written to its buffers."""
    driver.view(array.pointer, values.nbytes)[:] = values.view(np.uint8).ravel()


def both(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.slow
@pytest.mark.sample(6)
@EITHER_LAYOUT
@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
@pytest.mark.parametrize("name", HOWS)
def test_steps_give_the_bits_of_calls(name: str, backend: str, page_size: int | None) -> None:
    how = {**choices(name), "layer": 0, "splits": 2}
    one, other = (cache_of(backend, page_size) for _ in range(2))
    batch = len(how.get("cache_batch_idx", range(BATCH)))
    q, k, v = tokens(1, 0, batch)
    step = flash.DecodeStep(q, one, k, v, **how)
    for seed in range(1, 6):  # over the borders of pages
        for array, new in zip((q, k, v), tokens(1, seed, batch), strict=True):
            array[...] = new
        got, wanted = both(step()), both(flash.attention_with_kvcache(q, other, k, v, **how))
        assert got[0] is step.out
        assert [x.tobytes() for x in got] == [x.tobytes() for x in wanted]
    assert one.lengths.tolist() == other.lengths.tolist()


@pytest.mark.sample(0, gate=3)
@EITHER_LAYOUT
@pytest.mark.parametrize("name", HOWS)
def test_steps_on_a_gpu_put_equally_many_kernels_there_and_nothing_else(
    driver: FakeDriver, name: str, page_size: int | None
) -> None:
    how = {**choices(name), "layer": 0, "splits": 2}
    there = cache_of("cuda", page_size, cuda=CudaBackend(driver))
    here = cache_of("interpreter", page_size)
    batch = len(how.get("cache_batch_idx", range(BATCH)))
    producer = driver.make_stream()
    arrays = [on_device(driver, x, stream=producer) for x in tokens(1, 0, batch)]
    more = {n: on_device(driver, x) for n, x in how.items() if isinstance(x, np.ndarray)}
    step = flash.DecodeStep(arrays[0], there, *arrays[1:], **{**how, **more})
    for seed in range(1, 6):
        q, k, v = tokens(1, seed, batch)
        for array, new in zip(arrays, (q, k, v), strict=True):
            rewrite(driver, array, new)
        wanted = both(flash.attention_with_kvcache(q, here, k, v, **how))
        step.advance()
        driver.calls.clear()
        step.launch()
        assert launches(driver) == ["cuLaunchKernel", "cuLaunchKernelEx"]  # append and attend, merge
        assert set(driver.names()) <= {*launches(driver), *MAKING_CURRENT}
        results = [step.out] if step.lse is None else [step.out, step.lse]
        for got, want in zip(results, wanted, strict=True):
            np.testing.assert_allclose(driver.fetch(got.pointer, want), want, rtol=1e-5, atol=1e-6)
    assert there.lengths.tolist() == here.lengths.tolist()


def test_of_small_arrays_only_what_changed_is_copied_to_a_gpu(driver: FakeDriver) -> None:
    cache = cache_of("cuda", 4, cuda=CudaBackend(driver))
    q, k, v = (on_device(driver, x) for x in tokens(1, 0))
    step = flash.DecodeStep(q, cache, k, v, layer=0)
    copied = []
    cache.grow(1, [1])  # now one of them comes to a new page a token earlier
    for _ in range(4):
        driver.calls.clear()
        step.advance()
        copied.append([c.arguments[2] for c in driver.calls if c.name == TO_DEVICE])
    lengths, row = 4 * BATCH, 4 * CAPACITY // 4
    assert copied == [[lengths], [lengths], [lengths, row], [lengths, row, row]]


def test_parts_of_a_step_are_for_all_keys_that_there_may_be(driver: FakeDriver) -> None:
    cuda = CudaBackend(driver)
    cache = flash.KVCache(1, BATCH, KV_HEADS, DIM, 4096, dtype="f32", backend="cuda", cuda=cuda)
    q, k, v = (on_device(driver, x) for x in tokens(1, 0))
    flash.attention_with_kvcache(q, cache, k, v, layer=0)
    once = len(launches(driver))
    flash.DecodeStep(q, cache, k, v, layer=0)()
    assert (once, len(launches(driver)) - once) == (1, 2)  # with a merge


@pytest.mark.slow
@pytest.mark.sample(1)
@EITHER_LAYOUT
def test_launches_can_be_replayed_after_room_was_made_in_all_layers(
    driver: FakeDriver, page_size: int | None
) -> None:
    """As a captured graph does it: the same launches, with the same arguments."""
    there = cache_of("cuda", page_size, 2, cuda=CudaBackend(driver))
    here = cache_of("interpreter", page_size, 2)
    arrays = [[on_device(driver, x) for x in tokens(1, 0)] for _ in range(2)]
    steps = [flash.DecodeStep(arrays[n][0], there, *arrays[n][1:], layer=n, splits=3) for n in range(2)]
    captured: list[Launch] = []
    driver.on_launch = captured.append
    there.grow(1)
    for step in steps:
        step.launch()
    driver.on_launch = None
    for token in range(4):
        if token:
            there.grow(1)
        for layer in range(2):
            new = tokens(1, 10 * token + layer)
            for array, values in zip(arrays[layer], new, strict=True):
                rewrite(driver, array, values)
        for launch in captured:
            interpret(driver, launch)
        for layer, step in enumerate(steps):
            q, k, v = tokens(1, 10 * token + layer)
            wanted = flash.attention_with_kvcache(q, here, k, v, layer=layer, splits=3)
            got = driver.fetch(step.out.pointer, wanted)
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    assert there.lengths.tolist() == here.lengths.tolist()


def test_steps_of_other_sequences_have_numbers_of_their_own(driver: FakeDriver) -> None:
    there = cache_of("cuda", None, cuda=CudaBackend(driver))
    here = cache_of("interpreter", None)
    for cache in (there, here):
        cache.truncate([5, 5, 2])
    new = [tokens(1, n, 1) for n in range(2)]
    steps, wanted = [], []
    for which, (q, k, v) in zip(([0], [2]), new, strict=True):
        q_there, k_there, v_there = (on_device(driver, x) for x in (q, k, v))
        how: dict[str, Any] = {"layer": 0, "cache_batch_idx": which, "leftpad": [len(steps)]}
        steps.append(flash.DecodeStep(q_there, there, k_there, v_there, **how))
        wanted.append(flash.attention_with_kvcache(q, here, k, v, **how))
    for step in steps:
        step.advance()
    for step, want in zip(steps, wanted, strict=True):
        step.launch()
        got = driver.fetch(step.out.pointer, want)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_lengths_of_some_sequences_are_brought_up_to_date_after_room_was_made(driver: FakeDriver) -> None:
    there = cache_of("cuda", 4, cuda=CudaBackend(driver))
    here = cache_of("interpreter", 4)
    q, k, v = tokens(1, 7, 2)
    how: dict[str, Any] = {"layer": 0, "cache_batch_idx": [1, 0]}
    arrays = [on_device(driver, x) for x in (q, k, v)]
    step = flash.DecodeStep(arrays[0], there, *arrays[1:], **how)
    there.grow(1, [0, 1])
    step.update()
    step.launch()
    wanted = flash.attention_with_kvcache(q, here, k, v, **how)
    got = driver.fetch(step.out.pointer, wanted)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@EITHER_LAYOUT
def test_a_fork_that_is_written_by_steps_leaves_its_source_alone(
    driver: FakeDriver, page_size: int | None
) -> None:
    caches = []
    for name, how in (("cuda", {"cuda": CudaBackend(driver)}), ("interpreter", {})):
        cache = cache_of(name, page_size, **how)
        cache.reset(2)
        cache.fork(0, 2)
        caches.append(cache)
    q, k, v = tokens(1, 3, 1)
    arrays = [on_device(driver, x) for x in (q, k, v)]
    flash.DecodeStep(arrays[0], caches[0], *arrays[1:], layer=0, cache_batch_idx=[2])()
    flash.attention_with_kvcache(q, caches[1], k, v, layer=0, cache_batch_idx=[2])
    for sequence in range(BATCH):
        one, other = (cache.keys(0, sequence) for cache in caches)
        assert one.tobytes() == other.tobytes()


def test_room_is_made_for_all_layers_or_none() -> None:
    cache = cache_of("cpu", 4, layers=2, pages=7)
    cache.append(0, *tokens(1, 1, 1)[1:], [1])
    cache.grow(2, [1])
    assert cache.lengths.tolist() == [[5, 8, 5], [5, 7, 5]]
    before = repr(cache), repr(cache.block_table)
    assert refusal(cache.grow, 4, error=CacheFullError) == (
        "KVCache.grow: 3 more pages are needed, but 1 of 7 are free; truncate or reset sequences, "
        "or make a cache with more pages"
    )
    assert refusal(cache.grow, 17, [0, 1], error=CacheFullError) == (
        "KVCache.grow: sequence 1 has 8 of 24 tokens in layer 0, which leaves no room for 17 more; "
        "truncate or reset it, or make a cache with a larger capacity"
    )
    assert (repr(cache), repr(cache.block_table)) == before
    for wrong in (-1, 1.5, True):
        assert refusal(cache.grow, wrong) == (
            f"KVCache.grow: rows must be an integer of at least 0, got {wrong!r}"
        )


def test_a_full_cache_and_short_tables_stop_a_step_before_anything_is_changed() -> None:
    cache = cache_of("cpu", None)
    cos, sin = rotary_tables(7, DIM)
    q, k, v = tokens(2, 1)
    rotation = flash.DecodeStep(q, cache, k, v, layer=0, rotary_cos=cos, rotary_sin=sin)
    rotation()
    assert refusal(rotation) == (
        "DecodeStep: rotary_cos and rotary_sin must have a row for each of 9 positions, got 7"
    )
    plain = flash.DecodeStep(q, cache, k, v, layer=0)
    cache.grow(16)
    assert refusal(plain, error=CacheFullError) == (
        "DecodeStep: sequence 0 has 23 of 24 tokens in layer 0, which leaves no room "
        "for 2 more; truncate or reset it, or make a cache with a larger capacity"
    )
    assert (cache.lengths == 23).all()


def test_rows_that_do_not_count_are_not_written() -> None:
    cache = cache_of("cpu", None)
    q, k, v = tokens(2, 1)
    step = flash.DecodeStep(q, cache, k, v, layer=0)
    cache.truncate([5, 1, 5])
    assert refusal(step.launch) == (
        "DecodeStep: 2 new rows must count before they are written, but sequence 1 has "
        "1 tokens in layer 0; call advance() or KVCache.grow before launch()"
    )
