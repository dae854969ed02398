from __future__ import annotations

import pytest
from hypothesis import given, settings
from random_kernels import MODULES

from ptxgen.check.verify import verify
from ptxgen.errors import ParseError
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
    Origin,
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
from ptxgen.parse import parse
from ptxgen.text import render

HEAD = ".version 7.0\n.target sm_80\n.address_size 64\n"
REGISTERS = (
    ".reg .pred %p<4>;\n.reg .b16 %rs<4>;\n.reg .b32 %r<9>, %one;\n"
    ".reg .b64 %rd<4>;\n.reg .f32 %f<9>;\n.reg .f64 %fd<4>;\n"
)
FIRST_LINE = 11  # of a body in `kernel_text`


def kernel_text(body: str) -> str:
    return f"{HEAD}.entry k\n{{{REGISTERS}{body}\n}}\n"


def body_of(text: str) -> tuple[object, ...]:
    return parse(kernel_text(text)).kernels[0].body


def operand(text: str) -> object:
    """The last operand of the one instruction in `text`."""
    (instr,) = body_of(text)
    assert isinstance(instr, Instr)
    return instr.operands[-1]


def refusal(text: str) -> str:
    with pytest.raises(ParseError) as caught:
        parse(text)
    return str(caught.value)


def body_refusal(body: str) -> str:
    return refusal(kernel_text(body))


R = [Reg(f"%r{i}", "b32") for i in range(9)]
F = [Reg(f"%f{i}", "f32") for i in range(9)]


def test_everything_that_is_printed_is_read_back():
    kernel = Kernel(
        "first",
        params=(Param("Q", "u64"), Param("n", "f32")),
        registers=(
            RegisterRange("%p", "pred", 3),
            RegisterRange("%f", "f32", 9),
            RegisterRange("%r", "b32", 9),
            RegisterRange("%lonely", "b32", 0),
        ),
        body=(
            Note("S = Q K^T"),
            Note(""),
            Instr("mov.u32", (R[1], Special("%tid.x"))),
            Instr("mov.u32", (Reg("%lonely", "b32"), Symbol("smem"))),
            Label("$loop_1", "nounroll"),
            Note("P"),
            Label("$loop_2"),
            Instr("bra", (Symbol("$loop_1"),), Guard(Reg("%p1", "pred"), negated=True)),
            Instr("st.shared.v4.f32", (Address(R[5], -16), Vector(tuple(F[1:5])))),
            Instr("fma.rn.f32", (F[1], F[2], FloatImm(0x80000000, 32), F[3])),
            Instr(
                "shfl.sync.bfly.b32",
                (Pair(R[1], Reg("%p2", "pred")), R[2], IntImm(1), IntImm(31), IntImm(-1)),
            ),
            Instr("ret"),
        ),
        shared=(Shared("scratch", 1024, 16),),
        threads=128,
        min_ctas=2,
        dynamic_shared="smem",
        regions=(Region("K_tile", 0, 16896, 16), Region("V_tile", 16896, 64, 64)),
    )
    module = Module((7, 0), "sm_80", (kernel, Kernel("second", (), (), (Instr("ret"),))), ("a", "", "b"))
    assert parse(render(module)) == module


@settings(max_examples=60, deadline=None)
@given(MODULES)
def test_random_kernels_are_read_back_and_have_well_typed_operands(module):
    assert parse(render(module)) == module
    # Nothing initialises the registers, the target lacks a few instructions, and a literal may have
    # become an address.
    assert {problem.kind for problem in verify(module)} <= {"undefined", "gate", "alignment"}


def test_an_instruction_remembers_its_line():
    first, second = body_of("mov.u32 %r1, 1;\n\nmov.u32\n%r2, 2;")
    assert isinstance(first, Instr)
    assert isinstance(second, Instr)
    assert first.origin == Origin(None, FIRST_LINE)
    assert second.origin == Origin(None, FIRST_LINE + 2)


def test_text_is_free_form():
    compact = body_of("mov.u32 %r1,1;mov.u32 %r2,\n\t2\n;$l:bra $l;")
    assert compact == body_of("mov.u32 %r1, 1;\nmov.u32 %r2, 2;\n$l:\nbra $l;")


def test_windows_line_ends_change_nothing():
    text = kernel_text("// note\nmov.u32 %r1, 1;\n$l:\nret;")
    assert parse(text.replace("\n", "\r\n")) == parse(text)


def test_only_a_comment_with_a_line_to_itself_is_a_note():
    text = """
        // a note
        mov.u32 %r1, 1; // not a note
        /* not a note
           // nor this */
        mov.u32 // not a note
            // nor this
            %r2, /* nor this */ 2;
        //another"""
    one, two = body_of("mov.u32 %r1, 1; mov.u32 %r2, 2;")
    assert body_of(text) == (Note("a note"), one, two, Note("another"))


def test_comments_outside_bodies_are_skipped():
    text = f"{HEAD}// one\n.entry k( // two\n// three\n.param .u32 n)\n// four\n{{ ret; }}\n// five"
    kernel = Kernel("k", (Param("n", "u32"),), (), (Instr("ret"),), linkage="")
    assert parse(text).kernels == (kernel,)


def test_the_comment_at_the_head_is_the_header():
    assert parse(f"//\n// a\n//\n// b\n//\n{HEAD}").header == ("a", "", "b")
    assert parse(f"// a\n// b\n{HEAD}").header == ("a", "b")
    assert parse(HEAD).header == ()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("10", 10), ("0", 0), ("-10", -10), ("10U", 10), ("0x1F", 31), ("0XffffFFFFU", 0xFFFFFFFF)),
        *(("0b101", 5), ("0B11U", 3), ("017", 15), ("-0x10", -16)),
    ],
)
def test_integers_of_all_bases_are_read(text, value):
    assert operand(f"mov.u32 %r1, {text};") == IntImm(value)


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        *(("0f3F800000", 0x3F800000), ("0F3f800000", 0x3F800000), ("-0f3F800000", 0xBF800000)),
        *(("1.5", 0x3FC00000), ("-1.5", 0xBFC00000), ("1.", 0x3F800000), ("1e1", 0x41200000)),
        *(("1.0e-1", 0x3DCCCCCD), ("1e300", 0x7F800000)),
    ],
)
def test_floats_are_read_as_bits_of_the_operand(text, bits):
    assert operand(f"mov.f32 %f1, {text};") == FloatImm(bits, 32)


def test_doubles_keep_64_bits():
    assert operand("mov.f64 %fd1, 1.5;") == FloatImm(0x3FF8000000000000, 64)
    assert operand("mov.f64 %fd1, -0d3FF8000000000000;") == FloatImm(0xBFF8000000000000, 64)


def test_a_decimal_in_a_vector_is_as_wide_as_its_elements():
    vector = operand("st.shared.v2.f32 [%r1], {1.0, %f1};")
    assert vector == Vector((FloatImm(0x3F800000, 32), F[1]))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("[%r1]", Address(R[1])),
        ("[ %r1 + 4 ]", Address(R[1], 4)),
        ("[%r1+-4]", Address(R[1], -4)),
        ("[%r1-4]", Address(R[1], -4)),
        ("[%r1+0x10]", Address(R[1], 16)),
        ("[table+8]", Address(Symbol("table"), 8)),
    ],
)
def test_addresses_are_read(text, address):
    assert operand(f"ld.shared.f32 %f1, {text};") == address


def test_registers_take_the_class_their_type_is_kept_in():
    text = f"{HEAD}.entry k {{ .reg .u32 %a, %b<2>; .reg .f16 %h; .reg .s64 plain; ret; }}"
    assert parse(text).kernels[0].registers == (
        RegisterRange("%a", "b32", 0),
        RegisterRange("%b", "b32", 2),
        RegisterRange("%h", "b16", 0),
        RegisterRange("plain", "b64", 0),
    )


def test_a_register_may_have_a_plain_name():
    text = f"{HEAD}.entry k {{ .reg .u32 plain; mov.u32 plain, 1; }}"
    assert parse(text).kernels[0].body == (Instr("mov.u32", (Reg("plain", "b32"), IntImm(1))),)


@pytest.mark.parametrize("declared", ["%t<8>, %t", "%t, %t<8>"])
def test_a_range_and_a_register_without_a_number_may_be_called_alike(declared):
    text = f"{HEAD}.entry k {{ .reg .b32 {declared}; mov.u32 %t, 1; mov.u32 %t7, %t; }}"
    kernel = parse(text).kernels[0]
    alone, last = Reg("%t", "b32"), Reg("%t7", "b32")
    assert set(kernel.registers) == {RegisterRange("%t", "b32", n) for n in (0, 8)}
    assert kernel.body == (Instr("mov.u32", (alone, IntImm(1))), Instr("mov.u32", (last, alone)))
    inner = text.replace("{ .reg", "{ { .reg").replace("}", "} }")
    kernel = parse(inner).kernels[0]
    first, second = (r.prefix + "7" * bool(r.count) for r in kernel.registers)
    names = (first, second) if kernel.registers[0].count == 0 else (second, first)
    assert kernel.body == tuple(
        Instr("mov.u32", operands)
        for operands in ((Reg(names[0], "b32"), IntImm(1)), (Reg(names[1], "b32"), Reg(names[0], "b32")))
    )


def test_shared_variables_of_any_type_are_bytes():
    text = f"{HEAD}.entry k {{ .shared .f32 a[4][8]; .shared .align 16 .b8 b[3]; .shared .u64 c; }}"
    assert parse(text).kernels[0].shared == (Shared("a", 128, 4), Shared("b", 3, 16), Shared("c", 8, 8))


def test_block_sizes_multiply():
    assert parse(f"{HEAD}.entry k .maxntid 16, 8 {{ ret; }}").kernels[0].threads == 128
    assert parse(f"{HEAD}.entry k .maxntid 64 {{ ret; }}").kernels[0].threads == 64


def test_the_space_of_a_pointer_parameter_is_skipped():
    text = f"{HEAD}.entry k(.param .u64 .ptr .global .align 16 Q, .param .u32 n) {{ ret; }}"
    assert parse(text).kernels[0].params == (Param("Q", "u64"), Param("n", "u32"))


def test_a_kernel_that_names_the_dynamic_array_has_one_and_another_has_none():
    text = (
        f"{HEAD}.extern .shared .align 16 .b8 smem[];\n"
        ".entry a { .reg .u32 %r; mov.u32 %r, smem; ret; }\n.entry b { ret; }\n"
    )
    assert [kernel.dynamic_shared for kernel in parse(text).kernels] == ["smem", ""]


def test_the_alignment_of_a_dynamic_array_is_kept():
    text = (
        f"{HEAD}.extern .shared .align 128 .b8 smem[];\n.entry k {{ .reg .u32 %r; mov.u32 %r, smem; ret; }}\n"
    )
    module = parse(text)
    assert ".extern .shared .align 128 .b8 smem[];\n" in render(module)
    assert parse(render(module)) == module


# ------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("body", "column", "message"),
    [
        (
            "\t@%p1 fmaa.rn.f32 %f1, %f2, %f3, %f4;",
            7,
            "no instruction prints the opcode 'fmaa.rn.f32'; did you mean 'fma'?",
        ),
        ("exit.uni;", 1, "no instruction prints the opcode 'exit.uni'; exit is declared as: exit"),
        (
            "mov.u32 %r1, %r9;",
            14,
            "register %r9 is not declared in a .reg line, and no special register '%r9'",
        ),
    ],
)
def test_an_unknown_name_is_shown_with_a_caret(body, column, message):
    caret = "\t" * body.count("\t") + " " * (column - 1 - body.count("\t")) + "^"
    assert body_refusal(body) == f"PTX text, line {FIRST_LINE}, column {column}: {message}\n{body}\n{caret}"


def test_a_misspelled_special_register_is_refused():
    assert body_refusal("mov.u32 %r1, %tid.w;").startswith(
        f"PTX text, line {FIRST_LINE}, column 14: register %tid.w is not declared in a .reg line, "
        "and no special register '%tid.w'; did you mean '%tid."
    )


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("mov.u32 %r1 %r2;", 13, "wanted ',' or ';' after an operand, got '%r2'"),
        ("mov.u32 %r1, ;", 14, "wanted an operand, got ';'"),
        ("mov.u32 %r1, 09;", 14, "09 is not an integer literal; it begins with 0, so it is octal"),
        ("mov.u32 %r1, -%r2;", 15, "wanted a number, got '%r2'"),
        ("ld.shared.f32 %f1, [%r1*4];", 24, "wanted '+', '-' or ']' in an address, got '*'"),
        ("ld.shared.f32 %f1, [%r1;", 24, "wanted '+', '-' or ']' in an address, got ';'"),
        ("ld.shared.f32 %f1, [%r1+%r2];", 25, "wanted an offset in bytes, got '%r2'"),
        ("ld.shared.f32 %f1, [%tid.x];", 21, "an address must be a register or a name"),
        ("st.shared.v2.f32 [%r1], {%f1, x};", 31, "wanted a register or a number in a vector, got 'x'"),
        ("@%tid.x ret;", 2, "a guard must be a predicate register"),
        ("shfl.sync.bfly.b32 %r1|x, %r2, 1, 31, -1;", 24, "the second of two results must be a register"),
        (
            ".regs .b32 %x;",
            1,
            "in a body, .reg, .shared, .local, .param, .global, .const, .pragma and .loc are read, "
            "got '.regs'; did you mean '.reg'?",
        ),
        (".reg .b33 %x;", 6, "wanted a type such as .u32, got '.b33'; did you mean '.b32'?"),
        (".reg .b32 %r<5>;", 11, "'%r' is declared twice"),
        ("ret ` ;", 5, "'`' begins no token of PTX"),
        ("/* open", 1, "this comment has no end; add */"),
    ],
)
def test_what_is_not_understood_is_shown(text, column, message):
    if text.startswith("/*"):
        result = body_refusal(text)
        assert result.startswith(f"PTX text, line {FIRST_LINE}, column {column}: {message}\n{text}")
        return
    assert body_refusal(text) == (
        f"PTX text, line {FIRST_LINE}, column {column}: {message}\n{text}\n{' ' * (column - 1)}^"
    )


@pytest.mark.parametrize(
    ("message", "text"),
    {
        "line 1, column 1: wanted '.version', got the end of the text": "",
        "line 1, column 10: wanted a version such as 7.0, got 'seven'": ".version seven",
        "line 2, column 9: wanted a target such as sm_80, got '80'": ".version 7.0\n.target 80",
        "line 3, column 1: wanted '.address_size', got '.entry'": ".version 7.0\n.target sm_80\n.entry k { }",
        "line 3, column 15: only 64-bit addresses are read; wanted 64": HEAD.replace("64", "32"),
        "line 4, column 10: wanted .entry, .func, .global, .const, .shared, .local at module "
        "level, got '.fun'; did you mean '.func'?": f"{HEAD}.visible .fun f {{ }}",
        "line 4, column 10: wanted a directive such as .maxntid, or {, got '.maxntids'; "
        "did you mean '.maxntid'?": f"{HEAD}.entry k .maxntids 4 {{ }}",
        "line 4, column 16: wanted an instruction, got the end of the text": f"{HEAD}.entry k {{ ret;",
        "line 4, column 15: wanted an operand, got the end of the text": f"{HEAD}.entry k {{ ret",
    }.items(),
)
def test_a_broken_frame_is_refused(text, message):
    assert refusal(text).splitlines()[0] == f"PTX text, {message}"


def test_a_line_that_ends_in_carriage_return_is_shown_without_it():
    assert body_refusal("bad;\r").splitlines()[1] == "bad;"
