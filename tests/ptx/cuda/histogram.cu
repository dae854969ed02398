// Histograms: bins in shared memory merged by atomics.

extern "C" __global__ void histogram_bytes(const unsigned char *x, unsigned int *bins, int n) {
    __shared__ unsigned int tile[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) tile[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&tile[x[i]], 1u);
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x)
        if (tile[i]) atomicAdd(&bins[i], tile[i]);
}

// Lanes with the same bin elect one of them to add for all.
extern "C" __global__ void histogram_match(const unsigned char *x, unsigned int *bins, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned int mask = __ballot_sync(0xffffffffu, i < n);
    if (i < n) {
        unsigned int same = __match_any_sync(mask, (unsigned int)x[i]);
        if (__ffs(same) - 1 == (threadIdx.x & 31)) atomicAdd(&bins[x[i]], (unsigned int)__popc(same));
    }
}

// 64-bit and minimum/maximum/bitwise atomics of one bin's values.
extern "C" __global__ void histogram_extremes(const int *x, int *low, int *high, unsigned int *bits,
                                              int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int bin = x[i] & 7;
    atomicMin(&low[bin], x[i]);
    atomicMax(&high[bin], x[i]);
    atomicOr(&bits[bin], 1u << ((unsigned int)x[i] % 31u));
    atomicXor(&bits[8 + bin], (unsigned int)x[i]);
    atomicAnd(&bits[16 + bin], ~(1u << ((unsigned int)x[i] % 29u)));
}
