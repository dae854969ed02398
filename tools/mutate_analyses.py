"""Make the analysers wrong in small ways; `python tools/mutate_analyses.py` says who notices.

mutmut 3 is not suitable: it leaves out all that is outside of functions, such as the tables, and
functions with decorators; it takes no sample, and our tests do not pass in the copy that it makes.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

if not __package__:  # run as a script, maybe in a bare checkout
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from ptxgen.interrupts import leave_quietly

    leave_quietly()

import platformdirs

from ptxgen.commands.parts.exits import fail
from ptxgen.commands.parts.files import FileError, why_not_writable, write_file
from ptxgen.commands.parts.numbers import seconds, whole
from ptxgen.commands.parts.progress import Progress, progress
from ptxgen.commands.parts.quiet import quietly
from ptxgen.commands.parts.standard_output import tell
from ptxgen.runtime.private import NotPrivateError, private_folder
from tools.analyses.kinds import KINDS, mutants, sample
from tools.analyses.reasons import Key, reasons, unmatched
from tools.analyses.recording import FIRST, LAST, Judges, TestMap, test_files, worker
from tools.analyses.source import ROOT, Mutant, files, module_name, source_of
from tools.analyses.worker import MARKS, MARKS_OF_SOME, TIME, Job, Outcome

OK, FAILED, USAGE = range(3)

_fail: Final = functools.partial(fail, "mutate_analyses.py", FAILED)

SCHEMA: Final = 1  # of the JSON; raised when a key changes its meaning
_SEED: Final = 4
_COUNT: Final = 600
_BUDGET_S: Final = 20.0
_QUIET_S: Final = 30.0
_SAVED_EVERY_S: Final = 20.0

_TEST, _TIME, _CRASH, _REASON, _SURVIVOR = "test", "time", "crash", "reason", "survivor"
_COLUMNS: Final = {
    _TEST: "a test fails",
    _TIME: "a test takes many times as long as it should",
    _CRASH: "a module cannot be imported, or the process ends",
    _REASON: "nobody notices, and it is argued why no verdict changes",
    _SURVIVOR: "nobody has noticed, and somebody should have",
}

_EPILOG = f"""\
kinds of mistakes:
{chr(10).join(f"  {kind:<12}{meaning}" for kind, meaning in KINDS.items())}

who notices:
{chr(10).join(f"  {column:<12}{meaning}" for column, meaning in _COLUMNS.items())}

examples:
  python tools/mutate_analyses.py                     {_COUNT} mutants of all modules
  python tools/mutate_analyses.py --module ptxgen.check.prove.program.ranges --count 100000
  python tools/mutate_analyses.py --kind comparison --seed 5 --jobs 1
  python tools/mutate_analyses.py --output benchmarks/results/analysis-mutations.json
  python tools/mutate_analyses.py --update --output benchmarks/results/analysis-mutations.json
  python tools/mutate_analyses.py --module ptxgen.check.flow --tests tests/check/test_flow.py
  python tools/mutate_analyses.py --survivors --update --budget 200 \\
      --output benchmarks/results/analysis-mutations.json

exit codes:
  0  every mutant is noticed, or there is a reason in tools/analyses/reasons.toml
  1  a survivor without a reason, a reason without a mutant, a file that cannot be read or written,
     or not all is judged yet
  2  wrong usage

The same arguments choose the same mutants each time, and a larger --count has all those of a
smaller one. Tests judge that enter the mutant's block of statements, the quickest first. Which do
is recorded once, and again for files of tests that have changed. Needs a system that can fork.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the campaign and print its tables; the exit codes are in `--help`.

    Raises SystemExit, as argparse does, with 2 for wrong arguments and 0 after `--help`.
    """
    arguments = _arguments(argv)
    if arguments.output is not None and (why := why_not_writable(arguments.output)):
        return _fail(f"cannot write {arguments.output}: {why}")
    try:
        known = reasons()
        recorded = _known_rows(arguments)
    except (OSError, ValueError) as error:
        return _fail(str(error))
    gone = unmatched(known)
    if gone:
        return _fail(f"a reason is about no mutant: {', '.join(gone[0])}")
    chosen = sample(arguments.files, arguments.count, arguments.seed, arguments.kind)
    rows = _valid(recorded)
    if arguments.survivors:
        of_modules = (m for m in rows if m.file in arguments.files and m.kind in arguments.kind)
        wanted = [m for m in of_modules if not rows[m]["caught_by"] and m.key not in known]
    else:
        wanted = [m for m in chosen if m not in rows]
    every = _in_order({*chosen, *rows})
    try:
        _campaign(arguments, wanted, rows)
        campaign = document(every, rows, known)
        text = json.dumps(campaign, indent=1) + "\n"
    except (OSError, ValueError, RuntimeError, NotPrivateError) as error:
        return _fail(str(error))
    if arguments.output is not None:
        try:
            write_file(arguments.output, text)
        except FileError as error:
            tell(text, end="")
            return _fail(f"{error}; the result is on standard output")
    tell(text if arguments.json else report(campaign), end="")
    counts = campaign["counts"]
    return FAILED if counts[_SURVIVOR] or counts["judged"] < len(every) else OK


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="mutate_analyses.py",
        description="Make the analysers wrong in small ways and see what no test notices.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    by_name = {module_name(file): file for file in files()}
    add = parser.add_argument
    add("--module", action="append", metavar="NAME", help="only this one; repeatable")
    add("--kind", action="append", choices=list(KINDS), help="only this kind; repeatable")
    add("--count", type=whole(1), default=_COUNT, metavar="N", help=f"mutants (default {_COUNT})")
    add("--seed", type=int, default=_SEED, metavar="N", help=f"of the choice (default {_SEED})")
    add("--jobs", type=whole(1), default=os.cpu_count() or 1, metavar="N", help="processes")
    add(
        "--budget",
        type=seconds,
        default=_BUDGET_S,
        metavar="S",
        help=f"seconds of tests for one mutant, by the recording (default {_BUDGET_S:g})",
    )
    add(
        "--stop-after",
        type=seconds,
        metavar="S",
        help="end after so many seconds with what is judged; go on with --update",
    )
    add(
        "--tests",
        action="append",
        metavar="PATH",
        help="only tests of this file or folder judge, slow ones too; repeatable",
    )
    add("--map", type=Path, metavar="FILE", help="where the recording is (default: the cache)")
    add("--json", action="store_true", help="print JSON")
    add("--output", type=Path, metavar="FILE", help="write the JSON there, in one step")
    add("--update", action="store_true", help="keep what FILE says of functions as they are now")
    add("--survivors", action="store_true", help="judge those of FILE again; with --update")
    arguments = parser.parse_args(argv)
    if not hasattr(os, "fork"):
        parser.error("needs a system that can fork")
    if arguments.update and arguments.output is None:
        parser.error("--update needs --output, the file to update")
    if arguments.survivors and not arguments.update:
        parser.error("--survivors goes with --update")
    unknown = set(arguments.module or ()) - set(by_name)
    if unknown:
        parser.error(f"there is no module {min(unknown)}; there are {', '.join(by_name)}")
    for path in arguments.tests or ():
        if not (ROOT / path).exists():
            parser.error(f"there are no tests {path} in the checkout")
    wanted = set(arguments.module or by_name)
    arguments.files = [file for name, file in by_name.items() if name in wanted]
    arguments.kind = arguments.kind or list(KINDS)
    return arguments


# ------------------------------------------------------------------------------------- the campaign

_Rows = dict[Mutant, dict[str, Any]]


def _campaign(arguments: argparse.Namespace, wanted: Sequence[Mutant], rows: _Rows) -> None:
    """Judge mutants, as many as the time allows, and put the results into `rows`."""
    end = time.monotonic() + (arguments.stop_after or float("inf"))
    if not wanted:
        return
    judges = Judges((*FIRST, *LAST), MARKS)
    name = "analysis-mutations.npz"
    if arguments.tests:
        judges = Judges(tuple(arguments.tests), MARKS_OF_SOME)
        name = "analysis-mutations-of-some.npz"
    # It names tests, which are run.
    path = arguments.map or private_folder(platformdirs.user_cache_path("ptxgen")) / name
    tests = _recorded(path, judges, end)
    if tests is None:
        return
    within = test_files(judges.paths)
    jobs = [
        (m, Job(m.file, m.source, tuple(tests.chosen(m, arguments.budget, within)), tests.runs_at_import(m)))
        for m in wanted
    ]
    with progress(len(jobs), _QUIET_S) as step:
        for mutant, outcome in _outcomes(jobs, judges, arguments.jobs, end, step):
            rows[mutant] = row_of(mutant, outcome)


def _recorded(path: Path, judges: Judges, end: float) -> TestMap | None:
    """The recording, brought up to date; None if there is not enough time."""
    tests = TestMap.load(path) if path.exists() else TestMap()
    stale = tests.stale(judges.paths)
    saved = time.monotonic()
    with progress(len(stale), _QUIET_S) as step:
        for _ in tests.record(judges._replace(paths=tuple(stale)), step):
            if time.monotonic() - saved > _SAVED_EVERY_S or time.monotonic() > end:
                tests.save(path)
                saved = time.monotonic()
            if time.monotonic() > end:
                return None
    if stale:
        tests.save(path)
    return tests


_Pair = tuple[Mutant, Job]
_Done = queue.Queue[tuple[Mutant, Outcome] | BaseException | None]


def _outcomes(
    jobs: Sequence[_Pair], judges: Judges, processes: int, end: float, step: Progress
) -> Iterator[tuple[Mutant, Outcome]]:
    """The outcome of each job that begins before the deadline."""
    todo: queue.Queue[_Pair] = queue.Queue()
    for job in jobs:
        todo.put(job)
    done: _Done = queue.Queue()
    left = min(processes, len(jobs))
    for _ in range(left):
        threading.Thread(target=_work, args=(todo, done, judges, end), daemon=True).start()
    while left:
        result = done.get()
        if isinstance(result, BaseException):
            raise result
        if result is None:
            left -= 1
            continue
        step(f"{result[0].file}: {result[1].caught_by or 'SURVIVES'}")
        yield result


def _work(todo: queue.Queue[_Pair], done: _Done, judges: Judges, end: float) -> None:
    """Let one process judge the mutants of the queue `todo`, until it is empty or the time is over."""
    try:
        with worker("judge", judges) as connection:
            wrong = connection.recv()
            if wrong:
                raise RuntimeError(wrong)
            while time.monotonic() < end and (pair := _next(todo)) is not None:
                connection.send(pair[1])
                done.put((pair[0], connection.recv()))
    except BaseException as error:  # reported where it can be handled
        done.put(error)
    done.put(None)


def _next(todo: queue.Queue[_Pair]) -> _Pair | None:
    try:
        return todo.get_nowait()
    except queue.Empty:
        return None


def row_of(mutant: Mutant, outcome: Outcome) -> dict[str, Any]:
    """The JSON row of a judged mutant."""
    return {
        "file": mutant.file,
        "function": mutant.function,
        "kind": mutant.kind,
        "what": mutant.what,
        "line": mutant.line,
        "before": mutant.before,
        "after": mutant.after,
        "nth": mutant.nth,
        "sha256": source_of(mutant.file).function_hash(mutant.function),
        "caught_by": outcome.caught_by,
        "tests": outcome.run,
    }


# --------------------------------------------------------------------------------- what comes of it


def _known_rows(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of the file to update. Raises `OSError` or `ValueError` if it cannot be read."""
    if not arguments.update or not arguments.output.exists():
        return []
    recorded: Any = json.loads(arguments.output.read_text())
    if not isinstance(recorded, dict) or recorded.get("schema") != SCHEMA:
        raise ValueError(f"cannot update {arguments.output}: it is no campaign of schema {SCHEMA}")
    rows: list[dict[str, Any]] = recorded["mutants"]
    return rows


def _valid(recorded: Sequence[dict[str, Any]]) -> _Rows:
    """The known rows of mutants whose function has not changed since."""
    by_name = {_name(row): row for row in recorded}
    valid: _Rows = {}
    for file in sorted({row["file"] for row in recorded} & set(files())):
        for mutant in mutants(file):
            row = by_name.get(_name(row_of(mutant, Outcome("", 0, 0.0))))
            if row is not None:
                valid[mutant] = {**row, "line": mutant.line}
    return valid


def _in_order(chosen: Collection[Mutant]) -> list[Mutant]:
    """Mutants in the order of the source."""
    of = {mutant.file for mutant in chosen}
    return [m for file in files() if file in of for m in mutants(file) if m in chosen]


def _name(row: Mapping[str, Any]) -> tuple[Any, ...]:
    words = ("file", "function", "kind", "what", "before", "after", "nth", "sha256")
    return tuple(row[word] for word in words)


def document(
    chosen: Sequence[Mutant], rows: Mapping[Mutant, Mapping[str, Any]], known: Mapping[Key, str]
) -> dict[str, Any]:
    """The campaign as plain data for JSON: counts by module, and each mutant that was judged.

    `caught_by` is a test, "time", "import" or "crash"; "" where nobody noticed, with its `reason`.
    """
    judged = [
        {**rows[m], **({"reason": known[m.key]} if _is_argued(m, rows, known) else {})}
        for m in chosen
        if m in rows
    ]
    modules = []
    for file in dict.fromkeys(m.file for m in chosen):
        mine = [row for row in judged if row["file"] == file]
        modules.append({"name": module_name(file), "mutants": len(mutants(file)), **_counts(mine)})
    return {
        "schema": SCHEMA,
        "chosen": len(chosen),
        "counts": {"mutants": sum(m["mutants"] for m in modules), **_counts(judged)},
        "modules": modules,
        "mutants": judged,
    }


def _is_argued(mutant: Mutant, rows: Mapping[Mutant, Mapping[str, Any]], known: Mapping[Key, str]) -> bool:
    return not rows[mutant]["caught_by"] and mutant.key in known


def _catcher(row: Mapping[str, Any]) -> str:
    caught_by = row["caught_by"]
    if not caught_by:
        return _REASON if "reason" in row else _SURVIVOR
    return _TIME if caught_by == TIME else _TEST if "::" in caught_by else _CRASH


def _counts(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    count = Counter(_catcher(row) for row in rows)
    return {"judged": len(rows), **{column: count[column] for column in _COLUMNS}}


def report(campaign: Mapping[str, Any]) -> str:
    """The table by module, the reasons and the survivors, for a reader."""
    columns = ("mutants", "judged", *_COLUMNS)
    lines = [f"{'':<38}" + "".join(f"{column:>10}" for column in columns)]
    for row in (*campaign["modules"], {"name": "all", **campaign["counts"]}):
        cells = "".join(f"{row[column] or '':>10}" for column in columns)
        lines.append(f"{row['name']:<38}{cells}".rstrip())
    lines += [
        f"\n{row['file']}:{row['line']}, in {row['function']}: {row['kind']}, {row['what']}; "
        f"{row['tests']} tests pass\n  before  {row['before']}\n  after   {row['after']}"
        for row in campaign["mutants"]
        if _catcher(row) == _SURVIVOR
    ]
    counts = campaign["counts"]
    caught = counts[_TEST] + counts[_TIME] + counts[_CRASH]
    lines.append(
        f"\n{counts['judged']} of {campaign['chosen']} mutants judged: {caught} are caught, "
        f"{counts[_REASON]} change no verdict, {counts[_SURVIVOR]} survive\n"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(quietly(main))
