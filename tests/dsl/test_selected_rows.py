"""`Matrix.rows_at`: rows named by an array or a function are gathered, and scattered."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dsl.kernels import builder
from error_texts import refused

import ptxgen as px
from ptxgen import Pointer, f16, f32, s32, u32
from ptxgen.errors import TypeMismatchError

SIZES = dict.fromkeys(("tokens", "count", "depth"), (1, 2**20))


@px.kernel(threads=64)
def product(
    k: Any, A: Pointer[f16], B: Pointer[f16], ROWS: Pointer[s32], C: Pointer[f32], tokens: u32, depth: u32,
    count: u32, *, width: int = 8,
) -> None:  # fmt: skip
    A, B = k.matrix(A, tokens, depth, width=width), k.matrix(B, 32, depth, width=width)
    C, row, total = k.matrix(C, tokens, 32), k.block_id() * 32, k.accumulator((32, 32))
    with k.pipeline(A.rows_at(ROWS, count).across((32, 32), row), B.across((32, 32))) as (a, b):
        total.mma(a, b.T)
    C.rows_at(ROWS, count).store(total, row)


@pytest.mark.parametrize(("depth", "width"), [(40, 8), (72, 8), (20, 4), (33, 1)])
def test_rows_of_an_array_are_gathered_and_scattered(depth: int, width: int) -> None:
    rng = np.random.default_rng(depth)
    a, b = (rng.integers(-3, 4, (n, depth)).astype(np.float16) for n in (50, 32))
    rows = np.concatenate([rng.permutation(50)[:37], [-1, 50, 2**31 - 1]]).astype(np.int32)
    wanted = np.full((50, 32), 7, np.float32)
    wanted[rows[:37]] = a[rows[:37]].astype(np.float32) @ b.T
    arguments = a, b, rows, np.full_like(wanted, 7), 50, depth, 40
    assert product.check(2, *arguments, width=width).clean
    product[2](*arguments, width=width, backend="interpreter")
    assert (arguments[3] == wanted).all()
    proof = product.prove(A=("tokens", "depth"), B=(32, "depth"), C=("tokens", 32), ROWS=("count",), align=16,
                          grid="(count + 31) // 32", bounds=SIZES, width=width)  # fmt: skip
    assert proof.complete


@px.kernel(threads=64)
def paged_sum(
    k: Any, POOL: Pointer[f16], PAGES: Pointer[u32], Y: Pointer[f32], slots: u32, rows: u32
) -> None:
    pool, ones = k.matrix(POOL, slots, 16), k.swizzled("ones", (32, 32), f16)
    with k.strided(32 * 32) as i:
        ones[i // 32, i % 32] = 1.0
    total = k.accumulator((32, 16), warps=(2, 1))
    walk = pool.rows_at(lambda i: PAGES[i // 8] * 8 + i % 8, rows).down((32, 16), stop=rows)
    with k.pipeline(walk) as (block,):
        total.mma(ones, block)
    k.matrix(Y, 32, 16).store(total)


@pytest.mark.parametrize("rows", [1, 32, 75])
def test_rows_of_a_function_are_looked_up_for_each_block(rows: int) -> None:
    rng = np.random.default_rng(rows)
    pool, pages = (
        rng.integers(-3, 4, (20 * 8, 16)).astype(np.float16),
        rng.permutation(20)[:10].astype(np.uint32),
    )
    numbers = (pages[:, None] * 8 + np.arange(8, dtype=np.uint32)).ravel()[:rows]
    y = np.zeros((32, 16), np.float32)
    assert paged_sum.check(1, pool, pages, y, 160, rows).clean
    paged_sum[1](pool, pages, y, 160, rows, backend="interpreter")
    assert (y == pool[numbers].astype(np.float32).sum(0)).all()
    arrays = {"POOL": ("slots", 16), "PAGES": ("pages",), "Y": (32, 16)}
    bounds = {"slots": (1, 2**20), "rows": (1, 2**16), "pages": (2**14, 2**20)}
    assert paged_sum.prove(**arrays, bounds=bounds, align=16).complete


def test_rows_that_cannot_be_selected_are_refused() -> None:
    k = builder(threads=64)
    X, ROWS = k.matrix(k.pointer("X", f16), 32, 32), k.pointer("ROWS", u32)
    with refused(
        TypeMismatchError, "rows_at: rows must be a pointer to u32 or s32, or a function of an index, got 3"
    ):
        X.rows_at(3, 32)
    at = k.pointer("F")
    with refused(TypeMismatchError, f"rows_at: rows must point to u32 or s32 in global memory, got {at!r}"):
        X.rows_at(at, 32)
    with refused(TypeMismatchError, "rows_at: count must be a u32 value or a positive integer, got 0"):
        X.rows_at(ROWS, 0)
    with refused(
        TypeMismatchError,
        "rows_at: the rows of this matrix are selected already; compose both in a function of the row",
    ):
        X.rows_at(ROWS, 8).rows_at(ROWS, 8)
    with refused(TypeMismatchError, "rows_at: the function must return a row as u32 or s32, got 1"):
        k.staged(X.rows_at(lambda _: 1, 8).block((32, 32)))
