"""Instructions between the lanes of a warp (PTX ISA, "Data Movement", "Parallel Synchronization").

A warp is 32 consecutive lanes; `Machine` pads every block to whole warps. `vote` and `shfl` without
`.sync` are not declared: from PTX 6.4 on, no GPU since sm_70 has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.isa import numeric
from ptxgen.isa.declare import inst
from ptxgen.isa.numeric_integers import ASSOCIATIVE
from ptxgen.isa.spec import Effect, Rule
from ptxgen.isa.undefined import Flow, moved, moves, tried
from ptxgen.types import b32, b64, s32, u32

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes, Machine

MOVEMENT: Final = "Data Movement and Conversion Instructions"
SYNCHRONIZATION: Final = "Parallel Synchronization and Communication Instructions"
WARP_SIZE: Final = 32
SHUFFLES: Final = ("bfly", "down", "up", "idx")


def _shuffled(
    machine: Machine, a: Lanes, b: Lanes, c: Lanes, membermask: Lanes, mode: str
) -> tuple[Lanes, Lanes]:
    """The result of shfl: the value, and whether the source lane was inside the segment."""
    lane = machine.lane_id().astype(np.int64)
    source, inside = source_lanes(lane, b, c, mode)
    return machine.exchange(a, np.where(inside, source, lane), membermask), inside


def source_lanes(lane: Lanes, b: Lanes, c: Lanes, mode: str) -> tuple[Lanes, Lanes]:
    """The lane that shfl selects for each of some lanes, and whether it is inside the segment, by the
    manual's pseudocode. A lane reads itself if it is not.
    """
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
    inside: Lanes = source >= last if mode == "up" else source <= last
    return source, inside


@inst(
    "shfl.sync.mode.b32 d, a, b:u32, c:u32, membermask:u32",
    mode=SHUFFLES,
    ptx=(6, 0),
    sm=30,
    effect=Effect.WARP,
    undefined=moves("a", control=("b", "c")),
    section=f"{MOVEMENT}: shfl.sync",
)
def shfl(machine: Machine, a: Lanes, b: Lanes, c: Lanes, membermask: Lanes, *, mode: str) -> Lanes:
    """d = the value of a in the lane that mode and b select, or in the own lane if that lane is outside
    the segment given by c.
    """
    return _shuffled(machine, a, b, c, membermask, mode)[0]


def _of_shuffle(flow: Flow) -> Any:
    """Undefined bits of the results of shfl: the value's move with it, the predicate depends on b and c
    alone.
    """
    return moved("a")(flow)[0], flow.any("b", "c")


@inst(
    "shfl.sync.mode.b32 d|p:pred, a, b:u32, c:u32, membermask:u32",
    name="shfl_pred",
    mode=SHUFFLES,
    ptx=(6, 0),
    sm=30,
    effect=Effect.WARP,
    undefined=Rule(_of_shuffle, ("a", "b", "c")),
    section=f"{MOVEMENT}: shfl.sync",
)
def shfl_pred(
    machine: Machine, a: Lanes, b: Lanes, c: Lanes, membermask: Lanes, *, mode: str
) -> tuple[Lanes, Lanes]:
    """d = the result of shfl; p = whether the source lane was inside the segment."""
    return _shuffled(machine, a, b, c, membermask, mode)


def _by_warp(machine: Machine, x: Lanes) -> Lanes:
    """`x` as rows of 32 lanes, one for each warp."""
    return np.broadcast_to(x, machine.lane_id().shape).reshape(-1, WARP_SIZE)


def _members(machine: Machine, membermask: Lanes) -> Lanes:
    """The lanes that take part with each lane, `[warps, 32, 32]`, or `[warps, 1, 32]` if all lanes of
    a warp have the same membermask. Lanes of one warp may be in several groups, each with its own mask.
    """
    active, masks = _by_warp(machine, machine.active()), _by_warp(machine, membermask)
    first = masks[np.arange(len(masks)), active.argmax(axis=1)][:, None]
    if np.ndim(membermask) == 0 or ((masks == first) | ~active).all():
        masks = first
    lanes = np.arange(WARP_SIZE, dtype=np.uint32)
    named = np.bitwise_and(np.right_shift(masks[:, :, None], lanes), np.uint32(1)) == 1
    members: Lanes = named & active[:, None, :]
    return members


def _each(machine: Machine, values: Lanes) -> Lanes:
    """Results by lane or by warp, `[warps, 32 or 1]`, expanded to one value for each lane."""
    times = WARP_SIZE // values.shape[1]
    return np.repeat(values, times, axis=1).reshape(machine.lane_id().shape)


def _bits(chosen: Lanes) -> Lanes:
    """The last axis, with one entry for each lane, as the bits of a number."""
    weights = np.left_shift(np.uint32(1), np.arange(WARP_SIZE, dtype=np.uint32))
    total: Lanes = np.where(chosen, weights, np.uint32(0)).sum(axis=-1, dtype=np.uint32)
    return total


def _with_undefined_members(flow: Flow) -> Lanes:
    """A mask of the lanes that have a member with an undefined `a`."""
    members: Lanes = vote(flow.machine, flow.any("a"), flow.values["membermask"], mode="any")
    return members


def _of_vote(flow: Flow) -> Any:
    """Undefined bits of a vote: of `any` and `all`, none if all values of the undefined predicates give the
    same outcome; of `uni`, all if a member's predicate is undefined.
    """
    return _with_undefined_members(flow) if flow.op.modifiers["mode"] == "uni" else tried(flow)


OF_MEMBERS: Final = Rule(_with_undefined_members, ("a",))


@inst(
    "vote.sync.mode.pred p:pred, a:pred, membermask:u32",
    name="vote",
    mode=("any", "all", "uni"),
    ptx=(6, 0),
    sm=30,
    effect=Effect.WARP,
    undefined=Rule(_of_vote, ("a",)),
    section=f"{SYNCHRONIZATION}: vote.sync",
)
def vote(machine: Machine, a: Lanes, membermask: Lanes, *, mode: str) -> Lanes:
    """p = whether a holds for any member, for all of them, or for all or none (uni)."""
    machine.warp_sync(membermask)
    members, values = _members(machine, membermask), _by_warp(machine, a)[:, None, :]
    some, every = (values & members).any(axis=2), (values | ~members).all(axis=2)
    outcomes: dict[str, Any] = {"any": some, "all": every, "uni": np.equal(some, every)}
    return _each(machine, outcomes[mode])


@inst(
    "vote.sync.ballot.b32 d, a:pred, membermask:u32",
    name="ballot",
    ptx=(6, 0),
    sm=30,
    effect=Effect.WARP,
    undefined=moves("a"),
    section=f"{SYNCHRONIZATION}: vote.sync",
)
def ballot(machine: Machine, a: Lanes, membermask: Lanes) -> Lanes:
    """d = one bit for each lane: a, for the members."""
    machine.warp_sync(membermask)
    values = _by_warp(machine, a)[:, None, :]
    return _each(machine, _bits(values & _members(machine, membermask)))


@inst("activemask.b32 d", ptx=(6, 2), sm=30, effect=Effect.WARP, section=f"{SYNCHRONIZATION}: activemask")
def activemask(machine: Machine) -> Lanes:
    """d = one bit for each lane of the warp that executes this instruction."""
    return _each(machine, _bits(_by_warp(machine, machine.active())[:, None, :]))


def _reduced(machine: Machine, a: Lanes, membermask: Lanes, op: str) -> Lanes:
    machine.warp_sync(membermask)
    info = np.iinfo(a.dtype)
    neutral = {"min": info.max, "max": info.min, "and": info.max}.get(op, 0)
    values = _by_warp(machine, a)[:, None, :]
    values = np.where(_members(machine, membermask), values, a.dtype.type(neutral))
    return _each(machine, ASSOCIATIVE[op].reduce(values, axis=2, dtype=a.dtype))


@inst(
    "redux.sync.op.type d, a, membermask:u32",
    op=("add", "min", "max"),
    type=(u32, s32),
    ptx=(7, 0),
    sm=80,
    effect=Effect.WARP,
    undefined=OF_MEMBERS,
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
    undefined=OF_MEMBERS,
    section=f"{SYNCHRONIZATION}: redux.sync",
)
def redux_bits(machine: Machine, a: Lanes, membermask: Lanes, *, op: str) -> Lanes:
    """d = the values of a of all members, combined bit by bit."""
    return _reduced(machine, a, membermask, op)


@inst(
    "redux.sync.op{.abs}{.NaN}.f32 d, a, membermask:u32",
    op=("min", "max"),
    ptx=(8, 6),
    sm=100,
    only=("sm_100f",),
    effect=Effect.WARP,
    undefined=OF_MEMBERS,
    section=f"{SYNCHRONIZATION}: redux.sync",
)
def redux_f32(machine: Machine, a: Lanes, membermask: Lanes, *, op: str, abs: bool, NaN: bool) -> Lanes:
    """d = the smallest or the largest a, or |a|, of all members; a NaN is ignored, or with .NaN
    makes d NaN.
    """
    machine.warp_sync(membermask)
    combine = numeric.minimum if op == "min" else numeric.maximum
    values = _by_warp(machine, np.abs(a) if abs else a)[:, None, :]
    members = _members(machine, membermask)
    result = np.full(members.shape[:2], np.nan, np.float32)  # a placeholder: there is always a member
    for lane in range(WARP_SIZE):
        value = combine(result, np.broadcast_to(values[:, :, lane], result.shape), False)
        result = np.where(members[:, :, lane], value, result)
    if NaN:
        result = np.where((np.isnan(values) & members).any(axis=2), np.float32(np.nan), result)
    return _each(machine, numeric.canonical(result))


def _equal(machine: Machine, a: Lanes, membermask: Lanes) -> tuple[Lanes, Lanes]:
    """The members with each lane, and a mask of those with the same a, `[warps, 32, 32]`."""
    machine.warp_sync(membermask)
    members, values = _members(machine, membermask), _by_warp(machine, a)
    return members, (values[:, :, None] == values[:, None, :]) & members


_MATCH: Final[dict[str, Any]] = {
    "type": (b32, b64),
    "ptx": (6, 0),
    "sm": 70,
    "effect": Effect.WARP,
    "undefined": OF_MEMBERS,
    "section": f"{SYNCHRONIZATION}: match.sync",
}


@inst("match.any.sync.type d:b32, a, membermask:u32", name="match_any", **_MATCH)
def match_any(machine: Machine, a: Lanes, membermask: Lanes) -> Lanes:
    """d = one bit for each member that has the same a as this lane."""
    return _each(machine, _bits(_equal(machine, a, membermask)[1]))


def _match_all(machine: Machine, a: Lanes, membermask: Lanes) -> tuple[Lanes, Lanes]:
    members, equal = _equal(machine, a, membermask)
    agreed = (equal == members).all(axis=2)
    return _each(machine, np.where(agreed, _bits(members), np.uint32(0))), _each(machine, agreed)


@inst("match.all.sync.type d:b32, a, membermask:u32", name="match_all", **_MATCH)
def match_all(machine: Machine, a: Lanes, membermask: Lanes) -> Lanes:
    """d = one bit for each member if all have the same a, else 0."""
    return _match_all(machine, a, membermask)[0]


@inst("match.all.sync.type d:b32|p:pred, a, membermask:u32", name="match_all_pred", **_MATCH)
def match_all_pred(machine: Machine, a: Lanes, membermask: Lanes) -> tuple[Lanes, Lanes]:
    """d = one bit for each member if all have the same a, else 0; p = whether all have the same a."""
    return _match_all(machine, a, membermask)


@inst(
    "elect.sync d:b32|p:pred, membermask:u32",
    name="elect",
    ptx=(8, 0),
    sm=90,
    effect=Effect.WARP,
    section=f"{SYNCHRONIZATION}: elect.sync",
)
def elect(machine: Machine, membermask: Lanes) -> tuple[Lanes, Lanes]:
    """d = the lane number of one member (here the lowest); p = whether this lane is that member."""
    machine.warp_sync(membermask)
    leader = _each(machine, _members(machine, membermask).argmax(axis=2).astype(np.uint32))
    return leader, machine.lane_id() == leader


@inst(
    "bar.warp.sync membermask:u32",
    name="bar_warp_sync",
    ptx=(6, 0),
    sm=30,
    effect=Effect.WARP,
    section=f"{SYNCHRONIZATION}: bar.warp.sync",
)
def bar_warp_sync(machine: Machine, membermask: Lanes) -> tuple[()]:
    """Wait until all members have arrived; their memory accesses become visible to each other."""
    machine.warp_sync(membermask)
    return ()
