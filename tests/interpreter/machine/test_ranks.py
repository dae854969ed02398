"""Addresses in shared memory hold the rank of their CTA in its cluster, as on a device."""

from __future__ import annotations

import numpy as np
import pytest
from interpreter import test_hopper_programs as hopper
from interpreter.both_paths import run_both_ways
from interpreter.programs import line_of
from interpreter.reported import trap

from ptxgen.interpreter import run

BARRIER = "barrier.cluster.arrive.release; barrier.cluster.wait.acquire;"
START = """
    ld.param.u64 %rd0, [out];
    mov.u32 %r0, %ctaid.x;
    mul.wide.u32 %rd1, %r0, 32;
    add.u64 %rd0, %rd0, %rd1;
    mov.u32 %r1, smem;
"""
EVEN = 0xFEFFFFFF  # the mask of CUTLASS that leads to the even CTA of a pair


def results(body: str, *, cluster: int, ctas: int = 4) -> list[list[int]]:
    """What each CTA of one thread has written to its eight words."""
    out = np.zeros((ctas, 8), np.uint32)
    text = hopper.kernel("u64 out", START + body)
    run_both_ways(text, grid=ctas, block=1, cluster=cluster, args=[out], dynamic_smem=64)
    return out.tolist()


ADDRESSES = """
    mov.u32 %r2, smem+16;
    cvta.shared.u64 %rd2, smem;
    mov.u64 %rd3, smem;
    cvta.shared.u64 %rd3, %rd3;
    sub.u64 %rd2, %rd3, %rd2;
    cvta.to.shared.u64 %rd3, %rd3;
    getctarank.shared::cluster.u32 %r3, %r1;
    mov.u32 %r4, %cluster_ctarank;
    mapa.shared::cluster.u32 %r5, %r1, %r4;
    mapa.shared::cluster.u32 %r6, %r1, 0;
    st.global.u32 [%rd0], %r1;
    st.global.u32 [%rd0+4], %r2;
    st.global.u64 [%rd0+8], %rd2;
    cvt.u32.u64 %r7, %rd3;
    st.global.u32 [%rd0+16], %r7;
    st.global.u32 [%rd0+20], %r3;
    st.global.u32 [%rd0+24], %r5;
    st.global.u32 [%rd0+28], %r6;
"""


@pytest.mark.parametrize("cluster", [1, 2, 4])
def test_an_address_holds_the_rank_of_the_cta_from_bit_24_on(cluster: int) -> None:
    ranks = [cta % cluster for cta in range(4)]
    wanted = [[r << 24, (r << 24) + 16, 0, 0, r << 24, r, r << 24, 0] for r in ranks]
    assert results(ADDRESSES, cluster=cluster) == wanted


# Each CTA puts its number into its memory, and reads it by its address in each form.
ACCESSES = """
    add.u32 %r2, %r0, 100;
    st.shared.u32 [smem+8], %r2;
    ld.shared.u32 %r3, [%r1+8];
    cvta.shared.u64 %rd2, smem;
    ld.u32 %r4, [%rd2+8];
    sub.u32 %r5, %r1, 64;
    ld.shared.u32 %r5, [%r5+72];
    atom.shared.add.u32 %r6, [%r1+8], 0;
    ld.shared::cluster.u32 %r7, [%r1+8];
    st.global.v4.u32 [%rd0], {%r3, %r4, %r5, %r6};
    st.global.u32 [%rd0+16], %r7;
"""


@pytest.mark.parametrize("cluster", [1, 2, 4])
def test_accesses_by_the_address_of_the_cta_reach_its_memory(cluster: int) -> None:
    assert results(ACCESSES, cluster=cluster) == [[100 + cta] * 5 + [0] * 3 for cta in range(4)]


def test_an_address_is_in_the_memory_of_the_cta_whose_rank_it_holds() -> None:
    body = f"""
    st.shared.u32 [smem], %r0;
    {BARRIER}
    and.b32 %r2, %r1, {EVEN};
    ld.shared::cluster.u32 %r3, [%r2];
    xor.b32 %r4, %r1, 0x3000000;
    ld.shared::cluster.u32 %r5, [%r4];
    cvt.u64.u32 %rd2, %r4;
    cvta.shared::cluster.u64 %rd2, %rd2;
    ld.u32 %r6, [%rd2];
    isspacep.shared::cta %p1, %rd2;
    isspacep.shared::cluster %p2, %rd2;
    selp.u32 %r7, 1, 0, %p1;
    selp.u32 %r8, 1, 0, %p2;
    st.global.v2.u32 [%rd0], {{%r3, %r5}};
    st.global.v2.u32 [%rd0+8], {{%r6, %r7}};
    st.global.u32 [%rd0+16], %r8;
    {BARRIER}
"""
    wanted = [[cta & ~1, 3 - cta, 3 - cta, 0, 1, 0, 0, 0] for cta in range(4)]
    assert results(body, cluster=4) == wanted


# The odd CTA of a pair writes to the memory of the even one. Both arrive at the mbarrier of the even one,
# which waits for them.
PAIR = f"""
    and.b32 %r2, %r1, {EVEN};
    and.b32 %r3, %r0, 1;
    setp.eq.u32 %p0, %r3, 1;
    @%p0 bra $ready;
    mbarrier.init.shared::cta.b64 [%r1], 2;
    fence.mbarrier_init.release.cluster;
$ready:
    {BARRIER}
    @%p0 st.shared::cluster.u32 [%r2+8], 7;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r2];
    @%p0 bra $end;
$wait:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%r1], 0;
    @!%p1 bra $wait;
    ld.shared.u32 %r4, [%r1+8];
    st.global.u32 [%rd0], %r4;
$end:
    {BARRIER}
"""


@pytest.mark.parametrize("schedule", ["lockstep", "pct:1", "pct:2"])
@pytest.mark.parametrize("cluster", [2, 4])
def test_both_ctas_of_a_pair_reach_the_mbarrier_of_the_even_one(cluster: int, schedule: str) -> None:
    text = hopper.kernel("u64 out", START + PAIR)
    out = np.zeros((4, 8), np.uint32)
    how = {"grid": 4, "block": 1, "cluster": cluster, "dynamic_smem": 64}
    run(text, args=[out], sanitize="all", schedule=schedule, **how)
    assert out[:, 0].tolist() == [7, 0, 7, 0]


def test_bytes_of_a_copy_are_counted_by_the_mbarrier_of_the_even_cta() -> None:
    body = f"""
    and.b32 %r2, %r1, {EVEN};
    and.b32 %r3, %r0, 1;
    setp.eq.u32 %p0, %r3, 1;
    @%p0 bra $ready;
    mbarrier.init.shared::cta.b64 [%r1], 1;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 16;
$ready:
    {BARRIER}
    @!%p0 bra $wait;
    st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [%r2+16], {{%r0, %r0, %r0, %r0}}, [%r2];
    bra $end;
$wait:
    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%r1], 0;
    @!%p1 bra $wait;
    ld.shared.v4.u32 {{%r4, %r5, %r6, %r7}}, [%r1+16];
    st.global.v4.u32 [%rd0], {{%r4, %r5, %r6, %r7}};
$end:
    {BARRIER}
"""
    assert [row[:4] for row in results(body, cluster=2)] == [[1] * 4, [0] * 4, [3] * 4, [0] * 4]


@pytest.mark.parametrize(
    ("cta", "further", "address"),
    [
        *((0, 2 << 24, "0x2000000"), (1, 1 << 24, "0x2000000"), (1, 15 << 24, "0x10000000")),
        *((0, 64, "0x40"), (1, 64, "0x40"), (1, 64 - (1 << 24), "0x40"), (0, (1 << 24) + 64, "0x1000040")),
    ],
)
def test_an_address_outside_the_memory_of_the_cluster_is_reported(
    cta: int, further: int, address: str
) -> None:
    access = "@%p0 ld.shared::cluster.u32 %r3, [%r2];"
    body = f"""{START}
    add.s32 %r2, %r1, {further};
    setp.eq.u32 %p0, %r0, {cta};
    {BARRIER}
    {access}
    {BARRIER}
"""
    text = hopper.kernel("u64 out", body)
    how = {"grid": 2, "block": 1, "cluster": 2, "dynamic_smem": 64}
    assert trap(text, [np.zeros(16, np.uint32)], **how) == (
        f"kernel k: {access} (line {line_of(text, access)}): thread (0, 0, 0) of CTA ({cta}, 0, 0) "
        f"wants to read 4 bytes of shared memory at {address}, outside its 64 bytes"
    )
