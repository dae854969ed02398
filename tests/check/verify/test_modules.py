"""What `verify` says of whole modules: functions, calls, variables, operands of other sizes."""

from __future__ import annotations

import pytest
from finding_tables import cases

from ptxgen.check.verify import verify
from ptxgen.ir import Address, Instr, Kernel, Module, Reg, RegisterRange, Variable
from ptxgen.parse import parse

HEAD = """.version 9.0
.target sm_90a
.address_size 64
.global .align 8 .b8 g[8]; .const .u32 c; .extern .shared .align 16 .b8 dynamic[];
.func (.param .b32 r) f(.param .b32 a, .param .align 8 .b8 s[16]);
.func (.reg .b32 r) h(.reg .b64 a) { mov.b64 {r, _}, a; ret; }
.func stop() .noreturn { trap; }
"""
DECLARED = """.reg .pred %p<4>; .reg .b16 %rs<4>; .reg .b32 %r<9>; .reg .b64 %rd<9>;
.reg .f32 %f<4>; .reg .f64 %fd<4>; .param .b32 a; .param .b32 r; .param .align 8 .b8 s[16];
.local .b32 l[4]; .shared .b32 t[4]; mov.u32 %r1, 1; mov.u64 %rd1, g; mov.f32 %f1, 0f00000000;
mov.u16 %rs1, 0; mov.f64 %fd1, 0d0000000000000000; setp.eq.u32 %p1, %r1, 0;
"""


def problems(body: str, end: str = "ret;") -> list[tuple[str, str]]:
    module = parse(f"{HEAD}.entry k(.param .u64 q) {{ {DECLARED} {body} {end} }}")
    return [(problem.kind, problem.message) for problem in verify(module)]


FINDINGS = """
st.param.b32 [a], %r1; st.param.b64 [s+8], %rd1; call (r), f, (a, s);
=> right
call (%r2), f, (5, s);
=> right
call (_), f, (%r1, s);
=> right
call (%r2), h, (%rd1); add.u32 %r3, %r2, 1;
=> right
mov.u64 %rd2, f; P: .callprototype (.param .b32 _) _ (.param .b32 _, .param .align 8 .b8 _[16]); call (r),
%rd2, (a, s), P;
=> right
mov.u64 %rd2, f; C: .calltargets f; call (r), %rd2, (a, s), C;
=> right
T: .branchtargets $a, $b; brx.idx %r1, T; $a: $b:
=> right
ld.global.b64 %rd2, [g]; ld.b64 %rd2, [g]; ld.const.u32 %r2, [c]; mov.u32 %r2, dynamic;
=> right
ld.u8 %r2, [%rd1]; ld.s16 %rd2, [%rd1]; ld.b16 %f2, [%rd1]; ld.f32 %rd3, [%rd1];
=> right
st.u8 [%rd1], %rd1; st.b8 [%rd1], %f1; st.f32 [%rd1], %rd1;
=> right
cvt.u32.u8 %r2, %rd1; cvt.u8.u32 %rd2, %r1; cvt.rn.f32.u32 %rd3, %r1;
=> right
mov.b64 {_, %r2}, %rd1; setp.eq.u32 _|%p2, %r1, 0; atom.global.add.u32 _, [%rd1], 1;
=> right
mov.pred %p2, !%p1; st.local.u32 [l+4], %r1; ld.local.u32 %r2, [16];
=> right
mov.u64 %rd2, q; ld.param.u64 %rd3, [%rd2];
=> right
prefetch.global.L2 [g+8];
=> right
call (r), f, (a);
=> call: f has 2 arguments, got 1
call f, (a, s);
=> call: f has 1 results, got 0
call (r), f, (s, s);
=> call: argument 1 of f must be a .b32, got 's' of 16 bytes
call (r), f, (a, %r1);
=> call: argument 2 of f must be 16 bytes, got %r1 of class b32
call (r), f, (a, 5);
=> call: argument 2 of f must be 16 bytes, got a number
call (r), f, (g, s);
=> call: argument 1 of f must be a .b32, got 'g', which is no variable in .param
call (%rd2), f, (a, s);
=> call: result 1 of f must be a .b32, got %rd2 of class b64
P: .callprototype _ (.param .b64 _); call %rd1, (a), P;
=> call: argument 1 of P must be a .b64, got 'a' of 4 bytes
call ff, (a);
=> symbol: no function 'ff'; did you mean 'f'?
call %rd1, (a), P;
=> symbol: no prototype 'P'
brx.idx %r1, T;
=> symbol: no list of branch targets 'T'
T: .branchtargets $x; brx.idx %r1, T;
=> label: no label '$x' in this kernel
mov.u32 %r2, f;
=> symbol: 'f' is a function; its address has 64 bits
ld.shared.u32 %r2, [g];
=> symbol: 'g' is in global memory, but the instruction is for shared memory
ld.u32 %r2, [c];
=> symbol: 'c' is in const memory, but the instruction is for generic addresses
ld.global.b64 %rd2, [g+8];
=> symbol: bytes 8 to 16 of 'g' are accessed, but it has 8
ld.global.b32 %r2, [g+2];
=> alignment: the address must be a multiple of 4 bytes, but it is 2 more than one; change the offset, or
   access fewer bytes at a time
add.u32 %r2, %r1, %r5;
=> undefined: %r5 is read but never written; write it on every path before
ld.global.u32 %f2, [%rd1];
=> operand: operand d of ld must be u32, got %f2 of class f32 (syntax: ld.space{.cop}{.vec}.type d*vec,
   [addr:u64])
ld.global.u32 %rs2, [%rd1];
=> operand: operand d of ld must be u32, got %rs2 of class b16 (syntax: ld.space{.cop}{.vec}.type d*vec,
   [addr:u64])
add.u16 %r2, %rs1, %rs1;
=> operand: operand d of add must be u16, got %r2 of class b32 (syntax: add.type d, a, b)
add.u32 _, %r1, %r1;
=> operand: operand d of add is written, so it must be a register, got _ (syntax: add.type d, a, b)
ld.global.u32 %r2, [16];
=> operand: operand addr of ld must have a register or a name; only local memory has such addresses as [16]
   (syntax: ld.space{.cop}{.vec}.type d*vec, [addr:u64])
"""


@pytest.mark.parametrize(("body", "findings"), cases(FINDINGS))
def test_code_has_its_whole_findings(body: str, findings: list[str]) -> None:
    assert [f"{kind}: {message}" for kind, message in problems(body)] == findings


def test_code_after_which_nothing_returns_needs_no_end():
    assert problems("call stop, ();", end="") == []
    assert problems("@%p1 call stop, ();", end="") == [
        ("end", "control runs off the end of the kernel; end it with ret")
    ]


@pytest.mark.parametrize("declared", ["(.param .u32 g) {", "() { .param .b32 g;"])
def test_a_name_in_a_kernel_hides_the_variable_of_the_module(declared):
    text = f"{HEAD}.entry k{declared} .reg .b32 %r0; .reg .pred %p0; mov.pred %p0, 0; "
    accesses = "ld.global.u32 %r0, [g]; st.global.u32 [g], 1; @%p0 ld.global.u32 %r0, [g]; ret; }"
    assert [p.message for p in verify(parse(text + accesses))] == ["no variable in global memory 'g'"] * 3
    assert verify(parse(text + "ld.param.u32 %r0, [g]; ret; }")) == ()


def test_the_end_of_a_function_returns():
    module = parse(HEAD + ".func f { .reg .b32 %r<2>; mov.u32 %r0, 1; } .entry k { call f; ret; }")
    assert verify(module) == ()


def test_the_address_of_a_kernel_is_a_number_of_64_bits():
    text = HEAD + ".entry q { ret; } .entry k { .reg .b64 %rd0; mov.u64 %rd0, q; mov.u64 %rd0, k; "
    assert verify(parse(text + "ret; }")) == ()
    (problem,) = verify(parse(text + ".reg .b32 %r0; mov.u32 %r0, q; ret; }"))
    assert problem.message == "'q' is a kernel; its address has 64 bits"


def test_problems_of_functions_say_so():
    module = parse(HEAD + ".func broken { .reg .b32 %r<2>; not.b32 %r0, %r1; bra $x; }")
    assert [str(problem).splitlines()[0] for problem in verify(module)] == [
        "function broken: %r1 is read but never written; write it on every path before",
        "function broken: no label '$x' in this function",
    ]


def test_a_parameter_in_a_register_may_be_one_of_a_range():
    body = "{ .reg .b32 %r<5>; add.s32 %r0, %r1, %r1; ret; }"
    text = f".func (.reg .b32 %r0) f(.reg .b32 %r1) {body} .entry k {{ ret; }}"
    assert verify(parse(HEAD + text)) == ()
    (problem,) = verify(parse(HEAD + text.replace("%r1, %r1", "%r1, %r2")))
    assert problem.message == "%r2 is read but never written; write it on every path before"


def test_names_of_a_module_mean_one_thing():
    module = parse(HEAD + ".global .u32 f; .global .u32 %tid; .entry g { ret; } .entry k { ret; }")
    assert [(problem.kind, problem.message) for problem in verify(module)] == [
        ("symbol", "'g' is a kernel and a variable; rename one"),
        ("symbol", "'f' is a function and a variable; rename one"),
        (
            "symbol",
            "a variable cannot be called '%tid'; use letters, digits, _ and $, begin with a "
            "letter, and avoid PTX's own names",
        ),
    ]


def test_variables_have_a_size_an_alignment_and_room_for_their_value():
    wrong = (
        Variable("global", "a", 4, 3),
        Variable("global", "b", 0, 4),
        Variable("global", "c", 2, 1, b"abc"),
    )
    assert [p.message for p in verify(Module((9, 0), "sm_90a", (), variables=wrong))] == [
        "a: the alignment must be a power of two, got 3",
        "b must have 1 or more bytes, got 0",
        "c has 2 bytes, but an initial value of 3",
    ]


def test_a_block_size_that_is_required_must_be_possible():
    registers = (RegisterRange("%r", "b32", 2),)
    load = Instr("ld.local.u32", (Reg("%r1", "b32"), Address(None, 8)))
    kernel = Kernel("k", (), registers, (load, Instr("ret")), reqntid=(64, 32))
    assert [p.message for p in verify(Module((9, 0), "sm_90a", (kernel,)))] == [
        ".reqntid is 2048 threads, but a block has 1 to 1024 on sm_90a; use fewer"
    ]
