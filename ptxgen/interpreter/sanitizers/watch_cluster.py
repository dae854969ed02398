"""The checks of clusters: their barrier, mbarriers of other CTAs, and CTAs that have not started, or that
end, while others may access their shared memory.

A CTA has to have started before others access its shared memory, and must not end before these accesses are
over (CUDA C++ Programming Guide, "Distributed Shared Memory"): who accesses it comes after something that one
of its threads has done, and one of its threads comes after each of these accesses before it ends. A
`barrier.cluster.arrive.relaxed` is enough for both here, since it makes threads wait even though it orders no
memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.interpreter.machine.lanes import WARP

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.lanes import Batch
    from ptxgen.interpreter.sanitizers.conflicts import Access
    from ptxgen.interpreter.sanitizers.detectors import Detectors
    from ptxgen.interpreter.sanitizers.findings import Findings
    from ptxgen.interpreter.sanitizers.shown_mbarriers import ShownMbarriers

    Lanes = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class _Remote:
    """An access of a warp to the shared memory of another CTA; `stamp` is its clock, or the number of the
    asynchronous operation.
    """

    stamp: int
    at: int
    lane: int
    position: int


class ClusterWatch:
    """The part of `Watch` that follows the clusters of a batch. `wanted` says whether to report
    broken rules.
    """

    def __init__(
        self, watch: Detectors, shown: ShownMbarriers, batch: Batch, faults: Findings, *, wanted: bool
    ) -> None:
        self._watch = watch
        self._shown = shown
        self._batch = batch
        self._faults = faults
        self._wanted = wanted
        clocks = watch.clocks
        self._arrived: Lanes = np.zeros(batch.lanes, np.bool_)  # lanes that have arrived and not waited since
        self._waits: Lanes = np.zeros(batch.lanes, np.int64)  # by lane, the number of waits
        self._waited_at: Lanes = np.zeros(batch.lanes, np.int64)  # by lane, the instruction of the last wait
        # By even and odd rounds of the barrier and by warp, its clock when it arrived.
        self._last: Lanes = np.zeros((2, len(clocks.clock)), np.int64)
        columns = clocks.known.shape[1]
        # The stamps that each warp comes after by barriers of its cluster; and those that each CTA
        # comes after by any means, once threads of it have ended.
        self._after: Lanes = np.zeros((len(clocks.clock), clocks.group), np.int64)
        self._known: Lanes = np.zeros((batch.ctas, columns), np.int64)
        self._ended: Lanes = np.zeros(batch.ctas, np.bool_)
        self._started: set[tuple[int, int]] = set()  # warps, and CTAs that have started for them
        self._remote: dict[tuple[int, int], _Remote] = {}  # the last access, by warp and CTA
        self._copies: dict[int, list[_Remote]] = {}  # by CTA: copies of other CTAs to it
        # Mbarriers by position: those with which the warp that initialised them arrived at the barrier
        # of the cluster after its fence.mbarrier_init, and those that the whole cluster may use.
        self._brought: set[int] = set()
        self._public: set[int] = set()

    # ------------------------------------------------------------------ the barrier of the cluster

    def arrive(self, at: int, ids: Lanes) -> None:
        """Check and record that lanes arrive at the barrier of their cluster."""
        again = ids[self._arrived[ids]]
        if len(again):
            why = "comes to the barrier of the cluster again without having waited for it"
            self._report(at, int(again[0]), why)
        self._arrived[ids] = True

    def arrived(self, ids: Lanes, rounds: Lanes) -> None:
        """Record that the warps of lanes have arrived in these rounds of the barrier; their clocks have
        advanced.
        """
        clocks = self._watch.clocks
        warps = clocks.warps(ids)
        self._last[rounds % 2, warps] = clocks.clock[warps] - 1
        self._brought |= self._shown.fenced_by(warps)

    def wait(self, at: int, ids: Lanes) -> None:
        """Check and record that lanes come to wait for the barrier of their cluster."""
        early = ids[~self._arrived[ids]]
        if len(early):
            why = "waits for the barrier of the cluster without having arrived at it"
            self._report(at, int(early[0]), why)
        self._arrived[ids] = False
        self._waits[ids] += 1
        self._waited_at[ids] = at
        if self._wanted and ".aligned" in self._faults.instrs[at].opcode:
            self._apart(at, ids)

    def _apart(self, at: int, ids: Lanes) -> None:
        """Check that the lanes of a warp wait in the same instruction."""
        warps = np.unique(ids // WARP)
        waits, where = (x.reshape(-1, WARP)[warps] for x in (self._waits, self._waited_at))
        mine = np.zeros(self._batch.lanes, np.bool_)
        mine[ids] = True
        now = np.where(mine.reshape(-1, WARP)[warps], waits, 0).max(axis=1)
        apart = (waits == now[:, None]) & (where != at)
        if apart.any():
            row, lane = (int(i[0]) for i in np.nonzero(apart))
            self._faults.sync(
                at,
                int(ids[np.searchsorted(ids, warps[row] * WARP)]),
                "sync",
                "a warp executes it together, but other threads of the warp came to another wait",
                int(where[row, lane]),
                relation="they came to",
            )

    def leave(self, ids: Lanes, rounds: Lanes) -> None:
        """Record that the barrier releases lanes, whose warps came to these rounds."""
        clocks = self._watch.clocks
        warps = clocks.warps(ids)
        last = self._last.reshape(2, -1, clocks.group)[rounds % 2, warps // clocks.group]
        self._after[warps] = np.maximum(self._after[warps], last)
        if self._brought:
            here = set((warps // clocks.group).tolist())
            self._public |= {p for p in self._brought if self._shown.warp(p) // clocks.group in here}

    # ---------------------------------------------------------------------- mbarriers of other CTAs

    def initialised(self, positions: Lanes) -> None:
        """Record that lanes have initialised mbarriers at these positions."""
        for known in (self._brought, self._public):
            known.difference_update(positions.tolist())

    def public(self, positions: Lanes) -> bool:
        """Whether the whole cluster may use the mbarriers at these positions, because a fence and
        then a barrier of the cluster came after their initialisation.
        """
        return self._public.issuperset(positions.tolist())

    def counts(self, at: int, lane: int, access: Access, position: int) -> None:
        """Check a copy of a lane with completion on the mbarrier at a position in another CTA, which is
        an access to it.
        """
        watch = self._watch
        conflicts = watch.race.visit(access, at)
        if position in self._public:
            conflicts = []
        elif not conflicts:
            conflicts = self._shown.hidden(access, lane, position)
        watch.judge(at, conflicts, access)

    # ------------------------------------------------------------------------- CTAs that have ended

    def accessed(self, at: int, ids: Lanes, positions: Lanes) -> None:
        """Check and record accesses of lanes to shared memory, each at one of these positions."""
        ctas = positions // self._batch.shared_stride
        far = np.flatnonzero(ctas != ids // self._batch.width)
        if len(far):
            warps, clock = ids[far] // WARP, self._watch.clocks.clock
            for n, warp, cta in zip(far.tolist(), warps.tolist(), ctas[far].tolist(), strict=True):
                access = _Remote(int(clock[warp]), at, int(ids[n]), int(positions[n]))
                self._too_early(access, cta)
                self._remote[warp, cta] = access
                if self._ended[cta]:
                    self._too_late(access, cta)

    def copied(self, at: int, lane: int, position: int, number: int) -> None:
        """Check and record the copy `number` that a lane starts to a position."""
        cta = position // self._batch.shared_stride
        if cta != lane // self._batch.width:
            access = _Remote(number, at, lane, position)
            self._too_early(access, cta)
            self._copies.setdefault(cta, []).append(access)
            if self._ended[cta]:
                self._too_late(access, cta)

    def ended(self, mask: Lanes, exited: Lanes) -> None:
        """Record that the lanes of a mask have ended; `exited` has all lanes that have ended."""
        watch, clocks = self._watch, self._watch.clocks
        warps = clocks.warps(np.flatnonzero(mask))
        knows = np.maximum(clocks.reached_rows(warps), watch.objects.met_rows(warps))
        knows[:, : clocks.group] = np.maximum(knows[:, : clocks.group], self._after[warps])
        ctas = warps // clocks.of_cta
        np.maximum.at(self._known, ctas, knows)
        gone = exited.reshape(self._batch.ctas, -1).all(axis=1) & ~self._ended
        for cta in np.flatnonzero(gone).tolist():
            self._ended[cta] = True
            for (warp, target), access in self._remote.items():
                if target == cta and access.stamp > self._known[cta, warp % clocks.group]:
                    self._too_late(access, cta)
            for access in self._copies.pop(cta, ()):
                if not self._over(cta, access.stamp):
                    self._too_late(access, cta)

    def _over(self, cta: int, number: int) -> bool:
        """Whether some warp of a CTA comes after an asynchronous operation."""
        operations, of_cta = self._watch.operations, self._watch.clocks.of_cta
        warps = range(cta * of_cta, (cta + 1) * of_cta)
        if any(w in warps for w in operations.waited(number)):
            return True
        return bool(operations.after(np.array(warps) * WARP, np.array(number)).any())

    def _too_early(self, access: _Remote, cta: int) -> None:
        """Check that a CTA has started for a warp: the warp comes after something that a thread of it did, or
        after an arrival at the barrier of the cluster.
        """
        warp, watch = access.lane // WARP, self._watch
        if (warp, cta) in self._started:
            return
        self._started.add((warp, cta))
        clocks, mine = watch.clocks, np.array([warp])
        first = cta * clocks.of_cta % clocks.group
        knows = np.maximum(clocks.reached_rows(mine), watch.objects.met_rows(mine))[0, : clocks.group]
        if not np.maximum(knows, self._after[warp])[first : first + clocks.of_cta].any():
            why = "which may not have started: no barrier of the cluster comes before the access"
            self._elsewhere(access, cta, why)

    def _too_late(self, access: _Remote, cta: int) -> None:
        self._elsewhere(access, cta, "which may have ended: it waits for nothing after the access")

    def _elsewhere(self, access: _Remote, cta: int, why: str) -> None:
        """Report an access to the memory of another CTA."""
        address = access.position % self._batch.shared_stride
        owner = self._batch.cta(cta * self._batch.width)
        self._report(access.at, access.lane, f"in the memory of CTA {owner}, {why}", address)

    def _report(self, at: int, lane: int, why: str, address: int = -1) -> None:
        if self._wanted:
            self._faults.sync(at, lane, "sync", why, -1, address)
