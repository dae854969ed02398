"""Shares work out among Python threads, with BLAS held to one thread in each."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from flash.cpu.blocks import IS_OPENBLAS

# The most helper threads of the process, which all calls share; no machine has more cores.
_MOST_HELPERS = 1024

# Having another thread work costs about 0.1 ms, in which a core does a fraction of this number of
# multiplications.
WORTH_A_THREAD = 2**24

# OpenBLAS multiplies a matrix of fewer than 9216 elements by a vector, and larger matrices that need no more
# multiplications than that, on the calling thread alone, so that it need not be held to one thread.
_NEVER_SHARED = 2**13

Bell: TypeAlias = NDArray[np.int64]  # a number, which changes

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
        self._libraries: Any = None  # of the type of threadpoolctl, if that is installed

    @contextmanager
    def one_each(self) -> Iterator[int]:
        """A context in which BLAS runs single-threaded; its value is the former thread count of BLAS."""
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
                    self._restore()

    def usual(self) -> int:
        """The thread count of the BLAS that has the most, when no call holds it."""
        with self._lock:
            return _most(self._usual or self._blas_libraries())

    def forget_callers(self) -> None:
        """Reset the state in a forked process, in which the threads of other calls do not exist, though they
        may hold the lock.
        """
        self._lock = threading.Lock()
        self._users = weakref.WeakSet()
        self._restore()

    def _hold(self) -> int:
        """Limit every BLAS to one thread; return the result of `usual`."""
        if not self._usual:
            self._usual = self._blas_libraries()
        for library, _ in self._usual:
            library.set_num_threads(1)
        return _most(self._usual)

    def _blas_libraries(self) -> list[tuple[Any, int]]:
        """The BLAS libraries of the process, and their present numbers of threads."""
        if self._libraries is None:  # searching the loaded libraries takes a millisecond: once
            try:
                from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]
            except ModuleNotFoundError:
                return []
            self._libraries = ThreadpoolController().select(user_api="blas")
        return [(library, library.num_threads) for library in self._libraries.lib_controllers]

    def _restore(self) -> None:
        for library, count in self._usual:
            library.set_num_threads(count)
        self._usual = []


def _most(libraries: list[tuple[Any, int]]) -> int:
    if "threadpoolctl" not in sys.modules:  # BLAS keeps its threads, and several of ours would each have all
        return 1
    return max((count for _, count in libraries), default=0) or os.cpu_count() or 1


class _User:
    """A call that needs single-threaded BLAS now."""


BLAS_THREADS = BlasThreads()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=BLAS_THREADS.forget_callers)

_UNHEARD: Bell = np.zeros(1, np.int64)  # the bell of calls without helpers


class Shared(Protocol):
    """Work in parts, which several threads do together: a leader, which calls `run_together`, and helpers.
    Each does parts that no other has begun.
    """

    def lead(self, bell: Bell) -> bool:
        """Add 1 to the bell, and do parts until all are begun. Return whether all parts are done, for which
        the leader may wait a short while.
        """

    def help(self, bell: Bell) -> None:
        """Do parts until all are begun. Then a helper may wait a short while, without sleeping, until the
        bell rings for the next call: to be woken takes longer.
        """

    def is_begun(self) -> bool:
        """Whether all parts are begun, and helpers that have done their parts listen to the bell."""


class _Helpers:
    """Threads that wait for work of the next call, because waking one takes less time than starting one.
    They are started when they are first needed; a forked process begins with none.
    """

    bell: Bell

    def __init__(self) -> None:
        self._begin()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._pool = ThreadPoolExecutor(_MOST_HELPERS, thread_name_prefix="ptxgen-cpu")
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Future[None], Shared]] = deque()
        self._helping: list[Shared] = []
        self.bell = np.zeros(1, np.int64)

    def give(self, future: Future[None], shared: Shared) -> None:
        """Let a thread help: one that listens to the bell, or else a sleeping one, which is woken. `future`
        is done when it has helped, and cancelled if no thread can be started, for example while Python exits.
        """
        request = future, shared
        with self._lock:
            self._waiting.append(request)
            hear = sum(work.is_begun() for work in self._helping)
            is_heard = len(self._waiting) <= hear
        if is_heard:
            return
        try:
            self._pool.submit(self._serve)
        except RuntimeError:
            future.cancel()
            with self._lock:
                if request in self._waiting:
                    self._waiting.remove(request)

    def _serve(self) -> None:
        """Help with waiting requests until there are none."""
        while True:
            with self._lock:
                if not self._waiting:
                    return
                future, shared = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                with self._lock:
                    self._helping.append(shared)
                _help(future, shared, self.bell)
                with self._lock:
                    self._helping.remove(shared)
            del future, shared  # and with it the arrays of a call


def _help(future: Future[None], shared: Shared, bell: Bell) -> None:
    try:
        shared.help(bell)
    except BaseException as error:  # the leader raises it
        future.set_exception(error)
    else:
        future.set_result(None)


_HELPERS = _Helpers()


def share_out(
    tasks: Iterable[_Task],
    space: Callable[[], _Space],
    do: Callable[[_Space, _Task], None],
    *,
    threads: int | None,
    multiplications: int,
) -> None:
    """Do all tasks, begun in their order, on at most `threads` Python threads (None: as many as BLAS
    would use), or on fewer if the `multiplications` are not worth starting them. `space` makes the buffers of
    a thread. BLAS is held to one thread in the whole process meanwhile. An error in a thread is raised here.
    """
    waiting = deque(tasks)
    if not waiting:
        return
    if multiplications <= _NEVER_SHARED and IS_OPENBLAS:
        _Queue(waiting, space, do).help(_UNHEARD)
        return
    with BLAS_THREADS.one_each() as usual_threads:
        helpers = helpers_for(len(waiting), threads or usual_threads, multiplications)
        run_together(_Queue(waiting, space, do), helpers)


class _Queue(Generic[_Space, _Task]):
    """Tasks as work that threads share; see `share_out`."""

    def __init__(
        self, waiting: deque[_Task], space: Callable[[], _Space], do: Callable[[_Space, _Task], None]
    ) -> None:
        self._waiting, self._space, self._do = waiting, space, do

    def lead(self, bell: Bell) -> bool:
        """See `Shared`; the leader sleeps until its helpers are done."""
        bell[0] += 1
        self.help(bell)
        return False

    def help(self, bell: Bell) -> None:  # noqa: ARG002  # a helper sleeps when it has done its tasks
        """See `Shared`. After an error nobody begins another task."""
        try:
            space = self._space()
            with np.errstate(all="ignore"):  # log(0) = -inf is wanted; NaN in gives NaN out
                while self._waiting:
                    try:
                        task = self._waiting.popleft()
                    except IndexError:  # another thread was quicker
                        return
                    self._do(space, task)
        except BaseException:
            self._waiting.clear()
            raise

    def is_begun(self) -> bool:
        """False: helpers do not listen to the bell."""
        return False


def helpers_for(tasks: int, threads: int, multiplications: int) -> int:
    """How many other threads are worth waking for `tasks` with this number of multiplications in all, which
    may use at most `threads` threads.
    """
    return min(threads, tasks, multiplications // WORTH_A_THREAD + 1) - 1


def run_together(shared: Shared, helpers: int) -> None:
    """Do the work on this thread, the leader, and at the same time on at most `helpers` others. Return when
    all parts are done. An error in a thread is raised here.
    """
    futures: list[Future[None]] = []
    is_done = False
    try:
        for _ in range(helpers):
            futures.append(Future())  # before it is given, so that it is cancelled, whatever happens
            _HELPERS.give(futures[-1], shared)
        is_done = shared.lead(_HELPERS.bell if futures else _UNHEARD)
    finally:
        # A helper that other calls keep busy has not begun, and is not waited for.
        begun = [future for future in futures if not future.cancel()]
        ended = () if is_done or not begun else wait(begun).done
    for future in ended:
        future.result()
