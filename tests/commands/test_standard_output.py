"""A reader such as `head` that leaves early is no error of a command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUG = str(ROOT / "tests" / "ptx" / "bugs" / "row_too_many.ptx")


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pipes that end so")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "command",
    [
        ["bench.py", "--list"],
        ["cache.py", "info"],
        ["cache.py", "info", "--json"],
        ["cta_order.py"],
        ["run.py", BUG],
        ["check.py", BUG, "--block", "64"],
        ["check.py", BUG, "--block", "64", "--json"],
        ["emit.py", "--list-targets"],  # less text than a buffer holds
        ["emit.py", "--head-dim", "16", "--tile", "16", "--block-q", "16"],  # more
        pytest.param(["witness.py", "--list"], marks=pytest.mark.nightly),
    ],
    ids=" ".join,
)
def test_a_command_ends_as_it_would_with_a_reader(
    command: list[str], unbuffered: str, tmp_path: Path
) -> None:
    name, *options = command
    argv = [sys.executable, str(ROOT / "tools" / name), *options]
    environment = dict(os.environ, PTXGEN_CACHE_DIR=str(tmp_path), PYTHONUNBUFFERED=unbuffered)
    whole = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
    assert whole.stdout
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as nobody:
        cut = subprocess.run(
            argv, stdout=nobody, stderr=subprocess.PIPE, text=True, check=False, env=environment
        )
    assert (cut.returncode, cut.stderr) == (whole.returncode, whole.stderr)
