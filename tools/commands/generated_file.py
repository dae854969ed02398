"""The command line of a script that writes files of the repository from the repository's code or records."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
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
    return write_or_check_each(argv, script, about, {file: render}, says)


def write_or_check_each(
    argv: Sequence[str] | None,
    script: str,
    about: str | None,
    files: Mapping[Path, Callable[[], str]],
    says: str,
) -> int:
    """Write or check several files, as `write_or_check` does one, with the function that renders each. With
    `--file` the one with that path's name is written there, or compared with it, and no other.
    """
    parser = argparse.ArgumentParser(prog=script, description=about)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is outdated")
    names = " and ".join(f"{file.parent.name}/{file.name}" for file in files)
    parser.add_argument("--file", type=Path, help=f"default: {names}")
    arguments = parser.parse_args(argv)
    if arguments.file is not None:
        of_name = {file.name: render for file, render in files.items()}
        name = arguments.file.name if len(files) > 1 else next(iter(of_name))
        if name not in of_name:
            parser.error(f"--file must name one of {', '.join(of_name)}, in any folder, got {arguments.file}")
        files = {arguments.file: of_name[name]}
    return max([_write_or_check(arguments.check, script, *one, says) for one in files.items()])


def _write_or_check(check: bool, script: str, file: Path, render: Callable[[], str], says: str) -> int:
    """Write or check one file, and return the exit status."""
    text = render()
    if not check:
        file.write_text(text, encoding="utf-8")
        return CURRENT
    if file.is_file() and file.read_text(encoding="utf-8") == text:
        return CURRENT
    print(f"{script}: {file} is not what {says}; run python tools/{script}", file=sys.stderr)
    return OUTDATED
