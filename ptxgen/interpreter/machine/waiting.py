"""Waits other than those at the barriers of a CTA: for values in shared memory, and for the barrier
of the cluster; and the actions of asynchronous agents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    Lanes = np.ndarray[Any, np.dtype[Any]]

Woken = Callable[["Lanes", "Lanes"], None]

_NEVER: Final = np.iinfo(np.int64).max
LATEST: Final = 2048  # instructions after which an asynchronous operation is complete at the latest


@dataclass(slots=True)
class _Words:
    """Elements of `view`, given by their indices, and what they held when they were last looked at."""

    view: Lanes
    words: Lanes
    seen: Lanes

    def changed(self) -> bool:
        """Whether an element has changed since the last call."""
        now = self.view[self.words]
        same = bool((now == self.seen).all())
        self.seen = now
        return not same


@dataclass(slots=True)
class _Wait:
    """Lanes that wait in one instruction until `ready` holds for their cells of shared memory.

    `cells` are indices of elements of a view, one for each lane that was selected then; `left` says
    which of these lanes still wait, and `ids` are their numbers in the batch. `of` are the cells of
    `left`, each once.
    """

    ids: Lanes
    cells: Lanes
    ready: Callable[[Lanes], Lanes]
    left: Lanes
    what: Callable[[int], str]  # a description, given a byte of shared memory
    woken: Woken | None
    of: _Words

    @property
    def view(self) -> Lanes:
        """Shared memory as elements of the type that the lanes wait for."""
        return self.of.view

    def wake(self, now: Lanes) -> None:
        """Report the end of the wait of the lanes `now`."""
        if self.woken is not None and now.any():
            self.woken(self.ids[now], self.cells[now] * self.view.itemsize)


class MemoryWaits:
    """Lanes that wait for values in shared memory. `waiting` says which lanes do, bool, `since` in
    which instruction.
    """

    def __init__(self, lanes: int) -> None:
        self.waiting: Lanes = np.zeros(lanes, np.bool_)
        self.since: Lanes = np.zeros(lanes, np.int64)
        self._waits: list[_Wait] = []
        self._looked: list[_Words] | None = None  # the words of all waits, by type; None: to be collected

    def add(
        self,
        at: int,
        ids: Lanes,
        cells: Lanes,
        view: Lanes,
        ready: Callable[[Lanes], Lanes],
        active: Lanes,
        what: Callable[[int], str],
        woken: Woken | None = None,
    ) -> None:
        """Make the active lanes wait whose cell is not ready. `what` describes the wait for a byte
        of shared memory. `woken` is called with lanes whose wait has ended, and the bytes that they
        waited for.
        """
        left = active & ~np.broadcast_to(ready(view[cells]), active.shape)
        words = np.unique(cells[left])
        wait = _Wait(ids, cells, ready, left, what, woken, _Words(view, words, view[words]))
        wait.wake(active & ~left)
        if left.any():
            self.waiting[ids[left]] = True
            self.since[ids[left]] = at
            self._waits.append(wait)
            self._looked = None

    def complete(self, exited: Lanes) -> Lanes | None:
        """Lanes, as a mask, whose wait has ended; None if there are none."""
        del exited
        if self._looked is None:
            self._looked = _words_of(self._waits)
        changed = [words.changed() for words in self._looked]
        if not any(changed):
            return None
        free: Lanes | None = None
        for wait in self._waits:
            if not wait.of.changed():
                continue
            now = wait.left & np.broadcast_to(wait.ready(wait.view[wait.cells]), wait.left.shape)
            if now.any():
                free = np.zeros_like(self.waiting) if free is None else free
                free[wait.ids[now]] = True
                wait.wake(now)
                wait.left = wait.left & ~now
        if free is not None:
            self.waiting &= ~free
            self._waits = [w for w in self._waits if w.left.any()]
            self._looked = None
        return free

    @property
    def some(self) -> bool:
        """Whether any lane waits."""
        return bool(self._waits)

    def positions(self) -> set[int]:
        """The bytes of shared memory that lanes wait for, as positions in the batch."""
        return {
            int(cell) * wait.view.itemsize
            for wait in self._waits
            for cell in np.unique(wait.cells[wait.left])
        }

    def describe(self, lane: int) -> str:
        """A description of the wait of a lane."""
        for wait in self._waits:
            rows = np.flatnonzero((wait.ids == lane) & wait.left)
            if len(rows):
                return wait.what(int(wait.cells[rows[0]]) * wait.view.itemsize)
        return "nothing"


def _words_of(waits: Iterable[_Wait]) -> list[_Words]:
    """The words of all waits, those of each type together."""
    words: dict[np.dtype[Any], list[_Words]] = {}
    for wait in waits:
        words.setdefault(wait.view.dtype, []).append(wait.of)
    return [
        _Words(of[0].view, np.concatenate([w.words for w in of]), np.concatenate([w.seen for w in of]))
        for of in words.values()
    ]


class ClusterBarrier:
    """The barriers of a batch's clusters; `left` is called with the lanes that they release."""

    def __init__(
        self, lanes: int, lanes_of_cluster: int, left: Callable[[Lanes], None] | None = None
    ) -> None:
        self._size = lanes_of_cluster
        self._left = left
        self._arrivals: Lanes = np.zeros(lanes, np.int64)
        self.waiting: Lanes = np.zeros(lanes, np.bool_)
        self.since: Lanes = np.zeros(lanes, np.int64)

    def arrive(self, ids: Lanes) -> None:
        """Record the arrival of these lanes."""
        self._arrivals[ids] += 1

    def wait(self, ids: Lanes, at: int) -> None:
        """Have these lanes wait in instruction `at` until all lanes of their cluster have arrived
        as often as they have.
        """
        self.waiting[ids] = True
        self.since[ids] = at

    def complete(self, exited: Lanes) -> Lanes | None:
        """Lanes, as a mask, that may go on; None if there are none."""
        if not np.count_nonzero(self.waiting):
            return None
        least = np.where(exited, _NEVER, self._arrivals).reshape(-1, self._size).min(axis=1)
        free: Lanes = self.waiting & (np.repeat(least, self._size) >= self._arrivals)
        if not free.any():
            return None
        self.waiting &= ~free
        if self._left is not None:
            self._left(np.flatnonzero(free))
        return free

    def describe(self, lane: int) -> str:
        """A description of the wait of a lane."""
        del lane
        return "the barrier of the cluster"


class Agents:
    """Actions that asynchronous agents have yet to do, in the order in which they were started.

    An action is done as late as a correct program allows: when a thread asks for its position in
    shared memory, or when nothing else can run.
    """

    def __init__(self) -> None:
        self._actions: list[tuple[int, Callable[[], None]]] = []

    def add(self, position: int, action: Callable[[], None]) -> None:
        """Have `action` done once a thread asks for the byte of shared memory at `position`."""
        self._actions.append((position, action))

    def ask(self, positions: Iterable[int]) -> bool:
        """Do the actions of these positions; whether there were any."""
        if not self._actions:
            return False
        wanted = set(positions)
        now = [action for position, action in self._actions if position in wanted]
        self._actions = [entry for entry in self._actions if entry[0] not in wanted]
        for action in now:
            action()
        return bool(now)

    def serve(self, waits: MemoryWaits) -> None:
        """Do the actions that lanes wait for."""
        if self._actions and waits.some:
            self.ask(waits.positions())

    def finish(self) -> bool:
        """Do all actions; whether there were any."""
        return self.ask([position for position, _ in self._actions])


class Delays:
    """The times at which asynchronous agents do their actions: a third of them at once, a third
    some time later, and a third as late as possible. `now` counts the instructions of the batch.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.now = 0
        self._rng = rng

    def draw(self, latest: int = LATEST) -> int:
        """The time of the next action, at most `latest` instructions from now."""
        kind = int(self._rng.integers(3))
        if kind == 1:  # short and long delays are equally likely
            return self.now + int(2 ** self._rng.uniform(0, np.log2(min(latest, LATEST))))
        return self.now if kind == 0 else self.now + latest

    def pick(self, count: int) -> int:
        """A random number below `count`."""
        return int(self._rng.integers(count))


class LateAgents(Agents):
    """Agents whose actions happen at the times that `delays` draws. Only a wait for a bulk group,
    which has a negative position, does its actions at once.
    """

    def __init__(self, delays: Delays) -> None:
        super().__init__()
        self._delays = delays
        self._due: list[int] = []  # time of each action

    def add(self, position: int, action: Callable[[], None]) -> None:
        """Have `action` done at the time drawn for it."""
        due = self._delays.draw()
        if due <= self._delays.now:
            action()
            return
        self._actions.append((position, action))
        self._due.append(due)

    def ask(self, positions: Iterable[int]) -> bool:
        """Do the actions of these bulk groups; whether there were any."""
        wanted = {position for position in positions if position < 0}
        return self._do([n for n, entry in enumerate(self._actions) if entry[0] in wanted])

    def serve(self, waits: MemoryWaits) -> None:
        """Do nothing: a wait does not make an action earlier."""

    def work(self) -> None:
        """Do the actions that are due."""
        if self._due:
            self._do([n for n, due in enumerate(self._due) if due <= self._delays.now])

    def finish(self) -> bool:
        """Do one action at random, since nothing else can run; whether there was one."""
        return bool(self._actions) and self._do([self._delays.pick(len(self._actions))])

    def _do(self, numbers: list[int]) -> bool:
        chosen = [self._actions[n][1] for n in numbers]
        for n in reversed(numbers):
            del self._actions[n], self._due[n]
        for action in chosen:
            action()
        return bool(chosen)
