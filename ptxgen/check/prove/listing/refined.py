"""Tighter bounds of values, from the comparisons on the path to an access."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ptxgen.check.prove.program.domain import MOST_VALUES, Domain
from ptxgen.check.prove.program.paths import Formula, Paths, certain, literals
from ptxgen.check.prove.program.ranges import Range, signed, unsigned, whole
from ptxgen.check.prove.program.values import Node, Values


class Refined:
    """Derives tighter bounds of the values in one kernel's registers from the branches before a use."""

    def __init__(self, values: Values, paths: Paths) -> None:
        self.values = values
        self.paths = paths

    def bounds(self, nodes: list[Node], condition: Formula, domain: Domain) -> dict[int, Range]:
        """Tighter bounds of the values that conditions of `condition` compare, by the values'
        numbers. They hold for the current iteration of the loops around; a value whose earlier
        iterations also affect `nodes` gets none.
        """
        ranges: dict[int, Range] = {}
        wanted = [*nodes, *(x.node for x in literals(condition) if x.node is not None)]
        carried = self._carried(wanted, domain)
        for literal in certain(condition):
            node = literal.node
            if node is None or node.kind != "apply" or len(node.args) != 2:
                continue
            words = node.data.op.opcode.split(".")
            type = node.data.slots[0][2]
            if words[0] != "setp" or len(words) != 3 or type is None:
                continue
            for value, limit, mirrored in ((0, 1, False), (1, 0, True)):
                opposite = literal.negated != (node.data.result == 1)
                asked = _OPPOSITE.get(words[1]) if opposite else words[1]
                if mirrored and asked is not None:
                    asked = _MIRRORED.get(asked)
                of = node.args[value]
                if of.bits != type.bits or self._is_carried(of, carried):
                    continue
                held = domain.range(node.args[limit])
                bounds = _bounds(asked, held, of.bits, type.is_signed)
                if bounds is not None:
                    known = ranges.get(of.id, domain.range(of))
                    ranges[of.id] = _narrowed(known, bounds, of.bits)
        return {key: r for key, r in ranges.items() if r.size <= MOST_VALUES}

    def _carried(self, wanted: list[Node], domain: Domain) -> dict[int, set[int]]:
        """For each loop header that affects the values, the numbers of the values that the loop
        carries round.
        """
        headers = {
            n
            for node in wanted
            for n in self.paths.sources(node)
            if n.kind == "header" and n.id not in domain.failed
        }
        carried: dict[int, set[int]] = {}
        for header in headers:
            latches = self.paths.graph.latches[header.block]
            around = carried.setdefault(header.block, set())
            for before, value in self.values.meeting(header):
                if before in latches:
                    around |= {n.id for n in self.paths.sources(value)}
        return carried

    def _is_carried(self, of: Node, carried: Mapping[int, set[int]]) -> bool:
        """Whether a loop carries `of` round, so that its value of another iteration counts as well."""
        blocks = {n.block for n in self.paths.sources(of) if n.kind in ("join", "header", "opaque")}
        bodies = self.paths.graph.bodies
        return any(of.id in ids and blocks & bodies[header] for header, ids in carried.items())


# What holds where a comparison of integers does not; that two of them differ bounds neither.
_OPPOSITE: Final = {
    "lt": "ge",
    "ge": "lt",
    "gt": "le",
    "le": "gt",
    "lo": "hs",
    "hs": "lo",
    "hi": "ls",
    "ls": "hi",
    "ne": "eq",
}
_MIRRORED: Final = {
    "lt": "gt",
    "gt": "lt",
    "le": "ge",
    "ge": "le",
    "lo": "hi",
    "hi": "lo",
    "ls": "hs",
    "hs": "ls",
    "eq": "eq",
}


def _bounds(asked: str | None, limit: Range, bits: int, is_signed: bool) -> Range | None:
    """The values for which a comparison with `limit` holds; None if nothing follows."""
    everything = signed(whole(bits), bits) if is_signed else whole(bits)
    limit = signed(limit, bits) if is_signed else unsigned(limit, bits)
    if asked in ("lt", "lo"):
        return Range(everything.first, limit.last - 1, 1)
    if asked in ("le", "ls"):
        return Range(everything.first, limit.last, 1)
    if asked in ("gt", "hi"):
        return Range(limit.first + 1, everything.last, 1)
    if asked in ("ge", "hs"):
        return Range(limit.first, everything.last, 1)
    return limit if asked == "eq" else None


def _narrowed(known: Range, bounds: Range, bits: int) -> Range:
    """The intersection of two ranges; `known` alone if one is signed and the other unsigned."""
    if known.first < 0 and bounds.last >= 1 << (bits - 1):
        return known
    if known.first >= 0 and bounds.first < 0:
        known = signed(known, bits)
    return Range(max(known.first, bounds.first), min(known.last, bounds.last), 1)
