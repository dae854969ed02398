"""Vector registers (`.reg .v4 .f32 V`): read as registers of their elements, and run as these."""

from __future__ import annotations

import numpy as np
import pytest
from interpreter.both_paths import run_both_ways
from interpreter.programs import ptx

from ptxgen.check.verify import verify
from ptxgen.ir import Module
from ptxgen.parse import parse
from ptxgen.runtime.assembler import Assembler
from ptxgen.text import render

HEAD = """
    .reg .v4 .f32 V, W;
    .reg .v2 .b32 %u<3>;
    .reg .v4 .b8 bytes;
    ld.param.u64 %rd0, [x];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd1, %r0, 16;
    add.u64 %rd0, %rd0, %rd1;
"""
# A body, and what it makes of the four words of each thread.
BODIES = {
    "ld.global.v4.f32 V, [%rd0]; mov.f32 %f0, V.x; mov.f32 V.r, V.w; mov.f32 V.a, %f0;"
    " st.global.v4.f32 [%rd0], V;": lambda x: (x[3], x[1], x[2], x[0]),
    "ld.global.v4.f32 V, [%rd0]; mov.v4.f32 W, V; add.f32 V.x, V.x, W.y;"
    " st.global.v2.f32 [%rd0], {V.x, W.b};": (lambda x: (x[0] + x[1], x[2], x[2], x[3])),
    "ld.global.v2.b32 %u0, [%rd0]; ld.global.v2.b32 %u2, [%rd0+8]; mov.b64 %rd2, %u2; mov.b64 %u1, %rd2;"
    " st.global.v2.b32 [%rd0], %u1; st.global.b32 [%rd0+8], %u0.y;": lambda x: (x[2], x[3], x[1], x[3]),
    "ld.global.v4.f32 V, [%rd0]; { .reg .v2 .f32 V; mov.v2.f32 V, {0f3F800000, 0f40000000};"
    " st.global.v2.f32 [%rd0+8], V; } st.global.f32 [%rd0], V.z;": lambda x: (x[2], x[1], 1, 2),
    "ld.global.v2.b32 %u0, [%rd0]; { .reg .b32 %u<2>; mov.b32 %u0, 0f40800000;"
    " st.global.b32 [%rd0], %u0; { .reg .v2 .b32 %u<1>; mov.b32 %u0.y, 0; st.global.b32 [%rd0+4], %u0.y; } }"
    " st.global.b32 [%rd0+8], %u0.y;": lambda x: (4, 0, x[1], x[3]),
    "ld.global.v4.u8 bytes, [%rd0]; mov.b32 %r1, bytes; st.global.b32 [%rd0+4], %r1;": (
        lambda x: (x[0], x[0], x[2], x[3])
    ),
}


def module(body: str) -> Module:
    return parse(ptx(HEAD + body.replace("; ", ";\n"), "u64 x"))


@pytest.mark.parametrize("body", BODIES)
def test_elements_are_registers(body: str) -> None:
    x = np.random.default_rng(2).integers(-99, 99, (32, 4)).astype(np.float32)
    wanted = np.array([BODIES[body](row) for row in x], np.float32)
    read = module(body)
    assert parse(render(read)) == read
    assert verify(read) == ()
    run_both_ways(read, args=[x], grid=1, block=32)
    np.testing.assert_array_equal(x, wanted)


def test_coordinates_may_be_a_vector_register() -> None:
    text = "ld.param.u64 %rd1, [t]; mov.f32 V.x, 0f00000000; mov.f32 V.y, V.x; mov.f32 V.z, V.x;"
    read = parse(ptx(f"{HEAD}{text} mov.f32 V.w, V.x; tex.3d.v4.f32.f32 W, [%rd1, V];", "u64 x, u64 t"))
    assert "tex.3d.v4.f32.f32 {W$1_0, W$1_1, W$1_2, W$1_3}, [%rd1, {V$1_0, V$1_1, V$1_2, V$1_3}];" in render(
        read
    )


@pytest.mark.ptxas
def test_the_assembler_takes_the_text_and_what_is_printed(assembler: Assembler) -> None:
    for body in BODIES:
        assembler.assemble(ptx(HEAD + body, "u64 x"), "sm_90a")
        assembler.assemble(render(module(body)), "sm_90a")
