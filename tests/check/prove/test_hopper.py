"""Static proof of what Hopper's instructions access: matrices by descriptors, boxes of tensor maps,
bulk copies, mbarriers, and what called functions access.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from interpreter.test_hopper_programs import Panels, product_kernel
from messages import message

from ptxgen import interpreter, ir
from ptxgen.check.prove import Proof, Verdict, prove_global, prove_shared
from ptxgen.check.prove.contract import Axis, GlobalArray, GlobalContract
from ptxgen.check.prove.program.matrices import Matrix, fields_of, units_of
from ptxgen.errors import TrapError
from ptxgen.interpreter.machine.lane_machine import LaneMachine
from ptxgen.parse import parse
from ptxgen.tensormap import TensorMap

FIXTURES = Path(__file__).parents[2] / "ptx"
SPANS = {"none": 16, "32B": 32, "64B": 64, "128B": 128}

HEADER = """.version 8.3
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
"""
REGISTERS = """.reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<60>; .reg .b64 %rd<30>;
.reg .f32 %f<128>;
"""

# A tile of A and one of B by tensor copies, and products of 16 values of k in a loop.
PRODUCT = f"""{HEADER}
.visible .entry k(.param .align 64 .b8 a[128], .param .align 64 .b8 b[128])
{{
{REGISTERS}
.shared .align 1024 .b8 a_tile[8192];
.shared .align 1024 .b8 b_tile[8192];
.shared .align 8 .b8 full[8];
mov.u32 %r0, %tid.x;
mov.u32 %r1, full;
mov.u32 %r2, a_tile;
mov.u32 %r3, b_tile;
setp.ne.u32 %p0, %r0, 0;
@%p0 bra ready;
mbarrier.init.shared::cta.b64 [%r1], 1;
fence.mbarrier_init.release.cluster;
ready:
bar.sync 0;
@%p0 bra wait;
mov.b64 %rd1, a;
cvta.param.u64 %rd1, %rd1;
mov.b64 %rd2, b;
cvta.param.u64 %rd2, %rd2;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 16384;
mov.u32 %r9, 0;
cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd1, {{%r9, %r9}}], [%r1];
cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd2, {{%r9, %r9}}], [%r1];
wait:
mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;
@!%p1 bra wait;
bfe.u32 %r4, %r2, 4, 14;
cvt.u64.u32 %rd3, %r4;
or.b64 %rd3, %rd3, 4611686293305294848;
bfe.u32 %r5, %r3, 4, 14;
cvt.u64.u32 %rd4, %r5;
or.b64 %rd4, %rd4, 4611686293305294848;
wgmma.fence.sync.aligned;
mov.pred %p3, 0;
mov.u32 %r6, 0;
next:
shl.b32 %r7, %r6, 1;
cvt.u64.u32 %rd7, %r7;
add.s64 %rd5, %rd3, %rd7;
add.s64 %rd6, %rd4, %rd7;
wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {{{", ".join(f"%f{i}" for i in range(32))}}}, %rd5, %rd6, %p3, 1, 1, 0, 0;
setp.eq.u32 %p3, 0, 0;
add.u32 %r6, %r6, 1;
setp.lt.u32 %p4, %r6, 4;
@%p4 bra next;
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
ret;
}}
"""  # noqa: E501


def tile_map(rows: int = 64, columns: int = 64, swizzle: str = "128B") -> TensorMap:
    return TensorMap(np.zeros((512, 128), np.float16), box=(columns, rows), swizzle=swizzle)


MAPS = {"a": tile_map(), "b": tile_map()}


def proof(text: str, **how: Any) -> Proof:
    return prove_shared(text, block=128, **{"params": MAPS, **how})


def changed(old: str, new: str, text: str = PRODUCT) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


def said(verdict: Verdict) -> str:
    """The verdict in words, without the names of accumulators."""
    return re.sub(r"\{%f0,[^}]*\}", "{…}", str(verdict))


def line_of(text: str, start: str) -> int:
    return 1 + next(n for n, line in enumerate(text.splitlines()) if line.startswith(start))


def test_a_correct_product_is_proved_and_runs() -> None:
    result = proof(PRODUCT)
    assert result.complete, result.report()
    assert len(result.accesses) == 9
    extents = {(v.allocation, v.first, v.last) for v in result.accesses if "wgmma" in v.instr}
    assert extents == {("a_tile", 0, 8191), ("b_tile", 0, 8191)}
    interpreter.run(PRODUCT, grid=1, block=128, args=[*MAPS.values()], sanitize="bounds")


START_A, START_B = "bfe.u32 %r4, %r2, 4, 14;", "bfe.u32 %r5, %r3, 4, 14;"
FIELDS_B = "or.b64 %rd4, %rd4, 4611686293305294848;"
ARRIVE = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 16384;"
ACCUMULATORS = f"{{{', '.join(f'%f{i}' for i in range(32))}}}"
MORE = f"{{{', '.join(f'%f{i}' for i in range(36))}}}"
# What stands in messages.
COPY = (
    "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], "
    "[%rd1, {%r9, %r9}], [%r1];"
)
MULTIPLY = "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {…}, %rd5, %rd6, %p3, 1, 1, 0, 0;"


def outside(low: int, high: int, array: str, nbytes: int, matrix: str = "") -> str:
    """The reason of a violation by thread 0, in the first iteration for a matrix."""
    reason = f"bytes {low} to {high} are outside {array}, which has {nbytes} bytes: thread (0, 0, 0)"
    return f"matrix {matrix}: {reason}, %r6 = 0" if matrix else reason


class Error(NamedTuple):
    """A text and what replaces it, the reason, other tensor maps, and the instruction, by default that of a
    matrix or of a box.
    """

    old: str
    new: str
    reason: str
    maps: Mapping[str, TensorMap] = MappingProxyType({})
    instr: str = ""


ERRORS = {
    "a descriptor starts a row further": Error(
        START_B, f"add.u32 %r3, %r3, 128; {START_B}", outside(128, 8223, "b_tile", 8192, "B")
    ),
    "a descriptor starts a tile further": Error(
        START_A, f"add.u32 %r2, %r2, 8192; {START_A}", outside(8192, 16383, "a_tile", 8192, "A")
    ),
    "a descriptor starts before the tile": Error(
        START_A, f"sub.u32 %r2, %r2, 16; {START_A}", outside(-128, 8191, "a_tile", 8192, "A")
    ),
    "a stride that is too big": Error(
        FIELDS_B, "or.b64 %rd4, %rd4, 4611686568183201792;", outside(0, 15359, "b_tile", 8192, "B")
    ),
    "more columns than B has rows": Error(
        f"m64n64k16.f32.f16.f16 {ACCUMULATORS}",
        f"m64n72k16.f32.f16.f16 {MORE}",
        outside(0, 9215, "b_tile", 8192, "B"),
        instr=MULTIPLY.replace("n64", "n72"),
    ),
    "a tile that is too small for A": Error(
        "a_tile[8192]", "a_tile[7168]", outside(0, 8191, "a_tile", 7168, "A"), maps={"a": tile_map(rows=56)}
    ),
    "a box with more rows than the tile": Error(
        "", "", outside(0, 9215, "a_tile", 8192), maps={"a": tile_map(rows=72)}
    ),
    "rows of a box that do not fill the swizzle": Error(
        "a_tile[8192]",
        "a_tile[8192]",
        outside(0, 8319, "a_tile", 8192),
        maps={"a": tile_map(rows=65, columns=32)},
    ),
    "a box of another rank": Error(
        "",
        "",
        "the copy has 2 dimensions, but the tensor map a has 3",
        maps={"a": TensorMap(np.zeros((4, 8, 64), np.float16), box=(64, 8, 4))},
    ),
    "a destination that is misaligned": Error(
        "a_tile[8192];",
        "a_tile[9216]; add.u32 %r2, %r2, 64;",
        "byte 64 of a_tile is not a multiple of 128 bytes: thread (0, 0, 0)",
    ),
    "a box that begins at a multiple of 8 bytes": Error(
        "mov.u32 %r9, 0;",
        "mov.u32 %r9, -4;",
        "the innermost coordinate of a box must be a multiple of 16 bytes, 8 elements of f16, got -4: "
        "thread (0, 0, 0)",
        maps={"b": TensorMap(np.zeros((512, 128), np.float32), box=(32, 64), swizzle="128B")},
    ),
    "boxes that begin 8 bytes behind multiples of 16": Error(
        "mov.u32 %r9, 0;",
        "mov.u32 %r9, %ctaid.x; and.b32 %r9, %r9, 63; mad.lo.u32 %r9, %r9, 16, 4;",
        "the innermost coordinate of a box must be a multiple of 16 bytes, 8 elements of f16, got 4: "
        "thread (0, 0, 0)",
        maps={"b": TensorMap(np.zeros((512, 128), np.float32), box=(32, 64), swizzle="128B")},
    ),
    "an mbarrier that is misaligned": Error(
        ARRIVE,
        ARRIVE.replace("[%r1]", "[%r2+4]"),
        "byte 4 of a_tile is not a multiple of 8 bytes: thread (0, 0, 0)",
        instr=ARRIVE.replace("[%r1]", "[%r2+4]"),
    ),
    "an mbarrier behind its array": Error(
        ARRIVE,
        ARRIVE.replace("[%r1]", "[%r1+8]"),
        outside(8, 15, "full", 8),
        instr=ARRIVE.replace("[%r1]", "[%r1+8]"),
    ),
}


@pytest.mark.parametrize(
    "first", ["%tid.x", "%ctaid.x", "-8", "72", "%ctaid.x; and.b32 %r9, %r9, 63; add.u32 %r9, %r9, 4"]
)
def test_boxes_that_may_begin_at_multiples_of_16_bytes_are_proved(first: str) -> None:
    assert proof(changed("mov.u32 %r9, 0;", f"mov.u32 %r9, {first};")).complete


@pytest.mark.parametrize("name", ERRORS)
def test_each_error_is_a_violation_that_says_where(name: str) -> None:
    old, new, reason, maps, named = ERRORS[name]
    instr = named or (MULTIPLY if "matrix" in reason else COPY)
    text = PRODUCT
    if "add.u32 %r2" in new and "tile[" in new:  # the pointer moves where it is made
        new, moved = new.split("; ")
        text = changed("mov.u32 %r2, a_tile;", f"mov.u32 %r2, a_tile; {moved}")
        new += ";"
    text = changed(old, new, text) if old else text
    (violation,) = proof(text, params={**MAPS, **maps}).violations
    line = line_of(text, instr.partition("{")[0])
    assert said(violation) == (
        f"kernel k: violation: {reason}\n    in {instr}\n    from line {line} of the PTX text"
    )
    if "rank" not in name:
        assert violation.witness is not None
        assert violation.witness.thread == (0, 0, 0)


def test_a_turn_too_many_along_k_is_a_violation_of_both_matrices() -> None:
    result = proof(changed("setp.lt.u32 %p4, %r6, 4;", "setp.lt.u32 %p4, %r6, 5;"))
    assert [v.reason for v in result.violations] == [
        f"matrix {name}: bytes 128 to 8223 are outside {tile}, which has 8192 bytes: "
        "thread (0, 0, 0), %r6 = 4"
        for name, tile in (("A", "a_tile"), ("B", "b_tile"))
    ]


# ------------------------------------------------------------------------------ what is not known


def unknowns(text: str, **how: Any) -> list[str]:
    result = proof(text, **how)
    assert not result.violations, result.report()
    return [v.reason for v in result.unknown]


def arrays(**dims: int) -> GlobalContract:
    """A contract of dense f16 arrays, each with so many dimensions, all of extent n."""
    result = []
    for name, count in dims.items():
        axes = tuple(Axis("n", " * ".join(["2", *["n"] * (count - 1 - axis)])) for axis in range(count - 1))
        result.append(GlobalArray(name, axes, "2 * n", 2))
    return GlobalContract(tuple(result), (), {"n": (1, 4096)}, (1, 1, 1))


def test_a_tensor_copy_stays_inside_the_array_of_its_tensor_map() -> None:
    result = prove_global(PRODUCT, block=128, contract=arrays(a=2, b=2))
    assert result.complete
    assert [(v.allocation, v.reason) for v in result.accesses] == [
        (name, "its tensor map keeps it inside the array") for name in ("a", "b")
    ]


def test_a_tensor_copy_of_an_array_that_is_not_in_the_contract_is_unknown() -> None:
    reason = "its tensor map is not a parameter with an array in the contract"
    for text, contract in (
        (PRODUCT, arrays(a=2)),
        (PRODUCT.replace("mov.b64 %rd2, b;", "mov.b64 %rd2, b+64;"), arrays(a=2, b=2)),
        (PRODUCT.replace("[%rd2, {", "[%rd2+128, {"), arrays(a=2, b=2)),
        (PRODUCT.replace(".b8 b[128]", ".b8 b[256]"), arrays(a=2, b=2)),
        (PRODUCT.replace("mov.b64 %rd2, b;", "ld.param.u64 %rd2, [b];"), arrays(a=2, b=2)),
    ):
        first, second = prove_global(text, block=128, contract=contract).accesses
        assert (first.verdict, second.verdict, second.reason) == ("proved", "unknown", reason)


def test_a_tensor_copy_has_as_many_dimensions_as_the_array() -> None:
    first, second = prove_global(PRODUCT, block=128, contract=arrays(a=2, b=3)).accesses
    assert (first.verdict, second.verdict) == ("proved", "unknown")
    assert second.reason == "the copy has 2 dimensions, but the array b has 3"


def test_a_tensor_map_that_is_not_given_is_unknown() -> None:
    (reason,) = unknowns(PRODUCT, params={"b": tile_map()})
    assert reason == "the size of the box is in the tensor map, a, which is not given"
    text = changed("mov.b64 %rd1, a;\ncvta.param.u64 %rd1, %rd1;", "mov.u64 %rd1, %clock64;")
    assert unknowns(text) == ["the size of the box is in the tensor map, which is in none of the parameters"]


def test_a_tensor_map_that_a_function_names_is_not_a_parameter_of_the_kernel() -> None:
    copy = PRODUCT[PRODUCT.index("cp.async.bulk.tensor") :].partition("\n")[0]
    inside = copy.replace("%r2", "%to").replace("%rd1", "a").replace("%r1", "%full")
    function = (
        ".global .align 64 .b8 a[128];\n.func put(.reg .b32 %to, .reg .b32 %full) "
        f"{{ .reg .b32 %r9; mov.u32 %r9, 0; {inside} ret; }}\n.visible .entry"
    )
    text = changed(copy, "call put, (%r2, %r1);").replace(".visible .entry", function)
    (reason,) = unknowns(text)
    assert reason.startswith(
        "the size of the box is in the tensor map, which is in none of the parameters, called from"
    )


def test_what_a_descriptor_is_made_of_has_to_be_known() -> None:
    text = changed("add.s64 %rd6, %rd4, %rd7;", "mov.u64 %rd6, %clock64;")
    assert unknowns(text) == ["matrix B: its descriptor is not computed from a shared variable"]
    text = changed("add.s64 %rd6, %rd4, %rd7;", "mov.u64 %rd8, %clock64; add.s64 %rd6, %rd4, %rd8;")
    assert unknowns(text) == ["matrix B: its descriptor cannot be listed: it depends on %clock64"]
    text = changed(START_B, f"selp.b32 %r3, %r2, %r3, %p0; {START_B}")
    assert unknowns(text) == ["matrix B: its descriptor may be of one variable or another"]
    text = changed("add.s64 %rd6, %rd4, %rd7;", "add.s64 %rd4, %rd4, 2; mov.b64 %rd6, %rd4;")
    assert unknowns(text) == [
        "matrix B: its descriptor cannot be listed: it is carried from one iteration of a loop to the next"
    ]


def test_alignment_that_is_only_declared_for_less_is_unknown() -> None:
    for align in (128, 512):
        text = PRODUCT.replace(".align 1024 .b8 a_tile", f".align {align} .b8 a_tile")
        assert unknowns(text) == [f"a_tile is aligned to {align} bytes only, and the swizzle needs 1024"]
    text = PRODUCT.replace(".align 1024 .b8 a_tile", ".align 16 .b8 a_tile")
    assert unknowns(text) == [
        "a_tile is aligned to 16 bytes only, and the access needs 128",
        "a_tile is aligned to 16 bytes only, and the swizzle needs 1024",
    ]


def test_the_launch_may_be_known_to_align_dynamic_memory_to_more() -> None:
    text = PRODUCT.replace("mov.u32 %r2, a_tile;", "mov.u32 %r2, smem;")
    text = text.replace(".extern .shared .align 1024", ".extern .shared .align 16")
    assert len(unknowns(text, dynamic_smem=8192)) == 2
    assert proof(text, dynamic_smem=8192, dynamic_align=1024).complete


def test_a_value_that_depends_on_data_may_or_may_not_go_wrong() -> None:
    text = changed("setp.lt.u32 %p4, %r6, 4;", "ld.global.u32 %r8, [%rd9]; setp.lt.u32 %p4, %r6, %r8;")
    result = proof(text)
    assert [v.verdict for v in result.accesses if v.verdict != "proved"] == ["unknown"] * 2
    assert [v.verdict for v in result.convergence if v.verdict != "proved"] == ["unknown"]


# ------------------------------------------------------------------------------ regions

STAGES = f"""{HEADER}
.visible .entry k(.param .u32 n)
{{
{REGISTERS}
ld.param.u32 %r9, [n];
mov.u32 %r1, smem;
mov.u32 %r2, 0;
mov.u32 %r3, 0;
wgmma.fence.sync.aligned;
next:
shl.b32 %r4, %r2, 13;
add.u32 %r4, %r1, %r4;
add.u32 %r4, %r4, 8192;
bfe.u32 %r5, %r4, 4, 14;
cvt.u64.u32 %rd1, %r5;
or.b64 %rd1, %rd1, 4611686293305294848;
bfe.u32 %r6, %r1, 4, 14;
cvt.u64.u32 %rd2, %r6;
or.b64 %rd2, %rd2, 4611686293305294848;
wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {ACCUMULATORS}, %rd2, %rd1, 1, 1, 1, 0, 0;
add.u32 %r2, %r2, 1;
setp.eq.u32 %p1, %r2, 2;
selp.u32 %r2, 0, %r2, %p1;
add.u32 %r3, %r3, 1;
setp.lt.u32 %p2, %r3, %r9;
@%p2 bra next;
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
ret;
}}
"""


def staged(text: str, *regions: ir.Region) -> Proof:
    module = parse(text)
    kernel = replace(module.kernels[0], dynamic_shared="smem", regions=regions)
    return prove_shared(replace(module, kernels=(kernel,)), block=128)


REGIONS = (
    ir.Region("Q_tile", 0, 8192, 1024),
    ir.Region("K_tiles", 8192, 16384, 1024),
    ir.Region("V_tiles", 24576, 16384, 1024),
)


def test_a_stage_too_many_is_found_though_another_region_is_there() -> None:
    result = staged(STAGES, *REGIONS)
    assert result.complete, result.report()
    assert [(v.allocation, v.first, v.last) for v in result.accesses] == [
        ("Q_tile", 0, 8191),
        ("K_tiles", 0, 16383),
    ]
    (violation,) = staged(STAGES.replace("%r2, 2;", "%r2, 3;"), *REGIONS).violations
    assert violation.reason == (
        "matrix B: bytes 16384 to 24575 are outside K_tiles, which has 16384 bytes: thread (0, 0, 0), %r2 = 2"
    )


def test_a_descriptor_of_no_region_is_a_violation() -> None:
    (violation,) = staged(STAGES, REGIONS[0], REGIONS[2]).violations
    assert violation.reason == (
        "matrix B: byte 8192 of smem is in none of its regions: thread (0, 0, 0), %r2 = 0"
    )


def test_regions_that_overlap_are_a_problem() -> None:
    overlapping = ir.Region("K_tiles", 7168, 17408, 1024)
    result = staged(STAGES, REGIONS[0], overlapping, REGIONS[2])
    assert [str(p.message) for p in result.problems] == [
        "region K_tiles begins at byte 7168, inside region Q_tile, which ends at byte 8192; move "
        "it or shrink Q_tile"
    ]
    assert not result.complete


# ------------------------------------------------------------------------------ behind a wait

WAITS = f"""{HEADER}
.visible .entry k()
{{
{REGISTERS}
.shared .align 16 .b8 buf[512];
.shared .align 8 .b8 full[8];
mov.u32 %r0, %tid.x;
mov.u32 %r8, buf;
mov.u32 %r1, full;
wait:
mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;
@!%p1 bra wait;
mad.lo.u32 %r2, %r0, 4, %r8;
st.shared.u32 [%r2+0], %r0;
mov.u32 %r4, 0;
again:
bar.sync 0;
add.u32 %r4, %r4, 1;
setp.lt.u32 %p2, %r4, 3;
@%p2 bra again;
ret;
}}
"""


def test_what_is_behind_a_wait_certainly_happens_and_all_threads_come_to_barriers() -> None:
    assert prove_shared(WAITS, block=128).complete
    (violation,) = prove_shared(WAITS.replace("%r2+0", "%r2+4"), block=128).violations
    assert violation.reason == ("bytes 512 to 515 are outside buf, which has 512 bytes: thread (127, 0, 0)")
    counted = WAITS.replace("wait:", "mov.u32 %r5, 0;\nwait:\nadd.u32 %r5, %r5, 1;")
    counted = counted.replace("setp.lt.u32 %p2, %r4, 3;", "setp.lt.u32 %p2, %r4, %r5;")
    counted = counted.replace("ret;", "mov.u32 %r5, 0;\nret;")
    (barrier,) = prove_shared(counted, block=128).barriers
    assert barrier.reason == "a condition on the way to it may differ between threads"


def test_threads_that_have_ended_in_a_function_need_not_come_to_a_barrier() -> None:
    text = """.version 8.0
.target sm_80
.address_size 64
.func f(.reg .u32 n)
{
.reg .pred p;
setp.gt.u32 p, n, 31;
@p exit;
ret;
}
.visible .entry k()
{
.reg .b32 %r<9>;
mov.u32 %r3, %tid.x;
call f, (%r3);
bar.sync 0;
ret;
}
"""
    (barrier,) = prove_shared(text, block=128).barriers
    assert (barrier.verdict, barrier.reason) == ("proved", "")
    (barrier,) = prove_shared(text.replace("bar.sync 0", "bar.sync 0, 128"), block=128).barriers
    assert (barrier.verdict, barrier.reason) == (
        "violation",
        "warp 0 waits at barrier 0 for 128 threads, but 32 have come and the others have ended",
    )


# ------------------------------------------------------------------------------ bulk copies

BULK = f"""{HEADER}
.visible .entry k(.param .u64 x, .param .u32 n)
{{
{REGISTERS}
.shared .align 16 .b8 buf[512];
.shared .align 8 .b8 full[8];
mov.u32 %r8, buf;
mov.u32 %r1, full;
ld.param.u64 %rd1, [x];
ld.param.u32 %r9, [n];
INSTR
ret;
}}
"""
LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [AT], [%rd1], SIZE, [%r1]"
STORE = "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [AT], SIZE"
SEND = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [AT], [%r8], SIZE, [%r1]"
REDUCE = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd1], [AT], SIZE"


@pytest.mark.parametrize("instr", [LOAD, STORE, SEND, REDUCE])
@pytest.mark.parametrize(
    ("at", "size", "reason"),
    [
        ("%r8", "512", ""),
        ("%r8", "%r9", ""),
        ("%r8+16", "512", "bytes 16 to 527 are outside buf, which has 512 bytes: thread (0, 0, 0)"),
        ("%r8+8", "64", "byte 8 of buf is not a multiple of 16 bytes: thread (0, 0, 0)"),
        (
            "%r8+256",
            "%r9",
            "bytes 256 to 527 are outside buf, which has 512 bytes: thread (0, 0, 0), n = 272",
        ),
    ],
)
def test_a_bulk_copy_is_inside_and_aligned(instr: str, at: str, size: str, reason: str) -> None:
    text = BULK.replace("INSTR", f"{instr};").replace("AT", at).replace("SIZE", size)
    result = prove_shared(text, block=1, params={"n": range(16, 513, 16)})
    assert [v.reason for v in result.violations] == [reason] * bool(reason)
    assert not result.unknown


def test_a_bulk_copy_of_no_multiple_of_16_bytes_is_a_violation() -> None:
    text = BULK.replace("INSTR", f"{LOAD};").replace("AT", "%r8").replace("SIZE", "%r9")
    (violation,) = prove_shared(text, block=1, params={"n": (16, 24)}).violations
    assert violation.reason == ("its 17 bytes are not a multiple of 16: thread (0, 0, 0), n = 17")
    (unknown,) = prove_shared(text, block=1).unknown
    assert unknown.reason == (
        "its address cannot be listed: it depends on the parameter n, which has no bounds"
    )


# ------------------------------------------------------------------------------ called functions

CALLS = """.version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b32 r) elsewhere(.param .b32 x);
.func (.param .b32 r) put(.param .b32 where, .param .b32 value)
{
.reg .b32 %r<9>; .reg .pred %p<3>;
ld.param.u32 %r1, [where];
ld.param.u32 %r2, [value];
setp.gt.u32 %p1, %r2, 1000;
@%p1 bra L;
st.shared.u32 [%r1+4], %r2;
mov.u32 %r3, 4;
st.param.b32 [r+0], %r3;
ret;
L:
mov.u32 %r3, 8;
st.param.b32 [r+0], %r3;
ret;
}
.visible .entry k()
{
.reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<3>;
.shared .align 16 .b8 buf[SIZE];
mov.u32 %r1, %tid.x;
mov.u32 %r8, buf;
mad.lo.u32 %r2, %r1, 4, %r8;
setp.lt.u32 %p1, %r1, 64;
{
.param .b32 p0; .param .b32 p1; .param .b32 q;
st.param.b32 [p0+0], %r2;
st.param.b32 [p1+0], %r1;
call (q), put, (p0, p1);
ld.param.b32 %r3, [q+0];
}
add.u32 %r2, %r2, %r3;
st.shared.u32 [%r2], %r1;
{
.param .b32 p0; .param .b32 p1; .param .b32 q;
st.param.b32 [p0+0], %r2;
st.param.b32 [p1+0], %r1;
@%p1 call (q), put, (p0, p1);
ld.param.b32 %r3, [q+0];
}
ret;
}
"""


def calls(size: int, text: str = CALLS) -> Proof:
    return prove_shared(text.replace("SIZE", str(size)), block=128)


def test_what_a_function_accesses_is_judged_for_each_call() -> None:
    result = calls(516)
    assert result.complete, result.report()
    assert [(v.kernel, v.number, v.first, v.last) for v in result.accesses] == [
        ("put", 4, 4, 515),
        ("k", 9, 4, 515),
    ]
    result = calls(512)
    assert [str(v) for v in result.violations] == [
        "kernel put: violation: bytes 512 to 515 are outside buf, which has 512 bytes: "
        "thread (127, 0, 0), called from line 33 of the PTX text\n"
        "    in st.shared.u32 [%r1+4], %r2;\n    from line 12 of the PTX text",
        "kernel k: violation: bytes 512 to 515 are outside buf, which has 512 bytes: "
        "thread (127, 0, 0), [q$1+0].b32 = 4\n"
        "    in st.shared.u32 [%r2], %r1;\n    from line 37 of the PTX text",
    ]


def test_a_call_behind_a_guard_is_made_by_those_threads_alone() -> None:
    result = calls(516, CALLS.replace("@%p1 call", "call"))
    (violation,) = result.violations
    assert violation.reason == (
        "bytes 516 to 519 are outside buf, which has 516 bytes: thread (127, 0, 0), "
        "[q$1+0].b32 = 4, called from line 42 of the PTX text"
    )


def test_functions_that_call_themselves_are_unknown_below() -> None:
    inside = "{ .param .b32 a; .param .b32 b; .param .b32 c; st.param.b32 [a], %r2; "
    inside += "st.param.b32 [b], %r2; call (c), put, (a, b); }\nmov.u32 %r3, 4;"
    text = CALLS.replace("mov.u32 %r3, 4;", inside)
    result = calls(516, text)
    assert [(v.kernel, v.reason) for v in result.unknown] == [
        ("put", "a function that calls itself is not followed")
    ]
    assert [v.kernel for v in calls(512, text).violations] == ["put", "k"]


def test_functions_called_through_pointers_are_unknown_and_what_they_give_too() -> None:
    pointer = "mov.b64 %rd1, put;\ncall (q), %rd1, (p0, p1), proto;"
    text = CALLS.replace("@%p1 call (q), put, (p0, p1);", "")
    text = text.replace("call (q), put, (p0, p1);", pointer).replace(
        "mov.u32 %r1, %tid.x;",
        "proto: .callprototype (.param .b32 _) _ (.param .b32 _, .param .b32 _);\nmov.u32 %r1, %tid.x;",
    )
    result = calls(1024, text)
    assert sorted((v.kernel, v.reason) for v in result.unknown) == [
        ("k", "its address cannot be listed: it depends on a result of call"),
        ("put", "a function whose address is taken may be called with anything"),
    ]


def test_what_functions_without_a_body_give_may_be_anything() -> None:
    text = CALLS.replace("call (q), put, (p0, p1);", "call (q), elsewhere, (p0);", 1)
    result = calls(1024, text)
    assert {v.reason for v in result.unknown} == {
        "its address cannot be listed: it depends on a result of call",
        "its address cannot be listed: it depends on a result of call, called from line 42 of the PTX text",
    }


def test_functions_at_the_end_of_a_long_chain_are_unknown() -> None:
    functions = [
        f".func f{n}()\n{{\ncall f{n - 1};\nret;\n}}\n"
        if n
        else ".func f0()\n{\n.shared .align 4 .b8 own[4];\nst.shared.u32 [own+4], 5;\nret;\n}\n"
        for n in range(2000)
    ]
    head = ".version 8.0\n.target sm_80\n.address_size 64\n"

    def chain(n: int) -> Proof:
        kernel = f".visible .entry k()\n{{\ncall f{n};\nret;\n}}\n"
        return prove_shared(head + "".join(functions[: n + 1]) + kernel, block=32)

    (violation,) = chain(63).violations
    reason = "bytes 4 to 7 are outside own, which has 4 bytes: thread (0, 0, 0), called from line "
    assert violation.reason.startswith(reason)
    assert violation.reason.count("called from") == 64
    for n in (64, 1999):
        (unknown,) = chain(n).unknown
        assert unknown.reason in (
            "it is called through more than 64 functions",
            "it is called by a function that is not followed",
        )


def test_nothing_that_traps_in_a_function_is_proved() -> None:
    verdicts: Counter[bool] = Counter()
    for seed in range(20):
        r = random.Random(seed)
        text = CALLS.replace("SIZE", "512")
        text = text.replace("[%r1+4]", f"[%r1+{r.choice([0, 4, -4])}]")
        text = text.replace("%r3, 4;", f"%r3, {r.choice([0, 4, 8, -4])};")
        text = text.replace("%r3, 8;", f"%r3, {r.choice([0, -400, 400])};")
        text = text.replace("%r2, 1000;", f"%r2, {r.choice([1000, 50, 100])};")
        text = text.replace("mad.lo.u32 %r2, %r1, 4", f"mad.lo.u32 %r2, %r1, {r.choice([2, 4])}")
        result = prove_shared(text, block=128)
        verdicts[result.complete] += 1
        assert not result.unknown, result.report()
        linked = text.replace(".extern .func (.param .b32 r) elsewhere(.param .b32 x);\n", "")
        try:
            interpreter.run(linked, "k", grid=1, block=128, args=[])
        except TrapError:
            assert result.violations, (seed, text)
        else:
            assert result.complete, (seed, result.report())
    assert min(verdicts.values()) > 2, verdicts


# ------------------------------------------------------------------------------ two witnesses

MULTIPLICATIONS = {
    "f16": ("m64n{n}k16.f32.f16.f16", ", 1, 1, {ta}, {tb}"),
    "tf32": ("m64n{n}k8.f32.tf32.tf32", ", 1, 1"),
    "e4m3": ("m64n{n}k32.f32.e4m3.e4m3", ", 1, 1"),
}


def one_product(type: str, n: int, descriptors: tuple[int, int], turned: tuple[int, int]) -> str:
    shape, flags = MULTIPLICATIONS[type]
    sums = ", ".join(f"%f{i}" for i in range(n // 2))
    words = f"{shape.format(n=n)} {{{sums}}}, %rd1, %rd2, 1"
    return (
        f"{HEADER}.visible .entry k()\n{{\n{REGISTERS}"
        f"mov.b64 %rd1, {descriptors[0]};\nmov.b64 %rd2, {descriptors[1]};\n"
        "wgmma.fence.sync.aligned;\n"
        f"wgmma.mma_async.sync.aligned.{words}{flags.format(ta=turned[0], tb=turned[1])};\n"
        "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\nret;\n}\n"
    )


@pytest.mark.parametrize("mode", range(4))
@pytest.mark.parametrize(
    ("type", "ta", "tb"),
    [("f16", 0, 0), ("f16", 1, 0), ("f16", 0, 1), ("f16", 1, 1), ("tf32", 0, 0), ("e4m3", 0, 0)],
)
def test_the_interpreter_reads_the_bytes_that_the_proof_expects(
    type: str, ta: int, tb: int, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[np.ndarray] = []
    load = LaneMachine.load_by_warp

    def recorded(machine: Any, address: Any, rows: Any, type: Any) -> Any:
        read.append(np.array(address[rows]).reshape(-1))
        return load(machine, address, rows, type)

    monkeypatch.setattr(LaneMachine, "load_by_warp", recorded)
    r = random.Random(f"{type} {ta} {tb} {mode}")
    for _ in range(6):
        n = r.choice([8, 16, 24, 64, 88, 256])
        descriptors = [
            r.randrange(0, 1024)
            | r.randrange(0, 200) << 16
            | r.randrange(0, 200) << 32
            | r.randrange(8) << 49
            | mode << 62
            for _ in range(2)
        ]
        read.clear()
        text = one_product(type, n, (descriptors[0], descriptors[1]), (ta, tb))
        interpreter.run(text, grid=1, block=128, args=[], dynamic_smem=232448)
        assert len(read) == 2
        pairs = zip(read, descriptors, (Matrix("A", 64, ta == 1), Matrix("B", n, tb == 1)), strict=True)
        for taken, descriptor, matrix in pairs:
            start = (descriptor & 0x3FFF) * 16
            expected = units_of(start, fields_of(descriptor, matrix), matrix)
            assert set(taken // 16) == set(expected // 16)


# ------------------------------------------------------------------------------ whole programs


@pytest.mark.sample(3, gate=8)
@pytest.mark.parametrize("swizzle", SPANS)
@pytest.mark.parametrize(("rows", "d"), [(64, 64), (80, 128)])
def test_products_of_panels_are_proved_and_bytes_less_are_not(rows: int, d: int, swizzle: str) -> None:
    for a, b, ta, tb in (((64, d), (rows, d), False, False), ((d, 64), (d, 64), True, True)):
        left = Panels(1024, *a, swizzle)
        right = Panels(1024 + -(-left.nbytes // 1024) * 1024, *b, swizzle)
        steps, n = (a[0] if ta else a[1]) // 16, b[1] if tb else b[0]
        text = product_kernel(left, right, n, steps, ta=ta, tb=tb, type="f16")
        maps = {
            name: TensorMap(np.zeros(shape, np.float16), box=(SPANS[swizzle] // 2, shape[0]), swizzle=swizzle)
            for name, shape in (("a", a), ("b", b))
        }
        size = right.at + right.nbytes
        result = prove_shared(text, block=128, dynamic_smem=size, params=maps)
        assert result.complete, result.report()
        result = prove_shared(text, block=128, dynamic_smem=size - 16, params=maps)
        wrong = {v.instr.partition(".")[0] for v in result.violations}
        assert wrong == {"cp", "wgmma"}
        assert not result.unknown


def triton_maps(facts: dict[str, Any]) -> dict[str, TensorMap]:
    names = [p.split()[-1].partition("[")[0] for p in facts["parameters"] if p.endswith("[128]")]
    swizzles = ("none", "32B", "64B", "128B")
    return {
        name: TensorMap(
            0, tuple(of["block_size"][::-1]), "f16", (1024, 1024), (2048,), swizzles[of["swizzle"]]
        )
        for name, of in zip(names, facts["tensor_maps"], strict=True)
    }


# How many accesses are proved, with dynamic memory aligned as declared (16), and as Triton relies
# on (1024).
TRITON = {
    "attention.sm_90a": (30, 20),
    "attention_causal.sm_90a": (30, 20),
    "attention_descriptor.sm_90a": (45, 27),
    "attention_descriptor_causal.sm_90a": (45, 27),
    "matmul_2_stages.sm_90a": (16, 16),
    "matmul_3_stages.sm_90a": (32, 28),
    "matmul_descriptor.sm_90a": (39, 27),
}


@pytest.mark.sample(3, gate=7)
@pytest.mark.parametrize("name", TRITON)
def test_tensor_core_kernels_of_triton_are_proved_if_shared_memory_is_aligned(name: str) -> None:
    path = FIXTURES / "triton" / f"{name}.ptx"
    facts = json.loads(path.with_suffix(".json").read_text())
    how = {"block": facts["block"], "dynamic_smem": facts["shared"], "params": triton_maps(facts)}
    total, least = TRITON[name]
    result = prove_shared(path.read_text(), dynamic_align=1024, **how)
    assert result.complete, result.report()
    assert len(result.accesses) == total
    result = prove_shared(path.read_text(), **how)
    assert not result.violations, result.report()
    assert sum(v.verdict == "proved" for v in result.accesses) == least
    only = "global_smem is aligned to 16 bytes only, and the"
    needs = ("access needs 128", "swizzle needs 512", "swizzle needs 1024")
    assert {v.reason for v in result.unknown} <= {f"{only} {needed}" for needed in needs}


@pytest.mark.parametrize(
    ("name", "entry", "block", "dynamic", "boxes"),
    [
        ("wgmma.sm_90a", "wgmma_swizzled", 128, 0, ()),
        ("tma.sm_90a", "tma_copy", 64, 0, ((np.float32, (32, 8), "none"),) * 2),
        ("tma.sm_90a", "tma_image", 64, 0, ((np.uint16, (64, 8), "128B"),)),
        ("tma.sm_90a", "tma_wgmma", 160, 32768, ((np.float16, (64, 64), "128B"),) * 2),
    ],
)
def test_hopper_kernels_of_nvcc_are_proved(
    name: str, entry: str, block: int, dynamic: int, boxes: Any
) -> None:
    maps = {
        f"{entry}_param_{n}": TensorMap(np.zeros((64, 128), dtype), box=box, swizzle=swizzle)
        for n, (dtype, box, swizzle) in enumerate(boxes)
    }
    text = (FIXTURES / "nvcc" / f"{name}.ptx").read_text()
    result = prove_shared(text, entry, block=block, dynamic_smem=dynamic, params=maps)
    assert result.complete, result.report()


def test_a_tensor_map_for_a_parameter_that_is_none_is_refused() -> None:
    assert message(lambda: proof(PRODUCT, params={"c": tile_map()})) == "prove: k has no parameter 'c'"
