from __future__ import annotations

import pytest

from ptxgen.commands.parts import progress as tool


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


def test_ctas_are_counted_once_a_second_and_not_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(tool.time, "monotonic", lambda: now)
    report = tool.cta_lines("ptxgen run: k")
    for seconds, done in ((0.5, 1), (1.0, 2), (1.5, 3), (2.1, 4), (9.0, 5)):
        now = 100.0 + seconds
        report(done, 5)
    assert capsys.readouterr().err == "ptxgen run: k: 2 of 5 CTAs\nptxgen run: k: 4 of 5 CTAs\n"
