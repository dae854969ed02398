"""The result of the proof of shared-memory accesses, and its text."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from ptxgen.check.problems import Problem
from ptxgen.ir import Location

PROVED: Final = "proved"
VIOLATION: Final = "violation"
NOT_JUDGED: Final = "not judged"
RACES: Final = f"races: {NOT_JUDGED}; a run with the sanitizer `race` looks for them"
UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class Witness:
    """One thread that goes wrong: its index in the block, the values of the registers of loops and
    joins on its path, and the first byte accessed, counted from the beginning of the allocation.
    """

    thread: tuple[int, int, int]
    values: tuple[tuple[str, int], ...]
    address: int

    def __str__(self) -> str:
        held = "".join(f", {name} = {value}" for name, value in self.values)
        return f"thread {self.thread}{held}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one access, or on one barrier.

    `verdict` is `proved`, `violation` or `unknown`. `number` is the index of the instruction in its
    kernel or function, from 0; `instr` is the instruction as printed, `where` its origin, as text and as
    the `line` of the PTX text (0: none) and the `source` (a `Location`, None if it is not known).
    `allocation` is the variable or region that the address is computed from; `first` and `last` are
    the lowest and the highest byte accessed in it (0 and -1 if not known). `reason` says why the
    access is not proved.
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
    line: int = field(default=0, compare=False)  # `where` says both, too
    source: Location | None = field(default=None, compare=False)

    def __str__(self) -> str:
        where = f"\n    from {self.where}" if self.where else ""
        reason = f": {self.reason}" if self.reason else ""
        return f"kernel {self.kernel}: {self.verdict}{reason}\n    in {self.instr}{where}"

    def to_dict(self) -> dict[str, Any]:
        """The verdict as a dictionary that JSON can hold."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Proof:
    """The verdicts on a kernel's accesses to shared memory, on its barriers, on its `convergence`: the
    instructions that the lanes of a warp execute together, and on `tensor_memory`: the instructions that
    allocate, free and use it; and the problems of its allocations in shared memory. `unfenced`
    has reads by asynchronous operations which a proxy fence seems to be missing before; `complete` does not
    depend on them.
    """

    kernel: str
    block: tuple[int, int, int]
    dynamic_smem: int
    accesses: tuple[Verdict, ...]
    barriers: tuple[Verdict, ...]
    problems: tuple[Problem, ...]
    unfenced: tuple[Problem, ...] = ()
    convergence: tuple[Verdict, ...] = ()
    tensor_memory: tuple[Verdict, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every access, barrier, instruction of a warp and use of tensor memory is proved, and the
        allocations are right. Races are not judged.
        """
        return not self.problems and all(v.verdict == PROVED for v in self.verdicts)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts on accesses, then those on barriers, on convergence and on tensor memory."""
        return (*self.accesses, *self.barriers, *self.convergence, *self.tensor_memory)

    @property
    def violations(self) -> tuple[Verdict, ...]:
        """The verdicts that show an access, barrier or other instruction to be wrong."""
        return tuple(v for v in self.verdicts if v.verdict == VIOLATION)

    @property
    def unknown(self) -> tuple[Verdict, ...]:
        """The verdicts on instructions that are shown neither to be right nor to be wrong."""
        return tuple(v for v in self.verdicts if v.verdict == UNKNOWN)

    @property
    def kinds(self) -> tuple[tuple[str, tuple[Verdict, ...]], ...]:
        """The verdicts by kind, with its name: accesses, barriers, and any on warps and tensor memory."""
        kinds = [("shared accesses", self.accesses), ("barriers", self.barriers)]
        if self.convergence:
            kinds.append(("warp instructions", self.convergence))
        if self.tensor_memory:
            kinds.append(("uses of tensor memory", self.tensor_memory))
        return tuple(kinds)

    @property
    def unproved(self) -> tuple[Problem | Verdict, ...]:
        """All that a proof leaves open: problems, verdicts other than `proved`, missing proxy fences."""
        return *self.problems, *self.violations, *self.unknown, *self.unfenced

    def __str__(self) -> str:
        counts = []
        for verdict in (PROVED, VIOLATION, UNKNOWN):
            numbers = [sum(v.verdict == verdict for v in verdicts) for _, verdicts in self.kinds]
            if verdict == PROVED or any(numbers):
                each = [f"{n} of {len(v)} {name}" for n, (name, v) in zip(numbers, self.kinds, strict=True)]
                counts.append(f"{', '.join(each[:-1])} and {each[-1]} {verdict}")
        return f"{self.kernel}: {', '.join(counts)}"

    def report(self) -> str:
        """The counts, then the problems, every verdict that is not `proved`, and missing proxy fences. Races
        are not judged.
        """
        return "\n".join([str(self), *map(str, self.unproved)])

    def table(self) -> str:
        """One line for each allocation: the number of its accesses by verdict, and the range of
        bytes accessed.
        """
        lines = [f"{'allocation':<16} {'proved':>7} {'violation':>10} {'unknown':>8}  bytes"]
        names = dict.fromkeys(v.allocation for v in self.accesses)
        for name in names:
            of = [v for v in self.accesses if v.allocation == name]
            count = Counter(v.verdict for v in of)
            known = [v for v in of if v.last >= v.first]
            extent = f"{min(v.first for v in known)} to {max(v.last for v in known)}" if known else "-"
            lines.append(
                f"{name or '-':<16} {count[PROVED]:>7} {count[VIOLATION]:>10} {count[UNKNOWN]:>8}  {extent}"
            )
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The proof of shared memory as a dictionary that JSON can hold."""
        return {
            "kernel": self.kernel,
            "block": list(self.block),
            "dynamic_smem": self.dynamic_smem,
            "complete": self.complete,
            "accesses": [v.to_dict() for v in self.accesses],
            "barriers": [v.to_dict() for v in self.barriers],
            "convergence": [v.to_dict() for v in self.convergence],
            "tensor_memory": [v.to_dict() for v in self.tensor_memory],
            "races": NOT_JUDGED,
            "problems": [str(p) for p in self.problems],
            "unfenced": [str(p) for p in self.unfenced],
        }
