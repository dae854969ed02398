"""Keys in pages on the `cpu` backend: the bits of contiguous keys, whatever the layout of the pages."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from cpu_runs import DTYPES, assert_same, attended
from judge import rounded_normal

from flash.cpu import blocks, chunks, job
from flash.cpu.attention import attention_cpu
from flash.cpu.blocks import heads_together
from flash.cpu.paged_rows import PagedRows, Walk

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
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("page_size", "first"), [(1, 0), (3, 7), (16, 0), (16, 5)])
@pytest.mark.parametrize(("seq_q", "dims"), [(1, (7, 9)), (4, (16, 8))])
def test_pages_give_the_bits_of_contiguous_keys(
    seq_q: int, dims: tuple[int, int], page_size: int, first: int, dtype: Any, layout: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr(job, "BLOCK_K", 8)
    monkeypatch.setattr(job, "KEY_ELEMENTS", 16 * 16)
    rng = np.random.default_rng([seq_q, page_size])
    q = rounded_normal(rng, (1, 2 * KV_HEADS, seq_q, dims[0]), dtype)
    k, v = (rounded_normal(rng, (1, KV_HEADS, KEYS, dim), dtype) for dim in dims)
    table = rng.permutation(-(-(first + KEYS) // page_size) + 2).astype(np.int32)
    paged = (PagedRows(in_pages(x[0], table, page_size, first, layout), table, KEYS, first) for x in (k, v))
    results = [attended(q, *keys, causal=True) for keys in ((k, v), tuple(paged))]
    assert np.isfinite(results[0][0].astype(np.float32)).all()
    assert_same(*results)


def table_of(order: str, count: int) -> Any:
    """Page numbers of a sequence; at least one page more than these is in the memory."""
    rng = np.random.default_rng(count)
    return {
        "ascending": np.arange(1, count + 1),
        "descending": np.arange(count)[::-1],
        "every third": np.arange(count) * 3,
        "shuffled": rng.permutation(count),
        "one page again and again": np.zeros(count, int),
        "out of many": rng.permutation(5 * count)[:count],
    }[order].astype(np.int32)


@pytest.mark.grid
@pytest.mark.parametrize("order", ["ascending", "descending", "every third", "shuffled", "out of many"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("page_size", [16, 48, 64, 128])
@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize("seq_k", [64, 131, 1040])
@pytest.mark.parametrize("in_place", [True, False])
def test_pages_read_where_they_lie_give_the_bits_of_contiguous_keys(
    order: str, layout: str, page_size: int, rows: int, seq_k: int, in_place: bool, monkeypatch: Any
) -> None:
    monkeypatch.setattr(chunks, "_MIN_RUN_ELEMENTS", 0 if in_place else math.inf)
    rng = np.random.default_rng([page_size, rows, seq_k])
    q = rounded_normal(rng, (1, rows * KV_HEADS, 1, 32), np.float32)
    k, v = (rounded_normal(rng, (1, KV_HEADS, seq_k, dim), np.float32) for dim in (32, 48))
    v[0, 1, seq_k - 2] = np.inf
    k[0, 2, 3] = np.nan
    seen = np.ones(seq_k, bool)
    seen[[3, seq_k - 2]] = False
    table = table_of(order, -(-seq_k // page_size))
    paged = (PagedRows(in_pages(x[0], table, page_size, 0, layout), table, seq_k) for x in (k, v))
    results = [attended(q, *keys, mask=seen) for keys in ((k, v), tuple(paged))]
    assert np.isfinite(results[0][0]).all()
    assert_same(*results)


@pytest.mark.parametrize(
    ("rows", "page_size", "first", "keys", "copied"),
    [
        *((1, 16, 0, 4096, 0), (1, 16, 0, 4100, 4), (1, 64, 0, 90, 10), (4, 64, 0, 1024, 0)),
        *((4, 16, 0, 1024, 1024), (1, 16, 8, 1024, 1024), (17, 64, 0, 1024, 1024)),
    ],
)
def test_only_what_does_not_lie_in_whole_chunks_is_copied(
    rows: int, page_size: int, first: int, keys: int, copied: int, monkeypatch: Any
) -> None:
    monkeypatch.setattr(chunks, "_MIN_RUN_ELEMENTS", 0)
    result = []

    def read(_: PagedRows, __: slice, of: slice, out: Any) -> None:
        result.append(of.stop - of.start)
        out.fill(1)

    monkeypatch.setattr(PagedRows, "read", read)
    table = np.arange(-(-(first + keys) // page_size), dtype=np.int32)
    pages = PagedRows(np.ones((len(table), 1, page_size, 32), np.float32), table, keys, first)
    out, _ = attended(np.zeros((1, rows, 1, 32), np.float32), pages, pages)
    assert sum(result) == 2 * copied
    assert (out == 1).all()


@pytest.mark.grid
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("at_once", [2**12, 2**13, 2**15])
@pytest.mark.parametrize("page_size", [0, 3])
def test_how_much_is_copied_at_once_changes_no_bit(
    page_size: int, at_once: int, rows: int, dtype: Any, monkeypatch: Any
) -> None:
    seq_k = 1222  # whole chunks, one more than several copies have, and a rest
    rng = np.random.default_rng([rows, at_once])
    q = rounded_normal(rng, (1, rows * KV_HEADS, 1, 32), dtype)
    k, v = (rounded_normal(rng, (1, KV_HEADS, seq_k, dim), dtype) for dim in (32, 48))
    v[0, 1, 700] = np.nan
    k[0, 2, 3] = np.inf
    seen = np.ones(seq_k, bool)
    seen[[3, 700]] = False
    wanted = attended(q, k, v, mask=seen)
    assert np.isfinite(wanted[0].astype(np.float32)).all()
    monkeypatch.setattr(chunks, "_COPIED", at_once)
    if page_size:
        table = table_of("shuffled", -(-seq_k // page_size))
        k, v = (PagedRows(in_pages(x[0], table, page_size, 0, "rows first"), table, seq_k) for x in (k, v))
    assert_same(attended(q, k, v, mask=seen), wanted)


@pytest.mark.parametrize(
    ("layout", "rows", "copied"),
    [
        ("dense", 1, False),
        ("rows apart", 1, True),
        ("rows apart", 2, False),
        ("heads at odd places", 1, True),
    ],
)
def test_with_another_blas_vectors_meet_only_aligned_and_dense_keys_in_place(
    layout: str, rows: int, copied: bool, monkeypatch: Any
) -> None:
    monkeypatch.setattr(blocks, "IS_OPENBLAS", False)
    result = []
    monkeypatch.setattr(chunks, "_copied", lambda *_: result.append(1) or iter([]))
    memory = blocks.Workspace(np.dtype(np.float32)).take("k", 1, 256 * 33)
    keys = {
        "dense": memory[:, : 256 * 32].reshape(1, 2, 128, 32),
        "rows apart": memory[:, : 256 * 32].reshape(1, 128, 2, 32).swapaxes(1, 2),
        "heads at odd places": memory[0, : 2 * 4097].reshape(1, 2, 4097)[..., :4096].reshape(1, 2, 128, 32),
    }[layout]
    attended(np.zeros((1, 2 * rows, 1, 32), np.float32), keys, keys)
    assert bool(result) == copied


@pytest.mark.parametrize("order", ["every third", "shuffled", "out of many", "one page again and again"])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 9, 50])
def test_a_walk_selects_each_page_once(order: str, count: int) -> None:
    table = table_of(order, count)
    pages = np.arange(max(table) + 2)
    walk = Walk.of(table)
    result = np.concatenate([pages[run] for run in walk.runs])
    np.testing.assert_array_equal(result, table if walk.order is None else table[walk.order])
    if order == "every third" or (order == "shuffled" and count > 4):
        assert len(walk.runs) == 1


def test_a_walk_to_no_page_is_empty() -> None:
    assert Walk.of(np.empty(0, np.int32)) == ([], None)


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
