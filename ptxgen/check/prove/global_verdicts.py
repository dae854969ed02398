"""What the proof of global accesses says, and how it reads."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from ptxgen.check.prove.verdicts import PROVED, UNKNOWN, VIOLATION, Verdict


@dataclass(frozen=True, slots=True)
class GlobalProof:
    """The verdicts on every access to global memory of a kernel.

    Of a verdict, `allocation` is the pointer parameter, `first` and `last` the lowest and highest
    byte accessed in a dense row of the array; a witness counts its address from the pointer.
    """

    kernel: str
    block: tuple[int, int, int]
    accesses: tuple[Verdict, ...]

    @property
    def complete(self) -> bool:
        """Whether every access is proved."""
        return all(v.verdict == PROVED for v in self.accesses)

    @property
    def violations(self) -> tuple[Verdict, ...]:
        """What is shown to be wrong."""
        return tuple(v for v in self.accesses if v.verdict == VIOLATION)

    @property
    def unknown(self) -> tuple[Verdict, ...]:
        """What could not be shown either way."""
        return tuple(v for v in self.accesses if v.verdict == UNKNOWN)

    def __str__(self) -> str:
        found = Counter(v.verdict for v in self.accesses)
        counts = ", ".join(
            f"{found[v]} of {len(self.accesses)} global accesses {v}"
            for v in (PROVED, VIOLATION, UNKNOWN)
            if v == PROVED or found[v]
        )
        return f"{self.kernel}: {counts}"

    def report(self) -> str:
        """The counts, then everything that is not proved."""
        return "\n".join([str(self), *map(str, self.violations), *map(str, self.unknown)])

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "kernel": self.kernel,
            "block": list(self.block),
            "complete": self.complete,
            "accesses": [v.to_dict() for v in self.accesses],
        }
