"""The geometry of charts, in numbers that are known."""

from __future__ import annotations

import pytest

from ptxgen.rates import DEVICES, tensor_factor
from ptxgen.report import charts
from ptxgen.report.classes import (
    CONTROL,
    COPY,
    FLOAT,
    GLOBAL,
    INTEGER,
    SHARED,
    SPECIAL,
    SYNC,
    TENSOR,
    class_of,
)
from ptxgen.report.data import Lane, Pipeline, PtxLine, Roofline, Stage

LANE = Lane((0, 1, 2, 8), 10, ((3, 0, 6), (-1, 6, 2), (0, 8, 2)), ((6, 2, 5, "barrier"),), ((2, 8, 512, 4),))


def test_warps_are_named_by_ranges() -> None:
    assert charts.warps_of(LANE) == "warps 0\u20132, 8"
    assert charts.warps_of(Lane((3,), 1, (), (), ())) == "warp 3"


def test_a_timeline_has_a_path_for_each_class() -> None:
    result = charts.timeline(Pipeline(("a",) * 9, 10, 10, (Stage("s", 0, 10, 3),), (LANE,)))
    (box,) = result["lanes"]
    slot = (charts.WIDTH - charts.LEFT - 12) / 10
    right = round(charts.LEFT + 6 * slot, 1)
    assert dict(box.paths)[3] == f"M{charts.LEFT}.0 58H{right}v20H{charts.LEFT}.0z"
    assert [value for value, _ in box.paths] == [-1, 0, 3]
    assert box.most_bytes == 512
    assert result["per"] == 1


def test_a_column_of_many_slots_shows_what_most_of_them_are() -> None:
    lane = Lane((0,), 3000, ((1, 0, 1399), (2, 1399, 1601)), (), ())
    result = charts.timeline(Pipeline(("a",) * 9, 3000, 3000, (), (lane,)))
    assert result["per"] == 3
    (box,) = result["lanes"]
    edge = round(charts.LEFT + 466 * (charts.WIDTH - charts.LEFT - 12) / 1000, 1)
    assert f"H{edge}v20" in dict(box.paths)[1]


def test_slots_are_added_up_by_class() -> None:
    assert charts.class_slots(LANE) == {-1: 2, 0: 2, 3: 6}


@pytest.mark.parametrize(
    ("count", "words"),
    [(None, ""), (0, "0"), (999, "999"), (1000, "1.0k"), (34_500, "34k"), (5_600_000, "5.6M")],
)
def test_counts_are_shortened(count: int | None, words: str) -> None:
    assert charts.short(count) == words


def test_heat_grows_with_the_logarithm() -> None:
    assert [charts.heat(n, 10_000) for n in (None, 0, 1, 10, 100, 10_000)] == [0, 0, 1, 2, 3, 5]


@pytest.mark.parametrize(
    ("most", "found"), [(0, [0]), (7, [0, 2, 4, 6]), (255, [0, 100, 200]), (3, [0, 1, 2, 3])]
)
def test_ticks_are_round(most: float, found: list[int]) -> None:
    assert charts.ticks(most, 4) == found


def test_a_sparkline_has_a_bar_for_each_line() -> None:
    lines = [
        PtxLine(1, ".reg", "directive"),
        PtxLine(2, "a;", "instruction", registers=5),
        PtxLine(3, "l:", "label"),
    ]
    (chunk,) = charts.ptx_chunks(lines, 10, 0)
    assert chunk.spark == "M0 0H0V1H50V2H50V3H0Z"


def test_a_roofline_is_bounded_by_memory_or_by_units() -> None:
    low = charts.roofline_chart(Roofline("d", 100.0, 0.0, 100.0, 128.0, 2048.0, 10.0), 20.0)
    assert (low["intensity"], low["attainable"], low["reached"]) == (1.0, 10.0, 5.0)
    high = charts.roofline_chart(Roofline("d", 1e5, 0.0, 100.0, 128.0, 2048.0, 10.0), 1e4)
    assert high["attainable"] == 128.0
    assert [roof["name"] for roof in high["roofs"]] == ["f32 units"]
    products = charts.roofline_chart(Roofline("d", 1e6, 1e6, 100.0, 128.0, 2048.0, 10.0), 1e4)
    assert products["attainable"] == 2048.0


@pytest.mark.parametrize(
    ("opcode", "found"),
    [
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", TENSOR),
        ("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16", TENSOR),
        ("wgmma.wait_group.sync.aligned", SYNC),
        ("tcgen05.mma.cta_group::1.kind::f16", TENSOR),
        ("tcgen05.ld.sync.aligned.32x32b.x32.b32", COPY),
        ("tcgen05.st.sync.aligned.32x32b.x32.b32", COPY),
        ("tcgen05.cp.cta_group::1.32x128b.warpx4", COPY),
        ("tcgen05.wait::ld.sync.aligned", SYNC),
        ("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64", SYNC),
        ("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32", SYNC),
        ("fma.rn.f32", FLOAT),
        ("ex2.approx.f32", SPECIAL),
        ("div.u32", INTEGER),
        ("add.s32", INTEGER),
        ("cvt.rn.f16.f32", INTEGER),
        ("ld.param.u64", INTEGER),
        ("ld.shared.v4.f32", SHARED),
        ("atom.shared.add.u32", SHARED),
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16", SHARED),
        ("st.global.u32", GLOBAL),
        ("ld.f32", GLOBAL),
        ("cp.async.cg.shared.global", COPY),
        ("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes", COPY),
        ("cp.async.wait_group", SYNC),
        ("cp.async.mbarrier.arrive.noinc.shared.b64", SYNC),
        ("bar.sync", SYNC),
        ("mbarrier.try_wait.parity.shared::cta.b64", SYNC),
        ("bra", CONTROL),
    ],
)
def test_opcodes_have_their_class(opcode: str, found: int) -> None:
    assert class_of(opcode) == found


def test_published_rates_of_tensor_cores_follow_from_the_devices() -> None:
    # Dense f16 with f32 sums, in TFLOP/s, as the white papers print it.
    printed = {80: 312, 86: 71, 89: 165.2, 90: 989.4, 120: 209.5}
    for sm, tflops in printed.items():
        device = DEVICES[sm]
        built = 2 * device.macs * device.multiprocessors * device.mhz * 1e6 / 1e12
        assert built == pytest.approx(tflops, rel=0.01)


def test_types_have_their_own_rates() -> None:
    assert tensor_factor("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", 80) == 0.5
    assert tensor_factor("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16", 90) == 1.0
    assert tensor_factor("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 90) == 0.63
