"""Static proof of shared-memory accesses: patterns by hand, mutants of the attention kernel, and
random programs judged by the interpreter.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from finding_tables import cases
from kernel_runs import Problem, mostly_nightly, run_forward
from messages import message as message_of

import flash.contract.catalogue
from flash import AttentionKernel
from flash.contract.catalogue import build, emit, proved_build
from flash.problem.config import AttentionConfig
from ptxgen import interpreter, ir
from ptxgen.check.prove import Proof, Verdict, Witness, prove_shared, require_proved
from ptxgen.errors import TrapError, VerifyError
from ptxgen.interpreter.machine.lane_machine import LaneMachine
from ptxgen.parse import parse
from ptxgen.target import TARGETS

HEAD_DIMS = (1, 3, 16, 40, 64, 72, 80, 96, 111, 128, 160, 192, 256)
FIXTURES = Path(__file__).parents[2] / "ptx"
FIRST_LINE = 18
ENTRY = "mov.u32 %r0, %tid.x; mov.u32 %r9, smem; mov.u32 %r8, buf;\n"


def text(body: str, *, buf: int = 512, params: str = ".param .u64 X, .param .u32 n") -> str:
    """A kernel with `buf` bytes; %r0 is the thread, %r8 buf, %r9 dynamic memory."""
    return (
        ".version 8.0\n.target sm_90a\n.address_size 64\n"
        ".extern .shared .align 16 .b8 smem[];\n"
        f".visible .entry k({params})\n{{\n"
        ".reg .pred %p<10>;\n.reg .b32 %r<60>;\n.reg .b64 %rd<20>;\n.reg .f32 %f<20>;\n"
        f".shared .align 16 .b8 buf[{buf}];\n"
        ".shared .align 16 .b8 other[64];\n.shared .align 4 .b8 small[64];\n\n"
        f"ld.param.u32 %r7, [n];\n{ENTRY}{body}\nret;\n}}\n"
    )


def proof(body: str, block: Any = 128, **how: Any) -> Proof:
    buf = how.pop("buf", 512)
    return prove_shared(text(body, buf=buf), block=block, **how)


def only(found: Proof) -> Verdict:
    (verdict,) = found.accesses
    return verdict


ROW = "mad.lo.u32 %r1, %r0, 4, %r8;\n"
PATTERNS = """
# rows of a matrix at one address
ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [other+48];
=> proved
# the bits of a float
mov.b32 %r1, 0f00000000; add.u32 %r1, %r8, %r1; st.shared.u32 [%r1], %r0;
=> unknown: its address cannot be listed: it depends on a result of mov
# a value that is put together from memory
ld.global.u32 %r1, [%rd2]; mov.b64 %rd1, {%r1, %r1}; cvt.u32.u64 %r1, %rd1; and.b32 %r1, %r1, 0x7FFF;
shr.u32 %r1, %r1, 8; mad.lo.u32 %r1, %r1, 4, %r8; st.shared.u32 [%r1], %r0;
=> proved
# a value that is put together
mov.b64 %rd1, {%r0, %r0}; cvt.u32.u64 %r1, %rd1; mad.lo.u32 %r1, %r1, 4, %r8; st.shared.u32 [%r1], %r0;
=> proved
# in bounds
<ROW> st.shared.u32 [%r1], %r0;
=> proved
# off by one element
<ROW> st.shared.u32 [%r1+4], %r0;
=> violation: bytes 512 to 515 are outside buf, which has 512 bytes: thread (127, 0, 0)
# before the beginning
<ROW> st.shared.u32 [%r1-4], %r0;
=> violation: bytes -4 to -1 are outside buf, which has 512 bytes: thread (0, 0, 0)
# off by one row
shr.u32 %r1, %r0, 5; add.u32 %r1, %r1, 1; and.b32 %r2, %r0, 31; mul.lo.u32 %r1, %r1, 128;
mad.lo.u32 %r1, %r2, 4, %r1; add.u32 %r1, %r8, %r1; ld.shared.u32 %r3, [%r1];
=> violation: bytes 512 to 515 are outside buf, which has 512 bytes: thread (96, 0, 0)
# a vector past the end
<ROW> ld.shared.v2.u32 {%r3, %r4}, [%r1];
=> violation: bytes 508 to 515 are outside buf, which has 512 bytes: thread (127, 0, 0)
# misaligned
rem.u32 %r1, %r0, 64; mad.lo.u32 %r1, %r1, 4, %r8; ld.shared.v2.u32 {%r3, %r4}, [%r1];
=> violation: byte 4 of buf is not a multiple of 8 bytes: thread (1, 0, 0)
# aligned
rem.u32 %r1, %r0, 64; mad.lo.u32 %r1, %r1, 8, %r8; ld.shared.v2.u32 {%r3, %r4}, [%r1];
=> proved
# aligned if the variable is
mov.u32 %r1, small; ld.shared.v2.u32 {%r3, %r4}, [%r1];
=> unknown: small is aligned to 4 bytes only, and the access needs 8
# a swizzle
shl.b32 %r1, %r0, 2; shr.u32 %r2, %r1, 3; and.b32 %r2, %r2, 48; xor.b32 %r1, %r1, %r2;
add.u32 %r1, %r8, %r1; st.shared.u32 [%r1], %r0;
=> proved
# a swizzle with a wrong mask
shl.b32 %r1, %r0, 2; shl.b32 %r2, %r1, 3; and.b32 %r2, %r2, 512; xor.b32 %r1, %r1, %r2;
add.u32 %r1, %r8, %r1; st.shared.u32 [%r1], %r0;
=> violation: bytes 576 to 579 are outside buf, which has 512 bytes: thread (16, 0, 0)
# a guarded access
setp.lt.u32 %p1, %r0, 64; mad.lo.u32 %r1, %r0, 8, %r8; @%p1 st.shared.u32 [%r1+4], %r0;
=> proved
# the guard missing
mad.lo.u32 %r1, %r0, 8, %r8; st.shared.u32 [%r1+4], %r0;
=> violation: bytes 516 to 519 are outside buf, which has 512 bytes: thread (64, 0, 0)
# the guard turned round
setp.lt.u32 %p1, %r0, 64; mad.lo.u32 %r1, %r0, 8, %r8; @!%p1 st.shared.u32 [%r1], %r0;
=> violation: bytes 512 to 515 are outside buf, which has 512 bytes: thread (64, 0, 0)
# two ways to one block
setp.lt.u32 %p1, %r0, 32; @%p1 bra L; setp.ge.u32 %p2, %r0, 96; @%p2 bra L; bra end;
L: xor.b32 %r1, %r0, 64; and.b32 %r2, %r1, 32; mad.lo.u32 %r1, %r2, 100, %r8; @%p1 st.shared.u32 [%r1], %r0;
end:
=> proved
# a guard that data decides
ld.param.u64 %rd1, [X]; ld.global.u32 %r2, [%rd1]; setp.lt.u32 %p1, %r0, %r2; mad.lo.u32 %r1, %r0, 8, %r8;
@%p1 st.shared.u32 [%r1], %r0;
=> unknown: perhaps bytes 512 to 515 are outside buf, which has 512 bytes, but that may not happen (thread
   (64, 0, 0))
# a guard that the launch decides
setp.lt.u32 %p1, %r7, 8; mad.lo.u32 %r1, %r0, 8, %r8; @%p1 st.shared.u32 [%r1], %r0;
=> violation: bytes 512 to 515 are outside buf, which has 512 bytes: thread (64, 0, 0)
# an index from memory
ld.param.u64 %rd1, [X]; ld.global.u32 %r1, [%rd1]; mad.lo.u32 %r1, %r1, 4, %r8; st.shared.u32 [%r1], %r0;
=> unknown: its address cannot be listed: it depends on a value from memory
# an index from memory, masked
ld.param.u64 %rd1, [X]; ld.global.u32 %r1, [%rd1]; and.b32 %r1, %r1, 127; mad.lo.u32 %r1, %r1, 4, %r8;
st.shared.u32 [%r1], %r0;
=> proved
# an index from memory, compared
ld.param.u64 %rd1, [X]; ld.global.u32 %r1, [%rd1]; setp.gt.u32 %p1, %r1, 127; @%p1 bra end;
mad.lo.u32 %r1, %r1, 4, %r8; st.shared.u32 [%r1], %r0; end:
=> proved
# an index from memory, compared as signed
ld.param.u64 %rd1, [X]; ld.global.u32 %r1, [%rd1]; setp.gt.s32 %p1, %r1, 127; @%p1 bra end;
mad.lo.u32 %r1, %r1, 4, %r8; st.shared.u32 [%r1], %r0; end:
=> unknown: its address cannot be listed: it depends on a value from memory
# an unbounded parameter
mad.lo.u32 %r1, %r7, 4, %r8; st.shared.u32 [%r1], %r0;
=> unknown: its address cannot be listed: it depends on the parameter n, which has no bounds
# a clamp
min.u32 %r1, %r7, 127; mad.lo.u32 %r1, %r1, 4, %r8; st.shared.u32 [%r1], %r0;
=> proved
# a loop
mov.u32 %r1, %r8; mov.u32 %r2, 0; L: st.shared.u32 [%r1], %r0; add.u32 %r1, %r1, 16; add.u32 %r2, %r2, 1;
setp.lt.u32 %p1, %r2, 32; @%p1 bra L;
=> proved
# a loop with one turn too many
mov.u32 %r1, %r8; mov.u32 %r2, 0; L: st.shared.u32 [%r1], %r0; add.u32 %r1, %r1, 16; add.u32 %r2, %r2, 1;
setp.le.u32 %p1, %r2, 32; @%p1 bra L;
=> violation: bytes 512 to 515 are outside buf, which has 512 bytes: thread (0, 0, 0), %r1 = 512, %r2 = 32
# a loop without an end
mov.u32 %r1, %r8; L: st.shared.u32 [%r1], %r0; add.u32 %r1, %r1, 16; setp.lt.u32 %p1, %r1, %r7; @%p1 bra L;
=> unknown: its address cannot be listed: it depends on the parameter n, which has no bounds
# stages in turn
mov.u32 %r1, 0; mov.u32 %r2, 0; L: mad.lo.u32 %r3, %r1, 128, %r8; st.shared.u32 [%r3+124], %r0;
add.u32 %r1, %r1, 1; setp.eq.u32 %p1, %r1, 4; selp.u32 %r1, 0, %r1, %p1; add.u32 %r2, %r2, 1;
setp.lt.u32 %p2, %r2, %r7; @%p2 bra L;
=> proved
# a stage too many
mov.u32 %r1, 0; mov.u32 %r2, 0; L: mad.lo.u32 %r3, %r1, 128, %r8; st.shared.u32 [%r3+124], %r0;
add.u32 %r1, %r1, 1; setp.eq.u32 %p1, %r1, 5; selp.u32 %r1, 0, %r1, %p1; add.u32 %r2, %r2, 1;
setp.lt.u32 %p2, %r2, %r7; @%p2 bra L;
=> violation: bytes 636 to 639 are outside buf, which has 512 bytes: thread (0, 0, 0), %r1 = 4
# a stage that alternates
mov.u32 %r1, 0; mov.u32 %r2, 0; L: mad.lo.u32 %r3, %r1, 256, %r8; st.shared.u32 [%r3+252], %r0;
xor.b32 %r1, %r1, 1; add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, %r7; @%p2 bra L;
=> proved
# nested loops
mov.u32 %r1, 0; L: mov.u32 %r2, 0; M: mad.lo.u32 %r3, %r1, 128, %r8; mad.lo.u32 %r3, %r2, 16, %r3;
st.shared.v4.u32 [%r3], {%r0, %r0, %r0, %r0}; add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 8; @%p1 bra M;
add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 4; @%p2 bra L;
=> proved
# values that meet
setp.lt.u32 %p1, %r0, 64; @%p1 bra L; mov.u32 %r1, 0; bra M; L: mov.u32 %r1, 256;
M: mad.lo.u32 %r2, %r0, 4, %r1; add.u32 %r2, %r8, %r2; st.shared.u32 [%r2], %r0;
=> proved
# values that meet the wrong way
setp.lt.u32 %p1, %r0, 64; @%p1 bra L; mov.u32 %r1, 256; bra M; L: mov.u32 %r1, 0;
M: mad.lo.u32 %r2, %r0, 4, %r1; add.u32 %r2, %r8, %r2; st.shared.u32 [%r2], %r0;
=> violation: bytes 512 to 515 are outside buf, which has 512 bytes: thread (64, 0, 0), %r1 = 256
# a value that the launch decides where it decides otherwise
setp.lt.u32 %p1, %r7, 8; @%p1 bra L; mov.u32 %r1, 0; bra M; L: mov.u32 %r1, 512; M: @%p1 bra end;
add.u32 %r2, %r8, %r1; st.shared.u32 [%r2], %r0; end:
=> unknown: perhaps bytes 512 to 515 are outside buf, which has 512 bytes, but that may not happen (thread
   (0, 0, 0), %r1 = 512)
# one of two variables
mov.u32 %r1, other; setp.lt.u32 %p1, %r0, 16; selp.u32 %r1, %r1, %r8, %p1; mad.lo.u32 %r1, %r0, 4, %r1;
st.shared.u32 [%r1], %r0;
=> proved
# the smaller of two variables
mov.u32 %r1, other; setp.le.u32 %p1, %r0, 16; selp.u32 %r1, %r1, %r8, %p1; mad.lo.u32 %r1, %r0, 4, %r1;
st.shared.u32 [%r1], %r0;
=> violation: bytes 64 to 67 are outside other, which has 64 bytes: thread (16, 0, 0)
# beyond the last variable
setp.eq.u32 %p1, %r0, 0; selp.u32 %r1, %r8, %r9, %p1; mad.lo.u32 %r1, %r0, 0x400000, %r1;
st.shared.u32 [%r1], %r0;
=> violation: it is outside every variable: thread (1, 0, 0)
# an address that is twisted
<ROW> xor.b32 %r1, %r1, 64; st.shared.u32 [%r1], %r0;
=> unknown: it may depend on the variable's address in a way that is not followed
# a generic address
<ROW> cvt.u64.u32 %rd1, %r1; cvta.shared.u64 %rd2, %rd1; st.u32 [%rd2+4], %r0;
=> violation: bytes 512 to 515 are outside buf, which has 512 bytes: thread (127, 0, 0)
# an atomic operation
<ROW> atom.shared.add.u32 %r2, [%r1+4], 1;
=> violation: bytes 512 to 515 are outside buf, which has 512 bytes: thread (127, 0, 0)
# ldmatrix of half the lanes
and.b32 %r1, %r0, 31; mad.lo.u32 %r1, %r1, 32, %r8;
ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r2, %r3}, [%r1];
=> proved
# ldmatrix of all lanes
and.b32 %r1, %r0, 31; mad.lo.u32 %r1, %r1, 32, %r8;
ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r2, %r3, %r4, %r5}, [%r1];
=> violation: bytes 512 to 527 are outside buf, which has 512 bytes: thread (16, 0, 0)
# cp.async
ld.param.u64 %rd1, [X]; mad.lo.u32 %r1, %r0, 8, %r8; cp.async.ca.shared.global [%r1], [%rd1], 8;
=> violation: bytes 512 to 519 are outside buf, which has 512 bytes: thread (64, 0, 0)
# an mbarrier
mov.u32 %r1, other; mbarrier.init.shared::cta.b64 [%r1+60], 1;
=> violation: bytes 60 to 67 are outside other, which has 64 bytes: thread (0, 0, 0)
# a warp's number by a shuffle
shr.u32 %r1, %r0, 5; shfl.sync.idx.b32 %r2, %r1, 0, 31, -1; mad.lo.u32 %r3, %r2, 128, %r8;
st.shared.u32 [%r3+128], %r0;
=> violation: bytes 512 to 515 are outside buf, which has 512 bytes: thread (96, 0, 0)
"""


@pytest.mark.parametrize(("body", "findings"), cases(PATTERNS, ROW=ROW))
def test_each_pattern_has_its_verdict_and_its_witness(body: str, findings: list[str]) -> None:
    result = only(proof(body))
    assert [f"{result.verdict}: {result.reason}".removesuffix(": ")] == findings


def test_a_bulk_copy_is_judged_by_its_size_and_its_mbarrier() -> None:
    body = (
        "ld.param.u64 %rd1, [X]; mov.u32 %r1, other;"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%r8], [%rd1], {}, [%r1];"
    )
    data, mbarrier = proof(body.replace("{}", "512")).accesses
    assert (data.verdict, data.last, mbarrier.verdict) == ("proved", 511, "proved")
    data, _ = proof(body.replace("{}", "528")).accesses
    assert data.reason == ("bytes 0 to 527 are outside buf, which has 512 bytes: thread (0, 0, 0)")


def test_a_verdict_names_the_instruction_the_line_and_the_witness() -> None:
    result = only(proof(ROW + "st.shared.u32 [%r1+4], %r0;"))
    assert result == Verdict(
        "violation",
        "k",
        5,
        "st.shared.u32 [%r1+4], %r0;",
        f"line {FIRST_LINE} of the PTX text",
        "bytes 512 to 515 are outside buf, which has 512 bytes: thread (127, 0, 0)",
        "buf",
        4,
        515,
        Witness((127, 0, 0), (), 512),
    )


def test_threads_of_three_dimensions_are_all_tried() -> None:
    body = (
        "mov.u32 %r1, %tid.y; mov.u32 %r2, %tid.z; mad.lo.u32 %r3, %r2, 8, %r1;"
        "mad.lo.u32 %r3, %r3, 4, %r0; mad.lo.u32 %r3, %r3, 4, %r8; st.shared.u32 [%r3], %r0;"
    )
    assert only(proof(body, block=(4, 8, 4))).verdict == "proved"
    result = only(proof(body, block=(4, 8, 5)))
    assert result.witness == Witness((0, 0, 4), (), 512)


def test_bounds_of_parameters_are_used() -> None:
    body = "mad.lo.u32 %r1, %r7, 4, %r8; st.shared.u32 [%r1], %r0;"
    assert only(proof(body, params={"n": (0, 127)})).verdict == "proved"
    assert only(proof(body, params={"n": range(0, 128, 2)})).last == 507
    result = only(proof(body, params={"n": (0, 128)}))
    assert result.witness == Witness((0, 0, 0), (("n", 128),), 512)
    assert only(proof(body, params={"n": 128})).verdict == "violation"


def test_dynamic_shared_memory_is_as_large_as_the_launch_says() -> None:
    body = "mad.lo.u32 %r1, %r0, 4, %r9; st.shared.u32 [%r1], %r0;"
    assert only(proof(body, dynamic_smem=512)).verdict == "proved"
    assert only(proof(body, dynamic_smem=508)).reason == (
        "bytes 508 to 511 are outside smem, which has 508 bytes: thread (127, 0, 0)"
    )


def regions(body: str) -> Proof:
    module = parse(text(body))
    built = (ir.Region("A", 0, 512, 16), ir.Region("B", 512, 256, 16))
    kernel = replace(module.kernels[0], dynamic_shared="smem", regions=built)
    return prove_shared(replace(module, kernels=(kernel,)), block=128)


def test_an_overrun_into_the_neighbouring_region_is_found() -> None:
    inside = "mad.lo.u32 %r1, %r0, {}, %r9; st.shared.u32 [%r1+{}], %r0;"
    assert only(regions(inside.format(4, 0))).allocation == "A"
    assert (
        only(
            regions(
                inside.format(2, 512)
                .replace("u32 [", "u16 [")
                .replace(", %r0;", ", %rs0;")
                .replace("%rs0", "0")
            )
        ).allocation
        == "B"
    )
    assert only(regions(inside.format(4, 4))).reason == (
        "bytes 512 to 515 are outside A, which has 512 bytes: thread (127, 0, 0)"
    )
    assert only(regions(inside.format(4, 512))).reason == (
        "bytes 256 to 259 are outside B, which has 256 bytes: thread (64, 0, 0)"
    )
    assert only(regions(inside.format(4, 768))).reason == (
        "byte 768 of smem is in none of its regions: thread (0, 0, 0)"
    )


@pytest.mark.parametrize(
    ("other", "at", "wanted"),
    [(32, 0, ("A", 0, 35)), (32, 512, ("B", 0, 35)), (512, 0, ("smem", 0, -1)), (512, 4, ("smem", 0, -1))],
)
def test_an_address_that_is_chosen_is_in_the_region_of_all_choices(
    other: int, at: int, wanted: tuple[str, int, int]
) -> None:
    chosen = f"setp.eq.u32 %p1, %r0, 3; add.u32 %r2, %r9, {other}; selp.b32 %r1, %r9, %r2, %p1;"
    result = only(regions(f"{chosen} st.shared.u32 [%r1+{at}], %r0;"))
    assert (result.verdict, result.allocation, result.first, result.last) == ("proved", *wanted)
    outside = only(regions(f"{chosen} st.shared.u32 [%r1+{at + 510}], %r0;"))
    assert outside.verdict != "proved"


def test_regions_need_as_much_memory_as_the_launch_gives() -> None:
    module = parse(text(""))
    kernel = replace(module.kernels[0], dynamic_shared="smem", regions=(ir.Region("A", 0, 512, 16),))
    result = prove_shared(replace(module, kernels=(kernel,)), block=128, dynamic_smem=256)
    assert [p.message for p in result.problems] == [
        "its regions need 512 bytes of dynamic shared memory, got 256"
    ]


def test_a_proof_is_told_in_words_in_a_table_and_as_data() -> None:
    body = "ld.shared.u8 %r1, [other]; st.shared.u8 [small+3], 1; st.shared.u32 [%r9], 1;"
    result = proof(body + "st.shared.u32 [%r1], 1; bar.sync 0;", dynamic_smem=2)
    wrong = result.violations[0]
    assert result.report() == f"{result}\n{wrong}\n{result.unknown[0]}"
    assert result.table() == (
        "allocation        proved  violation  unknown  bytes\n"
        "other                  1          0        0  0 to 0\n"
        "small                  1          0        0  3 to 3\n"
        "smem                   0          1        0  0 to 3\n"
        "-                      0          0        1  -"
    )
    assert result.to_dict() == {
        "kernel": "k",
        "block": [128, 1, 1],
        "dynamic_smem": 2,
        "complete": False,
        "accesses": [v.to_dict() for v in result.accesses],
        "barriers": [v.to_dict() for v in result.barriers],
        "convergence": [],
        "tensor_memory": [],
        "races": "not judged",
        "problems": [],
        "unfenced": [],
    }
    (barrier,) = result.barriers
    assert (barrier.first, barrier.last) == (0, -1)  # it accesses no bytes


# ------------------------------------------------------------------------------ barriers


BARRIERS = """
bar.sync 0;
=> proved
setp.lt.u32 %p1, %r7, 4; @%p1 bra L; bar.sync 0; L:
=> proved
setp.lt.u32 %p1, %r0, 128; @!%p1 bra L; bar.sync 0; L:
=> proved
setp.lt.u32 %p1, %r7, 4; @%p1 bra L; setp.lt.u32 %p2, %r0, %r7; @%p2 bra L; bar.sync 0; L: mov.u32 %r1, 0;
=> unknown: a condition on the way to it may differ between threads
setp.lt.u32 %p2, %r0, %r7; @%p2 bra L; setp.lt.u32 %p1, %r7, 4; @%p1 bra L; bar.sync 0; L: mov.u32 %r1, 0;
=> unknown: a condition on the way to it may differ between threads
setp.lt.u32 %p1, %r0, 32; @!%p1 bra L; bar.sync 0; L: mov.u32 %r1, 0;
=> unknown: threads (0, 0, 0) and (32, 0, 0) differ in a condition on the way to it, and those that do not
   come to it go on without it
setp.lt.u32 %p1, %r0, %r7; @!%p1 bra L; bar.sync 0; L: mov.u32 %r1, 0;
=> unknown: a condition on the way to it may differ between threads
ld.global.nc.u32 %r1, [%rd1+4]; setp.lt.u32 %p1, %r1, 4; @%p1 bra L; bar.sync 0; L:
=> proved
ld.global.u32 %r1, [%rd1+4]; setp.lt.u32 %p1, %r1, 4; @%p1 bra L; bar.sync 0; L: mov.u32 %r1, 0;
=> unknown: a condition on the way to it may differ between threads
mad.wide.u32 %rd1, %r0, 4, %rd1; ld.global.nc.u32 %r1, [%rd1]; setp.lt.u32 %p1, %r1, 4; @%p1 bra L;
bar.sync 0;
L: mov.u32 %r1, 0;
=> unknown: a condition on the way to it may differ between threads
mov.u32 %r1, %r0; L: bar.sync 0; add.u32 %r1, %r1, 32; setp.lt.u32 %p1, %r1, 200;@%p1 bra L; mov.u32 %r1, 0;
=> unknown: a condition on the way to it may differ between threads
"""


@pytest.mark.parametrize(("body", "findings"), cases(BARRIERS))
def test_a_barrier_must_be_reached_by_all_threads(body: str, findings: list[str]) -> None:
    address = "ld.param.u64 %rd1, [X]; cvta.to.global.u64 %rd1, %rd1;\n"
    (result,) = proof(address + body).barriers
    assert [f"{result.verdict}: {result.reason}".removesuffix(": ")] == findings


# ------------------------------------------------------------------------------ arguments


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            {"block": 2000},
            "prove: block must be one to three positive numbers of threads, "
            "at most 1024 in all and 64 along z, got 2000",
        ),
        ({"entry": "kk"}, "prove: no kernel 'kk'; the module has k; did you mean 'k'?"),
        ({"params": {"m": 3}}, "prove: k has no parameter 'm'"),
        (
            {"dynamic_smem": 1 << 32},
            "prove: dynamic_smem must be an integer from 0 to 4294967295, got 4294967296",
        ),
        (
            {"params": {"n": (3, 1)}},
            "prove: the bounds of n must be a number, the lowest "
            "and the highest, or a range with a positive step, got (3, 1)",
        ),
    ],
)
def test_wrong_arguments_are_refused(how: dict[str, Any], message: str) -> None:
    assert message_of(lambda: prove_shared(text(""), **{"block": 32, **how})) == message


def test_what_is_wrong_is_refused_and_what_is_unknown_passes() -> None:
    require_proved(proof("mad.lo.u32 %r1, %r7, 4, %r8; st.shared.u32 [%r1], %r0;"))
    assert message_of(lambda: require_proved(proof("st.shared.u32 [%r8+512], %r0;")), VerifyError) == (
        "shared memory: 1 problem:\n* kernel k: violation: bytes 512 to 515 are outside buf, which "
        "has 512 bytes: thread (0, 0, 0)\n    in st.shared.u32 [%r8+512], %r0;\n"
        f"    from line {FIRST_LINE - 1} of the PTX text"
    )


# ------------------------------------------------------------------------------ our kernels


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_nightly(TARGETS, ("sm_90",)))
def test_every_default_kernel_is_proved_completely(name: str) -> None:
    for head_dim in HEAD_DIMS:
        result = build(AttentionConfig(head_dim, causal=True, target=name).kernel()).proof
        assert result.complete, result.report()
        assert result.accesses
        assert result.barriers


def _shifted(module: ir.Module, at: int, by: int) -> ir.Module:
    (kernel,) = module.kernels
    instr = kernel.body[at]
    assert isinstance(instr, ir.Instr)
    operands = list(instr.operands)
    location = next(i for i, o in enumerate(operands) if isinstance(o, ir.Address))
    address = operands[location]
    assert isinstance(address, ir.Address)
    operands[location] = ir.Address(address.base, address.offset + by)
    new = ir.Instr(instr.opcode, tuple(operands), instr.guard, instr.origin)
    body = (*kernel.body[:at], new, *kernel.body[at + 1 :])
    return replace(module, kernels=(replace(kernel, body=body),))


@pytest.mark.parametrize("name", ["sm_80", pytest.param("sm_75", marks=pytest.mark.slow)])
def test_each_shared_offset_shifted_by_an_element_is_a_violation(name: str) -> None:
    config = AttentionConfig(16, tile=16, block_q=16, target=name).kernel()
    module = emit(config)
    places = [
        at for at, s in enumerate(module.kernels[0].body) if isinstance(s, ir.Instr) and ".shared" in s.opcode
    ]
    assert len(places) > 20
    for at in random.Random(1).sample(places, 6):
        for by in (-4, 4):
            result = prove_shared(_shifted(module, at, by), block=config.tiling.threads)
            (violation,) = result.violations
            assert ".py:" in violation.where
            assert violation.witness is not None


def test_a_kernel_that_violates_is_refused_and_another_tells_its_proof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = AttentionConfig(16, tile=16, block_q=16)
    kernel = AttentionKernel(config)
    assert kernel.proof.complete
    assert kernel.proof is proved_build(config.kernel()).proof
    q = np.zeros((1, 1, 4, 16), np.float32)
    count = len(kernel.proof.accesses)
    said = kernel.explain(q, q, q, backend="interpreter")
    assert f"all {count} shared-memory accesses in bounds, all 2 barriers uniform" in said

    def overrunning(config: Any) -> ir.Module:
        module = emit(config)
        body = module.kernels[0].body
        stores = [n for n, s in enumerate(body) if isinstance(s, ir.Instr) and s.opcode[:9] == "st.shared"]
        return _shifted(module, stores[-1], 1 << 16)

    monkeypatch.setattr(flash.contract.catalogue, "emit", overrunning)
    build.cache_clear()
    violation = build(config.kernel()).proof.violations[0]
    assert (
        message_of(lambda: kernel.launch(q, q, q, backend="interpreter"), VerifyError)
        == f"shared memory: 1 problem:\n* {violation}"
    )
    assert "smem is in none of its regions" in violation.reason
    build.cache_clear()


def test_every_address_that_a_run_takes_is_one_of_the_proof(monkeypatch: Any) -> None:
    seen: dict[int, list[tuple[int, int]]] = defaultdict(list)
    load, store = LaneMachine.load, LaneMachine.store

    def note(machine: Any, space: str, address: Any, nbytes: int) -> None:
        if space == "shared":
            active = np.asarray(machine.active())
            taken = np.broadcast_to(np.asarray(address), active.shape)[active].astype(np.int64)
            if len(taken):
                seen[machine.at].append((int(taken.min()), int(taken.max()) + nbytes - 1))

    def recorded_load(machine: Any, space: str, address: Any, type: Any, count: int) -> Any:
        note(machine, space, address, type.nbytes * count)
        return load(machine, space, address, type, count)

    def recorded_store(machine: Any, space: str, address: Any, type: Any, values: Any) -> Any:
        note(machine, space, address, type.nbytes * len(values))
        return store(machine, space, address, type, values)

    monkeypatch.setattr(LaneMachine, "load", recorded_load)
    monkeypatch.setattr(LaneMachine, "store", recorded_store)
    config = AttentionConfig(40, 24, causal=True, tile=16, block_q=32, target="sm_75")
    run_forward(config, Problem(36, 34, 40, 24).arrays())
    built = build(config.kernel(alignment=16, return_lse=config.return_lse))
    starts = {r.name: r.offset for r in built.kernel.regions}
    proved = {v.number: v for v in built.proof.accesses}
    assert set(seen) <= set(proved)
    assert len(seen) > 20
    for number, taken in seen.items():
        verdict = proved[number]
        low = min(a for a, _ in taken) - starts[verdict.allocation]
        high = max(b for _, b in taken) - starts[verdict.allocation]
        assert (verdict.first, verdict.last) == (low, high), verdict


# ------------------------------------------------------------------------------ other compilers


@pytest.mark.parametrize(
    ("name", "entry", "block", "dynamic"),
    [
        ("nvcc/reduce.sm_80", "reduce_tree", 256, 0),
        ("nvcc/transpose.sm_80", "transpose_tiled", (32, 8), 0),
        pytest.param("nvcc/sort.sm_80", "sort_bitonic", 64, 512, marks=pytest.mark.slow),
        ("triton/matmul_3_stages.sm_80", None, 128, None),
        ("triton/attention.sm_80", None, 128, None),
    ],
)
def test_kernels_of_other_compilers_have_no_violation(
    name: str, entry: str | None, block: Any, dynamic: int | None
) -> None:
    module = parse((FIXTURES / f"{name}.ptx").read_text())
    result = prove_shared(module, entry, block=block, dynamic_smem=dynamic or 1 << 17)
    assert result.accesses
    assert not result.violations, result.report()


# ------------------------------------------------------------------------------ random programs


OPERATIONS = (
    *("add.u32", "sub.u32", "mul.lo.u32", "and.b32", "or.b32", "xor.b32"),
    *("min.s32", "max.u32", "shl.b32", "shr.u32", "rem.u32", "div.u32"),
)


class _Program:
    """A random program of address arithmetic, with branches and loops, that ends in a store."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._labels = 0
        self.lines: list[str] = ["mov.u32 %r10, %r0; mov.u32 %r11, 3; mov.u32 %r12, %r7;"]
        for _ in range(self._random.randint(2, 6)):
            self._step(0)
        r = self._random
        self.lines.append(
            f"{r.choice(['and.b32', 'rem.u32', 'min.u32'])} %r13, {self._any()}, "
            f"{r.choice([7, 15, 31, 63, 127, 130])};"
        )
        self.lines.append("mad.lo.u32 %r14, %r13, 4, %r8;")
        guard = r.choice(["", f"setp.{r.choice(['lt', 'ge'])}.u32 %p9, {self._any()}, 9; @%p9 "])
        self.lines.append(f"{guard}st.shared.u32 [%r14{r.choice(['', '+4', '-4'])}], %r0;")

    def _any(self) -> str:
        return self._random.choice(["%r0", "%r10", "%r11", "%r12"])

    def _step(self, depth: int) -> None:
        r = self._random
        kind = r.choice(["op", "op", "op", "if", "else", "loop"]) if depth < 2 else "op"
        self._labels += 1
        n = self._labels
        target = r.choice(["%r10", "%r11", "%r12"])
        if kind == "op":
            op = r.choice(OPERATIONS)
            other = str(r.randint(1, 9)) if r.random() < 0.6 or op[:2] == "sh" else self._any()
            if op[:3] in ("rem", "div"):
                other = str(r.randint(1, 9))
            self.lines.append(f"{op} {target}, {self._any()}, {other};")
            return
        if kind == "loop":
            counter = f"%r{20 + n}"
            stop = r.choice(["3", "5", "%r7"])
            self.lines.append(f"mov.u32 {counter}, 0;\nL{n}:")
            self._step(depth + 1)
            self._step(depth + 1)
            self.lines.append(
                f"add.u32 {counter}, {counter}, 1; setp.lt.u32 %p1, {counter}, {stop}; @%p1 bra L{n};"
            )
            return
        test = f"setp.{r.choice(['lt.u32', 'ge.s32', 'eq.u32'])} %p1, {self._any()}, "
        self.lines.append(f"{test}{r.choice(['2', '5', '40', '%r7'])}; @%p1 bra E{n};")
        self._step(depth + 1)
        if kind == "else":
            self.lines.append(f"bra F{n};\nE{n}:")
            self._step(depth + 1)
            self.lines.append(f"F{n}:")
        else:
            self.lines.append(f"E{n}:")

    @property
    def body(self) -> str:
        return "\n".join(self.lines)


def _traps(ptx: str, n: int) -> bool:
    x = np.zeros(4, np.uint32)
    try:
        interpreter.run(ptx, "k", grid=1, block=64, args=[x, n])
    except TrapError:
        return True
    return False


@pytest.mark.slow
def test_nothing_that_traps_is_proved_and_nothing_that_always_runs_is_a_violation() -> None:
    verdicts: dict[str, int] = defaultdict(int)
    for seed in range(150):
        ptx = text(_Program(seed).body, buf=128 * 4)
        result = only(prove_shared(ptx, block=64))
        verdicts[result.verdict] += 1
        alone = only(prove_shared(ptx, block=64, params={"n": 4}))
        traps = {n: _traps(_with_redzone(ptx), n) for n in (0, 1, 4, 50)}
        if result.verdict == "proved":
            assert not any(traps.values()), (seed, ptx)
        if alone.verdict != "unknown":
            assert traps[4] == (alone.verdict == "violation"), (seed, alone, ptx)
    assert min(verdicts[v] for v in ("proved", "violation")) > 15, dict(verdicts)


def _with_redzone(ptx: str) -> str:
    """The program with nothing declared around the variable, so that every overrun traps."""
    return ptx.replace(".shared .align 16 .b8 other[64];\n", "").replace(
        ".shared .align 4 .b8 small[64];\n", ""
    )


@pytest.mark.parametrize(("threads", "proved"), [("", True), ("64, ", False)])
def test_what_a_barrier_reduces_over_all_threads_is_the_same_for_all(threads: str, proved: bool) -> None:
    text = f"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry k()
{{
    .reg .pred %p<3>;
    .reg .b32 %r<2>;
    mov.u32 %r0, %tid.x;
    setp.eq.u32 %p0, %r0, 3;
    bar.red.or.pred %p1, 0, {threads}%p0;
    @!%p1 bra $end;
    bar.sync 0;
$end:
    ret;
}}
"""
    proof = prove_shared(text, block=128)
    assert proof.complete is proved
