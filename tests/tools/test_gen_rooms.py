"""The table of folders in docs/architecture.md is what their docstrings say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import gen_rooms


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one folder, and a page whose table is empty."""
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "architecture.md"
    page.write_text("# Architecture\n\n| folder | what it holds |\n|---|---|\n\n## More\n", encoding="utf-8")
    (tmp_path / "ptxgen" / "isa").mkdir(parents=True)
    (tmp_path / "ptxgen" / "__init__.py").write_text('"""A toolkit."""\n', encoding="utf-8")
    (tmp_path / "ptxgen" / "isa" / "__init__.py").write_text(
        '"""Rows:\na table.\n\nMore."""\n', encoding="utf-8"
    )
    monkeypatch.setattr(gen_rooms, "ROOT", tmp_path)
    monkeypatch.setattr(gen_rooms, "PAGE", page)
    return tmp_path


@pytest.mark.usefixtures("checkout")
def test_a_row_is_the_first_paragraph_of_a_folder() -> None:
    wanted = (
        "# Architecture\n\n| folder | what it holds |\n|---|---|\n| `ptxgen/` | A toolkit. |\n"
        "| `ptxgen/isa/` | Rows: a table. |\n\n## More\n"
    )
    assert gen_rooms.render() == wanted
    gen_rooms.PAGE.write_text(wanted, encoding="utf-8")
    assert gen_rooms.render() == wanted


def test_a_folder_that_no_sentence_explains_is_refused(checkout: Path) -> None:
    (checkout / "ptxgen" / "isa" / "__init__.py").write_text("", encoding="utf-8")
    with pytest.raises(ValueError, match=r"^ptxgen/isa/__init__\.py: a docstring must explain it$"):
        gen_rooms.render()
