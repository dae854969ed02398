#include <cstdio>

__constant__ float coefficients[3] = {1, 2, 3};
__device__ unsigned evaluated = 5;

__global__ void polynomial(const float* x, float* y) {
    float v = x[threadIdx.x];
    y[threadIdx.x] = coefficients[0] + v * (coefficients[1] + v * coefficients[2]);
    atomicAdd(&evaluated, 1u);
}

int main() {
    float x[4] = {0, 1, 2, 3}, y[4], *dx, *dy, middle = 10;
    unsigned count = 0, *where, direct = 0;
    size_t bytes = 0;
    cudaMalloc(&dx, sizeof x), cudaMalloc(&dy, sizeof y);
    cudaMemcpy(dx, x, sizeof x, cudaMemcpyDefault);
    cudaMemcpyToSymbol(coefficients, &middle, sizeof middle, sizeof middle);
    polynomial<<<1, 4>>>(dx, dy);
    cudaMemcpy(y, dy, sizeof y, cudaMemcpyDefault);
    cudaMemcpyFromSymbol(&count, evaluated, sizeof count);
    cudaGetSymbolAddress((void**)&where, evaluated);
    cudaMemcpy(&direct, where, sizeof direct, cudaMemcpyDeviceToHost);
    cudaGetSymbolSize(&bytes, coefficients);
    float too_many[4];
    bool refused = cudaMemcpyToSymbol(coefficients, too_many, sizeof too_many) == cudaErrorInvalidValue;
    int wrong = count != 9 || direct != 9 || bytes != 12 || !refused;
    for (int i = 0; i < 4; i++) wrong += y[i] != 1 + x[i] * (10 + x[i] * 3);
    printf("wrong %d\n", wrong);
    return wrong;
}
