"""`acc.mma` of blocks of bytes: fp8 (`as_fp8`), and f16 by 4-bit integers (`as_int4`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import pytest
from dsl.kernels import builder
from error_texts import refused

import ptxgen as px
from ptxgen import Pointer, f16, f32, u8, u32
from ptxgen.dsl import StagedTile
from ptxgen.errors import ConfigError, TypeMismatchError, UnsupportedTargetError
from ptxgen.runtime.assembler import Assembler

NUMPY = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


@px.kernel(threads=128)
def fp8(
    k: Any, A: Pointer[u8], B: Pointer[u8], C: Pointer[f32], m: u32, n: u32, depth: u32, *, of: Any
) -> None:
    A, B, C = k.matrix(A, m, depth), k.matrix(B, n, depth), k.matrix(C, m, n)
    row, column, total = k.block_id("y") * 64, k.block_id("x") * 32, k.accumulator((64, 32))
    with k.pipeline(A.across((64, 32), row), B.across((32, 32), column)) as (a, b):
        total.mma(a.as_fp8(of[0]), b.T.as_fp8(of[1]))
    C.store(total, row, column)


@pytest.mark.parametrize("b", NUMPY)
@pytest.mark.parametrize("a", NUMPY)
def test_fp8_is_multiplied(a: str, b: str, assembler: Assembler) -> None:
    rng = np.random.default_rng(1)
    left, right = (rng.integers(-4, 5, (rows, 80)).astype(NUMPY[of]) for rows, of in ((70, a), (40, b)))
    c = np.zeros((70, 40), np.float32)
    call = (2, 2), left.view(np.uint8), right.view(np.uint8), c, 70, 40, 80
    kernel = px.kernel(threads=128, target="sm_89")(fp8._function)
    assert kernel.check(*call, of=(a, b)).clean
    kernel[call[0]](*call[1:], of=(a, b), backend="interpreter")
    assert (c == left.astype(np.float32) @ right.astype(np.float32).T).all()
    assert assembler.assemble(kernel.build(of=(a, b)).text, "sm_89").cubin


def test_fp8_needs_a_target_that_has_it() -> None:
    with pytest.raises(UnsupportedTargetError, match=r"e4m3\.e4m3\.f32 needs sm_89"):
        fp8.build(of=("e4m3", "e4m3"))


@px.kernel(threads=128)
def int4(k: Any, A: Pointer[f16], B: Pointer[u8], C: Pointer[f32], m: u32, n: u32, blocks: u32, *,
         tile: int = 32, step: int = 64, zero: int = 8) -> None:  # fmt: skip
    A, B, C = k.matrix(A, m, blocks * step), k.matrix(B, n, blocks * (step // 2)), k.matrix(C, m, n)
    row, column, total = k.block_id("y") * 64, k.block_id("x") * tile, k.accumulator((64, tile))
    with k.pipeline(A.across((64, step), row), B.across((tile, step // 2), column)) as (a, b):
        total.mma(a, b.as_int4(zero=zero).T)
    C.store(total, row, column)


@pytest.mark.parametrize(("tile", "step", "zero"), [(32, 64, 8), (64, 128, 0), (128, 192, 15)])
def test_4_bit_integers_become_f16_in_registers(
    tile: int, step: int, zero: int, assembler: Assembler
) -> None:
    rng = np.random.default_rng(tile)
    a, w = rng.integers(-8, 9, (70, 2 * step)).astype(np.float16), rng.integers(0, 16, (40, 2 * step))
    w[0, :16] = range(16)
    c, how = np.zeros((70, 40), np.float32), {"tile": tile, "step": step, "zero": zero}
    call = (-(-40 // tile), 2), a, (w[:, ::2] | w[:, 1::2] << 4).astype(np.uint8), c, 70, 40, 2
    assert int4.check(*call, **how).clean
    int4[call[0]](*call[1:], **how, backend="interpreter")
    assert (c == a.astype(np.float32) @ (w - zero).T.astype(np.float32)).all()
    bounds = dict.fromkeys(("m", "n", "blocks", "across", "down"), (1, 2**16))
    arrays = {"A": ("m", f"{step} * blocks"), "B": ("n", f"{step // 2} * blocks"), "C": ("m", "n")}
    assert int4.prove(**arrays, grid=("across", "down"), bounds=bounds, align=16, **how).complete
    assert assembler.assemble(int4.build(**how).text, "sm_80").cubin


Use: TypeAlias = Callable[[Any, Any], Any]

REFUSED: dict[str, Use] = {
    "as_fp8('e4m3') takes a block of u8, got H (64 x 64 f16)": lambda h, _: h.as_fp8("e4m3"),
    "as_int4() takes a block of u8, got B (64 x 32 e4m3)": lambda _, b: b.as_fp8("e4m3").as_int4(),
    "as_fp8: B (64 x 32 u8) is taken as one of e4m3, e5m2, got 'e3m4'": lambda _, b: b.as_fp8("e3m4"),
    "an element of B (64 x 64 int4) has 4 bits; load its byte from the block of u8": lambda _, b: b.as_int4()[
        0, 0
    ],
    "mma: by 4-bit integers a must be a row-major block in shared memory, and b the transpose of a row-major "
    "block, b.as_int4().T, got H (64 x 64 f16) and B (64 x 64 int4)": lambda h, b: h.tile.k.mma(
        h, b.as_int4()
    ),
    "mma multiplies f16, bf16 or f32 (as tf32) of one type, s8 and u8 in any order, e4m3 and e5m2 in any "
    "order (as_fp8), and f16 by 4-bit integers (as_int4), got u8 and int4": lambda h, b: h.tile.k.mma(
        b, b.as_int4().T
    ),
}


def blocks(k: Any) -> list[StagedTile]:
    return [StagedTile(k.swizzled("H", (64, 64), f16)), StagedTile(k.swizzled("B", (64, 32), u8))]


@pytest.mark.parametrize("message", REFUSED)
def test_other_products_of_bytes_are_refused(message: str) -> None:
    with refused(TypeMismatchError, message):
        REFUSED[message](*blocks(builder(threads=128)))


def test_a_zero_point_has_4_bits() -> None:
    with refused(ConfigError, "as_int4: zero must be an integer from 0 to 15, got 16"):
        blocks(builder(threads=128))[1].as_int4(zero=16)
