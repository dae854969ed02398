"""Products of `tcgen05.mma` that run, against float64: kinds, shapes, majors, A in tensor memory, masks."""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np
import pytest
from interpreter.tensor_texts import (
    LANES,
    SIZES,
    TENSOR,
    Array,
    by_one_thread,
    commit,
    descriptor,
    instruction,
    kernel,
    moved,
    ran,
    rows_of_128_bytes,
    wait,
)

KINDS: Final = {
    "f16": ("f16", np.float16),
    "bf16": ("f16", ml_dtypes.bfloat16),
    "tf32": ("tf32", np.float32),
    "e4m3": ("f8f6f4", ml_dtypes.float8_e4m3fn),
    "e5m2": ("f8f6f4", ml_dtypes.float8_e5m2),
    "s8": ("i8", np.int8),
    "u8": ("i8", np.uint8),
}
ROW: Final = 128  # bytes of a row of A and B


def drawn(type: str, rows: int, seed: int = 1) -> Array:
    rng = np.random.default_rng(seed)
    dtype = KINDS[type][1]
    if type in ("s8", "u8"):
        return rng.integers(-128 if type == "s8" else 0, 128, (rows, ROW)).astype(dtype)
    return rng.standard_normal((rows, ROW // np.dtype(dtype).itemsize)).astype(dtype)


def exact(matrix: Array, type: str) -> Array:
    if type == "tf32":
        matrix = (matrix.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return matrix.astype(np.float64)


def steps(
    kind: str, idesc: int, *, count: int = 4, group: int = 1, b_at: int = 1 << 15, more: str = "", d: str = TENSOR
) -> list[str]:
    """Products of 32 bytes along K each, of A and B that are K-major."""
    lines = [f"mov.u32 %r5, {idesc:#x};"]
    for n in range(count):
        lines += [descriptor("%rd1", 32 * n), descriptor("%rd2", b_at + 32 * n)]
        lines.append(f"setp.ne.u32 %p1, {n}, 0;" if n else "setp.ne.u32 %p1, %r5, %r5;")
        lines.append(f"tcgen05.mma.cta_group::{group}.kind::{kind} [{d}], %rd1, %rd2, %r5, {more}%p1;")
    return lines


def image(a: Array, b: Array, b_at: int = 1 << 15, nbytes: int = 1 << 16) -> Array:
    whole = np.zeros(nbytes, np.uint8)
    for matrix, at in ((a, 0), (b, b_at)):
        octets = rows_of_128_bytes(matrix)
        whole[at : at + len(octets)] = octets
    return whole


def product(a: Array, b: Array, kind: str, idesc: int, columns: int, **how: Any) -> Array:
    text = kernel(
        by_one_thread([*steps(kind, idesc), commit()]) + "\n" + wait() + "\n" + moved(0, columns, to="out"),
        nbytes=1 << 16,
    )
    return ran(text, image(a, b), (LANES, columns), **how)


def rows_of_d(m: int) -> Array:
    """The lane of each row of D in one CTA."""
    row = np.arange(m)
    return row if m == 128 else row // 16 * 32 + row % 16


@pytest.mark.parametrize("m", [64, 128])
@pytest.mark.parametrize("type", KINDS)
def test_a_product_of_each_type_is_right(type: str, m: int) -> None:
    kind, n = KINDS[type][0], 96
    a, b = drawn(type, m), drawn(type, n, 2)
    d = "s32" if kind == "i8" else "f32"
    got = product(a, b, kind, instruction(m, n, type, d=d), n)[rows_of_d(m)]
    want = exact(a, type) @ exact(b, type).T
    if d == "s32":
        assert (got.view(np.int32) == want).all()
    else:
        assert np.abs(got.view(np.float32) - want).max() < 1e-4 * np.abs(want).max()
