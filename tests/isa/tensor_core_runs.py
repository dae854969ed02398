"""Dot products through the instructions of tensor cores: PTX text, run by the interpreter.

Product i of a warp is row i of A by column i of B, so that D has its result on the diagonal, and a
warp has eight. Places are the manual's formulas, as `cases_matrix` has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from isa.cases_matrix import BITS, PLACES_A, PLACES_B, place_c, place_quad_a, place_quad_b, place_quad_c

from ptxgen.interpreter import run
from ptxgen.ir import Module

Array = np.ndarray[Any, Any]
WARP = 32
DIAGONAL = 8
QUADS = 4  # products of mma.m8n8k4


@dataclass(frozen=True)
class Shape:
    """An instruction's shape and types of A (and B) and of the accumulators."""

    shape: str
    type: str
    accumulator: str
    other: str = ""  # B's type if it is another

    @property
    def k(self) -> int:
        return int(self.shape.rpartition("k")[2])

    @property
    def quad(self) -> bool:
        return self.shape == "m8n8k4"

    @property
    def opcode(self) -> str:
        d, a, b = self.accumulator, self.type, self.other or self.type
        layouts = f"{self.shape}.row.col"
        return f"mma.sync.aligned.{layouts}.{d}.{a}.{b}.{d}"

    def elements(self, operand: str) -> int:
        """How many elements a lane holds."""
        if self.quad:
            return 8 if operand == "c" else 4
        rows = {"a": 16, "b": 8}.get(operand)
        return 4 if rows is None else rows * self.k // WARP


def packed(elements: Array, bits: int) -> Array:
    """The 32-bit registers of elements side by side, `[lanes, registers]`."""
    unsigned = np.ascontiguousarray(elements.astype(f"u{bits // 8}"))
    return unsigned.view(np.uint32)


def diagonals(of: Shape) -> int:
    """How many products a warp has."""
    return DIAGONAL * (QUADS if of.quad else 1)


def _images(of: Shape, a: Array, b: Array, c: Array) -> tuple[Array, Array, Array]:
    """The elements of each lane of all warps: A, B and C, `[lanes, elements]`."""
    warps = -(-len(a) // diagonals(of))
    out = []
    for operand, rows in (("a", a), ("b", b), ("c", c)):
        held = np.zeros((warps, WARP, of.elements(operand)), rows.dtype)
        padded = np.zeros((warps * diagonals(of), *rows.shape[1:]), rows.dtype)
        padded[: len(rows)] = rows
        padded = padded.reshape(warps, diagonals(of), *rows.shape[1:])
        for lane in range(WARP):
            for i in range(held.shape[2]):
                held[:, lane, i] = _element(of, operand, padded, lane, i)
        out.append(held.reshape(warps * WARP, -1))
    return out[0], out[1], out[2]


def _element(of: Shape, operand: str, rows: Array, lane: int, i: int) -> Any:
    """Element i of a lane, of all warps: of C, off the diagonal, 0."""
    if of.quad:
        if operand == "c":
            quad, row, column = place_quad_c(of.accumulator, lane, i)
            return rows[:, DIAGONAL * quad + row] if row == column else 0
        location = place_quad_a if operand == "a" else place_quad_b
        quad, *both = location("row" if operand == "a" else "col", lane, i)
        line, k = both if operand == "a" else both[::-1]
        return rows[:, DIAGONAL * quad + line, k] if k < rows.shape[2] else 0
    if operand == "c":
        row, column = place_c(lane, i)
        return rows[:, row] if row == column else 0
    places = PLACES_A if operand == "a" else PLACES_B
    both = [*places[of.shape, BITS[of.type]](lane >> 2, lane % 4, i)]
    line, k = both if operand == "a" else both[::-1]
    return rows[:, line, k] if line < DIAGONAL and k < rows.shape[2] else 0


def text(of: Shape, target: str) -> str:
    """A kernel in which each lane loads its registers, multiplies and stores."""
    type_c = "f32" if of.accumulator == "f32" else "b32"
    count = {
        "a": of.elements("a") * BITS[of.type] // 32,
        "b": of.elements("b") * BITS[of.type] // 32,
        "c": of.elements("c") * BITS[of.accumulator] // 32,
    }
    names = {x: [f"%{x}{n}" for n in range(count[x])] for x in count}
    loads = "\n".join(
        f"    ld.param.u64 %p, [p{x}]; mad.wide.u32 %p, %i, {4 * count[x]}, %p;\n"
        + "\n".join(
            f"    ld.global.{type_c if x == 'c' else 'b32'} {r}, [%p+{4 * n}];" for n, r in enumerate(of_x)
        )
        for x, of_x in names.items()
    )
    listed = {x: "{" + ", ".join(of_x) + "}" for x, of_x in names.items()}
    stores = "\n".join(f"    st.global.{type_c} [%p+{4 * n}], {r};" for n, r in enumerate(names["c"]))
    return f""".version 8.8
.target {target}
.address_size 64
.visible .entry product(.param .u64 pa, .param .u64 pb, .param .u64 pc)
{{
    .reg .b32 %a<{count["a"]}>;
    .reg .b32 %b<{count["b"]}>;
    .reg .{type_c} %c<{count["c"]}>;
    .reg .b64 %p;
    .reg .b32 %i, %n, %t;
    mov.u32 %i, %ctaid.x; mov.u32 %n, %ntid.x; mov.u32 %t, %tid.x;
    mad.lo.u32 %i, %i, %n, %t;
{loads}
    {of.opcode} {listed["c"]}, {listed["a"]}, {listed["b"]}, {listed["c"]};
{stores}
    ret;
}}
"""


def dot_products(of: Shape, target: str | Module, a: Array, b: Array, c: Array, **how: Any) -> Array:
    """D of each product as bits, on a target or by a module of `text`; `a` and `b` are bits,
    `[products, K]` (of fewer K, zeros follow), `c` is float32 or float16.
    """
    bits_c = BITS[of.accumulator]
    images = _images(of, a, b, c.view(f"u{bits_c // 8}"))
    registers = [
        packed(x, bits) for x, bits in zip(images, (BITS[of.type], BITS[of.type], bits_c), strict=True)
    ]
    threads = len(registers[0])
    program = text(of, target) if isinstance(target, str) else target
    run(program, grid=threads // WARP, block=WARP, args=registers, **how)
    d = registers[2].view(f"u{bits_c // 8}").reshape(-1, WARP, of.elements("c"))
    out = np.zeros((len(d), diagonals(of)), d.dtype)
    for lane in range(WARP):
        for i in range(of.elements("c")):
            if of.quad:
                quad, row, column = place_quad_c(of.accumulator, lane, i)
            else:
                quad, (row, column) = 0, place_c(lane, i)
            if row == column:
                out[:, DIAGONAL * quad + row] = d[:, lane, i]
    return out.reshape(-1)[: len(a)]


_WGMMA = """.version 8.8
.target sm_90a
.address_size 64
.visible .entry product(.param .u64 pa, .param .u64 pb, .param .u64 pc)
{{
    .reg .b32 %a<4>;
    .reg .{type_c} %c<{count}>;
    .reg .b64 %p, %d;
    .reg .b32 %i, %t, %w;
    .reg .pred %s;
    .shared .align 128 .b8 tile[256];
    mov.u32 %t, %tid.x; mov.u32 %i, %ctaid.x;
    ld.param.u64 %p, [pb]; mad.wide.u32 %p, %i, 256, %p;
    mul.wide.u32 %d, %t, 2; add.u64 %p, %p, %d;
    .reg .b16 %h;
    ld.global.b16 %h, [%p];
    mov.u32 %w, tile; shl.b32 %i, %t, 1; add.u32 %w, %w, %i;
    st.shared.b16 [%w], %h;
    fence.proxy.async; bar.sync 0;
    mov.u32 %i, %ctaid.x; mad.lo.u32 %i, %i, 128, %t;
    ld.param.u64 %p, [pa]; mad.wide.u32 %p, %i, 16, %p;
    ld.global.v4.b32 {{%a0, %a1, %a2, %a3}}, [%p];
    ld.param.u64 %p, [pc]; mad.wide.u32 %p, %i, {nbytes}, %p;
{loads}
    mov.u32 %w, tile; shr.u32 %w, %w, 4; cvt.u64.u32 %d, %w;
    or.b64 %d, %d, {descriptor};
    setp.ne.u32 %s, {scale_d}, 0;
    wgmma.fence.sync.aligned;
    {opcode} {{{listed}}}, {{%a0, %a1, %a2, %a3}}, %d, %s, 1, 1{transposed};
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;
{stores}
    ret;
}}
"""
# Blocks of 8 columns by 16 bytes of K: the second half of K lies 128 bytes after the first.
_DESCRIPTOR = 128 >> 4 << 16 | 128 >> 4 << 32


def wgmma_products(of: Shape, a: Array, b: Array, c: Array | None, **how: Any) -> Array:
    """As `dot_products`, by `wgmma` with N = 8 in the first warp of each warpgroup; without `c` D
    is A * B alone.
    """
    groups = -(-len(a) // DIAGONAL)
    start = np.zeros(len(a), {"f32": np.float32, "f16": np.float16}[of.accumulator])
    mma = Shape(of.shape.replace("m64", "m16"), of.type, of.accumulator, of.other)
    images = _images(mma, a, b, (start if c is None else c).view(f"u{BITS[of.accumulator] // 8}"))
    first = packed(images[0], BITS[of.type]).reshape(groups, WARP, 4)
    registers_a = np.zeros((groups, 4 * WARP, 4), np.uint32)
    registers_a[:, :WARP] = first
    columns = np.zeros((groups * DIAGONAL, of.k), b.dtype)
    columns[: len(b), : b.shape[1]] = b
    halves = columns.view(np.uint8).reshape(groups, DIAGONAL, 2, 16).swapaxes(1, 2)
    accumulators = packed(images[2], BITS[of.accumulator]).reshape(groups, WARP, -1)
    registers_c = np.zeros((groups, 4 * WARP, accumulators.shape[2]), np.uint32)
    registers_c[:, :WARP] = accumulators
    count = accumulators.shape[2]
    type_c = "f32" if of.accumulator == "f32" else "b32"
    names = [f"%c{n}" for n in range(count)]
    types = f"{of.accumulator}.{of.type}.{of.other or of.type}"
    whole = _WGMMA.format(
        type_c=type_c,
        count=count,
        nbytes=4 * count,
        descriptor=_DESCRIPTOR,
        scale_d=int(c is not None),
        listed=", ".join(names),
        loads="\n".join(f"    ld.global.{type_c} {r}, [%p+{4 * n}];" for n, r in enumerate(names)),
        stores="\n".join(f"    st.global.{type_c} [%p+{4 * n}], {r};" for n, r in enumerate(names)),
        opcode=f"wgmma.mma_async.sync.aligned.{of.shape}.{types}",
        transposed=", 0" if of.type in ("f16", "bf16") else "",
    )
    run(
        whole,
        grid=groups,
        block=4 * WARP,
        args=[registers_a, np.ascontiguousarray(halves), registers_c],
        **how,
    )
    d = registers_c[:, :WARP].reshape(groups, WARP, count).copy().view(f"u{BITS[of.accumulator] // 8}")
    out = np.zeros((groups, DIAGONAL), d.dtype)
    for lane in range(WARP):
        for i in range(4):
            row, column = place_c(lane, i)
            if row == column:
                out[:, row] = d[:, lane, i]
    return out.reshape(-1)[: len(a)]
