"""Expressions in commands: registers, Python variables, arguments, and operators of Python or C."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ptxgen.errors import LaunchError

Lookup = Callable[[str], Any]

_REGISTER: Final = re.compile(r"%[A-Za-z_$][\w$]*(?:\.[xyz])?")
# The nodes of Python's syntax that an expression may have.
_ALLOWED: Final = (
    ast.Expression, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.IfExp, ast.Constant, ast.Name,
    ast.Subscript, ast.Slice, ast.Tuple, ast.boolop, ast.operator, ast.unaryop, ast.cmpop, ast.expr_context,
)  # fmt: skip
_C_OPERATORS: Final = ((r"&&", " and "), (r"\|\|", " or "), (r"!(?!=)", " not "))


class Expression:
    """An expression such as `%r3 == 5 && %tid.x < 8` or `X[%r4]`. Raises `LaunchError` for other text."""

    def __init__(self, text: str) -> None:
        self._text = text.strip()
        self._names: dict[str, str] = {}  # of registers, by the names that Python sees
        words = _REGISTER.sub(self._named, self._text)
        for operator, word in _C_OPERATORS:
            words = re.sub(operator, word, words)
        try:
            tree = ast.parse(words.strip(), mode="eval")
        except (SyntaxError, ValueError):
            raise LaunchError(f"{self._text!r} is no expression, such as %r3 == 5 or X[37]") from None
        for node in ast.walk(tree):
            if not isinstance(node, _ALLOWED):
                raise LaunchError(
                    f"{self._text!r}: an expression has registers, variables, arguments, numbers and "
                    f"operators, got a {type(node).__name__}"
                )
        self._used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        self._code = compile(tree, "<expression>", "eval")

    def __str__(self) -> str:
        return self._text

    def _named(self, match: re.Match[str]) -> str:
        name = "_register_" + re.sub(r"\W", "_", match[0])
        self._names[name] = match[0]
        return f" {name} " if match.start() and match.string[match.start() - 1].isalnum() else name

    def value(self, lookup: Lookup) -> Any:
        """The value, where `lookup` gives that of a register (with its %) or of another name. Raises
        `LaunchError` for an expression that has none.
        """
        values = {name: lookup(self._names.get(name, name)) for name in self._used}
        try:
            return eval(self._code, {"__builtins__": {}}, values)
        except (ArithmeticError, IndexError, TypeError, ValueError) as error:
            raise LaunchError(f"{self._text}: {error}") from error


def scalar(value: Any) -> Any:
    """A number of numpy as one of Python, so that it does not overflow; others as they are."""
    is_number = isinstance(value, np.generic) and value.dtype.kind in "biuf"
    return value.item() if is_number else value


def shown(value: Any) -> str:
    """A value in words; an integer also in hexadecimal digits."""
    value = scalar(value)
    if isinstance(value, int) and not isinstance(value, bool):
        signed = _signed(value)
        return f"{value} ({value:#x}{signed})" if abs(value) > 9 else str(value)
    return str(value)


def _signed(value: int) -> str:
    for bits in (32, 64):
        if 1 << (bits - 1) <= value < 1 << bits and value >> (bits - 8) == 0xFF:
            return f", {value - (1 << bits)} signed"
    return ""
