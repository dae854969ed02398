"""The result of tuning: each configuration with what was measured or computed, the best first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ptxgen.errors import ConfigError
from ptxgen.fragments import fragment, pretty
from ptxgen.records import dataclass

SCHEMA: Final = 1  # of the records on disk; raised when a key changes its meaning
_COLUMNS: Final = ("", "configuration", "threads", "registers", "spilled", "shared", "warps/SM")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration, as text, and what is known of it: the SHA-256 of its PTX (empty if it was not built),
    the threads of a CTA, registers of a thread, bytes that spill code moves (on a GPU bytes of a
    thread's spills and stack), bytes of shared memory of a CTA, and warps that a multiprocessor holds.
    `cost` is the median time in milliseconds, or by the model the clocks of the launch, of which `unit`
    is the busiest unit. `problem` says why it cannot be used; its cost is then infinite.
    """

    configuration: str
    sha256: str = ""
    threads: int = 0
    registers: int = 0
    spilled_bytes: int = 0
    shared_bytes: int = 0
    warps: int = 0
    cost: float = math.inf
    unit: str = ""
    problem: str = ""

    @property
    def works(self) -> bool:
        """Whether the candidate can be used: it was built and run, and its results are right."""
        return not self.problem


@dataclass(frozen=True, slots=True)
class Ranking:
    """The candidates of a kernel for one problem, the best first. `judge` says what ranked them: the clock of
    a device, or the model; `device` is that GPU or the target of the model. `problem` has the extents of the
    arrays and the integers of the launch, by name.
    """

    kernel: str
    judge: str
    device: str
    problem: Mapping[str, Any]
    candidates: tuple[Candidate, ...]

    @property
    def is_by_the_clock(self) -> bool:
        """Whether the ranking is by times measured on a GPU, not by a model."""
        return self.judge.startswith(CLOCK)

    @property
    def best(self) -> Candidate:
        """The best candidate. Raises `ConfigError` with every reason if none works."""
        first = self.candidates[0]
        if first.works:
            return first
        reasons = "".join(f"\n  {c.configuration}: {c.problem}" for c in self.candidates)
        raise ConfigError(
            f"autotune of kernel {self.kernel}: none of {len(self.candidates)} configurations works:{reasons}"
        )

    def as_json(self) -> dict[str, Any]:
        """The ranking as plain data for JSON, from which `of_json` makes it again."""
        rows = [
            {name: getattr(c, name) for name in Candidate.__slots__ if name != "cost" or c.works}
            for c in self.candidates
        ]
        return {
            "schema": SCHEMA,
            "kernel": self.kernel,
            "judge": self.judge,
            "device": self.device,
            "problem": dict(self.problem),
            "candidates": rows,
        }

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> Ranking | None:
        """The ranking that `as_json` wrote; None for data of another form."""
        try:
            rows = tuple([Candidate(**row) for row in data["candidates"]])
            ranking = cls(data["kernel"], data["judge"], data["device"], data["problem"], rows)
        except (KeyError, TypeError):
            return None
        return ranking if rows and data.get("schema") == SCHEMA else None

    _repr_pretty_ = pretty

    def _repr_html_(self) -> str:
        """The ranking as an HTML table, which a notebook shows."""
        unusable = "cannot be used", "\n".join(self._unusable()), True
        return fragment(self._title, head=self._head, rows=self._rows(), texts=[unusable])

    def __str__(self) -> str:
        rows = [self._head, *self._rows()]
        widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
        left = (1, len(rows[0]) - 1)  # columns of words
        lines = [
            "  ".join(
                cell.ljust(width) if n in left else cell.rjust(width)
                for n, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        return "\n".join([self._title, *lines, *self._unusable()])

    @property
    def _title(self) -> str:
        by = "measured" if self.is_by_the_clock else "by the model, not measured"
        sizes = ", ".join(f"{name}={size}" for name, size in self.problem.items())
        return f"{self.kernel} on {self.device}, {by}: {sizes}"

    @property
    def _head(self) -> list[str]:
        return [*_COLUMNS, "ms" if self.is_by_the_clock else "clocks", "x best", "busiest"]

    def _unusable(self) -> list[str]:
        return [f"{c.configuration}: {' '.join(c.problem.split())}" for c in self.candidates if not c.works]

    def _rows(self) -> Iterator[list[str]]:
        for n, c in enumerate(self.candidates, 1):
            if c.works:
                numbers = (c.threads, c.registers, c.spilled_bytes, c.shared_bytes, c.warps)
                cost = f"{c.cost:.4f}" if self.is_by_the_clock else f"{c.cost:,.0f}"
                ratio = f"{c.cost / self.candidates[0].cost:.2f}" if self.candidates[0].cost else ""
                yield [str(n), c.configuration, *map("{:,}".format, numbers), cost, ratio, c.unit]


CLOCK: Final = "clock"
