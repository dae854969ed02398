"""The steps of a block in numpy: products of queries with keys, weights, and these with values."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flash.cpu.blocks import Workspace, product_of_seen, scores_of
from flash.cpu.chunks import copied_whole, in_chunks, keys_of_chunk
from flash.cpu.paged_rows import KeyIndex, KeyRows

Array = NDArray[Any]

# The most rows whose product with a head of K is done in chunks of keys. With more rows, a copy of K in one
# piece costs little next to the product.
_ROWS_IN_CHUNKS: Final = 16


def scores_of_keys(space: Workspace, source: KeyRows, index: KeyIndex, q: Array, out: Array) -> None:
    """Write `q @ k^T` to `out` [kv_heads, rows, keys], which is dense; q is [kv_heads, rows, d], and k
    the keys at `index`. Buffer "read" holds the scores in the order in which pages are read.
    """
    rows = q.shape[1]
    if rows > _ROWS_IN_CHUNKS:
        for some, k in space.of_keys("k", source, index, rows):
            scores_of(space, q[some], k, out[some])
        return
    whole = copied_whole(space, "k", source, index, rows)
    if whole is not None:
        if rows == 1:
            np.matmul(whole, q.swapaxes(1, 2), out.swapaxes(1, 2))
        else:
            scores_of(space, q, whole, out)
        return
    for chunks in in_chunks(space, "k", source, index, rows):
        queries, wanted = q[chunks.heads], chunks.of(out)
        result = wanted if chunks.order is None else _as_read(space, wanted)
        if rows == 1:  # what each of many parts would repeat is done before
            column, results = queries.swapaxes(1, 2), result.swapaxes(3, 4)
            for pages, k in chunks.parts:
                np.matmul(k, column, results[pages])
        else:
            for pages, k in chunks.parts:
                scores_of(space, queries, k, result[pages])
        if chunks.order is not None:
            wanted[chunks.order] = result


def weigh(space: Workspace, score: Array, hidden: Array | None, total: Array) -> None:
    """Write the exponentials of `score` [rows, keys] over it, and add their sums to `total` [rows]. What is
    `hidden`, of the shape of score, has weight 0.
    """
    np.exp(score, out=score)
    if hidden is not None:
        space.hide(score, hidden)
    total += score @ space.ones(score.shape[1])  # BLAS: four times as fast as sum(axis=1)


def weights_again(space: Workspace, score: Array, hidden: Array | None, lse: Array) -> None:
    """Write the weights that follow from `score` [rows, keys] and the log of the row sums, `lse` [rows], over
    the scores. What is `hidden`, of the shape of score, has weight 0.
    """
    np.subtract(score, lse[:, None], out=score)
    np.exp(score, out=score)
    if hidden is not None:
        space.hide(score, hidden)


def score_gradients(
    space: Workspace, dweight: Array, hidden: Array | None, weight: Array, delta: Array
) -> None:
    """Write the gradient of scores, `(dweight - delta) * weight`, over the gradient of weights, `dweight`
    [rows, keys]; delta is [rows]. What is `hidden` has the gradient 0.
    """
    dweight -= delta[:, None]
    dweight *= weight
    if hidden is not None:
        space.hide(dweight, hidden)


def outputs_of_values(
    space: Workspace, source: KeyRows, index: KeyIndex, weight: Array, hidden: Array | None, out: Array
) -> None:
    """Write `weight @ v` to `out` [kv_heads, rows, d_v], which is dense; weight is [kv_heads, rows, keys],
    and v the values at `index`. `hidden`, of the shape of weight, or None, is as in `product_of_seen`.
    """
    rows = weight.shape[1]
    if rows > _ROWS_IN_CHUNKS:
        for some, v in space.of_keys("v", source, index, rows):
            unseen = None if hidden is None else hidden[some]
            product_of_seen(space, "v", weight[some], v, unseen, out=out[some])
        return
    whole = copied_whole(space, "v", source, index, rows)
    if whole is not None:
        product_of_seen(space, "v", weight, whole, hidden, out=out)
        return
    count = -(-index.length // keys_of_chunk(rows, source.dtype == space.dtype))
    sums = space.take("sums", count, out.size)
    _sums_of_chunks(space, source, index, weight, hidden, sums.reshape(count, *out.shape))
    np.matmul(space.ones(count), sums, out=out.reshape(-1))


def _sums_of_chunks(
    space: Workspace, source: KeyRows, index: KeyIndex, weight: Array, hidden: Array | None, out: Array
) -> None:
    """Write `weight @ v` of each chunk to `out` [chunks, kv_heads, rows, d_v], which is dense. Buffer "read"
    holds the products in the order in which pages are read.
    """
    each = keys_of_chunk(weight.shape[1], source.dtype == space.dtype)
    for chunks in in_chunks(space, "v", source, index, weight.shape[1]):
        factor = chunks.of(weight)
        unseen = None if hidden is None else chunks.of(hidden)
        first, some = chunks.keys.start // each, chunks.shape[0] * chunks.shape[1]
        wanted = out[first : first + some, chunks.heads]
        wanted = wanted.reshape(*chunks.shape[:2], *wanted.shape[1:])
        result = wanted
        if chunks.order is not None:
            result, factor = _as_read(space, wanted), factor[chunks.order]
            unseen = None if unseen is None else unseen[chunks.order]
        for pages, v in chunks.parts:
            of_these = None if unseen is None else unseen[pages]
            product_of_seen(space, "v", factor[pages], v, of_these, out=result[pages])
        if chunks.order is not None:
            wanted[chunks.order] = result


def _as_read(space: Workspace, x: Array) -> Array:
    """Buffer "read" of the workspace as a dense array of the shape of `x`."""
    return space.take("read", 1, x.size).reshape(x.shape)
