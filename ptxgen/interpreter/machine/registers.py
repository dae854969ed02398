"""The registers of warps that change their number by `setmaxnreg`, and the register pool of each
CTA (PTX ISA, "Miscellaneous Instructions: setmaxnreg").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter.machine.lanes import WARP

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.lanes import Batch
    from ptxgen.interpreter.machine.observer import Observer
    from ptxgen.ir import Kernel

    Lanes = np.ndarray[Any, np.dtype[Any]]

_OF_SM: Final = 1 << 16  # CUDA C++ Programming Guide, "Technical Specifications per CC": 64 K registers
_MOST: Final = 255  # registers of a thread
_UNIT: Final = 8  # registers of a thread are allocated in multiples of this
_WARPGROUP: Final = 4  # warps of a warpgroup


def registers_at_entry(kernel: Kernel) -> int:
    """The registers of a thread when the kernel begins, as `ptxas` derives them from `.maxnreg`, or
    from the threads of a CTA and `.minnctapersm`; 0 if it cannot, since it then ignores
    `setmaxnreg`.
    """
    for directive in kernel.directives:
        name, _, count = directive.partition(" ")
        if name == ".maxnreg":
            return int(count)
    threads = kernel.most_threads
    if not threads or not kernel.min_ctas:
        return 0
    lanes = -(-threads // WARP) * WARP
    return min(_OF_SM // (lanes * kernel.min_ctas) // _UNIT * _UNIT, _MOST)


class RegisterPool:
    """The registers of a batch. `waiting` says which lanes wait for registers, bool, `since` in
    which instruction. Nothing is counted if `at_entry` is 0. Warps that have ended give their
    registers back, on which a kernel must not rely: the manual does not say so.
    """

    def __init__(self, batch: Batch, at_entry: int, watch: Observer | None) -> None:
        self._batch = batch
        self._watch = watch
        self._known = at_entry > 0
        warps = batch.lanes // WARP
        self._held: Lanes = np.full(warps, -(-at_entry // _UNIT) * _UNIT, np.int64)
        self._of_cta = int(self._held.sum()) // batch.ctas  # registers of a thread, over all warps
        self._wanted: Lanes = np.zeros(warps, np.int64)  # 0: the warp waits for none
        self._free: Lanes = np.zeros(batch.ctas, np.int64)  # registers in each CTA's pool
        self._done: dict[int, list[tuple[bool, int]]] = {}  # by warp, the executed setmaxnreg
        self._last: dict[int, int] = {}  # by warp, the last instruction
        self._ended: Lanes = np.zeros(warps, np.bool_)
        self.waiting: Lanes = np.zeros(batch.lanes, np.bool_)
        self.since: Lanes = np.zeros(batch.lanes, np.int64)

    def change(self, at: int, ids: Lanes, count: int, *, more: bool) -> None:
        """Have warps, given by their lanes, wait for `count` registers of each thread if `more`; else have
        them give back all but `count`.
        """
        for warp in np.unique(ids // WARP).tolist():
            self._execute(at, warp, count, more)
            held = int(self._held[warp])
            if not self._known or self._is_wrong(at, warp, count, more):
                continue
            if more:
                self._wanted[warp] = count
                lanes = ids[ids // WARP == warp]
                self.waiting[lanes], self.since[lanes] = True, at
            else:
                self._held[warp] = count
                self._free[self._cta(warp)] += (held - count) * WARP

    def complete(self, exited: Lanes) -> Lanes | None:
        """Lanes, as a mask, whose wait for registers has ended; None if there are none."""
        if not np.count_nonzero(self.waiting):
            return None
        gone = exited.reshape(-1, WARP).all(axis=1) & ~self._ended
        for warp in np.flatnonzero(gone).tolist():
            self._ended[warp] = True
            self._free[self._cta(warp)] += self._held[warp] * WARP
        free = np.zeros_like(self.waiting)
        for warp in np.flatnonzero(self._wanted).tolist():
            missing = self._missing(warp)
            if missing <= self._free[self._cta(warp)]:
                self._free[self._cta(warp)] -= missing
                self._held[warp], self._wanted[warp] = self._wanted[warp], 0
                free[warp * WARP : (warp + 1) * WARP] = True
        free &= self.waiting
        self.waiting &= ~free
        return free if free.any() else None

    def describe(self, lane: int) -> str:
        """The registers that a lane waits for, in words."""
        warp = lane // WARP
        return (
            f"the CTA's pool of registers ({self._missing(warp)} wanted for its warp, "
            f"{self._free[self._cta(warp)]} free)"
        )

    def finish(self) -> None:
        """At the end of all threads, report warps that have not executed a `setmaxnreg` that others
        of their warpgroup have, and CTAs whose warps have more registers together than at their beginning.
        """
        for warp, done in sorted(self._done.items()):
            for other in self._group(warp):
                if len(self._done.get(other, ())) < len(done):
                    self._report(
                        self._last[warp],
                        warp,
                        f"all warps of a warpgroup execute it, but {self._name(other)} has not",
                    )

        self._add_up()

    def _add_up(self) -> None:
        if not self._known:
            return
        warps = self._batch.width // WARP
        of_warps, of_cta = self._held.reshape(-1, warps).sum(axis=1) * WARP, self._of_cta * WARP
        for cta in np.flatnonzero(of_warps > of_cta).tolist():
            of = range(cta * warps, (cta + 1) * warps)
            grown = next(w for w in of if any(more for more, _ in self._done.get(w, ())))
            self._report(
                self._last[grown],
                grown,
                f"the warps of the CTA have {of_warps[cta]} registers together at their ends, but the CTA "
                f"has {of_cta}: some get them only when others have ended; give a role fewer",
            )

    # ------------------------------------------------------------------------------------- helpers

    def _execute(self, at: int, warp: int, count: int, more: bool) -> None:
        """Record the `setmaxnreg` that a warp executes, and report one that differs from its warpgroup's."""
        self._last[warp] = at
        done = self._done.setdefault(warp, [])
        done.append((more, count))
        if not self._known:
            self._report(
                at,
                warp,
                "the assembler ignores it, as it does not know the registers at entry; give the "
                "kernel .maxnreg, or .maxntid and .minnctapersm",
            )
        group = self._group(warp)
        if len(group) < _WARPGROUP:
            self._report(
                at,
                warp,
                f"all {_WARPGROUP} warps of a warpgroup execute it, but the CTA ends with {len(group)}",
            )
        for other in group:
            theirs = self._done.get(other, ())[: len(done)]
            if len(theirs) == len(done) and theirs[-1] != done[-1]:
                self._report(
                    at,
                    warp,
                    f"all warps of a warpgroup execute the same, but {self._name(other)} has "
                    f"executed {_text(*theirs[-1])}",
                )
                return

    def _is_wrong(self, at: int, warp: int, count: int, more: bool) -> bool:
        """Whether the instruction asks for a change in the wrong direction; then the registers stay."""
        held = int(self._held[warp])
        wrong = count < held if more else count > held
        if wrong:
            self._report(at, warp, f"{_text(more, count)}, but a thread has {held} registers at this point")
        return wrong

    def _missing(self, warp: int) -> int:
        return int(self._wanted[warp] - self._held[warp]) * WARP

    def _cta(self, warp: int) -> int:
        return warp // (self._batch.width // WARP)

    def _group(self, warp: int) -> range:
        """The warps of a warp's warpgroup."""
        of_cta = self._batch.width // WARP
        first = self._cta(warp) * of_cta
        begin = first + (warp - first) // _WARPGROUP * _WARPGROUP
        return range(begin, min(begin + _WARPGROUP, first + of_cta))

    def _name(self, warp: int) -> str:
        return f"warp {warp % (self._batch.width // WARP)}"

    def _report(self, at: int, warp: int, why: str) -> None:
        if self._watch is not None:
            self._watch.registers(at, warp * WARP, why)


def _text(more: bool, count: int) -> str:
    return f"setmaxnreg.{'inc' if more else 'dec'} to {count}"
