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
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from flash.cpu.blocks import Workspace, arithmetic_of, heads_together, rows_of
from flash.cpu.engine import NUMPY, Engine
from flash.cpu.paged_rows import KeyPlace, KeyRows
from flash.cpu.scores import ScoreRules
from flash.cpu.threads import share_out
from flash.operands.words import Causal
from flash.scores.feature import Block
from flash.scores.features import ScoreArguments, scored

# 256 x 512 f32 scores are 512 KiB, half of the L2 cache of a server core: fewer queries cost GEMM
# speed and more Python calls, more cost wasted scores above the causal diagonal.
BLOCK_Q = 256
BLOCK_K = 512

# From so many blocks of BLOCK_Q rows on, two are joined, with 1 MiB of f32 scores, for fewer calls of
# numpy: of one head if all queries see the same keys, because BLAS multiplies these in less time, else of two
# heads. Half as many blocks still keep 16 threads busy.
_BLOCKS_TO_JOIN = 32

# A block of fewer rows has more keys, as long as it has no more scores, and K of a head has no more
# elements (1 MiB of f32).
KEY_ELEMENTS = 2**18

# Reading an element of K or V takes as long as so many multiplications of a product of matrices.
_READ = 16

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
    engine: Engine = NUMPY,
    **scores: Unpack[ScoreArguments],
) -> None:
    """Write `softmax(scale * q @ k^T) @ v` into `out`, and log of the row sums into `lse`.

    Shapes: q [batch, heads, seq_q, d], k [batch, kv_heads, seq_k, d], v [batch, kv_heads, seq_k,
    d_v], out [batch, heads, seq_q, d_v], lse [batch, heads, seq_q] or None; heads is a multiple of
    kv_heads; any strides. k and v may also be `PagedRows`, which are read
    where they lie, or of which a block is copied.
    The caller (`LaunchPlan`) has checked this and that `out` and `lse` overlap no input. Arithmetic
    is f64 if an input is f64, else f32; inputs of another float type, such as f16 and bfloat16, are
    converted block by block, and results are rounded once, to the types of `out` and `lse`. The
    scale defaults to 1 / sqrt(d). A row that sees no key gives 0 and
    -inf. The contents of keys and values that a row does not see cannot reach it; NaN in a key or
    value that it sees does. `attention_reference` says what `first_batch`, `first_query`
    and the arguments of scores mean.

    Extra memory is at most, for each thread and whatever the sequence lengths,
    `2 * BLOCK_Q * (2 * BLOCK_K + d + 2 * d_v + 8) + 2 * max(KEY_ELEMENTS, BLOCK_K * max(d, d_v))`
    elements of the arithmetic's type (4.7 MB for f32 and d = d_v = 64; a third of that for many queries)
    and `8 * BLOCK_Q * BLOCK_K` bytes, with ALiBi or a bias up to 8 * `BLOCK_Q * BLOCK_K` elements more,
    and with pages of another type up to 2 * KEY_ELEMENTS of it; and, if the engine computes few rows at
    once, q as another array of the arithmetic's type.
    `engine` computes the blocks. `threads` is the most threads that work, by default as many as BLAS would
    use. BLAS is held to one thread in the whole process while this runs. Repeated calls give the same bits,
    whatever the number of threads and the addresses and strides of the arrays.

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
        engine=engine,
    )
    few = _Few.of(job)

    def attend(space: Workspace, task: tuple[int, slice, slice]) -> None:
        is_safe = None if few is None else _attend_few(job, few, space, *task)
        if not is_safe:
            _attend(job, space, *task, shifted=is_safe is not None)

    share_out(
        job.tasks(),
        lambda: Workspace(dtype),
        attend,
        threads=threads,
        multiplications=max(q.size * seq_k * 2, _READ * (math.prod(k.shape) + math.prod(v.shape))),
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
    engine: Engine

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        heads, kv_heads = self.q.shape[1], self.k.shape[1]
        return int(heads // kv_heads)

    def kv_heads(self, heads: slice) -> slice:
        """The key/value heads to which these query heads attend."""
        return slice(heads.start // self.group, (heads.stop - 1) // self.group + 1)

    @property
    def widest(self) -> int:
        """The larger of head_dim and head_dim_v, or 1."""
        return max(1, self.k.shape[3], self.v.shape[3])

    def keys_at_once(self, rows: int) -> int:
        """Keys of a block of so many rows: a multiple of BLOCK_K."""
        fitting = min(BLOCK_Q * BLOCK_K // rows, KEY_ELEMENTS // self.widest)
        return max(BLOCK_K, fitting // BLOCK_K * BLOCK_K)

    def tasks(self) -> Iterator[tuple[int, slice, slice]]:
        """(batch, heads, queries) of each task, those with the most keys first."""
        batch, heads, seq_q, _ = self.q.shape
        if 0 in (batch, heads, seq_q):
            return
        most_kv = max(1, self.engine.together * KEY_ELEMENTS // max(1, self.k.shape[2] * self.widest))
        rows = 2 * BLOCK_Q if batch * heads * seq_q >= _BLOCKS_TO_JOIN * BLOCK_Q else BLOCK_Q
        block = rows if self.rules.see_the_same(slice(0, seq_q)) else BLOCK_Q
        joined = list(heads_together(range(heads), self.group, min(block, seq_q), rows, most_kv))
        for q0 in reversed(range(0, seq_q, block)):
            queries = slice(q0, min(q0 + block, seq_q))
            for b in range(batch):
                for together in joined:
                    yield b, together, queries


class _Few(NamedTuple):
    """What blocks have in common where the engine computes each at once: q [batch, kv_heads, rows, d] times
    the scale, and the keys that all rows see.
    """

    q: NDArray[Any]
    keys: slice

    @classmethod
    def of(cls, job: _Job) -> _Few | None:
        """None if the engine computes blocks step by step."""
        batch, heads, seq_q, d = job.q.shape
        all_queries = slice(0, seq_q)
        if 0 in (batch, heads, seq_q) or job.group * seq_q > job.engine.few_rows:
            return None
        seen = job.rules.seen_by_any(all_queries)
        if not seen or not job.rules.leave_alone(all_queries):
            return None
        q, factor = Workspace(job.dtype).scaled("q", job.q, job.scale)
        if factor != 1:
            return None
        return cls(q.reshape(batch, -1, job.group * seq_q, d), slice(seen.start, seen.stop))


def _attend_few(job: _Job, few: _Few, space: Workspace, b: int, heads: slice, queries: slice) -> bool | None:
    """Do what `_attend` does if sums without the maximum are safe, and return whether they are; None if the
    engine does not compute the block at once.
    """
    if job.engine.attend is None:
        return None
    place = KeyPlace(b, job.kv_heads(heads), few.keys)
    q, count = few.q[b, place.heads], (heads.stop - heads.start) * job.q.shape[2]
    _, total = _before_any_key(job.rules.sinks(b, heads, count), count, job.dtype, shifted=False)
    out = np.empty((*q.shape[:2], job.v.shape[3]), job.dtype)
    is_safe = job.engine.attend(space, job.k, job.v, place, q, total, out, SAFE_TOTAL, SAFE_SUM)
    if not is_safe:
        return is_safe
    there = b, heads, queries
    job.out[there] = out.reshape(job.out[there].shape)
    if job.lse is not None:
        job.lse[there] = np.log(total).reshape(job.lse[there].shape)
    return True


class _Rows(NamedTuple):
    """A block of queries: (batch, heads, queries), and the heads of K and V that they attend to.
    `scaled` [rows, d] and `factor` are the results of `Workspace.scaled`.
    """

    place: tuple[int, slice, slice]
    kv_heads: slice
    scaled: NDArray[Any]
    factor: float

    def planes(self, array: NDArray[Any]) -> NDArray[Any]:
        """Rows of this block, [rows, n], by heads of K and V: [kv_heads, rows of each, n]."""
        return array.reshape(self.kv_heads.stop - self.kv_heads.start, -1, array.shape[-1])


def _attend(job: _Job, space: Workspace, b: int, heads: slice, queries: slice, *, shifted: bool) -> None:
    """Attention of one block of queries, of heads that share a key/value head or of all heads of some
    key/value heads, to all keys they see. `shifted` if sums without the maximum are known to be unsafe.
    """
    place = b, heads, queries
    q = job.q[place]
    rows = _Rows(place, job.kv_heads(heads), *space.scaled("q", q, job.scale))

    acc, total, top = _sweep(job, space, rows, shifted=shifted)
    if not shifted and not _safe(acc, total, space.take("part", *acc.shape)):
        acc, total, top = _sweep(job, space, rows, shifted=True)
    divisor = total if total.all() else np.where(total == 0, 1, total)
    acc /= divisor[:, None]
    job.out[place] = acc.reshape(*q.shape[:2], -1)
    if job.lse is not None:
        job.lse[place] = (top + np.log(total)).reshape(q.shape[:2])


def _safe(acc: NDArray[Any], total: NDArray[Any], size: NDArray[Any]) -> bool:
    """Whether the sums of an unshifted sweep lost nothing to overflow or underflow, nor met NaN.
    `size`, which is written, has the shape of `acc`.
    """
    if not (total.min() >= SAFE_TOTAL and total.max() < np.inf):
        return False
    np.abs(acc, out=size)
    if not size.max() < np.inf:
        return False
    if size.min() >= SAFE_SUM:  # the usual case, in a fraction of the time of what follows
        return True
    largest = size.max(axis=1)
    return bool(((largest >= SAFE_SUM) | (largest == 0)).all())


def _sweep(
    job: _Job, space: Workspace, rows: _Rows, *, shifted: bool
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Sum exp(score - top) * v and exp(score - top) over the keys: acc, total, top.

    `top` is each row's greatest score if `shifted`, as in FlashAttention-2, else 0: that saves finding
    the maximum and subtracting it, but the sums may overflow or vanish.
    """
    rules, (b, heads, queries) = job.rules, rows.place
    count, d_v, q = len(rows.scaled), job.v.shape[3], rows.planes(rows.scaled)
    acc = part = space.take("acc", count, d_v)  # the first block writes there
    top, total = _before_any_key(rules.sinks(b, heads, count), count, job.dtype, shifted)

    seen = rules.seen_by_any(queries)
    if not seen:
        acc.fill(0)
    step = job.keys_at_once(count)
    for k0 in range(seen.start, seen.stop, step):
        of_keys = KeyPlace(b, rows.kv_heads, slice(k0, min(k0 + step, seen.stop)))
        score = space.take("scores", count, of_keys.length)
        job.engine.scores_of_keys(space, job.k, of_keys, q, rows.planes(score))
        if rows.factor != 1:
            score *= job.dtype.type(rows.factor)
        by_head = score.reshape(heads.stop - heads.start, -1, of_keys.length)
        place = Block(rules.of, b, heads, queries, of_keys.keys)
        rules.apply(by_head, place)
        hidden = rules.hidden(place)
        unseen = None if hidden is None else rows_of(hidden, count)
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
        rules.drop(by_head, place)
        of_heads = None if unseen is None else rows.planes(unseen)
        job.engine.outputs_of_values(space, job.v, of_keys, rows.planes(score), of_heads, rows.planes(part))
        if part is acc:
            part = space.take("part", count, d_v)
        else:
            acc += part
    return acc, total, top


def _before_any_key(
    sinks: NDArray[Any] | None, rows: int, dtype: np.dtype[Any], shifted: bool
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The `top` and `total` of each row before any key, with its sink if there is one."""
    if sinks is None:
        total = np.zeros(rows, dtype)
        return np.full(rows, -np.inf, dtype) if shifted else total.copy(), total
    if shifted:
        return sinks, np.where(np.isneginf(sinks), 0, 1).astype(dtype)
    return np.zeros(rows, dtype), np.exp(sinks)
