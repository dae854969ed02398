from __future__ import annotations

from dataclasses import replace

from ptxgen.ir import (
    Address,
    FloatImm,
    Guard,
    Instr,
    IntImm,
    Kernel,
    Label,
    Module,
    Note,
    Pair,
    Param,
    Reg,
    Region,
    RegisterRange,
    Shared,
    Special,
    Symbol,
    Vector,
)
from ptxgen.text import render, render_instr

F = [Reg(f"%f{i}", "f32") for i in range(5)]
R = [Reg(f"%r{i}", "b32") for i in range(6)]
P = [Reg(f"%p{i}", "pred") for i in range(3)]

KERNEL = Kernel(
    "attention_forward",
    params=(Param("Q", "u64"), Param("seq_k", "u32")),
    registers=(RegisterRange("%p", "pred", 3), RegisterRange("%flag", "b32", 0)),
    body=(
        Note("S = Q K^T"),
        Instr("ld.param.u64", (Reg("%rd1", "b64"), Address(Symbol("Q")))),
        Instr("mov.u32", (R[1], Special("%tid.x"))),
        Label("$loop_1"),
        Instr("bra", (Symbol("$done_2"),), Guard(P[1], negated=True)),
        Note("P = exp2(S)"),
        Instr("st.shared.v4.f32", (Address(R[5], 16), Vector(tuple(F[1:5])))),
        Instr("shfl.sync.bfly.b32", (Pair(R[1], P[2]), R[2], IntImm(1), IntImm(31), IntImm(-1))),
        Label("$done_2"),
        Instr("ret"),
    ),
    shared=(Shared("scratch", 1024, 16),),
    threads=128,
    min_ctas=2,
    dynamic_shared="smem",
    regions=(Region("K_tile", 0, 16896, 16),),
)
MODULE = Module((7, 0), "sm_80", (KERNEL,), header=("attention, head_dim 64", "", "f32"))

TEXT = """\
//
// attention, head_dim 64
//
// f32
//
.version 7.0
.target sm_80
.address_size 64

.extern .shared .align 16 .b8 smem[];

.visible .entry attention_forward(
	.param .u64 Q,
	.param .u32 seq_k
)
.maxntid 128, 1, 1
.minnctapersm 2
{
	.reg .pred %p<3>;
	.reg .b32 %flag;
	.shared .align 16 .b8 scratch[1024];
	// region K_tile: offset 0, 16896 bytes, align 16

	// S = Q K^T
	ld.param.u64 %rd1, [Q];
	mov.u32 %r1, %tid.x;
$loop_1:
	@!%p1 bra $done_2;

	// P = exp2(S)
	st.shared.v4.f32 [%r5+16], {%f1, %f2, %f3, %f4};
	shfl.sync.bfly.b32 %r1|%p2, %r2, 1, 31, -1;
$done_2:
	ret;
}
"""


def test_a_module_is_printed_in_full():
    assert render(MODULE) == TEXT


def test_a_bare_module_has_no_header_no_array_and_no_empty_parts():
    module = Module((8, 0), "sm_90a", (Kernel("k", (), (), (Instr("ret"),)),))
    assert render(module) == (
        ".version 8.0\n.target sm_90a\n.address_size 64\n\n.visible .entry k()\n{\n\tret;\n}\n"
    )


def test_kernels_share_a_dynamic_array_aligned_for_all_their_regions():
    first = replace(KERNEL, regions=(Region("a", 0, 64, 128),))
    second = replace(KERNEL, name="second", regions=(Region("b", 0, 64, 32),))
    text = render(Module((7, 0), "sm_80", (first, second)))
    assert text.count(".extern .shared .align 128 .b8 smem[];\n") == 1
    assert text.count(".extern") == 1


def test_printing_twice_gives_the_same_text():
    assert render(MODULE) == render(MODULE)


def test_floats_are_printed_as_their_bits():
    instr = Instr("mov.f32", (F[0], FloatImm(0x3F800000, 32)))
    assert render_instr(instr) == "mov.f32 %f0, 0f3F800000;"
    instr = Instr("mov.f64", (Reg("%fd0", "f64"), FloatImm(1, 64)))
    assert render_instr(instr) == "mov.f64 %fd0, 0d0000000000000001;"


def test_a_negative_offset_is_added():
    assert render_instr(Instr("ld.shared.f32", (F[0], Address(R[1], -4)))) == ("ld.shared.f32 %f0, [%r1+-4];")


def test_a_guard_comes_first():
    instr = Instr("mov.f32", (F[0], F[1]), Guard(P[0]))
    assert render_instr(instr) == "@%p0 mov.f32 %f0, %f1;"


def test_a_vector_may_hold_literals():
    instr = Instr("st.shared.v2.b32", (Address(R[1]), Vector((IntImm(-5), FloatImm(0, 32)))))
    assert render_instr(instr) == "st.shared.v2.b32 [%r1], {-5, 0f00000000};"


def test_render_instr_agrees_with_the_lines_of_a_module():
    lines = [line.strip() for line in render(MODULE).splitlines()]
    for statement in KERNEL.body:
        if isinstance(statement, Instr):
            assert render_instr(statement) in lines


def test_a_label_carries_the_pragma_of_its_loop():
    module = Module((7, 0), "sm_80", (Kernel("k", (), (), (Label("$l", "nounroll"), Instr("ret"))),))
    assert '{\n$l:\n\t.pragma "nounroll";\n\tret;\n}\n' in render(module)
