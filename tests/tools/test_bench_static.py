from __future__ import annotations

import dataclasses
import itertools
import json

import pytest
from bench_results import by_name

from benchmarks.measure import static as bench_static
from benchmarks.measure import static_gradients
from flash.commands.measure import static_quality
from flash.commands.measure.record import Measurement, Setting
from flash.commands.measure.report import ROOT
from flash.commands.measure.static_quality import (
    Assembled,
    Counted,
    Subject,
    assembled,
    count,
    counted,
    seen_scores,
)
from flash.contract.catalogue import build
from flash.families.wgmma_gradient import WgmmaGradientTiling
from flash.problem.config import AttentionConfig
from flash.problem.gradients import KEYS, OWNERS, QUERIES, GradientTiling
from ptxgen.errors import BackendError
from ptxgen.interpreter import Counters
from ptxgen.interpreter.reports import MemoryTraffic
from ptxgen.runtime.sass import Loop, SassInstr
from ptxgen.target import target

# Two products on tensor cores among ten instructions: 2 * 2048 multiplications.
TURN = Loop((SassInstr("HMMA.16816.F32"),) * 2 + (SassInstr("FADD"),) * 8, 12)
ASSEMBLED = Assembled(200, 0, 4096, 2, 0.125, 128, TURN)
COUNTED = Counted(300.0, 90.0, 0, 0.25)
SMALL = AttentionConfig(16, dtype="f16", tile=16, block_q=32)


class StubDisassembler:
    """Finds one loop in any cubin."""

    def instructions(self, cubin: bytes) -> list[SassInstr]:
        assert cubin.startswith(b"\x7fELF")
        return [*TURN.path, SassInstr("BRA", 0, True), SassInstr("EXIT", None, False)]


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> bench_static._Quality:
    """A kernel of Triton's that no assembler and no interpreter has seen."""
    settings: dict[str, Setting] = {"by": "Triton", "target": "sm_80"}
    result = bench_static._Quality("Triton's", settings, ASSEMBLED, COUNTED)
    monkeypatch.setattr(bench_static, "triton", lambda *_: result)
    return result


# ---------------------------------------------------------------------------- what is counted


@pytest.mark.parametrize(("causal", "scores"), [(False, 64 * 64), (True, 64 * 65 // 2)])
def test_counts_are_for_a_thousand_scores_that_are_seen(causal: bool, scores: int) -> None:
    config = dataclasses.replace(SMALL, causal=causal)
    result = count(config, 64)
    assert seen_scores(64, causal) == scores
    # Four tiles of keys for each of two CTAs of two warps; causality hides two of the first CTA's.
    tiles = (4 + 2 if causal else 4 + 4) * 2
    products = tiles * (16 * 16 * (16 + 16)) // (16 * 8 * 16)
    assert result.product_share * result.instructions == pytest.approx(1000 * products / scores)
    assert result.conflicts == 0
    assert result.wavefronts > 0


def test_bank_conflicts_and_shares_are_those_of_the_launch() -> None:
    counters = Counters(warp_instructions=8)
    counters.by_opcode.update({"mma.sync.aligned.m16n8k16": 2, "add.f32": 6})
    counters.memory_by_instruction = {0: traffic(wavefronts=5, least=4), 1: traffic(wavefronts=7, least=4)}
    assert counted(counters, 2000) == Counted(4.0, 6.0, 4, 0.25)


def traffic(wavefronts: int, least: int) -> MemoryTraffic:
    return MemoryTraffic("ld", 1, wavefronts, least)


# ---------------------------------------------------------------------------- what is assembled


def test_a_turn_of_the_loop_is_for_so_many_scores() -> None:
    assert ASSEMBLED.scores == 2 * 2048 / 128
    assert ASSEMBLED.loop_per_score == 1000 * 10 / 32
    assert ASSEMBLED.loop_share == 0.2
    none = dataclasses.replace(ASSEMBLED, loop=None)
    assert (none.scores, none.loop_per_score, none.loop_share) == (0, 0, 0)


@pytest.mark.ptxas
def test_a_kernel_is_assembled_with_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_quality, "find_disassembler", StubDisassembler)
    built = build(SMALL.kernel())
    result = assembled(Subject.of(built), target("sm_80"))
    assert result.registers > 20
    assert result.spilled_bytes == 0
    assert result.shared_bytes == built.kernel.dynamic_shared_bytes
    assert result.ctas_per_sm == target("sm_80").blocks_per_sm_for(
        built.config.tiling.threads, result.registers, result.shared_bytes
    )
    assert result.occupancy == result.ctas_per_sm * built.config.tiling.threads / 2048
    assert result.columns == 32
    assert result.loop is not None
    assert (result.loop.products, result.why_no_loop) == (2, "")


@pytest.mark.ptxas
def test_without_a_disassembler_there_is_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise BackendError("there is no nvdisasm")

    monkeypatch.setattr(static_quality, "find_disassembler", none)
    result = assembled(Subject.of(build(SMALL.kernel())), target("sm_80"))
    assert (result.loop, result.why_no_loop) == (None, "there is no nvdisasm")


# ---------------------------------------------------------------------------- beside Triton's


@pytest.mark.ptxas
@pytest.mark.usefixtures("triton")
def test_a_kernel_has_its_figures_goals_and_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_quality, "find_disassembler", StubDisassembler)
    monkeypatch.setattr(bench_static, "SEQ", {"f16": 64})
    everything = bench_static.quality(SMALL)
    ours = by_name([m for m in everything if isinstance(m, Measurement) and "by" not in m.config])
    assert str(ours["spilled"].goal) == str(ours["bank conflicts"].goal) == "<= 0"
    ratio = ours["registers: ours / Triton"]
    assert ratio.goal is not None
    assert not [name for name in bench_static.COMPARED if f"{name}: ours / Triton" not in ours]
    assert all(ours[f"{name}: ours / Triton"].headline for name in bench_static.COMPARED)
    assert ratio.config == {"dtype": "f16", "d": 16, "causal": False, "target": "sm_80"}
    assert (
        "main loop of attention_forward_f16_d16_m32_n16 for sm_80, 11 instructions: 2 products, "
        "8 f32, 1 control" in everything
    )
    assert "main loop of Triton's for sm_80, 10 instructions: 2 products, 8 f32" in everything


def test_ratios_are_ours_to_the_other(triton: bench_static._Quality) -> None:
    settings: dict[str, Setting] = {"dtype": "f16", "d": 16, "causal": False, "target": "sm_80"}
    ours = bench_static._Quality(
        "ours",
        settings,
        dataclasses.replace(ASSEMBLED, registers=100, loop=None),
        dataclasses.replace(COUNTED, instructions=330.0, product_share=0.2),
    )
    result = by_name([*ours.compared(triton)])
    assert {name: item.median for name, item in result.items()} == {
        "registers: ours / Triton": 0.5,
        "instructions: ours / Triton": 1.1,
        "HMMA share: ours / Triton": 0.8,
    }
    met = [item.goal.met_by(item.median) for item in result.values() if item.goal]
    assert met == [True, False, False]


def test_a_kernel_that_nothing_assembles_is_a_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise BackendError("no PTX assembler found:\n  here")

    monkeypatch.setattr(bench_static, "assembled", none)
    assert bench_static.quality(SMALL) == [
        "attention_forward_f16_d16_m32_n16 was not assembled: no PTX assembler found:"
    ]


@pytest.mark.ptxas
def test_tritons_kernel_is_measured_like_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_quality, "find_disassembler", StubDisassembler)
    monkeypatch.setattr(bench_static, "SEQ", {"f16": 256})
    result = bench_static.triton.__wrapped__(64, True, "sm_80")
    assert result.settings["by"] == "Triton"
    assert result.assembled.registers > 100
    # Tiles of 64 keys for two CTAs of 128 queries: two and four.
    products = (2 + 4) * 128 * 64 * (64 + 64) // (16 * 8 * 16)
    per_score = result.counted.product_share * result.counted.instructions
    assert per_score == pytest.approx(1000 * products / seen_scores(256, True))


def test_every_problem_has_a_kernel_of_tritons() -> None:
    for d in bench_static.HEAD_DIMS:
        for suffix in ("", "_causal"):
            base = ROOT / bench_static.TRITON.format(d=d, suffix=suffix)
            facts = json.loads(base.with_name(f"{base.name}.json").read_text())
            assert facts["constants"]["D"] == d
            assert facts["constants"]["CAUSAL"] is bool(suffix)
            ours = AttentionConfig(d, dtype=bench_static.TRITON_DTYPE).kernel().tiling
            assert (facts["constants"]["BN"], facts["constants"]["BM"]) == (ours.tile, ours.block_q)


def test_every_gradient_has_a_kernel_of_tritons() -> None:
    for d, owner, suffix in itertools.product(static_gradients.HEAD_DIMS, OWNERS, ("", "_causal")):
        base = ROOT / static_gradients.TRITON.format(owner=owner, d=d, suffix=suffix)
        facts = json.loads(base.with_name(f"{base.name}.json").read_text())
        assert (facts["constants"]["D"], facts["constants"]["CAUSAL"]) == (d, bool(suffix))
        assert facts["entry"] in base.with_name(f"{base.name}.ptx").read_text()


@pytest.mark.ptxas
@pytest.mark.usefixtures("disassembler")
@pytest.mark.nightly
@pytest.mark.parametrize("owner", OWNERS)
def test_kernels_of_gradients_are_set_beside_tritons(owner: str) -> None:
    result = static_gradients.gradient_quality(AttentionConfig(64, dtype="f16"), owner, "sm_80")
    if isinstance(result[0], str):
        pytest.skip(result[0])
    ratios = [item for item in result if isinstance(item, Measurement) and item.headline]
    assert len(ratios) == 2
    assert all(item.goal is not None and item.goal.met_by(item.median) for item in ratios)
    spilled = next(item for item in result if isinstance(item, Measurement) and item.name == "spilled")
    assert spilled.median == 0


@pytest.mark.ptxas
@pytest.mark.usefixtures("disassembler")
@pytest.mark.nightly
def test_a_kernel_of_tritons_that_does_not_fit_is_told_and_not_compared() -> None:
    result = static_gradients.gradient_quality(AttentionConfig(256, dtype="f16"), KEYS, "sm_120")
    if len(result) == 1:
        pytest.skip(str(result[0]))
    assert result[-1] == (
        "Triton's attention_backward_keys d=256 full takes 102656 bytes of shared memory, which a CTA has "
        "not on sm_120"
    )
    assert not any("ours / Triton" in item.name for item in result if isinstance(item, Measurement))


@pytest.mark.ptxas
@pytest.mark.usefixtures("disassembler")
@pytest.mark.nightly
@pytest.mark.parametrize("owner", OWNERS)
def test_kernels_of_gradients_with_wgmma_keep_tensor_cores_busy(owner: str) -> None:
    result = static_gradients.gradient_quality(AttentionConfig(128, dtype="f16"), owner, "sm_90a")
    if isinstance(result[0], str):
        pytest.skip(result[0])
    items = {item.name: item for item in result if isinstance(item, Measurement)}
    goals = {"spilled", "turn of the main loop", "tensor cores busy, by wgmma"}
    assert {name for name, item in items.items() if item.goal is not None} == goals
    assert all(item.goal is None or item.goal.met_by(item.median) for item in items.values())
    assert items["registers of a consumer"].median == 240
    assert "HGMMA share of the main loop" in items
    assert items["spilled"].config["threads"] == 384


def test_products_that_two_ctas_make_are_not_needed() -> None:
    whole = GradientTiling(64, 64, 64, 32, 4, 2)
    halves = GradientTiling(256, 256, 64, 32, 4, 1, slices=2)
    assert static_gradients._columns(whole, KEYS) == static_gradients._needed(whole, KEYS) == 4 * 64
    assert static_gradients._columns(whole, QUERIES) == static_gradients._needed(whole, QUERIES) == 3 * 64
    assert static_gradients._columns(halves, KEYS) == 6 * 256
    assert static_gradients._needed(halves, KEYS) == 4 * 256
    across = GradientTiling(256, 256, 64, 64, 8, 1, across=4)
    assert static_gradients._columns(across, KEYS) == static_gradients._needed(across, KEYS) == 4 * 256


def test_scores_that_two_warpgroups_make_are_needed_once() -> None:
    whole, halves = (WgmmaGradientTiling(d, d, 64, by_keys=True, splits_columns=d > 128) for d in (128, 256))
    assert static_gradients._columns(whole, KEYS) == static_gradients._needed(whole, KEYS) == 4 * 128
    assert static_gradients._columns(halves, KEYS) == 6 * 256
    assert static_gradients._needed(halves, KEYS) == 4 * 256
    assert static_gradients.computing_threads(halves) == 256 < halves.threads == 384


@pytest.mark.parametrize(("quick", "jobs"), [(True, 4 + 12), (False, 3 * 4 * 6 + 2 * 6 + 2 * 12 * 4)])
def test_there_is_a_job_for_every_kernel_and_target(quick: bool, jobs: int) -> None:
    labels = [job.label for job in bench_static.static_jobs(quick)]
    assert len(set(labels)) == jobs
    assert labels[0] == "attention_forward_f16_d64_m128_n64 sm_80"
