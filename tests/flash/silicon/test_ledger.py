"""The ledger of texts that ran on a GPU, and what `explain` says from it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

import flash
from flash.launch import explain
from flash.silicon.ledger import Entry, Ledger, LedgerError, key, ledger, merge, read, write

KERNEL = "a_kernel for sm_90a"
TEXT = ".version 8.0"
RAN = Entry(key(TEXT), KERNEL, "NVIDIA H200", "9.0", "580.1", "ran", "a script", "1")
RIGHT = replace(RAN, verdict="right", source="a test")
WRONG = replace(RAN, verdict="wrong", source="another test")
NEW = replace(RIGHT, driver="590.2", project="2")


def test_the_key_of_a_text_is_its_sha_256() -> None:
    assert key("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.mark.parametrize(
    ("before", "after", "stays"),
    [
        *((RAN, RIGHT, RIGHT), (RIGHT, RAN, RIGHT), (RIGHT, NEW, NEW), (RIGHT, WRONG, WRONG)),
        *((WRONG, RAN, WRONG), (WRONG, RIGHT, WRONG)),
        (WRONG, replace(RIGHT, source=WRONG.source), replace(RIGHT, source=WRONG.source)),
        (RAN, replace(RAN, driver="590.2"), replace(RAN, driver="590.2")),
    ],
)
def test_of_two_entries_of_a_text_and_device_one_stays(before: Entry, after: Entry, stays: Entry) -> None:
    assert merge([before], [after]) == (stays,)


def test_entries_of_other_texts_devices_and_kernels_stay_beside_each_other() -> None:
    others = [
        replace(RAN, text=None),
        replace(RAN, text=None, kernel="b"),
        replace(RAN, device="NVIDIA A100"),
        RAN,
    ]
    assert len(merge(others, others)) == 4


def test_a_file_is_the_same_whatever_the_order_of_entries(tmp_path: Path) -> None:
    file, entries = tmp_path / "ledger.json", [RIGHT, replace(RAN, text=None), replace(RAN, kernel="a")]
    write(entries, file)
    first = file.read_bytes()
    assert set(read(file)) == set(entries)
    write(reversed(entries), file)
    assert file.read_bytes() == first
    assert first.count(b"\n") == len(entries) + 2
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.json"]


def test_a_file_that_does_not_exist_has_no_entries(tmp_path: Path) -> None:
    assert read(tmp_path / "none.json") == ()


_KEYS = "text, kernel, device, compute_capability, driver, verdict, source, project"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "no JSON: Expecting value: line 1 column 2 (char 1)"),
        ("[]", "no ledger: schema must be 1"),
        ('{"schema": 2}', "no ledger: schema must be 1"),
        ('{"schema": 1, "entries": [{"text": "a"}]}', f"an entry has the keys {_KEYS}, got text"),
        ('{"schema": 1, "entries": [7]}', f"an entry has the keys {_KEYS}, got 7"),
        (
            json.dumps({"schema": 1, "entries": [asdict(RAN) | {"driver": 580}]}),
            "driver must be a string, got 580",
        ),
        (
            json.dumps({"schema": 1, "entries": [asdict(RAN) | {"verdict": "good"}]}),
            "verdict must be one of right, wrong, ran, got 'good'",
        ),
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "ledger.json"
    file.write_text(text)
    with pytest.raises(LedgerError) as caught:
        read(file)
    assert str(caught.value) == f"{file}: {said}"


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([], "this text has not run on a GPU"),
        ([RAN], "this text ran on an NVIDIA H200 (driver 580.1), and nothing judged its results"),
        ([RIGHT], "this text ran on an NVIDIA H200 (driver 580.1), and was right"),
        ([WRONG], "another test failed with this text on an NVIDIA H200 (driver 580.1)"),
        (
            [RIGHT, replace(RAN, device="NVIDIA A100"), replace(RAN, text=None)],
            "this text ran on an NVIDIA H200 (driver 580.1), and was right; "
            "this text ran on an NVIDIA A100 (driver 580.1), and nothing judged its results",
        ),
        (
            [replace(WRONG, text=None), replace(RIGHT, text="of another"), replace(RAN, kernel="b")],
            "this text has not run on a GPU; an earlier text of this config ran on an NVIDIA H200 (driver "
            "580.1)",
        ),
        (
            [replace(RAN, text=None), replace(RAN, text=None, device="NVIDIA A100", driver="1")],
            "this text has not run on a GPU; an earlier text of this config ran on an NVIDIA H200 (driver "
            "580.1) and an NVIDIA A100 (driver 1)",
        ),
    ],
)
def test_a_sentence_says_where_a_text_ran(entries: list[Entry], said: str) -> None:
    assert Ledger(entries).status(KERNEL, lambda: TEXT) == said


def test_a_text_is_not_rendered_for_a_kernel_that_the_ledger_does_not_know() -> None:
    def text() -> str:
        raise AssertionError("rendered")

    assert Ledger([RAN]).status("another for sm_80", text) == "this text has not run on a GPU"


# ---------------------------------------------------------------------------------- the package's


def test_the_ledger_of_the_package_is_sorted_and_merged() -> None:
    entries = read()
    assert entries == merge((), entries)
    assert all(entry.text is None or len(entry.text) == 64 for entry in entries)
    assert all(entry.kernel.partition(" for ")[2].startswith("sm_") for entry in entries)


def _silicon(said: str) -> list[str]:
    return [line for line in said.splitlines() if line.startswith("silicon:")]


def test_explain_says_where_a_text_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    q = np.ones((1, 1, 40, 64), np.float16)
    kernel = flash.AttentionKernel(flash.AttentionConfig(64, dtype="f16", target="sm_90"))
    built = kernel.build
    ran = replace(RIGHT, text=key(built.text), kernel=f"{built.kernel.name} for sm_90")
    for entries, said in (
        ([], "this text has not run on a GPU"),
        ([ran], "this text ran on an NVIDIA H200 (driver 580.1), and was right"),
    ):
        known = Ledger(entries)
        monkeypatch.setattr(explain, "ledger", lambda known=known: known)
        assert _silicon(kernel.explain(q, q, q, backend="interpreter")) == [f"silicon:  {said}"]
    assert _silicon(kernel.explain(q, q, q, backend="cpu")) == []


def test_explain_of_gradients_says_it_of_each_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    q = np.ones((1, 1, 20, 16), np.float16)
    config = flash.AttentionConfig(16, dtype="f16", target="sm_80")
    gradient = flash.AttentionGradient(config)
    queries = gradient.builds["queries"]
    known = Ledger([replace(RAN, text=key(queries.text), kernel=f"{queries.kernel.name} for sm_80")])
    monkeypatch.setattr(explain, "ledger", lambda: known)
    lse = np.ones((1, 1, 20), np.float32)
    said = gradient.explain(dout=q, q=q, k=q, v=q, out=q, lse=lse, backend="interpreter")
    assert _silicon(said) == [
        "silicon:  this text ran on an NVIDIA H200 (driver 580.1), and nothing judged its results",
        "silicon:  this text has not run on a GPU",
    ]


def test_the_ledger_knows_what_the_first_gpu_ran() -> None:
    built = flash.AttentionKernel(flash.AttentionConfig(128, dtype="f16", target="sm_90a")).build
    ran, earlier = ledger().of(f"{built.kernel.name} for sm_90a", lambda: built.text)
    assert "NVIDIA H200 (driver 580.159.04)" in {entry.where for entry in ran + earlier}
