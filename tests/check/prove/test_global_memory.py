"""Symbolic proof of global accesses: patterns by hand, the attention kernels and their mutants, and
random programs judged by a plain interpreter of their own.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from finding_tables import cases
from messages import message as message_of

import flash.contract.catalogue
import flash.device.epilogue
from flash import AttentionKernel
from flash.contract.catalogue import build, emit
from flash.contract.forward import launches_of
from flash.device.panel_loader import PanelLoader
from flash.device.pipeline import KeyValuePipeline
from flash.problem.config import AttentionConfig
from flash.scores.window import Reach
from ptxgen import ir
from ptxgen.check.prove import prove_global, require_global
from ptxgen.check.prove.contract import Axis, GlobalArray, GlobalContract
from ptxgen.check.prove.global_verdicts import GlobalProof
from ptxgen.check.prove.polynomials import Poly, TooLargeError
from ptxgen.check.prove.symbolic import goals as global_goals
from ptxgen.check.prove.verdicts import Verdict
from ptxgen.errors import VerifyError
from ptxgen.parse import parse

THREADS = 64
# n rows of 64 bytes, row_stride elements of 4 bytes apart, behind X; m numbers behind Y.
CONTRACT = GlobalContract(
    (GlobalArray("X", (Axis("n", "4 * row_stride"),), 64, 16), GlobalArray("Y", (Axis("m", 4),), 4, 4)),
    ("row_stride",),
    {"n": (0, 1 << 30), "m": (1, 1 << 30)},
    ("(m + 63) // 64", 1, 1),
)


def text(body: str) -> str:
    """%r0 is the thread, %r1 n, %r2 m, %r3 the block, %rd0 X, %rd1 Y, %rd2 a row in bytes."""
    return (
        ".version 8.0\n.target sm_90a\n.address_size 64\n"
        ".visible .entry k(.param .u64 X, .param .u64 Y, .param .s64 row_stride, .param .u32 n, "
        ".param .u32 m, .param .u64 Z)\n{\n"
        ".reg .pred %p<10>;\n.reg .b32 %r<60>;\n.reg .b64 %rd<30>;\n.reg .f32 %f<20>;\n"
        ".shared .align 16 .b8 buf[512];\n"
        "ld.param.u64 %rd0, [X]; cvta.to.global.u64 %rd0, %rd0; ld.param.u64 %rd1, [Y];"
        "cvta.to.global.u64 %rd1, %rd1; ld.param.s64 %rd2, [row_stride]; shl.b64 %rd2, %rd2, 2;"
        "ld.param.u32 %r1, [n]; ld.param.u32 %r2, [m]; mov.u32 %r0, %tid.x; mov.u32 %r3, %ctaid.x;"
        f"\n{body}\nend: ret;\n}}\n"
    )


def prove(body: str) -> GlobalProof:
    return prove_global(text(body), block=THREADS, contract=CONTRACT)


def only(found: GlobalProof) -> Verdict:
    (verdict,) = found.accesses
    return verdict


ROW = "cvt.s64.s32 %rd3, %r5; mul.lo.s64 %rd3, %rd3, %rd2; add.s64 %rd3, %rd0, %rd3;"
Y_AT = "mad.wide.s32 %rd3, %r5, 4, %rd1;"
GLOBAL_THREAD = "mad.lo.s32 %r5, %r3, 64, %r0;"
LOOP = (
    "mov.u32 %r5, %r0; mov.u64 %rd5, %rd0; cvt.u64.u32 %rd6, %r0; mad.lo.s64 %rd5, %rd6, %rd2, "
    "%rd5; shl.b64 %rd7, %rd2, 6;"
)
THIRD = GLOBAL_THREAD + "mul.lo.u32 %r4, %r5, 3; div.u32 %r5, %r4, 3; mul.lo.u32 %r6, %r2, 3;" + Y_AT
SPAN = "ld.shared.u32 %r6, [buf]; ld.shared.u32 %r7, [buf+4]; min.u32 %r6, %r6, %r2;min.u32 %r7, %r7, %r2;"
IN_SPAN = (
    "sub.s32 %r7, %r7, %r6; setp.lt.s32 %p1, %r0, %r7; @!%p1 bra end; add.s32 %r5, %r6, %r0;"
    + Y_AT
    + "st.global.u32 [%rd3], %r0;"
)
Y_NOT_LESS = "its index along the axis of stride 4 is not shown to be less than m"
# Each program: its verdict, and how the reason begins.
CASES = cases(
    """
# as many blocks as there are
mov.u32 %r4, %nctaid.x; mad.lo.u32 %r5, %r4, 64, %r0; <Y_AT> st.global.u32 [%rd3], %r0;
=> violation: byte
# a guard
mov.u32 %r5, %r0; setp.lt.s32 %p1, %r5, %r1; @!%p1 bra end; <ROW>
st.global.v4.u32 [%rd3+48], {%r0, %r0, %r0, %r0};
=> proved
# half of a row, by the index of the block, of which each thread takes every fourth element
setp.gt.s32 %p1, %r1, 0; @!%p1 bra end; and.b32 %r6, %r0, 3;
L: rem.u32 %r4, %r3, 2; mul.lo.u32 %r4, %r4, 32; shl.b32 %r7, %r6, 2; add.u32 %r7, %r4, %r7;
cvt.u64.u32 %rd5, %r7; add.s64 %rd5, %rd0, %rd5; st.global.u32 [%rd5], %r0;
add.s32 %r6, %r6, 4; setp.lt.s32 %p2, %r6, 8; @%p2 bra L;
=> proved
# a guard of the instruction
mov.u32 %r5, %r0; setp.lt.s32 %p1, %r5, %r1; <ROW> @%p1 st.global.u32 [%rd3], %r0;
=> proved
# no guard
mov.u32 %r5, %r0; <ROW> st.global.u32 [%rd3], %r0;
=> violation: byte
# a guard with one row too many
mov.u32 %r5, %r0; setp.le.s32 %p1, %r5, %r1; <ROW> @%p1 st.global.u32 [%rd3], %r0;
=> violation: byte
# the guard turned round
mov.u32 %r5, %r0; setp.lt.s32 %p1, %r5, %r1; <ROW> @!%p1 st.global.u32 [%rd3], %r0;
=> violation: byte
# a guard of data
mov.u32 %r5, %r0; ld.global.u32 %r6, [%rd1]; setp.lt.s32 %p1, %r5, %r6; <ROW>
@%p1 st.global.u32 [%rd3], %r0;
=> unknown: its index along the axis of stride 4 * row_stride is not shown to be less than n
# an unsigned guard of a difference
sub.s32 %r5, %r0, 3; setp.lt.u32 %p1, %r5, %r1; <ROW> @%p1 st.global.u32 [%rd3], %r0;
=> proved
# a signed guard of a difference
sub.s32 %r5, %r0, 3; setp.lt.s32 %p1, %r5, %r1; <ROW> @%p1 st.global.u32 [%rd3], %r0;
=> violation: byte
# two guards in one predicate
sub.s32 %r5, %r0, 3; setp.lt.s32 %p1, %r5, %r1; setp.ge.s32 %p2, %r5, 0; and.pred %p3, %p1, %p2; <ROW>
@%p3 st.global.u32 [%rd3], %r0;
=> proved
# either of two guards
mov.u32 %r5, %r0; setp.lt.s32 %p1, %r5, %r1; setp.ge.s32 %p2, %r5, 9; or.pred %p3, %p1, %p2; <ROW>
@%p3 st.global.u32 [%rd3], %r0;
=> violation: byte
# past the end of a row
mov.u32 %r5, %r0; setp.lt.s32 %p1, %r5, %r1; <ROW> @%p1 st.global.v2.u32 [%rd3+60], {%r0, %r0};
=> violation: byte
# before the beginning of a row
mov.u32 %r5, %r0; setp.lt.s32 %p1, %r5, %r1; <ROW> @%p1 st.global.u32 [%rd3-4], %r0;
=> violation: byte
# misaligned
mov.u32 %r5, %r0; setp.lt.s32 %p1, %r5, %r1; <ROW> @%p1 st.global.v2.u32 [%rd3+4], {%r0, %r0};
=> unknown: its address is not shown to be a multiple of 8 bytes
# more alignment than the pointer has
st.global.u64 [%rd1], %rd1;
=> violation: byte 0 of Y is in no element
# a clamped row
setp.gt.s32 %p1, %r1, 0; @!%p1 bra end; sub.s32 %r6, %r1, 1; min.s32 %r5, %r0, %r6; <ROW>
ld.global.u32 %r7, [%rd3];
=> proved
# a clamped row of none
sub.s32 %r6, %r1, 1; min.s32 %r5, %r0, %r6; <ROW> ld.global.u32 %r7, [%rd3];
=> violation: byte
# a row chosen
setp.gt.s32 %p1, %r1, 0; @!%p1 bra end; setp.lt.s32 %p2, %r0, %r1; selp.b32 %r5, %r0, 0, %p2; <ROW>
ld.global.u32 %r7, [%rd3];
=> proved
# a row chosen by branches
setp.gt.s32 %p1, %r1, 0; @!%p1 bra end; mov.u32 %r5, 0; setp.lt.s32 %p2, %r0, %r1; @!%p2 bra L;
mov.u32 %r5, %r0; L:<ROW> ld.global.u32 %r7, [%rd3];
=> proved
# a wrong row chosen
setp.gt.s32 %p1, %r1, 0; @!%p1 bra end; setp.lt.s32 %p2, %r0, %r1; selp.b32 %r5, 0, %r0, %p2; <ROW>
ld.global.u32 %r7, [%rd3];
=> violation: byte
# the grid
<GLOBAL_THREAD> setp.lt.s32 %p1, %r5, %r2; <Y_AT> @%p1 st.global.u32 [%rd3], %r0;
=> proved
# the grid without a guard
<GLOBAL_THREAD> <Y_AT> st.global.u32 [%rd3], %r0;
=> violation: byte
# the first thread of each block
shl.b32 %r5, %r3, 6; <Y_AT> st.global.u32 [%rd3], %r0;
=> proved
# the number of a block taken apart
shr.u32 %r5, %r3, 3; and.b32 %r6, %r3, 7; mad.lo.s32 %r5, %r5, 512, 0; mad.lo.s32 %r5, %r6, 64, %r5; <Y_AT>
st.global.u32 [%rd3], %r0;
=> unknown: its index along the axis of stride 4 is not shown to be less than m
# rounded down
<GLOBAL_THREAD> and.b32 %r5, %r5, -64; <Y_AT> st.global.u32 [%rd3], %r0;
=> proved
# a quotient
<THIRD> setp.lt.u32 %p1, %r4, %r6; @%p1 st.global.u32 [%rd3], %r0;
=> proved
# a quotient that is one too many
<THIRD> setp.le.u32 %p1, %r4, %r6; @%p1 st.global.u32 [%rd3], %r0;
=> violation: byte
# a quotient that is rounded down
<GLOBAL_THREAD> mul.lo.u32 %r6, %r2, 3; setp.lt.u32 %p1, %r5, %r6; div.u32 %r5, %r5, 3; <Y_AT>
@%p1 st.global.u32 [%rd3], %r0;
=> proved
# a quotient that is rounded down to one too many
<GLOBAL_THREAD> mul.lo.u32 %r6, %r2, 3; setp.le.u32 %p1, %r5, %r6; div.u32 %r5, %r5, 3; <Y_AT>
@%p1 st.global.u32 [%rd3], %r0;
=> violation: byte
# a remainder
rem.u32 %r5, %r0, %r2; <Y_AT> st.global.u32 [%rd3], %r0;
=> proved
# a remainder of one more
add.u32 %r4, %r2, 1; rem.u32 %r5, %r0, %r4; <Y_AT> st.global.u32 [%rd3], %r0;
=> violation: byte
# a product in 32 bits
cvt.u32.u64 %r6, %rd2; setp.lt.s32 %p1, %r0, %r1; mul.lo.s32 %r5, %r0, %r6; cvt.s64.s32 %rd3, %r5;
add.s64 %rd3, %rd0, %rd3; @%p1 st.global.u32 [%rd3], %r0;
=> violation: byte
# a product that fits 32 bits
setp.lt.s32 %p1, %r0, %r2; mul.lo.s32 %r5, %r0, 4; cvt.s64.s32 %rd3, %r5; add.s64 %rd3, %rd1, %rd3;
@%p1 st.global.u32 [%rd3], %r0;
=> proved
# bytes in 32 bits
<GLOBAL_THREAD> setp.lt.s32 %p1, %r5, %r2; shl.b32 %r5, %r5, 2; cvt.s64.s32 %rd3, %r5;
add.s64 %rd3, %rd1, %rd3; @%p1 st.global.u32 [%rd3], %r0;
=> unknown: its offset in a row is not shown to be 0 or more
# a difference where it does not wrap
<GLOBAL_THREAD> setp.lt.u32 %p1, %r5, %r2; setp.ge.u32 %p2, %r5, 100; and.pred %p1, %p1, %p2;
sub.u32 %r5, %r5, 100; mul.wide.u32 %rd3, %r5, 4; add.s64 %rd3, %rd1, %rd3; @%p1 st.global.u32 [%rd3], %r0;
=> proved
# a difference that may wrap, and is compared
<GLOBAL_THREAD> sub.u32 %r5, %r5, 100; setp.lt.u32 %p1, %r5, %r2; mul.wide.u32 %rd3, %r5, 4;
add.s64 %rd3, %rd1, %rd3; @%p1 st.global.u32 [%rd3], %r0;
=> proved
# a difference where it wraps in one thread
<GLOBAL_THREAD> setp.lt.u32 %p1, %r5, %r2; setp.ge.u32 %p2, %r5, 99; and.pred %p1, %p1, %p2;
sub.u32 %r5, %r5, 100; mul.wide.u32 %rd3, %r5, 4; add.s64 %rd3, %rd1, %rd3; @%p1 st.global.u32 [%rd3], %r0;
=> violation
# a difference that may wrap, compared as one with a sign
<GLOBAL_THREAD> sub.u32 %r5, %r5, 100; setp.lt.s32 %p1, %r5, %r2; mul.wide.u32 %rd3, %r5, 4;
add.s64 %rd3, %rd1, %rd3; @%p1 st.global.u32 [%rd3], %r0;
=> violation
# a wrong stride
setp.lt.s32 %p1, %r0, %r1; mad.wide.s32 %rd3, %r0, 64, %rd0; @%p1 st.global.u32 [%rd3], %r0;
=> violation: byte
# a loop over rows
<LOOP> setp.ge.s32 %p1, %r5, %r1; @%p1 bra end; L: st.global.u32 [%rd5], %r0; add.s64 %rd5, %rd5, %rd7;
add.s32 %r5, %r5, 64; setp.lt.s32 %p1, %r5, %r1; @%p1 bra L;
=> proved
# a loop with its test on top
<LOOP> L: setp.ge.s32 %p1, %r5, %r1; @%p1 bra end; st.global.u32 [%rd5], %r0; add.s64 %rd5, %rd5, %rd7;
add.s32 %r5, %r5, 64; bra L;
=> proved
# a loop with a turn too many
<LOOP> setp.ge.s32 %p1, %r5, %r1; @%p1 bra end; L: st.global.u32 [%rd5], %r0; add.s64 %rd5, %rd5, %rd7;
add.s32 %r5, %r5, 64; setp.le.s32 %p1, %r5, %r1; @%p1 bra L;
=> violation: byte
# a loop without its first test
<LOOP> L: st.global.u32 [%rd5], %r0; add.s64 %rd5, %rd5, %rd7; add.s32 %r5, %r5, 64;
setp.lt.s32 %p1, %r5, %r1; @%p1 bra L;
=> violation: byte
# a loop that counts less than it moves
<LOOP> setp.ge.s32 %p1, %r5, %r1; @%p1 bra end; L: st.global.u32 [%rd5], %r0; add.s64 %rd5, %rd5, %rd7;
add.s32 %r5, %r5, 63; setp.lt.s32 %p1, %r5, %r1; @%p1 bra L;
=> violation: byte
# a counter that may overflow
mov.u32 %r5, %r0; L: add.s32 %r5, %r5, 64; setp.lt.s32 %p1, %r5, %r2; @!%p1 bra M; <Y_AT>
st.global.u32 [%rd3], %r0; M: ld.shared.u32 %r9, [buf]; setp.ne.s32 %p2, %r9, 0; @%p2 bra L;
=> unknown: its index along the axis of stride 4 is not shown to be 0 or more
# an index from memory
ld.shared.u32 %r5, [buf]; <Y_AT> st.global.u32 [%rd3], %r0;
=> unknown: its index along the axis of stride 4 is not shown to be 0 or more
# an index from memory, compared
ld.shared.u32 %r5, [buf]; setp.lt.u32 %p1, %r5, %r2; cvt.u64.u32 %rd3, %r5; shl.b64 %rd3, %rd3, 2;
add.u64 %rd3, %rd3, %rd1; @%p1 st.global.u32 [%rd3], %r0;
=> proved
# an index from memory, clamped
ld.shared.u32 %r5, [buf]; sub.u32 %r6, %r2, 1; min.u32 %r5, %r5, %r6; <Y_AT> st.global.u32 [%rd3], %r0;
=> proved
# an index from memory, clamped as one with a sign
ld.shared.u32 %r5, [buf]; sub.u32 %r6, %r2, 1; min.s32 %r5, %r5, %r6; <Y_AT> st.global.u32 [%rd3], %r0;
=> unknown: its index along the axis of stride 4 is not shown to be 0 or more
# an index from memory, not below zero
ld.shared.u32 %r5, [buf]; max.s32 %r5, %r5, 0; <Y_AT> st.global.u32 [%rd3], %r0;
=> unknown: its index along the axis of stride 4 is not shown to be less than m
# rows between two numbers from memory
<SPAN> max.u32 %r7, %r7, %r6; <IN_SPAN>
=> proved
# rows between two numbers from memory of which one is not clamped
ld.shared.u32 %r6, [buf]; ld.shared.u32 %r7, [buf+4]; min.u32 %r6, %r6, %r2; max.u32 %r7, %r7, %r6;
<IN_SPAN>
=> unknown: its index along the axis of stride 4 is not shown to be less than m
# a guard with a number from memory, clamped
mov.u32 %r5, %r0; <SPAN> setp.lt.s32 %p1, %r5, %r6; <Y_AT> @%p1 st.global.u32 [%rd3], %r0;
=> proved
# a guard with a number from memory, clamped to one too many
mov.u32 %r5, %r0; ld.shared.u32 %r6, [buf]; add.u32 %r8, %r2, 1; min.u32 %r6, %r6, %r8;
setp.lt.s32 %p1, %r5, %r6; <Y_AT> @%p1 st.global.u32 [%rd3], %r0;
=> unknown: its index along the axis of stride 4 is not shown to be less than m
# copied where it is there
mov.u32 %r5, %r0; setp.lt.s32 %p1, %r5, %r1; selp.u32 %r6, 16, 0, %p1; mov.u32 %r7, buf; <ROW>
cp.async.cg.shared.global [%r7], [%rd3], 16, %r6;
=> proved
# copied always
mov.u32 %r5, %r0; mov.u32 %r7, buf; <ROW> cp.async.cg.shared.global [%r7], [%rd3], 16;
=> violation: byte
# copied where it is not
mov.u32 %r5, %r0; setp.lt.s32 %p1, %r5, %r1; selp.u32 %r6, 0, 16, %p1; mov.u32 %r7, buf; <ROW>
cp.async.cg.shared.global [%r7], [%rd3], 16, %r6;
=> violation: byte
# a part copied
mov.u32 %r5, 0; setp.lt.s32 %p1, %r5, %r1; @!%p1 bra end; mov.u32 %r7, buf; mul.lo.u32 %r8, %r0, 16;
min.u32 %r9, %r8, 64; sub.u32 %r9, 64, %r9; min.u32 %r9, %r9, 16; <ROW> cvt.u64.u32 %rd4, %r8;
add.u64 %rd3, %rd3, %rd4; cp.async.cg.shared.global [%r7], [%rd3], 16, %r9;
=> proved
# a bulk copy
mov.u32 %r5, %r0; setp.lt.s32 %p1, %r5, %r1; mov.u32 %r7, buf; <ROW>
@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd3], [%r7], 64;
=> proved
# a bulk copy that is too long
mov.u32 %r5, %r0; setp.lt.s32 %p1, %r5, %r1; mov.u32 %r7, buf; <ROW>
@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd3], [%r7], 80;
=> violation: byte
# an atomic operation
mov.u32 %r5, %r0; setp.lt.s32 %p1, %r5, %r2; <Y_AT> @%p1 atom.global.add.u32 %r6, [%rd3], 1;
=> proved
# a generic address
mov.u32 %r5, %r0; setp.lt.s32 %p1, %r5, %r2; <Y_AT> @%p1 st.u32 [%rd3], %r0;
=> proved
# a pointer that the contract does not know
ld.param.u64 %rd3, [Z]; st.global.u32 [%rd3], %r0;
=> unknown: its address is not the sum of a pointer parameter and offsets
# threads that never come
setp.gt.u32 %p1, %r0, 63; @%p1 st.global.u32 [%rd0+4096], %r0;
=> proved: no thread gets there
""",
    ROW=ROW,
    Y_AT=Y_AT,
    GLOBAL_THREAD=GLOBAL_THREAD,
    LOOP=LOOP,
    THIRD=THIRD,
    SPAN=SPAN,
    IN_SPAN=IN_SPAN,
)
PATTERNS = {case.id: case.values[0] for case in CASES}


@pytest.mark.parametrize(("body", "findings"), CASES)
def test_each_pattern_has_its_verdict(body: str, findings: list[str]) -> None:
    result = prove(body).accesses[-1]
    verdict, _, reason = findings[0].partition(": ")
    assert (result.verdict, result.reason[: len(reason)]) == (verdict, reason), str(result)
    assert (result.witness is not None) == (verdict == "violation")


@pytest.mark.parametrize(("most", "verdict"), [((1 << 31) - 200, "proved"), ((1 << 31) - 1, "unknown")])
def test_a_sum_counts_only_where_it_cannot_overflow(most: int, verdict: str) -> None:
    body = (
        f"{GLOBAL_THREAD} add.s32 %r5, %r5, 64; setp.lt.s32 %p1, %r5, %r2; {Y_AT}"
        "@%p1 st.global.u32 [%rd3], %r0;"
    )
    contract = replace(CONTRACT, bounds={"n": (0, 9), "m": (1, most)})
    (result,) = prove_global(text(body), block=THREADS, contract=contract).accesses
    assert result.verdict == verdict


@pytest.mark.parametrize(("step", "verdict"), [(1 << 29, "proved"), (1 << 30, "unknown")])
def test_a_counter_of_a_loop_counts_only_where_it_cannot_overflow(step: int, verdict: str) -> None:
    # With m = 2**30 + 5 and a step of 2**30 the counter becomes negative after two turns.
    body = (
        f"mov.u32 %r5, 0;\nL: {Y_AT} st.global.u32 [%rd3], %r0; add.s32 %r5, %r5, {step};"
        "setp.lt.s32 %p1, %r5, %r2; @%p1 bra L;"
    )
    contract = replace(CONTRACT, bounds={"n": (0, 9), "m": (1, (1 << 30) + 5)})
    (result,) = prove_global(text(body), block=THREADS, contract=contract).accesses
    assert result.verdict == verdict


def test_an_access_needs_the_alignment_that_the_contract_promises() -> None:
    arrays = tuple(replace(a, align=4) for a in CONTRACT.arrays)
    result = prove_global(text(PATTERNS["a guard"]), block=THREADS, contract=replace(CONTRACT, arrays=arrays))
    assert only(result).verdict == "unknown"
    assert only(result).reason == (
        "its address is not shown to be a multiple of 16 bytes; X and its rows are promised at multiples of 4"
    )


def test_an_array_without_a_promised_alignment_is_accessed_by_bytes_only() -> None:
    contract = replace(CONTRACT, arrays=(GlobalArray("Y", (Axis("m", 4),), 4),))
    body = "mov.u32 %r5, 0;" + Y_AT
    result = prove_global(text(body + "st.global.u8 [%rd3], %r0;"), block=1, contract=contract)
    assert result.complete
    result = prove_global(text(body + "st.global.u16 [%rd3], %r0;"), block=1, contract=contract)
    assert only(result).reason == (
        "its address is not shown to be a multiple of 2 bytes; Y and its rows are promised at multiples of 1"
    )


@pytest.mark.parametrize(
    "hint",
    [
        "prefetch.global.L2 [%rd5];",
        "discard.global.L2 [%rd5], 128;",
        "applypriority.global.L2::evict_normal [%rd5], 128;",
        "isspacep.global %p1, %rd5;",
        "cp.async.bulk.prefetch.L2.global [%rd5], 4096;",
    ],
)
def test_what_only_names_an_address_may_name_any(hint: str) -> None:
    result = prove("mad.wide.s32 %rd5, %r0, 4096, %rd1;" + hint)
    assert (result.accesses, result.complete) == ((), True)


@pytest.mark.parametrize(
    "access",
    [
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned "
        "[%rd1], [buf], 128;",
        "cp.async.ca.shared.global [buf], [%rd9], 4;",
    ],
)
def test_of_a_copy_between_two_memories_the_global_part_is_judged(access: str) -> None:
    result = prove("mov.u64 %rd9, buf; cvta.shared.u64 %rd9, %rd9;" + access)
    assert only(result).verdict == "violation"


def test_a_violation_is_told_with_its_thread_and_launch() -> None:
    body = PATTERNS["a guard with one row too many"]
    result = prove(body)
    verdict = only(result)
    witness = verdict.witness
    assert witness is not None
    held = dict(witness.values)
    n, stride = held["n"], held["row_stride"]
    assert witness.thread == (n, 0, 0)
    assert witness.address == 4 * n * stride
    assert verdict.reason == (
        f"byte {witness.address} of X has index {n} along the axis of stride 4 * row_stride, "
        f"where n is {n}: thread ({n}, 0, 0), n = {n}, m = {held['m']}, row_stride = {stride}, "
        f"block = {held['block']}"
    )
    assert str(result) == "k: 0 of 1 global accesses proved, 1 of 1 global accesses violation"
    assert result.report() == f"{result}\n{verdict}"
    assert result.to_dict()["accesses"][0]["verdict"] == "violation"
    assert (
        message_of(lambda: require_global(result), VerifyError) == f"global memory: 1 problem:\n* {verdict}"
    )
    require_global(prove(PATTERNS["a guard of data"]))  # unknown passes


def test_a_proof_is_plain_data_for_programs() -> None:
    said = prove(PATTERNS["a guard of data"]).to_dict()
    assert (said["kernel"], said["block"], said["complete"]) == ("k", [THREADS, 1, 1], False)
    assert prove(PATTERNS["a guard"]).to_dict()["complete"] is True


def test_coefficients_that_may_not_fit_are_given_up() -> None:
    half = Poly.of(np.array([1 << 62, 0]))
    with pytest.raises(TooLargeError):
        half + half


# So many pairs of turns that not even a few launches are tried to the end.
MANY_TURNS = (
    "ld.global.u32 %r4, [%rd1]; setp.eq.s32 %p4, %r4, 0; mov.u32 %r6, 0;"
    "\nL: mov.u32 %r7, 0;\nM: add.s32 %r5, %r6, %r7;" + Y_AT + "@%p4 st.global.u32 [%rd3], %r0;"
    "add.s32 %r7, %r7, 1; setp.lt.s32 %p1, %r7, %r2; @%p1 bra M;"
    "add.s32 %r6, %r6, 1; setp.lt.s32 %p1, %r6, %r2; @%p1 bra L;"
)


def test_a_search_for_launches_ends_at_the_same_step_and_leaves_some_for_other_accesses() -> None:
    result = prove(MANY_TURNS + "st.global.u32 [%rd1+4], %r0;")
    _, summed, other = result.accesses
    assert summed.reason == f"{Y_NOT_LESS}; the search for a launch that goes wrong ended after 25000 steps"
    assert other.verdict == "violation"
    assert prove(MANY_TURNS + "st.global.u32 [%rd1+4], %r0;") == result


def test_a_search_for_proofs_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    body = PATTERNS["the first thread of each block"]
    monkeypatch.setattr(global_goals, "_ALL_STEPS", 1)
    verdict = only(prove(body))
    assert verdict.verdict == "unknown"
    assert verdict.reason == f"{Y_NOT_LESS}; the search for a proof ended after 1 steps"


CALLED = ".func f(.reg .b64 %rd0, .reg .b32 %r0)\n{\nst.global.u32 [%rd0], %r0;\nret;\n}\n"
RECURSIVE = (
    ".func f(.reg .b64 %rd0, .reg .b32 %r0)\n{\nst.global.u32 [%rd0], %r0;\ncall f, (%rd0, %r0);\nret;\n}\n"
)


@pytest.mark.parametrize(("guard", "verdict"), [("lt", "proved"), ("le", "violation")])
def test_a_function_that_is_called_is_judged_where_it_is_called(guard: str, verdict: str) -> None:
    body = f"mov.u32 %r5, %r0; {Y_AT} setp.{guard}.s32 %p1, %r5, %r2; @%p1 call f, (%rd3, %r0);"
    module = text(body).replace(".visible", CALLED + ".visible")
    (result,) = prove_global(module, block=THREADS, contract=CONTRACT).accesses
    assert (result.verdict, result.kernel) == (verdict, "f")
    assert verdict == "proved" or result.reason.endswith(", called from line 17 of the PTX text")


def test_a_function_that_calls_itself_is_unknown() -> None:
    module = text("call f, (%rd1, %r0);").replace(".visible", RECURSIVE + ".visible")
    result = prove_global(module, block=THREADS, contract=CONTRACT)
    assert {(v.verdict, v.reason) for v in result.accesses if v.verdict == "unknown"} == {
        ("unknown", "a function that calls itself is not followed")
    }
    assert not result.complete


def _contract(**changed: Any) -> GlobalContract:
    return replace(CONTRACT, **changed)


# n is m * g, of which g is no parameter; g numbers behind Z, and as many blocks.
GROUPED = _contract(
    arrays=(*CONTRACT.arrays, GlobalArray("Z", (Axis("g", 4),), 4, 4)),
    bounds={"m": (1, 1 << 30), "g": (1, 1 << 30), "n": (1, 1 << 30)},
    grid=("g", 1, 1),
    equal={"n": "m * g"},
)
Z_AT = "ld.param.u64 %rd3, [Z]; cvta.to.global.u64 %rd3, %rd3; mad.wide.s32 %rd3, %r5, 4, %rd3;"
GROUP = "div.u32 %r6, %r1, %r2; rem.u32 %r4, %r3, %r6; rem.u32 %r5, %r0, %r2;mad.lo.s32 %r5, %r4, %r2, %r5;"
GROUPS: dict[str, tuple[str, str]] = {
    "a quotient of sizes": (
        "div.u32 %r6, %r1, %r2; rem.u32 %r5, %r0, %r6;" + Z_AT + "st.global.u32 [%rd3], %r0;",
        "proved",
    ),
    "a quotient of sizes and one more": (
        "div.u32 %r6, %r1, %r2; add.u32 %r6, %r6, 1; rem.u32 %r5, %r0, %r6;"
        + Z_AT
        + "st.global.u32 [%rd3], %r0;",
        "violation",
    ),
    "a remainder of sizes": ("rem.u32 %r5, %r1, %r2;" + Z_AT + "st.global.u32 [%rd3], %r0;", "proved"),
    "a row of a group": (GROUP + ROW + "st.global.u32 [%rd3], %r0;", "proved"),
    "a row behind a group": (
        GROUP + "add.u32 %r5, %r5, 1;" + ROW + "st.global.u32 [%rd3], %r0;",
        "violation",
    ),
}


@pytest.mark.parametrize("name", GROUPS)
def test_sizes_that_are_products_are_followed(name: str) -> None:
    body, verdict = GROUPS[name]
    assert only(prove_global(text(body), block=THREADS, contract=GROUPED)).verdict == verdict


@pytest.mark.parametrize(("most", "verdict"), [(1 << 30, "proved"), (1 << 32, "unknown")])
def test_a_product_may_have_bounds_of_its_own(most: int, verdict: str) -> None:
    body = (
        "mul.lo.u32 %r6, %r1, %r2; mad.lo.u32 %r4, %r3, 64, %r0; setp.lt.u32 %p1, %r4, %r6;"
        "@!%p1 bra end; div.u32 %r5, %r4, %r2;" + ROW + "ld.global.u32 %r7, [%rd3];"
    )
    contract = _contract(
        bounds={"m": (1, 1 << 30), "n": (1, 1 << 30), "rows": (1, most)},
        grid=("(rows + 63) // 64", 1, 1),
        equal={"rows": "n * m"},
    )
    assert only(prove_global(text(body), block=THREADS, contract=contract)).verdict == verdict


@pytest.mark.parametrize(
    ("contract", "entry", "message"),
    [
        (CONTRACT, "kk", "prove: no kernel 'kk'; the module has k; did you mean 'k'?"),
        (
            _contract(strides=("row_strid",)),
            "k",
            "prove: k has no parameter 'row_strid'; did you mean 'row_stride'?",
        ),
        (_contract(equal={"nn": "2 * m"}), "k", "prove: k has no parameter 'nn'; did you mean 'n'?"),
        (
            _contract(grid=("mm", 1, 1)),
            None,
            "prove: 'mm' must be made of integers and sizes by +, -, * and //: no size 'mm'; "
            "did you mean 'm'?; the sizes are n, m, row_stride",
        ),
        (
            _contract(grid=("m ** 2", 1, 1)),
            None,
            "prove: 'm ** 2' must be made of integers and sizes by +, -, * and //",
        ),
    ],
)
def test_what_does_not_fit_the_kernel_is_refused(
    contract: GlobalContract, entry: str | None, message: str
) -> None:
    assert message_of(lambda: prove_global(text("ret;"), entry, block=THREADS, contract=contract)) == message


# A block further than the grid, that only an example can name: the proof does not follow `xor`.
BEYOND = (
    "mov.u32 %r4, %ctaid.z; xor.b32 %r4, %r4, %r1; xor.b32 %r5, %r4, %r1;"
    + Y_AT
    + "st.global.u32 [%rd3], %r0;"
)


@pytest.mark.parametrize(("more", "verdict"), [(0, "proved"), (1, "violation")])
def test_each_thread_counts_where_threads_have_other_multiples_of_a_size(more: int, verdict: str) -> None:
    contract = replace(CONTRACT, bounds={"n": (1, 1 << 20), "m": (1, 1 << 30)}, equal={"m": f"{THREADS} * n"})
    body = f"add.u32 %r5, %r0, {more}; mul.lo.u32 %r5, %r5, %r1; {Y_AT} st.global.u32 [%rd3], %r0;"
    result = only(prove_global(text(body), block=THREADS, contract=contract))
    assert result.verdict == verdict
    assert (result.witness is None) or result.witness.thread == (THREADS - 1, 0, 0)


@pytest.mark.parametrize(("grid", "verdict"), [("m", "unknown"), ("m + 1", "violation")])
def test_an_example_is_a_block_of_the_grid(grid: str, verdict: str) -> None:
    contract = _contract(grid=(1, 1, grid), bounds={"n": (1, 9), "m": (0, 60)})
    result = only(prove_global(text(BEYOND), block=THREADS, contract=contract))
    assert result.verdict == verdict
    if result.witness is not None:
        held = dict(result.witness.values)
        assert held["block"] == held["m"]


@pytest.mark.parametrize(("more", "verdict"), [(0, "unknown"), (1, "violation")])
def test_in_an_example_every_element_has_its_own_place(more: int, verdict: str) -> None:
    rows = GlobalArray("X", (Axis("n", "4 * row_stride"), Axis("m", 4)), 4, 4)
    last_of_row_0 = (
        f"xor.b32 %r5, %r2, %r1; xor.b32 %r5, %r5, %r1; add.s32 %r5, %r5, {more - 1};"
        "mad.wide.s32 %rd3, %r5, 4, %rd0; st.global.u32 [%rd3], %r0;"
    )
    contract = _contract(arrays=(rows,), bounds={"n": (1, 9), "m": (1, 60)})
    result = only(prove_global(text(last_of_row_0), block=THREADS, contract=contract))
    assert result.verdict == verdict, str(result)


# ------------------------------------------------------------------------ attention kernels

HEAD_DIMS = (1, 3, 16, 40, 64, 72, 80, 96, 111, 128, 160, 192, 256)
# Branches around loads with targets before sm_80, copies after.
VARIANTS = (
    {"target": "sm_75", "causal": "bottom_right", "return_lse": True},
    {"target": "sm_80", "causal": "top_left"},
    {"target": "sm_90", "causal": "bottom_right", "return_lse": True},
    {"target": "sm_120", "return_lse": True},
)


def proof_of(config: AttentionConfig) -> GlobalProof:
    return build(config.kernel()).global_proof


@pytest.mark.sample(0, gate=3)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_every_default_kernel_is_proved(head_dim: int) -> None:
    for variant in VARIANTS:
        result = proof_of(AttentionConfig(head_dim, **variant))
        assert result.complete, result.report()
        pointers = {"Q", "K", "V", "O"} | ({"LSE"} if variant.get("return_lse") else set())
        assert {v.allocation for v in result.accesses} == pointers


@pytest.mark.parametrize("alignment", [4, *(pytest.param(n, marks=pytest.mark.slow) for n in (8, 16))])
def test_every_alignment_is_proved(alignment: int) -> None:
    result = proof_of(AttentionConfig(64, 24, causal=True, alignment=alignment))
    assert result.complete, result.report()
    row = [v.last for v in result.accesses if v.allocation == "K"]
    assert max(row) == 64 * 4 - 1


# Lines of PTX that are replaced, and by what: each kernel is wrong then, though not every proof can show it.
WRONG = {
    "no row guard for O": ("@!%p237 bra $end_94;", ""),
    "a row too many of O": ("setp.lt.s32 %p237, %r231, %r0;", "setp.le.s32 %p237, %r231, %r0;"),
    "a row too many of Q": ("setp.gt.s32 %p3, %r105, 2;", "setp.ge.s32 %p3, %r105, 2;"),
    "no row guard for Q": ("selp.u32 %r108, 16, 0, %p3;", "mov.u32 %r108, 16;"),
    "no guard for the tail of head_dim": ("@!%p2 bra $end_2;", ""),
    "the row stride of K for Q": ("mul.lo.s64 %rd29, %rd12, 4;", "mul.lo.s64 %rd29, %rd15, 4;"),
    "the head stride of Q for K": ("mul.lo.s64 %rd33, %rd32, %rd14;", "mul.lo.s64 %rd33, %rd32, %rd11;"),
    "a stride in elements": ("mul.lo.s64 %rd29, %rd12, 4;", "mul.lo.s64 %rd29, %rd12, 1;"),
    "the query head for K": ("cvt.s64.s32 %rd32, %r30;", "cvt.s64.s32 %rd32, %r29;"),
    "a product in 32 bits": (
        "mul.lo.s64 %rd56, %rd55, %rd29;",
        "cvt.u32.u64 %r237, %rd29; mul.lo.s32 %r237, %r80, %r237; cvt.s64.s32 %rd56, %r237;",
    ),
    "blocks counted otherwise": ("add.s32 %r5, %r0, 63;", "add.s32 %r5, %r0, 31;"),
    "the batch of another block": ("div.s32 %r28, %r23, %r2;", "div.s32 %r28, %r7, %r2;"),
    "K moves on too far": ("mul.lo.s64 %rd69, %rd37, 32;", "mul.lo.s64 %rd69, %rd37, 64;"),
    "K counts too little": ("sub.s32 %r92, %r92, 32;", "sub.s32 %r92, %r92, 31;"),
}
UNKNOWN = {
    "LSE in 32 bits": (
        "mad.wide.s32 %rd93, %r23, %r0, %rd92;",
        "mul.lo.s32 %r237, %r23, %r0; cvt.s64.s32 %rd93, %r237; add.s64 %rd93, %rd93, %rd92;",
    ),
    "all CTAs taken for heads": ("div.u32 %r9, %r8, %r6;", "mov.u32 %r9, %r8;"),
    "a last section as wide as the others": ("min.u32 %r19, %r10, %r18;", "mov.u32 %r19, %r10;"),
    "heads of a section from its second on": ("sub.u32 %r13, %r11, %r12;", "add.u32 %r13, %r11, 1;"),
}


@pytest.mark.sample(0, gate=2)
@pytest.mark.parametrize("name", [*WRONG, *UNKNOWN])
def test_each_mutant_of_the_kernel_is_found(name: str) -> None:
    config = AttentionConfig(72, causal=True, return_lse=True, target="sm_80").kernel()
    old, new = {**WRONG, **UNKNOWN}[name]
    text = build(config).text
    assert old in text
    mutant = parse(text.replace(old, new, 1))
    result = prove_global(mutant, block=config.tiling.threads, contract=launches_of(config).promised)
    wrong = [v for v in result.accesses if v.verdict != "proved"]
    assert wrong
    assert wrong[0].verdict == ("violation" if name in WRONG else "unknown"), result.report()


def test_a_kernel_that_violates_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = AttentionConfig(16, tile=16, block_q=16)
    kernel = AttentionKernel(config)
    assert kernel.global_proof.complete

    def moved(config: Any) -> ir.Module:
        module = emit(config)
        (built,) = module.kernels
        body = list(built.body)
        at, old = next(
            (n, s) for n, s in enumerate(body) if isinstance(s, ir.Instr) and s.opcode.startswith("st.global")
        )
        address, *rest = old.operands
        assert isinstance(address, ir.Address)
        shifted = ir.Address(address.base, address.offset + 64)
        body[at] = ir.Instr(old.opcode, (shifted, *rest), old.guard, old.origin)
        return replace(module, kernels=(replace(built, body=tuple(body)),))

    monkeypatch.setattr(flash.contract.catalogue, "emit", moved)
    build.cache_clear()
    q = np.zeros((1, 1, 4, 16), np.float32)
    (violation,) = build(config.kernel()).global_proof.violations
    assert (
        message_of(lambda: kernel.launch(q, q, q, backend="interpreter"), VerifyError)
        == f"global memory: 1 problem:\n* {violation}"
    )
    assert "after the beginning of one, which has 64 bytes: thread (0, 0, 0)" in violation.reason
    build.cache_clear()


# ------------------------------------------------------------------------ on tensor cores

# Copies in pieces of 16 bytes and of 2; loops that restore what is not finite in V behind a mask.
ON_TENSOR_CORES: tuple[tuple[int, dict[str, Any]], ...] = (
    (16, {"dtype": "f16", "causal": "bottom_right"}),
    (40, {"dtype": "bf16", "causal": "bottom_right", "alignment": 2}),
    (64, {"dtype": "f16", "return_lse": True}),
    (72, {"dtype": "bf16", "causal": "bottom_right", "return_lse": True}),
    (111, {"dtype": "f16", "causal": "top_left", "stages": 2}),
    (128, {"dtype": "bf16", "causal": "top_left", "return_lse": True}),
    (256, {"dtype": "f16", "causal": "bottom_right", "stages": 2}),
)


@pytest.mark.sample(0, gate=2)
@pytest.mark.parametrize(("head_dim", "options"), ON_TENSOR_CORES)
def test_every_kernel_on_tensor_cores_is_proved(head_dim: int, options: dict[str, Any]) -> None:
    result = proof_of(AttentionConfig(head_dim, **options))
    assert result.complete, result.report()
    pointers = {"Q", "K", "V", "O"} | ({"LSE"} if options.get("return_lse") else set())
    assert {v.allocation for v in result.accesses} == pointers


def _start_unguarded(start: Any) -> Any:
    return lambda loader, row, **options: start(loader, row, **options | {"ragged": False})


def _start_values_unguarded(start_values: Any) -> Any:
    return lambda pipeline, n, **_: start_values(pipeline, n, ragged=False)


def _tiles_away(count: int) -> Callable[[Any], Any]:
    def change(first_key: Any) -> Any:
        return lambda pipeline, n, ahead=0: first_key(pipeline, n - count, ahead)

    return change


def _with_another_row(epilogue: Any) -> Any:
    def made(*given: Any) -> Any:
        result = epilogue(*given)
        return replace(result, out=replace(result.out, rows=result.out.rows + 1))

    return made


def _without_columns_left(epilogue: Any) -> Any:
    def made(*given: Any) -> Any:
        result = epilogue(*given)
        return replace(result, t=replace(result.t, head_dim_v=result.t.output_columns))

    return made


# What is changed, how, and what the first access is that is not proved.
MUTANTS_ON_TENSOR_CORES: dict[str, tuple[Any, str, Callable[[Any], Any], str]] = {
    "no row guard": (PanelLoader, "start", _start_unguarded, "violation"),
    "no row guard for V": (KeyValuePipeline, "start_values", _start_values_unguarded, "violation"),
    "a tile too far": (KeyValuePipeline, "first_key", _tiles_away(1), "violation"),
    "a tile too near": (KeyValuePipeline, "first_key", _tiles_away(-1), "violation"),
    "a row too many of O": (flash.device.epilogue, "Epilogue", _with_another_row, "violation"),
    "no guard for the tail of head_dim": (PanelLoader, "_in_columns", lambda _: lambda *_: None, "violation"),
    "no guard for the tail of O": (flash.device.epilogue, "Epilogue", _without_columns_left, "violation"),
    # Whether V is restored is read from memory, so that no launch is certain to do it.
    "a key too many that is seen": (
        Reach,
        "last_key",
        lambda last_key: lambda *given: last_key(*given) + 1,
        "unknown",
    ),
}


@pytest.mark.sample(0, gate=3)
@pytest.mark.parametrize("name", MUTANTS_ON_TENSOR_CORES)
def test_each_mutant_on_tensor_cores_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    head_dim, options = ON_TENSOR_CORES[3]
    config = AttentionConfig(head_dim, **options).kernel()
    owner, attribute, change, verdict = MUTANTS_ON_TENSOR_CORES[name]
    monkeypatch.setattr(owner, attribute, change(getattr(owner, attribute)))
    mutant = emit(config)
    result = prove_global(mutant, block=config.tiling.threads, contract=launches_of(config).promised)
    wrong = [v for v in result.accesses if v.verdict != "proved"]
    assert wrong
    assert wrong[0].verdict == verdict, result.report()


# ------------------------------------------------------------------------ random programs


class _Program:
    """A random kernel that accesses Y, with what it does in plain Python."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.step = rng.choice((63, 64, 65, 16))
        self.shift = rng.choice((-2, -1, 0, 0, 1))
        self.compare = rng.choice(("lt", "le", "lt"))
        self.unsigned = rng.random() < 0.3
        self.limit = rng.choice((-1, 0, 0, 1))
        self.clamp = rng.choice(("", "", "min", "max"))
        self.offset = rng.choice((-1, 0, 0, 1))
        self.turns = rng.choice((0, 0, 2, 3))
        self.stride = rng.choice((64, 1, 100))

    @property
    def body(self) -> str:
        type = "u32" if self.unsigned else "s32"
        loop = "mov.u32 %r8, 0;\nL: " if self.turns else ""
        clamp = {"": "", "min": "sub.s32 %r7, %r2, 1; min.s32 %r5, %r5, %r7;", "max": "max.s32 %r5, %r5, 0;"}[
            self.clamp
        ]
        after = (
            f"add.s32 %r4, %r4, {self.stride}; add.s32 %r8, %r8, 1; setp.lt.s32 %p2, %r8, "
            f"{self.turns}; @%p2 bra L;"
        )
        return (
            f"mad.lo.s32 %r4, %r3, {self.step}, %r0; add.s32 %r4, %r4, {self.shift};"
            f"add.s32 %r6, %r2, {self.limit}; {loop} mov.u32 %r5, %r4; {clamp}"
            f"setp.{self.compare}.{type} %p1, %r5, %r6; mad.wide.s32 %rd3, %r5, 4, %rd1;"
            f"@%p1 st.global.u32 [%rd3+{4 * self.offset}], %r0;" + (after if self.turns else "")
        )

    def goes_wrong(self, m: int) -> bool:
        places = (
            self._place(block * self.step + thread + self.shift + turn * self.stride, m)
            for block in range(-(-m // 64))
            for thread in range(THREADS)
            for turn in range(self.turns or 1)
        )
        return any(location is not None and not 0 <= location < m for location in places)

    def _place(self, index: int, m: int) -> int | None:
        if self.clamp == "min":
            index = min(index, m - 1)
        elif self.clamp == "max":
            index = max(index, 0)
        limit = m + self.limit
        left, right = (index % 2**32, limit % 2**32) if self.unsigned else (index, limit)
        passes = left < right if self.compare == "lt" else left <= right
        return index + self.offset if passes else None


@pytest.mark.slow
def test_random_programs_have_the_verdict_of_running_them() -> None:
    sizes = (1, 2, 3, 16, 63, 64, 65, 100, 129, 200, 1000)
    count = {"proved": 0, "violation": 0, "unknown": 0}
    for seed in range(150):
        program = _Program(seed)
        verdict = only(prove(program.body))
        wrong = any(program.goes_wrong(m) for m in sizes)
        count[verdict.verdict] += 1
        assert wrong or verdict.verdict != "violation", f"seed {seed}: {program.body}\n{verdict}"
        assert not wrong or verdict.verdict != "proved", f"seed {seed}: {program.body}\n{verdict}"
    assert min(count["proved"], count["violation"]) > 30, count
    assert count["unknown"] < 10, count
