"""Finds teams: warps of a CTA that do the same.

Warps do the same if all that decides where they go, and at which barriers, is made in the same way of the
same numbers: what they compute of thread numbers is equal lane by lane, so that what they make of it and
of launch constants, counters and words is equal, too. One order of the warps is followed, in which they
take each step one after another; so they are followed as one, a team.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from ptxgen.check.prove.barriers.control import Control
from ptxgen.check.prove.barriers.values import WarpValues
from ptxgen.check.prove.program.values import Node


def teams(control: Control, values: Sequence[WarpValues]) -> list[list[int]]:
    """The numbers of the warps of each team, the teams in the order of their lowest numbers. `values` has the
    values of each warp.
    """
    deciding = list(dict.fromkeys(_deciding(control)))
    by_decisions: dict[tuple[Hashable, ...], list[int]] = {}
    for number, of in enumerate(values):
        by_decisions.setdefault(tuple(_numbers(control, of, deciding)), []).append(number)
    return list(by_decisions.values())


def _deciding(control: Control) -> Iterator[Node]:
    """The values that decide where a warp goes and what it does there, and the values that merge in them."""
    for block in sorted(control.entered):
        branch = control.branches.get(block)
        if branch is not None and branch.guard is not None and control.decides(block):
            yield branch.guard
        for site in control.sites.get(block, ()):
            yield from (n for n in (site.number, site.threads, site.guard) if n is not None)
        for node in control.merged_at(block):
            before = control.entered.intersection(control.graph.before[block])
            yield from (control.coming(node, one) for one in sorted(before))


def _numbers(control: Control, values: WarpValues, deciding: Sequence[Node]) -> Iterator[Hashable]:
    """The numbers that a warp computes from thread numbers and launch constants alone on the way to the
    values `deciding`, in an order that is the same for all warps.
    """
    seen = {node.id for node in deciding}
    stack = [*deciding]
    while stack:
        node = stack.pop()
        leaves = control.leaves(node)
        if not leaves:
            value = values.of(node)
            yield value.tobytes() if isinstance(value, np.ndarray) else value
        elif node not in leaves:
            stack += (arg for arg in node.args if arg.id not in seen)
            seen.update(arg.id for arg in node.args)
