"""The analysers' source as data: which functions it has, which blocks of statements, and mutants of
it as spans of bytes to replace.

A block is a suite of statements: a test that never enters the block of a mutant cannot notice it.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
FOLDERS: Final = ("ptxgen/check", "ptxgen/interpreter")
# Of the instruction table, which tests of `tests/isa` compare with other witnesses, the modules that decide
# what a sanitizer reports, or which kernels are refused, because of tensor memory.
TABLE: Final = tuple(
    f"ptxgen/isa/{name}.py"
    for name in (
        "mma_descriptor",
        "narrow_matrix",
        "tcgen05",
        "tcgen05_sums",
        "tcgen05_work",
        "tensor_agent",
        "tensor_memory",
    )
)
MODULE: Final = "<module>"  # what is outside of all functions; it runs when the module is imported
HIT: Final = "_analysis_mutation_hit"  # called with a block's number, in source made to be recorded
_LONGEST_LINE: Final = 160  # characters that are shown of a mutant's line

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def files() -> tuple[str, ...]:
    """The files to mutate, relative to the root of the project."""
    paths = [p for folder in FOLDERS for p in sorted((ROOT / folder).rglob("*.py"))]
    return (*(p.relative_to(ROOT).as_posix() for p in paths), *TABLE)


def module_name(file: str) -> str:
    """The name by which a file is imported."""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@dataclass(frozen=True, slots=True)
class Block:
    """A suite of statements: `number` in its function, from 0."""

    function: str
    number: int

    def __str__(self) -> str:
        return f"{self.function}#{self.number}"


class Source:
    """A file's syntax tree, with the byte offsets of each node."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = text
        self.data = text.encode()
        self.tree = ast.parse(text)
        self._starts = [0]
        for line in self.data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self.blocks: list[Block] = [Block(MODULE, 0)]
        self.suites: list[tuple[int, list[ast.stmt]]] = []  # inside of functions, by block
        self.block_of: dict[int, int] = {}  # by id of a statement
        self._number(self.tree.body, "", 0, inside=False)
        self._hashes: dict[str, str] = {}

    def span(self, node: ast.AST) -> tuple[int, int]:
        """The byte offsets at which a syntax node begins and ends."""
        if not isinstance(node, ast.expr | ast.stmt):
            raise TypeError(f"a {type(node).__name__} has no place")
        end_line, end_column = node.end_lineno, node.end_col_offset
        assert end_line is not None
        assert end_column is not None
        return self._offset(node.lineno, node.col_offset), self._offset(end_line, end_column)

    def segment(self, node: ast.AST) -> str:
        """The source text of a syntax node."""
        start, end = self.span(node)
        return self.data[start:end].decode()

    def line_at(self, offset: int) -> int:
        """The number, from 1, of the line with the byte at `offset`."""
        return self.data.count(b"\n", 0, offset) + 1

    def function_hash(self, function: str) -> str:
        """The hash of a function's text; for what is outside of functions, of the whole file."""
        if function not in self._hashes:
            node = self.functions.get(function)
            text = self.text if node is None else self.segment(node)
            self._hashes[function] = hashlib.sha256(text.encode()).hexdigest()[:16]
        return self._hashes[function]

    @functools.cached_property
    def functions(self) -> dict[str, _Function]:
        """The functions by qualified name, without those inside of others."""
        return dict(_functions(self.tree.body, ""))

    def recorded(self) -> ast.Module:
        """The tree with a call of `HIT` at the beginning of each block; call this only once, because it
        changes the tree.
        """
        for block, suite in self.suites:
            call = ast.Expr(ast.Call(ast.Name(HIT, ast.Load()), [ast.Constant(block)], []))
            at = 1 if _is_docstring(suite[0]) else 0
            ast.copy_location(call, suite[0])
            suite.insert(at, call)
        return ast.fix_missing_locations(self.tree)

    def _offset(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def _number(self, suite: list[ast.stmt], name: str, block: int, *, inside: bool) -> None:
        """Record the block number of each statement of a suite."""
        if inside:
            of_function = sum(b.function == name for b in self.blocks)
            self.blocks.append(Block(name, of_function))
            block = len(self.blocks) - 1
            self.suites.append((block, suite))
        for statement in suite:
            self.block_of[id(statement)] = block
            if isinstance(statement, _Function):
                inner = name if inside else _joined(name, statement.name)
                self._number(statement.body, inner, block, inside=True)
            elif isinstance(statement, ast.ClassDef):
                self._number(
                    statement.body, name if inside else _joined(name, statement.name), block, inside=inside
                )
            else:
                for part in _suites(statement):
                    self._number(part, name, block, inside=inside)


def _joined(name: str, more: str) -> str:
    return f"{name}.{more}" if name else more


def _suites(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        part = getattr(statement, field, None)
        if part:
            yield part
    for way in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield way.body


def _functions(suite: list[ast.stmt], name: str) -> Iterator[tuple[str, _Function]]:
    for statement in suite:
        if isinstance(statement, _Function):
            yield _joined(name, statement.name), statement
        elif isinstance(statement, ast.ClassDef):
            yield from _functions(statement.body, _joined(name, statement.name))


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


@functools.cache
def source_of(file: str) -> Source:
    """The parsed source of a file of the checkout."""
    return Source(file, (ROOT / file).read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Mutant:
    """A file with one mistake: the bytes from `start` to `end` are replaced by `text`.

    `before` and `after` are the line where it begins, `what` says the change in words, `block` is
    the number of its block in the file. `nth` distinguishes mutants with equal lines.
    """

    file: str
    function: str
    kind: str
    what: str
    line: int
    before: str
    after: str
    block: int
    start: int
    end: int
    text: str
    nth: int = 0

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """What identifies the mutant in the file of reasons."""
        return self.file, self.function, self.kind, self.before, self.after

    @property
    def source(self) -> str:
        """The text of the file with the mistake."""
        return spliced(source_of(self.file).data, self.start, self.end, self.text).decode()


def spliced(data: bytes, start: int, end: int, text: str) -> bytes:
    """The source's text with the bytes of one span replaced."""
    return data[:start] + text.encode() + data[end:]


def lines_of(source: Source, start: int, end: int, text: str) -> tuple[str, str]:
    """The line where a change begins, before and after it."""
    line = source.line_at(start)
    changed = spliced(source.data, start, end, text)
    return _line(source.data, line), _line(changed, line)


def _line(data: bytes, line: int) -> str:
    return data.split(b"\n", line)[line - 1].decode().strip()[:_LONGEST_LINE]
