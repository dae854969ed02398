"""What the proof of shared-memory accesses says, and how it reads."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Final

from ptxgen.check.problems import Problem

PROVED: Final = "proved"
VIOLATION: Final = "violation"
UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class Witness:
    """One thread that goes wrong: its place in the block, what the registers of loops and joins on
    the way hold, and the first byte accessed, counted from the beginning of the allocation.
    """

    thread: tuple[int, int, int]
    values: tuple[tuple[str, int], ...]
    address: int

    def __str__(self) -> str:
        held = "".join(f", {name} = {value}" for name, value in self.values)
        return f"thread {self.thread}{held}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of one access, or of one barrier.

    `verdict` is `proved`, `violation` or `unknown`; `number` that of the instruction among those of
    its kernel or function, from 0; `instr` as printed, `where` it came from. `allocation` is the
    variable or region that the address is computed from, with `first` and `last`, the lowest and
    highest byte accessed in it (0 and -1 if not known). `reason` says why it is not proved.
    """

    verdict: str
    kernel: str
    number: int
    instr: str
    where: str
    reason: str = ""
    allocation: str = ""
    first: int = 0
    last: int = -1
    witness: Witness | None = None

    def __str__(self) -> str:
        where = f"\n    from {self.where}" if self.where else ""
        reason = f": {self.reason}" if self.reason else ""
        return f"kernel {self.kernel}: {self.verdict}{reason}\n    in {self.instr}{where}"

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Proof:
    """The verdicts on every access to shared memory of a kernel, on its barriers, and what is wrong
    with its allocations.
    """

    kernel: str
    block: tuple[int, int, int]
    dynamic_smem: int
    accesses: tuple[Verdict, ...]
    barriers: tuple[Verdict, ...]
    problems: tuple[Problem, ...]

    @property
    def complete(self) -> bool:
        """Whether every access and barrier is proved, and the allocations are right."""
        return not self.problems and all(v.verdict == PROVED for v in self.verdicts)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Those on accesses, then those on barriers."""
        return (*self.accesses, *self.barriers)

    @property
    def violations(self) -> tuple[Verdict, ...]:
        """What is shown to be wrong."""
        return tuple(v for v in self.verdicts if v.verdict == VIOLATION)

    @property
    def unknown(self) -> tuple[Verdict, ...]:
        """What could not be shown either way."""
        return tuple(v for v in self.verdicts if v.verdict == UNKNOWN)

    def __str__(self) -> str:
        found = Counter(v.verdict for v in self.accesses)
        held = Counter(v.verdict for v in self.barriers)
        counts = ", ".join(
            f"{found[v]} of {len(self.accesses)} shared accesses and {held[v]} of "
            f"{len(self.barriers)} barriers {v}"
            for v in (PROVED, VIOLATION, UNKNOWN)
            if v == PROVED or found[v] or held[v]
        )
        return f"{self.kernel}: {counts}"

    def report(self) -> str:
        """The counts, then everything that is not proved."""
        rest = [*map(str, self.problems), *map(str, self.violations), *map(str, self.unknown)]
        return "\n".join([str(self), *rest])

    def table(self) -> str:
        """One line for each allocation: how many accesses it has, and between which bytes."""
        lines = [f"{'allocation':<16} {'proved':>7} {'violation':>10} {'unknown':>8}  bytes"]
        names = dict.fromkeys(v.allocation for v in self.accesses)
        for name in names:
            of = [v for v in self.accesses if v.allocation == name]
            found = Counter(v.verdict for v in of)
            known = [v for v in of if v.last >= v.first]
            extent = f"{min(v.first for v in known)} to {max(v.last for v in known)}" if known else "-"
            lines.append(
                f"{name or '-':<16} {found[PROVED]:>7} {found[VIOLATION]:>10} {found[UNKNOWN]:>8}  {extent}"
            )
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            "kernel": self.kernel,
            "block": list(self.block),
            "dynamic_smem": self.dynamic_smem,
            "complete": self.complete,
            "accesses": [v.to_dict() for v in self.accesses],
            "barriers": [v.to_dict() for v in self.barriers],
            "problems": [str(p) for p in self.problems],
        }
