#include <cstring>

__global__ void copy(const int* from, int* to) { if (from[threadIdx.x] > 0) to[threadIdx.x] = 1; }

int main(int count, char** words) {
    int *x, *y;
    cudaMalloc(&x, 32 * sizeof(int));
    cudaMalloc(&y, 32 * sizeof(int));
    if (count > 1 && !strcmp(words[1], "freed")) cudaMemset(x, 0, 32 * sizeof(int)), cudaFree(x);
    copy<<<1, 32>>>(x, y);  // x was never written and decides what is stored, or is freed
    return cudaDeviceSynchronize() == cudaErrorIllegalAddress ? 9 : 0;
}
