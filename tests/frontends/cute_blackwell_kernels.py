"""The kernel of tests/frontends/test_cute_blackwell.py: C = A B^T in tensor memory, by a CTA or by a pair."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
import cutlass.utils.blackwell_helpers as blackwell
from cutlass import pipeline
from cutlass.cute.nvgpu import cpasync, tcgen05

THREADS = 128
STAGES = 4
COLUMNS = 512  # of tensor memory
ROWS, KEYS, DEPTH = 128, 128, 64  # of a CTA's tile of C, and of a stage along k
PIECES = 4  # of the tile, which is converted piece by piece


@cute.kernel
def product_kernel(  # noqa: PLR0915  # CuTe DSL takes the tensors of a kernel apart in it
    mma: cute.TiledMma,
    load_a: cute.CopyAtom,
    a: cute.Tensor,
    load_b: cute.CopyAtom,
    b: cute.Tensor,
    c: cute.Tensor,
    a_layout: cute.ComposedLayout,
    b_layout: cute.ComposedLayout,
    ctas: cute.Layout,
    tile: cutlass.Constexpr,
):
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    x, y, _ = cute.arch.block_idx()
    in_pair = cute.size(ctas, mode=[0])
    at = (x % in_pair, x // in_pair, y, None)
    here = ctas.get_flat_coord(cute.arch.block_idx_in_cluster())
    leads = at[0] == 0

    memory = cutlass.memory.SmemAllocator()
    filled = memory.allocate_array(cutlass.Int64, 2 * STAGES)
    done = memory.allocate_array(cutlass.Int64, 2)
    freed = memory.allocate_array(cutlass.Int64, 1)
    columns = memory.allocate_array(cutlass.Int32, 1)
    shared_a = memory.allocate_tensor(cutlass.Float16, a_layout.outer, 1024, a_layout.inner)
    shared_b = memory.allocate_tensor(cutlass.Float16, b_layout.outer, 1024, b_layout.inner)
    one = pipeline.CooperativeGroup(pipeline.Agent.Thread)
    stage_bytes = sum(
        cute.size_in_bytes(cutlass.Float16, cute.select(layout, mode=[0, 1, 2]))
        for layout in (a_layout, b_layout)
    )
    fill, use = pipeline.PipelineTmaUmma.create(
        num_stages=STAGES,
        producer_group=one,
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 1),
        tx_count=stage_bytes * in_pair,
        barrier_storage=filled,
        cta_layout_vmnk=ctas,
    ).make_participants()
    finish, wait = pipeline.PipelineUmmaAsync.create(
        num_stages=1,
        producer_group=one,
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, in_pair * THREADS),
        barrier_storage=done,
        cta_layout_vmnk=ctas,
    ).make_participants()

    part = mma.get_slice(at[0])
    of_a = part.partition_A(cute.local_tile(a, tile, at[1:], proj=(1, None, 1)))
    of_b = part.partition_B(cute.local_tile(b, tile, at[1:], proj=(None, 1, 1)))
    of_c = part.partition_C(cute.local_tile(c, tile, at[1:], proj=(1, 1, None)))
    left, right = mma.make_fragment_A(shared_a), mma.make_fragment_B(shared_b)
    total = mma.make_fragment_C(mma.partition_shape_C(tile[:2]))
    to_a, from_a = cpasync.tma_partition(
        load_a,
        here[2],
        cute.make_layout(cute.size(ctas, mode=[2])),
        cute.group_modes(shared_a, 0, 3),
        cute.group_modes(of_a, 0, 3),
    )
    to_b, from_b = cpasync.tma_partition(
        load_b,
        here[1],
        cute.make_layout(cute.size(ctas, mode=[1])),
        cute.group_modes(shared_b, 0, 3),
        cute.group_modes(of_b, 0, 3),
    )

    tensor_memory = cutlass.memory.TmemAllocator(
        columns,
        barrier_for_retrieve=pipeline.NamedBarrier(barrier_id=1, num_threads=THREADS),
        is_two_cta=in_pair > 1,
        two_cta_tmem_dealloc_mbar_ptr=freed,
    )
    tensor_memory.allocate(COLUMNS)
    tensor_memory.wait_for_alloc()
    first = tensor_memory.retrieve_ptr(cutlass.Float32)
    total = cute.make_tensor(first, total.layout)

    if warp == 0:
        if leads:
            finish.acquire_and_advance()
        for _ in cutlass.range(cute.size(from_a, mode=[1]), prefetch_stages=STAGES - 1):
            free = fill.acquire_and_advance()
            cute.copy(load_a, from_a[None, free.count], to_a[None, free.index], tma_bar_ptr=free.barrier)
            cute.copy(load_b, from_b[None, free.count], to_b[None, free.index], tma_bar_ptr=free.barrier)
            if leads:
                full = use.wait_and_advance()
                for step in cutlass.range_constexpr(cute.size(left, mode=[2])):
                    now = (None, None, step, full.index)
                    cute.gemm(mma, total, left[now], right[now], total)
                    mma.set(tcgen05.Field.ACCUMULATE, True)
                full.release()
        if leads:
            finish.commit()

    tensor_memory.relinquish_alloc_permit()
    complete = wait.wait_and_advance()
    piece = ((cute.size(total, mode=[0, 0]), cute.size(total, mode=[0, 1]) // PIECES),)
    pieces, out = cute.zipped_divide(total, piece), cute.zipped_divide(of_c, piece)
    load = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x32), cutlass.Float32)
    load_piece = tcgen05.make_tmem_copy(load, pieces[None, 0])
    mine = load_piece.get_slice(thread)
    source, target = mine.partition_S(pieces), mine.partition_D(out)
    sums = cute.make_rmem_tensor(target[None, None, 0].shape, cutlass.Float32)
    for i in cutlass.range(cute.size(source, mode=[2])):
        cute.copy(load_piece, source[None, None, i], sums)
        cute.autovec_copy(sums, target[None, None, i])
    complete.release()
    if warp == 0:
        fill.tail()
        if leads:
            finish.tail()
    pipeline.sync(barrier_id=1)
    tensor_memory.free(first)


@cute.jit
def product(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, pair: cutlass.Constexpr):
    size = 2 if cutlass.const_expr(pair) else 1
    group = tcgen05.CtaGroup.TWO if cutlass.const_expr(pair) else tcgen05.CtaGroup.ONE
    major = cute.nvgpu.OperandMajorMode.K
    tile = (ROWS * size, KEYS, DEPTH)
    shape, source = (*tile[:2], 16), tcgen05.OperandSource.SMEM
    op = tcgen05.MmaF16BF16Op(cutlass.Float16, cutlass.Float32, shape, group, source, major, major)
    mma = cute.make_tiled_mma(op)
    a_layout = blackwell.make_smem_layout_a(mma, tile, a.element_type, STAGES)
    b_layout = blackwell.make_smem_layout_b(mma, tile, b.element_type, STAGES)
    ctas = cute.tiled_divide(cute.make_layout((size, 1, 1)), (mma.thr_id,))
    load = cpasync.CopyBulkTensorTileG2SOp(group)
    stage_a, stage_b = (cute.select(layout, mode=[0, 1, 2]) for layout in (a_layout, b_layout))
    load_a, tiles_a = cute.nvgpu.make_tiled_tma_atom_A(load, a, stage_a, tile, mma, ctas.shape)
    load_b, tiles_b = cute.nvgpu.make_tiled_tma_atom_B(load, b, stage_b, tile, mma, ctas.shape)
    grid = (a.shape[0] // ROWS, b.shape[0] // KEYS, 1)
    product_kernel(mma, load_a, tiles_a, load_b, tiles_b, c, a_layout, b_layout, ctas, tile).launch(
        grid=grid, block=(THREADS, 1, 1), cluster=(size, 1, 1)
    )
