"""The arrays that a kernel may write, by a look at its instructions."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ptxgen.check.verify.shapes import registers_of, shape_of
from ptxgen.ir import Address, Instr, Kernel, Symbol, TensorAddress

_WRITERS = frozenset(("st", "red", "atom", "cp", "multimem"))
_ELSEWHERE = ("shared", "local", "param")  # state spaces that are no array of the caller's


def written_pointers(kernel: Kernel, pointers: Collection[str]) -> frozenset[str]:
    """The pointer parameters whose arrays the kernel may write: those from which the address of a
    write is computed, and all if that is not known.

    An address that is loaded from memory is not known; the value that a load gives is otherwise
    taken for an offset.
    """
    instrs = [statement for statement in kernel.body if isinstance(statement, Instr)]
    sources = _sources(instrs, pointers)
    written: set[str] = set()
    for address in _written_addresses(instrs):
        found = {name for reg in registers_of(address) for name in sources.get(reg.name, ())}
        written |= found or set(pointers)
    return frozenset(written)


def _sources(instrs: list[Instr], pointers: Collection[str]) -> dict[str, set[str]]:
    """The pointer parameters from which each register may be computed, by the register's name."""
    found: dict[str, set[str]] = {}
    is_new = True
    while is_new:
        is_new = False
        for instr in instrs:
            shape = shape_of(instr)
            names = shape.names(instr.operands)
            given: set[str] = set()
            if instr.opcode.startswith(("ld.", "mov.")):
                given = {name for name in _parameters(instr) if name in pointers}
            if not instr.opcode.startswith("ld."):
                for name in names[shape.dests :]:
                    given |= found.get(name, set())
            for name in names[: shape.dests]:
                known = found.setdefault(name, set())
                is_new |= not given <= known
                known |= given
    return found


def _parameters(instr: Instr) -> Iterator[str]:
    """The names of the variables that a load reads, or whose address a `mov` takes, such as that of a
    tensor map.
    """
    for operand in instr.operands:
        if isinstance(operand, Address) and isinstance(operand.base, Symbol):
            yield operand.base.name
        elif isinstance(operand, Symbol):
            yield operand.name


def _written_addresses(instrs: list[Instr]) -> Iterator[Address | TensorAddress]:
    """The addresses of writes that may be to global memory: the first address of each writer."""
    for instr in instrs:
        first, *words = instr.opcode.split(".")
        space = next(
            (word.partition("::")[0] for word in words if word.startswith((*_ELSEWHERE, "global"))), ""
        )
        if first not in _WRITERS or space in _ELSEWHERE:
            continue
        for operand in instr.operands:
            if isinstance(operand, Address | TensorAddress):
                yield operand
                break
