"""The lifetime of mbarriers, and their phases.

Between `mbarrier.init` and `mbarrier.inval`, ordinary instructions must not access their memory (PTX
ISA, "mbarrier: Contents of the mbarrier object", "mbarrier.init": their contents are opaque, and an
mbarrier is invalidated before its memory is used for anything else). A wait can only see the current
phase and the one before ("mbarrier.test_wait, mbarrier.try_wait"), so a phase must not end together
with the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter.machine.lanes import WARP
from ptxgen.interpreter.reports import where_from
from ptxgen.isa import mbarrier_word

if TYPE_CHECKING:
    from ptxgen.interpreter.sanitizers.findings import Findings

    Lanes = np.ndarray[Any, np.dtype[Any]]

_BYTES: Final = 8


class MBarriers:
    """The mbarriers of a batch, by position in its shared memory; `stride` is the size of a CTA's
    part. Reports nothing unless `wanted`.
    """

    def __init__(self, faults: Findings, stride: int, *, wanted: bool) -> None:
        self._faults = faults
        self._stride = stride
        self._wanted = wanted
        # The valid mbarriers, with the instructions that initialised them.
        self._initialised: dict[int, int] = {}
        self._ended: dict[int, str] = {}  # the mbarriers that are no longer valid, with the reason
        # The range of addresses that mbarriers have in any CTA: most accesses are outside of it.
        self._low = stride
        self._high = 0
        self._alive: Lanes = np.zeros(0, np.int64)  # the positions in order

    def initialised(self, at: int, ids: Lanes, positions: Lanes) -> None:
        """Record that lanes initialise mbarriers at these positions; report mbarriers that are valid."""
        if not self._wanted:
            return
        for lane, position in zip(ids.tolist(), positions.tolist(), strict=True):
            if position in self._initialised:
                self._report(
                    at,
                    lane,
                    position,
                    f"the mbarrier at {position % self._stride:#x} is initialised again while it is valid; "
                    "mbarrier.inval must come first",
                )
            self._initialised[position] = at
            self._low = min(self._low, position % self._stride)
            self._high = max(self._high, position % self._stride + _BYTES)
        self._alive = np.array(sorted(self._initialised), np.int64)

    def ended(self, at: int, positions: Lanes) -> None:
        """Record that `mbarrier.inval` ends mbarriers at these positions."""
        self._end(set(positions.tolist()), f"{self._text(at)} has ended it")

    def used(self, at: int, ids: Lanes, positions: Lanes, data: Lanes) -> None:
        """Check the mbarriers at these positions, which lanes are about to use; `data` is the shared memory.
        A word that is not a valid mbarrier is reported by the instruction itself, unless its history is
        known.
        """
        if not self._wanted or self._initialised.keys() >= set(positions.tolist()):
            return
        for lane, position in zip(ids.tolist(), positions.tolist(), strict=True):
            if position in self._initialised:
                continue
            why = self._ended.get(position, "")
            if not why and _looks_valid(int(data[position : position + _BYTES].view(np.uint64)[0])):
                why = "mbarrier.init must come first"
            if why:
                self._report(at, lane, position, f"there is no mbarrier: {why}")

    def arrived(self, at: int, ids: Lanes, positions: Lanes, was: Lanes, now: Lanes) -> None:
        """Check the arrivals of lanes at mbarriers at these positions, which held the words `was` before the
        arrival of each lane, and hold `now` after it.
        """
        if not self._wanted:
            return
        order = np.argsort(positions, kind="stable")  # lanes are in rising order, and arrive in it
        ids, positions, was, now = (x[order] for x in (ids, positions, was, now))
        after = now.copy()
        together = positions[1:] == positions[:-1]
        after[:-1][together] = was[1:][together]
        over = (after ^ was) >> mbarrier_word.PHASE_BIT != 0
        ends = np.stack([ids[over] // WARP, positions[over]], axis=1)
        each, first, counts = np.unique(ends, axis=0, return_index=True, return_counts=True)
        for n in np.flatnonzero(counts > 1).tolist():
            self._report(
                at,
                int(ids[over][first[n]]),
                int(each[n, 1]),
                f"the lanes of a warp end {counts[n]} phases of the mbarrier at once: who waits for the "
                "first of them may miss it",
            )

    def near(self, low: int, high: int) -> bool:
        """Whether an access to these bytes of the CTAs' shared memory may reach an mbarrier."""
        return low < self._high and self._low < high

    def read(self, at: int, ids: Lanes, positions: Lanes, nbytes: int) -> None:
        """Report lanes that read an mbarrier by an ordinary instruction: `nbytes` at these positions."""
        for lane, position in self._met(ids, positions, nbytes):
            self._report(at, lane, position, "reads an mbarrier, whose contents are not defined")

    def written(self, at: int, ids: Lanes, positions: Lanes, nbytes: int) -> None:
        """Report lanes that write over an mbarrier: `nbytes` at these positions, by an ordinary instruction
        or a copy. The mbarrier has then ended.
        """
        met = self._met(ids, positions, nbytes)
        for lane, position in met:
            self._report(at, lane, position, "writes over an mbarrier; mbarrier.inval must come first")
        if met:
            self._end({position for _, position in met}, f"{self._text(at)} has written over it")

    def _met(self, ids: Lanes, positions: Lanes, nbytes: int) -> list[tuple[int, int]]:
        """The lanes that access mbarriers, with the mbarriers' positions."""
        if not len(self._alive):
            return []
        ends = int(positions.min()) - (_BYTES - 1), int(positions.max()) + nbytes
        if np.equal(*self._alive.searchsorted(ends)):
            return []  # no mbarrier lies between the lowest and the highest position
        first = np.searchsorted(self._alive, positions - (_BYTES - 1))
        last = np.searchsorted(self._alive, positions + nbytes)
        return [
            (int(ids[n]), int(self._alive[m]))
            for n in np.flatnonzero(first < last).tolist()
            for m in range(int(first[n]), int(last[n]))
        ]

    def _end(self, positions: set[int], why: str) -> None:
        gone = positions & self._initialised.keys()
        for position in gone:
            del self._initialised[position]
            self._ended[position] = why
        if gone:
            self._alive = np.array(sorted(self._initialised), np.int64)

    def _text(self, at: int) -> str:
        return where_from(self._faults.instrs[at])

    def _report(self, at: int, lane: int, position: int, why: str) -> None:
        initialised = self._initialised.get(position, -1)
        self._faults.sync(at, lane, "sync", why, initialised, position % self._stride)


def _looks_valid(word: int) -> bool:
    try:
        mbarrier_word.checked(word)
    except ValueError:
        return False
    return True
