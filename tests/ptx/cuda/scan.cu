// Prefix sums, one block each.

extern "C" __global__ void scan_hillis_steele(const int *x, int *out, int n) {
    extern __shared__ int two[];  // two buffers of n
    int i = threadIdx.x, from = 0, to = n;
    if (i < n) two[i] = x[i];
    __syncthreads();
    for (int step = 1; step < n; step <<= 1) {
        if (i < n) two[to + i] = two[from + i] + (i >= step ? two[from + i - step] : 0);
        int swap = from;
        from = to;
        to = swap;
        __syncthreads();
    }
    if (i < n) out[i] = two[from + i];
}

// Exclusive; 2 * blockDim.x elements, a power of two.
extern "C" __global__ void scan_blelloch(const int *x, int *out) {
    __shared__ int tile[256];
    int i = threadIdx.x, n = 2 * blockDim.x, step = 1;
    tile[2 * i] = x[2 * i];
    tile[2 * i + 1] = x[2 * i + 1];
    for (int count = n >> 1; count > 0; count >>= 1) {
        __syncthreads();
        if (i < count) tile[step * (2 * i + 2) - 1] += tile[step * (2 * i + 1) - 1];
        step <<= 1;
    }
    if (i == 0) tile[n - 1] = 0;
    for (int count = 1; count < n; count <<= 1) {
        step >>= 1;
        __syncthreads();
        if (i < count) {
            int left = step * (2 * i + 1) - 1, right = step * (2 * i + 2) - 1;
            int kept = tile[left];
            tile[left] = tile[right];
            tile[right] += kept;
        }
    }
    __syncthreads();
    out[2 * i] = tile[2 * i];
    out[2 * i + 1] = tile[2 * i + 1];
}

// Inclusive, a warp scan of each warp and one of the warps' sums; 64-bit values.
extern "C" __global__ void scan_warp(const long long *x, long long *out) {
    __shared__ long long sums[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    long long v = x[threadIdx.x];
    for (int step = 1; step < 32; step <<= 1) {
        long long below = __shfl_up_sync(0xffffffffu, v, step);
        if (lane >= step) v += below;
    }
    if (lane == 31) sums[warp] = v;
    __syncthreads();
    if (warp == 0) {
        long long s = lane < blockDim.x / 32 ? sums[lane] : 0;
        for (int step = 1; step < 32; step <<= 1) {
            long long below = __shfl_up_sync(0xffffffffu, s, step);
            if (lane >= step) s += below;
        }
        sums[lane] = s;
    }
    __syncthreads();
    out[threadIdx.x] = v + (warp > 0 ? sums[warp - 1] : 0);
}

// Keeps the positive values in order: ballots and population counts.
extern "C" __global__ void compact(const int *x, int *out, int *count) {
    __shared__ int of_warp[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int v = x[threadIdx.x];
    unsigned int kept = __ballot_sync(0xffffffffu, v > 0);
    if (lane == 0) of_warp[warp] = __popc(kept);
    __syncthreads();
    int before = 0;
    for (int w = 0; w < warp; w++) before += of_warp[w];
    if (v > 0) out[before + __popc(kept & ((1u << lane) - 1))] = v;
    if (threadIdx.x == blockDim.x - 1) *count = before + __popc(kept);
}
