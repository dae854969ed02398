// targets: sm_80 sm_90a
// Tiles of several warps, which meet in the shared memory that the driver reserves.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

namespace cg = cooperative_groups;

extern "C" __global__ void wide_tiles(const int *x, int *shuffled, int *sums, int *reversed) {
    extern __shared__ int kept[];
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<64> tile = cg::tiled_partition<64>(block);
    int i = threadIdx.x, v = x[i];
    kept[i] = v;
    tile.sync();
    reversed[i] = kept[i ^ 63];
    int fifth = tile.shfl(v, 5);
    tile.sync();  // the collectives do not order their reads before the next one's writes
    shuffled[i] = fifth + 1000 * tile.any(v > 90);
    tile.sync();
    sums[i] = cg::reduce(tile, v, cg::plus<int>());
}
