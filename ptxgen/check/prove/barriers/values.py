"""The value of each register in one warp, when a run of it is followed."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final

import numpy as np

from ptxgen.check.prove.barriers.sites import WARP
from ptxgen.check.prove.barriers.terms import Term, Terms
from ptxgen.check.prove.program.domain import MOVES, Shape, bottom_up, computed, constant_register
from ptxgen.check.prove.program.values import ADDRESS_OF, Node

Lanes = np.ndarray[Any, np.dtype[Any]]
# The values of the 32 lanes, a term that is the same in all of them, or None for any values.
Value = Lanes | Term | None

# The name of a variable in shared memory, and the offset of a byte in it.
SharedAddress = tuple[str, int]

_READ: Final = "a value from memory"  # describes a uniform opaque value: constant memory
# Kinds of values that depend on where memory lies or on what it holds.
_PLACED: Final = ("function", "window", "unwindowed", "mapped")
# Instructions that make an address of another one and of numbers.
_SCALED: Final = ("mad.lo.u32", "mad.lo.s32")
_ADDING: Final = ("mov.b32", "mov.u32", "mov.s32", "add.u32", "add.s32", *_SCALED)
# Predicates that one operand decides: the operand's value, which is then the result's.
_DECIDING: Final = {"and.pred": False, "or.pred": True}


class WarpValues:
    """The values of one warp of 32 threads at one point of its run; `go_to` goes on to another point.
    `leaves` gives the merging values that a value is computed from.
    """

    def __init__(
        self, shape: Shape, warp: int, terms: Terms, leaves: Callable[[Node], frozenset[Node]]
    ) -> None:
        self._shape = shape
        self._warp = warp
        self._terms = terms
        self._leaves = leaves
        self._merged: dict[int, Value] = {}
        self._values: dict[int, Value] = {}
        self._passing: list[int] = []  # the numbers of values found for this point only
        self._cached: dict[tuple[Hashable, ...], Value] = {}  # by node and the values of its leaves

    def go_to(self, merged: Mapping[int, Value]) -> None:
        """Go to a point of the warp's run. `merged` has the values that merge at joins and loop headers or
        were read, by the number of their node; a value without an entry may be anything.
        """
        self._merged = dict(merged)
        for number in self._passing:
            del self._values[number]
        self._passing.clear()

    def of(self, node: Node) -> Value:
        """The value that a node of the value graph has in this warp at the present point of its run."""
        leaves = self._leaves(node)
        if not leaves:
            return bottom_up(node, self._values, self._value)
        held = (self._merged.get(leaf.id) for leaf in leaves)
        key = node.id, *(value.tobytes() if isinstance(value, np.ndarray) else value for value in held)
        if key not in self._cached:
            self._cached[key] = bottom_up(node, self._values, self._value)
        return self._cached[key]

    def shared_address(self, node: Node, offset: int) -> SharedAddress | None:
        """The byte of shared memory at an address plus `offset` at this point; None if it is not known."""
        while node.kind != "symbol":
            name = node.data.op.opcode if node.kind == "apply" else ""
            moved = [n for n in node.args if not _has_symbol(n)]
            base = [n for n in node.args if _has_symbol(n)]
            if node.kind == "offset":
                offset += node.data
            elif name in _ADDING and len(base) == 1:
                numbers = [operand(self.of(n)) for n in moved]
                known = [n for n in numbers if isinstance(n, int)]
                if len(known) < len(numbers) or (name in _SCALED and base[0] is not node.args[-1]):
                    return None
                offset += math.prod(known) if name in _SCALED else sum(known)
            else:
                return None
            node = base[0]
        return node.data, offset % (1 << node.bits)

    def _value(self, node: Node) -> Value:
        leaves = self._leaves(node)
        if leaves:
            self._passing.append(node.id)
        if node in leaves:
            return self._merged.get(node.id)
        if node.kind == "const":
            return constant_register(node.data, node.bits, WARP)
        if node.kind == "thread":
            return self._shape.column(node.data)[self._warp * WARP :][:WARP]
        if not node.args:
            is_constant = node.kind != "opaque" or _is_constant(node)
            return self._terms.of(node.kind, node.bits, node.data) if is_constant else None
        return self._computed(node, [self._values[a.id] for a in node.args])

    def _computed(self, node: Node, args: list[Value]) -> Value:
        """The result in this warp of an operation on its arguments: lanes' numbers or a term."""
        if node.kind == "choose":
            return self._chosen(node, args)
        if node.kind == "shuffle":
            return _broadcast(*args)
        if node.kind == "apply" and node.data.op.opcode in _DECIDING:
            decided = _DECIDING[node.data.op.opcode]
            for arg in args:
                if isinstance(arg, np.ndarray) and (arg == decided).all():
                    return arg
        known = [arg for arg in args if isinstance(arg, np.ndarray)]
        if node.kind in _PLACED or len(known) < len(args):
            return self._term(node, args)
        return computed(node, known, WARP) if node.kind == "apply" else MOVES[node.kind](node, known)

    def _chosen(self, node: Node, args: list[Value]) -> Value:
        guard, yes, no = args
        if isinstance(guard, np.ndarray):
            if guard.all():
                return yes
            if not guard.any():
                return no
            if isinstance(yes, np.ndarray) and isinstance(no, np.ndarray):
                return np.where(guard, yes, no)
            return None
        return self._term(node, args)

    def _term(self, node: Node, args: list[Value]) -> Term | None:
        """The term of a node, if its arguments are the same in all lanes."""
        parts = [operand(arg) for arg in args]
        if any(part is None for part in parts):
            return None
        return self._terms.of(node.kind, node.bits, _meaning(node), *parts)


def operand(value: Value) -> Term | int | None:
    """The value of an operand if it is the same in all lanes, as a term or a number; else None."""
    if isinstance(value, np.ndarray):
        return int(value[0]) if (value == value[0]).all() else None
    return value


def _has_symbol(node: Node) -> bool:
    """Whether a value is computed from the address of a variable, and from no value that merges."""
    stack = [node]
    while stack:
        node = stack.pop()
        if node.kind == "symbol":
            return True
        stack += node.args
    return False


def _broadcast(source: Value, lane: Value) -> Value:
    """The value that every lane of a warp reads from one lane."""
    if isinstance(source, Term):
        return source
    if not isinstance(source, np.ndarray) or not isinstance(lane, np.ndarray):
        return None
    number = int(lane[0])
    return np.full_like(source, source[number])


def _is_constant(node: Node) -> bool:
    """Whether an opaque value is one number in all threads and at all times."""
    if not node.uniform:
        return False
    what = node.data if isinstance(node.data, str) else node.data[0]
    return isinstance(node.data, str) or what == _READ or what.startswith(ADDRESS_OF)


def _meaning(node: Node) -> Hashable:
    """A key of what an operation does with its arguments, equal for nodes that do the same."""
    if node.kind != "apply":
        return node.data if isinstance(node.data, Hashable) else repr(node.data)
    data = node.data
    return data.op.opcode, data.slots, data.result, data.element, data.type.name
