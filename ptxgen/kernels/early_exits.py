"""A `return`, `break` or `continue` of Python that stands for one of the GPU by mistake."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Final

from ptxgen.errors import ConfigError

_CURES: Final[dict[type[ast.stmt], tuple[str, str]]] = {
    ast.Return: ("return", "give 'k.when' the opposite condition and put the rest under it"),
    ast.Break: ("break", "use k.break_if(condition) in a loop of the GPU"),
    ast.Continue: ("continue", "give 'k.when' the opposite condition and put the rest under it"),
}


def refuse_early_exits(function: Callable[..., None]) -> None:
    """Raise `ConfigError` for a `return`, `break` or `continue` that is a statement of a `with` of the
    function itself: Python leaves the function or its own loop there, whatever the condition on the
    GPU, and leaves out the instructions that follow. Under an `if` of Python it is a choice, and
    passes. A function whose source is not to be had passes, too.
    """
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return
    for statement in _statements_of_with(tree.body[0]):
        if type(statement) in _CURES:
            word, cure = _CURES[type(statement)]
            raise ConfigError(
                f"kernel {function.__name__}: {word!r} in line {first + statement.lineno - 1} is inside "
                f"'with': Python obeys it while the kernel is built, and leaves out what follows; {cure}"
            )


def _statements_of_with(node: ast.AST) -> Iterator[ast.stmt]:
    """The statements of all blocks `with` below `node`, but for those of functions in it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            if isinstance(child, ast.With):
                yield from child.body
            yield from _statements_of_with(child)
