"""The mask of a kernel: which keys a query sees, by its position, and by features that may hide any key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from flash.operands.declared import MAX_WINDOWED_SEQ
from flash.scores.feature import Applied
from flash.scores.score_coordinates import ScoreCoordinates
from flash.scores.window import Reach
from ptxgen.dsl import Fragment, KernelBuilder, Value, marked
from ptxgen.records import dataclass
from ptxgen.types import s32


def if_seen(k: KernelBuilder, seen: Value | None) -> AbstractContextManager[object]:
    """A context for code that runs only if a tile is `seen`, a result of `Mask.sees_tile`; None: always."""
    return nullcontext() if seen is None else k.when(seen, uniform=True)


@dataclass(frozen=True)
class Mask:
    """A query sees the keys within `reach` that no plane hides; `planes` are the features that may
    hide any key, or any of the last keys of a sequence.
    """

    reach: Reach
    planes: Sequence[Applied]

    @property
    def hides_anywhere(self) -> bool:
        """Whether a plane may hide any key, and not only one of the last keys of a sequence."""
        return any(plane.begin is None for plane in self.planes)

    @property
    def narrows(self) -> bool:
        """Whether a plane can tell from the queries of a CTA which keys it hides."""
        return any(plane.narrows for plane in self.planes)

    def of_queries(self, first_query: Value, last_query: Value) -> Mask:
        """The mask narrowed to a CTA with these queries."""
        return replace(self, planes=[plane.of_queries(first_query, last_query) for plane in self.planes])

    @property
    def has_gaps(self) -> bool:
        """Whether `sees_tile` may say that a tile between others is not seen."""
        return any(plane.has_gaps for plane in self.planes)

    def sees_tile(self, first_key: Value) -> Value | None:
        """Whether some query of the CTA may see a key of the tile that begins with `first_key`; None:
        yes.
        """
        result = None
        for plane in self.planes:
            seen = plane.sees_tile(first_key)
            if seen is not None:
                result = seen if result is None else result & seen
        return result

    def narrowed(
        self, k: KernelBuilder, first: Value | None, end: Value, tile: int
    ) -> tuple[Value | None, Value]:
        """The tiles from `first` (None: 0) up to `end`, exclusive, that have keys which planes let some
        query of the CTA see.
        """
        for bounds in (plane.key_bounds for plane in self.planes if plane.narrows):
            if bounds.last is not None:
                last = bounds.last if isinstance(bounds.last, Value) else k.mov(bounds.last, type=s32)
                end = k.min(k.divide_up(k.max(k.min(last, MAX_WINDOWED_SEQ) + 1, 0), tile), end)
            if bounds.first is not None:
                begin = bounds.first if isinstance(bounds.first, Value) else k.mov(bounds.first, type=s32)
                nearest = k.max(begin, 0) // tile
                first = nearest if first is None else k.max(nearest, first)
            if first is not None:
                first = k.min(first, end)
        return first, end

    @property
    def hides_keys(self) -> bool:
        """Whether a query may not see a key that exists."""
        return self.reach.is_limited or bool(self.planes)

    def last_for_all(self, k: KernelBuilder, first_row: Value) -> Value:
        """The last key up to which all rows from `first_row` on see every key after their first:
        the last key of `first_row`, or, if a plane covers only the last keys, the key before these,
        whichever comes first.
        """
        last = self.reach.last_key(k, first_row)
        for plane in self.planes:
            if plane.begin is not None:
                last = k.min(last, plane.begin - 1)
        return last

    def apply(
        self, k: KernelBuilder, S: Fragment, coordinates: ScoreCoordinates, *, in_front: bool = False
    ) -> None:
        """Set this thread's scores of unseen keys to -inf. `in_front` says that all rows see all
        keys of the tile except those before their first key.
        """
        self.reach.hide(k, S, coordinates, in_front=in_front)
        if not in_front:
            for plane in self.planes:
                plane.hide(S, coordinates)

    @marked("mask: lengths in shared memory")
    def stored_in_shared(self, k: KernelBuilder) -> Callable[[], Mask]:
        """Store the lengths of the mask in shared memory, and return a function that gives the mask with
        lengths loaded from there. Lengths that are no parameters of the launch would otherwise take registers
        through the loops, where registers are short. A barrier must lie between the store and the first load.
        """
        reach = self.reach
        lengths = [value for value in (reach.seq_k, reach.diagonal) if value is not None]
        at = k.shared("lengths", (1, len(lengths)), s32).pointer()
        with k.when(k.thread_id() == 0):
            for n, value in enumerate(lengths):
                k.store(at.step(columns=n), value)

        def read() -> Mask:
            seq_k, *diagonal = (k.load(at.step(columns=n)) for n in range(len(lengths)))
            result = replace(reach, seq_k=seq_k, diagonal=diagonal[0] if diagonal else None)
            return replace(self, reach=result)

        return read

    def hides(self, row: Value, key: Value) -> Value | None:
        """Whether a plane hides `key`, which lies between the first and the last key of the row;
        None if there is no plane.
        """
        result = None
        for plane in self.planes:
            hidden = plane.hides(row, key)
            if hidden is not None:
                result = hidden if result is None else result | hidden
        return result
