"""Checks of declared names: whether PTX allows them, and whether each has one meaning."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from ptxgen.check.problems import Problem
from ptxgen.check.verify.symbols import dynamic_shared
from ptxgen.ir import Function, Instr, Kernel, Label, Module, Param, Prototype, Targets, end_of_aliases
from ptxgen.isa.special import SPECIALS
from ptxgen.register_names import range_of
from ptxgen.types import REGISTER_PREFIX, TYPES

# PTX ISA, section "Identifiers".
_IDENTIFIER: Final = re.compile(r"[A-Za-z][A-Za-z0-9_$]*|[_$%][A-Za-z0-9_$]+")
# PTX ISA, section "Predefined Identifiers".
_TAKEN: Final = frozenset({"WARP_SZ"}) | {n for name in SPECIALS for n in (name, name.split(".")[0])}
_ALIAS_SINCE: Final = (6, 3)  # PTX ISA, ".alias"
# PTX ISA, section "Fundamental Types"; packed types are for instructions only, and b128 for registers.
_NO_PARAM: Final = frozenset({"pred", "b128", "bf16", "f16x2", "bf16x2"})


def module_name_problems(module: Module) -> Iterator[Problem]:
    """The problems of the names of a module's kernels, functions and variables."""
    kernels = [kernel.name for kernel in module.kernels]
    for name in kernels:
        if kernels.count(name) > 1:
            message = f"{kernels.count(name)} kernels have this name; rename all but one"
            yield Problem("symbol", message, name)
    before = dict.fromkeys(kernels, "a kernel")
    arrays = dict.fromkeys(k.dynamic_shared for k in module.kernels if k.dynamic_shared)
    others = [("a dynamic shared array", name) for name in arrays]
    others += [("a function", f.name) for f in module.functions]
    others += [("a variable", v.name) for v in module.variables]
    yield from _alias_problems(module)
    for what, name in others:
        if name in before:
            yield Problem("symbol", f"{name!r} is {before[name]} and {what}; rename one")
        before.setdefault(name, what)
        if what == "a variable" and (name in _TAKEN or not _IDENTIFIER.fullmatch(name)):
            yield Problem("symbol", _misnamed(what, name))


def _alias_problems(module: Module) -> Iterator[Problem]:
    """The problems of functions that are other names of functions."""
    functions = {f.name: f for f in module.functions}
    aliased = {f.name: f.alias for f in module.functions if f.alias}
    for function in module.functions:
        if not function.alias:
            continue
        wrong, of = "", functions.get(end_of_aliases(function.name, aliased))
        if function.body is not None:
            wrong = "has a body; remove the body or the .alias"
        elif of is None:
            wrong = f"is the alias of {function.alias!r}, which the module does not have"
        elif of.body is None:
            wrong = f"is the alias of {of.name!r}, which has no body; define {of.name!r} in the module"
        elif _signature(function) != _signature(of):
            wrong = f"and {of.name!r}, which it is the alias of, differ in their parameters or results"
        elif module.version < _ALIAS_SINCE:
            wrong = f"is an alias, which needs PTX {'.'.join(map(str, _ALIAS_SINCE))}"
        if wrong:
            yield Problem("symbol", f"function {function.name!r} {wrong}")


def _signature(function: Function) -> list[list[Param]]:
    """The parameters and results without their names."""
    return [[replace(p, name="") for p in of] for of in (function.results, function.params)]


def name_problems(kernel: Kernel | Function) -> Iterator[Problem]:
    """The problems of the names of a kernel or a function, its parameters, registers, variables and
    labels.
    """
    yield from _duplicates(kernel)
    declared = tuple(_declared(kernel))
    yield from _identifiers(kernel, declared)
    yield from _shadows(kernel, declared)
    yield from _registers(kernel)
    for param in _params(kernel):
        wrong = param.type not in TYPES or (param.type in _NO_PARAM and not param.register)
        if wrong:
            message = f"parameter {param.name!r} cannot be of type {param.type!r}; use u32 or u64"
            yield Problem("symbol", message, kernel.name)


def _params(kernel: Kernel | Function) -> tuple[Param, ...]:
    return (*kernel.results, *kernel.params) if isinstance(kernel, Function) else kernel.params


def _misnamed(what: str, name: str) -> str:
    return (
        f"{what} cannot be called {name!r}; use letters, digits, _ and $, begin with a letter, and "
        "avoid PTX's own names"
    )


def _duplicates(kernel: Kernel | Function) -> Iterator[Problem]:
    regions = kernel.regions if isinstance(kernel, Kernel) else ()
    shared = [*(s.name for s in kernel.shared), dynamic_shared(kernel)]
    groups = (
        # `%r<8>` and `%r` are different names.
        ("register", "registers", [r.prefix for r in kernel.registers if r.count]),
        ("register", "registers", [r.prefix for r in kernel.registers if not r.count]),
        ("symbol", "parameters", [p.name for p in _params(kernel)]),
        ("symbol", "shared variables", shared),
        ("symbol", "variables", [v.name for v in kernel.variables]),
        ("shared", "regions", [r.name for r in regions]),
    )
    for kind, what, names in groups:
        for name, count in Counter(names).items():
            if count > 1:
                message = f"{count} {what} are called {name!r}; rename all but one"
                yield Problem(kind, message, kernel.name)


def _declared(kernel: Kernel | Function) -> Iterator[tuple[str, str]]:
    """The kind of each declared name and the name, in the order of the text."""
    if dynamic_shared(kernel) not in ("", kernel.name):  # a module's array is checked with the module
        yield "a shared variable", dynamic_shared(kernel)
    yield "a kernel" if isinstance(kernel, Kernel) else "a function", kernel.name
    yield from (("a parameter", param.name) for param in _params(kernel) if not param.register)
    yield from (("a shared variable", shared.name) for shared in kernel.shared)
    yield from (("a variable", variable.name) for variable in kernel.variables)
    for s in kernel.body or ():
        if s.__class__ is not Instr and isinstance(s, (Label, Targets, Prototype)):
            yield "a label", s.name


def _identifiers(kernel: Kernel | Function, declared: Iterable[tuple[str, str]]) -> Iterator[Problem]:
    prefixes = (("a register", f"{r.prefix}{'0' if r.count else ''}") for r in kernel.registers)
    for what, name in dict.fromkeys((*declared, *prefixes)):
        if name in _TAKEN or not _IDENTIFIER.fullmatch(name):
            kind = "register" if what == "a register" else "symbol"
            yield Problem(kind, _misnamed(what, name), kernel.name)


def _shadows(kernel: Kernel | Function, declared: Iterable[tuple[str, str]]) -> Iterator[Problem]:
    """Names that are declared as two kinds; duplicates of one kind are reported elsewhere."""
    ranges = {r.prefix: r for r in kernel.registers if r.count}
    single = {r.prefix for r in kernel.registers if not r.count}
    before: dict[str, str] = {}
    for what, name in declared:
        first = before.setdefault(name, what)
        # A label or a variable may have the name of its kernel: it is visible only inside.
        if first not in (what, "a kernel", "a function"):
            message = f"{name!r} is {first} and {what}; rename one"
            yield Problem("symbol", message, kernel.name)
        if what not in ("a kernel", "a function") and (name in single or range_of(name, ranges)):
            message = f"{name!r} is {what} and a register; rename one"
            yield Problem("symbol", message, kernel.name)


def _registers(kernel: Kernel | Function) -> Iterator[Problem]:
    """Classes that registers cannot have, and ranges with a register in common."""
    for r in kernel.registers:
        if r.declared not in REGISTER_PREFIX:
            classes = ", ".join(REGISTER_PREFIX)
            message = f"registers {r.prefix!r} must be one of {classes}, got {r.declared!r}"
            yield Problem("register", message, kernel.name)
        if r.count < 0:
            message = f"registers {r.prefix!r} must have a count of 1 or more, or 0 for one without"
            yield Problem("register", f"{message} a number, got {r.count}", kernel.name)
        # The lowest number that two ranges have in common, if any, is the first of the one with the
        # longer prefix.
        first = f"{r.prefix}{'0' if r.count else ''}"
        others = {o.prefix: o for o in kernel.registers if o.count and o.prefix != r.prefix}
        shared = range_of(first, others)
        if shared is not None:
            message = f"{first!r} is declared by {r.prefix!r} and by {shared.prefix!r}; rename one"
            yield Problem("register", message, kernel.name)
