#include <cooperative_groups.h>
#include <cstdio>
#include <thread>

namespace cg = cooperative_groups;

__global__ void neighbours(int* out) {  // each CTA reads the shared memory of the other one of its cluster
    __shared__ int mine;
    auto cluster = cg::this_cluster();
    if (!threadIdx.x) mine = 10 * blockIdx.x;
    cluster.sync();
    if (!threadIdx.x) out[blockIdx.x] = *cluster.map_shared_rank(&mine, cluster.block_rank() ^ 1);
    cluster.sync();
}

__global__ void whole_grid(int* x, int* sum) {
    x[blockIdx.x] = blockIdx.x + 1;
    cg::this_grid().sync();
    if (!blockIdx.x)
        for (int i = 0; i < gridDim.x; i++) *sum += x[i];
}

int main() {
    int *d, found[4], *sum, called = 0, wrong = 0;
    size_t left, total, after;
    cudaMemGetInfo(&left, &total);
    cudaMallocAsync(&d, 4 * sizeof(int), 0);
    cudaMemGetInfo(&after, &total);
    cudaHostAlloc(&sum, sizeof(int), cudaHostAllocMapped);
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = 2, attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    config.gridDim = 4, config.blockDim = 32, config.attrs = &attribute, config.numAttrs = 1;
    wrong += cudaLaunchKernelEx(&config, neighbours, d) != cudaSuccess;
    int clusters = 0, largest = 0;
    wrong += cudaOccupancyMaxActiveClusters(&clusters, neighbours, &config) != cudaSuccess || clusters != 16 * 32 / 2;
    wrong += cudaOccupancyMaxPotentialClusterSize(&largest, neighbours, &config) != cudaSuccess || largest != 8;
    cudaLaunchAttribute hints[3] = {attribute};  // which bind nothing here
    hints[1].id = cudaLaunchAttributePriority, hints[2].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    config.attrs = hints, config.numAttrs = 3;
    wrong += cudaLaunchKernelEx(&config, neighbours, d) != cudaSuccess;
    cudaMemcpy(found, d, sizeof found, cudaMemcpyDeviceToHost);
    for (int i = 0; i < 4; i++) wrong += found[i] != 10 * (i ^ 1);
    *sum = 100;
    int* alias;
    cudaHostGetDevicePointer((void**)&alias, sum, 0);
    void* args[] = {&d, &alias};
    // Another thread: its errors are its own, the device is the same.
    std::thread([&] { wrong += cudaLaunchCooperativeKernel(whole_grid, dim3(4), dim3(1), args, 0, 0) != cudaSuccess; }).join();
    cudaDeviceSynchronize();
    // The device has so many CTAs at once; more cannot wait for each other.
    wrong += cudaLaunchCooperativeKernel(whole_grid, dim3(16 * 32 + 1), dim3(1), args, 0, 0) != cudaErrorCooperativeLaunchTooLarge;
    cudaGetLastError();
    wrong += *sum != 110 || left - after != sizeof found;
    cudaLaunchHostFunc(0, [](void* data) { ++*(int*)data; }, &called);
    cudaMemset2D(d, 8, 255, 4, 2);
    cudaMemcpy(found, d, sizeof found, cudaMemcpyDeviceToHost);
    wrong += called != 1 || found[0] != -1 || found[1] != 2 || found[2] != -1 || found[3] != 4;
    cudaFreeAsync(d, 0), cudaFreeHost(sum);
    printf("wrong %d\n", wrong);
    return wrong;
}
