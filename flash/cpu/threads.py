"""Shares work out among Python threads, with BLAS held to one thread in each."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

# All calls of the process share so many; no machine has more cores.
_MOST_HELPERS = 1024

# Having another thread work costs about 0.1 ms, in which a core does a fraction of so many multiplications.
WORTH_A_THREAD = 2**24

_Space = TypeVar("_Space")
_Task = TypeVar("_Task")


class BlasThreads:
    """Keeps track of the calls that need single-threaded BLAS; the last one to end restores the
    numbers of BLAS threads.

    The number of BLAS threads belongs to the process, so that two overlapping calls that each saved
    and restored it could leave it at one for ever. So could a call that is interrupted on its way
    in or out. Therefore the numbers are saved before the first is changed, and forgotten once all
    are restored, and a call that is garbage collected without having left is not counted.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: weakref.WeakSet[_User] = weakref.WeakSet()
        self._usual: list[tuple[Any, int]] = []  # libraries, and their usual threads
        self._libraries: ThreadpoolController | None = None

    @contextmanager
    def one_each(self) -> Iterator[int]:
        """A context in which BLAS runs single-threaded; its value is the thread count that BLAS had
        before.
        """
        user = _User()
        try:
            with self._lock:
                self._users.add(user)
                usual = self._hold()
            yield usual
        finally:
            with self._lock:
                self._users.discard(user)
                if not self._users:
                    self._give_back()

    def _hold(self) -> int:
        """Limit every BLAS to one thread; return the usual thread count of the one that has the
        most.
        """
        if self._libraries is None:  # searching the loaded libraries takes a millisecond: once
            self._libraries = ThreadpoolController().select(user_api="blas")
        if not self._usual:
            found = self._libraries.lib_controllers
            self._usual = [(library, library.num_threads) for library in found]
        for library, _ in self._usual:
            library.set_num_threads(1)
        return max((count for _, count in self._usual), default=0) or os.cpu_count() or 1

    def _give_back(self) -> None:
        for library, count in self._usual:
            library.set_num_threads(count)
        self._usual = []


class _User:
    """A call that needs single-threaded BLAS now."""


BLAS_THREADS = BlasThreads()


class _Helpers:
    """Threads that wait for work of the next call, because waking one takes less time than starting one.
    They are started when they are first needed; a forked process begins with none.
    """

    def __init__(self) -> None:
        self._begin()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._pool = ThreadPoolExecutor(_MOST_HELPERS, thread_name_prefix="ptxgen-cpu")

    def submit(self, work: Callable[[], None]) -> Future[None]:
        """Have a thread do the work when one is free."""
        return self._pool.submit(work)


_HELPERS = _Helpers()


def share_out(
    tasks: Iterable[_Task],
    space: Callable[[], _Space],
    do: Callable[[_Space, _Task], None],
    *,
    threads: int | None,
    multiplications: int,
) -> None:
    """Do all tasks, begun in their order, on at most so many Python threads (None: as many as BLAS
    would use), or on fewer if these multiplications are not worth starting them. `space` makes what
    a thread works with. BLAS is held to one thread in the whole process meanwhile. An error in a
    thread is raised here.
    """
    waiting = deque(tasks)
    if not waiting:
        return

    def work() -> None:
        own = space()
        with np.errstate(all="ignore"):  # log(0) = -inf is wanted; NaN in gives NaN out
            while True:
                try:
                    task = waiting.popleft()
                except IndexError:
                    return
                do(own, task)

    with BLAS_THREADS.one_each() as usual_threads:
        worth = multiplications // WORTH_A_THREAD
        helpers = min(threads or usual_threads, len(waiting), worth + 1) - 1
        if helpers < 1:
            work()
            return
        futures = [_HELPERS.submit(work) for _ in range(helpers)]
        try:
            work()
        finally:
            waiting.clear()  # after an error nobody begins another task
            # A helper that other calls keep busy has not begun, and is not waited for.
            begun = [future for future in futures if not future.cancel()]
            wait(begun)
        for future in begun:
            future.result()
