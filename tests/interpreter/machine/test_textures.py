"""Textures and surfaces in launches: handles, and what is refused. What fetches give is in
`tests/test_texture.py` and `tests/interpreter/test_nvcc_programs.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from interpreter.both_paths import run_both_ways
from interpreter.programs import ptx, refused
from interpreter.reported import trap

from ptxgen.check.verify import verify
from ptxgen.errors import LaunchError
from ptxgen.interpreter import DeviceArena
from ptxgen.parse import parse
from ptxgen.texture import Surface, Texture

LINE = np.arange(8, dtype=np.float32)


START = """
    ld.param.u64 %rd0, [image];
    ld.param.u64 %rd1, [out];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd2, %r0, 4;
    add.u64 %rd2, %rd1, %rd2;
    cvt.rn.f32.u32 %f0, %r0;
    mov.b32 %r1, 0;
"""


def kernel(body: str, **how: Any) -> str:
    return ptx(START + body, **how)


def launch(body: str, image: Any, **how: Any) -> np.ndarray:
    out = np.zeros(32, np.float32)
    run_both_ways(kernel(body), args=[image, out], grid=1, block=32, **how)
    return out


def trapped(body: str, image: Any) -> str:
    return trap(kernel(body), [image, np.zeros(32, np.float32)]).partition("thread")[2]


FETCH = """    tex.1d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd0, {%f0}];
    st.global.f32 [%rd2], %f1;"""


def test_literals_are_coordinates() -> None:
    fetch = "    tex.2d.v4.f32.f32 {%f1, _, _, _}, [%rd0, {1.25, 0f3F800000}];\n"
    fetch += "    st.global.f32 [%rd2], %f1;"
    image = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert launch(fetch, Texture(image)).tolist() == [4] * 32


def test_lanes_without_the_guard_fetch_nothing() -> None:
    body = "    setp.lt.u32 %p0, %r0, 5;\n    mov.f32 %f1, 0fBF800000;\n    @%p0 "
    body += FETCH.strip()
    assert launch(body, Texture(LINE)).tolist() == [0, 1, 2, 3, 4, *[-1] * 27]


def test_each_lane_may_have_a_texture_of_its_own() -> None:
    arena = DeviceArena()
    handles = np.array([arena.bind(Texture(LINE + 100 * n)) for n in range(3)], np.uint64)
    body = (
        """    rem.u32 %r2, %r0, 3;
    mul.wide.u32 %rd3, %r2, 8;
    add.u64 %rd3, %rd0, %rd3;
    ld.global.u64 %rd0, [%rd3];
"""
        + FETCH
    )
    lanes = np.arange(32)
    want = np.minimum(lanes, 7) + 100 * (lanes % 3)
    assert launch(body, handles, arena=arena).tolist() == want.tolist()


def test_a_texture_has_one_handle_in_an_arena() -> None:
    arena, texture = DeviceArena(), Texture(LINE)
    assert arena.bind(texture) == arena.bind(texture) != arena.bind(Texture(LINE))


def test_queries_reach_the_texture() -> None:
    body = """    txq.width.b32 %r2, [%rd0];
    st.global.b32 [%rd2], %r2;"""
    assert launch(body, Texture(LINE)).view(np.uint32).tolist() == [8] * 32
    assert launch(body.replace("txq", "suq"), Surface(LINE.copy())).view(np.uint32)[0] == 8


def test_what_is_no_texture_is_refused_where_it_is_fetched() -> None:
    integers = FETCH.replace("v4.f32.f32 {%f1, %f2, %f3, %f4}", "v4.u32.f32 {%r1, %r2, %r3, %r4}")
    handle = "a texture, but {} is the handle of none; pass a ptxgen.texture.Texture as the argument"
    for fetch, image, why in (
        (FETCH, np.uint64(77), handle.format("0x4d")),
        (FETCH, Surface(LINE.copy()), handle.format("0x1")),
        (FETCH, Texture(LINE.reshape(2, 4)), "a 1d texture, got a 2d one; pass one with kind='1d'"),
        (FETCH, Texture(LINE.astype(np.int32)), "f32 values of a texture whose fetches give integers"),
        (integers, Texture(LINE), "u32 values of a texture whose fetches give floating-point numbers"),
    ):
        assert trapped(fetch, image) == f" (0, 0, 0) of CTA (0, 0, 0) wants {why}"


def test_a_surface_is_accessed_by_multiples_of_the_access() -> None:
    body = "    suld.b.1d.b32.clamp %r2, [%rd0, {%r0}];"
    assert trapped(body, Surface(LINE.copy())) == (
        " (1, 0, 0) of CTA (0, 0, 0) wants to read 4 bytes of a 1d surface at (1), where x is not "
        "a multiple of 4"
    )


def test_a_handle_is_an_integer_of_8_bytes() -> None:
    text = kernel("", params="b8 image[16], u64 out").replace("ld.param.u64 %rd0", "ld.param.u8 %rd0")
    assert refused(text, [Texture(LINE), LINE], LaunchError) == (
        "k: argument 0 (image) must fit its 16 bytes of type b8, got a Texture, whose handle is "
        "an integer of 8 bytes"
    )


def test_the_verifier_knows_handles_and_coordinates() -> None:
    result = [
        verify(parse(kernel(f"    {line}")))[0].message
        for line in (
            "tex.1d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd0, {%rs0}];",
            "tex.1d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd0, {0}];",
            "tex.2d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%rd0, {%r0, 1.5}];",
            "suld.b.1d.b32.trap %r2, [%rd0];",
            "sust.b.1d.v2.b32.trap [%r0, {%r1}], {%r2, %r2};",
        )
    ]
    assert result == [
        "operand tex of tex_1d must have coordinates of class f32, got %rs0 of class b16 "
        "(syntax: tex.1d.v4.type.ctype d*4, [tex:u64*1/ctype])",
        "operand tex of tex_1d must have coordinates of class f32, got 0 "
        "(syntax: tex.1d.v4.type.ctype d*4, [tex:u64*1/ctype])",
        "operand tex of tex_2d must have coordinates of class b32, got 0f3FC00000 "
        "(syntax: tex.2d.v4.type.ctype d*4, [tex:u64*2/ctype])",
        "operand surf of suld_1d must be a handle with coordinates such as [%rd1, {%r0}], got "
        "[%rd0] (syntax: suld.b.1d{.cop}{.vec}.type.mode d*vec, [surf:u64*1/s32])",
        "operand surf of sust_1d must be an address in a register of class b64, got %r0 of class "
        "b32 (syntax: sust.b.1d{.cop}{.vec}.type.mode [surf:u64*1/s32], a*vec)",
    ]
