"""Work that is shared out among threads which outlive a call."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from flash.cpu.threads import WORTH_A_THREAD, share_out

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
    found = []
    on_two_threads(lambda _: found.append(threading.current_thread()))
    return set(found)


def test_calls_share_their_threads_one_after_another():
    before = {*threading.enumerate(), *working_threads()}
    found = set().union(*[working_threads() for _ in range(20)])
    assert threading.current_thread() in found
    assert len(found - before) < 20  # a call that comes before a thread rests begins another


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


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_forked_process_starts_threads_of_its_own():
    # In a process of its own: other libraries that tests import have threads, which a fork does not copy.
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS], capture_output=True, text=True, timeout=90
    )
    assert found.stdout == "2\n", found.stderr
