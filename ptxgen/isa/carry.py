"""Extended-precision integer arithmetic (PTX ISA, "Extended-Precision Integer Arithmetic
Instructions").

The carry flag of a thread, `CC.CF` in the manual, is the carry out of the highest bit of a sum, and
the borrow of a difference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from ptxgen.isa.declare import each, inst
from ptxgen.isa.integer import mul
from ptxgen.isa.numeric import quiet
from ptxgen.isa.spec import Effect, gate
from ptxgen.types import s32, s64, u32, u64

if TYPE_CHECKING:
    from ptxgen.isa.machine import Lanes, Machine

EXTENDED: Final = "Extended-Precision Integer Arithmetic Instructions"
_LATER: Final = gate(ptx=(4, 3))
TYPES: Final = {u32: None, s32: None, u64: _LATER, s64: _LATER}
HALVES: Final = ("lo", "hi")


@quiet
def _sum(a: Lanes, b: Lanes, carry: Lanes | bool) -> tuple[Lanes, Lanes]:
    """a + b + carry, wrapped around to the type of `a`, and the carry out of its highest bit."""
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    x, y = a.astype(unsigned), b.astype(unsigned)
    partial: Lanes = np.add(x, y)
    total: Lanes = np.add(partial, np.asarray(carry).astype(unsigned))
    return total.astype(a.dtype), (partial < x) | (total < partial)


@quiet
def _difference(a: Lanes, b: Lanes, borrow: Lanes | bool) -> tuple[Lanes, Lanes]:
    """a - b - borrow, wrapped around to the type of `a`, and whether the difference is below zero."""
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    x, y = a.astype(unsigned), b.astype(unsigned)
    taken = np.asarray(borrow).astype(unsigned)
    partial: Lanes = np.subtract(x, y)
    return np.subtract(partial, taken).astype(a.dtype), (x < y) | (partial < taken)


@inst(
    "<opcode><modifier>.type d, a, b",
    each("operation sign function", ("add", "+", _sum), ("sub", "-", _difference)),
    each(
        "name opcode modifier carried value flag",
        (
            "<operation>_cc",
            "<operation>.cc",
            "",
            False,
            "a <sign> b",
            "the carry flag says whether the unsigned result wrapped around",
        ),
        (
            "<operation>c",
            "<operation>c",
            "{.cc}",
            True,
            "a <sign> b <sign> the carry flag",
            "with .cc the carry flag is updated",
        ),
    ),
    type=TYPES,
    ptx=(1, 2),
    effect=Effect.CARRY,
    section=f"{EXTENDED}: <opcode>",
)
def carrying(
    machine: Machine,
    a: Lanes,
    b: Lanes,
    *,
    function: Callable[..., tuple[Lanes, Lanes]],
    carried: bool,
    cc: bool = True,
) -> Lanes:
    """d = <value>, wrapping around; <flag>."""
    result, carry = function(a, b, machine.carry() if carried else False)
    if cc:
        machine.set_carry(carry)
    return result


@inst(
    "mad.mode.cc.type d, a, b, c",
    name="mad_cc",
    mode=HALVES,
    type=TYPES,
    ptx=(3, 0),
    sm=20,
    effect=Effect.CARRY,
    section=f"{EXTENDED}: mad.cc",
)
@quiet
def mad_cc(machine: Machine, a: Lanes, b: Lanes, c: Lanes, *, mode: str) -> Lanes:
    """d = the lower or the upper half of a * b, plus c, wrapping around; the carry flag says
    whether the unsigned sum wrapped around.
    """
    total, carry = _sum(mul(a, b, mode=mode), c, False)
    machine.set_carry(carry)
    return total


@inst(
    "madc.mode{.cc}.type d, a, b, c",
    mode=HALVES,
    type=TYPES,
    ptx=(3, 0),
    sm=20,
    effect=Effect.CARRY,
    section=f"{EXTENDED}: madc",
)
@quiet
def madc(machine: Machine, a: Lanes, b: Lanes, c: Lanes, *, mode: str, cc: bool) -> Lanes:
    """d = the lower or the upper half of a * b, plus c, plus the carry flag, wrapping around; with
    .cc the carry flag is updated.
    """
    total, carry = _sum(mul(a, b, mode=mode), c, machine.carry())
    if cc:
        machine.set_carry(carry)
    return total
