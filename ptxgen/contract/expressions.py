"""Expressions of sizes in a contract, as data that a program of any language evaluates without a parser.

An expression is an integer, the name of a size or a stride, or an object with one key: `{"times": [a, b,
…]}`, `{"plus": [a, b, …]}`, `{"div": [a, b]}` (a quotient without a remainder) and `{"ceil_div": [a, b]}` (a
quotient rounded up).
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

Expression = int | str | dict[str, list[Any]]

TIMES, PLUS, DIV, CEIL_DIV = "times", "plus", "div", "ceil_div"
_OPERATORS: Final[dict[type[ast.operator], str]] = {ast.Mult: TIMES, ast.Add: PLUS}


def expression(text: int | str) -> Expression:
    """The expression of a text of integers, names, `*` and `+`, such as `"4 * heads"`; factors of 1 are
    left out. Raises `ValueError` for any other text.
    """
    try:
        return _expression(ast.parse(str(text), mode="eval").body)
    except SyntaxError as error:
        raise ValueError(f"{text!r} is no expression of sizes: {error.msg}") from error


def _expression(node: ast.expr) -> Expression:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return name
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _joined(_OPERATORS[type(op)], [_expression(left), _expression(right)])
    raise ValueError(f"{ast.unparse(node)!r} must be made of integers and names by * and +")


def product(*factors: Expression) -> Expression:
    """The expression for the product of some expressions; factors of 1 are left out."""
    return _joined(TIMES, [*factors])


def _joined(how: str, parts: list[Expression]) -> Expression:
    """The product or the sum of expressions; nested ones of the same kind are flattened."""
    flat = [
        each for part in parts for each in (part[how] if isinstance(part, dict) and how in part else [part])
    ]
    neutral = 1 if how == TIMES else 0
    operands = [part for part in flat if part != neutral]
    if len(operands) < 2:
        return operands[0] if operands else neutral
    return {how: operands}


def names_in(of: Expression) -> Iterator[str]:
    """The names that an expression uses, each as often as it does."""
    if isinstance(of, str):
        yield of
    elif isinstance(of, dict):
        for part in operands(of)[1]:
            yield from names_in(part)


def operands(of: dict[str, list[Any]]) -> tuple[str, list[Expression]]:
    """The operation of an expression, such as "times", and the operands that it combines."""
    ((how, parts),) = of.items()
    return how, parts


def evaluated(of: Expression, names: Mapping[str, int]) -> int:
    """The value of an expression. Raises `ValueError` for a quotient with a remainder, `KeyError` for a name
    that `names` lacks.
    """
    if isinstance(of, int):
        return of
    if isinstance(of, str):
        return names[of]
    how, parts = operands(of)
    values = [evaluated(part, names) for part in parts]
    if how == TIMES:
        return math.prod(values)
    if how == PLUS:
        return sum(values)
    above, below = values
    if how == DIV and above % below:
        raise ValueError(f"{formula(of)} must be a whole number, got {above} / {below}")
    return -(-above // below)


def formula(of: Expression) -> str:
    """An expression as text for readers, such as `ceil(seq_q / 128) * heads`."""
    if not isinstance(of, dict):
        return str(of)
    how, parts = operands(of)
    if how == CEIL_DIV:
        above, below = parts
        return f"ceil({_bracketed(above, PLUS)} / {_bracketed(below, PLUS, TIMES, DIV)})"
    joint = {TIMES: " * ", PLUS: " + ", DIV: " / "}[how]
    inner = {TIMES: (PLUS, DIV), PLUS: (), DIV: (PLUS, TIMES, DIV)}[how]
    return joint.join(_bracketed(part, *inner) for part in parts)


def _bracketed(of: Expression, *operations: str) -> str:
    """An expression as text, in brackets if its operation is one of `operations`."""
    text = formula(of)
    return f"({text})" if isinstance(of, dict) and operands(of)[0] in operations else text
