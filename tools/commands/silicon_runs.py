"""Lines about tests and scripts that ran on a GPU: each appends one at its end, and `tools/silicon.py
--merge` brings them into the ledger.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import ptxgen
from flash.silicon.ledger import Entry, LedgerError, entry_of

ROOT: Final = Path(__file__).resolve().parents[2]
_SOURCES: Final = ("ptxgen", "flash", "templates", "tests")
_SUFFIXES: Final = {".py", ".j2", ".ptx", ".json"}


@functools.cache
def sources() -> str:
    """A digest of the code and the tests: with the same digest, a test launches the same texts."""
    digest = hashlib.sha256()
    for folder in _SOURCES:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in _SUFFIXES and path.name != "ledger.json":
                digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _project() -> str:
    return f"{ptxgen.__version__}, sources {sources()}"


@dataclass(frozen=True, slots=True)
class Run:
    """The verdict on a test or script that ran on a device. texts: the kernel of each text by its key, as in
    `flash.silicon.ledger.Entry`, whose other fields these are, too.
    """

    source: str
    device: str
    compute_capability: str
    driver: str
    verdict: str
    texts: Mapping[str, str]
    project: str = field(default_factory=_project)

    @property
    def entries(self) -> Iterator[Entry]:
        """An entry of the ledger for each text."""
        shared = {name: value for name, value in asdict(self).items() if name != "texts"}
        return (Entry(text, kernel, **shared) for text, kernel in self.texts.items())


def append(path: Path, run: Run) -> None:
    """Append a line in one write, so that lines of several processes do not mix."""
    line = json.dumps(asdict(run) | {"texts": dict(sorted(run.texts.items()))}, ensure_ascii=False) + "\n"
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


def read_runs(path: Path) -> list[Run]:
    """The runs of a file, none if there is no file. Raises `LedgerError` for a malformed line; a last line
    without an end, which a process that was stopped has left, is passed over.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    lines = text.split("\n")[:-1]
    return [_run_of(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]


def _run_of(line: str, where: str) -> Run:
    names = [field.name for field in fields(Run)]
    try:
        data: Any = json.loads(line)
    except ValueError as error:
        raise LedgerError(f"{where}: no JSON: {error}") from None
    if not isinstance(data, dict) or set(data) != set(names) or not isinstance(data["texts"], dict):
        raise LedgerError(f"{where}: a line has the keys {', '.join(names)}, and texts is an object")
    run = Run(**data)
    for entry in run.entries:
        entry_of(asdict(entry), where)
    return run


def entries_of(runs: Sequence[Run]) -> list[Entry]:
    """The ledger entries of all runs, in the order of the runs."""
    return [entry for run in runs for entry in run.entries]
