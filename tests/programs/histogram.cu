#include <cstdio>
#include <vector>

__global__ void count(const unsigned char* data, int n, unsigned* bins) {
    __shared__ unsigned mine[16];
    if (threadIdx.x < 16) mine[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&mine[data[i] % 16], 1u);
    __syncthreads();
    if (threadIdx.x < 16) atomicAdd(&bins[threadIdx.x], mine[threadIdx.x]);
}

int main() {
    cudaDeviceProp has;
    int multiprocessors = 0, blocks = 0, device = -1, devices = 0;
    cudaGetDeviceCount(&devices), cudaGetDevice(&device), cudaGetDeviceProperties(&has, 0);
    cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, count, 128, 0);
    cudaFuncAttributes attributes;
    cudaFuncGetAttributes(&attributes, count);
    printf("%s, %d.%d, %zu B\n", has.name, has.major, has.minor, attributes.sharedSizeBytes);
    if (devices != 1 || device || has.multiProcessorCount != multiprocessors || has.warpSize != 32) return 2;
    if (blocks < 1 || attributes.sharedSizeBytes != 64 || attributes.maxThreadsPerBlock != 1024) return 3;
    if (attributes.ptxVersion != 80 || attributes.binaryVersion != 80) return 4;  // architectures, not the ISA's version
    const int n = 4000;
    std::vector<unsigned char> data(n);
    unsigned expected[16] = {}, found[16], *bins;
    for (int i = 0; i < n; i++) expected[(data[i] = i * 37 % 251) % 16]++;
    unsigned char* d;
    cudaMalloc(&d, n), cudaMalloc(&bins, sizeof found);
    cudaMemcpy(d, data.data(), n, cudaMemcpyHostToDevice);
    cudaMemset(bins, 0, sizeof found);
    count<<<multiprocessors, 128>>>(d, n, bins);
    cudaMemcpy(found, bins, sizeof found, cudaMemcpyDeviceToHost);
    int wrong = 0;
    for (int i = 0; i < 16; i++) wrong += found[i] != expected[i];
    return wrong;
}
