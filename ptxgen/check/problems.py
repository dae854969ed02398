"""`Problem`, the record of one mistake in a module."""

from __future__ import annotations

from dataclasses import field

from ptxgen.ir import NOWHERE, Instr, Location, Origin
from ptxgen.records import dataclass
from ptxgen.text import render_instr


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a module.

    `kind` is one of `target`, `gate`, `opcode`, `operand`, `register`, `symbol`, `label`,
    `undefined`, `barrier`, `alignment`, `shared`, `threads`, `call`, `end` and `text`; or of `proxy`
    and `comparison`, which are right, but worth a look. `instr` is the instruction as printed and `where`
    its origin, a Python file or a line of PTX text; both are empty if the problem is not about one
    instruction; `line` is its line of the PTX text (0: none), and `source` that of the Python function or of
    the language that the PTX was compiled from. `kernel` is the name of the kernel or function, empty for a
    problem of the whole module; `what` says which of the two it names. A
    problem that is not `certain` is one only on paths that the kernel may never take.
    """

    kind: str
    message: str
    kernel: str = ""
    instr: str = ""
    where: str = ""
    what: str = "kernel"
    line: int = field(default=0, compare=False)  # `where` says both, too
    source: Location | None = field(default=None, compare=False)
    certain: bool = True

    def __str__(self) -> str:
        kernel = f"{self.what} {self.kernel}: " if self.kernel else ""
        instr = f"\n    in {self.instr}" if self.instr else ""
        where = f"\n    from {self.where}" if self.where else ""
        return f"{kernel}{self.message}{instr}{where}"


def problem_in(
    kind: str, message: str, kernel: str, instr: Instr, what: str = "kernel", certain: bool = True
) -> Problem:
    """A problem of one instruction, with the instruction's text and origin."""
    origin = instr.origin or NOWHERE
    where, line, source = where_from(instr.origin), origin.ptx_line, origin.source
    return Problem(kind, message, kernel, render_instr(instr), where, what, line, source, certain)


def where_from(origin: Origin | None) -> str:
    """An origin in words; the empty string for None."""
    return "" if origin is None else str(origin)
