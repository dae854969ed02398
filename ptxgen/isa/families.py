"""Rows that differ by a modifier and an operand, declared from one meaning."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any


def member(
    meaning: Callable[..., Any], doc: str, operands: Iterable[str], modifiers: Iterable[str] = ()
) -> Callable[..., Any]:
    """`meaning`, as a function with the parameters of one row of a family.

    It takes the machine, these operands and, by keyword, these modifiers, and calls `meaning` with
    all of them by name; the ones that other rows have are missing. `doc` becomes its docstring.
    """

    def of_row(machine: object, *given: object, **named: object) -> Any:
        return meaning(machine, **dict(zip(operands, given, strict=False)), **named)

    operands = tuple(operands)
    kinds = inspect.Parameter
    parameters = [kinds(name, kinds.POSITIONAL_OR_KEYWORD) for name in ("machine", *operands)]
    parameters += [kinds(name, kinds.KEYWORD_ONLY) for name in modifiers]
    of_row.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    of_row.__doc__ = doc
    return of_row


def hinted(
    meaning: Callable[..., Any], doc: str, *hints: str, **fixed: object
) -> Callable[..., Any]:
    """`meaning` as the function of a row that has the modifiers and operands `hints` too, which
    change no value, and for which the parameters `fixed` are always the same; `doc` says what the
    row means.
    """

    @functools.wraps(meaning)
    def whole(**given: Any) -> Any:
        return meaning(**{name: x for name, x in given.items() if name not in hints}, **fixed)

    known = [p for p in inspect.signature(meaning).parameters.values() if p.name not in fixed]
    more = [inspect.Parameter(hint, inspect.Parameter.KEYWORD_ONLY) for hint in hints]
    whole.__signature__ = inspect.Signature([*known, *more])  # type: ignore[attr-defined]
    whole.__doc__ = doc
    return whole
