"""Test and measure on a GPU for some minutes: tests, timing, counters, sanitizers. A later run continues
where the last one ended.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

if not __package__:  # run as a script, maybe in a bare checkout
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ptxgen.commands.parts.exits import fail
from ptxgen.commands.parts.files import FileError, why_not_writable
from ptxgen.commands.parts.numbers import seconds as positive
from ptxgen.commands.parts.numbers import whole
from ptxgen.commands.parts.quiet import quietly
from ptxgen.commands.parts.standard_output import tell
from tools.gpu import clocks
from tools.gpu.journal import Journal
from tools.gpu.phases import DEVICE, LEDGER, MINUTES, OPTIONAL, PARTS, Part, deadline
from tools.gpu.results import BAD, Results, words
from tools.gpu.rooms import ROOT
from tools.gpu.watch import Child, Watch, now_utc
from tools.gpu.wheels import installed

NAME: Final = "gpu_session.py"
OK, FAILED, NO_GPU = range(3)  # 2 is also argparse's for wrong usage
RESULTS: Final = ROOT / "benchmarks" / "results"
_ASKED_S: Final = 60.0  # for the GPU and the packages
_END_S: Final = 5.0  # for the last writing
_EVENTS: Final = "journal.jsonl"

_EPILOG: Final = f"""\
parts, in this order, with their most seconds of {MINUTES:g} minutes:
{chr(10).join(f"  {part.name:<10}{part.seconds:>4.0f}  {part.about}" for part in PARTS)}

Each part runs in separate processes, until it is done or its time is over; what a part does not use, the
others have. What was never measured comes first, in this run and in later ones. Results are merged into
DIR/<device>.json, what ran into DIR/{LEDGER} (tools/silicon.py --merge brings that into the ledger); after
each part both are on disk. Nothing is downloaded: packages are those of this Python, or of --wheels.

examples:
  python tools/gpu_session.py
  python3 tools/gpu_session.py --minutes 9 --output results --wheels wheels
  python tools/gpu_session.py --only timing --only counters --minutes 4
  python tools/gpu_session.py --list

exit codes:
  0  nothing failed; what was not measured is named
  1  a test or unit failed, hung or crashed, or a file cannot be read or written
  2  there is no GPU, or wrong usage
"""


@dataclass(frozen=True, slots=True)
class Session:
    """One run: its arguments, its end, and its clock."""

    arguments: argparse.Namespace
    scratch: Path
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    end: float  # by the clock

    def command(self, part: str, *words: str) -> list[str]:
        """The command of a process of a part."""
        rehearse = ["--rehearse"] if self.arguments.rehearse else []
        return [sys.executable, "-m", "tools.gpu.worker", "--part", part, *rehearse, *words]

    def asked(self) -> dict[str, Any]:
        """The facts that `tools.gpu.device` prints about this machine."""
        try:
            ran = subprocess.run(
                self.command(DEVICE), cwd=ROOT, capture_output=True, text=True, timeout=_ASKED_S, check=True
            )
        except subprocess.TimeoutExpired:
            return {"why": f"the driver did not answer within {_ASKED_S:g} s"}
        except (OSError, subprocess.CalledProcessError) as error:
            message = getattr(error, "stderr", "") or str(error)
            return {"why": message.strip().splitlines()[-1]}
        summary: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
        return summary

    def do(self, part: Part, until: float, results: Results, facts: Mapping[str, Any]) -> list[str]:
        """Run a part until a time; returns the errors other than verdicts of units."""
        run = facts["run"]
        journal = Journal(self.arguments.output / _EVENTS, {"run": run, "part": part.name})
        journal.new()
        history = self.scratch / f"{part.name}.json"
        faults = dict(word.split(":") for word in self.arguments.fault)
        processes = max(min(part.processes, (os.cpu_count() or 1) // 2), 1)

        def start(number: int) -> Child:
            history.write_text(json.dumps(results.history(part.name)), encoding="utf-8")
            options = {
                "--journal": journal.path,
                "--history": history,
                "--output": self.arguments.output,
                "--run": run,
                "--seed": facts["seed"],
                "--worker": number,
                "--workers": processes,
                "--seconds": max(until - self.clock(), 0.0),
                "--fault": faults.get(part.name, ""),
            }
            words = [str(word) for pair in options.items() for word in pair]
            output = self.scratch / f"{part.name}{number}.txt"
            return Child(self.command(part.name, *words), ROOT, output)

        watch = Watch(start, journal, results.merge, part.unit_s, until, self.clock, self.sleep)
        return watch.run(processes)


def main(
    argv: Sequence[str] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Run the parts and print the table; the exit codes are in `--help`.

    Raises SystemExit, as argparse does, with 2 for wrong arguments and 0 after `--help`.
    """
    arguments = _arguments(argv)
    if arguments.list:
        tell(_listed())
        return OK
    began, output = clock(), arguments.output.resolve()
    arguments.output = output
    if why := why_not_writable(output / _EVENTS):
        return fail(NAME, FAILED, f"cannot write to {output}: {why}; name another folder with --output")
    with tempfile.TemporaryDirectory(prefix="gpu-session-") as name, _cache(Path(name)):
        try:
            if arguments.wheels is not None:
                os.environ["PYTHONPATH"] = installed(arguments.wheels, Path(name) / "site")
            end = began + 60 * arguments.minutes - _END_S
            return _run(Session(arguments, Path(name), clock, sleep, end))
        except FileError as error:
            return fail(NAME, FAILED, error)


@contextmanager
def _cache(scratch: Path) -> Iterator[None]:
    """Let processes share the kernels that they assemble, in a folder of this run unless one is set."""
    before = os.environ.get("PTXGEN_CACHE_DIR")
    os.environ.setdefault("PTXGEN_CACHE_DIR", str(scratch / "cache"))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PTXGEN_CACHE_DIR"]


def _run(session: Session) -> int:
    arguments = session.arguments
    asked = session.asked()
    if "device" not in asked:
        lacks = [m for m in asked.get("missing", ()) if m not in OPTIONAL]
        hint = f"; missing: {', '.join(lacks)} (--wheels DIR installs from a folder)" if lacks else ""
        return fail(NAME, NO_GPU, f"no GPU: {asked.get('why')}{hint}")
    device = asked["device"]
    results = Results.read(arguments.output / asked["file"], device)
    results.merge(Journal(arguments.output / _EVENTS, {}).new())  # of a run that was stopped
    run = results.next_run
    facts = {
        "run": run,
        "date": now_utc(),
        "minutes": arguments.minutes,
        "seed": run if arguments.seed is None else arguments.seed,
        "device": device,
        "versions": asked["versions"],
        "missing": asked["missing"],
    }
    results.begin(device, facts)
    results.save()
    _say(f"{device['name']} ({device['sm']}), driver {device['driver']}: run {run}, seed {facts['seed']}")
    parts = [part for part in PARTS if not arguments.only or part.name in arguments.only]
    rows = [_done(session, part, parts[number + 1 :], results, facts) for number, part in enumerate(parts)]
    (arguments.output / _EVENTS).unlink(missing_ok=True)  # all of it is in the results
    summary = {
        "device": device["name"],
        "run": run,
        "seed": facts["seed"],
        "results": str(results.path),
        "parts": rows,
        "calls": results.rows("calls", run),
        "counters": results.rows("counters", run),
    }
    tell(json.dumps(summary, indent=1) if arguments.json else report(summary))
    bad = any(row["wrong"] or any(row["counts"].get(verdict) for verdict in BAD) for row in rows)
    return FAILED if bad else OK


def _done(
    session: Session, part: Part, left: list[Part], results: Results, facts: dict[str, Any]
) -> dict[str, Any]:
    """Run one part, and save; returns its row of the table."""
    began = session.clock()
    until = deadline(part, left, began, session.end)
    lacks = [module for module in part.modules if module in facts["missing"]]
    wrong: list[str] = []
    with clocks.sampled() as sample:
        if not lacks:
            _say(f"{part.name}: {part.about}, at most {max(until - began, 0):.0f} s")
            if session.arguments.rehearse:
                part = replace(part, processes=1)
            wrong = session.do(part, until, results, facts)
    seconds = round(session.clock() - began, 1)
    counts = results.counted(part.name, facts["run"])
    number, reasons = results.unmeasured(part.name)
    if lacks:
        number, reasons = -1, [f"missing: {', '.join(lacks)}; --wheels DIR installs from a folder"]
    row = {"part": part.name, "counts": counts, "seconds": seconds, "wrong": wrong, "clocks": sample}
    row |= {"failures": _failures(results, part.name, facts["run"]), "unmeasured": number, "why": reasons}
    stored = {key: row[key] for key in ("part", "counts", "seconds", "clocks", "unmeasured", "why")}
    results.document["runs"][-1].setdefault("parts", []).append(stored)
    results.save()
    _say(f"{part.name}: {words(counts)}, {seconds:.0f} s")
    return row


def _failures(results: Results, part: str, run: int) -> list[str]:
    """The units of a part that failed in a run, with the reasons."""
    entries = results.document["parts"].get(part, {})
    return [
        f"{unit}: {entry['verdict']}: {entry.get('said', '')}"
        for unit, entry in entries.items()
        if entry["run"] == run and entry["verdict"] in BAD
    ]


def report(summary: Mapping[str, Any]) -> str:
    """The table of a run, its failures, and what no run has measured."""
    lines = [f"{'part':<11}{'s':>5}  {'this run':<40}unmeasured"]
    for row in summary["parts"]:
        left = {-1: "all", 0: "-"}.get(row["unmeasured"], str(row["unmeasured"]))
        lines.append(f"{row['part']:<11}{row['seconds']:>5.0f}  {words(row['counts']):<40}{left}")
    lines += [*_rates(summary["calls"]), *_predictions([*summary["calls"], *summary["counters"]])]
    for row in summary["parts"]:
        lines += [f"FAILED  {row['part']}: {text}" for text in (*row["wrong"], *row["failures"])]
    for row in summary["parts"]:
        lines += [f"unmeasured  {row['part']}: {why}" for why in row["why"]]
    if not any(row["clocks"] for row in summary["parts"]):
        lines.append(f"unmeasured  {clocks.MISSING}")
    return "\n".join(
        [*lines, f"run {summary['run']} of {summary['device']}, seed {summary['seed']}: {summary['results']}"]
    )


def _rates(calls: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each unit whose contestants have rates: TFLOP/s, or the part of the copy bandwidth."""
    cells: dict[str, list[str]] = {}
    for row in calls:
        rates = {"TFLOP/s": row.get("tflops"), "% of the copy rate": row.get("of_copy_%")}
        shown = [f"{rate:.4g} {unit}" for unit, rate in rates.items() if rate is not None]
        cells.setdefault(row["unit"], []).append(f"{row['who']} {', '.join(shown) or row.get('ms')}")
    return [f"measured  {unit}: {'; '.join(shown)}" for unit, shown in cells.items()]


def _predictions(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines with the predicted and the measured figures of each row."""
    return [
        f"predicted  {row['unit']}: {name} {ahead:.4g}, measured {row[name]:.4g}"
        for row in rows
        for name, ahead in row.get("predicted", {}).items()
        if isinstance(row.get(name), (int, float)) and isinstance(ahead, (int, float))
    ]


def _listed() -> str:
    """The lines of `--list`: each part and what it needs."""
    lines = []
    for part in PARTS:
        needs = ", ".join((*part.modules, *part.programs))
        lines.append(f"{part.name:<10}{part.about}\n{'':<10}at most {part.seconds:g} s; needs {needs}")
    return "\n".join(lines)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=NAME,
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--minutes", type=positive, default=MINUTES, metavar="M", help=f"for all parts (default: {MINUTES:g})"
    )
    add("--output", type=Path, default=RESULTS, metavar="DIR", help="default: benchmarks/results")
    names = [part.name for part in PARTS]
    add("--only", action="append", choices=names, metavar="PART", help="only this part; repeatable")
    add("--seed", type=whole(0), metavar="N", help="of the draw of tests (default: the number of the run)")
    add("--wheels", type=Path, metavar="DIR", help="install the wheels of this folder for the run")
    add("--json", action="store_true", help="print JSON")
    add("--list", action="store_true", help="print the parts and what each needs; needs no GPU")
    add("--rehearse", action="store_true", help="small problems on a fake driver, without a GPU")
    add("--fault", action="append", default=[], metavar="PART:KIND", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _say(text: str) -> None:
    print(f"{NAME}: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(quietly(main))
