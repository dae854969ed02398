"""Two kernels, or two versions of one, compared: figures, opcodes, proofs, findings, and their texts."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Final

from ptxgen.report.data import ERROR, LINT, UNPROVED, Finding, Report, SourceFile

BETTER: Final = "better"
WORSE: Final = "worse"
SAME: Final = "same"

PTX: Final = "PTX"  # names of texts
MACHINE_CODE: Final = "Machine code"

EQUAL: Final = "equal"
RENUMBERED: Final = "renumbered"  # equal but for the numbers of registers, labels and addresses
CHANGED: Final = "changed"
REMOVED: Final = "removed"
ADDED: Final = "added"
_CONTEXT: Final = 3  # lines that match, shown before and after a line that does not
# The numbers that the names of registers and labels have in PTX and in machine code.
_NUMBERS: Final = re.compile(r"(%[a-z]+|\$\w*?|\bU?[RP]|\.L_x_)\d+")


@dataclass(frozen=True, slots=True)
class Figure:
    """A number of both kernels; None where it is not known. `verdict` is BETTER or WORSE, of `after`, or
    SAME, or "" if one of them is not known.
    """

    name: str
    before: float | None
    after: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Moved:
    """How often an opcode of PTX, or a class of machine instructions, is in both texts."""

    name: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Row:
    """Lines of both texts next to each other, by their index from 0, None for no line; `kind` says how they
    differ. `left_out` counts matching lines that are not shown, in a row without lines.
    """

    kind: str
    before: int | None = None
    after: int | None = None
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Text:
    """A text of both kernels, line by line: `numbers` are those that a reader knows the lines by."""

    name: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    before_numbers: tuple[str, ...]
    after_numbers: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def differs(self) -> bool:
        """Whether any line differs by more than numbers of registers and labels."""
        return any(row.kind in (CHANGED, REMOVED, ADDED) for row in self.rows)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs between the reports on two kernels."""

    before: Report
    after: Report
    figures: tuple[Figure, ...]
    opcodes: tuple[Moved, ...]
    machine_classes: tuple[Moved, ...]
    gone: tuple[Finding, ...]
    new: tuple[Finding, ...]
    texts: tuple[Text, ...]


def compare(before: Report, after: Report) -> Comparison:
    """Compare two reports, `before` being the one that `after` is judged by."""
    return Comparison(
        before,
        after,
        tuple(_figures(before, after)),
        _moved(*({i.opcode: i.lines for i in r.instructions} for r in (before, after))),
        _moved(*(dict(r.code.mix) if r.code is not None else {} for r in (before, after))),
        *_findings(before, after),
        tuple(_texts(before, after)),
    )


def _counter(name: str) -> Callable[[Report], float | None]:
    return lambda r: dict(r.run.counters).get(name) if r.run is not None else None


def _severity(severity: str) -> Callable[[Report], float | None]:
    return lambda r: sum(f.times for f in r.findings if f.severity == severity)


def _machine_instructions(report: Report) -> float | None:
    return sum(n for _, n in report.code.mix) if report.code is not None and report.code.mix else None


def _main_loop(report: Report) -> float | None:
    return sum(n for _, n in report.code.loop_mix) if report.code is not None and report.code.mix else None


def _busiest(report: Report) -> float | None:
    bounds = report.limits.bounds if report.limits is not None else ()
    return round(bounds[0].cycles) if bounds else None


# Names, what gives the number, and whether less is better.
_FIGURES: Final[tuple[tuple[str, Callable[[Report], float | None], bool], ...]] = (
    ("PTX instructions", lambda r: sum(i.lines for i in r.instructions), True),
    ("instructions that warps executed", lambda r: r.run.warp_instructions if r.run else None, True),
    ("machine instructions", _machine_instructions, True),
    ("machine instructions of the main loop", _main_loop, True),
    ("registers", lambda r: r.code.registers if r.code else None, True),
    ("live registers", lambda r: r.live_registers, True),
    ("bytes spilled", lambda r: r.code.spill_store_bytes + r.code.spill_load_bytes if r.code else None, True),
    ("bytes of shared memory", lambda r: r.shared.nbytes if r.shared else None, True),
    ("bank conflicts", _counter("shared conflicts"), True),
    ("sectors of global memory read", _counter("global sectors read"), True),
    ("sectors of global memory written", _counter("global sectors written"), True),
    ("avoidable sectors", _counter("global sectors excess"), True),
    ("resident warps", lambda r: r.limits.warps_per_sm if r.limits else None, False),
    ("clocks of the busiest unit", _busiest, True),
    ("accesses and barriers proved", lambda r: sum(p.proved for p in r.proved), False),
    ("not proved", lambda r: sum(p.total - p.proved for p in r.proved), True),
    ("errors", _severity(ERROR), True),
    ("unproved findings", _severity(UNPROVED), True),
    ("lints", _severity(LINT), True),
)  # fmt: skip
_PROVED: Final = "accesses and barriers proved"  # fewer of them are no loss if there are fewer accesses


def _figures(before: Report, after: Report) -> Iterator[Figure]:
    for name, number, less in _FIGURES:
        a, b = number(before), number(after)
        if a is None and b is None:
            continue
        if a is None or b is None or name == _PROVED:
            verdict = SAME if a == b else ""
        else:
            verdict = SAME if a == b else BETTER if (b < a) == less else WORSE
        yield Figure(name, a, b, verdict)


def _moved(before: dict[str, int], after: dict[str, int]) -> tuple[Moved, ...]:
    """What occurs a different number of times, the largest differences first."""
    names = dict.fromkeys([*before, *after])
    moved = [Moved(name, before.get(name, 0), after.get(name, 0)) for name in names]
    return tuple(
        sorted((m for m in moved if m.before != m.after), key=lambda m: (-abs(m.after - m.before), m.name))
    )


def _findings(before: Report, after: Report) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """The findings that only one of the reports has. Lines move: a finding is known by its severity, its kind
    and its message without numbers.
    """

    def key(finding: Finding) -> tuple[str, str, str]:
        return finding.severity, finding.kind, re.sub(r"\d+", "", finding.message)

    def only(report: Report, other: Report) -> tuple[Finding, ...]:
        known = Counter(map(key, other.findings))
        result = []
        for finding in report.findings:
            known[key(finding)] -= 1
            if known[key(finding)] < 0:
                result.append(finding)
        return tuple(result)

    return only(before, after), only(after, before)


def _texts(before: Report, after: Report) -> Iterator[Text]:
    for a, b in _paired(before.sources, after.sources):
        (old, old_numbers), (new, new_numbers) = _of_source(a), _of_source(b)
        names = dict.fromkeys(file.name for file in (a, b) if file is not None)
        yield _text(" and ".join(names), old, new, old_numbers, new_numbers)
    lines = [tuple(line.text for line in r.ptx) for r in (before, after)]
    yield _text(PTX, *lines, *(tuple(str(line.number) for line in r.ptx) for r in (before, after)))
    rows = [r.code.rows if r.code is not None else () for r in (before, after)]
    if any(rows):
        numbers = [tuple(f"{row.address:04x}" if row.address >= 0 else "" for row in side) for side in rows]
        yield _text(MACHINE_CODE, *(tuple(row.text for row in side) for side in rows), *numbers)


def _paired(
    before: Sequence[SourceFile], after: Sequence[SourceFile]
) -> Iterator[tuple[SourceFile | None, SourceFile | None]]:
    """Files of the same name, then the others in their order."""
    names = {file.name: file for file in after}
    shared = {file.name for file in before if file.name in names}
    yield from ((file, names[file.name]) for file in before if file.name in shared)
    others = ([file for file in side if file.name not in shared] for side in (before, after))
    yield from itertools.zip_longest(*others)


def _of_source(file: SourceFile | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    lines = file.lines if file is not None else ()
    return tuple(line.text or "" for line in lines), tuple(str(line.number) for line in lines)


def _text(
    name: str,
    before: tuple[str, ...],
    after: tuple[str, ...],
    before_numbers: tuple[str, ...],
    after_numbers: tuple[str, ...],
) -> Text:
    rows = tuple(_shortened(list(_rows(before, after))))
    return Text(name, before, after, before_numbers, after_numbers, rows)


def _rows(before: Sequence[str], after: Sequence[str]) -> Iterator[Row]:
    old, new = ([_NUMBERS.sub(r"\1", line.strip()) for line in side] for side in (before, after))
    for tag, a, a_end, b, b_end in SequenceMatcher(None, old, new).get_opcodes():
        for n, m in itertools.zip_longest(range(a, a_end), range(b, b_end)):
            if tag == "equal":
                yield Row(EQUAL if before[n] == after[m] else RENUMBERED, n, m)
            elif n is None or m is None:
                yield Row(ADDED if n is None else REMOVED, n, m)
            else:
                yield Row(CHANGED, n, m)


def _shortened(rows: Sequence[Row]) -> Iterator[Row]:
    """Rows without the matching ones that are far from others."""
    differing = [n for n, row in enumerate(rows) if row.kind not in (EQUAL, RENUMBERED)]
    shown = {n + d for n in differing for d in range(-_CONTEXT, _CONTEXT + 1)}
    for near, group in itertools.groupby(range(len(rows)), key=shown.__contains__):
        numbers = list(group)
        if near or len(numbers) == 1:
            yield from (rows[n] for n in numbers)
        else:
            yield Row(EQUAL, left_out=len(numbers))
