"""The IR: a PTX program as frozen data without behaviour.

An instruction is its opcode (with all modifiers, as printed) and its operands; its meaning is
looked up in the instruction table (`ptxgen.isa`). Equality ignores the source line of an
instruction (`Instr.origin`), so that a parsed program equals the program that was printed.

All classes are to be treated as frozen. Those of which a kernel has thousands are not declared so, because
an instance of a frozen dataclass takes five times as long to make.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import field
from types import CodeType
from typing import Any, Final, NamedTuple

from ptxgen.errors import TypeMismatchError, shown
from ptxgen.records import dataclass


class Reg(NamedTuple):
    """A register: its name with the `%`, and its declared type (`b32`, `f32`, `pred`, …)."""

    name: str
    declared: str


@dataclass(slots=True, unsafe_hash=True)
class IntImm:
    """An integer literal."""

    value: int


@dataclass(frozen=True, slots=True)
class FloatImm:
    """A floating-point literal as its bits: `width` is 32 (printed as `0f…`) or 64 (`0d…`)."""

    bits: int
    width: int


@dataclass(frozen=True, slots=True)
class Special:
    """A special register such as `%tid.x`."""

    name: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """The name of a label, function, parameter or variable, plus an `offset` in bytes."""

    name: str
    offset: int = 0


@dataclass(slots=True, unsafe_hash=True)
class Address:
    """`[base + offset]`; the offset is in bytes, and is the whole address if there is no base."""

    base: Reg | Symbol | None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class TensorAddress:
    """`[base + offset, {c0, …}]`: a tensor map's address and coordinates, innermost first.

    For a texture or a surface, `base` is its handle; the layer, if any, is the first coordinate.
    """

    base: Reg | Symbol
    offset: int
    coordinates: tuple[Reg | IntImm | FloatImm, ...]


@dataclass(frozen=True, slots=True)
class Sink:
    """`_`: a result that is discarded, or an element of a vector that is not written."""


@dataclass(frozen=True, slots=True)
class Not:
    """`!p`: the negation of a predicate register, as an operand."""

    register: Reg


@dataclass(slots=True, unsafe_hash=True)
class Vector:
    """`{a, b, …}`: registers or literals that form one vector operand."""

    items: tuple[Reg | IntImm | FloatImm | Sink, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """`d|p`: two results of one instruction, printed as one operand."""

    first: Reg | Sink
    second: Reg | Sink


@dataclass(frozen=True, slots=True)
class Arguments:
    """`(a, b, …)`: arguments or results of a call: registers, literals, names of `.param`s."""

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


def registers_of(operand: Operand) -> list[Reg]:
    """The registers that an operand names, those of addresses included."""
    if isinstance(operand, Reg):
        return [operand]
    if isinstance(operand, Not):
        return [operand.register]
    if isinstance(operand, Address):
        parts: tuple[object, ...] = (operand.base,)
    elif isinstance(operand, TensorAddress):
        parts = (operand.base, *operand.coordinates)
    elif isinstance(operand, (Vector, Arguments)):
        parts = operand.items
    elif isinstance(operand, Pair):
        parts = (operand.first, operand.second)
    else:
        parts = ()
    return [part for part in parts if isinstance(part, Reg)]


class Guard(NamedTuple):
    """`@p` or `@!p` before an instruction."""

    register: Reg
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Location:
    """A position in the source that a compiler translated to PTX, from a `.loc` directive.

    `file` is the path as the compiler wrote it, `line` and `column` count from 1 (column 0: unknown). `text`
    is the line itself without the white space around it, empty if the source is not at hand. `inlined_at` is
    the position of the call if the code was inlined.
    """

    file: str
    line: int
    column: int = 0
    text: str = ""
    inlined_at: Location | None = None

    def __str__(self) -> str:
        name = self.file.replace("\\", "/").rpartition("/")[2]
        words = f"{name}:{self.line}: {self.text}" if self.text else f"{name}:{self.line}"
        return words if self.inlined_at is None else f"{words}, inlined at {self.inlined_at}"


class Origin(NamedTuple):
    """The source of an instruction: a Python function and its line, or a line of PTX text and the
    `location` that the text gives for it.
    """

    code: CodeType | None
    line: int
    location: Location | None = None

    @property
    def ptx_line(self) -> int:
        """The line of the PTX text, from 1; 0 for an instruction that Python emitted."""
        return self.line if self.code is None else 0

    @property
    def file(self) -> str:
        """The path of the Python function's file, or the name that IPython has for a cell: `In[3]`; empty for
        a line of PTX text.
        """
        path = "" if self.code is None else self.code.co_filename
        ipython = sys.modules.get("IPython")
        compiler = getattr(ipython and ipython.get_ipython(), "compile", None)
        named = getattr(compiler, "format_code_name", lambda _: None)(path)  # from IPython 8 on
        return path if named is None else named[1]

    @property
    def source(self) -> Location | None:
        """The line of the Python function, or of the source that the PTX was compiled from, if known."""
        return self.location if self.code is None else Location(self.code.co_filename, self.line)

    def __str__(self) -> str:
        if self.code is not None:
            return f"{self.file}:{self.line}, in {self.code.co_qualname}"
        if self.location is not None:
            return f"line {self.line} of the PTX text, from {self.location}"
        return f"line {self.line} of the PTX text"


NOWHERE: Final = Origin(None, 0)


class Instr:
    """One instruction. Equality ignores `origin`.

    `form` and `shape` keep the results of `ptxgen.isa.forms.form_of` and
    `ptxgen.check.verify.shapes.shape_of`; None before these are asked for. So an instruction does not change
    once it is checked.
    """

    __slots__ = ("form", "guard", "opcode", "operands", "origin", "shape")

    def __init__(
        self,
        opcode: str,
        operands: tuple[Operand, ...] = (),
        guard: Guard | None = None,
        origin: Origin | None = None,
        form: Any = None,
    ) -> None:
        self.opcode = opcode
        self.operands = operands
        self.guard = guard
        self.origin = origin
        self.form = form
        self.shape: Any = None

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
    """A branch target. `pragma`, if not empty, is printed after it for its loop (`nounroll`)."""

    name: str
    pragma: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """A comment line that names the next step of the algorithm."""

    text: str


@dataclass(frozen=True, slots=True)
class Pragma:
    """`.pragma "text";` among the instructions; a pragma after a label is part of `Label`."""

    text: str


@dataclass(frozen=True, slots=True)
class Targets:
    """`name: .branchtargets a, b, …;` or `.calltargets`: targets of an indirect jump or call."""

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

    A `count` above 0 makes it an array of `count` elements, the form in which structures are
    passed. `align` is in bytes; 0 means the alignment of the type. A parameter or a result of a
    function, but not of a kernel, may be a `register` (`.reg`) instead of `.param` memory.
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
    """An address in a variable's initial value.

    The `nbytes` bytes at byte `offset` hold (address of `symbol` + `addend`) >> `shift`, the shift
    in bits; the address is a generic one if `generic`.
    """

    offset: int
    symbol: str
    addend: int = 0
    generic: bool = False
    nbytes: int = 8
    shift: int = 0


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable in `space`: global, const, shared, local, or param (arguments of calls).

    `nbytes` is 0 for an `.extern` array without a size. `data` holds the first bytes of the initial
    value, the rest being zero; `pointers` are the addresses in it. `linkage` is `""`, `visible`,
    `extern`, `weak` or `common`. `scalar` is the type of a param variable that is not an array,
    since a call distinguishes `.b32 x` from `.b8 x[4]`; it is empty for all other variables.
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
    """`.reg .declared prefix<count>;` declares `prefix0` … `prefix(count-1)`; 0: `prefix` alone."""

    prefix: str
    declared: str
    count: int


@dataclass(frozen=True, slots=True)
class Region:
    """A named part of dynamic shared memory; `offset`, `nbytes` and `align` are in bytes."""

    name: str
    offset: int
    nbytes: int
    align: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """One `.entry`.

    `threads` is the most threads of a block by `.maxntid` (0: not printed); `min_ctas` is
    `.minnctapersm` (0: not printed). `dynamic_shared` names the `.extern .shared` array, or is
    empty; `regions` are the named parts of that array, printed as comments so that the parser finds
    them again. `variables` are the variables of the body in local and param memory; `reqntid` and
    `cluster` are the extents of `.reqntid` and `.reqnctapercluster`, empty if absent; `directives`
    are the other directives of the entry as text (`.maxnreg 128`).
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
    def most_threads(self) -> int:
        """The most threads of a block, by `.reqntid` or `.maxntid`; 0 without them."""
        return math.prod(self.reqntid) if self.reqntid else self.threads

    @property
    def dynamic_shared_bytes(self) -> int:
        """Bytes of dynamic shared memory that a launch needs: the end of the last region."""
        return max((r.offset + r.nbytes for r in self.regions), default=0)


@dataclass(frozen=True, slots=True)
class Function:
    """One `.func`. A function whose body is None is only declared, such as `vprintf`.

    `alias`, if not empty, is the function that a declared one is another name of (`.alias`).
    """

    name: str
    results: tuple[Param, ...] = ()
    params: tuple[Param, ...] = ()
    registers: tuple[RegisterRange, ...] = ()
    body: tuple[Statement, ...] | None = None
    shared: tuple[Shared, ...] = ()
    variables: tuple[Variable, ...] = ()
    linkage: str = ""
    noreturn: bool = False
    alias: str = ""


@dataclass(frozen=True, slots=True)
class Module:
    """A PTX module: `.version`, `.target`, kernels, functions, and module-scope variables.

    Functions are printed before kernels, each declared before any is defined. `.extern .shared`
    arrays that no kernel names as its `dynamic_shared` are among the variables. `header` holds the
    comment lines at the head of the text.
    """

    version: tuple[int, int]
    target: str
    kernels: tuple[Kernel, ...]
    header: tuple[str, ...] = field(default=())
    functions: tuple[Function, ...] = ()
    variables: tuple[Variable, ...] = ()


def require_module(caller: str, module: object) -> None:
    """Raise `TypeMismatchError` if `module`, an argument of the function `caller`, is no `Module`."""
    if not isinstance(module, Module):
        raise TypeMismatchError(f"{caller}: the module must be a ptxgen.ir.Module, got {shown(module)}")


def end_of_aliases(name: str, aliased: Mapping[str, str]) -> str:
    """The function that a chain of aliases ends with; a chain without an end stops where it repeats."""
    seen = set[str]()
    while name in aliased and name not in seen:
        seen.add(name)
        name = aliased[name]
    return name
