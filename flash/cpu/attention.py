"""The `cpu` backend's engine: blocked attention on numpy and BLAS, in O(N) memory.

FlashAttention-2 on a CPU: a block of queries meets the keys block by block, with running row sums
and outputs, and its scores stay in a core's L2 cache. Blocks of queries are shared out among Python
threads (numpy releases the GIL) with BLAS held to one thread in each, so that exp is parallel too.

The running row maximum costs a quarter of the time outside GEMM, and ordinary scores do not need
it: exp(score) neither overflows nor vanishes. So a block is first computed without the maximum, and
again with it only if its sums turn out to be unsafe. The choice depends on the data alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from flash.cpu.blocks import Workspace, arithmetic_of, heads_together, product_of_seen, rows_of
from flash.cpu.paged_rows import HeadRows, KeyRows
from flash.cpu.scores import ScoreRules
from flash.cpu.threads import share_out
from flash.operands.words import Causal
from flash.scores.feature import Block
from flash.scores.features import ScoreArguments, scored

# 256 x 512 f32 scores are 512 KiB, half of the L2 cache of a server core: fewer queries cost GEMM
# speed and more Python calls, more cost wasted scores above the causal diagonal.
BLOCK_Q = 256
BLOCK_K = 512

# exp(score) is used without the maximum if every row's sum of exp(score) is finite and at least
# SAFE_TOTAL, and its largest |sum of exp(score) * v| is finite and at least SAFE_SUM (or 0, as for
# v = 0). Then the loss of f32 below its smallest number, 2^-149 for each key, is negligible beside
# its rounding.
SAFE_TOTAL = 2.0**-20
SAFE_SUM = 2.0**-100


def attention_cpu(
    q: NDArray[Any],
    k: KeyRows,
    v: KeyRows,
    out: NDArray[Any],
    lse: NDArray[Any] | None,
    *,
    softmax_scale: float | None,
    causal: Causal,
    first_batch: int = 0,
    first_query: int = 0,
    threads: int | None = None,
    **scores: Unpack[ScoreArguments],
) -> None:
    """Write `softmax(scale * q @ k^T) @ v` into `out`, and log of the row sums into `lse`.

    Shapes: q [batch, heads, seq_q, d], k [batch, kv_heads, seq_k, d], v [batch, kv_heads, seq_k,
    d_v], out [batch, heads, seq_q, d_v], lse [batch, heads, seq_q] or None; heads is a multiple of
    kv_heads; any strides. k and v may also be `PagedRows`, of which a block at a time is copied.
    The caller (`LaunchPlan`) has checked this and that `out` and `lse` overlap no input. Arithmetic
    is f64 if an input is f64, else f32; inputs of another float type, such as f16 and bfloat16, are
    converted block by block, and results are rounded once, to the types of `out` and `lse`. The
    scale defaults to 1 / sqrt(d). A row that sees no key gives 0 and
    -inf. The contents of keys and values that a row does not see cannot reach it; NaN in a key or
    value that it sees does. `attention_reference` says what `first_batch`, `first_query`
    and the arguments of scores mean.

    Extra memory is at most, for each thread and whatever the sequence lengths,
    `BLOCK_Q * (BLOCK_K + d + 3 * d_v + 8) + BLOCK_K * (d + 2 * d_v + 1)` elements of the
    arithmetic's type (1.2 MB for f32 and d = d_v = 64) and `BLOCK_Q * BLOCK_K` bytes, and with
    ALiBi or a bias up to 4 * `BLOCK_Q * BLOCK_K` elements more.
    `threads` is the most threads that work, by default as many as BLAS would use. BLAS is held to
    one thread in the whole process while this runs. Repeated calls give the same bits, whatever
    the number of threads and the addresses and strides of the arrays.

    Raises ConfigError when `causal` is not a known word.
    """
    seq_q, seq_k, d = q.shape[2], k.shape[2], q.shape[3]
    dtype = arithmetic_of(q, k, v)
    job = _Job(
        q,
        k,
        v,
        out,
        lse,
        scale=1 / math.sqrt(d) if softmax_scale is None else softmax_scale,
        rules=ScoreRules.asked_by(
            scored((*q.shape[:2], seq_q, seq_k), causal, dtype, first_batch, scores, first_query)
        ),
        dtype=dtype,
    )
    share_out(
        job.tasks(),
        lambda: _Workspace(job),
        lambda space, task: _attend(job, space, *task),
        threads=threads,
        multiplications=q.size * seq_k * 2,
    )


@dataclass(frozen=True, slots=True)
class _Job:
    """The resolved arguments of one call, which all of its tasks read."""

    q: NDArray[Any]
    k: KeyRows
    v: KeyRows
    out: NDArray[Any]
    lse: NDArray[Any] | None
    scale: float
    rules: ScoreRules
    dtype: np.dtype[Any]

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        heads, kv_heads = self.q.shape[1], self.k.shape[1]
        return int(heads // kv_heads)

    def tasks(self) -> Iterator[tuple[int, slice, slice]]:
        """(batch, heads, queries) of each task, those with the most keys first."""
        batch, heads, seq_q, _ = self.q.shape
        if 0 in (batch, heads, seq_q):
            return
        for q0 in reversed(range(0, seq_q, BLOCK_Q)):
            queries = slice(q0, min(q0 + BLOCK_Q, seq_q))
            for b in range(batch):
                for first in range(0, heads, self.group):
                    for together in heads_together(first, self.group, seq_q, BLOCK_Q):
                        yield b, together, queries


class _Workspace(Workspace):
    """One thread's buffers, and ones."""

    def __init__(self, job: _Job) -> None:
        d, d_v = job.q.shape[3], job.v.shape[3]
        rows = min(BLOCK_Q, job.q.shape[2] * job.group)
        keys = min(BLOCK_K, job.k.shape[2])
        sizes = {
            "q": rows * d,
            "k": keys * d,
            "v": keys * d_v,
            "scores": rows * keys,
            "acc": rows * d_v,
            "part": rows * d_v,
            "ones": keys,
        }
        super().__init__(job.dtype, sizes)
        self.ones = self.take("ones", 1, keys)[0]
        self.ones.fill(1)


def _attend(job: _Job, space: _Workspace, b: int, heads: slice, queries: slice) -> None:
    """Attention of one block of queries, of heads that share a key/value head, to all keys they
    see.
    """
    kv = heads.start // job.group
    q, k, v = job.q[b, heads, queries], job.k[b, kv], job.v[b, kv]
    scaled = space.scaled("q", q, job.scale)

    block = b, heads, queries
    acc, total, top = _sweep(job, space, scaled, k, v, block, shifted=False)
    if not _safe(acc, total):
        acc, total, top = _sweep(job, space, scaled, k, v, block, shifted=True)
    total_or_one = np.where(total == 0, 1, total)
    job.out[b, heads, queries] = (acc / total_or_one[:, None]).reshape(*q.shape[:2], -1)
    if job.lse is not None:
        job.lse[b, heads, queries] = (top + np.log(total)).reshape(q.shape[:2])


def _safe(acc: NDArray[Any], total: NDArray[Any]) -> bool:
    """Whether the sums of an unshifted sweep lost nothing to overflow or underflow, nor met NaN."""
    size = np.maximum(acc.max(axis=1), -acc.min(axis=1))
    lasting = (size >= SAFE_SUM) | (size == 0)
    return bool(((total >= SAFE_TOTAL) & (total < np.inf) & (size < np.inf) & lasting).all())


def _sweep(
    job: _Job,
    space: _Workspace,
    scaled: tuple[NDArray[Any], float],
    k: HeadRows,
    v: HeadRows,
    block: tuple[int, slice, slice],
    *,
    shifted: bool,
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Sum exp(score - top) * v and exp(score - top) over the keys: acc, total, top.

    `scaled` is the result of `Workspace.scaled`, `block` is (batch, heads, queries). `top` is each
    row's greatest score if `shifted`, as in FlashAttention-2, else 0: that saves finding the maximum
    and subtracting it, but the sums may overflow or vanish.
    """
    (q, factor), rules, queries = scaled, job.rules, block[2]
    rows, count, d_v = len(q), queries.stop - queries.start, v.shape[1]
    acc, part = space.take("acc", rows, d_v), space.take("part", rows, d_v)
    acc.fill(0)
    top, total = _before_any_key(rules.sinks(*block[:2], rows), rows, job.dtype, shifted)

    seen = rules.seen_by_any(queries)
    for k0 in range(seen.start, seen.stop, BLOCK_K):
        keys = slice(k0, min(k0 + BLOCK_K, seen.stop))
        score = space.take("scores", rows, keys.stop - k0)
        np.matmul(q, space.for_blas("k", k[keys], rows).T, out=score)
        if factor != 1:
            score *= job.dtype.type(factor)
        by_head = score.reshape(-1, count, keys.stop - k0)
        place = Block(rules.of, *block, keys)
        rules.apply(by_head, place)
        hidden = rules.hidden(place)
        if hidden is not None:
            np.copyto(by_head, -np.inf, where=hidden)
        if shifted:
            old, top = top, np.maximum(top, score.max(axis=1))
            shift = np.where(np.isneginf(top), 0, top)  # no key yet: -inf - -inf would be NaN
            np.subtract(score, shift[:, None], out=score)
            decay = np.exp(old - shift)
            total *= decay
            acc *= decay[:, None]
        weight = np.exp(score, out=score)
        total += weight @ space.ones[: keys.stop - k0]  # BLAS: four times as fast as sum(axis=1)
        rules.drop(by_head, place)
        acc += _weigh(space, weight, v[keys], hidden, out=part)
    return acc, total, top


def _before_any_key(
    sinks: NDArray[Any] | None, rows: int, dtype: np.dtype[Any], shifted: bool
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The `top` and `total` of each row before any key, with its sink if there is one."""
    if sinks is None:
        return np.full(rows, -np.inf if shifted else 0, dtype), np.zeros(rows, dtype)
    if shifted:
        return sinks, np.where(np.isneginf(sinks), 0, 1).astype(dtype)
    return np.zeros(rows, dtype), np.exp(sinks)


def _weigh(
    space: _Workspace,
    weight: NDArray[Any],
    v: NDArray[Any],
    hidden: NDArray[np.bool_] | None,
    out: NDArray[Any],
) -> NDArray[Any]:
    """`weight @ v` in `out`; `hidden` is [heads or 1, queries, keys], or None."""
    value = space.for_blas("v", v, len(weight))
    unseen = None if hidden is None else rows_of(hidden, len(weight))
    return product_of_seen(weight, value, unseen, space.take("v", *value.shape), out)
