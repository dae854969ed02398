"""Run a drawn sample of a public project's tests, which ask for a GPU, on the interpreter, and count."""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

if not __package__:  # run as a script, maybe in a bare checkout
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ptxgen.commands.parts.exits import FAILED, OK, fail
from ptxgen.commands.parts.quiet import quietly
from ptxgen.commands.parts.standard_output import tell
from tools.public.rows import FOLDER, PACKAGES
from tools.public.suites import COUNTED, SUITES, UNEXPLAINED, Suite

NAME: Final = "public_tests.py"
SCHEMA: Final = 1  # of the JSON; raised when a key changes its meaning
_ROOT: Final = Path(__file__).resolve().parent.parent
_fail: Final = functools.partial(fail, NAME, FAILED)

_EPILOG = f"""\
counted as:
{chr(10).join(f"  {kind:<15}{meaning}" for kind, meaning in COUNTED.items())}

examples:
  {FOLDER}=~/sources python tools/public_tests.py --suite triton --draw 200 --seed 202649
  {FOLDER}=~/sources python tools/public_tests.py --suite triton --target sm_100a --file runs.jsonl

exit codes:
  0  every failure is explained
  1  one is not, or nothing could run
  2  wrong usage

{FOLDER} names a folder with checkouts, which are not part of this project. A sample is drawn with the
seed, and those of one seed begin alike; with --file an interrupted run goes on where it was.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tests and print the counts; the exit codes are in `--help`.

    Raises SystemExit, as argparse does, with 2 for wrong arguments and 0 after `--help`.
    """
    arguments = _arguments(argv)
    suite = SUITES[arguments.suite]
    root = Path(os.environ.get(FOLDER, "")) / suite.checkout / suite.root
    if FOLDER not in os.environ or not root.is_dir():
        return _fail(f"{suite.name}: {FOLDER} must name a folder with the checkout {suite.checkout}")
    with tempfile.TemporaryDirectory() as scratch:
        file = (arguments.file or Path(scratch) / "verdicts.jsonl").resolve()
        ended = _run(suite, root, file, arguments)
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    if not lines:
        return _fail(f"{suite.name}: pytest ran no test (exit code {ended})")
    result = document(suite, arguments.target, arguments.seed, [json.loads(line) for line in lines])
    tell(json.dumps(result, indent=1) if arguments.json else report(result))
    return FAILED if result["counts"][UNEXPLAINED] else OK


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=NAME,
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--suite", required=True, choices=SUITES, help="whose tests")
    add("--target", default="sm_80", metavar="NAME", help="the GPU (default: sm_80)")
    add("--draw", type=int, default=200, metavar="N", help="tests of the sample (default: 200)")
    add(
        "--seed",
        type=int,
        default=0,
        metavar="SEED",
        help="of the sample, such as the year and week (default: 0)",
    )
    add("--seconds", type=int, default=120, metavar="S", help="stop a test after S seconds (default: 120)")
    add(
        "--sanitize", default="all", metavar="NAMES", help="the sanitizers that watch, or none (default: all)"
    )
    add("--file", type=Path, metavar="FILE", help="store the verdicts, and leave out tests that it has")
    add("--json", action="store_true", help="print JSON")
    return parser.parse_args(argv)


def _run(suite: Suite, root: Path, file: Path, arguments: argparse.Namespace) -> int:
    """Run pytest in the checkout, with its progress on standard error; its exit code."""
    folders = [_ROOT, *(root.joinpath(part) for part in suite.path), PACKAGES]
    before = filter(None, [os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*map(str, folders), *before])}
    command = [sys.executable, "-m", "pytest", "-p", "tools.public.drawn", "-p", "no:cacheprovider", "-q"]
    if "ptxgen.pytest_plugin" not in _plugins():
        command += ["-p", "ptxgen.pytest_plugin"]
    command += ["--tb=no", "-W", "ignore", "--gpu=interpreter", f"--gpu-target={arguments.target}"]
    command += [f"--rootdir={root}"]  # otherwise the path of the file is one of those that it is chosen from
    command += [f"--ptx-sanitize={arguments.sanitize}", f"--drawn={arguments.draw}"]
    command += [f"--drawn-seed={arguments.seed}", f"--drawn-seconds={arguments.seconds}"]
    command += [f"--drawn-file={file}", *suite.files]
    return subprocess.run(command, cwd=root, env=environment, stdout=sys.stderr, check=False).returncode


def _plugins() -> set[str]:
    """The modules that pytest loads by itself, because a package declares them."""
    from importlib.metadata import entry_points

    return {point.value for point in entry_points(group="pytest11")}


def document(suite: Suite, target: str, seed: int, lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The verdicts as plain data for JSON: `counts` by kind, and each test that is not right."""
    kinds = [suite.kind(line["test"], line["verdict"], line["why"]) for line in lines]
    counts = Counter(kinds)
    return {
        "schema": SCHEMA,
        "suite": suite.name,
        "version": suite.version,
        "target": target,
        "seed": seed,
        "drawn": len(lines),
        "skipped": counts[""],
        "launches": sum(line["launches"] for line in lines),
        "counts": {kind: counts[kind] for kind in COUNTED},
        "not_right": [
            {**line, "kind": kind}
            for line, kind in zip(lines, kinds, strict=True)
            if kind and line["verdict"] != "passed"
        ],
    }


def report(result: dict[str, Any]) -> str:
    """The counts, and a line for each test that is not right."""
    lines = [
        f"{row['kind']}: {row['test'].rpartition('::')[2]}: {' '.join(row['why'].split())[:200]}"
        for row in result["not_right"]
    ]
    counted = ", ".join(f"{count} {kind}" for kind, count in result["counts"].items() if count)
    head = f"{result['suite']} ({result['version']}) on {result['target']}, seed {result['seed']}"
    drawn = f"{result['drawn']} drawn, {result['skipped']} skip themselves"
    lines.append(f"{head}: {drawn}; {counted}; {result['launches']} launches")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(quietly(main))
