#include <cstring>

__global__ void copy(const int* from, int* to) { to[threadIdx.x] = from[threadIdx.x]; }

__global__ void count(const int* from, int* to) { if (from[threadIdx.x] == 0) atomicAdd(to, 1); }

int main(int, char** words) {
    int *x, *y, *z, host[32];
    cudaMalloc(&x, sizeof host);
    cudaMalloc(&y, sizeof host);
    cudaMalloc(&z, sizeof host);
    cudaMemset(x, 0, 16 * sizeof(int));  // the second half of x is never written
    copy<<<1, 32>>>(x, y);
    cudaMemcpy(z, y, sizeof host, cudaMemcpyDeviceToDevice);
    if (!strcmp(words[1], "set")) cudaMemset(z + 16, 0, 16 * sizeof(int));
    if (!strcmp(words[1], "again")) cudaMemset(x, 0, sizeof host), copy<<<1, 32>>>(x, z);
    if (!strcmp(words[1], "count")) count<<<1, 32>>>(z, x);
    int read = !strcmp(words[1], "half") ? 16 : 32;
    return cudaMemcpy(host, z, read * sizeof(int), cudaMemcpyDeviceToHost);
}
