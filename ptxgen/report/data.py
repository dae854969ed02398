"""What a report says about a kernel, as data without behaviour; `--json` prints the same."""

from __future__ import annotations

from dataclasses import dataclass

TENSOR_COLUMNS = "tensor memory columns"  # the counter of a run that allocates them
ERROR = "error"
UNPROVED = "unproved"
LINT = "lint"
LOOP = "main loop"  # what stalls are of
WHOLE = "kernel without a loop"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `severity` is ERROR (wrong for certain), UNPROVED or LINT; `kind` names the check that
    found it; `line` is the line of the PTX text that it is about, 0 for none; `times` counts equal findings.
    """

    severity: str
    kind: str
    message: str
    line: int = 0
    times: int = 1


@dataclass(frozen=True, slots=True)
class PtxLine:
    """One line of the PTX text, numbered from 1.

    `kind` is `instruction`, `label`, `comment`, `directive` or `blank`. `source` is the id of the
    source line that it comes from, 0 for none. `registers` and `predicates` are live there (32-bit
    registers), `warps` counts the warps that executed it in the run; None where that is not known.
    """

    number: int
    text: str
    kind: str
    source: int = 0
    registers: int | None = None
    predicates: int | None = None
    warps: int | None = None


@dataclass(frozen=True, slots=True)
class Instruction:
    """An opcode of the text, as the instruction table has it: its meaning in a sentence, the first PTX
    version and GPU that have it, its class (`ptxgen.report.classes`), and how its results are awaited.
    `lines` counts the instructions of the text, `warps` those that warps executed; None without a run.
    """

    opcode: str
    meaning: str
    needs: str
    unit: str
    latency: str
    lines: int
    warps: int | None


@dataclass(frozen=True, slots=True)
class SourceLine:
    """One line of a source file, from 1. `id` is unique in the report; `text` is None if the file is
    not at hand. `instructions` counts the PTX instructions that come from it, `warps` those that warps
    executed.
    """

    id: int
    number: int
    text: str | None
    instructions: int
    warps: int


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A source file as far as the kernel comes from it; lines between the shown ones are left out."""

    name: str
    lines: tuple[SourceLine, ...]


@dataclass(frozen=True, slots=True)
class SassRow:
    """One line of machine code: an instruction at `address` in bytes, or a label, with address -1.
    `line` is its line of PTX, 0 for none; `loop` says whether it is part of the main loop.
    """

    address: int
    text: str
    line: int
    loop: bool


@dataclass(frozen=True, slots=True)
class MachineCode:
    """The assembled kernel; `rows` are empty without a disassembler, and `why_not` says what to install.
    `stack_bytes`, `spill_store_bytes` and `spill_load_bytes` are per thread. `mix` counts all instructions by
    class, `loop_mix` those on the main loop's path.
    """

    assembler: str
    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    rows: tuple[SassRow, ...]
    mix: tuple[tuple[str, int], ...]
    loop_mix: tuple[tuple[str, int], ...]
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class StallLine:
    """The clocks of a warp at a line of PTX in an iteration, by reason, in the order of `Stalls.reasons`. A
    machine instruction counts from the issue of the warp's previous one to its own issue; the line has
    `instructions` of them.
    """

    line: int
    source: int
    instructions: int
    clocks: tuple[float, ...]

    @property
    def total(self) -> float:
        """All clocks."""
        return sum(self.clocks)


@dataclass(frozen=True, slots=True)
class Stalls:
    """What a warp waits for in the main loop, or in a whole kernel without a loop, by the issue model of a
    scheduler with `warps` warps. An iteration of a warp takes `clocks`, which are the sum over `lines`, the
    costliest line first. `reasons` are why clocks pass; the first one is that the warp issues.
    """

    of: str
    warps: int
    clocks: float
    reasons: tuple[str, ...]
    lines: tuple[StallLine, ...]

    @property
    def of_iteration(self) -> str:
        """What the clocks are of, in words."""
        return f"an iteration of the {self.of}" if self.of == LOOP else f"the {self.of}"

    @property
    def sums(self) -> tuple[float, ...]:
        """The clocks of all lines, by reason."""
        return tuple(map(sum, zip(*(line.clocks for line in self.lines), strict=True)))

    @property
    def by_source(self) -> dict[int, tuple[float, ...]]:
        """The clocks of each source line by its id, by reason; the costliest first."""
        sums: dict[int, tuple[float, ...]] = {}
        for line in self.lines:
            if line.source:
                before = sums.get(line.source, (0.0,) * len(line.clocks))
                sums[line.source] = tuple(a + b for a, b in zip(before, line.clocks, strict=True))
        return dict(sorted(sums.items(), key=lambda item: (-sum(item[1]), item[0])))


@dataclass(frozen=True, slots=True)
class Region:
    """A named part of a CTA's shared memory, in bytes."""

    name: str
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class SharedAccess:
    """The accesses to shared memory of one source line and opcode.

    `line` is the first of the `lines` of PTX. `first` and `last` are the lowest and the highest byte
    accessed by the first CTA, -1 if it accessed none. Requests, wavefronts and the least possible
    wavefronts are of the whole run; `banks` has the words that each of the 32 banks serves in the
    costliest wavefront group seen.
    """

    source: int
    opcode: str
    line: int
    lines: int
    region: str
    first: int
    last: int
    requests: int
    wavefronts: int
    least: int
    banks: tuple[int, ...]

    @property
    def degree(self) -> float:
        """Wavefronts for each one that is needed: 1 without conflicts."""
        return self.wavefronts / self.least if self.least else 1.0


@dataclass(frozen=True, slots=True)
class SharedMap:
    """The shared memory of a CTA: its size in bytes, its regions, and the accesses to it."""

    nbytes: int
    regions: tuple[Region, ...]
    accesses: tuple[SharedAccess, ...]


@dataclass(frozen=True, slots=True)
class Lane:
    """Warps of the first CTA with the same timeline. `runs` are (class, first slot, slots), in order,
    a class being an index into `Pipeline.classes` or -1 for a wait; `waits` are (slot, slots, line of
    PTX, kind); `flights` are (first slot, end or -1, bytes, line of PTX) of asynchronous copies.
    """

    warps: tuple[int, ...]
    slots: int
    runs: tuple[tuple[int, int, int], ...]
    waits: tuple[tuple[int, int, int, str], ...]
    flights: tuple[tuple[int, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """The part of the kernel that the first warp is in, from slot `start` on for `slots`: a note of the
    text, or a source line; `line` is its first line of PTX.
    """

    name: str
    start: int
    slots: int
    line: int


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What the warps of the first CTA do in each slot; a slot is one instruction of one warp. The first
    `shown` slots are kept of the `slots` that the longest warp has.
    """

    classes: tuple[str, ...]
    slots: int
    shown: int
    stages: tuple[Stage, ...]
    lanes: tuple[Lane, ...]


@dataclass(frozen=True, slots=True)
class Bound:
    """The clock cycles for which a unit of a multiprocessor is busy with the work of one CTA, on
    average; `rate` says how fast the unit is, in words.
    """

    unit: str
    amount: float
    of: str
    rate: str
    cycles: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """Floating-point operations and bytes of global memory for one CTA, on average. The peaks are
    operations per clock of a multiprocessor, `bytes_per_clock` its share of the memory of `device`.
    """

    device: str
    flops: float
    tensor_flops: float
    nbytes: float
    peak: float
    tensor_peak: float
    bytes_per_clock: float


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of the target for a kernel: CTAs on a multiprocessor, busy units, roofline. `limited_by`
    names the resources that keep more CTAs from fitting.
    """

    ctas_per_sm: int
    warps_per_sm: int
    most_warps: int
    limited_by: str
    bounds: tuple[Bound, ...]
    roofline: Roofline | None
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Proved:
    """How many accesses of a kind are proved; `refuted` ones are shown to be wrong. `kind` is `shared
    memory`, `barriers`, `warps` (instructions that the lanes of a warp execute together), `tensor memory` or
    `global memory`; `holds_for` says for which launches, and `why_not` why nothing was proved.
    """

    kind: str
    total: int
    proved: int
    refuted: int
    unknown: int
    holds_for: str = ""
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """A run on the interpreter with all sanitizers: its extents, its arguments in words, its counters.
    `clean` says that nothing was reported.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    arguments: tuple[str, ...]
    clean: bool
    warp_instructions: int
    mix: tuple[tuple[str, int], ...]
    opcodes: tuple[tuple[str, int], ...]
    counters: tuple[tuple[str, int], ...]
    not_counted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WalkRegister:
    """A register of a walk: its name with the %, its dtype in numpy's letters without the byte order, and its
    number.
    """

    name: str
    dtype: str
    number: int


@dataclass(frozen=True, slots=True)
class WalkStep:
    """The state of a warp before it executes an instruction at a `line` of PTX, 0 after its end; `active` has
    a bit for each lane that is about to. `registers` and `shared` are what changed since the step before: a
    register's number, or the first byte in the CTA's shared memory, and values (`ptxgen.debugger.walk`).
    `barriers` is the number of the words for the barriers and mbarriers of the CTA; `reports` are what the
    sanitizers have reported of any warp since the step before.
    """

    line: int
    active: int
    registers: tuple[tuple[int, str], ...]
    shared: tuple[tuple[int, str], ...]
    barriers: int
    reports: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Walk:
    """The recorded steps of a warp, by its number in a CTA; `lane` is that of the thread for which it was
    recorded; `ended` says how it ended, in words.
    """

    cta: tuple[int, int, int]
    warp: int
    lane: int
    registers: tuple[WalkRegister, ...]
    barriers: tuple[str, ...]
    steps: tuple[WalkStep, ...]
    ended: str


@dataclass(frozen=True, slots=True)
class Report:
    """All that a report says about one kernel. A part is None if there is nothing to say; `missing` has
    the reason, by the part's name.
    """

    kernel: str
    target: str
    ptx_version: str
    sha256: str
    nbytes: int
    config: tuple[tuple[str, str], ...]
    needs: tuple[tuple[str, str], ...]
    live_registers: int
    live_predicates: int
    ptx: tuple[PtxLine, ...]
    instructions: tuple[Instruction, ...]
    language: str
    sources: tuple[SourceFile, ...]
    code: MachineCode | None
    proved: tuple[Proved, ...]
    findings: tuple[Finding, ...]
    shared: SharedMap | None
    run: Run | None
    pipeline: Pipeline | None
    limits: Limits | None
    stalls: Stalls | None
    missing: tuple[tuple[str, str], ...]
    walk: Walk | None = None

    @property
    def wrong(self) -> bool:
        """Whether the report has a finding of severity ERROR."""
        return any(finding.severity == ERROR for finding in self.findings)
