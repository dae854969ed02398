"""A PTX program as frozen data. Nothing here decides anything.

An instruction is its opcode (with all modifiers, as printed) and its operands; what it means is
looked up in the instruction table (`ptxgen.isa`). Equality ignores where an instruction came from
(`Instr.origin`), so that a parsed program equals the program that was printed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import CodeType
from typing import NamedTuple


class Reg(NamedTuple):
    """A register: its name with the `%`, and the type it was declared with (`b32`, `f32`, `pred`,
    …).
    """

    name: str
    declared: str


@dataclass(frozen=True, slots=True)
class IntImm:
    """An integer literal."""

    value: int


@dataclass(frozen=True, slots=True)
class FloatImm:
    """A floating-point literal as its bits: `0f` with 32 of them or `0d` with 64."""

    bits: int
    width: int


@dataclass(frozen=True, slots=True)
class Special:
    """A special register such as `%tid.x`."""

    name: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """The name of a label, a parameter or a variable."""

    name: str


@dataclass(frozen=True, slots=True)
class Address:
    """`[base + offset]`; the offset is in bytes."""

    base: Reg | Symbol
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Vector:
    """`{a, b, …}`: several registers or literals moved as one."""

    items: tuple[Reg | IntImm | FloatImm, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """`d|p`: two results of one instruction."""

    first: Reg
    second: Reg


Operand = Reg | IntImm | FloatImm | Special | Symbol | Address | Vector | Pair


class Guard(NamedTuple):
    """`@p` or `@!p` before an instruction."""

    register: Reg
    negated: bool = False


class Origin(NamedTuple):
    """Where an instruction came from: a Python function and line, or a line of PTX text."""

    code: CodeType | None
    line: int


class Instr:
    """One instruction. `origin` takes no part in equality. Treat as frozen.

    A plain class with slots: a kernel has thousands of these, and a frozen dataclass takes three
    times as long to make.
    """

    __slots__ = ("guard", "opcode", "operands", "origin")

    def __init__(
        self,
        opcode: str,
        operands: tuple[Operand, ...] = (),
        guard: Guard | None = None,
        origin: Origin | None = None,
    ) -> None:
        self.opcode = opcode
        self.operands = operands
        self.guard = guard
        self.origin = origin

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Instr)
            and self.opcode == other.opcode
            and self.operands == other.operands
            and self.guard == other.guard
        )

    def __hash__(self) -> int:
        return hash((self.opcode, self.operands, self.guard))

    def __repr__(self) -> str:
        return f"Instr({self.opcode!r}, {self.operands!r}, guard={self.guard!r})"


@dataclass(frozen=True, slots=True)
class Label:
    """A place a branch can go to. `pragma` is printed for the loop that it heads (`nounroll`), if
    not empty.
    """

    name: str
    pragma: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """The next step of the algorithm, printed as a comment line."""

    text: str


Statement = Instr | Label | Note


@dataclass(frozen=True, slots=True)
class Param:
    """A kernel parameter: its name and scalar type (`u64`, `f32`, …)."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Shared:
    """A statically sized variable in shared memory: `.shared .align A .b8 name[nbytes];`."""

    name: str
    nbytes: int
    align: int


@dataclass(frozen=True, slots=True)
class RegisterRange:
    """`.reg .declared prefix<count>;` declares `prefix0` … `prefix(count-1)`."""

    prefix: str
    declared: str
    count: int


@dataclass(frozen=True, slots=True)
class Region:
    """A named part of dynamic shared memory, in bytes from its start."""

    name: str
    offset: int
    nbytes: int
    align: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """One `.entry`.

    `threads` is the block size promised by `.maxntid` (0: no promise); `min_ctas` is
    `.minnctapersm` (0: not printed). `dynamic_shared` names the `.extern .shared` array, or is
    empty; `regions` says what the generator keeps where inside it (printed as comments, so that
    text alone tells them too).
    """

    name: str
    params: tuple[Param, ...]
    registers: tuple[RegisterRange, ...]
    body: tuple[Statement, ...]
    shared: tuple[Shared, ...] = ()
    threads: int = 0
    min_ctas: int = 0
    dynamic_shared: str = ""
    regions: tuple[Region, ...] = ()

    @property
    def dynamic_shared_bytes(self) -> int:
        """Bytes of dynamic shared memory a launch must give this kernel: the end of the last
        region.
        """
        return max((r.offset + r.nbytes for r in self.regions), default=0)


@dataclass(frozen=True, slots=True)
class Module:
    """A PTX module: `.version`, `.target`, and its kernels."""

    version: tuple[int, int]
    target: str
    kernels: tuple[Kernel, ...]
    header: tuple[str, ...] = field(default=())
