// Sums: a tree in shared memory, warp shuffles, atomics, and the last block to finish.

// One partial sum a block; blockDim.x is a power of two.
extern "C" __global__ void reduce_tree(const int *x, int *partial, int n) {
    __shared__ int tile[256];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x] = i < n ? x[i] : 0;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half >>= 1) {
        if (threadIdx.x < half) tile[threadIdx.x] += tile[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) partial[blockIdx.x] = tile[0];
}

__device__ float warp_sum(float v) {
    for (int step = 16; step > 0; step >>= 1) v += __shfl_down_sync(0xffffffffu, v, step);
    return v;
}

extern "C" __global__ void reduce_shuffle(const float *x, float *total, int n) {
    __shared__ float of_warp[32];
    float v = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) v += x[i];
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x < 32) {
        v = threadIdx.x < blockDim.x / 32 ? of_warp[threadIdx.x] : 0.0f;
        v = warp_sum(v);
        if (threadIdx.x == 0) *total = v;
    }
}

extern "C" __global__ void reduce_atomic(const unsigned long long *x, unsigned long long *total,
                                         int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(total, x[i]);
}

__device__ unsigned int finished = 0;

// The block that finishes last adds up what the others left.
extern "C" __global__ void reduce_last_block(const float *x, volatile float *partial, float *total,
                                             int n) {
    __shared__ float of_warp[4];
    __shared__ bool last;
    float v = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        v += x[i];
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x == 0) {
        float sum = 0.0f;
        for (int w = 0; w < blockDim.x / 32; w++) sum += of_warp[w];
        partial[blockIdx.x] = sum;
        __threadfence();
        last = atomicInc(&finished, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        float sum = 0.0f;
        for (int b = 0; b < gridDim.x; b++) sum += partial[b];
        *total = sum;
    }
}

struct Extremes {
    float low, high;
    int at_low, at_high;
};

// Smallest and largest value with their places, through a structure in shared memory.
extern "C" __global__ void reduce_extremes(const float *x, Extremes *out, int n) {
    __shared__ Extremes tile[128];
    Extremes e = {x[0], x[0], 0, 0};
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        if (x[i] < e.low) e.low = x[i], e.at_low = i;
        if (x[i] > e.high) e.high = x[i], e.at_high = i;
    }
    tile[threadIdx.x] = e;
    __syncthreads();
    for (int half = 64; half > 0; half >>= 1) {
        if (threadIdx.x < half) {
            Extremes o = tile[threadIdx.x + half];
            if (o.low < e.low) e.low = o.low, e.at_low = o.at_low;
            if (o.high > e.high) e.high = o.high, e.at_high = o.at_high;
            tile[threadIdx.x] = e;
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) *out = e;
}
