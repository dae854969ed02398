"""docs/embedding.md, followed literally: its files are written, and its commands run without a GPU."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from host_programs import Hosts
from judge import assert_attention_is_accurate

from ptxgen.program import run

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "embedding.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    return [text for tag, text in BLOCK.findall(PAGE.read_text()) if tag == language]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cc: Hosts) -> Path:
    """A folder with the page's files, in which its commands work as in a checkout."""
    for text in blocks("c"):
        (name,) = re.findall(r"^/\* (\w+\.c) \*/$", text, re.MULTILINE)
        (tmp_path / name).write_text(text)
    (tmp_path / "tools").symlink_to(ROOT / "tools")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "bin" / "python").chmod(0o755)
    for name, value in cc.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def follow(commands: list[str], folder: Path) -> None:
    """Run commands in a shell, whose programs find a device."""
    (folder / "script").write_text("set -e\n" + "\n".join(commands))
    ended = run(["sh", "script"], sanitize=True)
    assert (ended.code, ended.stopped, ended.reports, ended.faults) == (0, "", (), ())
    assert ended.launches


@pytest.mark.slow
def test_the_programs_in_c_find_their_results_right(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    follow([text for text in blocks("sh") if "rustc" not in text], folder)
    assert capfd.readouterr().out == "1600 rows are right\n" * 3
    written = sorted(path.stem for path in folder.glob("*.ptx"))
    of_gradients = ["keys", "queries", "sum", "training"]
    assert written == sorted(["append", "attention", "decode", "merge", "token", *of_gradients])


@pytest.mark.slow
def test_the_program_in_rust_computes_attention(
    folder: Path,
    rustc: Hosts,  # noqa: ARG001
) -> None:
    follow([text for text in blocks("sh") if "rustc" in text], folder)
    q, o = (np.fromfile(folder / name, np.float16).reshape(1, 4, 100, 64) for name in ("q.bin", "o.bin"))
    assert_attention_is_accurate(o, None, q, q, q, softmax_scale=0.125)
