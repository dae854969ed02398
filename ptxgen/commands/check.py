"""Say what is wrong with PTX files: `ptxgen check file.ptx --block 128`."""

from __future__ import annotations

import argparse
import functools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from ptxgen.check.prove import Bound
from ptxgen.check.prove.verdicts import NOT_JUDGED
from ptxgen.commands.parts.check_findings import (
    ERROR,
    LINT,
    UNPROVED,
    Entry,
    Finding,
    Launch,
    assembled,
    block_of,
    check_entry,
    module_findings,
)
from ptxgen.commands.parts.check_formats import FileFindings, github, sarif
from ptxgen.commands.parts.command_line import CommandParser, completed, kernel_names
from ptxgen.commands.parts.exits import FAILED, OK, USAGE, fail
from ptxgen.commands.parts.files import FileError
from ptxgen.commands.parts.imports import uncollected
from ptxgen.commands.parts.limits import add_max_instructions
from ptxgen.commands.parts.numbers import whole
from ptxgen.commands.parts.run_arguments import (
    ArgumentText,
    argument_text,
    bound,
    checked_values,
    extents,
    ptx_text,
)
from ptxgen.commands.parts.standard_output import tell
from ptxgen.errors import BackendError, LaunchError, ParseError, PtxGenError, did_you_mean
from ptxgen.ir import Kernel, Module
from ptxgen.parse import parse
from ptxgen.runtime.assembler import Assembly
from ptxgen.tensormap import TensorMap

NAME: Final = "ptxgen check"
_fail: Final = functools.partial(fail, NAME)

TEXT: Final = "text"
JSON: Final = "json"
SARIF: Final = "sarif"
GITHUB: Final = "github"
FORMATS: Final = (TEXT, JSON, SARIF, GITHUB)
REVIEW: Final = (SARIF, GITHUB)  # in which a file that is not PTX is a finding
SCHEMA: Final = 1  # version of the JSON; raised when a key changes its meaning
_MIX: Final = 6  # entries of the instruction mix that are shown
_SHOWN: Final = 20  # findings of one severity that are shown

_EPILOG = """\
what is looked at:
  verifier    types, definitions, targets, alignment, budgets: everything, at once
  resources   shared memory, live registers, barriers
  assembler   if one is at hand: registers and spills, its refusal, its warnings and advisories
  proof       each access to shared memory is in bounds, inside its own allocation and aligned, in
              every thread and turn; barriers are not divergent; the lanes come together that an
              instruction of a warp names; not races; --param says more of parameters
  run         with --grid and one --arg for each parameter, as in ptxgen run: all sanitizers, bank
              conflicts, uncoalesced accesses; arrays of inout: and out: are not written
  lints       what nobody needs; the instructions that cost the most conflicts and sectors

severities:
  error       wrong: the verifier, the assembler or the proof says so, or a run showed it
  unproved    the proof says neither yes nor no, or a register is not written on a path that may never
              be taken; it does not count as safe
  lint        right, but worth a look

parameters, for the proof (those of a run are known from its --arg):
  n=1000  n=1..4096           a number, or the lowest and the highest
  q=map:64x8:128B:zeros:f16:512x64
                              a tensor map, as in ptxgen run: the box in elements, innermost
                              first, the swizzle, and the array

examples:
  ptxgen check file.ptx --block 128
  ptxgen check file.ptx --entry saxpy --block 256 --assemble --strict
  ptxgen check file.ptx --entry saxpy --block 256 --grid 4 \\
      --arg i32:1000 --arg f32:2.0 --arg random:f32:1000 --arg zeros:f32:1000
  ptxgen check file.ptx --entry attention --block 128 --dynamic-align 1024 \\
      --param q=map:64x64:128B:zeros:f16:4096x64 --param n=64..4096
  ptxgen check - --json < file.ptx
  ptxgen check kernels/*.ptx --block 128 --format sarif > findings.sarif
  ptxgen check kernels/*.ptx --block 128 --format github --strict

exit codes:
  0  nothing found; unproved accesses and lints count with --strict alone
  1  something found, or a file cannot be read, or there is no assembler for --assemble
  2  wrong usage, or arguments that do not fit the kernel
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Check files and print what was found; the exit codes are in `--help`.

    Raises SystemExit, as argparse does, with 2 for wrong arguments and 0 after `--help`.
    """
    arguments = _arguments(argv)
    files: list[FileFindings] = []
    code = OK
    for path in arguments.ptx:
        try:
            files.append(_file(path, arguments))
        except LaunchError as error:
            return _fail(USAGE, _of_file(path, error, arguments))
        except (PtxGenError, FileError) as error:
            code = _fail(FAILED, _of_file(path, error, arguments))
    if arguments.format == SARIF:
        tell(json.dumps(sarif(files), indent=2))
    wrong = [f for file in files for f in file.findings if arguments.strict or f.severity == ERROR]
    return FAILED if wrong else code


def _file(path: str, arguments: argparse.Namespace) -> FileFindings:
    """The findings about a file, which are printed unless the format is one for all files."""
    text = ptx_text(path)
    try:
        with uncollected():
            module = parse(text)
    except ParseError as error:
        if arguments.format not in REVIEW:
            raise
        return _printed(
            FileFindings(path, text, [Finding(ERROR, "parse", str(error), line=error.line)]), arguments
        )
    findings, entries = _checked(text, module, arguments)
    everything = [*findings, *(f for entry in entries for f in entry.findings)]
    if arguments.format == JSON:
        tell(json.dumps(_document(module, findings, entries, everything), indent=2))
    elif arguments.format == TEXT:
        head = f"{path}: " if len(arguments.ptx) > 1 else ""
        tell(head + _report(module, entries, everything))
    return _printed(FileFindings(path, text, everything), arguments)


def _printed(file: FileFindings, arguments: argparse.Namespace) -> FileFindings:
    if arguments.format == GITHUB:
        for line in github([file]):
            tell(line)
    return file


def _of_file(path: str, error: Exception, arguments: argparse.Namespace) -> str:
    """An error about a file, which is named if there are several."""
    named = len(arguments.ptx) > 1 and not isinstance(error, FileError)  # which names it
    return f"{path}: {error}" if named else str(error)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = CommandParser(NAME, "Say what is wrong with the kernels of PTX files.", _EPILOG)
    add = parser.add_argument
    add("ptx", nargs="+", metavar="FILE", help="PTX text; - for standard input")
    completed(add("--entry", metavar="NAME", help="only this kernel"), kernel_names("ptx"))
    add(
        "--block",
        type=extents,
        metavar="X[,Y[,Z]]",
        help="threads of a block (default: what the kernel says of itself)",
    )
    add("--dynamic-smem", type=whole(0), metavar="BYTES", help="of shared memory (default: as needed)")
    add(
        "--dynamic-align",
        type=whole(0),
        default=1,
        metavar="BYTES",
        help="what the launch aligns dynamic shared memory to, if to more than the text says; "
        "kernels of Triton for sm_90a rely on 1024",
    )
    add("--param", type=bound, action="append", default=[], metavar="NAME=BOUND", help="see below")
    add(
        "--assemble",
        action=argparse.BooleanOptionalAction,
        help="ask an assembler, and fail without one; or never ask (default: if one is at hand)",
    )
    add("--grid", type=extents, metavar="X[,Y[,Z]]", help="run it with so many blocks")
    add("--arg", type=argument_text, action="append", default=[], metavar="ARGUMENT", help="of the run")
    add_max_instructions(add)
    add("--strict", action="store_true", help="unproved accesses and lints give exit code 1, too")
    add(
        "--format",
        choices=FORMATS,
        default=TEXT,
        help="text, json of one file, sarif (2.1.0), or github: annotations of a workflow (default: text)",
    )
    add("--json", action="store_const", dest="format", const=JSON, help="the same as --format json")
    arguments = parser.parse_args(argv)
    if arguments.format == JSON and len(arguments.ptx) > 1:
        parser.error(f"--format {JSON} is of one file; {SARIF} takes several")
    if arguments.arg and arguments.grid is None:
        parser.error("--arg needs --grid")
    if arguments.grid is not None and arguments.entry is None:
        parser.error("--grid needs --entry")
    if arguments.param and arguments.entry is None:
        parser.error("--param needs --entry")
    return arguments


def _checked(text: str, module: Module, arguments: argparse.Namespace) -> tuple[list[Finding], list[Entry]]:
    """The findings about the module and, if there are none, about each of its kernels."""
    kernels = _kernels(module, arguments.entry)
    findings = module_findings(module)
    assembly, refusals = _assembled(text, module.target, arguments.assemble)
    findings += refusals
    if any(f.severity == ERROR for f in findings):
        return findings, []
    entries = []
    for kernel in kernels:
        launch = _launch(kernel, arguments)
        entry = check_entry(
            module,
            kernel,
            block_of(kernel, arguments.block),
            dynamic_smem=arguments.dynamic_smem,
            dynamic_align=arguments.dynamic_align,
            params=_bounds(kernel, arguments.param, launch),
            usage=None if assembly is None else assembly.kernel(kernel.name),
            launch=launch,
        )
        entries.append(entry)
    return findings, entries


def _bounds(
    kernel: Kernel, asked: Sequence[tuple[str, int | tuple[int, int] | ArgumentText]], launch: Launch | None
) -> dict[str, Bound]:
    """Bounds of parameters, by name: the tensor maps of a run, and the bounds of the user."""
    names = [param.name for param in kernel.params]
    bounds: dict[str, Bound] = {}
    if launch is not None:
        maps = zip(names, launch.args, strict=False)
        bounds |= {name: of for name, of in maps if isinstance(of, TensorMap)}
    for name, value in asked:
        argument = value.make(0) if isinstance(value, ArgumentText) else value
        assert isinstance(argument, (int, tuple, TensorMap))  # no other form is accepted
        bounds[name] = argument
    return bounds


def _assembled(text: str, target: str, wanted: bool | None) -> tuple[Assembly | None, list[Finding]]:
    """The assembler's result and findings; nothing if assembly is unwanted, or if no assembler is installed
    and none was asked for.
    """
    if wanted is False:
        return None, []
    try:
        return assembled(text, target)
    except BackendError:
        if wanted:
            raise
        return None, []


def _kernels(module: Module, entry: str | None) -> list[Kernel]:
    chosen = [k for k in module.kernels if entry in (None, k.name)]
    if entry is not None and not chosen:
        names = [k.name for k in module.kernels]
        raise LaunchError(
            f"the file has no entry {entry!r}{did_you_mean(entry, names)} "
            f"(it has {', '.join(names) or 'none'})"
        )
    return chosen


def _launch(kernel: Kernel, arguments: argparse.Namespace) -> Launch | None:
    if arguments.grid is None:
        return None
    values = checked_values(arguments.arg, kernel.params)
    return Launch(arguments.grid, values, arguments.max_instructions)


# --------------------------------------------------------------------------------------- the report


def _document(
    module: Module, findings: Sequence[Finding], entries: Sequence[Entry], all: Sequence[Finding]
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "ptx_version": ".".join(map(str, module.version)),
        "target": module.target,
        "counts": _counts(all),
        "findings": [asdict(finding) for finding in findings],
        "entries": [entry.to_dict() for entry in entries],
    }


def _counts(findings: Sequence[Finding]) -> dict[str, int]:
    count = Counter(f.severity for f in findings)
    return {severity: count[severity] for severity in (ERROR, UNPROVED, LINT)}


def _report(module: Module, entries: Sequence[Entry], findings: Sequence[Finding]) -> str:
    version = ".".join(map(str, module.version))
    parts = [f"PTX {version} for {module.target}", *map(_entry, entries)]
    for severity in (ERROR, UNPROVED, LINT):
        some = [f for f in findings if f.severity == severity]
        if some:
            parts.append("\n".join(map(str, some[:_SHOWN])))
        if len(some) > _SHOWN:
            parts.append(f"and {len(some) - _SHOWN} more of severity {severity}; --json has all")
    counts = _counts(findings)
    parts.append(f"{counts[ERROR]} errors, {counts[UNPROVED]} unproved, {counts[LINT]} lints")
    return "\n\n".join(parts)


def _entry(entry: Entry) -> str:
    needs, usage, proof = entry.resources, entry.usage, entry.proof
    rows = [("block", f"{'x'.join(map(str, entry.block))} threads")]
    if needs is not None:
        mix = ", ".join(f"{n} {word}" for word, n in needs.mix[:_MIX])
        rows += [
            ("shared", f"{needs.static_shared} bytes static, {needs.dynamic_shared} dynamic"),
            ("live", f"{needs.live_registers} registers, {needs.live_predicates} predicates"),
            ("barriers", f"{needs.barriers} of 16"),
            ("mix", mix),
        ]
    if usage is not None:
        rows.append(
            (
                "assembled",
                f"{usage.registers} registers, {usage.stack_bytes} bytes of stack, "
                f"{usage.spill_store_bytes + usage.spill_load_bytes} spilled",
            )
        )
    if entry.counters is not None:
        c = entry.counters
        rows.append(
            (
                "run",
                f"{c.warp_instructions:,} warp instructions, {c.shared_conflicts:,} bank "
                f"conflicts, {c.global_sectors_excess:,} avoidable sectors",
            )
        )
    lines = [entry.kernel.name, *(f"  {name:<10} {value}" for name, value in rows)]
    if proof is not None:
        words = str(proof).removeprefix(f"{proof.kernel}: ")
        lines.append(f"  {'proof':<10} {words}")
        if proof.accesses:
            lines += [f"    {line}" for line in proof.table().splitlines()]
        if entry.counters is None:
            lines.append(f"  {'races':<10} {NOT_JUDGED}; a run looks for them (--grid, --arg)")
    return "\n".join(lines)
