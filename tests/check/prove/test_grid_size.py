"""Sizes of arrays that are expressed by the grid."""

from __future__ import annotations

import pytest

import ptxgen as px
from ptxgen import Pointer, f32, u32


def of_each_cta(k, X: Pointer[f32], Y: Pointer[f32], n: u32):
    i, b = k.block_id() * 128 + k.thread_id(), k.block_id()
    with k.when(i < n):
        Y[b * 128] = X[i]
    Y[k.blocks() * 128 - 1] = 0.0


@pytest.mark.parametrize(
    ("dims", "grid", "is_proved"),
    [
        ("128 * grid", "(n + 127) // 128", True),
        ("128 * ((n + 127) // 128)", "(n + 127) // 128", True),
        ("128 * grid - 1", "(n + 127) // 128", False),
        ("128 * grid", "n + 1", True),
    ],
)
def test_the_size_grid_is_the_expression_of_the_grid(dims, grid, is_proved):
    kernel = px.kernel(threads=128)(of_each_cta)
    proof = kernel.prove(X=("n",), Y=(dims,), grid=grid, bounds={"n": (1, 2**20)})
    assert proof.complete is is_proved
    assert bool(proof.global_memory.violations) is not is_proved


def test_a_grid_that_is_no_product_is_no_stride_that_is_followed():
    @px.kernel(threads=1)
    def put(k, X: Pointer[f32], n: u32):
        X[k.block_id() % n] = 1.0

    (access,) = put.prove(X=("n", "grid"), grid="n + 1").global_memory.accesses
    assert access.reason == "its address is not made of whole multiples of strides"
