"""What a call changes of a KV cache's numbers, noted so that it can be taken back."""

from __future__ import annotations

from copy import copy
from typing import Any


class Journal:
    """The old values of what has been written, the last first to be put back.

    Each is noted before the write, and dropped once it has been put back. So undoing is exact
    wherever the writes stopped, and goes on where it was itself stopped.
    """

    def __init__(self) -> None:
        self._notes: list[tuple[Any, Any, Any]] = []

    def write(self, target: Any, index: Any, value: Any) -> None:
        """target[index] = value."""
        self.note(target, index, copy(target[index]))
        target[index] = value

    def note(self, target: Any, index: Any, value: Any) -> None:
        """Let target[index] be `value` if it comes to undoing."""
        self._notes.append((target, index, value))

    def undo(self) -> bool:
        """Put everything back; whether there was anything."""
        found = bool(self._notes)
        while self._notes:
            target, index, value = self._notes[-1]
            target[index] = value
            del self._notes[-1]
        return found
