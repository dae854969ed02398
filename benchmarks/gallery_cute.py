"""The kernels of docs/gallery.md in CuTe DSL, for `tools/bench.py --only gallery`.

They compute what ours compute, for any sizes, with the same tiles, warps and types. Compiling them
needs the package nvidia-cutlass-dsl and no GPU.
"""

from __future__ import annotations

import inspect
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Boolean, Float16, Float32, Int32, cute
from cutlass.cute.nvgpu import CopyUniversalOp, LoadCacheMode, cpasync, warp
from cutlass.cute.runtime import make_fake_compact_tensor

ROW_THREADS = {"softmax": 256, "layer_norm": 128}


@cute.jit
def of_block(value: Float32, combine: cutlass.Constexpr, shared: cute.Tensor) -> Float32:
    """The values of all threads of a CTA, combined; `shared` has an element for each warp."""
    value = cute.arch.warp_reduction(value, combine)
    own = cute.arch.warp_idx()
    if cute.arch.lane_idx() == 0:
        shared[own] = value
    cute.arch.sync_threads()
    value = shared[0]
    for warp_index in cutlass.range_constexpr(1, cute.size(shared)):
        value = combine(value, shared[warp_index])
    cute.arch.sync_threads()
    return value


@cute.kernel
def softmax_kernel(X: cute.Tensor, Y: cute.Tensor, threads: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    shared = cutlass.memory.SmemAllocator().allocate_tensor(Float32, cute.make_layout(threads // 32))
    x, y = X[row, None], Y[row, None]
    top = Float32(-math.inf)
    for i in range(thread, cute.size(x), threads):
        top = cute.arch.fmax(top, x[i])
    top = of_block(top, cute.arch.fmax, shared)
    total = Float32(0)
    for i in range(thread, cute.size(x), threads):
        total += cute.math.exp(x[i] - top, fastmath=True)
    weight = 1 / of_block(total, lambda a, b: a + b, shared)
    for i in range(thread, cute.size(x), threads):
        y[i] = cute.math.exp(x[i] - top, fastmath=True) * weight


@cute.jit
def softmax(X: cute.Tensor, Y: cute.Tensor):
    """Softmax of each row of X."""
    threads = 256
    softmax_kernel(X, Y, threads).launch(grid=(X.shape[0], 1, 1), block=(threads, 1, 1))


@cute.kernel
def layer_norm_kernel(
    X: cute.Tensor, weight: cute.Tensor, Y: cute.Tensor, eps: Float32, threads: cutlass.Constexpr
):
    thread, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    shared = cutlass.memory.SmemAllocator().allocate_tensor(Float32, cute.make_layout(threads // 32))
    x, y, add = X[row, None], Y[row, None], lambda a, b: a + b
    columns = cute.size(x)
    total = Float32(0)
    for i in range(thread, columns, threads):
        total += x[i]
    mean = of_block(total, add, shared) / columns
    squares = Float32(0)
    for i in range(thread, columns, threads):
        squares += (x[i] - mean) * (x[i] - mean)
    scale = cute.math.rsqrt(of_block(squares, add, shared) / columns + eps, fastmath=True)
    for i in range(thread, columns, threads):
        y[i] = (x[i] - mean) * scale * weight[i]


@cute.jit
def layer_norm(X: cute.Tensor, weight: cute.Tensor, Y: cute.Tensor, eps: Float32):
    """Each row of X less its mean, over its deviation, times the weights."""
    threads = 128
    kernel = layer_norm_kernel(X, weight, Y, eps, threads)
    kernel.launch(grid=(X.shape[0], 1, 1), block=(threads, 1, 1))


@cute.kernel
def gemm_kernel(
    A: cute.Tensor,
    B: cute.Tensor,
    C: cute.Tensor,
    a_layout: cute.ComposedLayout,
    b_layout: cute.ComposedLayout,
    copy_a: cute.TiledCopy,
    copy_b: cute.TiledCopy,
    mma: cute.TiledMma,
    tile: cutlass.Constexpr,
    stages: cutlass.Constexpr,
):
    thread, _, _ = cute.arch.thread_idx()
    column, row, _ = cute.arch.block_idx()
    rows, columns, step = tile
    at = (row, column, None)
    smem = cutlass.memory.SmemAllocator()
    a_shared = smem.allocate_tensor(Float16, a_layout, 16)
    b_shared = smem.allocate_tensor(Float16, b_layout, 16)

    # The first block of the depth is the one that may be cut: it begins before the matrix.
    depth = cute.size(A, mode=[1])
    blocks = cute.ceil_div(depth, step)
    before = depth - blocks * step
    a_copies, b_copies = copy_a.get_slice(thread), copy_b.get_slice(thread)
    a_from, b_from, a_at, b_at = [
        copies.partition_S(cute.local_tile(cute.domain_offset((0, before), whole), tile, at, proj=proj))
        for whole, proj, copies in (
            (A, (1, None, 1), a_copies),
            (B, (None, 1, 1), b_copies),
            (cute.make_identity_tensor(A.shape), (1, None, 1), a_copies),
            (cute.make_identity_tensor(B.shape), (None, 1, 1), b_copies),
        )
    ]
    a_to, b_to = a_copies.partition_D(a_shared), b_copies.partition_D(b_shared)
    a_inside, b_inside = inside(a_at, A.shape[0]), inside(b_at, B.shape[0])
    a_to.fill(0)
    b_to.fill(0)
    cute.arch.sync_threads()
    for k in cutlass.range_constexpr(cute.size(a_to, mode=[2])):
        if a_at[0, 0, k, 0][1] >= 0:
            cute.copy(copy_a, a_from[None, None, k, 0], a_to[None, None, k, 0], pred=a_inside[None, None, k])
    for k in cutlass.range_constexpr(cute.size(b_to, mode=[2])):
        if b_at[0, 0, k, 0][1] >= 0:
            cute.copy(copy_b, b_from[None, None, k, 0], b_to[None, None, k, 0], pred=b_inside[None, None, k])
    cute.arch.cp_async_commit_group()
    for stage in cutlass.range_constexpr(1, stages - 1):
        if stage < blocks:
            cute.copy(copy_a, a_from[None, None, None, stage], a_to[None, None, None, stage], pred=a_inside)
            cute.copy(copy_b, b_from[None, None, None, stage], b_to[None, None, None, stage], pred=b_inside)
        cute.arch.cp_async_commit_group()

    product = mma.get_slice(thread)
    c = product.partition_C(cute.local_tile(C, tile, at, proj=(1, 1, None)))
    c_at = product.partition_C(cute.local_tile(cute.make_identity_tensor(C.shape), tile, at, proj=(1, 1, None)))
    acc = mma.make_fragment_C(c.shape)
    acc.fill(0.0)
    a = mma.make_fragment_A(product.partition_A(a_shared[None, None, 0]))
    b = mma.make_fragment_B(product.partition_B(b_shared[None, None, 0]))
    load_a = cute.make_tiled_copy_A(cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), Float16), mma)
    load_b = cute.make_tiled_copy_B(cute.make_copy_atom(warp.LdMatrix8x8x16bOp(True, 4), Float16), mma)
    a_matrices, a_regs = load_a.get_slice(thread).partition_S(a_shared), load_a.retile(a)
    b_matrices, b_regs = load_b.get_slice(thread).partition_S(b_shared), load_b.retile(b)

    parts = cute.size(a, mode=[2])
    cute.arch.cp_async_wait_group(stages - 2)
    cute.arch.sync_threads()
    cute.copy(load_a, a_matrices[None, None, 0, 0], a_regs[None, None, 0])
    cute.copy(load_b, b_matrices[None, None, 0, 0], b_regs[None, None, 0])
    read, write = Int32(0), Int32(stages - 1)
    for block in cutlass.range(blocks, unroll=1):
        for part in cutlass.range_constexpr(parts):
            if cutlass.const_expr(part == parts - 1):
                write, read = read, (0 if read == stages - 1 else read + 1)
                cute.arch.cp_async_wait_group(stages - 2)
                cute.arch.sync_threads()
            after = (part + 1) % parts
            cute.copy(load_a, a_matrices[None, None, after, read], a_regs[None, None, after])
            cute.copy(load_b, b_matrices[None, None, after, read], b_regs[None, None, after])
            if cutlass.const_expr(part == 0):
                ahead = block + stages - 1
                if ahead < blocks:
                    cute.copy(
                        copy_a, a_from[None, None, None, ahead], a_to[None, None, None, write], pred=a_inside
                    )
                    cute.copy(
                        copy_b, b_from[None, None, None, ahead], b_to[None, None, None, write], pred=b_inside
                    )
                cute.arch.cp_async_commit_group()
            cute.gemm(mma, acc, a[None, None, part], b[None, None, part], acc)

    pairs = cute.make_rmem_tensor((2, *acc.shape[1:]), Boolean)
    for i in cutlass.range_constexpr(cute.size(pairs)):
        half, m, n = cute.idx2crd(i, pairs.shape)
        pairs[i] = cute.elem_less(c_at[(0, half), m, n], C.shape)
    cute.copy(cute.make_copy_atom(CopyUniversalOp(), Float32, num_bits_per_copy=64), acc, c, pred=pairs)


@cute.jit
def inside(at: cute.Tensor, end: Int32) -> cute.Tensor:
    """For the copies of a thread at `at`, whether their first coordinate is less than `end`."""
    _, several, along, _ = at.shape
    found = cute.make_rmem_tensor(
        cute.make_layout((at.shape[0][1], several, along), stride=(several, 1, 0)), Boolean
    )
    for i in cutlass.range_constexpr(at.shape[0][1]):
        for j in cutlass.range_constexpr(several):
            found[i, j, 0] = at[(0, i), j, 0, 0][0] < end
    return found


@cute.jit
def gemm(A: cute.Tensor, B: cute.Tensor, C: cute.Tensor):
    """C = A Bᵀ: A is (m, depth), B is (n, depth) with adjacent n, and C is (m, n)."""
    tile, stages = (128, 128, 32), 3
    rows, columns, step = tile
    swizzled_a = cute.make_composed_layout(
        cute.make_swizzle(2, 3, 3), 0, cute.make_layout((8, 32), stride=(32, 1))
    )
    swizzled_b = cute.make_composed_layout(
        cute.make_swizzle(3, 3, 3), 0, cute.make_layout((64, 8), stride=(1, 64))
    )
    a_layout = cute.tile_to_shape(swizzled_a, (rows, step, stages), (0, 1, 2))
    b_layout = cute.tile_to_shape(swizzled_b, (columns, step, stages), (0, 1, 2))
    copied = cute.make_copy_atom(
        cpasync.CopyG2SOp(LoadCacheMode.GLOBAL), Float16, num_bits_per_copy=128
    )
    copy_a = cute.make_tiled_copy_tv(
        copied, cute.make_layout((32, 4), stride=(4, 1)), cute.make_layout((1, 8))
    )
    copy_b = cute.make_tiled_copy_tv(
        copied, cute.make_layout((16, 8), stride=(1, 16)), cute.make_layout((8, 1))
    )
    mma = cute.make_tiled_mma(warp.MmaF16BF16Op(Float16, Float32, (16, 8, 16)), (2, 2, 1), (32, 32, 16))
    kernel = gemm_kernel(A, B, C, a_layout, b_layout, copy_a, copy_b, mma, tile, stages)
    grid = (cute.ceil_div(C.shape[1], columns), cute.ceil_div(C.shape[0], rows), 1)
    kernel.launch(grid=grid, block=(128, 1, 1))


def matrix(dtype, rows_first=True, align=16):
    sizes = cute.sym_int(), cute.sym_int(divisibility=align * 8 // dtype.width)
    if rows_first:
        return make_fake_compact_tensor(dtype, sizes, stride_order=(1, 0), assumed_align=16)
    return make_fake_compact_tensor(dtype, sizes[::-1], stride_order=(0, 1), assumed_align=16)
