"""The toolkit without the attention package: a copy of `ptxgen`, with its dependencies and nothing else."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import words

from ptxgen.commands.main import TOOLKIT

ROOT = Path(__file__).resolve().parents[2]
PTX = "tests/ptx/nvcc/stencils.sm_80.ptx"
DEPENDENCIES = (
    *("argcomplete", "cuda", "jinja2", "markupsafe", "ml_dtypes", "numpy", "numpy.libs", "platformdirs"),
    *("pygments", "threadpoolctl"),
)
SAXPY = ["--entry", "saxpy", "--block", "128"]
LAUNCH = words("--grid 2 --arg f32:2 --arg random:f32:200 --arg out:y.npy:f32:200 --arg u64:200")
KERNEL = """
import ptxgen as px
from ptxgen import Pointer, f32

@px.kernel(threads=32)
def double(k, X: Pointer[f32]):
    i = k.thread_id()
    X[i] = X[i] * 2.0
"""

# Runs commands in one process, and prints of each the exit code and what it wrote.
RUN = """
import contextlib, importlib.util, io, json, sys
from ptxgen.__main__ import main

assert importlib.util.find_spec("flash") is None
ended = []
for words in json.load(sys.stdin):
    sys.argv[1:] = words
    out, err = io.TextIOWrapper(io.BytesIO(), write_through=True), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main()
        except SystemExit as stopped:
            code = stopped.code
    ended.append([code, out.buffer.getvalue().decode(), err.getvalue()])
json.dump(ended, sys.stdout)
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory beside the only folder of packages of the processes of `run`."""
    top = tmp_path_factory.mktemp("alone")
    for name in ("ptxgen", "templates"):
        shutil.copytree(ROOT / name, top / "site" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in DEPENDENCIES:
        result = importlib.util.find_spec(name.partition(".")[0])
        if result is not None and result.submodule_search_locations:
            folder = Path(next(iter(result.submodule_search_locations))).with_name(name)
            if folder.exists():
                (top / "site" / name).symlink_to(folder)
    if (threadpools := importlib.util.find_spec("threadpoolctl")) and threadpools.origin:
        (top / "site" / "threadpoolctl.py").symlink_to(threadpools.origin)
    work = top / "work"
    work.mkdir()
    shutil.copy(ROOT / PTX, work / "stencils.ptx")
    (work / "kernels.py").write_text(KERNEL)
    return work


def run(alone: Path, *command_lines: list[str]) -> list[tuple[int, str, str]]:
    """The exit codes, standard outputs and errors of command lines."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV_"))}
    environment |= {"PYTHONPATH": str(alone.parent / "site"), "PTXGEN_CACHE_DIR": str(alone.parent / "cache")}
    done = subprocess.run(
        [sys.executable, "-S", "-c", RUN],  # without the packages of this environment
        cwd=alone,
        env=environment,
        input=json.dumps(command_lines),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ended: list[Any] = json.loads(done.stdout)
    return [(code, out, err) for code, out, err in ended]


@pytest.mark.slow
def test_the_toolkit_has_its_commands_and_no_others(alone: Path) -> None:
    (code, listed, said), *helps, emit = run(
        alone, ["--help"], *([name, "--help"] for name in TOOLKIT), ["emit", "--head-dim", "64"]
    )
    assert (code, said) == (0, "")
    rows = listed.partition("exit codes):\n")[2].partition("\n\n")[0].splitlines()
    assert [row.split()[0] for row in rows] == list(TOOLKIT)
    assert "ptxgen emit" not in listed
    for name, (code, shown, said) in zip(TOOLKIT, helps, strict=True):
        assert (code, said) == (0, ""), name
        assert shown.startswith(f"usage: ptxgen {name} "), name
        assert "report attention" not in shown, name
    assert emit == (
        2,
        "",
        "ptxgen: error: no command 'emit' is installed; the commands are check, run, run-program, debug, "
        "report, mutate, cache, completion\n",
    )


def test_the_toolkit_checks_runs_and_reports_on_kernels(alone: Path) -> None:
    checked, listed, launched, page, function, cache, shell = run(
        alone,
        ["check", "stencils.ptx", *SAXPY, "--no-assemble"],
        ["run", "stencils.ptx"],
        ["run", "stencils.ptx", *SAXPY, *LAUNCH, "--sanitize"],
        ["report", "stencils.ptx", *SAXPY, *LAUNCH, "--no-assemble", "-o", "ptx.html"],
        ["report", "kernels.py:double", "--grid", "1", "--arg", "zeros:f32:32", "--no-assemble", "--json"],
        ["cache", "info", "--json"],
        ["completion", "bash"],
    )
    assert (checked[0], checked[2]) == (0, "")
    assert "saxpy" in listed[1]
    assert launched == (0, "", "")
    assert (alone / "y.npy").stat().st_size == 128 + 200 * 4
    assert page[:2] == (0, "saxpy: 0 errors, 0 unproved, 0 lints; written to ptx.html\n")
    assert (alone / "ptx.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert json.loads(function[1])["run"]["clean"]
    targets = json.loads(cache[1])["targets"]
    assert {name: usage["entries"] for name, usage in targets.items()} == {"proofs": 1}  # of the report
    assert "complete" in shell[1]


def test_the_toolkit_mutates_kernels(alone: Path) -> None:
    mutated, function, shipped = run(
        alone,
        ["mutate", "stencils.ptx", *SAXPY, *LAUNCH, "--kind", "mask", "--jobs", "1"],
        ["mutate", "kernels.py:double", "--grid", "1", "--arg", "zeros:f32:32", "--jobs", "1"],
        ["mutate", "--short"],
    )
    assert mutated[0] == 1
    assert mutated[1].splitlines()[-1].startswith("8 mutants, 1 problem, 0 equivalent; ")
    assert (function[0], function[2]) == (
        0,
        "ptxgen mutate: note: no mutation operator of these kinds changes anything in this kernel\n",
    )
    assert shipped == (
        2,
        "",
        "ptxgen mutate: error: without a KERNEL it mutates the kernels that this project ships, which needs "
        "a checkout of it (tools/campaign); give a KERNEL first, such as kernels.py:softmax\n",
    )
