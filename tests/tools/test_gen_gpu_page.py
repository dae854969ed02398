"""docs/gpu.md and README.md say what the ledger and the results of GPUs say."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flash.silicon.ledger import Entry, key
from tools import gen_gpu_page
from tools.commands import gpu_figures
from tools.commands.gpu_figures import Table
from tools.commands.shipped_kernels import FAMILIES, Shipped, shipped
from tools.gen_gpu_page import PAGE, render

README = gpu_figures.ROOT / "README.md"


@pytest.fixture(autouse=True)
def read_anew() -> Iterator[None]:
    """Files of results are read anew for each test, though a process reads them once."""
    yield
    gpu_figures.first.cache_clear()
    gpu_figures.devices.cache_clear()


def _of_page(device: str) -> Table:
    """The counts of families of a device that the page has, for which many kernels would be emitted."""
    table = PAGE.read_text(encoding="utf-8").partition(f"| {device}, sm_")[2]
    rows = table.splitlines()[2 : 2 + len(FAMILIES)]
    return [row.strip("| ").split(" | ") for row in rows]


def test_but_for_the_counts_of_texts_the_page_is_what_the_results_say() -> None:
    assert render(_of_page) == PAGE.read_text(encoding="utf-8")
    assert [row[0] for row in _of_page("NVIDIA H200")] == list(FAMILIES)


def test_the_readme_says_which_gpus_have_run_kernels() -> None:
    said = " ".join(README.read_text(encoding="utf-8").split())
    assert f"So far {gpu_figures.which_ran()} (" in said


def _entry(device: str, capability: str, one: Shipped, text: str | None, verdict: str = "right") -> Entry:
    return Entry(text, one.words, device, capability, "1", verdict, "a test", "1")


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        (
            {"NVIDIA H200": "9.0"},
            "an NVIDIA H200 (sm_90); none has on sm_80, sm_86, sm_89, sm_100 and sm_120",
        ),
        (
            {"NVIDIA H200": "9.0", "NVIDIA A100": "8.0", "NVIDIA B200": "10.0"},
            "an NVIDIA A100 (sm_80), an NVIDIA B200 (sm_100) and an NVIDIA H200 (sm_90); none has on sm_86, "
            "sm_89 and sm_120",
        ),
    ],
)
def test_a_sentence_says_where_kernels_have_run(
    devices: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_figures, "devices", lambda: devices)
    assert gpu_figures.which_ran() == f"kernels have run on {said}"


@pytest.mark.slow
def test_texts_are_counted_by_what_came_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger of four kernels: one was right, one failed, one ran with another text, and one never ran."""
    four = [one for one in shipped(("sm_90",)) if one.family == "gradients"][:4]
    entries = [
        _entry("GPU", "9.0", four[0], key(four[0].text())),
        _entry("GPU", "9.0", four[1], key(four[1].text()), "wrong"),
        _entry("GPU", "9.0", four[2], "another"),
        *(_entry("other", "9.0", one, key(one.text())) for one in four),
    ]
    monkeypatch.setattr(gpu_figures, "read", lambda: entries)
    monkeypatch.setattr(gpu_figures, "shipped", lambda _: four)
    gpu_figures.devices.cache_clear()
    counted = gpu_figures.of_families("GPU")
    assert counted[-1] == ["gradients", "4", "2", "1", "1", "1"]
    assert all(row[1:] == ["0"] * 5 for row in counted[:-1])
    assert gpu_figures.of_families("other")[-1] == ["gradients", "4", "4", "0", "0", "0"]


# ------------------------------------------------------------------------------- figures of files


def _changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, change: Any) -> None:
    data = json.loads(gpu_figures.FIRST.read_text(encoding="utf-8"))
    change(data)
    file = tmp_path / "first.json"
    file.write_text(json.dumps(data))
    monkeypatch.setattr(gpu_figures, "FIRST", file)
    gpu_figures.first.cache_clear()


def test_the_page_changes_with_a_figure_of_the_results(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def faster(data: dict[str, Any]) -> None:
        gpu_figures.one(data["tiles_by_length"], d=64, N=512, causal=False)["192x128s"] = 1234.0

    _changed(monkeypatch, tmp_path, faster)
    monkeypatch.setattr(gen_gpu_page.render, "__defaults__", (_of_page,))
    assert gen_gpu_page.main(["--check"]) == 1
    assert capsys.readouterr().err == (
        f"gen_gpu_page.py: {PAGE} is not what the results and the ledger say; run python "
        "tools/gen_gpu_page.py\n"
    )
    assert gpu_figures.of_launches(False)[0][1] == "1234 / 369"


def test_tiles_of_a_launch_that_were_not_measured_are_unknown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def less(data: dict[str, Any]) -> None:
        del gpu_figures.one(data["tiles_by_length"], d=64, N=512, causal=False)["192x128s"]

    _changed(monkeypatch, tmp_path, less)
    assert gpu_figures.of_launches(False)[0][1] == "- / 369"


def test_a_figure_that_is_missing_or_there_twice_is_an_error() -> None:
    rows = [{"who": "ours", "d": 64}, {"who": "ours", "d": 64}]
    for wanted, count in (({"who": "ours"}, 2), ({"who": "flash"}, 0)):
        with pytest.raises(LookupError, match=re.escape(f"{count} rows have {wanted}")):
            gpu_figures.one(rows, **wanted)


# ----------------------------------------------------------------------------------- later devices

FORWARD = {"kind": "forward", "dtype": "f16", "d": 64, "n": 512, "causal": True}
LATER: dict[str, Any] = {
    "device": {"name": "NVIDIA A100", "sm": "sm_80", "driver": "590.1"},
    "calls": [
        {"who": "ours", **FORWARD, "tflops": 100.4},
        {"who": "cudnn", **FORWARD, "tflops": 90},
        {"who": "ours", **FORWARD, "tflops": 101},
        {"who": "ours", "kind": "decode", "dtype": "f16", "d": 64, "n": 512, "ms": 0.01234},
        {"who": "copy", "kind": "ceiling", "tbs": 4.2, "ms": 1.0},
        {"who": "else", "kind": "ceiling"},
    ],
    "counters": [{"kernel": "a_kernel", "N": 512, "tensor_pipe_%": 61.5}],
}


def test_results_of_another_gpu_have_a_section(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "nvidia-a100.json").write_text(json.dumps(LATER))
    (tmp_path / "forward-cpu.json").write_text(json.dumps({"sections": {}}))
    monkeypatch.setattr(gpu_figures, "RESULTS", tmp_path)
    assert render(_of_page).partition("\n## NVIDIA A100, by make gpu\n")[2] == (
        "\n`benchmarks/results/nvidia-a100.json`, driver 590.1; TFLOP/s unless it says otherwise:\n"
        "\n"
        "| kind | dtype | d | n | causal | ours | cudnn | copy | else |\n"
        "|---|---|---|---|---|---|---|---|---|\n"
        "| forward | f16 | 64 | 512 | causal | 101 | 90 |  |  |\n"
        "| decode | f16 | 64 | 512 |  | 0.0123 ms |  |  |  |\n"
        "| ceiling |  |  |  |  |  |  | 4.20 TB/s | - |\n"
        "\n"
        "| kernel | keys | tensor cores, % |\n"
        "|---|---|---|\n"
        "| a_kernel | 512 | 61.5 |\n"
    )
