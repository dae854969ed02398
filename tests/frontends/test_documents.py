"""The files of docs/other-languages.md, written to a folder and run by pytest, as a reader would."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "other-languages.md"
# Each begins with a comment that is the file's name.
_FILE = re.compile(r"^```(?:python|cuda)\n(?:#|//) (\w+\.\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.slow


def files() -> dict[str, str]:
    return {name: f"# {name}\n{text}" if name.endswith(".py") else f"// {name}\n{text}"
            for name, text in _FILE.findall(PAGE.read_text())}  # fmt: skip


@pytest.mark.usefixtures("nvrtc", "triton", "numba", "cute")
def test_the_examples_run(tmp_path: Path) -> None:
    # In a process of its own: compilers do not bear to be imported twice.
    for name, text in files().items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "ptxgen.pytest_plugin", "-p", "no:cacheprovider",
               "-rA", "--ptx-schedules=2"]  # fmt: skip
    path = {"PYTHONPATH": f"{ROOT}:{tmp_path}", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    run = subprocess.run(command, cwd=tmp_path, env=path, capture_output=True, text=True, check=False)
    assert "11 passed" in run.stdout.splitlines()[-1], run.stdout + run.stderr
    assert "clamp        1 run" in run.stdout


def test_the_page_has_each_file_once() -> None:
    names = [name for name, _ in _FILE.findall(PAGE.read_text())]
    assert len(names) == len(set(names)) == 10
