"""Registers of 8 bits: packed into words and taken from them, loaded, stored and converted."""

from __future__ import annotations

import numpy as np
import pytest
from interpreter.both_paths import run_both_ways
from interpreter.programs import ptx
from interpreter.reported import messages

from ptxgen.check.verify import verify
from ptxgen.dsl import KernelBuilder
from ptxgen.errors import TypeMismatchError
from ptxgen.parse import parse
from ptxgen.runtime.assembler import Assembler
from ptxgen.text import render
from ptxgen.types import b32, u8, u32

HEAD = """
    .reg .b8 %b<9>;
    .reg .s8 %s<3>;
    ld.param.u64 %rd0, [x];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd1, %r0, 4;
    add.u64 %rd0, %rd0, %rd1;
    ld.global.u32 %r1, [%rd0];
"""
# What a body makes of the word %r1 of each thread, and the same in Python.
BODIES = {
    "mov.b32 {%b0, %b1, %b2, %b3}, %r1;\nmov.b32 %r2, {%b3, %b2, %b1, %b0};": lambda a: a[::-1],
    "mov.b32 {%b0, _, %b2, _}, %r1;\nmov.b32 %r2, {%b2, 7, 255, %b0};": lambda a: (a[2], 7, 255, a[0]),
    "cvt.u16.u32 %rs0, %r1;\nmov.b16 {%b0, %b1}, %rs0;\nmov.b16 %rs1, {%b1, %b0};\ncvt.u32.u16 %r2, %rs1;": (
        lambda a: (a[1], a[0], 0, 0)
    ),
    "ld.global.v4.u8 {%b0, %b1, %b2, %b3}, [%rd0];\nmov.b32 %r2, {%b1, %b1, %b3, %b3};": (
        lambda a: (a[1], a[1], a[3], a[3])
    ),
    "cvt.u8.u32 %b4, %r1;\ncvt.u32.u8 %r2, %b4;": lambda a: (a[0], 0, 0, 0),
    "ld.global.s8 %s1, [%rd0+3];\ncvt.s32.s8 %r2, %s1;": lambda a: (a[3], *[255 * (a[3] > 127)] * 3),
    "mov.b32 {%b0, %b1, %b2, %b3}, %r1;\nst.global.u8 [%rd0+1], %b3;\nld.global.u32 %r2, [%rd0];": (
        lambda a: (a[0], a[3], a[2], a[3])
    ),
}
STORE = "\nst.global.u32 [%rd0], %r2;"


def kernel(body: str) -> str:
    return ptx(HEAD + body + STORE, "u64 x")


@pytest.mark.parametrize("body", BODIES)
def test_bytes_are_what_plain_python_makes_of_them(body: str) -> None:
    x = np.random.default_rng(1).integers(0, 2**32, 64, np.uint32)
    wanted = [BODIES[body](tuple(int(v).to_bytes(4, "little"))) for v in x]
    module = parse(kernel(body))
    assert parse(render(module)) == module
    assert verify(module) == ()
    run_both_ways(module, args=[x], grid=1, block=64)
    assert [tuple(int(v).to_bytes(4, "little")) for v in x] == wanted


@pytest.mark.ptxas
def test_the_assembler_takes_them_as_printed(assembler: Assembler) -> None:
    for body in BODIES:
        assembler.assemble(render(parse(kernel(body))), "sm_90a")


@pytest.mark.ptxas
@pytest.mark.parametrize(
    "wrong",
    ["mov.b32 %r2, {%rs0, %rs1, %rs2, %rs3};", "mov.b16 {%rs0, %rs1}, %rs2;", "add.u16 %rs0, %b0, %rs1;"],
)
def test_what_the_assembler_refuses_the_verifier_refuses(assembler: Assembler, wrong: str) -> None:
    text = kernel(wrong)
    assert verify(parse(text))[0].kind == "operand"
    with pytest.raises(Exception, match="mismatch"):
        assembler.assemble(text, "sm_90a")


def test_undefined_bytes_are_followed_through_a_word() -> None:
    x = np.zeros(32, np.uint32)
    part = "mov.b32 %r3, {%b0, %b5, %b0, %b0};\nmov.b32 {%b1, %b2, %b3, %b4}, %r3;\n"
    first = "cvt.u8.u32 %b0, %r1;\n"
    assert messages(kernel(f"{first}{part}cvt.u32.u8 %r2, %b3;"), [x]) == []
    assert len(messages(kernel(f"{first}{part}cvt.u32.u8 %r2, %b2;"), [x])) == 1


def test_a_kernel_in_python_has_them_by_unpacking_alone() -> None:
    k = KernelBuilder("k", target="sm_90", threads=32)
    words, bytes = k.pointer("words", u32), k.pointer("bytes", u8)
    at = k.thread_id()
    words[at] = k.pack(k.unpack_byte(words[at].as_(b32))[::-1]).as_(u32)
    with pytest.raises(TypeMismatchError, match="pack: operand a must be 2 values"):
        k.pack((bytes[0], bytes[1], bytes[2], bytes[3]))
    x = np.arange(32, dtype=np.uint32) * 0x01020304
    wanted = x.byteswap()
    run_both_ways(k.build(), args=[x, np.zeros(4, np.uint8)], grid=1, block=32)
    np.testing.assert_array_equal(x, wanted)
