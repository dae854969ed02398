"""Make a kernel wrong in every small way, and list the mistakes that its test problems miss: `ptxgen mutate
kernels.py:softmax --example kernels.py:example`.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from ptxgen.commands.parts.checkout import module_of_checkout
from ptxgen.commands.parts.command_line import CommandParser, completed, kernel_names
from ptxgen.commands.parts.exits import FAILED, OK, UNSUPPORTED, USAGE, fail, note
from ptxgen.commands.parts.files import FileError
from ptxgen.commands.parts.mutant_tables import by_kind, counts, table
from ptxgen.commands.parts.mutant_verdicts import progress, verdicts
from ptxgen.commands.parts.mutate_problems import is_text, judges, problem
from ptxgen.commands.parts.numbers import tolerance, whole
from ptxgen.commands.parts.run_arguments import argument_text, extents
from ptxgen.commands.parts.run_program import add_compilation
from ptxgen.commands.parts.standard_output import tell
from ptxgen.commands.parts.static_parameters import static
from ptxgen.errors import ConfigError, LaunchError, PtxGenError, UnsupportedTargetError
from ptxgen.mutation.judge import CATCHERS, EQUIVALENT, HOLE, Judge, Verdict
from ptxgen.mutation.operators import KINDS
from ptxgen.mutation.survivors import needs, source_line, survivor
from ptxgen.mutation.testing import sample

NAME: Final = "ptxgen mutate"
_fail: Final = functools.partial(fail, NAME)

SCHEMA: Final = 1  # version of the JSON; raised when a key changes its meaning
_SURVIVED: Final = "survived"
_CALLED: Final = {HOLE: _SURVIVED}
_CAMPAIGN: Final = "tools.campaign.shipped"  # of the kernels that this project ships, in its checkout
_SHOWN: Final = 3  # equivalent mutants of a reason that are named

_EPILOG: Final = f"""\
what is mutated (KERNEL):
  file.py:function, module:function   a function with @ptxgen.kernel, or a kernel of Triton or Numba
  file.ptx, file.cu                   a kernel of PTX or CUDA C++; --entry chooses one of several
Each mutant has one small mistake. It is run on the problems where a thread tells it from the kernel, and
is counted for the first check that notices it; what no check notices is what your tests would miss.

problems, as many as you like:
  --example MODULE:FUNCTION   a function without parameters that returns the grid, the arguments and, if
                              there are any, a dict of the static parameters; or a list of such tuples.
                              Draw random numbers from a fixed seed
  --grid X --arg ...          one problem, with arguments as in ptxgen run
  --problem "X ARGUMENT ..."  one more, in quotes

what is right:
  by default what the kernel itself writes, bit by bit; --rtol and --atol allow floats an error of
  atol + rtol * |right|. --expect MODULE:FUNCTION is called after each run with the arguments as the run
  left them. It raises AssertionError where they are wrong, or returns the right arrays by parameter:
      def expect(x, y, columns): return {{"Y": softmax_in_numpy(x)}}
  If it has a parameter `before`, it gets there the arguments as they were before the run.

kinds of mistakes:
{chr(10).join(f"  {kind:<16}{meaning}" for kind, meaning in KINDS.items())}

who notices, in the order in which they are asked:
{chr(10).join(f"  {caller:<16}{meaning}" for caller, meaning in CATCHERS.items())}
  equivalent      nobody can: proved, or argued in equivalent.toml, to be right as well
  survived        nobody has: a further problem would notice it, or it is equivalent

examples:
  ptxgen mutate kernels.py:softmax --example kernels.py:example
  ptxgen mutate kernels.py:softmax --grid 3 --arg random:f32:3x1000 --arg zeros:f32:3x1000 \\
      --arg u32:1000 --problem "1 random:f32:1x1 zeros:f32:1x1 u32:1" --rtol 1e-6
  ptxgen mutate saxpy.cu --entry saxpy --block 256 --grid 4 --arg i32:1000 --arg f32:2.0 \\
      --arg random:f32:1000 --arg zeros:f32:1000 --kind bound --kind mask
  ptxgen mutate saxpy.ptx --example tests.py:problems --expect tests.py:expect --json
  ptxgen mutate --short                    the kernels that this project ships, in its checkout;
                                           ptxgen mutate --short --help has the options of that

exit codes:
  0  no mutant survives
  1  a mutant survives, or the kernel is found wrong without a mistake, or it cannot be read or built
  2  wrong usage, or arguments that do not fit the kernel
  3  a configuration or a target that is not supported
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Judge the mutants of a kernel and print which checks noticed them; the exit codes are in `--help`.
    Without a kernel, judge those of the kernels that a checkout of this project ships.

    Raises SystemExit, as argparse does, with 2 for wrong arguments and 0 after `--help`.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0].startswith("-") and words[0] not in ("-h", "--help"):
        return _campaign(words)
    arguments = _arguments(words)
    _judges.cache_clear()  # a caller in Python may have changed the files
    try:
        judges = _judges(tuple(words))
        for judge in judges.values():
            judge.require_right()
        chosen = [
            (name, n)
            for name, judge in judges.items()
            for n in sample(judge, arguments.kind, short=arguments.short)
        ]
        with progress(NAME, len(chosen), _SURVIVED) as step:
            judged = [
                step(v) for v in verdicts(functools.partial(_judge, tuple(words)), chosen, arguments.jobs)
            ]
    except LaunchError as error:
        return _fail(USAGE, error)
    except (ConfigError, UnsupportedTargetError) as error:
        return _fail(UNSUPPORTED, error)
    except (PtxGenError, FileError) as error:
        return _fail(FAILED, error)
    if not judged:
        note(NAME, "no mutation operator of these kinds changes anything in this kernel")
    _note_stale(judges)
    tell(json.dumps(document(judges, judged), indent=2) if arguments.json else report(judges, judged))
    return FAILED if any(v.caught_by == HOLE for v in judged) else OK


def _campaign(words: Sequence[str]) -> int:
    """Run the campaign of a checkout's kernels."""
    campaign = module_of_checkout(_CAMPAIGN)
    if campaign is None:
        return _fail(
            USAGE,
            "without a KERNEL it mutates the kernels that this project ships, which needs a checkout of it "
            "(tools/campaign); give a KERNEL first, such as kernels.py:softmax",
        )
    return int(campaign.main(words))


@functools.lru_cache(maxsize=1)
def _judges(words: tuple[str, ...]) -> Mapping[str, Judge]:
    return judges(_arguments(words))


def _judge(words: tuple[str, ...], kernel: str, number: int) -> Verdict:
    """The verdict on mutant `number` of a kernel, in any process; `words` are the arguments of the command
    line.
    """
    return _judges(words)[kernel].verdict(number)


def _note_stale(judges: Mapping[str, Judge]) -> None:
    """Print a note for each reason that is about no mutant of these kernels."""
    for reason in {reason: None for judge in judges.values() for reason in judge.reasons}:
        if not any(reason.fits(mutant) for judge in judges.values() for mutant in judge.mutants):
            what = f"{reason.kind}: {reason.change}"
            note(NAME, f"a reason is about no mutant: {what}, {reason.why}")


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser(NAME, "Make a kernel wrong in every small way, and see who notices.", _EPILOG)
    add = parser.add_argument
    add("kernel", metavar="KERNEL", help="what to mutate, see below")
    completed(
        add("--entry", metavar="NAME", help="the kernel of a file with several"), kernel_names("kernel")
    )
    add("--block", type=extents, metavar="X[,Y[,Z]]", help="threads of a CTA (default: what the kernel says)")
    add("--static", type=static, action="append", default=[], metavar="NAME=VALUE", help="a static parameter")
    add("--json", action="store_true", help="print JSON")
    _add_problems(parser.add_argument_group("the problems"))
    _add_choice(parser.add_argument_group("the mutants"))
    add_compilation(parser.add_argument_group("how it is compiled"))
    arguments = parser.parse_args(argv)
    if arguments.arg and arguments.grid is None:
        parser.error("--arg needs --grid")
    if not (arguments.example or arguments.problem or arguments.grid is not None):
        parser.error("it needs a problem to run: --example, --grid with --arg, or --problem")
    if arguments.expect and arguments.kernel == arguments.expect:
        parser.error("--expect is a function that says what is right, not the kernel")
    if is_text(arguments.kernel):
        if arguments.static:
            parser.error(f"--static is for a kernel function, and {arguments.kernel} is text")
    elif arguments.kernel.endswith(".py"):
        parser.error(f"{arguments.kernel} is Python; name its kernel function, {arguments.kernel}:NAME")
    elif ":" not in arguments.kernel:
        parser.error(
            f"KERNEL must be MODULE:FUNCTION, FILE.py:FUNCTION, FILE.ptx or FILE.cu, got {arguments.kernel!r}"
        )
    elif arguments.entry:
        parser.error("--entry is for PTX and CUDA C++")
    return arguments


def _add_problems(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--example", metavar="MODULE:FUNCTION", help="returns a problem, or a list of them, see below")
    add("--grid", type=extents, metavar="X[,Y[,Z]]", help="CTAs of a problem")
    add("--arg", type=argument_text, action="append", default=[], metavar="ARGUMENT", help="as of ptxgen run")
    add(
        "--problem",
        type=problem,
        action="append",
        default=[],
        metavar='"X ARGUMENT ..."',
        help="a further problem: a grid and arguments, in quotes",
    )
    add(
        "--cluster", type=extents, default=(1,), metavar="X[,Y[,Z]]", help="CTAs of a cluster, of PTX or CUDA"
    )
    add(
        "--dynamic-smem",
        type=whole(0),
        default=0,
        metavar="BYTES",
        help="of shared memory (default: as needed)",
    )
    add("--expect", metavar="MODULE:FUNCTION", help="says what is right, see below")
    add("--rtol", type=tolerance, default=0.0, metavar="R", help="relative error that floats may have")
    add("--atol", type=tolerance, default=0.0, metavar="A", help="absolute error that floats may have")
    add(
        "--deterministic",
        action="store_true",
        help="sums of floats whose order nothing fixes are wrong, even with the right result",
    )


def _add_choice(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--kind", action="append", choices=list(KINDS), help="only this kind; repeatable")
    add("--short", action="store_true", help="a sample: one mutant of each kind")
    add("--reasons", type=Path, metavar="FILE", help="default: equivalent.toml next to the kernel's file")
    add("--jobs", type=whole(1), default=os.cpu_count() or 1, metavar="N", help="processes")


# --------------------------------------------------------------------------------------- the report


def document(judges: Mapping[str, Judge], judged: Sequence[Verdict]) -> dict[str, Any]:
    """The verdicts as plain data for JSON."""
    return {
        "schema": SCHEMA,
        "kernels": [_kernel(name, judge, judged) for name, judge in judges.items()],
        "counts": _called(counts(judged)),
        "mutants": [_mutant(judges[v.kernel], v) for v in judged],
    }


def _kernel(name: str, judge: Judge, judged: Sequence[Verdict]) -> dict[str, Any]:
    mine = [v for v in judged if v.kernel == name]
    return {
        "name": name,
        "entry": judge.kernel.entry,
        "problems": [nth.number for nth in judge.kernel.problems],
        "mutants": len(judge.mutants),
        "judged": len(mine),
        "kinds": {kind: _called(counts(v)) for kind, v in by_kind(mine).items()},
    }


def _called(counted: Mapping[str, int]) -> dict[str, int]:
    return {_CALLED.get(name, name): count for name, count in counted.items()}


def _mutant(judge: Judge, verdict: Verdict) -> dict[str, Any]:
    survived = verdict.caught_by == HOLE
    return {
        **asdict(verdict),
        "caught_by": _CALLED.get(verdict.caught_by, verdict.caught_by),
        "problem": _number(judge, verdict),
        "line": source_line(judge, verdict),
        "needs": needs(verdict) if survived else "",
    }


def _number(judge: Judge, verdict: Verdict) -> int:
    """The number of a verdict's problem among all problems, -1 without a run."""
    return judge.kernel.problems[verdict.problem].number if verdict.problem >= 0 else -1


def _table(name: str, judged: Sequence[Verdict]) -> str:
    """The table of a kernel, with the columns that count any mutant."""
    shown = [column for column, count in counts(judged).items() if count or column in ("judged", HOLE)]
    return table(name, judged, {column: _CALLED.get(column, column) for column in shown})


def report(judges: Mapping[str, Judge], judged: Sequence[Verdict]) -> str:
    """The tables, the reasons and the survivors, for a reader."""
    parts = [_table(name, [v for v in judged if v.kernel == name]) for name in judges]
    equivalent: dict[tuple[str, str], list[str]] = {}
    for v in judged:
        if v.caught_by == EQUIVALENT:
            equivalent.setdefault((v.kernel, v.what), []).append(v.name)
    for (kernel, why), names in equivalent.items():
        more = [f"and {len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
        lines = [f"{kernel}: {len(names)} equivalent, {why}", *names[:_SHOWN], *more]
        parts.append("\n  ".join(lines) + "\n")
    parts += [survivor(judges[v.kernel], v) for v in judged if v.caught_by == HOLE]
    total = counts(judged)
    wrong = total["judged"] - total[EQUIVALENT]
    problems = sum(len(judge.kernel.problems) for judge in judges.values())
    parts.append(
        f"{total['judged']} mutants, {problems} problem{'s' * (problems != 1)}, {total[EQUIVALENT]} "
        f"equivalent; of the other {wrong}, {wrong - total[HOLE]} are noticed and {total[HOLE]} survive"
    )
    return "\n".join(parts)
