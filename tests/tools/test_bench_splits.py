"""What `ptxgen bench --only splits` says of two kernels of a launch."""

from __future__ import annotations

import pytest

from benchmarks.measure import static_row_bits as splits
from flash.commands.measure.record import Measurement


def test_launches_are_of_both_kinds_of_keys_and_say_so() -> None:
    assert splits.Call("sm_80", 64, 1, 4096, pages=True).label == "1 query, 4096 keys in pages"
    assert splits.Call("sm_80", 64, 2, 70).label == "2 queries, 70 keys"
    assert {call.pages for call in splits.CALLS} == {False, True}
    assert [len(splits.row_bits_jobs(quick)) for quick in (True, False)] == [1, len(splits.CALLS)]


def test_the_kernels_are_those_of_launches() -> None:
    call = splits.Call("sm_90a", 128, 1, 4096, pages=True)
    free, fixed = (call.kernel(n) for n in ("auto", 1))
    assert (free.tiling.block_q, fixed.tiling.block_q) == (32, 64)
    assert free.packed
    assert fixed.packed


@pytest.mark.nightly
@pytest.mark.ptxas
@pytest.mark.usefixtures("assembler", "disassembler")
def test_clocks_of_one_kernel_are_the_same_and_a_row_has_both() -> None:
    row, ratio = splits.row_bits_cost(splits.Call("sm_80", 128, 4096, 4096))
    assert isinstance(row, str)
    cells = row.split(" | ")
    assert cells[:3] == ["sm_80", "128", "4096 queries, 4096 keys"]
    assert cells[3] == cells[4]
    assert cells[3].startswith("mma 128x64, ")
    assert cells[5] == "1.00"
    assert isinstance(ratio, Measurement)
    assert ratio.median == 1
