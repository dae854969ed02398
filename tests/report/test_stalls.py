"""What warps wait for, by line: the model's clocks of instructions, on the lines that these are from."""

from __future__ import annotations

import pytest
from report.kernels import softmax_report

from ptxgen.report import Report, page
from ptxgen.report.data import LOOP, WHOLE
from ptxgen.report.issue_model import Wait
from ptxgen.report.machine_code import Path
from ptxgen.report.stall_chart import wait_heats
from ptxgen.report.stalls import stalls
from ptxgen.runtime.sass import Control, SassInstr
from ptxgen.target import target

FREE = Control(1, (), None, None)
READ = SassInstr("LDS", operands="R0, [R8]", control=Control(1, (), 0, None))
USE = SassInstr("FADD", operands="R9, R0, R11", control=Control(4, (0,), None, None))


def by_reason(clocks: tuple[float, ...]) -> dict[Wait, float]:
    return {wait: n for wait, n in zip(Wait, clocks, strict=True) if n > 0.05}


def test_clocks_are_added_up_by_line() -> None:
    result = stalls(Path(True, [READ, USE, USE, USE], [7, 9, 9, 0]), target("sm_80"), 4, 1, {7: 1, 9: 1})
    assert (result.of, result.warps) == (LOOP, 1)
    lines = [(line.line, line.source, line.instructions) for line in result.lines]
    assert lines == [(9, 1, 2), (0, 0, 1), (7, 1, 1)]
    # The read takes 4 clocks and 30 more; the other instructions have stall counts of 4.
    first, *others = (by_reason(line.clocks) for line in result.lines)
    assert first == pytest.approx({Wait.ISSUE: 2, Wait.MEMORY: 33, Wait.STALL: 3})
    assert others == [pytest.approx({Wait.ISSUE: 1, Wait.STALL: 3})] * 2
    assert result.clocks == pytest.approx(34 + 4 * 3)
    of_lines = zip(result.lines[0].clocks, result.lines[2].clocks, strict=True)
    assert result.by_source == {1: pytest.approx([a + b for a, b in of_lines])}
    assert sum(result.sums) == pytest.approx(result.clocks)
    assert wait_heats(result, by_source=False) == {9: 5, 7: 4}


def test_of_more_warps_one_issues_while_the_others_wait() -> None:
    paths = Path(False, [USE] * 8, [1] * 8)
    alone, many = (stalls(paths, target("sm_80"), warps, 1, {}) for warps in (4, 32))
    assert (alone.of, alone.warps, many.warps) == (WHOLE, 1, 8)
    assert by_reason(alone.lines[0].clocks).get(Wait.NOT_SELECTED, 0) == 0
    assert by_reason(many.lines[0].clocks)[Wait.ARITHMETIC] > 8 * 8  # two clocks for each on 16 lanes


@pytest.mark.ptxas
@pytest.mark.usefixtures("disassembler")
def test_a_report_says_what_the_lines_of_its_main_loop_wait_for() -> None:
    report: Report = softmax_report()
    result = report.stalls
    assert result is not None
    text = {line.number: line.text for line in report.ptx}
    # Both warps of 32 CTAs execute the loop, on four schedulers.
    assert (result.of, result.warps) == (LOOP, 16)
    worst = {wait: max(result.lines, key=lambda line: line.clocks[n]).line for n, wait in enumerate(Wait)}
    loaded = next(n for n in range(worst[Wait.GLOBAL], 0, -1) if "ld.global" in text[n])
    assert worst[Wait.GLOBAL] == loaded + 1
    assert "ex2.approx" in text[worst[Wait.SPECIAL]]
    loop = {row.line for row in report.code.rows if row.loop} if report.code is not None else set()
    assert {line.line for line in result.lines} == loop
    shown = page(report)
    assert "A model's clocks, and none that were measured." in shown
    assert shown.count("<tr data-w=") == sum(line.line > 0 and line.total >= 0.5 for line in result.lines)
