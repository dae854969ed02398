"""The tables of verdicts on mutants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ptxgen.mutation.judge import CATCHERS, EQUIVALENT, HOLE, Verdict
from ptxgen.mutation.operators import KINDS

COLUMNS: Final = (*CATCHERS, EQUIVALENT, HOLE)
_HEADS: Final = {name: name for name in ("judged", *COLUMNS)}


def counts(verdicts: Iterable[Verdict]) -> dict[str, int]:
    """How many mutants were judged, and how many were caught by each check, are equivalent or holes."""
    count = Counter(v.caught_by for v in verdicts)
    return {"judged": count.total(), **{caller: count[caller] for caller in COLUMNS}}


def by_kind(verdicts: Iterable[Verdict]) -> dict[str, list[Verdict]]:
    """The verdicts by kind of mistake, in the order of the kinds."""
    kinds: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        kinds.setdefault(verdict.kind, []).append(verdict)
    return {kind: kinds[kind] for kind in KINDS if kind in kinds}


def table(name: str, verdicts: Sequence[Verdict], columns: Mapping[str, str] = _HEADS) -> str:
    """A row for each kind of mistake and one for all; `columns` maps the counts to show to their headings."""
    rows = [(kind, counts(v)) for kind, v in by_kind(verdicts).items()]
    rows.append(("all", counts(verdicts)))
    lines = [f"{name:<24}" + "".join(f"{head:>12}" for head in columns.values())]
    for kind, of_kind in rows:
        cells = "".join(f"{of_kind[c] or '':>12}" for c in columns)
        lines.append(f"  {kind:<22}{cells}".rstrip())
    return "\n".join(lines) + "\n"
