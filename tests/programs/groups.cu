// Cooperative groups, atomics of a scope, and copies that a barrier waits for.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cstdio>
#include <cuda/atomic>
#include <cuda/barrier>

namespace cg = cooperative_groups;

static int wrong;
#define TRUE(what) ((what) ? (void)0 : (void)(wrong++, printf("line %d: %s\n", __LINE__, #what)))

__global__ void sum_of_grid(const int* x, int* parts, int* out, int n) {
    auto grid = cg::this_grid();
    auto block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    __shared__ int sums[32];
    int mine = 0;
    for (int i = grid.thread_rank(); i < n; i += grid.size()) mine += x[i];
    mine = cg::reduce(warp, mine, cg::plus<int>());
    if (!warp.thread_rank()) sums[warp.meta_group_rank()] = mine;
    block.sync();
    if (!warp.meta_group_rank()) {
        mine = warp.thread_rank() < warp.meta_group_size() ? sums[warp.thread_rank()] : 0;
        mine = cg::reduce(warp, mine, cg::plus<int>());
        if (!warp.thread_rank()) parts[blockIdx.x] = mine;
    }
    grid.sync();
    if (!grid.thread_rank()) {
        *out = 0;
        for (int b = 0; b < gridDim.x; b++) *out += parts[b];
    }
}

__global__ void scan_of_warp(int* x) {
    x[threadIdx.x] = cg::inclusive_scan(cg::tiled_partition<32>(cg::this_thread_block()), x[threadIdx.x]);
}

__global__ void every_third(int* x, int* count) {  // one atomic for the threads that are here
    if (threadIdx.x % 3) return;
    auto here = cg::coalesced_threads();
    int first = 0;
    if (!here.thread_rank()) first = atomicAdd(count, here.size());
    x[here.shfl(first, 0) + here.thread_rank()] = threadIdx.x;
}

__global__ void count(int* x) {
    cuda::atomic_ref<int, cuda::thread_scope_device>(*x).fetch_add(1, cuda::memory_order_relaxed);
}

#pragma nv_diag_suppress static_var_with_dynamic_init
__global__ void reverse(const int* in, int* out) {
    __shared__ int staged[256];
    __shared__ cuda::barrier<cuda::thread_scope_block> arrived;
    auto block = cg::this_thread_block();
    if (!block.thread_rank()) init(&arrived, block.size());
    block.sync();
    cuda::memcpy_async(block, staged, in, sizeof staged, arrived);
    arrived.arrive_and_wait();
    out[threadIdx.x] = staged[255 - threadIdx.x];
}

int main() {
    int n = 10000, host[10000], *x, *parts, *out, found, sum = 0;
    for (int i = 0; i < n; i++) sum += host[i] = i % 17;
    cudaMalloc(&x, sizeof host), cudaMalloc(&parts, 4096), cudaMalloc(&out, 4);
    cudaMemcpy(x, host, sizeof host, cudaMemcpyHostToDevice);
    void* args[] = {&x, &parts, &out, &n};
    TRUE(cudaLaunchCooperativeKernel((void*)sum_of_grid, 8, 256, args, 0, 0) == cudaSuccess);
    cudaMemcpy(&found, out, 4, cudaMemcpyDeviceToHost);
    TRUE(found == sum);
    TRUE(cudaLaunchCooperativeKernel((void*)sum_of_grid, 100000, 256, args, 0, 0) == cudaErrorCooperativeLaunchTooLarge);
    cudaGetLastError();
    scan_of_warp<<<1, 32>>>(x);
    cudaMemcpy(host, x, 128, cudaMemcpyDeviceToHost);
    for (int i = 0, all = 0; i < 32; i++) TRUE(host[i] == (all += i % 17));
    cudaMemset(out, 0, 4), every_third<<<1, 96>>>(x, out);
    cudaMemcpy(host, x, 128, cudaMemcpyDeviceToHost), cudaMemcpy(&found, out, 4, cudaMemcpyDeviceToHost);
    TRUE(found == 32);
    for (int i = 0, all = 0; i < 32; i++) all += host[i], TRUE(i < 31 || all == 3 * 31 * 16);
    cudaMemset(out, 0, 4), count<<<4, 64>>>(out);
    cudaMemcpy(&found, out, 4, cudaMemcpyDeviceToHost);
    TRUE(found == 256);
    for (int i = 0; i < 256; i++) host[i] = i;
    cudaMemcpy(x, host, 1024, cudaMemcpyHostToDevice), reverse<<<1, 256>>>(x, parts);
    cudaMemcpy(host, parts, 1024, cudaMemcpyDeviceToHost);
    for (int i = 0; i < 256; i++) TRUE(host[i] == 255 - i);
    TRUE(cudaDeviceSynchronize() == cudaSuccess);
    printf("wrong %d\n", wrong);
    return wrong;
}
