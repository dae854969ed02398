"""Hold two type checkers to `right.py` and `wrong.py`: `python tests/typing/check.py`.

mypy --strict and pyright (as basedpyright, whose package has what it needs) must find nothing in the first,
and in the second something at each line that says `# wrong`, and at no other. Exit code 1 if they do not.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parent
ROOT: Final = FOLDER.parents[1]
PROGRAMS: Final = ("right.py", "wrong.py")
_NO_FAILURE: Final = (0, 1)  # exit codes of a checker that ran: nothing found, errors found
Place = tuple[str, int]


def marked() -> set[Place]:
    """The lines that are wrong."""
    return {
        (name, number)
        for name in PROGRAMS
        for number, line in enumerate((FOLDER / name).read_text().splitlines(), start=1)
        if line.endswith("# wrong")
    }


def by_mypy() -> dict[Place, str]:
    """What mypy finds, by line."""
    command = ["mypy", "--strict", "--no-error-summary", "--no-pretty", "--show-error-codes"]
    said = _output([sys.executable, "-m", *command, *(str(FOLDER / name) for name in PROGRAMS)])
    result = re.findall(r"^(?:.*[/\\])?(\w+\.py):(\d+): error: (.*)$", said, re.MULTILINE)
    return {(name, int(line)): text for name, line, text in result}


def by_pyright() -> dict[Place, str]:
    """What pyright finds in its standard mode, by line."""
    settings = {
        "include": [str(FOLDER / name) for name in PROGRAMS],
        "extraPaths": [str(ROOT)],
        "typeCheckingMode": "standard",
        "pythonVersion": "3.11",
        "reportUnusedExpression": False,
        "reportMissingImports": False,  # of frameworks, which are optional
    }
    project = ROOT / ".mypy_cache" / "pyright.json"
    project.parent.mkdir(exist_ok=True)
    project.write_text(json.dumps(settings))
    command = ["basedpyright", "--outputjson", "--project", str(project), "--pythonpath", sys.executable]
    said = json.loads(_output([sys.executable, "-m", *command]))
    return {
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1): each["message"].splitlines()[0]
        for each in said["generalDiagnostics"]
        if each["severity"] == "error"
    }


def _output(command: list[str]) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode not in _NO_FAILURE:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> int:
    """Run both checkers; 1 if one of them says anything else than the marks."""
    checkers: dict[str, Callable[[], dict[Place, str]]] = {"mypy": by_mypy, "pyright": by_pyright}
    problems = []
    for name, checker in checkers.items():
        result = checker()
        problems += [f"{p[0]}:{p[1]}: {name} finds nothing wrong" for p in sorted(marked() - set(result))]
        problems += [f"{p[0]}:{p[1]}: {name}: {result[p]}" for p in sorted(set(result) - marked())]
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        print(f"{' and '.join(checkers)}: as marked, {len(marked())} wrong lines")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
