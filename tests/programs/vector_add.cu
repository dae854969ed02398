#include <cmath>
#include <cstdio>
#include <vector>

__global__ void add(const float* x, const float* y, float* z, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) z[i] = x[i] + y[i];
}

int main(int argc, char** argv) {
    int n = argc > 1 ? atoi(argv[1]) : 1000, wrong = 0;
    std::vector<float> x(n), y(n), z(n);
    for (int i = 0; i < n; i++) x[i] = i, y[i] = 0.5f * i;
    float *a, *b, *c;
    cudaMalloc(&a, n * sizeof(float));
    cudaMalloc(&b, n * sizeof(float));
    cudaMalloc(&c, n * sizeof(float));
    cudaMemcpy(a, x.data(), n * sizeof(float), cudaMemcpyHostToDevice);
    cudaMemcpy(b, y.data(), n * sizeof(float), cudaMemcpyHostToDevice);
    add<<<(n + 255) / 256, 256>>>(a, b, c, n);
    cudaMemcpy(z.data(), c, n * sizeof(float), cudaMemcpyDeviceToHost);
    for (int i = 0; i < n; i++) wrong += z[i] != x[i] + y[i];
    cudaFree(a), cudaFree(b), cudaFree(c);
    printf("%d of %d wrong, %s\n", wrong, n, cudaGetErrorName(cudaGetLastError()));
    return wrong ? 3 : 0;
}
