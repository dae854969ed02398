"""What `ptxgen bench --only hopper` reads in machine code."""

from __future__ import annotations

import importlib.metadata
import subprocess
from typing import Any

import pytest
from bench_results import goals_met, rows

from benchmarks.measure import static_gathered as gathered
from benchmarks.measure import static_hopper as hopper
from benchmarks.measure import static_hopper_f32 as hopper_f32
from benchmarks.measure import static_hopper_workloads as hopper_workloads
from flash.commands.measure.record import Measurement, Rows
from flash.commands.measure.static_quality import Assembled, Subject
from ptxgen.errors import BackendError
from ptxgen.runtime.sass import Loop, SassInstr

# 2048 scores of 128 multiply-adds each are 8 products of 64 x 128 x 16 and 8 of 64 x 64 x 16, in a quarter.
S, PV = SassInstr("HGMMA.64x128x16.F32.BF16"), SassInstr("HGMMA.64x64x16.F32.BF16")
EXP2, MOVE = SassInstr("MUFU.EX2"), SassInstr("R2UR")
WAIT_ONE, WAIT = (SassInstr("WARPGROUP.DEPBAR.LE", operands=f"gsb0, {n}") for n in ("0x1", "0x0"))
PATH = (*(S,) * 4, *(PV,) * 8, WAIT_ONE, EXP2, WAIT, EXP2, MOVE)


def reading(tensor: float = 50.0, special: float = 40.0, exponentials: float = 45.0) -> hopper.Reading:
    built = Assembled(168, 0, 4096, 1, 0.1, 128, Loop(PATH, len(PATH)))
    return hopper.Reading(built, "128x128", tensor, special, exponentials)


def measurements(found: Rows) -> list[Measurement]:
    return [item for item in found if isinstance(item, Measurement)]


def test_a_row_counts_the_turn() -> None:
    assert hopper.row(64, "ours", reading()).split(" | ") == [
        *("64", "ours", "128x128", "168", "0", "17", "17", "1", "1/2", "50.0", "40.0")
    ]
    assert len(rows([hopper.row(64, "ours", reading())])[0]) == len(hopper._COLUMNS)


def test_ours_is_beside_the_peers_and_has_goals(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(subject: Subject, warpgroups: int, tile: str) -> hopper.Reading:
        assert (subject.entry[:28], subject.threads, warpgroups) == ("attention_forward_wgmma_bf16", 512, 3)
        assert tile == "192x128"
        return reading(60.0, 61.0)

    def missing(_: int) -> hopper.Reading:
        raise BackendError("it is not installed (pip install --pre flash-attn-4)")

    monkeypatch.setattr(hopper.Reading, "of", of)
    monkeypatch.setattr(hopper, "triton", lambda _: reading(30.0, 20.0))
    monkeypatch.setattr(hopper, "flash_attn_4", missing)
    result = hopper.hopper_quality(64)
    ours, triton, other = rows(result)
    assert (ours[1], triton[1]) == ("ours", "Triton")
    assert other == ["64", "flash-attn-4: it is not installed (pip install --pre flash-attn-4)"]
    assert goals_met(result) == {
        "tensor cores: ours / Triton": True,
        "instructions: ours / Triton": True,
        "main loop": True,
        "R2UR": False,
        "spilled": True,
        "bound of exponentials": False,
    }


def test_a_peer_that_cannot_be_compiled_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert command[1].endswith("benchmarks/flash_attn_4_forward.py")
        return subprocess.CompletedProcess(command, 1, "", "Traceback\nImportError: no einops\n")

    monkeypatch.setattr(hopper, "why_no_flash_attn_4", lambda: "")
    monkeypatch.setattr(hopper.subprocess, "run", failed)
    hopper.flash_attn_4.cache_clear()
    hopper.flash_attn_4_texts.cache_clear()
    with pytest.raises(BackendError, match="it was not compiled: ImportError: no einops"):
        hopper.flash_attn_4(64)


def test_a_peer_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    hopper.flash_attn_4.cache_clear()
    hopper.flash_attn_4_texts.cache_clear()
    with pytest.raises(BackendError) as error:
        hopper.flash_attn_4(64)
    assert str(error.value) == "it is not installed (pip install --pre flash-attn-4)"


def test_there_is_a_job_for_each_head_dim() -> None:
    assert [job.label for job in hopper.hopper_jobs(quick=False)] == [
        *("hopper d=64 bf16 full", "hopper d=128 bf16 full", "hopper d=256 bf16 full")
    ]
    assert len(hopper.hopper_jobs(quick=True)) == 1


def test_f32_has_two_bounds_with_goals(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(subject: Subject, warpgroups: int, tile: str, copied: float) -> hopper.Reading:
        assert subject.entry.startswith("attention_forward_wgmma_f32_grade_d128")
        assert (subject.threads, warpgroups, tile) == (384, 2, "128x64")
        assert copied == 3 * 64 * (128 + 128) * 4  # elements of K and V arrive, are read, and are written
        return reading(50.0)

    monkeypatch.setattr(hopper.Reading, "of", of)
    result = hopper_f32.precise_quality(128)
    (ours,) = rows(result)
    assert ours[1] == "ours, f32_grade"
    rates = {m.name: (round(m.median, 1), m.goal and m.goal.met_by(m.median)) for m in measurements(result)}
    # 132 multiprocessors at 1,830 MHz with 2 x 2,048 operations a clock, of which half for a third; and
    # 128 x 64 scores of 128 + 128 columns in 3,840 clocks.
    assert rates == {
        "by the issue model": (164.9, True),
        "by the shared memory": (263.8, True),
        "spilled": (0, True),
    }


def test_f32_has_jobs_of_its_own() -> None:
    assert [job.label for job in hopper_f32.precise_jobs(quick=False)] == [
        *("hopper d=64 f32_grade full", "hopper d=128 f32_grade full")
    ]
    assert not hopper_f32.precise_jobs(quick=True)


def test_latents_have_two_bounds_with_goals(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(subject: Subject, warpgroups: int, tile: str, copied: float) -> hopper.Reading:
        assert subject.entry.startswith("attention_forward_latent_wgmma_bf16_d576")
        assert (subject.threads, warpgroups, tile) == (384, 2, "64x64")
        assert copied == 2 * (64 * 576 + 2 * 64 * 64)  # the tile, and weights that are written and read
        return reading(90.0)

    monkeypatch.setattr(hopper.Reading, "of", of)
    result = hopper_workloads.workload_quality("latents", 64)
    assert rows(result)[0][1] == "ours, latents"
    # 64 x 64 scores of 576 + 512 columns take 2,176 clocks of tensor cores. One consumer reads
    # 36 x (64 + 64) x 16 elements for the scores, and each 4 x 256 x 16 for its columns of O; 64 x 576 of K
    # arrive, and 64 x 64 weights are written and read once: 2,368 clocks of 128 bytes.
    assert {
        m.name: (round(m.median, 1), m.goal and m.goal.met_by(m.median)) for m in measurements(result)
    } == {
        "tensor cores by the issue model": (90.0, True),
        "tensor cores by shared memory": (91.9, True),
        "spilled": (0, True),
    }


def test_latents_have_a_job_for_each_tile() -> None:
    assert [job.label for job in hopper_workloads.workload_jobs(quick=False)] == [
        *("hopper d=576 latents bf16 full, tile 64", "hopper d=576 latents bf16 full, tile 32")
    ]
    assert not hopper_workloads.workload_jobs(quick=True)


@pytest.mark.slow
@pytest.mark.ptxas
@pytest.mark.usefixtures("disassembler")
def test_the_producer_of_pages_is_counted() -> None:
    result = {m.name: m for m in measurements(gathered.gathered_quality(64, 1))}
    for_tile = result["instructions of the producer for a tile"].median
    assert for_tile > result["integers of the producer for a tile"].median > 0
    assert result["instructions of the producer for 16 bytes"].median == for_tile * 4 / (2 * 128 * 64 // 8)
    assert 0 < result["instructions of the producer, of all"].median < 100
    spilled = result["spilled beside a producer that gathers"]
    assert spilled.goal is not None
    assert spilled.goal.met_by(spilled.median)
