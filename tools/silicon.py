"""Show the ledger of texts that ran on a GPU, add runs to it, and list shipped kernels that never ran."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

if not __package__:  # run as a script, maybe in a bare checkout
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from flash.silicon.ledger import LEDGER, Entry, Ledger, LedgerError, merge, read, write
from ptxgen.commands.parts.exits import FAILED, OK, fail
from ptxgen.commands.parts.progress import progress
from ptxgen.commands.parts.quiet import quietly
from ptxgen.commands.parts.standard_output import tell
from tools.commands.shipped_kernels import TARGETS, shipped
from tools.commands.silicon_runs import entries_of, read_runs

NAME: Final = "silicon.py"
SCHEMA: Final = 1  # of the JSON; raised when a key changes its meaning
_SHOWN_DIGITS: Final = 12  # hexadecimal digits of a text's key

_EPILOG = """\
examples:
  pytest --on-gpu --ledger runs.jsonl -m judged tests/flash/hopper; python tools/silicon.py --merge runs.jsonl
  python tools/silicon.py --list
  python tools/silicon.py --missing --target sm_90a --json

Of two entries of a text and a device the later one stays; but "ran" replaces no other verdict, and "wrong"
stays until the test that failed passes. --missing lists the kernels of calls with default settings whose
text, as it is emitted now, is in the ledger for no device.

exit codes:
  0  done
  1  a file cannot be read or written, or is malformed; the ledger is as it was
  2  wrong usage
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the arguments ask for; the exit codes are in `--help`.

    Raises SystemExit, as argparse does, with 2 for wrong arguments and 0 after `--help`.
    """
    arguments = _arguments(argv)
    try:
        known = read(arguments.ledger)
        if arguments.merge:
            result = _merged(known, arguments.merge, arguments.ledger)
        elif arguments.list:
            result = _listed(known)
        else:
            result = _missing(known, arguments.target or TARGETS)
    except (OSError, LedgerError) as error:
        return fail(NAME, FAILED, str(error))
    tell(json.dumps({"schema": SCHEMA, **result[0]}, indent=1) if arguments.json else "\n".join(result[1]))
    return OK


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=NAME,
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    do = parser.add_mutually_exclusive_group(required=True)
    do.add_argument("--merge", nargs="+", type=Path, metavar="FILE", help="add runs of pytest --ledger FILE")
    do.add_argument("--list", action="store_true", help="print the entries")
    do.add_argument("--missing", action="store_true", help="print shipped kernels whose text never ran")
    add("--target", action="append", choices=TARGETS, metavar="NAME", help="of --missing; repeatable")
    add("--ledger", type=Path, default=LEDGER, metavar="FILE", help="another ledger than the package's")
    add("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(argv)
    if arguments.target and not arguments.missing:
        parser.error("--target is for --missing")
    return arguments


_Output = tuple[dict[str, Any], list[str]]  # for JSON, and lines


def _merged(known: Sequence[Entry], files: Sequence[Path], ledger: Path) -> _Output:
    """Merge the entries of some files into the ledger; how many were new and how many changed."""
    for file in files:
        if not file.is_file():
            raise LedgerError(f"{file}: there is no such file")
    new = [entry for file in files for entry in entries_of(read_runs(file))]
    merged = merge(known, new)
    write(merged, ledger)
    counts = {"runs": len(new), "changed": len(set(merged) - set(known)), "entries": len(merged)}
    return counts, [f"{counts['changed']} entries are new or changed, {counts['entries']} in all"]


def _listed(known: Sequence[Entry]) -> _Output:
    lines = [
        f"{e.verdict:6} {e.where}, {(e.text or 'text unknown')[:_SHOWN_DIGITS]:12} {e.kernel} ({e.source})"
        for e in known
    ]
    return {"entries": [asdict(entry) for entry in known]}, lines


def _missing(known: Sequence[Entry], targets: Sequence[str]) -> _Output:
    """The shipped kernels whose text is in the ledger for no device."""
    ledger, rows, count = Ledger(known), [], 0
    with progress(len(targets)) as step:
        for target in targets:
            step(target)
            for one in shipped((target,)):
                count += 1
                ran, earlier = ledger.of(one.words, one.text)
                if not ran:
                    where = sorted({entry.where for entry in earlier})
                    rows.append({"family": one.family, "kernel": one.words, "an earlier text ran on": where})
    lines = [
        f"{row['kernel']}{'; an earlier text ran on ' if row['an earlier text ran on'] else ''}"
        f"{', '.join(row['an earlier text ran on'])}"
        for row in rows
    ]
    return {"shipped": count, "missing": rows}, [*lines, f"{len(rows)} of {count} texts never ran on a GPU"]


if __name__ == "__main__":
    sys.exit(quietly(main))
