"""The kernels of the documentation beside their peers, as `ptxgen bench --only gallery` measures them."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest

from benchmarks.measure import gallery
from flash.commands.measure.record import Measurement, Rows
from flash.commands.measure.report import ROOT
from ptxgen.errors import BackendError
from ptxgen.runtime.sass import SassInstr

RESULT = json.loads((ROOT / "benchmarks" / "results" / "gallery-cpu.json").read_text(encoding="utf-8"))
MOST_LINES = {
    "softmax": 15,
    "layer_norm": 20,
    "gemm": 40,
    "attention": 60,
    **dict.fromkeys(("norm_quantised", "paged_gather"), 20),
    **dict.fromkeys(("moe_gemm", "int4_gemm"), 16),
    **dict.fromkeys(("blackwell_gemm", "blackwell_pair_gemm", "nvf4_gemm"), 60),
}


class StubDisassembler:
    """A loop of one product and four other instructions, whatever the kernel is."""

    code: ClassVar = [
        *(SassInstr(opcode) for opcode in ("LDSM", "HMMA.16816.F32", "IADD3", "MOV")),
        SassInstr("BRA", 0),
        SassInstr("EXIT", None, False),
    ]

    def instructions(self, cubin: bytes) -> list[SassInstr]:
        assert cubin.startswith(b"\x7fELF")
        return self.code


class StubPeer:
    """Another compiler, if it made of each kernel what we make, in three lines."""

    KERNELS: ClassVar = {"softmax": None, "gemm": None}

    def __init__(self, by: str) -> None:
        assert by in gallery.PEERS

    def source(self, name: str) -> str:
        return f"def {name}():\n    x = 1\n    return x\n"

    def compiled(self, name: str, capability: int) -> dict[str, Any]:
        return {"ptx": gallery.function(name).build(target=f"sm_{capability}").text}


def figures(found: Rows, by: str) -> dict[tuple[str, str], float]:
    items = [m for m in found if isinstance(m, Measurement) and m.config.get("by") == by]
    return {(m.name, m.unit): m.median for m in items}


def missing() -> Any:
    raise BackendError("there is no nvdisasm")


def no_peer(by: str) -> Any:
    raise ImportError(f"No module named {gallery.PEERS[by][1]!r}")


@pytest.mark.parametrize("name", gallery.KERNELS)
def test_a_kernel_of_the_documentation_is_short(name: str) -> None:
    assert gallery.lines_of_code(gallery.sources()[name]) <= MOST_LINES[name]


def test_lines_are_those_with_code() -> None:
    source = '''
@decorated
def f(x,
      y):
    """What it does,

    and how.
    """
    # why

    text = """two
lines"""
    return x  # this
'''
    assert gallery.lines_of_code(source) == 6


@pytest.mark.ptxas
def test_a_kernel_is_measured_beside_its_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gallery, "find_disassembler", StubDisassembler)
    monkeypatch.setattr(gallery, "peer_module", StubPeer)
    result = gallery.compared("gemm", 1)
    ours = figures(result, "ptxgen")
    assert ours["machine instructions", "instr."] == 6
    assert ours["main loop", "instr. per HMMA"] == 5
    assert ours["spilled", "bytes"] == 0
    for by in ("Triton", "CuTe DSL"):
        its = figures(result, by)
        assert its["main loop", "instr. per HMMA"] == 5
        assert its["lines", "lines"] == 3
    ratios = [m for m in result if isinstance(m, Measurement) and m.headline]
    assert [(m.name, m.median, str(m.goal)) for m in ratios] == [
        ("main loop, instructions per HMMA: ours / Triton", 1, "<= 1.1"),
        ("main loop, instructions per HMMA: ours / CuTe DSL", 1, "<= 1.1"),
    ]


@pytest.mark.ptxas
def test_a_kernel_that_peers_lack_is_measured_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gallery, "find_disassembler", missing)
    monkeypatch.setattr(gallery, "peer_module", StubPeer)
    result = gallery.compared("blackwell_pair_gemm", 1)
    assert {m.config["by"] for m in result if isinstance(m, Measurement)} == {"ptxgen"}
    assert {m.config["target"] for m in result if isinstance(m, Measurement)} == {"sm_100a"}


@pytest.mark.ptxas
def test_without_peers_and_disassembler_the_rest_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gallery, "find_disassembler", missing)
    monkeypatch.setattr(gallery, "peer_module", no_peer)
    result = gallery.compared("softmax", 1)
    assert set(figures(result, "ptxgen")) == {
        ("lines", "lines"),
        ("from a function to a cubin", "ms"),
        ("registers", "per thread"),
        ("spilled", "bytes"),
    }
    assert [item for item in result if isinstance(item, str)] == [
        "machine code was not counted: there is no nvdisasm",
        "Triton's kernels were not measured: No module named 'triton'; pip install triton",
        "CuTe DSL's kernels were not measured: No module named 'nvidia-cutlass-dsl'; "
        "pip install nvidia-cutlass-dsl",
    ]


def test_the_documentation_has_the_table_of_the_result() -> None:
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    assert gallery.as_markdown(RESULT) in page
    assert RESULT["command"] in page


def test_the_result_names_what_it_was_measured_with() -> None:
    assert all(RESULT["versions"][name] for name in ("triton", "nvidia-cutlass-dsl", "assembler", "commit"))
    assert not RESULT["sections"]["gallery"]["failed"]


def test_the_goals_were_met() -> None:
    goals = [m for m in RESULT["sections"]["gallery"]["measurements"] if "goal" in m]
    products = {"gemm": 2, "attention": 2, "moe_gemm": 1, "int4_gemm": 1}  # peers with a main loop
    assert len(goals) == len(gallery.KERNELS) + sum(products.values())
    assert all(m["goal_met"] for m in goals)
