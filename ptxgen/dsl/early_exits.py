"""Refuses a `return`, `break` or `continue` of Python that is meant for the GPU by mistake.

Python obeys such a statement while the kernel is built, whatever the condition on the GPU, and leaves
out the instructions that follow. `refuse_early_exits` is called where a block of the GPU is entered, so
it sees the kernel's function and every function that it calls, methods and context managers as well.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator, Sequence
from inspect import CO_GENERATOR
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Final, NamedTuple

from ptxgen.errors import ConfigError

if TYPE_CHECKING:
    import ast

# Blocks that run more than once: to leave one at its end is a choice that only the GPU can make.
_LOOPS: Final = ("dealt", "grid_strided", "loop", "pipeline", "strided", "tiles", "while_")
_ENTERS: Final = ("__enter__", "enter_context")  # functions that enter a block for their caller
_WORDS: Final = ("return", "break", "continue")
_ONE_LINE: Final = re.compile(rf"\s*with\b.*:\s*({'|'.join(_WORDS)})\b")
_OPPOSITE: Final = "give 'k.when' the opposite condition and put the rest under it"
_BREAK_IF: Final = "use k.break_if(condition) in a loop of the GPU"
_RESULT: Final = (
    "make a variable before the block, v = k.var(type, 0), set it inside, v.set(x), and return v after it"
)


class _Exit(NamedTuple):
    """A statement that leaves a `with` each time that the `with` is run. `is_last` says whether
    Python would run nothing else of the function (of `continue`: of the iteration) without it.
    """

    word: str
    line: int
    is_last: bool
    has_value: bool

    def cure(self, kind: str) -> str:
        """The advice in an error that a Python exit from a block of this kind raises."""
        if self.has_value:
            return _RESULT
        leaves_loop = self.word == "break" or (self.word == "return" and kind in _LOOPS)
        return _BREAK_IF if leaves_loop else _OPPOSITE


class _With(NamedTuple):
    """A `with` statement: the first and the last line of its head, its last line, and the exits in its
    body.
    """

    first: int
    head: int
    last: int
    exits: tuple[_Exit, ...]


# By the id of a function's code, which is kept, so that the id stays unique.
_known: dict[int, tuple[CodeType, tuple[_With, ...]]] = {}


class Outer(NamedTuple):
    """A `with` that a `return`, `break` or `continue` leaves, and that has called a context manager of the
    user's, which enters a block of the GPU: the id of its frame, and the error if the block ends with it.
    """

    frame: int
    error: ConfigError


def refuse_early_exits(kernel: str, kind: str, frame: FrameType) -> tuple[Outer, ...]:
    """Raise `ConfigError` if the `with` that enters a block of this kind in `frame` has an unconditional
    `return`, `break` or `continue`, so that Python leaves out the instructions after it. The result is for
    `refuse_outer_exits`, when the block ends.

    Under an `if` of Python such a statement is a choice, and passes; so does a `return` with which the
    function would end anyway, except in a loop of the GPU. Code without source passes.
    """
    for error in _errors(kernel, kind, frame, stacked=False):
        raise error
    exits: list[Outer] = []
    at: FrameType | None = frame
    while at is not None:
        name, outer = at.f_code.co_name, at.f_back
        if at.f_code.co_flags & CO_GENERATOR and outer is not None and outer.f_code.co_name == "__enter__":
            at = outer.f_back  # of a function of contextlib.contextmanager
        elif name in _ENTERS:
            at = outer
        else:
            break
        if at is not None:
            exits += [Outer(id(at), e) for e in _errors(kernel, kind, at, stacked=name == "enter_context")]
    return tuple(exits)


def refuse_outer_exits(outer: Sequence[Outer], frame: FrameType) -> None:
    """Raise the error of an outer `with` whose end is the end of the block; `frame` calls its `__exit__`."""
    errors = {exit.frame: exit.error for exit in reversed(outer)}
    at: FrameType | None = frame
    while at is not None:
        caller = at.f_back
        if at.f_code.co_name == "__exit__" and id(caller) in errors:
            raise errors[id(caller)]
        at = caller


def _errors(kernel: str, kind: str, frame: FrameType, *, stacked: bool) -> Iterator[ConfigError]:
    """The errors for exits from the `with` whose head a frame is in, or whose body it is in if a block is
    `stacked`, by contextlib.ExitStack.
    """
    code, line = frame.f_code, frame.f_lineno
    withs = _withs_of(frame)
    around = [w for w in withs if (w.head < line <= w.last if stacked else w.first <= line <= w.head)]
    for leave in around[-1].exits if around else ():
        if kind in _LOOPS or not leave.is_last:
            yield ConfigError(
                f"kernel {kernel}: {leave.word!r} in {code.co_filename}:{leave.line}, in "
                f"{code.co_qualname}, is inside 'with k.{kind}(...)': Python obeys it while the kernel "
                f"is built, and leaves out what follows; {leave.cure(kind)}"
            )


def _withs_of(frame: FrameType) -> tuple[_With, ...]:
    """The `with` statements of a frame's function, in the order of their lines."""
    code = frame.f_code
    known = _known.get(id(code))
    if known is None:
        lines = linecache.getlines(code.co_filename, frame.f_globals)
        known = _known[id(code)] = code, tuple(_withs_in(code, lines))
    return known[1]


def _withs_in(code: CodeType, lines: Sequence[str]) -> Iterator[_With]:
    import ast

    first = code.co_firstlineno
    source = _source(code, lines)
    if not _may_leave(source):
        return
    head = "if True:\n" if source[0][:1].isspace() else "\n"
    try:
        tree = ast.parse(head + "".join(source))
    except (SyntaxError, ValueError):  # the file is another one than when it was imported
        return
    ast.increment_lineno(tree, first - 2)
    for statement, tail in _with_statements(tree.body, _FUNCTION):
        yield _With(
            statement.lineno,
            max(item.context_expr.end_lineno or 0 for item in statement.items),
            statement.end_lineno or 0,
            tuple(_exits(statement.body, tail)),
        )


def _source(code: CodeType, lines: Sequence[str]) -> Sequence[str]:
    """The lines of a function: those that its code object names, and the indented lines after them."""
    if code.co_name == "<module>":
        return lines
    first = code.co_firstlineno
    last = _last_line(code)
    margin = _margin(lines[first - 1]) if first <= len(lines) else 0
    while last < len(lines) and (not lines[last].strip() or _margin(lines[last]) > margin):
        last += 1
    return lines[first - 1 : last]


def _margin(line: str) -> int:
    return len(line) - len(line.lstrip())


def _last_line(code: CodeType) -> int:
    inner = [_last_line(const) for const in code.co_consts if isinstance(const, CodeType)]
    return max([code.co_firstlineno, *inner, *(line or 0 for _, _, line in code.co_lines())])


def _may_leave(source: Sequence[str]) -> bool:
    """Whether a `with` may have an early exit, by first words and indents of lines; parsing is slower."""
    withs = [_margin(line) for line in source if line.lstrip().startswith("with")]
    exits = [_margin(line) for line in source if line.lstrip().startswith(_WORDS)]
    return bool(withs) and (max(exits, default=-1) > min(withs) or any(map(_ONE_LINE.match, source)))


class _Tail(NamedTuple):
    """Whether nothing follows a statement in its function, and in its iteration of a loop of Python."""

    function: bool
    iteration: bool


_FUNCTION: Final = _Tail(function=True, iteration=False)
_ITERATION: Final = _Tail(function=False, iteration=True)
_NOT_LAST: Final = _Tail(function=False, iteration=False)


def _with_statements(body: Sequence[ast.stmt], tail: _Tail) -> Iterator[tuple[ast.With, _Tail]]:
    """The `with` statements at any depth, outer ones first; `tail` is that of the last statement of the
    body.
    """
    import ast

    for statement, at in _statements(body, tail):
        if isinstance(statement, ast.With):
            yield statement, at
        for inner, last in _bodies(statement, at):
            yield from _with_statements(inner, last)


def _exits(body: Sequence[ast.stmt], tail: _Tail) -> Iterator[_Exit]:
    """The unconditional `return`, `break` and `continue` statements that leave a `with` of this body."""
    import ast

    for statement, at in _statements(body, tail):
        match statement:
            case ast.Return(value=value):
                yield _Exit("return", statement.lineno, at.function, value is not None)
            case ast.Break():
                yield _Exit("break", statement.lineno, False, False)
            case ast.Continue():
                yield _Exit("continue", statement.lineno, at.iteration, False)
            case _:
                for inner, last in _unless_raised(statement, at):
                    yield from _exits(inner, last)


def _statements(body: Sequence[ast.stmt], tail: _Tail) -> Iterator[tuple[ast.stmt, _Tail]]:
    """The statements of a body, each with what follows it."""
    for n, statement in enumerate(body):
        yield statement, tail if n + 1 == len(body) else _NOT_LAST


def _bodies(statement: ast.stmt, at: _Tail) -> Iterator[tuple[Sequence[ast.stmt], _Tail]]:
    """The bodies of a statement, each with what follows its last statement."""
    import ast

    yield from _unless_raised(statement, at)
    match statement:
        case ast.FunctionDef(body=body) | ast.ClassDef(body=body):
            yield body, _FUNCTION
        case ast.For(body=body, orelse=orelse) | ast.While(body=body, orelse=orelse):
            yield body, _ITERATION
            yield orelse, at
        case ast.If(body=body, orelse=orelse):
            yield body, at
            yield orelse, at
        case ast.Match(cases=cases):
            for case in cases:
                yield case.body, at
        case ast.Try(handlers=handlers, finalbody=after) | ast.TryStar(handlers=handlers, finalbody=after):
            for handler in handlers:
                yield handler.body, _NOT_LAST if after else at


def _unless_raised(statement: ast.stmt, at: _Tail) -> Iterator[tuple[Sequence[ast.stmt], _Tail]]:
    """The bodies of a statement that run unless an exception is raised before them."""
    import ast

    if isinstance(statement, ast.With):
        yield statement.body, at
    elif isinstance(statement, ast.Try | ast.TryStar):
        before = _NOT_LAST if statement.finalbody else at
        yield statement.body, _NOT_LAST if statement.orelse else before
        yield statement.orelse, before
        yield statement.finalbody, at
