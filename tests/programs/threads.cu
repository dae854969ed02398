// Threads of the host, each with its own stream, and memory that a kernel allocates.
#include <cstdio>
#include <thread>
#include <vector>

__global__ void add_index(int* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += i;
}

__global__ void allocate(int* out) {
    int* p = (int*)malloc(4 * sizeof(int));
    p[threadIdx.x] = 3;
    out[threadIdx.x] = p[threadIdx.x];
    free(p);
}

int main() {
    int found[4] = {}, wrong = 0, *out;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++)
        threads.emplace_back([t, &found] {
            int *x, host[1000];
            cudaStream_t stream;
            cudaStreamCreate(&stream);
            cudaMallocAsync(&x, sizeof host, stream), cudaMemsetAsync(x, 0, sizeof host, stream);
            add_index<<<8, 128, 0, stream>>>(x, 1000);
            cudaMemcpyAsync(host, x, sizeof host, cudaMemcpyDeviceToHost, stream);
            cudaStreamSynchronize(stream);
            found[t] = host[999];
            cudaFreeAsync(x, stream), cudaStreamDestroy(stream);
        });
    for (auto& thread : threads) thread.join();
    for (int n : found) wrong += n != 999;
    cudaMalloc(&out, 16);
    allocate<<<1, 4>>>(out);
    cudaMemcpy(found, out, 16, cudaMemcpyDeviceToHost);
    for (int n : found) wrong += n != 3;
    printf("wrong %d\n", wrong);
    return wrong;
}
