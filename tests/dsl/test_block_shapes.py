"""CTAs of two and three dimensions: what their threads do together goes by their numbers."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from dsl.kernels import smem
from dsl.test_gathering import FALSE
from error_texts import refused

import ptxgen as px
from ptxgen import Pointer, f16, f32, u32
from ptxgen.dsl import KernelBuilder
from ptxgen.errors import TypeMismatchError
from ptxgen.interpreter import run
from ptxgen.runtime.assembler import Assembler
from ptxgen.text import render

WORDS = {
    "index": lambda k, x: x + k.thread_index(),
    "warp.sum": lambda k, x: k.warp.sum(x),
    "warp.scan": lambda k, x: k.warp.scan(x),
    "block.sum": lambda k, x: k.block.sum(x),
    "block.scan": lambda k, x: k.block.scan(x),
    "block.sort": lambda k, x: k.block.sort(x),
    "block.broadcast": lambda k, x: k.block.broadcast(x, 37),
}


def results(word: str, threads: Any, number: Any) -> np.ndarray[Any, Any]:
    k = KernelBuilder("words", target="sm_80", threads=threads)
    X, Y = k.pointer("X", u32), k.pointer("Y", u32)
    Y[number(k)] = WORDS[word](k, X[number(k)])
    x = np.random.default_rng(0).integers(0, 1000, k.threads).astype(np.uint32)
    y, module = np.zeros_like(x), k.build()
    run(module, grid=1, block=k.block_shape, args=[x, y], dynamic_smem=smem(module), sanitize=True)
    return y


@pytest.mark.parametrize("word", WORDS)
def test_threads_of_three_dimensions_do_together_what_their_numbers_say(word: str) -> None:
    def number(k: KernelBuilder) -> Any:
        return k.thread_id("x") + 8 * (k.thread_id("y") + 4 * k.thread_id("z"))

    got = results(word, (8, 4, 2), number)
    assert (got == results(word, 64, lambda k: k.thread_id())).all()


@px.kernel(threads=(16, 4))
def shares(k: Any, COUNTS: Pointer[u32], rows: u32, columns: u32, *, over: str) -> None:
    word = k.strided if over == "cta" else k.grid_strided
    with word(rows, "y") as i, word(columns, "x") as j:
        before = k.atomic.add(COUNTS.row(i, columns).element(j), 1)
        del before


@pytest.mark.parametrize(("over", "grid"), [("cta", 1), ("grid", (2, 3))])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (9, 37), (3, 100), (40, 5)])
def test_a_range_of_rows_and_columns_is_shared_once(over: str, grid: Any, rows: int, columns: int) -> None:
    counts = np.zeros((rows, columns), np.uint32)
    shares[grid](counts, rows, columns, over=over, backend="interpreter")
    assert (counts == 1).all()
    bounds = {"rows": (1, 2**20), "columns": (1, 2**20), "across": (1, 64), "down": (1, 64)}
    proof = shares.prove(COUNTS=("rows", "columns"), grid=("across", "down"), bounds=bounds, over=over)
    assert proof.complete


@pytest.mark.parametrize(("across", "splits"), [(32, False), (64, False), (16, True)])
def test_a_row_of_threads_is_made_of_whole_warps_or_not(across: int, splits: bool) -> None:
    k = KernelBuilder("rows", target="sm_80", threads=(across, 4))
    y = k.thread_id("y")
    error = refused(TypeMismatchError, f"warp.sum {FALSE}") if splits else nullcontext()
    with k.when(y < 1), error:
        k.warp.sum(y)


@px.kernel(threads=(32, 4))
def product(k: Any, A: Pointer[f16], B: Pointer[f16], C: Pointer[f32]) -> None:
    a, b = k.staged(k.matrix(A, 64, 32).block((64, 32))), k.staged(k.matrix(B, 64, 32).block((64, 32)))
    k.await_copies()
    k.matrix(C, 64, 64).store(k.mma(a, b.T))


def test_warps_of_a_block_of_two_dimensions_multiply(assembler: Assembler) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-4, 5, (64, 32)).astype(np.float16) for _ in range(2))
    c = np.zeros((64, 64), np.float32)
    assert product.check(1, a, b, c).clean
    product[1](a, b, c, backend="interpreter")
    assert (c == a.astype(np.float32) @ b.T).all()
    built = product.build()
    assert built.contract()["block"] == [32, 4, 1]
    assert ".reqntid 32, 4, 1" in built.text
    assert assembler.assemble(built.text, "sm_80").cubin
    assert product.build(threads=(128, 1)).text == product.build(threads=128).text
    assert render(product.emit(threads=128)) == product.build(threads=128).text
