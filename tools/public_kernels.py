"""Run public kernels on the interpreter, compare their results with PyTorch and numpy, and count verdicts."""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

if not __package__:  # run as a script, maybe in a bare checkout
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ptxgen.commands.parts.exits import FAILED, OK, fail
from ptxgen.commands.parts.progress import progress
from ptxgen.commands.parts.quiet import quietly
from ptxgen.commands.parts.standard_output import tell
from tools.public.rows import FOLDER, VERDICTS, Row
from tools.public.table import ROWS, SOURCES, packages

NAME: Final = "public_kernels.py"
SCHEMA: Final = 1  # of the JSON; raised when a key changes its meaning
_SHOWN: Final = 3  # sentences about an unexpected verdict
_fail: Final = functools.partial(fail, NAME, FAILED)

_EPILOG = f"""\
verdicts:
{chr(10).join(f"  {kind:<10}{meaning}" for kind, meaning in VERDICTS.items())}

examples:
  python tools/public_kernels.py
  {FOLDER}=~/sources python tools/public_kernels.py --source llm.c --json

exit codes:
  0  every verdict is the expected one; what could not run is named
  1  another verdict, or nothing could run
  2  wrong usage

{FOLDER} names a folder with checkouts, which are not part of this project: {
    ", ".join(source.checkout for source in SOURCES if source.checkout)
}. Packages are installed by make public.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the kernels and print the table; the exit codes are in `--help`.

    Raises SystemExit, as argparse does, with 2 for wrong arguments and 0 after `--help`.
    """
    arguments = _arguments(argv)
    if arguments.packages:
        tell("\n".join(packages()))
        return OK
    wanted = [s for s in SOURCES if not arguments.source or s.name in arguments.source]
    missing = {source.name: why for source in wanted if (why := source.why_missing())}
    rows = [r for r in ROWS if r.source in wanted and r.source.name not in missing]
    rows = [row for row in rows if not arguments.kernel or row.name in arguments.kernel]
    if not rows:
        return _fail("; ".join(missing.values()) or f"there is no kernel {', '.join(arguments.kernel)}")
    result = document(list(_judged(rows)), missing)
    tell(json.dumps(result, indent=1) if arguments.json else report(result))
    return FAILED if not all(row["as_expected"] for row in result["kernels"]) else OK


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=NAME,
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    names = [source.name for source in SOURCES]
    add("--source", action="append", choices=names, metavar="NAME", help="only this one; repeatable")
    add("--kernel", action="append", metavar="NAME", help="only this one; repeatable")
    add("--json", action="store_true", help="print JSON")
    add("--packages", action="store_true", help="print what make public installs, and stop")
    return parser.parse_args(argv)


def _judged(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """The verdict on each row, as plain data for JSON."""
    with progress(len(rows)) as step:
        for row in rows:
            step(f"{row.source.name}: {row.name}")
            began = time.monotonic()
            verdict = row.judge()
            yield {
                "source": row.source.name,
                "kernel": row.name,
                "about": row.about,
                "twin": row.twin,
                "verdict": verdict.kind,
                "expected": row.expected,
                "as_expected": row.is_expected(verdict),
                "reason": row.reason,
                "details": list(verdict.details),
                "seconds": round(time.monotonic() - began, 1),
            }


def document(kernels: Sequence[dict[str, Any]], missing: dict[str, str]) -> dict[str, Any]:
    """The verdicts as plain data for JSON. `counts` leaves out the kernels that are made wrong on purpose
    (`twin`), `missing` says why sources could not run.
    """
    counts = Counter(row["verdict"] for row in kernels if not row["twin"])
    return {
        "schema": SCHEMA,
        "counts": {kind: counts[kind] for kind in VERDICTS},
        "kernels": list(kernels),
        "missing": missing,
    }


def report(result: dict[str, Any]) -> str:
    """The verdicts as a table, and the unexpected ones with their sentences."""
    lines = []
    for row in result["kernels"]:
        unexpected = not row["as_expected"]
        why = f"expected {row['expected']}" if unexpected else row["reason"]
        lines.append(f"{row['source']:<24}{row['kernel']:<42}{row['verdict']:<10}{why}".rstrip())
        lines += [f"    {detail}" for detail in row["details"][:_SHOWN] if unexpected]
    lines += [f"not run: {why}" for why in result["missing"].values()]
    twins = [row for row in result["kernels"] if row["twin"]]
    counted = ", ".join(f"{count} {kind}" for kind, count in result["counts"].items() if count)
    caught = sum(row["as_expected"] for row in twins)
    lines.append(f"{counted or 'none'}; made wrong on purpose {len(twins)}, reported {caught}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(quietly(main))
