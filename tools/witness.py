"""Compare the findings of this project in right and wrong kernels with those of compute-sanitizer
on a GPU: `python tools/witness.py`.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

if not __package__:  # run as a script, maybe in a bare checkout
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from ptxgen.interrupts import leave_quietly

    leave_quietly()

from ptxgen import interpreter, ir
from ptxgen.commands.parts.exits import fail
from ptxgen.commands.parts.files import FileError, why_not_writable, write_file
from ptxgen.commands.parts.numbers import seconds, whole
from ptxgen.commands.parts.quiet import quietly
from ptxgen.commands.parts.standard_output import tell
from ptxgen.errors import AssemblerError, BackendError, PtxGenError
from ptxgen.interpreter import Result
from ptxgen.mutation.judge import CATCHERS
from ptxgen.mutation.operators import KINDS
from ptxgen.runtime.cuda import CudaBackend, cuda_backend
from ptxgen.target import target, target_for_device
from ptxgen.text import render
from tools.campaign.judging import judge, judge_of, mutants_of
from tools.campaign.kernels import subjects
from tools.commands import witness_launch
from tools.commands.witness_launch import ORDINAL
from tools.commands.witness_sanitizer import (
    HANGS,
    NONE,
    TOOLS,
    CheckResult,
    Sanitizer,
    examine,
    find_sanitizer,
    run,
)

OK, FAILED, USAGE = range(3)

_fail: Final = functools.partial(fail, "witness.py", FAILED)

SCHEMA: Final = 1  # version of the JSON; raised when a key changes its meaning
_ALL_OF: Final = ("barrier", "copy-wait", "copy-commit", "fence", "mbarrier")
_OTHERS: Final = 1  # mutants of each kind that is not in _ALL_OF
_SEED: Final = 4  # of the choice of mutants
_JOBS: Final = 4  # processes that use the GPU at once
_TIMEOUT_S: Final = 60.0
_RIGHT: Final = "right"  # our verdict on an unchanged kernel; also a verdict on right results
_REFUSED: Final = "refused"  # refused by the assembler: nothing to run

# How the two verdicts compare.
AGREEMENTS: Final = {
    "both": "both find something",
    "neither": "neither does",
    "ours only": "found here, unseen by compute-sanitizer",
    "theirs only": "found by compute-sanitizer alone: a hole here, or a false report there",
    "no verdict": "a check of compute-sanitizer failed, and no other of its checks found anything",
}

_EPILOG = f"""\
Each kernel of tools/mutate.py and some of its mutants (all of {", ".join(_ALL_OF)};
{_OTHERS} of each other kind, always the same) is judged as tools/mutate.py does, and runs on the
GPU: alone, and under {", ".join(TOOLS)}.

agreement:
{chr(10).join(f"  {name:<16}{meaning}" for name, meaning in AGREEMENTS.items())}

compute-sanitizer is taken from PATH, CUDA_HOME or CUDA_PATH, beside nvcc, or from the Python
package nvidia-cuda-sanitizer-api (pip install nvidia-cuda-sanitizer-api).

examples:
  python tools/witness.py --list
  python tools/witness.py --output benchmarks/results/witness.json
  python tools/witness.py --kernel f32-sm_80 --kind barrier --tool racecheck

exit codes:
  0  compute-sanitizer finds nothing in a right kernel, and nothing that is not found here
  1  it does, or the GPU's results of a right kernel are wrong, or a check has no verdict, or there
     is no GPU or no compute-sanitizer, or a file cannot be written
  2  wrong usage
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel or mutant. `ours` is the check of this project that catches it, as in
    tools/mutate.py, or `right`; `theirs` holds the result of each check of compute-sanitizer;
    `value` is a description of the first wrong result of the GPU, or `right`, or the reason why there are no
    results.
    """

    kernel: str
    mutant: str
    ours: str
    what: str
    value: str
    theirs: tuple[CheckResult, ...] = field(default=())

    @property
    def agreement(self) -> str:
        """The comparison of the two verdicts, one of AGREEMENTS."""
        noticed = any(check.noticed for check in self.theirs)
        if not noticed and any(check.verdict == NONE for check in self.theirs):
            return "no verdict"
        ours = self.ours in CATCHERS
        return {
            (True, True): "both",
            (True, False): "ours only",
            (False, True): "theirs only",
            (False, False): "neither",
        }[ours, noticed]

    @property
    def bad(self) -> bool:
        """Whether a person should look at this row."""
        wrong = self.ours == _RIGHT and self.value != _RIGHT
        return wrong or self.agreement in ("theirs only", "no verdict")

    def to_dict(self) -> dict[str, Any]:
        """The row as plain data for JSON."""
        theirs = {
            check.tool: {k: v for k, v in asdict(check).items() if k != "tool"} for check in self.theirs
        }
        return {
            "kernel": self.kernel,
            "mutant": self.mutant,
            "ours": self.ours,
            "what": self.what,
            "value": self.value,
            "theirs": theirs,
            "agreement": self.agreement,
        }


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, and print the table; the exit codes are in `--help`.

    Raises SystemExit, as argparse does, with 2 for wrong arguments and 0 after `--help`.
    """
    arguments = _arguments(argv)
    kernels = arguments.kernel or list(subjects())
    if arguments.list:
        chosen = [pair for name in kernels for pair in _chosen(name, arguments)]
        tell("\n".join(f"{name}  {_name(name, number)}" for name, number in chosen))
        return OK
    if arguments.output is not None and (why := why_not_writable(arguments.output)):
        return _fail(f"cannot write {arguments.output}: {why}")
    try:
        bench = Bench(
            cuda_backend(),
            find_sanitizer(arguments.sanitizer),
            arguments.tool or list(TOOLS),
            arguments.timeout,
        )
        bench.check()  # before mutants are made, which takes seconds for each kernel
        chosen = [pair for name in kernels for pair in _chosen(name, arguments)]
        rows = _rows(bench, chosen, arguments.jobs)
    except PtxGenError as error:
        return _fail(str(error))
    text = json.dumps(document(bench, rows), indent=2) + "\n"
    if arguments.output is not None:
        try:
            write_file(arguments.output, text)
        except FileError as error:
            tell(text, end="")
            return _fail(f"{error}; the result is on standard output")
    tell(text if arguments.json else report(rows), end="")
    return FAILED if any(row.bad for row in rows) else OK


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="witness.py",
        description="Compare our verdicts on kernels and mutants with those of compute-sanitizer.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--kernel", action="append", choices=list(subjects()), help="only this one; repeatable")
    add("--kind", action="append", choices=list(KINDS), help="mutants of this kind; repeatable")
    add("--tool", action="append", choices=list(TOOLS), help="only this check; repeatable")
    add("--sanitizer", type=Path, metavar="FILE", help="the compute-sanitizer to use")
    add(
        "--most",
        type=whole(0),
        metavar="N",
        help="at most so many mutants of each kernel, drawn alike each time",
    )
    add("--timeout", type=seconds, default=_TIMEOUT_S, metavar="S", help="of one launch")
    add("--jobs", type=whole(1), default=_JOBS, metavar="N", help="launches at once")
    add("--list", action="store_true", help="print what would be compared; needs no GPU")
    add("--json", action="store_true", help="print JSON")
    add("--output", type=Path, metavar="FILE", help="write the JSON there, in one step")
    return parser.parse_args(argv)


def _chosen(kernel: str, arguments: argparse.Namespace) -> Iterator[tuple[str, int | None]]:
    """The kernel with each mutant to compare, by its index; None is the unchanged kernel."""
    yield kernel, None
    by_kind: dict[str, list[int]] = {}
    for number, mutant in enumerate(mutants_of(kernel)):
        by_kind.setdefault(mutant.kind, []).append(number)
    choice = random.Random(_SEED)
    chosen: list[int] = []
    for kind, numbers in by_kind.items():
        some = numbers if kind in _ALL_OF else sorted(choice.sample(numbers, _OTHERS))
        if kind in (arguments.kind or KINDS):
            chosen += some
    if arguments.most is not None:
        chosen = sorted(choice.sample(chosen, min(arguments.most, len(chosen))))
    yield from ((kernel, number) for number in chosen)


def _name(kernel: str, number: int | None) -> str:
    return "(the kernel itself)" if number is None else mutants_of(kernel)[number].name


# ---------------------------------------------------------------------------------- the comparison


@dataclass(frozen=True, slots=True)
class Bench:
    """The GPU, the checks to run, and the time limit of one launch in seconds."""

    backend: CudaBackend
    sanitizer: Sanitizer
    tools: Sequence[str]
    timeout_s: float

    def check(self) -> None:
        """Raise `BackendError` if there is no GPU."""
        why = self.backend.why_unavailable()
        if why:
            raise BackendError(f"no GPU: {why}; --list needs none")

    def row(self, kernel: str, number: int | None) -> Row:
        """The row of a kernel, or of its mutant with index `number`."""
        subject = subjects()[kernel]
        verdict = None if number is None else judge(kernel, number)
        problem = subject.problems[max(verdict.problem if verdict else 0, 0)]
        if verdict is None:
            judge_of(kernel).right(problem)  # raises if the kernel is wrong
        module = subject.module if number is None else mutants_of(kernel)[number].module
        with tempfile.TemporaryDirectory(prefix="witness-") as folder:
            value, theirs = self._on_gpu(kernel, module, problem, Path(folder))
        ours = _RIGHT if verdict is None else verdict.caught_by
        what = "" if verdict is None else verdict.what
        return Row(kernel, _name(kernel, number), ours, what, value, theirs)

    def _on_gpu(
        self, kernel: str, module: ir.Module, problem: Any, folder: Path
    ) -> tuple[str, tuple[CheckResult, ...]]:
        """The error of the GPU's results, and the result of each check."""
        device = self.backend.device_properties(ORDINAL)
        if not target(module.target).runs_on(device.major, device.minor):
            raise BackendError(f"{kernel} is for {module.target}, which {device} does not run")
        wanted = target_for_device(device.major, device.minor)
        try:
            program = self.backend.compile(render(module), wanted)
        except AssemblerError as error:
            return f"{_REFUSED}: {error}", ()
        theirs: list[CheckResult] = []
        trouble: list[str] = []
        launch = partial(self._launch, folder, program, theirs, trouble)
        ran = subjects()[kernel].run(module, problem, launch=launch)
        return (trouble[0] if trouble else ran.wrong or _RIGHT), tuple(theirs)

    def _launch(
        self,
        folder: Path,
        program: bytes,
        theirs: list[CheckResult],
        trouble: list[str],
        module: ir.Module,
        entry: str,
        *,
        raise_on_report: bool,
        **how: Any,
    ) -> Result:
        """Launch a kernel, as a replacement of `ptxgen.interpreter.run`: on the GPU, under each check and
        alone.
        """
        del raise_on_report  # findings go to `theirs`
        kernel = next(k for k in module.kernels if k.name == entry)
        memory = witness_launch.store(folder, program, kernel, **how)
        command = [sys.executable, str(Path(witness_launch.__file__)), str(folder)]
        for tool in self.tools:
            log = folder / f"{tool}.log"
            theirs.append(examine(self.sanitizer, tool, command, entry, log, self.timeout_s))
            for stale in folder.glob("result*"):
                stale.unlink()
        alone = run(command, self.timeout_s)
        if alone is None:
            trouble.append(f"{HANGS}: the launch did not end within {self.timeout_s:g} s")
        elif alone.returncode:
            trouble.append(alone.stderr.strip() or f"exit code {alone.returncode}")
        else:
            witness_launch.fetch(folder, memory)
        return Result(interpreter.Counters(), ())


def _rows(bench: Bench, chosen: Sequence[tuple[str, int | None]], jobs: int) -> list[Row]:
    with ThreadPoolExecutor(int(jobs)) as pool:
        return list(pool.map(lambda pair: bench.row(*pair), chosen))


# --------------------------------------------------------------------------------------- the report


def document(bench: Bench, rows: Sequence[Row]) -> dict[str, Any]:
    """The comparison as plain data for JSON."""
    agreements = Counter(row.agreement for row in rows)
    return {
        "schema": SCHEMA,
        "device": str(bench.backend.device_properties(ORDINAL)),
        "compute_sanitizer": bench.sanitizer.version,
        "counts": {name: agreements[name] for name in AGREEMENTS},
        "rows": [row.to_dict() for row in rows],
    }


def report(rows: Sequence[Row]) -> str:
    """The table, then the rows that a person should look at."""
    lines = []
    for kernel in dict.fromkeys(row.kernel for row in rows):
        mine = [row for row in rows if row.kernel == kernel]
        width = max(len(row.mutant) for row in mine)
        lines.append(f"{kernel:<{width + 2}}  {'ours':<12}{'theirs':<22}{'results':<10}agreement")
        for row in mine:
            noticed = ", ".join(check.tool for check in row.theirs if check.noticed) or "-"
            results = _RIGHT if row.value == _RIGHT else "wrong"
            lines.append(f"  {row.mutant:<{width}}  {row.ours:<12}{noticed:<22}{results:<10}{row.agreement}")
        lines.append("")
    for row in rows:
        if row.bad:
            lines += [f"{row.kernel}: {row.mutant}: {row.agreement}; results: {row.value}"]
            for check in row.theirs:
                for text in (*check.findings, *([check.why] if check.why else [])):
                    shown = text.replace("\n", "\n    ")
                    lines.append(f"  {check.tool}: {shown}")
            lines.append("")
    agreements = Counter(row.agreement for row in rows)
    counts = ", ".join(f"{agreements[name]} {name}" for name in AGREEMENTS)
    lines.append(f"{len(rows)} launches: {counts}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(quietly(main))
