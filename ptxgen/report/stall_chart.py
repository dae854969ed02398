"""What warps wait for, as the page shows it: heat beside the listings, and rows of tables with bars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ptxgen.report.data import Report, Stalls
from ptxgen.report.issue_model import Wait

# The colour of each reason: that of the class of instructions that wait for the unit.
_COLOURS: Final = {
    Wait.ISSUE: "c3",
    Wait.STALL: "c8",
    Wait.MEMORY: "c4",
    Wait.GLOBAL: "c5",
    Wait.TENSOR: "c0",
    Wait.SPECIAL: "c2",
    Wait.TENSOR_MEMORY: "c6",
    Wait.ARITHMETIC: "c1",
    Wait.OTHER: "c6",
    Wait.BARRIER: "c7",
    Wait.NOT_SELECTED: "wait",
}
_LEAST_SHARE: Final = 0.01  # of all clocks, for a line to have a mark in the listing
_HEATS: Final = (0.1, 0.05, 0.03, 0.02)  # shares of all clocks from which a mark is one step darker
_SHOWN: Final = 12  # lines of PTX in the first table
_MOST: Final = 36  # and in all
_SHORTEST: Final = 0.5  # clocks of a reason that is named, and percent of a bar


class WaitRow(NamedTuple):
    """A line, with a link `to` it, in a table: `line` is its number, 0 for a source line. `bars` are classes
    and widths in percent of the costliest line.
    """

    name: str
    to: str
    line: int
    clocks: str
    share: str
    bars: Sequence[tuple[str, str]]
    words: str


def wait_heats(stalls: Stalls, *, by_source: bool) -> dict[int, int]:
    """How much of all clocks warps spend at lines of PTX, or of the source by id: 1 to 5 by the line's
    number, of lines that have a notable share.
    """
    sums = stalls.by_source if by_source else {line.line: line.clocks for line in stalls.lines if line.line}
    shares = {number: sum(clocks) / stalls.clocks for number, clocks in sums.items()}
    return {
        number: 1 + sum(share >= heat for heat in _HEATS)
        for number, share in shares.items()
        if share >= _LEAST_SHARE
    }


def stall_tables(report: Report, names: Mapping[int, str]) -> dict[str, Any] | None:
    """What the page shows of a report's stalls; `names` are those of source lines by id."""
    stalls = report.stalls
    if stalls is None:
        return None
    colours = [_COLOURS[wait] for wait in Wait]
    sums = stalls.sums
    key = zip(stalls.reasons, colours, sums, strict=True)
    lines = [line for line in stalls.lines if line.total >= _SHORTEST][:_MOST]
    by_line = list(
        _rows(
            stalls,
            [
                (f"line {n.line}" if n.line else "no line", f"p{n.line}" if n.line else "", n.line, n.clocks)
                for n in lines
            ],
        )
    )
    sources = [(names[id].rpartition("/")[2], f"y{id}", 0, clocks) for id, clocks in stalls.by_source.items()]
    return {
        "clocks": f"{stalls.clocks:,.0f}",
        "bars": _bars(sums, stalls.clocks),
        "words": _words(stalls.reasons, sums),
        "key": [
            (name, colour, f"{n:,.0f}", f"{100 * n / stalls.clocks:.0f}")
            for name, colour, n in key
            if n >= _SHORTEST
        ],
        "by_source": list(_rows(stalls, sources[:_SHOWN])),
        "by_line": by_line[:_SHOWN],
        "more": by_line[_SHOWN:],
    }  # fmt: skip


def _rows(stalls: Stalls, lines: Sequence[tuple[str, str, int, Sequence[float]]]) -> Iterator[WaitRow]:
    most = max((sum(clocks) for *_, clocks in lines), default=1.0)
    for name, to, line, clocks in lines:
        share = f"{100 * sum(clocks) / stalls.clocks:.1f}"
        yield WaitRow(
            name, to, line, f"{sum(clocks):,.0f}", share, _bars(clocks, most), _words(stalls.reasons, clocks)
        )


def _bars(clocks: Sequence[float], most: float) -> list[tuple[str, str]]:
    widths = [(_COLOURS[wait], 100 * n / most) for wait, n in zip(Wait, clocks, strict=True)]
    return [(colour, f"{width:.3g}") for colour, width in widths if width >= _SHORTEST]


def _words(reasons: Sequence[str], clocks: Sequence[float]) -> str:
    """The reasons with their clocks, those that take the most first."""
    ranked = sorted(zip(reasons, clocks, strict=True), key=lambda pair: -pair[1])
    return ", ".join(f"{reason} {n:,.0f}" for reason, n in ranked if n >= _SHORTEST)
