"""What a call over a KV cache checked is not checked again for arrays of the same geometry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from device_arrays import CudaArray, interpreting, on_device, without_assembler
from fake_driver import FakeDevice, FakeDriver
from judge import rounded_normal

import flash
from flash.cache import call
from flash.calls.known import Known
from flash.decode.operation import Decode
from flash.problem.rotary import rotary_tables
from ptxgen.errors import ConfigError, LaunchError
from ptxgen.runtime.cuda import CudaBackend

pytestmark = pytest.mark.usefixtures("unproved")

Array = np.ndarray[Any, Any]

BATCH, HEADS, KV_HEADS, DIM, CAPACITY = 2, 4, 2, 16, 12
SHARED = "the memory of q"
TABLE = np.zeros((1, 8), np.float32)  # angles of one position


def rows_of(seed: int, count: int = 1, dim: int = DIM) -> list[Array]:
    rng = np.random.default_rng(seed)
    heads = (HEADS, KV_HEADS, KV_HEADS)
    return [rounded_normal(rng, (BATCH, h, count, dim), np.dtype(np.float32)) for h in heads]


def new_cache(**how: Any) -> flash.KVCache:
    return flash.KVCache(2, BATCH, KV_HEADS, DIM, CAPACITY, **how)


def counted(monkeypatch: pytest.MonkeyPatch, of: Any, name: str) -> list[None]:
    """A list that grows with each call of a function or method."""
    calls: list[None] = []
    before: Callable[..., Any] = getattr(of, name)

    def counting(*given: Any, **named: Any) -> Any:
        calls.append(None)
        return before(*given, **named)

    monkeypatch.setattr(of, name, counting)
    return calls


def test_calls_of_one_geometry_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checks, cache = counted(monkeypatch, call, "_asked"), new_cache()
    for seed in range(3):
        for layer in range(2):
            flash.attention_with_kvcache(*_with(cache, rows_of(seed)), layer=layer)
    assert len(checks) == 1
    flash.attention_with_kvcache(*_with(cache, rows_of(3, count=2)), layer=0)
    assert len(checks) == 2
    flash.attention_with_kvcache(*_with(cache, rows_of(4)), layer=0, window=(3, None))
    assert len(checks) == 3
    q, k, v = rows_of(5)
    q = np.repeat(q, 2, axis=3)[..., ::2]  # other strides
    flash.attention_with_kvcache(q, cache, k, v, layer=0)
    assert len(checks) == 4


def test_a_refused_call_is_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    checks, cache = counted(monkeypatch, call, "_asked"), new_cache()
    for _ in range(2):
        with pytest.raises(LaunchError):
            flash.attention_with_kvcache(*_with(cache, rows_of(0)), layer=0, leftpad=[2, 0])
    assert len(checks) == 2


def _with(cache: flash.KVCache, rows: list[Array]) -> tuple[Any, ...]:
    q, k, v = rows
    return q, cache, k, v


@pytest.mark.parametrize(
    "wrong",
    [
        *({"leftpad": [9, 0]}, {"cache_batch_idx": [0, 2]}, {"cache_batch_idx": [1, 1]}, {"layer": 2}),
        *({"stream": 0}, {"causal": "top_left"}, {"splits": 0}, {"softmax_scale": "much"}),
        {"rotary_cos": TABLE, "rotary_sin": TABLE},
        *({"out": np.zeros((BATCH, HEADS, 1, DIM), np.float16)}, {"out": SHARED}),
    ],
    ids=lambda wrong: ",".join(wrong),
)
def test_errors_after_a_known_call_are_those_of_a_first_call(wrong: dict[str, Any]) -> None:
    cos, sin = rotary_tables(CAPACITY, DIM)
    right: dict[str, Any] = {"layer": 0, "rotary_cos": cos, "rotary_sin": sin}
    texts = []
    for is_first in (True, False):
        cache, (q, k, v) = new_cache(), rows_of(8)
        if is_first:
            cache.append(0, *rows_of(9)[1:])
        else:
            flash.attention_with_kvcache(*_with(cache, rows_of(9)), **right)
        lengths = cache.lengths.tolist()
        shared = {"out": q} if wrong.get("out") is SHARED else {}
        with pytest.raises((LaunchError, ConfigError)) as refused:
            flash.attention_with_kvcache(q, cache, k, v, **{**right, **wrong, **shared})
        texts.append(str(refused.value))
        assert cache.lengths.tolist() == lengths
    assert texts[0] == texts[1]


def test_positions_beyond_known_rotary_tables_are_refused() -> None:
    cos, sin = rotary_tables(3, DIM)
    cache = new_cache()
    for seed in range(3):
        flash.attention_with_kvcache(*_with(cache, rows_of(seed)), layer=0, rotary_cos=cos, rotary_sin=sin)
    with pytest.raises(LaunchError) as refused:
        flash.attention_with_kvcache(*_with(cache, rows_of(3)), layer=0, rotary_cos=cos, rotary_sin=sin)
    assert str(refused.value) == (
        "attention_with_kvcache: rotary_cos and rotary_sin must have a row for each of 4 positions, got 3"
    )
    assert cache.lengths.tolist() == [[3, 3], [0, 0]]


@pytest.mark.parametrize("page_size", [None, 4], ids=["contiguous", "paged"])
@pytest.mark.parametrize("how", [{}, {"cache_batch_idx": [1, 0], "leftpad": [1, 0]}], ids=["all", "some"])
def test_launches_on_a_gpu_are_prepared_once_and_have_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, page_size: int | None, how: dict[str, Any]
) -> None:
    without_assembler(monkeypatch)
    driver = interpreting(FakeDriver(FakeDevice()))
    prepared = counted(monkeypatch, Decode, "prepared")
    caches = [new_cache(backend="cuda", cuda=CudaBackend(driver), page_size=page_size) for _ in range(2)]
    for seed in range(3):
        rows = rows_of(seed)
        got = []
        for cache in caches:
            if cache is caches[1]:
                cache.known_calls = Known()
            q, k, v = (on_device(driver, x) for x in rows)
            count = len(prepared)
            result: CudaArray = flash.attention_with_kvcache(q, cache, k, v, layer=0, splits=2, **how)
            got.append(driver.fetch(result.pointer, rows[0]).tobytes())
            assert (len(prepared) == count) is (cache is caches[0] and seed > 0)
        assert got[0] == got[1]
