"""The job of one call of attention on the host: its arguments, and the division into blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flash.cpu.blocks import heads_together
from flash.cpu.engine import Engine, Limits
from flash.cpu.paged_rows import KeyRows
from flash.cpu.scores import ScoreRules

# 256 x 512 f32 scores are 512 KiB, half of the L2 cache of a server core: fewer queries cost GEMM
# speed and more Python calls, more cost wasted scores above the causal diagonal.
BLOCK_Q = 256
BLOCK_K = 512

# From this number of blocks of BLOCK_Q rows on, two are joined, with 1 MiB of f32 scores, for fewer calls of
# numpy: of one head if all queries see the same keys, because BLAS multiplies these in less time, else of two
# heads. Half as many blocks still keep 16 threads busy.
BLOCKS_TO_JOIN = 32

# A block of fewer rows has more keys, as long as it has no more scores, and K of a head has no more
# elements (1 MiB of f32).
KEY_ELEMENTS = 2**18

# Reading an element of K or V takes as long as this number of multiplications of a product of matrices.
_READ = 16

# exp(score) is used without the maximum if every row's sum of exp(score) is finite and at least
# the first, and its largest |sum of exp(score) * v| is finite and at least the second (or 0, as for
# v = 0). Then the loss of f32 below its smallest number, 2^-149 for each key, is negligible next to
# its rounding.
SAFE = Limits(total=2.0**-20, size=2.0**-100)


class Task(NamedTuple):
    """A block of queries of an item of the batch, of heads that share a key/value head or of all heads of
    some key/value heads.
    """

    batch: int
    heads: slice
    queries: slice


class Job(NamedTuple):  # made in a third of the time of a dataclass
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
    tops: NDArray[Any] | None = None  # the largest score of each row so far, if it is wanted

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
        """Keys of a block of `rows` rows: a multiple of BLOCK_K."""
        fitting = min(BLOCK_Q * BLOCK_K // rows, KEY_ELEMENTS // self.widest)
        return max(BLOCK_K, fitting // BLOCK_K * BLOCK_K)

    @property
    def multiplications(self) -> int:
        """The cost of the call, in multiplications of products of matrices."""
        of_products = self.q.size * self.k.shape[2] * 2
        return max(of_products, _READ * (math.prod(self.k.shape) + math.prod(self.v.shape)))

    def tasks(self) -> Iterator[Task]:
        """The tasks of all heads, those with the most keys first."""
        batch, heads, seq_q, _ = self.q.shape
        if 0 in (batch, heads, seq_q):
            return
        most_kv = max(1, self.engine.together * KEY_ELEMENTS // max(1, self.k.shape[2] * self.widest))
        if heads * seq_q <= BLOCK_Q and self.k.shape[1] <= most_kv:  # what follows gives the same
            for b in range(batch):
                yield Task(b, slice(0, heads), slice(0, seq_q))
            return
        rows = 2 * BLOCK_Q if batch * heads * seq_q >= BLOCKS_TO_JOIN * BLOCK_Q else BLOCK_Q
        block = rows if self.rules.see_the_same(slice(0, seq_q)) else BLOCK_Q
        joined = list(heads_together(range(heads), self.group, min(block, seq_q), rows, most_kv))
        for q0 in reversed(range(0, seq_q, block)):
            queries = slice(q0, min(q0 + block, seq_q))
            for b in range(batch):
                for together in joined:
                    yield Task(b, together, queries)


def before_any_key(
    sinks: NDArray[Any] | None, rows: int, dtype: np.dtype[Any], shifted: bool
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The `top` and `total` of each row before any key, with its sink if there is one."""
    if sinks is None:
        total = np.zeros(rows, dtype)
        return np.full(rows, -np.inf, dtype) if shifted else total.copy(), total
    if shifted:
        return sinks, np.where(np.isneginf(sinks), 0, 1).astype(dtype)
    return np.zeros(rows, dtype), np.exp(sinks)
