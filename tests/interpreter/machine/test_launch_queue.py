"""CTAs that cancel the launches of others and do their work: one by one, and for all CTAs of a cluster."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

from ptxgen.check.prove import prove
from ptxgen.check.prove.contract import GlobalContract
from ptxgen.check.verify import verify
from ptxgen.errors import TrapError
from ptxgen.interpreter import run
from ptxgen.interpreter.machine.memory import POISON
from ptxgen.parse import parse
from ptxgen.runtime.assembler import Assembler
from ptxgen.text import render

COUNTED: Final = "mbarrier::complete_tx::bytes"
TRY: Final = f"clusterlaunchcontrol.try_cancel.async.shared::cta.{COUNTED}.b128"
QUERY: Final = "clusterlaunchcontrol.query_cancel"
EVERY_WAY: Final = ({}, {"stepwise": True}, {"sanitize": True}, {"schedule": "pct:1"})


def kernel(request: str, index: str, *, once: bool = False) -> str:
    """Each CTA adds 1 to the element of its index and to those of the CTAs whose launches it cancels, and
    writes its number of the latter; the index is z * 100 + y * 10 + x.
    """
    return f""".version 9.0
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 done, .param .u64 taken)
{{
.reg .pred %p<8>; .reg .b16 %h<4>; .reg .b32 %r<32>; .reg .b64 %rd<16>; .reg .b128 %rq<4>;
.shared .align 16 .b8 answer[16];
.shared .align 8 .b64 bar;
ld.param.u64 %rd1, [done];
ld.param.u64 %rd2, [taken];
mov.u32 %r0, %tid.x;
setp.eq.u32 %p0, %r0, 0;
mov.u32 %r1, answer;
mov.u32 %r2, bar;
mov.u32 %r3, %ctaid.x;
mov.u32 %r4, %ctaid.y;
mov.u32 %r5, %ctaid.z;
mov.u32 %r20, %cluster_ctaid.x;
mov.b32 %r6, 0;
mov.b32 %r7, 0;
mad.lo.u32 %r8, %r5, 100, %r3;
mad.lo.u32 %r8, %r4, 10, %r8;
mul.wide.u32 %rd5, %r8, 4;
add.u64 %rd2, %rd2, %rd5;
@%p0 mbarrier.init.shared::cta.b64 [%r2], 1;
@%p0 fence.mbarrier_init.release.cluster;
barrier.cluster.arrive;
barrier.cluster.wait;
$work:
@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 16;
{request}
mad.lo.u32 %r8, %r5, 100, %r3;
mad.lo.u32 %r8, %r4, 10, %r8;
mul.wide.u32 %rd3, %r8, 4;
add.u64 %rd3, %rd1, %rd3;
@%p0 red.global.add.u32 [%rd3], 1;
$wait:
mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r2], %r6;
@!%p1 bra $wait;
xor.b32 %r6, %r6, 1;
ld.shared.b128 %rq1, [%r1];
fence.proxy.async.shared::cta;
barrier.cluster.arrive;
barrier.cluster.wait;
{QUERY}.is_canceled.pred.b128 %p2, %rq1;
{index}
add.u32 %r3, %r3, %r20;
@%p2 add.u32 %r7, %r7, 1;
{"" if once else "@%p2 bra $work;"}
@%p0 st.global.u32 [%rd2], %r7;
ret;
}}
"""


ALL: Final = f"{QUERY}.get_first_ctaid.v4.b32.b128 {{%r3, %r4, %r5, _}}, %rq1;"
ONE_BY_ONE: Final = "\n".join(
    f"{QUERY}.get_first_ctaid::{axis}.b32.b128 %r{n}, %rq1;" for n, axis in enumerate("xyz", 3)
)
ALONE: Final = kernel(f"@%p0 {TRY} [%r1], [%r2];", ALL)
GENERIC: Final = kernel(
    "cvta.shared.u64 %rd7, answer;\ncvta.shared.u64 %rd8, bar;\n"
    f"@%p0 {TRY.replace('.shared::cta', '')} [%rd7], [%rd8];",
    ONE_BY_ONE,
)
TOGETHER: Final = kernel(
    "mov.u32 %r9, %cluster_ctarank;\nsetp.eq.and.u32 %p3, %r9, 0, %p0;\n"
    "barrier.cluster.arrive;\nbarrier.cluster.wait;\n"
    f"@%p3 {TRY.replace('.b128', '.multicast::cluster::all.b128')} [%r1], [%r2];",
    ALL,
)


def run_it(text: str, *, grid: Any, cluster: int = 1, **how: Any) -> tuple[np.ndarray, np.ndarray]:
    done, taken = np.zeros(1000, np.uint32), np.zeros(1000, np.uint32)
    run(text, grid=grid, block=32, cluster=cluster, args=[done, taken], **how)
    return done, taken


def indices(grid: tuple[int, int, int]) -> list[int]:
    return [z * 100 + y * 10 + x for z in range(grid[2]) for y in range(grid[1]) for x in range(grid[0])]


@pytest.mark.parametrize("how", EVERY_WAY)
@pytest.mark.parametrize("text", [ALONE, GENERIC])
@pytest.mark.parametrize("grid", [(1, 1, 1), (5, 1, 1), (3, 2, 2)])
def test_each_index_is_worked_on_once_and_half_of_the_launches_are_cancelled(
    grid: tuple[int, int, int], text: str, how: dict[str, Any]
) -> None:
    done, taken = run_it(text, grid=grid, **how)
    of = indices(grid)
    assert done[of].tolist() == [1] * len(of)
    assert done.sum() == len(of)
    assert taken.sum() == len(of) // 2


@pytest.mark.parametrize("how", EVERY_WAY)
def test_a_cluster_is_cancelled_for_all_ctas_of_a_cluster(how: dict[str, Any]) -> None:
    done, taken = run_it(TOGETHER, grid=(6, 3, 1), cluster=2, **how)
    of = indices((6, 3, 1))
    assert done[of].tolist() == [1] * len(of)
    assert done.sum() == len(of)
    assert taken.sum() == 2 * (len(of) // 2 // 2)  # 4 of 9 clusters, counted by both CTAs of one


def test_launches_that_nobody_cancels_begin_later() -> None:
    text = kernel(f"@%p0 {TRY} [%r1], [%r2];", ALL, once=True)
    done, taken = run_it(text, grid=(7, 1, 1))
    assert done[:7].tolist() == [1, 1, 1, 1, 0, 0, 0]
    assert taken[:7].tolist() == [1, 1, 1, 0, 0, 0, 0]  # CTA 3 begins before any request
    alone = "add.u64 %rd3, %rd1, %rd5;\n@%p0 red.global.add.u32 [%rd3], 1;\nret;"
    text = text.replace("$work:", "setp.ne.u32 %p6, %r3, 0;\n@%p6 bra $alone;\n$work:")
    text = text.replace("ret;\n}", f"ret;\n$alone:\n{alone}\n}}")  # only CTA 0 asks
    done, taken = run_it(text, grid=(7, 1, 1))
    assert done[:7].tolist() == [1, 1, 1, 1, 0, 1, 1]
    assert taken[:7].tolist() == [1, 0, 0, 0, 0, 0, 0]


def test_a_request_after_one_that_failed_stops_the_kernel() -> None:
    again = ALONE.replace("@%p2 bra $work;", "setp.lt.u32 %p4, %r7, 9;\n@%p4 bra $work;")
    with pytest.raises(TrapError) as caught:
        run_it(again, grid=1)
    assert str(caught.value).endswith(
        "asks for a launch to cancel after a request of its cluster has failed: "
        "what this one does is undefined"
    )


def test_a_cta_does_not_ask_after_a_request_of_another_one_of_its_cluster_that_failed() -> None:
    """CTA 1 asks once CTA 0 knows that no launch is left."""
    second = f"setp.eq.and.u32 %p3, %r9, 1, %p0;\n@%p3 {TRY} [%r1], [%r2];"
    text = TOGETHER.replace("@%p2 bra $work;", f"{second}\n@%p2 bra $work;")
    with pytest.raises(TrapError) as caught:
        run_it(text, grid=2, cluster=2)
    assert "thread (0, 0, 0) of CTA (1, 0, 0)" in str(caught.value)
    assert str(caught.value).endswith("has failed: what this one does is undefined")


def test_the_response_is_not_there_before_a_wait_for_it() -> None:
    early = "ld.shared.u32 %r7, [%r1];\n@%p0 st.global.u32 [%rd2], %r7;\nret;\n$wait:"
    text = ALONE.replace("$work:", "@%p0 st.shared.u32 [%r1], %r6;\n$work:").replace("$wait:", early)
    assert run_it(text, grid=(2, 1, 1))[1][0] == POISON


@pytest.mark.parametrize("text", [ALONE, GENERIC, TOGETHER])
def test_the_texts_are_verified_and_printed(text: str) -> None:
    module = parse(text)
    assert verify(module) == ()
    assert parse(render(module)) == module


def test_the_response_is_inside_its_variable() -> None:
    proofs = prove(ALONE, block=32, contract=GlobalContract((), (), {}, (1, 1, 1)))
    (response, mbarrier) = (v for v in proofs.shared.accesses if "try_cancel" in v.instr)
    assert (response.verdict, mbarrier.verdict) == ("proved", "proved")


@pytest.mark.ptxas
@pytest.mark.parametrize("text", [ALONE, GENERIC, TOGETHER])
def test_the_assembler_takes_the_texts(text: str, assembler: Assembler) -> None:
    assembler.assemble(text, "sm_100a", opt_level=0)
