"""Measurements of a benchmark: samples, their statistics, and the order in which contestants are timed."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

Work = Callable[[], object]
Setting = str | int | float | bool

MS: Final = 1e3  # milliseconds in a second
US: Final = 1e6  # microseconds in a second


@dataclass(frozen=True, slots=True)
class Goal:
    """The goal of a median: at most (`<=`) or at least (`>=`) a value in the median's unit."""

    relation: str
    value: float

    def met_by(self, median: float) -> bool:
        """Whether `median` meets the goal; a median equal to the goal does."""
        return median <= self.value if self.relation == "<=" else median >= self.value

    def __str__(self) -> str:
        return f"{self.relation} {self.value:g}"


@dataclass(frozen=True, slots=True)
class Measurement:
    """A median and its spread, in `unit`; `config` holds the settings that were measured.

    `iqr` is the distance between the quartiles, 0 for a single sample. A headline is repeated at
    the end of the table.
    """

    name: str
    unit: str
    repeats: int
    median: float
    minimum: float
    iqr: float
    config: Mapping[str, Setting] = field(default_factory=dict)
    goal: Goal | None = None
    headline: bool = False

    @property
    def label(self) -> str:
        """The name with its configuration: `ours / torch [N=1024 causal=False]`."""
        if not self.config:
            return self.name
        return f"{self.name} [{' '.join(f'{key}={value}' for key, value in self.config.items())}]"

    def as_json(self) -> dict[str, Any]:
        """The measurement as plain data; numbers that are not finite become None, for JSON."""
        median, least, spread = (
            x if math.isfinite(x) else None for x in (self.median, self.minimum, self.iqr)
        )
        goal = self.goal and {"goal": str(self.goal), "goal_met": self.goal.met_by(self.median)}
        return {
            "name": self.name,
            "config": dict(self.config),
            "unit": self.unit,
            "repeats": self.repeats,
            "median": median,
            "min": least,
            "iqr": spread,
            "headline": self.headline,
            **(goal or {}),
        }


Rows = list[Measurement | str]  # a string is a remark for the reader


class Job(NamedTuple):
    """A part of a section: its label for the progress bar, and its function."""

    label: str
    run: Callable[[], Rows]


def measured(
    name: str,
    unit: str,
    samples: Sequence[float],
    *,
    config: Mapping[str, Setting] | None = None,
    goal: Goal | None = None,
    headline: bool = False,
) -> Measurement:
    """The statistics of at least one sample; quartiles are interpolated between samples."""
    first, third = samples[0], samples[0]
    if len(samples) > 1:
        first, _, third = statistics.quantiles(samples, n=4, method="inclusive")
    return Measurement(
        name,
        unit,
        len(samples),
        statistics.median(samples),
        min(samples),
        third - first,
        config or {},
        goal,
        headline,
    )


def seconds(work: Work, clock: Callable[[], float] = time.perf_counter) -> float:
    """The time of one call in seconds, by default wall-clock time."""
    begin = clock()
    work()
    return clock() - begin


def timed(work: Work, repeats: int, *, warmup: int = 1) -> list[float]:
    """Seconds of each of `repeats` calls, after `warmup` calls that do not count."""
    for _ in range(warmup):
        work()
    return [seconds(work) for _ in range(repeats)]


def interleaved(
    contestants: Mapping[str, Work],
    *,
    rounds: int,
    batch: int,
    dropped: int = 2,
    timer: Callable[[Work], float] = seconds,
    pause: float = 0.0,
) -> dict[str, list[list[float]]]:
    """Samples of each contestant, in seconds: `rounds` lists of `batch`.

    In every round each contestant has one turn of `dropped + batch` calls in a row, of which the
    first `dropped` do not count, because the contestant before may still use the machine: a pool of
    OpenMP threads spins on its cores for milliseconds after the call. The order is reversed from
    round to round, so that a machine that gets faster or slower favours no contestant. `pause` is
    in seconds, before each turn.
    """
    samples: dict[str, list[list[float]]] = {name: [] for name in contestants}
    for number in range(rounds):
        order = list(contestants) if number % 2 == 0 else list(contestants)[::-1]
        for name in order:
            time.sleep(pause)
            times = [timer(contestants[name]) for _ in range(dropped + batch)]
            samples[name].append(times[dropped:])
    return samples


def flat(rounds: Sequence[Sequence[float]]) -> list[float]:
    """All samples of all rounds."""
    return [sample for samples in rounds for sample in samples]


def ratios(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> list[float]:
    """For each round, our median time divided by theirs: a slowdown of both cancels out."""
    return [
        statistics.median(mine) / statistics.median(other) for mine, other in zip(ours, theirs, strict=True)
    ]
