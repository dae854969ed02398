"""The scripts of `tools/` that are commands run from any folder, without PYTHONPATH."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import words

ROOT = Path(__file__).resolve().parents[2]
PTX = ROOT / "tests" / "ptx" / "nvcc" / "stencils.sm_80.ptx"
SLOW = pytest.mark.slow
LLAMA = "--hidden 16 --head-dim 8 --intermediate 24 --vocab 40 --prompts 6,1,3 --tokens 7"


@pytest.mark.parametrize(
    ("script", "line", "printed"),
    [
        ("check.py", f"{PTX} --entry saxpy --block 128 --no-assemble", "PTX 9.0 for sm_80\n\nsaxpy\n"),
        pytest.param("run.py", f"{PTX}", "PTX 9.0 for sm_80\n", marks=SLOW),
        pytest.param("emit.py", "--list-targets", "\nsm_80 ", marks=SLOW),
        pytest.param("bench.py", "--list", "emit  ", marks=SLOW),
        pytest.param("tune.py", "--help", "exit codes:\n", marks=SLOW),
        pytest.param("mutate.py", "--help", "exit codes:\n", marks=SLOW),
        pytest.param("llama.py", LLAMA, "\nall checks passed\n", marks=SLOW),
        pytest.param("demo.py", "--head-dim 16 --seq 24 --json", '"passed": true', marks=SLOW),
        pytest.param("report.py", f"{PTX} --entry saxpy --block 128", "<!DOCTYPE html>", marks=SLOW),
    ],
)
def test_a_script_runs_from_any_folder(script: str, line: str, printed: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / script), *words(line)],
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout
    assert list(tmp_path.iterdir()) == []
