"""Report on a kernel as one HTML file: `ptxgen report file.ptx -o report.html`."""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from ptxgen.commands.parts.command_line import completed, kernel_names
from ptxgen.commands.parts.exits import FAILED, OK, UNSUPPORTED, USAGE, StopError, fail
from ptxgen.commands.parts.files import STDOUT, FileError, check_writable, deliver
from ptxgen.commands.parts.numbers import whole
from ptxgen.commands.parts.progress import progress
from ptxgen.commands.parts.report_options import add_output, report_parser
from ptxgen.commands.parts.report_subjects import of_function, of_text
from ptxgen.commands.parts.run_arguments import argument_text, extents
from ptxgen.commands.parts.stall_table import stall_table
from ptxgen.commands.parts.standard_output import tell
from ptxgen.commands.parts.static_parameters import static
from ptxgen.commands.registry import REPORT, ReportKernels, registered
from ptxgen.errors import ConfigError, LaunchError, PtxGenError, UnsupportedTargetError
from ptxgen.report import STEPS, Comparison, Report, Subject, collect, compare, comparison_page, page
from ptxgen.report.comparison import BETTER, WORSE

NAME: Final = "ptxgen report"
_fail: Final = functools.partial(fail, NAME)

SCHEMA: Final = 1  # version of the JSON; raised when a key changes its meaning

_EPILOG = """\
what is reported on (KERNEL):
  file.ptx                    a kernel of a PTX file; - for standard input. With --grid and one --arg
                              for each parameter it is run, too
  module:function, file.py:function
                              a function with @ptxgen.kernel, launched with --grid and --arg, or as
                              --example says: a function without parameters that returns the grid,
                              the arguments and, if it has any, a dict of the static parameters
{kernels}
what the page has: source, PTX and machine code side by side; proofs and what the sanitizers found;
live registers; the map of shared memory with bank conflicts; what the warps of the first CTA do over
time, and by line what warps wait for in an issue model; the instruction mix; occupancy and a roofline;
with --walk the steps of a warp, with its registers. Without --grid there is no run, without ptxas and
nvdisasm no machine code: the page says so. It needs no network, and the same input gives the same bytes.

with --against there is a page on what differs: instructions, registers, conflicts, proofs, findings,
and the texts side by side.

arguments of --arg are those of ptxgen run (i32:1000, f32:2.0, random:f32:1024x64, zeros:f32:64,
x.npy, …). Files are never written.

examples:
  ptxgen report softmax.ptx --grid 3 --arg random:f32:3x1000 --arg zeros:f32:3x1000 \\
      --arg u32:1000 -o report.html
  ptxgen report kernels.py:softmax --example kernels.py:example -o report.html
  ptxgen report mypackage.kernels:scale --grid 8 --arg random:f32:1000 --arg u32:1000 \\
      --arg f32:0.5 --static tile=32 -o report.html
{examples}  ptxgen report triton.ptx --block 128 --source kernel.py -o report.html
  ptxgen report file.ptx --json | jq .findings
  ptxgen report kernels.py:softmax --example kernels.py:example --stalls
  ptxgen report kernels.py:softmax --example kernels.py:example --walk 37 -o report.html
  ptxgen report new.py:scale --example new.py:example --against 'old.py:scale --example old.py:example'
  ptxgen report new.ptx --against old.ptx -o comparison.html

exit codes:
  0  written, and no error was found; unproved accesses and lints do not count
  1  written, and the report has errors; or nothing was written: the input or a file cannot be read,
     or the output not be written
  2  wrong usage, or arguments that do not fit the kernel
  3  a configuration or a target that is not supported
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Report on a kernel; the exit codes are in `--help`.

    Raises SystemExit, as argparse does, with 2 for wrong arguments and 0 after `--help`.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        arguments, subject = _subject(words)
        subjects = [subject]
        if arguments.against is not None:
            for name in ("stalls", "walk"):
                if getattr(arguments, name):
                    raise LaunchError(f"--{name} shows one kernel; leave out --against")
            subjects.insert(0, _subject(_other_words(words, arguments))[1])
        if arguments.output != STDOUT:
            check_writable([Path(arguments.output)])
        with progress(STEPS * len(subjects)) as step:
            *before, result = (collect(replace(s, assemble=arguments.assemble), step) for s in subjects)
        if arguments.walk is not None:
            recorded_walk = importlib.import_module("ptxgen.debugger.walk").recorded_walk
            result = replace(result, walk=recorded_walk(subject, arguments.walk, arguments.walk_cta))
        compared = compare(before[0], result) if before else None
        deliver(_shown(arguments, result, compared), arguments.output)
    except LaunchError as error:
        return _fail(USAGE, error)
    except (ConfigError, UnsupportedTargetError) as error:
        return _fail(UNSUPPORTED, error)
    except (PtxGenError, FileError, StopError) as error:
        return _fail(FAILED, error)
    if arguments.output != STDOUT:
        tell(_summary(result, arguments.output) if compared is None else _moves(compared, arguments.output))
    return FAILED if any(r.wrong for r in (*before, result)) else OK


def _subject(words: Sequence[str]) -> tuple[argparse.Namespace, Subject]:
    """The parsed arguments, and the subject of the report."""
    named: list[ReportKernels] = list(registered(REPORT))
    for kernels in named:
        if words and words[0] in kernels.names:
            arguments, subject = importlib.import_module(kernels.module).subject(words)
            return arguments, subject
    arguments = _arguments(words, named)
    return arguments, of_text(arguments) if _is_text(arguments.kernel) else of_function(arguments)


def _other_words(words: Sequence[str], arguments: argparse.Namespace) -> list[str]:
    """The command line of the kernel that `--against` names: with its options, or if it has none, those of
    the first kernel.
    """
    other = shlex.split(arguments.against)
    if not other:
        raise LaunchError("--against needs a kernel, such as old.py:scale or 'old.py:scale --static tile=32'")
    if len(other) > 1:
        return other
    at = words.index(getattr(arguments, "kernel", words[0]))
    return [*words[:at], *other, *words[at + 1 :]]


def _is_text(name: str) -> bool:
    return name == STDOUT or ":" not in name or name.endswith(".ptx")


def _arguments(argv: Sequence[str], named: Sequence[ReportKernels]) -> argparse.Namespace:
    rows = [
        (names, about.replace("\n", f"\n{'':<30}")) for one in named for names, about in one.about.items()
    ]
    epilog = _EPILOG.format(
        kernels="".join(f"  {names:<26}  {about}\n" for names, about in rows),
        examples="".join(f"  {one.example}\n" for one in named),
    )
    parser = report_parser(NAME, epilog, [name for one in named for name in one.names])
    add = parser.add_argument
    add("kernel", metavar="KERNEL", help="what to report on, see below")
    entry = add("--entry", metavar="NAME", help="the kernel of a PTX file with several")
    completed(entry, kernel_names("kernel"))
    add("--block", type=extents, metavar="X[,Y[,Z]]", help="threads of a CTA (default: what the kernel says)")
    add("--source", type=Path, action="append", default=[], metavar="FILE", help="a file that .loc names")
    launch = parser.add_argument_group("the launch to interpret")
    add = launch.add_argument
    add("--grid", type=extents, metavar="X[,Y[,Z]]", help="CTAs")
    add("--cluster", type=extents, default=(1,), metavar="X[,Y[,Z]]", help="CTAs of a cluster")
    add("--arg", type=argument_text, action="append", default=[], metavar="ARGUMENT", help="as of ptxgen run")
    add("--dynamic-smem", type=whole(0), metavar="BYTES", help="of shared memory (default: as needed)")
    add(
        "--dynamic-align",
        type=whole(1),
        default=1,
        metavar="BYTES",
        help="what the launch aligns it to, if to more than the text says; kernels of Triton for sm_90a "
        "rely on 1024",
    )
    function = parser.add_argument_group("a kernel function")
    add = function.add_argument
    add("--example", metavar="MODULE:FUNCTION", help="returns the launch, see below")
    add("--static", type=static, action="append", default=[], metavar="NAME=VALUE", help="a static parameter")
    add("--target", metavar="NAME", help="such as sm_90 (default: that of the function, else sm_80)")
    add_output(parser)
    arguments = parser.parse_args(argv)
    if arguments.arg and arguments.grid is None:
        parser.error("--arg needs --grid")
    if arguments.example and arguments.grid:
        parser.error("--example says the grid; leave out --grid")
    if arguments.kernel.endswith(".py"):
        parser.error(f"{arguments.kernel} is Python; name its kernel function, {arguments.kernel}:NAME")
    if _is_text(arguments.kernel):
        for name in ("example", "static", "target"):
            if getattr(arguments, name):
                parser.error(f"--{name} is for a kernel function, and {arguments.kernel} is PTX text")
    elif arguments.entry or arguments.source:
        parser.error("--entry and --source are for PTX text")
    return arguments


def _shown(arguments: argparse.Namespace, result: Report, compared: Comparison | None) -> str:
    """The text that the command writes: a page, JSON or a table of stalls."""
    if arguments.json:
        return _json(compared or result)
    if arguments.stalls:
        return "\n".join([*stall_table(result), ""])
    return page(result) if compared is None else comparison_page(compared)


def _json(result: Report | Comparison) -> str:
    return json.dumps({"schema": SCHEMA, **asdict(result)}, indent=1) + "\n"


def _moves(compared: Comparison, output: str) -> str:
    counts = [sum(figure.verdict == verdict for figure in compared.figures) for verdict in (BETTER, WORSE)]
    names = compared.after.kernel, compared.before.kernel
    return "{} against {}: {} figures better, {} worse; written to {}".format(*names, *counts, output)


def _summary(result: Report, output: str) -> str:
    counts = [
        sum(f.severity == severity for f in result.findings) for severity in ("error", "unproved", "lint")
    ]
    return "{}: {} errors, {} unproved, {} lints; written to {}".format(result.kernel, *counts, output)
