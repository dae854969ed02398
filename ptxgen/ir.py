"""A PTX program as frozen data. Nothing here decides anything.

An instruction is its opcode (with all modifiers, as printed) and its operands; what it means is
looked up in the instruction table (`ptxgen.isa`). Equality ignores where an instruction came from
(`Instr.origin`), so that a parsed program equals the program that was printed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import CodeType
from typing import NamedTuple

from ptxgen.errors import TypeMismatchError, shown


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
    """The name of a label, a function, a parameter or a variable; `name+offset` is so many bytes
    further.
    """

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Address:
    """`[base + offset]`; the offset is in bytes. Without a base, it is the address."""

    base: Reg | Symbol | None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class TensorAddress:
    """`[base + offset, {c0, …}]`: a tensor map's address and coordinates, innermost first; or a
    texture's or a surface's handle, with the layer before these.
    """

    base: Reg | Symbol
    offset: int
    coordinates: tuple[Reg | IntImm | FloatImm, ...]


@dataclass(frozen=True, slots=True)
class Sink:
    """`_`: a result that nobody wants, or an element of a vector that is not written."""


@dataclass(frozen=True, slots=True)
class Not:
    """`!p`: a predicate read as its opposite."""

    register: Reg


@dataclass(frozen=True, slots=True)
class Vector:
    """`{a, b, …}`: several registers or literals moved as one."""

    items: tuple[Reg | IntImm | FloatImm | Sink, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """`d|p`: two results of one instruction."""

    first: Reg | Sink
    second: Reg | Sink


@dataclass(frozen=True, slots=True)
class Arguments:
    """`(a, b, …)`: what a call gives or gets: registers, literals, names of `.param` variables."""

    items: tuple[Reg | IntImm | FloatImm | Symbol | Sink, ...]


Operand = (
    Reg
    | IntImm
    | FloatImm
    | Special
    | Symbol
    | Address
    | TensorAddress
    | Vector
    | Pair
    | Not
    | Sink
    | Arguments
)


class Guard(NamedTuple):
    """`@p` or `@!p` before an instruction."""

    register: Reg
    negated: bool = False


class Origin(NamedTuple):
    """Where an instruction came from: a Python function and line, or a line of PTX text."""

    code: CodeType | None
    line: int

    def __str__(self) -> str:
        if self.code is None:
            return f"line {self.line} of the PTX text"
        return f"{self.code.co_filename}:{self.line}, in {self.code.co_qualname}"


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


@dataclass(frozen=True, slots=True)
class Pragma:
    """`.pragma "text";` among the instructions, other than one that heads a loop."""

    text: str


@dataclass(frozen=True, slots=True)
class Targets:
    """`name: .branchtargets a, b, …;` or `.calltargets`: where an indirect jump may go."""

    name: str
    kind: str  # "branchtargets" or "calltargets"
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Prototype:
    """`name: .callprototype (results) _ (params);`: the signature of an indirect call."""

    name: str
    results: tuple[Param, ...]
    params: tuple[Param, ...]
    noreturn: bool = False


Statement = Instr | Label | Note | Pragma | Targets | Prototype


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter or a result: its name and scalar type (`u64`, `f32`, …).

    With a `count`, it is an array of so many elements, as structures are passed; `align` is in
    bytes, 0 the type's own. One of a function may be a `register` instead of memory.
    """

    name: str
    type: str
    count: int = 0
    align: int = 0
    register: bool = False


@dataclass(frozen=True, slots=True)
class Shared:
    """A statically sized variable in shared memory: `.shared .align A .b8 name[nbytes];`."""

    name: str
    nbytes: int
    align: int


@dataclass(frozen=True, slots=True)
class Pointer:
    """An address in a variable's initial value: `nbytes` bytes at `offset` become the address of
    `symbol` plus `addend`, shifted right by `shift` bits; `generic` as a generic address.
    """

    offset: int
    symbol: str
    addend: int = 0
    generic: bool = False
    nbytes: int = 8
    shift: int = 0


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable in `space`: global, const, shared, local, or param (what calls give and get).

    `nbytes` is 0 for an `.extern` array without a size. `data` is the beginning of its initial
    value, the rest being zero; `pointers` are the addresses in it. `linkage` is `""`, `visible`,
    `extern`, `weak` or `common`. `scalar` is the type of one in param that is no array: a call
    tells `.b32 x` from `.b8 x[4]`.
    """

    space: str
    name: str
    nbytes: int
    align: int
    data: bytes = b""
    pointers: tuple[Pointer, ...] = ()
    linkage: str = ""
    scalar: str = ""


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
    text alone tells them too). `variables` are those of the body in local and param memory;
    `reqntid` and `cluster` the extents of `.reqntid` and `.reqnctapercluster`, empty if absent;
    `directives` are other ones of the entry as text (`.maxnreg 128`).
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
    variables: tuple[Variable, ...] = ()
    reqntid: tuple[int, ...] = ()
    cluster: tuple[int, ...] = ()
    directives: tuple[str, ...] = ()
    linkage: str = "visible"

    @property
    def dynamic_shared_bytes(self) -> int:
        """Bytes of dynamic shared memory a launch must give this kernel: the end of the last
        region.
        """
        return max((r.offset + r.nbytes for r in self.regions), default=0)


@dataclass(frozen=True, slots=True)
class Function:
    """One `.func`. Without a body (None) it is declared only, as `vprintf` is."""

    name: str
    results: tuple[Param, ...] = ()
    params: tuple[Param, ...] = ()
    registers: tuple[RegisterRange, ...] = ()
    body: tuple[Statement, ...] | None = None
    shared: tuple[Shared, ...] = ()
    variables: tuple[Variable, ...] = ()
    linkage: str = ""
    noreturn: bool = False


@dataclass(frozen=True, slots=True)
class Module:
    """A PTX module: `.version`, `.target`, its kernels, functions, and variables of its own.

    Functions are printed before kernels, each declared before any is defined. `.extern .shared`
    arrays that no kernel names as its `dynamic_shared` are among the variables.
    """

    version: tuple[int, int]
    target: str
    kernels: tuple[Kernel, ...]
    header: tuple[str, ...] = field(default=())
    functions: tuple[Function, ...] = ()
    variables: tuple[Variable, ...] = ()


def require_module(who: str, given: object) -> None:
    """Raise `TypeMismatchError` if what `who` was given is no module."""
    if not isinstance(given, Module):
        raise TypeMismatchError(f"{who}: the module must be a ptxgen.ir.Module, got {shown(given)}")
