"""`tools/silicon.py`: runs become entries of a ledger, and shipped kernels that never ran are listed."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from flash.problem.config import AttentionConfig
from flash.silicon.ledger import LEDGER, Entry, key, read, write
from ptxgen.parse import parse
from tools import silicon
from tools.commands.launched_texts import kernel_of
from tools.commands.shipped_kernels import FAMILIES, TARGETS, chosen, shipped
from tools.commands.silicon_runs import Run, append
from tools.silicon import main


def _said(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main([str(word) for word in words]) == 0
    return capsys.readouterr().out


def test_runs_are_merged_into_a_ledger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger, runs = tmp_path / "ledger.json", tmp_path / "runs.jsonl"
    append(
        runs, Run("a test", "NVIDIA H200", "9.0", "1", "right", {"aa": "a for sm_90", "bb": "b for sm_90"})
    )
    append(runs, Run("a script", "NVIDIA H200", "9.0", "2", "ran", {"aa": "a for sm_90"}))
    arguments = ("--merge", runs, "--ledger", ledger)
    assert _said(capsys, *arguments) == "2 entries are new or changed, 2 in all\n"
    assert [(e.text, e.verdict, e.driver) for e in read(ledger)] == [
        ("aa", "right", "1"),
        ("bb", "right", "1"),
    ]
    assert json.loads(_said(capsys, *arguments, "--json")) == {
        "schema": 1, "runs": 3, "changed": 0, "entries": 2
    }  # fmt: skip
    assert _said(capsys, "--list", "--ledger", ledger) == (
        "right  NVIDIA H200 (driver 1), aa           a for sm_90 (a test)\n"
        "right  NVIDIA H200 (driver 1), bb           b for sm_90 (a test)\n"
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, ": there is no such file"),
        (
            "{}\n",
            ", line 1: a line has the keys source, device, compute_capability, driver, verdict, texts, "
            "project, and texts is an object",
        ),
    ],
)
def test_a_file_without_runs_is_refused_and_the_ledger_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, said: str
) -> None:
    runs, ledger = tmp_path / "runs.jsonl", tmp_path / "ledger.json"
    if content is not None:
        runs.write_text(content)
    assert main(["--merge", str(runs), "--ledger", str(ledger)]) == 1
    assert capsys.readouterr().err == f"silicon.py: error: {runs}{said}\n"
    assert not ledger.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "one of the arguments --merge --list --missing is required"),
        (["--list", "--target", "sm_80"], "--target is for --missing"),
    ],
)
def test_wrong_usage(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    assert capsys.readouterr().err.endswith(f"silicon.py: error: {said}\n")


def test_kernels_whose_text_never_ran_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = itertools.islice(shipped(("sm_80",)), 3)
    monkeypatch.setattr(silicon, "shipped", lambda _: [first, second, third])
    ledger = tmp_path / "ledger.json"
    known = [
        Entry(text, one.words, "NVIDIA A100", "8.0", "1", "right", "a test", "1")
        for one, text in ((first, key(first.text())), (second, key("an earlier text")))
    ]
    write(known, ledger)
    arguments = ("--missing", "--target", "sm_80", "--ledger", ledger)
    assert _said(capsys, *arguments) == (
        f"{second.words}; an earlier text ran on NVIDIA A100 (driver 1)\n"
        f"{third.words}\n"
        "2 of 3 texts never ran on a GPU\n"
    )
    result = json.loads(_said(capsys, *arguments, "--json"))
    assert result["shipped"] == 3
    assert [(row["kernel"], row["an earlier text ran on"]) for row in result["missing"]] == [
        (second.words, ["NVIDIA A100 (driver 1)"]),
        (third.words, []),
    ]


def test_help_has_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    said = capsys.readouterr().out
    assert "examples:\n" in said
    assert "exit codes:\n" in said
    assert str(LEDGER) not in said


# ---------------------------------------------------------------------------- the shipped kernels


@pytest.mark.slow
def test_each_shipped_kernel_is_there_once_under_the_name_that_its_text_has() -> None:
    result = list(shipped(("sm_90a",)))
    assert {one.family for one in result} == set(FAMILIES)
    assert len({one.words for one in result}) == len(result) > 150
    for family in FAMILIES:
        one = next(one for one in result if one.family == family)
        assert kernel_of(one.text()) == one.words
        assert parse(one.text()).kernels[0].name == one.name


def test_a_launch_on_hopper_has_the_tiles_of_its_length() -> None:
    config = AttentionConfig(128, dtype="f16", target="sm_90a")
    assert chosen(config, 512).name == "attention_forward_wgmma_f16_d128_m128_n128_s2_static"
    assert chosen(config, 4096).name == "attention_forward_wgmma_f16_d128_m192_n80_s2_static"
    assert "sm_90a" in TARGETS
