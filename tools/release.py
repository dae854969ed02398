"""Build the wheel and the source distribution, install each into new environments, and test them there."""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

if not __package__:  # run as a script, maybe in a bare checkout
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ptxgen import __version__
from ptxgen.commands.parts.exits import FAILED, OK, fail
from ptxgen.commands.parts.progress import progress
from ptxgen.commands.parts.quiet import quietly
from ptxgen.commands.parts.standard_output import tell

NAME: Final = "release.py"
SCHEMA: Final = 1  # of the JSON; raised when a key changes its meaning
ROOT: Final = Path(__file__).resolve().parent.parent
DOCUMENTS: Final = ("README.md", "docs/package.md")  # whose examples run in each environment
_COMMANDS: Final = (
    ("--version",),
    ("emit", "--head-dim", "128", "--dtype", "bf16", "--causal", "-o", "attention.ptx"),
    ("check", "attention.ptx", "--no-assemble"),
    ("demo",),
)
_SHOWN: Final = 2000  # characters of an error
_fail: Final = functools.partial(fail, NAME, FAILED)

_EPILOG = """\
Each Python of the classifiers in pyproject.toml that is on PATH, or that pyenv has, gets an environment for
the wheel and one for the source distribution. In each run ptxgen --version, emit, check and demo, and the
examples of README.md and docs/package.md. Packages come from the index that pip is configured for.

examples:
  python tools/release.py
  python tools/release.py --python ~/.pyenv/versions/3.13.0/bin/python --output dist
  python tools/release.py --json

exit codes:
  0  all tries passed; Pythons that were not tried are named
  1  the version is not that of CHANGELOG.md, a build or a try failed, or there is no Python
  2  wrong usage
"""


@dataclass(frozen=True, slots=True)
class Try:
    """A step in an environment: of the Python `version`, with an `archive` installed. `error` is "" if the
    step passed, else what it printed.
    """

    version: str
    archive: str
    step: str
    error: str


def main(argv: Sequence[str] | None = None) -> int:
    """Build, install, try, and print a table; the exit codes are in `--help`.

    Raises SystemExit, as argparse does, with 2 for wrong arguments and 0 after `--help`.
    """
    arguments = _arguments(argv)
    released = version_of_changelog((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    if released != __version__:
        released = f"version {released}" if released else "no version and date"
        return _fail(f"CHANGELOG.md begins with {released}, ptxgen.__version__ is {__version__}")
    versions = supported()
    pythons = {_version(path): path for path in arguments.python} if arguments.python else installed(versions)
    if "" in pythons:
        return _fail(f"--python must name an interpreter, {pythons['']} does not run")
    if not pythons:
        return _fail(f"none of Python {', '.join(versions)} is installed; name one by --python")
    with tempfile.TemporaryDirectory() as folder:
        output = (arguments.output or Path(folder, "dist")).absolute()
        if error := _build(output):
            return _fail(f"the build failed:\n{error}")
        names = (f"ptxgen-{__version__}-py3-none-any.whl", f"ptxgen-{__version__}.tar.gz")
        archives = [output / name for name in names]
        tries = []
        with progress(len(pythons) * len(archives)) as step:
            for version, python in pythons.items():
                for archive in archives:
                    step(f"Python {version}, {archive.name}")
                    tries += list(_tried(version, python, archive, Path(folder)))
    missing = [version for version in versions if version not in pythons]
    tell(_json(tries, missing) if arguments.json else _table(tries, missing))
    return FAILED if any(one.error for one in tries) else OK


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=NAME,
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--python", action="append", type=Path, metavar="FILE", help="an interpreter to try; repeatable")
    add("--output", type=Path, metavar="DIR", help="where the archives are left; not left if not given")
    add("--json", action="store_true", help="print JSON")
    return parser.parse_args(argv)


def version_of_changelog(text: str) -> str:
    """The version of the first section of a changelog, such as "0.1.0" of "## 0.1.0 (2026-11-30)"; "" if
    that section has no version and date.
    """
    heading = re.search(r"^## (.*)$", text, re.MULTILINE)
    match = re.fullmatch(r"(\d+\.\d+\.\d+) \(\d{4}-\d\d-\d\d\)", heading[1]) if heading else None
    return match[1] if match else ""


def supported() -> list[str]:
    """The versions of Python in the classifiers, such as "3.11"."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [words.rpartition(" :: ")[2] for words in project["classifiers"]]
    return [name for name in names if re.fullmatch(r"3\.\d+", name)]


def installed(versions: Sequence[str]) -> dict[str, Path]:
    """The interpreters of these versions that are on PATH or in pyenv's folder."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    pythons = {}
    for version in versions:
        on_path = shutil.which(f"python{version}")
        candidates = [*([Path(on_path)] if on_path else []), *sorted(pyenv.glob(f"{version}.*/bin/python"))]
        if works := [path for path in candidates if _version(path) == version]:
            pythons[version] = works[0]
    return pythons


def _version(python: Path) -> str:
    """The version of an interpreter, such as "3.11"; "" if it does not run."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        return subprocess.run(
            [python, "-c", code], capture_output=True, text=True, check=False
        ).stdout.strip()
    except OSError:
        return ""


def _build(output: Path) -> str:
    """Build the source distribution, and from it the wheel; returns the error, or ""."""
    return _run([sys.executable, "-m", "build", "--outdir", output, ROOT], ROOT)


def _tried(version: str, python: Path, archive: Path, folder: Path) -> Iterator[Try]:
    """The steps of an archive in a new environment; they end with the first step of its installation that
    fails.
    """
    home = folder / f"{version}-{archive.suffix[1:]}"
    work = home / "work"
    error = _run([python, "-m", "venv", home], folder)
    run = home / ("Scripts" if os.name == "nt" else "bin") / "python"
    error = error or _run([run, "-m", "pip", "install", "--quiet", archive], folder)
    yield Try(version, archive.name, "install", error)
    if error:
        return
    work.mkdir(parents=True)
    for command in _COMMANDS:
        yield Try(version, archive.name, f"ptxgen {command[0]}", _run([run, "-m", "ptxgen", *command], work))
    for document in DOCUMENTS:
        examples: list[str | Path] = [
            "-m",
            "doctest",
            "-o",
            "ELLIPSIS",
            "-o",
            "NORMALIZE_WHITESPACE",
            ROOT / document,
        ]
        yield Try(version, archive.name, document, _run([run, *examples], work))


def _run(command: Sequence[str | Path], folder: Path) -> str:
    """Run a command in a folder, without this process's search path; returns the end of what it printed if
    it failed.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    piped: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(command, cwd=folder, env=environ, check=False, **piped)
    return (done.stdout[-_SHOWN:].strip() or f"exit code {done.returncode}") if done.returncode else ""


def _json(tries: Sequence[Try], missing: Sequence[str]) -> str:
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "version": __version__,
        "tries": [asdict(one) for one in tries],
        "missing": list(missing),
    }
    return json.dumps(document, indent=1)


def _table(tries: Sequence[Try], missing: Sequence[str]) -> str:
    """A row for each environment, then the errors, then which Pythons were not tried."""
    steps = list(dict.fromkeys(one.step for one in tries))
    rows = {(one.version, one.archive): dict.fromkeys(steps, "") for one in tries}
    for one in tries:
        rows[one.version, one.archive][one.step] = "failed" if one.error else "ok"
    cells = [("Python", "archive", *steps), *((*key, *row.values()) for key, row in rows.items())]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
    lines += [f"\nPython {t.version}, {t.archive}, {t.step}:\n{t.error}" for t in tries if t.error]
    if missing:
        lines.append(f"\nnot tried: Python {', '.join(missing)}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(quietly(main))
