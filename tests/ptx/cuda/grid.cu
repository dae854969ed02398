// Cooperative launches: the CTAs of a grid wait for each other.
#include <cooperative_groups.h>
#include <utility>

namespace cg = cooperative_groups;

// Rounds of a[i] = 2 * b[i - 1], b[i] = a[i + 1] + r; each needs what all other blocks have written.
extern "C" __global__ void grid_rounds(const int *x, int *a, int *b, int n) {
    cg::grid_group grid = cg::this_grid();
    int i = grid.thread_rank();
    if (i < n) a[i] = x[i];
    grid.sync();
    for (int r = 0; r < 3; r++) {
        if (i < n) b[i] = a[(i + 1) % n] + r;
        grid.sync();
        if (i < n) a[i] = b[(i + n - 1) % n] * 2;
        grid.sync();
    }
}

// A barrier in two halves, and what a grid says of itself.
extern "C" __global__ void grid_facts(const int *x, int *sums, int *facts) {
    cg::grid_group grid = cg::this_grid();
    if (threadIdx.x == 0) sums[grid.block_rank()] = x[grid.block_rank()];
    auto token = grid.barrier_arrive();
    int own = grid.thread_rank() == 0 ? grid.is_valid() : 0;
    grid.barrier_wait(std::move(token));
    int all = 0;
    for (int block = 0; block < grid.num_blocks(); block++) all += sums[block];
    facts[grid.thread_rank()] = all + 1000 * own;
}
