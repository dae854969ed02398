"""Which initialised mbarriers asynchronous operations may see.

`mbarrier.init` writes through the generic proxy, and a bulk copy completes on the mbarrier through the
asynchronous one. Between the two, the thread that initialised the mbarrier executes `fence.mbarrier_init`
(as CUTLASS does: `cutlass::arch::fence_barrier_init`) or `fence.proxy.async` (CUDA C++ Programming Guide,
"Using TMA to transfer one-dimensional arrays": "make initialized barrier visible in async proxy"), and
the thread that starts the copy comes after it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.interpreter.machine.lanes import WARP
from ptxgen.interpreter.sanitizers.names import MBARRIER_INIT

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.lanes import Batch
    from ptxgen.interpreter.sanitizers.clocks import Clocks
    from ptxgen.interpreter.sanitizers.conflicts import Access, Conflict
    from ptxgen.interpreter.sanitizers.shared_race import RaceDetector

    Lanes = np.ndarray[Any, np.dtype[Any]]


class ShownMbarriers:
    """The initialised mbarriers of a batch, by position in its shared memory."""

    def __init__(self, clocks: Clocks, race: RaceDetector, batch: Batch) -> None:
        self._clocks = clocks
        self._race = race
        self._width = batch.width
        self._stride = batch.shared_stride
        self._warps: dict[int, int] = {}  # the warp that initialised each
        self._fenced: dict[int, int] = {}  # the clock of that warp at its last fence.mbarrier_init

    def warp(self, position: int) -> int:
        """The warp that initialised the mbarrier at a position."""
        return self._warps[position]

    def initialised(self, ids: Lanes, positions: Lanes) -> None:
        """Record that lanes have initialised mbarriers at these positions."""
        for position, warp in zip(positions.tolist(), (ids // WARP).tolist(), strict=True):
            self._warps[position] = warp
            self._fenced.pop(position, None)

    def fence(self, ids: Lanes) -> None:
        """Record that lanes execute `fence.mbarrier_init`."""
        warps = set((ids // WARP).tolist())
        clock = self._clocks.clock
        self._fenced |= {p: int(clock[w]) for p, w in self._warps.items() if w in warps}

    def fenced_by(self, warps: Lanes) -> set[int]:
        """The mbarriers that these warps have initialised and fenced."""
        if not self._fenced:
            return set()
        here = set(warps.tolist())
        return {p for p in self._fenced if self._warps[p] in here}

    def hidden(self, access: Access, lane: int, position: int) -> list[Conflict]:
        """The initialisation of the mbarrier at a position if nothing lets a copy of a lane see it;
        `access` is the lane's access to the mbarrier. It is of the kind `proxy` for an mbarrier of another
        CTA, where the manual asks for the fence, else of the kind `mbarrier_init`.
        """
        fenced = self._fenced.get(position)
        if fenced is not None:
            initialiser, mine = self._warps[position], lane // WARP
            if initialiser == mine or self._clocks.reached_by(mine, initialiser) >= fenced:
                return []
        conflicts = self._race.hidden(access)
        if lane // self._width != position // self._stride:
            return conflicts
        return [replace(conflict, kind=MBARRIER_INIT) for conflict in conflicts]
