"""Sums of floating-point numbers whose order nothing fixes: the sanitizer `determinism`."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from dsl.test_cta_order import CTAS, gradients, rows
from interpreter.programs import ptx
from interpreter.reported import reports

from ptxgen.interpreter import run
from ptxgen.text import render

BODY = """
    mov.u32 %r0, %tid.x;
    mov.b32 %f0, 1.0;
    mov.b32 %r2, 0;
    mov.b64 %rd2, 0;
    setp.eq.u32 %p0, %r0, 0;
    setp.eq.u32 %p1, %r0, 32;
    ld.param.u64 %rd0, [x];
    FIRST
    MEETING
    SECOND
"""
MEETINGS = {"a barrier": "bar.sync 0;", "nothing": ""}
SUMS = {
    "red.global.add.f32": "red.global.add.f32 [%rd0], %f0;",
    "red.global.add.noftz.f16x2": "red.global.add.noftz.f16x2 [%rd0], %r2;",
    "atom.global.add.f64": "atom.global.add.f64 %rd1, [%rd0], %rd2;",
    "red.shared.add.f32": "red.shared.add.f32 [buf], %f0;",
}
OTHERS = {
    "red.global.add.u32": "red.global.add.u32 [%rd0], %r0;",
    "red.global.max.s32": "red.global.max.s32 [%rd0], %r0;",
    "red.shared.add.u32": "red.shared.add.u32 [buf], %r0;",
}


def body_of(first: str, meeting: str, second: str) -> str:
    return BODY.replace("FIRST", first).replace("MEETING", MEETINGS[meeting]).replace("SECOND", second)


def kinds_of(first: str, meeting: str, second: str) -> list[str]:
    text = ptx(body_of(first, meeting, second), shared=8)
    arguments = [np.zeros(4, np.float64)]
    return [report.kind for report in reports(text, arguments, block=64, sanitize="determinism")]


@pytest.mark.parametrize("instruction", [*SUMS.values(), *OTHERS.values()], ids=[*SUMS, *OTHERS])
@pytest.mark.parametrize("meeting", MEETINGS)
def test_sums_of_two_threads_are_ordered_by_a_barrier(instruction: str, meeting: str) -> None:
    wrong = meeting == "nothing" and instruction in SUMS.values()
    assert kinds_of(f"@%p0 {instruction}", meeting, f"@%p1 {instruction}") == ["determinism"] * wrong


@pytest.mark.parametrize("instruction", [*SUMS.values(), *OTHERS.values()], ids=[*SUMS, *OTHERS])
def test_lanes_that_add_by_one_instruction_have_no_order(instruction: str) -> None:
    assert kinds_of(instruction, "nothing", "") == ["determinism"] * (instruction in SUMS.values())
    assert kinds_of(f"@%p0 {instruction}", "nothing", f"@%p0 {instruction}") == []


def text_of(threads: str, *, ordered: bool = True) -> str:
    return render(gradients(threads=threads, ordered=ordered).build())


def messages_of(text: str, sanitize: str = "determinism") -> list[str]:
    arguments: list[Any] = [rows(), np.zeros(rows().shape, np.float32), np.zeros(CTAS, np.uint32)]
    result = run(
        text,
        grid=CTAS,
        block=rows().shape[1],
        args=arguments[: text.count(".param .u64")],
        dynamic_smem=4 * rows().shape[1],
        sanitize=sanitize,
        raise_on_report=False,
    )
    return [str(report) for report in result.reports]


@pytest.mark.parametrize("threads", ["all", "warpgroup", "thread"])
def test_ctas_in_a_fixed_order_are_not_reported(threads: str) -> None:
    assert messages_of(text_of(threads), "all,determinism") == []


@pytest.mark.parametrize("threads", ["all", "warpgroup", "thread"])
@pytest.mark.parametrize(
    ("pattern", "by"),
    [
        (r"ld\.acquire\.gpu", "ld.relaxed.gpu"),
        (r"ld\.acquire\.gpu", "ld.acquire.cta"),
        (r"red\.release\.gpu", "red.relaxed.gpu"),
        (r"red\.release\.gpu", "red.release.cta"),
        (r"fence\.proxy\.async\.global;", ""),
        (r"fence\.proxy\.async\.global;", "fence.proxy.async.shared::cta;"),
        (r"cp\.async\.bulk\.wait_group 0;", "cp.async.bulk.wait_group.read 0;"),
    ],
)
def test_a_mistake_in_the_order_of_ctas_is_reported(threads: str, pattern: str, by: str) -> None:
    text, count = re.subn(pattern, by, text_of(threads))
    assert count
    assert any(": determinism: " in report for report in messages_of(text))


REDUCTION = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd7], [%r0], 512; (line {line})"
SAID = (
    "kernel gradients: {here}: thread (0, 0, 0) of CTA ({mine}, 0, 0): determinism: global address {at} "
    "(sums) was added to by thread (0, 0, 0) of CTA ({other}, 0, 0) in {here}; {lacking}"
)


@pytest.mark.parametrize(
    ("pattern", "by", "lacking"),
    [
        (
            r"cp\.async\.bulk\.wait_group 0;",
            "cp.async.bulk.wait_group.read 0;",
            "its thread has not waited for it with cp.async.bulk.wait_group",
        ),
        (
            r"ld\.acquire\.gpu",
            "ld.relaxed.gpu",
            "nothing, with a fence.proxy.async, orders the two, so the sum may differ from run to run",
        ),
    ],
)
def test_a_report_of_reductions_says_what_would_order_them(pattern: str, by: str, lacking: str) -> None:
    (reported,) = messages_of(re.sub(pattern, by, text_of("all")))
    numbers = re.search(r"line (\d+).*of CTA \((\d).*address (\w+).*of CTA \((\d)", reported)
    assert numbers is not None
    line, mine, at, other = numbers.groups()
    here = REDUCTION.format(line=line)
    assert reported == SAID.format(here=here, mine=mine, at=at, other=other, lacking=lacking)


def test_a_report_of_atomic_operations_says_that_nothing_orders_them() -> None:
    text = ptx(body_of("red.global.add.f32 [%rd0], %f0;", "nothing", ""))
    (report,) = reports(text, [np.zeros(1, np.float32)], sanitize="determinism")
    here = "red.global.add.f32 [%rd0], %f0; (line 20)"
    assert report.message == (
        f"kernel k: {here}: thread (0, 0, 0) of CTA (0, 0, 0): determinism: global address "
        f"{report.address:#x} (x) was added to by thread (31, 0, 0) in {here}; nothing orders the two, so "
        "the sum may differ from run to run"
    )
