#include <cstdio>

template <typename T, int Count> struct Row { T values[Count]; };

template <typename T, int Count, typename F>
__global__ void apply(Row<T, Count> row, T* out, F function, char odd) {
    out[threadIdx.x] = function(row.values[threadIdx.x]) + odd;
}

template <typename T> struct Power {
    T base;
    __device__ T operator()(T x) const { return x * base; }
};

template <typename T, int Count> int check(T base) {
    Row<T, Count> row;
    T out[Count], *device;
    int wrong = 0;
    for (int i = 0; i < Count; i++) row.values[i] = i + T(1);
    cudaMalloc(&device, sizeof out);
    apply<<<1, Count>>>(row, device, Power<T>{base}, 7);
    cudaMemcpy(out, device, sizeof out, cudaMemcpyDeviceToHost);
    for (int i = 0; i < Count; i++) wrong += out[i] != row.values[i] * base + 7;
    return wrong;
}

int main() {
    int wrong = check<double, 5>(1.5) + check<short, 33>(2) + check<long long, 3>(1LL << 40);
    printf("wrong %d\n", wrong);
    return wrong;
}
