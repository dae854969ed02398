"""Names for parts of a kernel's source: `@marked("pipeline: next tile")` before a function.

An instruction knows the function that emitted it (`Instr.origin`), and `mark_of` gives that
function's mark. A mark stays when the function is renamed, and costs nothing while a kernel is
built: nothing of it is emitted.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any, Final, TypeVar

from ptxgen.ir import Origin

F = TypeVar("F", bound=Callable[..., Any])

# By id, because code objects of different files may be equal; each is kept, so that its id is.
_MARKS: Final[dict[int, tuple[CodeType, str]]] = {}


def marked(name: str) -> Callable[[F], F]:
    """A decorator that gives a function the mark `name`, and with it the functions, lambdas and
    comprehensions inside. It is written below `@classmethod`, `@property` and the like.
    """

    def mark(function: F) -> F:
        _mark(function.__code__, name)
        return function

    return mark


def mark_of(origin: Origin | None) -> str:
    """The mark of the function from which an instruction comes; empty if there is none."""
    if origin is None or origin.code is None:
        return ""
    _, name = _MARKS.get(id(origin.code), (None, ""))
    return name


def _mark(code: CodeType, name: str) -> None:
    _MARKS[id(code)] = (code, name)
    for inside in code.co_consts:
        if isinstance(inside, CodeType):
            _mark(inside, name)
