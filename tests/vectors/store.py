"""Recorded cases in files: one .npz.xz for each family, which holds everything."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import lzma
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
from vectors.cases import Array, Case

FORMAT: Final = 2  # of the files; raised when their layout changes
SUFFIX: Final = ".npz.xz"  # compressed as a whole: the results of several instructions are much alike
_TUPLES: Final = ("inputs", "shape", "signs", "maps")


def save(path: Path, facts: dict[str, Any], recorded: Iterable[tuple[Case, Array]]) -> None:
    """Writes cases with their outputs, and what is known of the machine, in one step; equal arrays
    are kept once.
    """
    arrays: dict[str, Array] = {}

    def kept(array: Array) -> str:
        held = np.ascontiguousarray(array)
        digest = hashlib.sha256(f"{held.dtype} {held.shape}".encode() + held.tobytes())
        key = f"a{digest.hexdigest()[:16]}"
        arrays[key] = held
        return key

    rows = []
    for case, output in recorded:
        row = {f.name: getattr(case, f.name) for f in dataclasses.fields(case)}
        row["inputs"] = [kept(x) for x in case.inputs]
        rows.append({**row, "output": kept(output)})
    text = json.dumps({"format": FORMAT, **facts, "cases": rows}, sort_keys=True)
    arrays["facts"] = np.frombuffer(text.encode(), np.uint8)
    whole = io.BytesIO()
    np.savez(whole, allow_pickle=False, **arrays)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(lzma.compress(whole.getbuffer(), preset=lzma.PRESET_DEFAULT | lzma.PRESET_EXTREME))
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def load(path: Path) -> tuple[dict[str, Any], list[tuple[Case, Array]]]:
    """What `save` wrote."""
    whole = io.BytesIO(lzma.decompress(path.read_bytes()))
    with np.load(whole, allow_pickle=False) as arrays:
        facts = json.loads(arrays["facts"].tobytes())
        if facts["format"] != FORMAT:
            raise ValueError(f"{path} has format {facts['format']}, wanted {FORMAT}; record it again")
        recorded = []
        for row in facts.pop("cases"):
            output = arrays[row.pop("output")]
            row["inputs"] = [arrays[key] for key in row["inputs"]]
            for name in _TUPLES:
                row[name] = tuple(row[name])
            row["maps"] = tuple(m if m is None else _settings(m) for m in row["maps"])
            recorded.append((Case(**row), output))
    return facts, recorded


def _settings(kept: dict[str, Any]) -> dict[str, Any]:
    """A map's settings, whose tuples JSON has made lists."""
    return {name: tuple(v) if isinstance(v, list) else v for name, v in kept.items()}
