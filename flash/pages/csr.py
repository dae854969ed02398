"""Page tables in compressed rows (CSR), as FlashInfer and SGLang keep them, as block tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flash.host.caller import raise_problems, views_of
from flash.operands.declared import MAX_WINDOWED_SEQ
from flash.pages.placement import NO_PAGE
from flash.problem.features import MAX_PAGE_SIZE
from ptxgen.arguments import integer
from ptxgen.arrays.views import HOST, ArrayView, host_array
from ptxgen.errors import LaunchError, shown

_CALLER: Final = "block_table_from_csr"
_TYPES: Final = ("int32", "int64")
_MOST_PAGE: Final = 2**31 - 1

Array = NDArray[Any]


def block_table_from_csr(
    paged_kv_indptr: object, paged_kv_indices: object, paged_kv_last_page_len: object, page_size: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """(block_table, seqused_k) for `attention_varlen`, of a page table in compressed rows.

    The pages of sequence b are paged_kv_indices[paged_kv_indptr[b] : paged_kv_indptr[b + 1]], all
    full but the last, which has paged_kv_last_page_len[b] keys, 1 to page_size; a sequence without
    pages has 0 (FlashInfer, "Page Table Layout"). `paged_kv_indptr` is [batch + 1] and begins with
    0, `paged_kv_last_page_len` [batch]; `paged_kv_indices` may have more elements than are used.
    All are int32 or int64, of any array library, on the host: arrays on a GPU are refused, because
    the number of columns of the table depends on their contents.

    Returns numpy arrays: block_table int32 [batch, n], where n is the most pages of a sequence, at
    least 1, and unused entries are -1; and seqused_k int32 [batch], the keys of each sequence.

    Raises `LaunchError` with every problem of the arguments.
    """
    size = integer(page_size, 1, MAX_PAGE_SIZE)
    if size is None:
        raise LaunchError(
            f"{_CALLER}: page_size must be an integer from 1 to {MAX_PAGE_SIZE}, got {shown(page_size)}"
        )
    arrays = {
        "paged_kv_indptr": paged_kv_indptr,
        "paged_kv_indices": paged_kv_indices,
        "paged_kv_last_page_len": paged_kv_last_page_len,
    }
    views = views_of(arrays, _CALLER)
    raise_problems([p for name, array in views.items() for p in _problems_of(name, array)], _CALLER)
    ends, pages, last = (host_array(array).astype(np.int64) for array in views.values())
    raise_problems(_problems_of_lengths(ends, pages, last, size), _CALLER)
    counts = np.diff(ends)
    columns = np.arange(max(int(counts.max(initial=0)), 1))
    used = columns < counts[:, None]
    table = np.full(used.shape, NO_PAGE, np.int32)
    table[used] = pages[: ends[-1]]
    return table, (np.maximum(counts - 1, 0) * size + last).astype(np.int32)


def _problems_of(name: str, array: ArrayView) -> Iterator[str]:
    """Say what is wrong with the device, type and shape of an array."""
    if array.device != HOST:
        yield (
            f"{name} must be on the host, got an array on a GPU; pass a copy on the host, and move "
            "block_table and seqused_k to the GPU"
        )
    if array.dtype not in _TYPES:
        yield f"{name} must be one of {', '.join(_TYPES)}, got {array.dtype}"
    if len(array.shape) != 1:
        yield f"{name} must have one dimension, got shape {list(array.shape)}"
    elif array.size > _MOST_PAGE:
        yield f"{name} must have at most {_MOST_PAGE} elements, got {array.size}"


def _problems_of_lengths(ends: Array, pages: Array, last: Array, size: int) -> Iterator[str]:
    """Say what is wrong with the elements: the first wrong one of each array."""
    if not ends.size or ends[0]:
        got = ends[0] if ends.size else "no element"
        yield f"paged_kv_indptr must begin with 0, got {got}"
        return
    if last.size != ends.size - 1:
        yield (
            f"paged_kv_last_page_len must be [batch] = [{ends.size - 1}], one less than paged_kv_indptr, "
            f"got [{last.size}]"
        )
        return
    wrong = np.flatnonzero((np.diff(ends) < 0) | (ends[1:] > pages.size))
    if wrong.size:
        at = int(wrong[0]) + 1
        yield (
            f"paged_kv_indptr[{at}] must be from {ends[at - 1]}, which is paged_kv_indptr[{at - 1}], to "
            f"{pages.size}, the elements of paged_kv_indices, got {ends[at]}"
        )
        return
    counts = np.diff(ends)
    wrong = np.flatnonzero((last < np.minimum(counts, 1)) | (last > np.where(counts, size, 0)))
    if wrong.size:
        at = int(wrong[0])
        wanted = f"from 1 to {size}, the rows of a page," if counts[at] else "0, as the sequence has no page,"
        yield f"paged_kv_last_page_len[{at}] must be {wanted} got {last[at]}"
    used = pages[: ends[-1]]
    wrong = np.flatnonzero((used < 0) | (used > _MOST_PAGE))
    if wrong.size:
        at = int(wrong[0])
        yield f"paged_kv_indices[{at}] must be from 0 to {_MOST_PAGE}, got {used[at]}"
    if counts.max(initial=0) > MAX_WINDOWED_SEQ // size:
        at = int(counts.argmax())
        yield (f"sequence {at} must have at most {MAX_WINDOWED_SEQ} keys, got {counts[at]} pages of {size}")
