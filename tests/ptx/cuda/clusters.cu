// targets: sm_90a
// Clusters: distributed shared memory.
#include <cooperative_groups.h>

namespace cg = cooperative_groups;

// A histogram whose bins are spread over the two blocks of a cluster.
extern "C" __global__ void __cluster_dims__(2, 1, 1)
    cluster_histogram(const int *x, int *bins, int n, int per_block) {
    extern __shared__ int tile[];
    cg::cluster_group cluster = cg::this_cluster();
    for (int i = threadIdx.x; i < per_block; i += blockDim.x) tile[i] = 0;
    cluster.sync();
    for (int i = cluster.thread_rank(); i < n; i += cluster.size()) {
        int bin = x[i], owner = bin / per_block;
        int *remote = cluster.map_shared_rank(tile, owner);
        atomicAdd(remote + bin % per_block, 1);
    }
    cluster.sync();
    int *out = bins + cluster.block_rank() * per_block;
    for (int i = threadIdx.x; i < per_block; i += blockDim.x) atomicAdd(&out[i], tile[i]);
}

// Each block of four reads its right neighbour's tile.
extern "C" __global__ void __cluster_dims__(4, 1, 1) cluster_ring(const float *x, float *out) {
    __shared__ float tile[64];
    cg::cluster_group cluster = cg::this_cluster();
    unsigned int rank = cluster.block_rank(), blocks = cluster.num_blocks();
    int i = blockIdx.x * 64 + threadIdx.x;
    tile[threadIdx.x] = x[i] + rank;
    cluster.sync();
    const float *next = cluster.map_shared_rank(tile, (rank + 1) % blocks);
    out[i] = next[63 - threadIdx.x] * 2.0f;
    cluster.sync();
}

// The same by mapa, barrier.cluster and mbarriers of the other block.
extern "C" __global__ void __cluster_dims__(2, 1, 1) cluster_signals(const int *x, int *out) {
    __shared__ __align__(8) unsigned long long bar;
    __shared__ int box[32];
    unsigned int own = static_cast<unsigned int>(__cvta_generic_to_shared(&bar)), rank, remote, slot;
    unsigned int mine = static_cast<unsigned int>(__cvta_generic_to_shared(&box[threadIdx.x]));
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 32;" ::"r"(own));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(own), "r"(rank ^ 1));
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(slot) : "r"(mine), "r"(rank ^ 1));
    asm volatile("st.shared::cluster.s32 [%0], %1;" ::"r"(slot),
                 "r"(x[blockIdx.x * 32 + threadIdx.x] * 7)
                 : "memory");
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote)
                 : "memory");
    asm volatile(
        "{\n\t.reg .pred done;\n"
        "again:\n\t"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n\t"
        "@!done bra again;\n\t}" ::"r"(own)
        : "memory");
    out[blockIdx.x * 32 + threadIdx.x] = box[31 - threadIdx.x] + rank;
    asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
}
