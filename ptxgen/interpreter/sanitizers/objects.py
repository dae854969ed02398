"""The objects in memory through which order passes from thread to thread.

A release stores the knowledge of a warp (`ptxgen.interpreter.sanitizers.clocks`) in the object at an
address, for each scope that it includes; an acquire takes it from there, if its scope includes the thread
that released it (PTX ISA, "Morally Strong Operations"). A fence turns the strong (`.relaxed`, `.volatile`,
atomic) writes after it into releases, and the strong reads before it into acquires ("Release and Acquire
Patterns"), of the narrower of the scopes of the two.

A barrier is neither: what strong reads have met stays unordered until a fence. But fences add up with
barriers, on either side: of the threads that a barrier brings together, one may execute the fence and another
the strong access. In kernels whose last block adds up the results of all, each thread executes a fence, and
after the barrier one thread takes the ticket; it tells the others at a barrier, and each of them executes a
fence before it reads. Many such kernels have no fence after the ticket, as CUDA's sample
`threadFenceReduction`: so a barrier of the CTA completes the acquire that an atomic operation began, if it is
drawn once. One that polls, in a loop, is like a load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.interpreter.machine.lanes import WARP
from ptxgen.interpreter.sanitizers.clocks import merged
from ptxgen.interpreter.sanitizers.orders import ALL, CLUSTER, CTA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ptxgen.interpreter.sanitizers.clocks import Clocks
    from ptxgen.interpreter.sanitizers.operations import Operations
    from ptxgen.interpreter.sanitizers.orders import Order

    Lanes = np.ndarray[Any, np.dtype[Any]]

# What a warp knows, or may come to know: of its cluster, as a row of `Clocks.known`, and of the whole batch,
# as one of `Clocks.far`; either may be missing.
Row = tuple["Lanes | None", "Lanes | None"]
_SCOPES = (CTA, CLUSTER, ALL)


class Objects:
    """The knowledge that was released at addresses, for the warps of a batch."""

    def __init__(self, clocks: Clocks, operations: Operations) -> None:
        self._clocks = clocks
        self._operations = operations
        self._ranks = clocks.group // clocks.of_cta
        columns = clocks.known.shape[1]
        # By key of a position in shared memory: the row of the two tables below.
        self._keys: dict[int, int] = {}
        self._arriving: Lanes = np.zeros((0, columns), np.int64)  # released in the present phase
        self._done: Lanes = np.zeros((0, columns), np.int64)  # released in earlier phases, or without phases
        # By key: what warps that know other clusters have released there, in the same two parts.
        self._far_arriving: dict[int, Lanes] = {}
        self._far_done: dict[int, Lanes] = {}
        # By position: the operations that complete on its mbarrier in the present phase; those of earlier
        # phases; and the number of the latter that each warp has waited for.
        self._landing: dict[int, list[int]] = {}
        self._landed: dict[int, list[int]] = {}
        self._seen: dict[tuple[int, int], int] = {}
        # By address, scope and the number of the CTA or the cluster of that scope.
        self._global: dict[tuple[int, int, int], Lanes] = {}
        # By scope, then warp: what the strong writes of a warp release, since it has executed a fence; and
        # what its strong reads have met, which its next fence acquires.
        self._fenced: tuple[dict[int, Row], ...] = tuple({} for _ in _SCOPES)
        self._met: tuple[dict[int, Row], ...] = tuple({} for _ in _SCOPES)
        # The part of it that atomic operations have met that do not poll: a barrier acquires it, too.
        self._drawn: tuple[dict[int, Row], ...] = tuple({} for _ in _SCOPES)
        # By CTA and barrier: rows of the tables above of warps that have arrived there without waiting.
        self._parked: dict[tuple[int, int], list[tuple[dict[int, Row], Row]]] = {}

    # --------------------------------------------------------------------------- fences and barriers

    def fence(self, ids: Lanes, scope: int) -> None:
        """Record a fence of these lanes that is both release and acquire."""
        clocks = self._clocks
        warps = clocks.warps(ids)
        self._acquire(warps, (*self._met[: scope + 1], *self._drawn[: scope + 1]))
        for w, near in zip(warps.tolist(), clocks.rows(warps), strict=True):
            for within in _SCOPES[: scope + 1]:
                self._fenced[within][w] = near, clocks.far.get(w)
        clocks.tick(warps)

    def arrive(self, warps: Lanes, barrier: Lanes) -> None:
        """Record that warps arrive at barriers of their CTA without waiting."""
        for table in (*self._fenced, *self._met):
            if table:
                for w, b in zip(warps.tolist(), barrier.tolist(), strict=True):
                    if w in table:
                        parked = self._parked.setdefault((w // self._clocks.of_cta, b), [])
                        parked.append((table, table[w]))

    def join(self, warps: Lanes, barrier: Lanes) -> None:
        """Record that barriers of CTAs release warps."""
        self._acquire(warps, self._drawn)
        of_cta = self._clocks.of_cta
        met = set(zip((warps // of_cta).tolist(), barrier.tolist(), strict=True)) if self._parked else ()
        for key in met:
            there = [w for w in warps.tolist() if w // of_cta == key[0]]
            for table, row in self._parked.pop(key, ()):
                table.update((w, _joined(table.get(w), row)) for w in there)
        self.share(warps, of_cta)

    def share(self, warps: Lanes, size: int) -> None:
        """Record that warps have met at a barrier of groups of `size` warps."""
        for table in (*self._fenced, *self._met):
            if not table:
                continue
            for group in np.unique(warps // size).tolist():
                there = [w for w in warps.tolist() if w // size == group]
                rows = [table[w] for w in there if w in table]
                if not rows or (len(rows) == len(there) and all(r is rows[0] for r in rows)):
                    continue
                both = rows[0]
                for row in rows[1:]:
                    both = _joined(both, row)
                table.update(dict.fromkeys(there, both))

    def _acquire(self, warps: Lanes, tables: tuple[dict[int, Row], ...]) -> None:
        """Turn strong reads of warps into acquires."""
        for table in tables:
            for w in warps.tolist() if table else ():
                near, far = table.pop(w, (None, None))
                self._learn(w, near, far)

    def met_rows(self, warps: Lanes) -> Lanes:
        """For each warp the row over its cluster of what its strong reads have met since its last fence:
        operations that were over before, though nothing orders the warp's later accesses after them.
        """
        rows = np.zeros((len(warps), self._done.shape[1]), np.int64)
        for table in (*self._met, *self._drawn):
            for n, w in enumerate(warps.tolist()) if table else ():
                near, far = table.get(w, (None, None))
                if near is not None:
                    rows[n] = np.maximum(rows[n], near)
                if far is not None:
                    rows[n] = np.maximum(rows[n], self._clocks.group_columns(w, far).reshape(-1))
        return rows

    def _learn(self, warp: int, near: Lanes | None, far: Lanes | None) -> None:
        if near is not None:
            self._clocks.learn(np.array([warp]), near[None])
        self._clocks.learn_far(warp, far)

    def _learn_near(self, warps: Lanes, keys: list[int]) -> None:
        """Order warps, in rising order, after what was released at these keys."""
        rows = np.array([self._keys.get(key, -1) for key in keys], np.int64)
        known = rows >= 0
        warps, rows = warps[known], rows[known]
        if (warps[1:] != warps[:-1]).all():
            self._clocks.learn(warps, self._done[rows])
            return
        for warp, row in zip(warps.tolist(), rows.tolist(), strict=True):
            self._learn(warp, self._done[row], None)

    # ----------------------------------------------------------------------------- shared memory

    def release_shared(self, ids: Lanes, positions: Lanes, order: Order, *, phased: bool = False) -> None:
        """Record that lanes write to positions in shared memory with an order; into the present phase if
        `phased`.
        """
        clocks = self._clocks
        pairs = _each(ids, positions)
        if order.release:
            warps = pairs[:, 0]
            rows = clocks.arriving(warps, ids) if phased else clocks.rows(warps)
            for scope in self._near_scopes(order.scope):
                keys = self._keys_of(pairs, scope)
                self._put(keys, rows, phased=phased)
                for w, key in zip(warps.tolist(), keys, strict=True) if clocks.far else ():
                    self._put_far(key, clocks.far.get(w), phased=phased)
            clocks.tick(warps)
            return
        for scope in self._near_scopes(order.scope):
            fenced = self._fenced[scope]
            if not fenced:
                continue
            for (w, _), key in zip(pairs.tolist(), self._keys_of(pairs, scope), strict=True):
                near, far = fenced.get(w, (None, None))
                if near is not None:
                    self._put([key], near[None], phased=phased)
                    self._put_far(key, far, phased=phased)

    def release_when_complete(self, lane: int) -> Callable[[int], None]:
        """Have a lane release what it comes after now, and all operations of its warp's twin so far, by an
        arrival at an mbarrier that comes later. Returns what records the arrival at a position.
        """
        clocks = self._clocks
        ids, warps = np.array([lane]), np.array([lane // WARP])
        rows, far = clocks.arriving(warps, ids), clocks.far.get(lane // WARP)
        rows[0, clocks.column(ids, True)] = clocks.started(lane // WARP)
        clocks.tick(warps)

        def arrive(position: int) -> None:
            for scope in self._near_scopes(CLUSTER):
                keys = self._keys_of(np.stack([warps, np.array([position])], axis=1), scope)
                self._put(keys, rows, phased=True)
                self._put_far(keys[0], far, phased=True)

        return arrive

    def _near_scopes(self, scope: int) -> tuple[int, ...]:
        """The scopes for which an order of this scope counts in shared memory."""
        if self._ranks == 1:
            return (CTA,)
        return (CTA,) if scope == CTA else (CTA, CLUSTER)

    def _keys_of(self, pairs: Lanes, scope: int) -> list[int]:
        """The keys of positions, for the scope of the CTAs or of the clusters of warps; `pairs` are warps and
        positions.
        """
        if self._ranks == 1:
            keys: list[int] = pairs[:, 1].tolist()
            return keys
        ranks = pairs[:, 0] // self._clocks.of_cta % self._ranks + 1
        wide: list[int] = (pairs[:, 1] * (self._ranks + 1) + (ranks if scope == CTA else 0)).tolist()
        return wide

    def _put(self, keys: list[int], rows: Lanes, *, phased: bool) -> None:
        table = self._rows_of(keys)
        np.maximum.at(self._arriving if phased else self._done, table, rows)

    def _put_far(self, key: int, row: Lanes | None, *, phased: bool) -> None:
        if row is not None:
            released = self._far_arriving if phased else self._far_done
            released[key] = merged(released.get(key), row)

    def landed(self, position: int, operation: int) -> None:
        """Record that an asynchronous operation completes on an mbarrier."""
        self._landing.setdefault(position, []).append(operation)

    def _of_position(self, position: int) -> Iterable[int]:
        """The keys of a position, for all scopes."""
        ranks = self._ranks
        return (position,) if ranks == 1 else range(position * (ranks + 1), (position + 1) * (ranks + 1))

    def phase(self, positions: Lanes) -> None:
        """Complete the phases of the mbarriers at these positions."""
        rows = []
        for position in set(positions.tolist()):
            self._landed.setdefault(position, []).extend(self._landing.pop(position, ()))
            for key in self._of_position(position):
                if key in self._keys:
                    rows.append(self._keys[key])
                if key in self._far_arriving:
                    self._put_far(key, self._far_arriving.pop(key), phased=False)
        self._done[rows] = np.maximum(self._done[rows], self._arriving[rows])
        self._arriving[rows] = 0

    def acquire_shared(self, ids: Lanes, positions: Lanes, order: Order, *, ticket: bool = False) -> None:
        """Record that lanes have read positions in shared memory with an order. `ticket` says that an atomic
        operation read them that is no poll: a barrier after it acquires as a fence does.
        """
        if not (self._keys or self._landed):
            return
        pairs = _each(ids, positions)
        for w, position in pairs.tolist():
            self._wait_for_copies(w, position)
        met = self._drawn if ticket else self._met
        for scope in self._near_scopes(order.scope):
            keys = self._keys_of(pairs, scope)
            if order.acquire and not self._far_done:
                self._learn_near(pairs[:, 0], keys)
                continue
            for (w, _), key in zip(pairs.tolist(), keys, strict=True):
                row = self._keys.get(key)
                if row is None:
                    continue
                released = self._done[row], self._far_done.get(key)
                if order.acquire:
                    self._learn(w, *released)
                else:
                    met[scope][w] = _joined(met[scope].get(w), (released[0].copy(), released[1]))

    def _wait_for_copies(self, warp: int, position: int) -> None:
        """Record that a warp has waited for the copies of the completed phases of an mbarrier."""
        landed = self._landed.get(position)
        if landed:
            seen = self._seen.get((warp, position), 0)
            self._seen[warp, position] = len(landed)
            for operation in landed[seen:]:
                self._operations.wait(warp, operation)

    def _rows_of(self, keys: Iterable[int]) -> Lanes:
        rows = [self._keys.setdefault(key, len(self._keys)) for key in keys]
        missing = len(self._keys) - len(self._done)
        if missing > 0:
            more = np.zeros((max(missing, len(self._done)), self._done.shape[1]), np.int64)
            self._done = np.concatenate([self._done, more])
            self._arriving = np.concatenate([self._arriving, more])
        return np.array(rows, np.int64)

    # ----------------------------------------------------------------------------- global memory

    def release_global(self, ids: Lanes, addresses: Lanes, order: Order) -> None:
        """Record that lanes write to global addresses with an order."""
        if not (order.release or self._fenced[CTA]):
            return
        clocks = self._clocks
        for w, address in _each(ids, addresses).tolist():
            last, row = None, None
            mine = (clocks.rows(np.array([w]))[0], clocks.far.get(w)) if order.release else None
            for scope in _SCOPES[: order.scope + 1]:
                released = mine or self._fenced[scope].get(w)
                if released is None:
                    continue
                if released is not last:
                    last, (near, far) = released, released
                    assert near is not None
                    row = merged(far, clocks.wide(w, near))
                key = address, scope, self._group(w, scope)
                assert row is not None
                self._global[key] = merged(self._global.get(key), row)
        if order.release:
            clocks.tick(clocks.warps(ids))

    def acquire_global(self, ids: Lanes, addresses: Lanes, order: Order, *, ticket: bool = False) -> None:
        """Record that lanes have read global addresses with an order; `ticket` as in `acquire_shared`."""
        if not self._global:
            return
        met = self._drawn if ticket else self._met
        for w, address in _each(ids, addresses).tolist():
            for scope in _SCOPES[: order.scope + 1]:
                row = self._global.get((address, scope, self._group(w, scope)))
                if row is None:
                    continue
                if order.acquire:
                    self._clocks.learn_far(w, row)
                else:
                    met[scope][w] = _joined(met[scope].get(w), (None, row))

    def _group(self, warp: int, scope: int) -> int:
        """The number of a warp's CTA or cluster, or of all warps."""
        if scope == ALL:
            return 0
        return warp // (self._clocks.of_cta if scope == CTA else self._clocks.group)


def _joined(one: Row | None, other: Row) -> Row:
    """The elementwise maximum of two rows."""
    if one is None or one is other:
        return other
    near, far = (a if b is None else merged(a, b) for a, b in zip(one, other, strict=True))
    return near, far


def _each(ids: Lanes, addresses: Lanes) -> Lanes:
    """Each pair of a warp and an address once, `[pairs, 2]`, in rising order."""
    warps, addresses = ids // WARP, addresses.astype(np.int64)
    # Most lanes repeat the pair of the lane before, and there are few others to sort.
    other = np.ones(len(warps), np.bool_)
    other[1:] = (warps[1:] != warps[:-1]) | (addresses[1:] != addresses[:-1])
    warps, addresses = warps[other], addresses[other]
    order = np.lexsort((addresses, warps))
    pairs = np.stack([warps[order], addresses[order]], axis=1)
    first = np.ones(len(pairs), np.bool_)
    first[1:] = (pairs[1:] != pairs[:-1]).any(axis=1)
    return pairs[first]
