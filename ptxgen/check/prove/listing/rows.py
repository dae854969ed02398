"""Tables of values: one numpy column for each value, one row for each combination."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ptxgen.check.prove.program.domain import Shape
from ptxgen.check.prove.program.values import Node

Lanes = np.ndarray[Any, np.dtype[Any]]

MOST_ROWS: Final = 1 << 20
THREAD: Final = -1  # key of the column of threads; keys below it mark the rows of a loop's entry


class NotListedError(Exception):
    """A value cannot be listed; `node` is the value to give up, None if there are too many rows."""

    def __init__(self, reason: str, node: Node | None = None) -> None:
        super().__init__(reason)
        self.node = node


class SpentError(Exception):
    """A search has spent the steps that it was allowed."""


class Effort:
    """The number of steps that a search may still spend: steps and not seconds, so that it stops at
    the same point on every machine. A step is about the work of computing one value in some hundred
    rows.
    """

    def __init__(self, steps: int) -> None:
        self._left = steps
        self._least = 0

    def share(self) -> int:
        """Allow half of the remaining steps from now on, and return their number."""
        self._least = self._left // 2
        return self._left - self._least

    def allow(self, steps: int) -> None:
        """Allow `steps` steps from now on, or as many as remain."""
        self._least = max(self._left - steps, 0)

    def spend(self, steps: int) -> None:
        """Raise `SpentError` if `steps` is more than is still allowed."""
        self._left -= steps
        if self._left < self._least:
            self._left = self._least
            raise SpentError


class Table:
    """Rows of values. `sure` is a mask of the rows that certainly occur in some launch, provided that the
    predicates in `assumed` (by number, with whether they are negated) hold.
    """

    def __init__(self, n: int, columns: dict[int, Lanes], sure: Lanes, assumed: dict[int, set[bool]]) -> None:
        self.n = n
        self.columns = columns
        self.sure = sure
        self.assumed = assumed
        self.computed: dict[int, Lanes] = {}

    @classmethod
    def empty(cls) -> Table:
        """A table with one row and no columns."""
        return cls(1, {}, np.ones(1, np.bool_), {})

    def take(self, rows: Lanes) -> Table:
        """A table of the rows with these indices, each as often as it is named."""
        if len(rows) > MOST_ROWS:
            raise NotListedError(f"more than {MOST_ROWS} combinations")
        columns = {key: column[rows] for key, column in self.columns.items()}
        return Table(len(rows), columns, self.sure[rows], self.assumed)


def all_threads(shape: Shape) -> Table:
    """A table with a row for each thread of a block."""
    threads = np.arange(shape.threads)
    return Table(len(threads), {THREAD: threads}, np.ones(len(threads), np.bool_), {})


def has(table: Table, leaf: Node) -> bool:
    """Whether a table has a column for a leaf: a value, such as a thread index, from which others follow."""
    return (THREAD if leaf.kind == "thread" else leaf.id) in table.columns


def thread_of(table: Table, row: int) -> int:
    """The linear index of a row's thread in its block; 0 if no row depends on the thread."""
    column = table.columns.get(THREAD)
    return 0 if column is None else int(column[row])


class Seen:
    """The rows of a loop that have been seen, to find the new ones.

    `again` has, by the row of the loop's entry, the iteration whose values came again: from that
    iteration on the values recur.
    """

    def __init__(self, rows: Lanes) -> None:
        self._iterations: dict[bytes, int] = {}
        self._iteration = 0
        self.again: dict[int, int] = {}
        self.fresh(rows)

    def fresh(self, rows: Lanes) -> Lanes:
        """The indices of the rows of the next iteration that are new, each row once."""
        contiguous = np.ascontiguousarray(rows)
        keys = contiguous.view(f"V{contiguous.itemsize * contiguous.shape[1]}").ravel().tolist()
        known = self._iterations
        new = dict.fromkeys(key for key in keys if key not in known)
        indices = range(len(keys))
        if len(new) < len(keys):
            indices = self._sorted(rows, keys, new)
        known.update(dict.fromkeys(new, self._iteration))
        self._iteration += 1
        return np.array(indices, np.int64)

    def _sorted(self, rows: Lanes, keys: list[bytes], new: dict[bytes, None]) -> Any:
        taken: set[bytes] = set()
        indices = []
        for index, key in enumerate(keys):
            if key in new and key not in taken:
                taken.add(key)
                indices.append(index)
            elif key in self._iterations:
                parent = int(rows[index, 0])
                self.again[parent] = max(self.again.get(parent, 0), self._iterations[key])
        return indices


def stacked(nodes: list[Node], parts: Sequence[tuple[Table, list[Lanes]]]) -> Table:
    """One table of the rows of several, each part with its own values of `nodes`."""
    common = set.intersection(*(set(part.columns) for part, _ in parts))
    columns = {key: np.concatenate([part.columns[key] for part, _ in parts]) for key in common}
    for n, node in enumerate(nodes):
        columns[node.id] = np.concatenate([values[n] for _, values in parts])
    sure = np.concatenate([part.sure for part, _ in parts])
    # Rows that belong together cannot be matched.
    if any(len(part.columns) > len(common) for part, _ in parts):
        sure = np.zeros(len(sure), np.bool_)
    assumed: dict[int, set[bool]] = {}
    for part, _ in parts:
        assumed = merged(assumed, part.assumed)
    if len(sure) > MOST_ROWS:
        raise NotListedError(f"more than {MOST_ROWS} combinations")
    return Table(len(sure), columns, sure, assumed)


def most_varied(nodes: list[Node], states: list[Lanes]) -> Node:
    """The value of a loop that has taken the most distinct values."""
    taken = np.concatenate(states)
    counts = [len(np.unique(taken[:, column])) for column in range(len(nodes))]
    return nodes[int(np.argmax(counts))]


def merged(a: dict[int, set[bool]], b: dict[int, set[bool]]) -> dict[int, set[bool]]:
    """The predicates that either of two tables assumes, by number, with whether they are negated."""
    return {key: a.get(key, set()) | b.get(key, set()) for key in (*a, *b)}
