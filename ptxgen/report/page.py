"""The HTML page of a report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from markupsafe import Markup

from ptxgen.frames import load_template
from ptxgen.isa.tensor_memory import COLUMNS
from ptxgen.report import charts, highlight
from ptxgen.report.classes import NAMES
from ptxgen.report.comparison import MACHINE_CODE, PTX, Comparison
from ptxgen.report.data import TENSOR_COLUMNS, Report
from ptxgen.report.listing import linked, listing_of
from ptxgen.report.stall_chart import stall_tables

_MOST_LINES: Final = 20  # in the table of register pressure
_WALK: Final = "walk"
_SECTIONS: Final = (
    ("listing", "Listings"),
    (_WALK, "Walk"),
    ("findings", "Findings"),
    ("registers", "Registers"),
    ("shared", "Shared memory"),
    ("pipeline", "Timeline"),
    ("stalls", "Stalls"),
    ("mix", "Mix"),
    ("limits", "Limits"),
    ("about", "About"),
)


class _Tile(NamedTuple):
    """A figure at the head of the page; `state` is `ok`, `warn`, `bad` or empty."""

    name: str
    value: str
    more: str
    state: str
    to: str


def page(report: Report) -> str:
    """The page as HTML text, complete in itself; the same report gives the same characters."""
    return load_template("report.html.j2").render(
        r=report,
        tiles=_tiles(report),
        sections=[(id, name) for id, name in _SECTIONS if id != _WALK or report.walk is not None],
        walk=_walk(report),
        missing=dict(report.missing),
        about=_about(report),
        listing=listing_of(report),
        heat=charts.heat,
        short=charts.short,
        linked=lambda message: linked(message, len(report.ptx)),
        places=charts.named(report),
        base=lambda name: name.rpartition("/")[2],
        registers=_registers(report),
        shared=_shared(report),
        strips=charts.bank_strips,
        degree=charts.degree_class,
        timeline=_timeline(report),
        class_slots=charts.class_slots,
        stalls=stall_tables(report, charts.named(report)),
        mixes=_mixes(report),
        busy=charts.busy(report.limits.bounds) if report.limits is not None else [],
        roofline=_roofline(report),
    )


# The figures at the head of a comparison, as far as both kernels have them.
_COMPARED: Final = (
    "instructions that warps executed",
    "machine instructions",
    "registers",
    "bank conflicts",
    "resident warps",
    "clocks of the busiest unit",
    "not proved",
    "errors",
)


def comparison_page(comparison: Comparison) -> str:
    """The page of a comparison as HTML text, complete in itself; the same reports give the same text."""
    sides = comparison.before, comparison.after
    kinds = dict.fromkeys(p.kind for report in sides for p in report.proved)
    known = [{p.kind: p for p in report.proved} for report in sides]
    return load_template("comparison.html.j2").render(
        c=comparison,
        tiles=[f for f in comparison.figures if f.name in _COMPARED and None not in (f.before, f.after)],
        proofs=[(kind, *(side.get(kind) for side in known)) for kind in kinds],
        texts=[
            (text, [_coloured(text.name, lines) for lines in (text.before, text.after)])
            for text in comparison.texts
        ],
        alike=[text.name for text in comparison.texts if not text.differs],
    )


def _coloured(name: str, lines: tuple[str, ...]) -> Sequence[Markup | str]:
    if name == MACHINE_CODE:
        return lines
    return highlight.ptx("\n".join(lines)) if name == PTX else highlight.source(name, lines)


def _tiles(report: Report) -> list[_Tile]:
    proofs = [p for p in report.proved if not p.why_not]
    total, proved, refuted = (
        sum(getattr(p, name) for p in proofs) for name in ("total", "proved", "refuted")
    )
    left_out = [p.kind for p in report.proved if p.why_not]
    state = "bad" if refuted else "warn" if left_out or not proofs or proved < total else "ok"
    words = f"without {' and '.join(left_out)}" if left_out else "accesses, barriers and warps, not races"
    tiles = [_Tile("Proved", f"{proved} of {total}", words, state, "findings")]
    run, code, limits = report.run, report.code, report.limits
    if run is None:
        tiles.append(_Tile("Sanitizers", "not run", "no run succeeded", "warn", "findings"))
    else:
        count = sum(f.kind.startswith("sanitizer") for f in report.findings)
        verdict = "clean" if run.clean else f"{count} problem{'s' * (count > 1)}"
        tiles.append(
            _Tile("Sanitizers", verdict, "all, in one run", "ok" if run.clean else "bad", "findings")
        )
    if code is not None:
        spilled = code.spill_store_bytes + code.spill_load_bytes
        more = f"{spilled} bytes spilled" if spilled else "no spills"
        tiles.append(_Tile("Registers", str(code.registers), more, "warn" if spilled else "ok", "registers"))
    else:
        tiles.append(_Tile("Live registers", str(report.live_registers), "not assembled", "", "registers"))
    columns = dict(run.counters).get(TENSOR_COLUMNS) if run is not None else None
    if columns is not None:
        tiles.append(_Tile("Tensor memory", f"{columns} of {COLUMNS}", "columns of a CTA", "", "limits"))
    if run is not None:
        conflicts = dict(run.counters)["shared conflicts"]
        state = "warn" if conflicts else "ok"
        tiles.append(_Tile("Bank conflicts", charts.short(conflicts), "extra wavefronts", state, "shared"))
    if limits is not None:
        warps = f"{limits.warps_per_sm} of {limits.most_warps}"
        tiles.append(_Tile("Resident warps", warps, f"limited by {limits.limited_by}", "", "limits"))
        if limits.bounds:
            busiest = limits.bounds[0]
            clocks = f"{busiest.cycles:,.0f} clocks for a CTA"
            tiles.append(_Tile("Busiest unit", busiest.unit, clocks, "", "limits"))
    return tiles


def _walk(report: Report) -> Markup:
    """A recorded walk as JSON that may be in a script element: lists in the order of the data's fields."""
    if report.walk is None:
        return Markup()
    walk = {
        "registers": [(register.name, register.dtype) for register in report.walk.registers],
        "barriers": report.walk.barriers,
        "steps": [
            (s.line, s.active, s.registers, s.shared, s.barriers, s.reports) for s in report.walk.steps
        ],
    }
    text = json.dumps(walk, separators=(",", ":"), ensure_ascii=False)
    return Markup(text.replace("<", "\\u003c"))  # JSON has no other use of the character


def _about(report: Report) -> list[tuple[str, str]]:
    rows = [
        ("kernel", report.kernel),
        ("target", f"{report.target}, PTX {report.ptx_version}"),
        ("text", f"{len(report.ptx):,} lines, {report.nbytes:,} bytes"),
        ("sha256", report.sha256),
        *report.config,
        *report.needs,
    ]
    if report.run is not None:
        rows.append(("grid of the run", " \u00d7 ".join(map(str, report.run.grid))))
        rows.append(("arguments", "; ".join(report.run.arguments) or "none"))
    return rows


def _registers(report: Report) -> dict[str, Any]:
    known = [line for line in report.ptx if line.registers is not None]
    known.sort(key=lambda line: (-(line.registers or 0), line.number))
    return {**charts.register_chart(report), "top_lines": known[:_MOST_LINES]}


def _shared(report: Report) -> dict[str, Any] | None:
    if report.shared is None:
        return None
    chart, named = charts.shared_chart(report.shared), charts.named(report)
    names = [named.get(row[0].source, "") for row in chart["rows"]]
    labels = [
        name.rpartition("/")[2] or f"line {row[0].line}"
        for name, row in zip(names, chart["rows"], strict=True)
    ]
    return {**chart, "labels": labels}


def _timeline(report: Report) -> dict[str, Any] | None:
    if report.pipeline is None or not report.pipeline.shown:
        return None
    return charts.timeline(report.pipeline)


def _mixes(report: Report) -> list[dict[str, Any]]:
    """The bars of the instruction mix: of the run, of the machine code, of its main loop."""
    rows = []
    if report.run is not None:
        about = f"{report.run.warp_instructions:,} PTX instructions that warps executed."
        parts = [(name, NAMES.index(name), count) for name, count in report.run.mix]
        rows.append(("PTX in the run", about, parts))
    for name, where, mix in (
        ("Machine code", "each counted once", report.code.mix if report.code else ()),
        ("Main loop of the machine code", "in one iteration", report.code.loop_mix if report.code else ()),
    ):
        if mix:
            about = f"{sum(count for _, count in mix):,} instructions, {where}."
            rows.append((name, about, [(*charts.sass_class(part), count) for part, count in mix]))
    return [
        {
            "name": name,
            "about": about,
            "bars": charts.bars([(part, count) for part, _, count in parts]),
            "colours": [colour for _, colour, _ in parts],
        }
        for name, about, parts in rows
    ]


def _roofline(report: Report) -> dict[str, Any] | None:
    limits = report.limits
    if limits is None or limits.roofline is None or not limits.bounds:
        return None
    return charts.roofline_chart(limits.roofline, limits.bounds[0].cycles)
