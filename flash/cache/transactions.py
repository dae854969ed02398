"""Changes of a cache that happen as a whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from flash.cache.cuda_memory import KVMemory
from flash.pages.journal import Journal

T = TypeVar("T")


class Transactions:
    """The transactions of a cache with this memory, one inside of another or one after another."""

    def __init__(self, memory: KVMemory) -> None:
        self._memory = memory
        self._open: Journal | None = None  # of the transaction under way

    def whole(self, work: Callable[[Journal], T], stream: int, refresh: Callable[[int], None]) -> T:
        """See `KVCache.whole`."""
        if self._open is not None:
            return work(self._open)
        journal, last = Journal(), self._memory.stream
        try:
            self._open = journal
            result = work(journal)
            self._open = None
            return result  # no line follows: an interrupt before it undoes, and behind it the call is over
        except BaseException:
            try:
                if journal.undo():
                    with suppress(Exception):  # the exception of `work` is raised
                        refresh(stream)
                        self._memory.wait(stream)
            finally:
                self._memory.stream, self._open = last, None
            raise
