"""A file that gets each verdict as it comes, so that a campaign which is interrupted can go on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from ptxgen.mutation.judge import Verdict

_FIELDS: Final = {field.name for field in fields(Verdict)}


@dataclass(frozen=True, slots=True)
class Journal:
    """Verdicts in a file, one JSON object a line, each with the SHA-256 hash of its kernel's text."""

    file: Path

    def read(self, hashes: Mapping[str, str]) -> dict[tuple[str, str], Verdict]:
        """The verdicts on mutants of kernels whose texts have these `hashes`, by kernel and mutant. A last
        line that was not written whole is dropped from the file.

        Raises `OSError`, or `ValueError` for a file that is no journal.
        """
        text = self.file.read_text(encoding="utf-8") if self.file.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            self.file.write_text(whole, encoding="utf-8")
        verdicts: dict[tuple[str, str], Verdict] = {}
        for number, line in enumerate(whole.splitlines(), 1):
            row: Any = json.loads(line)
            if not isinstance(row, dict) or row.keys() != {"sha256", *_FIELDS} or not _fits(row):
                raise ValueError(f"line {number} is no verdict")
            if row.pop("sha256") == hashes.get(row["kernel"]):
                row["also"] = tuple(row["also"])
                verdicts[row["kernel"], row["name"]] = Verdict(**row)
        return verdicts

    def add(self, verdict: Verdict, sha256: str) -> None:
        """Add a verdict on a mutant of the kernel whose text has this hash. Raises `OSError`."""
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"sha256": sha256, **asdict(verdict)}) + "\n")


def _fits(row: Mapping[str, Any]) -> bool:
    """Whether the values of a line have the types that a verdict has."""
    also, problem = row["also"], row["problem"]
    texts = [value for name, value in row.items() if name not in ("also", "problem")]
    return (
        isinstance(also, list) and type(problem) is int and all(isinstance(t, str) for t in (*also, *texts))
    )
