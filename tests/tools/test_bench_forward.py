"""What `ptxgen bench --only forward` reads in machine code."""

from __future__ import annotations

import pytest
from bench_results import goals_met, rows

from benchmarks.measure import static_forward as forward
from flash.commands.measure.static_quality import Assembled, Subject
from flash.contract.catalogue import build
from flash.problem.config import AttentionConfig
from ptxgen.errors import BackendError
from ptxgen.report.issue_model import Wait
from ptxgen.runtime.sass import Loop, SassInstr
from ptxgen.target import Target

PRODUCT, EXP2, ADD = SassInstr("HMMA.16816.F32"), SassInstr("MUFU.EX2"), SassInstr("FADD")
# 256 scores of 128 multiply-adds each are 16 products.
PATH = (PRODUCT,) * 16 + (EXP2,) + (ADD,) * 23
MADE = Assembled(200, 0, 4096, 2, 0.125, 128, Loop(PATH, len(PATH)))
WAITS = {Wait.ISSUE: 0.25, Wait.STALL: 0.25, Wait.MEMORY: 0.25, Wait.TENSOR: 0.125, Wait.BARRIER: 0.125}
SMALL = AttentionConfig(64, dtype="f16", target="sm_80")


def reading(tensor: float) -> forward.Reading:
    return forward.Reading(MADE, PATH, tensor, 50.0, 512.0, WAITS)


def test_an_exponential_is_near_products_that_are_close_together() -> None:
    close = (PRODUCT, *(ADD,) * 23, EXP2, PRODUCT)
    far = (PRODUCT, *(ADD,) * 24, EXP2, PRODUCT)
    assert forward.exponentials_near(close) == (1, 1)
    assert forward.exponentials_near(far) == (0, 1)
    assert forward.exponentials_near((EXP2, ADD)) == (0, 1)


def test_the_loop_is_closed() -> None:
    assert forward.exponentials_near((EXP2, *(ADD,) * 12, PRODUCT, *(ADD,) * 11)) == (1, 1)
    assert forward.exponentials_near((EXP2, *(ADD,) * 12, PRODUCT, *(ADD,) * 12)) == (0, 1)
    assert forward.longest_without_products((ADD, ADD, PRODUCT, ADD)) == 3
    assert forward.longest_without_products((ADD, ADD)) == 2


def test_a_row_has_ours_then_the_peers_then_goals(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(subject: Subject, target: Target) -> forward.Reading:
        assert (subject.entry[:25], target.name) == ("attention_forward_f16_d64", "sm_80")
        return reading(60.0)

    monkeypatch.setattr(forward.Reading, "of", of)
    monkeypatch.setattr(forward, "triton", lambda *_: ("64x128x128", reading(75.0)))
    location = "sm_80", 64, "f16", False
    known = {location: ("128x128x128", forward.figures(location, reading(48.0)))}
    monkeypatch.setattr(forward, "flash_attention_2", lambda: known)
    result = forward.forward_quality(SMALL)
    ours, theirs, other = rows(result)
    assert ours[:5] == ["sm_80", "64", "f16", "full", "ours"]
    waits = ["50.0", "25.0", "12.5"]
    assert ours[6:] == ["200", "0", "2", "320.0", "40.0", "1/1", "24", "60.0", "50.0", "78.0", *waits]
    assert (theirs[4], theirs[-6]) == ("Triton", "75.0")
    assert (other[4:6], other[-6]) == (["FlashAttention-2", "128x128x128"], "48.0")
    assert {len(row) for row in rows(result)} == {len(forward._COLUMNS)}
    assert goals_met(result) == {
        "tensor cores: ours / Triton": False,
        "tensor cores: ours / FlashAttention-2": True,
        "spilled": True,
        "tensor cores busy": False,
        "instructions": True,
    }


def test_what_is_known_of_flash_attention_2_has_all_figures() -> None:
    known = forward.flash_attention_2()
    assert len(known) == len(forward.TARGETS) * len(forward.HEAD_DIMS) * 2
    assert {len(figures) for _, figures in known.values()} == {len(forward._FIGURES)}


def test_without_the_tools_a_kernel_has_a_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(*_: object) -> forward.Reading:
        raise BackendError("there is no nvdisasm; to get one: ask")

    monkeypatch.setattr(forward.Reading, "of", of)
    assert forward.forward_quality(SMALL) == [
        "attention_forward_f16_d64_m128_n64 was not assembled: there is no nvdisasm; to get one: ask"
    ]


def test_there_is_a_job_for_each_kernel_of_the_table() -> None:
    every = forward.forward_jobs(quick=False)
    assert len(every) == 3 * 3 * 2 * 2 + 2 * 3 + 2 * 2
    assert every[-1].label == "forward d=128 f16 causal sm_75"
    labels = [job.label for job in forward.forward_jobs(quick=True)]
    assert labels[0] == "forward d=64 f16 full sm_80"
    assert len(labels) == 6


def test_three_products_of_f16_are_one_of_f32(monkeypatch: pytest.MonkeyPatch) -> None:
    config = AttentionConfig(128, precision="f32_grade", target="sm_80")
    subject = Subject.of(build(config.kernel()))
    assert subject.columns == 3 * (128 + 128)
    # 48 products for 48 * 2048 / 768 = 128 scores of 512 operations, in 640 clocks of one scheduler of four.
    path = (PRODUCT,) * 48
    built = Assembled(200, 0, 4096, 2, 0.125, subject.columns, Loop(path, len(path)))
    of = forward.Reading(built, path, 60.0, 50.0, 640.0, WAITS)
    monkeypatch.setattr(forward.Reading, "of", lambda *_: of)
    result = forward.forward_quality(config)
    (row,) = rows(result)
    assert (row[2], row[9], row[-4]) == ("f32_grade", "768.0", "62.4")  # 128 * 512 * 4 / 640 * 108 * 1.41e9
    assert goals_met(result) == {"spilled": True, "modelled": False}
