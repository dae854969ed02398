"""Page tables in compressed rows as block tables, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from device_arrays import on_device
from fake_driver import FakeDevice, FakeDriver
from refusals import refusal

import flash

Array = np.ndarray[Any, Any]


def i32(*numbers: int) -> Array:
    return np.array(numbers, np.int32)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_a_table_has_the_pages_of_each_sequence_and_the_number_of_its_keys(dtype: Any) -> None:
    arguments = [x.astype(dtype) for x in (i32(0, 3, 3, 4, 6), i32(3, 1, 7, 0, 5, 2, 99), i32(9, 0, 16, 1))]
    table, used = flash.block_table_from_csr(*arguments, page_size=16)
    assert (table.dtype, used.dtype) == (np.int32, np.int32)
    assert table.tolist() == [[3, 1, 7], [-1, -1, -1], [0, -1, -1], [5, 2, -1]]
    assert used.tolist() == [41, 0, 16, 17]


def test_a_table_has_a_column_even_without_pages() -> None:
    table, used = flash.block_table_from_csr(i32(0, 0), i32(), i32(0), 4)
    assert (table.tolist(), used.tolist()) == ([[-1]], [0])
    table, used = flash.block_table_from_csr(i32(0), i32(), i32(), 4)
    assert (table.shape, used.shape) == ((0, 1), (0,))


def test_attention_over_a_table_is_that_over_the_compressed_rows() -> None:
    rng = np.random.default_rng(0)
    indptr, indices, last = i32(0, 2, 5), i32(4, 0, 1, 3, 2), i32(3, 4)
    kv = rng.standard_normal((5, 4, 2, 8), dtype=np.float32)
    q = rng.standard_normal((5, 4, 8), dtype=np.float32)
    table, used = flash.block_table_from_csr(indptr, indices, last, 4)
    result = flash.attention_varlen(
        q, kv, kv, i32(0, 1, 5), block_table=table, seqused_k=used, causal=True, backend="cpu"
    )
    for b, rows in enumerate((slice(0, 1), slice(1, 5))):
        pages = kv[indices[indptr[b] : indptr[b + 1]]].reshape(-1, 2, 8)
        keys = pages[: len(pages) - 4 + last[b]].swapaxes(0, 1)[None]
        wanted = flash.attention(q[rows].swapaxes(0, 1)[None], keys, keys, causal=True, backend="cpu")
        np.testing.assert_allclose(result[rows].swapaxes(0, 1)[None], wanted, atol=1e-6)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a page size": ({"page_size": 0}, "page_size must be an integer from 1 to 256, got 0"),
    "a type": (
        {"paged_kv_indices": np.zeros(3, np.float32)},
        "paged_kv_indices must be one of int32, int64, got float32",
    ),
    "dimensions": (
        {"paged_kv_indptr": np.zeros((2, 2), np.int32)},
        "paged_kv_indptr must have one dimension, got shape [2, 2]",
    ),
    "nothing": ({"paged_kv_indptr": i32()}, "paged_kv_indptr must begin with 0, got no element"),
    "a first end": ({"paged_kv_indptr": i32(1, 2, 3)}, "paged_kv_indptr must begin with 0, got 1"),
    "the batch": (
        {"paged_kv_last_page_len": i32(1)},
        "paged_kv_last_page_len must be [batch] = [2], one less than paged_kv_indptr, got [1]",
    ),
    "decreasing": (
        {"paged_kv_indptr": i32(0, 2, 1)},
        "paged_kv_indptr[2] must be from 2, which is paged_kv_indptr[1], to 3, the elements of "
        "paged_kv_indices, got 1",
    ),
    "beyond": (
        {"paged_kv_indptr": i32(0, 1, 4)},
        "paged_kv_indptr[2] must be from 1, which is paged_kv_indptr[1], to 3, the elements of "
        "paged_kv_indices, got 4",
    ),
    "no key in a page": (
        {"paged_kv_last_page_len": i32(1, 0)},
        "paged_kv_last_page_len[1] must be from 1 to 4, the rows of a page, got 0",
    ),
    "too many keys in a page": (
        {"paged_kv_last_page_len": i32(5, 4)},
        "paged_kv_last_page_len[0] must be from 1 to 4, the rows of a page, got 5",
    ),
    "keys without a page": (
        {"paged_kv_indptr": i32(0, 0, 3)},
        "paged_kv_last_page_len[0] must be 0, as the sequence has no page, got 1",
    ),
    "a negative page": (
        {"paged_kv_indices": i32(0, -1, 2)},
        "paged_kv_indices[1] must be from 0 to 2147483647, got -1",
    ),
    "several": (
        {"paged_kv_indices": i32(-3, 1, 2), "paged_kv_last_page_len": i32(0, 4)},
        "2 problems\n"
        "  paged_kv_last_page_len[0] must be from 1 to 4, the rows of a page, got 0\n"
        "  paged_kv_indices[0] must be from 0 to 2147483647, got -3",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_table_that_cannot_be_is_refused(name: str) -> None:
    how, message = WRONG[name]
    arguments: dict[str, Any] = {
        "paged_kv_indptr": i32(0, 1, 3),
        "paged_kv_indices": i32(4, 2, 0),
        "paged_kv_last_page_len": i32(1, 4),
        "page_size": 4,
    }
    assert refusal(flash.block_table_from_csr, **{**arguments, **how}) == f"block_table_from_csr: {message}"


def test_more_keys_than_a_kernel_can_number_are_refused() -> None:
    one = np.zeros(1, np.int32)
    many = np.lib.stride_tricks.as_strided(one, (2**22 + 1,), (0,))
    assert refusal(flash.block_table_from_csr, i32(0, 2**22 + 1), many, i32(1), 256) == (
        "block_table_from_csr: sequence 0 must have at most 1073741568 keys, got 4194305 pages of 256"
    )


def test_arrays_on_a_gpu_are_refused() -> None:
    driver = FakeDriver(FakeDevice())
    there = on_device(driver, i32(0, 1))
    assert refusal(flash.block_table_from_csr, there, i32(3), i32(1), 4) == (
        "block_table_from_csr: paged_kv_indptr must be on the host, got an array on a GPU; pass a copy on "
        "the host, and move block_table and seqused_k to the GPU"
    )
