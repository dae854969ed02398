"""Daemon threads that wait for messages of `torch.distributed`, and are reused for later messages."""

from __future__ import annotations

import datetime
import os
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final


class _Worker(threading.Thread):
    """A thread that does one task after another, and is in `_IDLE` between them."""

    def __init__(self) -> None:
        super().__init__(name="flash.distributed", daemon=True)
        self.tasks: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        while True:
            task = self.tasks.get()
            task()
            del task  # frees the tensors that it refers to
            _IDLE.append(self)


_IDLE: Final[list[_Worker]] = []
if hasattr(os, "register_at_fork"):  # a forked child has no threads; Windows has no fork
    os.register_at_fork(after_in_child=_IDLE.clear)


def in_background(task: Callable[[], object]) -> None:
    """Start a task, which must not raise, in an idle thread, or a new one."""
    try:
        worker = _IDLE.pop()
    except IndexError:
        worker = _Worker()
    worker.tasks.put(task)


def error_of(works: Sequence[Any], *timeout: datetime.timedelta) -> str | None:
    """Wait for messages, for each up to `timeout`, by default that of the group. Returns the
    text of the error if one fails, else None.
    """
    try:
        for work in works:
            work.wait(*timeout)
    except RuntimeError as error:
        return short_message(error)
    return None


def short_message(error: Exception) -> str:
    """The first sentence of a backend's error, without advice."""
    return str(error).strip().partition("\n")[0].partition(". ")[0]
