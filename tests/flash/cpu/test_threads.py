"""Work that is shared out among threads which outlive a call."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flash.cpu import threads
from flash.cpu.threads import WORTH_A_THREAD, Bell, run_together, share_out

ENOUGH = 64 * WORTH_A_THREAD  # multiplications that are worth all threads


def on_two_threads(do):
    """Have two threads do a task each, at the same time."""
    both = threading.Barrier(2)

    def meet(_, task):
        both.wait(timeout=60)
        do(task)

    share_out(range(2), lambda: None, meet, threads=2, multiplications=ENOUGH)


def working_threads():
    """The threads that do two tasks at once."""
    result = []
    on_two_threads(lambda _: result.append(threading.current_thread()))
    return set(result)


def test_calls_share_their_threads_one_after_another():
    before = {*threading.enumerate(), *working_threads()}
    result = set().union(*[working_threads() for _ in range(20)])
    assert threading.current_thread() in result
    assert len(result - before) < 20  # a call that comes before a thread rests begins another


def test_an_error_in_another_thread_is_raised_and_the_next_call_works():
    caller = threading.current_thread()

    def fail(_):
        if threading.current_thread() is not caller:
            raise ZeroDivisionError("in a helper")

    with pytest.raises(ZeroDivisionError, match=r"^in a helper$"):
        on_two_threads(fail)
    assert len(working_threads()) == 2


def test_after_an_error_of_the_caller_no_task_is_begun():
    caller, done = threading.current_thread(), []
    failed, both = threading.Event(), threading.Barrier(2)

    def do(_, task):
        if task < 2:
            both.wait(timeout=60)  # each thread has one of the first two tasks
            if threading.current_thread() is caller:
                failed.set()
                raise ZeroDivisionError("in the caller")
            failed.wait(timeout=60)
        time.sleep(0.001)
        done.append(task)

    with pytest.raises(ZeroDivisionError, match=r"^in the caller$"):
        share_out(range(2000), lambda: None, do, threads=2, multiplications=ENOUGH)
    assert len(done) < 2000 - 1


FORKS = """
import os, threading
from flash.cpu.threads import share_out

def working_threads():
    found, both = set(), threading.Barrier(2)

    def do(_, task):
        both.wait(timeout=60)
        found.add(threading.current_thread())

    share_out(range(2), lambda: None, do, threads=2, multiplications=2**40)
    return len(found)

working_threads()
child = os.fork()
if not child:
    os._exit(working_threads())
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


FORKS_WITH_A_LOCK = """
import os, signal, threading
from flash.cpu.threads import BLAS_THREADS

ready, forked = threading.Event(), threading.Event()

def hold():
    with BLAS_THREADS.one_each(), BLAS_THREADS._lock:
        ready.set()
        forked.wait(60)

usual = BLAS_THREADS.usual()
thread = threading.Thread(target=hold)
thread.start()
ready.wait(60)
child = os.fork()
if not child:
    signal.alarm(30)  # ends it if it waits for the lock
    os._exit(10 + BLAS_THREADS.usual() - usual + len(BLAS_THREADS._users))
forked.set()
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
@pytest.mark.parametrize(
    ("program", "result"),
    [(FORKS, 2), (FORKS_WITH_A_LOCK, 10)],
    ids=["starts threads of its own", "waits for no call of the other process"],
)
def test_a_forked_process(program: str, result: int) -> None:
    # In a process of its own: other libraries that tests import have threads, which a fork does not copy.
    actual = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=90
    )
    assert actual.stdout == f"{result}\n", actual.stderr


def test_where_no_thread_can_be_started_a_call_does_its_work_alone(helpers, monkeypatch):
    def fail(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(helpers._pool, "submit", fail)
    done = []
    share_out(range(20), lambda: None, lambda _, task: done.append(task), threads=4, multiplications=ENOUGH)
    assert done == list(range(20))
    assert not helpers._waiting


def test_after_an_error_of_the_caller_between_tasks_no_task_is_begun():
    caller, done, begun = threading.current_thread(), [], threading.Event()

    def space():
        if threading.current_thread() is caller:
            begun.wait(timeout=60)
            raise MemoryError("no buffers")

    def do(_, task):
        begun.set()
        time.sleep(0.001)
        done.append(task)

    with pytest.raises(MemoryError, match=r"^no buffers$"):
        share_out(range(2000), space, do, threads=2, multiplications=ENOUGH)
    assert len(done) < 2000 - 1


# ---- work of which who helps waits for the next call without sleeping


class Parts:
    """Work of so many parts, of which each thread does one, all at once; then who helps waits for the bell if
    it `hears`, or as if for a long part until `released`. Who leads does the `others` meanwhile.
    """

    def __init__(self, threads: int, *, hears: bool = True, others: Callable[[], object] = int) -> None:
        self.threads: list[threading.Thread] = []
        self._count = threads
        self._meet = threading.Barrier(threads, timeout=60)
        self._hears, self._others = hears, others
        self.released = threading.Event()

    def _work(self, bell: Bell) -> int:
        self.threads.append(threading.current_thread())
        self._meet.wait()
        heard = int(bell[0])  # before a part is done, as who leads may ring for the next call then
        self._meet.wait()
        return heard

    def lead(self, bell: Bell) -> bool:
        bell[0] += 1
        self._work(bell)
        self._others()
        return self._hears

    def help(self, bell: Bell) -> None:
        heard = self._work(bell)
        if self._hears:
            while bell[0] == heard:
                time.sleep(0.001)
        else:
            self.released.wait(timeout=60)

    def is_begun(self) -> bool:
        return self._hears and len(self.threads) == self._count


@pytest.fixture
def helpers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Helpers of this test alone, none of which exists before."""
    result = threads._Helpers()
    monkeypatch.setattr(threads, "_HELPERS", result)
    yield result
    result.bell[0] += 1
    result._pool.shutdown()


def test_a_helper_that_waits_hears_of_the_next_call_and_nobody_is_woken(helpers: Any) -> None:
    calls = [Parts(3) for _ in range(5)]
    for call in calls:
        run_together(call, 2)
    assert all(set(call.threads) == set(calls[0].threads) for call in calls)
    assert len(helpers._pool._threads) == 2


@pytest.mark.usefixtures("helpers")
def test_a_call_wakes_a_thread_while_helpers_have_parts_of_another_call() -> None:
    busy, call = Parts(2, hears=False), Parts(2)

    def meanwhile() -> None:
        try:
            run_together(call, 1)
        finally:
            busy.released.set()

    busy._others = meanwhile
    run_together(busy, 1)
    assert len({*busy.threads, *call.threads}) == 3


def test_a_call_without_helpers_does_not_ring(helpers: Any) -> None:
    run_together(Parts(1), 0)
    assert helpers.bell[0] == 0


def test_a_call_by_tasks_is_heard_too(helpers: Any) -> None:
    call = Parts(2)
    run_together(call, 1)
    assert working_threads() == set(call.threads)
    assert len(helpers._pool._threads) == 1


@pytest.mark.parametrize(("multiplications", "held"), [(2**13, 0), (2**13 + 1, 1)])
def test_products_that_blas_does_on_one_thread_do_not_hold_it_to_one(
    monkeypatch: pytest.MonkeyPatch, multiplications: int, held: int
) -> None:
    monkeypatch.setattr(threads, "IS_OPENBLAS", True)
    holds, hold, done = [], threads.BLAS_THREADS._hold, []
    monkeypatch.setattr(threads.BLAS_THREADS, "_hold", lambda: holds.append(None) or hold())
    share_out(range(3), list, lambda _, n: done.append(n), threads=None, multiplications=multiplications)
    assert done == [0, 1, 2]
    assert len(holds) == held
    monkeypatch.setattr(threads, "IS_OPENBLAS", False)
    share_out(range(3), list, lambda _, n: done.append(n), threads=None, multiplications=multiplications)
    assert len(holds) == held + 1
