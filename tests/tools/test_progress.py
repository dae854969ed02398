from __future__ import annotations

import pytest

from tools.commands import progress as tool


def test_every_job_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with tool.progress(2) as begin:
        begin("one")
        begin("two")
    assert capsys.readouterr().err == "[1/2] one\n[2/2] two\n"


def test_lines_that_follow_too_soon_are_left_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([100.0, 101.9, 102.0, 103.9, 104.5])
    now = 0.0
    monkeypatch.setattr(tool.time, "monotonic", lambda: now)
    with tool.progress(5, quiet_s=2.0) as begin:
        for label in "abcde":
            now = next(times)
            begin(label)
    assert capsys.readouterr().err == "[1/5] a\n[3/5] c\n[5/5] e\n"
