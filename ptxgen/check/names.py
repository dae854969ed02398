"""The names that a kernel declares: whether PTX can have them, and whether each means one thing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from ptxgen.check.problems import Problem
from ptxgen.ir import Kernel, Label
from ptxgen.isa.special import SPECIALS
from ptxgen.parse import range_of
from ptxgen.types import REGISTER_PREFIX, TYPES

# PTX ISA, section "Identifiers".
_IDENTIFIER: Final = re.compile(r"[A-Za-z][A-Za-z0-9_$]*|[_$%][A-Za-z0-9_$]+")
# PTX ISA, section "Predefined Identifiers".
_TAKEN: Final = frozenset({"WARP_SZ"}) | {
    n for name in SPECIALS for n in (name, name.split(".")[0])
}
# PTX ISA, section "Fundamental Types"; packed types are for instructions only.
_NO_PARAM: Final = frozenset({"pred", "bf16", "f16x2", "bf16x2"})


def name_problems(kernel: Kernel) -> Iterator[Problem]:
    """Everything wrong with the names of a kernel, its parameters, registers, variables, labels."""
    yield from _duplicates(kernel)
    yield from _identifiers(kernel)
    yield from _shadows(kernel)
    yield from _registers(kernel)
    for param in kernel.params:
        if param.type not in TYPES or param.type in _NO_PARAM:
            message = f"parameter {param.name!r} cannot be of type {param.type!r}; use u32 or u64"
            yield Problem("symbol", message, kernel.name)


def _duplicates(kernel: Kernel) -> Iterator[Problem]:
    groups = (
        ("register", "registers", [r.prefix for r in kernel.registers]),
        ("symbol", "parameters", [p.name for p in kernel.params]),
        ("symbol", "shared variables", [*(s.name for s in kernel.shared), kernel.dynamic_shared]),
        ("shared", "regions", [r.name for r in kernel.regions]),
    )
    for kind, what, names in groups:
        for name in dict.fromkeys(names):
            if names.count(name) > 1:
                message = f"{names.count(name)} {what} are called {name!r}; rename all but one"
                yield Problem(kind, message, kernel.name)


def _declared(kernel: Kernel) -> Iterator[tuple[str, str]]:
    """What each name is, and the name, in the order of the text."""
    if kernel.dynamic_shared:
        yield "a shared variable", kernel.dynamic_shared
    yield "a kernel", kernel.name
    yield from (("a parameter", param.name) for param in kernel.params)
    yield from (("a shared variable", shared.name) for shared in kernel.shared)
    yield from (("a label", s.name) for s in kernel.body if s.__class__ is Label)


def _identifiers(kernel: Kernel) -> Iterator[Problem]:
    prefixes = (("a register", f"{r.prefix}{'0' if r.count else ''}") for r in kernel.registers)
    for what, name in dict.fromkeys((*_declared(kernel), *prefixes)):
        if name in _TAKEN or not _IDENTIFIER.fullmatch(name):
            message = (
                f"{what} cannot be called {name!r}; use letters, digits, _ and $, begin with a "
                "letter, and avoid PTX's own names"
            )
            yield Problem("register" if what == "a register" else "symbol", message, kernel.name)


def _shadows(kernel: Kernel) -> Iterator[Problem]:
    """Names of two kinds; duplicates of one kind are reported elsewhere."""
    ranges = {r.prefix: r for r in kernel.registers}
    single = {r.prefix for r in kernel.registers if not r.count}
    before: dict[str, str] = {}
    for what, name in _declared(kernel):
        first = before.setdefault(name, what)
        # A label or a variable may be called as the kernel is: they are seen only inside of it.
        if first not in (what, "a kernel"):
            message = f"{name!r} is {first} and {what}; rename one"
            yield Problem("symbol", message, kernel.name)
        if what != "a kernel" and (name in single or range_of(name, ranges)):
            message = f"{name!r} is {what} and a register; rename one"
            yield Problem("symbol", message, kernel.name)


def _registers(kernel: Kernel) -> Iterator[Problem]:
    """Classes that registers cannot have, and ranges with a register in common."""
    for r in kernel.registers:
        if r.declared not in REGISTER_PREFIX:
            classes = ", ".join(REGISTER_PREFIX)
            message = f"registers {r.prefix!r} must be one of {classes}, got {r.declared!r}"
            yield Problem("register", message, kernel.name)
        if r.count < 0:
            message = f"registers {r.prefix!r} must have a count of 1 or more, or 0 for one without"
            yield Problem("register", f"{message} a number, got {r.count}", kernel.name)
        # The least number that both have, if any, is that of the first of the longer prefix.
        first = f"{r.prefix}{'0' if r.count else ''}"
        others = {other.prefix: other for other in kernel.registers if other.prefix != r.prefix}
        shared = range_of(first, others)
        if shared is not None:
            message = f"{first!r} is declared by {r.prefix!r} and by {shared.prefix!r}; rename one"
            yield Problem("register", message, kernel.name)
