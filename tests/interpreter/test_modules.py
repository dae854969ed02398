from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interpreter.programs import program, refused, result_of

from ptxgen.errors import LaunchError, PtxGenError, TrapError
from ptxgen.interpreter import DeviceArena, Result, run
from ptxgen.parse import parse

FIXTURES = Path(__file__).parents[1] / "ptx" / "nvcc"


def refusal(body: str, variables: str = "", error: type[PtxGenError] = LaunchError, **how: Any) -> str:
    return refused(program(body, variables), [np.zeros(32, np.uint32)], error, **how)


def trap_of(body: str, variables: str = "", **how: Any) -> str:
    """The error of a program, without the number of the line."""
    return re.sub(r"\(line \d+\)", "(line)", refusal(body, variables, TrapError, **how))


# ---- initial values -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declaration", "data"),
    [
        (".u32 v[3] = {1, 2}", np.array([1, 2, 0], np.uint32)),
        (".s16 v = -2", np.array([-2], np.int16)),
        (".f32 v[2] = {1.5, 0f42280000}", np.array([1.5, 42], np.float32)),
        (".f64 v = 1e3", np.array([1e3])),
        (".s8 v[][4] = {{1, 2, 3, 4}, {5, -1}}", np.array([1, 2, 3, 4, 5, -1, 0, 0], np.int8)),
        (".align 16 .b8 v[4] = {255, 0x10, 97 + 1}", np.array([255, 16, 98, 0], np.uint8)),
        (".u64 v = 0xffffffffffffffff", np.array([-1], np.int64)),
        (".b32 v[2]", np.zeros(2, np.uint32)),
    ],
)
@pytest.mark.parametrize("space", ["global", "const"])
def test_variables_begin_with_their_initial_values(space: str, declaration: str, data: np.ndarray) -> None:
    text = program("    mov.u32 %r4, 0;", f".{space} {declaration};\n")
    result = run(text, grid=1, block=1, args=[np.zeros(1, np.uint32)])
    assert result.variables["v"].tobytes() == data.tobytes()


@pytest.mark.parametrize(
    ("read", "variables", "want"),
    [
        ("ld.global.u64 %rd3, [t+8]; ld.global.u32 %r4, [%rd3];", ".global .u64 t[2] = {a, b};", 22),
        ("ld.global.u64 %rd3, [t]; ld.u32 %r4, [%rd3];", ".global .u64 t = generic(array)+8;", 3),
        ("ld.global.u64 %rd3, [t]; ld.global.u32 %r4, [%rd3];", ".global .u64 t = array+4;", 2),
        ("ld.const.u64 %rd3, [t]; ld.const.u32 %r4, [%rd3];", ".const .u64 t = c+4;", 6),
        ("ld.const.u64 %rd3, [t]; ld.u32 %r4, [%rd3];", ".const .u64 t = generic(c)+4;", 6),
        ("ld.global.u64 %rd3, [t]; ld.u32 %r4, [%rd3];", ".global .u64 t = generic(c);", 5),
        (
            "ld.global.u64 %rd3, [t]; ld.global.u64 %rd3, [%rd3]; ld.global.u32 %r4, [%rd3];",
            ".global .u64 m = a;\n.global .u64 t = m;",
            11,
        ),
    ],
)
def test_variables_point_to_each_other(read: str, variables: str, want: int) -> None:
    values = ".global .u32 a = 11;\n.global .u32 b = 22;\n.global .u32 array[4] = {1, 2, 3, 4};\n"
    values += ".const .u32 c[2] = {5, 6};\n"
    assert result_of(f"    {read}", f"{values}{variables}\n") == [want] * 32


def test_a_variable_may_point_to_itself_and_hold_single_bytes_of_an_address() -> None:
    variables = (
        ".global .u64 self = self;\n"
        ".global .u8 bytes[8] = {0xff(self), 0xff00(self), 0xff0000(self), 0xff000000(self)};\n"
    )
    body = """
    ld.global.u64 %rd3, [self];
    mov.u64 %rd4, self;
    sub.s64 %rd3, %rd3, %rd4;
    cvt.u32.u64 %r4, %rd3;
    ld.global.u8 %r5, [bytes];
    ld.global.u8 %r6, [bytes+1];
    ld.global.u8 %r7, [bytes+2];
    ld.global.u8 %r8, [bytes+3];
    mad.lo.u32 %r5, %r6, 256, %r5;
    mad.lo.u32 %r5, %r7, 65536, %r5;
    mad.lo.u32 %r5, %r8, 16777216, %r5;
    cvt.u32.u64 %r6, %rd4;
    sub.u32 %r5, %r5, %r6;
    or.b32 %r4, %r4, %r5;
    """
    assert result_of(body, variables) == [0] * 32


@pytest.mark.parametrize("linkage", [".weak", ".common", ".visible"])
def test_variables_with_a_linkage_are_defined(linkage: str) -> None:
    value = "" if linkage == ".common" else " = 8"
    body = "    ld.global.u32 %r4, [v];\n    add.u32 %r4, %r4, 1;"
    want = 1 if linkage == ".common" else 9
    assert result_of(body, f"{linkage} .global .u32 v{value};\n") == [want] * 32


@pytest.mark.parametrize(
    ("space", "caller"),
    [("global", "the module's variable huge"), ("const", "the module's constant variables")],
)
def test_variables_that_are_larger_than_memory_are_refused(
    space: str, caller: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = np.zeros

    def zeros(shape: Any, *rest: Any) -> Any:  # as on a machine of less memory
        if shape == 10**12:
            raise MemoryError
        return real(shape, *rest)

    monkeypatch.setattr(np, "zeros", zeros)
    assert refusal("    mov.u32 %r4, 0;", f".{space} .align 4 .b8 huge[{10**12}];\n") == (
        f"{caller} must fit the memory of this machine, got {10**12} bytes; declare fewer"
    )


@pytest.mark.parametrize("space", ["global", "const"])
def test_variables_of_another_module_are_refused(space: str) -> None:
    assert refusal("    mov.u32 %r4, 0;", f".extern .{space} .align 4 .u32 elsewhere[4];\n") == (
        "the module declares elsewhere but does not define it; "
        "link the modules first, or give it a definition"
    )


@pytest.mark.parametrize("target", ["nowhere", "of_shared"])
def test_pointers_to_what_has_no_address_are_refused(target: str) -> None:
    variables = f".shared .u32 of_shared[4];\n.global .align 8 .u64 t[2] = {{{target}, 0}};\n"
    assert refusal("    mov.u32 %r4, 0;", variables) == (
        f"t is initialised with the address of {target}, which the module does not define"
    )


# ---- values from outside, and from launch to launch ---------------------------------------------

HELD = ".global .u32 held[2] = {1, 2};\n.const .f32 scale;\n"


def test_symbols_give_variables_values_before_the_kernel_runs() -> None:
    body = """
    ld.global.u32 %r4, [held];
    ld.global.u32 %r5, [held+4];
    mad.lo.u32 %r4, %r4, 100, %r5;
    ld.const.f32 %f0, [scale];
    cvt.rzi.u32.f32 %r5, %f0;
    mad.lo.u32 %r4, %r5, 10000, %r4;
    """
    assert result_of(body, HELD) == [102] * 32
    some = {"held": np.array([7], np.uint32), "scale": np.float32(3)}
    assert result_of(body, HELD, symbols=some) == [3_07_02] * 32
    assert result_of(body, HELD, symbols={"held": b"\5\0\0\0\6\0\0\0"}) == [506] * 32


@pytest.mark.parametrize(
    ("symbols", "message"),
    [
        (
            {"hold": b""},
            "the module has no variable 'hold' in global or constant memory; did you mean 'held'?",
        ),
        ({"tile": b"\0"}, "the module has no variable 'tile' in global or constant memory"),
        ({"held": b"123456789"}, "held has 8 bytes, got 9"),
        ({"held": np.zeros(3, np.uint32)}, "held has 8 bytes, got 12"),
        ({"held": 5}, "held must be given as a numpy array or number, or bytes, got 5"),
        ({"held": None}, "held must be given as a numpy array or number, or bytes, got None"),
        ({"held": [1, 2]}, "held must be given as a numpy array or number, or bytes, got [1, 2]"),
        (
            {"held": np.array([None])},
            "held must be given as a numpy array or number, or bytes, got an array of object",
        ),
        ([("held", b"")], "symbols must be a mapping from names to values, got list"),
    ],
)
def test_symbols_that_cannot_be_are_refused(symbols: object, message: str) -> None:
    variables = HELD + ".shared .u32 tile[4];\n"
    assert refusal("    mov.u32 %r4, 0;", variables, symbols=symbols) == message


def test_variables_in_the_result_are_those_that_the_next_launch_sees() -> None:
    text = program(
        "    atom.global.add.u32 %r4, [held], 1;\n    ld.const.f32 %f0, [scale];\n"
        "    cvt.rzi.u32.f32 %r5, %f0;\n    mad.lo.u32 %r4, %r5, 1000, %r4;",
        HELD,
    )
    arena, x = DeviceArena(), np.zeros(1, np.uint32)

    def launch() -> Result:
        return run(text, grid=1, block=1, args=[x], arena=arena)

    variables = launch().variables
    assert sorted(variables) == ["held", "scale"]
    assert variables["held"].view(np.uint32).tolist() == [2, 2]
    variables["held"].view(np.uint32)[0] = 50
    variables["scale"].view(np.float32)[0] = 4
    launch()
    assert x[0] == 4050
    assert variables["held"].view(np.uint32).tolist() == [51, 2]
    run(text, grid=1, block=1, args=[x])  # another arena, so another program on the device
    assert x[0] == 1


def test_kernels_of_one_module_share_variables_and_pointers_in_an_arena() -> None:
    variables = ".global .u32 count;\n.global .u64 where;\n"
    entry = """
.visible .entry {name}(.param .u64 x)
{{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [x];
{body}
    ret;
}}
"""
    first = """
    st.global.u64 [where], %rd1;
    atom.global.add.u32 %r1, [count], 5;
    """
    second = """
    ld.global.u64 %rd2, [where];
    ld.global.u32 %r1, [count];
    st.global.u32 [%rd2+4], %r1;
    """
    head = ".version 7.0\n.target sm_80\n.address_size 64\n" + variables
    text = head + entry.format(name="first", body=first) + entry.format(name="second", body=second)
    arena, x = DeviceArena(), np.zeros(4, np.uint32)
    run(text, "first", grid=2, block=3, args=[x], arena=arena)
    run(text, "second", grid=1, block=1, args=[0], arena=arena)
    assert x.tolist() == [0, 30, 0, 0]
    with pytest.raises(TrapError, match="a null pointer and 4 bytes"):
        # A module that was not given as this text is another one.
        run(parse(text), "second", grid=1, block=1, args=[0], arena=arena)


def test_a_text_keeps_its_variables_however_many_others_run_between() -> None:
    text = (FIXTURES / "variables.sm_80.ptx").read_text()
    arena, out = DeviceArena(), np.zeros(1, np.int32)
    run(text, "count_launches", grid=1, block=32, args=[out], arena=arena)
    assert out[0] == 100
    for n in range(10):
        other = program(f"    mov.u32 %r4, {n};", ".global .u32 counter = 7;\n")
        run(other, grid=1, block=1, args=[np.zeros(1, np.uint32)], arena=arena)
    run(text, "count_launches", grid=1, block=32, args=[out], arena=arena)
    assert out[0] == 101


# ---- pointers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("access", "wanted", "space", "where"),
    [
        ("ld.global.u32 %r4, [%rd0+128];", "read 4", "global", "0x200000080, 0 bytes after the end of X"),
        ("ld.u32 %r4, [%rd1+-4];", "read 4", "generic", "0x1fffffffc, 4 bytes before the start of X"),
        ("st.global.v2.u32 [%rd1+124], {%r4, %r4};", "write 8", "global", "0x20000007c, NOT_ALIGNED"),
        (
            "st.global.v2.u32 [%rd1+128], {%r4, %r4};",
            "write 8",
            "global",
            "0x200000080, 0 bytes after the end of X",
        ),
        ("ld.global.u64 %rd5, [%rd1+124];", "read 8", "global", "0x20000007c, NOT_ALIGNED"),
        (
            "atom.global.add.u32 %r4, [%rd1+4096], 1;",
            "update 4",
            "global",
            "0x200001000, 3968 bytes after the end of X",
        ),
        ("mov.u64 %rd5, 0; ld.global.u32 %r4, [%rd5];", "read 4", "global", "0x0, a null pointer"),
        (
            "mov.u64 %rd5, 0; st.u32 [%rd5+24], %r4;",
            "write 4",
            "generic",
            "0x18, a null pointer and 24 bytes",
        ),
        (
            "cvt.u32.u64 %r5, %rd1; cvt.u64.u32 %rd5, %r5; ld.global.u32 %r4, [%rd5+4096];",
            "read 4",
            "global",
            "0x1000, 8589930496 bytes before the start of X",
        ),
        ("ld.param.u64 %rd5, [x+8];", "read 8", "param", "0x1008, outside its 8 bytes"),
        ("cvta.const.u64 %rd5, table; st.u32 [%rd5], 3;", "write 4", "const", "0x1000, in a read-only array"),
        ("ld.const.u32 %r4, [table+8];", "read 4", "const", "0x1008, outside its 8 bytes"),
        ("cvta.param.u64 %rd5, x; st.u64 [%rd5], 3;", "write 8", "param", "0x1000, in a read-only array"),
        ("ld.shared.u32 %r4, [tile+32];", "read 4", "shared", "0x20, outside its 32 bytes"),
        (
            "cvta.shared.u64 %rd5, tile; ld.u32 %r4, [%rd5+-4];",
            "read 4",
            "generic",
            "0xfffffffc, 4294967300 bytes before the start of X",
        ),
    ],
)
def test_accesses_outside_say_what_the_address_belongs_to(
    access: str, wanted: str, space: str, where: str
) -> None:
    variables = ".shared .align 16 .b8 tile[32];\n.const .u32 table[2] = {1, 2};\n"
    where = where.replace("X", "x (0x200000000, 128 bytes)").replace(
        "NOT_ALIGNED", "which is not a multiple of 8"
    )
    last = access.split("; ")[-1]
    assert trap_of(f"    mov.u32 %r4, 0;\n    {access}", variables) == (
        f"kernel k: {last} (line): thread (0, 0, 0) of CTA (0, 0, 0) wants to {wanted} bytes of {space} "
        f"memory at "
        f"{where}"
    )


def test_of_several_threads_the_first_that_is_wrong_is_named() -> None:
    body = """
    setp.eq.u32 %p1, %r3, 20;
    selp.b64 %rd3, 24, %rd0, %p1;
    ld.u32 %r4, [%rd3];
    """
    assert trap_of(body) == (
        "kernel k: ld.u32 %r4, [%rd3]; (line): thread (20, 0, 0) of CTA (0, 0, 0) wants to read "
        "4 bytes of generic memory at 0x18, a null pointer and 24 bytes"
    )


SPACES = ".const .u32 in_const = 33;\n.shared .align 4 .b32 in_shared[32];\n.global .u32 in_global;\n"


def test_generic_addresses_of_all_spaces_meet_in_one_instruction() -> None:
    body = """
    .local .align 4 .b8 in_local[16];
    cvta.shared.u64 %rd3, in_shared;
    mul.wide.u32 %rd8, %r3, 4;
    add.s64 %rd3, %rd3, %rd8;
    cvta.local.u64 %rd4, in_local;
    cvta.const.u64 %rd5, in_const;
    cvta.param.u64 %rd6, x;
    st.u32 [%rd3], 10;
    st.u32 [%rd4], 20;
    st.u32 [%rd0], 40;
    rem.u32 %r5, %r3, 5;
    setp.eq.u32 %p0, %r5, 0;
    setp.eq.u32 %p1, %r5, 1;
    setp.eq.u32 %p2, %r5, 2;
    setp.eq.u32 %p3, %r5, 3;
    mov.u64 %rd7, %rd0;
    selp.b64 %rd7, %rd3, %rd7, %p0;
    selp.b64 %rd7, %rd4, %rd7, %p1;
    selp.b64 %rd7, %rd5, %rd7, %p2;
    selp.b64 %rd7, %rd6, %rd7, %p3;
    ld.u32 %r4, [%rd7];
    setp.eq.u32 %p4, %r5, 4;
    or.pred %p4, %p4, %p0;
    or.pred %p4, %p4, %p1;
    @%p4 st.u32 [%rd7], 7;
    @%p4 atom.add.u32 %r6, [%rd7], %r4;
    @%p4 ld.u32 %r4, [%rd7];
    """
    arena, x = DeviceArena(), np.zeros(32, np.uint32)
    values = [17, 27, 33, arena.place(x) & 0xFFFFFFFF, 47]
    run(program(body, SPACES), grid=1, block=32, args=[x], arena=arena, sanitize=True)
    assert x.tolist() == [values[i % 5] for i in range(32)]


@pytest.mark.parametrize(
    ("space", "pointer"),
    [("shared", "%rd3"), ("local", "%rd4"), ("const", "%rd5"), ("param", "%rd6"), ("global", "%rd1")],
)
def test_a_generic_address_is_in_the_space_that_it_came_from(space: str, pointer: str) -> None:
    checks = "\n".join(
        f"    isspacep.{other} %p1, {pointer};\n    @%p1 or.b32 %r4, %r4, {1 << n};"
        for n, other in enumerate(("shared", "local", "const", "param", "global"))
    )
    body = f"""
    .local .align 4 .b8 in_local[16];
    cvta.shared.u64 %rd3, in_shared;
    cvta.local.u64 %rd4, in_local;
    cvta.const.u64 %rd5, in_const;
    cvta.param.u64 %rd6, x;
    mov.u32 %r4, 0;
{checks}
    """
    text = program(body, SPACES).replace(".version 7.0", ".version 7.7")
    x = np.zeros(32, np.uint32)
    run(text, grid=1, block=32, args=[x])
    spaces = ["shared", "local", "const", "param", "global"]
    assert x.tolist() == [1 << spaces.index(space)] * 32


@pytest.mark.parametrize("space", ["shared", "local", "const", "global"])
def test_cvta_there_and_back_gives_the_address_of_the_space(space: str) -> None:
    body = f"""
    .local .align 4 .b8 in_local[16];
    mov.u64 %rd3, in_{space};
    cvta.{space}.u64 %rd4, %rd3;
    cvta.to.{space}.u64 %rd5, %rd4;
    sub.s64 %rd5, %rd5, %rd3;
    cvt.u32.u64 %r4, %rd5;
    """
    assert result_of(body, SPACES) == [0] * 32


def test_parameters_shared_and_local_memory_have_addresses_of_32_bits() -> None:
    body = """
    .local .align 4 .b8 in_local[16];
    mov.u32 %r5, in_shared;
    mad.lo.u32 %r5, %r3, 4, %r5;
    st.shared.u32 [%r5], %r3;
    mov.u32 %r6, in_local;
    ld.shared.u32 %r7, [%r5];
    st.local.u32 [%r6+8], %r7;
    ld.local.u32 %r4, [%r6+8];
    mov.u32 %r8, x;
    ld.param.u64 %rd5, [%r8];
    sub.s64 %rd5, %rd5, %rd1;
    cvt.u32.u64 %r9, %rd5;
    add.u32 %r4, %r4, %r9;
    """
    assert result_of(body, SPACES, sanitize=True) == list(range(32))


# ---- shared memory ------------------------------------------------------------------------------


def test_arrays_of_dynamic_shared_memory_begin_at_the_same_place_behind_the_static_ones() -> None:
    variables = (
        ".extern .shared .align 4 .b8 bytes[];\n.extern .shared .align 64 .f32 floats[];\n"
        ".shared .align 4 .b8 fixed[20];\n"
    )
    body = """
    mov.u32 %r5, bytes;
    mov.u32 %r6, floats;
    mov.u32 %r7, fixed;
    sub.u32 %r4, %r6, %r5;
    mad.lo.u32 %r4, %r5, 1000, %r4;
    add.u32 %r4, %r4, %r7;
    """
    assert result_of(body, variables, dynamic_smem=64) == [64_000] * 32


def test_the_end_of_dynamic_shared_memory_is_what_the_launch_said() -> None:
    variables = ".extern .shared .align 16 .b8 bytes[];\n"
    body = "    st.shared.u32 [bytes+60], 5;\n    bar.sync 0;\n    ld.shared.u32 %r4, [bytes+60];"
    assert result_of(body, variables, dynamic_smem=64) == [5] * 32
    assert trap_of(body, variables, dynamic_smem=60) == (
        "kernel k: st.shared.u32 [bytes+60], 5; (line): thread (0, 0, 0) of CTA (0, 0, 0) wants to "
        "write 4 bytes of shared memory at 0x3c, outside its 60 bytes"
    )


def test_more_shared_memory_than_any_block_gets_is_refused() -> None:
    variables = ".extern .shared .align 16 .b8 bytes[];\n.shared .b8 fixed[32];\n"
    assert refusal("    mov.u32 %r4, 0;", variables, dynamic_smem=232448) == (
        "k needs 232480 bytes of shared memory, 232448 of them dynamic; a block has at most 232448"
    )


def test_shared_variables_of_functions_and_modules_do_not_overlap() -> None:
    variables = """
.shared .align 4 .b32 outer[32];
.func (.reg .u32 out) f(.reg .u32 n)
{
    .shared .align 4 .b32 inner[32];
    .reg .b32 at;
    mov.u32 at, inner;
    mad.lo.u32 at, n, 4, at;
    st.shared.u32 [at], 1000;
    ld.shared.u32 out, [at];
    ret;
}
"""
    body = """
    mov.u32 %r5, outer;
    mad.lo.u32 %r5, %r3, 4, %r5;
    st.shared.u32 [%r5], %r3;
    call (%r6), f, (%r3);
    ld.shared.u32 %r4, [%r5];
    add.u32 %r4, %r4, %r6;
    """
    assert result_of(body, variables, sanitize=True) == [1000 + i for i in range(32)]


def test_texts_that_differ_in_a_variable_only_are_different_modules() -> None:
    arena = DeviceArena()
    for n in (1, 2, 1, 3):
        x = np.zeros(1, np.uint32)
        text = program("    ld.const.u32 %r4, [c];", f".const .u32 c = {n};\n")
        run(text, grid=1, block=1, args=[x], arena=arena)
        assert x[0] == n
