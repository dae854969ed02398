"""The instructions that order memory, and the objects through which the order passes from thread to
thread.

A release stores the knowledge of a warp (`ptxgen.interpreter.sanitizers.clocks`) in the object at
an address; an acquire takes it from there. A fence turns the strong (`.relaxed`, `.volatile`,
atomic) writes after it into releases, and the strong reads before it into acquires (PTX ISA,
"Release and Acquire Patterns").
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter.machine.lanes import WARP
from ptxgen.interpreter.sanitizers.clocks import merged
from ptxgen.ir import Address
from ptxgen.isa.table import op_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ptxgen.interpreter.sanitizers.clocks import Clocks
    from ptxgen.ir import Instr

    Lanes = np.ndarray[Any, np.dtype[Any]]

_STRONG: Final = re.compile(r"(ld|st)\.(volatile|relaxed|acquire|release|mmio)\b|(atom|red)\.")
_PLAIN_MBARRIER: Final = ("mbarrier_init", "mbarrier_inval")


@dataclass(frozen=True, slots=True)
class Order:
    """The effect of an instruction on the order of memory accesses.

    `strong` accesses may race with each other. `scope` is `cta`, `cluster`, `gpu` or `sys`.
    """

    strong: bool = False
    acquire: bool = False
    release: bool = False
    scope: str = "gpu"
    mbarrier: str = ""  # the row of an instruction on mbarriers, else empty


def order_of(instr: Instr) -> Order:
    """The order that an instruction asks for, by the modifiers of its row."""
    op = op_of(instr)
    name = op.row.name
    sem, scope = str(op.modifiers.get("sem") or ""), str(op.modifiers.get("scope") or "gpu")
    if name.startswith(("mbarrier_", "cp_async_mbarrier")):
        return Order(
            strong=name not in _PLAIN_MBARRIER,
            acquire="_wait" in name and sem != "relaxed",
            release=name.startswith("mbarrier_arrive") and sem != "relaxed",
            scope="cta",
            mbarrier=name,
        )
    if not _STRONG.match(instr.opcode):
        return Order()
    return Order(True, sem in ("acquire", "acq_rel"), sem in ("release", "acq_rel"), scope)


def optimistic(instrs: Sequence[Instr]) -> frozenset[int]:
    """The numbers of plain loads that only guess the value that an `atom.cas` will find at the same
    address, as in loops around one (CUDA C++ Programming Guide, "Atomic Functions"): a race of such
    a load does no harm.
    """
    swapped = {_address(x) for x in instrs if x.opcode.startswith("atom.") and ".cas." in x.opcode}
    return frozenset(n for n, x in enumerate(instrs) if x.opcode.startswith("ld.") and _address(x) in swapped)


def _address(instr: Instr) -> Address | None:
    return next((o for o in instr.operands if isinstance(o, Address)), None)


class Objects:
    """The knowledge that was released at addresses, for the warps of a batch."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        columns = clocks.known.shape[1]
        # By position in shared memory: the row of the two tables below.
        self._positions: dict[int, int] = {}
        self._arriving: Lanes = np.zeros((0, columns), np.int64)  # released in the present phase
        self._done: Lanes = np.zeros((0, columns), np.int64)  # released in earlier phases, or without phases
        # By position: the copies that complete on its mbarrier in the present phase, by warp and
        # stamp; those of earlier phases; and the number of the latter that each warp has waited
        # for.
        self._landing: dict[int, list[tuple[int, int]]] = {}
        self._landed: dict[int, list[tuple[int, int]]] = {}
        self._seen: dict[tuple[int, int], int] = {}
        self._global: dict[tuple[int, int], Lanes] = {}  # by address and CTA (-1: any)
        # For warps that have executed a fence: their rows then; by fences of any scope, and by
        # fences wider than the cluster.
        self._fenced: dict[int, Lanes] = {}
        self._fenced_far: dict[int, Lanes] = {}
        # The rows that strong reads of warps have found; the next fence acquires them.
        self._met: dict[int, list[tuple[Lanes | None, Lanes | None]]] = {}

    # --------------------------------------------------------------------------------------- fences

    def fence(self, ids: Lanes, scope: str) -> None:
        """Record a fence of these lanes that is both release and acquire."""
        clocks = self._clocks
        warps = clocks.warps(ids)
        self.finish(warps)
        rows = clocks.rows(warps)
        for w, row in zip(warps.tolist(), rows, strict=True):
            self._fenced[w] = row
            if scope not in ("cta", "cluster"):
                self._fenced_far[w] = clocks.far_row(w)
        clocks.tick(warps)

    def share(self, warps: Lanes) -> None:
        """Warps have met at a barrier of their CTA: strong writes of any of them release what one
        of them has fenced. Kernels whose last block adds up the results of all blocks rely on this:
        each thread executes a fence, and after the barrier one thread takes the ticket.
        """
        for table in (self._fenced, self._fenced_far):
            if not table:
                continue
            for cta in np.unique(warps // self._clocks.of_cta).tolist():
                there = [w for w in warps.tolist() if w // self._clocks.of_cta == cta]
                rows = [table[w] for w in there if w in table]
                if rows:
                    table.update(dict.fromkeys(there, np.maximum.reduce(rows)))

    def finish(self, warps: Lanes) -> None:
        """Turn the strong reads so far into acquires."""
        if not self._met:
            return
        clocks = self._clocks
        for w in warps.tolist():
            for near, far in self._met.pop(w, ()):
                if near is not None:
                    clocks.learn(np.array([w]), near[None])
                clocks.learn_far(w, far)

    # ----------------------------------------------------------------------------- shared memory

    def release_shared(self, ids: Lanes, positions: Lanes, order: Order, *, phased: bool = False) -> None:
        """Lanes write to positions in shared memory with an order; into the present phase if `phased`."""
        clocks = self._clocks
        pairs = _each(ids, positions)
        if not order.release:
            pairs = np.array([p for p in pairs.tolist() if p[0] in self._fenced], np.int64)
            if not len(pairs):
                return
            rows = np.stack([self._fenced[w] for w in pairs[:, 0].tolist()])
        else:
            rows = clocks.arriving(pairs[:, 0], ids) if phased else clocks.rows(pairs[:, 0])
        table = self._rows_of(pairs[:, 1])
        np.maximum.at(self._arriving if phased else self._done, table, rows)
        if order.release:
            clocks.tick(pairs[:, 0])

    def landed(self, position: int, warp: int, stamp: int) -> None:
        """Record that the operation with this stamp of the twin of a warp completes on an mbarrier."""
        column = warp % self._clocks.group + self._clocks.group
        row = int(self._rows_of(np.array([position]))[0])
        self._arriving[row, column] = max(int(self._arriving[row, column]), stamp)
        self._landing.setdefault(position, []).append((warp, stamp))

    def phase(self, positions: Lanes) -> None:
        """Complete the phases of the mbarriers at these positions."""
        for position in positions.tolist():
            self._landed.setdefault(position, []).extend(self._landing.pop(position, ()))
        rows = self._rows_of(np.unique(positions))
        self._done[rows] = np.maximum(self._done[rows], self._arriving[rows])
        self._arriving[rows] = 0

    def acquire_shared(self, ids: Lanes, positions: Lanes, order: Order) -> None:
        """Lanes have read positions in shared memory with an order."""
        if not self._positions:
            return
        pairs = _each(ids, positions)
        known = np.array([p in self._positions for p in pairs[:, 1].tolist()])
        pairs = pairs[known]
        if not len(pairs):
            return
        rows = self._done[self._rows_of(pairs[:, 1])]
        for w, position in pairs.tolist():
            self._wait_for_copies(w, position)
        if order.acquire:
            for n in range(len(pairs)):  # a warp may occur more than once
                self._clocks.learn(pairs[n : n + 1, 0], rows[n : n + 1])
            return
        for w, row in zip(pairs[:, 0].tolist(), rows, strict=True):
            self._met.setdefault(w, []).append((row, None))

    def _wait_for_copies(self, warp: int, position: int) -> None:
        """Record that a warp has waited for the copies of the completed phases of an mbarrier."""
        landed = self._landed.get(position)
        if landed:
            seen = self._seen.get((warp, position), 0)
            self._seen[warp, position] = len(landed)
            for copy in landed[seen:]:
                self._clocks.wait_for_copy(warp, *copy)

    def _rows_of(self, positions: Lanes) -> Lanes:
        found = []
        for position in positions.tolist():
            row = self._positions.setdefault(position, len(self._positions))
            found.append(row)
        missing = len(self._positions) - len(self._done)
        if missing > 0:
            more = np.zeros((max(missing, len(self._done)), self._done.shape[1]), np.int64)
            self._done = np.concatenate([self._done, more])
            self._arriving = np.concatenate([self._arriving, more])
        return np.array(found, np.int64)

    # ----------------------------------------------------------------------------- global memory

    def release_global(self, ids: Lanes, addresses: Lanes, order: Order) -> None:
        """Lanes write to global addresses with an order."""
        if not (order.release or self._fenced):
            return
        clocks = self._clocks
        far = order.scope not in ("cta", "cluster")
        for w, address in _pairs(ids, addresses):
            near = clocks.rows(np.array([w]))[0] if order.release else self._fenced.get(w)
            if near is not None:
                key = address, w // clocks.of_cta
                self._global[key] = merged(self._global.get(key), clocks.wide(w, near))
            row = clocks.far_row(w) if order.release else self._fenced_far.get(w)
            if far and row is not None:
                key = address, -1
                self._global[key] = merged(self._global.get(key), row)
        if order.release:
            clocks.tick(clocks.warps(ids))

    def acquire_global(self, ids: Lanes, addresses: Lanes, order: Order) -> None:
        """Lanes have read global addresses with an order."""
        if not self._global:
            return
        clocks = self._clocks
        for w, address in _pairs(ids, addresses):
            for key in ((address, w // clocks.of_cta), (address, -1)):
                row = self._global.get(key)
                if row is None:
                    continue
                if order.acquire:
                    clocks.learn_far(w, row)
                else:
                    self._met.setdefault(w, []).append((None, row))


def _pairs(ids: Lanes, addresses: Lanes) -> Iterable[tuple[int, int]]:
    """Each pair of a warp and an address once."""
    return [(w, a) for w, a in _each(ids, addresses).tolist()]


def _each(ids: Lanes, addresses: Lanes) -> Lanes:
    """Each pair of a warp and an address once, `[pairs, 2]`, in rising order."""
    pairs = np.stack([ids // WARP, addresses], axis=1)
    # Most lanes repeat the pair of the lane before, and there are few others to sort.
    other = np.ones(len(pairs), np.bool_)
    other[1:] = (pairs[1:] != pairs[:-1]).any(axis=1)
    pairs = pairs[other]
    if len(pairs) == 1:
        return pairs
    each: Lanes = np.unique(pairs, axis=0)
    return each
