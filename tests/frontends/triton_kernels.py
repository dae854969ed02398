"""Triton kernels of tests/frontends/test_triton.py, which finds lines by their text."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def softmax(x, out, stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    v = tl.load(x + row * stride + at, mask=inside, other=-float("inf"))
    weights = tl.exp(v - tl.max(v, axis=0))
    tl.store(out + row * stride + at, weights / tl.sum(weights, axis=0), mask=inside)


@triton.jit
def matmul(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    a_at = a + rows[:, None] * k + inner[None, :]
    b_at = b + inner[:, None] * n + columns[None, :]
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for first in range(0, k, BK):
        left = tl.load(a_at, mask=(rows[:, None] < m) & (first + inner[None, :] < k), other=0.0)
        right = tl.load(b_at, mask=(first + inner[:, None] < k) & (columns[None, :] < n), other=0.0)
        total = tl.dot(left, right, total)
        a_at += BK
        b_at += BK * n
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(c.dtype.element_ty), mask=inside)


@triton.jit
def matmul_of_maps(a_map, b_map, c, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for first in range(0, k, BK):
        total = tl.dot(a_map.load([row, first]), b_map.load([first, column]), total)
    at = c + (row + tl.arange(0, BM))[:, None] * n + (column + tl.arange(0, BN))[None, :]
    tl.store(at, total)


@triton.jit
def matmul_of_made_maps(a, b, c, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    a_map = tl.make_tensor_descriptor(a, shape=[BM, k], strides=[k, 1], block_shape=[BM, BK])
    b_map = tl.make_tensor_descriptor(b, shape=[k, n], strides=[n, 1], block_shape=[BK, BN])
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for first in range(0, k, BK):
        total = tl.dot(a_map.load([0, first]), b_map.load([first, 0]), total)
    at = c + tl.arange(0, BM)[:, None] * n + tl.arange(0, BN)[None, :]
    tl.store(at, total)


@triton.jit
def integer_product(a, b, c, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at)))


@triton.jit
def histogram(x, bins, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.atomic_add(bins + tl.load(x + at, mask=inside, other=0), 1, mask=inside)


@triton.jit
def scaled(x, out, n, factor, flag, BLOCK: tl.constexpr = 128):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n).to(tl.float32) * factor
    tl.store(out + at, tl.where(flag, v, -v), mask=at < n)


@triton.jit
def racy_total(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.sum(tl.load(x + at))
    tl.store(out, tl.load(out) + total)  # of every program


@triton.jit
def twice(v):
    return v + v


@triton.jit
def unmasked(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, twice(tl.load(x + at)))


@triton.jit
def in_parts(pair, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(pair[0] + at) * pair[1])


CONFIGS = [triton.Config({"BLOCK": 64}, num_warps=2), triton.Config({"BLOCK": 128}, num_warps=4)]
tuned = triton.autotune(configs=CONFIGS, key=["n"])(histogram)
guessed = triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["columns"])})(softmax)


@triton.jit
def affine(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, i < n) * 2 + 1, i < n)


@triton.jit
def scaled_product(
    a,
    a_scales,
    b,
    b_scales,
    c,
    n,
    k,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    PACKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    columns = tl.program_id(1) * BN + tl.arange(0, BN)[:, None]
    packed, blocks = tl.arange(0, BK // PACKED)[None, :], tl.arange(0, BK // BLOCK)[None, :]
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for first in range(0, k, BK):
        left = tl.load(a + rows * (k // PACKED) + first // PACKED + packed)
        right = tl.load(b + columns * (k // PACKED) + first // PACKED + packed)
        of_left = tl.load(a_scales + rows * (k // BLOCK) + first // BLOCK + blocks)
        of_right = tl.load(b_scales + columns * (k // BLOCK) + first // BLOCK + blocks)
        total = tl.dot_scaled(left, of_left, LEFT, right.T, of_right, RIGHT, total)
    tl.store(c + rows * n + tl.trans(columns), total)


@triton.jit
def matmul_by_roles(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    a_map = tl.make_tensor_descriptor(a, shape=[m, k], strides=[k, 1], block_shape=[BM, BK])
    b_map = tl.make_tensor_descriptor(b, shape=[n, k], strides=[k, 1], block_shape=[BN, BK])
    c_map = tl.make_tensor_descriptor(c, shape=[m, n], strides=[n, 1], block_shape=[BM, BN])
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for first in tl.range(0, k, BK, warp_specialize=True):
        total = tl.dot(a_map.load([row, first]), b_map.load([column, first]).T, total)
    c_map.store([row, column], total)
