"""The asynchronous operations on tensor memory that are under way: products and copies of threads, stores of
warps, and arrivals of commits.

Those of one thread or warp complete in the order in which they have started, whatever their shapes. Without a
schedule each completes when a later commit must arrive at its mbarrier, or when the warp waits for its
stores; a schedule also draws a time for each of them, at once or some instructions later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.waiting import Delays

Action = Callable[[], None]


@dataclass(slots=True)
class _Queue:
    """The operations of one thread or warp that are under way, and the number of all that it has started."""

    actions: deque[Action] = field(default_factory=deque)
    started: int = 0


class TensorQueues:
    """The operations of all threads, the stores of all warps, or the arrivals of each thread's commits in
    each CTA, of a batch, by the number of their owner. With `delays`, the time of each is drawn.
    """

    def __init__(self, delays: Delays | None) -> None:
        self._delays = delays
        self._of: dict[int, _Queue] = {}
        self._due: list[
            tuple[int, int, int]
        ] = []  # a time, the thread or warp, and the number of its operations

    def start(self, owner: int, action: Action) -> None:
        """Have an operation of a thread or warp done after its earlier ones."""
        queue = self._of.setdefault(owner, _Queue())
        queue.actions.append(action)
        queue.started += 1
        if self._delays is None:
            return
        due = self._delays.draw()
        if due <= self._delays.now:
            self.complete(owner, queue.started)
        else:
            self._due.append((due, owner, queue.started))

    def started(self, owner: int) -> int:
        """The number of operations that a thread or warp has started so far."""
        return self._of.setdefault(owner, _Queue()).started

    def complete(self, owner: int, count: int) -> None:
        """Do the first `count` operations of a thread or warp, as far as they are not done."""
        queue = self._of.get(owner)
        while queue is not None and queue.started - len(queue.actions) < count:
            queue.actions.popleft()()

    def work(self) -> None:
        """Do the operations that are due."""
        if not self._due:
            return
        assert self._delays is not None
        now = self._delays.now
        due = [entry for entry in self._due if entry[0] <= now]
        if due:
            self._due = [entry for entry in self._due if entry[0] > now]
            for _, owner, count in due:
                self.complete(owner, count)
