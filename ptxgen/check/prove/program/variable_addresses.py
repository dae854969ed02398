"""How values depend on the addresses of variables in shared memory, which are not known before a
launch.

A proof computes with some addresses of the variables. Its result holds for all addresses if each
value is a number that does not depend on them, or an address that moves with its variable. The
rules here tell which of the two a value is, instruction by instruction. Where no rule applies, a
value may depend on the addresses in any way, and nothing may be concluded from its value for some
of them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Final, NamedTuple

from ptxgen.check.prove.program.ranges import Range
from ptxgen.check.prove.program.values import CONVERTED, Node, Values, address_of

SHARED: Final = "shared"  # an address in the window of `.shared::cta`
CLUSTER: Final = "cluster"  # an address in the window of another CTA of the cluster
GENERIC: Final = "generic"
_LARGEST: Final = 1 << 12  # the largest period that the rules follow


class Placed(NamedTuple):
    """How a value depends on the addresses of variables.

    A number has no `space`. An address is the address of one of the variables `names`, plus a
    number that depends on that variable's address modulo `period` bytes only (1: not at all). A
    number with a period depends on the addresses modulo that many bytes.
    """

    space: str = ""
    names: frozenset[str] = frozenset()
    period: int = 1

    @property
    def is_fixed(self) -> bool:
        """Whether the value is the same number for all addresses of the variables."""
        return not self.space and self.period == 1


NUMBER: Final = Placed()
ANYHOW: Final = Placed("anyhow")  # no rule tells how the value depends on the addresses


class AddressDependence:
    """How the values of one kernel depend on the addresses of variables.

    `bounds` gives the range of a number. `largest` gives the largest value, read as unsigned, that
    a number has anywhere in the kernel, or None if it cannot be listed; it is called only for
    numbers that depend on no address.
    """

    def __init__(
        self,
        values: Values,
        bounds: Callable[[Node], Range],
        largest: Callable[[Node], int | None] = lambda _: None,
    ) -> None:
        self._values = values
        self._bounds = bounds
        self._largest = largest
        self._limits: dict[int, int] = {}
        self._known: dict[int, Placed] = {}
        # Numbers of instructions for which the rules hold only while addresses are not below their
        # variable: below address 0 they would wrap around.
        self.upward: set[int] = set()
        self._pointers: dict[int, str] = {}

    def of(self, wanted: Node) -> Placed:
        """How a value depends on the addresses: the least solution of the rules, because loops
        carry values round.
        """
        if wanted.id not in self._known:
            needed = _inputs(wanted, self._parts, self._known)
            solution: dict[int, Placed] = {}
            changed = True
            while changed:
                changed = False
                for node in needed:
                    new = self._derived(node, solution)
                    if new is not None and new != solution.get(node.id):
                        solution[node.id] = new
                        changed = True
            # A value without a solution depends on itself alone and on no address.
            self._known |= {node.id: solution.get(node.id, NUMBER) for node in needed}
        return self._known[wanted.id]

    def _parts(self, node: Node) -> Sequence[Node]:
        if node.kind in ("join", "header"):
            return [value for _, value in self._values.meeting(node)]
        return () if node.kind == "function" else node.args

    # ------------------------------------------------------------------------------ rules

    def _derived(self, node: Node, solution: dict[int, Placed]) -> Placed | None:
        """How a value depends on the addresses, by the results for its arguments so far; None if
        not yet known.
        """
        if node.kind == "symbol":
            return Placed(SHARED, frozenset({node.data}))
        parts = [solution.get(p.id, self._known.get(p.id)) for p in self._parts(node)]
        known = [p for p in parts if p is not None]
        if node.kind in ("join", "header"):
            return _either(known) if known else None
        if len(known) < len(parts):
            return None
        if ANYHOW in known:
            return ANYHOW
        if not any(p.space for p in known):
            return Placed(period=max((p.period for p in known), default=1))
        return self._from_address(node, known)

    def _from_address(self, node: Node, parts: list[Placed]) -> Placed:
        """How a value that is computed from at least one address depends on the addresses."""
        first = parts[0]
        if node.kind == "choose":
            return _either(parts[1:]) if first.is_fixed else ANYHOW
        if node.kind == "window":
            return first._replace(space=GENERIC) if first.space == SHARED else ANYHOW
        if node.kind == "unwindowed":
            return first._replace(space=SHARED) if first.space == GENERIC else ANYHOW
        if node.kind == "mapped":
            return _mapped(node, first, parts[1])
        if node.kind == "offset":
            return self._sized(node, first, is_plain=True)
        if node.kind == "shuffle":
            return first if parts[1].is_fixed else ANYHOW
        if node.kind != "apply" or node.data.result > 0 or node.data.element >= 0:
            return ANYHOW
        words = node.data.op.opcode.split(".")
        packed = words[-1].endswith("x2")  # no carry from one half to the other
        if packed or any(isinstance(slot, tuple) for _, slot, _ in node.data.slots):
            return ANYHOW
        rule = _RULES.get(words[0])
        return ANYHOW if rule is None else rule(self, node, parts, words)

    def _sized(self, node: Node, of: Placed, *, is_plain: bool) -> Placed:
        """How an address depends on the addresses after a move to a register of another size."""
        source = node.args[0].bits
        if not is_plain or node.bits < _WORD or source < _WORD:
            return ANYHOW
        if of.space == GENERIC:  # all bits of the address count
            return of if node.bits == source == _LONG else ANYHOW
        if node.bits > source:
            self.upward.add(node.id)
        return of

    def _converted(self, node: Node, parts: list[Placed], words: list[str]) -> Placed:
        types = [t.bits for _, _, t in node.data.slots if t is not None]
        is_whole = types == [node.args[0].bits] and node.data.type.bits == node.bits
        return self._sized(node, parts[0], is_plain=is_whole and len(words) == _PLAIN_CVT)

    def _added(self, node: Node, parts: list[Placed], words: list[str]) -> Placed:
        """How the sum of one address and numbers depends on the addresses."""
        del node
        addresses = [p for p in parts if p.space]
        if len(addresses) > 1 or len(words) > _PLAIN:
            return ANYHOW
        return addresses[0]._replace(period=max(p.period for p in parts))

    def _subtracted(self, node: Node, parts: list[Placed], words: list[str]) -> Placed:
        left, right = parts
        if len(words) > _PLAIN:
            return ANYHOW
        if not right.space:
            return left._replace(period=max(left.period, right.period))
        apart = left == right and len(left.names) == 1 and left.period == 1
        return NUMBER if apart and node.bits == node.args[0].bits == node.args[1].bits else ANYHOW

    def _multiplied(self, node: Node, parts: list[Placed], words: list[str]) -> Placed:
        del node
        a, b, c = parts
        if a.space or b.space or words[1] not in ("lo", "wide") or len(words) > _PLAIN + 1:
            return ANYHOW
        return c._replace(period=max(p.period for p in parts))

    def _masked(self, node: Node, parts: list[Placed], words: list[str]) -> Placed:
        """How an address whose low bits are changed, kept or cleared depends on the addresses."""
        if len(words) > _PLAIN or all(p.space for p in parts):
            return ANYHOW
        address, other = (0, 1) if parts[0].space else (1, 0)
        mask = node.args[other]
        old = max(p.period for p in parts)
        low = self._below(mask)
        if words[0] != "and":
            return parts[address]._replace(period=max(old, low)) if low <= _LARGEST else ANYHOW
        if low <= _LARGEST:
            return Placed(period=max(old, low))
        cleared = 1 << mask.bits
        if mask.kind == "const" and not (cleared - mask.data) & (cleared - mask.data - 1):
            low = cleared - mask.data
            if low <= _LARGEST:
                return parts[address]._replace(period=max(old, low))
        return ANYHOW

    def _below(self, mask: Node) -> int:
        """A power of two above the number `mask`; more than any period if the number may be negative."""
        if mask.id not in self._limits:
            first, last, _ = self._bounds(mask)
            if first < 0 or last >= _LARGEST:
                last = self._listed_limit(mask)
            self._limits[mask.id] = 1 << last.bit_length()
        return self._limits[mask.id]

    def _listed_limit(self, mask: Node) -> int:
        """The largest value of a number, found by listing the counters of loops."""
        if any(node.kind == "symbol" for node in _inputs(mask, self._parts)):
            return _LARGEST  # the value depends on the result of this query
        largest = self._largest(mask)
        return _LARGEST if largest is None else largest

    def _compared(self, node: Node, parts: list[Placed], words: list[str]) -> Placed:
        """How a comparison depends on the addresses: two addresses of one variable compare as their distances
        from the variable's beginning do.
        """
        if len(parts) != _PAIR or len(words) > _PLAIN + 1:
            return ANYHOW
        left, right = parts
        whole = all(
            t is not None and t.bits == a.bits
            for (_, _, t), a in zip(node.data.slots, node.args, strict=True)
        )
        if left != right or len(left.names) != 1 or left.period != 1 or not whole:
            return ANYHOW
        if left.space != GENERIC:
            self.upward.add(node.id)
        return NUMBER

    def _selected(self, node: Node, parts: list[Placed], words: list[str]) -> Placed:
        del node, words
        return _either(parts[:2]) if parts[2].is_fixed else ANYHOW

    def _moved(self, node: Node, parts: list[Placed], words: list[str]) -> Placed:
        del words
        return self._sized(node, parts[0], is_plain=node.data.type.bits == node.args[0].bits)

    # ------------------------------------------------------------------------------ other spaces

    def is_elsewhere(self, wanted: Node) -> bool:
        """Whether a generic address is computed from a pointer parameter, or from the address of a
        variable outside shared memory. The pointers of a launch point to global memory.
        """
        return self._pointer(wanted) == _POINTER

    def _pointer(self, wanted: Node) -> str:
        """Whether a value is a sum with a pointer in it: `_POINTER`, `_NO_POINTER` or `_PERHAPS`."""
        known = self._pointers
        needed = _inputs(wanted, self._summed, known)
        solution = dict.fromkeys((node.id for node in needed), "")
        changed = True
        while changed:
            changed = False
            for node in needed:
                parts = [known.get(p.id, solution.get(p.id, "")) for p in self._summed(node)]
                new = self._pointing(node, parts)
                if new != solution[node.id]:
                    solution[node.id] = new
                    changed = True
        known |= solution
        return known[wanted.id]

    def _is_of_variable(self, address: Node) -> bool:
        """Whether an address in another space is a sum with the address of a variable there: the window of
        that space plus any other number may lie in the one of shared memory.
        """
        leaves = [node for node in _inputs(address, self._summed) if not self._summed(node)]
        return any(map(address_of, leaves)) and all(
            address_of(node) or self._pointing(node, []) == _NO_POINTER for node in leaves
        )

    def _summed(self, node: Node) -> Sequence[Node]:
        """The summands of an address in which a pointer may be, or the values that it selects from."""
        if node.kind in ("join", "header"):
            return [value for _, value in self._values.meeting(node)]
        if node.kind == "choose":
            return node.args[1:]
        if node.kind == "offset":
            return node.args
        head = node.data.op.opcode.partition(".")[0] if node.kind == "apply" else ""
        return node.args[_SUMMED[head]] if head in _SUMMED else ()

    def _pointing(self, node: Node, parts: list[str]) -> str:
        """Whether a value is a sum with a pointer, by the results for its `parts`: `_POINTER`, `_NO_POINTER`
        or `_PERHAPS`; the empty string while nothing is known.
        """
        if not parts:
            if node.kind in ("opaque", "function"):
                if isinstance(node.data, str) or node.bits != _LONG:
                    return _NO_POINTER
                if node.data[0] == CONVERTED:
                    return _POINTER if self._is_of_variable(node.args[0]) else _PERHAPS
                return _POINTER if address_of(node) else _PERHAPS
            whole = node.kind == "param" and node.bits == _LONG and node.data[2]
            unknown = node.kind in ("window", "unwindowed", "mapped", "shuffle", "symbol")
            return _POINTER if whole else _PERHAPS if unknown else _NO_POINTER
        if node.kind in ("join", "header", "choose") or (
            node.kind == "apply" and node.data.op.opcode.startswith("selp")
        ):
            variables = set(parts) - {""}
            return variables.pop() if len(variables) == 1 else _PERHAPS if variables else ""
        # A sum may still become either if the value of one of its parts is not yet known.
        return next((kind for kind in (_PERHAPS, "", _POINTER) if kind in parts), _NO_POINTER)


_WORD: Final = 32
_LONG: Final = 64
_PAIR: Final = 2
_PLAIN: Final = 2  # words of an opcode without modifiers: name and type
_PLAIN_CVT: Final = 3
_POINTER: Final = "a pointer"
_NO_POINTER: Final = "a number"
_PERHAPS: Final = "perhaps a pointer"
# The operands of an instruction in which a pointer may be.
_SUMMED: Final = {
    "mov": slice(0, 1),
    "cvt": slice(0, 1),
    "add": slice(0, 2),
    "sub": slice(0, 1),
    "mad": slice(2, 3),
    "selp": slice(0, 2),
}

_Rule = Callable[[AddressDependence, Node, list[Placed], list[str]], Placed]
_RULES: Final[dict[str, _Rule]] = {
    "mov": AddressDependence._moved,
    "cvt": AddressDependence._converted,
    "add": AddressDependence._added,
    "sub": AddressDependence._subtracted,
    "mad": AddressDependence._multiplied,
    "and": AddressDependence._masked,
    "or": AddressDependence._masked,
    "xor": AddressDependence._masked,
    "setp": AddressDependence._compared,
    "selp": AddressDependence._selected,
}


def _either(parts: Sequence[Placed]) -> Placed:
    """How one of several values depends on the addresses, if all are addresses of one space or all are
    numbers; otherwise `ANYHOW`.
    """
    spaces = {p.space for p in parts}
    if len(spaces) > 1:
        return ANYHOW
    names: frozenset[str] = frozenset().union(*(p.names for p in parts))
    return Placed(spaces.pop(), names, max(p.period for p in parts))


def _inputs(wanted: Node, parts: Callable[[Node], Sequence[Node]], known: Container[int] = ()) -> list[Node]:
    """A value and all values that it depends on, by their `parts`, without those in `known`; mostly
    parts come first.
    """
    seen, stack, order = {wanted.id}, [wanted], []
    while stack:
        node = stack.pop()
        order.append(node)
        for other in parts(node):
            if other.id not in seen and other.id not in known:
                seen.add(other.id)
                stack.append(other)
    return order[::-1]


def _mapped(node: Node, address: Placed, rank: Placed) -> Placed:
    """How the result of `mapa` depends on the addresses: it is the same offset in the shared memory of the
    CTA of a rank.
    """
    is_shared = ".shared" in node.data
    if not rank.is_fixed or address.space != (SHARED if is_shared else GENERIC):
        return ANYHOW
    return address._replace(space=CLUSTER) if is_shared else address


def ranks_of(values: Values, wanted: Node) -> list[Node]:
    """The ranks of the CTAs that `mapa` instructions mapped a value to on its way."""

    def parts(node: Node) -> Sequence[Node]:
        if node.kind in ("join", "header"):
            return [value for _, value in values.meeting(node)]
        return node.args

    return [node.args[1] for node in _inputs(wanted, parts) if node.kind == "mapped"]
