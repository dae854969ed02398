"""The files of docs/other-languages.md and docs/checking.md, run by pytest in a folder, as a reader would."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "other-languages.md"
START = ROOT / "docs" / "checking.md"
# Each begins with a comment that is the file's name.
_FILE = re.compile(r"^```(?:python|cuda)\n(?:#|//) (\w+\.\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.slow


def files(page: Path) -> dict[str, str]:
    return {name: f"# {name}\n{text}" if name.endswith(".py") else f"// {name}\n{text}"
            for name, text in _FILE.findall(page.read_text())}  # fmt: skip


def ran_by_pytest(page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Pytest's run of a page's files, in a new process: compilers do not bear to be imported twice."""
    for name, text in files(page).items():
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "ptxgen.pytest_plugin", "-p", "no:cacheprovider",
               "-rA", "--ptx-schedules=2"]  # fmt: skip
    path = {"PYTHONPATH": f"{ROOT}:{folder}", "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    return subprocess.run(command, cwd=folder, env=path, capture_output=True, text=True, check=False)


@pytest.mark.usefixtures("nvrtc", "triton", "numba", "cute")
def test_the_examples_run(tmp_path: Path) -> None:
    run = ran_by_pytest(PAGE, tmp_path)
    assert "11 passed" in run.stdout.splitlines()[-1], run.stdout + run.stderr
    assert "clamp        1 run" in run.stdout


@pytest.mark.usefixtures("nvrtc")
def test_the_test_of_the_start_page_passes_and_notices_a_missing_bound(tmp_path: Path) -> None:
    assert "1 passed" in ran_by_pytest(START, tmp_path).stdout
    path = tmp_path / "test_saxpy.py"
    broken = path.read_text().replace("if (i < n) y[i]", "y[i]")
    wrong = tmp_path / "broken.md"
    wrong.write_text("```python\n" + broken + "```\n")
    run = ran_by_pytest(wrong, tmp_path)
    assert "1 failed" in run.stdout.splitlines()[-1], run.stdout + run.stderr
    assert "0 bytes after the end of x" in run.stdout


def test_the_page_has_each_file_once() -> None:
    names = [name for name, _ in _FILE.findall(PAGE.read_text())]
    assert len(names) == len(set(names)) == 10
