from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import Command, words

from benchmarks.measure import launch as bench_launch
from flash.commands import tune as tool
from flash.commands.measure import device as bench_device
from flash.commands.measure import tuning
from flash.commands.measure.gpu import Shape
from flash.commands.measure.static_quality import Counted, Subject, assembled
from flash.commands.measure.tuning import RULES, Candidate, Entry, Problem, Static, Timed, candidates, ranked
from flash.contract.catalogue import build
from flash.problem.config import AttentionConfig
from ptxgen.errors import AssemblerError, BackendError
from ptxgen.runtime.cuda import CudaBackend
from ptxgen.target import TARGETS

PROGRAM = "ptxgen tune"

SCRIPT = Path(__file__).parents[2] / "tools" / "tune.py"
PROBLEM = Problem(16, 16, "f16", False, "sm_80", 64)
KEY = "f16_d16_full_sm_80_n64 static"
ARGUMENTS = ["--head-dim", "16", "--seq", "64", "--static", "--output", "results"]
CLEAN = {"spilled_bytes": 0, "warps_per_sm": 8, "cost": 10.0, "shared_bytes": 100}


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder `results`, and a machine that says nothing of itself and has no GPU."""
    (tmp_path / "results").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tool, "versions", lambda: {"python": "3"})
    monkeypatch.setattr(tool, "open_gpu", no_gpu)
    return tmp_path / "results"


def no_gpu(*_: object) -> bench_device.Gpu:
    raise BackendError("cannot open the GPU: the driver lists no device")


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three candidates that nothing is asked about: the tiles with less shared memory cost less."""
    names: list[str] = []

    def judge(_: Static, candidate: Candidate) -> Entry:
        t = candidate.config.kernel().tiling
        names.append(candidate.config.kernel().name)
        figures = {"registers": 40, "ctas_per_sm": 4, "occupancy": 0.125, "wavefronts": 1.5}
        counts = {"instructions": 80.0, "bank_conflicts": 0, "hmma_share": 0.25}
        return {**CLEAN, **figures, **counts, "cost": float(t.tile), "shared_bytes": t.tile}

    monkeypatch.setattr(Static, "judge", judge)
    monkeypatch.setattr(Static, "means", "an assembler 1.0")
    monkeypatch.setattr(tool, "candidates", lambda problem: candidates(problem)[:3])
    return names


def result(path: Path) -> dict[str, Any]:
    actual: dict[str, Any] = json.loads(path.read_text())
    return actual


# ---------------------------------------------------------------------------- candidates, ranks


def test_the_default_is_the_first_candidate_and_none_comes_twice() -> None:
    actual = candidates(PROBLEM)
    names = [candidate.config.kernel().name for candidate in actual]
    assert names[0] == AttentionConfig(16, dtype="f16").kernel().name
    assert [candidate.is_default for candidate in actual] == [True] + [False] * (len(actual) - 1)
    assert len(set(names)) == len(names)
    assert {candidate.stages for candidate in actual} == {1, 2, 3, 4}


def test_stages_that_do_not_fit_are_no_candidates() -> None:
    wide = dataclasses.replace(PROBLEM, head_dim=256, head_dim_v=256, target="sm_86")
    actual = {(c.config.kernel().tiling.tile, c.stages) for c in candidates(wide)}
    assert (16, 4) in actual
    assert (32, 2) in actual
    assert (32, 3) not in actual


def test_f32_has_candidates_of_one_stage() -> None:
    actual = candidates(dataclasses.replace(PROBLEM, dtype="f32"))
    assert {candidate.stages for candidate in actual} == {1}
    assert len(actual) > 3


@pytest.mark.parametrize(
    "worse",
    [
        {"spilled_bytes": 4, "warps_per_sm": 64, "cost": 1.0, "shared_bytes": 1},
        {"warps_per_sm": 7, "cost": 1.0, "shared_bytes": 1},
        {"cost": 10.1, "shared_bytes": 1},
        {"shared_bytes": 101},
        {"failed": "refused", "cost": 1.0},
    ],
)
def test_what_spills_has_few_warps_or_costs_more_comes_behind(worse: Entry) -> None:
    actual = ranked([CLEAN | worse, CLEAN], "static")
    assert actual == [{**CLEAN, "rank": 1}, {**CLEAN, **worse, "rank": 2}]


def test_of_two_that_spill_the_one_that_spills_less_comes_first() -> None:
    less, more = ({**CLEAN, "spilled_bytes": n} for n in (8, 16))
    assert [e["spilled_bytes"] for e in ranked([more, less], "static")] == [8, 16]


def test_more_warps_than_enough_do_not_rank() -> None:
    many = {**CLEAN, "warps_per_sm": 64, "cost": 11.0}
    assert ranked([many, CLEAN], "static")[0]["cost"] == 10.0


def test_few_warps_do_not_rank_where_the_model_knows_what_they_cost() -> None:
    few = {**CLEAN, "warps_per_sm": 4, "tensor_share": 0.5, "cost": 9.0}
    assert ranked([{**CLEAN, "tensor_share": 0.4}, few], "static")[0]["cost"] == 9.0


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.ptxas
@pytest.mark.parametrize("causal", [False, True])
def test_a_candidate_is_judged_by_assembler_and_interpreter(causal: bool) -> None:
    problem = dataclasses.replace(PROBLEM, causal=causal)
    first, *_ = candidates(problem)
    actual = Static(problem).judge(first)
    assert actual["registers"] > 20
    assert (actual["spilled_bytes"], actual["bank_conflicts"]) == (0, 0)
    assert actual["warps_per_sm"] == 64 * actual["occupancy"]
    assert actual["cost"] >= max(actual["instructions"] / 4, actual["wavefronts"])
    assert 0 < actual["hmma_share"] < 1
    assert Static(problem).means.startswith("ptxas ")


@pytest.mark.slow
@pytest.mark.ptxas
def test_the_issue_model_weighs_the_products_that_a_launch_executes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "count", lambda *_: Counted(320.0, 1.0, 0, 0.25))
    actual = Static(PROBLEM).judge(candidates(PROBLEM)[0])
    # 80 products of m16n8k16 for 1000 scores, each of which takes a quarter of a multiprocessor for 8 clocks.
    assert actual["cost"] * actual["tensor_share"] == pytest.approx(80 * 8 / 4, rel=0.05)


@pytest.mark.slow
@pytest.mark.ptxas
@pytest.mark.usefixtures("assembler", "disassembler")
@pytest.mark.parametrize("causal", [False, True])
def test_the_model_of_roles_weighs_the_tiles_that_a_launch_visits(
    causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "count", lambda *_: Counted(4.0, 1.0, 0, 0.0))
    problem = Problem(64, 64, "f16", causal, "sm_100a", 256)
    config = problem.config(128, 256, 1)
    kernel = build(config.kernel())
    actual = Static(problem).judge(Candidate(config, is_default=False))
    roles = assembled(Subject.of(kernel), kernel.config.target).roles
    assert roles is not None
    assert actual["tensor_share"] == roles.tensor
    # The only block of queries visits two tiles, of which a mask hides none.
    seen = 256 * 257 / 2 if causal else 256 * 256
    assert actual["cost"] == pytest.approx(2 * roles.of_iteration * 1000 / seen)


# ---------------------------------------------------------------------------- the result


def test_a_result_has_a_schema_and_says_how_it_came_about(
    judged: list[str], results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.main([*ARGUMENTS, "--json"]) == 0
    actual = result(results / "tune-static.json")
    assert (actual["schema"], actual["device"], actual["versions"]) == (1, "static", {"python": "3"})
    record = actual["problems"][KEY]
    assert record["problem"] == dataclasses.asdict(PROBLEM)
    assert (record["method"], record["means"]) == ("static", "an assembler 1.0")
    assert record["rule"] == RULES["static"]
    assert [entry["rank"] for entry in record["candidates"]] == [1, 2, 3]
    assert [entry["cost"] for entry in record["candidates"]] == [16.0, 16.0, 64.0]
    assert [entry["default"] for entry in record["candidates"]] == [False, False, True]
    assert len(record["candidates"][0]["sha256"]) == 64
    said = capsys.readouterr()
    assert json.loads(said.out) == record
    assert said.err.endswith(f"written to {Path('results') / 'tune-static.json'}\n")
    assert said.err.startswith(f"[1/3] {judged[0]} sm_80\n")


@pytest.mark.usefixtures("judged")
def test_the_ranking_is_a_table_for_people(call: Command) -> None:
    lines = call.out(*ARGUMENTS).splitlines()
    assert lines[:3] == [
        "d=16 d_v=16 f16 full sm_80 N=64, by an assembler 1.0",
        "    tile  block_q  stages  threads  registers  spilled  shared  warps/SM  instr.  "
        "wavefronts  conflicts  HMMA share  tensor cores  cost",
        " 1    16       32       1       64         40        0      16         8      80         "
        "1.5          0        0.25                  16",
    ]
    assert lines[4].startswith("3*    64      128       1      128")
    assert " ".join(lines[5:]) == f"rank: {RULES['static']}; * is the default"


def test_nothing_is_written_unasked(
    judged: list[str], results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.main(ARGUMENTS[:-2]) == 0
    assert len(judged) == 3
    assert "written" not in capsys.readouterr().err
    assert list(results.parent.rglob("*")) == [results]


def test_what_is_known_is_not_judged_again(judged: list[str], results: Path) -> None:
    assert tool.main(ARGUMENTS) == tool.main([*ARGUMENTS, "--causal"]) == 0
    assert len(set(judged)) == len(judged) == 6
    before = result(results / "tune-static.json")
    assert tool.main(ARGUMENTS) == 0
    assert len(judged) == 6
    assert result(results / "tune-static.json") == before
    assert len(before["problems"]) == 2


def test_a_run_that_was_stopped_goes_on(
    judged: list[str], results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = Static.judge

    def stop(method: Static, candidate: Candidate) -> Entry:
        if len(judged) == 2:
            raise KeyboardInterrupt
        return judge(method, candidate)

    with monkeypatch.context() as patched:
        patched.setattr(Static, "judge", stop)
        with pytest.raises(KeyboardInterrupt):
            tool.main(ARGUMENTS)
    known = result(results / "tune-static.json")["problems"][KEY]["candidates"]
    assert sorted(entry["kernel"] for entry in known) == sorted(judged[:2])
    assert tool.main(ARGUMENTS) == 0
    assert len(judged) == 3


@pytest.mark.parametrize("change", ["means", "sha256", "failed"])
def test_another_text_or_assembler_is_judged_again(judged: list[str], results: Path, change: str) -> None:
    assert tool.main(ARGUMENTS) == 0
    path = results / "tune-static.json"
    actual = result(path)
    record = actual["problems"][KEY]
    changed = record if change == "means" else record["candidates"][0]
    changed[change] = "by hand"
    path.write_text(json.dumps(actual))
    assert tool.main(ARGUMENTS) == 0
    assert len(judged) == (6 if change == "means" else 4)
    again = result(path)["problems"][KEY]
    assert again["means"] == "an assembler 1.0"
    assert "by hand" not in json.dumps(again)


def test_a_candidate_that_fails_does_not_end_the_others(
    judged: list[str], results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    judge = Static.judge

    def refuse(method: Static, candidate: Candidate) -> Entry:
        if candidate.is_default:
            raise AssemblerError("refused")
        return judge(method, candidate)

    monkeypatch.setattr(Static, "judge", refuse)
    assert tool.main(ARGUMENTS) == 1
    assert len(judged) == 2
    last = result(results / "tune-static.json")["problems"][KEY]["candidates"][-1]
    assert (last["rank"], last["default"], last["failed"]) == (3, True, "refused")
    said = capsys.readouterr().out.splitlines()
    assert said[4] == "3*    64      128       1      128"
    assert said[-1] == "attention_forward_f16_d16_m128_n64 failed: refused"


# ---------------------------------------------------------------------------- on a GPU


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A simulated GPU on which every launch takes 1.5 ms, and those of tiles of 16 keys 1 ms."""
    pytest.importorskip("cuda.bindings.driver")
    driver = bench_launch.load_fake_driver().FakeDriver(
        version=1000
    )  # too old for cubins: programs stay text
    driver.gpu_ms = 1.5

    def run(launch: Any) -> None:
        driver._clock_ms -= 0.5 * ("_n16" in launch.entry)

    driver.on_launch = run
    monkeypatch.setattr(bench_device.Gpu, "clocks", lambda _: {})
    monkeypatch.setattr(tool, "open_gpu", lambda _: bench_device.open_gpu(CudaBackend(driver)))
    small = functools.partial(Shape, tokens=64, width=16)
    monkeypatch.setattr(tuning, "Shape", small)
    monkeypatch.setattr(tool, "candidates", lambda problem: candidates(problem)[:3])
    return driver


def test_on_a_gpu_candidates_rank_by_time_beside_the_default(
    driver: Any, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--head-dim", "16", "--head-dim-v", "32", "--dtype", "bf16", "--seq", "64"]
    assert tool.main([*arguments, "--output", "results"]) == 0
    actual = result(results / "tune-fake-h100.json")
    assert actual["device"] == "Fake H100"
    record = actual["problems"]["bf16_d16v32_full_sm_90a_n64 gpu"]
    assert (record["means"], record["rule"]) == ("Fake H100, driver 1.0", RULES["gpu"])
    first, second, third = record["candidates"]
    assert [e["ms"] for e in (first, second, third)] == pytest.approx([1.0, 1.0, 1.5])
    assert [e["times_default"] for e in (first, second, third)] == pytest.approx([2 / 3, 2 / 3, 1])
    assert (third["default"], third["samples"], third["least_ms"]) == (True, 15, 1.5)
    assert driver.memory == {}
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "d=16 d_v=32 bf16 full sm_90a N=64, by Fake H100, driver 1.0"
    assert lines[1].split() == ["tile", "block_q", "stages", "threads", "ms", "least", "x", "default"]
    assert lines[4].split()[0] == "3*"


@pytest.mark.usefixtures("driver", "judged")
@pytest.mark.parametrize("more", [["--static"], ["--target", "sm_80"]])
def test_another_target_than_the_gpus_is_not_measured(more: list[str], results: Path) -> None:
    assert tool.main(["--head-dim", "16", *more, "--output", "results"]) == 0
    assert (results / "tune-static.json").exists()
    assert list(results.iterdir()) == [results / "tune-static.json"]


def test_the_default_alone_is_its_own_measure(driver: Any) -> None:
    gpu = bench_device.open_gpu(CudaBackend(driver))
    problem = dataclasses.replace(PROBLEM, target=gpu.target.name)
    with tuning.timed(problem, gpu) as method:
        assert isinstance(method, Timed)
        assert method.judge(candidates(problem)[0])["times_default"] == 1.0


# ---------------------------------------------------------------------------- refusals


NO_GPU = "--gpu needs a GPU: cannot open the GPU: the driver lists no device"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("--head-dim 16 --gpu", 4, NO_GPU),
        (
            "--head-dim 16 --dtype bf16 --target sm_75",
            3,
            "AttentionConfig: dtype='bf16' needs sm_80 or later, before which tensor cores multiply f16 "
            "alone, got sm_75; use dtype='f16' or 'f32'",
        ),
        (
            "--head-dim 700",
            3,
            "AttentionConfig: head_dim must be an integer from 1 to 576, got 700; beyond 576 a CTA cannot "
            "keep its rows in shared memory",
        ),
        (
            "--head-dim 16 --target sm_81",
            3,
            f"unknown target 'sm_81'; did you mean 'sm_80'? Known targets: {', '.join(TARGETS)}",
        ),
    ],
)
def test_what_cannot_be_measured_has_an_exit_code(
    arguments: str, code: int, message: str, results: Path, call: Command
) -> None:
    assert call.error(*words(arguments)) == (code, message)
    assert not list(results.iterdir())


@pytest.mark.usefixtures("driver")
def test_a_gpu_of_another_target_is_exit_code_4(call: Command) -> None:
    message = "--gpu measures for sm_90a, which Fake H100 is, got --target sm_80; leave out one of the two"
    assert call.error("--head-dim", "16", "--gpu", "--target", "sm_80") == (4, message)


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5"])
def test_a_length_is_a_whole_number(value: str, call: Command) -> None:
    assert (
        call.usage("--head-dim", "16", f"--seq={value}")
        == f"argument --seq: must be a whole number of at least 1, got {value!r}"
    )


@pytest.mark.usefixtures("judged")
@pytest.mark.parametrize(
    "content",
    [
        "no JSON",
        "[]",
        '{"problems": 3}',
        '{"problems": {}}',
        '{"schema": 0, "device": "static", "problems": {}}',
        '{"schema": 1, "device": "NVIDIA H100", "problems": {}}',
        '{"schema": 1, "device": "static", "problems": {"one": []}}',
        '{"schema": 1, "device": "static", "problems": {"one": {"candidates": null}}}',
        '{"schema": 1, "device": "static", "problems": {"one": {"candidates": [3]}}}',
        '{"schema": 1, "device": "static", "problems": {"one": {"candidates": []}',
    ],
)
def test_a_file_of_another_kind_is_not_overwritten(content: str, tmp_path: Path, call: Command) -> None:
    path = tmp_path / "mine.json"
    path.write_text(content)
    message = f"{path} is no result of schema 1 for static; name another file with --output, or remove it"
    assert call.error(*ARGUMENTS, "--output", str(path)) == (1, message)
    assert path.read_text() == content


@pytest.mark.usefixtures("judged")
def test_a_result_that_cannot_be_read_or_written_is_exit_code_1(
    tmp_path: Path, call: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tune.json"
    (path / "tune-static.json").mkdir(parents=True)
    code, message = call.error(*ARGUMENTS, "--output", str(path))
    assert code == 1
    assert message.startswith("the result file cannot be read: ")

    def refuse(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, "replace", refuse)
    code, out, err = call(*ARGUMENTS)
    assert (code, out) == (1, "")
    assert err.splitlines()[-1] == (
        "ptxgen tune: error: cannot write results/tune-static.json: no space; name another file with --output"
    )


def test_without_an_assembler_the_exit_code_is_1(
    monkeypatch: pytest.MonkeyPatch, call: Command, results: Path
) -> None:
    def none(**_: object) -> Callable[..., None]:
        raise BackendError("no PTX assembler found")

    monkeypatch.setattr(tuning, "find_assembler", none)
    assert call.error(*ARGUMENTS) == (1, "no PTX assembler found")
    assert not list(results.iterdir())


def test_the_help_has_the_rules(call: Command) -> None:
    shown = " ".join(call.help().split())
    assert all(" ".join(rule.split()) in shown for rule in RULES.values())


def test_a_variable_with_a_value_that_cannot_be_used_is_2(
    call: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTXGEN_CACHE", "maybe")
    message = "PTXGEN_CACHE must be one of on, off, got 'maybe'"
    assert call.error("--head-dim", "16", "--static") == (2, message)
