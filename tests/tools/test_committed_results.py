"""The results in `benchmarks/results`: today's programs take their commands and give their shape."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench_command as tool
from flash.commands.measure.record import Measurement
from flash.commands.measure.report import Section, document
from tools.campaign import shipped

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "results"
PROGRAMS = (["ptxgen", "bench"], ["python", "tools/bench.py"])  # the second runs the first in a checkout
RESULTS = {path.stem: path for path in sorted(FOLDER.glob("*-cpu.json"))}
# What writes the results that `ptxgen bench` does not; the tests of these programs read them.
PROGRAMS_OF_OTHERS = {
    "analysis-mutations.json": "tools/mutate_analyses.py",
    "flash-attn-2.json": "benchmarks/flash_attn_2_forward.py",
    "gradient-sweeps.txt": "benchmarks/gradient_sweeps.py",
    "mutations.json": "tools/mutate.py",
    "predictions.json": "tools/gen_predictions.py",
}
HISTORY = {"h200-first-runs.json"}  # runs of 28 November, whose scripts are gone
LONG = ("cpu-cpu",)  # whose first job takes minutes; those of the others take seconds

Shape = tuple[str, str, frozenset[str]]  # name, unit, and names of settings


def read(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(RESULTS[name].read_text(encoding="utf-8"))
    return result


def shapes(measurements: Iterable[Mapping[str, Any]]) -> set[Shape]:
    return {(one["name"], one["unit"], frozenset(one["config"])) for one in measurements}


def test_every_result_has_a_program_of_today() -> None:
    others = {path.name for path in FOLDER.iterdir()} - {path.name for path in RESULTS.values()}
    assert others == {*PROGRAMS_OF_OTHERS, *HISTORY}
    assert all((ROOT / program).is_file() for program in PROGRAMS_OF_OTHERS.values())


def test_the_campaign_has_the_keys_of_today() -> None:
    assert set(json.loads((FOLDER / "mutations.json").read_text())) == set(shipped.document([], {}))


@pytest.mark.parametrize("name", RESULTS)
def test_the_command_of_a_result_is_one_of_today(name: str) -> None:
    result = read(name)
    words = shlex.split(result["command"])
    assert words[:2] in PROGRAMS
    arguments = tool._parser().parse_args(words[2:])
    assert arguments.only == list(result["sections"])
    assert arguments.quick is result["quick"] is False
    every = [section for section in tool.ABOUT if section != "gpu"]
    assert f"{name}.json" == tool.result_name(arguments.only, every, arguments.quick, None)


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_has_the_keys_of_today(name: str) -> None:
    result = read(name)
    one = Measurement("a", "b", 1, 1.0, 1.0, 0.0)
    today = document([Section(n, tool.ABOUT[n], [one]) for n in result["sections"]], quick=False, device=None)
    assert result["schema"] == today["schema"]
    assert set(result) == set(today)
    assert set(result["machine"]) == {*today["machine"], "load_before"}
    for n, section in result["sections"].items():
        assert set(section) == set(today["sections"][n])
        assert section["about"] == tool.ABOUT[n]  # else the section measures something else today
        assert section["failed"] == 0
        keys = {frozenset(m) - {"goal", "goal_met"} for m in section["measurements"]}
        assert keys == {frozenset(today["sections"][n]["measurements"][0])}


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.nightly if n in LONG else pytest.mark.slow) for n in RESULTS]
)
def test_the_first_job_of_today_measures_what_the_result_has(name: str) -> None:
    for n, section in read(name)["sections"].items():
        rows = tool._WITHOUT_GPU[n](True)[0].run()
        today = shapes(row.as_json() for row in rows if isinstance(row, Measurement))
        if not today:  # such as without Triton
            pytest.skip(str(rows))
        assert today <= shapes(section["measurements"])
