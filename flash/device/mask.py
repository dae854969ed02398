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
    that no plane hides. A `left` or `right` of None is no limit; `is_causal` alone is a `right` of
    0. `diagonal` is None where nothing depends on positions.

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
        """Whether a plane may hide any key, and not only one of the last keys of a sequence."""
        return self.bias is not None or (self.shown is not None and self.shown.begin is None)

    @property
    def hides_keys(self) -> bool:
        """Whether a query may not see a key that exists."""
        return self.has_positions or self.has_planes

    @property
    def has_planes(self) -> bool:
        """Whether a plane has an element for each score: a mask or a bias."""
        return self.shown is not None or self.bias is not None

    @property
    def has_positions(self) -> bool:
        """Whether the keys that a query sees depend on its position."""
        return self.is_causal or self.left is not None or self.right is not None

    def last_key(self, k: KernelBuilder, row: Value) -> Value:
        """The last key that a row may see; -1 or less if it sees none."""
        last = self.seq_k - 1
        if self.diagonal is None or not (self.is_causal or self.right is not None):
            return last
        reach = row + self.diagonal
        return k.min(reach if self.right is None else reach + self.right, last)

    def last_for_all(self, k: KernelBuilder, first_row: Value) -> Value:
        """The last key up to which all rows from `first_row` on see every key behind their first:
        the last key of `first_row`, or, if a `shown` plane covers only the last keys, the key
        before these, whichever comes first.
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
        """The end (exclusive) of the tiles of which the rows up to `last_row` see a key."""
        visible = k.max(self.last_key(k, last_row) + 1, 0)
        return k.divide_up(visible, tile)

    def apply(
        self, k: KernelBuilder, S: Fragment, places: ScorePlaces, *, in_front: bool = False
    ) -> None:
        """Set this thread's scores of unseen keys to -inf. `in_front` says that all rows see all
        keys of the tile except those before their first key.
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
        """Store the lengths of the mask in shared memory, and return a function that gives the mask
        with lengths loaded from there. Lengths that are no parameters of the launch would otherwise
        be kept in registers through the loops, where registers are short. A barrier must lie
        between the store and the first load.
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
        """Whether a plane hides `key`, which lies between the first and the last key of the row;
        None if there is no plane.
        """
        hidden = None if self.shown is None else self.shown.element(k, row, key, otherwise=1) == 0
        if self.bias is None:
            return hidden
        by_bias = self.bias.element(k, row, key) == NEG_INF
        return by_bias if hidden is None else hidden | by_bias
