"""Which memory a kernel reads and does not write, by the parameters that pointers come from.

PTX lets `ld.global.nc` read only what nobody writes while the kernel runs, but does not check it.
What is read twice counts as the same value only if every write goes through pointers of other
parameters: arrays behind different parameters, of which one is read so, must not overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from ptxgen.check.verify.shapes import registers_of, shape_of
from ptxgen.ir import Address, Instr, Operand, Reg, Symbol, TensorAddress, Vector

Roots = frozenset[str]

_NOWHERE: Final[Roots] = frozenset()
_ANYWHERE: Final[Roots] = frozenset({""})  # a pointer that may be to any array
_READS: Final = ("ld", "ldu", "prefetch", "discard", "isspacep", "wgmma", "ldmatrix")
# Instructions whose result, of a pointer's size, may be a pointer that memory held.
_FROM_MEMORY: Final = ("ld", "ldu", "atom", "call")
_LONG: Final = ("b64", "b128")


class ReadOnly:
    """Tells which addresses are of memory that no instruction of a kernel writes."""

    def __init__(self, instrs: Iterable[Instr]) -> None:
        instrs = list(instrs)
        self._roots: dict[str, Roots] = {}
        changed = True
        while changed:  # each turn gives some register another of few parameters
            changed = False
            for instr in instrs:
                changed |= self._follow(instr)
        self._written: Roots = frozenset().union(*(self._writes(i) for i in instrs))

    def holds(self, address: Address) -> bool:
        """Whether no instruction writes where a pointer like this one points."""
        read = self._of(address.base)
        clear = "" not in read and "" not in self._written
        return bool(read) and clear and not read & self._written

    def _follow(self, instr: Instr) -> bool:
        """Whether a register may hold another pointer by an instruction than known before."""
        changed = False
        for register in _destinations(instr):
            if register.declared not in _LONG:
                continue
            old = self._roots.get(register.name, _NOWHERE)
            new = old | self._given(instr)
            self._roots[register.name] = new
            changed |= new != old
        return changed

    def _given(self, instr: Instr) -> Roots:
        head = instr.opcode.partition(".")[0]
        sources = instr.operands[1:]
        if instr.opcode.startswith("ld.param"):
            base = sources[-1].base if sources and isinstance(sources[-1], Address) else None
            return frozenset({base.name}) if isinstance(base, Symbol) else _ANYWHERE
        if head in _FROM_MEMORY or shape_of(instr).complaints:
            return _ANYWHERE
        return frozenset().union(*(self._of(o) for o in sources))

    def _of(self, operand: Operand | None) -> Roots:
        """The parameters and variables that a pointer may come from: all that it is computed from,
        strides among them.
        """
        if isinstance(operand, Reg):
            return self._roots.get(operand.name, _NOWHERE)
        if isinstance(operand, Symbol):
            return frozenset({operand.name})
        return _ANYWHERE if isinstance(operand, Vector) else _NOWHERE

    def _writes(self, instr: Instr) -> Roots:
        """What an instruction may write in global memory."""
        head = instr.opcode.partition(".")[0]
        if head == "call":
            return _ANYWHERE
        words = set(instr.opcode.split("."))
        only_shared = "global" not in words and any(w.startswith("shared") for w in words)
        if head in _READS or only_shared or words & {"local", "param", "const"}:
            return _NOWHERE
        found = _NOWHERE
        for operand in instr.operands:
            if isinstance(operand, (Address, TensorAddress)):
                base = operand.base
                found |= self._of(base) or (_ANYWHERE if _is_long(base) else _NOWHERE)
        return found


def _is_long(base: Reg | Symbol | None) -> bool:
    """Whether it may be an address in global memory; those in shared memory are short."""
    return base is None or (isinstance(base, Reg) and base.declared in _LONG)


def _destinations(instr: Instr) -> Iterator[Reg]:
    shape = shape_of(instr)
    if shape.complaints:
        yield from (r for o in instr.operands for r in registers_of(o))
        return
    names = set(shape.names(instr.operands)[: shape.dests])
    yield from (r for o in instr.operands for r in registers_of(o) if r.name in names)
