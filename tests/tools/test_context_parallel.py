"""The command `ptxgen context-parallel`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from distributed_ranks import Ranks

from flash.commands import context_parallel
from flash.commands.parts.timeline import timeline

ROOT = Path(__file__).resolve().parents[2]
_DEADLINE_S = 120
_SVG = "{http://www.w3.org/2000/svg}"
SIZES = ["--seq", "4096", "--heads", "8", "--head-dim", "64", "--causal"]


def _torchrun(*options: str) -> subprocess.CompletedProcess[str]:
    script = str(ROOT / "tools" / "context_parallel.py")
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", script, *options],
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )


RUN = [
    *("--seq", "300", "--heads", "2", "--head-dim", "16", "--causal", "--backward", "--repeat", "1"),
    *("--scheme", "ring", "--json"),
]


@pytest.mark.nightly
def test_torchrun_starts_the_command(torch: ModuleType, tmp_path: Path) -> None:  # noqa: ARG001
    picture = tmp_path / "timeline.svg"
    result = _torchrun(*RUN, "--timeline", str(picture))
    assert result.returncode == 0, result.stderr
    _check_run(result.stdout, picture)


@pytest.mark.slow
def test_two_processes_have_the_results_of_one(torch: ModuleType, tmp_path: Path) -> None:  # noqa: ARG001
    picture = tmp_path / "timeline.svg"
    ranks = Ranks(2)
    try:
        (code, said), (other, nothing) = ranks.run(
            "distributed_calls.command", [*RUN, "--timeline", str(picture)]
        )
    finally:
        ranks.close()
    assert (code, other, nothing) == (0, 0, "")
    _check_run(said, picture)


def _check_run(said: str, picture: Path) -> None:
    record = json.loads(said)
    assert record["passed"]
    assert record["errors"].keys() == {"out", "lse", "dq", "dk", "dv"}
    chunk = 75 * 2 * (16 + 16) * 4
    # Forward 1 or 2 chunks of rank 0 or 1; backward these again, and gradients of the chunks it was sent.
    assert [r["bytes"] for r in record["ranks"]] == [(1 + 1 + 2) * chunk, (2 + 2 + 1) * chunk]
    assert [r["scores"] for r in record["ranks"]] == [300 * 301 // 2, 300 * 301 // 2]
    titles = [title.text or "" for title in ElementTree.parse(picture).iter(f"{_SVG}title")]
    assert (
        sum(title.startswith("keys and values, step 1: ") for title in titles) == 4
    )  # twice a transfer and a wait


@pytest.mark.nightly
def test_a_scheme_that_cannot_be_used_is_refused_by_all(torch: ModuleType) -> None:  # noqa: ARG001
    result = _torchrun("--seq", "64", "--heads", "3", "--scheme", "ulysses")
    assert result.returncode != 0
    assert (
        "ptxgen context-parallel: error: ContextParallel: scheme 'ulysses' cannot be used: 3 heads are not a "
        "multiple of 2 ranks; use scheme='ring', '2d' or 'auto'"
    ) in result.stderr


def _estimates(capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, Any]]:
    assert context_parallel.main([*SIZES, *options, "--json"]) == 0
    result: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["estimates"]
    return result


def test_estimates_are_those_of_the_cost_rule(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "plot.svg"
    rows = _estimates(capsys, "--estimate", "2,4", "--plot", str(picture))
    by = {(row["gpus"], row["scheme"]): row for row in rows}
    # In a causal zigzag the last of W ranks sends 2 (W - 1) of the 2 W chunks of k and v.
    assert by[4, "ring"]["bytes"] == 6 * 512 * 8 * 128 * 4
    assert sum(row["chosen"] for row in rows) == 2
    assert all(0 < row["efficiency"] <= 1.0001 for row in rows)
    slower = _estimates(capsys, "--estimate", "4", "--scheme", "ring", "--bandwidth", "1e6")
    assert slower[0]["seconds"] > 1000 * by[4, "ring"]["seconds"]
    lines = ElementTree.parse(picture).findall(f"{_SVG}polyline")
    assert len(lines) == len({row["scheme"] for row in rows})


def test_the_table_marks_the_choice(capsys: pytest.CaptureFixture[str]) -> None:
    assert context_parallel.main([*SIZES, "--estimate", "4"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].split() == [
        "GPUs",
        "scheme",
        "sent",
        "by",
        "a",
        "rank",
        "estimate",
        "of",
        "even",
        "compute",
    ]
    assert len([line for line in said[1:-1] if "*" in line]) == 1
    assert said[-1] == "* the cost rule's choice"


def test_without_torchrun_it_says_how_to_start_it(
    torch: ModuleType,  # noqa: ARG001
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert context_parallel.main([]) == 2
    assert capsys.readouterr().err == (
        "ptxgen context-parallel: error: must be started by torchrun, such as: torchrun --nproc-per-node 4 "
        "-m ptxgen context-parallel --causal; --estimate needs no processes\n"
    )


def test_without_pytorch_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(context_parallel.importlib.util, "find_spec", lambda _: None)
    assert context_parallel.main([]) == 3
    assert capsys.readouterr().err == (
        "ptxgen context-parallel: error: needs PyTorch, which is not installed: pip install torch\n"
    )


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--estimate", "4,x"], 2, "argument --estimate: must be numbers of GPUs such as 8,64, got '4,x'"),
        (["--plot", "a.svg"], 2, "--plot draws estimates; give --estimate as well"),
        (
            ["--estimate", "4", "--heads", "3", "--scheme", "ulysses"],
            3,
            "ContextParallel: scheme 'ulysses' cannot be used: 3 heads are not a multiple of 4 ranks; use "
            "scheme='ring', '2d' or 'auto'",
        ),
        (
            ["--estimate", "4", "--plot", "missing/a.svg"],
            1,
            f"cannot write missing/a.svg: {Path.cwd()}/missing is no writable directory",
        ),
    ],
)
def test_what_cannot_work_is_said(
    options: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        result = context_parallel.main(options)
    except SystemExit as end:
        result = end.code
    assert result == code
    assert capsys.readouterr().err.endswith(f"ptxgen context-parallel: error: {said}\n")


def test_a_timeline_without_events_is_a_picture() -> None:
    assert ElementTree.fromstring(timeline([[], []])).tag == f"{_SVG}svg"
