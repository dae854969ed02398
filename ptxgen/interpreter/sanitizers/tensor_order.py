"""The order of accesses to tensor memory that the manual asks for, beyond what GPUs are known to need (PTX
ISA, "TensorCore 5th Generation Family Instructions: Memory Consistency Model").

Of accesses that `ptxgen.interpreter.sanitizers.tensor_race` takes for ordered, these are reported:

* by `tensor_fence`, those of two threads without `tcgen05.fence::before_thread_sync` after the first, unless
  a commit follows it, and `tcgen05.fence::after_thread_sync` before the second, and a load without
  `tcgen05.wait::ld` before the write of another thread or of a product;
* by `tensor_order`, two operations of one thread that the manual does not order: all but products with the
  same D and shape, and a copy before a product.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter.machine.lanes import WARP
from ptxgen.interpreter.sanitizers.conflicts import Conflict
from ptxgen.interpreter.sanitizers.names import TENSOR_FENCE, TENSOR_ORDER
from ptxgen.interpreter.sanitizers.stamps import ASYNC, CLOCK, CLOCK_MASK, INSTR, INSTR_MASK, LANE_MASK

if TYPE_CHECKING:
    from ptxgen.interpreter.sanitizers.clocks import Clocks
    from ptxgen.ir import Instr

    Lanes = np.ndarray[Any, np.dtype[Any]]

NO_FENCE_BEFORE: Final = "its thread has executed no tcgen05.fence::before_thread_sync after it"
NO_FENCE_AFTER: Final = (
    "this thread has executed no tcgen05.fence::after_thread_sync since the two were ordered"
)
NO_WAIT: Final = "its warp has not waited for it with tcgen05.wait::ld"
NO_PAIR: Final = "the manual does not order these two operations of one thread without a wait between them"


class TensorOrder:
    """The fences and waits of the warps of a batch. `fences` and `pairs` say whether `tensor_fence` and
    `tensor_order` are asked for.
    """

    def __init__(self, clocks: Clocks, instrs: tuple[Instr, ...], *, fences: bool, pairs: bool) -> None:
        self._clocks = clocks
        self._fences, self._pairs = fences, pairs
        self._instrs = instrs
        warps, columns = clocks.known.shape
        # The clocks of each warp at its fences::before, and at its waits::ld, in rising order.
        self._before: list[list[int]] = [[] for _ in range(warps)]
        self._waited: list[list[int]] = [[] for _ in range(warps)]
        self._after: Lanes = np.zeros(
            (warps, columns), np.int64
        )  # what it came after at its last fence::after

    def fence(self, ids: Lanes, side: str) -> None:
        """Record a fence of lanes, `side` before or after the synchronisation of threads."""
        warps = self._clocks.warps(ids)
        if side == "after":
            self._after[warps] = self._clocks.reached_rows(warps)
            return
        for warp in warps.tolist():
            self._before[warp].append(int(self._clocks.clock[warp]))
        self._clocks.tick(warps)

    def wait(self, warp: int) -> None:
        """Record that a warp has waited for its loads."""
        self._waited[warp].append(int(self._clocks.clock[warp]))
        self._clocks.tick(np.array([warp]))

    def conflicts(
        self, lane: int, units: Lanes, stamps: Lanes, what: str, *, operation: bool, chained: bool
    ) -> list[tuple[Conflict, str]]:
        """The first access, by its stamps, after which the access of a lane comes without what the manual
        asks for, with what is lacking. `operation` says whether the access is a product or a copy, and
        `chained` whether earlier products of its thread have the same D and shape.
        """
        clocks, warp = self._clocks, lane // WARP
        other, clock = (stamps & LANE_MASK) // WARP, stamps >> CLOCK & CLOCK_MASK
        twin = stamps & ASYNC != 0
        column = clocks.column(stamps & LANE_MASK, twin)
        known = clocks.reached_rows(np.array([warp]))[0]
        mine = other == warp
        queued = twin & mine & (clock > known[column])
        if self._pairs and queued.any():
            fine = chained or (
                operation and self._instrs[self._first(stamps, queued)].opcode.startswith("tcgen05.cp")
            )
            if not fine:
                return self._one(TENSOR_ORDER, queued, units, stamps, what, NO_PAIR)
        if not self._fences:
            return []
        by_threads = ~twin & (stamps != 0)
        loads = by_threads & (operation | ~mine) & ~_covered(self._waited, other, clock, known[column])
        if what == "was read by" and loads.any():
            return self._one(TENSOR_FENCE, loads, units, stamps, what, NO_WAIT)
        unfenced = by_threads & ~mine & ~_covered(self._before, other, clock, known[column])
        if unfenced.any():
            return self._one(TENSOR_FENCE, unfenced, units, stamps, what, NO_FENCE_BEFORE)
        late = (twin | ~mine) & ~queued & (clock > self._after[warp][column])
        return self._one(TENSOR_FENCE, late, units, stamps, what, NO_FENCE_AFTER) if late.any() else []

    def _first(self, stamps: Lanes, wrong: Lanes) -> int:
        return int(stamps[int(wrong.argmax())]) >> INSTR & INSTR_MASK

    def _one(
        self, kind: str, wrong: Lanes, units: Lanes, stamps: Lanes, what: str, lacking: str
    ) -> list[tuple[Conflict, str]]:
        n = int(wrong.argmax())
        stamp = int(stamps[n])
        other = stamp >> INSTR & INSTR_MASK
        return [(Conflict(kind, 0, int(units[n]), other, stamp & LANE_MASK, what), lacking)]


def _covered(ends: list[list[int]], warps: Lanes, clocks: Lanes, known: Lanes) -> Lanes:
    """Whether each access, by a warp at a clock, is followed by an entry of the warp in `ends` that comes
    before `known`, up to which others come after what the warp does.
    """
    result = np.zeros(len(warps), np.bool_)
    for warp in set(warps.tolist()):
        of_warp = warps == warp
        until_access, until_known = np.searchsorted(ends[warp], [clocks[of_warp], known[of_warp]])
        result[of_warp] = until_access < until_known
    return result
