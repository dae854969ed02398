"""Committed pages and pictures are what their scripts write."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tools import (
    gen_api_docs,
    gen_barrier_picture,
    gen_gpu_page,
    gen_isa_docs,
    gen_ledger,
    gen_pipeline_picture,
    gen_predictions,
    gen_public_kernels,
    gen_roles_picture,
    gen_rooms,
)

SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("script", "source"),
    [
        (gen_api_docs, "the docstrings say"),
        (gen_isa_docs, "the table says"),
        (gen_barrier_picture, "the script draws"),
        (gen_pipeline_picture, "the script draws"),
        (gen_public_kernels, "the table says"),
        (gen_ledger, "the ledger says"),
        (gen_rooms, "the docstrings of the folders say"),
        pytest.param(gen_gpu_page, "the results and the ledger say", marks=SLOW),
    ],
    ids=lambda value: value.__name__ if isinstance(value, ModuleType) else "",
)
def test_a_committed_file_is_what_its_script_writes_and_another_is_outdated(
    script: ModuleType,
    source: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert script.main(["--check"]) == 0
    file: Path = script.PICTURE if hasattr(script, "PICTURE") else script.PAGE
    text = file.read_text(encoding="utf-8")
    monkeypatch.setattr(script, "render", lambda: text)
    other = tmp_path / file.name
    other.write_text(text + "\n", encoding="utf-8")
    assert script.main(["--check", "--file", str(other)]) == 1
    assert other.read_text(encoding="utf-8") == text + "\n"
    name = Path(script.__file__ or "").name
    assert capsys.readouterr().err == f"{name}: {other} is not what {source}; run python tools/{name}\n"


@pytest.mark.slow
def test_each_of_several_files_is_what_its_script_writes_and_another_is_outdated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script, name = gen_roles_picture, "gen_roles_picture.py"
    assert script.main(["--check"]) == 0
    monkeypatch.setattr(script, "render", lambda picture: picture.title)
    for picture in script.PICTURES:
        other = tmp_path / picture.name
        assert script.main(["--check", "--file", str(other)]) == 1
        assert script.main(["--file", str(other)]) == 0
        assert other.read_text(encoding="utf-8") == picture.title
        assert script.main(["--check", "--file", str(other)]) == 0
        outdated = f"{other} is not what the interpreter draws; run python tools/{name}\n"
        assert capsys.readouterr().err == f"{name}: {outdated}"
    assert script.main(["--check"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == len(script.PICTURES)
    with pytest.raises(SystemExit):
        script.main(["--file", str(tmp_path / "other.svg")])
    assert capsys.readouterr().err.endswith(
        "error: --file must name one of roles.svg, backward-roles.svg, blackwell-roles.svg, in any folder, "
        f"got {tmp_path / 'other.svg'}\n"
    )


def test_a_missing_file_is_outdated_and_is_written_without_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gen_predictions, "render", lambda: "{}\n")
    file = tmp_path / "p.json"
    assert gen_predictions.main(["--check", "--file", str(file)]) == 1
    why = f"{file} is not what the models say; run python tools/gen_predictions.py"
    assert capsys.readouterr().err == f"gen_predictions.py: {why}\n"
    assert gen_predictions.main(["--file", str(file)]) == 0
    assert file.read_text() == "{}\n"
    assert gen_predictions.main(["--check", "--file", str(file)]) == 0
