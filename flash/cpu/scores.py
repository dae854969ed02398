"""What the `cpu` backend does to blocks of scores: softcap, ALiBi, bias, dropout, hidden keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flash.reference import Window, as_scores, key_limits
from flash.scores.philox import STEPS, kept, threshold
from flash.scores.window import Causal, position_offset

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class ScoreRules:
    """How products become scores, and which scores count. Arrays are broadcast to [batch, heads] or
    [batch, heads, seq_q, seq_k]; a step whose field is None is left out.
    """

    heads: int
    seq_k: int
    offset: int  # a query's position is its index plus this
    before: int | None  # keys before its position that a query sees; None for all
    behind: int | None
    dtype: np.dtype[Any]
    softcap: float | None
    dropout: tuple[float, int, int]  # probability, seed, and the index that batch 0 has
    alibi_slopes: Array | None
    bias: Array | None
    mask: Array | None
    sink: Array | None

    @classmethod
    def of(
        cls,
        shape: Sequence[int],
        causal: Causal,
        window: Window,
        dtype: np.dtype[Any],
        softcap: float | None,
        dropout: tuple[float, int, int],
        **arrays: Array | None,
    ) -> ScoreRules:
        """The rules for scores of `shape`, [batch, heads, seq_q, seq_k]."""
        seq_q, seq_k = shape[2:]
        before, behind = key_limits(causal, window)
        rank = {"alibi_slopes": 2, "sink": 2, "bias": 4, "mask": 4}
        wide = {
            name: None if array is None else np.broadcast_to(array, tuple(shape[: rank[name]]))
            for name, array in arrays.items()
        }
        offset = position_offset(causal, seq_q, seq_k)
        return cls(shape[1], seq_k, offset, before, behind, dtype, softcap, dropout, **wide)

    def seen_by_any(self, queries: slice) -> range:
        """The keys that some of these queries may see."""
        first = 0 if self.before is None else queries.start + self.offset - self.before
        last = self.seq_k if self.behind is None else queries.stop + self.offset + self.behind
        begin, end = max(first, 0), min(max(last, 0), self.seq_k)
        return range(begin, max(end, begin))

    def apply(self, score: Array, b: int, heads: slice, queries: slice, keys: slice) -> None:
        """Change a block of scaled products, [heads, queries, keys], into scores."""
        if self.softcap is not None:
            cap = self.dtype.type(self.softcap)
            np.divide(score, cap, out=score)
            np.tanh(score, out=score)
            np.multiply(score, cap, out=score)
        if self.alibi_slopes is not None:
            slopes = as_scores(self.alibi_slopes[b, heads].astype(self.dtype))
            distance = self._positions(queries) - np.arange(keys.start, keys.stop)
            score -= slopes[:, None, None] * np.abs(distance).astype(self.dtype)
        if self.bias is not None:
            score += as_scores(self.bias[b, heads, queries, keys].astype(self.dtype))

    def hidden(self, b: int, heads: slice, queries: slice, keys: slice) -> Array | None:
        """[heads or 1, queries, keys]: True where a query does not see a key; None if all are
        seen.
        """
        parts = []
        if not self._all_in_reach(queries, keys):
            position, key = self._positions(queries), np.arange(keys.start, keys.stop)
            if self.before is not None:
                parts.append((key < position - self.before)[None])
            if self.behind is not None:
                parts.append((key > position + self.behind)[None])
        if self.mask is not None:
            parts.append(~self.mask[b, heads, queries, keys])
        if self.bias is not None:
            parts.append(np.isneginf(self.bias[b, heads, queries, keys].astype(self.dtype)))
        if not parts:
            return None
        found = parts[0]
        for part in parts[1:]:
            found = found | part
        return found

    def drop(self, weight: Array, b: int, heads: slice, queries: slice, keys: slice) -> None:
        """Set the weights of a block that dropout does not keep to 0, and scale the others."""
        probability, seed, first_batch = self.dropout
        if probability:
            numbers = (first_batch + b) * self.heads + np.arange(heads.start, heads.stop)
            places = (np.arange(part.start, part.stop) for part in (queries, keys))
            keep = kept(probability, seed, numbers, *places)
            weight *= np.where(keep, self.dtype.type(STEPS / threshold(probability)), 0)

    def sinks(self, b: int, heads: slice, rows: int) -> Array | None:
        """The sink of each of `rows` rows of these heads, head by head."""
        if self.sink is None:
            return None
        found = as_scores(self.sink[b, heads].astype(self.dtype))
        return np.repeat(found, rows // len(found))

    def _positions(self, queries: slice) -> Array:
        """The positions of the queries among the keys, [queries, 1]."""
        return (np.arange(queries.start, queries.stop) + self.offset)[:, None]

    def _all_in_reach(self, queries: slice, keys: slice) -> bool:
        nearest, farthest = queries.start + self.offset, queries.stop - 1 + self.offset
        return (self.before is None or farthest - keys.start <= self.before) and (
            self.behind is None or keys.stop - 1 - nearest <= self.behind
        )
