"""Mistakes in what only kernels for Hopper have: phases of mbarriers, tensor copies, matrix descriptors,
operands of `wgmma`, and the registers of roles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Final

from ptxgen.ir import Instr, IntImm, Reg, TensorAddress
from ptxgen.mutation.sites import Change, Site, constant, with_operand

_PRODUCT: Final = "wgmma.mma_async"
_REGISTER_STEP: Final = 8  # setmaxnreg takes multiples of it
_AFTER_D: Final = 3  # operands before it: D, A, B; from here on: whether D is added, and literals
_LOW_WORD: Final = 0x3FFF  # bits of a field of a descriptor
_UNIT: Final = 16  # bytes, of an address in a descriptor
# Fields of a matrix descriptor (PTX ISA, "Matrix Descriptor Format"): name, first bit, and a mask.
_FIELDS: Final = (
    ("leading offset", 16, _LOW_WORD),
    ("stride offset", 32, _LOW_WORD),
    ("base offset", 49, 0x7),
    ("swizzle mode", 62, 0x3),
)


def phases(site: Site) -> Iterator[Change]:
    """Waits for the other phase, where the parity is a register, and parities that are computed wrong."""
    program, _, instr = site
    if instr.opcode.startswith(("mbarrier.try_wait.parity", "mbarrier.test_wait.parity")):
        parity = instr.operands[-1]
        if isinstance(parity, Reg):
            flip = Instr("xor.b32", (parity, parity, IntImm(1)), instr.guard, instr.origin)
            yield Change("of the other phase", (flip, instr, flip))
        return
    if not program.makes_parity(instr):
        return
    if instr.opcode == "xor.b32":
        d, a, _ = instr.operands
        yield Change("not flipped", (Instr("mov.b32", (d, a), instr.guard, instr.origin),))
    if instr.opcode.startswith("mov.") and isinstance(instr.operands[1], IntImm):
        yield Change("begins with the other", constant(instr, 1, instr.operands[1].value ^ 1))


def tensor_copies(site: Site) -> Iterator[Change]:
    """Tensor copies that are left out, or of another box of the tensor."""
    instr = site.instr
    if not instr.opcode.startswith(("cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor")):
        return
    yield Change("deleted", ())
    index = next(n for n, o in enumerate(instr.operands) if isinstance(o, TensorAddress))
    tensor = instr.operands[index]
    assert isinstance(tensor, TensorAddress)
    at = tensor.coordinates
    for n, (one, other) in enumerate(pairwise(at)):
        swapped = replace(tensor, coordinates=(*at[:n], other, one, *at[n + 2 :]))
        yield Change(f"coordinates {n} and {n + 1} swapped", with_operand(instr, index, swapped))
    for n, coordinate in enumerate(at):
        if isinstance(coordinate, IntImm):
            moved = replace(tensor, coordinates=(*at[:n], IntImm(coordinate.value + 1), *at[n + 1 :]))
            yield Change(f"coordinate {n} +1", with_operand(instr, index, moved))


def descriptors(site: Site) -> Iterator[Change]:
    """Changes of fields of matrix descriptors, and of steps from one descriptor to the next."""
    program, instr = site.program, site.instr
    if not program.makes_descriptor(instr) or program.makes_shared_address(instr):
        return
    head = instr.opcode.partition(".")[0]
    for n, operand in enumerate(instr.operands[1:], 1):
        if not isinstance(operand, IntImm):
            continue
        if head == "or" and operand.value > _LOW_WORD:
            for name, first, mask in _FIELDS:
                for step in (1, -1):
                    field = (operand.value >> first) + step & mask
                    value = operand.value & ~(mask << first) | field << first
                    yield Change(f"{name} {step:+d}", constant(instr, n, value))
        elif head == "and":
            yield Change("mask halved", constant(instr, n, operand.value >> 1))
        elif head in ("add", "sub", "mul", "mad", "shr", "shl"):
            in_bytes = not instr.opcode.endswith("64") and head not in ("shr", "shl")
            size = _UNIT if in_bytes else 1
            for step in (size, -size):
                yield Change(f"operand {n} {step:+d}", constant(instr, n, operand.value + step))


def products(site: Site) -> Iterator[Change]:
    """Products that are left out, that add to D or do not, that negate an operand, or that transpose one."""
    instr = site.instr
    if not instr.opcode.startswith(_PRODUCT):
        return
    yield Change("deleted", ())
    accumulates, *literals = instr.operands[_AFTER_D:]
    if isinstance(accumulates, Reg):
        for value, what in ((0, "D is not given"), (1, "D is given")):
            yield Change(what, with_operand(instr, _AFTER_D, IntImm(value)))
    scales = 2  # of A and of B: 1 or -1; after them is whether an operand is transposed: 0 or 1
    for n, literal in enumerate(literals):
        assert isinstance(literal, IntImm)
        at = _AFTER_D + 1 + n
        what = f"operand {at} negated" if n < scales else f"operand {at} transposed"
        yield Change(what, constant(instr, at, -literal.value if n < scales else 1 - literal.value))


def registers(site: Site) -> Iterator[Change]:
    """Changes of the number of registers in `setmaxnreg`, or its deletion."""
    instr = site.instr
    if not instr.opcode.startswith("setmaxnreg"):
        return
    yield Change("deleted", ())
    (count,) = instr.operands
    assert isinstance(count, IntImm)
    for step in (_REGISTER_STEP, -_REGISTER_STEP):
        yield Change(f"{step:+d}", constant(instr, 0, count.value + step))
