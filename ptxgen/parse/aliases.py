"""Other names of functions (`.alias`): what calls a function by one of them calls it by its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from ptxgen.ir import Function, Kernel, Label, Module, Prototype, Targets, end_of_aliases
from ptxgen.parse.names import renamed

_Body = TypeVar("_Body", Kernel, Function)


def without_other_names(module: Module) -> Module:
    """The module with the names of the functions themselves wherever it uses their aliases. The declarations
    of the aliases stay, for callers in other modules.
    """
    aliased = {f.name: f.alias for f in module.functions if f.alias}
    if not aliased:
        return module
    names = {name: end_of_aliases(name, aliased) for name in aliased}
    variables = tuple(
        replace(v, pointers=tuple(replace(p, symbol=names.get(p.symbol, p.symbol)) for p in v.pointers))
        for v in module.variables
    )
    return replace(
        module,
        kernels=tuple(_using(names, kernel) for kernel in module.kernels),
        functions=tuple(_using(names, f) if f.body is not None else f for f in module.functions),
        variables=variables,
    )


def _using(names: Mapping[str, str], of: _Body) -> _Body:
    body = of.body or ()
    hidden = {p.name for p in of.params} | {v.name for v in of.variables} | {s.name for s in of.shared}
    hidden |= {s.name for s in body if isinstance(s, Label | Targets | Prototype)}
    visible = {name: new for name, new in names.items() if name not in hidden}
    return replace(of, body=tuple(renamed(statement, visible) for statement in body))
