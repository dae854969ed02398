"""Findings about a kernel of a PTX module: by reading its text, by proofs, and by a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from ptxgen import interpreter, ir
from ptxgen.check.comparisons import settled_comparisons
from ptxgen.check.problems import Problem
from ptxgen.check.prove import Bound, Proof, Verdict, prove
from ptxgen.check.resources import Resources, resources
from ptxgen.check.verify import verify
from ptxgen.errors import AssemblerError, LaunchError, TrapError
from ptxgen.interpreter import Counters, MemoryTraffic
from ptxgen.interpreter.arguments import Argument
from ptxgen.runtime.assembler import Assembly, KernelUsage, find_assembler
from ptxgen.target import target as target_named

# Severities of a finding. Only ERROR is certain to be a mistake.
ERROR: Final = "error"
UNPROVED: Final = "unproved"
LINT: Final = "lint"

_WORST: Final = 5  # instructions shown with the most conflicts, or the most excess sectors


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `severity` is ERROR, UNPROVED or LINT; `kind` names the check and the problem;
    `kernel`, `instr` and `where` are empty if the finding is not about one. `line` is the line of the PTX
    text that it is about, 0 for none, and `source` the line that this was compiled from, if known.
    """

    severity: str
    kind: str
    message: str
    kernel: str = ""
    instr: str = ""
    where: str = ""
    line: int = 0
    source: ir.Location | None = None

    def __str__(self) -> str:
        kernel = f"{self.kernel}: " if self.kernel else ""
        instr = f"\n    in {self.instr}" if self.instr else ""
        where = f"\n    from {self.where}" if self.where else ""
        return f"{self.severity}: {self.kind}: {kernel}{self.message}{instr}{where}"


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch to run: its extents, its arguments in the kernel's order, and the instructions after which
    it counts as endless.
    """

    grid: tuple[int, ...]
    args: Sequence[Argument]
    max_instructions: int


@dataclass(frozen=True, slots=True)
class Entry:
    """The results about one kernel; a field is None if it was not asked for, or not possible
    because the module has problems.
    """

    kernel: ir.Kernel
    block: tuple[int, ...]
    resources: Resources | None = None
    usage: KernelUsage | None = None
    proof: Proof | None = None
    counters: Counters | None = None
    findings: list[Finding] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The results as plain data for JSON."""
        return {
            "entry": self.kernel.name,
            "block": list(self.block),
            "resources": None if self.resources is None else _resources(self.resources),
            "assembled": None if self.usage is None else asdict(self.usage),
            "proof": None if self.proof is None else self.proof.to_dict(),
            "run": None if self.counters is None else _counters(self.counters),
            "findings": [asdict(f) for f in self.findings],
        }


def module_findings(module: ir.Module) -> list[Finding]:
    """The verifier's findings about a module. That a register is not written on every path is no error:
    compilers copy such registers about on paths that are never taken, or whose values nobody uses.
    """
    return [
        _problem("verifier", problem, ERROR if problem.certain else UNPROVED) for problem in verify(module)
    ]


def assembled(text: str, target: str) -> tuple[Assembly | None, list[Finding]]:
    """Assemble the text; a refusal and advisories of the assembler are findings. An advisory that
    ruins the kernel counts as a refusal.

    Raises `BackendError` if there is no assembler for the target.
    """
    try:
        assembly = find_assembler(target=target).assemble(text, target)
    except AssemblerError as error:
        return None, [Finding(ERROR, "assembler", str(error), line=error.line)]
    lints = [
        Finding(
            LINT,
            "assembler",
            f"{a.code} {a.text}".strip(),
            where=f"line {a.line}" if a.line else "",
            line=a.line or 0,
        )
        for a in assembly.advisories
    ]
    return assembly, lints


def block_of(kernel: ir.Kernel, asked: tuple[int, ...] | None) -> tuple[int, ...]:
    """The extents of a block: `asked` if given, else those that the kernel declares.

    Raises `LaunchError` if there are neither.
    """
    if asked is not None:
        return asked
    if kernel.reqntid:
        return kernel.reqntid
    if kernel.threads:
        return (kernel.threads,)
    raise LaunchError(f"{kernel.name} does not say how many threads a block has; use --block")


def check_entry(
    module: ir.Module,
    kernel: ir.Kernel,
    block: tuple[int, ...],
    *,
    dynamic_smem: int | None = None,
    dynamic_align: int = 1,
    params: Mapping[str, Bound] | None = None,
    usage: KernelUsage | None = None,
    launch: Launch | None = None,
) -> Entry:
    """All results about one kernel of a module that has no `module_findings`.

    `block` has one to three extents, `dynamic_smem` is in bytes (default: what the kernel's regions
    need), `dynamic_align` its alignment in bytes in the launch; `params` are bounds for the proof,
    as `prove` takes them. Raises `LaunchError` for arguments that do not fit the kernel.
    """
    proof = prove(
        module,
        kernel.name,
        block=block,
        dynamic_smem=dynamic_smem,
        dynamic_align=dynamic_align,
        params=params,
    ).shared
    findings = [*_proof_findings(proof), *_reading_findings(kernel)]
    if usage is not None:
        findings += _usage_findings(usage)
    counters = None
    if launch is not None:
        smem = kernel.dynamic_shared_bytes if dynamic_smem is None else dynamic_smem
        counters = _run(module, kernel, block, smem, launch, findings)
    needs = resources(kernel, target_named(module.target))
    return Entry(kernel, block, needs, usage, proof, counters, findings)


# --------------------------------------------------------------------------------------- the checks


def _problem(kind: str, problem: Problem, severity: str = ERROR) -> Finding:
    return _of(severity, f"{kind}, {problem.kind}", problem.message, problem)


def _of(severity: str, kind: str, message: str, about: Problem | Verdict) -> Finding:
    """A finding about the instruction of a problem or a verdict."""
    return Finding(severity, kind, message, about.kernel, about.instr, about.where, about.line, about.source)


def _proof_findings(proof: Proof) -> Iterator[Finding]:
    for problem in proof.problems:
        yield _problem("proof", problem)
    for verdicts, severity in ((proof.violations, ERROR), (proof.unknown, UNPROVED)):
        for v in verdicts:
            yield _of(severity, "proof", v.reason, v)
    for p in proof.unfenced:
        yield _of(LINT, "proxy", p.message, p)


def _reading_findings(kernel: ir.Kernel) -> Iterator[Finding]:
    """Findings by reading the text: parameters and variables that no instruction names, and comparisons that
    come out the same for every number.
    """
    instrs = [s for s in kernel.body if isinstance(s, ir.Instr)]
    others = (o for instr in instrs for o in instr.operands if o.__class__ is not ir.Reg)
    named = {name for o in others for name in _symbols(o)}
    for param in kernel.params:
        if param.name not in named:
            yield Finding(LINT, "unused", f"no instruction reads {param.name}", kernel.name)
    variables: tuple[ir.Shared | ir.Variable, ...] = (*kernel.shared, *kernel.variables)
    for variable in variables:
        if variable.name not in named:
            message = f"no instruction names {variable.name}, of {variable.nbytes} bytes"
            yield Finding(LINT, "unused", message, kernel.name)
    for p in settled_comparisons(kernel):
        yield _of(LINT, p.kind, p.message, p)


def _symbols(operand: ir.Operand) -> Iterator[str]:
    if isinstance(operand, ir.Symbol):
        yield operand.name
    elif isinstance(operand, (ir.Address, ir.TensorAddress)):
        if isinstance(operand.base, ir.Symbol):
            yield operand.base.name
    elif isinstance(operand, ir.Arguments):
        yield from (item.name for item in operand.items if isinstance(item, ir.Symbol))


def _usage_findings(usage: KernelUsage) -> Iterator[Finding]:
    spilled = usage.spill_store_bytes + usage.spill_load_bytes
    if spilled:
        message = (
            f"registers are spilled: {usage.spill_store_bytes} bytes are stored and "
            f"{usage.spill_load_bytes} loaded"
        )
        yield Finding(LINT, "assembler", message, usage.name)


def _run(
    module: ir.Module,
    kernel: ir.Kernel,
    block: tuple[int, ...],
    dynamic_smem: int,
    launch: Launch,
    findings: list[Finding],
) -> Counters | None:
    """Run the kernel with all sanitizers, and add their reports to `findings`."""
    try:
        result = interpreter.run(
            module,
            kernel.name,
            grid=launch.grid,
            block=block,
            args=launch.args,
            dynamic_smem=dynamic_smem,
            sanitize=True,
            profile=True,
            max_instructions=launch.max_instructions,
            raise_on_report=False,
        )
    except TrapError as error:
        source = error.source if isinstance(error.source, ir.Location) else None
        message = _without(kernel, str(error))
        findings.append(Finding(ERROR, "run", message, kernel.name, line=error.line, source=source))
        return None
    findings += [
        Finding(
            ERROR,
            f"sanitizer, {r.kind}",
            _without(kernel, r.message),
            kernel.name,
            line=r.line,
            source=r.source,
        )
        for r in result.reports
    ]
    findings += _traffic_findings(kernel.name, result.counters)
    return result.counters


def _without(kernel: ir.Kernel, message: str) -> str:
    """A message without the kernel's name, which the finding has in a field."""
    return message.removeprefix(f"kernel {kernel.name}: ")


def _traffic_findings(kernel: str, counters: Counters) -> Iterator[Finding]:
    for _, traffic in counters.worst("shared_conflicts", _WORST):
        message = (
            f"{traffic.shared_conflicts:,} bank conflicts: {traffic.shared_wavefronts:,} wavefronts "
            f"instead of {traffic.shared_least:,} in {traffic.shared_requests:,} requests"
        )
        yield _costly("bank conflicts", message, kernel, traffic)
    for _, traffic in counters.worst("sectors_excess", _WORST):
        moved = traffic.sectors_read + traffic.sectors_written
        message = (
            f"{traffic.sectors_excess:,} avoidable sectors: {moved:,} of 32 bytes instead of "
            f"{traffic.sectors_least:,} in {traffic.global_requests:,} requests"
        )
        yield _costly("uncoalesced", message, kernel, traffic)


def _costly(kind: str, message: str, kernel: str, traffic: MemoryTraffic) -> Finding:
    return Finding(LINT, kind, message, kernel, traffic.where, line=traffic.line, source=traffic.source)


# ------------------------------------------------------------------------------------ as plain data


def _resources(resources: Resources) -> dict[str, Any]:
    return {**asdict(resources), "shared_total": resources.shared_total, "mix": dict(resources.mix)}


_SUMS: Final = (
    "warp_instructions",
    "thread_instructions",
    "shared_requests",
    "shared_wavefronts",
    "shared_conflicts",
    "global_requests",
    "global_sectors_read",
    "global_sectors_written",
    "global_sectors_excess",
)


def _counters(counters: Counters) -> dict[str, Any]:
    return {name: getattr(counters, name) for name in _SUMS}
