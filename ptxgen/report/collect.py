"""Collects what a report says about a kernel: reads it, proves it, assembles it, and runs it."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Final

from ptxgen import interpreter, ir
from ptxgen.check.comparisons import settled_comparisons
from ptxgen.check.prove import Proofs, prove
from ptxgen.check.resources import Resources, live_registers, resources
from ptxgen.check.verify import verify
from ptxgen.errors import AssemblerError, BackendError, LaunchError, PtxGenError, TrapError, did_you_mean
from ptxgen.interpreter import Counters
from ptxgen.interpreter.arguments import Argument, extents
from ptxgen.interpreter.recording import Recorder, Recording
from ptxgen.parse import parse
from ptxgen.report import data
from ptxgen.report.arguments import copies, words_of
from ptxgen.report.classes import NAMES, class_of
from ptxgen.report.data import ERROR, LINT, UNPROVED, Finding, Report
from ptxgen.report.findings import counted, of_problem, of_traffic, of_verdicts, without_kernel
from ptxgen.report.instructions import instructions
from ptxgen.report.limits import limits
from ptxgen.report.machine_code import Path, machine_code
from ptxgen.report.origins import Origins, loc_origins, python_origins
from ptxgen.report.pipeline import pipeline
from ptxgen.report.shared_map import shared_map
from ptxgen.report.stalls import stalls, warps_on
from ptxgen.target import WARP_SIZE, Target
from ptxgen.target import target as find_target
from ptxgen.tensormap import TensorMap
from ptxgen.text import render

Progress = Callable[[str], None]

STEPS: Final = 6  # calls of `progress`
_TIMES: Final = " \u00d7 "
# Instructions that the recorded CTA may execute: a multiple of the whole run's, and a least number.
_ALONE: Final = 2
_LEAST_ALONE: Final = 10_000
_SHOWN_OPCODES: Final = 40


@dataclass(frozen=True)
class Launch:
    """A launch to interpret: `grid` and `cluster` with 1 to 3 extents each, x first, and `args` in the order
    of the kernel's parameters. The arrays among them are copied, and keep their values. `dynamic_align` is
    the alignment of dynamic shared memory in bytes, if the launch gives more than the text asks for.
    """

    grid: tuple[int, ...]
    args: Sequence[Argument]
    cluster: tuple[int, ...] = (1,)
    dynamic_smem: int | None = None  # bytes; None: what the kernel's regions need
    dynamic_align: int = 1


@dataclass(frozen=True)
class Subject:
    """The kernel of a report, and what the report is to include.

    `module` is PTX text or a module, `entry` the name of one of its kernels (may be left out if there
    is one). `block` are the threads of a CTA along x, y and z (default: what the kernel says). `launch`
    is interpreted. `prove` gives the proofs, and says for which launches they hold (default: shared
    memory and barriers, for any parameters). `config` are words for the head of the page. `sources` has
    the lines of the files that `.loc` directives name, by file name. `renamed` has the origin to show
    for instructions of some Python functions. Without `assemble` no assembler is asked.
    """

    module: str | ir.Module
    entry: str | None = None
    block: tuple[int, ...] | None = None
    launch: Launch | None = None
    prove: Callable[[], tuple[Proofs, str]] | None = None
    config: tuple[tuple[str, str], ...] = ()
    sources: Mapping[str, Sequence[str]] = field(default_factory=dict)
    renamed: Mapping[CodeType, ir.Origin] = field(default_factory=dict)
    assemble: bool = True


@dataclass
class _Ran:
    """The results of the runs; `why_not` is the reason why there is no recording. `instrs` are the
    instructions by number.
    """

    counters: Counters | None = None
    recording: Recording | None = None
    instrs: tuple[ir.Instr, ...] = ()
    why_not: str = "no launch was given"


def collect(subject: Subject, progress: Progress | None = None) -> Report:
    """All that a report says. `progress` is called with the name of each of `STEPS` steps.

    Raises `ParseError` for text that is no PTX, `LaunchError` for an unknown entry, a block that is
    not known or arguments that do not fit, and `UnsupportedTargetError` for an unknown target.
    """
    say: Progress = progress or (lambda _: None)
    say("reading")
    text = subject.module if isinstance(subject.module, str) else render(subject.module)
    module = parse(text)
    kernel = kernel_of(module, subject.entry)
    target = find_target(module.target)
    block = block_of(kernel, subject.block)
    findings = [of_problem(p) for p in verify(module)]
    missing: dict[str, str] = {}
    instrs = [s for s in kernel.body if isinstance(s, ir.Instr)]
    if findings:
        missing = dict.fromkeys(("proofs", "code", "run", "limits"), "the verifier refuses the module")
    proved: list[data.Proved] = []
    code, path, ran = None, None, _Ran(why_not=missing.get("run", "no launch was given"))
    if not missing:
        say("proving")
        proved = list(_prove(subject, module, kernel, block, instrs, findings))
        say("assembling")
        if subject.assemble:
            code, path = _assembled(text, module, kernel, findings, missing)
        else:
            missing["code"] = "no assembler was asked"
        say("running with all sanitizers")
        ran = _run(module, kernel, block, subject.launch, findings, say)
    say("laying out the page")
    warps = _warps_by_line(ran)
    origins = _origins(subject, module, warps)
    needs = resources(kernel, target)
    shared_bytes = needs.static_shared + _dynamic(kernel, subject.launch)
    shared, timeline = _pictures(kernel, ran, origins)
    if timeline is None:
        missing |= dict.fromkeys(("shared", "pipeline"), ran.why_not)
    if ran.counters is None:
        missing["run"] = ran.why_not
    live = live_registers(kernel)
    within = None if "limits" in missing else _limits(subject, target, block, shared_bytes, needs, code, ran)
    stalled = _stalls(target, block, path, within, ran, origins, missing)
    return Report(
        kernel=kernel.name,
        target=module.target,
        ptx_version=".".join(map(str, module.version)),
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        nbytes=len(text.encode()),
        config=subject.config,
        needs=tuple(_needs(block, kernel, needs, shared_bytes, code)),
        live_registers=needs.live_registers,
        live_predicates=needs.live_predicates,
        ptx=tuple(_ptx_lines(text, instrs, live, origins, warps)),
        instructions=tuple(instructions(instrs, ran.counters.by_opcode if ran.counters else None)),
        language=origins.language,
        sources=origins.files,
        code=code,
        proved=tuple(proved),
        findings=counted(findings),
        shared=shared,
        run=_run_data(kernel, subject.launch, block, ran, findings),
        pipeline=timeline,
        limits=within,
        stalls=stalled,
        missing=tuple(missing.items()),
    )


def _pictures(
    kernel: ir.Kernel, ran: _Ran, origins: Origins
) -> tuple[data.SharedMap | None, data.Pipeline | None]:
    """The map of shared memory and the timeline; None without a recording."""
    record, counters = ran.recording, ran.counters
    if record is None or counters is None:
        return None, None
    traffic = counters.memory_by_instruction or {}
    shared = shared_map(record.shared_bytes, record.regions, traffic, record, origins.ids)
    return shared, pipeline(record, kernel, _source_lines(origins))


def _limits(
    subject: Subject,
    target: Target,
    block: tuple[int, int, int],
    shared_bytes: int,
    needs: Resources,
    code: data.MachineCode | None,
    ran: _Ran,
) -> data.Limits:
    registers = code.registers if code is not None else needs.live_registers
    bulk_bytes = ran.recording.bulk_bytes if ran.recording is not None else 0
    threads, ctas = math.prod(block), math.prod(subject.launch.grid) if subject.launch is not None else 1
    return limits(target, threads, registers, shared_bytes, ctas, ran.counters, bulk_bytes)


def _stalls(
    target: Target,
    block: tuple[int, int, int],
    path: Path | None,
    within: data.Limits | None,
    ran: _Ran,
    origins: Origins,
    missing: dict[str, str],
) -> data.Stalls | None:
    """What warps wait for, by line; None with a reason in `missing`."""
    if path is None or within is None or not path.instrs:
        missing["stalls"] = missing.get("code", "there is no disassembler")
        return None
    warps = -(-math.prod(block) // WARP_SIZE)
    if ran.recording is not None:
        warps = warps_on(set(path.lines) - {0}, ran.recording, warps)
    try:
        return stalls(path, target, warps, max(within.ctas_per_sm, 1), origins.ids)
    except ValueError as error:
        missing["stalls"] = str(error)
        return None


def kernel_of(module: ir.Module, entry: str | None) -> ir.Kernel:
    """The kernel `entry` of a module, None for its only one. Raises `LaunchError` if it has none of this
    name, or several.
    """
    names = [k.name for k in module.kernels]
    if entry is None and len(names) == 1:
        return module.kernels[0]
    if entry not in names:
        what = (
            "say which with entry=" if entry is None else f"there is no {entry!r}{did_you_mean(entry, names)}"
        )
        raise LaunchError(f"report: the module has the kernels {', '.join(names) or '(none)'}; {what}")
    return module.kernels[names.index(entry)]


def block_of(kernel: ir.Kernel, asked: tuple[int, ...] | None) -> tuple[int, int, int]:
    """The threads of a CTA along x, y and z: those that are asked for, else what the kernel says. Raises
    `LaunchError` if neither does.
    """
    block = asked or kernel.reqntid or ((kernel.threads,) if kernel.threads else ())
    if not block:
        raise LaunchError(f"report: {kernel.name} does not say how many threads a block has; give block=")
    _, (x, y, z), _ = extents(kernel, 1, block, 1)
    return x, y, z


def _dynamic(kernel: ir.Kernel, launch: Launch | None) -> int:
    asked = launch.dynamic_smem if launch is not None else None
    return kernel.dynamic_shared_bytes if asked is None else asked


# ---------------------------------------------------------------------------------------- findings


def _prove(
    subject: Subject,
    module: ir.Module,
    kernel: ir.Kernel,
    block: tuple[int, int, int],
    instrs: Sequence[ir.Instr],
    findings: list[Finding],
) -> Iterator[data.Proved]:
    try:
        if subject.prove is not None:
            proofs, holds_for = subject.prove()
        else:
            launch = subject.launch
            values = zip(kernel.params, launch.args if launch else (), strict=False)
            maps = {param.name: value for param, value in values if isinstance(value, TensorMap)}
            smem, align = (launch.dynamic_smem, launch.dynamic_align) if launch else (None, 1)
            proofs = prove(
                module, kernel.name, block=block, params=maps, dynamic_smem=smem, dynamic_align=align
            )
            holds_for = "all values of the parameters" + (", with these tensor maps" if maps else "")
    except PtxGenError as error:
        for kind in ("shared memory", "barriers", "warps", "global memory"):
            yield data.Proved(kind, 0, 0, 0, 0, why_not=str(error))
        return
    findings += [Finding(ERROR, f"proof, {p.kind}", p.message, p.line) for p in proofs.shared.problems]
    lints = *proofs.shared.unfenced, *settled_comparisons(kernel)
    findings += [Finding(LINT, p.kind, p.message, p.line) for p in lints]
    everywhere = proofs.global_memory
    for kind, verdicts in (
        ("shared memory", proofs.shared.accesses),
        ("barriers", proofs.shared.barriers),
        ("warps", proofs.shared.convergence),
        *([("tensor memory", proofs.shared.tensor_memory)] if proofs.shared.tensor_memory else ()),
        ("global memory", None if everywhere is None else everywhere.accesses),
    ):
        if verdicts is None:
            why = "no contract says which arrays the kernel may access"
            yield data.Proved(kind, 0, 0, 0, 0, why_not=why)
            continue
        yield of_verdicts(kind, verdicts, holds_for)
        for v in verdicts:
            if v.verdict != "proved":
                severity = ERROR if v.verdict == "violation" else UNPROVED
                line = v.line
                if v.kernel == kernel.name and not line:
                    origin = instrs[v.number].origin
                    line = origin.line if origin else 0
                findings.append(Finding(severity, f"proof, {kind}", v.reason, line))


# -------------------------------------------------------------------------------- assembler and runs


def _assembled(
    text: str, module: ir.Module, kernel: ir.Kernel, findings: list[Finding], missing: dict[str, str]
) -> tuple[data.MachineCode | None, Path | None]:
    try:
        code, path = machine_code(text, module, kernel.name)
    except AssemblerError as error:
        findings.append(Finding(ERROR, "assembler", str(error), error.line))
        missing["code"] = "the assembler refuses the text"
        return None, None
    except BackendError as error:
        missing["code"] = str(error)
        return None, None
    spilled = code.spill_store_bytes + code.spill_load_bytes
    if spilled:
        message = (
            f"registers are spilled: {code.spill_store_bytes} bytes stored, {code.spill_load_bytes} loaded"
        )
        findings.append(Finding(LINT, "assembler", message))
    return code, path


def _run(
    module: ir.Module,
    kernel: ir.Kernel,
    block: tuple[int, int, int],
    launch: Launch | None,
    findings: list[Finding],
    say: Progress,
) -> _Ran:
    if launch is None:
        say("not recording: no launch was given")
        return _Ran()
    ran, recorder = _Ran(), Recorder()
    how: dict[str, Any] = {
        "grid": launch.grid,
        "block": block,
        "cluster": launch.cluster,
        "dynamic_smem": _dynamic(kernel, launch),
    }
    try:
        args = copies(launch.args)
        result = interpreter.run(
            module, kernel.name, args=args, sanitize=True, profile=True, raise_on_report=False, **how
        )
        ran.counters = result.counters
        findings += [
            Finding(ERROR, f"sanitizer, {r.kind}", without_kernel(kernel, r.message), r.line)
            for r in result.reports
        ]
        findings += of_traffic(result.counters)
        say("recording the first CTA")
        args = copies(launch.args)
        # A CTA that waits for others would wait for ever: alone it needs no more than all of them.
        most = max(_ALONE * result.counters.dispatched, _LEAST_ALONE)
        interpreter.run(module, kernel.name, args=args, recorder=recorder, max_instructions=most, **how)
        ran.recording = recorder.recording
    except TrapError as error:
        kind = "run" if ran.counters is None else "recording of the first CTA alone"
        severity = ERROR if ran.counters is None else LINT
        message = without_kernel(kernel, str(error))
        findings.append(Finding(severity, kind, message, error.line))
        ran.why_not = f"the {kind} failed: {message.splitlines()[0]}"
    ran.instrs = recorder.recording.instrs
    return ran


def _run_data(
    kernel: ir.Kernel,
    launch: Launch | None,
    block: tuple[int, int, int],
    ran: _Ran,
    findings: Sequence[Finding],
) -> data.Run | None:
    if launch is None or ran.counters is None:
        return None
    c = ran.counters
    mix = Counter[str]()
    for opcode, count in c.by_opcode.items():
        mix[NAMES[class_of(opcode)]] += count
    sums = ("shared_requests", "shared_wavefronts", "shared_conflicts", "global_requests",
            "global_sectors_read", "global_sectors_written", "global_sectors_excess")  # fmt: skip
    figures = tuple((name.replace("_", " "), getattr(c, name)) for name in sums)
    if c.tensor_columns:
        figures += ((data.TENSOR_COLUMNS, c.tensor_columns),)
    names = [param.name for param in kernel.params]
    return data.Run(
        _three(launch.grid),
        block,
        _three(launch.cluster),
        tuple(f"{name} = {words_of(value)}" for name, value in zip(names, launch.args, strict=False)),
        not any(f.kind.startswith("sanitizer") for f in findings),
        c.warp_instructions,
        tuple((name, mix[name]) for name in NAMES if mix[name]),
        tuple(c.by_opcode.most_common(_SHOWN_OPCODES)),
        figures,
        c.traffic_not_counted,
    )


def _three(extent: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*extent, 1, 1)[:3]
    return x, y, z


# ----------------------------------------------------------------------------------------- the lines


def _warps_by_line(ran: _Ran) -> dict[int, int]:
    """The number of warps that executed each line of PTX, by line."""
    warps = Counter[int]()
    if ran.counters is not None:
        for number, count in ran.counters.by_instruction.items():
            origin = ran.instrs[number].origin
            warps[origin.line if origin else 0] += count
    return warps


def _origins(subject: Subject, module: ir.Module, warps: Mapping[int, int]) -> Origins:
    if isinstance(subject.module, ir.Module):
        return python_origins(subject.module, module, warps, subject.renamed)
    return loc_origins(module, warps, subject.sources) or Origins("", (), {})


def _source_lines(origins: Origins) -> dict[int, str]:
    """A name for lines of PTX: the source line that they come from."""
    lines = {line.id: (file, line) for file in origins.files for line in file.lines}
    names = {}
    for number, id in origins.ids.items():
        file, line = lines[id]
        words = " ".join((line.text or "").split())
        names[number] = f"{file.name}:{line.number} {words}".strip()
    return names


def _ptx_lines(
    text: str,
    instrs: Sequence[ir.Instr],
    live: Sequence[tuple[int, int]],
    origins: Origins,
    warps: Mapping[int, int],
) -> Iterator[data.PtxLine]:
    alive: dict[int, tuple[int, int]] = {}
    for instr, here in zip(instrs, live, strict=True):
        if instr.origin is not None:
            alive[instr.origin.line] = max(alive.get(instr.origin.line, here), here)
    for number, line in enumerate(text.rstrip("\n").split("\n"), 1):
        registers, predicates = alive.get(number, (None, None))
        ran = warps.get(number, 0) if warps and number in alive else warps.get(number)
        yield data.PtxLine(
            number, line.expandtabs(4), _kind(line), origins.ids.get(number, 0), registers, predicates, ran
        )


def _kind(line: str) -> str:
    words = line.strip()
    if not words:
        return "blank"
    if words.startswith("//"):
        return "comment"
    if words.startswith((".", "{", "}", "(", ")")):
        return "directive"
    return "label" if words.endswith(":") else "instruction"


def _needs(
    block: tuple[int, int, int],
    kernel: ir.Kernel,
    needs: Resources,
    shared_bytes: int,
    code: data.MachineCode | None,
) -> Iterator[tuple[str, str]]:
    yield "block", f"{_TIMES.join(map(str, block))} threads"
    if kernel.cluster:
        yield "cluster", f"{_TIMES.join(map(str, kernel.cluster))} CTAs"
    yield "shared memory", f"{shared_bytes:,} bytes"
    yield "barriers", f"{needs.barriers} of 16"
    yield "live registers", f"{needs.live_registers} at most, {needs.live_predicates} predicates"
    if code is not None:
        yield "registers", f"{code.registers} of a thread ({code.assembler})"
        yield "spills", f"{code.spill_store_bytes} bytes stored, {code.spill_load_bytes} loaded"
        yield "stack", f"{code.stack_bytes} bytes"
