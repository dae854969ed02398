"""The changes that a call makes to the lengths and pages of a KV cache, noted to be undone."""

from __future__ import annotations

from copy import copy
from typing import Any


class Journal:
    """The old values of all elements that a call has written; `undo` restores them, last first.

    An old value is noted before the write, and dropped once it has been restored. So undoing is
    exact wherever the writes stopped, and an interrupted `undo` can be continued.
    """

    def __init__(self) -> None:
        self._notes: list[tuple[Any, Any, Any]] = []

    def write(self, target: Any, index: Any, value: Any) -> None:
        """Do target[index] = value, and note the old value."""
        self.note(target, index, copy(target[index]))
        target[index] = value

    def note(self, target: Any, index: Any, value: Any) -> None:
        """Let `undo` set target[index] to `value`."""
        self._notes.append((target, index, value))

    def undo(self) -> bool:
        """Restore all old values. Returns whether there were any."""
        found = bool(self._notes)
        while self._notes:
            target, index, value = self._notes[-1]
            target[index] = value
            del self._notes[-1]
        return found
