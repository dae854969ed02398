// Sorting networks in shared memory, one block each.

__device__ __forceinline__ void order(unsigned int &a, unsigned int &b, bool up) {
    if ((a > b) == up) {
        unsigned int t = a;
        a = b;
        b = t;
    }
}

// n = 2 * blockDim.x, a power of two.
extern "C" __global__ void sort_bitonic(unsigned int *x, int n) {
    extern __shared__ unsigned int keys[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) keys[i] = x[i];
    for (int size = 2; size <= n; size <<= 1) {
        for (int stride = size / 2; stride > 0; stride >>= 1) {
            __syncthreads();
            int at = 2 * threadIdx.x - (threadIdx.x & (stride - 1));
            bool up = (at & size) == 0;
            order(keys[at], keys[at + stride], up);
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = keys[i];
}

extern "C" __global__ void sort_odd_even(unsigned int *x, int n) {
    __shared__ unsigned int keys[256];
    for (int i = threadIdx.x; i < n; i += blockDim.x) keys[i] = x[i];
    __syncthreads();
    for (int turn = 0; turn < n; turn++) {
        int at = 2 * threadIdx.x + (turn & 1);
        if (at + 1 < n) order(keys[at], keys[at + 1], true);
        __syncthreads();
    }
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = keys[i];
}

// Batcher's odd-even merge sort of pairs inside a warp: keys move with their payloads.
extern "C" __global__ void sort_warp(const float *keys, const int *values, float *keys_out,
                                     int *values_out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x & 31;
    float key = keys[i];
    int value = values[i];
    for (int size = 2; size <= 32; size <<= 1) {
        for (int stride = size / 2; stride > 0; stride >>= 1) {
            float other_key = __shfl_xor_sync(0xffffffffu, key, stride);
            int other_value = __shfl_xor_sync(0xffffffffu, value, stride);
            bool up = (lane & size) == 0, lower = (lane & stride) == 0;
            bool take = lower == up ? other_key < key : other_key > key;
            if (take) {
                key = other_key;
                value = other_value;
            }
        }
    }
    keys_out[i] = key;
    values_out[i] = value;
}
