"""The parts of a kernel that mutation operators read: loops, shared addresses, regions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final, NamedTuple

from ptxgen import ir
from ptxgen.check.verify.shapes import shape_of
from ptxgen.ir import Address, Instr, IntImm, Operand, Reg, Symbol
from ptxgen.types import TYPES

_SPACES: Final = ("shared", "global", "local", "const", "param")
_MATRIX_BYTES: Final = (2, 16)  # bytes of an element, and of a row, of ldmatrix and stmatrix
_WORD_BYTES: Final = 4
_MBARRIER_BYTES: Final = 8


class Change(NamedTuple):
    """A change of an instruction: its description, and the instructions that replace it."""

    what: str
    instead: tuple[Instr, ...]


class Site(NamedTuple):
    """An instruction and its index in the body of a kernel."""

    program: Program
    position: int
    instr: Instr


class Program:
    """A kernel, with its loops and the registers of its shared addresses."""

    def __init__(self, module: ir.Module, kernel: ir.Kernel) -> None:
        self.module = module
        self.kernel = kernel
        self._labels = {s.name: n for n, s in enumerate(kernel.body) if isinstance(s, ir.Label)}
        self._instrs = {n: s for n, s in enumerate(kernel.body) if isinstance(s, Instr)}
        self._written = {n: _names(s) for n, s in self._instrs.items()}
        waits = ("mbarrier.try_wait", "mbarrier.test_wait")
        self._waited = frozenset(
            name
            for n, s in self._instrs.items()
            if s.opcode.startswith(waits)
            for name in self._written[n][0]
        )
        self._loops = self._find_loops()
        self._conditions = frozenset(
            s.guard.register.name for n, s in self._instrs.items() if n in self._loops and s.guard is not None
        )
        self._addresses = self._slice(self._shared_bases())
        self._parities = self._slice(
            self._last_operands("mbarrier.try_wait.parity", "mbarrier.test_wait.parity")
        )
        self._descriptors = self._slice(self._matrices())

    def shared_operands(self, instr: Instr) -> list[int]:
        """The indices of the operands of `instr` that are addresses in shared memory."""
        if not (".shared" in instr.opcode or instr.opcode.startswith("mbarrier.")):
            return []
        spaces = [w.partition("::")[0] for w in instr.opcode.split(".")]
        spaces = [s for s in spaces if s in _SPACES]
        addresses = [n for n, o in enumerate(instr.operands) if isinstance(o, Address)]
        # An mbarrier after the two addresses of a copy is in shared memory, too.
        spaces += ["shared"] * (len(addresses) - len(spaces))
        return [n for n, space in zip(addresses, spaces, strict=False) if space == "shared"]

    def makes_shared_address(self, instr: Instr) -> bool:
        """Whether the result of `instr` goes into the address of an access to shared memory."""
        written, _ = _names(instr)
        return any(name in self._addresses for name in written)

    def makes_parity(self, instr: Instr) -> bool:
        """Whether the result of `instr` goes into the parity of a phase that an mbarrier is waited for."""
        return not self._parities.isdisjoint(_names(instr)[0])

    def makes_descriptor(self, instr: Instr) -> bool:
        """Whether the result of `instr` goes into a matrix descriptor of a `wgmma`, or of `tcgen05`."""
        return not self._descriptors.isdisjoint(_names(instr)[0])

    def to_next_region(self, operand: Operand) -> int:
        """Bytes from the region of an address, by its constant offset, to the next region; 0 if
        there is only one.
        """
        assert isinstance(operand, Address)
        regions = self.kernel.regions
        for n, region in enumerate(regions):
            if region.offset <= operand.offset < region.offset + region.nbytes:
                return regions[(n + 1) % len(regions)].offset - region.offset
        return 0

    def loop_branch(self, index: int) -> bool:
        """Whether statement `index` is a loop's back branch, or a branch that skips a loop."""
        return index in self._loops

    def loop_condition(self, instr: Instr) -> bool:
        """Whether `instr` writes the predicate of a `loop_branch`."""
        return any(name in self._conditions for name in _names(instr)[0])

    def awaits(self, instr: Instr) -> bool:
        """Whether the guard of `instr` is the result of an mbarrier test or wait."""
        return instr.guard is not None and instr.guard.register.name in self._waited

    def _find_loops(self) -> frozenset[int]:
        back = {n: to for n, to in self._branches() if to < n}
        passing = {
            n
            for n, to in self._branches()
            for end, head in back.items()
            # No instruction lies between branch and loop, or between loop and target.
            if n < head and to > end and not self._between(n, head) and not self._between(end, to)
        }
        return frozenset(passing | set(back))

    def _branches(self) -> Iterable[tuple[int, int]]:
        for n, s in self._instrs.items():
            target = s.operands[0] if s.operands else None
            if s.opcode.startswith("bra") and isinstance(target, Symbol):
                yield n, self._labels.get(target.name, n)

    def _between(self, first: int, last: int) -> bool:
        return any(n in self._instrs for n in range(first + 1, last))

    def _shared_bases(self) -> set[str]:
        """The registers that are the bases of addresses in shared memory."""
        return {
            operand.base.name
            for s in self._instrs.values()
            for operand in (s.operands[n] for n in self.shared_operands(s))
            if isinstance(operand, Address) and isinstance(operand.base, Reg)
        }

    def _last_operands(self, *opcodes: str) -> set[str]:
        """The registers that are the last operands of instructions with these opcodes."""
        last = (s.operands[-1] for s in self._instrs.values() if s.opcode.startswith(opcodes))
        return {operand.name for operand in last if isinstance(operand, Reg)}

    def _matrices(self) -> set[str]:
        """The registers that are descriptors of A or B of a product, or of a copy to tensor memory."""
        readers = ("wgmma.mma_async", "tcgen05.mma", "tcgen05.cp")
        products = (s for s in self._instrs.values() if s.opcode.startswith(readers))
        return {o.name for s in products for o in s.operands[1:3] if isinstance(o, Reg)}

    def _slice(self, wanted: set[str]) -> frozenset[str]:
        """The registers `wanted`, and those from which they are computed without a load."""
        names: set[str] = set()
        while wanted:
            names |= wanted
            wanted = {
                name
                for n, (written, read) in self._written.items()
                if wanted.intersection(written) and not _loads(self._instrs[n])
                for name in read
            } - names
        return frozenset(names)


def _loads(instr: Instr) -> bool:
    return instr.opcode.startswith(("ld.", "ldu.", "atom.", "shfl.", "tex."))


def _names(instr: Instr) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The registers that `instr` writes, and those that it reads, except its guard."""
    shape = shape_of(instr)
    if shape.complaints:
        return (), ()
    names = tuple(shape.names(instr.operands))
    return names[: shape.dests], names[shape.dests :]


# ------------------------------------------------------------------------------------- instructions


def moved(instr: Instr, n: int, delta: int) -> tuple[Instr, ...]:
    """`instr` with operand `n`, an address, moved by `delta` bytes."""
    address = instr.operands[n]
    assert isinstance(address, Address)
    return with_operand(instr, n, replace(address, offset=address.offset + delta))


def constant(instr: Instr, n: int, value: int) -> tuple[Instr, ...]:
    """`instr` with the constant `value` as operand `n`."""
    return with_operand(instr, n, IntImm(value))


def with_operand(
    instr: Instr, n: int = 0, operand: Operand | None = None, *, opcode: str = ""
) -> tuple[Instr, ...]:
    """`instr` with another operand `n`, another opcode, or both."""
    operands = list(instr.operands)
    if operand is not None:
        operands[n] = operand
    return (Instr(opcode or instr.opcode, tuple(operands), instr.guard, instr.origin),)


def element_bytes(instr: Instr) -> tuple[int, int]:
    """Bytes of one element, and of the access of a lane."""
    if instr.opcode.startswith(("ldmatrix", "stmatrix")):
        return _MATRIX_BYTES
    if instr.opcode.startswith("mbarrier"):
        return _MBARRIER_BYTES, _MBARRIER_BYTES
    if instr.opcode.startswith("cp."):
        sizes = [o.value for o in instr.operands if isinstance(o, IntImm)]
        return _WORD_BYTES, max(sizes[:1] or [_WORD_BYTES])
    words = [w for w in instr.opcode.split(".") if w in TYPES]
    scalar = TYPES[words[-1]].nbytes if words else _WORD_BYTES
    counts = [len(o.items) for o in instr.operands if isinstance(o, ir.Vector)]
    return scalar, scalar * max(counts, default=1)
