"""Stamps: the last access to a unit of memory as one number, in which the race detectors keep it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.interpreter.machine.lanes import WARP
from ptxgen.interpreter.sanitizers.conflicts import Access, Conflict
from ptxgen.interpreter.sanitizers.orders import CLUSTER, CTA

if TYPE_CHECKING:
    from ptxgen.interpreter.sanitizers.clocks import Clocks

    Lanes = np.ndarray[Any, np.dtype[Any]]

# A stamp: pending, asynchronous, 25 bits of clock, 17 of instruction, atomic, 18 of lane in the
# batch. 0: none.
PENDING: Final = 1 << 62
ASYNC: Final = 1 << 61
CLOCK: Final = 36
CLOCK_MASK: Final = (1 << 25) - 1
INSTR: Final = 19
INSTR_MASK: Final = (1 << 17) - 1
ATOMIC: Final = 1 << 18
LANE_MASK: Final = (1 << 18) - 1


def stamps_now(clocks: Clocks, ids: Lanes, at: int) -> Lanes:
    """The stamps of accesses that lanes make now by instruction `at`."""
    stamps: Lanes = (clocks.clock[ids // WARP] << CLOCK) | (at << INSTR) | ids
    return stamps


def twin_stamps(ids: Lanes, at: int, clock: int) -> Lanes:
    """The stamps of accesses that the twins of the lanes' warps make for instruction `at`."""
    stamps: Lanes = ASYNC | (clock << CLOCK) | (at << INSTR) | ids
    return stamps


def out_of_scope(clocks: Clocks, scopes: Lanes, at: int, ids: Lanes, stamps: Lanes) -> Lanes:
    """Which of the strong accesses with these stamps, `[lanes, width]`, are not morally strong relative to
    one that lanes make by instruction `at`, because the scope of either does not include the other's thread.
    """
    scope = np.minimum(scopes.take(stamps >> INSTR & INSTR_MASK, mode="clip"), scopes[at])
    mine, other = (ids // WARP)[:, None], (stamps & LANE_MASK) // WARP
    here = mine // clocks.of_cta == other // clocks.of_cta
    near = mine // clocks.group == other // clocks.group
    beyond: Lanes = ((scope == CTA) & ~here) | ((scope == CLUSTER) & ~near)
    return beyond


def first_conflict(
    kind: str, wrong: Lanes, access: Access, stamps: Lanes | None, what: str
) -> list[Conflict]:
    """The first unit of an access that is wrong, `[lanes, width]`, if there is one; `stamps` are
    of the other accesses, None if there are none.
    """
    if not wrong.any():
        return []
    row, column = (int(i[0]) for i in np.nonzero(wrong))
    unit = int(access.first[row]) + column
    if stamps is None:
        return [Conflict(kind, row, unit, -1, -1, what)]
    stamp = int(stamps[row, column])
    at = (stamp >> INSTR) & INSTR_MASK
    twin = (stamp >> CLOCK) & CLOCK_MASK if stamp & ASYNC else 0
    return [Conflict(kind, row, unit, at, stamp & LANE_MASK, what, twin)]


def first_race(clocks: Clocks, wrong: Lanes, access: Access, stamps: Lanes, what: str) -> list[Conflict]:
    """`first_conflict` of the kind `race`, which says whether the access comes after arrivals at mbarriers by
    the warp of the other thread, but by other lanes.
    """
    conflicts = first_conflict("race", wrong, access, stamps, what)
    for n, c in enumerate(conflicts):
        stamp = int(stamps[c.position, c.unit - int(access.first[c.position])])
        reached = clocks.reached(access.ids[c.position] // WARP, np.array(c.other_thread // WARP))
        conflicts[n] = replace(c, others_arrived=not c.twin and int(reached) >= stamp >> CLOCK & CLOCK_MASK)
    return conflicts
