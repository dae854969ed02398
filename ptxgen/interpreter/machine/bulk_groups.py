"""The bulk groups of threads: copies from shared memory that a thread waits for together, either
until they have read their sources (`.read`) or until they are complete.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.observer import Observer, Tell

READ: Final = 1  # added to the key of a group for its reads


@dataclass(slots=True)
class _Groups:
    """The groups of one thread: the key of the open group, if any, and the keys of the closed ones, of which
    the first `read` have been waited for by a `.read`.

    `reads` has for each key the numbers by which sanitizers know the group's reads, `writes` the messages
    that tell them of the end of its writes.
    """

    current: int | None = None
    closed: list[int] = field(default_factory=list)
    read: int = 0
    reads: dict[int, list[int]] = field(default_factory=dict)
    writes: dict[int, list[Tell]] = field(default_factory=dict)

    def waited(self, pending: int, read: bool) -> list[int]:
        """The keys of the groups that a wait waits for, without the groups that an earlier wait of the same
        kind has waited for.
        """
        keep = max(len(self.closed) - pending, 0)
        if read:
            keys = self.closed[self.read : keep]
            self.read = max(self.read, keep)
            return keys
        keys = self.closed[:keep]
        del self.closed[:keep]
        self.read = max(self.read - keep, 0)
        return keys


class BulkGroups:
    """The bulk groups of all threads of a batch. The key of a group identifies it among the actions
    of asynchronous agents; keys are negative, so that none is a position in shared memory.
    """

    def __init__(self) -> None:
        self._of: dict[int, _Groups] = {}
        self._keys = itertools.count(-2, -2)  # even numbers; the odd one above is for the group's reads

    def open(self, lane: int) -> int:
        """The key of a thread's open group."""
        groups = self._of.setdefault(lane, _Groups())
        if groups.current is None:
            groups.current = next(self._keys)
        return groups.current

    def commit(self, lane: int) -> None:
        """Close the open group of a thread."""
        key = self.open(lane)
        self._of[lane].closed.append(key)
        self._of[lane].current = None

    def reads(self, lane: int, number: int) -> None:
        """Keep the number by which sanitizers know a read of the thread's open group."""
        key = self.open(lane)
        self._of[lane].reads.setdefault(key, []).append(number)

    def finish(self, lane: int, tell: Tell) -> None:
        """Keep a message to the sanitizers for the time when the thread has waited for its open group."""
        key = self.open(lane)
        self._of[lane].writes.setdefault(key, []).append(tell)

    def wait(self, lane: int, pending: int, read: bool, watch: Observer | None) -> list[int]:
        """Have a thread wait for all its closed groups but the newest `pending`. Returns the keys
        of the actions that must be done for it.
        """
        groups = self._of.setdefault(lane, _Groups())
        keys = groups.waited(pending, read)
        for key in keys if watch is not None else ():
            assert watch is not None
            for number in groups.reads.pop(key, ()):
                watch.bulk.know(lane, number)
            for tell in () if read else groups.writes.pop(key, ()):
                tell()
        return [key + READ for key in keys] if read else keys
