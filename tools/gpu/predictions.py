"""What the model said of a kernel before a GPU ran it: benchmarks/results/predictions.json."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from typing import Any, Final

from tools.gpu.rooms import ROOT

FILE: Final = ROOT / "benchmarks" / "results" / "predictions.json"


def predicted(texts: Iterable[str]) -> dict[str, Any]:
    """The predictions for the first of some texts, by their hashes, that has any; empty if none has."""
    rows = _rows()
    return next((rows[text] for text in texts if text in rows), {})


@functools.cache
def _rows() -> dict[str, dict[str, Any]]:
    if not FILE.is_file():
        return {}
    rows = json.loads(FILE.read_text(encoding="utf-8"))["rows"]
    return {row["text"]: row for row in rows}
