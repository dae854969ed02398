from __future__ import annotations

from ptxgen import isa
from tools import gen_isa_docs


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
