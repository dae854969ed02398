"""Copies of a cache go on as the cache does, and neither sees what is appended to the other."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from device_arrays import interpreting
from fake_driver import FakeDriver

import flash
from ptxgen.runtime.cuda import CudaBackend

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.usefixtures("unproved")

COPIED: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": lambda cache: pickle.loads(pickle.dumps(cache)),
}
KINDS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "pages": {"page_size": 2, "pages": 9},
    "values of other lengths, bf16": {"page_size": 2, "dtype": "bf16", "head_dim_v": 3},
    "scales of heads": {"dtype": "e4m3"},
    "scales of tokens": {"dtype": "e4m3", "scale_per": "token", "page_size": 2},
}


def rows(cache: Any, items: int, n: int, seed: int) -> list[Array]:
    random = np.random.default_rng(seed)
    dtype = cache.element.numpy if not cache.element.is_narrow else np.float32
    dims = (cache.head_dim, cache.head_dim_v)
    return [random.standard_normal((items, cache.kv_heads, n, dim)).astype(dtype) for dim in dims]


def filled(**how: Any) -> Any:
    """A cache of two layers and three sequences: of 5 and 3 rows and none, or with pages of 5 rows twice,
    which share their pages. The last layer has a row less.
    """
    cache = flash.KVCache(2, 3, 2, 4, 8, **how)
    if cache.scales is not None:
        cache.set_scales([[0.5, 2.0], [1.0, 0.7]], 0.03)
    for layer in range(2):
        cache.append(layer, *rows(cache, 2, 3, layer), [0, 1])
        cache.append(layer, *rows(cache, 1, 2 - layer, 5 + layer), [0])
    if cache.page_size is not None:
        cache.reset(1)
        cache.fork(0, 1)
    return cache


def contents(cache: Any) -> list[Any]:
    """All that users see of a cache."""
    of_rows = [
        x
        for layer in range(cache.layers)
        for n in range(cache.batch)
        for x in (cache.keys(layer, n), cache.values(layer, n))
    ]
    return [cache.lengths, cache.block_table, cache.free_pages, *(cache.scales or ()), *of_rows]


def assert_same(a: Any, b: Any) -> None:
    assert repr(a) == repr(b)
    for x, y in zip(contents(a), contents(b), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("how", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("copied", COPIED.values(), ids=COPIED)
def test_a_copy_has_the_contents_and_a_memory_of_its_own(copied: Any, how: dict[str, Any]) -> None:
    cache = filled(**how)
    other = copied(cache)
    assert_same(other, cache)
    before = contents(cache)
    grown = rows(cache, 2, 2, 9)
    other.append(0, *grown, [1, 2])
    for x, y in zip(contents(cache), before, strict=True):
        np.testing.assert_array_equal(x, y)
    cache.append(0, *grown, [1, 2])
    assert_same(other, cache)  # the same free pages were taken
    other.truncate(1, [0])
    cache.truncate(1, [0])
    assert_same(other, cache)


@pytest.mark.parametrize("copied", COPIED.values(), ids=COPIED)
def test_attention_goes_on_over_a_copy(copied: Any) -> None:
    cache = filled(page_size=2)
    other = copied(cache)
    q, (k, v) = np.random.default_rng(3).standard_normal((3, 4, 1, 4), np.float32), rows(cache, 3, 1, 4)
    first, second = (
        flash.attention_with_kvcache(q, of, k, v, layer=1, backend="interpreter") for of in (cache, other)
    )
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("how", KINDS.values(), ids=KINDS)
def test_a_copy_on_a_gpu_is_there(how: dict[str, Any]) -> None:
    cuda = CudaBackend(interpreting(FakeDriver(version=1000)))
    cache = filled(**how, backend="cuda", cuda=cuda)
    other = copy.deepcopy(cache)
    assert (other.cuda, other.memory.device) == (cuda, ("cuda", 0))
    assert_same(other, cache)
    addresses = [of.arrays(1).k.pointer for of in (cache, other)]
    assert addresses[0] != addresses[1]
    for of in (cache, other):
        of.append(0, *rows(cache, 1, 1, 9), [2])
    assert_same(other, cache)


def test_a_cache_on_a_gpu_is_pickled_by_way_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is restored on the GPU of the same number of the process that reads it."""
    cuda, there = (CudaBackend(interpreting(FakeDriver(version=1000))) for _ in range(2))
    cache = filled(page_size=2, backend="cuda", cuda=cuda)
    text = pickle.dumps(cache)
    monkeypatch.setattr("ptxgen.runtime.caller_arguments.cuda_backend", lambda: there)
    other = pickle.loads(text)
    assert other.cuda is there
    assert_same(other, cache)


@pytest.mark.usefixtures("torch")
def test_a_copy_is_no_cache_of_compiled_code_for_the_other() -> None:
    from flash.adapters.torch import track

    cache = filled()
    number = track(cache).tolist()
    assert track(copy.deepcopy(cache)).tolist() != number == track(cache).tolist()
