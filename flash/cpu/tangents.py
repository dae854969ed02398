"""Tangents of the results of attention for tangents of Q, K and V (forward-mode derivatives) on numpy and
BLAS, blocked, in O(N) memory.

With S' the tangent of the scores: LSE' = rowsum(P S') and O' = (P (S' - LSE')) V + P V', products of P and S'
element by element. One sweep over the keys of each block of queries sums P S' V + P V' and P S', with the
weights computed again from Q, K and LSE.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Unpack

import numpy as np
from numpy.typing import NDArray

from flash.cpu.blocks import Workspace, arithmetic_of, heads_together, product_of_seen, scores_of
from flash.cpu.gradients import BLOCK_K, BLOCK_Q, Weights
from flash.cpu.scores import ScoreRules
from flash.cpu.threads import share_out
from flash.operands.dtype_names import Causal
from flash.scores.features import ScoreArguments, scored

Array = NDArray[Any]
_PRODUCTS: Final = 6  # of a block of scores


def attention_tangents_cpu(
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    tangents: tuple[Array | None, Array | None, Array | None],
    *,
    softmax_scale: float | None,
    causal: Causal,
    threads: int | None = None,
    **scores: Unpack[ScoreArguments],
) -> tuple[Array, Array]:
    """The tangents of out and lse, [batch, heads, seq_q, d_v] and [batch, heads, seq_q], of the type of the
    arithmetic: f32, or f64 if an array is f64.

    `tangents` are those of q, k and v, of their shapes; None for 0. `out` and `lse` are the results of
    `attention_cpu`, which says what the other arguments mean; arrays of scores have no tangents. A row that
    sees no key has the tangents 0. Dropout keeps the same weights as in the results.

    Raises ConfigError when `causal` is not a known word.
    """
    dtype = arithmetic_of(q, k, v, out)
    rules = ScoreRules.asked_by(scored((*q.shape[:3], k.shape[2]), causal, dtype, 0, scores, 0))
    scale = 1 / math.sqrt(q.shape[3]) if softmax_scale is None else softmax_scale
    results = np.zeros(out.shape, dtype), np.zeros(lse.shape, dtype)
    job = _Job(q, k, v, out, lse, *tangents, *results, scale, rules)
    share_out(
        job.blocks(),
        functools.partial(Workspace, dtype),
        functools.partial(_sweep, job),
        threads=threads,
        multiplications=q.size * k.shape[2] * _PRODUCTS,
    )
    return results


@dataclass(frozen=True, slots=True)
class _Job:
    """The arguments of one call, which all of its tasks read; `of_out` and `of_lse` are the results."""

    q: Array
    k: Array
    v: Array
    out: Array
    lse: Array
    of_q: Array | None
    of_k: Array | None
    of_v: Array | None
    of_out: Array
    of_lse: Array
    scale: float
    rules: ScoreRules

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return int(self.q.shape[1] // self.k.shape[1])

    def blocks(self) -> Iterator[tuple[int, slice, slice]]:
        """(batch, heads, queries) of all blocks of rows that share a key/value head."""
        batch, heads, seq_q, _ = self.q.shape
        for b in range(batch):
            for first in range(0, heads, self.group):
                for some in heads_together(range(first, first + self.group), self.group, seq_q, BLOCK_Q):
                    for q0 in range(0, seq_q, BLOCK_Q):
                        yield b, some, slice(q0, min(q0 + BLOCK_Q, seq_q))


def _sweep(job: _Job, space: Workspace, index: tuple[int, slice, slice]) -> None:
    """Write the tangents of a block of rows."""
    b, heads, queries = index
    kv, dtype = heads.start // job.group, job.of_out.dtype
    scaled = space.scaled("q", job.q[index], job.scale)
    moved = None if job.of_q is None else space.scaled("of_q", job.of_q[index], job.scale)
    lse = job.lse[index].astype(dtype)
    total, of_lse = np.zeros((len(scaled[0]), job.v.shape[3]), dtype), np.zeros(len(scaled[0]), dtype)
    seen = job.rules.seen_by_any(queries)
    for k0 in range(seen.start, seen.stop, BLOCK_K):
        keys = slice(k0, min(k0 + BLOCK_K, seen.stop))
        k = space.for_blas("k", job.k[b, kv, keys], len(total))
        weights = Weights.of(job.rules, space, index, scaled, lse, keys, k)
        if weights is None:
            continue
        of_score, more = (space.take(name, *weights.weight.shape) for name in ("dscores", "more"))
        of_score.fill(0)
        of_k = None if job.of_k is None else space.for_blas("of_k", job.of_k[b, kv, keys], len(total))
        for rows, others in ((moved, k), (scaled, of_k)):
            if rows is not None and others is not None:
                scores_of(space, rows[0], others, more)
                of_score += more if rows[1] == 1 else more * dtype.type(rows[1])
        # A feature of scores multiplies gradients of its results by its slopes: tangents likewise.
        job.rules.lead_back(of_score.reshape(-1, *weights.block.sizes), weights.saved, weights.block, {})
        of_score *= weights.weight
        weights.hide(space, of_score)
        of_lse += of_score.sum(axis=1)
        weight, factors = weights.weight, weights.factors(job.rules, space)
        if factors is not None:
            of_score *= factors
            weight *= factors
        part = space.take("part", *total.shape)
        v = space.for_blas("v", job.v[b, kv, keys], len(total))
        total += product_of_seen(space, "tame", of_score, v, weights.hidden, out=part)
        if job.of_v is not None:
            of_v = space.for_blas("of_v", job.of_v[b, kv, keys], len(total))
            total += product_of_seen(space, "tame", weight, of_v, weights.hidden, out=part)
    total -= of_lse[:, None] * job.out[index].reshape(total.shape).astype(dtype)
    job.of_out[index] = total.reshape(job.of_out[index].shape)
    job.of_lse[index] = of_lse.reshape(lse.shape)
