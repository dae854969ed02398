"""The results of a GPU in all runs of sessions: `benchmarks/results/<device>.json`, unit by unit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ptxgen.commands.parts.files import FileError, write_file
from tools.gpu.journal import END, UNITS, Line

SCHEMA: Final = 1  # of the document; raised when a key changes its meaning

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
CRASHED: Final = "crashed"  # the process of the unit ended
HUNG: Final = "hung"  # the unit took longer than a unit may
MISSING: Final = "missing"  # the machine lacks what the unit needs
CUT: Final = "cut"  # the time of the part was over
BAD: Final = (FAILED, CRASHED, HUNG)
UNMEASURED: Final = (MISSING, CUT)

_ROWS: Final = ("calls", "counters")  # lists of rows, which documents and plots read
_OF_ENTRY: Final = ("verdict", "run", "when", "seconds", "said", "texts")

Entry = Mapping[str, Any]
History = Mapping[str, tuple[int, str]]  # run and verdict of each unit that has one


def ordered(units: Iterable[str], history: History, run: int) -> list[str]:
    """The units that run `run` has still to do, in order: first those that were never begun, then those that
    were not measured, those that failed, and the others by their last run.
    """

    def rank(unit: str) -> tuple[int, int]:
        of_run, verdict = history.get(unit, (0, ""))
        if not verdict:
            return 0, 0
        return (1 if verdict in UNMEASURED else 2 if verdict in BAD else 3), of_run

    return sorted((u for u in units if history.get(u, (0, ""))[0] != run), key=rank)


@dataclass(slots=True)
class Results:
    """The document of one device. `units` are the units that each part has reported in this process."""

    path: Path
    document: dict[str, Any]
    units: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, device: Mapping[str, Any]) -> Results:
        """The document at `path`, or a new one. Raises `FileError` for a file of another kind or device."""
        if not path.exists():
            return cls(
                path, {"schema": SCHEMA, "device": {}, "runs": [], "calls": [], "counters": [], "parts": {}}
            )
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
            schema, name = result["schema"], result["device"]["name"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FileError(f"cannot read {path}: {error}; name another folder with --output") from error
        if schema != SCHEMA or name != device["name"]:
            raise FileError(
                f"{path} has schema {schema} and results of {name}; wanted schema {SCHEMA} and "
                f"{device['name']}; name another folder with --output"
            )
        return cls(path, result)

    @property
    def next_run(self) -> int:
        """The number of the next run, from 1."""
        return 1 + max((run["run"] for run in self.document["runs"]), default=0)

    def begin(self, device: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """Record a run that begins; `facts` has its number as `run`."""
        self.document["device"] = dict(device)
        self.document["runs"].append(dict(facts))

    def history(self, part: str) -> dict[str, tuple[int, str]]:
        """Run and verdict of the units of a part."""
        entries = self.document["parts"].get(part, {})
        return {unit: (entry["run"], entry["verdict"]) for unit, entry in entries.items()}

    def merge(self, lines: Iterable[Line]) -> None:
        """Take over the lines of a journal: a unit's entry and rows replace those of earlier runs. One that
        was not measured replaces none that was.
        """
        for line in lines:
            if line["event"] == UNITS:
                self.units[line["part"]] = line["units"]
            if line["event"] != END:
                continue
            entries, unit = self.document["parts"].setdefault(line["part"], {}), line["unit"]
            before = entries.get(unit)
            if line["verdict"] in UNMEASURED and before and before["verdict"] not in UNMEASURED:
                continue
            entries[unit] = {key: line[key] for key in _OF_ENTRY if line.get(key)}
            for name in _ROWS:
                if name in line:
                    self._replace(name, line["part"], unit, line)

    def _replace(self, name: str, part: str, unit: str, line: Line) -> None:
        rows = [row for row in self.document[name] if row["unit"] != unit or row["part"] != part]
        of_unit = {"part": part, "unit": unit, "run": line["run"], "when": line["when"]}
        self.document[name] = [*rows, *({**row, **of_unit} for row in line[name])]

    def rows(self, name: str, run: int) -> list[dict[str, Any]]:
        """The rows of `calls` or of `counters` of one run."""
        return [row for row in self.document[name] if row["run"] == run]

    def counted(self, part: str, run: int) -> dict[str, int]:
        """How many units of a part have each verdict in one run."""
        result: dict[str, int] = {}
        for of_run, verdict in self.history(part).values():
            if of_run == run:
                result[verdict] = result.get(verdict, 0) + 1
        return result

    def unmeasured(self, part: str) -> tuple[int, list[str]]:
        """The number of reported units of a part that no run has measured, and the reasons."""
        history, entries = self.history(part), self.document["parts"].get(part, {})
        left = [u for u in self.units.get(part, history) if history.get(u, (0, CUT))[1] in UNMEASURED]
        reasons = (entries[unit].get("said", "") for unit in left if unit in entries)
        return len(left), list(dict.fromkeys(filter(None, reasons)))

    def save(self) -> None:
        """Write the document in one step. Raises `FileError`."""
        write_file(self.path, as_text(self.document))


def as_text(document: Mapping[str, Any]) -> str:
    """The document as JSON, with a line for each run, row and unit, so that a run changes few lines."""
    parts = ",\n".join(
        f"  {json.dumps(part)}: {{\n" + _lines(entries.items()) + "\n  }"
        for part, entries in document["parts"].items()
    )
    cells = [f' "{key}": {_dumped(value)}' for key, value in document.items() if not isinstance(value, list)]
    cells = [cell for cell in cells if not cell.startswith(' "parts"')]
    cells += [
        f' "{key}": [\n' + ",\n".join(f"  {_dumped(row)}" for row in value) + "\n ]"
        for key, value in document.items()
        if isinstance(value, list)
    ]
    return "{\n" + ",\n".join([*cells, f' "parts": {{\n{parts}\n }}']) + "\n}\n"


def _lines(entries: Iterable[tuple[str, Entry]]) -> str:
    return ",\n".join(f"   {json.dumps(unit)}: {_dumped(entry)}" for unit, entry in entries)


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def words(counts: Mapping[str, int]) -> str:
    """Counts of verdicts in words: `3 passed, 1 failed`."""
    known: Sequence[str] = (PASSED, FAILED, CRASHED, HUNG, SKIPPED, MISSING, CUT)
    return ", ".join(f"{counts[name]} {name}" for name in known if counts.get(name)) or "nothing"
