"""What is known of values without running anything: bounds, and what they have to be listed by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from ptxgen.check.proof_ranges import RULES, Range, result, signed, single, union, unsigned, whole
from ptxgen.check.proof_values import Applied, Node
from ptxgen.types import ScalarType

Lanes = np.ndarray[Any, np.dtype[Any]]

MOST_VALUES: Final = 4096  # of a range that are tried one by one


class Shape(NamedTuple):
    """The threads of a block along x, y and z."""

    x: int
    y: int
    z: int

    @property
    def threads(self) -> int:
        """All of them."""
        return self.x * self.y * self.z

    def column(self, name: str) -> Lanes:
        """A special register of all threads, uint32."""
        number = np.arange(self.threads)
        found = {
            "%tid.x": number % self.x,
            "%tid.y": number // self.x % self.y,
            "%tid.z": number // (self.x * self.y),
            "%laneid": number % 32,
        }[name]
        return found.astype(np.uint32)


class Domain:
    """What values can be, as far as it is known at one place.

    `parameters` bounds parameters, `refined` other values by their number. Those in `failed` are
    values of loops of which no end was found. A value is listed by its `leaves`: thread numbers,
    values that meet, and what lies between close bounds; None if it cannot be listed.
    """

    def __init__(
        self, shape: Shape, parameters: Mapping[str, Range], failed: Iterable[int] = (),
        refined: Mapping[int, Range] | None = None,
    ) -> None:  # fmt: skip
        self.shape = shape
        self.parameters = parameters
        self.failed = frozenset(failed)
        self.refined = dict(refined or {})
        self._leaves: dict[int, frozenset[Node] | None] = {}
        self._ranges: dict[int, Range] = {}

    def leaves(self, node: Node) -> frozenset[Node] | None:
        """What a value is listed by."""
        return _bottom_up(node, self._leaves, self._found)

    def _found(self, node: Node) -> frozenset[Node] | None:
        if node.kind in ("const", "symbol"):
            return _NONE
        if node.kind == "thread" or (
            node.kind in ("join", "header") and node.id not in self.failed
        ):
            return frozenset((node,))
        if node.kind in ("apply", "choose", "offset", "shuffle"):
            parts = [self._leaves[a.id] for a in node.args]
            if all(p is not None for p in parts):
                union_of = _NONE.union(*(p for p in parts if p is not None))
                alone = node.kind != "shuffle" or all(n.kind == "thread" for n in union_of)
                if alone:
                    return union_of
        return frozenset((node,)) if self.range(node).size <= MOST_VALUES else None

    def range(self, node: Node) -> Range:
        """Between what bounds a value is."""
        return _bottom_up(node, self._ranges, self._bounded)

    def _bounded(self, node: Node) -> Range:
        found = whole(node.bits)
        if node.kind == "const":
            found = single(node.data)
        elif node.kind == "thread":
            sizes = {"%laneid": 32, **dict(zip(("%tid.x", "%tid.y", "%tid.z"), self.shape,
                                               strict=True))}  # fmt: skip
            found = Range(0, sizes[node.data] - 1, 1 if sizes[node.data] > 1 else 0)
        elif node.kind == "param":
            name, offset = node.data
            found = found if offset else self.parameters.get(name, found)
        elif node.kind == "choose":
            a, b = (self._ranges[n.id] for n in node.args[1:])
            found = union(unsigned(a, node.bits), unsigned(b, node.bits))
        elif node.kind == "apply":
            found = self._applied(node)
        narrower = self.refined.get(node.id)
        if narrower is not None and narrower.size < found.size:
            found = narrower
        return found

    def _applied(self, node: Node) -> Range:
        data: Applied = node.data
        kinds = []
        for _, place, type in data.slots:
            if type is None or isinstance(place, tuple):
                return whole(node.bits)
            kinds.append((type.bits, type.is_signed))
        head = data.op.opcode.partition(".")[0]
        plain = data.result < 0 and data.element < 0 and head in (*RULES, "bfe")
        if not plain or ".relu" in data.op.opcode or data.type.kind == "p":
            return whole(node.bits)
        found = result(
            data.op.opcode, [self._ranges[a.id] for a in node.args], kinds, data.type.bits,
            data.type.is_signed,
        )  # fmt: skip
        fitting = signed if data.type.is_signed else unsigned
        return fitting(found, data.type.bits)


_NONE: Final[frozenset[Node]] = frozenset()


def listed(r: Range, bits: int) -> Lanes:
    """Every value of a range as a register holds it."""
    values = [(r.first + n * r.step) & ((1 << bits) - 1) for n in range(r.size)]
    return np.array(values, register_dtype(bits))


def register_dtype(bits: int) -> np.dtype[Any]:
    """What holds registers of so many bits here."""
    return np.dtype(np.bool_) if bits == 1 else np.dtype(f"u{bits // 8}")


def computed(node: Node, args: list[Lanes], n: int) -> Lanes:
    """What an instruction gives for `n` rows of arguments, by its own meaning."""
    data: Applied = node.data
    takes = data.op.row.parameters
    given: dict[str, Any] = {k: v for k, v in data.op.modifiers.items() if k in takes}
    for name, place, type in data.slots:
        if type is None:
            given[name] = -1 - place
        elif isinstance(place, tuple):
            given[name] = tuple(_as_type(args[p], type) for p in place)
        else:
            of = node.args[place]
            value = _as_type(args[place], type)
            given[name] = value[0] if of.kind == "const" else value
    with np.errstate(all="ignore"):
        found = data.op.row.semantics(**given)
    if data.result >= 0:
        found = found[data.result]
    if data.element >= 0:
        found = found[data.element]
    return _in_register(np.broadcast_to(found, n), data.type, node.bits)


def _as_type(lanes: Lanes, type: ScalarType) -> Lanes:
    """The low bits of a register as a type."""
    if type.kind == "p":
        return lanes
    return lanes.astype(f"u{type.nbytes}").view(type.dtype)


def _in_register(lanes: Lanes, type: ScalarType, bits: int) -> Lanes:
    """A result in a register, extended by the sign if the type has one."""
    if bits == 1:
        return np.ascontiguousarray(lanes, np.bool_)
    if type.is_signed:
        return lanes.astype(f"i{bits // 8}").view(register_dtype(bits))
    return np.ascontiguousarray(lanes).view(f"u{type.nbytes}").astype(register_dtype(bits))


_Found = TypeVar("_Found")


def _bottom_up(node: Node, known: dict[int, _Found], find: Callable[[Node], _Found]) -> _Found:
    """What `find` says of a node, and of all it is made from before; `known` keeps it by number."""
    stack = [node]
    while stack:
        top = stack[-1]
        missing = [a for a in top.args if a.id not in known] if top.id not in known else []
        if missing:
            stack += missing
            continue
        if top.id not in known:
            known[top.id] = find(top)
        stack.pop()
    return known[node.id]
