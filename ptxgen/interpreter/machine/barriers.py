"""The barriers of CTAs: sixteen for each CTA, with the threads that have arrived at each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter.machine.lanes import WARP

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.observer import Observer

    Lanes = np.ndarray[Any, np.dtype[Any]]

BARRIERS: Final = 16


class Barriers:
    """The barriers of a batch of CTAs.

    A barrier without a count completes when all threads of the CTA that have not exited wait at it
    (CUDA C++ Programming Guide, "Synchronization Functions": for compute capability 7.x and later).
    A barrier with a count completes when that many threads have arrived; lanes that never existed
    or have exited count with the rest of their warp, since the hardware counts warps. If more
    threads arrive at once, the first warps go on, and the others count for the next completion.
    """

    def __init__(self, ctas: int, width: int, watch: Observer | None) -> None:
        self._width = width
        self._watch = watch
        self.at: Lanes = np.full(ctas * width, -1, np.int64)  # the barrier that a lane waits at, or -1
        self.since: Lanes = np.zeros(ctas * width, np.int64)  # the instruction that a lane waits in
        self.last: Lanes = np.zeros(ctas * width, np.int64)  # the barrier that a lane waited at last
        self._votes: Lanes | None = None  # each lane's vote; None before the first vote
        # Votes that were true at each lane's last barrier.
        self._true: Lanes = np.zeros(ctas * width, np.int64)
        self._voters: Lanes = np.zeros(ctas * width, np.int64)  # number of votes at each lane's last barrier
        # Used with a sanitizer: how often lanes have arrived without waiting, `[lanes, barriers]`,
        # and for each CTA and barrier the instruction and the first lane that arrived again; where it may
        # have waited besides, also which lanes came.
        self._early: Lanes = np.zeros((ctas * width if watch else 0, BARRIERS), np.int16)
        self._again: dict[tuple[int, int], tuple[int, int]] = {}
        self._besides: dict[tuple[int, int], tuple[int, int, Lanes]] = {}
        self._came = np.zeros((ctas, BARRIERS), np.int64)  # arrivals at the last call of `complete`
        self._passed = np.zeros((ctas, BARRIERS), np.int64)  # arrivals without waiting
        self._wanted = np.zeros((ctas, BARRIERS), np.int64)  # the count; 0: all threads
        # The number of lanes that had ended when `complete` last found nothing; -1 after an arrival.
        self._idle = -1

    def state(self) -> tuple[Lanes, ...]:
        """Copies of the arrays that decide which lanes go on, and with which votes."""
        votes = np.zeros(0) if self._votes is None else self._votes
        return tuple(a.copy() for a in (self.at, self._passed, self._wanted, votes, self._true, self._voters))

    def arrive(
        self, ids: Lanes, barrier: Lanes, count: Lanes, at: int, *, wait: bool, votes: Lanes | None
    ) -> tuple[int, str] | None:
        """Record that lanes arrive at a barrier, perhaps with votes, bool. Returns a lane whose
        count differs from the count of an earlier arrival, if any, and the mistake in words.
        """
        self._idle = -1
        cta = ids // self._width
        empty = self._arrived()[cta, barrier] == 0
        wanted = np.where(empty, count, self._wanted[cta, barrier])
        self._wanted[cta, barrier] = wanted
        wanted = self._wanted[cta, barrier]
        if (wanted != count).any():
            n = int((wanted != count).argmax())
            return int(ids[n]), (
                f"comes to barrier {barrier[n]} for {_threads(count[n])}, but others have come to "
                f"it for {_threads(wanted[n])}"
            )
        if self._watch is not None:
            self._missed(ids, barrier)
            again = self._early[ids, barrier] > 0
            for n in np.flatnonzero(again).tolist():
                self._again.setdefault((int(cta[n]), int(barrier[n])), (at, int(ids[n])))
            if not wait:
                self._early[ids, barrier] += 1
        if wait:
            self.at[ids] = self.last[ids] = barrier
            self.since[ids] = at
            if votes is not None and self._votes is None:
                self._votes = np.zeros(len(self.at), np.bool_)
            if self._votes is not None:
                self._votes[ids] = False if votes is None else votes
            return None
        np.add.at(self._passed, (cta, barrier), 1)
        if self._watch is not None:
            self._watch.release(ids, barrier)
        self._end_unwaited()
        return None

    def complete(self, exited: Lanes) -> Lanes | None:
        """Lanes, as a mask, that may go on because their barrier is complete; None if there are
        none.

        `exited` says which lanes have ended or never existed. If more threads have arrived than the
        count, the others go on waiting.
        """
        ended = int(np.count_nonzero(exited))
        waiting = self.at >= 0
        if ended == self._idle or not np.count_nonzero(waiting):
            return None
        arrived = self._arrived()
        if self._wanted.any():
            arrived = arrived + self._fillers(exited)
        live = (~exited).reshape(-1, self._width).sum(axis=1)
        self._came = arrived
        done = (arrived > 0) & (arrived == np.where(self._wanted > 0, self._wanted, live[:, None]))
        over = (self._wanted > 0) & (arrived > self._wanted)
        if not (done | over).any():
            self._idle = ended
            return None
        cta = np.arange(len(waiting)) // self._width
        free: Lanes = waiting & done[cta, self.at]
        for number, barrier in np.argwhere(over).tolist():
            free[self._first(number, barrier, exited)] = True
        ids = np.flatnonzero(free)
        if self._votes is not None:
            self._count_votes(ids)
        if self._watch is not None and len(ids):
            self._watch.join(ids, self.at[ids], self.since[ids], exited)
        self._passed[done] = 0
        self._forget(done)
        self.at[ids] = -1
        return free if len(ids) else None

    def _first(self, cta: int, barrier: int, exited: Lanes) -> Lanes:
        """The lanes that go on if more threads have arrived than the count: the arrivals without
        waiting count first, then the waiting warps in order.
        """
        begin = cta * self._width
        here = slice(begin, begin + self._width)
        there = self.at[here] == barrier
        counts = (there | exited[here]).reshape(-1, WARP).sum(axis=1)
        counts[~there.reshape(-1, WARP).any(axis=1)] = 0
        wanted, passed = int(self._wanted[cta, barrier]), int(self._passed[cta, barrier])
        self._passed[cta, barrier] = max(passed - wanted, 0)
        self._early[here, barrier] = 0
        self._again.pop((cta, barrier), None)
        fits = np.repeat(np.cumsum(counts) <= wanted - passed, WARP)
        free = begin + np.flatnonzero(there & fits)
        # If the count is one warp, it does not matter which warps go on together.
        if self._watch is not None and wanted > WARP:
            last = begin + int(np.flatnonzero(there)[-1])
            came = passed + int(counts.sum())
            self._watch.too_many(int(self.since[last]), last, barrier, came, wanted)
        return free

    def _end_unwaited(self) -> None:
        """Complete the barriers at which enough threads have arrived and none waits."""
        full = (self._wanted > 0) & (self._passed >= self._wanted)
        if full.any():
            full &= self._arrived() == self._passed
            self._passed[full] -= self._wanted[full]
            self._forget(full)

    def _forget(self, done: Lanes) -> None:
        """Forget the arrivals at barriers that are complete. A warp may arrive and wait, and so
        count twice, if all warps do: warpgroups that hand over to each other let one begin in this
        way. It may also do so if others come once, as the count may be meant for that: it goes on with them.
        But a warp that has not come may arrive later, whose place the extra arrival has taken; and a warp
        that arrives twice without waiting, if others do not, has run ahead.
        """
        if self._watch is None or not done.any():
            return
        for cta, barrier in [key for key in self._again if done[key]]:
            at, lane = self._again.pop((cta, barrier))
            here = slice(cta * self._width, (cta + 1) * self._width)
            early = self._early[here, barrier]
            times = early + (self.at[here] == barrier)
            came = times > 0
            if times[came].min() == times[came].max():
                continue
            if early[came].max() == 1 or early[came].min() == early[came].max():
                self._besides[cta, barrier] = at, lane, came
            else:
                self._watch.twice(at, lane, barrier)
        self._early[np.repeat(done, self._width, axis=0)] = 0

    def _missed(self, ids: Lanes, barrier: Lanes) -> None:
        """Report earlier extra waits at a barrier that took the part of some of the lanes `ids`, which arrive
        only then.
        """
        for (cta, number), (at, lane, came) in self._besides.items():
            mine = ids[(ids // self._width == cta) & (barrier == number)] % self._width
            if self._watch is not None and not came[mine].all():
                self._watch.twice(at, lane, number)

    def outcome(self, ids: Lanes, op: str) -> Lanes:
        """The result of the votes at the barrier that each lane waited at last: `and`, `or` (bool)
        or `popc` (uint32).
        """
        true, voters = self._true[ids], self._voters[ids]
        outcomes: dict[str, Lanes] = {
            "popc": true.astype(np.uint32),
            "and": np.equal(true, voters),
            "or": np.greater(true, 0),
        }
        return outcomes[op]

    def counts(self, cta: int) -> list[tuple[int, int, int]]:
        """The barriers of a CTA at which threads have arrived: the number of each, of these threads, and of
        those that it waits for, 0 for all threads of the CTA.
        """
        arrived = self._arrived()[cta]
        return [(int(n), int(arrived[n]), int(self._wanted[cta, n])) for n in np.flatnonzero(arrived)]

    @property
    def waiting(self) -> Lanes:
        """Which lanes wait, bool."""
        return self.at >= 0

    def describe(self, lane: int) -> str:
        """The barrier that a lane waits for, in words."""
        where = lane // self._width, self.at[lane]
        came = f" ({self._came[where]} of {self._wanted[where]} threads have come)"
        return f"barrier {self.at[lane]}{came if self._wanted[where] else ''}"

    def _count_votes(self, ids: Lanes) -> None:
        assert self._votes is not None
        keys = ids // self._width * BARRIERS + self.at[ids]
        size = self._passed.size
        self._voters[ids] = np.bincount(keys, minlength=size)[keys]
        self._true[ids] = np.bincount(keys[self._votes[ids]], minlength=size)[keys]

    def _arrived(self) -> Lanes:
        ids = np.flatnonzero(self.at >= 0)
        keys = ids // self._width * BARRIERS + self.at[ids]
        return np.bincount(keys, minlength=self._passed.size).reshape(self._passed.shape) + self._passed

    def _fillers(self, exited: Lanes) -> Lanes:
        """Lanes that have ended or never existed, in warps that wait at a barrier with a count."""
        warps = np.where(self.at.reshape(-1, WARP) >= 0, self.at.reshape(-1, WARP), -1).max(axis=1)
        gone = exited.reshape(-1, WARP).sum(axis=1)
        used = np.flatnonzero(warps >= 0)
        keys = used // (self._width // WARP) * BARRIERS + warps[used]
        return np.bincount(keys, weights=gone[used], minlength=self._passed.size).astype(np.int64).reshape(
            self._passed.shape
        ) * (self._wanted > 0)


def _threads(count: int) -> str:
    return f"{count} threads" if count else "all threads"
