"""Tells how fast this machine runs Python, beside goals that are times on another machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from flash.commands.measure.record import Measurement, Work, measured, seconds

# Seconds of `small_objects` on the machine of docs/tuning.md, estimated: 0.65 us, the least time there of the
# attributes of four stand-ins (benchmarks/results/launch-cpu.json of 1 December 2026), times 28.8, the ratio
# of the times of both on another machine.
REFERENCE_S: Final = 18.7e-6
_SAMPLES: Final = 200  # calls of `small_objects`, of which the quickest counts
MACHINE_REMARK: Final = (
    "goals are times on the machine of docs/tuning.md; how many times as long a fixed piece of Python takes "
    "here, at its quickest, is printed beside them: a time that misses its goal by less says that this "
    "machine is slower, not that the code is"
)


class _Small:
    __slots__ = ("kind", "number")

    def __init__(self, number: int, kind: str) -> None:
        self.number = number
        self.kind = kind


def small_objects() -> None:
    """The fixed piece: objects, attributes, calls, tuples and dictionaries, of which emission and launches
    are full.
    """
    counts: dict[tuple[str, int], int] = {}
    objects: list[_Small] = []
    for number in range(100):
        one = _Small(number, "f32")
        key = (one.kind, one.number & 7)
        counts[key] = counts.get(key, 0) + 1
        objects.append(one)


def this_machine(clock: Callable[[], float] = time.thread_time, work: Work = small_objects) -> Measurement:
    """How many times as long a fixed piece of Python takes as on the machine of the goals."""
    quickest = min(seconds(work, clock) for _ in range(_SAMPLES))
    return measured("this machine, against that of the goals", "x", [quickest / REFERENCE_S], headline=True)
