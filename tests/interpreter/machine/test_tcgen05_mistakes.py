"""Mistakes in the operands of products and copies of tensor memory, each of which stops the kernel."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest
from interpreter.programs import at
from interpreter.reported import trap
from interpreter.tensor_texts import (
    BUFFER,
    LANES,
    TENSOR,
    THREAD,
    by_one_thread,
    commit,
    descriptor,
    instruction,
    kernel,
)

F16: Final = instruction(128, 64, "f16")
MMA: Final = "tcgen05.mma.cta_group::1.kind::f16"
MX: Final = "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block32"
IDESC: Final = "of the instruction descriptor"


def text_of(lines: list[str], *, columns: int = 128, pair: bool = False) -> str:
    ready = [
        descriptor("%rd1", 0),
        descriptor("%rd2", 1 << 12),
        "setp.ne.u32 %p1, %r90, %r90;",
        f"add.u32 %r20, {TENSOR}, 0x400000;",
        f"add.u32 %r21, {TENSOR}, 120;",
    ]
    return kernel(
        by_one_thread([*ready, *lines, commit(pair=pair)]), columns=columns, nbytes=1 << 13, pair=pair
    )


def product(idesc: int, d: str = TENSOR, a: str = "%rd1", b: str = "%rd2", more: str = "") -> list[str]:
    return [f"mov.u32 %r5, {idesc:#x};", more, f"{MMA} [{d}], {a}, {b}, %r5, %p1;"]


def scaled(idesc: int, scales: str = TENSOR) -> list[str]:
    return [f"mov.u32 %r5, {idesc:#x};", f"{MX} [{TENSOR}], %rd1, %rd2, %r5, [{scales}], [{TENSOR}], %p1;"]


E2M1: Final = 1 << 27 | 16 << 17 | 1 << 7 | 1 << 10 | 1 << 23
TAKEN: Final = "but the CTA has allocated columns 0 to 127"
MISTAKES: Final = (
    (
        product(instruction(96, 64, "f16")),
        f"{MMA}: expected M 64 or 128 in the shape {IDESC} 0x06100010, got 96",
    ),
    (
        product(F16 | 1 << 23),
        f"{MMA}: expected 0 in bit 23, which the kind reserves, {IDESC} 0x08900010, got 1",
    ),
    (
        product(F16 | 1 << 2),
        f"the instruction descriptor {F16 | 1 << 2:#010x} asks for a sparse A (bit 2), which the interpreter "
        "does not model; run it on a GPU",
    ),
    (
        scaled(E2M1 | 1 << 31),
        f"the instruction descriptor {E2M1 | 1 << 31:#010x} asks for K of 96 (bit 31), which the interpreter "
        "does not model; run it on a GPU",
    ),
    (product(F16, d="%r20"), "D of M 128 begins at lane 0 of tensor memory, got 0x400000, lane 64"),
    (
        product(instruction(64, 64, "f16"), d="%r20"),
        "D of M 64 begins at lane 0 or 16 of tensor memory, got 0x400000, lane 64",
    ),
    (product(F16, d="%r21"), f"uses columns 120 to 183 of tensor memory for D, {TAKEN}"),
    (
        product(F16, a="[%r21]", more="add.u32 %r21, %r21, 4;"),
        f"uses columns 124 to 131 of tensor memory for A, {TAKEN}",
    ),
    (
        product(F16, more="shr.u64 %rd1, %rd1, 1;"),
        "the descriptor 0x2000202000008020 of a matrix in shared memory: expected 001 in bits 46-48, got 000",
    ),
    (
        product(F16, more="xor.b64 %rd1, %rd1, 0xa000000000000000;"),
        "the descriptor 0xe000404000010040 of a matrix in shared memory: expected the swizzle 0 (none), 1 "
        "(128 bytes in atoms of 32), 2 (128 bytes), 4 (64 bytes) or 6 (32 bytes) in bits 61-63, got 7",
    ),
    (product(F16), "B reaches from 0x1400 to 0x3400, outside the 9216 bytes of shared memory"),
    (
        ["add.u32 %r21, %r21, 5;", *scaled(E2M1, "%r21")],
        f"uses columns 125 to 128 of tensor memory for the scale factors of A, {TAKEN}",
    ),
    (
        scaled(E2M1, "%r20"),
        "the 2 scale factors of each row of A lie in a column of 4 bytes from lane 0 on, got byte 0 and "
        "lane 64",
    ),
    (
        ["tcgen05.cp.cta_group::1.128x256b [%r20], %rd1;"],
        "tcgen05.cp of 128x256b reaches lane 191 from 0x400000 on, and tensor memory has 128 lanes",
    ),
    (
        [f"add.u32 %r22, {TENSOR}, 0x10000;", "tcgen05.cp.cta_group::1.128x256b [%r22], %rd1;"],
        "tcgen05.cp of 128x256b reaches lane 128 from 0x10000 on, and tensor memory has 128 lanes",
    ),
    (
        ["add.u32 %r21, %r21, 4;", "tcgen05.cp.cta_group::1.128x256b [%r21], %rd1;"],
        f"uses columns 124 to 131 of tensor memory for the copy, {TAKEN}",
    ),
)


@pytest.mark.parametrize(("lines", "why"), MISTAKES)
def test_a_mistake_stops_the_kernel(lines: list[str], why: str) -> None:
    text = text_of(lines)
    got = trap(text, [np.zeros(1 << 13, np.uint8), np.zeros(4, np.uint32)], block=LANES)
    assert got == at(text, lines[-1]) + why


def test_a_pair_needs_a_cluster_of_an_even_size() -> None:
    lines = [
        f"mov.u32 %r5, {F16:#x};",
        f"tcgen05.mma.cta_group::2.kind::f16 [{TENSOR}], %rd1, %rd2, %r5, %p1;",
    ]
    text = text_of(lines, pair=True)
    got = trap(text, [np.zeros(1 << 13, np.uint8), np.zeros(4, np.uint32)], block=LANES)
    assert got == at(text, "tcgen05.alloc") + (
        "a pair has two CTAs of one cluster, and the cluster has 1; launch the kernel with an even cluster"
    )
    # The allocation may be of one CTA, and the product of a pair.
    text = text_of(lines)
    got = trap(text, [np.zeros(3 << 13, np.uint8), np.zeros(4, np.uint32)], block=LANES, grid=3, cluster=3)
    assert got == at(text, lines[-1]) + (
        "a pair has two CTAs of one cluster, and the cluster has 3; launch the kernel with an even cluster"
    )


def test_a_commit_is_multicast_to_ctas_of_the_cluster() -> None:
    text = kernel(by_one_thread([commit(mask=6)]), columns=32)
    got = trap(text, [np.zeros(4, np.uint32), np.zeros(4, np.uint32)], block=LANES)
    assert got == at(text, "tcgen05.commit") + "multicasts to the CTAs of mask 0x0006 in a cluster of 1"


ALIGNED: Final = (
    f"tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [{BUFFER}+32], 32;",
    f"tcgen05.dealloc.cta_group::1.sync.aligned.b32 {TENSOR}, 32;",
    "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;",
    f"tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r20}}, [{TENSOR}];",
    f"tcgen05.ld.red.sync.aligned.32x32b.x2.min.u32 {{%r20, %r21}}, %r22, [{TENSOR}];",
    f"tcgen05.st.sync.aligned.32x32b.x1.b32 [{TENSOR}], {{%r20}};",
    "tcgen05.wait::ld.sync.aligned;",
    "tcgen05.wait::st.sync.aligned;",
)


def test_all_lanes_of_a_warp_execute_an_instruction_that_is_aligned() -> None:
    for line in ALIGNED:
        text = kernel(f"setp.lt.u32 %p1, {THREAD}, 16;\n@%p1 {line}", columns=32, target="sm_103a")
        got = trap(text, [np.zeros(4, np.uint32), np.zeros(4, np.uint32)], block=32)
        why = "lanes of the membermask are not here 0xffffffff; the active lanes are 0x0000ffff"
        assert got == at(text, f"@%p1 {line}") + why
