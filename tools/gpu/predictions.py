"""The models' predictions for a kernel, made before a GPU ran it."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.measure.predictions import Prediction


def predicted(texts: Iterable[str], row: Mapping[str, Any]) -> dict[str, float]:
    """The predictions for a row, by its keys, of the first of its texts (hashes) that has any; empty if none
    has. Rates and clocks of launches are of batches of one size, which rows without `heads` have.
    """
    known = _by_text()
    entry = next((known[text] for text in texts if text in known), None)
    if entry is None:
        return {}
    result = {"tensor_pipe_%": entry.tensor}
    queries = row.get("n", row.get("N"))
    for launch in entry.launches if "heads" not in row else ():
        if launch["queries"] == queries:
            result |= {"tflops": launch["tflops"], "cycles": launch["clocks"]}
    return {name: ahead for name, ahead in result.items() if name in row}


@functools.cache
def _by_text() -> dict[str, Prediction]:
    # Imported here, because the worker also runs where packages that kernels need are missing.
    from benchmarks.measure.predictions import predictions

    return {entry.sha256: entry for entry in predictions()}
