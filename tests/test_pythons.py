"""The supported Pythons that are not the one of the tests, as far as they are here.

`make pythons` brings CPython compiled to WebAssembly, which has no numpy: all files compile there
without a warning, and modules that need no numpy can be imported. With a Python of one's own the tests
run whole: `make distclean test PYTHON=python3.13`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jinja2
import markupsafe
import pytest

ROOT = Path(__file__).parents[1]
PYTHONS = ROOT / ".venv" / "pythons"
VERSIONS = {"3.12": "0.27.7", "3.13": "0.29.5", "3.14": "314.0.7"}  # and the Pyodide that has it

pytestmark = pytest.mark.nightly


def probed(version: str, tmp_path: Path) -> dict[str, Any]:
    """What tests/pythons/probe.py finds in a version of Python."""
    folder = PYTHONS / version / "node_modules" / "pyodide"
    node = shutil.which("node")
    if node is None or not folder.exists():
        pytest.skip(f"Python {version} in WebAssembly needs node, npm and make pythons")
    for package in (jinja2, markupsafe):
        source = Path(package.__file__).parent
        shutil.copytree(
            source, tmp_path / package.__name__, ignore=shutil.ignore_patterns("*.so", "__pycache__")
        )
    script = ROOT / "tests" / "pythons" / "run.mjs"
    done = subprocess.run([node, script, folder, ROOT, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("version", VERSIONS)
def test_another_python_reads_all_files_and_imports_what_needs_no_numpy(version: str, tmp_path: Path) -> None:
    result = probed(version, tmp_path)
    assert ".".join(map(str, result["version"])) == version
    assert result["failures"] == []
    folders = ("ptxgen", "flash", "tools", "tests", "benchmarks")
    assert result["compiled"] == sum(len(list((ROOT / folder).rglob("*.py"))) for folder in folders)
    assert {"flash", "ptxgen.commands.main", "ptxgen", "ptxgen.errors", "ptxgen.ir"} <= set(
        result["imported"]
    )


def test_these_are_the_versions_that_the_package_says_it_supports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [words.rpartition(" :: ")[2] for words in project["classifiers"] if ":: Python :: 3." in words]
    assert named == ["3.11", *VERSIONS]
    assert project["requires-python"] == f">={named[0]}"
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in named
