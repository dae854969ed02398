"""A session of a GPU: order, bounds, journal and results, and a rehearsal of all parts on a fake driver."""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measure.predictions import Prediction
from benchmarks.measure.predictions import predictions as committed
from flash.commands.measure.record import measured
from ptxgen.commands.parts.files import FileError
from tools import gpu_session
from tools.gpu import clocks, counters, predictions, pytest_run, sanitizer, timing, wheels, worker
from tools.gpu.journal import Journal
from tools.gpu.phases import MINUTES, PARTS, deadline
from tools.gpu.results import Results, ordered
from tools.gpu.unit import MissingError, Unit
from tools.gpu.watch import Watch

ROOT = Path(__file__).resolve().parents[2]
DEVICE = {"name": "Fake H100", "sm": "sm_90"}


def end(
    unit: str, verdict: str = "passed", run: int = 1, part: str = "timing", **more: Any
) -> dict[str, Any]:
    line = {"event": "end", "part": part, "unit": unit, "verdict": verdict, "run": run, "when": "now", **more}
    return {"seconds": 1.0, "said": "", **line}


# ------------------------------------------------------------------------------ order, results, journal


def test_what_was_never_measured_comes_first_and_what_this_run_has_done_not_again() -> None:
    history = {
        "old": (1, "passed"),
        "bad": (2, "failed"),
        "cut": (2, "cut"),
        "new": (2, "passed"),
        "done": (3, "hung"),
    }
    assert ordered(["done", "new", "old", "bad", "cut", "never"], history, 3) == [
        "never",
        "cut",
        "bad",
        "old",
        "new",
    ]


def test_a_later_run_replaces_the_same_entry_and_leaves_others(tmp_path: Path) -> None:
    path = tmp_path / "fake.json"
    results = Results.read(path, DEVICE)
    results.begin(DEVICE, {"run": 1})
    calls = [{"who": "ours", "ms": 2.0}, {"who": "cudnn", "ms": 3.0}]
    results.merge([end("a", calls=calls), end("b", calls=[{"who": "ours", "ms": 9.0}])])
    results.save()
    again = Results.read(path, DEVICE)
    assert again.document == results.document
    assert again.next_run == 2
    again.begin(DEVICE, {"run": 2})
    again.merge(
        [end("a", run=2, calls=[{"who": "ours", "ms": 1.0}]), end("b", "missing", run=2, said="no torch")]
    )
    again.save()
    stored = json.loads(path.read_text())
    assert [(row["unit"], row["who"], row["ms"], row["run"]) for row in stored["calls"]] == [
        ("b", "ours", 9.0, 1),
        ("a", "ours", 1.0, 2),
    ]
    entries = stored["parts"]["timing"]
    assert (entries["a"]["run"], entries["b"]["run"], entries["b"]["verdict"]) == (2, 1, "passed")
    assert [run["run"] for run in stored["runs"]] == [1, 2]


def test_a_run_changes_few_lines_of_the_file(tmp_path: Path) -> None:
    results = Results.read(tmp_path / "fake.json", DEVICE)
    results.begin(DEVICE, {"run": 1})
    results.merge([end(name, calls=[{"who": "ours", "ms": 1.0}]) for name in "abc"])
    results.save()
    before = results.path.read_text().splitlines()
    results.merge([end("c", calls=[{"who": "ours", "ms": 2.0}])])
    results.save()
    changed = [(a, b) for a, b in zip(before, results.path.read_text().splitlines(), strict=True) if a != b]
    assert len(changed) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "{",
            "cannot read {}: Expecting property name enclosed in double quotes: line 1 column 2 "
            "(char 1); name another folder with --output",
        ),
        (
            '{"schema": 1, "device": {"name": "NVIDIA A100"}}',
            "{} has schema 1 and results of NVIDIA A100; wanted schema 1 and Fake H100; name another folder "
            "with --output",
        ),
    ],
)
def test_a_file_of_something_else_is_not_overwritten(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "fake.json"
    path.write_text(text)
    with pytest.raises(FileError) as refused:
        Results.read(path, DEVICE)
    assert str(refused.value) == said.format(path)


def test_units_that_no_run_has_measured_are_counted_with_the_reasons(tmp_path: Path) -> None:
    results = Results.read(tmp_path / "fake.json", DEVICE)
    units = {"event": "units", "part": "timing", "units": ["a", "b", "c", "d"]}
    results.merge([units, end("a"), end("b", "missing", said="no torch"), end("c", "cut", said="over")])
    assert results.unmeasured("timing") == (3, ["no torch", "over"])
    assert results.counted("timing", 1) == {"passed": 1, "missing": 1, "cut": 1}


def test_a_journal_holds_back_a_line_that_is_being_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", {"run": 1})
    assert journal.new() == []
    journal.write("end", unit="a", ms=float("nan"), errors=[float("inf"), 1.5])
    with journal.path.open("a") as file:
        file.write('no JSON\n{"event": "be')
    assert journal.new() == [{"event": "end", "run": 1, "unit": "a", "ms": None, "errors": [None, 1.5]}]
    with journal.path.open("a") as file:
        file.write('gin"}\n')
    assert journal.new() == [{"event": "begin"}]


def test_parts_share_the_time_and_what_is_left_of_it() -> None:
    total = sum(part.seconds for part in PARTS)
    assert total <= 60 * MINUTES
    now = 0.0
    for number, part in enumerate(PARTS):
        until = deadline(part, list(PARTS[number + 1 :]), now, total)
        assert until == pytest.approx(now + part.seconds)
        now = until
    assert now == pytest.approx(total)
    assert deadline(PARTS[-1], [], 7.0, 90.0) == 90.0  # whatever the others did not use
    assert deadline(PARTS[0], list(PARTS[1:]), 95.0, 90.0) < 95.0  # nothing is left


# ------------------------------------------------------------------------------ processes, by a fake clock


class Script:
    """A process that does one step at each look: a line of the journal, an exit code, or nothing."""

    def __init__(self, journal: Journal, number: int, steps: Sequence[Any]) -> None:
        self.journal, self.number, self.steps, self.killed = journal, number, list(steps), False

    def poll(self) -> int | None:
        if self.killed:
            return -9
        step = self.steps[0] if self.steps else None
        if isinstance(step, int):
            return step
        if step is not None:
            self.steps.pop(0)
            event, unit = step
            line = {"verdict": "passed", "said": "", "seconds": 1.0, "when": "now"} if event == "end" else {}
            self.journal.write(event, unit=unit, worker=self.number, run=1, part="timing", **line)
        return None

    def kill(self) -> None:
        self.killed = True

    def last_output(self) -> str:
        return "the last words"


class Bounded:
    """A watch over scripts, whose clock advances with each sleep."""

    def __init__(
        self, tmp_path: Path, *scripts: Sequence[Any], unit_s: float = 10.0, until: float = 100.0
    ) -> None:
        self.now = 0.0
        self.results = Results.read(tmp_path / "fake.json", DEVICE)
        journal = Journal(tmp_path / "journal", {"run": 1, "part": "timing"})
        waiting = list(scripts)
        self.started: list[Script] = []

        def start(number: int) -> Script:
            self.started.append(Script(journal, number, waiting.pop(0)))
            return self.started[-1]

        self.watch = Watch(start, journal, self.results.merge, unit_s, until, lambda: self.now, self.sleep)

    def sleep(self, _: float) -> None:
        self.now += 1.0

    def verdicts(self) -> dict[str, str]:
        return {unit: verdict for unit, (_, verdict) in self.results.history("timing").items()}


DONE = ("complete", "")


def test_a_unit_that_hangs_is_ended_and_the_rest_goes_on(tmp_path: Path) -> None:
    bounded = Bounded(
        tmp_path, [("begin", "a"), ("end", "a"), ("begin", "b")], [("begin", "c"), ("end", "c"), DONE, 0]
    )
    assert bounded.watch.run(1) == []
    assert bounded.verdicts() == {"a": "passed", "b": "hung", "c": "passed"}
    assert bounded.results.document["parts"]["timing"]["b"]["said"] == "not done within 10 s"
    assert bounded.started[0].killed


def test_a_process_that_crashes_costs_the_unit_that_it_was_doing(tmp_path: Path) -> None:
    bounded = Bounded(
        tmp_path, [("begin", "a"), ("end", "a"), ("begin", "b"), -11], [("begin", "c"), ("end", "c"), DONE, 0]
    )
    assert bounded.watch.run(1) == []
    assert bounded.verdicts() == {"a": "passed", "b": "crashed", "c": "passed"}
    said = bounded.results.document["parts"]["timing"]["b"]["said"]
    assert said == "its process ended with -11: the last words"


def test_a_process_that_does_not_begin_is_not_started_for_ever(tmp_path: Path) -> None:
    bounded = Bounded(tmp_path, [1], [("begin", "a"), ("end", "a"), DONE, 0])
    assert bounded.watch.run(2) == ["process 0 ended before its first unit: the last words"]
    assert bounded.verdicts() == {"a": "passed"}


@pytest.mark.parametrize("steps", [[("begin", "a")], [("begin", "a"), ("end", "a"), ("begin", "b")], []])
def test_no_process_outlives_the_time_of_its_part(steps: Sequence[Any], tmp_path: Path) -> None:
    bounded = Bounded(tmp_path, steps, [], unit_s=50.0, until=30.0)
    assert bounded.watch.run(2) == []
    assert bounded.now <= 30.0
    assert all(script.killed for script in bounded.started)
    began = {unit for event, unit in steps if event == "begin"}
    assert bounded.verdicts() == {unit: "passed" if ("end", unit) in steps else "cut" for unit in began}


def test_processes_are_ended_when_the_session_is_interrupted(tmp_path: Path) -> None:
    bounded = Bounded(tmp_path, [("begin", "a")])

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    bounded.watch.sleep = interrupt
    with pytest.raises(KeyboardInterrupt):
        bounded.watch.run(1)
    assert bounded.started[0].killed


# ------------------------------------------------------------------------------ one process


@pytest.fixture
def process(tmp_path: Path) -> Callable[..., tuple[int, list[dict[str, Any]]]]:
    """Does units as a process of a part does, and returns its exit code and journal."""

    def do(units: Sequence[Unit], history: dict[str, Any] | None = None, seconds: float = 60.0) -> Any:
        journal = Journal(tmp_path / "journal", {"run": 2, "part": "smoke"})
        file = tmp_path / "history.json"
        file.write_text(json.dumps(history or {}))
        how = argparse.Namespace(history=file, run=2, seconds=seconds, output=tmp_path)
        code = worker.do_all(units, journal, how)
        return code, journal.new()

    return do


def test_the_verdict_of_a_unit_says_what_went_wrong(process: Any) -> None:
    def wrong() -> Any:
        raise ValueError("of the second")

    def missing() -> Any:
        raise MissingError("no torch")

    units = [Unit("a", lambda: {"said": "fine"}), Unit("b", wrong), Unit("c", missing)]
    code, lines = process(units)
    ends = {line["unit"]: (line["verdict"], line["said"]) for line in lines if line["event"] == "end"}
    assert code == 0
    assert ends["a"] == ("passed", "fine")
    assert ends["b"][0] == "failed"
    assert ends["b"][1].startswith("ValueError: of the second (wrong, line ")
    assert ends["c"] == ("missing", "no torch")
    assert lines[0]["units"] == ["a", "b", "c"]
    assert lines[-1]["event"] == "complete"


def test_a_destroyed_context_ends_the_process_after_its_unit(process: Any) -> None:
    from ptxgen.errors import PoisonedContextError

    def poison() -> Any:
        raise PoisonedContextError("an illegal address")

    code, lines = process([Unit("a", poison), Unit("b", dict)])
    assert code == worker.POISONED
    assert [line["event"] for line in lines] == ["units", "begin", "end"]


def test_ceilings_are_measured_in_every_process_and_the_rest_once(process: Any) -> None:
    units = [Unit("ceiling", dict, always=True), Unit("a", dict), Unit("b", dict)]
    _, lines = process(units, {"ceiling": [2, "passed"], "a": [2, "passed"]})
    assert [line["unit"] for line in lines if line["event"] == "begin"] == ["ceiling", "b"]


def test_units_whose_texts_never_ran_come_first_among_those_with_known_kernels(tmp_path: Path) -> None:
    from benchmarks.measure.gpu_attention import Call
    from flash.silicon.ledger import RAN, key
    from tools.commands.silicon_runs import Run, append
    from tools.gpu.order import launched_by, new_texts_first

    kernels = [launched_by(Call("f32", 64, n, causal=True, precision="ieee"), "sm_80") for n in (512, 1024)]
    (first, second) = (kernel for kernel in kernels if kernel is not None)
    assert launched_by(Call("f32", 64, 512, causal=True, heads=2), "sm_80") is None
    units = [
        *(Unit("a", dict), Unit("ran", dict, kernel=first), Unit("b", dict)),
        Unit("new", dict, kernel=replace(second, name="of another name")),
    ]
    by_name = {unit.name: unit for unit in units}
    file = tmp_path / "runs.jsonl"
    assert new_texts_first(list(by_name), by_name, file) == list(by_name)
    append(file, Run("a test", "a GPU", "8.0", "1", RAN, {key(first.text()): first.words}))
    assert new_texts_first(list(by_name), by_name, file) == ["a", "new", "b", "ran"]


def test_a_call_for_gradients_launches_on_hopper_kernels_with_wgmma() -> None:
    from benchmarks.measure.gpu_gradients import gradient_calls
    from tools.gpu.order import gradients_launched_by

    for target, is_hopper in (("sm_90a", True), ("sm_90", False)):
        kernels = [gradients_launched_by(call, target) for call in gradient_calls(quick=False).values()]
        assert len({kernel.words for kernel in kernels}) == 4
        for kernel in kernels:
            assert kernel.words.startswith("attention_gradient_keys_")
            assert ("_wgmma_" in kernel.name) is is_hopper
            assert f".target {target}" in kernel.text()


def test_no_unit_begins_when_the_time_is_over(process: Any) -> None:
    code, lines = process([Unit("a", dict)], seconds=0.0)
    assert (code, [line["event"] for line in lines]) == (0, ["units", "complete"])


# ------------------------------------------------------------------------------ what parts store


def test_each_contestant_has_a_row() -> None:
    of = {"dtype": "f16", "d": 128, "N": 4096, "causal": True}
    items = [
        "a remark",
        measured("ours", "ms", [2.0], config=of),
        measured("ours, useful", "TFLOP/s", [500.0], config=of),
        measured("ours, error", "", [1e-4], config=of),
        measured("torch CUDNN_ATTENTION", "ms", [4.0], config=of),
        measured("torch CUDNN_ATTENTION, error", "", [float("nan")], config=of),
        measured("speed of ours / torch CUDNN_ATTENTION", "x", [2.0], config=of),
    ]
    call = {"kind": "forward", "dtype": "f16", "d": 128, "n": 4096, "causal": True, "iqr_ms": 0.0}
    assert timing.rows_of("forward", items) == [
        {"who": "ours", **call, "ms": 2.0, "tflops": 500.0, "err": 1e-4},
        {"who": "cudnn", **call, "ms": 4.0, "err": None},
    ]
    step = {"B": 4, "kv": 2}
    decode = [
        measured("decoding", "us", [500.0], config=step),
        measured("decoding, read + written", "TB/s", [3.0], config=step),
        measured("decoding, of the copy ceiling", "%", [88.0], config=step),
    ]
    assert timing.rows_of("decode", decode) == [
        {
            "who": "decoding",
            "kind": "decode",
            "B": 4,
            "kv_heads": 2,
            "ms": 0.5,
            "iqr_ms": 0.0,
            "tbs": 3.0,
            "of_copy_%": 88.0,
        }
    ]


TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
CSV = """==PROF== Connected to process 7
{"texts": {"abc": "attention_forward for sm_90a"}}
==PROF== Disconnected from process 7
"ID","Kernel Name","TENSOR","gpu__time_duration.sum","sm__inst_executed.sum"
"","","%","us","inst"
"0","attention_forward","78.14","3,195.65","905,392,103"
""".replace("TENSOR", TENSOR)
QUERY = """Device NVIDIA H200 (GH100)
sm__pipe_tensor_cycles_active   Counter  cycle  # of cycles
gpu__time_duration              Counter  ns     time
sm__inst_executed               Counter  inst   # of warp instructions
"""


def test_counters_are_read_with_their_units() -> None:
    metrics = {name: of[0] for name, of in counters.METRICS.items()}
    row, texts = counters.read(CSV, metrics)
    assert row == {
        "kernel": "attention_forward",
        "tensor_pipe_%": 78.14,
        "ns": 3195650,
        "warp_instructions": 905392103,
    }
    assert texts == {"abc": "attention_forward for sm_90a"}
    assert counters.read("==ERROR== ERR_NVGPUCTRPERM", metrics) == ({}, {})


def stub(folder: Path, name: str, body: str) -> None:
    """A program of this name on PATH that runs Python."""
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport subprocess, sys\n{body}")
    path.chmod(0o755)


NCU = f"""
if "--query-metrics" in sys.argv:
    print({QUERY!r})
else:
    ran = subprocess.run(sys.argv[sys.argv.index(sys.executable):], capture_output=True, text=True)
    print(*[line for line in {CSV!r}.splitlines() if not line.startswith("{{")], ran.stdout, sep="\\n")
    sys.stderr.write(ran.stderr)
"""


def test_a_metric_that_a_gpu_lacks_is_said(tmp_path: Path) -> None:
    stub(tmp_path, "ncu", NCU)
    known = counters.available(str(tmp_path / "ncu"))
    assert {name for name, metric in known.items() if metric} == {"tensor_pipe_%", "ns", "warp_instructions"}


def test_a_machine_without_ncu_or_compute_sanitizer_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    name, call = next(iter(counters.calls(rehearse=True).items()))
    with pytest.raises(MissingError) as missing:
        counters.counted(name, call, ())
    assert str(missing.value) == "ncu is not on PATH: install Nsight Compute"


@pytest.mark.parametrize(("code", "verdict"), [(0, "passed"), (1, "failed")])
def test_the_verdict_of_the_witness_is_that_of_the_unit(
    code: int, verdict: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from types import SimpleNamespace

    monkeypatch.setattr(sanitizer, "find_sanitizer", lambda: SimpleNamespace(version="2026.4"))
    gpu = SimpleNamespace(device_properties=lambda _: SimpleNamespace(major=9, minor=0))
    monkeypatch.setattr(sanitizer, "cuda_backend", lambda: gpu)
    stub(tmp_path, "witness", f'print(\'{{"counts": {{"both": 2, "neither": 1}}}}\'); sys.exit({code})')
    said = sanitizer.witnessed("f32-sm_80", (str(tmp_path / "witness"),))
    assert said == {"verdict": verdict, "said": "2026.4: 2 both, 1 neither"}


def test_clocks_are_the_least_the_median_and_the_most(tmp_path: Path) -> None:
    said = "1980, 690.5, 50\n1600, 700.1, 55\nN/A, 710, 60\nbroken\n"
    assert clocks.summary(said) == {
        "sm_clock_mhz": [1600.0, 1790.0, 1980.0],
        "power_w": [690.5, 700.1, 710.0],
        "temperature_c": [50.0, 55.0, 60.0],
    }
    with clocks.sampled(str(tmp_path / "none")) as sample:
        pass
    assert sample == {}


def test_clocks_are_sampled_while_a_part_runs(tmp_path: Path) -> None:
    stub(tmp_path, "smi", "import time\nprint('1980, 650.0, 40', flush=True)\ntime.sleep(60)")
    with clocks.sampled(str(tmp_path / "smi")) as sample:
        time.sleep(1.0)  # the program prints once it has started
    assert sample in ({}, {"sm_clock_mhz": [1980.0] * 3, "power_w": [650.0] * 3, "temperature_c": [40.0] * 3})


# ------------------------------------------------------------------------------ tests of pytest


def verdicts(
    tmp_path: Path, part: str, seed: int = 1, history: Any = None, worker: int = 0, workers: int = 1
) -> Any:
    how = argparse.Namespace(part=part, seed=seed, run=2, worker=worker, workers=workers, seconds=60.0)
    return pytest_run.Verdicts(how, Journal(tmp_path / "journal", {}), history or {})


NAMES = [f"tests/x.py::test[{n}]" for n in range(40)]


def test_a_draw_is_another_one_with_another_seed(tmp_path: Path) -> None:
    drawn = [verdicts(tmp_path, "drawn", seed).choose(NAMES) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert set(drawn[0]) == set(NAMES)
    assert verdicts(tmp_path, "tests").choose(NAMES) == sorted(NAMES)


def test_tests_that_never_ran_come_first(tmp_path: Path) -> None:
    history = dict.fromkeys(NAMES[:38], (1, "passed"))
    assert set(verdicts(tmp_path, "drawn", history=history).choose(NAMES)[:2]) == set(NAMES[38:])


def test_processes_share_the_tests(tmp_path: Path) -> None:
    names = random.Random(0).sample(NAMES, len(NAMES))
    shares = [verdicts(tmp_path, "drawn", worker=n, workers=3).choose(names) for n in range(3)]
    assert sorted(name for share in shares for name in share) == sorted(NAMES)
    assert all(shares)


def test_files_of_a_marker_are_those_that_have_the_word() -> None:
    files = pytest_run.files_with("gpu", "tests/flash/cache")
    assert "tests/flash/cache/test_cache_gpu.py" in files
    assert set(files) < set(pytest_run.files_with("", "tests/flash/cache"))


# ------------------------------------------------------------------------------ the command


def test_without_a_gpu_the_exit_code_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not worker.device.importlib.import_module("ptxgen.runtime.cuda").cuda_backend().why_unavailable():
        pytest.skip("there is a GPU")
    assert gpu_session.main(["--output", str(tmp_path)]) == gpu_session.NO_GPU == 2
    assert capsys.readouterr().err.startswith("gpu_session.py: error: no GPU: ")
    assert list(tmp_path.iterdir()) == []


def test_parts_are_listed_with_what_they_need(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_session.main(["--list"]) == 0
    printed = capsys.readouterr().out
    for part in PARTS:
        assert part.about in printed
    assert "needs numpy, jinja2, ml_dtypes, cuda.bindings.driver, ncu" in printed


def test_wheels_come_from_a_folder(tmp_path: Path) -> None:
    with pytest.raises(FileError) as refused:
        wheels.installed(tmp_path, tmp_path / "site")
    assert (
        str(refused.value)
        == f"--wheels {tmp_path}: there are no wheels; pip download -d {tmp_path} fetches them"
    )
    (tmp_path / "broken-1.0-py3-none-any.whl").write_bytes(b"")
    with pytest.raises(FileError, match="pip install failed"):
        wheels.installed(tmp_path, tmp_path / "site")


class Clock:
    """The time, which goes on by an hour as soon as a unit that hangs has begun."""

    def __init__(self, journal: Path) -> None:
        self.journal, self.ahead = journal, 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
        if not self.ahead and self.journal.exists() and '"unit": "a hang"' in self.journal.read_text():
            self.ahead = 45.0


@pytest.mark.slow
def test_a_rehearsal_does_all_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert gpu_session.main(["--rehearse", "--minutes", "60", "--output", str(tmp_path), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    counts = {row["part"]: row["counts"] for row in summary["parts"]}
    assert list(counts) == [part.name for part in PARTS]
    assert [counts[name] for name in ("smoke", "tests", "drawn", "timing")] == [
        {"passed": 3},
        {"passed": 7},
        {"passed": 2},
        {"passed": 5},
    ]
    stored = json.loads((tmp_path / "fake-h100.json").read_text())
    assert {row["kind"] for row in stored["calls"]} == {
        "ceiling",
        "forward",
        "gradients",
        "decode",
        "serving",
    }
    ran = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert any(line["source"].startswith("tests/flash/kernels") for line in ran)  # drawn tests ran on the GPU
    assert {line["device"] for line in ran} == {"Fake H100"}


@pytest.mark.nightly
def test_a_rehearsal_does_all_parts_though_a_run_is_killed_and_units_crash_and_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output, journal = tmp_path / "out", tmp_path / "out" / "journal.jsonl"
    command = [sys.executable, str(ROOT / "tools" / "gpu_session.py"), "--rehearse", "--output", str(output)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([*command, "--only", "smoke"], env=environment, stderr=subprocess.DEVNULL) as first:
        while not (journal.exists() and '"unit": "vectors matrices", "verdict"' in journal.read_text()):
            assert first.poll() is None
            time.sleep(0.02)
        first.send_signal(signal.SIGKILL)
    tools = tmp_path / "bin"
    tools.mkdir()
    stub(tools, "ncu", NCU)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    clock = Clock(journal)
    faults = ["--fault", "timing:crash", "--fault", "counters:hang"]
    argv = ["--rehearse", "--minutes", "60", "--output", str(output), "--json", *faults]
    code = gpu_session.main(argv, clock, clock.sleep)
    summary = json.loads(capsys.readouterr().out)
    counts = {row["part"]: row["counts"] for row in summary["parts"]}
    stored = json.loads((output / "fake-h100.json").read_text())
    assert counts == {
        "smoke": {"passed": 3},
        "tests": {"passed": 7},
        "drawn": {"passed": 2},
        "timing": {"passed": 5, "crashed": 1},
        "counters": {"passed": 1, "hung": 1},
        "sanitizer": {"missing": 1},
    }
    assert code == 1
    assert (summary["run"], [run["run"] for run in stored["runs"]]) == (2, [1, 2])
    kinds = {(row["kind"], row["who"]) for row in stored["calls"]}
    assert kinds >= {
        ("forward", "ours"),
        ("gradients", "ours"),
        ("decode", "decoding"),
        ("serving", "serving"),
    }
    (counted,) = stored["counters"]
    assert counted["tensor_pipe_%"] == 78.14
    assert not journal.exists()
    ran = [json.loads(line) for line in (output / "ledger.jsonl").read_text().splitlines()]
    assert {line["source"].partition(":")[0] for line in ran} >= {"smoke", "timing", "counters"}
    assert any(line["source"].startswith("tests/flash/kernels") for line in ran)
    assert {line["device"] for line in ran} == {"Fake H100"}


def test_committed_predictions_are_found_by_the_hash_of_a_text() -> None:
    first = committed()[0]
    assert predictions.predicted([first.sha256], {"tensor_pipe_%": 1.0}) == {"tensor_pipe_%": first.tensor}


def test_what_was_predicted_of_a_text_is_beside_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = (
        {"queries": 1024, "tflops": 460.0, "clocks": 5000},
        {"queries": 4096, "tflops": 500.0, "clocks": 9},
    )
    entry = Prediction("kernel", {}, "abc", 65.0, 100.0, launches)
    monkeypatch.setattr(predictions, "_by_text", lambda: {"abc": entry})
    assert predictions.predicted(["xyz", "abc"], {"n": 1024, "tflops": 450.0}) == {"tflops": 460.0}
    counted = {"N": 4096, "tensor_pipe_%": 64.0, "cycles": 10}
    assert predictions.predicted(["abc"], counted) == {"tensor_pipe_%": 65.0, "cycles": 9}
    assert predictions.predicted(["abc"], {"n": 1024, "heads": 64, "tflops": 450.0}) == {}
    assert predictions.predicted(["xyz"], counted) == {}
    rows = [{"unit": "a", "tensor_pipe_%": 64.0, "predicted": {"tensor_pipe_%": 65.0}}]
    assert gpu_session._predictions(rows) == ["predicted  a: tensor_pipe_% 65, measured 64"]
