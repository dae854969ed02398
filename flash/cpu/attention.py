"""The `cpu` backend's engine: blocked attention on numpy and BLAS, in O(N) memory.

FlashAttention-2 on a CPU: a block of queries meets the keys block by block, with running row sums
and outputs, and its scores stay in a core's L2 cache. Blocks of queries are shared out among Python
threads (numpy releases the GIL) with BLAS held to one thread in each, so that exp is parallel too.
Few queries meet more keys at once, and several heads share a block, so that decoding a token takes
few calls of numpy.

The running row maximum costs a quarter of the time outside GEMM, and ordinary scores do not need
it: exp(score) neither overflows nor vanishes. So a block is first computed without the maximum, and
again with it only if its sums turn out to be unsafe. The choice depends on the data alone.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from flash.cpu.blocks import Workspace, arithmetic_of, rows_of
from flash.cpu.engine import NUMPY, Engine
from flash.cpu.few_queries import tasks_left
from flash.cpu.job import SAFE, Job, before_any_key
from flash.cpu.paged_rows import KeyIndex, KeyRows
from flash.cpu.scores import rules_of
from flash.cpu.threads import share_out
from flash.operands.dtype_names import Causal
from flash.scores.feature import Block
from flash.scores.features import ScoreArguments

_FEW: Final = 8  # numbers that Python compares in less time than numpy


def attention_cpu(
    q: NDArray[Any],
    k: KeyRows,
    v: KeyRows,
    out: NDArray[Any],
    lse: NDArray[Any] | None = None,
    *,
    softmax_scale: float | None,
    causal: Causal,
    first_batch: int = 0,
    first_query: int = 0,
    threads: int | None = None,
    engine: Engine = NUMPY,
    max_logit: NDArray[Any] | None = None,
    **scores: Unpack[ScoreArguments],
) -> None:
    """Write `softmax(scale * q @ k^T) @ v` into `out`, log of the row sums into `lse`, and the largest score
    that the rows of each head see into `max_logit` [batch, heads], unless it is None.

    Shapes: q [batch, heads, seq_q, d], k [batch, kv_heads, seq_k, d], v [batch, kv_heads, seq_k,
    d_v], out [batch, heads, seq_q, d_v], lse [batch, heads, seq_q] or None; heads is a multiple of
    kv_heads; any strides. k and v may also be `PagedRows`, which are read in place, or copied block by block.
    The caller (`LaunchPlan`) has checked this and that `out` and `lse` overlap no input. Arithmetic
    is f64 if an input is f64, else f32; inputs of another float type, such as f16 and bfloat16, are
    converted block by block, and results are rounded once, to the types of `out` and `lse`. The
    scale defaults to 1 / sqrt(d). A row that sees no key gives 0 and
    -inf. The contents of keys and values that a row does not see cannot reach it; NaN in a key or
    value that it sees does. `attention_reference` says what `first_batch`, `first_query`
    and the arguments of scores mean.

    For each thread, whatever the sequence lengths are, extra memory is at most
    `2 * BLOCK_Q * (2 * BLOCK_K + d + 2 * d_v + 8) + 2 * max(KEY_ELEMENTS, BLOCK_K * max(d, d_v))`
    elements of the arithmetic's type (4.7 MB for f32 and d = d_v = 64; a third of that for many queries)
    and `8 * BLOCK_Q * BLOCK_K` bytes, with ALiBi or a bias up to 8 * `BLOCK_Q * BLOCK_K` elements more,
    and with pages of another type up to 2 * KEY_ELEMENTS of it (the names in capitals are of
    `flash.cpu.job`); and, if the engine computes few rows at once, q and out as other arrays of the
    arithmetic's type, 2048 scores of each row, and copies of k and v if their rows are not dense.
    `engine` computes the blocks. `threads` is the most threads that work, by default as many as BLAS would
    use. BLAS is held to one thread in the whole process while blocks are computed step by step. Repeated
    calls give the same bits, whatever the number of threads and the addresses and strides of the arrays.

    Raises ConfigError when `causal` is not a known word.
    """
    seq_q, seq_k, d = q.shape[2], k.shape[2], q.shape[3]
    dtype = arithmetic_of(q, k, v)
    job = Job(
        q,
        k,
        v,
        out,
        lse,
        scale=1 / math.sqrt(d) if softmax_scale is None else softmax_scale,
        rules=rules_of((*q.shape[:2], seq_q, seq_k), causal, dtype, first_batch, first_query, scores),
        dtype=dtype,
        engine=engine,
        tops=None if max_logit is None else np.full(q.shape[:3], -np.inf, dtype),
    )
    left = None if engine.attend is None else tasks_left(job, threads)
    spaces: list[Workspace] = []

    def space() -> Workspace:
        spaces.append(Workspace.spare(dtype))
        return spaces[-1]

    share_out(
        job.tasks() if left is None else left,
        space,
        lambda space, task: _attend(job, space, *task, shifted=left is not None),
        threads=threads,
        multiplications=job.multiplications,
    )
    for used in spaces:
        used.end()
    if job.tops is not None and max_logit is not None:
        max_logit[...] = job.tops.max(axis=2, initial=-np.inf)


class _Rows(NamedTuple):
    """A block of queries: (batch, heads, queries), and the heads of K and V that they attend to.
    `scaled` [rows, d] and `factor` are the results of `Workspace.scaled`.
    """

    slices: tuple[int, slice, slice]
    kv_heads: slice
    scaled: NDArray[Any]
    factor: float

    def planes(self, array: NDArray[Any]) -> NDArray[Any]:
        """Rows of this block, [rows, n], by heads of K and V: [kv_heads, rows of each, n]."""
        return array.reshape(self.kv_heads.stop - self.kv_heads.start, -1, array.shape[-1])


def _attend(job: Job, space: Workspace, b: int, heads: slice, queries: slice, *, shifted: bool) -> None:
    """Attention of one block of queries, of heads that share a key/value head or of all heads of some
    key/value heads, to all keys they see. `shifted` if sums without the maximum are known to be unsafe.
    """
    index = b, heads, queries
    q = job.q[index]
    rows = _Rows(index, job.kv_heads(heads), *space.scaled("q", q, job.scale))

    acc, total, top = _sweep(job, space, rows, shifted=shifted)
    divisor = total
    if shifted or not _safe(acc, total, space.take("part", *acc.shape)):
        if not shifted:
            acc, total, top = _sweep(job, space, rows, shifted=True)
        divisor = total if total.all() else np.where(total == 0, 1, total)
    acc /= divisor[:, None]
    job.out[index] = acc.reshape(*q.shape[:2], -1)
    if job.lse is not None:
        job.lse[index] = (top + np.log(total)).reshape(q.shape[:2])


def _safe(acc: NDArray[Any], total: NDArray[Any], size: NDArray[Any]) -> bool:
    """Whether the sums of an unshifted sweep lost nothing to overflow or underflow, and contain no NaN.
    `size`, which is written, has the shape of `acc`.
    """
    least, most = np.minimum.reduce, np.maximum.reduce  # without the steps in Python of an array's methods
    if len(total) <= _FEW:
        if not all(SAFE.total <= value < math.inf for value in total.tolist()):
            return False
    elif not (least(total) >= SAFE.total and most(total) < np.inf):
        return False
    np.abs(acc, out=size)
    if not size.item(size.argmax()) < np.inf:  # or NaN; `argmax` takes a third of the time of `max` of few
        return False
    if size.item(size.argmin()) >= SAFE.size:  # the usual case, in a fraction of the time of what follows
        return True
    largest = size.max(axis=1)
    return bool(((largest >= SAFE.size) | (largest == 0)).all())


def _sweep(
    job: Job, space: Workspace, rows: _Rows, *, shifted: bool
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Sum exp(score - top) * v and exp(score - top) over the keys: acc, total, top.

    `top` is each row's greatest score if `shifted`, as in FlashAttention-2, else 0: that saves finding
    the maximum and subtracting it, but the sums may overflow or vanish.
    """
    rules, (b, heads, queries) = job.rules, rows.slices
    count, d_v, q = len(rows.scaled), job.v.shape[3], rows.planes(rows.scaled)
    acc = part = space.take("acc", count, d_v)  # the first block writes there
    top, total = before_any_key(rules.sinks(b, heads, count), count, job.dtype, shifted)
    most = None if job.tops is None else job.tops[rows.slices]

    seen = rules.seen_by_any(queries)
    if not seen:
        acc.fill(0)
    step = job.keys_at_once(count)
    for k0 in range(seen.start, seen.stop, step):
        of_keys = KeyIndex(b, rows.kv_heads, slice(k0, min(k0 + step, seen.stop)))
        score = space.take("scores", count, of_keys.length)
        job.engine.scores_of_keys(space, job.k, of_keys, q, rows.planes(score))
        if rows.factor != 1:
            score *= job.dtype.type(rows.factor)
        by_head = score.reshape(heads.stop - heads.start, -1, of_keys.length)
        block = Block(rules.of, b, heads, queries, of_keys.keys)
        rules.apply(by_head, block)
        hidden = rules.hidden(block)
        unseen = None if hidden is None else rows_of(hidden, count)
        if most is not None:
            visible = score if unseen is None else np.where(unseen, -np.inf, score)
            np.maximum(most, visible.max(axis=1).reshape(most.shape), out=most)
        if shifted:
            if unseen is not None:
                np.copyto(score, -np.inf, where=unseen)
            old, top = top, np.maximum(top, score.max(axis=1))
            shift = np.where(np.isneginf(top), 0, top)  # no key yet: -inf - -inf would be NaN
            np.subtract(score, shift[:, None], out=score)
            decay = np.exp(old - shift)
            total *= decay
            if part is not acc:
                acc *= decay[:, None]
        job.engine.weigh(space, score, unseen, total)
        rules.drop(by_head, block)
        of_heads = None if unseen is None else rows.planes(unseen)
        job.engine.outputs_of_values(space, job.v, of_keys, rows.planes(score), of_heads, rows.planes(part))
        if part is acc:
            part = space.take("part", count, d_v)
        else:
            acc += part
    return acc, total, top
