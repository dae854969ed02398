from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools import bench_plot


def result(times: dict[tuple[str, int], float]) -> dict[str, Any]:
    """What `ptxgen bench` writes, as far as it is drawn; 2 ns for each thread-instruction."""
    measurements = []
    for (axis, size), ms in times.items():
        config = {"along": axis, axis: size}
        measurements.append({"name": "time", "config": config, "median": ms})
        measurements.append({"name": "time / work", "config": config, "median": 2.0})
    other = {"name": "speed", "config": {"N": 7}, "median": 1.0}
    return {"sections": {"interpreter": {"measurements": [other, *measurements]}}}


TIMES = {("N", 256): 100.0, ("N", 512): 400.0, ("H", 1): 50.0, ("H", 2): 100.0}


def test_points_have_size_work_and_time() -> None:
    points = bench_plot.growth(result(TIMES))
    assert points["N"] == [(256, pytest.approx(0.05), 0.1), (512, pytest.approx(0.2), 0.4)]
    assert points["H"] == [(1, pytest.approx(0.025), 0.05), (2, pytest.approx(0.05), 0.1)]


@pytest.mark.slow
@pytest.mark.usefixtures("matplotlib")
def test_the_same_result_gives_the_same_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "a.json"
    source.write_text(json.dumps(result(TIMES)))
    for name in ("one.svg", "two.svg"):
        assert bench_plot.main([str(source), "--output", str(tmp_path / name)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'one.svg'}\n{tmp_path / 'two.svg'}\n"
    text = (tmp_path / "one.svg").read_text()
    assert text.startswith("<?xml")
    assert text == (tmp_path / "two.svg").read_text()


def test_a_result_without_growth_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "a.json"
    source.write_text(json.dumps(result({("N", 256): 1.0, ("N", 512): 2.0})))
    assert bench_plot.main([str(source), "--output", str(tmp_path / "a.svg")]) == 1
    assert capsys.readouterr().err == (
        f"bench_plot.py: error: {source}: the result has no growth along H; "
        "measure it with: python tools/bench.py --only interpreter --output benchmarks/results\n"
    )
    assert not (tmp_path / "a.svg").exists()


def test_a_result_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_plot.main([str(tmp_path / "none.json"), "--output", str(tmp_path / "a.svg")]) == 1
    assert capsys.readouterr().err.startswith(f"bench_plot.py: error: {tmp_path / 'none.json'}: ")
