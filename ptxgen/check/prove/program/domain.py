"""The values that registers may have, known without a run: their bounds, and the leaves that they
are listed by.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from ptxgen.check.prove.program.operands import WORD as WARP
from ptxgen.check.prove.program.ranges import Range, result, rule_of, signed, single, union, unsigned, whole
from ptxgen.check.prove.program.values import Applied, Node
from ptxgen.types import ScalarType

Lanes = np.ndarray[Any, np.dtype[Any]]

WINDOW: Final = 1 << 40  # the generic address where the window of shared memory is assumed to begin
MOST_VALUES: Final = 4096  # values of a range that are listed one by one


class Shape(NamedTuple):
    """The threads of a block along x, y and z."""

    x: int
    y: int
    z: int

    @property
    def threads(self) -> int:
        """The number of threads of the block."""
        return self.x * self.y * self.z

    def column(self, name: str) -> Lanes:
        """The values of a special register in all threads, uint32."""
        number = np.arange(self.threads)
        column = {
            "%tid.x": number % self.x,
            "%tid.y": number // self.x % self.y,
            "%tid.z": number // (self.x * self.y),
            "%laneid": number % 32,
        }[name]
        return column.astype(np.uint32)


class Domain:
    """The values that registers may have at one point of the kernel.

    `parameters` bounds parameters, `refined` other values by their number. The values in `failed`
    are carried by loops of which no end was found. `takes_part` says whether all lanes of a warp
    execute a shuffle together. A value is listed by its `leaves`: thread indices, values that merge
    at joins and loop headers, and values with close bounds; the leaves are None if the value cannot
    be listed.
    """

    def __init__(
        self,
        shape: Shape,
        parameters: Mapping[str, Range],
        failed: Iterable[int] = (),
        refined: Mapping[int, Range] | None = None,
        takes_part: Callable[[Node], bool] = lambda _: True,
    ) -> None:
        self.shape = shape
        self.parameters = parameters
        self.failed = frozenset(failed)
        self.refined = dict(refined or {})
        self._takes_part = takes_part
        self._leaves: dict[int, frozenset[Node] | None] = {}
        self._ranges: dict[int, Range] = {}
        self._by_thread: dict[int, bool] = {}

    def is_by_thread(self, node: Node) -> bool:
        """Whether a value is listed by thread indices alone."""
        known = self._by_thread.get(node.id)
        if known is None:
            leaves = self.leaves(node)
            known = bool(leaves) and all(leaf.kind == "thread" for leaf in leaves or ())
            self._by_thread[node.id] = known
        return known

    def leaves(self, node: Node) -> frozenset[Node] | None:
        """The leaves that a value is listed by; None if it cannot be listed."""
        return bottom_up(node, self._leaves, self._leaves_of)

    def _leaves_of(self, node: Node) -> frozenset[Node] | None:
        if node.kind in ("const", "symbol"):
            return _NONE
        if node.kind == "thread" or (node.kind in ("join", "header") and node.id not in self.failed):
            return frozenset((node,))
        if node.kind in _COMPUTED:
            parts = [self._leaves[a.id] for a in node.args]
            if all(p is not None for p in parts):
                union_of = _NONE.union(*(p for p in parts if p is not None))
                if node.kind != "shuffle" or self._exchanged(node, union_of):
                    return union_of
        return frozenset((node,)) if self.range(node).size <= MOST_VALUES else None

    def _exchanged(self, node: Node, leaves: frozenset[Node]) -> bool:
        """Whether the result of a shuffle is known: its leaves are thread indices, and every warp
        has the lane that is read.
        """
        lane = node.args[1]
        last = (self.shape.threads - 1) % WARP + 1  # lanes of the last warp
        there = lane.kind == "const" and lane.data < last
        return there and all(n.kind == "thread" for n in leaves) and self._takes_part(node)

    def range(self, node: Node) -> Range:
        """The range of a value in a register: its lowest and highest value, and their step."""
        return bottom_up(node, self._ranges, self._bounded)

    def _bounded(self, node: Node) -> Range:
        bounds = whole(node.bits)
        if node.kind == "const":
            bounds = single(node.data)
        elif node.kind == "thread":
            sizes = {"%laneid": 32, **dict(zip(("%tid.x", "%tid.y", "%tid.z"), self.shape, strict=True))}
            bounds = Range(0, sizes[node.data] - 1, 1 if sizes[node.data] > 1 else 0)
        elif node.kind == "param":
            name, _, whole_of_it = node.data
            bounds = self.parameters.get(name, bounds) if whole_of_it else bounds
        elif node.kind == "extended":
            (of,) = node.args
            fitting = signed if node.data else unsigned
            bounds = fitting(self._ranges[of.id], of.bits)
        elif node.kind == "choose":
            a, b = (self._ranges[n.id] for n in node.args[1:])
            bounds = union(unsigned(a, node.bits), unsigned(b, node.bits))
        elif node.kind == "apply":
            bounds = self._applied(node)
        narrower = self.refined.get(node.id)
        if narrower is not None and narrower.size < bounds.size:
            bounds = narrower
        return bounds

    def _applied(self, node: Node) -> Range:
        data: Applied = node.data
        kinds = []
        for _, where, type in data.slots:
            if type is None or isinstance(where, tuple):
                return whole(node.bits)
            kinds.append((type.bits, type.is_signed))
        rule = rule_of(data.op.opcode)
        if rule is None or data.result >= 0 or data.element >= 0 or data.type.kind == "p":
            return whole(node.bits)
        ranges = [self._ranges[a.id] for a in node.args]
        return result(rule, ranges, kinds, data.type.bits, data.type.is_signed)


_NONE: Final[frozenset[Node]] = frozenset()
# Kinds of values that are computed from their arguments by known rules.
_COMPUTED: Final = frozenset(
    {"apply", "choose", "offset", "extended", "shuffle", "window", "unwindowed", "mapped"}
)


def listed(r: Range, bits: int) -> Lanes:
    """Every value of a range, with the bits of a register."""
    values = [(r.first + n * r.step) & ((1 << bits) - 1) for n in range(r.size)]
    return np.array(values, register_dtype(bits))


def register_dtype(bits: int) -> np.dtype[Any]:
    """The numpy type for registers of `bits` bits."""
    return _REGISTERS[bits]


_REGISTERS: Final = {1: np.dtype(np.bool_), **{bits: np.dtype(f"u{bits // 8}") for bits in (8, 16, 32, 64)}}


def extended(node: Node, lanes: Lanes) -> Lanes:
    """The value of an `extended` node, from the value of its argument."""
    bits = node.args[0].bits
    integers = lanes.view(f"i{bits // 8}") if node.data else lanes
    return integers.astype(f"i{node.bits // 8}").view(register_dtype(node.bits))


def _offset(node: Node, args: list[Lanes]) -> Lanes:
    dtype = register_dtype(node.bits)
    moved: Lanes = args[0].astype(dtype) + dtype.type(node.data & ((1 << node.bits) - 1))
    return moved


def _window(by: int) -> Callable[[Node, list[Lanes]], Lanes]:
    return lambda _, args: args[0].astype(np.uint64) + np.uint64(by % (1 << 64))


# For each kind of node that is not an instruction: how its value is computed.
MOVES: Final[dict[str, Callable[[Node, list[Lanes]], Lanes]]] = {
    "offset": _offset,
    "window": _window(WINDOW),
    "unwindowed": _window(-WINDOW),
    "mapped": lambda node, args: args[0].astype(register_dtype(node.bits)),
    "extended": lambda node, args: extended(node, args[0]),
    "choose": lambda _, args: np.where(*args),
}


class _Call(NamedTuple):
    """How the result of an instruction is computed: its `semantics` with the arguments that are the same
    each time, and the operands of the others by name: indices of a node's arguments, and their types.
    """

    semantics: Callable[..., Any]
    fixed: dict[str, Any]
    varying: tuple[tuple[str, Any, ScalarType], ...]


def computed(node: Node, args: list[Lanes], n: int) -> Lanes:
    """The result of an instruction for `n` rows of arguments, by the instruction's semantics."""
    if node.call is None:
        node.call = _call_of(node)
    semantics, fixed, varying = node.call
    arguments = fixed.copy()
    for name, where, type in varying:
        if where.__class__ is tuple:
            arguments[name] = tuple([_as_type(args[p], type) for p in where])
        else:
            arguments[name] = _as_type(args[where], type)
    with np.errstate(all="ignore"):
        result = semantics(**arguments)
    data: Applied = node.data
    if data.result >= 0:
        result = result[data.result]
    if data.element >= 0:
        result = result[data.element]
    if result.__class__ is not np.ndarray or result.shape != (n,):
        result = np.broadcast_to(result, n)
    return _in_register(result, data.type, node.bits)


def _call_of(node: Node) -> _Call:
    data: Applied = node.data
    takes = data.op.row.parameters
    fixed: dict[str, Any] = {k: v for k, v in data.op.modifiers.items() if k in takes}
    varying = []
    for name, where, type in data.slots:
        if type is None:
            fixed[name] = -1 - where
        elif not isinstance(where, tuple) and (of := node.args[where]).kind == "const":
            fixed[name] = _as_type(constant_register(of.data, of.bits, 1), type)[0]
        else:
            varying.append((name, where, type))
    return _Call(data.op.row.semantics, fixed, tuple(varying))


@functools.cache
def _bits_of(type: ScalarType) -> np.dtype[Any]:
    """The unsigned numpy type as wide as a PTX type."""
    return np.dtype(f"u{type.nbytes}")


def _as_type(lanes: Lanes, type: ScalarType) -> Lanes:
    """The low bits of registers, reinterpreted as numbers of a PTX type."""
    if type.kind == "p":
        return lanes
    return lanes.astype(_bits_of(type), copy=False).view(type.dtype)


def _in_register(lanes: Lanes, type: ScalarType, bits: int) -> Lanes:
    """A result as its register holds it, sign-extended if its type is signed."""
    if bits == 1:
        return np.ascontiguousarray(lanes, np.bool_)
    if type.is_signed:
        return lanes.astype(f"i{bits // 8}").view(register_dtype(bits))
    return np.ascontiguousarray(lanes).view(_bits_of(type)).astype(register_dtype(bits), copy=False)


_Result = TypeVar("_Result")


def bottom_up(node: Node, known: dict[int, _Result], find: Callable[[Node], _Result]) -> _Result:
    """The result of `find` for a node, called after the results for all its arguments; `known` keeps results
    by the node's number.
    """
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


def constant_register(constant: Any, bits: int, n: int) -> Lanes:
    """The array of a constant as the registers of `n` threads hold it."""
    if bits == 1:
        return np.broadcast_to(np.asarray(constant) != 0, n)
    if isinstance(constant, int):
        return np.full(n, constant & ((1 << bits) - 1), register_dtype(bits))
    return np.broadcast_to(constant.astype(register_dtype(bits)), n)


def numbers_of(register: Lanes, bits: int, is_signed: bool) -> Lanes:
    """The integers that registers of `bits` bits hold, as s64."""
    return register.view(f"i{bits // 8}" if is_signed else register.dtype).astype(np.int64)
