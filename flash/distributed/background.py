"""Threads for calls that block, kept for later ones. A process ends without waiting for them."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import Final


class _Worker(threading.Thread):
    """A thread that does one task after another."""

    def __init__(self) -> None:
        super().__init__(name="flash.distributed", daemon=True)
        self.tasks: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        while True:
            task = self.tasks.get()
            task()
            del task  # and the tensors that it has
            _IDLE.append(self)


_IDLE: Final[list[_Worker]] = []
os.register_at_fork(after_in_child=_IDLE.clear)  # a child has none of the threads


def in_background(task: Callable[[], object]) -> None:
    """Begin a task, which must not raise, in a thread that has none."""
    try:
        worker = _IDLE.pop()
    except IndexError:
        worker = _Worker()
    worker.tasks.put(task)
