"""The models of launches, what they predict of kernels, and both beside what an H200 said."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.measure import launch_model, static_model
from benchmarks.measure import predictions as predicted
from benchmarks.measure.launch_model import (
    Blocks,
    Estimate,
    Sizes,
    clocks_of_blocks,
    estimate,
    time_of_tickets,
)
from benchmarks.measure.predictions import PREDICTIONS, Case, cases, predict, predictions
from benchmarks.measure.static_model import LONG, POINTS, TENTH, Tiles
from flash.commands.measure.record import Measurement
from flash.contract.catalogue import build
from flash.problem.config import AttentionConfig
from ptxgen.errors import BackendError
from ptxgen.rates import H200
from ptxgen.report.issue_block import BlockClocks, Walk
from ptxgen.report.issue_model import Busy
from ptxgen.report.issue_units import Unit
from ptxgen.report.role_model import WEIGHTS_ALONE, RoleClocks
from ptxgen.runtime.sass import find_disassembler
from ptxgen.target import target

# The kernel of the counters that is known to be off by more: docs/measurements.md, "The model beside the
# counters".
OFF = {256: 8.0}


@pytest.fixture
def tools() -> None:
    """A disassembler and the history of the project, or the test is skipped."""
    try:
        find_disassembler()
        static_model.texts_that_ran()
    except BackendError as error:
        pytest.skip(str(error))


def busy(tensor: float = 0.5, clocks: float = 1000.0) -> Busy:
    """A loop whose iteration takes a warp of a scheduler so many clocks."""
    shares = {unit: tensor if unit is Unit.TENSOR else 0.0 for unit in Unit}
    return Busy(shares, clocks, ())


# A block with one tile takes 4000 clocks, a further one 2000, and 3000 where a mask cuts it.
BLOCK = BlockClocks(4000.0, 3000.0, 2000.0, 500.0)


def launch(n: int = 1024, heads: int = 132, **options: Any) -> Estimate:
    """The estimate of a launch of f16 with head_dim 128, blocks of 128 queries and tiles of 128 keys."""
    config = AttentionConfig(
        128, dtype="f16", target="sm_90a", block_q=128, **{"tile": 128, "scheduler": "static"} | options
    )
    sizes = Sizes(1, heads, heads, n, n)
    return estimate(build(config.kernel()), busy(), 1, sizes, H200, Blocks(BLOCK, awaits_rows=False))


ROWS = 128 * (128 + 128) * 2 / (4800e9 / (132 * 1980e6))  # clocks for Q and O at 18.4 bytes a clock


def test_a_launch_takes_rounds_of_blocks() -> None:
    # 8 blocks of 8 tiles of each head, a head for each multiprocessor; a persistent CTA begins once.
    said = launch()
    assert said.clocks == pytest.approx(500 + 8 * (4000 - 500 + 7 * 2000 + ROWS + launch_model.DRAM_CLOCKS))
    assert said.tensor == pytest.approx(0.5 * 8 * 8 * 2000 / said.clocks)
    assert said.operations == 4 * 128 * 1024 * 1024 * 132
    assert said.tflops(H200) == pytest.approx(said.operations * 1980e6 / said.clocks / 1e12)


def test_a_grid_begins_each_block_and_a_tail_leaves_multiprocessors_without_work() -> None:
    assert launch(scheduler="grid").clocks == pytest.approx(launch().clocks + 7 * 500)
    assert launch(heads=133).clocks - 500 == pytest.approx((launch().clocks - 500) * 9 / 8)
    assert launch(heads=133).tensor < launch().tensor


def hidden_launch(n: int, arrays: str, scheduler: str = "static", heads: int = 132) -> float:
    """The clocks of a launch of which `arrays` pass through DRAM while blocks are computed."""
    config = AttentionConfig(
        128, dtype="f16", target="sm_90a", block_q=128, tile=128, causal=scheduler != "static"
    )
    kernel = build(replace(config, scheduler=scheduler).kernel())
    blocks = Blocks(BLOCK, awaits_rows=False, hidden=arrays)
    return estimate(kernel, busy(), 1, Sizes(1, heads, heads, n, n), H200, blocks).clocks


def test_rows_that_pass_while_blocks_are_computed_stand_once_beside_a_launch() -> None:
    computed = 500 + 8 * (4000 - 500 + 7 * 2000)
    assert hidden_launch(1024, "QO") == pytest.approx(computed + ROWS + launch_model.DRAM_CLOCKS)
    assert hidden_launch(1024, "O") == pytest.approx(
        computed + 8 * (ROWS / 2 + launch_model.DRAM_CLOCKS) + ROWS / 2
    )
    # A block takes its memory at least, and a launch that of K and V, too: here as many rows as of Q and O.
    assert hidden_launch(128, "QO", heads=13200) == pytest.approx(100 * 2 * ROWS, rel=0.02)


def test_a_ticket_is_taken_when_the_block_before_begins() -> None:
    assert time_of_tickets([3, 1, 1, 1], 2) == 4
    assert time_of_tickets([5, 1, 1, 1], 2) == 6  # the first CTA has the third block, too
    assert time_of_tickets([5], 2) == 5


def test_mirrored_rounds_of_the_estimate_have_the_sections_of_a_launch() -> None:
    times = [hidden_launch(1024, "QO", name, heads=256) for name in ("mirrored", "ticket")]
    assert times[0] == pytest.approx(times[1], rel=0.03)


def test_the_text_says_which_rows_are_hidden(tools: None) -> None:  # noqa: ARG001
    def hidden(scheduler: str, head_dim: int = 64) -> str:
        config = AttentionConfig(head_dim, dtype="f16", target="sm_90a", scheduler=scheduler)
        blocks = clocks_of_blocks(build(config.kernel()), target("sm_90a"))
        assert blocks is not None
        return blocks.hidden

    assert [hidden("grid"), hidden("static"), hidden("static", 256)] == ["", "QO", ""]


def test_tiles_that_a_mask_cuts_take_their_own_clocks() -> None:
    # The last block of a head has all 1024 keys. One tile of 128 keys is cut, the first, and two of 64.
    once = 4000 + ROWS + launch_model.DRAM_CLOCKS
    long = launch(heads=1, causal=True, scheduler="grid")
    assert long.clocks == pytest.approx(once + 7 * 2000)
    assert launch(heads=1, causal=True, scheduler="grid", tile=64).clocks == pytest.approx(
        once + 14 * 2000 + 3000
    )
    cut = [
        (Walk(0, 0, 0, 3),),
        (Walk(0, 1, 0, 2),),
        (Walk(1, 1, 0, 0),),
        (Walk(0, 1, 1, 1), Walk(1, 1, 0, 1)),
    ]
    assert [BLOCK.clocks(walks) for walks in cut] == [8000, 8000, 7000, 9000]


def test_each_warpgroup_meets_the_tiles_that_its_rows_see() -> None:
    kernel = AttentionConfig(64, dtype="f16", target="sm_90a", causal=True, block_q=192, tile=128).kernel()

    def walks(block: int, tiles: int, keys: int = 1024, is_causal: bool = True) -> tuple[Walk, ...]:
        sizes = Sizes(1, 1, 1, 1000, keys)
        return launch_model.walks_of(kernel.tiling, sizes, block, tiles, is_causal=is_causal)

    assert walks(0, 2, 1000) == (Walk(1, 1, 0, 0), Walk(1, 1, 0, 0), Walk(0, 1, 1, 0))
    assert walks(1, 3, 1000) == (Walk(1, 1, 0, 1), Walk(0, 1, 1, 1), Walk(0, 1, 1, 1))
    # Later keys move the diagonal, and rows after the last see what that sees.
    assert walks(0, 2) == (Walk(1, 1, 0, 0), Walk(0, 2, 0, 0), Walk(0, 1, 1, 0))
    assert walks(5, 8) == (Walk(0, 1, 0, 7), Walk(0, 0, 1, 7), Walk(0, 0, 1, 7))
    assert walks(0, 8, is_causal=False) == (Walk(0, 0, 0, 8),) * 3


def test_a_launch_without_warpgroups_takes_iterations() -> None:
    kernel = build(AttentionConfig(128, dtype="f16", target="sm_80").kernel())
    assert clocks_of_blocks(kernel, target("sm_80")) is None
    said = estimate(kernel, busy(), 1, Sizes(1, 132, 132, 1024, 1024), H200)
    t = kernel.config.tiling
    iteration = 1000 * t.threads / 32 / 4
    beside = iteration * (0.5 / 2 + 0.5) + t.block_q * 256 * 2 / H200.bytes_per_clock
    blocks, tiles = 1024 // t.block_q, 1024 // t.tile
    assert said.clocks == pytest.approx(blocks * (tiles * iteration + beside))


def test_short_and_causal_launches_reach_less() -> None:
    rates = [launch(n).tflops(H200) for n in (512, 1024, 4096, 16384)]
    assert rates == sorted(rates)
    assert launch(causal=True).tflops(H200) < launch().tflops(H200)


def test_names_of_measured_kernels_are_those_that_the_config_emits() -> None:
    for counted in static_model.runs()["counters"]:
        assert Tiles.of_name(counted["kernel"]).config.kernel().name == counted["kernel"]
    why = "attention_forward_f16_d64_m128_n64 is no name of a forward kernel of f16 with wgmma and two stages"
    with pytest.raises(ValueError, match=f"^{why}$"):
        Tiles.of_name("attention_forward_f16_d64_m128_n64")


def test_the_command_has_a_job_for_each_counted_kernel_and_head_dim() -> None:
    counted = static_model.runs()["counters"]
    labels = [job.label for job in static_model.model_jobs(quick=False)]
    assert len(labels) == len(counted) + 2 * len(static_model.HEAD_DIMS)
    assert labels[-2:] == ["short launches d=256", "short launches d=256 causal"]
    assert len(static_model.model_jobs(quick=True)) == 1


def long_kernels() -> list[dict[str, Any]]:
    return [c for c in static_model.runs()["counters"] if c["N"] == LONG]


def short_kernels() -> list[dict[str, Any]]:
    return [c for c in static_model.runs()["counters"] if c["N"] < LONG]


@pytest.mark.slow
@pytest.mark.ptxas
@pytest.mark.usefixtures("assembler", "tools")
@pytest.mark.parametrize("counted", long_kernels(), ids=lambda c: c["kernel"])
def test_the_model_of_a_loop_agrees_with_the_counters(counted: dict[str, Any]) -> None:
    tiles = Tiles.of_name(counted["kernel"])
    share = 100 * static_model.read(tiles)[1].tensor
    assert abs(share - counted["tensor_pipe_%"]) < OFF.get(tiles.head_dim, POINTS)


@pytest.mark.slow
@pytest.mark.ptxas
@pytest.mark.usefixtures("assembler", "tools")
@pytest.mark.parametrize("counted", short_kernels(), ids=lambda c: c["kernel"])
def test_short_causal_launches_keep_tensor_cores_as_busy_as_the_counters_say(counted: dict[str, Any]) -> None:
    said = static_model.of_launch(Tiles.of_name(counted["kernel"]), counted["N"])
    assert 100 * said.tensor == pytest.approx(counted["tensor_pipe_%"], rel=TENTH)


@pytest.mark.slow
@pytest.mark.ptxas
@pytest.mark.usefixtures("assembler", "tools")
@pytest.mark.parametrize(
    ("head_dim", "key", "causal"),
    [
        (64, "192x128s", False),
        (128, "128x128s", False),
        (256, "128x80s", False),
        (64, "192x128g", True),
        (128, "128x128g", True),
        (256, "128x80g", True),
    ],
)
def test_short_launches_are_within_a_tenth_of_the_clock(head_dim: int, key: str, causal: bool) -> None:
    rows = {
        r["N"]: r[key]
        for r in static_model.runs()["tiles_by_length"]
        if (r["d"], r["causal"]) == (head_dim, causal)
    }
    assert sorted(rows) == [512, 1024, 2048, 4096, LONG]
    for n, tflops in rows.items():
        relation = static_model.relation(head_dim, key, n, causal)
        assert relation == pytest.approx(tflops / rows[LONG], rel=TENTH)


def test_the_row_of_a_counted_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_model, "read", lambda _: (None, busy(0.77), None))
    monkeypatch.setattr(static_model, "of_launch", lambda *_: Estimate(1.0, 1, 0.7))
    counted = long_kernels()[0]
    row, points = static_model.against_counters(counted)
    assert row == f"{counted['kernel']} | 16384 | 78.1 | 77.0 | 70.0 | -1.1"
    assert isinstance(points, Measurement)
    assert points.goal is not None
    assert points.goal.met_by(points.median)
    assert static_model.against_counters(counted | {"N": 1024}) == [
        f"{counted['kernel']} | 1024 | 78.1 | 77.0 | 70.0 | -"
    ]


def test_the_row_of_short_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_model, "relation", lambda *_: 1.0)
    *rows, worst = static_model.short_launches(256, causal=False)
    assert rows[0] == (
        "d=256 128x64s, model, clock | 512: 1.00, 0.67 | 1024: 1.00, 0.81 | 2048: 1.00, 0.91 "
        "| 4096: 1.00, 0.96 | 16384: 1.00, 1.00"
    )
    assert isinstance(worst, Measurement)
    assert worst.median == pytest.approx(785.0 / 499.2 - 1)
    assert rows[-1] == "d=256 | 2 of 8 in a tenth"
    *rows, worst = static_model.short_launches(256, causal=True)
    assert [row.partition(",")[0] for row in rows[:-1] if isinstance(row, str)] == [
        *("d=256 causal 128x64g", "d=256 causal 128x64m"),
        *("d=256 causal 128x80g", "d=256 causal 128x80m"),
    ]


@pytest.mark.slow
def test_predictions_are_of_every_case_and_of_texts_of_today() -> None:
    said = predictions()
    every = list(cases())
    assert [p.config for p in said] == [case.words for case in every]
    assert len({p.sha256 for p in said}) == len(said)
    hashes = {json.dumps(p.config): p.sha256 for p in said}
    for case in every:
        if not case.owner:
            text = build(case.config.kernel()).text
            assert hashes[json.dumps(case.words)] == hashlib.sha256(text.encode()).hexdigest(), (
                f"{case.words}: the text has changed; run python tools/gen_predictions.py"
            )


SAMPLE: list[Callable[[], Case]] = [
    lambda: Case(AttentionConfig(64, dtype="f16", target="sm_90a"), "sm_90a"),
    lambda: Case(AttentionConfig(64, dtype="f16", target="sm_80"), "sm_80"),
    lambda: Case(AttentionConfig(64, dtype="f16"), "sm_80", "keys"),
    lambda: Case(AttentionConfig(128, dtype="bf16", causal=True, target="sm_103a"), "sm_103a"),
]


@pytest.mark.slow
@pytest.mark.ptxas
@pytest.mark.usefixtures("assembler", "tools")
@pytest.mark.parametrize("of", SAMPLE, ids=["sm_90a", "sm_80", "gradients", "sm_103a"])
def test_committed_predictions_are_those_of_the_models(of: Callable[[], Case]) -> None:
    case = of()
    (entry,) = (
        e
        for e in json.loads(PREDICTIONS.read_text(encoding="utf-8"))["predictions"]
        if e["config"] == case.words
    )
    assert predict(case) == entry, "run python tools/gen_predictions.py"


def test_a_prediction_is_a_line_of_a_table(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(
        json.dumps(
            {
                "predictions": [
                    {
                        "kernel": "forward",
                        "config": {"target": "sm_80"},
                        "sha256": "0" * 64,
                        "tensor_%": 81.25,
                    }
                    | {"iteration_clocks": 12.5, "launches": [{"queries": 4096, "tflops": 250.4}]},
                    {"kernel": "keys", "config": {"target": "sm_90"}, "sha256": "1" * 64, "tensor_%": 60.0}
                    | {"iteration_clocks": 1.0, "launches": []},
                ]
            }
        )
    )
    first, second = predictions(tmp_path / "p.json")
    assert first.row == "forward sm_80 | 81.2 | 4096: 250"
    assert (second.row, second.iteration) == ("keys sm_90 | 60.0 | -", 1.0)


@pytest.mark.parametrize("share", [0.8, 0.4])
def test_a_launch_with_tcgen05_takes_its_iterations_and_rows(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = RoleClocks({Unit.TENSOR.value: 2048.0, WEIGHTS_ALONE: 2048.0 / share})
    monkeypatch.setattr(predicted.RoleReading, "of", lambda _: SimpleNamespace(clocks=clocks))
    said = predict(Case(AttentionConfig(128, dtype="bf16", target="sm_100a"), "sm_100a"))
    assert (said["tensor_%"], said["iteration_clocks"]) == (100 * share, 2048 / share)
    short, _, long = said["launches"]
    # 148 multiprocessors take 1024 blocks of 256 queries in seven rounds, each of 128 tiles of 128 keys.
    rows = 256 * (128 + 128) * 2 / (8000e9 / (148 * 1850e6))
    assert long["clocks"] == pytest.approx(7 * (128.5 * 2048 / share + 1024 + rows), rel=1e-3)
    operations = 4 * 128 * 16 * 16384**2
    assert long["tflops"] == pytest.approx(operations * 1850e6 / long["clocks"] / 1e12, abs=0.1)
    assert short["tflops"] < long["tflops"] < share * 2 * 4096 * 148 * 1850e6 / 1e12


def test_a_launch_is_predicted_for_the_device_of_its_target() -> None:
    assert predicted.device_of("sm_90a") is predicted.device_of("sm_90") is H200
    assert predicted.device_of("sm_80").name == "A100 SXM4 40 GB"
    assert [predicted.device_of(f"sm_{n}a").name for n in (100, 103)] == ["B200", "B300"]
    assert H200.bytes_per_clock == pytest.approx(18.4, abs=0.05)
