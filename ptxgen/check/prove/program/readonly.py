"""The memory that a kernel reads and never writes, by the parameters that pointers come from.

PTX allows `ld.global.nc` only for memory that no thread writes while the kernel runs, but does not
check it. Two loads of one address count as the same value only if every write goes through pointers
of other parameters: an array that is read in this way must not overlap arrays of other
parameters.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ptxgen.check.verify.shapes import shape_of
from ptxgen.ir import Address, Instr, Operand, Reg, Symbol, TensorAddress, Vector, registers_of

Roots = frozenset[str]

_NOWHERE: Final[Roots] = frozenset()
_ANYWHERE: Final[Roots] = frozenset({""})  # a pointer that may point to any array
_READS: Final = ("ld", "ldu", "prefetch", "discard", "isspacep", "wgmma", "ldmatrix")
# Instructions with a result that may be a pointer loaded from memory, if it has a pointer's size.
_FROM_MEMORY: Final = ("ld", "ldu", "atom", "call")
_LONGS: Final = frozenset({"b64", "b128"})


class ReadOnly:
    """The addresses of memory that no instruction of a kernel writes."""

    def __init__(self, instrs: Iterable[Instr]) -> None:
        instrs = list(instrs)
        self._roots: dict[str, Roots] = {}
        giving = [(i, names) for i in instrs if (names := _pointers(i))]
        changed = True
        while changed:  # each round adds a parameter to some register, and there are few
            changed = False
            for instr, names in giving:
                changed |= self._follow(instr, names)
        self._written: Roots = frozenset().union(*(self._writes(i) for i in instrs))

    def holds(self, address: Address) -> bool:
        """Whether no instruction writes to the array that a pointer points to."""
        read = self._of(address.base)
        clear = "" not in read and "" not in self._written
        return bool(read) and clear and not read & self._written

    def _follow(self, instr: Instr, names: list[str]) -> bool:
        """Record the pointers that an instruction may give its registers `names`; whether any is new."""
        changed = False
        for name in names:
            old = self._roots.get(name, _NOWHERE)
            new = old | self._roots_of(instr)
            self._roots[name] = new
            changed |= new != old
        return changed

    def _roots_of(self, instr: Instr) -> Roots:
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
        """The parameters and variables through which an instruction may write global memory."""
        head = instr.opcode.partition(".")[0]
        if head == "call":
            return _ANYWHERE
        words = set(instr.opcode.split("."))
        only_shared = "global" not in words and any(w.startswith("shared") for w in words)
        if head in _READS or only_shared or words & {"local", "param", "const"}:
            return _NOWHERE
        roots = _NOWHERE
        for operand in instr.operands:
            if isinstance(operand, (Address, TensorAddress)):
                base = operand.base
                roots |= self._of(base) or (_ANYWHERE if _is_long(base) else _NOWHERE)
        return roots


def _is_long(base: Reg | Symbol | None) -> bool:
    """Whether a base may be an address in global memory; addresses in shared memory have fewer bits."""
    return base is None or (isinstance(base, Reg) and base.declared in _LONGS)


def _pointers(instr: Instr) -> list[str]:
    """The registers with the size of a pointer that an instruction may write."""
    shape = shape_of(instr)
    if not shape.complaints and _LONGS.isdisjoint(shape.declared):
        return []
    registers = [r for o in instr.operands for r in registers_of(o) if r.declared in _LONGS]
    if shape.complaints:
        return [r.name for r in registers]
    names = set(shape.names(instr.operands)[: shape.dests])
    return [r.name for r in registers if r.name in names]
