"""The bulk groups of threads: copies from shared memory that a thread waits for together, either
until they have read their sources (`.read`) or until they are complete.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.observer import Observer, Tell

READ: Final = 1  # what is added to the key of a group for its reads


@dataclass(slots=True)
class _Groups:
    """Of one thread: the key of the open group, if any, and those of the others, of which so many
    have been waited for to read.

    By key, the sanitizers' newest stamp of a read, and what they are told of ended writes.
    """

    current: int | None = None
    closed: list[int] = field(default_factory=list)
    read: int = 0
    stamps: dict[int, int] = field(default_factory=dict)
    writes: dict[int, list[Tell]] = field(default_factory=dict)

    def waited(self, pending: int, read: bool) -> list[int]:
        """The keys of the groups that a wait is for, without those it has been waited for so."""
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
    """The bulk groups of all threads of a batch. Keys are what the groups are called among the
    actions of asynchronous agents: numbers that are no position in shared memory.
    """

    def __init__(self) -> None:
        self._of: dict[int, _Groups] = {}
        self._keys = itertools.count(-2, -2)  # each with another one for the group's reads

    def open(self, lane: int) -> int:
        """The key of a thread's open group."""
        groups = self._of.setdefault(lane, _Groups())
        if groups.current is None:
            groups.current = next(self._keys)
        return groups.current

    def commit(self, lane: int) -> None:
        """Close the open group."""
        key = self.open(lane)
        self._of[lane].closed.append(key)
        self._of[lane].current = None

    def stamp(self, lane: int, stamp: int) -> None:
        """Keep the sanitizers' stamp of a read of the open group."""
        key = self.open(lane)
        self._of[lane].stamps[key] = stamp

    def finish(self, lane: int, tell: Tell) -> None:
        """Keep what the sanitizers are to be told once a thread has waited for its open group."""
        key = self.open(lane)
        self._of[lane].writes.setdefault(key, []).append(tell)

    def wait(self, lane: int, pending: int, read: bool, watch: Observer | None) -> list[int]:
        """A thread waits for all its closed groups but the newest `pending`; the keys of what has
        to be done for that.
        """
        groups = self._of.setdefault(lane, _Groups())
        keys = groups.waited(pending, read)
        for key in keys if watch is not None else ():
            assert watch is not None
            watch.bulk.know(lane, groups.stamps.pop(key, 0))
            for tell in () if read else groups.writes.pop(key, ()):
                tell()
        return [key + READ for key in keys] if read else keys
