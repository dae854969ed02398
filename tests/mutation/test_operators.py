from __future__ import annotations

import re
from dataclasses import replace
from itertools import count

import pytest
from messages import message as message_of

from ptxgen import ir
from ptxgen.check.verify import verify
from ptxgen.errors import ConfigError
from ptxgen.mutation.operators import KINDS, Mutant, mutants
from ptxgen.parse import parse
from ptxgen.runtime.assembler import find_assembler
from ptxgen.text import render

HEAD = """\
.version 8.0
.target sm_90
.address_size 64

.extern .shared .align 16 .b8 smem[];

.visible .entry k(
	.param .u64 out
)
{
	.reg .pred %p<8>;
	.reg .b32 %r<16>;
	.reg .b64 %rd<8>;
	.reg .f32 %f<8>;
	// region A: offset 0, 256 bytes, align 16
	// region B: offset 256, 128 bytes, align 16

	ld.param.u64 %rd0, [out];
	mov.u32 %r0, %tid.x;
	mov.u32 %r1, smem;
"""
TAIL = """\
	ret;
}
"""


def module_of(body: str) -> ir.Module:
    return parse(HEAD + body + TAIL)


def changes(body: str, kind: str) -> list[tuple[str, str, str]]:
    """What changed in words, and the PTX before and after, of each mutant of a kind."""
    result = mutants(module_of(body), "k", [kind])
    return [(m.name.removeprefix(f"{kind}: ").partition(" @")[0], m.before, m.after) for m in result]


def difference(mutant: Mutant) -> tuple[list[str], list[str]]:
    """The lines of the PTX text that are gone, and those that are new."""
    before, after = render(mutant.original).splitlines(), render(mutant.module).splitlines()
    for n in count():
        if n == len(after) or before[n] != after[n]:
            end = len(after) - len(before) + n + 1
            assert before[n + 1 :] == after[end:]
            return before[n : n + 1], after[n:end]
    raise AssertionError


BARRIERS = "\tbar.sync 0;\n\tbar.sync 2, 64;\n\tbar.arrive 3, 64;\n"
COPIES = """\
	cp.async.ca.shared.global [%r1], [%rd0], 4;
	cp.async.commit_group;
	cp.async.wait_group 1;
	cp.async.wait_all;
	cp.async.bulk.wait_group.read 0;
"""
WAIT = "mbarrier.try_wait.parity.shared.b64 %p0, [smem+256], %r3;"
BOX = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
COPY = f"{BOX} [smem], [%rd0, {{0, %r0}}], [smem+256];"
MATRIX = "or.b64 %rd3, %rd2, 4611686293305360384;"  # 128-byte swizzle, stride offset 64, leading offset 1
MMA = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0, %f1, %f2, %f3}, %rd3, %rd3,"
PRODUCT = f"{MMA} %p0, 1, 1, 0, 0;"
MORE = "setmaxnreg.inc.sync.aligned.u32 232;"
HOPPER = f"""
	mov.u32 %r2, 1;
	xor.b32 %r3, %r2, 1;
	{WAIT}
	{COPY}
	{MORE}
	add.u32 %r4, %r2, 64;
	shr.u32 %r5, %r4, 4;
	cvt.u64.u32 %rd2, %r5;
	{MATRIX}
	{PRODUCT}
"""
CELLS = "{%r4, %r5, %r6, %r7}"
TENSOR = f"""
	tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [smem], 64;
	or.b64 %rd3, %rd2, 4611756387171565568;
	tcgen05.cp.cta_group::1.32x128b.warpx4 [%r2+32], %rd3;
	tcgen05.mma.cta_group::1.kind::f16 [%r2], %rd4, %rd4, %r3, %p0;
	tcgen05.mma.cta_group::1.kind::i8 [%r2], %rd4, %rd4, 16, %p1;
	tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [smem+256];
	tcgen05.fence::after_thread_sync;
	tcgen05.ld.sync.aligned.32x32b.x4.b32 {CELLS}, [%r2+8];
	tcgen05.wait::ld.sync.aligned;
	tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 64;
"""
TENSOR_NAMES = {
    "ALLOC": "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32",
    "DEALLOC": "tcgen05.dealloc.cta_group::1.sync.aligned.b32",
    "CP": "tcgen05.cp.cta_group::1.32x128b.warpx4",
    "F16": "tcgen05.mma.cta_group::1.kind::f16",
    "I8": "tcgen05.mma.cta_group::1.kind::i8",
    "COMMIT": "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64",
    "LD": f"tcgen05.ld.sync.aligned.32x32b.x4.b32 {CELLS},",
    "AB": "%rd4, %rd4",
}
FENCES = "\tfence.proxy.async;\n\tmembar.gl;\n\tfence.acq_rel.gpu;\n"
MBARRIERS = """\
	mbarrier.init.shared.b64 [smem+256], 4;
	mbarrier.arrive.expect_tx.shared.b64 %rd1, [smem+256], 64;
$wait:
	mbarrier.try_wait.parity.shared.b64 %p0, [smem+256], 0;
	@!%p0 bra $wait;
"""
WARPS = """\
	bar.warp.sync -1;
	shfl.sync.bfly.b32 %r2, %r0, 4, 31, -1;
	shfl.sync.idx.b32 %r2, %r0, 0, 31, -1;
"""
ORDERS = "\tld.acquire.gpu.global.u32 %r2, [%rd0];\n\tst.release.gpu.global.u32 [%rd0], %r2;\n"
OFFSETS = """\
	mul.lo.u32 %r2, %r0, 8;
	add.u32 %r3, %r2, %r1;
	st.shared.v2.f32 [%r3+256], {0f00000000, 0f00000000};
	ld.global.f32 %f0, [%rd0+4];
"""
SWIZZLE = """\
	xor.b32 %r2, %r0, 16;
	add.u32 %r3, %r2, %r1;
	xor.b32 %r4, %r0, 16;
	ld.shared.f32 %f0, [%r3];
	st.global.u32 [%rd0], %r4;
"""
STAGE = """\
	setp.eq.u32 %p0, %r0, 0;
	selp.b32 %r2, 0, 256, %p0;
	add.u32 %r3, %r2, %r1;
	ld.shared.f32 %f0, [%r3];
"""
MASKS = """\
	setp.lt.u32 %p0, %r0, 5;
	setp.lt.u32 %p2, %r0, 6;
	and.pred %p3, %p0, %p2;
	selp.f32 %f0, 0f00000000, 0f3F800000, %p0;
	@%p3 st.global.f32 [%rd0], %f0;
	@!%p0 bra $end;
	st.global.f32 [%rd0+4], %f0;
$end:
"""
LOOP = """\
	mov.u32 %r2, 0;
	setp.ge.u32 %p0, %r2, %r0;
	@%p0 bra $done;
$loop:
	setp.ne.u32 %p2, %r2, 3;
	add.u32 %r2, %r2, 1;
	setp.lt.u32 %p1, %r2, %r0;
	@%p1 bra $loop;
$done:
"""


# Mutants of a kind of operator in a body: the change, and its PTX before => after, perhaps in a second line.
CHANGES = """
barrier BARRIERS
  deleted: bar.sync 0; =>
  of each warp alone: bar.sync 0; => bar.warp.sync -1;
  deleted: bar.sync 2, 64; =>
  of each warp alone: bar.sync 2, 64; => bar.warp.sync -1;
  +32 threads: bar.sync 2, 64; => bar.sync 2, 96;
  -32 threads: bar.sync 2, 64; => bar.sync 2, 32;
  of another number: bar.sync 2, 64; => bar.sync 3, 64;
  deleted: bar.arrive 3, 64; =>
  +32 threads: bar.arrive 3, 64; => bar.arrive 3, 96;
  -32 threads: bar.arrive 3, 64; => bar.arrive 3, 32;
  of another number: bar.arrive 3, 64; => bar.arrive 2, 64;
copy-wait COPIES
  deleted: cp.async.wait_group 1; =>
  of one group less: cp.async.wait_group 1; => cp.async.wait_group 2;
  deleted: cp.async.wait_all; =>
  of one group less: cp.async.wait_all; => cp.async.wait_group 1;
  deleted: cp.async.bulk.wait_group.read 0; =>
  of one group less: cp.async.bulk.wait_group.read 0; => cp.async.bulk.wait_group.read 1;
copy-commit COPIES
  deleted: cp.async.commit_group; =>
fence FENCES
  deleted: fence.proxy.async; =>
  of the generic proxy alone: fence.proxy.async; => fence.acq_rel.cta;
  deleted: membar.gl; =>
  of the scope cta: membar.gl; => membar.cta;
  deleted: fence.acq_rel.gpu; =>
  of the scope cta: fence.acq_rel.gpu; => fence.acq_rel.cta;
mbarrier MBARRIERS
  deleted: mbarrier.init.shared.b64 [smem+256], 4; =>
  +1: mbarrier.init.shared.b64 [smem+256], 4; => mbarrier.init.shared.b64 [smem+256], 5;
  -1: mbarrier.init.shared.b64 [smem+256], 4; => mbarrier.init.shared.b64 [smem+256], 3;
  deleted: mbarrier.arrive.expect_tx.shared.b64 %rd1, [smem+256], 64; =>
  +16: mbarrier.arrive.expect_tx.shared.b64 %rd1, [smem+256], 64;
    => mbarrier.arrive.expect_tx.shared.b64 %rd1, [smem+256], 80;
  -16: mbarrier.arrive.expect_tx.shared.b64 %rd1, [smem+256], 64;
    => mbarrier.arrive.expect_tx.shared.b64 %rd1, [smem+256], 48;
  of the other phase: mbarrier.try_wait.parity.shared.b64 %p0, [smem+256], 0;
    => mbarrier.try_wait.parity.shared.b64 %p0, [smem+256], 1;
  not waited for: @!%p0 bra $wait; =>
phase HOPPER
  begins with the other: mov.u32 %r2, 1; => mov.u32 %r2, 0;
  not flipped: xor.b32 %r3, %r2, 1; => mov.b32 %r3, %r2;
  of the other phase: <WAIT> => xor.b32 %r3, %r3, 1; <WAIT> xor.b32 %r3, %r3, 1;
tensor-copy HOPPER
  deleted: <BOX> [smem], [%rd0, {0, %r0}], [smem+256]; =>
  coordinates 0 and 1 swapped: <BOX> [smem], [%rd0, {0, %r0}], [smem+256];
    => <BOX> [smem], [%rd0, {%r0, 0}], [smem+256];
  coordinate 0 +1: <BOX> [smem], [%rd0, {0, %r0}], [smem+256]; => <BOX> [smem], [%rd0, {1, %r0}], [smem+256];
descriptor HOPPER
  operand 2 +16: add.u32 %r4, %r2, 64; => add.u32 %r4, %r2, 80;
  operand 2 -16: add.u32 %r4, %r2, 64; => add.u32 %r4, %r2, 48;
  operand 2 +1: shr.u32 %r5, %r4, 4; => shr.u32 %r5, %r4, 5;
  operand 2 -1: shr.u32 %r5, %r4, 4; => shr.u32 %r5, %r4, 3;
  leading offset +1: or.b64 %rd3, %rd2, 4611686293305360384; => or.b64 %rd3, %rd2, 4611686293305425920;
  leading offset -1: or.b64 %rd3, %rd2, 4611686293305360384; => or.b64 %rd3, %rd2, 4611686293305294848;
  stride offset +1: or.b64 %rd3, %rd2, 4611686293305360384; => or.b64 %rd3, %rd2, 4611686297600327680;
  stride offset -1: or.b64 %rd3, %rd2, 4611686293305360384; => or.b64 %rd3, %rd2, 4611686289010393088;
  base offset +1: or.b64 %rd3, %rd2, 4611686293305360384; => or.b64 %rd3, %rd2, 4612249243258781696;
  base offset -1: or.b64 %rd3, %rd2, 4611686293305360384; => or.b64 %rd3, %rd2, 4615626942979309568;
  swizzle mode +1: or.b64 %rd3, %rd2, 4611686293305360384; => or.b64 %rd3, %rd2, 9223372311732748288;
  swizzle mode -1: or.b64 %rd3, %rd2, 4611686293305360384; => or.b64 %rd3, %rd2, 274877972480;
product HOPPER
  deleted: <MMA> %p0, 1, 1, 0, 0; =>
  D is not given: <MMA> %p0, 1, 1, 0, 0; => <MMA> 0, 1, 1, 0, 0;
  D is given: <MMA> %p0, 1, 1, 0, 0; => <MMA> 1, 1, 1, 0, 0;
  operand 4 negated: <MMA> %p0, 1, 1, 0, 0; => <MMA> %p0, -1, 1, 0, 0;
  operand 5 negated: <MMA> %p0, 1, 1, 0, 0; => <MMA> %p0, 1, -1, 0, 0;
  operand 6 transposed: <MMA> %p0, 1, 1, 0, 0; => <MMA> %p0, 1, 1, 1, 0;
  operand 7 transposed: <MMA> %p0, 1, 1, 0, 0; => <MMA> %p0, 1, 1, 0, 1;
tensor-memory TENSOR
  half the columns: <ALLOC> [smem], 64; => <ALLOC> [smem], 32;
  operand 0 +1 columns: <CP> [%r2+32], %rd3; => <CP> [%r2+33], %rd3;
  operand 0 -1 columns: <CP> [%r2+32], %rd3; => <CP> [%r2+31], %rd3;
  deleted: <CP> [%r2+32], %rd3; =>
  operand 0 +1 columns: <F16> [%r2], <AB>, %r3, %p0; => <F16> [%r2+1], <AB>, %r3, %p0;
  operand 0 -1 columns: <F16> [%r2], <AB>, %r3, %p0; => <F16> [%r2+-1], <AB>, %r3, %p0;
  operand 0 +1 columns: <I8> [%r2], <AB>, 16, %p1; => <I8> [%r2+1], <AB>, 16, %p1;
  operand 0 -1 columns: <I8> [%r2], <AB>, 16, %p1; => <I8> [%r2+-1], <AB>, 16, %p1;
  operand 1 +1 columns: <LD> [%r2+8]; => <LD> [%r2+9];
  operand 1 -1 columns: <LD> [%r2+8]; => <LD> [%r2+7];
  operand 1 +4 columns: <LD> [%r2+8]; => <LD> [%r2+12];
  operand 1 -4 columns: <LD> [%r2+8]; => <LD> [%r2+4];
  operand 1 of the next lanes: <LD> [%r2+8]; => <LD> [%r2+2097160];
  deleted: <DEALLOC> %r2, 64; =>
registers HOPPER
  deleted: setmaxnreg.inc.sync.aligned.u32 232; =>
  +8: setmaxnreg.inc.sync.aligned.u32 232; => setmaxnreg.inc.sync.aligned.u32 240;
  -8: setmaxnreg.inc.sync.aligned.u32 232; => setmaxnreg.inc.sync.aligned.u32 224;
warp WARPS
  deleted: bar.warp.sync -1; =>
  of half the lanes: bar.warp.sync -1; => bar.warp.sync 65535;
  of half the lanes: shfl.sync.bfly.b32 %r2, %r0, 4, 31, -1; => shfl.sync.bfly.b32 %r2, %r0, 4, 31, 65535;
  of double distance: shfl.sync.bfly.b32 %r2, %r0, 4, 31, -1; => shfl.sync.bfly.b32 %r2, %r0, 8, 31, -1;
  of half the lanes: shfl.sync.idx.b32 %r2, %r0, 0, 31, -1; => shfl.sync.idx.b32 %r2, %r0, 0, 31, 65535;
memory-order ORDERS
  made relaxed: ld.acquire.gpu.global.u32 %r2, [%rd0]; => ld.relaxed.gpu.global.u32 %r2, [%rd0];
  made relaxed: st.release.gpu.global.u32 [%rd0], %r2; => st.relaxed.gpu.global.u32 [%rd0], %r2;
shared-offset OFFSETS
  operand 0 +4: st.shared.v2.f32 [%r3+256], {0f00000000, 0f00000000};
    => st.shared.v2.f32 [%r3+260], {0f00000000, 0f00000000};
  operand 0 -4: st.shared.v2.f32 [%r3+256], {0f00000000, 0f00000000};
    => st.shared.v2.f32 [%r3+252], {0f00000000, 0f00000000};
  operand 0 +8: st.shared.v2.f32 [%r3+256], {0f00000000, 0f00000000};
    => st.shared.v2.f32 [%r3+264], {0f00000000, 0f00000000};
  operand 0 -8: st.shared.v2.f32 [%r3+256], {0f00000000, 0f00000000};
    => st.shared.v2.f32 [%r3+248], {0f00000000, 0f00000000};
shared-region OFFSETS
  operand 0 in the next region: st.shared.v2.f32 [%r3+256], {0f00000000, 0f00000000};
    => st.shared.v2.f32 [%r3], {0f00000000, 0f00000000};
shared-address OFFSETS
  operand 2 +1: mul.lo.u32 %r2, %r0, 8; => mul.lo.u32 %r2, %r0, 9;
  operand 2 -1: mul.lo.u32 %r2, %r0, 8; => mul.lo.u32 %r2, %r0, 7;
swizzle SWIZZLE
  left out: xor.b32 %r2, %r0, 16; => mov.b32 %r2, %r0;
  doubled: xor.b32 %r2, %r0, 16; => xor.b32 %r2, %r0, 32;
  halved: xor.b32 %r2, %r0, 16; => xor.b32 %r2, %r0, 8;
stage STAGE
  swapped: selp.b32 %r2, 0, 256, %p0; => selp.b32 %r2, 256, 0, %p0;
mask MASKS
  and for or: and.pred %p3, %p0, %p2; => or.pred %p3, %p0, %p2;
  always the first: selp.f32 %f0, 0f00000000, 0f3F800000, %p0; => mov.f32 %f0, 0f00000000;
  always the second: selp.f32 %f0, 0f00000000, 0f3F800000, %p0; => mov.f32 %f0, 0f3F800000;
  dropped: @%p3 st.global.f32 [%rd0], %f0; => st.global.f32 [%rd0], %f0;
  inverted: @%p3 st.global.f32 [%rd0], %f0; => @!%p3 st.global.f32 [%rd0], %f0;
  dropped: @!%p0 bra $end; =>
  inverted: @!%p0 bra $end; => @%p0 bra $end;
bound LOOP
  +1: setp.ne.u32 %p2, %r2, 3; => setp.ne.u32 %p2, %r2, 4;
  -1: setp.ne.u32 %p2, %r2, 3; => setp.ne.u32 %p2, %r2, 2;
  inverted: setp.ne.u32 %p2, %r2, 3; => setp.eq.u32 %p2, %r2, 3;
loop-bound LOOP
  ge to gt: setp.ge.u32 %p0, %r2, %r0; => setp.gt.u32 %p0, %r2, %r0;
  never taken: @%p0 bra $done; =>
  lt to le: setp.lt.u32 %p1, %r2, %r0; => setp.le.u32 %p1, %r2, %r0;
  never taken: @%p1 bra $loop; =>
"""


def expected(table: str) -> dict[str, tuple[str, list[tuple[str, ...]]]]:
    """By kind, the name of a body and the mutants of the table."""
    names = {"BOX": BOX, "MMA": MMA, "WAIT": WAIT, **TENSOR_NAMES}
    table = re.sub(r"<(\w+)>", lambda match: names[match[1]], re.sub(r"\n +=>", " =>", table))
    rows: dict[str, tuple[str, list[tuple[str, ...]]]] = {}
    kind = ""
    for line in table.strip().splitlines():
        if line.startswith("  "):
            match = re.fullmatch(r"  (.*?): (.*) =>(?: (.*))?", line)
            assert match is not None, line
            rows[kind][1].append((match[1], match[2], match[3] or ""))
        else:
            kind, body = line.split()
            rows[kind] = (body, [])
    return rows


EXPECTED = expected(CHANGES)
# Of tensor memory, by kinds that have changes of other instructions, too.
OF_TENSOR_MEMORY = expected("""
copy-wait TENSOR
  deleted: tcgen05.wait::ld.sync.aligned; =>
copy-commit TENSOR
  deleted: <COMMIT> [smem+256]; =>
fence TENSOR
  deleted: tcgen05.fence::after_thread_sync; =>
product TENSOR
  deleted: <F16> [%r2], <AB>, %r3, %p0; =>
  D is added or not: <F16> [%r2], <AB>, %r3, %p0;
    => not.pred %p0, %p0; <F16> [%r2], <AB>, %r3, %p0; not.pred %p0, %p0;
  A negated: <F16> [%r2], <AB>, %r3, %p0;
    => xor.b32 %r3, %r3, 8192; <F16> [%r2], <AB>, %r3, %p0; xor.b32 %r3, %r3, 8192;
  B negated: <F16> [%r2], <AB>, %r3, %p0;
    => xor.b32 %r3, %r3, 16384; <F16> [%r2], <AB>, %r3, %p0; xor.b32 %r3, %r3, 16384;
  A transposed: <F16> [%r2], <AB>, %r3, %p0;
    => xor.b32 %r3, %r3, 32768; <F16> [%r2], <AB>, %r3, %p0; xor.b32 %r3, %r3, 32768;
  B transposed: <F16> [%r2], <AB>, %r3, %p0;
    => xor.b32 %r3, %r3, 65536; <F16> [%r2], <AB>, %r3, %p0; xor.b32 %r3, %r3, 65536;
  deleted: <I8> [%r2], <AB>, 16, %p1; =>
  D is added or not: <I8> [%r2], <AB>, 16, %p1;
    => not.pred %p1, %p1; <I8> [%r2], <AB>, 16, %p1; not.pred %p1, %p1;
  A transposed: <I8> [%r2], <AB>, 16, %p1; => <I8> [%r2], <AB>, 32784, %p1;
  B transposed: <I8> [%r2], <AB>, 16, %p1; => <I8> [%r2], <AB>, 65552, %p1;
descriptor TENSOR
  leading offset +1: or.b64 %rd3, %rd2, 4611756387171565568; => or.b64 %rd3, %rd2, 4611756387171631104;
""")


@pytest.mark.parametrize("kind", EXPECTED)
def test_each_operator_makes_its_changes(kind: str) -> None:
    body, expected = EXPECTED[kind]
    assert changes(globals()[body], kind) == expected


@pytest.mark.parametrize("kind", OF_TENSOR_MEMORY)
def test_what_uses_tensor_memory_is_changed(kind: str) -> None:
    _, expected = OF_TENSOR_MEMORY[kind]
    got = changes(TENSOR, kind)
    assert got[: len(expected)] == expected
    assert kind == "descriptor" or len(got) == len(expected)


def test_all_kinds_are_tested() -> None:
    assert list(EXPECTED) == list(KINDS)


ALL = [BARRIERS, COPIES, FENCES, MBARRIERS, WARPS, ORDERS, OFFSETS, SWIZZLE, STAGE, MASKS, LOOP]


@pytest.mark.parametrize("body", ALL)
def test_a_mutant_differs_in_its_line_and_nowhere_else(body: str) -> None:
    result = mutants(module_of(body), "k")
    assert result
    for mutant in result:
        gone, new = difference(mutant)
        assert [line.strip() for line in gone] == [mutant.before]
        assert [line.strip() for line in new] == ([mutant.after] if mutant.after else [])


@pytest.mark.ptxas
def test_a_mutant_is_refused_by_the_verifier_or_assembles() -> None:
    accepted: list[ir.Kernel] = []
    refused: list[tuple[str, str]] = []
    for body in ALL:
        for mutant in mutants(module_of(body), "k"):
            problems = verify(mutant.module)
            if problems:
                refused.append((mutant.name, problems[0].message))
            else:
                name = f"k{len(accepted)}"
                accepted.append(replace(mutant.module.kernels[0], name=name))
    whole = replace(module_of(""), kernels=tuple(accepted))
    assembly = find_assembler(target="sm_90").assemble(render(whole), "sm_90")
    assert len(assembly.kernels) == len(accepted) > 50
    reason = (
        "the address must be a multiple of 8 bytes, but it is {} more than one; change the offset, "
        "or access fewer bytes at a time"
    )
    assert [message for _, message in refused] == [reason.format(4), reason.format(4)]
    assert all(name.startswith("shared-offset: operand 0") for name, _ in refused)


def test_names_are_unique_and_the_order_is_always_the_same() -> None:
    module = module_of("".join([BARRIERS, COPIES, WARPS, OFFSETS, MASKS]))
    names = [m.name for m in mutants(module, "k")]
    assert len(set(names)) == len(names)
    assert [m.name for m in mutants(module, "k")] == names


def test_a_mutant_says_which_step_and_line_it_is_of() -> None:
    (mutant, _) = mutants(module_of("\n\t// the step\n\tbar.sync 0;\n"), "k", ["barrier"])
    text = HEAD + "\n\t// the step\n"
    assert (mutant.step, mutant.where) == ("the step", f"line {text.count(chr(10)) + 1}")


def test_an_unknown_kind_and_an_unknown_kernel_are_refused() -> None:
    module = module_of("")
    assert message_of(lambda: mutants(module, "k", ["barier"]), ConfigError) == (
        f"mutants: kinds must be of {', '.join(KINDS)}, got 'barier'; did you mean 'barrier'?"
    )
    assert message_of(lambda: mutants(module, "kk"), ConfigError) == (
        "mutants: the module has no kernel 'kk'; did you mean 'k'? (it has k)"
    )
