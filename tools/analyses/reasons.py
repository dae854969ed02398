"""Why a mutant of the analysers that no test notices changes no verdict: argued once, in words."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tools.analyses.kinds import mutants
from tools.analyses.source import files

REASONS: Final = Path(__file__).with_name("reasons.toml")

Key = tuple[str, str, str, str, str]


def load(text: str) -> dict[Key, str]:
    """The reasons of a TOML text, by file, function, kind, and the line before and after.

    Raises `ValueError` for what is not `[[reason]]` tables of a sentence `why` and rows of five
    strings, and for a mutant that is named twice.
    """
    known: dict[Key, str] = {}
    for number, table in enumerate(tomllib.loads(text).get("reason", ()), 1):
        why, rows = table.get("why"), table.get("mutants")
        if not isinstance(why, str) or not isinstance(rows, list) or not rows:
            raise ValueError(f"reason {number}: needs a sentence `why` and a list `mutants`")
        for row in rows:
            key = tuple(row)
            if len(key) != len(Key.__args__) or not all(isinstance(word, str) for word in key):  # type: ignore[attr-defined]
                raise ValueError(
                    f"reason {number}: must name file, function, kind, the line before and the "
                    f"line after, got {row!r}"
                )
            if key in known:
                raise ValueError(f"reason {number}: {row!r} has a reason already")
            known[key] = why
    return known


@functools.cache
def reasons() -> dict[Key, str]:
    """The committed reasons why some surviving mutants change no verdict."""
    return load(REASONS.read_text(encoding="utf-8"))


def unmatched(known: Mapping[Key, str]) -> list[Key]:
    """The reasons that match no mutant, because their line has changed or is misspelt."""
    there = {mutant.key for file in files() for mutant in mutants(file)}
    return [key for key in known if key not in there]
