"""What the models said of a kernel before a GPU ran it: benchmarks/results/predictions.json."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tools.gpu.rooms import ROOT

FILE: Final = ROOT / "benchmarks" / "results" / "predictions.json"


def predicted(texts: Iterable[str], row: Mapping[str, Any]) -> dict[str, float]:
    """The predictions for a row, by its keys, of the first of its texts (hashes) that has any; empty if none
    has. Rates and clocks of launches are of batches of one size, which rows without `heads` have.
    """
    entries = _entries()
    entry = next((entries[text] for text in texts if text in entries), None)
    if entry is None:
        return {}
    result = {"tensor_pipe_%": entry["tensor_%"]}
    queries = row.get("n", row.get("N"))
    for launch in entry["launches"] if "heads" not in row else ():
        if launch["queries"] == queries:
            result |= {"tflops": launch["tflops"], "cycles": launch["clocks"]}
    return {name: ahead for name, ahead in result.items() if name in row}


@functools.cache
def _entries() -> dict[str, dict[str, Any]]:
    if not FILE.is_file():
        return {}
    return {entry["sha256"]: entry for entry in json.loads(FILE.read_text(encoding="utf-8"))["predictions"]}
