#include <cstdio>

__global__ void shift(int* x) {
    __shared__ int tile[64];
    tile[threadIdx.x] = x[threadIdx.x];
    x[threadIdx.x] = tile[(threadIdx.x + 32) % 64];  // no barrier before
}

int main() {
    int* x;
    cudaMalloc(&x, 64 * sizeof(int));
    cudaMemset(x, 0, 64 * sizeof(int));
    shift<<<1, 64>>>(x);
    return cudaDeviceSynchronize();
}
