"""Keys in pages on the `cpu` backend: the bits of contiguous keys, whatever the layout of the pages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from judge import rounded_normal

from flash.cpu import attention as cpu
from flash.cpu.attention import attention_cpu
from flash.cpu.blocks import heads_together
from flash.cpu.paged_rows import PagedRows

KV_HEADS, KEYS = 3, 61
LAYOUTS = ["heads first", "rows first", "of K and V", "every other column", "backwards"]


def in_pages(x: Any, table: Any, page_size: int, first: int, layout: str) -> Any:
    """Pages [pages, kv_heads, page_size, dim] in which the rows of x [kv_heads, n, dim] begin at row
    `first` of the sequence with this table; NaN elsewhere.
    """
    kv_heads, n, dim = x.shape
    shape = {
        "heads first": (max(table) + 2, kv_heads, page_size, dim),
        "rows first": (max(table) + 2, page_size, kv_heads, dim),
        "of K and V": (max(table) + 2, 2, kv_heads, page_size, dim),
        "every other column": (max(table) + 2, kv_heads, page_size, 2 * dim),
        "backwards": (max(table) + 2, kv_heads, page_size, dim),
    }[layout]
    memory = np.full(shape, np.nan, x.dtype)
    pages = {
        "heads first": lambda: memory,
        "rows first": lambda: memory.swapaxes(1, 2),
        "of K and V": lambda: memory[:, 1],
        "every other column": lambda: memory[..., ::2],
        "backwards": lambda: memory[::-1],
    }[layout]()
    for row in range(n):
        page, inside = divmod(first + row, page_size)
        pages[table[page], :, inside] = x[:, row]
    return pages


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, "bf16"])
@pytest.mark.parametrize(("page_size", "first"), [(1, 0), (3, 7), (16, 0), (16, 5)])
@pytest.mark.parametrize(("seq_q", "dims"), [(1, (7, 9)), (4, (16, 8))])
def test_pages_give_the_bits_of_contiguous_keys(
    seq_q: int, dims: tuple[int, int], page_size: int, first: int, dtype: Any, layout: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr(cpu, "BLOCK_K", 8)
    monkeypatch.setattr(cpu, "KEY_ELEMENTS", 16 * 16)
    rng = np.random.default_rng([seq_q, page_size])
    q = rounded_normal(rng, (1, 2 * KV_HEADS, seq_q, dims[0]), dtype)
    k, v = (rounded_normal(rng, (1, KV_HEADS, KEYS, dim), dtype) for dim in dims)
    table = rng.permutation(-(-(first + KEYS) // page_size) + 2).astype(np.int32)
    paged = (PagedRows(in_pages(x[0], table, page_size, first, layout), table, KEYS, first) for x in (k, v))
    results = []
    for keys in ((k, v), tuple(paged)):
        out, lse = np.empty((*q.shape[:3], dims[1]), q.dtype), np.empty(q.shape[:3], np.float32)
        attention_cpu(q, *keys, out, lse, softmax_scale=None, causal=True)
        results.append((out, lse))
    assert np.isfinite(results[0][0].astype(np.float32)).all()
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_sequence_without_keys_reads_no_page() -> None:
    pages = PagedRows(np.empty((0, 2, 4, 8), np.float32), np.empty(0, np.int32), 0)
    q, out = np.ones((1, 2, 3, 8), np.float32), np.full((1, 2, 3, 8), np.nan, np.float32)
    attention_cpu(q, pages, pages, out, None, softmax_scale=None, causal=False)
    assert (out == 0).all()


@pytest.mark.parametrize("heads", [0, 1, 4, 12])
@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("seq_q", [1, 5, 16, 40])
@pytest.mark.parametrize("most_kv", [1, 2, 3])
def test_blocks_of_heads_cover_each_head_once(heads: int, group: int, seq_q: int, most_kv: int) -> None:
    count = heads // group * group
    blocks = list(heads_together(range(count), group, seq_q, 16, most_kv))
    assert [head for block in blocks for head in range(count)[block]] == list(range(count))
    for block in blocks:
        size = block.stop - block.start
        assert size == 1 or size * seq_q <= 16
        assert size <= most_kv * group
        of_group = block.start // group == (block.stop - 1) // group
        assert of_group or (block.start % group == 0 and block.stop % group == 0)
