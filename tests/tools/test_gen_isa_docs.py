from __future__ import annotations

from pathlib import Path

import pytest

from ptxgen import isa
from tools import gen_isa_docs


def test_the_committed_page_is_what_the_table_says() -> None:
    assert gen_isa_docs.main(["--check"]) == 0


def test_an_outdated_page_fails_the_check_and_is_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "isa.md"
    page.write_text("old", encoding="utf-8")
    assert gen_isa_docs.main(["--check", "--file", str(page)]) == 1
    assert page.read_text(encoding="utf-8") == "old"
    assert capsys.readouterr().err == (
        f"gen_isa_docs.py: {page} is not what the table says; run python tools/gen_isa_docs.py\n"
    )


@pytest.mark.slow
def test_a_missing_page_fails_the_check_and_is_written_without_it(tmp_path: Path) -> None:
    page = tmp_path / "isa.md"
    assert gen_isa_docs.main(["--check", "--file", str(page)]) == 1
    assert gen_isa_docs.main(["--file", str(page)]) == 0
    assert gen_isa_docs.main(["--check", "--file", str(page)]) == 0


def test_the_page_has_every_row_and_every_special_register() -> None:
    lines = gen_isa_docs.render().splitlines()
    for rows in isa.rows().values():
        for row in rows:
            syntax = row.syntax.replace("|", "\\|")  # in a cell of a table
            beginning = f"| `k.{row.name}` | `{syntax}` |"
            assert any(line.startswith(beginning) for line in lines), row.syntax
    for name in isa.SPECIALS:
        assert any(line.startswith(f"| `{name}` |") for line in lines), name


def test_a_choice_that_needs_more_than_its_row_says_so() -> None:
    assert "`type`: f16, f16x2 (PTX 6.0, sm_53)" in gen_isa_docs.render()


def test_of_many_choices_the_first_and_the_last_are_shown() -> None:
    assert "`shape`: m64n8k16, m64n16k16, …, m64n256k16" in gen_isa_docs.render()
