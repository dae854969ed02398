"""Comparisons of two kernels: figures, instructions, findings, and texts side by side."""

from __future__ import annotations

import re

from report.kernels import BARRIER, CONFLICTS, RACE, report_on, softmax_report
from report.test_page import Page

from ptxgen.report import compare, comparison_page
from ptxgen.report.comparison import ADDED, BETTER, CHANGED, EQUAL, REMOVED, RENUMBERED, WORSE, Moved, Row

# The kernel without conflicts, and with other numbers of registers.
PADDED = CONFLICTS.replace(", 128, %r1", ", 4, %r1").replace("%r4", "%r5")


def test_figures_say_what_is_better_and_what_is_worse() -> None:
    verdicts = {f.name: f.verdict for f in compare(report_on(CONFLICTS), report_on(PADDED)).figures}
    assert verdicts.pop("bank conflicts") == BETTER
    assert verdicts.pop("lints") == BETTER
    assert verdicts.pop("clocks of the busiest unit") == BETTER
    assert set(verdicts.values()) == {"same"}
    back = {f.name: f.verdict for f in compare(report_on(PADDED), report_on(CONFLICTS)).figures}
    assert back["bank conflicts"] == WORSE


def test_instructions_and_findings_that_only_one_kernel_has_are_listed() -> None:
    compared = compare(report_on(CONFLICTS), report_on(RACE))
    assert compared.opcodes == (Moved("bar.sync", 1, 0),)
    assert [f.kind for f in compared.new] == ["sanitizer, race"]
    assert compared.gone == ()
    assert [f.kind for f in compare(report_on(RACE), report_on(CONFLICTS)).gone] == ["sanitizer, race"]


def test_lines_match_if_only_numbers_of_registers_differ() -> None:
    (text,) = compare(report_on(CONFLICTS), report_on(PADDED)).texts
    rows = {(text.before[row.before].strip(), row.kind) for row in text.rows if row.before is not None}
    assert ("ld.shared.u32 %r4, [%r3];", RENUMBERED) in rows
    assert ("mad.lo.u32 %r2, %r0, 128, %r1;", CHANGED) in rows
    assert ("bar.sync 0;", EQUAL) in rows
    assert sum(row.left_out or 1 for row in text.rows) == len(text.before)


def test_lines_that_only_one_text_has_are_next_to_nothing() -> None:
    without = CONFLICTS.replace("\tbar.sync 0;\n", "")
    (text,) = compare(report_on(CONFLICTS), report_on(without)).texts
    assert [row for row in text.rows if row.kind == REMOVED] == [Row(REMOVED, BARRIER - 1)]
    (text,) = compare(report_on(without), report_on(CONFLICTS)).texts
    assert [row for row in text.rows if row.kind == ADDED] == [Row(ADDED, None, BARRIER - 1)]


def test_the_page_is_whole_linked_and_labelled() -> None:
    for before, after in ((report_on(CONFLICTS), report_on(RACE)), (softmax_report(), report_on(PADDED))):
        text = comparison_page(compare(before, after))
        read = Page(text)
        ids = [attrs["id"] for _, attrs in read.having("id")]
        assert len(ids) == len(set(ids))
        assert {attrs["href"][1:] for _, attrs in read.having("href")} <= set(ids)
        assert not re.search(r"(src|href)\s*=\s*[\"']?\s*(https?:|//)", text)
        assert len(re.findall('<tr class="(removed|added|changed)">', text)) == sum(
            row.kind in (REMOVED, ADDED, CHANGED) for one in compare(before, after).texts for row in one.rows
        )
    same = comparison_page(compare(softmax_report(), softmax_report()))
    assert "Both kernels have the same instructions." in same
    assert "No difference: kernels.py, PTX" in same
