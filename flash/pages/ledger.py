"""The number of tokens of each sequence of a KV cache in each layer, and whether there is room for
more. It counts rows and pages, and holds no keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from flash.pages.journal import Journal
from flash.pages.placement import Copy, Placement, Stretch
from ptxgen.errors import CacheFullError


class Ledger:
    """The lengths of sequences: `lengths` is int32 [layers, batch], always the same array. Changes
    are noted in the journal of a call.
    """

    def __init__(self, layers: int, batch: int, capacity: int, placement: Placement) -> None:
        self.lengths: Final[NDArray[np.int32]] = np.zeros((layers, batch), np.int32)
        self._capacity = capacity
        self._placement = placement

    def of(self, layer: int, sequences: Sequence[int]) -> list[int]:
        """The number of tokens of each of `sequences` in a layer."""
        of_layer: list[int] = self.lengths[layer].tolist()
        return [of_layer[sequence] for sequence in sequences]

    def longest(self, sequence: int) -> int:
        """The largest number of tokens that a sequence has in a layer."""
        return int(self.lengths[:, sequence].max())

    def first_empty(self, other_than: int) -> int | None:
        """The first sequence, except `other_than`, without tokens in any layer; None if none."""
        empty = np.flatnonzero(~self.lengths.any(axis=0))
        return next((int(sequence) for sequence in empty if sequence != other_than), None)

    def append(
        self, caller: str, layer: int, sequences: Sequence[int], rows: Sequence[int], journal: Journal
    ) -> tuple[list[Stretch], list[Copy]]:
        """Add `rows` to the lengths of `sequences` in a layer. Returns the new rows, and the copies
        to do before they are written. Raises `CacheFullError` if there is no room for all.
        """
        stretches = []
        for sequence, count, length in zip(sequences, rows, self.of(layer, sequences), strict=True):
            self._require_room(caller, layer, sequence, length, count)
            stretches.append(Stretch(sequence, length, length + count))
        copies = self._take_places(caller, stretches, journal)
        journal.write(self.lengths, (layer, sequences), [stretch.end for stretch in stretches])
        return stretches, copies

    def grow(self, caller: str, sequences: Sequence[int], rows: int, journal: Journal) -> list[Copy]:
        """Add `rows` rows to sequences in every layer. Returns the copies to do before the writes.

        Raises `CacheFullError` if there is no room for all.
        """
        stretches = []
        for sequence in sequences:
            of_layers = self.lengths[:, sequence]
            least, most = int(of_layers.min()), int(of_layers.max())
            self._require_room(caller, int(of_layers.argmax()), sequence, most, rows)
            stretches.append(Stretch(sequence, least, most + rows))
        copies = self._take_places(caller, stretches, journal)
        of = (slice(None), sequences)
        journal.write(self.lengths, of, self.lengths[of] + rows)
        return copies

    def cut(self, sequence: int, length: int, journal: Journal) -> None:
        """Cut a sequence to `length` rows in every layer; each layer must have as many."""
        journal.write(self.lengths, (slice(None), sequence), length)
        self._placement.cut(sequence, length, journal)

    def share(self, source: int, target: int, journal: Journal) -> list[Copy]:
        """Give `target`, which has no rows, the rows of `source`. Returns the copies to do."""
        copies = self._placement.share(source, target, self.longest(source), journal)
        journal.write(self.lengths, (slice(None), target), self.lengths[:, source])
        return copies

    def reorder(self, caller: str, sequences: list[int], sources: list[int], journal: Journal) -> None:
        """Give each of `sequences` the rows of its source, without a copy. Raises `LaunchError` if
        the placement cannot share rows.
        """
        self._placement.reorder(caller, sequences, sources, journal)
        journal.write(self.lengths, (slice(None), sequences), self.lengths[:, sources])

    def _require_room(self, caller: str, layer: int, sequence: int, length: int, count: int) -> None:
        if length + count > self._capacity:
            raise CacheFullError(
                f"{caller}: sequence {sequence} has {length} of {self._capacity} tokens in layer "
                f"{layer}, which leaves no room for {count} more; truncate or reset it, or "
                "make a cache with a larger capacity"
            )

    def _take_places(self, caller: str, stretches: Sequence[Stretch], journal: Journal) -> list[Copy]:
        placement = self._placement
        needed = placement.needed(stretches)
        if needed > (placement.free or 0):
            raise CacheFullError(
                f"{caller}: {needed} more pages are needed, but {placement.free} of "
                f"{placement.places} are free; truncate or reset sequences, or make a cache "
                "with more pages"
            )
        return [copy for stretch in stretches for copy in placement.make_room(stretch, journal)]
