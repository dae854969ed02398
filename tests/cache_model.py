"""What a KV cache must do, as lists: for each layer and sequence one, of key and value rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from flash import KVCache
from flash.pages.placement import Paged
from ptxgen.errors import CacheFullError, LaunchError

Array = np.ndarray[Any, Any]

LAYERS, BATCH, KV_HEADS, DIM, DIM_V, CAPACITY = 2, 3, 2, 4, 3, 20


def tokens(count: int, items: int = BATCH, seed: int = 0, dtype: Any = np.float32) -> Any:
    """New keys and values, all different."""
    rng = np.random.default_rng([seed, count, items])
    shapes = (items, KV_HEADS, count, DIM), (items, KV_HEADS, count, DIM_V)
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in shapes)


class Lists:
    """The model: for each layer and sequence a list of (key row, value row)."""

    def __init__(self) -> None:
        self.rows: list[list[list[tuple[Array, Array]]]] = [[[] for _ in range(BATCH)] for _ in range(LAYERS)]

    def append(self, layer: int, k: Array, v: Array, which: list[int], counts: list[int]) -> None:
        for item, (sequence, count) in enumerate(zip(which, counts, strict=True)):
            for n in range(count):
                self.rows[layer][sequence].append((k[item, :, n], v[item, :, n]))

    def truncate(self, sequence: int, length: int) -> None:
        for layer in self.rows:
            del layer[sequence][length:]

    def fork(self, source: int, target: int) -> None:
        for layer in self.rows:
            layer[target] = list(layer[source])

    def reorder(self, sources: list[int]) -> None:
        for layer in self.rows:
            layer[:] = [list(layer[source]) for source in sources]

    def lengths(self, sequence: int) -> list[int]:
        return [len(layer[sequence]) for layer in self.rows]


def assert_same(cache: KVCache, lists: Lists) -> None:
    for layer in range(LAYERS):
        for sequence in range(BATCH):
            rows = lists.rows[layer][sequence]
            assert cache.lengths[layer, sequence] == len(rows)
            keys, values = cache.keys(layer, sequence), cache.values(layer, sequence)
            assert keys.shape == (KV_HEADS, len(rows), DIM)
            assert values.shape == (KV_HEADS, len(rows), DIM_V)
            for n, (key, value) in enumerate(rows):
                np.testing.assert_array_equal(keys[:, n], key)
                np.testing.assert_array_equal(values[:, n], value)


def assert_pages_add_up(cache: KVCache) -> None:
    """Every page is free or in as many tables as it has users, and none is free twice."""
    placement = cache.placement
    if not isinstance(placement, Paged):
        return
    table, longest = cache.block_table, cache.lengths.max(axis=0)
    assert table is not None
    held = [int(page) for page in table[table >= 0]]
    pool = placement.pool
    assert [pool.users(page) for page in range(pool.pages)] == [
        held.count(page) for page in range(pool.pages)
    ]
    assert cache.free_pages == pool.pages - len(set(held))
    assert sorted({*pool._free, *held}) == list(range(pool.pages))
    assert len(pool._free) == len(set(pool._free))
    used = -(-longest // placement.rows)
    np.testing.assert_array_equal((table >= 0).sum(axis=1), used)
    np.testing.assert_array_equal(table >= 0, np.arange(table.shape[1]) < used[:, None])


SEQUENCE = st.integers(0, BATCH - 1)
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"),
            st.integers(0, LAYERS - 1),
            st.lists(SEQUENCE, unique=True),
            st.lists(st.integers(0, 9), min_size=BATCH, max_size=BATCH),
        ),
        st.tuples(st.just("truncate"), SEQUENCE, st.integers(0, CAPACITY)),
        st.tuples(st.just("reset"), SEQUENCE),
        st.tuples(st.just("fork"), SEQUENCE, SEQUENCE),
        st.tuples(st.just("reorder"), st.lists(SEQUENCE, min_size=BATCH, max_size=BATCH)),
    ),
    max_size=20,
)


Act = tuple[Callable[[KVCache], object], Callable[[], None], bool]


def _append(lists: Lists, arguments: list[Any], seed: int) -> Act:
    """A step on the cache, the same on the lists, and whether the cache has to do it, pages
    permitting.
    """
    layer, which, counts = arguments
    counts = counts[: len(which)]
    k, v = tokens(9, len(which), seed)
    fits = all(
        len(lists.rows[layer][sequence]) + count <= CAPACITY
        for sequence, count in zip(which, counts, strict=True)
    )
    return (
        lambda cache: cache.append(layer, k, v, which, counts=counts),
        lambda: lists.append(layer, k, v, which, counts),
        fits,
    )


def _truncate(lists: Lists, arguments: list[Any], _: int) -> Act:
    sequence, length = arguments
    return (
        lambda cache: cache.truncate(length, [sequence]),
        lambda: lists.truncate(sequence, length),
        length <= min(lists.lengths(sequence)),
    )


def _reset(lists: Lists, arguments: list[Any], _: int) -> Act:
    (sequence,) = arguments
    return (
        lambda cache: cache.reset(sequence),
        lambda: lists.truncate(sequence, 0),
        any(lists.lengths(sequence)),
    )


def _fork(lists: Lists, arguments: list[Any], _: int) -> Act:
    source, target = arguments
    return (
        lambda cache: cache.fork(source, target),
        lambda: lists.fork(source, target),
        source != target and not any(lists.lengths(target)),
    )


def _reorder(lists: Lists, arguments: list[Any], _: int) -> Act:
    (sources,) = arguments
    return lambda cache: cache.reorder(sources), lambda: lists.reorder(sources), True


ACTS: dict[str, Callable[[Lists, list[Any], int], Act]] = {
    "append": _append,
    "truncate": _truncate,
    "reset": _reset,
    "fork": _fork,
    "reorder": _reorder,
}


def run_on_both(cache: KVCache, steps: Any, *, scarce: bool = False) -> None:
    """Do steps on the cache and on lists, which it equals after each. `scarce`: pages may run out,
    which changes nothing, as anything else that does not fit.
    """
    lists = Lists()
    for seed, (step, *arguments) in enumerate(steps):
        before = cache.lengths, cache.block_table
        act, on_lists, fits = ACTS[step](lists, arguments, seed)
        if step == "reorder" and cache.page_size is None:
            fits = arguments[0] == list(range(BATCH))  # contiguous memory cannot be shared
        try:
            act(cache)
        except CacheFullError:
            assert scarce or not fits
        except LaunchError:
            assert not fits
        else:
            assert fits
            on_lists()
            before = cache.lengths, cache.block_table
        np.testing.assert_array_equal(cache.lengths, before[0])
        np.testing.assert_array_equal(cache.block_table, before[1])
        assert_pages_add_up(cache)
        assert_same(cache, lists)


def most_pages(page_size: int | None, spare: int | None) -> int | None:
    """Pages for one sequence and `spare` more; None for as many as there can be."""
    return None if page_size is None or spare is None else -(-CAPACITY // page_size) + spare
