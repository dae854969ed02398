"""Instructions between the lanes of a warp (PTX ISA, "Data Movement", "Parallel Synchronization").

A warp is 32 consecutive lanes; `Machine` pads every block to whole warps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.isa.spec import Effect, inst
from ptxgen.types import b32, s32, u32

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes, Machine

MOVEMENT: Final = "Data Movement and Conversion Instructions"
SYNCHRONIZATION: Final = "Parallel Synchronization and Communication Instructions"
WARP_SIZE: Final = 32
SHUFFLES: Final = ("bfly", "down", "up", "idx")


def _shuffled(
    machine: Machine, a: Lanes, b: Lanes, c: Lanes, membermask: Lanes, mode: str
) -> tuple[Lanes, Lanes]:
    """The manual's pseudocode of shfl: the value, and whether the source lane was inside the
    segment.
    """
    lane = machine.lane_id().astype(np.int64)
    distance, clamp = (np.bitwise_and(x, np.uint32(31)).astype(np.int64) for x in (b, c))
    segment = np.bitwise_and(np.right_shift(c, np.uint32(8)), np.uint32(31)).astype(np.int64)
    first = lane & segment
    last = first | (clamp & ~segment)
    source = {
        "up": lane - distance,
        "down": lane + distance,
        "bfly": lane ^ distance,
        "idx": first | (distance & ~segment),
    }[mode]
    inside = source >= last if mode == "up" else source <= last
    return machine.exchange(a, np.where(inside, source, lane), membermask), inside


@inst(
    "shfl.sync.mode.b32 d, a, b:u32, c:u32, membermask:u32", mode=SHUFFLES, ptx=(6, 0), sm=30,
    effect=Effect.WARP, section=f"{MOVEMENT}: shfl.sync",
)  # fmt: skip
def shfl(machine: Machine, a: Lanes, b: Lanes, c: Lanes, membermask: Lanes, *, mode: str) -> Lanes:
    """d = a of the lane that mode and b name, or of the own lane if that is outside the segment
    given by c.
    """
    return _shuffled(machine, a, b, c, membermask, mode)[0]


@inst(
    "shfl.sync.mode.b32 d|p:pred, a, b:u32, c:u32, membermask:u32",
    name="shfl_pred",
    mode=SHUFFLES,
    ptx=(6, 0),
    sm=30,
    effect=Effect.WARP,
    section=f"{MOVEMENT}: shfl.sync",
)
def shfl_pred(
    machine: Machine, a: Lanes, b: Lanes, c: Lanes, membermask: Lanes, *, mode: str
) -> tuple[Lanes, Lanes]:
    """d as for shfl; p = whether the source lane was inside the segment."""
    return _shuffled(machine, a, b, c, membermask, mode)


def _by_warp(machine: Machine, x: Lanes) -> Lanes:
    """`x` as one row of 32 for each warp."""
    return np.broadcast_to(x, machine.lane_id().shape).reshape(-1, WARP_SIZE)


def _members(machine: Machine, membermask: Lanes) -> Lanes:
    """Which lanes take part, one row for each warp."""
    named = np.bitwise_and(np.right_shift(membermask, machine.lane_id()), np.uint32(1)) == 1
    return _by_warp(machine, named & machine.active())


def _each(machine: Machine, per_warp: Lanes) -> Lanes:
    """One value for each warp, given to all of its lanes."""
    return np.repeat(per_warp, WARP_SIZE).reshape(machine.lane_id().shape)


def _ballot(machine: Machine, bits: Lanes) -> Lanes:
    weights = np.left_shift(np.uint32(1), np.arange(WARP_SIZE, dtype=np.uint32))
    return _each(machine, np.where(bits, weights, np.uint32(0)).sum(axis=1, dtype=np.uint32))


@inst(
    "vote.sync.mode.pred p:pred, a:pred, membermask:u32",
    name="vote",
    mode=("any", "all", "uni"),
    ptx=(6, 0),
    sm=30,
    effect=Effect.WARP,
    section=f"{SYNCHRONIZATION}: vote.sync",
)
def vote(machine: Machine, a: Lanes, membermask: Lanes, *, mode: str) -> Lanes:
    """p = whether a holds for any member, for all of them, or for all or none (uni)."""
    machine.warp_sync(membermask)
    members, values = _members(machine, membermask), _by_warp(machine, a)
    some, every = (values & members).any(axis=1), (values | ~members).all(axis=1)
    outcomes: dict[str, Any] = {"any": some, "all": every, "uni": np.equal(some, every)}
    return _each(machine, outcomes[mode])


@inst(
    "vote.sync.ballot.b32 d, a:pred, membermask:u32", name="ballot", ptx=(6, 0), sm=30,
    effect=Effect.WARP, section=f"{SYNCHRONIZATION}: vote.sync",
)  # fmt: skip
def ballot(machine: Machine, a: Lanes, membermask: Lanes) -> Lanes:
    """d = one bit for each lane: a, for the members."""
    machine.warp_sync(membermask)
    return _ballot(machine, _by_warp(machine, a) & _members(machine, membermask))


@inst(
    "activemask.b32 d",
    ptx=(6, 2),
    sm=30,
    effect=Effect.WARP,
    section=f"{SYNCHRONIZATION}: activemask",
)
def activemask(machine: Machine) -> Lanes:
    """d = one bit for each lane of the warp that executes this instruction."""
    return _ballot(machine, _by_warp(machine, machine.active()))


_REDUCE: Final[dict[str, Any]] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def _reduced(machine: Machine, a: Lanes, membermask: Lanes, op: str) -> Lanes:
    machine.warp_sync(membermask)
    info = np.iinfo(a.dtype)
    neutral = {"min": info.max, "max": info.min, "and": info.max}.get(op, 0)
    values = np.where(_members(machine, membermask), _by_warp(machine, a), a.dtype.type(neutral))
    return _each(machine, _REDUCE[op].reduce(values, axis=1, dtype=a.dtype))


@inst(
    "redux.sync.op.type d, a, membermask:u32",
    op=("add", "min", "max"),
    type=(u32, s32),
    ptx=(7, 0),
    sm=80,
    effect=Effect.WARP,
    section=f"{SYNCHRONIZATION}: redux.sync",
)
def redux(machine: Machine, a: Lanes, membermask: Lanes, *, op: str) -> Lanes:
    """d = the sum (wrapping around), the smallest or the largest a of all members."""
    return _reduced(machine, a, membermask, op)


@inst(
    "redux.sync.op.type d, a, membermask:u32",
    op=("and", "or", "xor"),
    type=(b32,),
    ptx=(7, 0),
    sm=80,
    effect=Effect.WARP,
    section=f"{SYNCHRONIZATION}: redux.sync",
)
def redux_bits(machine: Machine, a: Lanes, membermask: Lanes, *, op: str) -> Lanes:
    """d = all members' a combined bit by bit."""
    return _reduced(machine, a, membermask, op)


@inst(
    "elect.sync d:b32|p:pred, membermask:u32", name="elect", ptx=(8, 0), sm=90,
    effect=Effect.WARP, section=f"{SYNCHRONIZATION}: elect.sync",
)  # fmt: skip
def elect(machine: Machine, membermask: Lanes) -> tuple[Lanes, Lanes]:
    """d = the number of one member (here the lowest), p = whether this lane is that member."""
    machine.warp_sync(membermask)
    leader = _each(machine, _members(machine, membermask).argmax(axis=1).astype(np.uint32))
    return leader, machine.lane_id() == leader


@inst(
    "bar.warp.sync membermask:u32", name="bar_warp_sync", ptx=(6, 0), sm=30,
    effect=Effect.WARP, section=f"{SYNCHRONIZATION}: bar.warp.sync",
)  # fmt: skip
def bar_warp_sync(machine: Machine, membermask: Lanes) -> tuple[()]:
    """Wait until all members have arrived; their memory accesses become visible to each other."""
    machine.warp_sync(membermask)
    return ()
