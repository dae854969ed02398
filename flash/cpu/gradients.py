"""The gradients of attention on numpy and BLAS, blocked, in O(N) memory.

FlashAttention-2's backward pass (arXiv:2307.08691, section 2.3). One thread does all rows of a key/value
head: each block of queries meets the keys that it sees block by block, and each block of scores, computed
again from Q, K and LSE, adds to dQ, dK and dV: five products, and no two threads add to one number.

Where these are too few tasks for the threads, there are two sweeps: of blocks of queries, which give dQ, and
of blocks of keys, which give dK and dV: seven products for each block of scores. The blocks, and the order of
each sum, are those of one sweep, and so are the bits.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from flash.cpu.blocks import Workspace, arithmetic_of, heads_together, product_of_seen, rows_of, scores_of
from flash.cpu.engine import NUMPY, Engine
from flash.cpu.scores import Saved, ScoreRules
from flash.cpu.threads import BLAS_THREADS, helpers_for, share_out
from flash.operands.dtype_names import Causal
from flash.scores.feature import Block
from flash.scores.features import ScoreArguments, scored
from ptxgen.errors import ConfigError

Array = NDArray[Any]

# Three or four blocks of 256 x 256 f32, 256 KiB each, lie in the L2 cache of a server core.
BLOCK_Q = 256
BLOCK_K = 256

_ONE_SWEEP: Final = 5  # products of a block of scores
_TWO_SWEEPS: Final = 7


def attention_gradients_cpu(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    dq: Array | None,
    dk: Array | None,
    dv: Array | None,
    arrays: Mapping[str, Array],
    *,
    dlse: Array | None = None,
    softmax_scale: float | None,
    causal: Causal,
    first_batch: int = 0,
    first_query: int = 0,
    threads: int | None = None,
    engine: Engine = NUMPY,
    **scores: Unpack[ScoreArguments],
) -> None:
    """Write the gradients of the inputs of `attention_cpu` into `dq`, `dk`, `dv` and `arrays`.

    `dout` and `out` [batch, heads, seq_q, d_v] and `dlse` and `lse` [batch, heads, seq_q] are the
    gradients of the results and the results; without `dlse` the gradient of LSE is 0. `dq`, `dk`
    and `dv` have the shapes of q, k and v; dq, or both dk and dv, are None if they are not needed. `arrays`
    holds, by the names of their arguments, arrays for the wanted gradients of alibi_slopes, bias, key_bias
    and sink, in the shapes of these arguments, and by `aux_` and its name that of an array of aux that
    score_mod reads. The caller has checked this, and that the arrays that are
    written overlap no other array.
    `attention_reference_gradients` says what the gradients are, `attention_cpu` what the other arguments
    mean, and which type the arithmetic has. Any strides. Results are rounded once.

    Extra memory is an element of the arithmetic's type for each row of q and each element of
    `arrays`. For each thread it is at most `seq_k * (d + d_v)` elements if the gradients have another type
    than the arithmetic; and, whatever the sequence lengths,
    `BLOCK * (2 * BLOCK + 4 * d + 3 * d_v + 2 * max(d, d_v) + 8)` elements, where BLOCK is the
    larger of `BLOCK_Q` and `BLOCK_K`, and 8 bytes for each score of a block: 32 with ALiBi, a bias
    or softcap, and 90 with dropout, if the arithmetic is f32. `engine`, `threads` and the bits of the results
    are as in `attention_cpu`; what adds to the same elements of `arrays` is computed by one thread.

    Raises ConfigError when `causal` is not a known word, and for an array in `arrays` that has no gradient,
    such as one of aux that mask_mod reads.
    """
    dtype = arithmetic_of(dout, q, k, v, out)
    of = scored((*q.shape[:3], k.shape[2]), causal, dtype, first_batch, scores, first_query)
    rules = ScoreRules.asked_by(of)
    job = _Job(
        dout,
        q,
        k,
        v,
        out,
        lse,
        dlse,
        dq,
        dk,
        dv,
        scale=1 / math.sqrt(q.shape[3]) if softmax_scale is None else softmax_scale,
        rules=rules,
        dtype=dtype,
        engine=engine,
        delta=np.zeros(q.shape[:3], dtype),
        sums=rules.zeros_for(arrays),
    )
    if unknown := sorted(arrays.keys() - job.sums.keys()):
        raise ConfigError(
            "attention_gradients_cpu: arrays must be those of alibi_slopes, bias, key_bias, sink and numbers "
            f"of aux that are given, got {', '.join(unknown)}; other arguments have no gradient"
        )
    for tasks, products in job.rounds(threads or BLAS_THREADS.usual()):
        share_out(
            tasks,
            functools.partial(Workspace, dtype),
            functools.partial(_sweep_each, job),
            threads=threads,
            multiplications=job.multiplications(products),
        )
    for name, total in job.sums.items():
        arrays[name][...] = total.reshape(arrays[name].shape)


class _Sweep(NamedTuple):
    """Blocks of rows, (heads, queries), that attend to a key/value head, in the order in which they meet
    those of some keys that they see; and whether that gives their dQ, and the dK and dV of these keys.
    """

    batch: int
    kv: int
    rows: list[tuple[slice, slice]]
    keys: slice
    gives_queries: bool = True
    gives_keys: bool = True

    def blocks(self, seen: range) -> list[slice]:
        """The blocks of its keys that are seen. Keys that are not stay out of a block: the scores of one
        block of keys then have the bits of the forward pass, whose product of BLAS it is.
        """
        first, last = max(seen.start, self.keys.start), min(seen.stop, self.keys.stop)
        ends = (*range(first // BLOCK_K * BLOCK_K + BLOCK_K, last, BLOCK_K), last)
        return [slice(*of) for of in itertools.pairwise((first, *ends))] if first < last else []

    def zeros_of_queries(self, job: _Job, space: Workspace, rows: _Rows) -> Array | None:
        """Zeros, [rows, head_dim], to sum dQ of a block of rows in; None if it is not needed."""
        if job.dq is None or not self.gives_queries:
            return None
        zeros: Array = space.take("dq", *rows.q.shape)
        zeros.fill(0)
        return zeros


_Task = list[_Sweep]


@dataclass(frozen=True, slots=True)
class _Job:
    """The resolved arguments of one call, which all of its tasks read. `delta` is, for each row,
    the sum of O times its gradient less the gradient of LSE; the sweep that gives dQ writes it. `sums` are
    the gradients of arrays of scores so far.
    """

    dout: Array
    q: Array
    k: Array
    v: Array
    out: Array
    lse: Array
    dlse: Array | None
    dq: Array | None
    dk: Array | None
    dv: Array | None
    scale: float
    rules: ScoreRules
    dtype: np.dtype[Any]
    engine: Engine
    delta: Array
    sums: dict[str, Array]

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return int(self.q.shape[1] // self.k.shape[1])

    def multiplications(self, products: int) -> int:
        """The multiplications of this number of products for each block of scores."""
        return self.q.size * int(self.k.shape[2]) * products

    def rounds(self, threads: int) -> Iterator[tuple[list[_Task], int]]:
        """The tasks of a call on `threads` threads, and the products of a block of scores in each: those of
        one sweep, or of two, which follow one another, where more threads make them the shorter ones.
        """
        of_queries = (
            _Sweep(b, kv, [block], self._keys, gives_keys=False)
            for b, kv in self._kv_heads()
            for block in self._rows(kv)
        )
        if self.dk is None:
            yield self._serial(of_queries), 3
            return
        together = self._serial(_Sweep(b, kv, self._rows(kv), self._keys) for b, kv in self._kv_heads())
        busy = 1 + helpers_for(threads, threads, self.multiplications(_ONE_SWEEP))
        most = -(-len(together) // busy)  # tasks of the busiest thread
        if most * busy * _ONE_SWEEP <= len(together) * _TWO_SWEEPS:
            yield together, _ONE_SWEEP
            return
        yield self._serial(of_queries), 3
        seq_k = self._keys.stop
        yield (
            [
                [_Sweep(b, kv, self._rows(kv), slice(k0, min(k0 + BLOCK_K, seq_k)), gives_queries=False)]
                for k0 in range(0, seq_k, BLOCK_K)
                for b, kv in self._kv_heads()
            ],
            4,
        )

    @property
    def _keys(self) -> slice:
        return slice(0, int(self.k.shape[2]))

    def _kv_heads(self) -> Iterator[tuple[int, int]]:
        """(batch, key/value head) of all key/value heads."""
        return itertools.product(range(self.k.shape[0]), range(self.k.shape[1]))

    def _rows(self, kv: int) -> list[tuple[slice, slice]]:
        """(heads, queries) of the blocks of rows that share a key/value head, those with the most keys
        first.
        """
        seq_q, of_kv = self.q.shape[2], range(kv * self.group, (kv + 1) * self.group)
        return [
            (heads, slice(q0, min(q0 + BLOCK_Q, seq_q)))
            for q0 in reversed(range(0, seq_q, BLOCK_Q))
            for heads in heads_together(of_kv, self.group, seq_q, BLOCK_Q)
        ]

    def _serial(self, sweeps: Iterable[_Sweep]) -> list[_Task]:
        """The sweeps, in lists of those that have to be done one after another because they add to the same
        elements of `sums`.
        """
        shared = self.rules.shared_axes(self.sums)
        tasks: dict[tuple[int | None, ...], _Task] = {}
        for sweep in sweeps:
            heads, queries = sweep.rows[0] if sweep.rows else (slice(0), slice(0))
            at = {"batch": sweep.batch, "heads": heads.start, "seq_q": queries.start}
            tasks.setdefault(tuple(None if axis in shared else n for axis, n in at.items()), []).append(sweep)
        return list(tasks.values())


class _Rows(NamedTuple):
    """A block of queries of heads that share a key/value head. `q` and `factor` are the results of
    `Workspace.scaled`; `lse` is [heads, queries], and `delta` [rows].
    """

    slices: tuple[int, slice, slice]
    q: Array
    factor: float
    dout: Array
    lse: Array
    delta: Array

    @classmethod
    def of(cls, job: _Job, space: Workspace, index: tuple[int, slice, slice], dout: Array) -> _Rows:
        """The rows at `index`, (batch, heads, queries), whose `delta` is written; `dout` is [rows, d_v]."""
        return cls(
            index,
            *space.scaled("q", job.q[index], job.scale),
            dout,
            job.lse[index].astype(job.dtype),
            job.delta[index].reshape(-1),
        )


class _Part(NamedTuple):
    """A block of scores, [rows, keys]: the weights, times the factors of dropout, and the gradient
    of the scaled products. `hidden` is True where a row does not see a key, or None.
    """

    weight: Array
    dproduct: Array
    hidden: Array | None


class Weights(NamedTuple):
    """A block of scores, [rows, keys], where some rows meet some keys: `weight`, without the factors of
    dropout; the blocks that features of scores have saved for their derivatives; and `hidden`, [rows, keys],
    True where a row does not see a key, or None.
    """

    block: Block
    weight: Array
    saved: Saved
    hidden: Array | None

    @classmethod
    def of(
        cls,
        rules: ScoreRules,
        space: Workspace,
        index: tuple[int, slice, slice],
        scaled: tuple[Array, float],
        lse: Array,
        keys: slice,
        k: Array,
        engine: Engine = NUMPY,
    ) -> Weights | None:
        """The weights of one block of scores at (batch, heads, queries). `scaled` are its queries from
        `Workspace.scaled`; `lse` is [heads, queries], of the type of the arithmetic. None if no row sees a
        key.
        """
        (q, factor), block = scaled, Block(rules.of, *index, keys)
        hidden, dead = rules.hidden(block), np.isneginf(lse)[..., None]
        if dead.any():
            hidden = dead | (False if hidden is None else hidden)
            hidden = np.broadcast_to(hidden, (len(hidden), *block.sizes))
        if hidden is not None and hidden.all():
            return None
        score = space.take("weights", len(q), len(k))
        by_head = score.reshape(-1, *block.sizes)
        saved: Saved = {}
        scores_of(space, q, k, score)
        if factor != 1:
            score *= score.dtype.type(factor)
        rules.apply(by_head, block, saved)
        unseen = None if hidden is None else rows_of(hidden, len(score))
        engine.weights_again(space, score, unseen, lse.reshape(-1))
        return cls(block, score, saved, unseen)

    def hide(self, space: Workspace, of_scores: Array) -> None:
        """Set the elements of `of_scores` [rows, keys] of hidden pairs to 0."""
        if self.hidden is not None:
            space.hide(of_scores, self.hidden)

    def factors(self, rules: ScoreRules, space: Workspace) -> Array | None:
        """The factors of dropout, [rows, keys]; None without it."""
        if not rules.drops:
            return None
        factors = space.take("factors", *self.weight.shape)
        factors.fill(1)
        rules.drop(factors.reshape(-1, *self.block.sizes), self.block)
        return factors


def _part(
    job: _Job, space: Workspace, rows: _Rows, keys: slice, k: Array, v: Array, sums: Mapping[str, Array]
) -> _Part | None:
    """The part of the scores where these rows meet these keys, `k` and `v`; None if no row sees a
    key. Its terms of the gradients of arrays are added to `sums`.
    """
    scaled = rows.q, rows.factor
    weights = Weights.of(job.rules, space, rows.slices, scaled, rows.lse, keys, k, job.engine)
    if weights is None:
        return None
    weight, saved = weights.weight, weights.saved
    dscore = space.take("dscores", *weight.shape)
    scores_of(space, rows.dout, v, dscore)
    factors = weights.factors(job.rules, space)
    if factors is not None:
        dscore *= factors
    job.engine.score_gradients(space, dscore, weights.hidden, weight, rows.delta)
    job.rules.lead_back(dscore.reshape(-1, *weights.block.sizes), saved, weights.block, sums)
    if saved:  # what they keep may be NaN
        weights.hide(space, dscore)
    if factors is not None:
        weight *= factors
    return _Part(weight, dscore, weights.hidden)


def _sweep_each(job: _Job, space: Workspace, sweeps: _Task) -> None:
    for sweep in sweeps:
        _sweep(job, space, sweep)


def _sweep(job: _Job, space: Workspace, sweep: _Sweep) -> None:
    """Write the gradients that a sweep gives. One that gives dQ writes `delta`, too, and adds to the
    gradients of arrays.
    """
    b, kv, keys = sweep.batch, sweep.kv, sweep.keys
    of_keys = (("dk", job.dk), ("dv", job.dv)) if sweep.gives_keys else ()
    into = [(name, of[b, kv, keys]) for name, of in of_keys if of is not None]
    sums = [x if x.dtype == job.dtype else space.take(name, *x.shape) for name, x in into]
    for total in sums:
        total.fill(0)
    for heads, queries in sweep.rows:
        _meet(job, space, sweep, (b, heads, queries), sums)
    for (_, gradient), total in zip(into, sums, strict=True):
        if gradient.dtype != job.dtype:
            gradient[...] = total


def _meet(
    job: _Job, space: Workspace, sweep: _Sweep, index: tuple[int, slice, slice], of_keys: list[Array]
) -> None:
    """Have a block of rows meet the keys of a sweep. `of_keys` are dK and dV of these, to which it adds, or
    empty.
    """
    b, kv = sweep.batch, sweep.kv
    only_delta = job.dq is None and not job.sums and not sweep.gives_keys
    blocks = [] if only_delta else sweep.blocks(job.rules.seen_by_any(index[2]))
    if not blocks and not sweep.gives_queries:
        return
    dout = space.copied("dout", job.dout[index])
    if sweep.gives_queries:
        job.delta[index] = _delta(job, space, index, dout)
    rows = _Rows.of(job, space, index, dout)
    dq = sweep.zeros_of_queries(job, space, rows)
    for keys in blocks:
        k = space.for_blas("k", job.k[b, kv, keys], len(rows.q))
        v = space.for_blas("v", job.v[b, kv, keys], len(rows.q))
        part = _part(job, space, rows, keys, k, v, job.sums if sweep.gives_queries else {})
        if part is None:
            continue
        if dq is not None:
            more = space.take("part", *dq.shape)
            dq += product_of_seen(space, "tame", part.dproduct, k, part.hidden, out=more)
        if of_keys:
            local = slice(keys.start - sweep.keys.start, keys.stop - sweep.keys.start)
            _add_to_keys(job, space, rows, part, *(x[local] for x in of_keys))
    if dq is not None and job.dq is not None:
        job.dq[index] = (dq * job.dtype.type(job.scale)).reshape(job.dq[index].shape)
    if sweep.gives_queries:
        shape = job.lse[index].shape
        no_keys = Block(job.rules.of, *index, slice(0, 0))
        job.rules.lead_back_to_sinks(rows.lse.reshape(shape), rows.delta.reshape(shape), no_keys, job.sums)


def _add_to_keys(job: _Job, space: Workspace, rows: _Rows, part: _Part, dk: Array, dv: Array) -> None:
    """Add to dK and dV of a block of keys what a block of scores adds. `part.dproduct` may be changed."""
    hidden = None if part.hidden is None else part.hidden.T
    dv += product_of_seen(space, "tame", part.weight.T, rows.dout, hidden, out=space.take("part", *dv.shape))
    if rows.factor != 1:
        part.dproduct[...] *= job.dtype.type(rows.factor)
    dk += product_of_seen(space, "tame", part.dproduct.T, rows.q, hidden, out=space.take("part", *dk.shape))


def _delta(job: _Job, space: Workspace, index: tuple[int, slice, slice], dout: Array) -> Array:
    """The sum of O times its gradient, `dout`, less the gradient of LSE: [heads, queries]."""
    product = space.copied("part", job.out[index])
    product *= dout
    delta: Array = product.sum(axis=1).reshape(job.lse[index].shape)
    if job.dlse is not None:
        delta -= job.dlse[index]
    return delta
