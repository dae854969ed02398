"""The command line of a script that writes one file of the repository from the repository's code or
records.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

CURRENT, OUTDATED = 0, 1


def write_or_check(
    argv: Sequence[str] | None,
    script: str,
    about: str | None,
    file: Path,
    says: str,
    render: Callable[[], str],
) -> int:
    """Write `render()` to the file and return 0; with `--check` write nothing, and return 1 with a
    message on stderr if the file holds something else. `says` names the text's source with its verb, for the
    message. `--file` names another file.
    """
    parser = argparse.ArgumentParser(prog=script, description=about)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the file is outdated")
    parser.add_argument("--file", type=Path, default=file, help=f"default: {file.parent.name}/{file.name}")
    arguments = parser.parse_args(argv)
    written: Path = arguments.file
    text = render()
    if not arguments.check:
        written.write_text(text, encoding="utf-8")
        return CURRENT
    if written.is_file() and written.read_text(encoding="utf-8") == text:
        return CURRENT
    print(f"{script}: {written} is not what {says}; run python tools/{script}", file=sys.stderr)
    return OUTDATED
