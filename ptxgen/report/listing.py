"""The listings of a page: their lines with colours, their widths, and the findings on them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup, escape

from ptxgen.report import charts, highlight
from ptxgen.report.data import Report, SourceFile
from ptxgen.report.stall_chart import wait_heats

_SHORTEST: Final = 40  # characters of text for which a column is laid out at least
_LONGEST: Final = 60  # and at most
_LONG_LINES: Final = 0.1  # the part of the lines that may be longer than their column
_GUTTERS: Final = {"source": 11, "ptx": 15, "sass": 6}  # characters before the text
_LINE: Final = re.compile(r"\bline (\d+)\b")


@dataclass(frozen=True, slots=True)
class Marked:
    """The worst finding on a line: its number in the table of findings, from 1, and its severity."""

    number: int
    severity: str


@dataclass(frozen=True, slots=True)
class Listing:
    """The listings, as the templates print them. `columns` are the tracks of a grid with all of them side by
    side; `code` has the lines of PTX, from 0, and `source_code` those of the sources by id; `worst` has
    the worst finding of each line of PTX that has one; `files` have the most warps that executed one line.
    `ptx_sources` are the source lines of the lines of PTX, `sass_lines` the lines of PTX of machine code, as
    `_numbers` writes them; `waits` and `source_waits` the heat of lines where warps wait, by number and id.
    """

    title: str
    columns: str
    ptx: Sequence[charts.Chunk]
    code: Sequence[Markup]
    sass: Sequence[charts.Chunk]
    files: Sequence[tuple[SourceFile, int]]
    source_code: Mapping[int, Markup]
    source_digits: int
    most_warps: int
    worst: Mapping[int, Marked]
    ptx_sources: str
    sass_lines: str
    waits: Mapping[int, int]
    source_waits: Mapping[int, int]


def listing_of(report: Report) -> Listing:
    """The listings of a report; machine code is left out if it was not disassembled."""
    rows = report.code.rows if report.code is not None else ()
    text = [line.text for line in report.ptx]
    columns = [_track("ptx", text)]
    names = ["PTX"]
    sources = [line for file in report.sources for line in file.lines]
    if sources:
        columns.insert(0, _track("source", [line.text or "" for line in sources]))
        names.insert(0, report.language)
    if rows:
        columns.append(_track("sass", [row.text for row in rows]))
        names.append("machine code")
    worst: dict[int, Marked] = {}
    for number, finding in enumerate(report.findings, 1):  # the worst ones come first
        if finding.line:
            worst.setdefault(finding.line, Marked(number, finding.severity))
    most_warps = max((line.warps or 0 for line in report.ptx), default=0)
    stalls = report.stalls
    return Listing(
        title=" and ".join(filter(None, [", ".join(names[:-1]), names[-1]])),
        columns=" ".join(columns),
        ptx=list(charts.ptx_chunks(report.ptx, report.live_registers, most_warps)),
        code=highlight.ptx("\n".join(text)),
        sass=list(charts.sass_chunks(rows)),
        files=[(file, max((line.warps for line in file.lines), default=0)) for file in report.sources],
        source_code=dict(_source_code(report.sources)),
        source_digits=max((len(str(line.number)) for line in sources), default=1),
        most_warps=most_warps,
        worst=worst,
        ptx_sources=_numbers([line.source for line in report.ptx]),
        sass_lines=_numbers([row.line for row in rows]),
        waits={} if stalls is None else wait_heats(stalls, by_source=False),
        source_waits={} if stalls is None else wait_heats(stalls, by_source=True),
    )


def _numbers(values: Sequence[int]) -> str:
    """Numbers with commas between them, nothing for one that is the same as the one before."""
    return ",".join(str(n) if n != before else "" for before, n in itertools.pairwise([-1, *values]))


def linked(message: str, lines: int) -> Markup:
    """A message as HTML, in which the lines of PTX that it names are links; there are `lines` of them."""

    def link(match: re.Match[str]) -> str:
        known = 0 < int(match[1]) <= lines
        return f'<a href="#p{match[1]}">{match[0]}</a>' if known else match[0]

    return Markup(_LINE.sub(link, str(escape(message))))  # escaped before


def _track(kind: str, texts: Sequence[str]) -> str:
    """The track of a listing in a grid, as wide, next to the others, as most of its lines need."""
    lengths = sorted(map(len, texts))
    most = lengths[int((1 - _LONG_LINES) * (len(lengths) - 1))]
    return f"minmax(0,{_GUTTERS[kind] + min(max(most, _SHORTEST), _LONGEST)}fr)"


def _source_code(files: Sequence[SourceFile]) -> Iterator[tuple[int, Markup]]:
    """The lines of source files with colours, by id. Each run of lines without a gap is read by itself."""
    for file in files:
        numbered = enumerate(file.lines)
        for _, group in itertools.groupby(numbered, key=lambda pair: pair[1].number - pair[0]):
            lines = [line for _, line in group]
            marked = highlight.source(file.name, [line.text for line in lines])
            yield from zip((line.id for line in lines), marked, strict=True)
