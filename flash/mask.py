"""Which keys a query sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ptxgen.dsl import Fragment, KernelBuilder, Value
from ptxgen.types import s32

NEG_INF = float("-inf")


@dataclass(frozen=True)
class Mask:
    """Query `row` sees the keys 0 … row + diagonal, and none from `seq_k` on. Without causality
    `diagonal` is None.

    All values are s32, so that rows before the first key (seq_q > seq_k, bottom-right) see nothing
    instead of wrapping round.
    """

    diagonal: Value | None
    seq_k: Value

    @classmethod
    def of(cls, k: KernelBuilder, causal: str, seq_q: Value, seq_k: Value) -> Mask:
        """The mask of a config: bottom-right aligns the last query with the last key, top-left the
        first with the first.
        """
        if not causal:
            return cls(None, seq_k)
        return cls(seq_k - seq_q if causal == "bottom_right" else k.mov(0, type=s32), seq_k)

    def last_key(self, k: KernelBuilder, row: Value) -> Value:
        """The last key that a row sees; -1 or less if it sees none."""
        last = self.seq_k - 1
        return last if self.diagonal is None else k.min(row + self.diagonal, last)

    def tiles(self, k: KernelBuilder, last_row: Value, tile: int) -> Value:
        """How many tiles of keys the rows up to `last_row` see at all; the rest are skipped."""
        visible = k.max(self.last_key(k, last_row) + 1, 0)
        return k.divide_up(visible, tile)

    def apply(
        self,
        k: KernelBuilder,
        S: Fragment,
        first: tuple[Value, Value],
        rows: Sequence[int],
        keys: Sequence[int],
    ) -> None:
        """Set this thread's scores of unseen keys to -inf; `first` is row and key of its first
        score, `rows` and `keys` are those of all, counted from there.
        """
        first_row, first_key = first
        for row, scores in zip(rows, S, strict=True):
            # Keys at this distance or nearer are seen.
            reach = self.last_key(k, first_row + row) - first_key
            for key, score in zip(keys, scores, strict=True):
                with k.only_if(reach < key):
                    score.set(NEG_INF)
