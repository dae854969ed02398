"""Extended-precision integer arithmetic (PTX ISA, section of that name).

The carry flag of a thread, `CC.CF` in the manual, is the carry out of the highest bit of a sum, and
the borrow of a difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ptxgen.isa.declare import inst
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
    """a - b - borrow, wrapped around to the type of `a`, and whether it is below zero."""
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    x, y = a.astype(unsigned), b.astype(unsigned)
    taken = np.asarray(borrow).astype(unsigned)
    partial: Lanes = np.subtract(x, y)
    return np.subtract(partial, taken).astype(a.dtype), (x < y) | (partial < taken)


@inst(
    "add.cc.type d, a, b", name="add_cc", type=TYPES, ptx=(1, 2), effect=Effect.CARRY,
    section=f"{EXTENDED}: add.cc",
)  # fmt: skip
def add_cc(machine: Machine, a: Lanes, b: Lanes) -> Lanes:
    """d = a + b, wrapping around; the carry flag says whether it did, as unsigned numbers."""
    total, carry = _sum(a, b, False)
    machine.set_carry(carry)
    return total


@inst(
    "addc{.cc}.type d, a, b", type=TYPES, ptx=(1, 2), effect=Effect.CARRY,
    section=f"{EXTENDED}: addc",
)  # fmt: skip
def addc(machine: Machine, a: Lanes, b: Lanes, *, cc: bool) -> Lanes:
    """d = a + b + the carry flag, wrapping around; .cc writes the flag anew."""
    total, carry = _sum(a, b, machine.carry())
    if cc:
        machine.set_carry(carry)
    return total


@inst(
    "sub.cc.type d, a, b", name="sub_cc", type=TYPES, ptx=(1, 2), effect=Effect.CARRY,
    section=f"{EXTENDED}: sub.cc",
)  # fmt: skip
def sub_cc(machine: Machine, a: Lanes, b: Lanes) -> Lanes:
    """d = a - b, wrapping around; the carry flag says whether it did, as unsigned numbers."""
    difference, borrow = _difference(a, b, False)
    machine.set_carry(borrow)
    return difference


@inst(
    "subc{.cc}.type d, a, b", type=TYPES, ptx=(1, 2), effect=Effect.CARRY,
    section=f"{EXTENDED}: subc",
)  # fmt: skip
def subc(machine: Machine, a: Lanes, b: Lanes, *, cc: bool) -> Lanes:
    """d = a - b - the carry flag, wrapping around; .cc writes the flag anew."""
    difference, borrow = _difference(a, b, machine.carry())
    if cc:
        machine.set_carry(borrow)
    return difference


@inst(
    "mad.mode.cc.type d, a, b, c", name="mad_cc", mode=HALVES, type=TYPES, ptx=(3, 0), sm=20,
    effect=Effect.CARRY, section=f"{EXTENDED}: mad.cc",
)  # fmt: skip
@quiet
def mad_cc(machine: Machine, a: Lanes, b: Lanes, c: Lanes, *, mode: str) -> Lanes:
    """d = the lower or the upper half of a * b, plus c, wrapping around; the carry flag says
    whether that sum did, as unsigned numbers.
    """
    total, carry = _sum(mul(a, b, mode=mode), c, False)
    machine.set_carry(carry)
    return total


@inst(
    "madc.mode{.cc}.type d, a, b, c", mode=HALVES, type=TYPES, ptx=(3, 0), sm=20,
    effect=Effect.CARRY, section=f"{EXTENDED}: madc",
)  # fmt: skip
@quiet
def madc(machine: Machine, a: Lanes, b: Lanes, c: Lanes, *, mode: str, cc: bool) -> Lanes:
    """d = the lower or the upper half of a * b, plus c, plus the carry flag, wrapping around; .cc
    writes the flag anew.
    """
    total, carry = _sum(mul(a, b, mode=mode), c, machine.carry())
    if cc:
        machine.set_carry(carry)
    return total
