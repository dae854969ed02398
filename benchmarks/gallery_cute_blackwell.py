"""The kernels of docs/gallery.md for Blackwell in CuTe DSL; see `benchmarks/gallery_cute.py`."""

from __future__ import annotations

import cutlass
from cutlass import Boolean, Constexpr, Float16, Float32, Int32, cute, pipeline
from cutlass.cute import Tensor
from cutlass.cute.nvgpu import cpasync, tcgen05
from cutlass.utils import blackwell_helpers


@cute.kernel
def blackwell_gemm_kernel(
    mma: cute.TiledMma,
    copy_a: cute.CopyAtom,
    A: Tensor,
    copy_b: cute.CopyAtom,
    B: Tensor,
    C: Tensor,
    a_layout: cute.ComposedLayout,
    b_layout: cute.ComposedLayout,
    tile: Constexpr,
    stages: Constexpr,
):
    """One block of C, by one CTA; a thread of the first warp copies and multiplies."""
    (rows, columns, _), layouts = tile, (a_layout, b_layout)
    thread, _, _ = cute.arch.thread_idx()
    column, row, _ = cute.arch.block_idx()
    warp_index = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem = cutlass.memory.SmemAllocator()
    address = smem.allocate_array(Int32, 1)
    full, done = smem.allocate_array(cutlass.Int64, 2 * stages), smem.allocate_array(cutlass.Int64, 2)
    a_shared, b_shared = [
        smem.allocate_tensor(Float16, layout.outer, 128, swizzle=layout.inner) for layout in layouts
    ]
    meeting = pipeline.NamedBarrier(barrier_id=1, num_threads=128)
    memory = cutlass.memory.TmemAllocator(address, barrier_for_retrieve=meeting)
    memory.allocate(columns)
    one, all_threads = [pipeline.CooperativeGroup(pipeline.Agent.Thread, count) for count in (1, 128)]
    copied_bytes = sum(cute.size_in_bytes(Float16, cute.select(layout, mode=[0, 1, 2])) for layout in layouts)
    producer, consumer = pipeline.PipelineTmaUmma.create(
        num_stages=stages, producer_group=one, consumer_group=one, tx_count=copied_bytes, barrier_storage=full
    ).make_participants()
    sums, results = pipeline.PipelineUmmaAsync.create(
        num_stages=1, producer_group=one, consumer_group=all_threads, barrier_storage=done
    ).make_participants()

    block = (row, column, None)
    product = mma.get_slice(0)
    a_from = product.partition_A(cute.local_tile(A, tile, block, proj=(1, None, 1)))
    b_from = product.partition_B(cute.local_tile(B, tile, block, proj=(None, 1, 1)))
    c_to, c_at = [
        product.partition_C(cute.local_tile(whole, tile, block, proj=(1, 1, None)))
        for whole in (C, cute.make_identity_tensor(C.shape))
    ]
    a, b = mma.make_fragment_A(a_shared), mma.make_fragment_B(b_shared)
    alone = cute.make_layout(1)
    a_to, a_boxes = cpasync.tma_partition(
        copy_a, 0, alone, cute.group_modes(a_shared, 0, 3), cute.group_modes(a_from, 0, 3)
    )
    b_to, b_boxes = cpasync.tma_partition(
        copy_b, 0, alone, cute.group_modes(b_shared, 0, 3), cute.group_modes(b_from, 0, 3)
    )
    memory.wait_for_alloc()
    start = memory.retrieve_ptr(Float32)
    acc = cute.make_tensor(start, mma.make_fragment_C(mma.partition_shape_C((rows, columns))).layout)

    if warp_index == 0:
        total = sums.acquire_and_advance()
        for _ in cutlass.range(cute.size(a_boxes, mode=[1]), prefetch_stages=stages - 2):
            empty = producer.acquire_and_advance()
            index, count, barrier = empty.index, empty.count, empty.barrier
            cute.copy(copy_a, a_boxes[None, count], a_to[None, index], tma_bar_ptr=barrier)
            cute.copy(copy_b, b_boxes[None, count], b_to[None, index], tma_bar_ptr=barrier)
            stage = consumer.wait_and_advance()
            for part in cutlass.range_constexpr(cute.size(a, mode=[2])):
                at = (None, None, part, stage.index)
                cute.gemm(mma, acc, a[at], b[at], acc)
                mma.set(tcgen05.Field.ACCUMULATE, True)
            stage.release()
        total.commit()

    memory.relinquish_alloc_permit()
    ready = results.wait_and_advance()
    piece = ((cute.size(acc, mode=[0, 0]), 32),)
    parts = cute.zipped_divide(acc, piece)
    load = tcgen05.make_tmem_copy(
        cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x32), Float32), parts[None, 0]
    )
    load_slice = load.get_slice(thread)
    sources = load_slice.partition_S(parts)
    targets, places = [load_slice.partition_D(cute.zipped_divide(x, piece)) for x in (c_to, c_at)]
    for part in cutlass.range_constexpr(columns // 32):
        values = cute.make_rmem_tensor(targets[None, None, part].shape, Float32)
        cute.copy(load, sources[None, None, part], values)
        rounded = cute.make_rmem_tensor(values.shape, Float16)
        rounded.store(values.load().to(Float16))
        inside = cute.make_rmem_tensor(values.shape, Boolean)
        for i in cutlass.range_constexpr(cute.size(values)):
            inside[i] = cute.elem_less(places[None, None, part][i], C.shape)
        cute.basic_copy_if(inside, rounded, targets[None, None, part])
    ready.release()
    pipeline.sync(barrier_id=1)
    memory.free(start)


@cute.jit
def blackwell_gemm(A: Tensor, B: Tensor, C: Tensor):
    """C = A Bᵀ in tensor memory: A is (m, depth), B is (n, depth) with adjacent n, and C is (m, n)."""
    tile, stages = (128, 128, 64), 4
    major = cute.nvgpu.OperandMajorMode
    product = tcgen05.MmaF16BF16Op(
        Float16, Float32, (128, 128, 16), tcgen05.CtaGroup.ONE, tcgen05.OperandSource.SMEM, major.K, major.MN
    )
    mma = cute.make_tiled_mma(product)
    layouts = [
        make(mma, tile, Float16, stages)
        for make in (blackwell_helpers.make_smem_layout_a, blackwell_helpers.make_smem_layout_b)
    ]
    copied = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
    (copy_a, a_boxes), (copy_b, b_boxes) = [
        make(copied, whole, cute.select(layout, mode=[0, 1, 2]), tile, mma)
        for make, whole, layout in (
            (cute.nvgpu.make_tiled_tma_atom_A, A, layouts[0]),
            (cute.nvgpu.make_tiled_tma_atom_B, B, layouts[1]),
        )
    ]
    grid = (cute.ceil_div(C.shape[1], 128), cute.ceil_div(C.shape[0], 128), 1)
    blackwell_gemm_kernel(mma, copy_a, a_boxes, copy_b, b_boxes, C, *layouts, tile, stages).launch(
        grid=grid, block=(128, 1, 1)
    )
