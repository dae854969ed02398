#include <cstdio>

__global__ void sums(const int* x, int* out, int n) {
    extern __shared__ int part[];
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    part[t] = i < n ? x[i] : 0;
    __syncthreads();
    for (int half = blockDim.x / 2; half; half /= 2) {
        if (t < half) part[t] += part[t + half];
        __syncthreads();
    }
    if (!t) out[blockIdx.x] = part[0];
}

int main() {
    const int n = 5000, threads = 256, blocks = (n + threads - 1) / threads;
    int *x, *out, total = 0;
    cudaMallocManaged(&x, n * sizeof(int));  // the host writes it in place
    cudaMallocHost(&out, blocks * sizeof(int));
    for (int i = 0; i < n; i++) x[i] = i;
    sums<<<blocks, threads, threads * sizeof(int)>>>(x, out, n);
    cudaDeviceSynchronize();
    for (int i = 0; i < blocks; i++) total += out[i];
    cudaFree(x);
    cudaFreeHost(out);
    printf("sum %d\n", total);
    return total != n * (n - 1) / 2;
}
