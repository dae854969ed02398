"""Comparisons of unsigned numbers that come out the same for every number, such as `i - 1 >= 0`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ptxgen.check.problems import Problem, problem_in
from ptxgen.check.verify.shapes import shape_of
from ptxgen.ir import Instr, IntImm, Kernel, Operand, Reg
from ptxgen.isa.integer import subtracts
from ptxgen.text import render_instr, render_operand
from ptxgen.types import ScalarType

_SIGNS: Final = {
    **dict.fromkeys(("lt", "lo"), "<"),
    **dict.fromkeys(("le", "ls"), "<="),
    **dict.fromkeys(("gt", "hi"), ">"),
    **dict.fromkeys(("ge", "hs"), ">="),
}
# Comparisons that come out the same for every unsigned number, by the sign, and whether the literal comes
# first and is the largest number, else 0: whether they hold.
_SETTLED: Final = {
    ("<", False, False): False,
    (">=", False, False): True,
    (">", True, False): False,
    ("<=", True, False): True,
    (">", False, True): False,
    ("<=", False, True): True,
    ("<", True, True): False,
    (">=", True, True): True,
}


def settled_comparisons(kernel: Kernel) -> Iterator[Problem]:
    """A problem for each comparison of a kernel that holds for every unsigned number or for none."""
    written: dict[str, Instr] = {}
    for instr in kernel.body:
        if not isinstance(instr, Instr):
            continue
        if instr.opcode.startswith(("setp.", "set.")):
            message = _settled(instr, written)
            if message:
                yield problem_in("comparison", message, kernel.name, instr)
        if instr.operands and isinstance(instr.operands[0], Reg):
            written[instr.operands[0].name] = instr


def _settled(instr: Instr, written: dict[str, Instr]) -> str:
    """Why a comparison has the same result for every number; empty for a comparison whose result varies."""
    shape = shape_of(instr)
    op = None if shape.complaints else shape.op
    type = None if op is None else op.modifiers.get("type")
    if op is None or not isinstance(type, ScalarType) or type.kind != "u":
        return ""
    sign = _SIGNS.get(str(op.modifiers.get("cmp", "")))
    sources = [o.name for o in op.operands if not o.written]
    pair = [got for name, got in zip(sources, instr.operands[1:], strict=False) if name in ("a", "b")]
    if sign is None or len(pair) != len(("a", "b")):
        return ""
    for number, other in ((0, 1), (1, 0)):
        literal, compared = pair[number], pair[other]
        if isinstance(literal, IntImm) and isinstance(compared, Reg):
            value = literal.value & ((1 << type.bits) - 1)
            largest = (1 << type.bits) - 1
            holds = _SETTLED.get((sign, number == 0, value == largest)) if value in (0, largest) else None
            if holds is not None:
                words = " ".join((render_operand(pair[0]), sign, render_operand(pair[1])))
                every = "every" if holds else "no"
                return f"{words} holds for {every} unsigned number{_wrapped(compared, written)}"
    return ""


def _wrapped(compared: Operand, written: dict[str, Instr]) -> str:
    """Advice on an operand that is the result of a subtraction, which wraps around instead of being negative;
    empty for any other operand.
    """
    by = written.get(compared.name) if isinstance(compared, Reg) else None
    if by is None or not subtracts(by):
        return ""
    return (
        f"; {render_instr(by)} wraps around where the result would be negative: compare before it, or "
        "compare signed numbers"
    )
