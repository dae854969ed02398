"""Which threads of a block come to an instruction together.

A branch on which the lanes of a group agree sends all that come to it the same way. A branch that thread
numbers alone decide, and that every way to the instruction passes, leaves out the threads that it sends
another way, in every launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from ptxgen.check.prove.program.agreement import Agreement
from ptxgen.check.prove.program.graph import Graph
from ptxgen.check.prove.program.paths import fork_of
from ptxgen.check.prove.program.values import Node, Values

Lanes = np.ndarray[Any, np.dtype[Any]]

UNSURE: Final = "a condition on the way to it may differ between the threads of a {group}"
TABLE: Final = "a jump through a table decides whether it is reached"


class Branch(NamedTuple):
    """A branch that decides whether threads come to an instruction: its predicate `guard` (None for a jump
    through a table), and the value of it `wanted` for coming there; whether the other threads end `at_once`,
    and `other`, the first block that they come to. `is_passed` says whether every way to the instruction
    passes the branch, and from one side of it only.
    """

    guard: Node | None
    wanted: bool
    at_once: bool
    other: int
    is_passed: bool


class Arrivals(NamedTuple):
    """The threads that `come` to an instruction whenever one of their group does, those that have `ended` at
    once instead, and those that go on `elsewhere`: masks of the block's threads. `ways` are the first blocks
    that the latter come to.

    With a `reason`, more may be missing, for this reason; `may_end` says that such threads end at once.
    """

    come: Lanes
    ended: Lanes
    elsewhere: Lanes
    ways: tuple[int, ...] = ()
    reason: str = ""
    may_end: bool = False


def arrivals(
    graph: Graph,
    values: Values,
    agreement: Agreement,
    threads: int,
    block: int,
    guard: tuple[Node, bool] | None,
) -> Arrivals:
    """The threads of a block of `threads` that come to an instruction, which may have a `guard`: its
    predicate, and whether that is negated.
    """
    come = np.ones(threads, np.bool_)
    ended, elsewhere = np.zeros_like(come), np.zeros_like(come)
    ways: list[int] = []
    reason, may_end = "", True
    for branch in _branches(graph, values, block, guard):
        if branch.guard is None:
            return Arrivals(come, ended, elsewhere, reason=TABLE)
        if agreement.agrees(branch.guard):
            lanes = agreement.lanes(branch.guard)
            if lanes is None or not branch.is_passed:
                continue
        else:
            lanes = agreement.lanes(branch.guard) if branch.is_passed else None
            if lanes is None:
                reason, may_end = UNSURE, may_end and branch.at_once
                continue
        missing = come & (lanes != branch.wanted)
        come &= ~missing
        if branch.at_once:
            ended |= missing
        elif missing.any():
            elsewhere |= missing
            ways.append(branch.other)
    return Arrivals(come, ended, elsewhere, tuple(ways), reason, bool(reason) and may_end)


def _branches(graph: Graph, values: Values, block: int, guard: tuple[Node, bool] | None) -> Iterator[Branch]:
    """The branches that decide whether threads come to a block, the first ones first."""
    at_once = dict(graph.other_ways(block))
    for index in sorted(graph.controlling(block), key=graph.rank.__getitem__):
        node, negated, taken, passed = fork_of(graph, values, index)
        leading = graph.leading(block, without=index)
        is_passed = graph.dominates(index, block) and (taken in leading) != (passed in leading)
        other = passed if taken in leading else taken
        yield Branch(node, (taken in leading) != negated, at_once.get(index, False), other, is_passed)
    if guard is not None:
        node, negated = guard
        yield Branch(node, not negated, False, block, True)
