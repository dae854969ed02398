"""Which keys a query sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from flash.device.score_plane import ScorePlaces, ScorePlane
from ptxgen.dsl import Fragment, KernelBuilder, Value
from ptxgen.types import s32

NEG_INF = float("-inf")


@dataclass(frozen=True)
class Mask:
    """Query `row` sees the keys from row + diagonal - left to row + diagonal + right that exist and
    that no plane hides. None is no limit; causality is a right of 0. `diagonal` is None where
    nothing depends on positions.

    All values are s32, so that rows before the first key (seq_q > seq_k, bottom-right) see nothing
    instead of wrapping round.
    """

    diagonal: Value | None
    is_causal: bool
    left: Value | None
    right: Value | None
    seq_k: Value
    shown: ScorePlane | None  # 0 hides a key
    bias: ScorePlane | None  # -inf hides a key

    @property
    def hides_anywhere(self) -> bool:
        """Whether any key may be hidden from any query, and not only one of the last."""
        return self.bias is not None or (self.shown is not None and self.shown.begin is None)

    @property
    def hides_keys(self) -> bool:
        """Whether a query may not see a key that exists."""
        return self.has_positions or self.has_planes

    @property
    def has_planes(self) -> bool:
        """Whether there is a number for each score."""
        return self.shown is not None or self.bias is not None

    @property
    def has_positions(self) -> bool:
        """Whether what a query sees depends on its own position."""
        return self.is_causal or self.left is not None or self.right is not None

    def last_key(self, k: KernelBuilder, row: Value) -> Value:
        """The last key that a row may see; -1 or less if it sees none."""
        last = self.seq_k - 1
        if self.diagonal is None or not (self.is_causal or self.right is not None):
            return last
        reach = row + self.diagonal
        return k.min(reach if self.right is None else reach + self.right, last)

    def last_for_all(self, k: KernelBuilder, first_row: Value) -> Value:
        """The last key up to which all rows from `first_row` on see every key but those before the
        first that they see: the last of the first row, or that before the last keys of which a mask
        speaks.
        """
        last = self.last_key(k, first_row)
        if self.shown is None or self.shown.begin is None:
            return last
        return k.min(last, self.shown.begin - 1)

    def first_key(self, k: KernelBuilder, row: Value) -> Value:
        """The first key that a row may see; seq_k or more if it sees none."""
        if self.diagonal is None or self.left is None:
            return k.mov(0, type=s32)
        return k.max(row + self.diagonal - self.left, 0)

    def end_tile(self, k: KernelBuilder, last_row: Value, tile: int) -> Value:
        """The tile behind the last one of which the rows up to `last_row` see a key."""
        visible = k.max(self.last_key(k, last_row) + 1, 0)
        return k.divide_up(visible, tile)

    def apply(
        self, k: KernelBuilder, S: Fragment, places: ScorePlaces, *, in_front: bool = False
    ) -> None:
        """Set this thread's scores of unseen keys to -inf; `in_front` says that no key of the tile
        is behind the last that all rows see but for those before their first.
        """
        first_key, keys = places.my_first_key, places.keys
        for i, scores in enumerate(S):
            if not in_front:
                # Keys at this distance or nearer are seen.
                reach = self.last_key(k, places.query(i)) - first_key
                for key, score in zip(keys, scores, strict=True):
                    with k.only_if(reach < key):
                        score.set(NEG_INF)
            if self.left is not None:
                start = self.first_key(k, places.query(i)) - first_key
                for key, score in zip(keys, scores, strict=True):
                    with k.only_if(start > key):
                        score.set(NEG_INF)
        if self.shown is not None and not in_front:

            def hide(i: int, j: int, shown: Value) -> None:
                with k.only_if(shown == 0):
                    S[i, j].set(NEG_INF)

            self.shown.each(k, places, hide)

    def kept_in_shared(self, k: KernelBuilder) -> Callable[[], Mask]:
        """The mask, with lengths that are read again wherever it is asked for: those that are no
        parameters of the launch would be kept in registers through the loops, where registers are
        short. A barrier has to lie between.
        """
        kept = [value for value in (self.seq_k, self.diagonal) if value is not None]
        at = k.shared("lengths", (1, len(kept)), s32).pointer()
        with k.when(k.thread_id() == 0):
            for n, value in enumerate(kept):
                k.store(at.step(columns=n), value)

        def read() -> Mask:
            seq_k, *diagonal = (k.load(at.step(columns=n)) for n in range(len(kept)))
            return replace(self, seq_k=seq_k, diagonal=diagonal[0] if diagonal else None)

        return read

    def hides(self, k: KernelBuilder, row: Value, key: Value) -> Value | None:
        """Whether a plane hides a key that is neither before a row's first nor behind its last;
        None if there is no plane.
        """
        hidden = None if self.shown is None else self.shown.element(k, row, key, otherwise=1) == 0
        if self.bias is None:
            return hidden
        by_bias = self.bias.element(k, row, key) == NEG_INF
        return by_bias if hidden is None else hidden | by_bias
