"""The ledger of emitted texts that ran on a GPU: `ledger.json`, an entry for each text and device.

A verdict is "right" where a test or script compared the results with what they should be, "ran" where
nothing did, and "wrong" where a test failed in which the text ran. An entry without a text is of a kernel
whose text at that time is not known for certain; it says that an earlier text of the kernel ran.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

RIGHT, WRONG, RAN = "right", "wrong", "ran"
VERDICTS: Final = (RIGHT, WRONG, RAN)
LEDGER: Final = Path(__file__).with_name("ledger.json")
SCHEMA: Final = 1  # of the file; raised when a key changes its meaning


@dataclass(frozen=True, slots=True)
class Entry:
    """The verdict on a text that ran on a device.

    text: its key, or None if only the kernel is known. kernel: the names of its entries and its target, as
    "attention_forward_f32_d64_m128_n64 for sm_80". compute_capability: as "9.0". driver: the version of the
    NVIDIA driver. source: the test or file that recorded the verdict. project: the version or commit that
    emitted it.
    """

    text: str | None
    kernel: str
    device: str
    compute_capability: str
    driver: str
    verdict: str
    source: str
    project: str

    @property
    def where(self) -> str:
        """The device, with its driver."""
        return f"{self.device} (driver {self.driver})"


class LedgerError(ValueError):
    """A file is no ledger, or an entry of it is malformed."""


def key(text: str) -> str:
    """The key of a text: the SHA-256 of its bytes, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def entry_of(data: Any, where: str) -> Entry:
    """The entry of plain data. Raises `LedgerError`, which begins with `where`, if it is malformed."""
    names = [field.name for field in fields(Entry)]
    if not isinstance(data, dict) or set(data) != set(names):
        raise LedgerError(f"{where}: an entry has the keys {', '.join(names)}, got {_shown(data)}")
    wrong = [n for n in names if not isinstance(data[n], str) and not (n == "text" and data[n] is None)]
    if wrong:
        raise LedgerError(f"{where}: {wrong[0]} must be a string, got {data[wrong[0]]!r}")
    if data["verdict"] not in VERDICTS:
        raise LedgerError(f"{where}: verdict must be one of {', '.join(VERDICTS)}, got {data['verdict']!r}")
    return Entry(**data)


def _shown(data: Any) -> str:
    return ", ".join(map(str, data)) if isinstance(data, dict) else repr(data)


def read(path: Path = LEDGER) -> tuple[Entry, ...]:
    """The entries of a ledger; none of a file that does not exist. Raises `LedgerError` for another file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ()
    return _parsed(text, str(path))


def _parsed(text: str, where: str) -> tuple[Entry, ...]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise LedgerError(f"{where}: no JSON: {error}") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise LedgerError(f"{where}: no ledger: schema must be {SCHEMA}")
    return tuple(entry_of(one, where) for one in data.get("entries", ()))


def merge(old: Iterable[Entry], new: Iterable[Entry]) -> tuple[Entry, ...]:
    """The entries of both, one for each text and device, sorted by kernel. Of two entries the one in `new`
    stays; but "ran" replaces no other verdict, and "wrong" stays until its own source says "right".
    """
    merged: dict[tuple[str, ...], Entry] = {}
    for entry in (*old, *new):
        of = entry.kernel, entry.device, entry.text or ""
        before = merged.get(of)
        if before is None or _replaces(entry, before):
            merged[of] = entry
    return tuple(entry for _, entry in sorted(merged.items(), key=lambda item: item[0]))


def _replaces(entry: Entry, before: Entry) -> bool:
    if entry.verdict == RAN:
        return before.verdict == RAN
    return entry.verdict == WRONG or before.verdict != WRONG or entry.source == before.source


def write(entries: Iterable[Entry], path: Path = LEDGER) -> None:
    """Write entries to a file, each on a line, in one step."""
    lines = ",\n".join(json.dumps(asdict(entry), ensure_ascii=False) for entry in merge((), entries))
    text = f'{{"schema": {SCHEMA}, "entries": [\n{lines}\n]}}\n'
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


class Ledger:
    """Entries, by kernel."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries: dict[str, list[Entry]] = {}
        for entry in entries:
            self._entries.setdefault(entry.kernel, []).append(entry)

    def of(self, kernel: str, text: Callable[[], str]) -> tuple[list[Entry], list[Entry]]:
        """The entries of a kernel's text, and those of its other texts. `text` is called only if the ledger
        knows a text of the kernel, because it may take a while.
        """
        known = self._entries.get(kernel, [])
        wanted = key(text()) if any(entry.text for entry in known) else ""
        ran = [entry for entry in known if entry.text == wanted]
        return ran, [entry for entry in known if entry.text != wanted]

    def status(self, kernel: str, text: Callable[[], str]) -> str:
        """A sentence that says on which GPUs a kernel's text ran, with which verdicts."""
        ran, earlier = self.of(kernel, text)
        if ran:
            return "; ".join(_outcome(entry) for entry in ran)
        message = "this text has not run on a GPU"
        if earlier:
            where = " and ".join(dict.fromkeys(f"an {entry.where}" for entry in earlier))
            message += f"; an earlier text of this config ran on {where}"
        return message


def _outcome(entry: Entry) -> str:
    if entry.verdict == WRONG:
        return f"{entry.source} failed with this text on an {entry.where}"
    judged = "and was right" if entry.verdict == RIGHT else "and nothing judged its results"
    return f"this text ran on an {entry.where}, {judged}"


@functools.cache
def ledger() -> Ledger:
    """The ledger of this package, which may lie in a wheel that is not unpacked."""
    # Imported here, because emitting text does not need it.
    from importlib.resources import files

    text = files("flash.silicon").joinpath(LEDGER.name).read_text(encoding="utf-8")
    return Ledger(_parsed(text, LEDGER.name))
