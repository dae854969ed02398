"""Threads that wait for messages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
_PATIENCE_S = 60

_REUSE = """
import threading
from flash.distributed.background import in_background

for _ in range(50):
    both = threading.Barrier(3, timeout=20)
    for _ in range(2):
        in_background(both.wait)
    both.wait()
assert sum(thread.name == "flash.distributed" for thread in threading.enumerate()) < 20
"""

_FORK = """
import os, queue
from flash.distributed.background import in_background

def works():
    done = queue.SimpleQueue()
    in_background(lambda: done.put(None))
    done.get(timeout=20)

works()
works()
child = os.fork()
works()
if child:
    _, status = os.waitpid(child, 0)
    raise SystemExit(os.waitstatus_to_exitcode(status))
os._exit(0)
"""

_END = """
import threading
from flash.distributed.background import in_background

in_background(threading.Event().wait)
"""


def _run(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_threads_are_kept_for_later_tasks() -> None:
    _run(_REUSE)


def test_a_forked_process_has_threads_of_its_own() -> None:
    _run(_FORK)


def test_a_process_ends_without_its_threads() -> None:
    _run(_END)
