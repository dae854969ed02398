"""CuTe DSL kernels of tests/frontends/test_cute.py, which finds lines by their text."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute

THREADS = 64


@cute.kernel
def add_kernel(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    i = block * THREADS + thread
    if i < cute.size(a):
        c[i] = a[i] + b[i]


@cute.jit
def add(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    blocks = (cute.size(a) + THREADS - 1) // THREADS
    add_kernel(a, b, c).launch(grid=(blocks, 1, 1), block=(THREADS, 1, 1))


@cute.kernel
def reverse_kernel(x: cute.Tensor, racy: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    smem = cutlass.memory.SmemAllocator()
    tile = smem.allocate_tensor(cutlass.Float32, cute.make_layout(THREADS))
    tile[thread] = x[thread]
    if cutlass.const_expr(not racy):
        cute.arch.sync_threads()
    x[thread] = tile[THREADS - 1 - thread]


@cute.jit
def reverse(x: cute.Tensor, racy: cutlass.Constexpr):
    reverse_kernel(x, racy).launch(grid=(1, 1, 1), block=(THREADS, 1, 1), smem=THREADS * 4)


@cute.kernel
def staged_kernel(x: cute.Tensor, y: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    smem = cutlass.memory.SmemAllocator()
    tile = smem.allocate_tensor(cutlass.Float32, cute.make_layout(4 * THREADS), byte_alignment=16)
    atom = cute.make_copy_atom(cute.nvgpu.cpasync.CopyG2SOp(), cutlass.Float32, num_bits_per_copy=128)
    cute.copy(atom, cute.zipped_divide(x, (4,))[None, thread], cute.zipped_divide(tile, (4,))[None, thread])
    cute.arch.cp_async_commit_group()
    cute.arch.cp_async_wait_group(0)
    cute.arch.sync_threads()
    for i in range(4):
        y[4 * thread + i] = tile[4 * thread + i]


@cute.jit
def staged(x: cute.Tensor, y: cute.Tensor):
    staged_kernel(x, y).launch(grid=(1, 1, 1), block=(THREADS, 1, 1), smem=THREADS * 16)
