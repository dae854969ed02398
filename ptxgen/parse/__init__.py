"""PTX text to IR: a recursive descent, the inverse of `ptxgen.text` on what that prints.

PTX is free-form: several instructions may share a line and one may span lines. What is read are
whole modules as nvcc and Triton write them, with these rules:

* a `//` comment that has a line of a body to itself is a `Note`; one at the head of the file is
  the module's header; `// region …` among the declarations is a `Region`; others are skipped, and
  so are `.file`, `.loc`, `.section`, `.attribute`, and pragmas outside of kernels' bodies;
* registers take the class their type is kept in: `.reg .u32` is read as `.reg .b32`;
* constant expressions are evaluated, initial values become bytes;
* inner scopes are dissolved; what they declare gets names of its own (`ptxgen.parse.names`);
* a declaration of a function that is also defined is skipped;
* the first `.extern .shared` array that a kernel uses is its `dynamic_shared`; those that are no
  kernel's are variables of the module. All of them begin at the same address;
* a variable of the module that is declared in a body gets a new name.

Every error is a `ParseError` with line, column, the line's text and a caret.
"""

from __future__ import annotations

from ptxgen.errors import LaunchError, ParseError, shown
from ptxgen.ir import Module
from ptxgen.parse.module import Modules
from ptxgen.parse.names import range_of

__all__ = ["module_of", "parse", "range_of"]


def parse(text: str) -> Module:
    """The module that a PTX text says. `Instr.origin` is the line the instruction begins at.

    Raises `ParseError` for text that is not PTX, for instructions that are not in the table, and
    for parts of PTX that are not modelled. Whether the operands fit is for `verify` to say.
    """
    if not isinstance(text, str):
        raise ParseError(f"parse: the text must be a str, got {shown(text)}")
    return Modules(text).module()


def module_of(who: str, given: object) -> Module:
    """The module that `who` was given, as it is or as text. Raises `LaunchError` for what is
    neither, and `ParseError` as `parse` does.
    """
    if isinstance(given, Module):
        return given
    if isinstance(given, str):
        return parse(given)
    raise LaunchError(f"{who}: the kernel must be PTX text or a Module, got {shown(given)}")
