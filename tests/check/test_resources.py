from __future__ import annotations

from dataclasses import replace

import pytest

from ptxgen.check.resources import Resources, resources
from ptxgen.ir import Kernel, Region, Shared
from ptxgen.parse import parse
from ptxgen.target import target

SM80 = target("sm_80")


def kernel(body: str) -> Kernel:
    text = (
        ".version 7.0\n.target sm_80\n.address_size 64\n.entry k\n{\n.reg .pred %p<9>;\n"
        ".reg .b16 %rs<9>;\n.reg .b32 %r<9>;\n.reg .b64 %rd<9>;\n.reg .f32 %f<9>;\n"
        f"{body}\n}}\n"
    )
    return parse(text).kernels[0]


def live(body: str) -> tuple[int, int]:
    """The most live registers and predicates."""
    result = resources(kernel(body), SM80)
    return result.live_registers, result.live_predicates


def test_a_kernel_is_summed_up():
    small = kernel("bar.sync 0; bar.sync 1, 32; bar.sync 0; mov.u32 %r1, %tid.x; ret;")
    small = replace(
        small,
        threads=128,
        shared=(Shared("a", 3, 1), Shared("b", 16, 16)),
        dynamic_shared="smem",
        regions=(Region("K", 0, 40_000, 16), Region("V", 40_000, 40_000, 16)),
    )
    result = resources(small, SM80)
    assert result == Resources(
        static_shared=32,
        dynamic_shared=80_000,
        live_registers=1,
        live_predicates=0,
        barriers=2,
        blocks_per_sm=2,
        mix=(("bar", 3), ("mov", 1), ("ret", 1)),
    )
    assert result.shared_total == 80_032


def test_without_a_block_size_nothing_is_said_of_blocks():
    assert resources(kernel("ret;"), SM80).blocks_per_sm == 0


def test_a_barrier_named_by_a_register_may_be_any():
    assert resources(kernel("mov.u32 %r1, 3; bar.sync %r1; ret;"), SM80).barriers == 16
    assert resources(kernel("ret;"), SM80).barriers == 0


LOOP = """mov.u32 %r1, 1; mov.u32 %r2, 0;
$loop: add.u32 %r3, %r1, 1; add.u32 %r4, %r3, 1; add.u32 %r2, %r2, %r4; setp.lt.u32 %p1, %r2, 9; """
LOOPS = """mov.u32 %r5, 5; mov.u32 %r6, 6; setp.eq.u32 %p1, %r5, %r6;
$outer: mov.u32 %r1, 1;
$inner: {} @%p1 bra $inner;
mov.u32 %r2, 2; mov.u32 %r3, 3; add.u32 %r2, %r2, %r3; @%p1 bra $outer;"""
GUARDED = """mov.u32 %r1, 1; setp.eq.u32 %p1, %r1, 1; mov.u32 %r2, 5; mov.u32 %r3, 6;
{} add.u32 %r4, %r2, %r3;"""
VECTOR = "mov.u32 %r1, 0; ld.shared.v4.f32 {%f1, %f2, %f3, %f4}, [%r1];"
PREDICATES = """mov.u32 %r1, 1; setp.eq.u32 %p1, %r1, 1; setp.eq.u32 %p2, %r1, 2;
@%p1 mov.u32 %r1, 2; @%p2 mov.u32 %r1, 3; st.shared.u32 [%r1], %r1;"""


@pytest.mark.parametrize(
    ("body", "registers", "predicates"),
    [
        ("mov.u32 %r1, 1; mov.u32 %r2, 2; add.u32 %r3, %r1, %r2;", 2, 0),
        ("mov.u32 %r1, 1; add.u32 %r2, %r1, 1; add.u32 %r3, %r2, 1;", 1, 0),
        ("mov.u64 %rd1, 1;", 2, 0),
        ("mov.u16 %rs1, 1;", 1, 0),
        (PREDICATES, 1, 2),
        (f"{LOOP} @%p1 bra $loop;", 3, 1),  # r1 and r2 for the next iteration, and r3 or r4
        (LOOP, 2, 1),
        (GUARDED.format("@%p1 mov.u32 %r2, 7;"), 2, 1),  # the old value is live until the guarded write
        (GUARDED.format("mov.u32 %r2, 7;"), 2, 1),
        (GUARDED.format("mov.u32 %r1, 7; @%p1 mov.u32 %r2, %r1;"), 3, 1),
        (VECTOR, 4, 0),
        (f"{VECTOR} st.shared.v4.f32 [%r1], {{%f1, %f2, %f3, %f4}};", 5, 0),
        ("ret; mov.u32 %r1, 1; mov.u32 %r2, 2; add.u32 %r3, %r1, %r2;", 0, 0),  # it cannot be reached
        (LOOPS.format(""), 2, 1),
        (LOOPS.format("add.u32 %r1, %r5, %r6;"), 4, 1),  # an inner loop's needs live through the outer one
    ],
)
def test_registers_and_predicates_that_are_live_at_once_are_counted(
    body: str, registers: int, predicates: int
) -> None:
    assert live(f"{body} ret;") == (registers, predicates)
