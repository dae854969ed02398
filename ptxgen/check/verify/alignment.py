"""Addresses that are certainly misaligned.

An integer register is known as `value = residue (mod modulus)`. The modulus is a power of two, so
that wrapping around changes nothing; modulus 0 means that the value is exactly `residue`, 1 that
nothing is known. A register written by several instructions has the strongest residue that holds
for all of them. Only certain mistakes are reported: an unknown value may be aligned, and pointers
and other 64-bit parameters are assumed to be multiples of 16, as a launch checks them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

from ptxgen.ir import Address, Function, Instr, IntImm, Kernel, Module, Operand, Reg, Symbol
from ptxgen.types import TYPES

# No address needs a larger alignment; less than 256, so that a conversion to 8 bits changes nothing
# either.
_LARGEST: Final = 128
_POINTER_ALIGN: Final = 16


class Residue(NamedTuple):
    """A value modulo a power of two."""

    modulus: int
    residue: int


UNKNOWN: Final = Residue(1, 0)
_POINTER: Final = Residue(_POINTER_ALIGN, 0)
LOADS_OF_POINTERS: Final = frozenset({"ld.param.u64", "ld.param.b64"})
_Rule = Callable[..., Residue]
# Rules are cached, since most instructions of a kernel have operands with the residues of an earlier one.
_cached: Final = functools.lru_cache(maxsize=1024)


def _residue(modulus: int, residue: int) -> Residue:
    if not modulus:
        return Residue(0, residue)
    modulus = min(modulus & -modulus, _LARGEST)
    return Residue(modulus, residue % modulus)


@_cached
def _exactly(value: int) -> Residue:
    return Residue(0, value)


@_cached
def _either(a: Residue, b: Residue, *_: Residue) -> Residue:
    if a == b:
        return a
    return _residue(math.gcd(a[0], b[0], a[1] - b[1]), a[1])


@_cached
def _add(a: Residue, b: Residue) -> Residue:
    return _residue(math.gcd(a[0], b[0]), a[1] + b[1])


@_cached
def _sub(a: Residue, b: Residue) -> Residue:
    return _residue(math.gcd(a[0], b[0]), a[1] - b[1])


@_cached
def _mul(a: Residue, b: Residue) -> Residue:
    return _residue(math.gcd(a[0] * b[0], a[0] * b[1], a[1] * b[0]), a[1] * b[1])


@_cached
def _mad(a: Residue, b: Residue, c: Residue) -> Residue:
    return _add(_mul(a, b), c)


@_cached
def _shl(a: Residue, b: Residue) -> Residue:
    return UNKNOWN if b[0] or b[1] not in range(64) else _mul(a, Residue(0, 1 << b[1]))


@_cached
def _and(a: Residue, b: Residue) -> Residue:
    if not a[0] and not b[0]:
        return Residue(0, a[1] & b[1])
    modulus = 1
    # A bit is known where both are known, or one of them is known to be zero.
    while modulus < _LARGEST and (_clear(a, modulus) or _clear(b, modulus) or _both(a, b, modulus)):
        modulus *= 2
    return _residue(modulus, a[1] & b[1])


def _known(a: Residue, bit: int) -> bool:
    return not a[0] or bit < a[0]


def _clear(a: Residue, bit: int) -> bool:
    return _known(a, bit) and not a[1] & bit


def _both(a: Residue, b: Residue, bit: int) -> bool:
    return _known(a, bit) and _known(b, bit)


@_cached
def _or(a: Residue, b: Residue) -> Residue:
    return _residue(math.gcd(a[0], b[0]), a[1] | b[1])


@_cached
def _xor(a: Residue, b: Residue) -> Residue:
    return _residue(math.gcd(a[0], b[0]), a[1] ^ b[1])


def _same(a: Residue) -> Residue:
    return a


# By the beginning of the opcode; `mul.hi` and `shr`, for example, leave nothing known.
_RULES: Final[Mapping[str, _Rule]] = {
    "mov": _same,
    "cvta": _same,
    "cvt": _same,
    "add": _add,
    "sub": _sub,
    "mul.lo": _mul,
    "mul.wide": _mul,
    "mad.lo": _mad,
    "mad.wide": _mad,
    "shl": _shl,
    "and": _and,
    "or": _or,
    "xor": _xor,
    "min": _either,
    "max": _either,
    "selp": _either,
}


def rule_of(opcode: str) -> _Rule | None:
    """The function that gives the residue of an integer instruction's result; None if there is none."""
    first, _, rest = opcode.partition(".")
    if ".sat" in opcode:
        return None
    return _RULES.get(f"{first}.{rest.partition('.')[0]}") or _RULES.get(first)


# An integer register; the instruction that writes it, by a rule or with a parameter that may
# be a pointer; that rule; the registers that the instruction reads.
Definition: TypeAlias = tuple[Reg, Instr, _Rule | None, Sequence[Reg]]


def residues(
    definitions: Iterable[Definition], unruled: Iterable[Reg], aligns: Mapping[str, int], launched: Set[str]
) -> dict[Reg, Residue]:
    """The residue of each register that is written by `definitions`, in the order of the text.

    Of `unruled` registers nothing is known, as other instructions write them. `aligns` has the alignment of
    each variable in memory; `launched` are the 64-bit parameters that a launch gives.
    """
    state = dict.fromkeys(unruled, UNKNOWN)
    pending = []
    for definition in definitions:
        register, instr, rule, _ = definition
        if rule is not None:
            pending.append(definition)
        elif _loads(instr, launched):
            state[register] = _either(state.get(register, _POINTER), _POINTER)
        else:
            state[register] = UNKNOWN
    _settle(pending, state, aligns)
    return state


def _settle(pending: Sequence[Definition], state: dict[Reg, Residue], aligns: Mapping[str, int]) -> None:
    """Add to `state` the residues that follow by the rules of definitions, in the order of the text."""
    unruled = {*chain.from_iterable([reads for _, _, _, reads in pending])}
    unruled.difference_update([register for register, _, _, _ in pending], state)
    state.update(dict.fromkeys(unruled, UNKNOWN))
    read: set[Reg] = set()
    again: set[Reg] | None = None  # registers that were read before more was known of them; None: all
    # A loop's registers settle after a few rounds, since each change halves a modulus.
    while again is None or again:
        changed: set[Reg] = set()
        for register, instr, rule, reads in pending:
            if again is not None and again.isdisjoint(reads) and changed.isdisjoint(reads):
                continue
            read.update(reads)
            old = state.get(register)
            if old is UNKNOWN or rule is None:
                continue
            values = [
                state.get(operand) if operand.__class__ is Reg else _constant(operand, aligns)
                for operand in instr.operands[1:]
            ]
            if None in values:
                continue  # a rule will give it, for example in the second pass over a loop
            new = rule(*values) if old is None else _either(old, rule(*values))
            if new != old:
                state[register] = UNKNOWN if new == UNKNOWN else new
                if register in read:
                    changed.add(register)
        again = changed


def _loads(instr: Instr, launched: Set[str]) -> bool:
    """Whether the instruction loads a whole parameter that a launch gives."""
    address = instr.operands[-1]
    if not isinstance(address, Address) or not isinstance(address.base, Symbol):
        return False
    return address.base.name in launched and not address.offset


def _constant(operand: Operand, aligns: Mapping[str, int]) -> Residue:
    """The residue of an operand that is no register."""
    if isinstance(operand, IntImm):
        return _exactly(operand.value)
    if isinstance(operand, Symbol) and operand.name in aligns:
        return _residue(aligns[operand.name], operand.offset)
    return UNKNOWN


def misalignment(
    address: Address, nbytes: int, state: Mapping[Reg, Residue], aligns: Mapping[str, int]
) -> int:
    """The number of bytes by which an address is certainly past a multiple of `nbytes`; 0 if it may
    be aligned.
    """
    base = address.base
    if base is None:
        modulus, residue = 0, 0
    elif isinstance(base, Reg):
        modulus, residue = state.get(base, UNKNOWN)
    else:
        modulus, residue = aligns.get(base.name, 1), 0
    start = residue + address.offset
    return start % (min(modulus, nbytes) if modulus else nbytes)


def launched_pointers(body: Kernel | Function) -> frozenset[str]:
    """The 64-bit parameters that a launch gives: those of a kernel."""
    params = body.params if isinstance(body, Kernel) else ()
    return frozenset(param.name for param in params if not param.count)


def variable_aligns(module: Module, body: Kernel | Function) -> dict[str, int]:
    """The alignment in bytes of each variable and parameter that a body may name."""
    aligns = {variable.name: variable.align for variable in module.variables}
    aligns.update({shared.name: shared.align for shared in body.shared})
    aligns.update({variable.name: variable.align for variable in body.variables})
    for kernel in module.kernels:
        if kernel.dynamic_shared and kernel.dynamic_shared not in aligns:
            aligns[kernel.dynamic_shared] = _dynamic_align(kernel)
    if isinstance(body, Kernel) and body.dynamic_shared:
        aligns[body.dynamic_shared] = _dynamic_align(body)
    results = body.results if isinstance(body, Function) else ()
    for param in (*results, *body.params):
        if param.type in TYPES:
            aligns[param.name] = param.align or TYPES[param.type].nbytes
    # A wrong alignment is reported elsewhere; here it counts as 1.
    return {name: align if align > 0 and not align & (align - 1) else 1 for name, align in aligns.items()}


def _dynamic_align(kernel: Kernel) -> int:
    return max([_POINTER_ALIGN, *(region.align for region in kernel.regions)])
