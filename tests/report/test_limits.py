"""Occupancy, the issue model and the roofline of counted work."""

from __future__ import annotations

import pytest

from ptxgen.interpreter import Counters
from ptxgen.interpreter.reports import MemoryTraffic
from ptxgen.report.limits import limits
from ptxgen.target import target

F16 = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
TF32 = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
MACS = 16 * 8 * 16


def counted(sectors: int = 0, **opcodes: int) -> Counters:
    result = Counters()
    result.by_opcode.update(opcodes)
    result.warp_instructions = sum(opcodes.values())
    result.memory_by_instruction = {0: MemoryTraffic("ld", sectors_read=sectors)}
    return result


def cycles(counters: Counters, name: str = "sm_80", ctas: int = 1) -> dict[str, float]:
    result = limits(target(name), 128, 32, 0, ctas, counters)
    return {bound.unit: bound.cycles for bound in result.bounds}


def test_products_take_as_long_as_their_type_says() -> None:
    assert cycles(counted(**{F16: 10}))["tensor cores"] == 10 * MACS / 1024
    assert cycles(counted(**{TF32: 10}))["tensor cores"] == 10 * (MACS / 2) / 0.5 / 1024
    assert cycles(counted(**{F16: 10}), "sm_90")["tensor cores"] == pytest.approx(10 * MACS / 0.63 / 2048)


def test_lanes_of_a_target_say_how_long_f32_takes() -> None:
    assert cycles(counted(**{"fma.rn.f32": 8}))["floating point"] == 8 / 2
    assert cycles(counted(**{"fma.rn.f32": 8}), "sm_86")["floating point"] == 8 / 4
    assert cycles(counted(**{"ex2.approx.f32": 8}))["exp2 and others"] == 8 / 0.5


def test_shared_memory_of_turing_takes_two_clocks_for_a_wavefront() -> None:
    counters = counted()
    counters.memory_by_instruction = {0: MemoryTraffic("ld", shared_wavefronts=30)}
    assert [cycles(counters, name)["shared memory"] for name in ("sm_75", "sm_80")] == [60, 30]


def test_the_busiest_unit_is_the_first() -> None:
    result = limits(target("sm_80"), 128, 32, 0, 2, counted(**{"ex2.approx.f32": 8, "add.s32": 4}))
    assert [bound.unit for bound in result.bounds] == ["exp2 and others", "issue", "integers"]
    assert result.bounds[0].amount == 4


def test_operations_of_a_roofline_are_those_of_all_lanes() -> None:
    work = counted(
        sectors=4,
        **{"fma.rn.f32": 1, "add.rn.f32": 1, "fma.rn.f16x2": 1, "max.f32": 1, "ex2.approx.f32": 1, F16: 1},
    )
    roofline = limits(target("sm_80"), 128, 32, 0, 1, work, bulk_bytes=100).roofline
    assert roofline is not None
    assert roofline.tensor_flops == 2 * MACS
    assert roofline.flops - roofline.tensor_flops == 32 * (2 + 1 + 4 + 0 + 1)
    assert roofline.nbytes == 4 * 32 + 100
    assert (roofline.peak, roofline.tensor_peak) == (128, 2048)


def test_products_in_tensor_memory_count_by_their_shape_and_kind() -> None:
    work = counted(**{"tcgen05.mma.cta_group::1.kind::f16": 2})
    work.tensor_memory_macs.update(
        {
            "tcgen05.mma.cta_group::1.kind::f16": 4096 * 8,
            "tcgen05.mma.cta_group::2.kind::tf32": 4096 * 8,
            "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale": 4096 * 8,
            "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16": 4096 * 8,
        }
    )
    assert cycles(work, "sm_100a")["tensor cores"] == 8 * (1 + 2 + 0.5 + 0.25)
    assert work.tensor_flops == 2 * 4 * 4096 * 8


def test_columns_of_tensor_memory_limit_the_ctas_of_a_multiprocessor() -> None:
    work = counted(**{"add.s32": 1})
    for columns, ctas in ((512, 1), (256, 2), (32, 16)):
        work.tensor_columns = columns
        result = limits(target("sm_100a"), 128, 32, 0, 1, work)
        by = "its warps or CTAs" if ctas == 16 else "tensor memory"
        assert (result.ctas_per_sm, result.limited_by) == (ctas, by)


def test_a_target_without_a_known_device_has_no_roofline() -> None:
    result = limits(target("sm_87"), 128, 32, 0, 1, counted(sectors=4, **{"fma.rn.f32": 1}))
    assert result.roofline is None
    assert "no device is known here for sm_87: no roofline, no tensor cores" in result.assumptions


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "ctas", "why"),
    [
        (128, 32, 0, 16, "its warps or CTAs"),
        (128, 255, 0, 2, "registers"),
        (128, 32, 80 * 1024, 2, "shared memory"),
        (128, 255, 80 * 1024, 2, "registers and shared memory"),
    ],
)
def test_occupancy_says_what_limits_it(
    threads: int, registers: int, shared: int, ctas: int, why: str
) -> None:
    result = limits(target("sm_80"), threads, registers, shared, 1, None)
    assert (result.ctas_per_sm, result.limited_by) == (ctas, why)
    assert result.bounds == ()
