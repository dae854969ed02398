"""The sources of compiled PTX, for findings that show a line of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ptxgen.parse import Sources


def sources_of(known: Mapping[str, str] | None = None, compiled: float | None = None) -> Sources:
    """The lines of a source by its path: of the texts that are known by path, else of the file.

    `compiled` is when the PTX was made, in seconds since the epoch: a file that has changed since
    then has no lines, because its lines may be others.
    """
    texts = known or {}

    def lines(path: str) -> Sequence[str]:
        if path in texts:
            return texts[path].splitlines()
        try:
            file = Path(path)
            if compiled is not None and file.stat().st_mtime > compiled:
                return ()
            return file.read_text(errors="replace").splitlines()
        except (OSError, ValueError):
            return ()

    return lines
