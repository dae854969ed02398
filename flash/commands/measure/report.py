"""Reports measurements: as a table, and as a JSON file with machine, versions and commit."""

from __future__ import annotations

import datetime
import importlib
import importlib.metadata
import json
import math
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from flash.commands.measure.record import Measurement
from ptxgen.errors import BackendError
from ptxgen.runtime.assembler import find_assembler

SCHEMA: Final = 1  # version of the document; raised when a key changes its meaning
ROOT: Final = Path(__file__).resolve().parents[3]
IN_CHECKOUT: Final = (ROOT / "pyproject.toml").is_file()  # and not in an installed package

_PACKAGES: Final = (
    "numpy",
    "jinja2",
    "torch",
    "cuda-python",
    "cuda-bindings",
    "threadpoolctl",
    "triton",
    "nvidia-cutlass-dsl",
)
_GIT_TIMEOUT_S: Final = 10.0
_BUSY: Final = 0.5  # load for each core from which the machine is busy


@dataclass(slots=True)
class Section:
    """The measurements and remarks of one section; `failed` counts jobs that raised an error."""

    name: str
    about: str
    measurements: list[Measurement] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    failed: int = 0


def reproduce(sections: Sequence[str], quick: bool) -> str:
    """The command that measures these sections again."""
    only = f" --only {','.join(sections)}" if sections else ""
    return f"ptxgen bench{only}{' --quick' if quick else ''}"


def document(sections: Sequence[Section], *, quick: bool, device: Mapping[str, Any] | None) -> dict[str, Any]:
    """The whole result as plain data; `device` is the GPU's part."""
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": reproduce([section.name for section in sections], quick),
        "quick": quick,
        "machine": machine(),
        "versions": versions(),
        "sections": {section.name: _section(section, quick) for section in sections},
    }
    if device is not None:
        report["device"] = dict(device)
    return report


def _section(section: Section, quick: bool) -> dict[str, Any]:
    command = reproduce([section.name], quick)
    return {
        "about": section.about,
        "remarks": section.remarks,
        "failed": section.failed,
        "measurements": [m.as_json() | {"command": command} for m in section.measurements],
    }


def machine() -> dict[str, Any]:
    """The processor of the machine, and how busy it is, as plain data."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "load": load(),
    }


def load() -> list[float] | None:
    """The load averages over 1, 5 and 15 minutes; None where unknown."""
    return [round(n, 2) for n in os.getloadavg()] if hasattr(os, "getloadavg") else None


def busy(before: list[float] | None) -> str:
    """A warning if the machine was busy in the minute before the measurements; else empty."""
    cores = os.cpu_count() or 1
    if before is None or before[0] < _BUSY * cores:
        return ""
    return (
        f"the machine was busy before the measurements (load {before[0]:g} on {cores} cores): "
        "times are too long, ratios are rough"
    )


def _cpu_model() -> str:
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        info = ""
    model = re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)
    return model[1].strip() if model else platform.processor() or platform.machine()


def versions() -> dict[str, str | None]:
    """Versions of all software that affects the results; None for a missing package."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    versions["blas"] = _blas()
    try:
        assembler = find_assembler()
        versions["assembler"] = f"{assembler.name} {assembler.version}"
    except BackendError:
        versions["assembler"] = None
    versions["commit"] = _commit()
    return versions


def _blas() -> str | None:
    """The BLAS libraries of the process; None without the package threadpoolctl, which knows them."""
    try:
        loaded = importlib.import_module("threadpoolctl").threadpool_info()
    except ImportError:
        return None
    names = [f"{lib['internal_api']} {lib['version']}" for lib in loaded if lib["user_api"] == "blas"]
    return ", ".join(dict.fromkeys(names)) or None


def _commit() -> str | None:
    """The checkout's commit, with `-dirty` if a tracked file differs; None outside a checkout."""
    if not IN_CHECKOUT:  # the folder of an installed package may lie in a repository of its user
        return None
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip() or None


# -------------------------------------------------------------------------------- the file


def result_name(sections: Sequence[str], every: Sequence[str], quick: bool, device: str | None) -> str:
    """The name of a file of results: <kind>-<device or cpu>.json.

    The kind is `all` or the names of the sections, so that no result overwrites one with more
    sections; it begins with `quick-` if the results are rough.
    """
    kind = "all" if list(sections) == list(every) else "-".join(sections)
    name = slug(device) if device else "cpu"
    return f"{'quick-' if quick else ''}{kind}-{name}.json"


def slug(name: str) -> str:
    """`name` as part of a file name: `NVIDIA H200` becomes `nvidia-h200`."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def as_text(report: Mapping[str, Any]) -> str:
    """The document as JSON text. Raises ValueError for NaN, which JSON does not have."""
    return json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


# -------------------------------------------------------------------------------- the table

_HEAD: Final = ("", "median", "unit", "min", "IQR", "n", "goal")


def table(sections: Sequence[Section]) -> str:
    """All measurements and remarks, section by section, then the headlines again."""
    parts = [f"{s.name}: {s.about}\n" + _rows(s.measurements) + _remarks(s.remarks) for s in sections]
    headlines = [m for section in sections for m in section.measurements if m.headline]
    if headlines:
        parts.append("headlines\n" + _rows(headlines))
    return "\n".join(parts)


def _rows(measurements: Sequence[Measurement]) -> str:
    if not measurements:
        return "  nothing measured\n"
    cells = [_HEAD, *(_cells(m) for m in measurements)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(_HEAD))]
    lines = []
    for row in cells:
        label, median, unit, *rest = row
        numbers = [cell.rjust(width) for cell, width in zip(rest, widths[3:], strict=True)]
        first = [label.ljust(widths[0]), median.rjust(widths[1]), unit.ljust(widths[2])]
        lines.append(("  " + "  ".join([*first, *numbers])).rstrip() + "\n")
    return "".join(lines)


def _cells(m: Measurement) -> tuple[str, ...]:
    goal = f"{m.goal} {'met' if m.goal.met_by(m.median) else 'MISSED'}" if m.goal else ""
    spread = (number(m.minimum), number(m.iqr)) if m.repeats > 1 else ("", "")
    return (m.label, number(m.median), m.unit, *spread, str(m.repeats), goal)


def _remarks(remarks: Sequence[str]) -> str:
    return "".join(f"  * {remark}\n" for remark in remarks)


def number(value: float) -> str:
    """A number for people: four significant digits, or whole with thousands separated."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"
