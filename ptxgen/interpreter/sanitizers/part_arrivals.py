"""What lanes of a warp release when they arrive at an mbarrier without the rest of their warp.

An arrival orders the accesses of the thread that arrives, and of threads that it comes after itself (PTX
ISA, "mbarrier.arrive", "Release and Acquire Patterns"). What other lanes of its warp have done since the
warp last met, by `bar.warp.sync` or a barrier, may still be under way when the mbarrier's phase completes.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.interpreter.machine.lanes import WARP

if TYPE_CHECKING:
    Lanes = np.ndarray[Any, np.dtype[Any]]


class PartArrivals:
    """The arrivals of parts of the warps of a batch."""

    def __init__(self) -> None:
        # By warp: its clock at each arrival, in rising order, and the newest stamp of each of its lanes that
        # this arrival or one before has released.
        self._of: dict[int, tuple[list[int], list[Lanes]]] = {}

    def add(self, warp: int, clock: int, released: Lanes) -> None:
        """Lanes of a warp arrive at its `clock`; `released` has the newest stamp of each of its 32 lanes
        that comes before the arrival.
        """
        clocks, by_lane = self._of.setdefault(warp, ([], []))
        clocks.append(clock)
        by_lane.append(np.maximum(released, by_lane[-1]) if by_lane else released)

    def released(self, warp: Lanes, reached: Lanes, lane: Lanes, stamps: Lanes) -> Lanes:
        """Whether operations with these stamps, of lanes of these warps, were released by an arrival at a
        clock up to `reached`. A lane above 31 means two lanes or more that are not known: whether two
        lanes have released as much. All arguments have one shape.
        """
        released = np.zeros(stamps.shape, np.bool_)
        for w, (clocks, by_lane) in self._of.items():
            here = np.nonzero((warp == w) & (stamps <= clocks[-1]))
            if not len(here[0]):
                continue
            until, which = np.unique(reached[here], return_inverse=True)
            last = [bisect_right(clocks, clock) - 1 for clock in until.tolist()]
            rows = np.stack([by_lane[n] for n in last])[which]
            of_one = np.take_along_axis(rows, lane[here][:, None] % WARP, axis=1)[:, 0]
            of_two = np.sort(rows, axis=1)[:, -2]
            newest = np.where(lane[here] < WARP, of_one, of_two)
            released[here] = (np.array(last) >= 0)[which] & (newest >= stamps[here])
        return released
