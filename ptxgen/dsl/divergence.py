"""Finds conditions that differ among the lanes of a warp, as far as the instructions of a kernel show.

A condition splits a warp if, in some launch, it differs between lanes of a warp because it compares a number
of the thread. Conditions on memory or on variables are not judged: a kernel without divergence is never taken
for one with divergence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from ptxgen import ir
from ptxgen.dsl.grid import Extents
from ptxgen.errors import PtxGenError
from ptxgen.isa.spec import Effect, Op
from ptxgen.isa.table import op_of
from ptxgen.target import WARP_SIZE
from ptxgen.types import ScalarType, pred

Lanes = np.ndarray[Any, np.dtype[Any]]

_DEEPEST: Final = 60  # operations in a row that are followed
_MOST_WORDS: Final = 3  # of an opcode without modifiers: name, comparison or mode, type
_AXES: Final = ("%tid.x", "%tid.y", "%tid.z")
_UNIFORM: Final = ("%ctaid", "%nctaid", "%ntid", "%clusterid", "%nclusterid", "%cluster_")


class Sum(NamedTuple):
    """The value of a register in each thread of a CTA: `lanes`, int64, plus a number that is the same in all
    threads, depends on the parameters and registers `names`, and may be any multiple of `unit`. `unit` is 0
    if nothing is added to `lanes`.
    """

    unit: int
    lanes: Lanes
    names: frozenset[str] = frozenset()


class Truth(NamedTuple):
    """What is known of a predicate register. `lanes` is its value in each thread of a CTA, bool, or None if
    other things than the thread number decide it; `splits` is whether it may differ within a warp.
    """

    lanes: Lanes | None
    splits: bool


Known = Sum | Truth | None


class Divergence:
    """Known values of the registers of a kernel in CTAs of `block_shape` threads along x, y and z; its
    `statements` may still grow.
    """

    def __init__(self, statements: Sequence[ir.Statement], block_shape: Extents) -> None:
        self._statements = statements
        self._block_shape = block_shape
        self._threads = math.prod(block_shape)
        self._read = 0  # the number of statements in `_writes`
        self._writes: dict[
            str, ir.Instr | None
        ] = {}  # None: more than one instruction, or not in all threads
        self._known: dict[str, Known] = {}
        self._loops: dict[tuple[ir.Reg | int, ir.Reg | int, int, ScalarType], bool] = {}

    def vary(self, variable: ir.Reg) -> None:
        """Note that a register is a variable, which may be written again."""
        self._writes[variable.name] = None

    def splits(self, condition: ir.Reg) -> bool:
        """Whether a predicate differs between lanes of a warp in some launch."""
        self._index()
        known = self._register(condition, _DEEPEST)
        return isinstance(known, Truth) and known.splits

    def splits_loop(self, start: ir.Reg | int, stop: ir.Reg | int, step: int, type: ScalarType) -> bool:
        """Whether lanes of a warp have different numbers of iterations from `start` to below `stop`, in some
        launch.
        """
        self._index()
        key = (start, stop, step, type)
        splits = self._loops.get(key)
        if splits is None:
            splits = self._loops[key] = self._splits_loop(*key)
        return splits

    def _splits_loop(self, start: ir.Reg | int, stop: ir.Reg | int, step: int, type: ScalarType) -> bool:
        first, last = (self._bound(end, type) for end in (start, stop))
        if first is None or last is None or first.names & last.names:
            return False
        unit, lanes = math.gcd(first.unit, last.unit), first.lanes - last.lanes
        if unit:
            return self._differ("lt", math.gcd(unit, step), lanes)
        return not self._agree(np.maximum(-(lanes // step), 0))

    def _bound(self, end: ir.Reg | int, type: ScalarType) -> Sum | None:
        if isinstance(end, int):
            return self._literal(end, type)
        bound = self._register(end, _DEEPEST)
        return bound if isinstance(bound, Sum) else None

    def _index(self) -> None:
        """Note the registers that statements write which were added since the last call."""
        writes, known = self._writes, self._known
        for statement in self._statements[self._read :]:
            if statement.__class__ is not ir.Instr or not statement.operands:
                continue
            first = statement.operands[0]
            for register in (first,) if first.__class__ is ir.Reg else _first(first):
                name = register.name
                writes[name] = statement if statement.guard is None and name not in writes else None
                if name in known:
                    del known[name]
                    self._loops.clear()
        self._read = len(self._statements)

    # ------------------------------------------------------------------------------ registers

    def _register(self, register: ir.Reg, deep: int) -> Known:
        name = register.name
        if name not in self._known:
            instr = self._writes.get(name)
            is_alone = instr is not None and deep > 0 and instr.operands[0] == register
            self._known[name] = self._result(instr, deep - 1) if instr is not None and is_alone else None
        return self._known[name]

    def _result(self, instr: ir.Instr, deep: int) -> Known:
        words = instr.opcode.split(".")
        if words[0] == "ld" and "param" in words:
            return self._uniform(str(instr.operands[-1]))
        try:
            op = op_of(instr)
        except PtxGenError:
            return None
        if op.effect is not Effect.NONE or "machine" in op.row.parameters or len(op.dests) != 1:
            return None
        written, *wanted = op.operands
        if (
            len(wanted) != len(instr.operands) - 1
            or written.type is None
            or any(o.type is None for o in wanted)
        ):
            return None
        args = [self._operand(got, o.type, deep) for got, o in zip(instr.operands[1:], wanted, strict=True)]
        if any(arg is None for arg in args):
            return None
        exact = [arg.lanes for arg in args if arg is not None and (isinstance(arg, Truth) or not arg.unit)]
        if len(exact) == len(args) and not any(lanes is None for lanes in exact):
            return self._exact(op, exact, written.type)
        if len(words) > _MOST_WORDS or any(o.type and o.type.is_float for o in wanted):
            return None
        rule = _RULES.get(words[0])
        return rule(self, words, args) if rule is not None else None

    def _operand(self, got: ir.Operand, type: ScalarType | None, deep: int) -> Known:
        if isinstance(got, ir.Reg):
            return self._register(got, deep)
        if isinstance(got, ir.IntImm) and type is not None:
            return self._literal(got.value, type)
        if isinstance(got, ir.Special):
            if got.name in _AXES:
                inner = math.prod(self._block_shape[: _AXES.index(got.name)])
                extent = self._block_shape[_AXES.index(got.name)]
                return Sum(0, np.arange(self._threads) // inner % extent)
            if got.name == "%laneid":
                return Sum(0, np.arange(self._threads) % WARP_SIZE)
            return self._uniform(got.name) if got.name.startswith(_UNIFORM) else None
        return None

    def _uniform(self, name: str) -> Sum:
        return Sum(1, np.zeros(self._threads, np.int64), frozenset((name,)))

    def _literal(self, value: int, type: ScalarType) -> Sum:
        bits = value & ((1 << type.bits) - 1)
        signed = bits - (1 << type.bits) if bits >> (type.bits - 1) else bits
        return Sum(0, np.full(self._threads, signed, np.int64))

    def _exact(self, op: Op, args: list[Any], type: ScalarType) -> Known:
        """The result of an instruction whose operands are decided by thread numbers, by its semantics."""
        arguments: dict[str, Any] = {k: v for k, v in op.modifiers.items() if k in op.row.parameters}
        for operand, lanes in zip(op.operands[1:], args, strict=True):
            want = operand.type
            if want is None or want.is_float or type.is_float:
                return None
            arguments[operand.name] = (
                lanes if want is pred else lanes.astype(f"u{want.nbytes}").view(want.dtype)
            )
        with np.errstate(all="ignore"):
            result = np.broadcast_to(op.row.semantics(**arguments), self._threads)
        if type is pred:
            return self._truth(result.astype(np.bool_))
        signed = np.ascontiguousarray(result).view(f"i{type.nbytes}").astype(np.int64)
        return Sum(0, signed)

    # ------------------------------------------------------------------------------ rules

    def _added(self, words: list[str], args: list[Any]) -> Known:
        a, b = args
        lanes = a.lanes - b.lanes if words[0] == "sub" else a.lanes + b.lanes
        return Sum(math.gcd(a.unit, b.unit), lanes, a.names | b.names)

    def _product(self, words: list[str], args: list[Any]) -> Known:
        """A product of two numbers that are the same in all threads, or by a literal, plus a third operand if
        any.
        """
        a, b, *added = args
        if words[1] not in ("lo", "wide"):
            return None
        factor, of = (a, b) if not a.unit else (b, a)
        if not factor.unit and _is_one(factor.lanes):
            by = int(factor.lanes[0])
            product = Sum(of.unit * abs(by), of.lanes * by, of.names)
        elif _is_one(a.lanes) and _is_one(b.lanes):
            zero = not a.lanes.any() and not b.lanes.any()
            product = Sum(a.unit * b.unit if zero else 1, a.lanes * 0, a.names | b.names)
        else:
            return None
        return self._added(["add"], [product, *added]) if added else product

    def _shifted(self, words: list[str], args: list[Any]) -> Known:
        of, by = args
        if by.unit or not _is_one(by.lanes) or not 0 <= by.lanes[0] < _MOST_SHIFT:
            return None
        step = 1 << int(by.lanes[0])
        if words[0] == "shl":
            return Sum(of.unit * step, of.lanes * step, of.names)
        return None if of.unit % step else Sum(of.unit // step, of.lanes // step, of.names)

    def _combined(self, words: list[str], args: list[Any]) -> Known:
        """`and` or `or` of predicates, not all of which are decided by thread numbers; or of a number and a
        mask.
        """
        if words[1] == "pred":
            decides = words[0] == "or"
            for arg in args:
                if arg.lanes is not None and (arg.lanes == decides).all():
                    return Truth(arg.lanes, splits=False)
            return Truth(None, any(arg.splits for arg in args))
        of, mask = args if args[0].unit else args[::-1]
        if words[0] != "and" or mask.unit or not _is_one(mask.lanes):
            return None
        bits = int(mask.lanes[0])
        low = bits if bits >= 0 else ~bits
        if low & (low + 1) or of.unit % (low + 1):
            return None
        return Sum(0, of.lanes & low) if bits >= 0 else Sum(of.unit, of.lanes & ~low, of.names)

    def _copied(self, words: list[str], args: list[Any]) -> Known:
        del words
        (of,) = args
        return of if isinstance(of, Sum) else None

    def _negated(self, words: list[str], args: list[Any]) -> Known:
        (of,) = args
        return of if words[1] == "pred" else None

    def _decided(self, words: list[str], args: list[Any]) -> Known:
        a, b = args
        if a.names & b.names:
            return None
        return Truth(None, self._differ(words[1], math.gcd(a.unit, b.unit), a.lanes - b.lanes))

    def _differ(self, how: str, unit: int, lanes: Lanes) -> bool:
        """Whether the comparison `how` with some multiple of `unit` differs between lanes of a warp."""
        if how in ("lt", "lo", "ge", "hs"):
            return not self._agree(lanes // unit)
        if how in ("le", "ls", "gt", "hi"):
            return not self._agree(-lanes // unit)
        met = [(warp % unit == 0).any() and not _is_one(warp) for warp in self._warps(lanes)]
        return how in ("eq", "ne") and any(met)

    def _truth(self, lanes: Lanes) -> Truth:
        return Truth(lanes, not self._agree(lanes))

    def _warps(self, lanes: Lanes) -> list[Lanes]:
        return [lanes[n : n + WARP_SIZE] for n in range(0, len(lanes), WARP_SIZE)]

    def _agree(self, lanes: Lanes) -> bool:
        """Whether all lanes of each warp have the same element of an array over threads."""
        return all(map(_is_one, self._warps(lanes)))


_MOST_SHIFT: Final = 31
_Rule = Callable[[Divergence, list[str], list[Any]], Known]
_RULES: Final[dict[str, _Rule]] = {
    "add": Divergence._added,
    "sub": Divergence._added,
    "mul": Divergence._product,
    "mad": Divergence._product,
    "shl": Divergence._shifted,
    "shr": Divergence._shifted,
    "and": Divergence._combined,
    "or": Divergence._combined,
    "mov": Divergence._copied,
    "cvt": Divergence._copied,
    "not": Divergence._negated,
    "setp": Divergence._decided,
}


def _is_one(lanes: Lanes) -> bool:
    return bool((lanes == lanes[0]).all())


def _first(operand: ir.Operand) -> list[ir.Reg]:
    """The registers that an instruction may write with its first operand."""
    if isinstance(operand, ir.Pair):
        return [r for r in (operand.first, operand.second) if isinstance(r, ir.Reg)]
    items = operand.items if isinstance(operand, ir.Vector) else (operand,)
    return [item for item in items if isinstance(item, ir.Reg)]
