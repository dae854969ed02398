"""Apply every small mistake to the shipped kernels, and report which check catches each:
`ptxgen mutate`.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

from ptxgen.commands.parts.command_line import CommandParser
from ptxgen.commands.parts.exits import FAILED, OK, fail
from ptxgen.commands.parts.files import FileError, why_not_writable, write_file
from ptxgen.commands.parts.mutant_tables import COLUMNS, by_kind, counts, table
from ptxgen.commands.parts.mutant_verdicts import progress, verdicts
from ptxgen.commands.parts.numbers import whole
from ptxgen.commands.parts.standard_output import tell
from ptxgen.errors import PtxGenError
from ptxgen.mutation.journal import Journal
from ptxgen.mutation.judge import CATCHERS, EQUIVALENT, HOLE, Verdict
from ptxgen.mutation.operators import KINDS, OF_HOPPER
from ptxgen.text import render
from tools.campaign.judging import judge, mutants_of, reasons
from tools.campaign.kernels import subjects

NAME: Final = "ptxgen mutate"
_fail: Final = functools.partial(fail, NAME, FAILED)

SCHEMA: Final = 1  # version of the JSON; raised when a key changes its meaning
_SEED: Final = 5  # of the choice of mutants in the short form
_KINDS_OF_A_KERNEL: Final = 3  # of whose kinds the short form has a mutant each

_EPILOG = f"""\
kinds of mistakes:
{chr(10).join(f"  {kind:<16}{meaning}" for kind, meaning in KINDS.items())}

who notices, in the order in which they are asked:
{chr(10).join(f"  {catcher:<16}{meaning}" for catcher, meaning in CATCHERS.items())}
  equivalent      nobody can: proved, or argued, to be right as well
  hole            nobody has, and somebody should have

examples:
  ptxgen mutate --short                      a fixed sample, in a few minutes
  ptxgen mutate --kernel f32-sm_80 --kind barrier --kind copy-wait
  ptxgen mutate --output benchmarks/results/mutations.json
  ptxgen mutate --kernel f32-sm_80 --update --output benchmarks/results/mutations.json
  ptxgen mutate --changed --update --output benchmarks/results/mutations.json --journal /tmp/verdicts
  ptxgen mutate --survivors --update --output benchmarks/results/mutations.json

exit codes:
  0  no hole
  1  a hole, or a kernel that is found wrong without any mistake, or a file that cannot be read or
     written
  2  wrong usage

The same mutants are made and judged in the same order each time; --jobs changes nothing but the
time.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the campaign and print its tables; the exit codes are in `--help`.

    Raises SystemExit, as argparse does, with 2 for wrong arguments and 0 after `--help`.
    """
    arguments = _arguments(argv)
    if arguments.output is not None and (why := why_not_writable(arguments.output)):
        return _fail(f"cannot write {arguments.output}: {why}")
    try:
        recorded = _recorded(arguments)
    except (OSError, ValueError) as error:
        return _fail(f"cannot update {arguments.output}: {error}")
    names = _names(arguments, recorded)
    chosen = {name: _chosen(name, arguments, recorded if arguments.survivors else None) for name in names}
    try:
        verdicts = _judged(chosen, arguments.jobs, arguments.journal)
    except PtxGenError as error:
        return _fail(str(error))
    except (OSError, ValueError) as error:
        return _fail(f"cannot keep {arguments.journal}: {error}")
    campaign = document(verdicts, {name: len(mutants_of(name)) for name in chosen})
    if recorded is not None:
        campaign = amended(recorded, verdicts) if arguments.survivors else joined(recorded, campaign)
    text = json.dumps(campaign, indent=2) + "\n"
    if arguments.output is not None:
        try:
            write_file(arguments.output, text)
        except FileError as error:
            tell(text, end="")
            return _fail(f"{error}; the result is on standard output")
    tell(text if arguments.json else report(verdicts), end="")
    return FAILED if campaign["holes"] else OK


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = CommandParser(
        NAME, "Make the shipped kernels wrong in every small way and see who notices.", _EPILOG
    )
    add = parser.add_argument
    add("--kernel", action="append", choices=list(subjects()), help="only this one; repeatable")
    add("--kind", action="append", choices=list(KINDS), help="only this kind; repeatable")
    add("--short", action="store_true", help="a sample: a mutant of two or three kinds for each kernel")
    add("--jobs", type=whole(1), default=os.cpu_count() or 1, metavar="N", help="processes")
    add("--json", action="store_true", help="print JSON")
    add("--output", type=Path, metavar="FILE", help="write the JSON there, in one step")
    add(
        "--journal",
        type=Path,
        metavar="FILE",
        help="write each verdict there as it comes, and do not judge again what FILE has",
    )
    add("--update", action="store_true", help="keep what FILE says of kernels not judged now")
    add(
        "--survivors",
        action="store_true",
        help="only what FILE calls a hole or equivalent, after a new problem; with --update",
    )
    add(
        "--changed",
        action="store_true",
        help="only kernels that FILE does not have, or has with another text; with --update",
    )
    arguments = parser.parse_args(argv)
    if arguments.update and arguments.output is None:
        parser.error("--update needs --output, the file to update")
    for name in ("survivors", "changed"):
        if getattr(arguments, name) and (not arguments.update or arguments.kind or arguments.short):
            parser.error(f"--{name} goes with --update, and neither with --kind nor with --short")
    if arguments.survivors and arguments.changed:
        parser.error("--survivors and --changed exclude each other")
    if arguments.survivors and arguments.journal is not None:
        parser.error("--survivors judges again what --journal would keep")
    return arguments


# ------------------------------------------------------------------------------------- the campaign


def _names(arguments: argparse.Namespace, recorded: Mapping[str, Any] | None) -> list[str]:
    """The kernels to judge. With `--survivors` or `--changed`, only those that need it by `recorded`."""
    names = list(arguments.kernel or subjects())
    if recorded is not None and arguments.survivors:
        survived = {kernel for kernel, _ in _survivors(recorded)}
        return [name for name in names if name in survived]
    if recorded is not None and arguments.changed:
        known = {kernel["name"]: kernel["sha256"] for kernel in recorded["kernels"]}
        return [name for name in names if known.get(name) != _sha256(name)]
    return names


def _chosen(
    kernel: str, arguments: argparse.Namespace, recorded: Mapping[str, Any] | None = None
) -> list[int]:
    """The indices of the mutants to judge, in order; with `recorded`, only of its survivors."""
    if recorded is not None:
        names = {name for of, name in _survivors(recorded) if of == kernel}
        return [number for number, m in enumerate(mutants_of(kernel)) if m.name in names]
    kinds = arguments.kind or list(KINDS)
    by_kind: dict[str, list[int]] = {kind: [] for kind in kinds}
    for number, mutant in enumerate(mutants_of(kernel)):
        if mutant.kind in by_kind:
            by_kind[mutant.kind].append(number)
    if arguments.short:
        choice = random.Random(f"{_SEED} {kernel}")
        there = [kind for kind, numbers in by_kind.items() if numbers]
        # A mutant that no check catches takes long to judge.
        there = [kind for kind in there if not all(_is_explained(kernel, n) for n in by_kind[kind])] or there
        sampled = subjects()[kernel].sampled
        taken = choice.sample(there, min(sampled or _KINDS_OF_A_KERNEL, len(there)))
        if sampled is None:
            taken += [kind for kind in there if kind in OF_HOPPER and kind not in taken]
        by_kind = {kind: [_one_of(kernel, by_kind[kind], choice)] for kind in taken}
    return sorted(number for numbers in by_kind.values() for number in numbers)


def _one_of(kernel: str, numbers: Sequence[int], choice: random.Random) -> int:
    """One of the mutants `numbers`, if possible one without a reason why it is equivalent."""
    order = choice.sample(numbers, len(numbers))
    return next((n for n in order if not _is_explained(kernel, n)), order[0])


def _is_explained(kernel: str, number: int) -> bool:
    mutant = mutants_of(kernel)[number]
    return any(r.fits(mutant) for r in reasons())


def _judged(chosen: Mapping[str, Sequence[int]], jobs: int, file: Path | None = None) -> list[Verdict]:
    """The verdicts in the order of kernels and mutants; verdicts that the journal `file` has are read from
    it, the others are appended to it.

    Raises `PtxGenError` for an unchanged kernel that is wrong, and `OSError` or `ValueError` for a journal.
    """
    pairs = [(name, number) for name, numbers in chosen.items() for number in numbers]
    judged: dict[tuple[str, int], Verdict] = {}
    hashes = {name: _sha256(name) for name in chosen} if file is not None else {}
    journal = Journal(file) if file is not None else None
    known = journal.read(hashes) if journal is not None else {}
    for name, number in pairs if known else ():
        verdict = known.get((name, mutants_of(name)[number].name))
        if verdict is not None:
            judged[name, number] = verdict
    left = [pair for pair in pairs if pair not in judged]
    with progress(NAME, len(left), "holes") as step:
        for pair, verdict in zip(left, verdicts(judge, left, jobs), strict=True):
            judged[pair] = step(verdict)
            if journal is not None:
                journal.add(verdict, hashes[verdict.kernel])
    return [judged[pair] for pair in pairs]


# --------------------------------------------------------------------------------------- the report


def document(verdicts: Sequence[Verdict], of: Mapping[str, int]) -> dict[str, Any]:
    """The campaign as plain data for JSON; `of` is the number of all mutants of each kernel.

    `share_caught` is the caught share of the mutants that are not equivalent, 1 if there are none.
    """
    kernels = []
    for name, total in of.items():
        mine = [v for v in verdicts if v.kernel == name]
        kernels.append(
            {
                "name": name,
                "entry": subjects()[name].entry,
                "sha256": _sha256(name),
                "mutants": total,
                "judged": len(mine),
                "kinds": {kind: counts(v) for kind, v in by_kind(mine).items()},
            }
        )
    equivalent = _equivalent(verdicts)
    return _document(kernels, equivalent, [_hole(v) for v in verdicts if v.caught_by == HOLE])


def joined(recorded: Mapping[str, Any], campaign: Mapping[str, Any]) -> dict[str, Any]:
    """The two documents joined, in the order of the kernels; a kernel in `campaign` replaces that in
    `recorded`.
    """
    new = {kernel["name"] for kernel in campaign["kernels"]}
    order = {name: i for i, name in enumerate(subjects())}  # without kernels that no longer exist

    def both(key: str, name: str) -> list[Any]:
        old = [row for row in recorded[key] if row[name] in order and row[name] not in new]
        return sorted([*old, *campaign[key]], key=lambda row: order[row[name]])

    return _document(both("kernels", "name"), both("equivalent", "kernel"), both("holes", "kernel"))


def amended(recorded: Mapping[str, Any], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The document `recorded` with new verdicts on its survivors."""
    kernels, again = deepcopy(recorded["kernels"]), {(v.kernel, v.name) for v in verdicts}
    kinds, was = {kernel["name"]: kernel["kinds"] for kernel in kernels}, _survivors(recorded)
    for v in verdicts:
        counts = kinds[v.kernel][v.kind]
        counts[was[v.kernel, v.name]] -= 1
        counts[v.caught_by] += 1
    holes = [hole for hole in recorded["holes"] if (hole["kernel"], hole["name"]) not in again]
    new = [_hole(v) for v in verdicts if v.caught_by == HOLE]
    rest = [
        {**row, "mutants": [m for m in row["mutants"] if (row["kernel"], m) not in again]}
        for row in recorded["equivalent"]
    ]
    order = {kernel: i for i, kernel in enumerate(kinds)}
    return _document(
        kernels,
        _in_one([row for row in (*rest, *_equivalent(verdicts)) if row["mutants"]], order),
        sorted([*holes, *new], key=lambda row: order[row["kernel"]]),
    )


def _survivors(recorded: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """EQUIVALENT or HOLE for each mutant that no check caught, by kernel and name of the mutant."""
    survivors = {(row["kernel"], m): EQUIVALENT for row in recorded["equivalent"] for m in row["mutants"]}
    return survivors | {(hole["kernel"], hole["name"]): HOLE for hole in recorded["holes"]}


def _in_one(rows: Sequence[Mapping[str, Any]], order: Mapping[str, int]) -> list[Any]:
    """The rows of equivalent mutants, one for each kernel and reason."""
    merged: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        merged.setdefault((row["kernel"], row["reason"]), []).extend(row["mutants"])
    of_kernels = sorted(merged, key=lambda key: order[key[0]])
    return [{"kernel": k, "reason": why, "mutants": merged[k, why]} for k, why in of_kernels]


def _document(
    kernels: Sequence[Mapping[str, Any]], equivalent: list[Any], holes: list[Any]
) -> dict[str, Any]:
    counts = Counter[str]()
    for kernel in kernels:
        for kind in kernel["kinds"].values():
            counts.update(kind)
    columns = {column: counts[column] for column in ("judged", *COLUMNS)}
    return {
        "schema": SCHEMA,
        "kernels": list(kernels),
        "counts": columns,
        "share_caught": _share(columns),
        "equivalent": equivalent,
        "holes": holes,
    }


def _recorded(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """The document to update; None if no update is asked for.

    Raises `OSError` or `ValueError` if it cannot be read, or if the text of a kernel that would be
    kept has changed since it was judged.
    """
    if not arguments.update:
        return None
    recorded: Any = json.loads(arguments.output.read_text())
    if not isinstance(recorded, dict) or recorded.get("schema") != SCHEMA:
        raise ValueError(f"it is no campaign of schema {SCHEMA}")
    others = set(subjects()) - set(() if arguments.survivors else arguments.kernel or subjects())
    kernels = [kernel for kernel in recorded["kernels"] if kernel["name"] in others]
    changed = [k["name"] for k in kernels if k["sha256"] != _sha256(k["name"])]
    if changed:
        more = " ".join(f"--kernel {name}" for name in changed)
        raise ValueError(f"{', '.join(changed)} changed since; judge them, too: {more}")
    return recorded


def _sha256(name: str) -> str:
    """The SHA-256 hash of the text of the kernel `name`."""
    return hashlib.sha256(render(subjects()[name].module).encode()).hexdigest()


def _share(counts: Mapping[str, int]) -> float:
    wrong = counts["judged"] - counts[EQUIVALENT]
    return 1 - counts[HOLE] / wrong if wrong else 1.0


def _equivalent(verdicts: Iterable[Verdict]) -> list[dict[str, Any]]:
    """The reasons why mutants are equivalent, each once, with its mutants."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for v in verdicts:
        if v.caught_by == EQUIVALENT:
            reasons.setdefault((v.kernel, v.what), []).append(v.name)
    return [{"kernel": kernel, "reason": why, "mutants": n} for (kernel, why), n in reasons.items()]


def _hole(v: Verdict) -> dict[str, str]:
    words = ("kernel", "name", "kind", "before", "after", "step", "mark", "where", "what")
    return {word: getattr(v, word) for word in words}


def report(verdicts: Sequence[Verdict]) -> str:
    """The tables, the reasons and the holes, for a reader."""
    names = list(dict.fromkeys(v.kernel for v in verdicts))
    parts = [table(name, [v for v in verdicts if v.kernel == name]) for name in names]
    for known in _equivalent(verdicts):
        count = len(known["mutants"])
        parts.append(
            f"{known['kernel']}: {count} equivalent, {known['reason']}\n"
            + "".join(f"  {name}\n" for name in known["mutants"][:3])
            + (f"  and {count - 3} more\n" if count > 3 else "")
        )
    parts += [
        f"{v.kernel}: hole, {v.name}: {v.what}\n  before  {v.before}\n"
        f"  after   {v.after or '(gone)'}\n  step    {v.step}\n  mark    {v.mark}\n"
        f"  from    {v.where}\n"
        for v in verdicts
        if v.caught_by == HOLE
    ]
    totals = counts(verdicts)
    wrong = totals["judged"] - totals[EQUIVALENT]
    parts.append(
        f"{totals['judged']} mutants, {totals[EQUIVALENT]} equivalent; of the other {wrong}, "
        f"{wrong - totals[HOLE]} are caught ({_share(totals):.2%}), {totals[HOLE]} are holes\n"
    )
    return "\n".join(parts)
