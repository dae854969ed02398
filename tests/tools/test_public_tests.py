"""The command that runs a drawn sample of public tests, and how it counts them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import public_tests as tool
from tools.public.suites import SUITES, THEIRS, Explained, Suite

TESTS = """
import pytest, torch
def test_right(): assert torch.zeros(2, device="cuda").is_cuda
def test_that_skips_itself(): pytest.skip("not on this GPU")
def test_known(): assert 1 == 2
def test_unknown(): assert 1 == 3
def test_refused(): torch.cuda.memory_summary()
@pytest.mark.parametrize("n", range(40))
def test_many(n): assert torch.rand(1) < 1
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with sources, and a suite of its tests."""
    pytest.importorskip("torch")
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "test_small.py").write_text(TESTS)
    known = Explained("test_known", "1 == 2", THEIRS, "on purpose")
    suite = Suite("Small", "small", ".", ("test_small.py",), "0", (), (known,))
    monkeypatch.setattr(tool, "SUITES", {"small": suite})
    monkeypatch.setenv("PTXGEN_PUBLIC_SOURCES", str(tmp_path))
    return tmp_path


@pytest.mark.slow
def test_each_test_of_a_sample_is_counted_once(small: Path, capfd: pytest.CaptureFixture[str]) -> None:
    asked = ["--suite", "small", "--file", str(small / "runs.jsonl"), "--json"]
    assert tool.main([*asked, "--draw", "20"]) in (0, 1)
    before = json.loads(capfd.readouterr().out)
    assert tool.main([*asked, "--draw", "100"]) == 1
    result = json.loads(capfd.readouterr().out)
    wanted = {"right": 41, "theirs wrong": 1, "not supported": 1, "unexplained": 1}
    assert {kind: n for kind, n in result["counts"].items() if n} == wanted
    assert (before["drawn"], result["drawn"], result["skipped"]) == (20, 45, 1)
    assert len({row["test"] for row in result["not_right"]}) == 3


def test_without_the_sources_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PTXGEN_PUBLIC_SOURCES", raising=False)
    assert tool.main(["--suite", "triton"]) == 1
    assert capsys.readouterr().err == (
        "public_tests.py: error: Triton, test_core.py: PTXGEN_PUBLIC_SOURCES must name a folder with the "
        "checkout triton\n"
    )


def test_every_explanation_says_why_it_counts_as_it_does() -> None:
    for suite in SUITES.values():
        for known in suite.explained:
            assert known.kind in tool.COUNTED
            assert len(known.reason) > 20
