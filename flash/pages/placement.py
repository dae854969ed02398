"""The rows of each sequence of a KV cache: how many there are (`Ledger`), which memory they are in
(`Placement`, contiguous or in pages), and how a call that fails takes back its changes (`Journal`).

The memory of a layer is an array of slots of equal size: a slot is the whole capacity of one sequence, or a
page. A placement says in which slots the rows of a sequence are, and which slots have to be copied before a
sequence writes into them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ptxgen.errors import CacheFullError, LaunchError

NO_PAGE: Final = -1  # in a block table, after the last page of a sequence


class Journal:
    """The old values of all elements that a call has written; `undo` restores them, last first.

    An old value is noted before the write, and dropped once it has been restored. So undoing is
    exact wherever the writes stopped, and an interrupted `undo` can be continued.
    """

    def __init__(self) -> None:
        self._notes: list[tuple[Any, Any, Any]] = []

    def write(self, target: Any, index: Any, value: Any) -> None:
        """Do target[index] = value, and note the old value, which an undo writes back."""
        self.note(target, index, copy(target[index]))
        target[index] = value

    def note(self, target: Any, index: Any, value: Any) -> None:
        """Let `undo` set target[index] to `value`."""
        self._notes.append((target, index, value))

    def undo(self) -> bool:
        """Undo all noted writes: restore the old values. Returns whether there were any."""
        has_changes = bool(self._notes)
        while self._notes:
            target, index, value = self._notes[-1]
            target[index] = value
            del self._notes[-1]
        return has_changes


class PagePool:
    """`pages` pages with indices from 0 on; each is free or has one or more users. Changes are
    noted in the journal of a call.
    """

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self._users = [0] * pages
        self._free = list(range(pages - 1, -1, -1))  # taken from its end: the lowest first

    @property
    def free(self) -> int:
        """The number of pages of the pool that no sequence uses."""
        return len(self._free)

    def users(self, page: int) -> int:
        """The number of sequences that share a page."""
        return self._users[page]

    def take(self, journal: Journal) -> int:
        """Take a free page for one user. Raises `CacheFullError` if no page is free."""
        if not self._free:
            raise CacheFullError(
                f"PagePool: all {self.pages} pages are in use; release one before taking another"
            )
        page = self._free[-1]
        journal.write(self._free, slice(len(self._free) - 1, None), [])
        journal.write(self._users, page, 1)
        return page

    def share(self, page: int, journal: Journal) -> None:
        """Add a user of a page. Raises `LaunchError` if the page is free."""
        self._require_used(page, "shared")
        journal.write(self._users, page, self._users[page] + 1)

    def release(self, page: int, journal: Journal) -> None:
        """Remove a user; a page without users is free. Raises `LaunchError` for a free page."""
        self._require_used(page, "released")
        journal.write(self._users, page, self._users[page] - 1)
        if not self._users[page]:
            journal.write(self._free, slice(len(self._free), None), [page])

    def state(self) -> tuple[list[int], list[int]]:
        """The users of each page, and the free pages, the next last; copies."""
        return list(self._users), list(self._free)

    def restore(self, state: tuple[list[int], list[int]]) -> None:
        """Set users and free pages to the `state` of a pool of as many pages."""
        self._users[:], self._free[:] = state

    def _require_used(self, page: int, what: str) -> None:
        if not 0 <= page < self.pages or not self._users[page]:
            raise LaunchError(
                f"PagePool: a page that is {what} must be in use, but page {page} of {self.pages} "
                "is not; release each page once for each time it was taken or shared"
            )


class Stretch(NamedTuple):
    """A range of rows of a sequence: rows `begin` to `end` - 1."""

    sequence: int
    begin: int
    end: int


class Run(NamedTuple):
    """Contiguous rows of a sequence: `rows` rows of slot `slot`, from its row `first` on."""

    slot: int
    first: int
    rows: int


class Copy(NamedTuple):
    """A copy, in every layer, of the first `rows` rows of slot `source` to slot `target`."""

    source: int
    target: int
    rows: int


class Placement(Protocol):
    """Says in which slots the rows of sequences are. Changes are noted in the journal of a call."""

    slots: int
    rows: int  # rows of a slot
    # Keys: rows of the table that changed since the copy on the GPU was updated, which clears it.
    changed: dict[int, None]

    @property
    def table(self) -> NDArray[np.int32] | None:
        """The pages of each sequence, [batch, ceil(capacity / rows)]; None if contiguous."""

    @property
    def free(self) -> int | None:
        """The number of pages that no sequence uses; None without pages."""

    def needed(self, stretches: Sequence[Stretch]) -> int:
        """The number of free pages that are needed to write stretches of rows."""

    def make_room(self, stretch: Stretch, journal: Journal) -> list[Copy]:
        """Give a sequence its own slots for a stretch to be written. Returns the copies."""

    def cut(self, sequence: int, length: int, journal: Journal) -> None:
        """Free the slots that a sequence of `length` rows does not need."""

    def share(self, source: int, target: int, length: int, journal: Journal) -> list[Copy]:
        """Give `target`, which has no rows, the `length` rows of `source`. Returns the copies."""

    def reorder(
        self, caller: str, sequences: Sequence[int], sources: Sequence[int], journal: Journal
    ) -> None:
        """Give each of `sequences` the rows of its source, all at once. Raises `LaunchError` in the
        name of `caller` if sequences cannot share rows.
        """

    def runs(self, stretch: Stretch) -> Iterator[Run]:
        """The runs of memory with the rows of a stretch, in order."""

    def held(self, lengths: Sequence[int]) -> list[Run]:
        """The runs that hold all rows of sequences of these lengths, shared rows once."""

    def state(self) -> tuple[Any, ...]:
        """A copy of the slots that each sequence has, for `restore`."""

    def restore(self, state: tuple[Any, ...]) -> None:
        """Give sequences the slots of a `state` of a placement of the same sizes."""


# Unused arguments of a method are used by the other of the two placements.
class Contiguous:
    """Sequence b has slot b, with `capacity` rows."""

    table: Final = None
    free: Final = None

    def __init__(self, batch: int, capacity: int) -> None:
        self.slots = batch
        self.rows = capacity
        self.changed: dict[int, None] = {}

    def needed(self, stretches: Sequence[Stretch]) -> int:  # noqa: ARG002
        """The number of free pages needed to write stretches: 0, since the memory has no pages."""
        return 0

    def make_room(self, stretch: Stretch, journal: Journal) -> list[Copy]:  # noqa: ARG002
        """Do nothing, and return no copies: a sequence never shares its slot."""
        return []

    def cut(self, sequence: int, length: int, journal: Journal) -> None:
        """Do nothing: a truncated sequence keeps its whole slot."""

    def share(
        self,
        source: int,
        target: int,
        length: int,
        journal: Journal,  # noqa: ARG002
    ) -> list[Copy]:
        """Copy the source's rows to the target's slot: slots are not shared."""
        return [Copy(source, target, length)]

    def reorder(
        self,
        caller: str,
        sequences: Sequence[int],
        sources: Sequence[int],
        journal: Journal,  # noqa: ARG002
    ) -> None:
        """Raise `LaunchError`: slots are not shared."""
        raise LaunchError(
            f"{caller}: sequences of contiguous memory cannot share rows, but {list(sequences)} shall hold "
            f"what {list(sources)} hold; make the cache with page_size, such as page_size=16"
        )

    def runs(self, stretch: Stretch) -> Iterator[Run]:
        """The runs of memory with the rows of a stretch: one run, or none for an empty stretch."""
        sequence, begin, end = stretch
        if end > begin:
            yield Run(sequence, begin, end - begin)

    def held(self, lengths: Sequence[int]) -> list[Run]:
        """The runs that hold all rows of sequences: one run for each sequence with rows."""
        return [Run(sequence, 0, length) for sequence, length in enumerate(lengths) if length]

    def state(self) -> tuple[Any, ...]:
        """The state for `restore`, empty: in contiguous memory the slots of sequences do not change."""
        return ()

    def restore(self, state: tuple[Any, ...]) -> None:
        """Restore nothing: in contiguous memory the slots of sequences do not change."""


class Paged:
    """Row r of a sequence is row r % page_size of page `table[sequence, r // page_size]`.

    Sequences share pages. A sequence that writes into a shared page first gets its own copy of it
    (copy-on-write).
    """

    def __init__(self, batch: int, capacity: int, page_size: int, pages: int) -> None:
        self.slots = pages
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
        left: dict[int, int] = {}  # users that each page loses meanwhile
        for sequence, begin, end in stretches:
            held = self._counts[sequence]
            for n in self._numbers(begin, end):
                page = int(self.table[sequence, n]) if n < held else NO_PAGE
                if page == NO_PAGE:
                    wanted += 1
                elif (users := self.pool.users(page)) > 1 and users - left.get(page, 0) > 1:
                    left[page] = left.get(page, 0) + 1
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
                copied = self.pool.take(journal)
                self.pool.release(page, journal)
                copies.append(Copy(page, copied, self.rows))
                page = copied
            else:
                page = self.pool.take(journal)
                journal.write(self._counts, sequence, n + 1)
            self._write(sequence, n, page, journal)
        return copies

    def cut(self, sequence: int, length: int, journal: Journal) -> None:
        """Release the pages after row `length` - 1."""
        needed = -(-length // self.rows)
        for n in range(needed, self._counts[sequence]):
            self.pool.release(int(self.table[sequence, n]), journal)
            self._write(sequence, n, NO_PAGE, journal)
        journal.write(self._counts, sequence, min(self._counts[sequence], needed))

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
        """Let sequences share the pages of their sources, then release the pages that they had before."""
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
        """The runs of memory with the rows of a stretch: one run for each page of it."""
        sequence, begin, end = stretch
        for n in self._numbers(begin, end):
            first = max(begin, n * self.rows)
            stop = min(end, (n + 1) * self.rows)
            yield Run(int(self.table[sequence, n]), first - n * self.rows, stop - first)

    def held(self, lengths: Sequence[int]) -> list[Run]:  # noqa: ARG002
        """The runs that hold all rows of sequences: one run for each page that is used."""
        return [Run(page, 0, self.rows) for page in range(self.slots) if self.pool.users(page)]

    def state(self) -> tuple[Any, ...]:
        """The table, the number of pages of each sequence, and the state of the pool."""
        return self.table.copy(), list(self._counts), self.pool.state()

    def restore(self, state: tuple[Any, ...]) -> None:
        """See `Placement.restore`."""
        self.table[...], self._counts[:], pool = state
        self.pool.restore(pool)
        self.changed.update(dict.fromkeys(range(len(self._counts))))

    def _write(self, sequence: int, n: int | slice, pages: Any, journal: Journal) -> None:
        """Write page numbers to a row of the block table; after an undo the row is still in `changed`."""
        journal.note(self.changed, sequence, None)
        self.changed[sequence] = None
        journal.write(self.table, (sequence, n), pages)

    def _numbers(self, begin: int, end: int) -> range:
        """The columns of the table whose pages have rows `begin` to `end` - 1."""
        if begin >= end:
            return range(0)
        return range(begin // self.rows, -(-end // self.rows))


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

    def first_empty(self, caller: str, other_than: int) -> int:
        """The first sequence, except `other_than`, without tokens in any layer. Raises `CacheFullError` if
        there is none.
        """
        empty = np.flatnonzero(~self.lengths.any(axis=0))
        for sequence in empty[empty != other_than]:
            return int(sequence)
        raise CacheFullError(
            f"{caller}: all other of {self.lengths.shape[1]} sequences have tokens; reset one, or make a "
            "cache with a larger batch"
        )

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
        copies = self._make_room(caller, stretches, journal)
        if len(stretches) == 1:  # one number: numpy takes a list of indices five times as long
            journal.write(self.lengths, (layer, stretches[0].sequence), stretches[0].end)
        else:
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
        copies = self._make_room(caller, stretches, journal)
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

    def _make_room(self, caller: str, stretches: Sequence[Stretch], journal: Journal) -> list[Copy]:
        placement = self._placement
        needed = placement.needed(stretches)
        if needed and needed > (placement.free or 0):
            raise CacheFullError(
                f"{caller}: {needed} more pages are needed, but {placement.free} of "
                f"{placement.slots} are free; truncate or reset sequences, or make a cache "
                "with more pages"
            )
        return [copy for stretch in stretches for copy in placement.make_room(stretch, journal)]
