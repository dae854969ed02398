#include <cstdio>
#include <vector>

__global__ void scale(float* x, float by, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) x[i] *= by;
}

int main() {
    const int n = 3000, parts = 3, each = n / parts;
    std::vector<float> x(n, 1.0f);
    float *d, milliseconds = -1;
    cudaStream_t streams[parts];
    cudaEvent_t start, end;
    if (cudaMalloc(&d, n * sizeof(float))) return 2;
    cudaEventCreate(&start), cudaEventCreate(&end);
    cudaEventRecord(start);
    for (int p = 0; p < parts; p++) {
        cudaStreamCreate(&streams[p]);
        float* at = d + p * each;
        cudaMemcpyAsync(at, &x[p * each], each * sizeof(float), cudaMemcpyHostToDevice, streams[p]);
        scale<<<2, 128, 0, streams[p]>>>(at, p + 2.0f, each);
        cudaMemcpyAsync(&x[p * each], at, each * sizeof(float), cudaMemcpyDeviceToHost, streams[p]);
    }
    for (auto stream : streams) cudaStreamSynchronize(stream), cudaStreamDestroy(stream);
    cudaEventRecord(end), cudaEventSynchronize(end);
    cudaEventElapsedTime(&milliseconds, start, end);
    int wrong = 0;
    for (int i = 0; i < n; i++) wrong += x[i] != i / each + 2.0f;
    cudaEvent_t never;
    cudaEventCreate(&never);
    bool refused = cudaEventElapsedTime(&milliseconds, start, never) == cudaErrorInvalidResourceHandle;
    printf("wrong %d, later %d, refused %d\n", wrong, milliseconds > 0, refused);
    return wrong || milliseconds <= 0 || !refused;
}
