"""Where the rows of each sequence lie in the memory of a KV cache: contiguous, or in pages.

The memory of a layer is an array of places, each with as many rows: a sequence's whole capacity, or
a page. A placement says in which places the rows of a sequence are, and which places have to be
copied before a sequence writes into them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from flash.pages.journal import Journal
from flash.pages.page_pool import PagePool

MAX_PAGE_SIZE: Final = 256  # tokens
NO_PAGE: Final = -1  # in a block table, behind the last page of a sequence


class Stretch(NamedTuple):
    """Rows `begin` to `end` - 1 of a sequence."""

    sequence: int
    begin: int
    end: int


class Run(NamedTuple):
    """Rows of a sequence that lie one after another: `rows` of them, from `first` of `place` on."""

    place: int
    first: int
    rows: int


class Copy(NamedTuple):
    """The first `rows` rows of `source`, in every layer, are to be copied to place `target`."""

    source: int
    target: int
    rows: int


class Placement(Protocol):
    """What a cache asks about its places. What changes is noted in the journal of a call."""

    places: int
    rows: int  # of a place
    # Rows of the table, as keys, that were changed since whoever follows it emptied this.
    changed: dict[int, None]

    @property
    def table(self) -> NDArray[np.int32] | None:
        """Pages of each sequence, [batch, ceil(capacity / rows)]; None if place b is sequence b."""

    @property
    def free(self) -> int | None:
        """Pages that nobody uses; None without pages."""

    def needed(self, stretches: Sequence[Stretch]) -> int:
        """How many free pages it takes to write these rows."""

    def make_room(self, stretch: Stretch, journal: Journal) -> list[Copy]:
        """Give a sequence places of its own for rows that it will write; what to copy before."""

    def cut(self, sequence: int, length: int, journal: Journal) -> None:
        """A sequence has no more rows than `length`."""

    def share(self, source: int, target: int, length: int, journal: Journal) -> list[Copy]:
        """`target`, which has no rows, has the `length` rows of `source`; what to copy for that."""

    def runs(self, stretch: Stretch) -> Iterator[Run]:
        """Where the rows of a sequence are, in order."""


# What one of the two does not need of a call, the other does.
class Contiguous:
    """Each sequence has a place of its own, with its number and as many rows as may be needed."""

    table: Final = None
    free: Final = None

    def __init__(self, batch: int, capacity: int) -> None:
        self.places = batch
        self.rows = capacity
        self.changed: dict[int, None] = {}

    def needed(self, stretches: Sequence[Stretch]) -> int:  # noqa: ARG002
        """None."""
        return 0

    def make_room(self, stretch: Stretch, journal: Journal) -> list[Copy]:  # noqa: ARG002
        """Nothing to do."""
        return []

    def cut(self, sequence: int, length: int, journal: Journal) -> None:
        """Nothing to do."""

    def share(
        self, source: int, target: int, length: int, journal: Journal  # noqa: ARG002
    ) -> list[Copy]:  # fmt: skip
        """The rows are copied: places are not shared."""
        return [Copy(source, target, length)]

    def runs(self, stretch: Stretch) -> Iterator[Run]:
        """One, or none."""
        sequence, begin, end = stretch
        if end > begin:
            yield Run(sequence, begin, end - begin)


class Paged:
    """Row r of a sequence is row r % page_size of page `table[sequence, r // page_size]`.

    Sequences share pages. One that writes into a page which another uses, too, gets a copy of it
    first (copy-on-write).
    """

    def __init__(self, batch: int, capacity: int, page_size: int, pages: int) -> None:
        self.places = pages
        self.rows = page_size
        self.table: Final[NDArray[np.int32]] = np.full(
            (batch, -(-capacity // page_size)), NO_PAGE, np.int32
        )
        self.pool = PagePool(pages)
        self.changed: dict[int, None] = dict.fromkeys(range(batch))
        self._counts = [0] * batch  # pages of each sequence

    @property
    def free(self) -> int:
        """Pages that nobody uses."""
        return self.pool.free

    def needed(self, stretches: Sequence[Stretch]) -> int:
        """One for each that is new, and for each to be written that another uses, too."""
        wanted = 0
        left: Counter[int] = Counter()  # how many users a page loses while room is made
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
        """New pages behind those that the sequence has, and its own in place of shared ones."""
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
        """Pages without any of the rows are released."""
        kept = -(-length // self.rows)
        for n in range(kept, self._counts[sequence]):
            self.pool.release(int(self.table[sequence, n]), journal)
            self._write(sequence, n, NO_PAGE, journal)
        journal.write(self._counts, sequence, min(self._counts[sequence], kept))

    def share(
        self, source: int, target: int, length: int, journal: Journal  # noqa: ARG002
    ) -> list[Copy]:  # fmt: skip
        """All pages are shared; nothing is copied until one of the two writes."""
        for page in self.table[source, : self._counts[source]]:
            self.pool.share(int(page), journal)
        self._write(target, slice(None), self.table[source], journal)
        journal.write(self._counts, target, self._counts[source])
        return []

    def runs(self, stretch: Stretch) -> Iterator[Run]:
        """One for each page."""
        sequence, begin, end = stretch
        for n in self._numbers(begin, end):
            first = max(begin, n * self.rows)
            stop = min(end, (n + 1) * self.rows)
            yield Run(int(self.table[sequence, n]), first - n * self.rows, stop - first)

    def _write(self, sequence: int, n: int | slice, pages: Any, journal: Journal) -> None:
        """Let these be pages of a sequence. Its row counts as changed, also if that is undone."""
        journal.note(self.changed, sequence, None)
        self.changed[sequence] = None
        journal.write(self.table, (sequence, n), pages)

    def _numbers(self, begin: int, end: int) -> range:
        """Which pages of a sequence have these of its rows."""
        if begin >= end:
            return range(0)
        return range(begin // self.rows, -(-end // self.rows))
