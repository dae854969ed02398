"""Where each line of PTX comes from: a line of Python, or of the language that `.loc` names."""

from __future__ import annotations

import linecache
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import CodeType
from typing import Final

from ptxgen import ir
from ptxgen.report.data import SourceFile, SourceLine

_CONTEXT: Final = 2  # lines that are shown before and after a line that emits something


@dataclass(frozen=True, slots=True)
class Origins:
    """The sources of a kernel: the `files`, and for lines of PTX the ids of their source lines."""

    language: str
    files: tuple[SourceFile, ...]
    ids: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class _SourceLine:
    """A line of a source file; `path` finds the file, `name` is what readers see."""

    path: str
    name: str
    line: int


def python_origins(
    built: ir.Module, parsed: ir.Module, warps: Mapping[int, int], renamed: Mapping[CodeType, ir.Origin]
) -> Origins:
    """The Python lines of a module that was built in Python; `parsed` is the same module, parsed from its
    text. `renamed` has the origin to show for instructions that a function of this package emits in the name
    of a user's.
    """
    locations: dict[int, _SourceLine] = {}
    for ours, theirs in zip(_instructions(built), _instructions(parsed), strict=True):
        origin = ours.origin
        if origin is None or origin.code is None or theirs.origin is None:
            continue
        shown = renamed.get(origin.code, origin)
        assert shown.code is not None
        path = shown.code.co_filename
        locations[theirs.origin.line] = _SourceLine(path, _name(shown.file), shown.line)
    return _origins("Python", locations, {}, warps, read=True)


def loc_origins(
    parsed: ir.Module, warps: Mapping[int, int], sources: Mapping[str, Sequence[str]]
) -> Origins | None:
    """The source lines that the `.loc` directives of a module's text name; None if it has none.

    `sources` has the lines of files by name. No other file is read: the names are whatever the text
    says, and a page may go to other people.
    """
    locations = {}
    for instr in _instructions(parsed):
        if instr.origin is not None and instr.origin.location is not None:
            location = instr.origin.location
            name = PurePosixPath(location.file.replace("\\", "/")).name
            locations[instr.origin.line] = _SourceLine(location.file, name, location.line)
    return _origins("Source", locations, sources, warps, read=False) if locations else None


def _origins(
    language: str,
    locations: Mapping[int, _SourceLine],
    sources: Mapping[str, Sequence[str]],
    warps: Mapping[int, int],
    *,
    read: bool,
) -> Origins:
    used: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for number, location in locations.items():
        used[location.path][location.line].append(number)
    names = {location.path: location.name for location in locations.values()}
    files, ids, following = [], dict[int, int](), 1
    # The file with the most lines of PTX first: it is what the kernel is written in.
    for path in sorted(used, key=lambda p: (-sum(map(len, used[p].values())), names[p], p)):
        text = linecache.getlines(path) if read else sources.get(names[path], ())
        shown = []
        for number in _shown(used[path], len(text)):
            numbers = used[path].get(number, [])
            ids.update(dict.fromkeys(numbers, following))
            words = text[number - 1].rstrip() if number <= len(text) else None
            ran = sum(warps.get(n, 0) for n in numbers)
            shown.append(SourceLine(following, number, words, len(numbers), ran))
            following += 1
        files.append(SourceFile(names[path], tuple(shown)))
    return Origins(language, tuple(files), ids)


def _shown(used: Iterable[int], count: int) -> list[int]:
    """The lines of a file to show: those that emit something, and, if the file is at hand, some around."""
    wanted = set(used)
    if count:
        wanted |= {n + d for n in used for d in range(-_CONTEXT, _CONTEXT + 1) if 1 <= n + d <= count}
    return sorted(wanted)


def _instructions(module: ir.Module) -> list[ir.Instr]:
    bodies = [*(f.body or () for f in module.functions), *(k.body for k in module.kernels)]
    return [s for body in bodies for s in body if isinstance(s, ir.Instr)]


def _name(path: str) -> str:
    """A file's name from its outermost package on, which is the same on every machine."""
    file = Path(path)
    folders: list[str] = []
    for folder in file.parents:
        if not (folder / "__init__.py").is_file():
            break
        folders.insert(0, folder.name)
    return "/".join([*folders, file.name])
