"""Multiplications by `wgmma` that are done later than they start.

A schedule draws when each multiplication reads shared memory: at once, some instructions later, or
when its group is waited for. Its accumulators have their values from that wait on; until then their
registers hold poison, and the products of a chain are added in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.interpreter.machine.lanes import WARP
from ptxgen.interpreter.machine.memory import POISON

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.access import MemoryAccess
    from ptxgen.interpreter.machine.lanes import Selection
    from ptxgen.interpreter.machine.waiting import Delays
    from ptxgen.interpreter.machine.wgmma_registers import WgmmaRegisters
    from ptxgen.isa.machine import Matrices

    Lanes = np.ndarray[Any, np.dtype[Any]]

Read = Callable[[], "Matrices"]
Multiplied = Callable[["Matrices", "tuple[Lanes, ...]"], "tuple[Lanes, ...]"]


@dataclass(slots=True, eq=False)
class _Started:
    """One multiplication by the lanes of a selection; `left` says which warps still lack their
    sums, `[warps]` bool, and `group` is the group of each warp.
    """

    at: int
    selection: Selection
    mask: Lanes | None
    numbers: Lanes
    read: Read
    multiplied: Multiplied
    due: int
    left: Lanes
    group: Lanes
    value: Matrices | None = None


class LateProducts:
    """The multiplications that the warps of a batch have under way."""

    def __init__(self, registers: WgmmaRegisters, machine: MemoryAccess, delays: Delays) -> None:
        self._registers = registers
        self._machine = machine
        self._delays = delays
        warps = machine.batch.lanes // WARP
        # By warp and register: the group that is under way, 0 if none is.
        self._group: Lanes = np.zeros((warps, len(registers.registers)), np.int64)
        self._commits: Lanes = np.zeros(warps, np.int64)
        self._retired: Lanes = np.zeros(warps, np.int64)
        self._sums: dict[int, Lanes] = {}  # by register, the sums of lanes whose multiplication is under way
        self._started: list[_Started] = []
        self._accumulators: Lanes = np.array(registers.accumulators(), np.int64)

    def start(self, read: Read, multiplied: Multiplied, d: tuple[Lanes, ...]) -> tuple[Lanes, ...]:
        """The active lanes' accumulators after an instruction that adds a product to `d`: the sums,
        or poison until they are waited for.
        """
        machine = self._machine
        numbers = self._registers.multiplications[machine.at].d
        ids = machine.active_ids(machine.mask)
        warps = np.unique(ids // WARP)
        busy = self._under_way(warps, numbers)
        due = self._delays.draw()
        now = due <= self._delays.now
        if now and not busy.any():
            return multiplied(read(), d)
        if machine.watch is not None and not now:
            read()  # tells the sanitizers when the multiplication starts
        left = np.zeros(len(self._commits), np.bool_)
        left[warps] = True
        started = _Started(
            machine.at,
            machine.selection,
            machine.mask,
            numbers,
            read,
            multiplied,
            due,
            left,
            self._commits + 1,
        )
        if now:
            started.value = read()
        mine = machine.selection.ids
        free = np.zeros((len(self._commits), len(numbers)), np.bool_)
        free[warps] = ~busy
        of_lanes = free[mine // WARP].T
        for number, values, fresh in zip(numbers.tolist(), d, of_lanes, strict=True):
            old = self._sum(number, values.dtype)
            old[mine[fresh]] = values[fresh]
        self._group[np.ix_(warps, numbers)] = self._commits[warps][:, None] + 1
        self._started.append(started)
        poison = np.full(machine.selection.count, POISON, np.uint32)
        return tuple(poison.view(x.dtype) for x in d)

    def met(self, at: int, ids: Lanes) -> None:
        """Record an instruction that whole warps execute, if it commits a group."""
        if at in self._registers.commits:
            self._commits[np.unique(ids // WARP)] += 1

    def work(self) -> None:
        """Read the operands of the multiplications that are due."""
        for one in self._started:
            if one.value is None and one.due <= self._delays.now:
                self._read(one)

    def settle(self, at: int, values: tuple[Lanes, ...]) -> tuple[Lanes, ...]:
        """The accumulators of all multiplications after the wait `at` of the active lanes; `values`
        are the contents of their registers.
        """
        machine = self._machine
        ids = machine.active_ids(machine.mask)
        warps = np.unique(ids // WARP)
        limit = self._commits[warps] - self._registers.waits[at]
        self._retired[warps] = np.maximum(self._retired[warps], limit)
        if not self._started:
            return values
        for one in self._started:
            done = one.left[warps] & (one.group[warps] <= self._retired[warps])
            if done.any():
                self._finish(one, warps[done])
        self._started = [s for s in self._started if s.left.any()]
        groups = self._group[np.ix_(warps, self._accumulators)]
        over = (groups > 0) & (groups <= self._retired[warps][:, None])
        return tuple(
            self._settled(number, value, warps[mine]) if some else value
            for number, value, mine, some in zip(
                self._accumulators.tolist(), values, over.T, over.any(axis=0).tolist(), strict=True
            )
        )

    def retire(self, count: int, members: range) -> None:
        """Read the operands of the first `count` groups of the warps `members`: a warp of their
        warpgroup has waited for these groups.
        """
        warps = np.array(members)
        for one in self._started:
            if (one.left[warps] & (one.group[warps] <= count)).any():
                self._read(one)

    def _settled(self, number: int, value: Lanes, over: Lanes) -> Lanes:
        """The values of register `number` in the selected lanes after the warps `over` have waited for its
        sums.
        """
        self._group[over, number] = 0
        ids = self._machine.selection.ids
        settled: Lanes = np.where(self._of_warps(ids, over), self._sum(number, value.dtype)[ids], value)
        return settled

    def _of_warps(self, ids: Lanes, warps: Lanes) -> Lanes:
        """Which lanes belong to these warps, bool."""
        there = np.zeros(len(self._commits), np.bool_)
        there[warps] = True
        mine: Lanes = there[ids // WARP]
        return mine

    def _under_way(self, warps: Lanes, numbers: Lanes) -> Lanes:
        under_way: Lanes = self._group[np.ix_(warps, numbers)] > self._retired[warps][:, None]
        return under_way

    def _sum(self, number: int, dtype: np.dtype[Any]) -> Lanes:
        total = self._sums.get(number)
        if total is None:
            total = self._sums[number] = np.zeros(self._machine.batch.lanes, dtype)
        return total.view(dtype)

    def _read(self, one: _Started) -> Matrices:
        if one.value is None:
            one.value = self._as_started(one, one.mask, one.read)
        return one.value

    def _finish(self, one: _Started, warps: Lanes) -> None:
        """Compute the sums of these warps, and of no others."""
        value, ids = self._read(one), one.selection.ids
        sums = [self._sums[n] for n in one.numbers.tolist()]
        d = tuple(s[ids] for s in sums)
        here = self._of_warps(ids, warps)
        if one.mask is not None:
            here &= one.mask
        new = self._as_started(one, here, lambda: one.multiplied(value, d))
        for old, result in zip(sums, new, strict=True):
            old[ids[here]] = np.asarray(result)[here].view(old.dtype)
        one.left[warps] = False

    def _as_started(self, one: _Started, mask: Lanes | None, action: Callable[[], Any]) -> Any:
        """The result of `action`, done by the lanes of `mask` among those that started the
        multiplication and without the sanitizers, to which it has been reported.
        """
        machine = self._machine
        before = machine.selection, machine.mask, machine.at, machine.watch
        machine.selection, machine.mask, machine.at = one.selection, mask, one.at
        machine.watch = None
        try:
            return action()
        finally:
            machine.selection, machine.mask, machine.at, machine.watch = before
