"""Kernels with `mma.sync` of 4-, 6- and 8-bit floating point with a `.kind`, against integers of Python."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest
from interpreter.both_paths import run_both_ways
from isa import tcgen05_model as model
from isa.cases_matrix import PLACES_A, PLACES_B, place_c

from ptxgen.check.verify import verify
from ptxgen.errors import TrapError
from ptxgen.interpreter import run
from ptxgen.parse import parse
from ptxgen.runtime.assembler import Assembler
from ptxgen.text import render

Array = np.ndarray[Any, Any]

TYPES: Final = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
MMA: Final = "mma.sync.aligned"
WARPS: Final = 3
WORDS: Final = 12  # of a thread: A, B, C and the scale factors of A and of B
INPUTS: Final = "{%r0, %r1, %r2, %r3}, {%r4, %r5}"
WIDE: Final = f"{{%f0, %f1, %f2, %f3}}, {INPUTS}, {{%f0, %f1, %f2, %f3}}"
HALF: Final = f"{{%r6, %r7}}, {INPUTS}, {{%r6, %r7}}"
PAIRS: Final = [(a, b) for a in TYPES for b in TYPES]

KERNEL: Final = """.version 8.8
.target {target}
.address_size 64
.visible .entry product(.param .u64 in, .param .u64 out)
{{
    .reg .pred %p<4>;
    .reg .b16 %h<4>;
    .reg .b32 %r<20>;
    .reg .f32 %f<4>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd0, [in];
    ld.param.u64 %rd1, [out];
    mov.u32 %r12, %tid.x;
    mul.wide.u32 %rd2, %r12, 48;
    add.u64 %rd2, %rd2, %rd0;
    mul.wide.u32 %rd3, %r12, 16;
    add.u64 %rd3, %rd3, %rd1;
    ld.global.v4.b32 {{%r0, %r1, %r2, %r3}}, [%rd2];
    ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%rd2+16];
    ld.global.v4.b32 {{%r8, %r9, %r10, %r11}}, [%rd2+32];
    mov.b32 %f0, %r6;
    mov.b32 %f1, %r7;
    mov.b32 %f2, %r8;
    mov.b32 %f3, %r9;
    shr.u32 %r13, %r12, 5;
    setp.ne.u32 %p0, %r13, 1;
    {body}
    st.global.v4.b32 [%rd3], {{{results}}};
    ret;
}}
"""
IN_F32: Final = "%f0, %f1, %f2, %f3"
IN_F16: Final = "%r6, %r7, %r6, %r7"


def kernel(body: str, results: str = IN_F32, target: str = "sm_120a") -> str:
    return KERNEL.format(body=body, results=results, target=target)


def scaled(
    kind: str, a: str, b: str, stype: str, vec: str = "", of_a: str = "0, 0", of_b: str = "0, 0"
) -> str:
    k = 32 if kind == "mxf8f6f4" else 64
    opcode = f"{MMA}.m16n8k{k}.row.col.kind::{kind}.block_scale{vec}.f32.{a}.{b}.f32.{stype}"
    return f"{opcode} {WIDE}, %r10, {{{of_a}}}, %r11, {{{of_b}}};"


PLAIN: Final = [f"{MMA}.m16n8k32.row.col.kind::f8f6f4.f32.{a}.{b}.f32 {WIDE};" for a, b in PAIRS] + [
    f"{MMA}.m16n8k32.row.col.kind::f8f6f4.f16.{a}.{b}.f16 {HALF};" for a, b in PAIRS
]
# With scale factors: the kind, the blocks of a row, the types and the suffix.
OF_FP4: Final = [
    ("mxf4", 2, "ue8m0", ""),
    ("mxf4", 2, "ue8m0", ".scale_vec::2X"),
    ("mxf4nvf4", 2, "ue8m0", ".scale_vec::2X"),
    ("mxf4nvf4", 4, "ue4m3", ".scale_vec::4X"),
]
SCALED: Final = [
    scaled("mxf8f6f4", a, b, "ue8m0", vec) for a, b in PAIRS for vec in ("", ".scale_vec::1X")
] + [scaled(kind, "e2m1", "e2m1", stype, vec) for kind, _, stype, vec in OF_FP4]


# ---------------------------------------- texts


def test_every_text_is_read_verified_and_printed() -> None:
    lines = PLAIN + SCALED
    module = parse(kernel("\n".join(lines)))
    assert verify(module) == ()
    printed = render(module)
    assert [x.strip() for x in printed.splitlines() if x.strip().startswith("mma")] == lines
    assert parse(printed) == module


@pytest.mark.ptxas
def test_the_assembler_takes_every_text(assembler: Assembler) -> None:
    assembler.assemble(kernel("\n".join(PLAIN + SCALED)), "sm_120a", opt_level=0)


@pytest.mark.parametrize(("line", "target"), [(PLAIN[-1], "sm_100a"), (SCALED[0], "sm_120")])
def test_a_target_without_it_is_a_problem(line: str, target: str) -> None:
    message = f"{line.split()[0]} needs family sm_120f / PTX 8.7, but the module targets {target} / PTX 8.8"
    assert [p.message for p in verify(parse(kernel(line, target=target)))] == [message]


# ---------------------------------------- numbers


def drawn(seed: int, d: str = "f32", stype: str = "ue8m0") -> Array:
    """The words of all threads: any A and B, C of moderate size, scale factors near 1 and a few any."""
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 1 << 32, (32 * WARPS, WORDS), np.uint32)
    if d == "f16":
        words[:, 6:8] = rng.normal(0, 30, (32 * WARPS, 4)).astype(np.float16).view(np.uint32)
    else:
        words[:, 6:10] = rng.normal(0, 30, (32 * WARPS, 4)).astype(np.float32).view(np.uint32)
    one = 127 if stype == "ue8m0" else 56
    scales = rng.integers(one - 9, one + 10, (32 * WARPS, 8)).astype(np.uint8)
    anywhere = rng.random(scales.shape) < 0.03
    scales[anywhere] = rng.integers(0, 256, int(anywhere.sum()))
    words[:, 10:12] = scales.view(np.uint32)
    return words


def ran(body: str, words: Array, results: str = IN_F32, **more: Any) -> Array:
    """What the threads store, `[threads, 4]`."""
    out = np.zeros((32 * WARPS, 4), np.uint32)
    run(kernel(body, results), grid=1, block=32 * WARPS, args=[words, out], **more)
    return out


def in_bytes(type: str, byte: int) -> int:
    """The element of a type in a byte."""
    return {"e2m1": byte >> 2 & 0xF, "e2m3": byte & 0x3F, "e3m2": byte & 0x3F}.get(type, byte)


def matrices(words: Array, a: str, b: str, *, paired: bool) -> tuple[list[list[int]], list[list[int]]]:
    """The bits of the elements of A by rows and of B by columns, from the words of a warp."""
    shape, width = ("m16n8k64", 4) if paired else ("m16n8k32", 8)
    k = 64 if paired else 32
    left, right = [[0] * k for _ in range(16)], [[0] * k for _ in range(8)]
    for lane, registers in enumerate(words.tolist()):
        for i in range(128 // width):
            bits = registers[i * width // 32] >> i * width % 32 & (1 << width) - 1
            row, column = PLACES_A[shape, width](lane >> 2, lane % 4, i)
            left[row][column] = bits if paired else in_bytes(a, bits)
        for i in range(64 // width):
            bits = registers[4 + i * width // 32] >> i * width % 32 & (1 << width) - 1
            row, column = PLACES_B[shape, width](lane >> 2, lane % 4, i)
            right[column][row] = bits if paired else in_bytes(b, bits)
    return left, right


def factor_of_a(words: Array, row: int, byte: int, thread: int) -> int:
    """A scale factor of A: thread 0 names the first two lanes of each four, thread 1 the others."""
    return int(words[row % 8 * 4 + 2 * thread + (row >= 8), 10]) >> 8 * byte & 0xFF


def factor_of_b(words: Array, column: int, byte: int, thread: int) -> int:
    return int(words[column * 4 + thread, 11]) >> 8 * byte & 0xFF


def starts(words: Array, d: str) -> dict[tuple[int, int], int]:
    """C, by row and column."""
    held = words[:, 6:8].copy().view(np.uint16) if d == "f16" else words[:, 6:10]
    return {place_c(lane, i): int(held[lane, i]) for lane in range(32) for i in range(4)}


def results_of(out: Array, d: str) -> dict[tuple[int, int], int]:
    held = out[:, :2].copy().view(np.uint16) if d == "f16" else out
    return {place_c(lane, i): int(held[lane, i]) for lane in range(32) for i in range(4)}


def by_warps(words: Array) -> list[Array]:
    return [words[first : first + 32] for first in range(0, len(words), 32)]


@pytest.mark.parametrize("d", ["f32", "f16"])
@pytest.mark.parametrize("types", PAIRS, ids="-".join)
def test_a_product_has_the_bits_of_exact_integers(types: tuple[str, str], d: str) -> None:
    line = PLAIN[PAIRS.index(types) + (len(PAIRS) if d == "f16" else 0)]
    words = drawn(PAIRS.index(types), d)
    out = ran(line, words, IN_F16 if d == "f16" else IN_F32)
    for of_warp, got in zip(by_warps(words)[:2], by_warps(out)[:2], strict=True):
        left, right = matrices(of_warp, *types, paired=False)
        want = {
            (row, column): model.dot(types, left[row], right[column], c, d)
            for (row, column), c in starts(of_warp, d).items()
        }
        assert results_of(got, d) == want


@pytest.mark.parametrize("numbers", [((0, 0), (0, 0)), ((1, 1), (3, 2)), ((3, 0), (2, 3)), ((2, 1), (1, 1))])
@pytest.mark.parametrize("types", [("e4m3", "e5m2"), ("e2m1", "e4m3"), ("e3m2", "e2m3")], ids="-".join)
def test_a_scale_factor_of_each_row_is_in_the_byte_and_the_thread_that_are_named(
    types: tuple[str, str], numbers: tuple[tuple[int, int], tuple[int, int]]
) -> None:
    words = drawn(sum(sum(n) for n in numbers))
    names = [f"{byte}, {thread}" for byte, thread in numbers]
    out = ran(scaled("mxf8f6f4", *types, "ue8m0", "", *names), words)
    for of_warp, got in zip(by_warps(words)[:2], by_warps(out)[:2], strict=True):
        left, right = matrices(of_warp, *types, paired=False)
        want = {}
        for (row, column), c in starts(of_warp, "f32").items():
            scale = (
                "ue8m0",
                factor_of_a(of_warp, row, *numbers[0]),
                factor_of_b(of_warp, column, *numbers[1]),
            )
            want[row, column] = model.dot(types, left[row], right[column], c, "f32", scale=scale)
        assert results_of(got, "f32") == want


@pytest.mark.parametrize("form", OF_FP4, ids=lambda form: "".join((form[0], form[3])))
@pytest.mark.parametrize("threads", [(0, 0), (1, 3)])
@pytest.mark.parametrize("high", [False, True])
def test_products_of_pairs_have_a_scale_factor_for_each_block(
    form: tuple[str, int, str, str], threads: tuple[int, int], high: bool
) -> None:
    kind, blocks, stype, vec = form
    first = 2 if high and blocks == 2 else 0
    words = drawn(7 + first, stype=stype)
    names = [f"{first}, {thread}" for thread in threads]
    out = ran(scaled(kind, "e2m1", "e2m1", stype, vec, *names), words)
    for of_warp, got in zip(by_warps(words)[:2], by_warps(out)[:2], strict=True):
        left, right = matrices(of_warp, "e2m1", "e2m1", paired=True)
        want = {}
        for (row, column), c in starts(of_warp, "f32").items():
            both = [
                (
                    factor_of_a(of_warp, row, first + n, threads[0]),
                    factor_of_b(of_warp, column, first + n, threads[1]),
                )
                for n in range(blocks)
            ]
            want[row, column] = model.dot_fp4(left[row], right[column], c, stype, both)
        assert results_of(got, "f32") == want


@pytest.mark.parametrize("stepwise", [False, True])
@pytest.mark.parametrize("line", [PLAIN[0], SCALED[0], SCALED[-1]], ids=lambda line: line.split()[0])
def test_a_warp_that_does_not_execute_a_product_keeps_its_registers(line: str, stepwise: bool) -> None:
    words = drawn(3)
    every, guarded = (ran(f"{guard}{line}", words, stepwise=stepwise) for guard in ("", "@%p0 "))
    assert (guarded[32:64] == words[32:64, 6:10]).all()
    assert (guarded[:32] == every[:32]).all()
    assert (guarded[64:] == every[64:]).all()


# ---------------------------------------- the numbers of byte and thread


@pytest.mark.parametrize(
    ("of_a", "of_b", "vec", "said"),
    [
        ("4, 0", "0, 0", "1X", "the same byte for the scale factors of A, 0 or 1 or 2 or 3; got 4"),
        ("1, 0", "0, 0", "2X", "the same byte for the scale factors of A, 0 or 2; got 1"),
        ("0, 0", "2, 0", "4X", "the same byte for the scale factors of B, 0; got 2"),
        ("0, 2", "0, 0", "1X", "the same thread for the scale factors of A, 0 or 1; got 2"),
        ("0, 0", "0, %h0", "1X", "the same thread for the scale factors of B, 0 or 1 or 2 or 3; got 1"),
    ],
)
def test_numbers_that_the_manual_does_not_allow_stop_the_kernel(
    of_a: str, of_b: str, vec: str, said: str
) -> None:
    kind, type, stype = {
        "1X": ("mxf8f6f4", "e4m3", "ue8m0"),
        "2X": ("mxf4", "e2m1", "ue8m0"),
        "4X": ("mxf4nvf4", "e2m1", "ue4m3"),
    }[vec]
    line = scaled(kind, type, type, stype, f".scale_vec::{vec}", of_a, of_b)
    lane = "and.b32 %r14, %r12, 1;\ncvt.u16.u32 %h0, %r14;\n"
    with pytest.raises(TrapError) as stopped:
        ran(lane + line, drawn(1))
    assert f"mma: all lanes of a warp name {said}" in str(stopped.value)


def test_all_lanes_of_a_warp_execute_a_product() -> None:
    for line in (PLAIN[0], SCALED[0]):
        with pytest.raises(TrapError) as stopped:
            ran(f"setp.lt.u32 %p1, %r12, 16;\n@%p1 {line}", drawn(1))
        assert "lanes of the membermask are not here 0xffffffff; the active lanes are 0x0000ffff" in str(
            stopped.value
        )


def test_the_numbers_may_be_in_registers_and_differ_between_warps() -> None:
    words = drawn(5)
    wanted = [
        ran(scaled("mxf8f6f4", "e4m3", "e4m3", "ue8m0", "", "0, 0", f"{n}, {n}"), words) for n in range(3)
    ]
    line = scaled("mxf8f6f4", "e4m3", "e4m3", "ue8m0", "", "0, 0", "%h0, %h0")
    got = ran(f"cvt.u16.u32 %h0, %r13;\n{line}", words)
    for warp, out in enumerate(wanted):
        assert (by_warps(got)[warp] == by_warps(out)[warp]).all()


# ---------------------------------------- undefined bits


UNDEFINED: Final = [
    # What lane 4 (group 1, thread 0) has not written, and the lanes of the stored element that are undefined.
    (SCALED[0], "", 0, []),
    (SCALED[0], "mov.b32 %r0, %r19;", 0, [4, 5, 6, 7]),  # row 1 of A
    (SCALED[0], "mov.b32 %r0, %r19;", 2, []),  # row 9
    (SCALED[0], "mov.b32 %r4, %r19;", 1, [*range(0, 32, 4)]),  # column 1 of B: elements 1 of lanes 0, 4, …
    (SCALED[0], "mov.b32 %f1, %r19;", 1, [4]),
    (SCALED[0], "mov.b32 %r10, %r19;", 0, [4, 5, 6, 7]),  # the scale factor of row 1
    (SCALED[0], "mov.b32 %r10, %r19;", 2, []),
    (SCALED[0], "mov.b32 %r11, %r19;", 1, [*range(0, 32, 4)]),  # the scale factor of column 1
    (SCALED[0], "and.b32 %r10, %r19, 0xffffff00;", 0, []),  # bytes that are not named
    (SCALED[-1], "and.b32 %r10, %r19, 0xff000000;", 0, [4, 5, 6, 7]),  # the last of four blocks
    (SCALED[-1], "mov.b32 %r3, %r19;", 2, [4, 5, 6, 7]),
    (SCALED[-1], "mov.b32 %r3, %r19; mov.b32 %r11, 0;", 3, [4, 5, 6, 7]),  # the factor 0 is no shield
    (PLAIN[PAIRS.index(("e2m1", "e2m3"))], "and.b32 %r0, %r19, 0xc3c3c3c3;", 0, []),  # around e2m1
    (PLAIN[PAIRS.index(("e2m1", "e2m3"))], "and.b32 %r0, %r19, 0x04000000;", 0, [4, 5, 6, 7]),
    (PLAIN[PAIRS.index(("e2m1", "e2m3"))], "and.b32 %r4, %r19, 0xc0c0c0c0;", 1, []),  # beside e2m3
    (PLAIN[PAIRS.index(("e2m1", "e2m3"))], "and.b32 %r4, %r19, 1;", 1, [*range(0, 32, 4)]),
]


@pytest.mark.parametrize(("line", "change", "element", "lanes"), UNDEFINED)
def test_undefined_elements_and_scale_factors_spoil_their_rows_and_columns(
    line: str, change: str, element: int, lanes: list[int]
) -> None:
    skip = " ".join(f"setp.eq.or.u32 %p2, %r12, {lane}, %p2;" for lane in lanes)
    body = (
        f"setp.ne.u32 %p1, %r12, 4;\n@%p1 bra past;\n{change}\npast:\nbar.warp.sync -1;\n{line}\n"
        f"mov.b32 %r14, %f{element};\nsetp.ne.u32 %p2, %r12, %r12;\nCUT"
    )
    words, out = np.full((32, WORDS), 0x38383838, np.uint32), np.zeros((32, 4), np.uint32)
    text = kernel(body, "%r14, %r14, %r14, %r14")
    assert reporting(text.replace("CUT", ""), [words, out]) == lanes[:1]
    assert reporting(text.replace("CUT", f"{skip}\n@%p2 mov.b32 %r14, 0;"), [words, out]) == []


def reporting(text: str, args: list[Array]) -> list[int]:
    """The first thread of each report."""
    reports = run_both_ways(text, args=args, grid=1, block=32, raise_on_report=False).reports
    return [report.threads[0] for report in reports]
