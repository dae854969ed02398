"""`cp.async`: copies that are under way until their thread waits for them.

The source is read, and its bounds are checked, when the copy starts; the destination holds poison
from then until the thread that started the copy has waited for its group. So a missing wait reads
poison, on every run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.interpreter.memory import POISON
from ptxgen.interpreter.race import Access

if TYPE_CHECKING:
    from ptxgen.interpreter.race import RaceDetector

    Lanes = np.ndarray[Any, np.dtype[Any]]


@dataclass(slots=True)
class _Copy:
    """What one instruction started: for each lane its number, its open group, its first destination
    word, its data.
    """

    at: int
    ids: Lanes
    group: Lanes
    word: Lanes
    data: Lanes  # [lanes, words] uint32

    def only(self, chosen: Lanes) -> _Copy:
        return _Copy(
            self.at, self.ids[chosen], self.group[chosen], self.word[chosen], self.data[chosen]
        )


class AsyncCopies:
    """The copies of a batch of CTAs. `words` is the shared memory of the batch as uint32."""

    def __init__(
        self, lanes: int, words: Lanes, race: RaceDetector | None, units_per_word: int
    ) -> None:
        self._words = words
        self._race = race
        self._units_per_word = units_per_word
        self._committed = np.zeros(lanes, np.int64)  # groups closed so far, by lane
        self._copies: list[_Copy] = []

    def start(self, at: int, ids: Lanes, word: Lanes, data: Lanes) -> None:
        """Instruction `at` copies `data`, `[lanes, words]`, to `word` on."""
        self._words[_each_word(word, data.shape[1])] = POISON
        self._copies.append(_Copy(at, ids, self._committed[ids], word, data))

    def commit(self, ids: Lanes) -> None:
        """These lanes close their open group."""
        self._committed[ids] += 1

    def wait(self, ids: Lanes, pending: int | None) -> None:
        """These lanes wait until at most `pending` of their groups are under way; None: until no
        copy is.
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

    def _land(self, copy: _Copy) -> None:
        self._words[_each_word(copy.word, copy.data.shape[1])] = copy.data
        if self._race is not None:
            per_word = self._units_per_word
            access = Access(copy.ids, copy.word * per_word, copy.data.shape[1] * per_word, 0, 0)
            self._race.end_copy(access, copy.at)


def _each_word(first: Lanes, count: int) -> Lanes:
    return first[:, None] + np.arange(count)
