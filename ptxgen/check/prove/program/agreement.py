"""Whether the threads of a warp, or of a warpgroup, hold the same value.

Threads of a group that execute an instruction together agree on its result if they agree on all that it
depends on. A value that thread numbers alone decide is computed for every thread. A sum of such a value and
of multiples of a power of two, on which the threads agree, keeps what is below that power apart, so that
`(ctaid * 128 + tid) >> 5` is the same in a warp.

A weak load of one address gives all of them the same, unless it races with a write: races are not judged
here. Results of votes and reductions are the same in all lanes that they name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import numpy as np

from ptxgen.check.prove.program.domain import MOVES, Shape, bottom_up, computed, constant_register
from ptxgen.check.prove.program.operands import SHUFFLES, WORD, pairs
from ptxgen.check.prove.program.paths import Paths
from ptxgen.check.prove.program.values import CONVERTED, Node, Values
from ptxgen.check.verify.shapes import shape_of
from ptxgen.ir import Address, FloatImm, Instr, IntImm, Vector, registers_of
from ptxgen.isa.spec import Effect, Op

Lanes = np.ndarray[Any, np.dtype[Any]]

WARP: Final = WORD  # threads
_WHOLE: Final = 0xFFFFFFFF
_MOST_UNIT: Final = 1 << 20  # the largest power of two that is distinguished
_SPREADING: Final = ("vote.", "redux.", "match.all.")  # results that are the same in all lanes of a mask
_ORDERED: Final = frozenset({"volatile", "relaxed", "acquire", "mmio", "local"})


class Part(NamedTuple):
    """A value as a multiple of `unit`, on which threads agree if they do on `others`, plus `lanes`: one
    number for each thread of the block, not negative and less than `unit`.
    """

    unit: int
    lanes: Lanes
    others: tuple[Node, ...] = ()


class Agreement:
    """The values of one kernel on which the threads of each group of `width` threads agree; `warps` are
    those on which each warp agrees, None if the groups are warps.
    """

    def __init__(
        self, values: Values, paths: Paths, shape: Shape, width: int = WARP, warps: Agreement | None = None
    ) -> None:
        self._values = values
        self._paths = paths
        self._shape = shape
        self._width = width
        self._warps = warps
        self._lanes: dict[int, Lanes | None] = {}
        self._parts: dict[int, Part] = {}
        self._known: dict[int, bool] = {}
        self._together: dict[int, bool] = {}

    # ------------------------------------------------------------------------------ thread by thread

    def lanes(self, node: Node) -> Lanes | None:
        """The value in each thread of the block, if thread numbers alone decide it; else None."""
        return bottom_up(node, self._lanes, self._evaluated)

    def same(self, lanes: Lanes) -> bool:
        """Whether all threads of a group have equal elements of an array with one element for each thread."""
        first = lanes[np.arange(len(lanes)) // self._width * self._width]
        return bool((lanes == first).all())

    def come_together(self, block: int) -> bool:
        """Whether all lanes of each warp come to a block whenever one of them does."""
        if self._warps is not None:
            return self._warps.come_together(block)
        if block not in self._together:
            self._together[block] = False  # while the answer depends on itself
            guards = self._paths.guards_around(block)
            self._together[block] = all(g is not None and self.agrees(g) for g in guards)
        return self._together[block]

    def _evaluated(self, node: Node) -> Lanes | None:
        n = self._shape.threads
        if node.kind == "const":
            return constant_register(node.data, node.bits, n)
        if node.kind == "thread":
            return self._shape.column(node.data)
        args = [self._lanes[a.id] for a in node.args]
        known = [a for a in args if a is not None]
        if node.kind == "apply":
            whole = len(known) == len(args)
            lanes: Lanes | None = computed(node, known, n) if whole else self._low_bits(node)
            return lanes
        if not args or len(known) < len(args):
            return None
        if node.kind == "shuffle":
            return self._shuffled(node, known)
        return MOVES[node.kind](node, known) if node.kind in _MOVED else None

    def _shuffled(self, node: Node, args: list[Lanes]) -> Lanes | None:
        """The value of one lane in all lanes of its warp, if each warp has the lane, and all come."""
        value, lane = args
        source = np.arange(len(value)) // WARP * WARP + lane.astype(np.int64)
        if (source >= len(value)).any() or not self.come_together(node.block):
            return None
        lanes: Lanes = value[source]
        return lanes

    def _low_bits(self, node: Node) -> Lanes | None:
        """The low bits of a sum, if they are all below its unit and so those of thread numbers."""
        if not node.data.op.opcode.startswith("and.b") or node.bits < WORD:
            return None
        for value, mask in (node.args, node.args[::-1]):
            if mask.kind == "const" and not mask.data & (mask.data + 1):
                part = self._part(value)
                if mask.data < part.unit:
                    low: Lanes = (part.lanes & mask.data).astype(f"u{node.bits // 8}")
                    return low
        return None

    # ------------------------------------------------------------------------------ sums

    def _part(self, node: Node) -> Part:
        self.lanes(node)
        return bottom_up(node, self._parts, self._parted)

    def _parted(self, node: Node) -> Part:
        """A value as a multiple of a unit plus each thread's low bits; if no rule splits it, of unit 1."""
        alone = Part(1, np.zeros(self._shape.threads, np.int64), (node,))
        lanes = self.lanes(node)
        if lanes is not None:
            if node.bits not in (WORD, 2 * WORD):
                return alone
            low = (lanes & lanes.dtype.type(_MOST_UNIT - 1)).astype(np.int64)
            return Part(_MOST_UNIT, low) if self.same(lanes - low.astype(lanes.dtype)) else alone
        if node.kind != "apply" or node.data.result >= 0 or node.data.element >= 0:
            return alone
        words = node.data.op.opcode.split(".")
        rule = _RULES.get(words[0])
        if rule is None or not _is_of_whole_registers(node) or {"sat", "cc", "hi", "wide"} & set(words):
            return alone
        part = rule(self, node, [self._parts[a.id] for a in node.args])
        return alone if part is None else part

    def _added(self, node: Node, parts: list[Part]) -> Part | None:
        del node
        unit = min(part.unit for part in parts)
        low = [part.lanes % unit for part in parts]
        lanes = np.sum(low, axis=0)
        high = all(self.same(part.lanes - rest) for part, rest in zip(parts, low, strict=True))
        if not high or (lanes >= unit).any():
            return None
        return Part(unit, lanes, tuple(other for part in parts for other in part.others))

    def _subtracted(self, node: Node, parts: list[Part]) -> Part | None:
        return None if parts[1].lanes.any() else self._added(node, parts)

    def _product(self, node: Node, parts: list[Part]) -> Part | None:
        """A product by a literal, perhaps plus a number, as a multiple of a power of two."""
        a, b, *_ = node.args
        unit = max((n.data & -n.data for n in (a, b) if n.kind == "const"), default=1)
        product = Part(min(unit or _MOST_UNIT, _MOST_UNIT), np.zeros_like(parts[0].lanes), (a, b))
        return self._added(node, [product, *parts[2:]])

    def _shifted(self, node: Node, parts: list[Part]) -> Part | None:
        by, of = node.args[1], parts[0]
        if by.kind != "const" or not by.data < _MOST_UNIT.bit_length():
            return None
        step = 1 << by.data
        if node.data.op.opcode.startswith("shl"):
            unit = of.unit * step
            return Part(unit, of.lanes * step, of.others) if unit <= _MOST_UNIT else None
        # All that is left of a smaller unit is bits of the multiple.
        return Part(max(of.unit // step, 1), of.lanes // step, of.others)

    def _cleared(self, node: Node, parts: list[Part]) -> Part | None:
        """A value without the low bits that a mask clears; None if its multiple does not cover these bits."""
        for part, mask in zip(parts, node.args[::-1], strict=True):
            low = (1 << mask.bits) - mask.data if mask.kind == "const" else 0
            if low and not low & (low - 1) and low <= part.unit:
                return part._replace(lanes=part.lanes // low * low)
        return None

    def _copied(self, node: Node, parts: list[Part]) -> Part | None:
        words = len(node.data.op.opcode.split("."))
        return parts[0] if words <= _PLAIN_CVT and min(node.bits, node.args[0].bits) >= WORD else None

    # ------------------------------------------------------------------------------ agreement

    def agrees(self, wanted: Node) -> bool:
        """Whether the threads of each group that come to a point together hold the same value there."""
        if wanted.id not in self._known:
            seen, stack = {wanted.id}, [wanted]
            while stack:
                needed = self._needed(stack.pop())
                if needed is None:
                    self._known[wanted.id] = False
                    break
                fresh = {n.id: n for n in needed if n.id not in seen and not self._known.get(n.id)}
                seen.update(fresh)
                stack += fresh.values()
            else:  # each value rests on the others alone: they agree from the start
                self._known |= dict.fromkeys(seen, True)
        return self._known[wanted.id]

    def _needed(self, node: Node) -> Iterable[Node] | None:
        """The values on which threads must agree to agree on `node`; None if they may still differ on it."""
        if self._known.get(node.id) is False:
            return None
        lanes = self.lanes(node)
        if lanes is not None:
            return () if self.same(lanes) else None
        part = self._part(node)
        if part.others != (node,):
            return part.others if self.same(part.lanes) else None
        if node.kind == "opaque":
            return () if node.uniform else self._not_computed(node)
        if node.kind == "function" and node.data[0] == CONVERTED and ".local" in node.data[1]:
            return None  # an address in each thread's own memory
        if node.kind == "shuffle":
            return self._spread(node.block, ())
        counted = self._counted(node)
        return list(self._paths.inputs(node)) if counted is None else counted

    def _counted(self, node: Node) -> list[Node] | None:
        """The values on which threads must agree to be in the same iteration of a loop, if they then agree on
        `node`, the comparison that ends it: of a literal with a number that begins as thread numbers decide
        and grows by a literal. None for any other value.
        """
        if node.kind != "apply" or not node.data.op.opcode.startswith("setp.") or len(node.args) != _COMPARED:
            return None
        value, limit = node.args
        header, more = _plus(value)
        if header.kind != "header" or limit.kind != "const" or header.bits != WORD:
            return None
        graph, block = self._paths.graph, header.block
        begins, steps = list[Lanes | None](), set[int]()
        for before, met in self._values.meeting(header):
            if graph.dominates(block, before):
                again, step = _plus(met)
                steps.add(step if again is header else 0)
            else:
                begins.append(self.lanes(met))
        ends = node in self._paths.deciding(header)
        around = self._paths.guards_around(block)
        guards = [g for g in around if g is not None]
        if not ends or len(begins) != 1 or begins[0] is None or len(steps) != 1 or not min(steps):
            return None
        if len(guards) < len(around):
            return None
        (step,), first = steps, begins[0].astype(np.uint32) + np.uint32(more)
        bound = constant_register(limit.data, limit.bits, len(first))
        outcomes = (
            computed(node, [first + np.uint32(step * n & _WHOLE), bound], len(first))
            for n in range(_MOST_ITERATIONS)
        )
        at_first: Lanes | None = None
        for outcome in outcomes:
            if not self.same(outcome):
                return None
            at_first = outcome if at_first is None else at_first
            if (outcome != at_first).all():  # whichever of the two ends the loop, no iteration comes after it
                return [*guards, *self._paths.deciding(header)]
        return None

    def _not_computed(self, node: Node) -> Iterable[Node] | None:
        """The values on which threads must agree to agree on a result that is not computed; None if they may
        differ.
        """
        origin = self._values.origins.get(node.id)
        if origin is None:
            return None
        block, position, instr = origin
        shape = shape_of(instr)
        if shape.complaints or shape.op is None:
            return None
        op = shape.op
        read = {want.name: got for want, got in pairs(op, instr) if not want.written}
        if _is_whole(read.get("membermask")):
            if instr.opcode.startswith(_SPREADING):
                return self._spread(block, ())
            if op.modifiers.get("mode") == "idx" and op.row.name in SHUFFLES:
                return self._spread(block, self._operands((read["b"], read["c"]), block, position))
        if _is_weak_load(instr):
            address = read.get("addr")
            if not isinstance(address, Address):
                return None
            return (self._values.address(address, block, position)[0],)
        return self._operands(read.values(), block, position) if _is_pure(op) else None

    def _operands(self, operands: Iterable[Any], block: int, position: int) -> list[Node] | None:
        """The values of the registers that operands name; None if one is neither a register nor a literal."""
        nodes: list[Node] = []
        for got in operands:
            items = got.items if isinstance(got, Vector) else (got,)
            registers = registers_of(got)
            if not registers and not all(isinstance(item, (IntImm, FloatImm)) for item in items):
                return None
            if len(registers) < sum(not isinstance(item, (IntImm, FloatImm)) for item in items):
                return None
            nodes += [self._values.at(register, block, position) for register in registers]
        return nodes

    def _spread(self, block: int, more: list[Node] | tuple[()] | None) -> Iterable[Node] | None:
        """The values on which the lanes of a warp must agree to execute an instruction of a block together,
        and `more`; None if these are not known.
        """
        guards = self._paths.guards_around(block)
        known = [g for g in guards if g is not None]
        if more is None or self._width != WARP or len(known) < len(guards):
            return None
        return [*known, *more]


_ADDITIONS: Final = ("add.u32", "add.s32")
_COMPARED: Final = 2  # operands of a comparison
_MOST_ITERATIONS: Final = 1024  # most iterations of a counted loop
_MOVED: Final = frozenset({"extended", "choose", "offset"})
_PLAIN_CVT: Final = 3  # words of an opcode without modifiers

_Rule = Callable[[Agreement, Node, list[Part]], Part | None]
_RULES: Final[dict[str, _Rule]] = {
    "add": Agreement._added,
    "sub": Agreement._subtracted,
    "mad": Agreement._product,
    "mul": Agreement._product,
    "shl": Agreement._shifted,
    "shr": Agreement._shifted,
    "and": Agreement._cleared,
    "cvt": Agreement._copied,
    "mov": Agreement._copied,
}


def _is_of_whole_registers(node: Node) -> bool:
    """Whether the operands and the result of an instruction are integers as wide as their registers."""
    slots = node.data.slots
    return (
        len(slots) == len(node.args)
        and node.data.type.is_integer
        and node.data.type.bits == node.bits
        and all(
            type is not None and type.is_integer and type.bits == arg.bits
            for (_, _, type), arg in zip(slots, node.args, strict=True)
        )
    )


def _plus(node: Node) -> tuple[Node, int]:
    """A value split into another value and a literal added to it; itself and 0 if it is no such sum."""
    if node.kind == "apply" and node.data.op.opcode in _ADDITIONS and _is_of_whole_registers(node):
        for value, more in (node.args, node.args[::-1]):
            if more.kind == "const":
                return value, more.data
    return node, 0


def _is_weak_load(instr: Instr) -> bool:
    words = instr.opcode.split(".")
    return words[0] in ("ld", "ldu") and not _ORDERED & set(words)


def _is_pure(op: Op) -> bool:
    return op.effect is Effect.NONE and "machine" not in op.row.parameters


def _is_whole(mask: object) -> bool:
    return isinstance(mask, IntImm) and mask.value & _WHOLE == _WHOLE
