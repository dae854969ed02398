"""Checks of the rules of barriers and asynchronous operations."""

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
    """The barriers and multiplications of a batch. `wanted` says whether to report broken rules;
    the order that waits establish is recorded in any case.
    """

    def __init__(self, clocks: Clocks, instrs: tuple[Instr, ...], faults: Findings, *, wanted: bool) -> None:
        self._clocks = clocks
        self._instrs = instrs
        self._faults = faults
        self._wanted = wanted
        self._open: dict[int, int] = {}  # the newest multiplication of each warp that is in no group yet
        # For each warp, the newest multiplication in each group so far.
        self._groups: dict[int, list[int]] = {}
        self.over = False  # whether all threads have ended

    # ------------------------------------------------------------------------------------- barriers

    def barrier(self, ids: Lanes, since: Lanes, exited: Lanes) -> None:
        """Check lanes that a barrier releases, which arrived at the instructions `since`: if a warp
        executes the instruction together, all its lanes that have not ended must have arrived at
        the same instruction.
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
        """Report that more threads have arrived at a barrier than its count."""
        if self._wanted:
            self._report(
                at,
                lane,
                f"{came} threads have come to barrier {barrier} at once, which waits for {wanted}: "
                "which of them go on together is open",
            )

    def twice(self, at: int, lane: int, barrier: int) -> None:
        """Report that a thread arrives again at a barrier that is not complete yet."""
        if self._wanted:
            self._report(
                at, lane, f"comes to barrier {barrier} again before the others have: it counts twice"
            )

    def registers(self, at: int, lane: int, why: str) -> None:
        """Report that a warp breaks a rule of `setmaxnreg`."""
        if self._wanted:
            self._report(at, lane, why)

    def _is_aligned(self, at: int) -> bool:
        opcode = self._instrs[at].opcode
        return opcode.startswith("bar.") or ".aligned" in opcode

    # -------------------------------------------------------------------------------- wgmma, copies

    def started(self, ids: Lanes) -> Lanes:
        """Start a multiplication of warps, each given by one lane. Returns its stamp for each warp."""
        warps = ids // WARP
        stamps = self._clocks.start(warps)
        self._open |= zip(warps.tolist(), stamps.tolist(), strict=True)
        return stamps

    def warpgroup(self, name: str, ids: Lanes) -> None:
        """Record that warps close a group of multiplications, if the instruction `name` does so."""
        if name != "wgmma_commit_group":
            return
        for w in self._clocks.warps(ids).tolist():
            groups = self._groups.setdefault(w, [])
            before = groups[-1] if groups else 0
            groups.append(self._open.pop(w, before))

    def retired(self, warp: int, count: int, members: range) -> None:
        """A warp has waited for the first `count` groups of its warpgroup; `members` are the
        warpgroup's warps.
        """
        for of in members:
            groups = self._groups.get(of)
            if groups and count:
                self._clocks.learn_twin(warp, of, groups[min(count, len(groups)) - 1])

    def landed(self, at: int, lane: int) -> None:
        """A bulk copy has completed; it is reported if all threads had ended before."""
        if self.over and self._wanted:
            self._report(at, lane, "the copy is still under way when its threads have ended")

    # -------------------------------------------------------------------------------------- reports

    def _report(self, at: int, lane: int, why: str) -> None:
        self._faults.sync(at, lane, "sync", why)
