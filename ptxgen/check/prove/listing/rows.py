"""Rows of values, side by side in numpy columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ptxgen.check.prove.program.values import Node

Lanes = np.ndarray[Any, np.dtype[Any]]

MOST_ROWS: Final = 1 << 20
THREAD: Final = -1  # the number of the column of threads; those below tell where rows came from


class NotListedError(Exception):
    """A value cannot be listed; `node` is the one to give up, None if there are too many rows."""

    def __init__(self, reason: str, node: Node | None = None) -> None:
        super().__init__(reason)
        self.node = node


class SpentError(Exception):
    """What was allowed to a search has been spent."""


class Effort:
    """What a search may still spend: in steps, not in seconds, so that it ends at the same place
    everywhere. A step is about what it takes to compute one value in some hundred rows.
    """

    def __init__(self, steps: int) -> None:
        self._left = steps
        self._least = 0

    def share(self) -> int:
        """Allow half of what is left from now on; how much that is."""
        self._least = self._left // 2
        return self._left - self._least

    def allow(self, steps: int) -> None:
        """Allow so many steps from now on, if as many are left."""
        self._least = max(self._left - steps, 0)

    def spend(self, steps: int) -> None:
        """Raise `SpentError` if that is more than is allowed."""
        self._left -= steps
        if self._left < self._least:
            self._left = self._least
            raise SpentError


class Table:
    """Rows of values. `sure` says of which rows it is certain that they can happen, if those
    predicates hold that are `assumed`, by number: whether negated.
    """

    def __init__(self, n: int, columns: dict[int, Lanes], sure: Lanes, assumed: dict[int, set[bool]]) -> None:
        self.n = n
        self.columns = columns
        self.sure = sure
        self.assumed = assumed
        self.computed: dict[int, Lanes] = {}

    @classmethod
    def empty(cls) -> Table:
        """One row of nothing."""
        return cls(1, {}, np.ones(1, np.bool_), {})

    def take(self, rows: Lanes) -> Table:
        """Some rows, each as often as it is named."""
        if len(rows) > MOST_ROWS:
            raise NotListedError(f"more than {MOST_ROWS} combinations")
        columns = {key: column[rows] for key, column in self.columns.items()}
        return Table(len(rows), columns, self.sure[rows], self.assumed)


def has(table: Table, leaf: Node) -> bool:
    """Whether a table has the values of a leaf."""
    return (THREAD if leaf.kind == "thread" else leaf.id) in table.columns


def thread_of(table: Table, row: int) -> int:
    """The number of a row's thread in its block; 0 if no row depends on it."""
    column = table.columns.get(THREAD)
    return 0 if column is None else int(column[row])


class Seen:
    """The rows that have been before, to tell those that are new.

    `again` has, by the parent's row, the turn whose values came again: from that on they recur.
    """

    def __init__(self, rows: Lanes) -> None:
        self._turns: dict[bytes, int] = {}
        self._turn = 0
        self.again: dict[int, int] = {}
        self.fresh(rows)

    def fresh(self, rows: Lanes) -> Lanes:
        """The places of the rows of the next turn that are new, each once."""
        packed = np.ascontiguousarray(rows)
        keys = packed.view(f"V{packed.itemsize * packed.shape[1]}").ravel().tolist()
        known = self._turns
        new = dict.fromkeys(key for key in keys if key not in known)
        places = range(len(keys))
        if len(new) < len(keys):
            places = self._sorted(rows, keys, new)
        known.update(dict.fromkeys(new, self._turn))
        self._turn += 1
        return np.array(places, np.int64)

    def _sorted(self, rows: Lanes, keys: list[bytes], new: dict[bytes, None]) -> Any:
        taken: set[bytes] = set()
        places = []
        for place, key in enumerate(keys):
            if key in new and key not in taken:
                taken.add(key)
                places.append(place)
            elif key in self._turns:
                parent = int(rows[place, 0])
                self.again[parent] = max(self.again.get(parent, 0), self._turns[key])
        return places


def stacked(nodes: list[Node], parts: Sequence[tuple[Table, list[Lanes]]]) -> Table:
    """One table of several, each with its own values of `nodes`."""
    kept = set.intersection(*(set(part.columns) for part, _ in parts))
    columns = {key: np.concatenate([part.columns[key] for part, _ in parts]) for key in kept}
    for n, node in enumerate(nodes):
        columns[node.id] = np.concatenate([values[n] for _, values in parts])
    sure = np.concatenate([part.sure for part, _ in parts])
    if any(len(part.columns) > len(kept) for part, _ in parts):  # what belonged together is lost
        sure = np.zeros(len(sure), np.bool_)
    assumed: dict[int, set[bool]] = {}
    for part, _ in parts:
        assumed = merged(assumed, part.assumed)
    if len(sure) > MOST_ROWS:
        raise NotListedError(f"more than {MOST_ROWS} combinations")
    return Table(len(sure), columns, sure, assumed)


def merged(a: dict[int, set[bool]], b: dict[int, set[bool]]) -> dict[int, set[bool]]:
    """What two tables assume together."""
    return {key: a.get(key, set()) | b.get(key, set()) for key in (*a, *b)}
