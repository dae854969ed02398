"""`tools/blas_kernels.py`: the BLAS kernels that a CPU can be tested with."""

from __future__ import annotations

import subprocess

import pytest

from tools import blas_kernels as tool


def test_kernels_that_the_cpu_has_and_does_not_pick_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = {"": "SkylakeX", "Haswell": "Haswell", "SkylakeX": "SkylakeX", "Prescott": "Katmai"}
    monkeypatch.setattr(tool, "architecture", words.get)
    assert tool.main() == 0
    assert capsys.readouterr() == ("Haswell\nPrescott\n", "")


def test_kernels_that_end_the_process_are_left_out_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = {"": "Zen", "Haswell": "Haswell", "SkylakeX": None, "Prescott": "Katmai"}
    monkeypatch.setattr(tool, "architecture", words.get)
    assert tool.main() == 0
    assert capsys.readouterr() == (
        "Haswell\nPrescott\n",
        "blas_kernels: SkylakeX is left out; this CPU lacks its instructions\n",
    )


def test_another_library_than_openblas_has_no_kernels_to_choose(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool, "architecture", lambda _: "")
    assert tool.main() == 0
    assert capsys.readouterr() == ("", "")


def test_the_word_is_that_of_a_process_that_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def run(command: list[str], *, env: dict[str, str], **_: object) -> object:
        asked.append(env.get("OPENBLAS_CORETYPE"))
        return subprocess.CompletedProcess(command, -4 if len(asked) == 2 else 0, "Zen\n", "")

    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    monkeypatch.setattr(tool.subprocess, "run", run)
    assert [tool.architecture(name) for name in ("", "SkylakeX", "Prescott")] == ["Zen", None, "Zen"]
    assert asked == [None, "SkylakeX", "Prescott"]


def test_this_cpu_has_a_kernel() -> None:
    assert tool.architecture("") is not None
