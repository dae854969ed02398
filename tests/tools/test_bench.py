from __future__ import annotations

import argparse
import datetime
import functools
import itertools
import json
import math
import os
import re
import shlex
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bench_results import by_name, remarks
from command_line import Command

import ptxgen
from benchmarks import bench_command as tool
from benchmarks.measure import build as bench_build
from benchmarks.measure import cpu_gradients as bench_cpu_gradients
from benchmarks.measure import gallery as bench_gallery
from benchmarks.measure import interpreter as bench_interpreter
from benchmarks.measure import launch as bench_launch
from benchmarks.measure import lines as bench_lines
from benchmarks.measure import machine as bench_machine
from benchmarks.measure import sanitizers as bench_sanitizers
from flash.commands import bench as registered_bench
from flash.commands.measure import ceilings as bench_ceilings
from flash.commands.measure import cpu as bench_cpu
from flash.commands.measure import device as bench_device
from flash.commands.measure import error as bench_error
from flash.commands.measure import gpu as bench_gpu
from flash.commands.measure import record as bench_record
from flash.commands.measure import report as bench_report
from flash.commands.measure import torch_peer as bench_torch
from flash.commands.measure.record import Goal, Job, Measurement, Rows, measured
from flash.cpu.attention import attention_cpu
from flash.problem.config import AttentionConfig
from flash.reference import attention_reference
from ptxgen import interpreter
from ptxgen.check.verify import verify
from ptxgen.commands.parts.progress import progress
from ptxgen.errors import AssemblerError, BackendError
from ptxgen.runtime.assembler import Assembler
from ptxgen.runtime.cuda import CudaBackend
from ptxgen.target import TARGETS, target
from ptxgen.text import render

PROGRAM = "ptxgen bench"

SCRIPT = Path(__file__).parents[2] / "tools" / "bench.py"
SM_80 = target("sm_80")


# ---------------------------------------------------------------------------- records


def test_statistics_are_median_minimum_and_distance_of_quartiles() -> None:
    result = measured("a", "ms", [4.0, 1.0, 3.0, 2.0, 10.0])
    assert (result.repeats, result.median, result.minimum, result.iqr) == (5, 3.0, 1.0, 2.0)


def test_a_single_sample_has_no_spread() -> None:
    result = measured("a", "ms", [4.0])
    assert (result.repeats, result.median, result.minimum, result.iqr) == (1, 4.0, 4.0, 0.0)


@pytest.mark.parametrize(
    ("relation", "median", "met"),
    [("<=", 2.0, True), ("<=", 2.1, False), (">=", 2.0, True), (">=", 1.9, False)],
)
def test_a_goal_is_met_on_its_edge(relation: str, median: float, met: bool) -> None:
    assert Goal(relation, 2).met_by(median) is met


def test_a_measurement_in_json_says_whether_its_goal_was_met() -> None:
    result = measured("a", "ms", [3.0], config={"d": 64}, goal=Goal("<=", 2), headline=True)
    assert result.as_json() == {
        "name": "a",
        "config": {"d": 64},
        "unit": "ms",
        "repeats": 1,
        "median": 3.0,
        "min": 3.0,
        "iqr": 0.0,
        "headline": True,
        "goal": "<= 2",
        "goal_met": False,
    }


def test_what_json_cannot_say_becomes_null() -> None:
    result = measured("a", "x", [math.inf]).as_json()
    assert (result["median"], result["min"], result["iqr"]) == (None, None, None)


def test_contestants_take_turns_in_alternating_order_and_first_calls_do_not_count() -> None:
    calls: list[str] = []
    ticks = iter(range(100))

    def timer(work: Callable[[], object]) -> float:
        work()
        return next(ticks)

    works = {name: functools.partial(calls.append, name) for name in "ab"}
    samples = bench_record.interleaved(works, rounds=2, batch=2, dropped=1, timer=timer)
    assert "".join(calls) == "aaabbbbbbaaa"
    assert samples == {"a": [[1, 2], [10, 11]], "b": [[4, 5], [7, 8]]}
    assert bench_record.flat(samples["a"]) == [1, 2, 10, 11]


def test_a_ratio_is_of_the_medians_of_one_round() -> None:
    # The machine is ten times slower in the second round, for both.
    assert bench_record.ratios([[2, 2, 90], [20, 20]], [[4, 4], [40, 40]]) == [0.5, 0.5]


def test_timed_calls_warm_up_first() -> None:
    calls: list[int] = []
    assert len(bench_record.timed(lambda: calls.append(1), 3, warmup=2)) == 3
    assert len(calls) == 5


# ---------------------------------------------------------------------------- report


def a_section() -> bench_report.Section:
    return bench_report.Section(
        "emit",
        "text",
        [
            measured("fast", "ms", [1.25, 1.5, 1.75], goal=Goal("<=", 2), headline=True),
            measured("slow", "us", [12345.6], config={"d": 64}, goal=Goal("<=", 1)),
        ],
        ["quiet machine"],
    )


def test_the_table_shows_sections_and_then_the_headlines() -> None:
    sections = [a_section(), bench_report.Section("gpu", "none", remarks=["not measured"])]
    assert bench_report.table(sections) == (
        "emit: text\n"
        "               median  unit   min   IQR  n         goal\n"
        "  fast            1.5  ms    1.25  0.25  3     <= 2 met\n"
        "  slow [d=64]  12,346  us                1  <= 1 MISSED\n"
        "  * quiet machine\n"
        "\n"
        "gpu: none\n"
        "  nothing measured\n"
        "  * not measured\n"
        "\n"
        "headlines\n"
        "        median  unit   min   IQR  n      goal\n"
        "  fast     1.5  ms    1.25  0.25  3  <= 2 met\n"
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (3.0, "3"), (1234567.8, "1,234,568"), (0.123456, "0.1235"), (math.inf, "inf")],
)
def test_numbers_for_people(value: float, text: str) -> None:
    assert bench_report.number(value) == text


def test_the_document_says_where_its_numbers_come_from() -> None:
    before = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    result = json.loads(
        bench_report.as_text(bench_report.document([a_section()], quick=True, device={"name": "G"}))
    )
    assert result["schema"] == bench_report.SCHEMA
    assert datetime.datetime.fromisoformat(result["date"]) >= before
    assert result["command"] == "ptxgen bench --only emit --quick"
    assert result["device"] == {"name": "G"}
    assert result["machine"]["cores"] == os.cpu_count()
    assert result["machine"]["cpu"]
    assert result["versions"]["numpy"] == np.__version__
    assert result["sections"]["emit"]["remarks"] == ["quiet machine"]
    for measurement in result["sections"]["emit"]["measurements"]:
        assert measurement["command"] == "ptxgen bench --only emit --quick"


def test_a_document_without_a_gpu_has_no_device() -> None:
    assert "device" not in bench_report.document([a_section()], quick=False, device=None)


def test_a_busy_machine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert bench_report.busy([1.9, 8.0, 8.0]) == ""
    assert bench_report.busy(None) == ""
    assert bench_report.busy([2.5, 0.0, 0.0]) == (
        "the machine was busy before the measurements (load 2.5 on 4 cores): "
        "times are too long, ratios are rough"
    )


@pytest.mark.parametrize(
    ("sections", "quick", "device", "name"),
    [
        (["emit", "cpu"], False, None, "all-cpu.json"),
        (["emit"], False, None, "emit-cpu.json"),
        (["emit"], True, "NVIDIA H200 (PCIe)", "quick-emit-nvidia-h200-pcie.json"),
    ],
)
def test_a_result_is_named_after_its_sections_and_device(
    sections: list[str], quick: bool, device: str | None, name: str
) -> None:
    assert bench_report.result_name(sections, ["emit", "cpu"], quick, device) == name


# ---------------------------------------------------------------------------- emit, assemble


@pytest.mark.parametrize(
    ("config", "goal"), [(bench_build.F32_128, 20), (bench_build.F16_128, 40)], ids=["f32", "f16"]
)
def test_warm_emission_is_measured_in_whole_and_by_line(config: AttentionConfig, goal: int) -> None:
    result = by_name(bench_build._warm(config, 1))
    whole, line = result["emit, warm"], result["per line"]
    assert whole.goal == Goal("<=", goal)
    assert whole.config.get("dtype", "f32") == config.dtype
    lines = render(bench_build.build(config.kernel()).module).count("\n")
    assert line.config["lines"] == lines
    assert line.median == pytest.approx(whole.median * 1000 / lines)


def test_a_line_of_every_kernel_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [job.label for job in bench_lines.line_jobs(quick=True)]
    assert {"softmax", "hopper_gemm", "flash: f16", "flash: append", "flash: merge"} <= set(names)
    assert {"flash: f16, sm_90a", "flash: e4m3, sm_90a", "flash: latents, sm_90a", "flash: decode"} <= set(
        names
    )
    assert {"flash: gradients by keys, f16, sm_90a", "flash: gradients by sums, f32"} <= set(names)
    assert names[-1] == "the slowest kernel of flash"
    assert set(bench_gallery.sources()) <= set(names)

    def seconds(work: Callable[[], object], clock: Callable[[], float]) -> float:
        assert clock is time.process_time
        return 0.5 if work() else 0.25  # a text, or nothing

    monkeypatch.setattr(bench_lines, "seconds", seconds)
    emitters = bench_lines.emitters()
    seen = []
    for name in ("row_sums", "hopper_gemm", "flash: f32", "flash: append", "flash: merge"):
        module = emitters[name]()
        assert module is not emitters[name]()  # nothing is kept
        seen += bench_lines.per_line(name, emitters[name], 3)
        result = by_name(seen[-3:])
        emission, verification = result["emission, per line"], result["verification, per line"]
        together = result["emission with verification, per line"]
        lines = render(module).count("\n")
        assert emission.config == {"kernel": name, "lines": lines}
        assert (together.repeats, together.goal) == (3, Goal("<=", 8))
        assert (emission.goal, verification.goal) == (None, None)
        assert emission.median == pytest.approx(0.5e6 / lines)
        assert verification.median == pytest.approx(0.25e6 / lines)
        assert together.median == pytest.approx(0.75e6 / lines)
    (slowest,) = bench_lines.slowest(seen)
    shortest = min(
        (m for m in seen if m.config["kernel"].startswith("flash")), key=lambda m: m.config["lines"]
    )
    assert (slowest.config, slowest.headline, slowest.goal) == (shortest.config, True, Goal("<=", 8))


def test_a_machine_is_as_fast_as_its_quickest_sample() -> None:
    steps = [0, 3 * bench_machine.REFERENCE_S, 0, 2 * bench_machine.REFERENCE_S]
    clock = itertools.accumulate(itertools.cycle(steps))
    row = bench_machine.this_machine(lambda: next(clock))
    assert (row.median, row.unit, row.headline) == (pytest.approx(2), "x", True)


@pytest.mark.ptxas
def test_the_way_to_a_cubin_is_measured() -> None:
    config = AttentionConfig(16, dtype="f16", tile=16, block_q=32)
    result = by_name(bench_build._to_cubin(config, 2))["config to cubin"]
    assert (result.unit, result.repeats, result.goal) == ("s", 2, Goal("<=", 1))


def test_every_emission_builds_the_kernel_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    import flash.contract.catalogue

    built: list[str] = []
    make = flash.contract.catalogue.emit

    def counted(kernel: Any) -> Any:
        built.append(kernel.name)
        return make(kernel)

    monkeypatch.setattr(flash.contract.catalogue, "emit", counted)
    bench_build._warm(AttentionConfig(16, tile=16, block_q=16), 2)
    assert len(built) == 4  # for the lines, the warm-up, and two samples


@pytest.mark.slow
def test_a_fresh_process_that_fails_is_a_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = ("-c", "raise SystemExit('no')")
    monkeypatch.setattr(bench_build, "_PROGRAMS", {**bench_build._PROGRAMS, "emission": broken})
    result = bench_build._cold(1)
    assert remarks(result) == [f"python {shlex.join(broken)} could not be measured: no"]
    assert list(by_name(result)) == ["cold: python -c 'import numpy, jinja2'", "cold: python -c pass"]


@pytest.mark.slow
def test_cold_emission_is_measured_in_time_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = {  # one that computes, and one that waits as long or longer
        "emission": ("-c", "import time\nwhile time.process_time() < 0.4: pass"),
        "import numpy, jinja2": ("-c", "import time; time.sleep(0.4)"),
    }
    monkeypatch.setattr(bench_build, "_PROGRAMS", programs)
    ratio = by_name(bench_build._cold(2))["cold: emission / import numpy, jinja2"]
    assert (ratio.repeats, str(ratio.goal), ratio.headline) == (2, "<= 2.5", True)
    assert ratio.minimum > 1.5


def test_a_fresh_process_finds_bytecode(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "imported.py").touch()
    script = tmp_path / "emit.py"
    script.write_text(
        "import imported, pathlib\n"
        "told = pathlib.Path(__file__).with_name('told')\n"
        "with told.open('a') as file: print("
        "pathlib.Path(imported.__cached__).exists(), file=file)\n"
    )
    monkeypatch.setattr(bench_build, "_PROGRAMS", {"emission": (str(script),)})
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    bench_build._cold(2)
    assert (tmp_path / "told").read_text() == "True\n" * 3


def test_heavy_modules_are_found_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_build, "HEAVY", ("numpy", "torch"))  # emitting imports one of them
    result = by_name(bench_build._imports())["heavy modules imported by ptxgen emit"]
    assert (result.median, result.config) == (1, {"found": "numpy"})


def test_a_module_is_heavy_by_its_top_level_name() -> None:
    assert bench_build.heavy_among(["json", "torch", "cuda", "torchx"]) == ["cuda", "torch"]


def elf(sections: dict[str, bytes]) -> bytes:
    """A minimal ELF file of 64 bits: header, contents, names, section headers."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in sections) + b".shstrtab\0"
    content, headers = b"", [bytes(64)]
    for name, data in (sections | {".shstrtab": names}).items():
        at = names.index(name.encode() + b"\0")
        headers.append(struct.pack("<IIQQQQ", at, 1, 0, 0, 64 + len(content), len(data)) + bytes(24))
        content += data
    header = b"\x7fELF" + bytes(36) + struct.pack("<Q", 64 + len(content)) + bytes(10)
    header += struct.pack("<HHH", 64, len(headers), len(headers) - 1)
    return header + content + b"".join(headers)


def test_code_is_what_lies_in_text_sections() -> None:
    cubin = elf(
        {".text.first": bytes(48), ".nv.info": bytes(7), ".text.second": bytes(16), ".tdata": bytes(32)}
    )
    assert bench_build.code_bytes(cubin) == 64


@pytest.mark.ptxas
def test_assembly_is_measured_with_its_resources() -> None:
    result = by_name(bench_build._assemble(AttentionConfig(16, tile=16, block_q=16), 1))
    assert result["spilled"].median == 0
    assert result["registers"].median > 16
    assert result["shared memory"].median > 1000
    assert 0 < result["occupancy"].median <= 100
    assert result["SASS, padding included"].median > 100
    assert result["time of ptxas"].unit == "ms"


def test_assembly_without_an_assembler_is_a_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(**_: object) -> Assembler:
        raise BackendError("no PTX assembler found:\n  here")

    monkeypatch.setattr(bench_build, "find_assembler", none)
    config = AttentionConfig(16, tile=16, block_q=16)
    remark = f"{config.kernel().name} was not assembled: no PTX assembler found:"
    assert bench_build._assemble(config, 1) == bench_build._to_cubin(config, 1) == [remark]


# ---------------------------------------------------------------------------- cpu, interpreter


@pytest.mark.parametrize("causal", [False, True])
def test_plain_numpy_attention_is_right(causal: bool) -> None:
    q, k, v = bench_cpu.normal((1, 2, 5, 8), (1, 2, 9, 8), (1, 2, 9, 8))
    exact, _ = attention_reference(q, k, v, causal=causal)
    np.testing.assert_allclose(bench_cpu.dense_attention(q, k, v, causal), exact, atol=1e-6)


def without_torch(name: str) -> ModuleType:
    raise ImportError(f"No module named {name!r}")


NOT_COMPILED = "not measured: backend 'compiled' needs Numba"
NO_TORCH = "no comparison with PyTorch: No module named 'torch'; pip install torch"


@pytest.fixture
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither PyTorch nor Numba."""

    def without_numba(name: str) -> None:
        if name == "compiled":
            raise BackendError("backend 'compiled' needs Numba")

    monkeypatch.setattr(bench_cpu.importlib, "import_module", without_torch)
    monkeypatch.setattr(bench_cpu, "require_compiler", without_numba)


@pytest.mark.usefixtures("_alone")
def test_the_cpu_backend_is_compared_with_numpy_where_torch_is_missing() -> None:
    result = bench_cpu.compare(32, True, 2, 1, heads=2, head_dim=8)
    assert remarks(result) == [NOT_COMPILED, NO_TORCH]
    assert list(by_name(result)) == ["ours", "numpy N²", "time of ours / numpy N²", "CPU, ours"]
    assert by_name(result)["time of ours / numpy N²"].repeats == 2


@pytest.mark.slow
@pytest.mark.usefixtures("torch", "compiled")
def test_the_backends_without_kernels_are_compared_with_torch() -> None:
    result = bench_cpu.compare(32, True, 1, 1, heads=2, head_dim=8)
    assert remarks(result) == []
    for name in ("time of ours / torch", "CPU time of ours / torch", "CPU time of compiled / torch"):
        assert by_name(result)[name].goal == Goal("<=", 1.2)


TOKEN = bench_cpu.Token("f32", 4, 2, 8, 48)


@pytest.mark.parametrize(("shuffled", "table"), [(False, [3, 2, 1, 0]), (True, [2, 0, 1, 3])])
def test_pages_of_a_measured_token_lie_backwards_or_shuffled(shuffled: bool, table: list[int]) -> None:
    token = replace(TOKEN, seq_k=64, page_size=16, shuffled=shuffled)
    assert token.table.tolist() == table
    assert token.settings["shuffled"] == shuffled


@pytest.mark.slow
@pytest.mark.usefixtures("torch", "compiled")
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("page_size", [0, 16])
def test_a_token_on_the_cpu_is_compared_with_torch(dtype: Any, page_size: int) -> None:
    result = bench_cpu.compare_token(replace(TOKEN, dtype=dtype, page_size=page_size), 1, 1)
    assert remarks(result) == []
    names = [name for name in by_name(result) if "/" in name]
    goals = [by_name(result)[name].goal for name in names]
    theirs = ["torch", "torch, contiguous"] if page_size else ["torch"]
    ours = ("ours", "compiled")
    pairs = [f"time of {own} / {name}" for own in ours for name in theirs]
    assert names == [*pairs, *(f"CPU {pair}" for pair in pairs)]
    assert goals == [Goal("<=", 2.0)] * len(names)


@pytest.mark.slow
@pytest.mark.usefixtures("torch", "compiled")
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("kv_heads", [2, 1])
def test_gradients_on_the_cpu_are_compared_with_torch(dtype: Any, kv_heads: int) -> None:
    shape = bench_cpu_gradients.Shape(dtype, 32, True, heads=2, kv_heads=kv_heads, head_dim=8)
    result = bench_cpu_gradients.compare_gradients(shape, 1, 1)
    assert remarks(result) == []
    pairs = {"ours / torch": 1.2, "compiled / torch": 1.0}
    goals = {
        f"{clock}{pair}": Goal("<=", goal)
        for clock in ("time of ", "CPU time of ")
        for pair, goal in pairs.items()
    }
    assert {name: row.goal for name, row in by_name(result).items() if "/" in name} == goals


@pytest.mark.usefixtures("_alone")
def test_gradients_on_the_cpu_are_measured_where_torch_is_missing() -> None:
    shape = bench_cpu_gradients.Shape("f32", 32, True, heads=2, kv_heads=1, head_dim=8)
    result = bench_cpu_gradients.compare_gradients(shape, 1, 1)
    assert remarks(result) == [NOT_COMPILED, NO_TORCH]
    assert list(by_name(result)) == ["ours", "CPU, ours"]


@pytest.mark.usefixtures("_alone")
def test_a_token_on_the_cpu_is_measured_where_torch_is_missing() -> None:
    result = bench_cpu.compare_token(replace(TOKEN, page_size=16), 1, 1)
    assert remarks(result) == [NOT_COMPILED, NO_TORCH]
    assert list(by_name(result)) == ["ours", "CPU, ours"]


@pytest.mark.usefixtures("_alone")
def test_a_wrong_result_of_the_cpu_backend_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(q: Any, k: Any, v: Any, out: Any, *rest: Any, **how: Any) -> None:
        attention_cpu(q, k, v, out, *rest, **how)
        out += 1

    monkeypatch.setattr(bench_cpu, "attention_cpu", wrong)
    told = remarks(bench_cpu.compare(16, False, 1, 1, heads=1, head_dim=8))[2]
    message = r"WRONG: ours and numpy N² differ by (1|0\.99\d*|1\.00\d*) at N=16 causal=False"
    assert re.fullmatch(message, told)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_sanitizers_are_measured_against_plain_runs(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[object] = []
    run = interpreter.run

    def recorded(*args: Any, **how: Any) -> Any:
        watched.append(how.get("sanitize", False))
        return run(*args, **how)

    monkeypatch.setattr(bench_interpreter.interpreter, "run", recorded)
    result = by_name(bench_sanitizers.watched((16, 1, 1, 32, True), dtype, 1))
    assert list(result) == ["race / plain", "all sanitizers / plain"]
    assert sorted(map(str, watched)) == ["False", "False", "all", "all", "race", "race"]


@pytest.mark.sample(0, gate=1)
@pytest.mark.parametrize("name", bench_sanitizers.TRITON)
def test_watched_kernels_of_triton_compute_what_they_are_for(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[bool] = []
    run = interpreter.run

    def checked(*given: Any, args: list[Any], **how: Any) -> Any:
        result = run(*given, args=args, **how)
        arrays = [x for x in args if isinstance(x, np.ndarray) and x.dtype != np.uint8]
        *inputs, out = (x.astype(np.float64) for x in arrays)
        if "attention" in name:
            q, k, v = inputs
            weights = np.exp(q @ k.swapaxes(-1, -2) * args[6])
            want = weights / weights.sum(axis=-1, keepdims=True) @ v
        else:
            a, b = inputs
            want = a @ b
        results.append(np.allclose(out, want, rtol=2e-3, atol=2e-3))
        return result

    monkeypatch.setattr(bench_sanitizers.interpreter, "run", checked)
    actual = by_name(bench_sanitizers.watched_triton(name, 1))
    assert list(actual) == ["race / plain", "all sanitizers / plain"]
    assert results == [True] * 6


def test_proofs_are_timed_whole() -> None:
    result = by_name(bench_sanitizers.proofs(16, "f32", 1))
    assert list(result) == ["shared memory proved", "global memory proved"]
    assert all(m.unit == "s" and m.median > 0 for m in result.values())


def test_the_interpreter_is_measured_in_instructions_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    run = interpreter.run

    def recorded(*arguments: Any, **how: Any) -> Any:
        asked.append({k: v for k, v in how.items() if k in ("sanitize", "profile")})
        return run(*arguments, **how)

    monkeypatch.setattr(bench_interpreter.interpreter, "run", recorded)
    result = by_name(bench_interpreter.kernel((8, 1, 1, 16, False), 1))
    assert list(result) == ["interpreter", "speed", "sanitized / plain", "profiled / plain"]
    ms, rate = result["interpreter"].median, result["speed"].median
    instructions = rate * ms * 1e3
    assert instructions == pytest.approx(round(instructions))
    assert instructions > 1000
    # First calls do not count.
    assert asked == [{}, {}, {"sanitize": True}, {"profile": True}, *asked[1:4]]


def test_growth_says_what_grew_and_what_each_instruction_cost() -> None:
    result = bench_interpreter.growth((8,), {"N": [16, 32]}, 1)
    times = [x for x in result if x.name == "time"]
    assert [(x.config["along"], x.config["N"]) for x in times] == [("N", 16), ("N", 32)]
    each = [x.median for x in result if x.name == "time / work"]
    assert len(each) == 2
    assert all(x > 0 for x in each)


def test_parsing_is_measured_in_instructions() -> None:
    text = (bench_interpreter.ROOT / bench_interpreter.MMA).read_text(encoding="utf-8")
    (result,) = bench_interpreter.parsing({"one": text}, 1)
    lines = [x for x in text.splitlines() if x.startswith("\t") and x.rstrip().endswith(";")]
    counted = [x for x in lines if not x.lstrip("\t ").startswith((".", "//"))]
    assert result.config["instructions"] == len(counted)


# ---------------------------------------------------------------------------- launch


@pytest.fixture
def fake() -> ModuleType:
    pytest.importorskip("cuda.bindings.driver")
    return bench_launch.load_fake_driver()


@pytest.mark.parametrize(
    ("kind", "current", "calls"),
    [
        ("torch", True, "cuCtxGetCurrent, cuLaunchKernel"),
        ("cupy", True, "cuCtxGetCurrent, cuLaunchKernel"),
        ("torch", False, "cuCtxGetCurrent, cuCtxPushCurrent, cuLaunchKernel, cuCtxPopCurrent"),
    ],
)
@pytest.mark.usefixtures("fake")
def test_a_repeated_launch_makes_few_driver_calls(kind: str, current: bool, calls: str) -> None:
    result = bench_launch.launches(kind, current, samples=2, calls=2)
    assert remarks(result) == [f"driver calls with {kind} arrays, current={current}: {calls}"]
    assert by_name(result)["driver calls of one launch"].median == len(calls.split(", "))
    assert by_name(result)["Python of one launch"].repeats == 2


@pytest.mark.usefixtures("fake")
def test_a_launch_of_a_kernel_of_the_dsl_is_measured() -> None:
    (result,) = bench_launch.own_kernel(samples=2, calls=2)
    assert isinstance(result, Measurement)
    assert result.repeats == 2
    assert result.goal is not None


@pytest.mark.nightly
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.usefixtures("fake")
def test_a_token_takes_one_copy_of_lengths_and_two_kernels(turned: bool) -> None:
    result = bench_launch.decoding(0, turned, samples=2, calls=2)
    attends, merges = "cuCtxGetCurrent, cuLaunchKernel", "cuCtxGetCurrent, cuLaunchKernelEx"  # begins early
    calls = f"cuCtxGetCurrent, cuMemcpyHtoDAsync, {attends}, {merges}"
    assert remarks(result) == [f"driver calls of it with page=0, turned={turned}: {calls}"] * 2
    assert by_name(result)["Python of one decode step"].goal is not None


def test_answering_at_once_keeps_the_answers_and_records_nothing(fake: ModuleType) -> None:
    driver = fake.FakeDriver()
    expected = driver.cuDeviceGetCount()
    bench_launch.answer_at_once(driver, ["cuDeviceGetCount", "cuLaunchKernel"])
    driver.calls.clear()
    assert driver.cuDeviceGetCount() == expected
    assert driver.cuLaunchKernel("anything") == (driver.CUresult.CUDA_SUCCESS,)
    assert driver.calls == []


def test_launches_without_the_fake_driver_are_a_remark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench_launch, "_FAKE", tmp_path / "fake_driver.py")
    assert bench_launch.launches("torch", True, 1) == [
        "launch overhead was not measured: tests/fake_driver.py is not there; "
        "run in a checkout of the repository"
    ]


@pytest.mark.usefixtures("torch")
def test_reading_stand_ins_and_real_tensors_is_measured() -> None:
    result = bench_launch.readings(1, calls=1)
    kinds = [item.config["arrays"] for item in result if isinstance(item, Measurement)]
    assert kinds == ["stand-ins", "stand-ins", "tensors on the CPU", "tensors on the CPU"]


# ---------------------------------------------------------------------------- ceilings


def test_the_fma_kernel_adds_up_its_chains() -> None:
    module = bench_ceilings.fma_kernel(SM_80, chains=4, unroll=2, threads=32)
    out = np.zeros(64, np.float32)
    args = [out, 3, np.float32(0.5), np.float32(1)]
    interpreter.run(module, grid=2, block=32, args=args)
    expected = 0.0
    for x in range(4):
        value = float(x)
        for _ in range(6):
            value = value * 0.5 + 1  # exact: few bits
        expected += value
    np.testing.assert_array_equal(out, np.full(64, expected, np.float32))


def test_the_fma_kernel_does_as_many_operations_as_are_counted() -> None:
    module = bench_ceilings.fma_kernel(SM_80)
    args = [np.zeros(2 * 256, np.float32), 3, np.float32(1), np.float32(0)]
    result = interpreter.run(module, grid=2, block=256, args=args)
    fmas = 32 * sum(n for op, n in result.counters.by_opcode.items() if op.startswith("fma."))
    assert bench_ceilings.fma_flops(ctas=2, rounds=3) == 2 * fmas


def test_the_copy_kernel_copies_everything_once() -> None:
    module = bench_ceilings.copy_kernel(SM_80, threads=32)
    words = 3 * bench_ceilings.bytes_per_cta(32) // 4
    source = np.arange(words, dtype=np.float32)
    copy = np.full(words + 1, -1, np.float32)
    interpreter.run(module, grid=3, block=32, args=[source, copy])
    np.testing.assert_array_equal(copy[:-1], source)
    assert copy[-1] == -1


KERNELS = (bench_ceilings.fma_kernel, bench_ceilings.copy_kernel)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_ceilings_kernels_are_valid_for_every_target(kernel: Any, name: str) -> None:
    assert verify(kernel(target(name))) == ()


@pytest.mark.ptxas
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_ceilings_kernels_fill_a_multiprocessor_without_spills(kernel: Any, assembler: Assembler) -> None:
    for name in ("sm_75", "sm_90a"):
        (usage,) = assembler.assemble(render(kernel(target(name))), name).kernels
        assert (usage.spill_load_bytes, usage.spill_store_bytes) == (0, 0)
        threads = target(name).threads_per_sm
        ctas = target(name).blocks_per_sm_for(bench_ceilings.THREADS, usage.registers, 0)
        assert ctas * bench_ceilings.THREADS == threads


def test_the_peak_on_paper_of_an_h100() -> None:
    # NVIDIA H100 data sheet, SXM: 67 TFLOP/s of f32, 132 multiprocessors, 1980 MHz.
    assert bench_ceilings.peak_flops(target("sm_90a"), 132, 1980) == pytest.approx(67e12, rel=5e-3)
    assert bench_ceilings.tensor_peak_flops(target("sm_90a"), 132, 1830) == pytest.approx(989e12, rel=1e-3)
    assert bench_ceilings.tensor_peak_flops(target("sm_80"), 108, 1410) == pytest.approx(312e12, rel=1e-3)


# ---------------------------------------------------------------------------- errors


def test_the_sampled_rows_are_of_the_output_and_include_the_ends() -> None:
    b, h, rows = bench_error.sampled_rows((3, 2, 7, 64), 50)
    assert set(b) == {0, 1, 2}
    assert set(h) == {0, 1}
    assert (rows[0], rows[1]) == (0, 6)
    assert set(rows) == set(range(7))


@pytest.mark.parametrize("causal", [False, True])
def test_the_judge_measures_in_errors_of_the_same_precision(causal: bool) -> None:
    q, k, v = arrays = tuple(bench_cpu.normal(*[(2, 3, 9, 16)] * 3))
    rows = bench_error.sampled_rows(q.shape, 20)
    judge = bench_error.Judge.of(arrays, rows, causal)
    exact, _ = attention_reference(q, k, v, causal=causal)
    same, _ = attention_reference(q, k, v, causal=causal, dtype=np.float32)
    assert judge.ratio(exact[rows]) < 1e-6
    assert 0.3 < judge.ratio(same[rows]) < 3
    other, _ = attention_reference(q, k, v, causal=not causal)
    assert judge.ratio(other[rows]) > 1e3


def test_nan_is_an_infinite_error() -> None:
    judge = bench_error.Judge(np.zeros((2, 4)), 1e-7)
    assert judge.ratio(np.array([[0, 0, 0, 0], [0, np.nan, 0, 0]])) == math.inf


# ---------------------------------------------------------------------------- gpu


SHAPE = bench_gpu.Shape(8, 32, True, tokens=64, width=16)  # batch 2, 2 heads


@pytest.fixture
def driver(fake: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A simulated GPU that computes attention and on which every launch takes 1.5 ms."""
    driver = fake.FakeDriver(version=1000)  # too old for cubins: programs stay text
    driver.gpu_ms = 1.5

    def compute(launch: Any) -> None:
        if not launch.entry.startswith("attention"):
            return
        like = np.empty(SHAPE.size, np.float32)
        q, k, v = (driver.fetch(launch.values[name], like) for name in "QKV")
        out, _ = attention_reference(q, k, v, causal=True, dtype=np.float32)
        driver.view(launch.values["O"], out.nbytes)[:] = out.view(np.uint8).reshape(-1)

    driver.on_launch = compute
    monkeypatch.setattr(bench_device.Gpu, "clocks", lambda _: {"clocks.max.sm": "1980 MHz"})
    monkeypatch.setattr(bench_gpu, "torch_with_gpu", lambda: (None, "no comparison"))
    return driver


@pytest.fixture
def gpu(driver: Any) -> bench_device.Gpu:
    return bench_device.open_gpu(CudaBackend(driver))


def test_the_fma_ceiling_is_operations_over_time(gpu: bench_device.Gpu, driver: Any) -> None:
    result = by_name(bench_gpu.fma_ceiling(gpu, repeats=3, rounds=4))
    flops = 2 * 16 * 16 * 4 * 2048 * 132  # chains, unroll, turns, threads of an SM, SMs
    assert result["FMA ceiling"].median == pytest.approx(flops / 1.5e-3 / 1e12)
    assert gpu.fma_flops == pytest.approx(flops / 1.5e-3)
    assert result["FMA peak on paper"].config == {"clock_mhz": 1980}
    assert driver.launches[-1].grid == (132 * 8, 1, 1)
    assert driver.memory == {}


def test_the_copy_ceiling_counts_bytes_in_and_out(gpu: bench_device.Gpu, driver: Any) -> None:
    result = by_name(bench_gpu.copy_ceiling(gpu, repeats=3, nbytes=1 << 20))
    rate = result["copy ceiling, read + written"].median
    assert rate == pytest.approx(2 * (1 << 20) / 1.5e-3 / 1e12)
    assert driver.launches[-1].grid == (64, 1, 1)
    assert driver.memory == {}


def test_our_kernel_is_measured_by_what_it_computes(gpu: bench_device.Gpu, driver: Any) -> None:
    gpu.fma_flops = 1e9
    result = bench_gpu.against_torch(gpu, SHAPE, 2, 2)
    assert remarks(result) == ["no comparison"]
    named = by_name(result)
    assert named["ours"].median == pytest.approx(1.5)
    pairs = 2 * 2 * (32 * 33 // 2)  # batch, heads, pairs of query and key
    assert named["ours, useful"].median == pytest.approx(4 * 8 * pairs / 1.5e-3 / 1e12)
    computed = named["ours, computed"].median
    assert computed > named["ours, useful"].median
    assert named["computed, of the FMA ceiling"].median == pytest.approx(computed * 1e5)
    assert named["computed, of the FMA ceiling"].goal is None  # too short a sequence for it
    assert 0 < named["error of ours / numpy f32"].median < 2
    assert driver.memory == {}


def test_the_goal_of_the_ceiling_is_for_long_sequences(gpu: bench_device.Gpu) -> None:
    gpu.fma_flops = 1e9
    shape = bench_gpu.Shape(8, 4096, False, tokens=4096, width=8)
    with bench_gpu.on_device(gpu, shape) as arrays:
        _, built, geometry = arrays.contestant(gpu)
    result = bench_gpu._rates(gpu, shape, [[1.0]], built, geometry, {})
    assert result[-1].goal == Goal(">=", 50)


def test_a_wrong_kernel_has_an_error_far_beyond_its_goal(gpu: bench_device.Gpu, driver: Any) -> None:
    driver.on_launch = lambda _: None  # O stays zero
    result = by_name(bench_gpu.against_torch(gpu, SHAPE, 1, 1))["error of ours / numpy f32"]
    assert result.goal is not None
    assert not result.goal.met_by(result.median)


def test_torch_is_measured_beside_our_kernel(
    gpu: bench_device.Gpu, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attend() -> Any:
        driver._clock_ms += 3.0
        q, k, v = bench_cpu.normal(*[SHAPE.size] * 3)
        out, _ = attention_reference(q, k, v, causal=True)
        return SimpleNamespace(cpu=lambda: SimpleNamespace(numpy=lambda: out))

    torch = SimpleNamespace(from_numpy=lambda _: SimpleNamespace(to=lambda _: None))
    monkeypatch.setattr(bench_gpu, "torch_with_gpu", lambda: (torch, ""))
    monkeypatch.setattr(bench_gpu, "torch_contestants", lambda *_: ({"T": attend}, ["U refuses"]))
    result = bench_gpu.against_torch(gpu, SHAPE, 2, 1)
    assert remarks(result) == ["U refuses"]
    named = by_name(result)
    assert named["speed of ours / T"].median == pytest.approx(2.0)
    assert named["T, useful"].median == pytest.approx(named["ours, useful"].median / 2)
    assert named["error of T / numpy f32"].median < 1e-6


def test_samples_hold_enough_calls_for_the_clock_of_events() -> None:
    assert [bench_gpu.calls_for(ms) for ms in (0.0, 0.5, 3.0, 10.0, 500.0)] == [64, 20, 4, 1, 1]


def test_a_shape_keeps_tokens_and_width() -> None:
    assert bench_gpu.Shape(64, 1024, False).size == (16, 32, 1024, 64)
    assert bench_gpu.Shape(128, 8192, False).size == (2, 16, 8192, 128)


def test_the_ceilings_come_before_what_is_held_against_them(gpu: bench_device.Gpu) -> None:
    labels = [job.label for job in bench_gpu.gpu_jobs(gpu, quick=True)]
    assert labels == [
        "FMA ceiling",
        "copy ceiling",
        "attention (16, 32, 1024, 64) causal=False",
        "attention (16, 32, 1024, 64) causal=True",
    ]
    assert len(bench_gpu.gpu_jobs(gpu, quick=False)) == 2 + 4


def test_the_device_is_described_with_its_clocks(gpu: bench_device.Gpu) -> None:
    result = gpu.describe()
    assert (result["name"], result["target"], result["driver_version"]) == ("Fake H100", "sm_90a", (1, 0))
    assert result["nvidia_smi"] == {"clocks.max.sm": "1980 MHz"}


def test_what_nvidia_smi_says_is_taken_apart() -> None:
    cells = ["NVIDIA H200", "570.1", "1980 MHz", "1980 MHz", "3201 MHz", "3201 MHz"]
    said = ", ".join([*cells, "77 W", "700 W", "30", "Enabled"])
    result = bench_device.parse_smi(said + "\nsecond, device\n")
    assert result["clocks.max.sm"] == "1980 MHz"
    assert result["ecc.mode.current"] == "Enabled"
    assert bench_device.parse_smi("No devices were found\n") == {}


def test_clocks_are_empty_without_nvidia_smi(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = bench_device.open_gpu(CudaBackend(driver))
    monkeypatch.undo()

    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError("nvidia-smi")

    monkeypatch.setattr(subprocess, "run", missing)
    assert gpu.clocks() == {}


def test_no_gpu_is_a_backend_error(fake: ModuleType) -> None:
    driver = fake.FakeDriver()
    driver.devices = ()
    with pytest.raises(BackendError) as caught:
        bench_device.open_gpu(CudaBackend(driver))
    assert str(caught.value) == "cannot open the GPU: the driver lists no device"


def test_every_backend_of_torch_is_tried_with_both_precisions(torch: ModuleType) -> None:
    # On the CPU PyTorch has no kernel for most of them, which is what a refusal looks like.
    tensors = [torch.zeros(1, 1, 4, 8) for _ in range(3)]
    result, refusals = bench_torch.torch_contestants(torch, tensors, True)
    tried = [*result, *(refusal.partition(" refuses ")[0] for refusal in refusals)]
    assert sorted(tried) == sorted(
        f"torch {name} tf32={tf32}" for name in bench_torch.BACKENDS for tf32 in ("off", "on")
    )
    assert "torch MATH tf32=off" in result
    assert result["torch MATH tf32=off"]().shape == (1, 1, 4, 8)


def test_tensorfloat32_is_as_it_was_after_a_contestant() -> None:
    matmul, cudnn = SimpleNamespace(allow_tf32=False), SimpleNamespace(allow_tf32=True)
    torch = SimpleNamespace(backends=SimpleNamespace(cuda=SimpleNamespace(matmul=matmul), cudnn=cudnn))
    with bench_torch.products_in_tf32(torch, True):
        assert (matmul.allow_tf32, cudnn.allow_tf32) == (True, True)
    assert (matmul.allow_tf32, cudnn.allow_tf32) == (False, True)


def test_torch_without_a_gpu_is_told(torch: ModuleType) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert bench_torch.torch_with_gpu() == (
        None,
        f"no comparison with PyTorch: torch {torch.__version__} sees no GPU",
    )


# ---------------------------------------------------------------------------- the command


@pytest.fixture
def sections(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, list[Job]]:
    """Sections of one job each that take no time, results below `tmp_path`, and no GPU."""
    jobs = {
        name: [Job(f"the {name}", lambda name=name: [measured(name, "ms", [1.0]), f"of {name}"])]
        for name in tool._WITHOUT_GPU
    }
    for name in jobs:
        monkeypatch.setitem(tool._WITHOUT_GPU, name, lambda _, name=name: jobs[name])
    monkeypatch.setattr(tool, "_REMARKS", {})
    monkeypatch.setattr(tool, "load", lambda: [0.0, 0.0, 0.0])
    monkeypatch.setattr(tool, "_gpu", lambda: (None, "cannot open the GPU: none"))
    (tmp_path / "results").mkdir()
    return jobs


@pytest.mark.usefixtures("sections")
def test_a_section_is_measured_shown_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["--only", "emit", "--output", str(tmp_path / "results")]) == 0
    path = tmp_path / "results" / "emit-cpu.json"
    said = capsys.readouterr()
    assert said.out == (
        "emit: from a configuration to PTX text, in a warm process and in a fresh one\n"
        "        median  unit  min  IQR  n  goal\n"
        "  emit       1  ms              1\n"
        "  * of emit\n"
    )
    assert said.err == f"[1/1] emit: the emit\nwritten to {path}\n"
    result = json.loads(path.read_text())
    assert list(result["sections"]) == ["emit"]
    assert result["sections"]["emit"]["measurements"][0]["median"] == 1.0


@pytest.mark.usefixtures("sections")
def test_nothing_is_written_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Command) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a file is written")

    monkeypatch.setattr(tool, "write_file", refuse)
    monkeypatch.chdir(tmp_path)
    code, _, err = call("--only", "emit")
    assert (code, err) == (0, "[1/1] emit: the emit\n")
    assert [path.name for path in tmp_path.rglob("*")] == ["results"]


@pytest.mark.usefixtures("sections")
def test_a_warning_comes_before_the_measurements_and_the_load_into_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool, "load", lambda: [900.0, 1.0, 1.0])
    assert tool.main(["--only", "emit", "--output", str(tmp_path / "results")]) == 0
    assert capsys.readouterr().err.startswith("ptxgen bench: the machine was busy before the")
    result = json.loads((tmp_path / "results" / "emit-cpu.json").read_text())
    assert result["machine"]["load_before"] == [900.0, 1.0, 1.0]


@pytest.mark.usefixtures("sections")
def test_json_on_standard_output_is_what_is_written(tmp_path: Path, call: Command) -> None:
    path = tmp_path / "deep" / "a.json"
    arguments = ["--only", "launch,cpu", "--quick", "--json", "--output", str(path)]
    said = call.out(*arguments)
    assert said == path.read_text()
    assert list(json.loads(said)["sections"]) == ["cpu", "launch"]
    assert json.loads(said)["command"] == "ptxgen bench --only cpu,launch --quick"


def test_without_a_gpu_everything_else_is_measured(sections: dict[str, list[Job]], tmp_path: Path) -> None:
    assert tool.main(["--output", str(tmp_path / "results")]) == 0
    result = json.loads((tmp_path / "results" / "all-cpu.json").read_text())
    assert list(result["sections"]) == [*sections, "gpu"]
    assert result["sections"]["gpu"]["remarks"] == ["not measured: cannot open the GPU: none"]


@pytest.mark.usefixtures("sections")
def test_only_gpu_without_one_is_exit_code_4(tmp_path: Path, call: Command) -> None:
    assert call.error("--only", "cpu,gpu", "--output", str(tmp_path / "results")) == (
        4,
        "section gpu needs a GPU: cannot open the GPU: none",
    )
    assert not list((tmp_path / "results").iterdir())


def test_an_installed_package_says_that_it_needs_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ptxgen, "__file__", str(tmp_path / "ptxgen" / "__init__.py"))
    assert registered_bench.main(["--only", "emit"]) == 2
    assert capsys.readouterr().err == (
        "ptxgen bench: error: it measures in a checkout of this project (benchmarks/), which this is not\n"
    )


def test_what_is_measured_elsewhere_has_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_report, "IN_CHECKOUT", False)
    assert bench_report.document([], quick=True, device=None)["versions"]["commit"] is None


@pytest.mark.usefixtures("sections")
def test_a_gpu_is_part_of_the_result(
    gpu: bench_device.Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "_gpu", lambda: (gpu, ""))
    job = Job("ceiling", lambda: bench_gpu.fma_ceiling(gpu, repeats=1, rounds=1))
    monkeypatch.setattr(tool, "gpu_jobs", lambda *_: [job])
    for name in ("attention_jobs", "gradient_gpu_jobs", "serving_gpu_jobs", "gpu_decode_jobs"):
        monkeypatch.setattr(tool, name, lambda *_: [])
    assert tool.main(["--only", "gpu", "--output", str(tmp_path / "results")]) == 0
    result = json.loads((tmp_path / "results" / "gpu-fake-h100.json").read_text())
    assert result["device"]["name"] == "Fake H100"
    assert result["device"]["nvidia_smi_after"] == {"clocks.max.sm": "1980 MHz"}
    assert result["sections"]["gpu"]["measurements"][0]["name"] == "FMA ceiling"


@pytest.mark.usefixtures("sections")
def test_a_part_in_which_torch_fails_does_not_end_the_others(
    gpu: bench_device.Gpu, monkeypatch: pytest.MonkeyPatch, call: Command
) -> None:
    def fail() -> Rows:
        raise RuntimeError("out of memory\nat length")

    monkeypatch.setattr(tool, "_gpu", lambda: (gpu, ""))
    monkeypatch.setattr(tool, "gpu_jobs", lambda *_: [Job("part", fail), Job("other", lambda: ["told"])])
    for name in ("attention_jobs", "gradient_gpu_jobs", "serving_gpu_jobs", "gpu_decode_jobs"):
        monkeypatch.setattr(tool, name, lambda *_: [])
    result = call.document("--only", "gpu", "--json", code=1)["sections"]["gpu"]
    assert result["failed"] == 1
    assert result["remarks"][-2:] == ["FAILED: part: PyTorch: out of memory", "told"]


def test_a_failed_part_does_not_end_the_others(
    sections: dict[str, list[Job]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> Rows:
        raise AssemblerError("refused")

    sections["emit"].insert(0, Job("bad part", fail))
    sections["emit"].append(Job("same", lambda: ["of emit"]))  # a remark is made once
    assert tool.main(["--only", "emit", "--output", str(tmp_path / "results")]) == 1
    result = json.loads((tmp_path / "results" / "emit-cpu.json").read_text())["sections"]["emit"]
    assert result["failed"] == 1
    assert result["remarks"] == ["FAILED: bad part: refused", "of emit"]
    assert len(result["measurements"]) == 1
    assert capsys.readouterr().err.startswith("[1/3] emit: bad part\n[2/3] emit: the emit\n")


@pytest.mark.usefixtures("sections")
def test_a_result_that_cannot_be_written_is_refused_before_measuring(tmp_path: Path, call: Command) -> None:
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "a.json"
    assert call.error("--only", "emit", "--output", str(out)) == (
        1,
        f"{out} cannot be written: {out.parent} is no folder; name another place with --output",
    )


@pytest.mark.usefixtures("sections")
def test_a_result_that_cannot_be_written_in_the_end_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Command
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, "replace", refuse)
    said = call("--only", "emit", "--json", "--output", str(tmp_path / "a.json"))
    assert said.code == 1
    assert list(json.loads(said.out)["sections"]) == ["emit"]
    assert said.err.endswith(
        f"ptxgen bench: error: cannot write {tmp_path}/a.json: no space; the result is on standard output\n"
    )


@pytest.mark.usefixtures("sections")
def test_list_names_the_sections_and_measures_nothing(tmp_path: Path, call: Command) -> None:
    assert call.out("--list", "--only", "launch,cpu") == (
        "cpu          the backends cpu and compiled against PyTorch on the CPU and plain numpy\n"
        "launch       what a repeated launch costs on the host, without driver and GPU\n"
    )
    assert [line.split()[0] for line in call.quiet("--list").splitlines()] == list(tool.ABOUT)
    assert not list((tmp_path / "results").iterdir())


SECTIONS = (
    "emit, lines, assemble, static, forward, hopper, model, fp8, loops, splits, gallery, decode, serving, "
    "cpu, interpreter, sanitizers, launch, gpu"
)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("emit,cpus", f"unknown section 'cpus'; did you mean 'cpu'? The sections are {SECTIONS}"),
        (",", f"name at least one of {SECTIONS}"),
    ],
)
def test_wrong_sections_are_refused(value: str, message: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        tool._sections(value)
    assert str(caught.value) == message


def test_wrong_usage_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        tool.main(["--only", "cpus"])
    assert caught.value.code == 2
    assert "argument --only: unknown section 'cpus'" in capsys.readouterr().err


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress(2) as begin:
        begin("one")
        begin("two")
    said = capsys.readouterr()
    assert said.out == ""
    assert "[1/2]" not in said.err
