"""Loads and stores of tensor memory that run: every shape with every number of registers, by the layout of
the manual's figures in plain Python; packed halves, extremes, and who may reach what.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest
from interpreter.programs import located
from interpreter.reported import trap
from interpreter.tensor_texts import LANE, LANES, TENSOR, THREAD, Array, kernel, moved, ran

# By shape: the registers of each thread for x1, and the largest number.
SHAPES: Final = {
    "32x32b": (1, 128),
    "16x64b": (1, 128),
    "16x128b": (2, 64),
    "16x256b": (4, 32),
    "16x32bx2": (1, 128),
}
FORMS: Final = [(shape, 1 << n) for shape, (_, most) in SHAPES.items() for n in range(most.bit_length())]
SPLIT: Final = 130  # columns between the halves of 16x32bx2


def cell(shape: str, thread: int, register: int) -> tuple[int, int]:
    """The lane and the column of a thread's register, counted from the address."""
    match shape:
        case "32x32b":
            return thread, register
        case "16x64b":
            return thread // 4 + 8 * (thread % 2), 2 * register + thread // 2 % 2
        case "16x128b":
            return thread // 4 + 8 * (register % 2), 4 * (register // 2) + thread % 4
        case "16x256b":
            quarter, right = register // 2 % 2, register % 2
            return thread // 4 + 8 * quarter, 8 * (register // 4) + 2 * (thread % 4) + right
        case _:
            return thread % 16, register + SPLIT * (thread // 16)


def vector(count: int, first: int = 100) -> str:
    return "{" + ", ".join(f"%r{first + n}" for n in range(count)) + "}"


def row_of_thread(registers: int) -> list[str]:
    """%rd1 = the address in x, and %rd2 that in out, of as many words as registers for this thread."""
    return [
        f"mul.wide.u32 %rd3, {THREAD}, {4 * registers};",
        "add.u64 %rd1, %rd90, %rd3;",
        "add.u64 %rd2, %rd91, %rd3;",
        f"add.u32 %r2, {TENSOR}, {LANE};",
    ]


def loaded(registers: int) -> list[str]:
    return [f"ld.global.u32 %r{100 + n}, [%rd1+{4 * n}];" for n in range(registers)]


def stored(registers: int, first: int = 100) -> list[str]:
    return [f"st.global.u32 [%rd2+{4 * n}], %r{first + n};" for n in range(registers)]


def numbers(*shape: int) -> Array:
    return np.random.default_rng(1).integers(0, 1 << 32, shape, np.uint32)


def parts(shape: str) -> tuple[str, str]:
    split = f", {SPLIT}" if shape == "16x32bx2" else ""
    return split, "" if shape == "32x32b" else "add.u32 %r2, %r2, 0x100000;"  # the upper half of the lanes


@pytest.mark.parametrize(("shape", "num"), FORMS)
def test_a_shape_is_loaded_as_the_manual_lays_it_out(shape: str, num: int) -> None:
    registers = SHAPES[shape][0] * num
    split, upper = parts(shape)
    body = [
        moved(0, 320, to="tensor"),
        *row_of_thread(registers),
        upper,
        f"tcgen05.ld.sync.aligned.{shape}.x{num}.b32 {vector(registers)}, [%r2+4]{split};",
        "tcgen05.wait::ld.sync.aligned;",
        *stored(registers),
    ]
    x = numbers(LANES, 320)
    got = ran(kernel("\n".join(body)), x, (LANES, registers))
    for thread in range(LANES):
        for register in range(registers):
            lane, column = cell(shape, thread % 32, register)
            lane += thread // 32 * 32 + (16 if upper else 0)
            assert got[thread, register] == x[lane, 4 + column]


@pytest.mark.parametrize(("shape", "num"), FORMS)
def test_what_a_shape_stores_it_loads_and_no_other_cell_changes(shape: str, num: int) -> None:
    registers = SHAPES[shape][0] * num
    split, upper = parts(shape)
    body = [
        *row_of_thread(registers),
        *loaded(registers),
        upper,
        f"tcgen05.st.sync.aligned.{shape}.x{num}.b32 [%r2+4]{split}, {vector(registers)};",
        "tcgen05.wait::st.sync.aligned;",
        "bar.sync 0;",
        moved(0, 320, to="out"),
    ]
    x = numbers(LANES, registers)
    got = ran(kernel("\n".join(body)), x, (LANES, 320))
    want = np.full((LANES, 320), 0x7FC0DEAD, np.uint32)
    for thread in range(LANES):
        for register in range(registers):
            lane, column = cell(shape, thread % 32, register)
            want[lane + thread // 32 * 32 + (16 if upper else 0), 4 + column] = x[thread, register]
    assert (got == want).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_packed_registers_have_the_lower_halves_of_two_columns(shape: str) -> None:
    registers = SHAPES[shape][0] * 4
    split, _ = parts(shape)
    body = [
        *row_of_thread(registers),
        *loaded(registers),
        f"tcgen05.st.sync.aligned.{shape}.x4.unpack::16b.b32 [%r2]{split}, {vector(registers)};",
        "tcgen05.wait::st.sync.aligned;",
        f"tcgen05.ld.sync.aligned.{shape}.x4.pack::16b.b32 {vector(registers, 200)}, [%r2]{split};",
        *stored(registers, 200),
        "bar.sync 0;",
        f"add.u64 %rd91, %rd91, {4 * LANES * registers};",
        moved(0, 256, to="out"),
    ]
    x = numbers(LANES, registers)
    got = ran(kernel("\n".join(body)), x, (LANES * (registers + 256),))
    assert (got[: x.size].reshape(x.shape) == x).all()
    cells = got[x.size :].reshape(LANES, 256)
    for thread in range(LANES):
        for register in range(registers):
            lane, column = cell(shape, thread % 32, register)
            further = SPLIT * (thread % 32 // 16) if shape == "16x32bx2" else 0
            lane, column = lane + thread // 32 * 32, 2 * (column - further) + further
            both = cells[lane, column : column + 2].tolist()
            assert both == [x[thread, register] & 0xFFFF, x[thread, register] >> 16]


EXTREMES: Final = [
    (shape, op, kind)
    for shape in ("32x32b", "16x32bx2")
    for op in ("min", "max")
    for kind in ("u32", "s32", "f32", "abs.f32", "NaN.f32", "abs.NaN.f32")
]


@pytest.mark.parametrize(("shape", "op", "kind"), EXTREMES)
def test_a_load_gives_the_extreme_of_a_threads_registers(shape: str, op: str, kind: str) -> None:
    split, _ = parts(shape)
    type = kind.rpartition(".")[2]
    held, extreme = (vector(8), "%r99") if type != "f32" else (vector(8, 100).replace("%r", "%f"), "%f99")
    body = [
        moved(0, 144, to="tensor"),
        *row_of_thread(9),
        f"tcgen05.ld.red.sync.aligned.{shape}.x8.{op}.{kind} {held}, {extreme}, [%r2]{split};",
        f"st.global.{type} [%rd2], {extreme};",
        *(f"st.global.{type} [%rd2+{4 * n + 4}], {r};" for n, r in enumerate(held.strip("{}").split(", "))),
    ]
    x = numbers(LANES, 144)
    if type == "f32":
        x = np.random.default_rng(2).standard_normal(x.shape).astype(np.float32).view(np.uint32)
        x[3, 2], x[5, 0] = 0x7FC00001, 0x7FC00002
        x[20, 130:138] = 0x7FC00003
        x[20, :8] = 0x7FC00003
    got = ran(kernel("\n".join(body), target="sm_103a"), x, (LANES, 9))
    for thread in range(LANES):
        cells = [cell(shape, thread % 32, r) for r in range(8)]
        values = x[[c[0] + thread // 32 * 32 for c in cells], [c[1] for c in cells]]
        assert (got[thread, 1:] == values).all()
        assert got[thread, 0] == extreme_of(values, op, kind)


def extreme_of(bits: Array, op: str, kind: str) -> int:
    """The bits of the least or the greatest value."""
    type = kind.rpartition(".")[2]
    values: Any = bits.view({"u32": np.uint32, "s32": np.int32, "f32": np.float32}[type])
    if type == "f32":
        ordinary = values[~np.isnan(values)]
        if not len(ordinary) or ("NaN" in kind and len(ordinary) < len(values)):
            return 0x7FFFFFFF
        values = np.abs(ordinary) if "abs" in kind else ordinary
    return int(np.array([values.min() if op == "min" else values.max()]).view(np.uint32)[0])


# ---------------------------------------- mistakes


def message(text: str, instruction: str, why: str, thread: int = 0) -> str:
    return f"kernel k: {located(text, instruction)}: thread ({thread}, 0, 0) of CTA (0, 0, 0): {why}"


def trapped(body: str, columns: int = 64) -> tuple[str, str]:
    """A kernel that does wrong, and the error that ends it."""
    text = kernel(body, columns=columns)
    return text, trap(text, [np.zeros(64, np.uint32), np.zeros(64, np.uint32)], block=LANES)


WHERE: Final = f"add.u32 %r2, {TENSOR}, {LANE};\n"
MISTAKES: Final = (
    (
        f"{WHERE}tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r9}}, [{TENSOR}];",
        "reaches lanes 0 to 31 of tensor memory at 0x0, but warp 1 of a CTA has lanes 32 to 63",
        32,
    ),
    (
        f"{WHERE}tcgen05.ld.sync.aligned.16x64b.x1.b32 {{%r9}}, [{TENSOR}];",
        "reaches lanes 0 to 15 of tensor memory at 0x0, but warp 1 of a CTA has lanes 32 to 63",
        32,
    ),
    (
        f"{WHERE}add.u32 %r2, %r2, 0x100000;\ntcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r9}}, [%r2];",
        "reaches lanes 16 to 47 of tensor memory at 0x100000, but warp 0 of a CTA has lanes 0 to 31",
        0,
    ),
    (
        f"{WHERE}add.u32 %r2, %r2, 0x80000;\ntcgen05.st.sync.aligned.16x64b.x1.b32 [%r2], {{%r2}};",
        "reaches lanes 8 to 23 of tensor memory at 0x80000, and this shape begins at lane 0 or 16 of a "
        "warp's 32",
        0,
    ),
    (
        f"{WHERE}tcgen05.ld.sync.aligned.32x32b.x8.b32 {vector(8)}, [%r2+60];",
        "uses columns 60 to 67 of tensor memory, but the CTA has allocated columns 0 to 63",
        0,
    ),
    (
        f"{WHERE}tcgen05.ld.sync.aligned.32x32b.x2.pack::16b.b32 {vector(2)}, [%r2+61];",
        "uses columns 61 to 64 of tensor memory, but the CTA has allocated columns 0 to 63",
        0,
    ),
    (
        f"{WHERE}tcgen05.ld.sync.aligned.32x32b.x8.b32 {vector(8)}, [%r2+508];",
        "uses columns 508 to 515 of tensor memory, but the CTA has allocated columns 0 to 63",
        0,
    ),
    (
        f"{WHERE}tcgen05.ld.sync.aligned.16x32bx2.x1.b32 {{%r9}}, [%r2], 64;",
        "uses columns 64 to 64 of tensor memory, but the CTA has allocated columns 0 to 63",
        0,
    ),
    (
        f"{WHERE}tcgen05.ld.sync.aligned.16x32bx2.x8.b32 {vector(8)}, [%r2], 508;",
        "uses columns 508 to 515 of tensor memory, but the CTA has allocated columns 0 to 63",
        0,
    ),
    (
        f"{WHERE}and.b32 %r3, {THREAD}, 3;\nadd.u32 %r2, %r2, %r3;\n"
        "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r9}, [%r2];",
        "expected one address of tensor memory for all threads of a warp, got 0x0 and 0x1",
        0,
    ),
)


@pytest.mark.parametrize(("body", "why", "thread"), MISTAKES)
def test_a_mistake_in_an_address_stops_the_kernel(body: str, why: str, thread: int) -> None:
    text, got = trapped(body)
    assert got == message(text, body.rpartition("\n")[2], why, thread)


def test_the_last_column_may_be_loaded() -> None:
    body = [*row_of_thread(8), f"tcgen05.ld.sync.aligned.32x32b.x8.b32 {vector(8)}, [%r2+504];", *stored(8)]
    assert (ran(kernel("\n".join(body)), numbers(LANES, 8), (LANES, 8)) == 0x7FC0DEAD).all()


def test_tensor_memory_that_nobody_has_allocated_is_not_there() -> None:
    text = kernel("", columns=32)
    line = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r91+16], 32;"
    wrong = text.replace(line, f"tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r9}}, [%r1];\n{line}", 1)
    wrong = wrong.replace("shr.u32", "mov.u32 %r1, 0;\nshr.u32", 1)
    got = trap(wrong, [np.zeros(64, np.uint32), np.zeros(64, np.uint32)], block=LANES)
    why = "uses columns 0 to 0 of tensor memory, but the CTA has allocated none"
    assert got == message(wrong, "tcgen05.ld.sync", why)


def test_a_warp_without_some_of_its_threads_does_not_load() -> None:
    body = f"setp.eq.u32 %p1, {THREAD}, 0;\n@%p1 tcgen05.wait::ld.sync.aligned;"
    text, got = trapped(body)
    assert got == message(
        text, "wait::ld", "lanes of the membermask are not here 0xffffffff; the active lanes are 0x00000001"
    )
