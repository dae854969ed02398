"""The groups of `wgmma` that warpgroups commit and wait for.

A multiplication belongs to all four warps, and `wgmma.commit_group` makes one group "per warpgroup"
(PTX ISA, "wgmma.commit_group"), so the `wgmma.wait_group` of a single warp guarantees that the
multiplications of all four are complete. A warp therefore waits there until the other warps have
committed the group, too; then all of them have read their operands, and one thread of the warpgroup
may release the shared memory, as CUTLASS and FlashAttention-3 do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter.machine.lanes import WARP

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.lanes import Batch
    from ptxgen.interpreter.machine.wgmma_registers import WgmmaRegisters

    Lanes = np.ndarray[Any, np.dtype[Any]]

_WARPGROUP: Final = 4  # warps of a warpgroup
_NEVER: Final = np.iinfo(np.int64).max


class Warpgroups:
    """The commits and waits of the warps of a batch. `waiting` says which lanes wait for the other
    warps of their warpgroup, bool, `since` in which instruction. `over` is called at the end of a
    warp's wait, with the warp, the number of complete groups, and the warps of the warpgroup.
    """

    def __init__(
        self, batch: Batch, registers: WgmmaRegisters | None, over: Callable[[int, int, range], None]
    ) -> None:
        self._registers = registers
        self._over = over
        self.waiting: Lanes = np.zeros(batch.lanes, np.bool_)
        self.since: Lanes = np.zeros(batch.lanes, np.int64)
        self._idle = -1  # the lanes that had ended when `complete` last found nothing; -1 after `met`
        if registers is None:
            return
        warps = np.arange(batch.lanes // WARP)
        of_cta = batch.width // WARP
        first = warps % of_cta % _WARPGROUP == 0
        self._first: Lanes = np.flatnonzero(first)  # the first warp of each warpgroup
        self._group: Lanes = np.cumsum(first) - 1  # the warpgroup of each warp
        self._end: Lanes = np.append(self._first[1:], len(warps))
        self._commits: Lanes = np.zeros(len(warps), np.int64)
        self._wanted: Lanes = np.zeros(len(warps), np.int64)

    def met(self, at: int, ids: Lanes) -> None:
        """Record an instruction that whole warps execute, if it commits a group or waits for one."""
        if self._registers is None:
            return
        self._idle = -1
        if at in self._registers.commits:
            self._commits[np.unique(ids // WARP)] += 1
        elif at in self._registers.waits:
            warps = np.unique(ids // WARP)
            self._wanted[warps] = self._commits[warps] - self._registers.waits[at]
            some = ids[self._wanted[ids // WARP] > 0]
            self.waiting[some], self.since[some] = True, at

    def complete(self, exited: Lanes) -> Lanes | None:
        """Lanes, as a mask, that may go on; None if there are none."""
        ended = int(np.count_nonzero(exited))
        if ended == self._idle or not np.count_nonzero(self.waiting):
            return None
        gone = exited.reshape(-1, WARP).all(axis=1)
        least = np.minimum.reduceat(np.where(gone, _NEVER, self._commits), self._first)
        free: Lanes = self.waiting & np.repeat(least[self._group] >= self._wanted, WARP)
        if not free.any():
            self._idle = ended
            return None
        self.waiting &= ~free
        for warp in np.flatnonzero(free.reshape(-1, WARP).any(axis=1)).tolist():
            group = self._group[warp]
            members = range(int(self._first[group]), int(self._end[group]))
            self._over(warp, int(self._wanted[warp]), members)
        return free

    def describe(self, lane: int) -> str:
        """A description of the wait of a lane."""
        del lane
        return "the wgmma of the other warps of its warpgroup"
