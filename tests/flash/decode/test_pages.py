"""Pages of every relation to a tile: a cache in pages gives the bits of a contiguous one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernel_runs import in_pages
from numpy.typing import NDArray

import flash

Array = NDArray[Any]

HEADS, KV_HEADS, DIM, ROWS = 4, 2, 16, 150
USED, PADDING = np.array([150, 97], np.int32), np.array([0, 33], np.int32)
BATCH = len(USED)


def cache(dtype: str) -> list[Array]:
    rng = np.random.default_rng(0)
    kind = flash.AttentionConfig(DIM, dtype=dtype).element.numpy
    shapes = ((BATCH, HEADS, 1, DIM), *[(BATCH, KV_HEADS, ROWS, DIM)] * 2)
    return [rng.standard_normal(shape).astype(kind) for shape in shapes]


def table_of(page_size: int) -> Array:
    """A block table whose pages are in an order of their own, among as many others."""
    columns = -(-ROWS // page_size)
    pages = np.random.default_rng(page_size).permutation(2 * BATCH * columns)[: BATCH * columns]
    return pages.reshape(BATCH, columns).astype(np.int32)


# Tiles have 64 rows (f16) or 32 (f32). Of pages of 48 and 96 a tile holds parts of several, of which each
# sixteen or 32 rows are in one; rows of pages of 5 are looked up one by one.
@pytest.mark.parametrize(
    ("dtype", "padded", "page_size"),
    [
        ("f16", False, 48),
        ("f16", False, 128),
        *[
            pytest.param(dtype, padded, size, marks=pytest.mark.nightly)
            for size in (5, 16, 48, 64, 96, 128)
            for dtype, padded in (("f16", True), ("f32", False))
        ],
    ],
)
@pytest.mark.usefixtures("unproved")
def test_pages_give_the_bits_of_contiguous_rows(dtype: str, padded: bool, page_size: int) -> None:
    kernel = flash.DecodeKernel(flash.AttentionConfig(DIM, dtype=dtype, causal=True))
    q, k, v = cache(dtype)
    how: dict[str, Any] = {"seqused_k": USED, "splits": 2, "backend": "interpreter"}
    how |= {"leftpad_k": PADDING} if padded else {}
    table = table_of(page_size)
    keys, values = (in_pages(x, page_size, table, spare=table.size) for x in (k, v))
    for b, used in enumerate(USED):
        table[b, -(-used // page_size) :] = -1
    result = kernel.launch(q, keys, values, block_table=table, **how)
    wanted = kernel.launch(q, k, v, **how)
    assert result.tobytes() == wanted.tobytes()
