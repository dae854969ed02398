"""The rules of the registers of `wgmma`, checked for every warp that runs.

A `wgmma.fence` must come before the first `wgmma.mma_async`, and again after ordinary instructions
have written the registers, or a multiplication of another shape has used them. From a
`wgmma.mma_async` to the `wgmma.wait_group` that retires its group, other instructions must not
touch its accumulators and the registers of A (PTX ISA, "Asynchronous Warpgroup Level Matrix
Instructions"). Copies by `mov` after the fence are accepted, since nvcc moves them there and the
assembler removes them, if an ordinary instruction has written their source before it; a `mov` that packs
the halves of a register is no copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter.machine.lanes import WARP

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.wgmma_registers import WgmmaRegisters
    from ptxgen.interpreter.sanitizers.findings import Findings

    Lanes = np.ndarray[Any, np.dtype[Any]]

_STARTED: Final = "it was started by"


class WgmmaChecks:
    """The multiplications that the warps of a batch have under way, by register."""

    def __init__(self, registers: WgmmaRegisters, warps: int, faults: Findings) -> None:
        self._registers = registers
        self._faults = faults
        shape = warps, len(registers.registers)
        self._group: Lanes = np.zeros(shape, np.int64)  # group of the last user, from 1; 0: none
        self._by: Lanes = np.zeros(shape, np.int64)  # instruction of the last user
        self._written: Lanes = np.zeros(shape, np.bool_)  # by an ordinary instruction since the last fence
        self._fenced: Lanes = np.zeros(warps, np.bool_)  # whether the warp has ever executed a fence
        self._ordered: Lanes = np.zeros(shape, np.bool_)  # whether a fence came after the last user
        self._commits: Lanes = np.zeros(warps, np.int64)
        self._retired: Lanes = np.zeros(warps, np.int64)
        self._busy = False  # whether any warp may have something under way
        # By multiplication, earlier one, and whether D is meant: which registers are sums of the earlier one.
        self._sums: dict[tuple[int, int, bool], Lanes] = {}

    def warpgroup(self, at: int, name: str, warps: Lanes) -> None:
        """Check and record an instruction of `wgmma`, of the row `name`, that warps execute."""
        if at in self._registers.multiplications:
            self._multiply(at, warps)
        elif name == "wgmma_fence":
            self._fenced[warps] = True
            self._written[warps] = False
            self._ordered[warps] = True
        elif name == "wgmma_commit_group":
            self._commits[warps] += 1
        elif name == "wgmma_wait_group":
            limit = self._commits[warps] - self._registers.waits[at]
            self._retired[warps] = np.maximum(self._retired[warps], limit)
            self._busy = bool((self._group > self._retired[:, None]).any())

    def touch(self, numbers: tuple[int, ...], ids: Lanes) -> None:
        """Check and record ordinary instructions of lanes that name registers of `wgmma`."""
        warps = np.unique(ids // WARP)
        for at in numbers:
            touched = self._registers.touches[at]
            if self._busy:
                self._in_flight(at, warps, ids, touched.named)
            if len(touched.changed):
                self._written[warps[:, None], touched.changed] = True
            if touched.source is not None:
                self._written[warps[:, None], touched.copied] |= self._written[warps, touched.source, None]

    def _in_flight(self, at: int, warps: Lanes, ids: Lanes, named: Lanes) -> None:
        under_way = self._under_way(warps, named)
        if not under_way.any():
            return
        row, column = (int(i[0]) for i in np.nonzero(under_way))
        warp, number = int(warps[row]), int(named[column])
        user = int(self._by[warp, number])
        lane = int(ids[np.searchsorted(ids, warp * WARP)])
        lacking = "may still use: nothing has waited for it"
        if self._group[warp, number] > self._commits[warp]:
            lacking = "may still use: it is in no group, so no wait covers it"
        why = f"touches {self._name(number)}, which a wgmma.mma_async {lacking}"
        self._faults.sync(at, lane, "sync", why, user, relation=_STARTED)
        # One report for each multiplication is enough.
        self._group[self._by == user] = 0

    def _under_way(self, warps: Lanes, numbers: Lanes) -> Lanes:
        """Which of these registers of these warps a multiplication may use, `[warps, numbers]`."""
        under_way: Lanes = self._group[_cells(warps, numbers)] > self._retired[warps][:, None]
        return under_way

    def _multiply(self, at: int, warps: Lanes) -> None:
        of = self._registers.multiplications[at]
        unfenced = ~self._fenced[warps]
        some_changed = any(self._written[_cells(warps, numbers)].any() for numbers in (of.d, of.a))
        if unfenced.any():
            self._report(at, int(warps[unfenced][0]), "no wgmma.fence comes before it")
            self._fenced[warps] = True
        elif some_changed:
            used = np.concatenate([of.d, of.a])
            changed = self._written[warps[:, None], used]
            row, column = (int(i[0]) for i in np.nonzero(changed))
            why = f"no wgmma.fence comes between it and what wrote {self._name(int(used[column]))}"
            self._report(at, int(warps[row]), why)
        elif self._busy:
            self._chained(at, warps)
        for numbers in (of.a, of.d):
            which = _cells(warps, numbers)
            if some_changed:
                self._written[which] = False
            self._group[which] = self._commits[warps][:, None] + 1
            self._by[which] = at
            self._ordered[which] = False
        self._busy = True

    def _chained(self, at: int, warps: Lanes) -> None:
        """Check the registers of a multiplication that others under way use. Accumulators of one
        shape may be chained, and several may read A; all else needs a fence.
        """
        of = self._registers.multiplications[at]
        for numbers, is_sum in ((of.d, True), (of.a, False)):
            which = _cells(warps, numbers)
            doubtful = self._under_way(warps, numbers) & ~self._ordered[which]
            if not doubtful.any():
                continue
            users = self._by[which]
            one = int(users.flat[0])
            for user in np.unique(users[doubtful]).tolist() if (users != one).any() else [one]:
                before = self._registers.multiplications[user]
                was_sum = self._sums.get((at, user, is_sum))
                if was_sum is None:
                    was_sum = self._sums[at, user, is_sum] = np.isin(numbers, before.d)
                fine = (was_sum == is_sum) & (not is_sum or before.shape == of.shape)
                if fine.all():
                    continue
                wrong = np.argwhere(doubtful & (users == user) & ~fine)
                if len(wrong):
                    row, column = wrong[0].tolist()
                    use = f"an accumulator of {before.shape}" if was_sum[column] else "part of A"
                    self._faults.sync(
                        at,
                        int(warps[row]) * WARP,
                        "sync",
                        f"uses {self._name(int(numbers[column]))}, which another wgmma.mma_async "
                        f"may still use as {use}; no wgmma.fence or wait comes between",
                        user,
                        relation=_STARTED,
                    )
                    return

    def _name(self, number: int) -> str:
        return self._registers.registers[number].name

    def _report(self, at: int, warp: int, why: str) -> None:
        self._faults.sync(at, warp * WARP, "sync", why)


def _cells(warps: Lanes, numbers: Lanes) -> tuple[Lanes, Lanes | slice]:
    """The index of these registers of these warps in a table; a slice of the registers is faster."""
    if len(numbers) and (numbers[1:] == numbers[:-1] + 1).all():
        return warps, slice(int(numbers[0]), int(numbers[-1]) + 1)
    return warps[:, None], numbers
