"""The result of the proof of global accesses, and its text."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from ptxgen.check.prove.verdicts import PROVED, UNKNOWN, VIOLATION, Verdict


@dataclass(frozen=True, slots=True)
class GlobalProof:
    """The verdicts on a kernel's accesses to global memory.

    In each verdict, `allocation` is the pointer parameter, and `first` and `last` are the lowest
    and the highest byte accessed in an element of the array; a witness counts its address from the
    pointer.
    """

    kernel: str
    block: tuple[int, int, int]
    accesses: tuple[Verdict, ...]

    @property
    def complete(self) -> bool:
        """Whether every access of the kernel to global memory is proved."""
        return all(v.verdict == PROVED for v in self.accesses)

    @property
    def violations(self) -> tuple[Verdict, ...]:
        """The verdicts on accesses to global memory that are shown to be wrong."""
        return tuple(v for v in self.accesses if v.verdict == VIOLATION)

    @property
    def unknown(self) -> tuple[Verdict, ...]:
        """The verdicts on accesses that are shown neither to be right nor to be wrong."""
        return tuple(v for v in self.accesses if v.verdict == UNKNOWN)

    @property
    def kinds(self) -> tuple[tuple[str, tuple[Verdict, ...]], ...]:
        """The verdicts by the name of their kind, of which there is one: accesses to global memory."""
        return (("global accesses", self.accesses),)

    @property
    def unproved(self) -> tuple[Verdict, ...]:
        """Every verdict on an access to global memory that is not `proved`."""
        return *self.violations, *self.unknown

    def __str__(self) -> str:
        numbers = Counter(v.verdict for v in self.accesses)
        counts = ", ".join(
            f"{numbers[v]} of {len(self.accesses)} global accesses {v}"
            for v in (PROVED, VIOLATION, UNKNOWN)
            if v == PROVED or numbers[v]
        )
        return f"{self.kernel}: {counts}"

    def report(self) -> str:
        """The proof as text: how many accesses have each verdict, then every verdict that is not `proved`."""
        return "\n".join([str(self), *map(str, self.unproved)])

    def to_dict(self) -> dict[str, Any]:
        """The proof of global memory as a dictionary that JSON can hold."""
        return {
            "kernel": self.kernel,
            "block": list(self.block),
            "complete": self.complete,
            "accesses": [v.to_dict() for v in self.accesses],
        }
