#include <cooperative_groups.h>
#include <cstdio>

__global__ void store(int* x, int at) { x[at] = 1; }
__global__ void large(int* x) {
    extern __shared__ int values[];
    values[threadIdx.x] = 1;
    x[threadIdx.x] = values[threadIdx.x];
}
__global__ void wait_for_the_grid() { cooperative_groups::this_grid().sync(); }

#define EXPECT(call, wanted)                                                     \
    do {                                                                         \
        cudaError_t got = (call);                                                \
        if (got != (wanted)) {                                                   \
            printf("%s: %s, not %s\n", #call, cudaGetErrorName(got), #wanted);   \
            return 1;                                                            \
        }                                                                        \
    } while (0)

int main() {
    int *x, host[4];
    EXPECT(cudaMalloc(&x, sizeof host), cudaSuccess);
    EXPECT(cudaSetDevice(1), cudaErrorInvalidDevice);
    EXPECT(cudaGetLastError(), cudaErrorInvalidDevice);
    EXPECT(cudaGetLastError(), cudaSuccess);
    store<<<1, 2048>>>(x, 0);
    EXPECT(cudaPeekAtLastError(), cudaErrorInvalidConfiguration);
    EXPECT(cudaGetLastError(), cudaErrorInvalidConfiguration);
    store<<<0, 32>>>(x, 0);
    EXPECT(cudaGetLastError(), cudaErrorInvalidConfiguration);
    large<<<1, 4, 60000>>>(x);
    EXPECT(cudaGetLastError(), cudaErrorInvalidValue);
    EXPECT(cudaFuncSetAttribute(large, cudaFuncAttributeMaxDynamicSharedMemorySize, 60000), cudaSuccess);
    large<<<1, 4, 60000>>>(x);
    EXPECT(cudaGetLastError(), cudaSuccess);
    EXPECT(cudaMemcpy(host, x, 400, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    EXPECT(cudaMemcpy(host, host, 4, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    EXPECT(cudaMalloc(&x, size_t(1) << 60), cudaErrorMemoryAllocation);
    EXPECT(cudaGetLastError(), cudaErrorMemoryAllocation);
    EXPECT(cudaFree(x + 1), cudaErrorInvalidValue);
    store<<<1, 1>>>(x, 1000);  // its fault is seen at the next call, and stays
    EXPECT(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    EXPECT(cudaMemcpy(host, x, 4, cudaMemcpyDeviceToHost), cudaErrorIllegalAddress);
    EXPECT(cudaGetLastError(), cudaErrorIllegalAddress);
    EXPECT(cudaGetLastError(), cudaErrorIllegalAddress);
    EXPECT(cudaDeviceReset(), cudaSuccess);
    wait_for_the_grid<<<2, 1>>>();  // an ordinary launch, whose grid has no barrier
    EXPECT(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
    EXPECT(cudaDeviceReset(), cudaSuccess);
    EXPECT(cudaLaunchCooperativeKernel((void*)wait_for_the_grid, dim3(2), dim3(1), nullptr, 0, 0), cudaSuccess);
    EXPECT(cudaDeviceSynchronize(), cudaSuccess);
    printf("as expected, %s\n", cudaGetErrorString(cudaErrorIllegalAddress));
}
