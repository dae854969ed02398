"""The placement of the rows of each sequence in the memory of a KV cache: contiguous, or in pages.

The memory of a layer is an array of places of equal size: a place is the whole capacity of one
sequence, or a page. A placement says in which places the rows of a sequence are, and which places
have to be copied before a sequence writes into them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from flash.pages.journal import Journal
from flash.pages.page_pool import PagePool
from ptxgen.errors import LaunchError

NO_PAGE: Final = -1  # in a block table, after the last page of a sequence


class Stretch(NamedTuple):
    """Rows `begin` to `end` - 1 of a sequence."""

    sequence: int
    begin: int
    end: int


class Run(NamedTuple):
    """Contiguous rows of a sequence: `rows` rows of place `place`, from its row `first` on."""

    place: int
    first: int
    rows: int


class Copy(NamedTuple):
    """A copy, in every layer, of the first `rows` rows of place `source` to place `target`."""

    source: int
    target: int
    rows: int


class Placement(Protocol):
    """The operations of a placement. Changes are noted in the journal of a call."""

    places: int
    rows: int  # rows of a place
    # Keys: rows of the table that changed since the copy on the GPU was updated, which clears it.
    changed: dict[int, None]

    @property
    def table(self) -> NDArray[np.int32] | None:
        """The pages of each sequence, [batch, ceil(capacity / rows)]; None if contiguous."""

    @property
    def free(self) -> int | None:
        """The number of pages that no sequence uses; None without pages."""

    def needed(self, stretches: Sequence[Stretch]) -> int:
        """The number of free pages needed to write these rows."""

    def make_room(self, stretch: Stretch, journal: Journal) -> list[Copy]:
        """Give a sequence its own places for a stretch to be written. Returns the copies."""

    def cut(self, sequence: int, length: int, journal: Journal) -> None:
        """Free the places that a sequence of `length` rows does not need."""

    def share(self, source: int, target: int, length: int, journal: Journal) -> list[Copy]:
        """Give `target`, which has no rows, the `length` rows of `source`. Returns the copies."""

    def reorder(
        self, caller: str, sequences: Sequence[int], sources: Sequence[int], journal: Journal
    ) -> None:
        """Give each of `sequences` the rows of its source, all at once. Raises `LaunchError` in the
        name of `caller` if sequences cannot share rows.
        """

    def runs(self, stretch: Stretch) -> Iterator[Run]:
        """The places of the rows of a sequence, in order."""

    def held(self, lengths: Sequence[int]) -> list[Run]:
        """All rows of sequences of these lengths, each once."""

    def state(self) -> tuple[Any, ...]:
        """Which places sequences have, copied."""

    def restore(self, state: tuple[Any, ...]) -> None:
        """Let sequences have the places of a `state` of a placement of the same sizes."""


# Unused arguments of a method are used by the other of the two placements.
class Contiguous:
    """Sequence b has place b, with `capacity` rows."""

    table: Final = None
    free: Final = None

    def __init__(self, batch: int, capacity: int) -> None:
        self.places = batch
        self.rows = capacity
        self.changed: dict[int, None] = {}

    def needed(self, stretches: Sequence[Stretch]) -> int:  # noqa: ARG002
        """0: there are no pages."""
        return 0

    def make_room(self, stretch: Stretch, journal: Journal) -> list[Copy]:  # noqa: ARG002
        """Nothing to do: a sequence never shares its place."""
        return []

    def cut(self, sequence: int, length: int, journal: Journal) -> None:
        """Nothing to do: a sequence keeps its place."""

    def share(
        self,
        source: int,
        target: int,
        length: int,
        journal: Journal,  # noqa: ARG002
    ) -> list[Copy]:
        """Copy the rows: places are not shared."""
        return [Copy(source, target, length)]

    def reorder(
        self,
        caller: str,
        sequences: Sequence[int],
        sources: Sequence[int],
        journal: Journal,  # noqa: ARG002
    ) -> None:
        """Raise `LaunchError`: places are not shared."""
        raise LaunchError(
            f"{caller}: sequences of contiguous memory cannot share rows, but {list(sequences)} shall hold "
            f"what {list(sources)} hold; make the cache with page_size, such as page_size=16"
        )

    def runs(self, stretch: Stretch) -> Iterator[Run]:
        """One run, or none for an empty stretch."""
        sequence, begin, end = stretch
        if end > begin:
            yield Run(sequence, begin, end - begin)

    def held(self, lengths: Sequence[int]) -> list[Run]:
        """A run for each sequence with rows."""
        return [Run(sequence, 0, length) for sequence, length in enumerate(lengths) if length]

    def state(self) -> tuple[Any, ...]:
        """Nothing: places do not change."""
        return ()

    def restore(self, state: tuple[Any, ...]) -> None:
        """Nothing to do."""


class Paged:
    """Row r of a sequence is row r % page_size of page `table[sequence, r // page_size]`.

    Sequences share pages. A sequence that writes into a shared page first gets its own copy of it
    (copy-on-write).
    """

    def __init__(self, batch: int, capacity: int, page_size: int, pages: int) -> None:
        self.places = pages
        self.rows = page_size
        self.table: Final[NDArray[np.int32]] = np.full((batch, -(-capacity // page_size)), NO_PAGE, np.int32)
        self.pool = PagePool(pages)
        self.changed: dict[int, None] = dict.fromkeys(range(batch))
        self._counts = [0] * batch  # the number of pages of each sequence

    @property
    def free(self) -> int:
        """The number of pages that no sequence uses."""
        return self.pool.free

    def needed(self, stretches: Sequence[Stretch]) -> int:
        """Pages to take: one for each new page, and one for each shared page that is written."""
        wanted = 0
        left: Counter[int] = Counter()  # users that each page loses while room is made
        for sequence, begin, end in stretches:
            held = self._counts[sequence]
            for n in self._numbers(begin, end):
                page = int(self.table[sequence, n]) if n < held else NO_PAGE
                if page == NO_PAGE:
                    wanted += 1
                elif self.pool.users(page) - left[page] > 1:
                    left[page] += 1
                    wanted += 1
        return wanted

    def make_room(self, stretch: Stretch, journal: Journal) -> list[Copy]:
        """Append new pages to the sequence, and replace shared pages in the stretch by copies."""
        sequence, begin, end = stretch
        copies = []
        for n in self._numbers(begin, end):
            if n < self._counts[sequence]:
                page = int(self.table[sequence, n])
                if self.pool.users(page) == 1:
                    continue
                own = self.pool.take(journal)
                self.pool.release(page, journal)
                copies.append(Copy(page, own, self.rows))
            else:
                own = self.pool.take(journal)
                journal.write(self._counts, sequence, n + 1)
            self._write(sequence, n, own, journal)
        return copies

    def cut(self, sequence: int, length: int, journal: Journal) -> None:
        """Release the pages after row `length` - 1."""
        kept = -(-length // self.rows)
        for n in range(kept, self._counts[sequence]):
            self.pool.release(int(self.table[sequence, n]), journal)
            self._write(sequence, n, NO_PAGE, journal)
        journal.write(self._counts, sequence, min(self._counts[sequence], kept))

    def share(self, source: int, target: int, length: int, journal: Journal) -> list[Copy]:  # noqa: ARG002
        """Share all pages; nothing is copied until one of the two sequences writes."""
        for page in self.table[source, : self._counts[source]]:
            self.pool.share(int(page), journal)
        self._write(target, slice(None), self.table[source], journal)
        journal.write(self._counts, target, self._counts[source])
        return []

    def reorder(
        self,
        caller: str,  # noqa: ARG002
        sequences: Sequence[int],
        sources: Sequence[int],
        journal: Journal,
    ) -> None:
        """Share the pages of the sources, then release those that the sequences had."""
        held = self.table.copy(), list(self._counts)
        for users, change in ((sources, self.pool.share), (sequences, self.pool.release)):
            for sequence in users:
                for page in held[0][sequence, : held[1][sequence]]:
                    change(int(page), journal)
        for sequence, source in zip(sequences, sources, strict=True):
            if sequence != source:
                self._write(sequence, slice(None), held[0][source], journal)
                journal.write(self._counts, sequence, held[1][source])

    def runs(self, stretch: Stretch) -> Iterator[Run]:
        """One run for each page of the stretch."""
        sequence, begin, end = stretch
        for n in self._numbers(begin, end):
            first = max(begin, n * self.rows)
            stop = min(end, (n + 1) * self.rows)
            yield Run(int(self.table[sequence, n]), first - n * self.rows, stop - first)

    def held(self, lengths: Sequence[int]) -> list[Run]:  # noqa: ARG002
        """A run for each page that is used."""
        return [Run(page, 0, self.rows) for page in range(self.places) if self.pool.users(page)]

    def state(self) -> tuple[Any, ...]:
        """The table, the number of pages of each sequence, and the state of the pool."""
        return self.table.copy(), list(self._counts), self.pool.state()

    def restore(self, state: tuple[Any, ...]) -> None:
        """See `Placement.restore`."""
        self.table[...], self._counts[:], pool = state
        self.pool.restore(pool)
        self.changed.update(dict.fromkeys(range(len(self._counts))))

    def _write(self, sequence: int, n: int | slice, pages: Any, journal: Journal) -> None:
        """Write pages to a row of the table; after an undo the row is still in `changed`."""
        journal.note(self.changed, sequence, None)
        self.changed[sequence] = None
        journal.write(self.table, (sequence, n), pages)

    def _numbers(self, begin: int, end: int) -> range:
        """The columns of the table whose pages have rows `begin` to `end` - 1."""
        if begin >= end:
            return range(0)
        return range(begin // self.rows, -(-end // self.rows))
