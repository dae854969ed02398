#include <cstdio>
#include <vector>

constexpr int TILE = 16;

__global__ void multiply(const float* a, size_t pitch, const float* b, float* c, int n) {
    __shared__ float left[TILE][TILE], right[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    float sum = 0;
    for (int k = 0; k < n; k += TILE) {
        left[y][x] = ((const float*)((const char*)a + row * pitch))[k + x];
        right[y][x] = b[(k + y) * n + column];
        __syncthreads();
        for (int i = 0; i < TILE; i++) sum += left[y][i] * right[i][x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}

int main() {
    const int n = 48;
    std::vector<float> a(n * n), b(n * n), c(n * n);
    for (int i = 0; i < n * n; i++) a[i] = i % 7 - 3, b[i] = i % 5 - 2;
    float *da, *db, *dc;
    size_t pitch, bytes = n * n * sizeof(float);
    cudaMallocPitch(&da, &pitch, n * sizeof(float), n);
    cudaMalloc(&db, bytes), cudaMalloc(&dc, bytes);
    cudaMemcpy2D(da, pitch, a.data(), n * sizeof(float), n * sizeof(float), n, cudaMemcpyHostToDevice);
    cudaMemcpy(db, b.data(), bytes, cudaMemcpyHostToDevice);
    multiply<<<dim3(n / TILE, n / TILE), dim3(TILE, TILE)>>>(da, pitch, db, dc, n);
    cudaMemcpy(c.data(), dc, bytes, cudaMemcpyDeviceToHost);
    int wrong = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            float sum = 0;
            for (int k = 0; k < n; k++) sum += a[i * n + k] * b[k * n + j];
            wrong += sum != c[i * n + j];  // small integers: exact
        }
    printf("wrong %d\n", wrong);
    return wrong != 0;
}
