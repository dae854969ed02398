"""What an access is meant for: the shared variable or region that its address is computed from."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interpreter import reported
from interpreter import test_hopper_programs as hopper
from interpreter.programs import at, ptx

from ptxgen.check.prove.program.provenance import derived
from ptxgen.interpreter import run
from ptxgen.parse import parse

TWO = ".shared .align 16 .b8 K_tile[1024];\n\t.shared .align 16 .b8 V_tile[1024];"
ROW = """
    ld.param.u32 %r0, [n];
    mov.u32 %r1, %tid.x;
    shl.b32 %r1, %r1, 2;
    mad.lo.s32 %r1, %r0, 128, %r1;
"""


def two(body: str, params: str = "u32 n", before: str = "") -> str:
    """A kernel with two arrays of 8 rows of 128 bytes; %r1 is the thread's byte of row n."""
    text = ptx(ROW + body + "    ret;\n", params, shared=1)
    entry = f"{before}\n.visible .entry"
    return text.replace(".shared .align 16 .b8 buf[1];", TWO).replace(".visible .entry", entry)


messages = functools.partial(reported.messages, sanitize="bounds")


def said(text: str, instruction: str, why: str, thread: int = 0) -> str:
    return at(text, instruction, thread) + f"bounds: shared address {why}"


ACCESSES = {
    "a store": "st.shared.u32 [%r2], %r1;",
    "a load": "ld.shared.u32 %r3, [%r2];",
    "an atomic": "atom.shared.add.u32 %r3, [%r2], 1;",
    "cp.async": "cp.async.ca.shared.global [%r2], [%rd0], 4;",
    "a generic address": "cvt.u64.u32 %rd1, %r2;\n    cvta.shared.u64 %rd1, %rd1;\n    st.u32 [%rd1], %r1;",
}


@pytest.mark.parametrize("access", ACCESSES)
def test_a_row_too_many_lands_in_the_next_array_and_is_found(access: str) -> None:
    text = two(
        f"    ld.param.u64 %rd0, [x];\n    mov.u32 %r2, K_tile;\n    add.s32 %r2, %r2, %r1;\n"
        f"    {ACCESSES[access]}\n",
        "u32 n, u64 x",
    )
    x = np.zeros(1, np.uint32)
    assert messages(text, [np.uint32(7), x], block=1) == []
    instruction = ACCESSES[access].splitlines()[-1].strip()
    assert messages(text, [np.uint32(8), x], block=1) == [
        said(text, instruction, "0x400 (V_tile): its address is computed from K_tile, at 0x0 to 0x3ff")
    ]


def test_what_ends_in_a_gap_between_arrays_is_said_once() -> None:
    text = two("    st.shared.v2.u32 [K_tile], {%r0, %r0};\n").replace("K_tile[1024]", "K_tile[4]")
    assert messages(text, [np.uint32(1)], block=1) == [
        said(text, "st.shared.v2", "0x0 (K_tile): its address is computed from K_tile, at 0x0 to 0x3")
    ]


def test_a_row_before_the_first_is_found_with_the_thread() -> None:
    text = two("    add.s32 %r2, %r1, V_tile;\n    st.shared.u32 [%r2+-4], %r1;\n")
    assert messages(text, [np.uint32(1)]) == []
    assert messages(text, [np.uint32(0)]) == [
        said(text, "st.shared.u32", "0x3fc (K_tile): its address is computed from V_tile, at 0x400 to 0x7ff")
    ]


def test_a_pointer_goes_through_loops_and_choices() -> None:
    """It begins in either array, and moves a row a turn: eight rows are right."""
    text = two("""
    setp.ne.u32 %p0, %r0, 8;
    mov.u32 %r2, K_tile;
    @%p0 mov.u32 %r2, V_tile;
    mov.u32 %r3, 0;
$next:
    st.shared.u32 [%r2], %r1;
    add.u32 %r2, %r2, 128;
    add.u32 %r3, %r3, 1;
    setp.lt.u32 %p1, %r3, %r0;
    @%p1 bra $next;
""")
    assert messages(text, [np.uint32(8)]) == []
    text = text.replace(".b8 V_tile[1024];", ".b8 V_tile[1024];\n\t.shared .b8 scale[128];")
    assert messages(text, [np.uint32(9)], block=1) == [
        said(
            text,
            "st.shared.u32",
            "0x800 (scale): its address is computed from K_tile, at 0x0 to "
            "0x3ff or V_tile, at 0x400 to 0x7ff",
        )
    ]


PUT = """.func put(.reg .b32 at, .reg .b32 what)
{
    st.shared.u32 [at], what;
    ret;
}"""


def test_a_pointer_that_a_function_gets_is_known_for_each_call() -> None:
    calls = """
    add.s32 %r2, %r1, K_tile;
    add.s32 %r3, %r1, V_tile;
    call.uni put, (%r2, %r1);
    call.uni put, (%r3, %r1);
"""
    text = two(calls, before=PUT)
    assert messages(text, [np.uint32(7)]) == []
    text = two(calls.replace("V_tile", "K_tile"), before=PUT)
    (message,) = messages(text, [np.uint32(8)])
    assert message.endswith("0x400 (V_tile): its address is computed from K_tile, at 0x0 to 0x3ff")


def test_the_accesses_of_a_kernel_are_known_that_calls_functions() -> None:
    body = """
    mov.u32 %r3, V_tile;
    call.uni put, (%r3, %r1);
    add.s32 %r2, %r1, K_tile;
    st.shared.u32 [%r2], %r1;
"""
    text = two(body, before=PUT)
    assert messages(text, [np.uint32(7)]) == []
    assert messages(text, [np.uint32(8)]) == [
        said(
            text,
            "st.shared.u32 [%r2]",
            "0x400 (V_tile): its address is computed from K_tile, at 0x0 to 0x3ff",
        )
    ]


def test_an_array_that_a_function_declares_is_known_in_it() -> None:
    function = """.func put(.reg .b32 row)
{
    .reg .b32 at;
    .shared .align 16 .b8 own[128];
    .shared .align 16 .b8 other[128];
    add.s32 at, row, own;
    st.shared.u32 [at], row;
    ret;
}"""
    text = two("    call.uni put, (%r1);\n", before=function)
    assert messages(text, [np.uint32(0)]) == []
    assert messages(text, [np.uint32(1)]) == [
        said(text, "st.shared.u32", "0x80 (other): its address is computed from own, at 0x0 to 0x7f")
    ]


def test_an_array_of_the_kernel_is_known_though_a_function_has_one_of_that_name() -> None:
    function = """.func put(.reg .b32 row)
{
    .reg .b32 at;
    .shared .align 16 .b8 K_tile[128];
    mov.u32 at, K_tile;
    st.shared.u32 [at], row;
    ret;
}"""
    body = """
    call.uni put, (%r1);
    add.s32 %r2, %r1, K_tile;
    st.shared.u32 [%r2], %r1;
"""
    text = two(body, before=function)
    assert messages(text, [np.uint32(7)]) == []
    (message,) = messages(text, [np.uint32(8)])
    assert "st.shared.u32 [%r2], %r1;" in message
    assert "its address is computed from K_tile" in message


UNKNOWN = {
    "a distance between the two": """
    mov.u32 %r3, V_tile;
    mov.u32 %r4, K_tile;
    sub.s32 %r3, %r3, %r4;
    add.s32 %r3, %r3, %r4;
    st.shared.u32 [%r3], %r1;
""",
    "an exclusive or of the two": """
    mov.u32 %r3, V_tile;
    mov.u32 %r4, K_tile;
    xor.b32 %r3, %r3, %r4;
    xor.b32 %r3, %r4, %r3;
    st.shared.u32 [%r3], %r1;
""",
    "a number of another way": """
    mov.u32 %r3, K_tile;
    setp.eq.u32 %p0, %r0, 8;
    @%p0 mov.u32 %r3, %r1;
    st.shared.u32 [%r3], %r1;
""",
    "only a number": "    st.shared.u32 [%r1], %r1;\n",
    "a pointer from memory": """
    mov.u32 %r3, V_tile;
    st.shared.u32 [K_tile], %r3;
    ld.shared.u32 %r4, [K_tile];
    st.shared.u32 [%r4], %r1;
""",
    "a product": """
    mov.u32 %r3, K_tile;
    mad.lo.u32 %r3, %r3, 2, %r1;
    st.shared.u32 [%r3], %r1;
""",
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_nothing_is_said_where_the_text_does_not_tell(case: str) -> None:
    assert messages(two(UNKNOWN[case]), [np.uint32(8)]) == []


SWIZZLES = {
    "xor": "xor.b32 %r2, %r2, %r1;",
    "a mask": "and.b32 %r2, %r2, -128;",
    "or": "or.b32 %r2, %r2, %r1;",
    "selp": "selp.b32 %r2, %r2, %r2, %p0;",
    "mad": "mad.lo.u32 %r2, %r1, 4, %r2;",
    "a shuffle": "shfl.sync.idx.b32 %r2, %r2, 0, 31, -1;",
    "a difference": "sub.u32 %r2, %r2, %r1;",
}


@pytest.mark.parametrize("case", SWIZZLES)
def test_an_address_stays_one_through_what_swizzles_are_made_of(case: str) -> None:
    text = two(f"    mov.u32 %r2, V_tile;\n    {SWIZZLES[case]}\n    st.shared.u32 [%r2], %r1;\n")
    module = parse(text)
    (allowed,) = derived(module, module.kernels[0], 0).values()
    assert [(one.variable, one.home.nbytes) for one in allowed] == [("V_tile", 1024)]


def test_regions_of_dynamic_memory_are_kept_apart() -> None:
    """As our generator prints them: the constant part of an address says which region is meant."""
    body = ROW + "    add.s32 %r2, %r1, smem;\n    st.shared.u32 [%r2{}], %r1;"
    regions = (
        "{\n// region K_tile: offset 0, 1024 bytes, align 16"
        "\n// region V_tile: offset 1024, 1024 bytes, align 16\n\t.reg .pred"
    )

    def text(offset: str) -> str:
        built = ptx(body.format(offset), dynamic=True)
        return built.replace("{\n\t.reg .pred", regions, 1)

    launch: dict[str, Any] = {"dynamic_smem": 2048}
    for offset, rows in (("", range(8)), ("+1024", range(8))):
        for row in rows:
            assert messages(text(offset), [np.uint32(row)], **launch) == []
    assert messages(text(""), [np.uint32(8)], **launch) == [
        said(
            text(""), "st.shared.u32", "0x400 (V_tile): its address is computed from K_tile, at 0x0 to 0x3ff"
        )
    ]
    assert messages(text("+1024"), [np.uint32(0xFFFFFFFF)], **launch) == [
        said(
            text("+1024"),
            "st.shared.u32",
            "0x380 (K_tile): its address is computed from V_tile, at 0x400 to 0x7ff",
        )
    ]


@pytest.mark.parametrize("there", ["dst", "src"])
def test_a_bulk_copy_past_the_end_of_its_array_is_found(there: str) -> None:
    copy = {
        "dst": "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd0], 64, [%r1];",
        "src": "cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r2], 64;",
    }[there]
    wait = hopper.WAIT if there == "dst" else "    cp.async.bulk.wait_all;\n"
    wait = wait.replace(
        "cp.async.bulk.wait_all;", "cp.async.bulk.commit_group;\n    cp.async.bulk.wait_group 0;"
    )
    body = f"""
    .shared .align 16 .b8 tile[64];
    .shared .align 16 .b8 scale[64];
{hopper.INIT}
    ld.param.u64 %rd0, [x];
    ld.param.u32 %r3, [n];
    mov.u32 %r2, tile;
    add.u32 %r2, %r2, %r3;
    @%p0 bra $end;
    {hopper.expect(64).strip() if there == "dst" else ""}
    {copy}
{wait}
$end:
"""
    text = hopper.kernel("u64 x, u32 n", body)
    x = np.zeros(16, np.uint32)
    how: dict[str, Any] = {"dynamic_smem": 64}
    assert messages(text, [x, np.uint32(0)], **how) == []
    assert messages(text, [x, np.uint32(64)], **how) == [
        said(text, "cp.async.bulk.", "0x40 (scale): its address is computed from tile, at 0x0 to 0x3f")
    ]
    (message,) = messages(text, [x, np.uint32(32)], **how)
    assert message.startswith(
        said(text, "cp.async.bulk.", "0x40 (scale): its address is computed from tile, at 0x0 to 0x3f")
    )


def test_the_row_too_many_of_the_manual_is_found() -> None:
    text = Path("tests/ptx/bugs/row_too_many.ptx").read_text()
    x, y = np.zeros(33 * 16, np.float32), np.zeros(64, np.float32)
    result = run(text, "copy_tile", grid=1, block=64, args=[x, y], sanitize="bounds", raise_on_report=False)
    assert [r.message for r in result.reports] == [
        "kernel copy_tile: cp.async.cg.shared.global [%r2], [%rd2], 16; (line 25): thread (0, 0, 0)"
        " of CTA (0, 0, 0): bounds: shared address 0x800 (scale): its address is computed from "
        "tile, at 0x0 to 0x7ff"
    ]
