"""The operands that an instruction reads and writes, and whether its result can be computed without a run."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Final

from ptxgen.check.verify.shapes import Shape, shape_of
from ptxgen.ir import FloatImm, Instr, IntImm, Not, Pair, registers_of
from ptxgen.isa.spec import BoundOperand, Effect, Op
from ptxgen.types import ScalarType

WORD: Final = 32
# Instructions that convert an address to another space.
ADDRESSES: Final = frozenset({"cvta", "cvta_to", "mapa"})
_FOLLOWED: Final = ("global", "shared", "shared::cta")  # spaces that the proof follows `cvta` into
ROWS_APART: Final = "the rows that a tensor copy gathers or scatters are not followed"
SHUFFLES: Final = frozenset({"shfl", "shfl_pred"})
TENSOR: Final = "tcgen05"  # the first word of instructions on tensor memory


def pairs(op: Op, instr: Instr) -> Iterator[tuple[BoundOperand, Any]]:
    """Each operand in the instruction table's row, with the instruction's operand or None if left out."""
    flat: list[object] = []
    for operand in instr.operands:
        flat += (operand.first, operand.second) if isinstance(operand, Pair) else (operand,)
    return zip(op.operands, [*flat, *[None] * (len(op.operands) - len(flat))], strict=True)


def has_rows_apart(instr: Instr) -> bool:
    """Whether an instruction copies rows of a matrix that need not be neighbours."""
    return "tile::gather4" in instr.opcode or "tile::scatter4" in instr.opcode


def unfollowed(op: Op) -> str:
    """The reason why no proof follows what an instruction does in memory; empty if proofs do."""
    return op.row.unmodelled


def written(instr: Instr) -> tuple[str, ...]:
    """The names of the registers that an instruction writes."""
    shape = shape_of(instr)
    if not shape.complaints:
        return shape.names(instr.operands)[: shape.dests]
    # The operands are not known, so each register may be written.
    return tuple(r.name for operand in instr.operands for r in registers_of(operand))


def type_of(instr: Instr) -> ScalarType | None:
    """The type of each element that an instruction loads; None for an instruction without a type."""
    op = shape_of(instr).op
    type = None if op is None else op.modifiers.get("type")
    return type if isinstance(type, ScalarType) else None


def operation(instr: Instr) -> Op | None:
    """The op of an instruction whose result can be computed from integers alone; None for others."""
    shape = shape_of(instr)
    if shape.complaints:
        return None
    if shape not in _OPERATIONS:
        _OPERATIONS[shape] = _operation(instr, shape.op)
    op = _OPERATIONS[shape]
    if op is not None and op.row.name in SHUFFLES:
        return op if _broadcasts(op, instr) and instr.guard is None else None
    return op


# The ops of shapes without complaints, of which there is one object each, and not many.
_OPERATIONS: Final[dict[Shape, Op | None]] = {}


def _operation(instr: Instr, op: Op | None) -> Op | None:
    """The op of all instructions with the shape of this one, if it may be computed from integers alone."""
    if op is None or not _computable(op):
        return None
    if op.row.name in ("cvta", "cvta_to") and str(op.modifiers["space"]) not in _FOLLOWED:
        return None
    if op.row.name in SHUFFLES:
        return op
    read = (got for want, got in pairs(op, instr) if not want.written)
    return None if any(isinstance(got, (Not, FloatImm)) for got in read) else op


@functools.cache
def _computable(op: Op) -> bool:
    if op.row.name in ADDRESSES or op.row.name in SHUFFLES:
        return True
    if op.effect is not Effect.NONE or "machine" in op.row.parameters:
        return False
    return all(
        o.kind in ("value", "imm")
        and not o.address
        and (o.type is None or o.type.is_integer or o.type.kind == "p")
        for o in op.operands
    )


def _broadcasts(op: Op, instr: Instr) -> bool:
    """Whether every lane of a warp gets the value of one lane that a literal names."""
    by_name = {want.name: got for want, got in pairs(op, instr)}
    lane, clamp, members = (by_name.get(name) for name in ("b", "c", "membermask"))
    full = isinstance(members, IntImm) and members.value & 0xFFFFFFFF == 0xFFFFFFFF
    return (
        op.modifiers.get("mode") == "idx"
        and full
        and isinstance(lane, IntImm)
        and 0 <= lane.value < WORD
        and isinstance(clamp, IntImm)
        and clamp.value == WORD - 1
        and not isinstance(instr.operands[0], Pair)
    )
