"""The lifetime of mbarriers: between `mbarrier.init` and `mbarrier.inval`, ordinary instructions
must not access their memory (PTX ISA, "mbarrier: Contents of the mbarrier object", "mbarrier.init":
their contents are opaque, and an mbarrier is invalidated before its memory is used for anything
else).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

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
        self._made: dict[int, int] = {}  # the valid mbarriers, with the instructions that initialised them
        self._gone: dict[int, str] = {}  # the mbarriers that are no longer valid, with the reason
        # The range of addresses that mbarriers have in any CTA: most accesses are outside of it.
        self._low = stride
        self._high = 0
        self._alive: Lanes = np.zeros(0, np.int64)  # the positions in order

    def made(self, at: int, ids: Lanes, places: Lanes) -> None:
        """Lanes initialise mbarriers at these positions."""
        if not self._wanted:
            return
        for lane, place in zip(ids.tolist(), places.tolist(), strict=True):
            if place in self._made:
                self._report(
                    at,
                    lane,
                    place,
                    f"the mbarrier at {place % self._stride:#x} is made again while it is one; "
                    "mbarrier.inval must come first",
                )
            self._made[place] = at
            self._low = min(self._low, place % self._stride)
            self._high = max(self._high, place % self._stride + _BYTES)
        self._alive = np.array(sorted(self._made), np.int64)

    def ended(self, at: int, places: Lanes) -> None:
        """`mbarrier.inval` ends mbarriers at these positions."""
        self._end(set(places.tolist()), f"{self._text(at)} has ended it")

    def used(self, at: int, ids: Lanes, places: Lanes, data: Lanes) -> None:
        """Lanes are about to use mbarriers at these positions; `data` is the shared memory. A word
        that is not a valid mbarrier is reported by the instruction itself, unless its history is
        known.
        """
        if not self._wanted:
            return
        for lane, place in zip(ids.tolist(), places.tolist(), strict=True):
            if place in self._made:
                continue
            why = self._gone.get(place, "")
            if not why and _looks_valid(int(data[place : place + _BYTES].view(np.uint64)[0])):
                why = "mbarrier.init must come first"
            if why:
                self._report(at, lane, place, f"there is no mbarrier: {why}")

    def near(self, low: int, high: int) -> bool:
        """Whether an access to these bytes of the CTAs' shared memory may reach an mbarrier."""
        return low < self._high and self._low < high

    def read(self, at: int, ids: Lanes, places: Lanes, nbytes: int) -> None:
        """Lanes read bytes at these positions by an ordinary instruction."""
        for lane, place in self._met(ids, places, nbytes):
            self._report(at, lane, place, "reads an mbarrier, whose contents are not defined")

    def written(self, at: int, ids: Lanes, places: Lanes, nbytes: int) -> None:
        """Lanes write bytes at these positions by an ordinary instruction or a copy."""
        met = self._met(ids, places, nbytes)
        for lane, place in met:
            self._report(at, lane, place, "writes over an mbarrier; mbarrier.inval must come first")
        self._end({place for _, place in met}, f"{self._text(at)} has written over it")

    def _met(self, ids: Lanes, places: Lanes, nbytes: int) -> list[tuple[int, int]]:
        """The lanes that access mbarriers, with the mbarriers' positions."""
        first = np.searchsorted(self._alive, places - (_BYTES - 1))
        last = np.searchsorted(self._alive, places + nbytes)
        return [
            (int(ids[n]), int(self._alive[m]))
            for n in np.flatnonzero(first < last).tolist()
            for m in range(int(first[n]), int(last[n]))
        ]

    def _end(self, places: set[int], why: str) -> None:
        gone = places & self._made.keys()
        for place in gone:
            del self._made[place]
            self._gone[place] = why
        if gone:
            self._alive = np.array(sorted(self._made), np.int64)

    def _text(self, at: int) -> str:
        return where_from(self._faults.instrs[at])

    def _report(self, at: int, lane: int, place: int, why: str) -> None:
        made = self._made.get(place, -1)
        self._faults.sync(at, lane, "sync", why, made, place % self._stride)


def _looks_valid(word: int) -> bool:
    try:
        mbarrier_word.checked(word)
    except ValueError:
        return False
    return True
