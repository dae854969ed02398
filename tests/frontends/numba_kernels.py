"""Numba kernels of tests/frontends/test_numba.py, which finds lines by their text."""

from __future__ import annotations

import enum
import math

import numba
from numba import cuda

TILE = 8


class Mode(enum.IntEnum):
    PLAIN = 1
    NEGATED = 2


@cuda.jit
def saxpy(a, x, y):
    i = cuda.grid(1)
    if i < x.shape[0]:
        y[i] = a * x[i] + y[i]


@cuda.jit(fastmath=True)
def columns_softmax(x, y):
    c = cuda.grid(1)
    if c < x.shape[1]:
        total = 0.0
        for r in range(x.shape[0]):
            total += math.exp(x[r, c])
        for r in range(x.shape[0]):
            y[r, c] = math.exp(x[r, c]) / total


@cuda.jit
def tiled_matmul(a, b, c):
    left = cuda.shared.array((TILE, TILE), numba.float32)
    right = cuda.shared.array((TILE, TILE), numba.float32)
    column, row = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = numba.float32(0)
    for k in range(0, a.shape[1], TILE):
        left[ty, tx] = a[row, k + tx]
        right[ty, tx] = b[k + ty, column]
        cuda.syncthreads()
        for j in range(TILE):
            total += left[ty, j] * right[j, tx]
        cuda.syncthreads()
    c[row, column] = total


@cuda.jit
def warp_total(x, out):
    v = x[cuda.grid(1)]
    for s in (16, 8, 4, 2, 1):
        v += cuda.shfl_xor_sync(0xFFFFFFFF, v, s)
    if cuda.laneid == 0:
        cuda.atomic.add(out, 0, v)


@cuda.jit
def reversed_block(x):
    part = cuda.shared.array(0, numba.int32)
    t = cuda.threadIdx.x
    part[t] = x[t]
    cuda.syncthreads()
    x[t] = part[cuda.blockDim.x - 1 - t]


@cuda.jit
def racy_block(x, out):
    part = cuda.shared.array(64, numba.float32)
    t = cuda.threadIdx.x
    part[t] = 2 * x[t]
    out[t] = part[63 - t]  # no barrier before


@cuda.jit(device=True)
def doubled(x, i):
    return 2 * x[i]  # of a device function


@cuda.jit
def of_device_functions(x, y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = doubled(x, i)


def plain(x, first):
    x[cuda.grid(1) + first] = 1


def of_many(z, pair, mode, flag, half, record, out):
    out[0] = z.real + 10 * z.imag
    out[1] = pair[0] + pair[1][1]
    out[2] = 2 if mode == Mode.NEGATED else 0
    out[3] = 1 if flag else 0
    out[4] = half
    out[5] = record.weight * record.count
    out[6] = out.itemsize
