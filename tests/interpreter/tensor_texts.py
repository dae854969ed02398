"""PTX by hand that uses tensor memory: kernels that allocate columns, fill shared memory from an array, do
what a test says, and write tensor memory to another array.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ptxgen.interpreter import Result, run

Array = np.ndarray[Any, np.dtype[Any]]

LANES = 128
MBARRIERS = 1024  # bytes of shared memory before the matrices
# The address of tensor memory, of the buffer in shared memory, and of the mbarrier in it.
TENSOR, BUFFER, MBARRIER = "%r90", "%r91", "%r92"
# The number of a thread in its CTA, and the bit of its warp in an address of tensor memory.
THREAD, LANE = "%r93", "%r94"
SIZES = {"f16": 2, "bf16": 2, "tf32": 4}


def kernel(
    body: str,
    *,
    columns: int = 512,
    nbytes: int = 0,
    pair: bool = False,
    target: str = "sm_100a",
    version: str = "8.8",
    params: str = "",
) -> str:
    """Kernel k(x, out) of CTAs of 128 threads. Each CTA allocates columns, initialises an mbarrier for one
    arrival, and copies `nbytes` of its part of x to shared memory behind it; after `body` it frees the
    columns.
    """
    group = f"cta_group::{2 if pair else 1}"
    meet = "barrier.cluster.arrive;\nbarrier.cluster.wait;" if pair else "bar.sync 0;"
    fill = (
        f"""
        mov.u32 %r1, %ctaid.x;
        mul.lo.u32 %r1, %r1, {nbytes};
        cvt.u64.u32 %rd1, %r1;
        add.u64 %rd1, %rd1, %rd90;
        mov.u32 %r2, 0;
        $fill:
        shl.b32 %r3, {THREAD}, 4;
        add.u32 %r3, %r3, %r2;
        cvt.u64.u32 %rd2, %r3;
        add.u64 %rd3, %rd1, %rd2;
        add.u32 %r4, {BUFFER}, %r3;
        setp.lt.u32 %p1, %r3, {nbytes};
        @%p1 ld.global.v4.u32 {{%r5, %r6, %r7, %r8}}, [%rd3];
        @%p1 st.shared.v4.u32 [%r4+{MBARRIERS}], {{%r5, %r6, %r7, %r8}};
        add.u32 %r2, %r2, 2048;
        setp.lt.u32 %p1, %r2, {nbytes};
        @%p1 bra $fill;
        """
        if nbytes
        else ""
    )
    text = f"""
        .version {version}
        .target {target}
        .address_size 64
        .visible .entry k(.param .u64 x, .param .u64 out{params})
        {{
        .reg .pred %p<10>;
        .reg .b16 %rs<4>;
        .reg .b32 %r<400>;
        .reg .b64 %rd<100>;
        .reg .f32 %f<140>;
        .shared .align 1024 .b8 buf[{MBARRIERS + nbytes}];
        ld.param.u64 %rd90, [x];
        ld.param.u64 %rd91, [out];
        mov.u32 {THREAD}, %tid.x;
        mov.u32 {BUFFER}, buf;
        mov.u32 {MBARRIER}, {BUFFER};
        shr.u32 {LANE}, {THREAD}, 5;
        shl.b32 {LANE}, {LANE}, 21;
        setp.lt.u32 %p9, {THREAD}, 32;
        setp.eq.u32 %p8, {THREAD}, 0;
        @%p8 mbarrier.init.shared.b64 [{MBARRIER}], 1;
        @!%p9 bra $allocated;
        tcgen05.alloc.{group}.sync.aligned.shared::cta.b32 [{BUFFER}+16], {columns};
        tcgen05.relinquish_alloc_permit.{group}.sync.aligned;
        $allocated:
        {fill}
        fence.proxy.async;
        {meet}
        ld.shared.u32 {TENSOR}, [{BUFFER}+16];
        {body}
        {meet}
        @!%p9 bra $freed;
        tcgen05.dealloc.{group}.sync.aligned.b32 {TENSOR}, {columns};
        $freed:
        ret;
        }}
        """
    lines = (line.strip() for line in textwrap.dedent(text).strip().splitlines())
    return "\n".join(line for line in lines if line) + "\n"


def moved(first: int, count: int, *, to: str) -> str:
    """Load (`to` "out") or store (`to` "tensor") `count` columns from `first` on: a row of the array in
    global memory for each lane of each CTA.
    """
    lines = [
        "mov.u32 %r1, %ctaid.x;",
        f"mad.lo.u32 %r1, %r1, {LANES}, {THREAD};",
        f"mul.wide.u32 %rd1, %r1, {4 * count};",
        f"add.u64 %rd1, %rd1, {'%rd91' if to == 'out' else '%rd90'};",
        f"add.u32 %r2, {TENSOR}, {LANE};",
    ]
    for column in range(0, count, 8):
        held = [f"%r{10 + n}" for n in range(8)]
        vectors = ["{" + ", ".join(held[n : n + 4]) + "}" for n in (0, 4)]
        at = [f"[%rd1+{4 * column + 16 * n}]" for n in range(2)]
        cells, whole = f"[%r2+{first + column}]", "{" + ", ".join(held) + "}"
        if to == "out":
            lines.append(f"tcgen05.ld.sync.aligned.32x32b.x8.b32 {whole}, {cells};")
            lines.append("tcgen05.wait::ld.sync.aligned;")
            lines += [f"st.global.v4.u32 {a}, {v};" for a, v in zip(at, vectors, strict=True)]
        else:
            lines += [f"ld.global.v4.u32 {v}, {a};" for a, v in zip(at, vectors, strict=True)]
            lines.append(f"tcgen05.st.sync.aligned.32x32b.x8.b32 {cells}, {whole};")
    if to != "out":
        lines += ["tcgen05.wait::st.sync.aligned;", "tcgen05.fence::before_thread_sync;", "bar.sync 0;"]
    return "\n".join(lines)


def wait(parity: int = 0) -> str:
    """Wait for the mbarrier."""
    return (
        f"$wait{parity}:\n"
        f"mbarrier.try_wait.parity.shared.b64 %p7, [{MBARRIER}], {parity};\n"
        f"@!%p7 bra $wait{parity};\n"
        "tcgen05.fence::after_thread_sync;"
    )


def commit(*, pair: bool = False, mask: int = 0) -> str:
    """Commit the operations of the thread to the mbarrier; with a mask, of each CTA of it."""
    head = f"tcgen05.commit.cta_group::{1 + pair}.mbarrier::arrive::one.shared::cluster"
    if not mask:
        return f"{head}.b64 [{MBARRIER}];"
    return f"mov.u16 %rs1, {mask};\n{head}.multicast::cluster.b64 [{MBARRIER}], %rs1;"


def by_one_thread(lines: Iterable[str], *, pair: bool = False) -> str:
    """Lines that thread 0 executes; of a pair, thread 0 of the even CTA."""
    only = "mov.u32 %r3, %cluster_ctarank;\nsetp.eq.and.u32 %p8, %r3, 0, %p8;\n" if pair else ""
    return "\n".join([f"{only}@!%p8 bra $one;", *lines, "$one:"])


def descriptor(name: str, offset: int, *, lbo: int = 16, sbo: int = 1024, swizzle: int = 2) -> str:
    """A line that puts the descriptor of a matrix `offset` bytes behind the mbarriers into a register."""
    bits = swizzle << 61 | 1 << 46 | sbo >> 4 << 32 | lbo >> 4 << 16
    return (
        f"add.u32 %r3, {BUFFER}, {MBARRIERS + offset};\n"
        "shr.u32 %r3, %r3, 4;\nand.b32 %r3, %r3, 0x3fff;\n"
        f"cvt.u64.u32 {name}, %r3;\n"
        f"or.b64 {name}, {name}, {bits:#x};"
    )


CODES = {
    "f16": 0,
    "bf16": 1,
    "tf32": 2,
    "e4m3": 0,
    "e5m2": 1,
    "e2m3": 3,
    "e3m2": 4,
    "e2m1": 5,
    "u8": 0,
    "s8": 1,
}


def instruction(m: int, n: int, a: str, b: str | None = None, d: str = "f32", flags: int = 0) -> int:
    """The instruction descriptor of a product without scale factors."""
    codes = CODES[a] << 7 | CODES[b or a] << 10 | {"f16": 0, "f32": 1, "s32": 2}[d] << 4
    return m >> 4 << 24 | n >> 3 << 17 | codes | flags


def rows_of_128_bytes(matrix: Array) -> Array:
    """The bytes of K-major rows in the swizzle of 128 bytes: chunk c of row r lies at c ^ r % 8."""
    octets = np.ascontiguousarray(matrix).view(np.uint8).reshape(len(matrix), 8, 16)
    return np.concatenate([row[np.arange(8) ^ n % 8].ravel() for n, row in enumerate(octets)])


def ran(text: str, x: Array, shape: Sequence[int], *, ctas: int = 1, **how: Any) -> Array:
    """The array, uint32, that the kernel writes; `how` are arguments of `run`."""
    out = np.full(shape, 0xDEADBEEF, np.uint32)
    result(text, x, out, ctas=ctas, **how)
    return out


def result(text: str, x: Array, out: Array, *, ctas: int = 1, **how: Any) -> Result:
    """Run the kernel."""
    return run(text, grid=ctas, block=LANES, args=[x, out], **how)
