// Cooperative groups.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>

namespace cg = cooperative_groups;

// Sums by tiles of 4, 8, 16, 32 threads; out[4] arrays of blockDim.x.
template <int Size>
__device__ void sum_of_tile(const cg::thread_block &block, int v, int *out) {
    cg::thread_block_tile<Size> tile = cg::tiled_partition<Size>(block);
    for (int step = Size / 2; step > 0; step /= 2) v += tile.shfl_xor(v, step);
    out[block.thread_rank()] = v + 1000 * tile.meta_group_rank() + 100000 * (tile.thread_rank() == 0);
}

extern "C" __global__ void group_tiles(const int *x, int *out) {
    cg::thread_block block = cg::this_thread_block();
    int v = x[block.thread_rank()], n = block.size();
    sum_of_tile<4>(block, v, out);
    sum_of_tile<8>(block, v, out + n);
    sum_of_tile<16>(block, v, out + 2 * n);
    sum_of_tile<32>(block, v, out + 3 * n);
}

// The lanes that come here together take one atomic for all.
extern "C" __global__ void group_coalesced(const int *x, int *out, int *count, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && x[i] % 3 == 0) {
        cg::coalesced_group active = cg::coalesced_threads();
        int first = 0;
        if (active.thread_rank() == 0) first = atomicAdd(count, active.size());
        out[active.shfl(first, 0) + active.thread_rank()] = x[i];
    }
}

// Each lane learns the size of its group, its rank there and the group's sum.
extern "C" __global__ void group_labels(const int *x, int3 *out) {
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(cg::this_thread_block());
    int v = x[threadIdx.x];
    cg::coalesced_group same = cg::labeled_partition(warp, v % 5);
    int total = cg::reduce(same, v, cg::plus<int>());
    out[threadIdx.x] = make_int3(same.size(), same.thread_rank(), total);
}

extern "C" __global__ void group_binary(const int *x, int3 *out) {
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(cg::this_thread_block());
    int v = x[threadIdx.x];
    cg::coalesced_group half = cg::binary_partition(warp, v > 0);
    int last = half.shfl(v, half.size() - 1);
    out[threadIdx.x] = make_int3(half.size(), half.thread_rank(), last);
}

extern "C" __global__ void group_reduce(const int *x, int *sums, int *highest, int *scans) {
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<16> tile = cg::tiled_partition<16>(block);
    int v = x[block.thread_rank()];
    sums[block.thread_rank()] = cg::reduce(tile, v, cg::plus<int>());
    highest[block.thread_rank()] = cg::reduce(tile, v, cg::greater<int>());
    scans[block.thread_rank()] = cg::inclusive_scan(tile, v, cg::plus<int>());
}

extern "C" __global__ void group_block(const int *x, int *out) {
    extern __shared__ int tile[];
    cg::thread_block block = cg::this_thread_block();
    tile[block.thread_rank()] = x[block.thread_rank()];
    block.sync();
    dim3 at = block.thread_index();
    out[block.thread_rank()] =
        tile[block.size() - 1 - block.thread_rank()] + 1000 * at.x + 100000 * at.y;
}

// Votes, matches and shuffles of tiles of 8: four groups of a warp at the same instruction.
extern "C" __global__ void group_votes(const int *x, unsigned int *out) {
    cg::thread_block_tile<8> tile = cg::tiled_partition<8>(cg::this_thread_block());
    int i = threadIdx.x, n = blockDim.x, v = x[i];
    out[i] = tile.ballot(v > 0);
    out[n + i] = tile.any(v > 40) + 2 * tile.all(v > -40);
    out[2 * n + i] = tile.match_any(v % 3);
    int same = 0;
    out[3 * n + i] = tile.match_all(v / 64, same);
    out[4 * n + i] = same;
    out[5 * n + i] = tile.shfl(v, 5) - tile.shfl_down(v, 3);
}
