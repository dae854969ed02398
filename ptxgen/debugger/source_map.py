"""The locations of a kernel's instructions: lines of PTX, and lines of Python, CUDA C++ or another source."""

from __future__ import annotations

import ast
import linecache
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from types import CodeType
from typing import Final

from ptxgen.errors import LaunchError, did_you_mean
from ptxgen.ir import Instr, Location, Module, Origin, Reg
from ptxgen.parse import parse
from ptxgen.text import render, render_instr

PTX: Final = "ptx"
_SHOWN: Final = 5  # lines before and after the current one in a listing


@dataclass(frozen=True, slots=True)
class Target:
    """Where a breakpoint is: the name of a file, or PTX, and a line; `starts` are the ids of the instructions
    at which threads come to that line.
    """

    file: str
    line: int
    starts: frozenset[int]

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class SourceMap:
    """The lines of a module's instructions.

    `lines` are those of its PTX text. An instruction's line of Python is that of the user's function:
    `renamed` has the origin to show for instructions that a function of this package emits. Instructions are
    known by the ids of their objects.
    """

    def __init__(self, module: Module, renamed: Mapping[CodeType, Origin], text: str | None = None) -> None:
        self.lines: Sequence[str] = (render(module) if text is None else text).splitlines()
        self._instrs = _instructions(module)
        parsed = self._instrs if text is not None else _instructions(parse(render(module)))
        self._ptx: dict[int, int] = {}
        self._sources: dict[int, Location] = {}
        for instr, other in zip(self._instrs, parsed, strict=True):
            self._ptx[id(instr)] = other.origin.ptx_line if other.origin else 0
            origin = instr.origin and ((instr.origin.code and renamed.get(instr.origin.code)) or instr.origin)
            if origin and origin.source is not None:
                self._sources[id(instr)] = origin.source
        counts = Counter(source.file for source in self._sources.values())
        self.main = counts.most_common(1)[0][0] if counts else ""  # the file of most instructions
        self._paths = {_name(path): path for path in counts}

    def ptx_line(self, instr: Instr) -> int:
        """The line of the PTX text, from 1."""
        return self._ptx[id(instr)]

    def source(self, instr: Instr) -> Location | None:
        """The line of the source, if it is known."""
        return self._sources.get(id(instr))

    def line_of(self, instr: Instr) -> tuple[str, int]:
        """The file and the line that `next` goes on from: of the source, else of PTX."""
        source = self.source(instr)
        return (PTX, self.ptx_line(instr)) if source is None else (source.file, source.line)

    def short(self, source: Location) -> str:
        """A line of the source as `kernels.py:12`."""
        return f"{_name(source.file)}:{source.line}"

    def words(self, instr: Instr) -> list[str]:
        """The location of an instruction: a line for its source, if that is known, with the calls that were
        inlined, and one for its PTX.
        """
        shown = []
        source = self.source(instr)
        while source is not None:
            shown.append(_row(self.short(source), _text(source)))
            source = source.inlined_at
        return [*shown, _row(f"ptx:{self.ptx_line(instr)}", render_instr(instr))]

    # ------------------------------------------------------------------------------------ where to stop

    def target(self, words: str) -> Target:
        """What `12`, `kernels.py:12` or `ptx:40` means. A line alone is one of the source, or of PTX if no
        source is known. Raises `LaunchError` for a line without instructions.
        """
        match = re.fullmatch(r"(?:(.+):)?(\d+)", words)
        if match is None:
            raise LaunchError(f"a location is LINE, FILE:LINE or ptx:LINE, got {words!r}")
        file, line = match[1] or (_name(self.main) or PTX), int(match[2])
        if file != PTX and file not in self._paths:
            known = (PTX, *self._paths)
            raise LaunchError(
                f"no instruction is from {file}{did_you_mean(file, known)} ({', '.join(known)})"
            )
        numbers = [self._line_in(file, instr) for instr in self._instrs]
        starts = {
            id(self._instrs[n])
            for n, at in enumerate(numbers)
            if at == line and (not n or numbers[n - 1] != at)
        }
        if not starts:
            known_lines = sorted({n for n in numbers if n})
            after = known_lines[bisect_right(known_lines, line) :][:1] or known_lines[-1:]
            raise LaunchError(f"no instruction is from line {line} of {file}; the nearest is {after[0]}")
        return Target(file, line, frozenset(starts))

    def _line_in(self, file: str, instr: Instr) -> int:
        if file == PTX:
            return self.ptx_line(instr)
        source = self.source(instr)
        return source.line if source is not None and source.file == self._paths[file] else 0

    # ---------------------------------------------------------------------------------------- listing

    def listing(self, instr: Instr, targets: Sequence[Target], *, ptx: bool) -> list[str]:
        """The lines around an instruction, of its source or of PTX; `->` marks its own, `*` breakpoints."""
        source = None if ptx else self.source(instr)
        if source is None:
            file, line, lines = PTX, self.ptx_line(instr), self.lines
        else:
            file, line = _name(source.file), source.line
            lines = linecache.getlines(source.file) or [""] * (line - 1) + [source.text]
        stops = {target.line for target in targets if target.file == file}
        shown = []
        for n in range(max(line - _SHOWN, 1), min(line + _SHOWN, len(lines)) + 1):
            marks = ("->" if n == line else "  ") + ("*" if n in stops else " ")
            shown.append(f"{marks}{n:>5}  {lines[n - 1].rstrip()}".rstrip())
        return shown

    # -------------------------------------------------------------------------------------- variables

    def variable(self, name: str, instr: Instr) -> str | None:
        """The register of a Python variable of the function that `instr` is from: the one that the last
        instruction of the variable's last assignment before `instr` writes; None if there is none.
        """
        source = self.source(instr)
        if source is None or not source.file.endswith(".py"):
            return None
        ends = _assignments(source.file).get(name, ())
        register = None
        for one in self._instrs:
            if one is instr:
                break
            at = self.source(one)
            if at is not None and at.file == source.file and any(a <= at.line <= b for a, b in ends):
                register = next((o.name for o in one.operands[:1] if isinstance(o, Reg)), register)
        return register


def _assignments(path: str) -> dict[str, list[tuple[int, int]]]:
    """By name of a variable, the first and the last line of each statement that assigns to it alone."""
    lines: dict[str, list[tuple[int, int]]] = defaultdict(list)
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except SyntaxError:
        return {}
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and isinstance(targets[0], ast.Name):
            lines[targets[0].id].append((node.lineno, node.end_lineno or node.lineno))
    return lines


def _instructions(module: Module) -> list[Instr]:
    bodies = [*(f.body or () for f in module.functions), *(k.body for k in module.kernels)]
    return [s for body in bodies for s in body if isinstance(s, Instr)]


def _name(path: str) -> str:
    return PurePath(path.replace("\\", "/")).name


def _row(location: str, text: str) -> str:
    return f"{location:<20}  {text}".rstrip()


def _text(source: Location) -> str:
    return source.text or linecache.getline(source.file, source.line).strip()
