"""The parts of a session, in the order in which they run, and what each needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MINUTES: Final = (
    9.0  # of a session, to which the seconds of parts below add up, with some for starts and ends
)
LEDGER: Final = "ledger.jsonl"  # what ran, in the folder of results; tools/silicon.py merges it
DEVICE: Final = "device"  # the query before all parts: the GPU, and the packages of the machine

_KERNELS: Final = ("numpy", "jinja2", "ml_dtypes", "cuda.bindings.driver")
_TESTS: Final = (*_KERNELS, "pytest")


@dataclass(frozen=True, slots=True)
class Part:
    """A part: at most `seconds` of a session of MINUTES, of which a unit may take `unit_s`. It needs modules
    of Python, and programs on PATH or in a package; at most `processes` share its units.
    """

    name: str
    about: str
    seconds: float
    unit_s: float
    modules: tuple[str, ...]
    programs: tuple[str, ...] = ()
    processes: int = 1


PARTS: Final = (
    Part(
        "smoke", "the demo's kernels against float64, instructions against the interpreter", 60, 40, _KERNELS
    ),
    Part("tests", "the tests marked gpu", 110, 60, _TESTS, processes=8),
    Part("drawn", "judged tests with --on-gpu, drawn at random", 90, 60, _TESTS, processes=8),
    Part(
        "timing",
        "forward, gradients, decoding and serving, beside PyTorch's backends where torch is there",
        160,
        60,
        _KERNELS,
    ),
    Part("counters", "clocks of tensor cores, by the GPU's counters", 50, 40, _KERNELS, ("ncu",)),
    Part(
        "sanitizer", "kernels and mutants under compute-sanitizer", 50, 50, _KERNELS, ("compute-sanitizer",)
    ),
)
OPTIONAL: Final = (
    "torch",
    "hypothesis",
    "scipy",
    "threadpoolctl",
)  # without which less is measured or tested


def deadline(part: Part, left: list[Part], now: float, end: float) -> float:
    """The time at which a part is over: its share of the time until `end` among itself and the parts `left`
    after it. What a part does not use, the others have.
    """
    return now + (end - now) * part.seconds / (part.seconds + sum(other.seconds for other in left))
