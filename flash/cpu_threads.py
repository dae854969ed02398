"""Holds BLAS to one thread while Python threads do the parallel work."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]


class BlasThreads:
    """Counts the calls that need single-threaded BLAS; the last one gives its threads back.

    The number of BLAS threads belongs to the process, so that two overlapping calls that each
    saved and restored it could leave it at one for ever.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._usual = 1
        self._limit = ExitStack()
        self._libraries: ThreadpoolController | None = None

    @contextmanager
    def one_each(self) -> Iterator[int]:
        """BLAS runs single-threaded inside; the value is the thread count it had before."""
        with self._lock:
            if self._users == 0:
                self._usual = self._hold()
            self._users += 1
        try:
            yield self._usual
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._limit.close()

    def _hold(self) -> int:
        """Limit every BLAS to one thread; return the count of the one that had the most."""
        if self._libraries is None:  # searching the loaded libraries takes a millisecond: once
            self._libraries = ThreadpoolController().select(user_api="blas")
        counts = [library["num_threads"] for library in self._libraries.info()]
        self._limit.enter_context(self._libraries.limit(limits=1))
        return max(counts, default=os.cpu_count() or 1)


BLAS_THREADS = BlasThreads()
