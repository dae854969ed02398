"""Kernels with `tcgen05` that are assembled, and read by the model of roles."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.measure import static_blackwell
from benchmarks.measure.gallery import function
from benchmarks.measure.static_blackwell import RoleReading, table
from ptxgen.errors import BackendError
from ptxgen.report.issue_units import Unit
from ptxgen.report.role_model import ISSUE, WEIGHTS_ALONE, Role, RoleClocks, RoleLoop
from ptxgen.runtime.sass import Loop, SassInstr, find_disassembler
from tools import gen_predictions

# By kernel of the gallery: clocks of the tensor cores, and of shared memory, for a step of depth. f16 has 4
# products of 128 x 128 x 16, in a pair of 256 x 256 x 16 for both CTAs; nvf4 4 of 128 x 128 x 64. Operands
# are read once and copied once: 16 KB each of A and of B for a CTA, for nvf4 also 4 KB of factors.
STEPS = {
    "blackwell_gemm": (4 * 64, 2 * 32768 / 128),
    "blackwell_pair_gemm": (4 * 128, 2 * 32768 / 128),
    "nvf4_gemm": (4 * 64, 2 * 36864 / 128),
}


@pytest.fixture
def tools() -> None:
    """A disassembler, or the test is skipped."""
    try:
        find_disassembler()
    except BackendError as error:
        pytest.skip(str(error))


@pytest.mark.ptxas
@pytest.mark.usefixtures("assembler", "tools")
@pytest.mark.parametrize("target", ["sm_100a", "sm_103a"])
@pytest.mark.parametrize("name", STEPS)
def test_products_of_matrices_take_the_clocks_of_their_shapes(name: str, target: str) -> None:
    reading = RoleReading.of(function(name).build(target=target).text)
    clocks = reading.clocks.clocks
    assert (clocks[Unit.TENSOR.value], clocks[Unit.MEMORY.value]) == STEPS[name]
    assert set(reading.roles) == {Role.PRODUCTS, Role.COPIES}
    assert clocks[ISSUE] < clocks[Unit.TENSOR.value]
    assert reading.target == target


@pytest.mark.ptxas
@pytest.mark.usefixtures("assembler", "tools")
def test_a_file_that_cannot_be_read_has_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    none, other, wanted = (tmp_path / f"{name}.ptx" for name in ("none", "other", "gemm"))
    other.write_text("int main() {}\n")
    wanted.write_text(function("blackwell_gemm").build(target="sm_100a").text + "\0")
    assert gen_predictions.main(["--texts", *map(str, (none, other, wanted))]) == 0
    *_, head, first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith("none: [Errno 2] No such file or directory: ")
    assert second == "other: expected the PTX of a module with .target and .entry, got a text without them"
    assert third.startswith("gemm | sm_100a | ")
    assert third.endswith(" | shared memory | 50.0 | 1.12")
    assert third.count("|") == head.count("|")


@pytest.mark.ptxas
@pytest.mark.usefixtures("assembler", "tools")
def test_a_kernel_without_products_is_not_read() -> None:
    text = ".version 9.0\n.target sm_100a\n.address_size 64\n.visible .entry k() { ret; }\n"
    why = "and no products in the kernel; give it a kernel with such a loop"
    with pytest.raises(BackendError, match=f"{why}$"):
        RoleReading.of(text)


def test_the_row_of_a_kernel() -> None:
    loop = RoleLoop(Loop((SassInstr("NOP"),) * 3, 3), 8)
    clocks = dict.fromkeys((*(unit.value for unit in Unit), ISSUE), 10.0) | {WEIGHTS_ALONE: 40.0}
    clocks[Unit.TENSOR.value] = 30.0
    of = RoleReading("sm_100a", 128, 0, {Role.WEIGHTS: loop}, RoleClocks(clocks))
    assert of.row("mine") == (
        "mine | sm_100a | 128 | 0 | - | - | 3 | - | 8 | 30 | 10 | 10 | 10 | 10 | 10 | 10 | 40 "
        "| loop of weights | 75.0 | 1.68"
    )
    assert table([]).splitlines() == list(static_blackwell.BLACKWELL_REMARKS)
