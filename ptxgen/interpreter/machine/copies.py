"""`cp.async`: copies that are under way until their thread waits for them.

The source is read, and its bounds are checked, when the copy starts; the destination holds poison
from then until the thread that started the copy has waited for its group. So a missing wait reads
poison, on every run. With `delays`, some copies complete earlier, those of a thread in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter.machine.memory import POISON

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.observer import Copied, Observer
    from ptxgen.interpreter.machine.waiting import Delays

    Lanes = np.ndarray[Any, np.dtype[Any]]


_NEVER: Final = np.iinfo(np.int64).max


@dataclass(slots=True)
class _Copy:
    """The copies that one instruction started. For each lane: its number, its open group, its first
    destination word, its data. The data is written at time `due`, or when it is waited for;
    `written` says whether it has been.
    """

    at: int
    ids: Lanes
    group: Lanes
    word: Lanes
    data: Lanes  # [lanes, words] uint32
    due: int = _NEVER
    written: bool = False
    copied: Copied | None = None  # tells the sanitizers which lanes have waited

    def only(self, chosen: Lanes) -> _Copy:
        return _Copy(
            self.at,
            self.ids[chosen],
            self.group[chosen],
            self.word[chosen],
            self.data[chosen],
            self.due,
            self.written,
            self.copied,
        )


class AsyncCopies:
    """The copies of a batch of CTAs. `words` is the shared memory of the batch as uint32."""

    def __init__(self, lanes: int, words: Lanes, watch: Observer | None) -> None:
        self._words = words
        self._watch = watch
        self._committed = np.zeros(lanes, np.int64)  # groups closed so far, by lane
        self._copies: list[_Copy] = []
        self.delays: Delays | None = None  # None: every copy completes as late as possible

    def start(self, at: int, ids: Lanes, word: Lanes, data: Lanes, copied: Copied | None = None) -> None:
        """Start copying `data`, `[lanes, words]`, to the words from `word` on, by instruction `at`."""
        self._words[_each_word(word, data.shape[1])] = POISON
        copy = _Copy(at, ids, self._committed[ids], word, data, copied=copied)
        self._copies.append(copy)
        if self.delays is not None:
            copy.due = self.delays.draw(_NEVER - self.delays.now)
            self.work()

    def work(self) -> None:
        """Write the copies that are due."""
        now = -1 if self.delays is None else self.delays.now
        for n, copy in enumerate(self._copies):
            if copy.due <= now and not copy.written:
                self._write_up_to(n)

    def finish(self) -> bool:
        """Write the copies that would complete without a wait; whether there were any."""
        late = [copy for copy in self._copies if copy.due != _NEVER and not copy.written]
        for copy in late:
            self._write(copy)
        return bool(late)

    def commit(self, ids: Lanes) -> None:
        """Close the open group of each of these lanes."""
        self._committed[ids] += 1

    def wait(self, ids: Lanes, pending: int | None) -> None:
        """Have these lanes wait until at most `pending` of their groups are under way; None: until
        no copy of theirs is.
        """
        # Groups are numbered from 0 for each lane; those below the limit must be complete.
        limit = np.full(len(self._committed), -1, np.int64)
        limit[ids] = self._committed[ids] + 1 if pending is None else self._committed[ids] - pending
        left = []
        for copy in self._copies:
            done = copy.group < limit[copy.ids]
            if done.all():
                self._land(copy)
            elif done.any():
                self._land(copy.only(done))
                left.append(copy.only(~done))
            else:
                left.append(copy)
        self._copies = left

    def _write_up_to(self, number: int) -> None:
        """Write copy `number`, after the earlier copies of its threads, and recursively of the threads of
        those copies.
        """
        ids = self._copies[number].ids
        wanted = []
        for copy in self._copies[number::-1]:
            if not copy.written and np.isin(copy.ids, ids).any():
                ids = np.union1d(ids, copy.ids)
                wanted.append(copy)
        for copy in reversed(wanted):
            self._write(copy)

    def _write(self, copy: _Copy) -> None:
        self._words[_each_word(copy.word, copy.data.shape[1])] = copy.data
        copy.written = True

    def _land(self, copy: _Copy) -> None:
        if not copy.written:
            self._write(copy)
        if self._watch is not None:
            self._watch.end_copy(copy.at, copy.ids, copy.word, copy.data.shape[1])
        if copy.copied is not None:
            copy.copied(copy.ids)


def _each_word(first: Lanes, count: int) -> Lanes:
    return first[:, None] + np.arange(count)
