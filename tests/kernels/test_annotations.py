"""A type checker reads the annotations of a user's kernel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

USERS = """
import ptxgen as px
from ptxgen import KernelBuilder, Pointer, Value, f32, u32

@px.kernel(threads=128)
def scale(k: KernelBuilder, X: Pointer[f32], n: u32, factor: f32, *, times: int = 1) -> None:
    i = k.block_id() * 128 + k.thread_id()
    total = k.var(f32, 0)
    with k.when(i < n):
        a, b = X.vec(2)[i]
        product: Value = a * b * factor
        total.set(product)
        X[i] = k.cvt(i, dtype=f32, rnd="rn") + total
    tile = k.shared("tile", (1, 2), f32)
"""


@pytest.mark.slow
def test_mypy_accepts_a_typed_kernel_and_refuses_a_wrong_one(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(USERS)
    (tmp_path / "wrong.py").write_text(USERS.replace("total.set(product)", "total.add(product)"))
    result = subprocess.run(
        [sys.executable, "-m", "mypy", tmp_path / "right.py", tmp_path / "wrong.py"],
        cwd=Path(__file__).parents[2],  # with its settings, which are strict, and what it knows already
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line.rpartition("/")[2] for line in result.stdout.splitlines() if "error:" in line]
    assert errors == ['wrong.py:12: error: "Var" has no attribute "add"  [attr-defined]'], result.stderr
