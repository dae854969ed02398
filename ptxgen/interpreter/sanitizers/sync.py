"""Barriers and asynchronous operations that are used against their rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.interpreter.machine.lanes import WARP

if TYPE_CHECKING:
    from ptxgen.interpreter.sanitizers.clocks import Clocks
    from ptxgen.interpreter.sanitizers.findings import Findings
    from ptxgen.ir import Instr

    Lanes = np.ndarray[Any, np.dtype[Any]]


class SyncChecks:
    """What a batch has under way. `wanted` says whether to report what is wrong; the order that
    waits make is kept in any case.
    """

    def __init__(self, clocks: Clocks, instrs: tuple[Instr, ...], faults: Findings, *, wanted: bool) -> None:
        self._clocks = clocks
        self._instrs = instrs
        self._faults = faults
        self._wanted = wanted
        self._open: dict[int, int] = {}  # the newest multiplication of each warp in no group yet
        self._groups: dict[int, list[int]] = {}  # of each warp: the newest in each group so far
        self.over = False  # whether all threads have ended

    # ------------------------------------------------------------------------------------- barriers

    def barrier(self, ids: Lanes, since: Lanes, exited: Lanes) -> None:
        """A barrier lets lanes go that came by these instructions: of a warp, all that have not
        ended must have come by the same, if the instruction is one that a warp executes together.
        """
        if not self._wanted:
            return
        aligned = [at for at in np.unique(since).tolist() if self._is_aligned(at)]
        if not aligned:
            return
        warp = ids // WARP
        first = np.flatnonzero(np.diff(warp, prepend=-1))
        there = np.diff(np.append(first, len(ids)))
        live = (~exited).reshape(-1, WARP).sum(axis=1)[warp[first]]
        mixed = np.minimum.reduceat(since, first) != np.maximum.reduceat(since, first)
        for n in np.flatnonzero((there != live) | mixed).tolist():
            at = int(since[first[n]])
            if at in aligned:
                lane = int(ids[first[n]])
                came = "come to different barriers" if mixed[n] else "have not come"
                self._report(
                    at,
                    lane,
                    f"a warp executes it together, but {there[n]} of its {live[n]} threads are "
                    f"here and the others {came}",
                )
                return

    def too_many(self, at: int, lane: int, barrier: int, came: int, wanted: int) -> None:
        """More threads have come to a barrier than it was to wait for."""
        if self._wanted:
            self._report(
                at,
                lane,
                f"{came} threads have come to barrier {barrier} at once, which waits for {wanted}: "
                "which of them go on together is open",
            )

    def twice(self, at: int, lane: int, barrier: int) -> None:
        """A thread comes to a barrier at which it has arrived, and which is not complete yet."""
        if self._wanted:
            self._report(
                at, lane, f"comes to barrier {barrier} again before the others have: it counts twice"
            )

    def registers(self, at: int, lane: int, why: str) -> None:
        """A warp uses `setmaxnreg` against its rules."""
        if self._wanted:
            self._report(at, lane, why)

    def _is_aligned(self, at: int) -> bool:
        opcode = self._instrs[at].opcode
        return opcode.startswith("bar.") or ".aligned" in opcode

    # -------------------------------------------------------------------------------- wgmma, copies

    def started(self, ids: Lanes) -> Lanes:
        """Warps, by a lane each, start to multiply; the stamps."""
        warps = ids // WARP
        stamps = self._clocks.start(warps)
        self._open |= zip(warps.tolist(), stamps.tolist(), strict=True)
        return stamps

    def warpgroup(self, name: str, ids: Lanes) -> None:
        """Warps close a group of multiplications."""
        if name != "wgmma_commit_group":
            return
        for w in self._clocks.warps(ids).tolist():
            groups = self._groups.setdefault(w, [])
            before = groups[-1] if groups else 0
            groups.append(self._open.pop(w, before))

    def retired(self, warp: int, count: int, members: range) -> None:
        """A warp has waited for the first `count` groups of its warpgroup, of these warps."""
        for of in members:
            done = self._groups.get(of, [])[:count]
            if done:
                self._clocks.learn_twin(warp, of, done[-1])

    def landed(self, at: int, lane: int) -> None:
        """A bulk copy is done: because somebody waits for it, or because nothing else is left."""
        if self.over and self._wanted:
            self._report(at, lane, "the copy is still under way when its threads have ended")

    # -------------------------------------------------------------------------------------- reports

    def _report(self, at: int, lane: int, why: str) -> None:
        self._faults.sync(at, lane, "sync", why)
