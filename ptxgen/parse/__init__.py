"""PTX text to IR: a recursive-descent parser, the inverse of `ptxgen.text` on the text it prints.

PTX is free-form: several instructions may share a line and one may span lines. The parser reads
whole modules as nvcc and Triton write them, with these rules:

* a `//` comment that has a line of a body to itself is a `Note`; `//` comments at the head of the
  file are the module's header; `// region …` among the declarations is a `Region`; other comments
  are skipped, and so are `.section`, `.attribute`, and pragmas at module level;
* `.file` and `.loc` become the location of an instruction (`Origin.location`), and are not printed
  again;
* a register gets the register class of its type: `.reg .u32` is read as `.reg .b32`;
* constant expressions are evaluated, initial values become bytes;
* inner scopes are dissolved, and the names declared in them are made unique
  (`ptxgen.parse.names`);
* a declaration of a function that is also defined is skipped;
* the first `.extern .shared` array that a kernel uses is its `dynamic_shared`; arrays that are
  `dynamic_shared` of no kernel are variables of the module. All of them begin at the same address;
* a `.global` or `.const` variable declared in a body becomes a variable of the module with a new
  name.

Every error is a `ParseError` with line, column, the line's text and a caret.
"""

from __future__ import annotations

from ptxgen.collector import uncollected
from ptxgen.errors import LaunchError, ParseError, shown
from ptxgen.ir import Module
from ptxgen.parse.locations import Sources
from ptxgen.parse.module import Modules

__all__ = ["Sources", "module_of", "parse", "parse_on_use"]


def parse(text: str, sources: Sources | None = None) -> Module:
    """The module of a PTX text. `Instr.origin` is the line at which the instruction begins, and its
    location in the source that the text was compiled from, if it has `.loc` directives. `sources`
    maps the path of such a source to its lines, so that messages show them; by default they show
    the path and the line's number only.

    Raises `ParseError` for text that is not PTX, for instructions that are not in the table, and
    for parts of PTX that are not modelled. The types of operands are not checked here, but by
    `verify`.
    """
    with uncollected():
        return Modules(_text(text), sources).module()


def parse_on_use(text: str, sources: Sources | None = None) -> Module:
    """The module that `parse` gives; but of several kernels, each has its body read when it is first used,
    if nothing else of the module depends on it. A mistake in such a body raises `ParseError` then.
    """
    with uncollected():
        return Modules(_text(text), sources, on_use=True).module()


def _text(text: object) -> str:
    if not isinstance(text, str):
        raise ParseError(f"parse: the text must be a str, got {shown(text)}")
    return text


def module_of(caller: str, program: object) -> Module:
    """The module of `program`, an argument of the function `caller`: a `Module`, or PTX text, parsed on use.

    Raises `LaunchError` if `program` is neither, and `ParseError` as `parse_on_use` does.
    """
    if isinstance(program, Module):
        return program
    if isinstance(program, str):
        return parse_on_use(program)
    raise LaunchError(f"{caller}: the kernel must be PTX text or a Module, got {shown(program)}")
