"""The journal of a session: lines of JSON that its processes append as they go. It outlives a process that is
killed, and a session that is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

BEGIN: Final = "begin"  # a unit begins
END: Final = "end"  # a unit has ended, with its verdict
UNITS: Final = "units"  # all units that a part has on this machine
COMPLETE: Final = "complete"  # a process has nothing left to do

Line = dict[str, Any]


@dataclass(slots=True)
class Journal:
    """The journal in the file `path`; `facts` are in each line that this process writes."""

    path: Path
    facts: Line
    _at: int = 0  # bytes that `new` has read

    def write(self, event: str, **line: Any) -> None:
        """Append a line in one write, so that processes can share the file. A number that JSON does not have,
        such as NaN, becomes null.
        """
        text = json.dumps(_plain({"event": event, **self.facts, **line}), allow_nan=False)
        with self.path.open("ab", buffering=0) as file:
            file.write(f"{text}\n".encode())

    def new(self) -> list[Line]:
        """The lines that were written since the last call. A line whose end is not there yet is left for the
        next call; what is no JSON, as after a crash of the machine, is left out.
        """
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._at)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._at += len(whole) + len(newline)
        result = []
        for line in whole.splitlines():
            try:
                result.append(json.loads(line))
            except ValueError:
                continue
        return result


def _plain(value: Any) -> Any:
    """The value with None in place of numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value
