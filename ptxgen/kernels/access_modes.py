"""Finds the arrays that a kernel reads and writes, and their alignment, from its instructions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from ptxgen.check.verify.shapes import shape_of
from ptxgen.ir import Address, Instr, IntImm, Kernel, Symbol, TensorAddress, registers_of

_WRITERS: Final = frozenset(("st", "red", "atom", "cp", "multimem", "tensormap"))
_PREFETCH: Final = "prefetch"  # of copies to the L2 cache, which write no memory
_ACCESSES: Final = frozenset(("ld", "ldu", *_WRITERS))
_ELSEWHERE: Final = ("shared", "local", "param")  # state spaces that are no array of the caller's
_GLOBAL: Final = "global"
_ZEROS: Final = "st.bulk"  # it writes shared memory, with or without a space
_COPIED: Final = 16  # bytes of which both addresses of a copy are multiples (PTX ISA, "cp.async.bulk", ".cg")


@dataclass(frozen=True)
class Uses:
    """The uses of arrays by a kernel, by the names of its pointer parameters.

    `written` are the arrays that the kernel may write. `alignment` has the bytes of which each pointer must
    be a multiple for its vectors and copies; pointers through which the kernel accesses single elements only
    are left out.
    """

    written: frozenset[str]
    alignment: Mapping[str, int]


def uses_of(kernel: Kernel, pointers: Collection[str]) -> Uses:
    """The uses of the arrays that pointer parameters point to.

    The array of an access is known if its address is computed from one pointer. An array may be written if
    the address of a write is computed from its pointer, and all arrays may be if the pointer of a write is
    not known. An address that is loaded from memory is not known, nor one in a tensor map that is itself in
    memory; the value that a load gives is otherwise taken for an offset.
    """
    instrs = [statement for statement in kernel.body if isinstance(statement, Instr)]
    sources = _sources(instrs, pointers)
    maps = {param.name for param in kernel.params if param.count}
    written: set[str] = set()
    alignment: dict[str, int] = {}
    for access in _global_accesses(instrs):
        address, nbytes = access.address, access.nbytes
        reached = {name for reg in registers_of(address) for name in sources.get(reg.name, ())}
        if isinstance(address, TensorAddress) and not reached <= maps:
            reached = set()
        if access.writes:
            written |= reached or set(pointers)
        if len(reached) == 1 and nbytes and isinstance(address, Address) and address.offset % nbytes == 0:
            (name,) = reached
            alignment[name] = max(nbytes, alignment.get(name, 1))
    return Uses(frozenset(written), alignment)


def _sources(instrs: list[Instr], pointers: Collection[str]) -> dict[str, set[str]]:
    """The pointer parameters from which each register may be computed, by the register's name."""
    sources: dict[str, set[str]] = {}
    is_new = True
    while is_new:
        is_new = False
        for instr in instrs:
            shape = shape_of(instr)
            names = shape.names(instr.operands)
            origins: set[str] = set()
            if instr.opcode.startswith(("ld.", "mov.")):
                origins = {name for name in _parameters(instr) if name in pointers}
            if not instr.opcode.startswith("ld."):
                for name in names[shape.dests :]:
                    origins |= sources.get(name, set())
            for name in names[: shape.dests]:
                known = sources.setdefault(name, set())
                is_new |= not origins <= known
                known |= origins
    return sources


def _parameters(instr: Instr) -> Iterator[str]:
    """The names of the variables that a load reads, or whose address a `mov` takes, such as that of a
    tensor map.
    """
    for operand in instr.operands:
        if isinstance(operand, Address) and isinstance(operand.base, Symbol):
            yield operand.base.name
        elif isinstance(operand, Symbol):
            yield operand.name


class _Access(NamedTuple):
    """An access that may be to global memory: its address there, and the bytes of which the address
    must be a multiple (0: not known).
    """

    address: Address | TensorAddress
    nbytes: int
    writes: bool


def _global_accesses(instrs: list[Instr]) -> Iterator[_Access]:
    for instr in instrs:
        name, *words = instr.opcode.split(".")
        bases = [word.partition("::")[0] for word in words]
        # A copy names the space of its destination, then that of its source. An instruction without
        # a space accesses any of them, so it counts as global.
        spaces = [base for base in bases if base in (*_ELSEWHERE, _GLOBAL)] or [_GLOBAL]
        if name not in _ACCESSES or _GLOBAL not in spaces or instr.opcode.startswith(_ZEROS):
            continue
        shape = shape_of(instr)
        which = spaces.index(_GLOBAL)
        if which >= len(shape.accesses):  # it waits for copies
            continue
        at, nbytes = shape.accesses[which]
        if shape.size_index is not None:
            size = instr.operands[shape.size_index]
            nbytes = size.value if isinstance(size, IntImm) else 0
        address = instr.operands[at]
        if isinstance(address, Address | TensorAddress):
            writes = name in _WRITERS and which == 0 and _PREFETCH not in words
            is_bulk = "bulk" in words or (name == "cp" and not nbytes)  # a type is that of the elements
            yield _Access(address, _COPIED if is_bulk else nbytes, writes)
