"""Finds a line of a source by its text, so that tests name no line numbers."""

from __future__ import annotations

from pathlib import Path


def line_of(file: Path, text: str) -> int:
    """The number of the one line that has the text."""
    result = [n for n, line in enumerate(file.read_text().splitlines(), 1) if text in line]
    assert len(result) == 1, f"{text!r} is in the lines {result} of {file}"
    return result[0]
