"""Run a kernel of a PTX or CUDA file on the interpreter: `ptxgen run file.ptx --entry saxpy …`."""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np

from ptxgen import interpreter
from ptxgen.commands.parts.command_line import CommandParser, completed, kernel_names
from ptxgen.commands.parts.exits import FAILED, OK, UNSUPPORTED, USAGE, fail
from ptxgen.commands.parts.files import FileError, check_writable, write_files
from ptxgen.commands.parts.launch_options import add_launch, add_watch, run_options, symbol_values
from ptxgen.commands.parts.progress import bar, cta_lines
from ptxgen.commands.parts.run_arguments import ArgumentText, array_of, checked_values, npy
from ptxgen.commands.parts.run_program import add_compilation, program_of
from ptxgen.commands.parts.standard_output import tell
from ptxgen.errors import LaunchError, PtxGenError, TrapError, UnsupportedTargetError
from ptxgen.frontends.program import Program, ProgramKernel, by_line
from ptxgen.interpreter import Counters, MemoryTraffic, Report, Result
from ptxgen.interpreter.program.linking import link, param_align, param_bytes

NAME: Final = "ptxgen run"
_fail: Final = functools.partial(fail, NAME)

_OPCODES: Final = 10  # opcodes of the instruction mix that are shown
_WORST: Final = 5  # instructions shown with the most conflicts, or the most excess sectors
_SUMS: Final = {
    "warp_instructions": "warp instructions",
    "thread_instructions": "thread instructions",
    "tensor_flops": "tensor-core operations",
    "shared_requests": "shared requests",
    "shared_wavefronts": "shared wavefronts",
    "shared_conflicts": "bank conflicts",
    "global_requests": "global requests",
    "global_sectors_read": "global sectors read",
    "global_sectors_written": "global sectors written",
    "global_sectors_excess": "avoidable sectors",
}

_EPILOG = """\
arguments, one --arg for each parameter, in their order:
  i32:1000 u64:0xff f32:2.0   a number: i or u with 8, 16, 32 or 64, f with 16, 32 or 64, or bf16
  hex:0011aabb                the bytes of a structure
  x.npy                       an array; the kernel may only read it
  inout:y.npy                 an array; the file gets what the kernel made of it
  out:z.npy:f32:1024x64       an array of zeros, and the file for it
  zeros:f32:1024              an array of zeros for the kernel's own use
  random:f32:1024x64          random numbers (normal; integers: any); one more field is the seed,
                              by default the argument's place, from 0
  map:64x8:128B:ARRAY         a tensor map of an array in one of the forms above: the box in
                              elements, innermost first, and the swizzle (none, 32B, 64B, 128B)
  texture:2d,linear,wrap,normalized:ARRAY
                              a texture object: its kind (1d, 2d, 3d, layers: a1d, a2d, cube, acube)
                              and what else it is: point or linear; clamp, border, wrap or mirror;
                              normalized coordinates; fractions, of integers of 8 or 16 bits
  surface:2d:ARRAY            a surface object: its kind (1d, 2d, 3d, a1d, a2d)

examples:
  ptxgen run file.ptx                       list the entries and their parameters
  ptxgen run file.ptx --entry saxpy --grid 4 --block 256 \\
      --arg i32:1000 --arg f32:2.0 --arg x.npy --arg inout:y.npy
  ptxgen run - --entry k --grid 2x2 --block 32,4 --arg out:y.npy:u32:64 < file.ptx
  ptxgen run textures.ptx --entry texture_convolved --grid 64 --block 64 \\
      --arg texture:2d,linear,border:random:f32:64x64 --arg out:z.npy:f32:64x64 --arg i32:64
  ptxgen run file.ptx --entry saxpy --grid 4 --block 256 --counters --sanitize \\
      --arg i32:1000 --arg f32:2.0 --arg random:f32:1000 --arg zeros:f32:1000

CUDA C++, without a GPU or the CUDA toolkit (pip install 'ptxgen[frontends]'):
  ptxgen run saxpy.cu --entry saxpy --grid 4 --block 256 --sanitize \\
      --arg i32:1000 --arg f32:2.0 --arg x.npy --arg inout:y.npy
  ptxgen run sum.cu --instance "sum<float>" --entry "sum<float>" --grid 1 --block 64 \\
      --target sm_90a --define TILE=64 --arg x.npy --arg out:y.npy:f32:1

exit codes:
  0  done
  1  the file cannot be compiled or run, the kernel failed, the sanitizers found something, or a file
     cannot be read or written
  2  wrong usage, or arguments that do not fit the kernel
  3  a --target that is not supported

Files are written after the kernel has succeeded, each in one step: after a failure or a finding
they are as they were. Floating-point types that numpy lacks are written as bytes (V2, V1). What the
kernel prints goes to standard output, messages and progress to standard error.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a kernel, or list the entries; the exit codes are in `--help`.

    Raises SystemExit, as argparse does, with 2 for wrong arguments and 0 after `--help`.
    """
    arguments = _arguments(argv)
    readable: Callable[[str], str] = str
    try:
        program = program_of(arguments)
        readable = program.readable
        if arguments.entry is None:
            listing = _listed(program)
            tell(json.dumps(listing, indent=2) if arguments.json else _listing(listing))
            return OK
        return _run(program, arguments)
    except LaunchError as error:
        return _fail(USAGE, readable(str(error)))
    except TrapError as error:
        tell("" if arguments.json else error.printed, end="")
        return _fail(FAILED, readable(str(error)))
    except UnsupportedTargetError as error:
        return _fail(UNSUPPORTED, error)
    except (PtxGenError, FileError) as error:
        return _fail(FAILED, error)


# ---------------------------------------------------------------------------------------- arguments


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = CommandParser(
        "ptxgen run",
        "Run a kernel of a PTX or CUDA C++ file on the CPU, or list the file's entries.",
        _EPILOG,
    )
    add = parser.add_argument
    add("ptx", metavar="FILE", help="PTX, or CUDA C++ (.cu); - for PTX on standard input")
    entry = add("--entry", metavar="NAME", help="the kernel to run; without it, entries are listed")
    completed(entry, kernel_names("ptx"))
    add("--json", action="store_true", help="print JSON")
    launch = parser.add_argument_group("the launch")
    add_launch(launch)
    launch.add_argument("--out-dir", type=Path, metavar="DIR", help="for the files of inout: and out:")
    watched = parser.add_argument_group("what is watched")
    watched.add_argument("--counters", action="store_true", help="count instructions and memory traffic")
    add_watch(watched)
    add_compilation(parser.add_argument_group("how CUDA C++ is compiled"))
    arguments = parser.parse_args(argv)
    if arguments.entry is None:
        needless = [n for n, value in vars(arguments).items() if n in _LAUNCH and value]
        if needless:
            parser.error(f"--{needless[0].replace('_', '-')} needs --entry")
    elif arguments.grid is None or arguments.block is None:
        parser.error("--entry needs --grid and --block")
    return arguments


_LAUNCH: Final = (
    "grid",
    "block",
    "arg",
    "symbol",
    "dynamic_smem",
    "out_dir",
    "counters",
    "sanitize",
    "schedule",
)


# ------------------------------------------------------------------------------------------ running


def _run(program: Program, arguments: argparse.Namespace) -> int:
    entry = program[arguments.entry]
    kernel = entry.kernel
    files = _files(arguments.arg, arguments.out_dir)
    check_writable(list(files.values()))
    values = checked_values(arguments.arg, kernel.params)
    entry.check_elements(values)
    with _progress(entry.name, math.prod(arguments.grid)) as progress:
        result = interpreter.run(
            program.module,
            kernel.name,
            grid=arguments.grid,
            block=arguments.block,
            args=values,
            dynamic_smem=arguments.dynamic_smem,
            **run_options(arguments),
            profile=arguments.counters,
            symbols=program.symbols(symbol_values(arguments.symbol)),
            progress=progress,
        )
    reports = tuple(by_line(map(program.report, result.reports)))
    arrays = {path: array_of(values[n]) for n, path in files.items() if not reports}
    unwritten = _unwritten(
        {path: npy(array) for path, array in arrays.items() if isinstance(array, np.ndarray)}
    )
    written = {} if reports or unwritten else files
    if arguments.json:
        tell(json.dumps(_document(entry.name, arguments, result, reports, written), indent=2))
    else:
        tell(result.printed, end="")
        if arguments.counters:
            tell(program.readable(_counted(result.counters)))
    if unwritten:
        return _fail(FAILED, unwritten)
    if not reports:
        return OK
    count = f"{len(reports)} problem{'s' * (len(reports) > 1)}"
    shown = "".join(f"\n  {report}" for report in reports)
    return _fail(FAILED, f"the sanitizers report {count}; no file was written{shown}")


def _unwritten(contents: Mapping[Path, bytes]) -> str:
    """Write files; returns the reason why none was written, "" if all were. The run's other results are
    printed in any case.
    """
    try:
        write_files(contents)
    except FileError as error:
        return str(error)
    return ""


def _files(arguments: Sequence[ArgumentText], folder: Path | None) -> dict[int, Path]:
    """The output files of array arguments, by the index of the argument."""
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot make {folder}: {error.strerror}") from error
    files: dict[int, Path] = {}
    for number, what in enumerate(arguments):
        if what.output is not None:
            path = what.output if folder is None else folder / what.output.name
            if path.resolve() in [other.resolve() for other in files.values()]:
                raise LaunchError(f"two arguments would be written to {path}")
            files[number] = path
    return files


@contextmanager
def _progress(name: str, ctas: int) -> Iterator[Callable[[int, int], None] | None]:
    """A function that reports progress: by a bar if there can be one, else by lines on a terminal."""
    with bar(ctas) as update:
        if update is not None:
            yield lambda done, _: update(done, f"{name}, CTAs")
        else:
            yield cta_lines(f"{NAME}: {name}") if sys.stderr.isatty() else None


# --------------------------------------------------------------------------------------- the report


def _document(
    name: str,
    arguments: argparse.Namespace,
    result: Result,
    reports: Sequence[Report],
    written: Mapping[int, Path],
) -> dict[str, Any]:
    return {
        "entry": name,
        "grid": [*arguments.grid, 1, 1][:3],
        "block": [*arguments.block, 1, 1][:3],
        "printed": result.printed,
        "reports": [report.as_json() for report in reports],
        "written": {str(n): str(path) for n, path in written.items()},
        "counters": _counters(result.counters) if arguments.counters else None,
    }


def _counters(counters: Counters) -> dict[str, Any]:
    return {
        **{name: getattr(counters, name) for name in _SUMS},
        "dispatched": counters.dispatched,
        "by_opcode": dict(counters.by_opcode.most_common()),
        "traffic_not_counted": list(counters.traffic_not_counted),
        "memory_by_instruction": [
            {"number": number, **_figures(traffic)}
            for number, traffic in sorted((counters.memory_by_instruction or {}).items())
        ],
    }


def _figures(traffic: MemoryTraffic) -> dict[str, Any]:
    excess = {name: getattr(traffic, name) for name in ("shared_conflicts", "sectors_excess")}
    return {**asdict(traffic), **excess}


def _counted(counters: Counters) -> str:
    sections = [[(words, getattr(counters, name)) for name, words in _SUMS.items()]]
    sections.append(counters.by_opcode.most_common(_OPCODES))
    lines = _columns(sections)
    if counters.traffic_not_counted:
        lines.append(f"\ntraffic not counted: {', '.join(counters.traffic_not_counted)}")
    for figure, what in (("shared_conflicts", "bank conflicts"), ("sectors_excess", "avoidable sectors")):
        worst = counters.worst(figure, _WORST)
        if worst:
            lines.append(f"\nmost {what}")
            width = len(f"{getattr(worst[0][1], figure):,}")
            lines += [f"{getattr(t, figure):>{width},}  {t.where}" for _, t in worst]
    return "\n".join(lines)


def _columns(sections: Sequence[Sequence[tuple[str, int]]]) -> list[str]:
    """Lines with words left-aligned and numbers right-aligned; an empty line between sections."""
    rows = [row for section in sections for row in section]
    left = max(len(words) for words, _ in rows)
    right = max(len(f"{number:,}") for _, number in rows)
    lines: list[str] = []
    for section in sections:
        lines += [""] * bool(lines)
        lines += [f"{words:<{left}}  {number:>{right},}" for words, number in section]
    return lines


# ------------------------------------------------------------------------------------------ listing


def _listed(program: Program) -> dict[str, Any]:
    module = program.module
    return {
        "ptx_version": ".".join(map(str, module.version)),
        "target": module.target,
        "entries": [_entry(program, program[name]) for name in program],
        "variables": [
            {"name": program.readable(v.name), "space": v.space, "bytes": v.nbytes}
            for v in module.variables
            if v.space in ("global", "const")
        ],
    }


def _entry(program: Program, entry: ProgramKernel) -> dict[str, Any]:
    module, kernel = program.module, entry.kernel
    dynamic = kernel.dynamic_shared_bytes
    linked = link(module, kernel, dynamic, {})
    unsized = any(v.space == "shared" and not v.nbytes for v in module.variables)
    return {
        "entry": entry.name,
        "parameters": [
            {
                "name": program.readable(param.name),
                "type": param.type,
                "count": param.count,
                "bytes": param_bytes(param),
                "align": param_align(param),
            }
            for param in kernel.params
        ],
        "max_threads": kernel.threads,
        "block": list(kernel.reqntid),
        "cluster": list(kernel.cluster),
        "shared_bytes": linked.shared_bytes - dynamic,
        "dynamic_shared": bool(kernel.dynamic_shared) or unsized,
        "dynamic_shared_bytes": dynamic,
    }


def _listing(listing: Mapping[str, Any]) -> str:
    lines = [f"PTX {listing['ptx_version']} for {listing['target']}"]
    for entry in listing["entries"]:
        lines += ["", entry["entry"]]
        lines += [f"  {what:<8}  {words}" for what, words in _facts(entry).items() if words]
        for n, param in enumerate(entry["parameters"]):
            count = f"[{param['count']}]" if param["count"] else ""
            lines.append(
                f"  {'arg ' + str(n):<8}  {param['name']}: {param['type']}{count}, {param['bytes']} bytes"
            )
    if listing["variables"]:
        lines += ["", "variables"]
        lines += [f"  {v['space']:<8}  {v['name']}, {v['bytes']} bytes" for v in listing["variables"]]
    return "\n".join(lines)


def _facts(entry: Mapping[str, Any]) -> dict[str, str]:
    block = f"at most {entry['max_threads']} threads" if entry["max_threads"] else "any"
    if entry["block"]:
        block = f"{'x'.join(map(str, entry['block']))} threads"
    shared = f"{entry['shared_bytes']} bytes"
    if entry["dynamic_shared"]:
        least = entry["dynamic_shared_bytes"]
        shared += ", and dynamic memory" + (f" of at least {least} bytes" if least else "")
    cluster = f"{'x'.join(map(str, entry['cluster']))} CTAs" if entry["cluster"] else ""
    return {"block": block, "cluster": cluster, "shared": shared}
