"""The kernel of tests/frontends/test_cute_scaled.py: C = A B^T of e2m1, 16 elements with a scale factor."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
import cutlass.utils.blackwell_helpers as blackwell
import cutlass.utils.blockscaled_layout as scales
from cutlass import pipeline
from cutlass.cute.nvgpu import cpasync, tcgen05

THREADS = 128
STAGES = 2
COLUMNS = 512  # of tensor memory
TILE = 128, 128, 256  # of C, and of a stage along k
BLOCK = 16  # elements with one scale factor


@cute.kernel
def product_kernel(  # noqa: PLR0915  # CuTe DSL takes the tensors of a kernel apart in it
    mma: cute.TiledMma,
    loads: list,
    tensors: list,
    layouts: list,
    c: cute.Tensor,
    stage_bytes: cutlass.Constexpr,
):
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    x, y, _ = cute.arch.block_idx()

    memory = cutlass.memory.SmemAllocator()
    filled = memory.allocate_array(cutlass.Int64, 2 * STAGES)
    done = memory.allocate_array(cutlass.Int64, 2)
    columns = memory.allocate_array(cutlass.Int32, 1)
    one = pipeline.CooperativeGroup(pipeline.Agent.Thread)
    fill, use = pipeline.PipelineTmaUmma.create(
        num_stages=STAGES,
        producer_group=one,
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 1),
        tx_count=stage_bytes,
        barrier_storage=filled,
    ).make_participants()
    finish, wait = pipeline.PipelineUmmaAsync.create(
        num_stages=1,
        producer_group=one,
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, THREADS),
        barrier_storage=done,
    ).make_participants()

    shared_a = memory.allocate_tensor(cutlass.Float4E2M1FN, layouts[0].outer, 1024, layouts[0].inner)
    shared_b = memory.allocate_tensor(cutlass.Float4E2M1FN, layouts[1].outer, 1024, layouts[1].inner)
    shared_sa = memory.allocate_tensor(cutlass.Float8E4M3FN, layouts[2], 1024)
    shared_sb = memory.allocate_tensor(cutlass.Float8E4M3FN, layouts[3], 1024)
    part = mma.get_slice(0)
    at = (x, y, None)
    to, source = [], []
    for i, shared in enumerate((shared_a, shared_b, shared_sa, shared_sb)):
        of_a = i % 2 == 0
        tiles = cute.local_tile(tensors[i], TILE, at, proj=(1, None, 1) if of_a else (None, 1, 1))
        cut = part.partition_A(tiles) if of_a else part.partition_B(tiles)
        there, here = cpasync.tma_partition(
            loads[i], 0, cute.make_layout(1), cute.group_modes(shared, 0, 3), cute.group_modes(cut, 0, 3)
        )
        to.append(cute.filter_zeros(there) if i > 1 else there)
        source.append(cute.filter_zeros(here) if i > 1 else here)
    of_c = part.partition_C(cute.local_tile(c, TILE, at, proj=(1, 1, None)))
    left, right = mma.make_fragment_A(shared_a), mma.make_fragment_B(shared_b)
    total = mma.make_fragment_C(mma.partition_shape_C(TILE[:2]))

    tensor_memory = cutlass.memory.TmemAllocator(
        columns, barrier_for_retrieve=pipeline.NamedBarrier(barrier_id=1, num_threads=THREADS)
    )
    tensor_memory.allocate(COLUMNS)
    tensor_memory.wait_for_alloc()
    first = tensor_memory.retrieve_ptr(cutlass.Float32)
    total = cute.make_tensor(first, total.layout)
    behind = first + tcgen05.find_tmem_tensor_col_offset(total)
    stage_sa = cute.slice_(layouts[2], (None, None, None, 0))
    scales_a = cute.make_tensor(
        cute.recast_ptr(behind, dtype=cutlass.Float8E4M3FN),
        scales.make_tmem_layout_sfa(mma, TILE, BLOCK, stage_sa),
    )
    behind = behind + tcgen05.find_tmem_tensor_col_offset(scales_a)
    stage_sb = cute.slice_(layouts[3], (None, None, None, 0))
    scales_b = cute.make_tensor(
        cute.recast_ptr(behind, dtype=cutlass.Float8E4M3FN),
        scales.make_tmem_layout_sfb(mma, TILE, BLOCK, stage_sb),
    )
    copy = cute.make_copy_atom(tcgen05.Cp4x32x128bOp(tcgen05.CtaGroup.ONE), cutlass.Float8E4M3FN)
    to_sa, to_sb = cute.filter_zeros(scales_a), cute.filter_zeros(scales_b)
    move_a, move_b = tcgen05.make_s2t_copy(copy, to_sa), tcgen05.make_s2t_copy(copy, to_sb)
    mine_a, mine_b = move_a.get_slice(0), move_b.get_slice(0)
    from_sa, from_sb = (
        tcgen05.get_s2t_smem_desc_tensor(move, mine.partition_S(cute.filter_zeros(shared)))
        for move, mine, shared in ((move_a, mine_a, shared_sa), (move_b, mine_b, shared_sb))
    )
    to_sa, to_sb = mine_a.partition_D(to_sa), mine_b.partition_D(to_sb)

    if warp == 0:
        finish.acquire_and_advance()
        mma.set(tcgen05.Field.ACCUMULATE, False)
        for _ in cutlass.range(cute.size(source[0], mode=[1]), prefetch_stages=STAGES - 1):
            free = fill.acquire_and_advance()
            for i in cutlass.range_constexpr(4):
                cute.copy(
                    loads[i], source[i][None, free.count], to[i][None, free.index], tma_bar_ptr=free.barrier
                )
            full = use.wait_and_advance()
            cute.copy(move_a, from_sa[None, None, None, None, full.index], to_sa)
            cute.copy(move_b, from_sb[None, None, None, None, full.index], to_sb)
            for step in cutlass.range_constexpr(cute.size(left, mode=[2])):
                now = (None, None, step, full.index)
                mma.set(tcgen05.Field.SFA, scales_a[None, None, step].iterator)
                mma.set(tcgen05.Field.SFB, scales_b[None, None, step].iterator)
                cute.gemm(mma, total, left[now], right[now], total)
                mma.set(tcgen05.Field.ACCUMULATE, True)
            full.release()
        finish.commit()

    tensor_memory.relinquish_alloc_permit()
    complete = wait.wait_and_advance()
    load = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x128), cutlass.Float32)
    load_all = tcgen05.make_tmem_copy(load, total)
    mine = load_all.get_slice(thread)
    target = mine.partition_D(of_c)
    sums = cute.make_rmem_tensor(target.shape, cutlass.Float32)
    cute.copy(load_all, mine.partition_S(total), sums)
    cute.autovec_copy(sums, target)
    complete.release()
    pipeline.sync(barrier_id=1)
    tensor_memory.free(first)


@cute.jit
def product(a: cute.Pointer, b: cute.Pointer, sa: cute.Pointer, sb: cute.Pointer, c: cute.Tensor, depth: int):
    mma = cute.make_tiled_mma(
        tcgen05.MmaMXF4NVF4Op(
            cutlass.Float8E4M3FN, (*TILE[:2], 64), tcgen05.CtaGroup.ONE, tcgen05.OperandSource.SMEM
        )
    )
    k = cute.assume(depth, 32)
    layouts = [
        blackwell.make_smem_layout_a(mma, TILE, cutlass.Float4E2M1FN, STAGES),
        blackwell.make_smem_layout_b(mma, TILE, cutlass.Float4E2M1FN, STAGES),
        scales.make_smem_layout_sfa(mma, TILE, BLOCK, STAGES),
        scales.make_smem_layout_sfb(mma, TILE, BLOCK, STAGES),
    ]
    load = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
    ctas = cute.tiled_divide(cute.make_layout((1, 1, 1)), (mma.thr_id.shape,)).shape
    loads, tensors, stage_bytes = [], [], 0
    for i, (pointer, scale) in enumerate(((a, None), (b, None), (a, sa), (b, sb))):
        rows = c.shape[i % 2]
        tensor = cute.make_tensor(pointer, cute.make_layout((rows, k), stride=(k, 1)))
        more = {}
        if cutlass.const_expr(scale is not None):
            tensor = cute.make_tensor(scale, scales.tile_atom_to_shape_SF((rows, k, 1), BLOCK))[None, None, 0]
            more = {"internal_type": cutlass.Int16}
        stage = cute.slice_(layouts[i], (None, None, None, 0))
        make = cute.nvgpu.make_tiled_tma_atom_A if i % 2 == 0 else cute.nvgpu.make_tiled_tma_atom_B
        atom, tiles = make(load, tensor, stage, TILE, mma, ctas, **more)
        loads.append(atom)
        tensors.append(tiles)
        stage_bytes += cute.size_in_bytes(cutlass.Float8E4M3FN if i > 1 else cutlass.Float4E2M1FN, stage)
    product_kernel(mma, loads, tensors, layouts, c, stage_bytes).launch(
        grid=(c.shape[0] // TILE[0], c.shape[1] // TILE[1], 1), block=(THREADS, 1, 1)
    )
