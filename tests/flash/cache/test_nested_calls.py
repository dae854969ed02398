"""Calls of a KV cache inside of a transaction."""

from __future__ import annotations

import numpy as np
import pytest

from flash import KVCache
from flash.pages.placement import Journal


def test_a_call_inside_a_transaction_is_undone_with_it() -> None:
    cache = KVCache(1, 2, 1, 4, 8, page_size=2)
    rows = np.ones((2, 1, 3, 4), np.float32)
    cache.append(0, rows, rows)
    before = cache.lengths.tolist(), cache.block_table, cache.free_pages

    def work(_: Journal) -> None:
        cache.append(0, rows, rows)
        assert cache.lengths.tolist() == [[6, 6]]
        raise MemoryError

    with pytest.raises(MemoryError):
        cache.whole(work)
    assert cache.lengths.tolist() == before[0]
    assert np.array_equal(cache.block_table, before[1])  # type: ignore[arg-type]
    assert cache.free_pages == before[2]
    cache.append(0, rows, rows)
    assert cache.lengths.tolist() == [[6, 6]]
