"""The CTA barriers: sixteen to a CTA, each with the threads that have arrived."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter.lanes import WARP

if TYPE_CHECKING:
    from ptxgen.interpreter.watch import Watch

    Lanes = np.ndarray[Any, np.dtype[Any]]

BARRIERS: Final = 16


class Barriers:
    """The barriers of a batch of CTAs.

    Without a count, a barrier completes when all threads of the CTA that have not exited wait at it
    (CUDA C++ Programming Guide, "Synchronization Functions": for compute capability 7.x and later).
    With a count, when so many threads have arrived; lanes that never were or have exited count with
    the rest of their warp, as hardware counts warps.
    """

    def __init__(self, ctas: int, width: int, watch: Watch | None) -> None:
        self._width = width
        self._watch = watch
        self.at: Lanes = np.full(ctas * width, -1, np.int64)  # the barrier a lane waits at, or -1
        self.since: Lanes = np.zeros(ctas * width, np.int64)  # the instruction it waits in
        self.last: Lanes = np.zeros(ctas * width, np.int64)  # the barrier a lane waited at last
        self._votes: Lanes | None = None  # by lane, from the first barrier with votes on
        self._true = np.zeros((ctas, BARRIERS), np.int64)  # of the last time it was complete:
        self._voters = np.zeros((ctas, BARRIERS), np.int64)  # votes that were true, and all
        self._passed = np.zeros((ctas, BARRIERS), np.int64)  # arrived without waiting
        self._wanted = np.zeros((ctas, BARRIERS), np.int64)  # 0: all threads

    def arrive(
        self, ids: Lanes, barrier: Lanes, count: Lanes, at: int, *, wait: bool, votes: Lanes | None
    ) -> int | None:
        """Lanes come to a barrier, perhaps with votes, bool. Returns a lane, if any, whose count
        differs from that of an earlier arrival.
        """
        cta = ids // self._width
        empty = self._arrived()[cta, barrier] == 0
        differs = ~empty & (self._wanted[cta, barrier] != count)
        self._wanted[cta, barrier] = count
        differs |= self._wanted[cta, barrier] != count
        if differs.any():
            return int(ids[differs][0])
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
        return None

    def complete(self, exited: Lanes) -> Lanes | None:
        """Lanes, as a mask, that may go on because their barrier is complete; None if there are
        none.

        `exited` says which lanes have ended or never were. Counts above what is wanted are left
        waiting.
        """
        waiting = self.at >= 0
        if not waiting.any():
            return None
        arrived = self._arrived()
        if self._wanted.any():
            arrived = arrived + self._fillers(exited)
        live = (~exited).reshape(-1, self._width).sum(axis=1)
        done = (arrived > 0) & (arrived == np.where(self._wanted > 0, self._wanted, live[:, None]))
        if not done.any():
            return None
        cta = np.arange(len(waiting)) // self._width
        free: Lanes = waiting & done[cta, self.at]
        ids = np.flatnonzero(free)
        if self._votes is not None:
            self._count_votes(ids, done)
        if self._watch is not None and len(ids):
            self._watch.sync.barrier(ids, self.since[ids], exited)
            self._watch.join(ids, self.at[ids])
        self._passed[done] = 0
        self.at[ids] = -1
        return free

    def outcome(self, ids: Lanes, op: str) -> Lanes:
        """What the votes at the barrier that each lane waited at last came to: `and`, `or` (bool)
        or `popc` (uint32).
        """
        where = ids // self._width, self.last[ids]
        true, voters = self._true[where], self._voters[where]
        outcomes: dict[str, Lanes] = {
            "popc": true.astype(np.uint32),
            "and": np.equal(true, voters),
            "or": np.greater(true, 0),
        }
        return outcomes[op]

    @property
    def waiting(self) -> Lanes:
        """Which lanes wait, bool."""
        return self.at >= 0

    def describe(self, lane: int) -> str:
        """What a lane waits for."""
        return f"barrier {self.at[lane]}"

    def _count_votes(self, ids: Lanes, done: Lanes) -> None:
        assert self._votes is not None
        keys = ids // self._width * BARRIERS + self.at[ids]
        size = self._true.size
        voters = np.bincount(keys, minlength=size).reshape(done.shape)
        true = np.bincount(keys[self._votes[ids]], minlength=size).reshape(done.shape)
        self._voters[done], self._true[done] = voters[done], true[done]

    def _arrived(self) -> Lanes:
        ids = np.flatnonzero(self.at >= 0)
        keys = ids // self._width * BARRIERS + self.at[ids]
        return (
            np.bincount(keys, minlength=self._passed.size).reshape(self._passed.shape)
            + self._passed
        )

    def _fillers(self, exited: Lanes) -> Lanes:
        """Lanes that do not exist any more, in warps that wait at a barrier with a count."""
        warps = np.where(self.at.reshape(-1, WARP) >= 0, self.at.reshape(-1, WARP), -1).max(axis=1)
        gone = exited.reshape(-1, WARP).sum(axis=1)
        used = np.flatnonzero(warps >= 0)
        keys = used // (self._width // WARP) * BARRIERS + warps[used]
        return np.bincount(keys, weights=gone[used], minlength=self._passed.size).astype(
            np.int64
        ).reshape(self._passed.shape) * (self._wanted > 0)
