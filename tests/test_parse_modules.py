"""Whole modules, as nvcc, Triton and people write them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from error_texts import refused
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxgen.check.verify import verify
from ptxgen.errors import ParseError
from ptxgen.ir import (
    Address,
    Arguments,
    FloatImm,
    Function,
    Guard,
    Instr,
    IntImm,
    Kernel,
    Label,
    Module,
    Not,
    Pair,
    Param,
    Pointer,
    Pragma,
    Prototype,
    Reg,
    RegisterRange,
    Shared,
    Sink,
    Symbol,
    Targets,
    TensorAddress,
    Variable,
    Vector,
)
from ptxgen.parse import parse
from ptxgen.text import render
from ptxgen.tokens import Tokens

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"
REGISTERS = (
    ".reg .pred %p<4>; .reg .b16 %rs<4>; .reg .b32 %r<9>; .reg .b64 %rd<9>; "
    ".reg .f32 %f<4>; .reg .f64 %fd<4>;\n"
)
FIXTURES = sorted((Path(__file__).parent / "ptx").glob("*/*.ptx"))
R = [Reg(f"%r{i}", "b32") for i in range(9)]
RD = [Reg(f"%rd{i}", "b64") for i in range(9)]
P = [Reg(f"%p{i}", "pred") for i in range(4)]
RET = Instr("ret")


def read(text: str) -> Module:
    """The module, which is read back from how it is printed."""
    module = parse(HEAD + text)
    printed = render(module)
    assert parse(printed) == module
    assert render(parse(printed)) == printed
    return module


def kernel(body: str) -> Kernel:
    return read(f".entry k {{\n{REGISTERS}{body}\n}}").kernels[0]


def operand(instr: str, place: int = -1) -> object:
    (only,) = kernel(instr).body
    assert isinstance(only, Instr)
    return only.operands[place]


def variables(text: str) -> tuple[Variable, ...]:
    return read(text).variables


def refusal(text: str) -> str:
    with pytest.raises(ParseError) as caught:
        parse(HEAD + text)
    return str(caught.value)


# ------------------------------------------------------------------------------ whole files


@pytest.mark.sample(50)
@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_nvcc_and_triton_write_is_read_printed_and_found_right(path):
    module = parse(path.read_text())
    assert parse(render(module)) == module
    assert [str(problem) for problem in verify(module)] == []


# ------------------------------------------------------------------------------ frames


def test_platform_options_of_a_target_are_dropped():
    text = ".version 9.0\n.target sm_90a, debug, texmode_independent\n.address_size 64\n"
    assert parse(text) == Module((9, 0), "sm_90a", ())


def test_directives_of_a_kernel_are_kept():
    (built,) = read(
        ".weak .entry k() .reqntid 32, 2 .explicitcluster .maxnreg 64\n"
        '.minnctapersm 3 .pragma "a", "b"; .maxclusterrank 8 { ret; }'
    ).kernels
    others = (".explicitcluster", ".maxnreg 64", '.pragma "a";', '.pragma "b";', ".maxclusterrank 8")
    assert built == Kernel(
        "k", (), (), (RET,), min_ctas=3, reqntid=(32, 2), directives=others, linkage="weak"
    )
    (clustered,) = read(".entry k .reqnctapercluster 2, 1, 1 { ret; }").kernels
    assert clustered.cluster == (2, 1, 1)


def test_debugging_information_is_skipped():
    text = (
        '.file 1 "a \\"b\\".cu", 12, 34\n.section .debug_info { .b8 1, 2\n.b32 $L_x, "s" }\n'
        '.pragma "whole";\n.loc 1 2 3\n'
        ".entry k { .loc 1 20 3, function_name $L_info+5, inlined_at 1 12 3 ret; }"
    )
    assert [k.body for k in read(text).kernels] == [(RET,)]


def test_pragmas_stay_where_they_are():
    assert kernel('.pragma "a";\n$l: .pragma "b", "c"; ret;').body == (
        Pragma("a"),
        Label("$l", "b"),
        Pragma("c"),
        RET,
    )


def test_parameters_may_be_structures():
    (built,) = read(
        ".entry k(.param .align 8 .b8 p[24], .param .u64 .ptr .global .align 4 q, .param .f32 x)\n{ ret; }"
    ).kernels
    assert built.params == (Param("p", "b8", 24, 8), Param("q", "u64"), Param("x", "f32"))


# ------------------------------------------------------------------------------ functions


def test_functions_have_parameters_results_and_directives():
    module = read(
        ".visible .func (.param .b32 out) f(.param .align 8 .b8 s[16], .param .b64 p);\n"
        ".func stop .noreturn { trap; }\n"
        ".extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);\n"
        ".visible .func (.param .b32 out) f(.param .align 8 .b8 s[16], .param .b64 p) { ret; }\n"
        ".weak .func (.reg .b32 a, .reg .pred q) g(.reg .u32 b) { mov.u32 a, b; ret; }\n"
    )
    out, pointers = (Param("out", "b32"),), (Param("s", "b8", 16, 8), Param("p", "b64"))
    a, b = Reg("a", "b32"), Reg("b", "b32")
    registers = Param("a", "b32", register=True), Param("q", "pred", register=True)
    assert module.functions == (
        Function("f", out, pointers, body=(RET,), linkage="visible"),
        Function("stop", body=(Instr("trap"),), noreturn=True),
        Function("vprintf", (Param("r", "b32"),), (Param("a", "b64"), Param("b", "b64")), linkage="extern"),
        Function(
            "g",
            registers,
            (Param("b", "u32", register=True),),
            body=(Instr("mov.u32", (a, b)), RET),
            linkage="weak",
        ),
    )


@pytest.mark.parametrize(
    ("call", "operands"),
    [
        ("call f;", (Symbol("f"),)),
        ("call f, ();", (Symbol("f"), Arguments(()))),
        (
            "call.uni f, (%r1, 3, a, 1.0);",
            (Symbol("f"), Arguments((R[1], IntImm(3), Symbol("a"), FloatImm(0x3FF << 52, 64)))),
        ),
        ("call (a), f, (%r1);", (Arguments((Symbol("a"),)), Symbol("f"), Arguments((R[1],)))),
        ("call (_), f;", (Arguments((Sink(),)), Symbol("f"))),
        ("call %rd1, P;", (RD[1], Symbol("P"))),
        ("call (%r1), %rd1, (%r2), P;", (Arguments((R[1],)), RD[1], Arguments((R[2],)), Symbol("P"))),
    ],
)
def test_calls_have_all_forms(call, operands):
    (*_, built) = kernel(f".param .b32 a;\n{call}").body
    assert isinstance(built, Instr)
    assert built.operands == operands


def test_prototypes_and_lists_of_targets_are_statements():
    body = (
        "P : .callprototype (.param .b32 _) _ (.param .b64 _, .param .align 4 .b8 _[12]) "
        ".noreturn;\nQ: .callprototype _;\nT: .branchtargets $a, $b;\nC: .calltargets f, g;\n"
        "$a: $b: brx.idx %r1, T;"
    )
    assert kernel(body).body == (
        Prototype("P", (Param("_", "b32"),), (Param("_", "b64"), Param("_", "b8", 12, 4)), True),
        Prototype("Q", (), ()),
        Targets("T", "branchtargets", ("$a", "$b")),
        Targets("C", "calltargets", ("f", "g")),
        Label("$a"),
        Label("$b"),
        Instr("brx.idx", (R[1], Symbol("T"))),
    )


# ------------------------------------------------------------------------------ variables


@pytest.mark.parametrize(
    ("text", "nbytes", "align", "data"),
    [
        (".global .u32 x;", 4, 4, b""),
        (".global .align 16 .b8 x[5] = {1, 0x2, 0};", 5, 16, b"\1\2"),
        (".global .u8 x[] = {300, -1};", 2, 1, b"\x2c\xff"),
        (".global .u16 x[2][2] = {{1}, {2, 3}};", 8, 2, b"\1\0\0\0\2\0\3"),
        (".global .s32 x = -2;", 4, 4, b"\xfe\xff\xff\xff"),
        (".global .u64 x = 1 << 40 | 2;", 8, 8, b"\2\0\0\0\0\1"),
        (".global .f32 x[2] = {1.0 + 0.5, 0f40000000};", 8, 4, b"\0\0\xc0\x3f\0\0\0\x40"),
        (".global .f64 x = -1.5;", 8, 8, b"\0\0\0\0\0\0\xf8\xbf"),
        (".global .f64 x = 0f3F800000;", 8, 8, b"\0\0\0\0\0\0\xf0\x3f"),
        (".global .v2 .f32 x[2] = {{1.0, 2.0}, {3.0}};", 16, 8, b"\0\0\x80\x3f\0\0\0\x40\0\0\x40\x40"),
        (".global .attribute(.managed) .align 8 .b32 x[2*2];", 16, 8, b""),
        (".global .b8 x[3] = {};", 3, 1, b""),
    ],
)
def test_variables_become_bytes(text, nbytes, align, data):
    assert variables(text) == (Variable("global", "x", nbytes, align, data),)


def test_a_line_may_declare_several_variables_of_any_space():
    assert variables(
        ".visible .const .u8 a = 1, b[2]; .shared .b32 s; .extern .global .b8 e[]; .common .global .u32 c;"
    ) == (
        Variable("const", "a", 1, 1, b"\1", linkage="visible"),
        Variable("const", "b", 2, 1, linkage="visible"),
        Variable("shared", "s", 4, 4),
        Variable("global", "e", 0, 1, linkage="extern"),
        Variable("global", "c", 4, 4, linkage="common"),
    )


def masks(symbol: str) -> str:
    return ", ".join(f"0x{0xFF << 8 * i:X}({symbol})" for i in range(8))


@pytest.mark.parametrize(
    ("text", "pointers"),
    [
        (".u64 x = y;", (Pointer(0, "y"),)),
        (".u64 x[3] = {7, generic(y)+4, y+-8};", (Pointer(8, "y", 4, generic=True), Pointer(16, "y", -8))),
        (".u32 x = y+1+2;", (Pointer(0, "y", 3, nbytes=4),)),
        (
            ".u8 x[2] = {0xFF(y), 0xFF00(generic(y)+4)};",
            (Pointer(0, "y", nbytes=1), Pointer(1, "y", 4, generic=True, nbytes=1, shift=8)),
        ),
        (".u32 x[2] = {1, 0xFF0000(y)};", (Pointer(4, "y", nbytes=1, shift=16),)),
        (f".u8 x[16] = {{9, {masks('y+4')}, 5}};", (Pointer(1, "y", 4),)),
        (f".u8 x[8] = {{{masks('y')}}};", (Pointer(0, "y"),)),
    ],
)
def test_addresses_in_initial_values_are_pointers(text, pointers):
    assert variables(f".global .u32 y; .global {text}")[1].pointers == pointers


def test_an_address_and_bytes_are_printed_as_words():
    module = parse(HEAD + ".global .u32 y; .global .u64 x[2] = {258, generic(y)+4};")
    assert ".global .align 8 .u64 x[2] = {258, generic(y)+4};\n" in render(module)


def test_a_variable_of_the_module_declared_in_a_body_is_moved_there():
    module = read(f".entry k {{ .global .u32 x = 5; {REGISTERS} mov.u64 %rd1, x; }} .entry j {{ ret; }}")
    assert module.variables == (Variable("global", "x$1", 4, 4, b"\5"),)
    assert module.kernels[0].body == (Instr("mov.u64", (RD[1], Symbol("x$1"))),)


def test_the_first_dynamic_array_a_kernel_uses_is_its_own():
    arrays = ".extern .shared .b8 a[]; .extern .shared .b8 b[]; .extern .shared .u64 c[];\n"
    body = f"{REGISTERS} mov.u32 %r1, b; mov.u32 %r2, a;"
    function = f".func f {{ {REGISTERS} mov.u32 %r1, c; ret; }}"
    module = read(f"{arrays}{function} .entry k {{ {body} }} .entry j {{ ret; }}")
    assert [k.dynamic_shared for k in module.kernels] == ["b", ""]
    assert module.variables == (
        Variable("shared", "a", 0, 1, linkage="extern"),
        Variable("shared", "c", 0, 8, linkage="extern"),
    )


# ------------------------------------------------------------------------------ scopes


def test_inner_scopes_are_dissolved_and_their_names_made_unique():
    built = kernel("""
        mov.u32 %r1, 1;
        bra L;
    L:  {
            .reg .b32 %r<3>, x;
            .reg .pred p;
            .shared .b32 s[2];
            .param .b32 a;
            .local .b8 l[4];
            mov.u32 %r1, %r4;
    L:      setp.eq.u32 p, %r1, x;
            @!p bra L;
            { .reg .b32 x; mov.u32 x, %r2; bra M; }
    M:      mov.u32 x, s;
            call f, (a);
        }
        { .param .b32 a; .reg .b32 p; mov.u32 p, %r1; st.param.b32 [a+0], p; }
        mov.u32 %r1, x;
        bra L;
    """)
    inner = Reg("%r$1_1", "b32")
    x, second_x = Reg("x$1", "b32"), Reg("x$2", "b32")
    p, q = Reg("p$1", "pred"), Reg("p$2", "b32")
    assert built.body == (
        *(Instr("mov.u32", (R[1], IntImm(1))), Instr("bra", (Symbol("L"),)), Label("L")),
        *(Instr("mov.u32", (inner, R[4])), Label("L$1"), Instr("setp.eq.u32", (p, inner, x))),
        Instr("bra", (Symbol("L$1"),), Guard(p, negated=True)),
        *(Instr("mov.u32", (second_x, Reg("%r$1_2", "b32"))), Instr("bra", (Symbol("M$1"),)), Label("M$1")),
        *(Instr("mov.u32", (x, Symbol("s$1"))), Instr("call", (Symbol("f"), Arguments((Symbol("a$1"),))))),
        *(Instr("mov.u32", (q, R[1])), Instr("st.param.b32", (Address(Symbol("a$2")), q))),
        *(Instr("mov.u32", (R[1], Symbol("x"))), Instr("bra", (Symbol("L"),))),
    )
    assert built.shared == (Shared("s$1", 8, 4),)
    assert built.variables == (
        Variable("param", "a$1", 4, 4, scalar="b32"),
        Variable("local", "l$1", 4, 1),
        Variable("param", "a$2", 4, 4, scalar="b32"),
    )
    assert (
        built.registers[-6:]
        == (
            RegisterRange("%r$1_", "b32", 3),
            RegisterRange("x$1", "b32", 0),
            RegisterRange("p$1", "pred", 0),
            RegisterRange("x$2", "b32", 0),
            RegisterRange("p$2", "b32", 0),
        )[-6:]
        or len(built.registers) == 11
    )


def test_new_names_avoid_those_of_the_text():
    built = kernel("{ .reg .b32 a; mov.u32 a, 1; } bra a$1; a$1: ret;")
    assert built.body[0] == Instr("mov.u32", (Reg("a$$1", "b32"), IntImm(1)))


def test_lists_and_prototypes_of_a_scope_are_renamed_with_it():
    built = kernel("{ T: .branchtargets L, M; brx.idx %r1, T; L: ret; } M: ret;")
    assert built.body == (
        *(Targets("T$1", "branchtargets", ("L$1", "M")), Instr("brx.idx", (R[1], Symbol("T$1")))),
        *(Label("L$1"), RET, Label("M"), RET),
    )


# ------------------------------------------------------------------------------ operands


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("1<<4", 16), ("(2*3+1)", 7), ("2+3*4", 14), ("10-4-3", 3), ("-7/2", -3), ("7/-2", -3)),
        *(("-7 % 4", 1), ("1<<2+1", 8), ("7 & 3 ^ 1 | 8", 10), ("1 < 2 == 1", 1), ("3 != 3 || 2 && 1", 1)),
        *(("0 && 1", 0), ("0 ? 2 : 1 ? 3 : 4", 3), ("2 >= 3 ? 5 : 6", 6), ("~0", -1), ("!5", 0)),
        *(("!!5 + !0", 2), ("- -4", 4), ("+4", 4), ("-1U", -1), ("-1 < 1U", 0), ("-1 < 1", 1)),
        *(("-8 >> 1", -4), ("-8U >> 60", 15), ("(.u64)-8 >> 60", 15)),
        *(("(.s64)0xFFFFFFFFFFFFFFFF >> 4", -1), ("1 << 64", 0), ("WARP_SZ", 32), ("WARP_SZ*2", 64)),
        *(("1.5 > 1.0", 1), ("0xFFFFFFFFFFFFFFFF", 0xFFFFFFFFFFFFFFFF), ("0xFFFFFFFFFFFFFFFF * 1", -1)),
        ("0777 + 0x10U + 0b11", 530),
    ],
)
def test_constant_expressions_are_evaluated(text, value):
    assert operand(f"mov.b64 %rd1, {text};") == IntImm(value)


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        *(("1.0+2.0", 0x40400000), ("-(1.0)", 0xBF800000), (".5", 0x3F000000), ("3.0/2.0", 0x3FC00000)),
        *(("1 ? 2.0 : 1.0", 0x40000000), ("0d3FF0000000000000", 0x3F800000)),
        ("0d3FF0000000000000 * 2.0", 0x40000000),
    ],
)
def test_expressions_of_floats_are_evaluated(text, bits):
    assert operand(f"mov.f32 %f1, {text};") == FloatImm(bits, 32)


@pytest.mark.parametrize(
    ("instr", "found"),
    [
        ("ld.local.u32 %r1, [16];", Address(None, 16)),
        ("ld.local.u32 %r1, [4*4];", Address(None, 16)),
        ("ld.shared.u32 %r1, [%r2+4-8];", Address(R[2], -4)),
        ("ld.shared.u32 %r1, [%r2+(-4)];", Address(R[2], -4)),
        ("ld.shared.u32 %r1, [s+4*2+1];", Address(Symbol("s"), 9)),
        ("mov.u32 %r1, s+4;", Symbol("s", 4)),
        ("mov.u32 %r1, s+4+4;", Symbol("s", 8)),
        ("setp.lt.and.s32 %p1, %r1, %r2, !%p2;", Not(P[2])),
        ("mov.pred %p1, !%p2;", Not(P[2])),
        ("ld.global.b32 {%r1}, [%rd1];", Address(RD[1])),
    ],
)
def test_operands_of_all_kinds_are_read(instr, found):
    assert operand(instr) == found


def test_unwanted_results_are_sinks():
    assert operand("mov.b64 {_, %r1}, %rd1;", 0) == Vector((Sink(), R[1]))
    assert operand("setp.eq.u32 %p1|_, %r1, %r2;", 0) == Pair(P[1], Sink())
    assert operand("setp.eq.u32 _|%p1, %r1, %r2;", 0) == Pair(Sink(), P[1])
    assert operand("atom.global.add.u32 _, [%rd1], 1;", 0) == Sink()


def test_braces_around_one_register_that_is_no_vector_are_dropped():
    assert operand("ld.global.b32 {%r1}, [%rd1];", 0) == R[1]


def test_tensor_coordinates_are_part_of_an_address():
    load = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
    assert operand(f"{load} [%r1], [%rd1, {{%r2, 3}}], [%r4];", 1) == TensorAddress(
        RD[1], 0, (R[2], IntImm(3))
    )
    assert operand(f"{load} [%r1], [%rd1+64, {{%r2, %r3}}], [%r4];", 1) == TensorAddress(
        RD[1], 64, (R[2], R[3])
    )


def test_comments_of_both_kinds_may_be_anywhere():
    text = "add.u32 /* a */ %r1, // b\n// c\n%r2 /* d\n*/, // e\n3 // f\n;"
    assert kernel(text) == kernel("add.u32 %r1, %r2, 3;")


# ------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("body", "column", "message"),
    [
        (
            "sured.b.add.1d.u32.trap [%rd1, {%r1}], %r2;",
            1,
            "sured.b.add.1d.u32.trap is not read: reductions on surfaces are not modelled",
        ),
        (
            "istypep.texref %p1, %rd1;",
            1,
            "istypep.texref is not read: handles have no types of their own here",
        ),
        (
            "multimem.st.global.f32 [%rd1], %f1;",
            1,
            "multimem.st.global.f32 is not read: memory of several GPUs is not modelled",
        ),
        (".reg .v2 .pred v;", 10, "a vector register has at most 16 bytes and no predicates, got .v2 .pred"),
        (".reg .v4 .b64 v;", 10, "a vector register has at most 16 bytes and no predicates, got .v4 .b64"),
        (".reg .v3 .b32 v;", 6, "wanted a type such as .u32, got '.v3'"),
        (
            ".reg .v2 .f32 v; mov.f32 v.z, v.x;",
            26,
            "v.z: the elements of a vector register of 2 are .x,.y or .r,.g",
        ),
        (
            ".reg .v4 .f32 v<2>; mov.f32 v1.xy, v0.x;",
            29,
            "v1.xy: the elements of a vector register of 4 are .x,.y,.z,.w or .r,.g,.b,.a",
        ),
        (".reg .v2 .f32 v; ld.global.f32 %f0, [v];", 38, "an address must be a register or a name"),
        (".reg .v2 .f32 v; mov.b64 %rd0, {v, v};", 33, "wanted a register or a number in a vector, got 'v'"),
        (".local .pred x;", 8, "only registers can be of type .pred"),
        (".shared .u32 x = 1;", 16, "a variable in shared memory has no initial value"),
        (".shared .u32 x[];", 14, "an array without a size must be .extern or have an initial value"),
        (".shared .u32 x[0];", 16, "an array has 1 or more elements"),
        (".shared .u32 x[2][];", 19, "only the first size of an array may be left out"),
        ("{ .reg .b32 a, a; }", 16, "'a' is declared twice"),
        ("{ a: a: }", 6, "'a' is declared twice"),
        ("a: ret; a: ret;", 9, "'a' is declared twice"),
        ("a: ret; a: .branchtargets a;", 9, "'a' is declared twice"),
        ("b: .callprototype _ ; b: ret;", 23, "'b' is declared twice"),
        (".reg .b32 a; a: ret;", 14, "'a' is declared twice"),
        (".reg .b32 a<2>, a<3>;", 17, "'a' is declared twice"),
        ("{ .reg .b32 a<2>, a, a; }", 22, "'a' is declared twice"),
        ("mov.u32 %r1, 1/0;", 15, "division by zero"),
        ("mov.u32 %r1, ~1.0;", 14, "this operator takes integers only"),
        ("mov.u32 %r1, 1 + 1.0;", 16, "this operator takes integers only"),
        ("mov.f32 %f1, 0f3F800000 + 1.0;", 25, "wanted ',' or ';' after an operand, got '+'"),
        ("mov.f32 %f1, 1.0 + 0f3F800000;", 20, "a float in hexadecimal may not be part of an expression"),
        ("mov.f32 %f1, 1.0 ? 1 : 2;", 18, "the condition must be an integer"),
        ("mov.f32 %f1, 1 ? 1 : 2.0;", 16, "both choices must be integers, or both floating-point numbers"),
        ("mov.u32 %r1, 0x10000000000000000;", 14, "0x10000000000000000 does not fit 64 bits"),
        ("mov.u32 %r1, 1 ? 2;", 19, "wanted ':', got ';'"),
        ("mov.pred %p1, !x;", 16, "after '!' there must be a predicate register or a number"),
        ("ld.shared.u32 %r1, [%r1+1.0];", 25, "wanted an offset in bytes, got a floating-point number"),
        ("call f, (%tid.x);", 10, "wanted a register or a number in arguments, got '%tid.x'"),
        ("P: .callprototype _ .weak;", 21, "wanted ';' after a prototype, got '.weak'"),
        (".loc 1 2 3, other", 13, "wanted function_name or inlined_at, got 'other'"),
        (".pragma nounroll;", 9, "wanted a string such as \"nounroll\", got 'nounroll'"),
    ],
)
def test_what_a_body_cannot_have_is_shown(body, column, message):
    result = refusal(f".entry k {{ {REGISTERS}{body}\n}}")
    assert result == f"PTX text, line 5, column {column}: {message}\n{body}\n{' ' * (column - 1)}^"


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        (".alias f, g;", 8, "no function 'f' is declared above"),
        (
            ".global .texref t;",
            9,
            ".texref is not read: references to textures are not modelled; take a texture's or a "
            "surface's handle as a .u64 parameter, and pass a ptxgen.texture.Texture or Surface",
        ),
        (
            ".entry k(.param .surfref t) { ret; }",
            17,
            ".surfref is not read: references to textures are not modelled; take a texture's or a "
            "surface's handle as a .u64 parameter, and pass a ptxgen.texture.Texture or Surface",
        ),
        (".entry k(.reg .b32 t) { ret; }", 21, "parameter 't' of a kernel must be in .param"),
        (".func f(.param .b8 t[]) { ret; }", 20, "a parameter's array must have a size"),
        (".func f { ret; } .func f { ret; }", 24, "function 'f' is defined twice"),
        (".global .f32 x = 1;", 18, "wanted a floating-point number for a .f32, got an integer"),
        (".global .u32 x = 1.0;", 18, "wanted an integer for a .u32, got a floating-point number"),
        (".global .u32 x[1] = {1, 2};", 25, "wanted 1 or fewer initial values here"),
        (".global .u8 x = 0xFE(y);", 17, "a mask is 0xFF, 0xFF00 and so on, got 0xFE"),
        ('.global .b8 x[2] = "a";', 20, "wanted '{', got '\"a\"'"),
        (".global .u8 x[1<<50];", 13, "a variable of 1125899906842624 bytes is too large"),
        (".section .debug { .b8 1", 24, "wanted '}' after a section, got the end of the text"),
    ],
)
def test_what_a_module_cannot_have_is_shown(text, column, message):
    result = refusal(text)
    assert result == f"PTX text, line 4, column {column}: {message}\n{text}\n{' ' * (column - 1)}^"


def test_an_unknown_platform_option_is_refused():
    with refused(
        ParseError,
        "PTX text, line 2, column 17: wanted one of debug, texmode_unified, texmode_independent, "
        "map_f64_to_f32, got 'debugs'; did you mean 'debug'?\n.target sm_90a, debugs\n"
        "                ^",
    ):
        parse(".version 9.0\n.target sm_90a, debugs\n")


@pytest.mark.parametrize("nested", ["(" * 5000, "-" * 5000, "1?" * 5000, "1+(" * 5000, "{" * 5000])
def test_deep_nesting_is_an_error_not_a_crash(nested):
    assert refusal(f".entry k {{ {REGISTERS} mov.u32 %r1, {nested}").startswith("PTX text, line 5")
    assert refusal(f".global .u32 x = {nested}").startswith("PTX text, line 4")


# ------------------------------------------------------------------------------ fuzz


def parsed_or_refused(text: str) -> None:
    """Nothing else happens; what is parsed is read back."""
    try:
        module = parse(text)
    except ParseError:
        return
    assert parse(render(module)) == module


WORDS = """.entry k { } .reg .b32 %r<5>; a; mov.u32 %r1, a ; , [ ] ( ) + - * % ? : ! ~ _ L: bra L; 1
0f3F800000 0d 1.5 0x 09 99999999999999999999999999 WARP_SZ .global .u8 x[2] = " generic .param p; f,
call ( @%p // /* */ \\ é ٣ .func f( .shared .u32 s[ %tid.x .pragma .loc .align < > 0xFF(y)"""
PIECES = st.sampled_from([*WORDS.split(), "\n", "\0"])


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.one_of(st.text(max_size=200), st.lists(PIECES, max_size=40).map(" ".join)))
def test_any_text_is_parsed_or_refused(text):
    parsed_or_refused(text)
    parsed_or_refused(HEAD + text)
    parsed_or_refused(f"{HEAD}.entry k {{ {REGISTERS} {text}")


def mutated(text: str, seed: int, changes: int) -> str:
    """A text with some of its tokens deleted, doubled, exchanged or replaced by another."""
    chance = random.Random(seed)
    words = Tokens(text).words[:-1]
    words = [word + "\n" if word[:2] == "//" else word for word in words]
    for _ in range(changes):
        location, other = chance.randrange(len(words)), chance.randrange(len(words))
        match chance.randrange(4):
            case 0:
                del words[location]
            case 1:
                words.insert(location, words[location])
            case 2:
                words[location], words[other] = words[other], words[location]
            case _:
                words[location] = words[other]
    return " ".join(words)


SMALL = [path for path in FIXTURES if path.stat().st_size < 12_000]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SMALL), st.integers(0, 2**32), st.integers(1, 4))
def test_mutated_modules_are_parsed_or_refused(path, seed, changes):
    parsed_or_refused(mutated(path.read_text(), seed, changes))


@pytest.mark.nightly
@settings(max_examples=5000, deadline=None)
@given(st.sampled_from(FIXTURES), st.integers(0, 2**32), st.integers(1, 8))
def test_many_mutated_modules_are_parsed_or_refused(path, seed, changes):
    parsed_or_refused(mutated(path.read_text(), seed, changes))
