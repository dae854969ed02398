"""Accesses to arrays that the previous grid still writes, by threads that have not waited for it.

A grid that is launched with the attribute of programmatic stream serialization may begin before the grid
before it in its stream has ended. That grid's writes are there for a thread once it has executed
`griddepcontrol.wait`, or comes after a thread that has (PTX ISA, "griddepcontrol"). The interpreter runs
grids one after another, so that a missing wait changes no result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.interpreter.machine.lanes import WARP

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.arena import Buffer
    from ptxgen.interpreter.sanitizers.clocks import Clocks
    from ptxgen.interpreter.sanitizers.findings import Findings

    Lanes = np.ndarray[Any, np.dtype[Any]]

Span = tuple[int, int]  # the first address of an array, and the first after it


class GridOrder:
    """The waits of the lanes of a batch for the previous grid, which writes the arrays at `spans`."""

    def __init__(self, clocks: Clocks, lanes: int, spans: Sequence[Span], faults: Findings) -> None:
        self._clocks = clocks
        self._spans = spans
        self._faults = faults
        self._waited: Lanes = np.zeros(lanes, np.bool_)
        # For each warp its clock when one of its lanes first waited; 0: none has.
        self._stamps: Lanes = np.zeros(len(clocks.clock), np.int64)

    def wait(self, ids: Lanes) -> None:
        """Record that lanes have waited for the previous grid."""
        self._waited[ids] = True
        warps = self._clocks.warps(ids)
        fresh = warps[self._stamps[warps] == 0]
        self._stamps[fresh] = self._clocks.clock[fresh]
        self._clocks.tick(fresh)

    def access(self, at: int, ids: Lanes, buffer: Buffer, addresses: Lanes, nbytes: int) -> None:
        """Check an access of lanes, by instruction `at`, to `nbytes` at each address of a buffer."""
        early = ~self._waited[ids]
        if not early.any():
            return
        inside = np.zeros(len(ids), np.bool_)
        for low, high in self._spans:
            inside |= (addresses < high) & (addresses + nbytes > low)
        for n in np.flatnonzero(early & inside).tolist():
            if not self._comes_after_a_wait(int(ids[n]) // WARP):
                name = f" ({buffer.name})" if buffer.name else ""
                why = (
                    f"global address {int(addresses[n]):#x}{name} is accessed before griddepcontrol.wait; "
                    "the grid before this one may still write it"
                )
                self._faults.sync(at, int(ids[n]), "race", why)
                return

    def _comes_after_a_wait(self, warp: int) -> bool:
        """Whether a warp comes after some warp's wait for the previous grid, by any order of memory."""
        waiting = np.flatnonzero(self._stamps)
        if not len(waiting):
            return False
        seen = self._clocks.reached(np.full(len(waiting), warp), waiting)
        return bool((seen >= self._stamps[waiting]).any())
