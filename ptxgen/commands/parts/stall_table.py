"""What warps of a kernel wait for in the issue model, as the text of `ptxgen report --stalls`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ptxgen.errors import BackendError
from ptxgen.report import Report
from ptxgen.report.data import Stalls

_MOST_SOURCES: Final = 20
_MOST_LINES: Final = 40
_LEAST: Final = 0.5  # clocks of a line or a reason that is shown
_TEXT: Final = 60  # characters of a line
_INDENT: Final = 27 * " "


def stall_table(report: Report) -> Iterator[str]:
    """The lines of the table. Raises `BackendError` where the report has no stalls."""
    stalls = report.stalls
    if stalls is None:
        raise BackendError(f"what warps wait for is not known: {dict(report.missing)['stalls']}")
    warps = f"{stalls.warps} warp{'s' * (stalls.warps > 1)}"
    yield f"{report.kernel} for {report.target}: clocks of the issue model, none of them measured"
    yield f"{stalls.of_iteration}, {warps} of a scheduler: {stalls.clocks:,.0f} clocks of a warp"
    yield ""
    for name, clocks in zip(stalls.reasons, stalls.sums, strict=True):
        if clocks >= _LEAST:
            yield f"{_share(stalls, clocks)}  {name}"
    known = {line.id: (f"{file.name}:{line.number}", line) for file in report.sources for line in file.lines}
    sources = [(id, clocks) for id, clocks in stalls.by_source.items() if sum(clocks) >= _LEAST]
    if sources:
        yield from ("", f"   clocks    share  by line of {report.language}")
    for id, of_reasons in sources[:_MOST_SOURCES]:
        name, line = known[id]
        yield f"{_share(stalls, sum(of_reasons))}  {name}  {_cut(line.text or '')}".rstrip()
        yield f"{_INDENT}{_words(stalls, of_reasons)}"
    lines = [line for line in stalls.lines if line.total >= _LEAST]
    yield from ("", "   clocks    share  by line of PTX")
    for of in lines[:_MOST_LINES]:
        text = _cut(report.ptx[of.line - 1].text) if of.line else "(machine code without a line of PTX)"
        yield f"{_share(stalls, of.total)}  {of.line or '-':>5}  {text}"
        yield f"{_INDENT}{_words(stalls, of.clocks)}"
    left_out = max(len(sources) - _MOST_SOURCES, 0) + max(len(lines) - _MOST_LINES, 0)
    if left_out:
        yield f"and {left_out} more lines, which --json has"


def _share(stalls: Stalls, clocks: float) -> str:
    return f"{clocks:>9,.0f}  {100 * clocks / stalls.clocks:>5.1f} %"


def _words(stalls: Stalls, clocks: Sequence[float]) -> str:
    ranked = sorted(zip(stalls.reasons, clocks, strict=True), key=lambda pair: -pair[1])
    return ", ".join(f"{name} {n:,.0f}" for name, n in ranked if n >= _LEAST)


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return f"{text[: _TEXT - 1]}\u2026" if len(text) > _TEXT else text
