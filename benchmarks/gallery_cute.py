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
from cutlass import Boolean, Constexpr, Float16, Float32, Int32, cute
from cutlass.cute import Tensor
from cutlass.cute.nvgpu import CopyUniversalOp, LoadCacheMode, cpasync, warp
from cutlass.cute.runtime import make_fake_compact_tensor

from benchmarks.gallery_cute_blackwell import blackwell_gemm, blackwell_gemm_kernel

PRODUCT = (16, 8, 16)  # the shape of a product on tensor cores


@cute.jit
def of_block(value: Float32, combine: Constexpr, shared: Tensor) -> Float32:
    """The values of all threads of a CTA, combined; `shared` has an element for each warp."""
    value = cute.arch.warp_reduction(value, combine)
    warp = cute.arch.warp_idx()
    if cute.arch.lane_idx() == 0:
        shared[warp] = value
    cute.arch.sync_threads()
    value = shared[0]
    for warp_index in cutlass.range_constexpr(1, cute.size(shared)):
        value = combine(value, shared[warp_index])
    cute.arch.sync_threads()
    return value


@cute.kernel
def softmax_kernel(X: Tensor, Y: Tensor, threads: Constexpr):
    """Softmax; each CTA computes one row."""
    thread, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    shared = cutlass.memory.SmemAllocator().allocate_tensor(Float32, cute.make_layout(threads // 32))
    x, y = X[row, None], Y[row, None]
    top = -Float32.inf
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
def softmax(X: Tensor, Y: Tensor):
    """Softmax of each row of X."""
    threads = 256
    softmax_kernel(X, Y, threads).launch(grid=(X.shape[0], 1, 1), block=(threads, 1, 1))


@cute.kernel
def layer_norm_kernel(X: Tensor, weight: Tensor, Y: Tensor, eps: Float32, threads: Constexpr):
    """Layer normalisation; each CTA computes one row."""
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
def layer_norm(X: Tensor, weight: Tensor, Y: Tensor, eps: Float32):
    """Each row of X less its mean, over its deviation, times the weights."""
    threads = 128
    kernel = layer_norm_kernel(X, weight, Y, eps, threads)
    kernel.launch(grid=(X.shape[0], 1, 1), block=(threads, 1, 1))


@cute.kernel
def gemm_kernel(A: Tensor, B: Tensor, C: Tensor, tile: Constexpr, stages: Constexpr):
    """C = A Bᵀ; each CTA computes one block of C."""
    thread, _, _ = cute.arch.thread_idx()
    column, row, _ = cute.arch.block_idx()
    rows, columns, step = tile
    at = (row, column, None)
    smem = cutlass.memory.SmemAllocator()
    a_atom = swizzled(cute.make_layout((8, step), stride=(step, 1)), 2)
    b_atom = swizzled(cute.make_layout((64, 8), stride=(1, 64)), 3)
    a_shared = smem.allocate_tensor(Float16, cute.tile_to_shape(a_atom, (rows, step, stages), (0, 1, 2)), 16)
    b_shared = smem.allocate_tensor(
        Float16, cute.tile_to_shape(b_atom, (columns, step, stages), (0, 1, 2)), 16
    )
    copied = cute.make_copy_atom(cpasync.CopyG2SOp(LoadCacheMode.GLOBAL), Float16, num_bits_per_copy=128)
    a_threads, b_threads = cute.make_layout((32, 4), stride=(4, 1)), cute.make_layout((16, 8), stride=(1, 16))
    copy_a = cute.make_tiled_copy_tv(copied, a_threads, cute.make_layout((1, 8)))
    copy_b = cute.make_tiled_copy_tv(copied, b_threads, cute.make_layout((8, 1)))
    mma = cute.make_tiled_mma(warp.MmaF16BF16Op(Float16, Float32, PRODUCT), (2, 2, 1), (32, 32, 16))

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
    c_at = product.partition_C(
        cute.local_tile(cute.make_identity_tensor(C.shape), tile, at, proj=(1, 1, None))
    )
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

    store(acc, c, c_at, C.shape)


@cute.jit
def swizzled(layout: cute.Layout, bits: Constexpr):
    """A layout of f16 whose vectors of 16 bytes are permuted, so that `ldmatrix` meets no bank twice."""
    return cute.make_composed_layout(cute.make_swizzle(bits, 3, 3), 0, layout)


@cute.jit
def store(values: Tensor, to: Tensor, at: Tensor, shape: cute.Shape):
    """Store a thread's elements of a block, two at a time; `at` has the (row, column) of each value."""
    pairs = cute.make_rmem_tensor((2, *values.shape[1:]), Boolean)
    for row in cutlass.range_constexpr(2 * cute.size(pairs, mode=[1])):
        half, m = row % 2, row // 2
        for n in cutlass.range_constexpr(cute.size(pairs, mode=[2])):
            pairs[half, m, n] = cute.elem_less(at[(0, half), m, n], shape)
    dtype = values.element_type
    copied = cute.make_copy_atom(CopyUniversalOp(), dtype, num_bits_per_copy=2 * dtype.width)
    cute.copy(copied, values, to, pred=pairs)


@cute.jit
def inside(at: Tensor, end: Int32) -> Tensor:
    """Predicates for the copies of a thread at the coordinates `at`: whether the first coordinate is less
    than `end`.
    """
    _, several, along, _ = at.shape
    predicate = cute.make_rmem_tensor(
        cute.make_layout((at.shape[0][1], several, along), stride=(several, 1, 0)), Boolean
    )
    for i in cutlass.range_constexpr(at.shape[0][1]):
        for j in cutlass.range_constexpr(several):
            predicate[i, j, 0] = at[(0, i), j, 0, 0][0] < end
    return predicate


@cute.jit
def gemm(A: Tensor, B: Tensor, C: Tensor):
    """C = A Bᵀ: A is (m, depth), B is (n, depth) with adjacent n, and C is (m, n)."""
    rows, columns, _ = tile = (128, 128, 32)
    grid = (cute.ceil_div(C.shape[1], columns), cute.ceil_div(C.shape[0], rows), 1)
    gemm_kernel(A, B, C, tile, 3).launch(grid=grid, block=(128, 1, 1))


@cute.jit
def by_rows(acc: Tensor) -> Tensor:
    """An accumulator of m16n8 products as (rows, columns) of a thread."""
    (pair, halves), m, n = acc.layout.shape
    (pair_stride, half_stride), m_stride, n_stride = acc.layout.stride
    layout = cute.make_layout(
        ((halves, m), (pair, n)), stride=((half_stride, m_stride), (pair_stride, n_stride))
    )
    return cute.make_tensor(acc.iterator, layout)


@cute.jit
def as_operand(acc: Tensor) -> Tensor:
    """An accumulator of m16n8 products as the first operand of m16n8k16 products."""
    cut = cute.logical_divide(acc.layout, (None, None, 2))
    layout = cute.make_layout(
        ((cut.shape[0], cut.shape[2][0]), cut.shape[1], cut.shape[2][1]),
        stride=((cut.stride[0], cut.stride[2][0]), cut.stride[1], cut.stride[2][1]),
    )
    return cute.make_tensor(acc.iterator, layout)


@cute.jit
def attention_step(
    operands, k_matrices, v_matrices, at, keys, in_log2, sums, masked: Constexpr, causal: Constexpr
):
    """The step of `attention` for one block of keys; `at` has the (query, key) of each score."""
    mma, load_k, load_v, q, k, v = operands
    total, row_max, row_sum = sums
    scores = mma.make_fragment_C(at.shape)
    scores.fill(0.0)
    k_regs, v_regs = load_k.retile(k), load_v.retile(v)
    for part in cutlass.range_constexpr(cute.size(k, mode=[2])):
        cute.copy(load_k, k_matrices[None, None, part], k_regs[None, None, part])
        cute.gemm(mma, scores, q[None, None, part], k[None, None, part], scores)
    s, output, at = by_rows(scores), by_rows(total), by_rows(at)
    for r in cutlass.range_constexpr(cute.size(row_max)):
        if cutlass.const_expr(masked):
            seen = cutlass.min(keys, at[r, 0][0] + 1) if causal else keys
            for c in cutlass.range_constexpr(cute.size(s, mode=[1])):
                s[r, c] = s[r, c] if at[r, c][1] < seen else -Float32.inf
        row = s[r, None].load()
        highest = cute.arch.warp_reduction_max(
            row.reduce(cute.ReductionOp.MAX, row_max[r], 0), threads_in_group=4
        )
        shift = highest * in_log2
        if cutlass.const_expr(masked):
            shift = Float32(0) if highest == -Float32.inf else shift
        weights = cute.math.exp2(row * in_log2 - shift, fastmath=True)
        rescale = cute.math.exp2(row_max[r] * in_log2 - shift, fastmath=True)
        row_sum[r] = row_sum[r] * rescale + weights.reduce(cute.ReductionOp.ADD, Float32(0), 0)
        row_max[r] = highest
        s[r, None] = weights
        output[r, None] = output[r, None].load() * rescale
    p = cute.make_rmem_tensor_like(scores, Float16)
    p.store(scores.load().to(Float16))
    p = as_operand(p)
    for part in cutlass.range_constexpr(cute.size(v, mode=[2])):
        cute.copy(load_v, v_matrices[None, None, part], v_regs[None, None, part])
        cute.gemm(mma, total, p[None, None, part], v[None, None, part], total)


@cute.kernel
def attention_kernel(
    Q: Tensor, K: Tensor, V: Tensor, O: Tensor, scale: Float32, tile: Constexpr, causal: Constexpr
):
    """Attention of one block of queries of a head, by one CTA."""
    thread, _, _ = cute.arch.thread_idx()
    row, head, _ = cute.arch.block_idx()
    rows, step, d = tile
    Q, K, V, O = Q[head, None, None], K[head, None, None], V[head, None, None], O[head, None, None]
    keys = cute.size(K, mode=[0])
    smem = cutlass.memory.SmemAllocator()
    atom = swizzled(cute.make_layout((8, d), stride=(d, 1)), 3)
    q_shared, k_shared, v_shared = [
        smem.allocate_tensor(Float16, cute.tile_to_shape(atom, shape, (0, 1, 2)), 16)
        for shape in ((rows, d, 1), (step, d, 2), (step, d, 2))
    ]
    transposed = cute.make_layout((d, step, 2), stride=(step, 1, step * d))
    v_transposed = cute.composition(v_shared, transposed)

    copied = cute.make_copy_atom(cpasync.CopyG2SOp(LoadCacheMode.GLOBAL), Float16, num_bits_per_copy=128)
    threads, vector = cute.make_layout((16, 8), stride=(8, 1)), cute.make_layout((1, 8))
    copies = cute.make_tiled_copy_tv(copied, threads, vector)
    mma = cute.make_tiled_mma(warp.MmaF16BF16Op(Float16, Float32, PRODUCT), (4, 1, 1), (64, 16, 16))
    slice_of_thread = copies.get_slice(thread)
    q_from, q_at = [
        slice_of_thread.partition_S(cute.local_tile(whole, (rows, d), (row, 0)))
        for whole in (Q, cute.make_identity_tensor(Q.shape))
    ]
    k_from, v_from, k_at = [
        slice_of_thread.partition_S(cute.local_tile(whole, (step, d), (None, 0)))
        for whole in (K, V, cute.make_identity_tensor(K.shape))
    ]
    q_to, k_to, v_to = [
        slice_of_thread.partition_D(shared) for shared in (q_shared[None, None, 0], k_shared, v_shared)
    ]
    end, whole = keys, keys // step
    if cutlass.const_expr(causal):
        end = cutlass.min(keys, (row + 1) * rows)
        whole = cutlass.min(whole, row * rows // step)
    blocks = cute.ceil_div(end, step)

    # The blocks go from the last one, which may be cut, to the first.
    q_to.fill(0)
    k_to.fill(0)
    v_to.fill(0)
    cute.arch.sync_threads()
    for i in cutlass.range_constexpr(cute.size(q_to, mode=[1])):
        if q_at[0, i, 0][0] < cute.size(Q, mode=[0]):
            cute.copy(copies, q_from[None, i, None], q_to[None, i, None])
    for i in cutlass.range_constexpr(cute.size(k_to, mode=[1])):
        if k_at[0, i, 0, blocks - 1][0] < keys:
            cute.copy(copies, k_from[None, i, None, blocks - 1], k_to[None, i, None, 0])
            cute.copy(copies, v_from[None, i, None, blocks - 1], v_to[None, i, None, 0])
    cute.arch.cp_async_commit_group()

    product = mma.get_slice(thread)
    load_q, load_k, load_v = [
        make(cute.make_copy_atom(warp.LdMatrix8x8x16bOp(across, 4), Float16), mma)
        for make, across in (
            (cute.make_tiled_copy_A, False),
            (cute.make_tiled_copy_B, False),
            (cute.make_tiled_copy_B, True),
        )
    ]
    q = mma.make_fragment_A(product.partition_A(q_shared[None, None, 0]))
    k = mma.make_fragment_B(product.partition_B(k_shared[None, None, 0]))
    v = mma.make_fragment_B(product.partition_B(v_transposed[None, None, 0]))
    k_matrices = load_k.get_slice(thread).partition_S(k_shared)
    v_matrices = load_v.get_slice(thread).partition_S(v_transposed)
    scores_at = product.partition_C(
        cute.local_tile(cute.make_identity_tensor((Q.shape[0], keys)), (rows, step), (row, None))
    )
    o = product.partition_C(cute.local_tile(O, (rows, d), (row, 0)))
    o_at = product.partition_C(cute.local_tile(cute.make_identity_tensor(O.shape), (rows, d), (row, 0)))
    total = mma.make_fragment_C(o.shape)
    total.fill(0.0)
    row_max = cute.make_rmem_tensor(cute.size(by_rows(total), mode=[0]), Float32)
    row_sum = cute.make_rmem_tensor_like(row_max)
    row_max.fill(-Float32.inf)
    row_sum.fill(0.0)
    in_log2 = scale * math.log2(math.e)

    cute.arch.cp_async_wait_group(0)
    cute.arch.sync_threads()
    cute.copy(load_q, load_q.get_slice(thread).partition_S(q_shared[None, None, 0]), load_q.retile(q))
    operands, sums = (mma, load_k, load_v, q, k, v), (total, row_max, row_sum)
    stage = Int32(0)
    for masked, many, last in ((True, blocks - whole, blocks - 1), (False, whole, whole - 1)):
        for i in cutlass.range(many, unroll=1):
            block = last - i
            cute.arch.cp_async_wait_group(0)
            cute.arch.sync_threads()
            if block > 0:
                cute.copy(copies, k_from[None, None, None, block - 1], k_to[None, None, None, 1 - stage])
                cute.copy(copies, v_from[None, None, None, block - 1], v_to[None, None, None, 1 - stage])
            cute.arch.cp_async_commit_group()
            k_block, v_block = k_matrices[None, None, None, stage], v_matrices[None, None, None, stage]
            at = scores_at[None, None, None, block]
            attention_step(operands, k_block, v_block, at, keys, in_log2, sums, masked, causal)
            stage = 1 - stage

    output = by_rows(total)
    for r in cutlass.range_constexpr(cute.size(row_sum)):
        weight = 1 / cute.arch.warp_reduction_sum(row_sum[r], threads_in_group=4)
        output[r, None] = output[r, None].load() * weight
    result = cute.make_rmem_tensor_like(total, Float16)
    result.store(total.load().to(Float16))
    store(result, o, o_at, O.shape)


@cute.jit
def attention(Q: Tensor, K: Tensor, V: Tensor, O: Tensor, scale: Float32, causal: Constexpr):
    """O = softmax(scale Q Kᵀ) V; only blocks of keys that need a mask have one."""
    rows, _, _ = tile = (128, 64, 64)
    grid = (cute.ceil_div(Q.shape[1], rows), Q.shape[0], 1)
    attention_kernel(Q, K, V, O, scale, tile, causal).launch(grid=grid, block=(128, 1, 1))


def matrix(dtype: Any, *, depth_first: bool = False) -> Any:
    """A tensor of two sizes that are known at launch, with rows that begin at multiples of 16 bytes."""
    across = cute.sym_int(divisibility=128 // dtype.width)
    sizes, order = ((across, cute.sym_int()), (0, 1)) if depth_first else ((cute.sym_int(), across), (1, 0))
    return make_fake_compact_tensor(dtype, sizes, stride_order=order, assumed_align=16)


def rows_of(dtype: Any, rank: int, *last: int) -> Any:
    """A dense tensor of this rank, the last sizes being `last` and the others known at launch."""
    sizes = [*(cute.sym_int() for _ in range(rank - len(last))), *last]
    return make_fake_compact_tensor(dtype, sizes, stride_order=range(rank)[::-1], assumed_align=16)


@dataclass(frozen=True)
class Variant:
    """Functions of which the first launches the kernel, and the arguments it is compiled for."""

    functions: Sequence[Callable[..., Any]]
    arguments: Callable[[], Sequence[Any]]


KERNELS: Mapping[str, Variant] = {
    "softmax": Variant(
        [softmax, softmax_kernel, of_block], lambda: [rows_of(Float32, 2), rows_of(Float32, 2)]
    ),
    "layer_norm": Variant(
        [layer_norm, layer_norm_kernel, of_block],
        lambda: [rows_of(Float32, 2), rows_of(Float32, 1), rows_of(Float32, 2), Float32(0)],
    ),
    "gemm": Variant(
        [gemm, gemm_kernel, swizzled, store, inside],
        lambda: [matrix(Float16), matrix(Float16, depth_first=True), matrix(Float32)],
    ),
    "attention": Variant(
        [attention, attention_kernel, attention_step, swizzled, store, by_rows, as_operand],
        lambda: [*(rows_of(Float16, 3, 64) for _ in range(4)), Float32(0), False],
    ),
    "blackwell_gemm": Variant(
        [blackwell_gemm, blackwell_gemm_kernel],
        lambda: [matrix(Float16), matrix(Float16, depth_first=True), matrix(Float16)],
    ),
}


def source(name: str) -> str:
    """The source of a kernel's functions."""
    return "\n".join(inspect.getsource(inspect.unwrap(function)) for function in KERNELS[name].functions)


def compiled(name: str, capability: int) -> Mapping[str, Any]:
    """The output of CuTe DSL for a kernel and a GPU of this compute capability, such as 80: `ptx` and
    `cubin`. Nothing is kept from one call to the next.
    """
    variant = KERNELS[name]
    with tempfile.TemporaryDirectory() as folder:
        architecture = f"sm_{capability}{'a' * (capability >= 90)}"
        options = f"--gpu-arch={architecture} --keep-ptx --keep-cubin --dump-dir={folder}"
        kernel = cute.compile(variant.functions[0], *variant.arguments(), options=options)
        return {"ptx": kernel.__ptx__, "cubin": kernel.__cubin__}
