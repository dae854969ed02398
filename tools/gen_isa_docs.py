"""Write `docs/isa.md` from the instruction table, or check that it is up to date."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

if not __package__:  # run as a script, maybe in a bare checkout
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from ptxgen.interrupts import leave_quietly

    leave_quietly()

from ptxgen import isa
from ptxgen.commands.parts.quiet import quietly
from ptxgen.frames import load_template
from ptxgen.isa import ANY, SPECIALS, Inst
from ptxgen.isa.missing import FORMS, INSTRUCTIONS, PTX_ISA
from tools.commands.generated_file import write_or_check

PAGE = Path(__file__).resolve().parent.parent / "docs" / "isa.md"

_MANY: Final = 16  # choices listed if they have equal requirements; of more, first and last


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page and return 0; with `--check` write nothing, and return 1 if it is outdated."""
    return write_or_check(argv, "gen_isa_docs.py", __doc__, PAGE, "the table says", render)


def render() -> str:
    """The page as Markdown."""
    rows = [row for named in isa.rows().values() for row in named]
    chapters: dict[str, list[dict[str, str]]] = {}
    for row in sorted(rows, key=lambda row: row.section.partition(": ")[0]):
        chapters.setdefault(row.section.partition(": ")[0], []).append(_cells(row))
    return load_template("isa.md.j2").render(
        rows=len(rows),
        opcodes=len({op.opcode for row in rows for op in row.all_ops()}),
        chapters=[{"title": title, "rows": cells} for title, cells in chapters.items()],
        specials=[
            {"name": s.name, "type": s.type.name, "needs": str(s.gate), "doc": s.doc}
            for s in SPECIALS.values()
        ],
        version=".".join(map(str, PTX_ISA)),
        instructions=[{"name": name, **gap._asdict()} for name, gap in INSTRUCTIONS.items()],
        forms=[{"name": opcode, **gap._asdict()} for opcode, gap in FORMS.items()],
    )


def _cells(row: Inst) -> dict[str, str]:
    refused = f" The interpreter refuses it: {row.unmodelled}." if row.unmodelled else ""
    cells = {
        "name": row.name,
        "syntax": row.syntax,
        "modifiers": "; ".join(_slot(row, slot) for slot in row.choices),
        "needs": str(row.gate),
        "effect": row.effect.value,
        "accuracy": row.accuracy or "exact",
        "meaning": " ".join(row.doc.split()).replace("<", "&lt;") + refused,  # a literal "<", not a tag
    }
    return {name: text.replace("|", "\\|") for name, text in cells.items()}


def _slot(row: Inst, slot: str) -> str:
    """The slot with its choices, each followed by requirements beyond those of the row."""
    choices = [
        (slot if value is True else str(value), gate)
        for value, gate in row.choices[slot].items()
        if value is not None and value is not False
    ]
    groups = []
    for gate, members in itertools.groupby(choices, key=lambda pair: pair[1]):
        names = [name for name, _ in members]
        if len(names) > _MANY:
            names = [*names[:2], "…", names[-1]]
        groups.append(", ".join(names) + (f" ({gate})" if gate is not ANY else ""))
    return f"`.{groups[0]}`" if groups == [slot] else f"`{slot}`: {', '.join(groups)}"


if __name__ == "__main__":
    sys.exit(quietly(main))
