"""Happens-before between the warps of a batch of CTAs, by vector clocks.

An agent is a warp; in a kernel that copies or multiplies asynchronously, each warp also has a twin, the agent
of the multiplications that it has started, whose groups complete in order. `clock[w]` stamps the present
accesses of warp `w`.
A row of `known` says which operations the warp's next accesses come after, in columns of its
cluster (its CTA without clusters): the newest stamps of the warps; then, with twins, those of the
twins; then the newest stamps of warps whose writes to shared, and to global, memory a
`fence.proxy.async` has made visible to the asynchronous proxy; and last the clocks of warps at arrivals of
some of their lanes, which release less (`ptxgen.interpreter.sanitizers.part_arrivals`). A warp's own column
is older than its clock, so that the same comparison finds conflicts between lanes of one warp; the order
between lanes that have synchronised in a part of their warp is recorded by lane.

Memory is ordered by (PTX ISA, "Memory Consistency Model") barriers of the CTA and the cluster,
`bar.warp.sync`, releases and acquires (`mbarrier` arrivals and waits, atomics, `.release` stores
and `.acquire` loads, fences with strong accesses), and waits for asynchronous operations. `shfl`,
`vote`, `match`, `redux`, `elect` and `mma` exchange registers only, and order no memory; the
threads of a warp do not run in lockstep.

Where the model is imprecise, it assumes more order, so that a correct kernel has no report: lanes of a warp
share its acquires and, but for arrivals at mbarriers, its releases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter.machine.lanes import WARP
from ptxgen.interpreter.sanitizers.part_arrivals import PartArrivals

if TYPE_CHECKING:
    from collections.abc import Iterable

    Lanes = np.ndarray[Any, np.dtype[Any]]

_BARRIERS: Final = 16
_FULL_WARP: Final = 0xFFFFFFFF
SHOWN: Final = {"shared": 2, "global": 3}  # groups of columns for writes visible to the asynchronous proxy


class Clocks:
    """The clocks of `warps` warps, of which `group` make a cluster and `of_cta` a CTA."""

    def __init__(self, warps: int, group: int, of_cta: int, *, twins: bool) -> None:
        self.group = group
        self.of_cta = of_cta
        self.twins = twins
        self._parts = 5 if twins else 2
        columns = self._parts * group
        self.clock: Lanes = np.ones(warps, np.int64)
        self.known: Lanes = np.zeros((warps, columns), np.int64)
        # By cluster: the stamps up to this one are known to all its warps.
        self.floor: Lanes = np.zeros(warps // group, np.int64)
        self.version = 0  # counts the changes of the clocks
        self._twin: Lanes = np.zeros(warps, np.int64)
        self._released: Lanes = np.zeros((warps // of_cta, _BARRIERS, columns), np.int64)
        # What was released at the barrier of each cluster in the last two rounds, even and odd ones: threads
        # may arrive again before others have left the round before. By cluster, the newest round; by lane,
        # how often it has arrived, and how often it has left.
        self._cluster: Lanes = np.zeros((warps // group, 2, columns), np.int64)
        self._round: Lanes = np.full(warps // group, -1)
        self._arrived: Lanes = np.zeros(warps * WARP, np.int64)
        self._left: Lanes = np.zeros(warps * WARP, np.int64)
        # For a warp that has learnt of other clusters: its row over all warps of the batch, with
        # the same groups of columns as `known`. Rows are never changed, so that warps may share
        # them.
        self.far: dict[int, Lanes] = {}
        # For each warp whose lanes have synchronised in parts, a matrix: the newest stamp of the
        # lane of a column that the lane of a row comes after.
        self._lanes: dict[int, Lanes] = {}
        self._far_released: dict[tuple[int, int], Lanes] = {}
        # By warp: the lanes, as bits, that have executed `fence.proxy.async` for shared memory since the
        # lanes of the warp last met, or they themselves arrived at an mbarrier, and the newest stamp that was
        # visible before.
        self._showing: Lanes = np.zeros(warps, np.int64)
        self._shown: Lanes = np.zeros(warps, np.int64)
        # The arrivals that show what only the arriving lanes have written: warp, stamp, lanes as bits.
        self._alone: list[tuple[int, int, int]] = []
        self._part_arrivals = PartArrivals()

    # ------------------------------------------------------------------------------------ queries

    def warps(self, ids: Lanes) -> Lanes:
        """The warps of lanes, which are in rising order, each once."""
        warps = ids // WARP
        first = np.empty(len(warps), np.bool_)
        first[:1] = True
        np.not_equal(warps[1:], warps[:-1], out=first[1:])
        chosen: Lanes = warps[first]
        return chosen

    def column(self, lane: Lanes, twin: Lanes | bool) -> Lanes:
        """The column of a lane's warp, or of its twin, in the rows of its cluster."""
        column: Lanes = lane // WARP % self.group + self.group * np.asarray(twin)
        return column

    def seen(self, warp: Lanes, writer: Lanes, part: Lanes | int = 0) -> Lanes:
        """The newest stamp of warp `writer` that each of `warp` comes after, in any cluster. `part`
        is a group of columns: `SHOWN` for the writer's writes that are visible to asynchronous operations.
        """
        near: Lanes = self.known[warp, writer % self.group + self.group * np.asarray(part)]
        same = writer // self.group == warp // self.group
        if same.all():
            return near
        far = np.zeros_like(near)
        column = writer + len(self.clock) * np.asarray(part)
        for w in np.unique(warp).tolist():
            row = self.far.get(w)
            if row is not None:
                here = np.broadcast_to(warp == w, near.shape)
                far[here] = row[column[here]]
        seen: Lanes = np.where(same, near, far)
        return seen

    def reached(self, warp: Lanes, of: Lanes) -> Lanes:
        """The newest clock of warp `of` at which any of its lanes has released anything that each of `warp`
        comes after; what other lanes did up to this clock may not be over.
        """
        clock: Lanes = np.maximum(self.seen(warp, of), self.seen(warp, of, self._parts - 1))
        return clock

    def reached_by(self, warp: int, of: int) -> int:
        """`reached` of one warp."""
        row, columns = self.far.get(warp), len(self.clock)
        if warp // self.group == of // self.group:
            row, columns, of = self.known[warp], self.group, of % self.group
        if row is None:
            return 0
        return max(int(row[of]), int(row[of + (self._parts - 1) * columns]))

    def reached_rows(self, warps: Lanes) -> Lanes:
        """The rows of these warps, with `reached` in the columns of the warps of their cluster."""
        rows: Lanes = self.known[warps]
        np.maximum(rows[:, : self.group], rows[:, -self.group :], out=rows[:, : self.group])
        return rows

    def released_in_part(self, ids: Lanes, warp: Lanes, lane: Lanes, stamps: Lanes) -> Lanes:
        """Whether lanes come after operations with these stamps that lanes of warps released by an arrival
        without the rest of their warp. A `lane` above 31 means several lanes that are not known.
        """
        ids, warp, lane, stamps = np.broadcast_arrays(ids, warp, lane, stamps)
        return self._part_arrivals.released(warp, self.reached(ids // WARP, warp), lane, stamps)

    # ---------------------------------------------------------------------- updates of the clocks

    def tick(self, warps: Lanes) -> None:
        """Advance the clocks: later operations of these warps are newer than all before."""
        self.version += 1
        # Assignment, not addition in place: a warp that is named twice ticks once.
        self.clock[warps] = self.clock[warps] + 1

    def start(self, warps: Lanes) -> Lanes:
        """Start an operation of the twins of these warps. Returns its stamps."""
        self._twin[warps] = self._twin[warps] + 1
        stamps: Lanes = self._twin[warps]
        return stamps

    def started(self, warp: int) -> int:
        """The stamp of the newest operation of the twin of a warp; 0 if there is none."""
        return int(self._twin[warp])

    def rows(self, warps: Lanes) -> Lanes:
        """The rows of these warps, with their own clocks."""
        rows: Lanes = self.known[warps]
        rows[np.arange(len(warps)), warps % self.group] = self.clock[warps]
        return rows

    def arriving(self, warps: Lanes, ids: Lanes) -> Lanes:
        """The rows that lanes of these warps release by their arrival at mbarriers. If only a part of a warp
        arrives, its row lacks what the other lanes have done, or made visible to asynchronous operations,
        since the lanes of the warp last met.
        """
        rows = self.rows(warps)
        lanes = self._bits(ids)
        some = np.flatnonzero(lanes[warps] != _FULL_WARP)
        if len(some):
            part = warps[some]
            column, clock = part % self.group, self.clock[part]
            rows[some, column] = self.known[part, column]
            rows[some, (self._parts - 1) * self.group + column] = clock
            for w, stamp, before in zip(
                part.tolist(), clock.tolist(), self._before(part, lanes), strict=True
            ):
                self._part_arrivals.add(w, stamp, before)
        for n in np.flatnonzero(self._showing[warps] & ~lanes[warps]).tolist():
            w = int(warps[n])
            rows[n, SHOWN["shared"] * self.group + w % self.group] = self._shown[w]
            self._alone.append((w, int(self.clock[w]), int(lanes[w])))
        self._showing &= ~lanes
        return rows

    def _before(self, warps: Lanes, lanes: Lanes) -> Lanes:
        """The newest stamp of each lane of these warps that some of their lanes come after, `[warps, lanes]`;
        `lanes` has the lanes of each warp of the batch, as bits.
        """
        members = lanes[warps][:, None] >> np.arange(WARP) & 1 != 0
        before: Lanes = np.where(members, self.clock[warps][:, None], 0)
        for n, w in enumerate(warps.tolist()) if self._lanes else ():
            if w in self._lanes:
                met = self._lanes[w][members[n]].max(axis=0)
                before[n] = np.where(members[n], before[n], met)
        return before

    def shown_alone(self, ids: Lanes, writer: Lanes, stamps: Lanes) -> Lanes:
        """Whether lanes come after an arrival of the lanes that have written with these stamps, which made
        their own writes visible to asynchronous operations.
        """
        shown = np.zeros(np.broadcast(ids, writer, stamps).shape, np.bool_)
        for warp, stamp, lanes in self._alone:
            known = self.reached(ids // WARP, np.array(warp)) >= stamp
            mine = (writer // WARP == warp) & (lanes >> writer % WARP & 1 != 0) & (stamps <= stamp)
            shown |= known & mine
        return shown

    def _bits(self, ids: Lanes) -> Lanes:
        """By warp of the batch, its lanes among `ids` as bits."""
        bits = np.zeros(len(self.clock), np.int64)
        np.bitwise_or.at(bits, ids // WARP, np.int64(1) << ids % WARP)
        return bits

    def learn(self, warps: Lanes, rows: Lanes) -> None:
        """Order these warps after everything in `rows`."""
        self.known[warps] = np.maximum(self.known[warps], rows)

    def learn_far(self, warp: int, row: Lanes | None) -> None:
        """Order a warp after everything in a row over all warps of the batch."""
        if row is None:
            return
        near = self.known[warp].reshape(self._parts, -1)
        np.maximum(near, self.group_columns(warp, row), out=near)
        self.far[warp] = merged(self.far.get(warp), row)

    def wide(self, warp: int, near: Lanes) -> Lanes:
        """A row of a warp's cluster, widened to all warps of the batch."""
        row = np.zeros(self._parts * len(self.clock), np.int64)
        self.group_columns(warp, row)[...] = near.reshape(self._parts, -1)
        return row

    def group_columns(self, warp: int, row: Lanes) -> Lanes:
        """The part of a row over all warps that is about the cluster of a warp, a view `[parts, group]`."""
        first = warp // self.group * self.group
        columns: Lanes = row.reshape(self._parts, -1)[:, first : first + self.group]
        return columns

    def learn_twin(self, warp: int, of: int, stamp: int) -> None:
        """Order a warp after the operation with this stamp of the twin of warp `of`, in the same cluster."""
        column = of % self.group + self.group
        self.known[warp, column] = max(int(self.known[warp, column]), stamp)

    def show(self, ids: Lanes, spaces: Iterable[str]) -> None:
        """`fence.proxy.async`: asynchronous operations after it see the writes that these warps
        have made or come after, in these spaces, `shared` and `global`.
        """
        if not self.twins:
            return
        warps = self.warps(ids)
        rows = self.rows(warps)[:, : self.group]
        spaces = tuple(spaces)
        if "shared" in spaces:
            fresh = warps[self._showing[warps] == 0]
            self._shown[fresh] = self.known[fresh, SHOWN["shared"] * self.group + fresh % self.group]
            self._showing[warps] |= self._bits(ids)[warps]
        for part in [SHOWN[space] for space in spaces]:
            columns = slice(part * self.group, (part + 1) * self.group)
            self.known[warps, columns] = np.maximum(self.known[warps, columns], rows)
            for w in set(warps.tolist()) & self.far.keys():
                row = self.far[w].copy()
                by_part = row.reshape(self._parts, -1)
                np.maximum(by_part[part], by_part[0], out=by_part[part])
                self.far[w] = row
        self.tick(warps)

    # ----------------------------------------------------------------------------------- barriers

    def release(self, ids: Lanes, barrier: Lanes) -> None:
        """Record that lanes arrive at a barrier of their CTA without waiting: the lanes that wait there will
        come after them.
        """
        warps, barrier = self.each(ids, barrier)
        np.maximum.at(self._released, (warps // self.of_cta, barrier), self.rows(warps))
        if self.far:
            for w, b in zip(warps.tolist(), barrier.tolist(), strict=True):
                self._release_far(w, b)
        self.tick(warps)

    def join(self, ids: Lanes, barrier: Lanes) -> None:
        """Record that a barrier releases these lanes; each comes after all lanes of its CTA that arrived
        there.
        """
        self.release(ids, barrier)
        warps, barrier = self.each(ids, barrier)
        ctas = warps // self.of_cta
        merged_rows = np.maximum(self.known[warps], self._released[ctas, barrier])
        merged_rows[np.arange(len(warps)), warps % self.group] = self.clock[warps] - 1
        self.known[warps] = merged_rows
        self._released[ctas, barrier] = 0
        if self._far_released:
            self._join_far(warps, barrier)
        self._showing[warps] = 0
        self.raise_floor()

    def arrive_cluster(self, ids: Lanes, *, release: bool) -> Lanes:
        """Record that lanes arrive at the barrier of their cluster, and with `release` release their accesses
        so far. Returns for each of their warps the number of the barrier's round, from 0.
        """
        warps, rounds = self._rounds(ids, self._arrived)
        clusters = warps // self.group
        fresh = rounds > self._round[clusters]
        self._cluster[clusters[fresh], rounds[fresh] % 2] = 0
        self._round[clusters[fresh]] = rounds[fresh]
        if release:
            np.maximum.at(self._cluster, (clusters, rounds % 2), self.rows(warps))
        self.tick(warps)
        return rounds

    def leave_cluster(self, ids: Lanes) -> Lanes:
        """Record that the barrier of the cluster releases these lanes. Returns for each of their warps the
        number of its round.
        """
        warps, rounds = self._rounds(ids, self._left)
        self._showing[warps] = 0
        self.learn(warps, self._cluster[warps // self.group, rounds % 2])
        self.raise_floor()
        return rounds

    def _rounds(self, ids: Lanes, counts: Lanes) -> tuple[Lanes, Lanes]:
        """The warps of lanes, and for each warp the count of its first lane in `ids`; then adds one to the
        counts of these lanes.
        """
        first = np.flatnonzero(np.diff(ids // WARP, prepend=-1))
        rounds: Lanes = counts[ids[first]]
        counts[ids] += 1
        return ids[first] // WARP, rounds

    def sync_warps(self, ids: Lanes) -> None:
        """Record that the lanes of each of these warps have waited for each other."""
        warps = self.warps(ids)
        self._showing[warps] = 0
        self.tick(warps)
        self.known[warps, warps % self.group] = self.clock[warps] - 1

    def sync_members(self, ids: Lanes, members: Lanes, exited: Lanes) -> None:
        """Record that lanes have waited for the lanes of their membermasks, except for those that have ended;
        `exited` is over all lanes.
        """
        gone = np.packbits(exited.reshape(-1, WARP), axis=1, bitorder="little").view("<u4")[:, 0]
        whole = (members | gone[ids // WARP]) == _FULL_WARP
        if whole.any():
            self.sync_warps(ids[whole])
        parts = np.stack([ids[~whole] // WARP, members[~whole].astype(np.int64)], axis=1)
        for warp, mask in np.unique(parts, axis=0).tolist():
            lanes = np.flatnonzero(mask >> np.arange(WARP) & 1)
            self._sync_lanes(warp, lanes[~exited[warp * WARP + lanes]])

    def _sync_lanes(self, warp: int, members: Lanes) -> None:
        """Record that some lanes of a warp, by their indices in it, have waited for each other."""
        self._showing[warp] &= ~int(np.bitwise_or.reduce(1 << members))
        table = self._lanes.setdefault(warp, np.zeros((WARP, WARP), np.int64))
        together = table[members].max(axis=0)
        together[members] = self.clock[warp]
        table[members] = together
        self.tick(np.array([warp]))

    def met(self, ids: Lanes, others: Lanes, stamps: Lanes) -> Lanes:
        """Whether lanes come after operations of other lanes with these stamps because both are in
        one warp, and have synchronised in a part of it.
        """
        met = np.zeros(np.broadcast(ids, others, stamps).shape, np.bool_)
        if not self._lanes:
            return met
        ids, others, stamps = np.broadcast_arrays(ids, others, stamps)
        for warp, table in self._lanes.items():
            here = (ids // WARP == warp) & (others // WARP == warp)
            met[here] = table[ids[here] % WARP, others[here] % WARP] >= stamps[here]
        return met

    def met_some(self, ids: Lanes, stamps: Lanes) -> Lanes:
        """Whether each lane has synchronised with any other lane of its warp since its stamp; used
        if the other lanes are not known.
        """
        others = ids[..., None] // WARP * WARP + np.arange(WARP)
        met = self.met(ids[..., None], others, stamps[..., None])
        met &= others != ids[..., None]
        some: Lanes = np.logical_or.reduce(met, axis=-1)
        return some

    def raise_floor(self) -> None:
        """Compute the stamps that all warps of each cluster know."""
        known = self.known[:, : self.group]
        self.floor = known.reshape(-1, self.group * self.group).min(axis=1)

    def each(self, ids: Lanes, barrier: Lanes) -> tuple[Lanes, Lanes]:
        """Each pair of a warp and a barrier once."""
        keys = ids // WARP * _BARRIERS + barrier
        # Lanes are in rising order, so equal pairs are mostly neighbours; a repeated pair does no
        # harm.
        keys = keys[np.flatnonzero(np.diff(keys, prepend=-1))]
        return keys // _BARRIERS, keys % _BARRIERS

    def _release_far(self, warp: int, barrier: int) -> None:
        row = self.far.get(warp)
        if row is not None:
            key = warp // self.of_cta, barrier
            self._far_released[key] = merged(self._far_released.get(key), row)

    def _join_far(self, warps: Lanes, barrier: Lanes) -> None:
        for w, b in zip(warps.tolist(), barrier.tolist(), strict=True):
            row = self._far_released.get((w // self.of_cta, b))
            if row is not None:
                self.far[w] = merged(self.far.get(w), row)


def merged(one: Lanes | None, other: Lanes) -> Lanes:
    """The elementwise maximum; one of the two arrays itself if it is the maximum."""
    if one is None or one is other:
        return other
    both: Lanes = np.maximum(one, other)
    return both
