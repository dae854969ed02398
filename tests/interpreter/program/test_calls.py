from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np
import pytest
from interpreter.programs import at, located, program, ptx, refused, result_of

from ptxgen.errors import PtxGenError, TrapError, TypeMismatchError
from ptxgen.interpreter import DeviceArena, Result, run

ADD_ONE = ".func (.reg .u32 out) f(.reg .u32 n)\n{\n\tadd.u32 out, n, 1;\n\tret;\n}\n"
TIMES_100 = ".func (.reg .u32 out) g(.reg .u32 n)\n{\n\tmul.lo.u32 out, n, 100;\n\tret;\n}\n"
ONE_TO_ONE = "    shape: .callprototype (.reg .u32 _) _ (.reg .u32 _);\n"


def failure(text: str, error: type[PtxGenError] = TrapError, **how: Any) -> str:
    return refused(text, [np.zeros(64, np.uint32)], error, **how)


# ---- what calls give and get --------------------------------------------------------------------


def test_several_results_come_in_registers() -> None:
    functions = """
    .func (.reg .u32 a, .reg .u32 b) f(.reg .u32 n, .reg .u32 m)
    {
        add.u32 a, n, m;
        mul.lo.u32 b, n, 10;
        ret;
    }
    """
    body = "    call (%r4, %r5), f, (%r3, 7);\n    mad.lo.u32 %r4, %r5, 1000, %r4;"
    assert result_of(body, functions) == [i + 7 + 10_000 * i for i in range(32)]


def test_arguments_may_be_numbers_predicates_and_64_bits_wide() -> None:
    functions = """
    .func (.reg .pred out, .reg .f32 twice, .reg .b64 wide)
        f(.reg .pred in, .reg .f32 n, .reg .b64 big, .reg .b16 small)
    {
        .reg .b64 more;
        not.pred out, in;
        add.f32 twice, n, n;
        cvt.u64.u16 more, small;
        add.s64 wide, big, more;
        ret;
    }
    """
    body = """
    setp.gt.u32 %p1, %r3, 4;
    mov.u16 %rs1, %tid.x;
    call (%p2, %f1, %rd5), f, (%p1, 0f40400000, 0x100000000, %rs1);
    selp.u32 %r4, 1, 0, %p2;
    cvt.rzi.u32.f32 %r5, %f1;
    mad.lo.u32 %r4, %r5, 10, %r4;
    shr.u64 %rd6, %rd5, 32;
    cvt.u32.u64 %r6, %rd6;
    cvt.u32.u64 %r7, %rd5;
    mad.lo.u32 %r4, %r6, 100, %r4;
    mad.lo.u32 %r4, %r7, 1000, %r4;
    """
    assert result_of(body, functions) == [160 + (i <= 4) + 1000 * i for i in range(32)]


def test_a_result_that_nobody_wants_goes_nowhere() -> None:
    assert result_of("    mov.u32 %r4, 3;\n    call (_), f, (%r3);", ADD_ONE) == [3] * 32


def test_a_guard_keeps_threads_from_a_call() -> None:
    body = "    setp.lt.u32 %p1, %r3, 5;\n    mov.u32 %r4, 77;\n    {} call (%r4), f, (%r3);"
    assert result_of(body.format("@%p1"), ADD_ONE) == [1, 2, 3, 4, 5] + [77] * 27
    assert result_of(body.format("@!%p1"), ADD_ONE) == [77] * 5 + list(range(6, 33))
    nobody = body.replace("%r3, 5", "%r3, 0")
    assert result_of(nobody.format("@%p1"), ADD_ONE) == [77] * 32


@pytest.mark.parametrize(
    "function",
    [".func f\n{\n\tret;\n}\n", ".func f()\n{\n}\n", ".func f();\n.func f()\n{\n\tbra end;\nend:\n}\n"],
    ids=["without a list of parameters", "without instructions", "declared before, label at end"],
)
@pytest.mark.parametrize("call", ["call f;", "call f, ();"])
def test_functions_of_nothing_return(function: str, call: str) -> None:
    assert result_of(f"    mov.u32 %r4, 7;\n    {call}", function) == [7] * 32


# ---- ways out of a function ---------------------------------------------------------------------


def test_a_function_that_falls_off_its_end_returns() -> None:
    assert result_of("    call (%r4), f, (%r3);", ADD_ONE.replace("\tret;\n", "")) == [
        i + 1 for i in range(32)
    ]


def test_threads_return_from_different_places() -> None:
    functions = """
    .func (.reg .u32 out) f(.reg .u32 n)
    {
        .reg .pred p;
        mov.u32 out, 0;
    again:
        setp.eq.u32 p, out, n;
        @p ret;
        add.u32 out, out, 1;
        setp.gt.u32 p, out, 20;
        @!p bra again;
        mov.u32 out, 99;
    }
    """
    want = [i if i <= 20 else 99 for i in range(32)]
    assert result_of("    call (%r4), f, (%r3);", functions) == want


def test_threads_may_exit_inside_a_function() -> None:
    functions = """
    .func f(.reg .u32 n)
    {
        .reg .pred p;
        setp.gt.u32 p, n, 3;
        @p exit;
        ret;
    }
    """
    body = "    call f, (%r3);\n    mov.u32 %r4, 9;\n    bar.sync 0;"
    assert result_of(body, functions, threads=64) == [9] * 4 + [0] * 60


def test_a_call_as_the_last_instruction_of_a_function_returns_through_both() -> None:
    functions = (
        ADD_ONE
        + """
    .func (.reg .u32 out) g(.reg .u32 n)
    {
        call (out), f, (n);
    }
    .func (.reg .u32 out) h(.reg .u32 n)
    {
        call (out), g, (n);
    }
    """
    )
    assert result_of("    call (%r4), h, (%r3);", functions) == [i + 1 for i in range(32)]


# ---- recursion ----------------------------------------------------------------------------------

SUM = """
.func (.param .b32 total) f(.param .b32 given)
{
    .local .align 4 .b32 kept[4];
    .reg .b32 n, less, sum;
    .reg .pred p;
    ld.param.u32 n, [given];
    st.local.u32 [kept+8], n;
    mov.u32 sum, 0;
    setp.eq.u32 p, n, 0;
    @p bra done;
    sub.u32 less, n, 1;
    {
        .param .b32 arg;
        .param .b32 result;
        st.param.b32 [arg], less;
        call (result), f, (arg);
        ld.param.b32 sum, [result];
    }
done:
    ld.local.u32 n, [kept+8];
    add.u32 sum, sum, n;
    st.param.b32 [total], sum;
    ret;
}
"""
CALL_SUM = """
    {{
        .param .b32 arg;
        .param .b32 result;
        st.param.b32 [arg], {};
        call (result), f, (arg);
        ld.param.b32 %r4, [result];
    }}
"""


def test_each_thread_recurses_as_deep_as_it_wants_with_local_memory_of_its_own() -> None:
    want = [i * (i + 1) // 2 for i in range(70)]
    assert result_of(CALL_SUM.format("%r3"), SUM, threads=70, sanitize=True) == want


def test_lanes_of_different_depth_meet_in_shuffles() -> None:
    functions = """
    .func (.reg .u32 out) f(.reg .u32 n)
    {
        .reg .pred p;
        .reg .u32 less, third;
        mov.u32 out, 1;
        setp.eq.u32 p, n, 0;
        @p bra done;
        sub.u32 less, n, 1;
        call (out), f, (less);
    done:
        shfl.sync.idx.b32 third, out, 3, 31, -1;
        add.u32 out, out, third;
        ret;
    }
    """
    # Each return of lane 3 doubles what it has; the others, gone by then, took part as often as
    # they were deep.
    body = "    and.b32 %r5, %r3, 3;\n    call (%r4), f, (%r5);"
    assert result_of(body, functions) == [2, 4, 8, 16] * 8


@pytest.mark.slow
def test_recursion_without_end_is_stopped_where_it_happens() -> None:
    for frame in ("", "\t.local .b8 kept[1000];\n"):
        functions = f"""
    .func (.reg .u32 out) f(.reg .u32 n)
    {{
{frame}        .reg .u32 more;
        add.u32 more, n, 1;
        call (out), f, (more);
        ret;
    }}
    """
        text = program("    call (%r4), f, (0);", functions)
        got = re.sub(r"need \d+ bytes", "need N bytes", failure(text))
        assert got == at(text, "f, (more)") + (
            "the calls of the thread need N bytes of local memory "
            "(a thread has at most 524288, and 32 lanes run at once); is it an endless recursion?"
        )


@pytest.mark.slow
def test_deep_recursion_that_fits_runs() -> None:
    assert result_of(CALL_SUM.format("3000"), SUM) == [3000 * 3001 // 2] * 32


def test_more_local_memory_than_a_thread_has_is_refused() -> None:
    text = program("    .local .b8 kept[600000];")
    assert failure(text, PtxGenError) == (
        "k needs 600000 bytes of local memory a thread, which has at most 524288"
    )


# ---- calls through pointers ---------------------------------------------------------------------

CHOOSE = "    and.b32 %r5, %r3, 1;\n    mul.wide.u32 %rd4, %r5, 8;\n"
CALL_POINTER = "    call (%r4), %rd3, (%r3), shape;"
ALTERNATING = [i + 1 if i % 2 == 0 else 100 * i for i in range(32)]


@pytest.mark.parametrize("space", ["global", "const"])
@pytest.mark.parametrize("items", ["f, g", "generic(f), g"])
def test_tables_of_functions(space: str, items: str) -> None:
    table = f".{space} .align 8 .u64 table[2] = {{{items}}};\n"
    body = f"""
{ONE_TO_ONE}{CHOOSE}
    mov.u64 %rd3, table;
    add.s64 %rd3, %rd3, %rd4;
    ld.{space}.u64 %rd3, [%rd3];
{CALL_POINTER}
    """
    assert result_of(body, ADD_ONE + TIMES_100 + table) == ALTERNATING


def test_a_list_of_targets_serves_as_a_prototype() -> None:
    body = "    shape: .calltargets f, g;\n    mov.u64 %rd3, g;\n" + CALL_POINTER
    assert result_of(body, ADD_ONE + TIMES_100) == [100 * i for i in range(32)]


def test_calls_to_what_is_no_function_name_the_thread_and_the_address() -> None:
    body = f"""
{ONE_TO_ONE}
    mov.u64 %rd3, f;
    setp.eq.u32 %p1, %r3, 5;
    @%p1 mov.u64 %rd3, {{}};
{CALL_POINTER}
    """
    for wrong, address in (("0", "0x0"), ("%rd1", "0x200000000"), ("k", "0x100010")):
        text = program(body.replace("{}", wrong), ADD_ONE)
        assert failure(text) == at(text, "%rd3, (%r3)", 5) + f"calls {address}, where no function is"


def test_a_prototype_that_the_callee_does_not_have_is_refused() -> None:
    body = """
    shape: .callprototype (.reg .u32 _) _ (.reg .u32 _, .reg .b64 _);
    mov.u64 %rd3, f;
    call (%r4), %rd3, (%r3, %rd1), shape;
    """
    text = program(body, ADD_ONE)
    assert failure(text) == at(text, "call (%r4)") + (
        "calls f, which takes 4 bytes and gives 4 bytes; the call says that it takes 4, 8 bytes and gives 4 "
        "bytes"
    )


# ---- calls that cannot be -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("call (%r4), f, (%r3, %r3);", "has 2 arguments and 1 results, but the function has 1 and 1"),
        ("call f, (%r3);", "has 1 arguments and 0 results, but the function has 1 and 1"),
        ("call (%r4), nowhere, (%r3);", "no function 'nowhere'"),
        ("call k, (%rd1);", "k is a kernel, which nothing can call"),
        ("call (%r4), %rd1, (%r3);", "a call through a register needs a .callprototype or .calltargets"),
        ("call (%r4), f, (%rs1);", "the operand argument cannot be %rs1, a .b16"),
    ],
)
def test_calls_that_cannot_be_are_refused_before_anything_runs(call: str, why: str) -> None:
    text = program(f"    {call}", ADD_ONE)
    assert failure(text, TypeMismatchError) == f"the interpreter: {located(text, call)}: {why}"


def test_launches_by_a_kernel_are_refused_by_name() -> None:
    text = """
.version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b32 status) __cudaCDP2LaunchDeviceV2 (.param .b64 buffer, .param .b64 s);
.visible .entry child() { ret; }
.visible .entry parent()
{
    .reg .b64 %rd<2>;
    .param .b64 given;
    .param .b64 stream;
    .param .b32 got;
    mov.u64 %rd0, child;
    st.param.b64 [given], %rd0;
    st.param.b64 [stream], 0;
    call.uni (got), __cudaCDP2LaunchDeviceV2, (given, stream);
    ret;
}
"""
    assert refused(text, entry="parent") == (
        "kernel parent: call.uni (got), __cudaCDP2LaunchDeviceV2, (given, stream); (line 16): "
        "thread (0, 0, 0) of CTA (0, 0, 0): __cudaCDP2LaunchDeviceV2 is part of dynamic "
        "parallelism, which is not modelled; launch the kernel from the host"
    )


def test_functions_that_are_only_declared_are_refused_when_they_are_called() -> None:
    declared = ".extern .func (.reg .u32 out) sinf(.reg .u32 n);\n"
    body = "    setp.gt.u32 %p1, %r3, {};\n    mov.u32 %r4, 1;\n    @%p1 call (%r4), sinf, (%r3);"
    assert result_of(body.format(100), declared) == [1] * 32
    text = program(body.format(6), declared)
    assert failure(text) == at(text, "@%p1", 7) + (
        "the interpreter has no function sinf; it has vprintf, __assertfail, malloc, free"
    )


# ---- what a function shares with its kernel -----------------------------------------------------


def test_a_barrier_and_shared_memory_inside_a_function() -> None:
    functions = """
    .shared .align 4 .b32 rows[64];
    .func (.reg .u32 out) swap(.reg .u32 n)
    {
        .reg .b32 at;
        mov.u32 at, rows;
        mad.lo.u32 at, n, 4, at;
        st.shared.u32 [at], n;
        bar.sync 0;
        xor.b32 at, at, 128;
        ld.shared.u32 out, [at];
        ret;
    }
    """
    got = result_of("    call (%r4), swap, (%r3);", functions, threads=64, sanitize=True)
    assert got == [i ^ 32 for i in range(64)]


def test_a_function_writes_to_its_callers_local_memory_through_a_pointer() -> None:
    functions = """
    .func f(.reg .b64 p, .reg .u32 n)
    {
        .local .b32 own[8];
        .reg .u32 t;
        st.local.u32 [own], 77;
        ld.u32 t, [p];
        add.u32 t, t, n;
        st.u32 [p], t;
        ret;
    }
    """
    body = """
    .local .align 4 .b32 held[4];
    st.local.u32 [held], 5;
    cvta.local.u64 %rd3, held;
    call f, (%rd3, %r3);
    ld.local.u32 %r4, [held];
    """
    assert result_of(body, functions, sanitize=True) == [5 + i for i in range(32)]


def test_two_calls_on_both_sides_of_a_branch_shuffle_together() -> None:
    functions = """
    .func (.reg .u32 out) f(.reg .u32 n)
    {
        shfl.sync.bfly.b32 out, n, 16, 31, -1;
        ret;
    }
    """
    body = """
    setp.lt.u32 %p1, %r3, 16;
    @%p1 bra $low;
    call (%r4), f, (%r3);
    bra $end;
$low:
    call (%r4), f, (%r3);
$end:
    """
    assert result_of(body, functions) == [i ^ 16 for i in range(32)]


def test_the_sanitizer_sees_registers_of_functions() -> None:
    functions = ADD_ONE.replace("add.u32 out, n, 1;", ".reg .u32 never;\n\tadd.u32 out, never, n;")
    text = program("    call (%r4), f, (%r3);", functions)
    assert failure(text, sanitize=True) == (
        f"kernel k: the sanitizer reports 1 problem:\n  {at(text, 'st.global')}undefined: byte 0 of x when "
        f"the "
        "kernel ends depends on never, which it has not written; it was read by "
        f"{located(text, 'add.u32 out')}"
    )


# ---- vprintf ------------------------------------------------------------------------------------


def text_variable(name: str, text: str) -> str:
    data = text.encode() + b"\0"
    return f".global .align 1 .b8 {name}[{len(data)}] = {{{', '.join(map(str, data))}}};\n"


def print_program(text: str, packed: bytes, threads: int = 1) -> tuple[str, np.ndarray]:
    """A kernel whose threads print `text` with the arguments `packed`, and write to x what comes
    back.
    """
    packed = packed.ljust(-(-len(packed) // 4) * 4 or 4, b"\0")
    stores = "\n".join(
        f"    st.local.b32 [buffer+{4 * n}], {word};"
        for n, word in enumerate(struct.unpack(f"<{len(packed) // 4}I", packed))
    )
    functions = (
        ".extern .func (.param .b32 result) vprintf(.param .b64 format, .param .b64 buffer);\n"
        + text_variable("format", text)
        + text_variable("word", "Hi!")
    )
    body = f"""
    .local .align 16 .b8 buffer[{len(packed)}];
{stores}
    {{
        .param .b64 p;
        .param .b64 q;
        .param .b32 r;
        mov.u64 %rd3, format;
        cvta.global.u64 %rd3, %rd3;
        cvta.local.u64 %rd4, buffer;
        st.param.b64 [p], %rd3;
        st.param.b64 [q], %rd4;
        call (r), vprintf, (p, q);
        ld.param.b32 %r4, [r];
    }}
    """
    return program(body, functions), np.zeros(threads, np.uint32)


def renamed(message: str) -> str:
    """A message in which what a block of a kernel's body declares has the name that it has in the kernel."""
    return re.sub(r"\b([pqr]|a\d)\b(?=[,)])", r"\1$1", message)


def printed(text: str, packed: bytes = b"", threads: int = 1) -> Result:
    built, x = print_program(text, packed, threads)
    result = run(built, grid=1, block=threads, args=[x])
    assert len(set(x.tolist())) == 1
    return result


@pytest.mark.parametrize(
    ("text", "packed", "want"),
    [
        ("plain\n", b"", "plain\n"),
        ("%d|%5d|%-5d|%05d|%+d|% d|%i", struct.pack("<7i", *[-3] * 7), "-3|   -3|-3   |-0003|-3|-3|-3"),
        ("%+d|% d|%.3d", struct.pack("<3i", 5, 5, 5), "+5| 5|005"),
        ("%u|%x|%X|%o", struct.pack("<4I", *[0xDEADBEEF] * 4), "3735928559|deadbeef|DEADBEEF|33653337357"),
        ("%#x|%#o|%#x|%#o|%+u", struct.pack("<5I", 255, 8, 0, 0, 5), "0xff|010|0|0|5"),
        ("%hd|%hhd|%hu|%hhx", struct.pack("<4i", -3, 300, -1, 300), "-3|44|65535|2c"),
        ("%lld|%llu|%ld", struct.pack("<3q", -3, -3, 1 << 40), "-3|18446744073709551613|1099511627776"),
        ("%zu|%llx|%jd|%td", struct.pack("<4q", 5, 255, -1, -2), "5|ff|-1|-2"),
        ("%d %lld %d", struct.pack("<iiqi", 1, 0, 2, 3), "1 2 3"),
        ("%f|%.2f|%10.3f|%-8.1f|", struct.pack("<4d", *[1.5] * 4), "1.500000|1.50|     1.500|1.5     |"),
        (
            "%e|%E|%g|%G|%F|%lf",
            struct.pack("<6d", *[1.5] * 6),
            "1.500000e+00|1.500000E+00|1.5|1.5|1.500000|1.500000",
        ),
        (
            "%a|%.2a|%.0a|%A|%10a|%+a",
            struct.pack("<6d", 1.5, 1.5, 1.5, 0.1, 1.5, 1.5),
            "0x1.8p+0|0x1.80p+0|0x2p+0|0X1.999999999999AP-4|  0x1.8p+0|+0x1.8p+0",
        ),
        (
            "%a|%.15a|%a|%f",
            struct.pack("<4d", 0.0, 0.1, float("-inf"), float("nan")),
            "0x0p+0|0x1.999999999999a00p-4|-inf|nan",
        ),
        ("%c%c|%3c|%-3c|", struct.pack("<4i", 72, 105, 65, 66), "Hi|  A|B  |"),
        ("%p|%p|%8p", struct.pack("<3Q", 0x1234, 0, 0x12), "0x1234|(nil)|    0x12"),
        ("%*d|%-*d|%*d|", struct.pack("<6i", 4, 42, 4, 42, -4, 42), "  42|42  |42  |"),
        ("%.*f|%.*d", struct.pack("<iidii", 2, 0, 3.14159, -1, 7), "3.14|7"),
        ("%%|100%|%y|%5%|%n", b"", "%|100%|%y|%|%n"),
        ("%s", struct.pack("<Q", 0), "(null)"),
    ],
)
def test_formats_are_those_of_c(text: str, packed: bytes, want: str) -> None:
    assert printed(text, packed).printed == want


def test_strings_are_read_through_their_pointers() -> None:
    arena = DeviceArena()
    built, x = print_program("%s|%5s|%-5s|%.1s|", struct.pack("<4Q", *[1 << 34] * 4))
    word = np.frombuffer(b"Hi!\0", np.uint8)
    arena.place(word, at=1 << 34)
    assert run(built, grid=1, block=1, args=[x], arena=arena).printed == "Hi!|  Hi!|Hi!  |H|"
    assert x[0] == 4  # what comes back: how many arguments there were


def test_every_thread_prints_in_turn() -> None:
    assert printed("%d ", struct.pack("<i", 7), threads=40).printed == "7 " * 40


def test_a_format_with_more_than_the_buffer_has_is_refused() -> None:
    built, x = print_program("%d %d" + " %d" * 8, struct.pack("<2i", 1, 2))
    message = re.sub("0x[0-9a-f]+", "A", failure(built))
    why = " wants to read 4 bytes of generic memory at A, outside the 32 bytes of local memory"
    assert message == renamed(at(built, "call (r)"))[:-2] + why
    assert not x.any()


def test_a_width_without_measure_is_refused() -> None:
    built, _ = print_program("%1000000000d", struct.pack("<i", 1))
    why = "vprintf is asked for more than 65536 characters by %1000000000d"
    assert failure(built) == renamed(at(built, "call (r)")) + why


def test_an_assertion_that_fails_says_what_where_and_who() -> None:
    functions = (
        ".extern .func __assertfail(.param .b64 m, .param .b64 f, .param .b32 l, "
        ".param .b64 n, .param .b64 s);\n"
        + text_variable("message", "n < 7")
        + text_variable("file", "a.cu")
        + text_variable("name", "void k(int)")
    )
    body = """
    setp.lt.u32 %p1, %r3, 7;
    @%p1 bra $fine;
    {
        .param .b64 a0;
        .param .b64 a1;
        .param .b32 a2;
        .param .b64 a3;
        .param .b64 a4;
        mov.u64 %rd3, message;
        cvta.global.u64 %rd3, %rd3;
        st.param.b64 [a0], %rd3;
        mov.u64 %rd3, file;
        cvta.global.u64 %rd3, %rd3;
        st.param.b64 [a1], %rd3;
        st.param.b32 [a2], 12;
        mov.u64 %rd3, name;
        cvta.global.u64 %rd3, %rd3;
        st.param.b64 [a3], %rd3;
        st.param.b64 [a4], 1;
        call __assertfail, (a0, a1, a2, a3, a4);
    }
$fine:
    """
    text = program(body, functions)
    assert (
        failure(text) == renamed(at(text, "call __", 7)) + "assertion `n < 7` failed in void k(int), a.cu:12"
    )


# ---- malloc and free ----------------------------------------------------------------------------

HEAP = """
.extern .func (.param .b64 result) malloc(.param .b64 size);
.extern .func free(.param .b64 pointer);
"""
MALLOC = """
    {
        .param .b64 p;
        .param .b64 q;
        st.param.b64 [p], %rd3;
        call (q), malloc, (p);
        ld.param.b64 %rd4, [q];
    }
"""
FREE = """
    {
        .param .b64 p;
        st.param.b64 [p], %rd4;
        call free, (p);
    }
"""


def test_each_thread_has_its_own_memory_from_malloc() -> None:
    body = f"""
    add.u32 %r5, %r3, 1;
    mul.wide.u32 %rd3, %r5, 4;
{MALLOC}
    add.s64 %rd5, %rd4, %rd2;
    st.u32 [%rd5], %r3;
    bar.sync 0;
    ld.u32 %r4, [%rd5];
{FREE}
    """
    assert result_of(body, HEAP, threads=64) == list(range(64))


def test_malloc_gives_null_for_nothing_and_for_too_much() -> None:
    body = f"""
    mov.u64 %rd3, 0;
{MALLOC}
    mov.u64 %rd5, %rd4;
    mov.u64 %rd3, 0x7fffffffffffffff;
{MALLOC}
    or.b64 %rd5, %rd5, %rd4;
    cvt.u32.u64 %r4, %rd5;
{FREE}
    """
    assert result_of(body, HEAP) == [0] * 32


def test_memory_outlives_the_kernel_that_asked_for_it() -> None:
    arena, where = DeviceArena(), np.zeros(2, np.uint64)
    first = ptx(
        "    ld.param.u64 %rd1, [x];\n    mov.u64 %rd3, 64;"
        + MALLOC
        + "    st.u32 [%rd4+60], 9;\n    st.global.u64 [%rd1], %rd4;",
        before=HEAP,
    )
    run(first, grid=1, block=1, args=[where], arena=arena)
    second = ptx(
        "    ld.param.u64 %rd1, [x];\n    ld.global.u64 %rd4, [%rd1];\n    ld.u32 %r1, [%rd4+60];\n"
        "    cvt.u64.u32 %rd5, %r1;\n    st.global.u64 [%rd1+8], %rd5;" + FREE + "    ret;",
        before=HEAP,
    )
    run(second, grid=1, block=1, args=[where], arena=arena)
    assert where[1] == 9
    assert len(arena.buffers) == 1  # `where` itself


def test_lanes_free_their_memory_though_one_before_them_frees_null() -> None:
    arena = DeviceArena()
    text = ptx(f"    mov.u32 %r1, %tid.x;\n    mul.wide.u32 %rd3, %r1, 8;\n{MALLOC}{FREE}", before=HEAP)
    run(text, grid=1, block=4, args=[], arena=arena)
    assert not arena.buffers


def test_accesses_outside_name_the_memory_and_its_thread() -> None:
    body = f"    mov.u64 %rd3, 64;{MALLOC}    st.u32 [%rd4+64], 1;\n    mov.u32 %r4, 0;"
    text = program(body, HEAP)
    assert re.sub("0x[0-9a-f]+", "A", failure(text)) == at(text, "st.u32")[:-2] + (
        " wants to write 4 bytes of generic memory at A, 0 bytes after the end of malloc of thread (0, 0, "
        "0) of "
        "CTA (0, 0, 0) (A, 64 bytes)"
    )


@pytest.mark.parametrize(
    ("before", "what"),
    [
        (
            f"    mov.u64 %rd3, 64;{MALLOC}{FREE}",
            "at byte 0 of malloc of thread (0, 0, 0) of CTA (0, 0, 0) (A, 64 bytes), which thread "
            "(0, 0, 0) of CTA (0, 0, 0) in call free, (A); (line {before}) has freed",
        ),
        (
            f"    mov.u64 %rd3, 64;{MALLOC}\n    add.u64 %rd4, %rd4, 8;",
            "at byte 8 of malloc of thread (0, 0, 0) of CTA (0, 0, 0) (A, 64 bytes)",
        ),
        ("    mov.u64 %rd4, %rd1;", "at byte 0 of x (A, 256 bytes)"),
        ("    mov.u64 %rd4, 8;", "a null pointer and 8 bytes"),
    ],
    ids=["twice", "not its beginning", "an argument", "no memory at all"],
)
def test_only_what_malloc_gave_is_freed_and_once(before: str, what: str) -> None:
    text = program(before + "\n    mov.u32 %r4, 0;" + FREE, HEAP)
    lines = [n for n, held in enumerate(text.splitlines(), 1) if "call free" in held]
    got = re.sub("0x[0-9a-f]+|p.[0-9]", "A", failure(text))
    assert got == (
        f"kernel k: call free, (A); (line {lines[-1]}): thread (0, 0, 0) of CTA (0, 0, 0): frees "
        f"A, {what.format(before=lines[0])}; free takes what malloc gave, once"
    )


def test_a_chain_of_calls_may_be_longer_than_pythons_stack() -> None:
    count = 1100
    functions = ADD_ONE.replace("f(", "f0(")
    for n in range(1, count):
        functions += (
            f".func (.reg .u32 out) f{n}(.reg .u32 n)\n"
            f"{{\n\tcall (out), f{n - 1}, (n);\n\tadd.u32 out, out, 1;\n\tret;\n}}\n"
        )
    assert result_of(f"    call (%r4), f{count - 1}, (%r3);", functions, 2) == [count, count + 1]
